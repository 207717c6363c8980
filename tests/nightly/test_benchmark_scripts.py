"""The script `bench`: one tiny run, and what cannot be measured is one line."""

import errno
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import run_module

from benchmarks.scripts import bench
from benchmarks.scripts.timing import processes, record
from pipeline.utils.errors import UsageError

TINY = (
    "digits --model lenet --limit 100 --data.augment --batch-size 16"
    " --runtime.precision float32"
)


SHORT = [*TINY.split(), "--rounds", "1", "--seconds", "0.01", "--only"]


def test_every_line_is_measured_and_a_missing_peer_named(
    workplace, monkeypatch, capsys
):
    none = SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: None))
    monkeypatch.setattr(processes, "importlib", none)
    assert bench.main([*SHORT, "training,serving", "--against", "keras", "torch"]) == 0
    said = capsys.readouterr().out
    assert "PyTorch    missing: " in said.partition("measuring")[0]
    written = Path(said.split()[-1])
    assert written.parent.parent == Path("benchmarks/records")
    values = json.loads(written.read_text())
    lines = {f"{line['part']} {line['name']}": line for line in values["lines"]}
    unmeasured = {line["name"] for line in lines.values() if line["value"] is None}
    assert unmeasured == {"data", "lenet", "resident step, no augmentation", "torch"}
    assert (
        "pip install torch numpy; then add --torch-python"
        in lines["training torch"]["note"]
    )
    compared = {name for name, line in lines.items() if line["bound"]}
    assert {"training end to end", "training gradient_tape"} <= compared
    assert "serving batch 1 (repeated)" in compared
    assert lines["training keras fit, NumPy"]["ratio"][0] > 0
    assert (
        lines["serving batch 64"]["note"].startswith("p50 ")
        and "Keras 3" in values["peers"]
    )


def test_what_cannot_be_measured_or_written_is_one_line(workplace, monkeypatch, capsys):
    small = ["digits", "--data.limit", "20", "--train.accumulate", "2"]
    small += ["--only", "training", "--rounds", "1"]
    assert bench.main(small) == 1
    assert (
        "--train.batch-size 32: the split 'train' has only 1" in capsys.readouterr().out
    )
    full = OSError(errno.ENOSPC, "No space left on device", "benchmarks")
    monkeypatch.setattr(
        record.files, "write_json", lambda *_: (_ for _ in ()).throw(full)
    )
    with pytest.raises(OSError, match="No space left on device"):
        bench.main(small)
    assert "not measured" in capsys.readouterr().out  # the table comes first
    (workplace / "file").touch()
    for words, message in {
        ("--directory", "file"): "--directory: file is not a directory",
        ("--rounds", "0"): "--rounds must be a whole number from 1",
        (
            "--only",
            "training",
            "speed",
        ): "--only must be values separated by commas, each one of",
        ("nothing", "--rounds", "1"): "unknown recipe",
        ("--onyl", "training"): "unknown option '--onyl'; did you mean '--only'",
        ("--torch-python", "nowhere"): "--torch-python: nowhere is not a program",
    }.items():
        with pytest.raises(UsageError, match=message):
            bench.main(list(words))


def test_help_and_errors_do_not_import_tensorflow(workplace):
    for words in (["--help"], ["digits", "--help"], ["digits", "--epochs", "many"]):
        done = run_module(
            "benchmarks.scripts.bench",
            *words,
            cwd=workplace,
            options=["-X", "importtime"],
        )
        assert done.returncode == (2 if "many" in words else 0)
        assert not {"tensorflow", "keras", "numpy"} & set(done.stderr.split())
