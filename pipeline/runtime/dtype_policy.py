"""The Keras dtype policy of layers, and the 16-bit policy that is fast on a device."""

from collections.abc import Iterator
from contextlib import contextmanager

import keras
import tensorflow as tf

from pipeline.runtime import cpu_info


def fast_policy() -> tuple[str | None, str]:
    """The 16-bit policy that is fast on this device, or None, and the reason."""
    gpus = tf.config.get_visible_devices("GPU")
    if gpus:
        details = tf.config.experimental.get_device_details(gpus[0])
        capability = details.get("compute_capability", (0, 0))
        if capability >= (8, 0):
            return "mixed_bfloat16", "the GPU has bfloat16"
        if capability >= (7, 0):
            return "mixed_float16", "the GPU has float16"
        return None, "this GPU has no fast 16-bit arithmetic"
    if cpu_info.flags() & cpu_info.BFLOAT16:
        return "mixed_bfloat16", "the CPU has bfloat16"
    return None, "this CPU has no bfloat16 arithmetic"


@contextmanager
def policy_scope(precision: str) -> Iterator[None]:
    """Sets the Keras dtype policy of layers created inside the block."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
