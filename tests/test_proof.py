"""The parts of the proof: agreement, warm-up replay, digests, contract, operations, hostility."""

import io
import struct
from types import SimpleNamespace

import exports
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from pipeline import (
    agreement,
    crc32c,
    digests,
    hostile,
    refusals,
    replay,
    server_operations,
    serving_contract,
    wire,
)
from pipeline.session import Failure, ServerError, Session, as_strings


class Server:
    """Answers as a function says."""

    def __init__(self, answer, signatures=()):
        self.answer, self.signatures, self.asked = answer, dict.fromkeys(signatures), []

    def run(self, signature, inputs):
        self.asked.append((signature, {name: np.shape(v) for name, v in inputs.items()}))
        return self.answer(**inputs)


# Agreement


@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0])
def test_answers_may_differ_by_their_size(size):
    wanted = np.float32(size) * np.linspace(-1, 0.3, 8, dtype=np.float32)
    golden = {"inputs": {"x": np.arange(8)}, "outputs": {"y": wanted}}

    def off_by(error):
        return Server(lambda x: {"y": wanted[x] + np.float32(error * size)})

    agreement.check(off_by(5e-6), "serving_default", golden)
    with pytest.raises(Failure, match="y: differs by .* in a batch of 1"):
        agreement.check(off_by(2e-5), "serving_default", golden)


def test_a_few_examples_are_asked_over_and_over():
    golden = {"inputs": {"x": np.arange(5)}, "outputs": {"y": np.arange(5)}}
    server = Server(lambda x: {"y": x})
    agreement.check(server, "s", golden)
    assert [shapes["x"] for _, shapes in server.asked] == [(1,), (3,), (64,)]
    spoilt = Server(lambda x: {"y": np.where(np.arange(len(x)) == 63, 9, x)})
    with pytest.raises(Failure, match="y: .*9.* instead of .*3.* in a batch of 64"):
        agreement.check(spoilt, "s", golden)


@pytest.mark.parametrize("change", ["name", "shape", "type", "nan"])
def test_other_outputs_are_other_answers(change):
    wanted = np.ones((4, 2), np.float32)
    other = {
        "name": {"z": wanted},
        "shape": {"y": wanted[:, :1]},
        "type": {"y": wanted.astype(np.float64)},
        "nan": {"y": wanted * np.nan},
    }[change]
    golden = {"inputs": {"x": np.arange(4)}, "outputs": {"y": wanted}}
    with pytest.raises(Failure):
        agreement.check(Server(lambda x: {n: v[x] for n, v in other.items()}), "s", golden)


def test_only_names_of_nearly_equal_scores_may_change_places():
    scores = np.float32([[0.5, 0.25, 0.2499999, 0.0000001], [0.6, 0.3, 0.07, 0.03]])
    names = np.array([[b"a", b"b", b"c"], [b"a", b"b", b"c"]], object)
    golden = {"inputs": {"x": np.arange(2)}, "outputs": {"p": scores, "top": names}}

    def swapped(row, first, second):
        moved = names.copy()
        moved[row, [first, second]] = names[row, [second, first]]
        return Server(lambda x: {"p": scores[x], "top": moved[x]})

    assert "scores changed places" in agreement.check(swapped(0, 1, 2), "s", golden)
    for wrong in (swapped(0, 0, 1), swapped(1, 1, 2), swapped(1, 0, 1)):
        with pytest.raises(Failure, match="top: b'.' instead of b'.'"):
            agreement.check(wrong, "s", golden)


def test_half_precision_is_compared_more_loosely():
    wanted = np.linspace(0, 1, 8, dtype=np.float32)
    golden = {"inputs": {"x": np.arange(8)}, "outputs": {"y": wanted}}
    server = Server(lambda x: {"y": wanted[x] + np.float32(5e-4)})
    agreement.check(server, "s", golden, precision="float16")
    with pytest.raises(Failure):
        agreement.check(server, "s", golden)


# The wire, and checksums


def test_the_wire_is_read_and_written_as_by_protocol_buffers():
    example = tf.train.Example()
    example.features.feature["a"].bytes_list.value.extend([b"", b"xyz"])
    example.features.feature["b"].float_list.value.extend([1.5, -2])
    example.features.feature["c"].int64_list.value.extend([-1, 300])
    found = hostile.features(example.SerializeToString())
    assert set(found) == {b"a", b"b", b"c"}
    assert wire.messages(wire.read(found[b"a"][1][0]), 1) == [b"", b"xyz"]
    assert wire.read(found[b"b"][2][0])[1] == [struct.pack("<ff", 1.5, -2)]
    assert wire.numbers(wire.read(found[b"c"][3][0]), 1) == [2**64 - 1, 300]
    again = tf.train.Example.FromString(hostile._example(b"k", 3, [1, 2**40]))
    assert list(again.features.feature["k"].int64_list.value) == [1, 2**40]


