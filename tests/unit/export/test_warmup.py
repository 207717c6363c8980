"""The warm-up file, written and checked, against TensorFlow's own readers
and writers.
"""

import numpy as np
import pytest
import reference_exports
import tensorflow as tf

from pipeline.export import warmup
from pipeline.serving.savedmodel_session import Session
from pipeline.utils.errors import Failure

# The check


@pytest.fixture
def session(pixel_version):
    return Session(pixel_version)


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
