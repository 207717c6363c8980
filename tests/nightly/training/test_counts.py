"""What training costs in counts, which no other process on the machine can change."""

import gc
import math

import keras
import psutil
import pytest
from tensorflow.python.framework import ops

from pipeline.fit import fit
from pipeline.training import distributed

EPOCHS, CALL = 4, 3


class Counted(keras.callbacks.Callback):
    """Open files and Python objects at the end of each epoch."""

    def __init__(self):
        super().__init__()
        self.files, self.objects = [], []

    def on_epoch_end(self, epoch, logs=None):
        gc.collect()
        self.files.append(psutil.Process().num_fds())
        self.objects.append(len(gc.get_objects()))


@pytest.fixture
def counts(monkeypatch):
    """The names of the compiled functions that were called, and those that the host
    waited for.
    """
    calls, waits, busy = [], [], []
    original, convert = distributed.StepFunction.__call__, ops._EagerTensorBase.numpy

    def call(self, iterator=None):
        busy.append(self._name)
        calls.append(self._name)
        return original(self, iterator)

    def numpy(self):
        if busy:
            waits.append(busy[-1])
            busy.clear()
        return convert(self)

    monkeypatch.setattr(distributed.StepFunction, "__call__", call)
    monkeypatch.setattr(ops._EagerTensorBase, "numpy", numpy)
    for name in ("__float__", "__int__", "__bool__", "__array__", "__index__"):
        monkeypatch.setattr(ops._EagerTensorBase, name, _through(name, numpy))
    return calls, waits


def _through(name, numpy):
    original = getattr(ops._EagerTensorBase, name)

    def method(self, *arguments, **options):
        numpy(self)
        return original(self, *arguments, **options)

    return method


@pytest.mark.parametrize(
    "engine", ["model_fit", pytest.param("gradient_tape", marks=pytest.mark.long)]
)
def test_calls_waits_and_open_files_of_a_run(tmp_path, counts, engine):
    calls, waits = counts
    counted = Counted()
    run = fit(
        "digits",
        data={"limit": 120, "validation": 0.2, "test": 0.2},
        model={"name": "tiny", "options": {}},
        train={
            "engine": engine,
            "epochs": EPOCHS,
            "batch_size": 8,
            "steps_per_execution": CALL,
        },
        callbacks=[counted],
        runtime={"precision": "float32"},
        export={"enabled": False},
        run_directory=tmp_path,
    )
    steps = run.network.step.position // EPOCHS
    assert calls.count("train") == EPOCHS * math.ceil(steps / CALL)
    # After each call, for the progress and for bad steps: `auto` makes at most two a
    # second.
    assert waits.count("train") == calls.count("train")
    assert waits.count("evaluate") <= calls.count("evaluate") == EPOCHS
    assert counted.files[-1] == counted.files[1]
    assert counted.objects[-1] - counted.objects[1] < 100 * (EPOCHS - 2)
