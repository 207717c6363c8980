"""Near duplicates among texts."""

import numpy as np
import tensorflow as tf

from pipeline.contracts import Info
from pipeline.tasks.inputs.text import TextInput


def pairs_of(contents, **metadata):
    """The pairs of near duplicates that the input finds among these texts."""
    similarity = TextInput(metadata).similarity(Info({}, {}))
    examples = tf.data.Dataset.from_tensor_slices({"text": list(contents)})
    sketches = np.stack([*examples.map(similarity.sketch).as_numpy_iterator()])
    assert sketches.shape[1:] == similarity.spec.shape
    assert sketches.dtype == similarity.spec.dtype.as_numpy_dtype
    return similarity.find(sketches)
