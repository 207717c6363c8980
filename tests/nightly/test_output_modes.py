"""Quiet and machine-readable output: `--log.quiet`, `--log.json`."""

import json

import pytest

from pipeline.fit import main
from pipeline.utils import output

RUN = "digits --epochs 2 --data.limit 300 --log.no-tensorboard --run-directory run"


def test_a_quiet_run_prints_its_result(workplace, capsys):
    main([*RUN.split(), "--log.quiet", "--export.no-enabled"])
    printed = capsys.readouterr()
    names = [line.split()[0] for line in printed.out.splitlines()]
    assert [name for name in names if name not in ("note", "warning")] == [
        "test",
        "report",
        "export",
    ]
    assert output.mode() == "text"


RUN_OF_JSON = (
    "digits --epochs 2 --model tiny --data.limit 300 --log.no-tensorboard"
    " --run-directory run"
)


def test_a_run_prints_json_and_nothing_else(workplace, capsys):
    assert main([*RUN_OF_JSON.split(), "--log.json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(isinstance(event["text"], str) for event in events)
    names = [event["event"] for event in events]
    assert names.count("epoch") == 2 and {"data", "export", "report"} <= set(names)
    assert names.count("table") == names.count("mistakes") == 1
    (table,) = (event["text"] for event in events if event["event"] == "table")
    assert table.startswith("class ") and "mistakes" not in table
    epochs = [event for event in events if event["event"] == "epoch"]
    assert [(e["epoch"], e["epochs"]) for e in epochs] == [(1, 2), (2, 2)]
    lines = (workplace / "run/log.jsonl").read_text().splitlines()
    for epoch, line in zip(epochs, map(json.loads, lines), strict=True):
        assert epoch["step"] == line["step"]
        assert epoch["metrics"]["val_loss"] == pytest.approx(line["val_loss"])
    result = json.loads((workplace / "run/result.json").read_text())
    last = events[-1]
    assert last["event"] == "result" and last["split"] == "test"
    assert last["metrics"]["accuracy"] == result["test"]["accuracy"]
    assert last["export"] == result["export"] and last["verified"] is True
    assert last["run_directory"] == "run"
