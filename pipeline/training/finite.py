"""Whether weights are numbers: asked before any of them is written."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from pipeline.utils.errors import Diverged


def require(variables: Sequence[keras.Variable], step: int) -> None:
    """Raises Diverged, naming the first variable that holds a NaN or an infinity.

    Each is read once where it lies; only one vector of truths comes from there.

    Args:
        variables: Of any type; those of integers are finite.
        step: After which they are to be written.
    """
    floats = [variable for variable in variables if "float" in variable.dtype]
    sound = [tf.reduce_all(tf.math.is_finite(variable.value)) for variable in floats]
    for variable, is_sound in zip(floats, tf.stack(sound).numpy(), strict=True):
        if not is_sound:
            raise Diverged(
                f"training diverged: {variable.path} is not finite after step {step:,}; lower "
                "--train.learning-rate. It was not saved"
            )