@pytest.mark.parametrize(
    "bad", [b"\x0a", b"\x0a\x05abc", b"\x08" + b"\xff" * 10, b"\x0b", b"\x00\x01", b"\x0d\x00"]
)
def test_what_is_no_message_is_refused(bad):
    with pytest.raises(ValueError):
        wire.read(bad)


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 64, 65, 1000, 5000])
def test_checksums_are_those_of_tfrecord_files(tmp_path, length):
    content = np.random.default_rng(length).bytes(length)
    exports.write_records(tmp_path / "f", [content])
    raw = (tmp_path / "f").read_bytes()
    assert crc32c.of_bytes(content) == int.from_bytes(raw[-4:], "little")
    rows = np.frombuffer(raw[:8], np.uint8)[None].repeat(3, axis=0)
    assert (crc32c.of_rows(rows) == int.from_bytes(raw[8:12], "little")).all()


# Warm-up


@pytest.fixture(scope="module")
def swift(tmp_path_factory):
    directory = tmp_path_factory.mktemp("swift") / "1"
    exports.swift_version(directory)
    return directory


@pytest.fixture(scope="module")
def session(swift):
    return Session(swift)


def replayed(session, folder, records):
    (folder / "assets.extra").mkdir(exist_ok=True)
    exports.write_records(folder / replay.FILE, records)
    return replay.check(session, folder, lambda what: None)


def images(size=2, **more):
    proto = tf.make_tensor_proto(np.zeros((size, 8, 8, 3), np.uint8))
    return exports.record("serving_default", {"images": proto, **more})


def test_a_warm_up_file_is_asked_record_by_record(session, swift, tmp_path):
    assert replayed(session, tmp_path, [images(1), images(5)]).startswith(
        "batches of serving_default 1 5; "
    )
    told = []
    replay.check(session, swift, told.append)
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


def test_more_records_than_a_server_takes_are_refused(tmp_path):
    exports.write_records(tmp_path / "f", [b"x"] * 1000)
    assert len(list(replay.records(tmp_path / "f"))) == 1000
    exports.write_records(tmp_path / "f", [b"x"] * 1001)
    with pytest.raises(Failure, match="at most 1000 records"):
        list(replay.records(tmp_path / "f"))


@pytest.mark.parametrize("at", [0, 9, 12, 300, -1])
def test_a_damaged_warm_up_file_is_refused(tmp_path, at):
    exports.write_records(tmp_path / "f", [b"y" * 700])
    raw = bytearray((tmp_path / "f").read_bytes())
    raw[at] ^= 1
    (tmp_path / "f").write_bytes(raw)
    with pytest.raises(Failure, match="record 0 is damaged"):
        list(replay.records(tmp_path / "f"))
    (tmp_path / "f").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(Failure, match="record 0 is damaged"):
        list(replay.records(tmp_path / "f"))


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
    whole = replay.tensor(proto.SerializeToString())
    assert whole.dtype == array.dtype and whole.shape == array.shape
    np.testing.assert_array_equal(whole, array)


def test_a_tensor_s_last_value_stands_for_the_missing_ones():
    for values in ([], [7], [7, -2]):
        proto = tf.make_tensor_proto(np.zeros((1, 3), np.int32))
        proto.tensor_content = b""
        del proto.int_val[:]
        proto.int_val.extend(values)
        wanted = tf.make_ndarray(proto) if values else np.zeros((1, 3))
        np.testing.assert_array_equal(replay.tensor(proto.SerializeToString()), wanted)


def test_the_records_are_those_of_the_official_messages():
    logs = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
    log = logs.PredictionLog()
    asked = log.predict_log.request
    asked.model_spec.name, asked.model_spec.signature_name = "small", "image_bytes"
    asked.inputs["image_bytes"].CopyFrom(tf.make_tensor_proto([b"a", b"b"]))
    signature, inputs = replay.request(log.SerializeToString())
    assert signature == "image_bytes" and list(inputs["image_bytes"]) == [b"a", b"b"]
    assert logs.PredictionLog.FromString(images()).predict_log.request.inputs["images"]
    for kind in ("classify_log", "regress_log"):
        log = logs.PredictionLog()
        asked = getattr(log, kind).request
        example = asked.input.example_list.examples.add()
        example.features.feature["k"].float_list.value.append(1)
        signature, inputs = replay.request(log.SerializeToString())
        assert signature == "serving_default"
        assert list(inputs["inputs"]) == [example.SerializeToString()]


# Digests


