"""The warm-up file, written and checked, against TensorFlow's own readers
and writers.
"""

import io

import numpy as np
import pytest
import reference_exports
import tensorflow as tf
from PIL import Image
from tensorflow_serving.apis import prediction_log_pb2

from pipeline.export import warmup
from pipeline.serving.savedmodel_session import Session
from pipeline.utils.errors import Failure


def requests(path):
    for record in tf.data.TFRecordDataset(str(path)):
        log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
        assert log.WhichOneof("log_type") == "predict_log"
        yield log.predict_log.request


def test_an_export_is_warmed_up_for_every_signature_and_size(digits_run):
    sent, files = [], set()
    for request in requests(digits_run.export / warmup.FILE):
        signature = request.model_spec.signature_name
        (tensor,) = request.inputs.values()
        sent.append((signature, tensor.tensor_shape.dim[0].size))
        if sent[-1] == ("image_bytes", 1):
            image = Image.open(io.BytesIO(tensor.string_val[0]))
            files.add((image.format, image.size))
    signatures = ("serving_default", "image_bytes")
    first = [(name, 1) for name in (*signatures, *signatures[1:] * 2)]
    assert sent == first + [(name, size) for size in (8, 64) for name in signatures]
    assert files == {("PNG", (8, 8)), ("JPEG", (8, 8)), ("PNG", (16, 16))}


# The check


@pytest.fixture
def session(swift):
    return Session(swift)


def images(size=2, **more):
    tensor = tf.make_tensor_proto(np.zeros((size, 8, 8, 3), np.uint8))
    return reference_exports.record("serving_default", {"images": tensor, **more})


def checked(session, directory, records):
    (directory / "assets.extra").mkdir(exist_ok=True)
    reference_exports.write_records(directory / warmup.FILE, records)
    return warmup.check(session, directory)


def test_every_record_is_sent(session, tmp_path):
    assert checked(session, tmp_path, [images(1), images(5)]).startswith("2 requests, ")


NUMBER = {"x": tf.make_tensor_proto([1])}


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (
            [images(), reference_exports.record("other", NUMBER)],
            "record 1 (other, 1 examples): ",
        ),
        ([images(more=NUMBER["x"])], "record 0 (serving_default, 2 examples): "),
        (
            [
                reference_exports.record(
                    "serving_default", {"images": tf.make_tensor_proto([[1.0]])}
                )
            ],
            "record 0 (serving_default, 1 examples): Expects",
        ),
        ([], "no record for serving_default"),
    ],
)
def test_a_bad_record_is_named(session, tmp_path, records, message):
    with pytest.raises(Failure) as caught:
        checked(session, tmp_path, records)
    assert message in str(caught.value)


@pytest.mark.parametrize("at", [0, -1, None])
def test_a_damaged_file_fails(tmp_path, at):
    reference_exports.write_records(tmp_path / "f", [b"y" * 700])
    raw = bytearray((tmp_path / "f").read_bytes())
    if at is None:
        del raw[350:]
    else:
        raw[at] ^= 1
    (tmp_path / "f").write_bytes(raw)
    with pytest.raises(Failure, match="is damaged or truncated at byte 0"):
        list(warmup.records(tmp_path / "f"))
