"""The warm-up file against TensorFlow Serving's own messages and TensorFlow's own parser."""

import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from pipeline.export import warmup
from pipeline.serving.savedmodel_session import Session, as_strings

REQUESTS = {
    "serving_default": {"images": np.arange(24, dtype=np.uint8).reshape(2, 3, 4)},
    "classify": {"inputs": [b"one\x00", b"two"]},
}


def records(path):
    return [record.numpy() for record in tf.data.TFRecordDataset(str(path))]


def parsed(path):
    """(signature, inputs) of each record, by the official messages."""
    logs = pytest.importorskip(
        "tensorflow_serving.apis.prediction_log_pb2", reason="needs the extra serving"
    )
    for record in records(path):
        log = logs.PredictionLog.FromString(record)
        assert log.WhichOneof("log_type") == "predict_log"
        assert log.SerializeToString(deterministic=True) == record, "there are unknown fields"
        yield log.predict_log.request


def test_the_records_are_those_of_the_official_messages(tmp_path):
    assert warmup.write(tmp_path / "file", "mödel", REQUESTS, (4, 1, 4)) == 5
    found = list(parsed(tmp_path / "file"))
    assert [(r.model_spec.name, r.model_spec.signature_name) for r in found] == [
        *(("mödel", "serving_default"), ("mödel", "classify"), ("mödel", "classify")),
        *(("mödel", "serving_default"), ("mödel", "classify")),
    ]
    texts = iter((b"one\x00", b"two", b"one\x00"))  # each kind of file at the smallest size
    for request, size in zip(found, (1, 1, 1, 4, 4), strict=True):
        ((name, proto),) = request.inputs.items()
        values = tf.make_ndarray(proto)
        if name == "images":
            assert values.shape == (size, 3, 4) and values.dtype == np.uint8
        else:
            assert values.tolist() == [next(texts)] * size


@pytest.mark.parametrize("size", [1, 300])
@pytest.mark.parametrize(
    ("values", "first"),
    [
        (np.arange(8, dtype=np.uint8).reshape(2, 4), np.zeros(4, np.uint8)),
        (np.ones((2, 4), np.float32), np.zeros(4, np.float32)),
        (np.ones((2, 1), np.int64), np.zeros(1, np.int64)),
        ([b"a\x00b", b"c"], b"a\x00b"),
        ([b"x" * 300], b"x" * 300),
    ],
)
def test_a_tensor_has_every_row_in_the_room_of_one(values, first, size):
    """Read by the C++ code that reads requests in the server."""
    serialized = warmup.tensor(values, size)
    dtype = tf.string if isinstance(values, list) else tf.as_dtype(values.dtype)
    found = tf.io.parse_tensor(serialized, dtype).numpy()
    assert found.shape == (size, *np.shape(values)[1:])
    assert all(np.array_equal(row, first) for row in found)
    assert len(serialized) < 400


def test_an_export_is_warmed_up_for_every_signature_and_size(digits_run):
    file = digits_run.export / warmup.FILE
    session = Session(digits_run.export)
    asked, files = [], set()
    for request in parsed(file):
        inputs = {name: tf.make_ndarray(proto) for name, proto in request.inputs.items()}
        inputs = {n: as_strings(list(v)) if v.dtype == object else v for n, v in inputs.items()}
        answer = session.run(request.model_spec.signature_name, inputs)
        (size,) = {len(values) for values in (*inputs.values(), *answer.values())}
        asked.append((request.model_spec.signature_name, size))
        if asked[-1] == ("image_bytes", 1):
            image = Image.open(io.BytesIO(inputs["image_bytes"][0]))
            files.add((image.format, image.size))
    signatures = ("serving_default", "image_bytes", "classify")
    first = [(name, 1) for name in (*signatures, *signatures[1:] * 2)]
    assert asked == first + [(name, size) for size in (8, 64) for name in signatures]
    assert files == {("PNG", (8, 8)), ("JPEG", (8, 8)), ("PNG", (16, 16))}
    assert len(asked) < warmup.MOST_RECORDS
