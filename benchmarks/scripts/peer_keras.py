"""Trains with plain Keras, for comparison; a script that imports nothing of this
package.

For each line such as `["fit, NumPy", 2.0]` of stdin (what to measure, for how many
seconds), it prints `[images, wall seconds, CPU seconds]`. With `first-step` instead of
a specification, it ends after its first training step.
"""

import functools
import json
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # others use the GPU, too

import keras
import numpy as np
from keras import layers


def _convnet(x, filters=64, blocks=2, momentum=0.9):
    for _ in range(blocks):
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization(momentum=momentum)(x)
        x = layers.MaxPooling2D(2)(x) if x.shape[1] > 1 else x
        x = layers.ReLU()(x)
    return layers.Flatten()(x)


def _sequential(x, dropout=0.5):
    padding = "valid" if x.shape[1] >= 10 else "same"
    for filters in (32, 64):
        x = layers.Conv2D(filters, 3, padding=padding, activation="relu")(x)
        x = layers.MaxPooling2D(2)(x)
    return layers.Dropout(dropout)(layers.Flatten()(x))


def _lenet(x):
    for filters, padding in (
        (6, "same"),
        (16, "valid" if x.shape[1] >= 10 else "same"),
    ):
        x = layers.Conv2D(filters, 5, padding=padding, activation="relu")(x)
        x = layers.MaxPooling2D(2)(x)
    x = layers.Dense(120, activation="relu")(layers.Flatten()(x))
    return layers.Dense(84, activation="relu")(x)


def _resnet18(x, momentum=0.9):
    def normalized(x, filters, kernel, stride):
        x = layers.ZeroPadding2D(1)(x) if stride > 1 and kernel > 1 else x
        padding = "same" if stride == 1 else "valid"
        x = layers.Conv2D(filters, kernel, stride, padding=padding, use_bias=False)(x)
        return layers.BatchNormalization(momentum=momentum, epsilon=1e-5)(x)

    x = layers.ReLU()(normalized(x, 64, 3, 1))
    for filters in (64, 64, 128, 128, 256, 256, 512, 512):
        stride = 1 + (filters != x.shape[-1])
        branch = layers.ReLU()(normalized(x, filters, 3, stride))
        x = normalized(x, filters, 1, stride) if stride > 1 else x
        x = layers.ReLU()(layers.Add()([x, normalized(branch, filters, 3, 1)]))
    return layers.GlobalAveragePooling2D()(x)


_NETWORKS = {
    "convnet": _convnet,
    "sequential": _sequential,
    "lenet": _lenet,
    "resnet18": _resnet18,
}


def _built(spec, shape):
    x = keras.Input(shape)
    features = _NETWORKS[spec["network"]](x, **spec["options"])
    model = keras.Model(x, layers.Dense(spec["classes"])(features))
    optimizer = keras.optimizers.SGD(spec["learning_rate"], spec["momentum"])
    if spec["optimizer"] == "adam":
        optimizer = keras.optimizers.Adam(spec["learning_rate"])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


class _Stopwatch(keras.callbacks.Callback):
    """Times batches from the end of the first one; ends training after some seconds."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds, self.times = seconds, []

    def on_train_batch_end(self, batch, logs=None):
        self.times.append((len(self.times), time.perf_counter(), time.process_time()))
        self.model.stop_training = self.times[-1][1] >= self.times[0][1] + self.seconds


def _main(spec):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    images, labels = (
        np.load(f"{spec['data']}/{name}.npy", allow_pickle=False)
        for name in ("image", "label")
    )
    batch = spec["batch"]
    whole = len(images) // batch * batch  # the last batch of an epoch is full, too
    images, labels = images[:whole], labels[:whole]
    x, model = images.astype("float32") / 255, _built(spec, images.shape[1:])

    def fit(seconds, *data, model=model, **options):
        watch = _Stopwatch(seconds)
        model.fit(*data, epochs=10**6, verbose=0, callbacks=[watch], **options)
        return (np.subtract(watch.times[-1], watch.times[0]) * (batch, 1, 1)).tolist()

    def fit_dataset(seconds):
        import tensorflow as tf

        examples = (
            tf.data.Dataset.from_tensor_slices((images, labels))
            .shuffle(10_000)
            .repeat()
        )
        scaled = examples.map(
            lambda x, y: (tf.cast(x, tf.float32) / 255, y), tf.data.AUTOTUNE
        )
        data = scaled.batch(batch).prefetch(tf.data.AUTOTUNE)
        return fit(seconds, data, steps_per_epoch=len(x) // batch)

    @functools.cache
    def mixed():
        keras.config.set_dtype_policy("mixed_bfloat16")
        return _built(spec, images.shape[1:])

    runs = {
        "fit, NumPy": lambda seconds: fit(seconds, x, labels, batch_size=batch),
        "fit, tf.data": fit_dataset,
        "fit, NumPy, bfloat16": lambda seconds: fit(
            seconds, x, labels, batch_size=batch, model=mixed()
        ),
    }
    print(json.dumps(f"Keras {keras.__version__}"), file=answers, flush=True)
    for line in sys.stdin:
        name, seconds = json.loads(line)
        print(json.dumps(runs[name](seconds)), file=answers, flush=True)


def _first_step():
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = digits.images[..., None].astype("float32") / 16
    spec = {
        "network": "convnet",
        "options": {"blocks": 3},
        "classes": 10,
        "optimizer": "adam",
    }
    model = _built({**spec, "learning_rate": 0.002, "momentum": 0.0}, x.shape[1:])
    stop = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: os._exit(0)
    )
    model.fit(x, digits.target, batch_size=32, epochs=40, verbose=0, callbacks=[stop])


if __name__ == "__main__":
    _first_step() if sys.argv[1] == "first-step" else _main(json.loads(sys.argv[1]))