@pytest.mark.parametrize("harm", ["changed", "longer", "gone", "more", "link"])
def test_files_that_are_not_those_written_are_named(tmp_path, harm):
    (tmp_path / "assets.extra").mkdir()
    for name in ("saved_model.pb", "fingerprint.pb", "a", "b"):
        (tmp_path / name).write_bytes(name.encode())
    exports.write_manifest(tmp_path)
    assert digests.check(tmp_path, digests.read(tmp_path)) == "3 files are what was written"
    (tmp_path / "fingerprint.pb").write_bytes(b"another number")
    assert digests.check(tmp_path, digests.read(tmp_path))
    path = tmp_path / "b"
    if harm == "gone":
        path.unlink()
    elif harm == "link":
        path.rename(tmp_path / "c")
        path.symlink_to("nowhere")
    else:
        path = tmp_path / "c" if harm == "more" else path
        path.write_bytes({"changed": b"c", "longer": b"bb", "more": b""}[harm])
    with pytest.raises(Failure, match=f"{'c' if harm in ('more', 'link') else 'b'} is "):
        digests.check(tmp_path, digests.read(tmp_path))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": 1}', '{"files": {"a": 1}}', "{"])
def test_what_is_no_manifest_is_refused(tmp_path, text):
    (tmp_path / "assets.extra").mkdir()
    (tmp_path / digests.MANIFEST).write_text(text)
    with pytest.raises(Failure, match="manifest.json"):
        digests.read(tmp_path)


# Contract and operations


def signature(inputs, outputs):
    def side(tensors):
        return {
            name: SimpleNamespace(
                dtype=dtype,
                tensor_shape=SimpleNamespace(
                    unknown_rank=False, dim=[SimpleNamespace(size=size) for size in shape]
                ),
            )
            for name, (dtype, shape) in tensors.items()
        }

    return SimpleNamespace(inputs=side(inputs), outputs=side(outputs))


GOOD = signature({"images": (4, [-1, 8, 8, 3])}, {"class": (3, [-1])})
CALL = {"inputs": (7, [-1])}


def test_a_contract_that_is_kept():
    classify = signature(CALL, {"classes": (7, [-1, 3]), "scores": (1, [-1, 3])})
    regress = signature(CALL, {"outputs": (1, [-1])})
    signatures = {"serving_default": GOOD, "classify": classify, "regress": regress}
    assert serving_contract.check({**signatures, "__saved_model_init_op": None}, signatures)


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("other", signature({"keras_tensor_2": (1, [-1])}, {"y": (1, [-1])}), "keras_tensor_2"),
        ("other", signature({"x": (1, [-1])}, {"output_0": (1, [-1])}), "a name that changes"),
        ("other", signature({"x": (1, [-1])}, {"y": (19, [-1])}), "REST cannot carry"),
        ("other", signature({"x": (1, [8, 3])}, {"y": (1, [-1])}), "is not the batch: [8, 3]"),
        ("other", signature({}, {"y": (1, [-1])}), "no inputs"),
        ("classify", signature(CALL, {"classes": (7, [-1, 3])}), "classify must take and give"),
        ("regress", signature(CALL, {"outputs": (2, [-1])}), "regress must take and give"),
        ("regress", signature({"x": (7, [-1])}, {"outputs": (1, [-1])}), "in the types of that"),
    ],
)
def test_a_contract_that_is_broken(name, wrong, said):
    signatures = {"serving_default": GOOD, name: wrong}
    with pytest.raises(Failure) as caught:
        serving_contract.check(signatures, signatures)
    assert said in str(caught.value)


def node(op, name="n", device=""):
    return SimpleNamespace(op=op, name=name, device=device)


def graph(*nodes, functions=()):
    return SimpleNamespace(node=nodes, library=SimpleNamespace(function=functions))


@pytest.mark.parametrize("device", ["", "/CPU:0", "/job:localhost/device:CPU:0", "/device:CPU:*"])
def test_operations_that_a_server_runs(device):
    inner = SimpleNamespace(
        signature=SimpleNamespace(name="mine"), node_def=[node("MatMul")], attr={}
    )
    nodes = node("Conv2D", device=device), node("NoOp"), node("mine")
    assert server_operations.check(graph(*nodes, functions=[inner])).startswith("3 kinds")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (node("SentencepieceOp"), "no operation 'SentencepieceOp'"),
        (node("DecodeJxl"), "no operation 'DecodeJxl'"),  # in TensorFlow 2.21, not in 2.20
        (node("CudnnRNNV3"), "no operation 'CudnnRNNV3'"),  # not on a CPU
        (node("Conv2D", "c", "/device:GPU:0"), "c is pinned to /device:GPU:0"),
        (node("Conv2D", "c", "/device:CPU:1"), "c is pinned to /device:CPU:1"),
        (node("Conv2D", "c", "/job:worker/replica:0/task:0/device:gpu:3"), "c is pinned"),
    ],
)
def test_operations_that_no_server_runs(wrong, said):
    for there in (
        graph(wrong),
        graph(
            functions=[
                SimpleNamespace(signature=SimpleNamespace(name="f"), node_def=[wrong], attr={})
            ]
        ),
    ):
        with pytest.raises(Failure) as caught:
            server_operations.check(there)
        assert said in str(caught.value)


