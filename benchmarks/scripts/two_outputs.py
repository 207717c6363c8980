"""A network with two outputs, beside plain Keras: examples per second of both in turn.

    python -m benchmarks.scripts.two_outputs

Both train the same network from the same arrays in memory with the same losses,
metrics, optimizer and batch size. Each round trains with both for three epochs; the
fastest epoch of each counts, because the first one is traced.
"""

import contextlib
import io
import tempfile
import time

import keras
import numpy as np
from keras import layers

from pipeline.fit import fit

ROUNDS = 5
COUNT = 8192
BATCH = 64
LOSSES = {"kind": "sparse_categorical_crossentropy", "size": "mse"}
METRICS = {"kind": ["accuracy"], "size": ["mae"]}


def data() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    random = np.random.default_rng(0)
    x = random.random((COUNT, 28, 28, 1), np.float32)
    kind = random.integers(0, 10, COUNT)
    return x, {"kind": kind, "size": random.random(COUNT, np.float32)}


def network() -> keras.Model:
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((28, 28, 1))
    for filters in (16, 32):
        x = layers.Conv2D(filters, 3, strides=2, activation="relu")(x)
    x = layers.Dense(64, activation="relu")(layers.Flatten()(x))
    outputs = {
        "kind": layers.Dense(10, activation="softmax", name="kind")(x),
        "size": layers.Dense(1, name="size")(x),
    }
    return keras.Model(inputs, outputs)


class Epochs(keras.callbacks.Callback):
    """Seconds of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self._start = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        self.seconds.append(time.perf_counter() - self._start)


def speed_of_keras(x: np.ndarray, y: dict[str, np.ndarray]) -> float:
    model = network()
    model.compile("adam", LOSSES, metrics=METRICS)
    epochs = Epochs()
    model.fit(x, y, BATCH, epochs=3, verbose=0, callbacks=[epochs])
    return COUNT / min(epochs.seconds)


def speed_here(x: np.ndarray, y: dict[str, np.ndarray]) -> float:
    silence = contextlib.redirect_stdout(io.StringIO())
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), silence:
        run = fit(
            network(),
            data=(x, y),
            validation_data=(x[:64], {name: part[:64] for name, part in y.items()}),
            test_data=(x[:64], {name: part[:64] for name, part in y.items()}),
            loss=LOSSES,
            metrics=METRICS,
            epochs=3,
            batch_size=BATCH,
            optimizer="adam",
            runtime={"precision": "float32"},
            export={"enabled": False},
        )
    return max(run.history["examples_per_second"])


if __name__ == "__main__":
    x, y = data()
    ratios = []
    for number in range(ROUNDS):
        theirs, ours = speed_of_keras(x, y), speed_here(x, y)
        ratios.append(ours / theirs)
        print(
            f"round {number + 1}: Keras {theirs:,.0f}, here {ours:,.0f} examples/s,"
            f" ratio {ratios[-1]:.2f}",
            flush=True,
        )
    print(
        f"median ratio {np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    )
