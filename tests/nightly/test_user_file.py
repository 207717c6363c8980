"""A user's own Keras model, data, loss, metrics and callbacks, handed to `fit`."""

import json

import pytest
from processes import run_python

FILE = '''
import keras


def small(input_shape, classes, width=8):
    """A user's network."""
    layers = keras.layers
    return keras.Sequential(
        [keras.Input(input_shape), layers.Rescaling(1 / 255), layers.Flatten(),
         layers.Dense(width, activation="relu"), layers.Dropout(0.2), layers.Dense(classes)]
    )


def stripes(count=200):
    """A user's data."""
    import numpy as np

    labels = np.arange(count) % 2
    images = np.random.default_rng(0).integers(0, 99, (count, 8, 8), np.uint8)
    images[labels == 1, ::2] += 120
    return images, labels


def error(y_true, y_pred):
    """A user's loss."""
    return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)


def sure(y_true, y_pred):
    """A user's metric."""
    return keras.ops.max(y_pred, axis=-1)


class Stop(keras.callbacks.Callback):
    def __init__(self, after=99):
        super().__init__()
        self.after = after

    def on_epoch_end(self, epoch, logs=None):
        if epoch >= self.after:
            raise RuntimeError("stopped by the user's callback")
'''


OPTIONS = [
    *(
        "--source.name",
        "mine.py:stripes",
        "--model.name",
        "mine.py:small",
        "--model.width",
        "16",
    ),
    *("--train.loss", "mine.py:error", "--train.metrics", "mine.py:sure"),
    *("--train.optimizer", "lion", "--train.epochs", "4", "--runtime.devices", "cpu"),
    *("--train.checkpoint-steps", "1"),
]


@pytest.mark.parametrize(
    ("engine", "replicas"),
    [
        ("gradient_tape", 2),
        pytest.param("model_fit", 1, marks=pytest.mark.long),
        pytest.param("model_fit", 2, marks=pytest.mark.long),
        pytest.param("gradient_tape", 1, marks=pytest.mark.long),
    ],
)
def test_a_file_of_ones_own_trains_stops_resumes_exports_and_verifies(
    workplace, engine, replicas
):
    """Nothing else is touched; the resumed run ends with the weights of one that never
    stopped.
    """
    (workplace / "mine.py").write_text(FILE)
    options = [*OPTIONS, "--train.engine", engine, "--runtime.replicas", str(replicas)]

    def run(place, *more):
        words = ["fit", "digits", "--run-directory", place, *options, *more]
        return run_python("-m", "pipeline", *words, cwd=workplace)

    stopped = run(
        "parts", "--train.callbacks", "mine.py:Stop", "after=1", "--export.no-enabled"
    )
    assert (
        stopped.returncode == 1 and "stopped by the user's callback" in stopped.stderr
    )
    resumed = run("parts", "--force", "--train.callbacks", "--export.no-enabled")
    assert resumed.returncode == 0, resumed.stderr[-1000:]
    whole = run("whole", "--export.no-enabled")
    assert whole.returncode == 0, whole.stderr[-1000:]
    paths = (workplace / place / "result.json" for place in ("parts", "whole"))
    one, other = (json.loads(path.read_text()) for path in paths)
    assert one["test"] == other["test"] and 0 < one["test"]["sure"] <= 1
    exported = run_python("-m", "pipeline.export", "parts", cwd=workplace)
    assert exported.returncode == 0 and "verified: " in exported.stdout, (
        exported.stderr[-1000:]
    )
