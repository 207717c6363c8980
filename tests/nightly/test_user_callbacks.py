"""Callbacks of the user, in addition to those of every run."""

import sys

import pytest
from short_run import options

from pipeline.config import registry
from pipeline.fit import fit
from pipeline.training import run_callbacks
from pipeline.training.callback_context import CallbackContext
from pipeline.training.callbacks.checkpoint import CheckpointCallback

SOURCE = """
import keras

SEEN = []


def record(context, *, epochs: int = 100):
    return Record(context, epochs)


class Record(keras.callbacks.Callback):
    def __init__(self, context, epochs):
        super().__init__()
        self.context, self.epochs = context, epochs
        SEEN.append(("context", context))

    def on_train_begin(self, logs=None):
        SEEN.append(("train begin", self.model.step is not None))

    def on_epoch_begin(self, epoch, logs=None):
        SEEN.append(("epoch begin", epoch))

    def on_train_batch_end(self, batch, logs=None):
        SEEN.append(("batch end", batch, sorted(logs)))

    def on_test_end(self, logs=None):
        SEEN.append(("test end", sorted(logs)))

    def on_epoch_end(self, epoch, logs=None):
        lines = self.context.run.log.read_text().splitlines()
        history = self.context.checkpoint.history["loss"]
        SEEN.append(("epoch end", epoch, sorted(logs), len(lines), len(history)))
        self.model.stop_training = epoch + 1 == self.epochs
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The user's module."""
    (tmp_path / "own_callbacks.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_callbacks", raising=False)
    return registry.load("callbacks", "own_callbacks.record").__globals__


def test_it_is_called_after_those_of_every_run_and_can_end_training(
    own, monkeypatch, capsys
):
    built, standard = [], run_callbacks.create
    monkeypatch.setattr(
        run_callbacks,
        "create",
        lambda context: built.append(standard(context)) or built[-1],
    )
    changes = options(**{"own_callbacks.record": {"epochs": 2}})
    changes["train"] |= {"weight_decay": 0.01, "label_smoothing": 0.1}
    run = fit("digits", run_directory="run", **changes)
    (_, context), *calls = own["SEEN"]
    assert isinstance(context, CallbackContext) and context.run.path == run.directory
    *before, checkpoint, logger, last = built[-1]
    assert (
        isinstance(checkpoint, CheckpointCallback) and checkpoint is context.checkpoint
    )
    names = [type(callback).__name__ for callback in (*before, logger, last)]
    assert names == [
        "GradientMonitor",
        "Unfreeze",
        "AverageWeights",
        "LogLearningRate",
        "Throughput",
        "TerminateOnNaN",
        "EarlyStopping",
        "MetricLogger",
        "Record",
    ]
    # A line of the log and a value of the history for each epoch so far.
    ends = [call for call in calls if call[0] == "epoch end"]
    assert [(epoch, lines, values) for _, epoch, _, lines, values in ends] == [
        (0, 1, 1),
        (1, 2, 2),
    ]
    assert {"val_loss", "gradient_norm", "examples_per_second", "learning_rate"} <= {
        *ends[0][2]
    }
    assert calls[:2] == [("train begin", True), ("epoch begin", 0)]
    assert calls[2] == ("batch end", 1, ["accuracy", "loss"])
    assert (
        run.result["steps"]
        == 2 * context.batches.steps_per_epoch
        < context.batches.last_step
    )
    said = capsys.readouterr().out
    assert "\nstopped    after epoch 2: a callback\n" in said
    update = "adam, cosine from 0.002, weight decay 0.01, label smoothing 0.1 (in"
    assert f"\noptimizer  {update} training only)\n" in said
    # The run stays ended: nothing is trained when the command is repeated.
    del own["SEEN"][:]
    again = fit("digits", run_directory="run", **changes)
    assert own["SEEN"] == [] and again.test == run.test and again.history == run.history
    step = run.result["steps"]
    assert f"\nended      by a callback at step {step}; " in capsys.readouterr().out
    # With more epochs, it continues.
    changes["train"]["epochs"] = 4
    longer = fit("digits", run_directory="run", force=True, **changes)
    assert len(longer.history["loss"]) == 4 and "ended " not in capsys.readouterr().out
