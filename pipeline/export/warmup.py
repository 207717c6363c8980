"""Requests that a server answers before it opens a version, so that no client pays for the first.

A file of `PredictionLog` records (tensorflow_serving/apis/prediction_log.proto), encoded here: the
messages are small, and their Python classes come with another package.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.utils import wire

FILE = Path("assets.extra/tf_serving_warmup_requests")
MOST_RECORDS = 1000
"""Of one file; a server does not load a version that has more."""
_KINDS = 3  # of files, as `endpoints.encoded` makes them
# Field numbers: PredictionLog.predict_log, PredictLog.request, PredictRequest.model_spec and
# .inputs, ModelSpec.name and .signature_name, key and value of a map's entry.
_PREDICT_LOG, _REQUEST, _MODEL_SPEC, _INPUTS, _NAME, _SIGNATURE_NAME = 6, 1, 1, 2, 1, 3
_KEY, _VALUE = 1, 2


def write(
    path: Path,
    name: str,
    requests: Mapping[str, Mapping[str, Any]],
    batch_sizes: Sequence[int],
) -> int:
    """Writes one record for each signature and batch size, the large batches last.

    Of texts, the first examples each get one of the smallest size: files are of several kinds, and
    what decodes one of them has decoded no other (a first JPEG after PNG alone took 20 times as
    long as the next).

    Args:
        path: Of the file; its folder is there.
        name: Of the model.
        requests: Signature -> input -> values of some examples, array or list of bytes.
        batch_sizes: Rows of the requests.

    Returns:
        The number of records.
    """
    sizes = sorted(set(batch_sizes))
    asked = [(size, 0, n) for size in sizes for n in requests]
    for at in range(1, _KINDS):
        texts = (n for n, inputs in requests.items() if _has_text(inputs, at))
        asked += [(sizes[0], at, n) for n in texts]
    records = [
        record(name, n, {key: tensor(values[at:], size) for key, values in requests[n].items()})
        for size, at, n in sorted(asked, key=lambda one: one[:2])
    ]
    with tf.io.TFRecordWriter(str(path)) as file:
        for one in records:
            file.write(one)
    return len(records)


def _has_text(inputs: Mapping[str, Any], at: int) -> bool:
    """Whether there is an example of this number, of texts."""
    return any(isinstance(v, list) and at < len(v) for v in inputs.values())


def tensor(values: Any, size: int) -> bytes:
    """A `TensorProto` of so many rows: the first example, over and over where it is a text.

    A tensor's last value stands for all that are missing (tensor.proto), so that the file is as
    long as one example whatever the size. Numbers are zeros: how long a kernel takes, and what is
    compiled and reserved for it, depends on shapes, while bytes are decoded and must be real.
    """
    proto = tf.make_tensor_proto(values[:1])
    (rows, *_) = proto.tensor_shape.dim
    rows.size = size
    if not proto.string_val:
        zero = tf.make_tensor_proto(np.zeros((), tf.as_dtype(proto.dtype).as_numpy_dtype))
        zero.tensor_shape.CopyFrom(proto.tensor_shape)
        proto = zero
    return proto.SerializeToString(deterministic=True)


def record(name: str, signature: str, inputs: Mapping[str, bytes]) -> bytes:
    """A `PredictionLog` of one request; the inputs are serialized `TensorProto`s."""
    spec = wire.write([(_NAME, name.encode()), (_SIGNATURE_NAME, signature.encode())])
    entries = [wire.write([(_KEY, key.encode()), (_VALUE, v)]) for key, v in inputs.items()]
    request = wire.write([(_MODEL_SPEC, spec), *((_INPUTS, entry) for entry in entries)])
    return wire.write([(_PREDICT_LOG, wire.write([(_REQUEST, request)]))])
