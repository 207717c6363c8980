"""What this machine can do at most: matrix products and copies, measured beside the training."""

import math
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from pipeline.timing.rounds import Sample, timed

_BYTES = 256 << 20  # more than any cache


def contestants(seconds: float) -> dict[str, Callable[[], Sample]]:
    """Matrix products in float32 and bfloat16 (GFLOP), and a copy in memory (GB read)."""
    side = 8192 if tf.config.list_physical_devices("GPU") else 1024
    source, target = np.ones(_BYTES, np.uint8), np.ones(_BYTES, np.uint8)

    def product(dtype: str) -> Callable[[], Sample]:
        one = tf.cast(tf.random.normal((side, side)), dtype)

        def call() -> float:
            tf.reduce_max(tf.matmul(one, one)).numpy()  # waits: devices run asynchronously
            return 2e-9 * side**3

        return timed(call, seconds)

    def copy() -> float:
        np.copyto(target, source)
        return 1e-9 * _BYTES

    products = {f"matmul {dtype}": product(dtype) for dtype in ("float32", "bfloat16")}
    return {**products, "copy": timed(copy, seconds)}


def training_gflop(model: keras.Model) -> float:
    """GFLOP of a training step per image: convolutions and dense layers, forward and backward."""
    kinds = (keras.layers.Conv2D, keras.layers.Dense)
    layers = [x for x in model._flatten_layers(include_self=False) if isinstance(x, kinds)]
    macs = [math.prod(x.output.shape[1:-1]) * math.prod(x.kernel.shape) for x in layers]
    return 2e-9 * (3 * sum(macs) - sum(macs[:1]))  # the input of the first one needs no gradient
