"""The warm-up file, read and asked as a server does."""

import exports
import numpy as np
import pytest
import tensorflow as tf

from pipeline.export import _warmup_reader
from pipeline.serving.savedmodel_session import Session
from pipeline.utils import wire
from pipeline.utils.errors import Failure


@pytest.fixture(scope="module")
def session(swift):
    return Session(swift)


def replayed(session, folder, records):
    (folder / "assets.extra").mkdir(exist_ok=True)
    exports.write_records(folder / _warmup_reader.FILE, records)
    return _warmup_reader.check(session, folder, lambda what: None)


def images(size=2, **more):
    proto = tf.make_tensor_proto(np.zeros((size, 8, 8, 3), np.uint8))
    return exports.record("serving_default", {"images": proto, **more})


def test_a_warm_up_file_is_asked_record_by_record(session, swift, tmp_path):
    assert replayed(session, tmp_path, [images(1), images(5)]).startswith(
        "batches of serving_default 1 5; "
    )
    told = []
    _warmup_reader.check(session, swift, told.append)
    assert told == [
        "record 0 (serving_default, 1 examples)",
        "record 1 (serving_default, 8 examples)",
    ]


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([images(), exports.record("other", {})], "record 1 cannot be read: it has no inputs"),
        ([exports.record("other", {"x": tf.make_tensor_proto([1])})], "no such signature"),
        ([exports.record("serving_default", {"x": tf.make_tensor_proto([1])})], "it gives"),
        ([images(more=tf.make_tensor_proto([1]))], "it gives"),
        (
            [exports.record("serving_default", {"images": tf.make_tensor_proto([[1.0]])})],
            "record 0 (serving_default, 1 examples): status 3",
        ),
        ([], "no record asks serving_default"),
        ([b"\xff"], "record 0 cannot be read"),
        ([wire.write([(4, b"")])], "no log of Predict, Classify or Regress"),
    ],
)
def test_a_record_that_fails_is_named(session, tmp_path, records, said):
    with pytest.raises(Failure) as caught:
        replayed(session, tmp_path, records)
    assert said in str(caught.value)


def test_a_version_without_a_warm_up_file_fails(session, tmp_path):
    with pytest.raises(Failure, match="tf_serving_warmup_requests cannot be read: .*No such file"):
        _warmup_reader.check(session, tmp_path, lambda what: None)


def test_more_records_than_a_server_takes_are_refused(tmp_path):
    exports.write_records(tmp_path / "f", [b"x"] * 1000)
    assert len(list(_warmup_reader.records(tmp_path / "f"))) == 1000
    exports.write_records(tmp_path / "f", [b"x"] * 1001)
    with pytest.raises(Failure, match="at most 1000 records"):
        list(_warmup_reader.records(tmp_path / "f"))


@pytest.mark.parametrize("at", [0, 9, 12, 300, -1])
def test_a_damaged_warm_up_file_is_refused(tmp_path, at):
    exports.write_records(tmp_path / "f", [b"y" * 700])
    raw = bytearray((tmp_path / "f").read_bytes())
    raw[at] ^= 1
    (tmp_path / "f").write_bytes(raw)
    with pytest.raises(Failure, match="record 0 is damaged"):
        list(_warmup_reader.records(tmp_path / "f"))
    (tmp_path / "f").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(Failure, match="record 0 is damaged"):
        list(_warmup_reader.records(tmp_path / "f"))


@pytest.mark.parametrize(
    "array",
    [
        *(np.arange(6).reshape(2, 3).astype(t) for t in ("f4", "f8", "i4", "u1", "i2", "i8", "u8")),
        np.int32([[-5, 7]]),
        np.int64([-(2**40), 2**40]),
        np.array([True, False]),
        np.array([[b"a", b""], [b"\0\xff", b"dd"]], object),
        np.zeros((0, 4), np.float32),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_tensors_are_read_as_tensorflow_writes_them(array):
    proto = tf.make_tensor_proto(array)
    whole = _warmup_reader.tensor(proto.SerializeToString())
    assert whole.dtype == array.dtype and whole.shape == array.shape
    np.testing.assert_array_equal(whole, array)


def test_a_tensor_s_last_value_stands_for_the_missing_ones():
    for values in ([], [7], [7, -2]):
        proto = tf.make_tensor_proto(np.zeros((1, 3), np.int32))
        proto.tensor_content = b""
        del proto.int_val[:]
        proto.int_val.extend(values)
        wanted = tf.make_ndarray(proto) if values else np.zeros((1, 3))
        np.testing.assert_array_equal(_warmup_reader.tensor(proto.SerializeToString()), wanted)


@pytest.mark.parametrize("harm", ["short", "unknown rank"])
def test_a_tensor_that_tensorflow_refuses_is_refused(harm):
    proto = tf.make_tensor_proto(np.arange(6, dtype=np.float32).reshape(2, 3))
    if harm == "short":
        proto.tensor_content = proto.tensor_content[:8]
    else:
        proto.tensor_shape.unknown_rank = True
    with pytest.raises(ValueError, match="2 values for the shape|unknown rank"):
        _warmup_reader.tensor(proto.SerializeToString())


def test_the_records_are_those_of_the_official_messages():
    logs = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
    log = logs.PredictionLog()
    asked = log.predict_log.request
    asked.model_spec.name, asked.model_spec.signature_name = "small", "image_bytes"
    asked.inputs["image_bytes"].CopyFrom(tf.make_tensor_proto([b"a", b"b"]))
    signature, inputs, wanted = _warmup_reader.request(log.SerializeToString())
    assert signature == "image_bytes" and list(inputs["image_bytes"]) == [b"a", b"b"]
    assert wanted is None
    asked.output_filter.append("label")
    assert _warmup_reader.request(log.SerializeToString())[2] == ["label"]
    assert logs.PredictionLog.FromString(images()).predict_log.request.inputs["images"]
    for kind in ("classify_log", "regress_log"):
        log = logs.PredictionLog()
        asked = getattr(log, kind).request
        example = asked.input.example_list.examples.add()
        example.features.feature["k"].float_list.value.append(1)
        signature, inputs, wanted = _warmup_reader.request(log.SerializeToString())
        assert signature == "serving_default"
        assert list(inputs["inputs"]) == [example.SerializeToString()]