def test_the_list_is_of_the_released_server():
    released, installed = server_operations.released(), server_operations.installed()
    assert len(released) > 1400 and {"Conv2D", "If", "ParseExampleV2", "NoOp"} <= released
    assert "DecodeJxl" in installed - released
    assert len(released - installed) == 0, "an operation was taken out of TensorFlow: look"


# Hostility


def test_what_is_called_broken_is_broken_and_what_is_odd_is_not():
    """By Pillow, another decoder, which makes up the rows that a PNG lacks."""
    good = exports.requests(1)["image_bytes"]["image_bytes"][0]
    broken = hostile.broken_images(good)
    del broken["PNG with fewer rows than it announces"]
    for contents in broken.values():
        with pytest.raises((OSError, SyntaxError, ValueError, Image.DecompressionBombError)):
            Image.open(io.BytesIO(contents)).load()
    for name, contents in hostile.odd_images().items():
        if "canvas" not in name:
            Image.open(io.BytesIO(contents)).load()
    bomb = Image.open(io.BytesIO(hostile._bomb(700)))
    assert bomb.size == (700, 700) and bomb.getextrema() == (0, 0)


def test_fuzzed_strings_are_the_same_for_a_seed_and_all_sorts():
    good = exports.requests(2)["image_bytes"]["image_bytes"]
    strings = list(hostile.fuzzed(good, 300))
    assert strings == list(hostile.fuzzed(good, 300)) != list(hostile.fuzzed(good, 300, seed=1))
    assert len(set(strings) - set(good)) > 280
    assert {s[:8] == good[0][:8] for s in strings} == {True, False}


def refused(values, answer):
    """Names of the checks that fail for a signature of one input."""
    server, wrong = Server(answer), {}
    for name, check in refusals.checks(server, "s", {"x": values}, 20):
        try:
            check(lambda what: None)
        except Failure as failure:
            wrong[name] = str(failure)
    return wrong


def test_whoever_answers_everything_fails_everything():
    def all_fine(x):
        return {"y": np.zeros((max(len(x), 1) if np.ndim(x) else 1,))}

    wrong = refused(np.zeros((4, 3), np.float32), all_fine)
    assert set(wrong) == {
        "refuses s: no batch axis",
        "refuses s: one axis too many",
        "refuses s: axis 1 too long",
        "refuses s: axis 1 empty",
        "refuses s: another type",
        "refuses s: nan",
        "refuses s: inf",
        "empty batch s",
    }
    files = exports.requests(3)
    wrong = refused(as_strings(files["image_bytes"]["image_bytes"]), all_fine)
    assert wrong["refuses s: hostile files"].startswith("empty bytes: it was answered with")
    wrong = refused(as_strings(files["classify"]["inputs"]), all_fine)
    assert {"refuses s: wrong examples", "refuses s: hostile files"} < set(wrong)


def test_another_status_than_invalid_argument_is_none():
    def broken(x):
        raise ServerError(13, "internal")

    wrong = refused(as_strings(exports.requests(3)["image_bytes"]["image_bytes"]), broken)
    assert len(wrong) == 7 and all(
        "status 13 instead of INVALID" in said for said in wrong.values()
    )


def test_examples_of_numbers_are_sent_wrong_too():
    asked = []

    def strict(x):
        if np.ndim(x) != 1 or np.shape(x)[0] == 0 or x.dtype.kind != "O":
            raise ServerError(3, "shape")
        for text in x:
            try:
                example = tf.train.Example.FromString(text)
            except Exception:
                raise ServerError(3, "no example") from None
            values = list(example.features.feature["features"].float_list.value)
            if len(values) != 2 or not np.isfinite(values).all():
                asked.append(values)
                raise ServerError(3, "values")
        return {"y": np.zeros(len(x))}

    good = tf.train.Example()
    good.features.feature["features"].float_list.value.extend([1, 2])
    assert refused(as_strings([good.SerializeToString()] * 2), strict) == {}
    assert {len(values) for values in asked} >= {0, 1, 2, 3}
    assert any(np.isnan(values).any() for values in asked if len(values) == 2)


def test_unfolding_a_bomb_before_refusing_it_is_seen(monkeypatch):
    peaks = iter((100, 1300))
    monkeypatch.setattr(refusals, "_peak", lambda: next(peaks))

    def refuse(x):
        raise ServerError(3, "no")

    with pytest.raises(Failure, match="1200 MB"):
        refusals._all_refused(refuse, b"good", {"a": b"bad"}, lambda what: None)
