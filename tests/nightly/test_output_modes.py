"""Quiet and machine-readable output: `--log.quiet`, `--log.json`."""

from pipeline.fit import main
from pipeline.utils import output

RUN = "digits --epochs 2 --data.limit 300 --log.no-tensorboard --run-directory run"


def test_a_quiet_run_prints_its_result(workplace, capsys):
    main([*RUN.split(), "--log.quiet", "--export.no-enabled"])
    printed = capsys.readouterr()
    names = [line.split()[0] for line in printed.out.splitlines()]
    assert [name for name in names if name != "note"] == ["test", "report", "export"]
    assert output.mode() == "text"
