"""`pipeline export`: a run's model again, without training; which version is
served.
"""

import errno
import functools
import json
import os
import shutil
from pathlib import Path

from pipeline.export import __main__
from pipeline.fit import main as fit_main
from pipeline.training.callbacks.checkpoint import CheckpointCallback
from pipeline.utils import temp_files

FILLED = [
    *(
        "digits",
        "--run-directory",
        "run",
        "--model.name",
        "tiny",
        "--data.limit",
        "300",
    ),
    *("--train.epochs", "2", "--train.checkpoint-steps", "1", "--log.no-tensorboard"),
]


def test_a_disk_that_stays_full_costs_neither_the_test_nor_the_weights(
    workplace, monkeypatch, tmp_path_factory, capsys
):
    """From the end of the second epoch on, no file can be created except in TMPDIR."""
    temporary = tmp_path_factory.mktemp("other")
    real_end = CheckpointCallback.on_epoch_end

    def full(real, parent):
        if Path(parent).absolute().is_relative_to(workplace):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(parent))
        return real(parent)

    def on_epoch_end(saver, epoch, logs):
        if epoch == 1:
            for name in ("folder", "file"):
                real = getattr(temp_files, name)
                patch.setattr(temp_files, name, functools.partial(full, real))
        real_end(saver, epoch, logs)

    with monkeypatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        patch.setattr(CheckpointCallback, "on_epoch_end", on_epoch_end)
        assert fit_main(FILLED) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("test       loss ") for line in lines)
    (kept,) = temporary.iterdir()
    assert f"once there is space: cp -r {kept}/. run" in "".join(lines)
    assert "next       once this is fixed: pipeline export run" in lines
    result = json.loads((kept / "result.json").read_text())
    assert result["test"]["accuracy"] >= 0 and result["export"] is None
    shutil.copytree(kept, "run", dirs_exist_ok=True)
    assert __main__.main(["run"]) == 0
    assert "trained for 12 of 12 steps" in capsys.readouterr().out
    after = json.loads(Path("run/result.json").read_text())
    assert (
        after["export"] == "saved_models/digits/1" and after["test"] == result["test"]
    )
