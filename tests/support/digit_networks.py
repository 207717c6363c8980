"""A user's own networks for digits, and short runs of them."""

import keras
from sklearn.datasets import load_digits

from pipeline.fit import fit

DIGITS = load_digits()
X, Y = (DIGITS.images[:600] * 15.9).astype("uint8"), DIGITS.target[:600]
NAMES = [f"digit {n}" for n in range(10)]
OFF = {"export": {"enabled": False}, "log": {"progress": False, "tensorboard": False}}


def network(head="softmax", units=10, body=()):
    """Layers `body` and a dense layer on scaled pixels."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Rescaling(1 / 255),
            *body,
            keras.layers.Flatten(),
            keras.layers.Dense(units, activation=head),
        ]
    )


def convolution():
    """The body of a network: a convolution."""
    return [keras.layers.Conv2D(8, 3, name="convolution")]


class Subclassed(keras.Model):
    """A network without `keras.Input`."""

    def __init__(self, activation=None):
        super().__init__()
        self.flatten = keras.layers.Flatten()
        self.dense = keras.layers.Dense(10, activation=activation)

    def call(self, inputs):
        return self.dense(self.flatten(inputs) / 255)


def go(**arguments):
    """A short run."""
    return fit(**{"data": (X, Y), "epochs": 2, "optimizer": "adam", **OFF, **arguments})


def go_with_convolution(folder):
    """A short run of a network with a convolution."""
    model = network(body=convolution())
    return go(model=model, class_names=NAMES, run_directory=folder)
