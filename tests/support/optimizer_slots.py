"""The update of a step, in a checkpoint."""

import numpy as np
import tensorflow as tf


def momenta(path):
    """The momentum of each weight, which after one step is the update itself."""
    reader = tf.train.load_checkpoint(str(path / "state"))
    names = sorted(
        n for n in reader.get_variable_to_shape_map() if n.startswith("optimizer/")
    )
    values = [reader.get_tensor(name) for name in names]
    return [value for value in values if value.dtype == np.float32 and value.ndim]
