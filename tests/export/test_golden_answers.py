"""How far answers may lie from the stored ones, and the bytes that both come in."""

import struct

import exports
import numpy as np
import pytest
import tensorflow as tf

from pipeline.export import golden_answers, malformed_files
from pipeline.utils import crc32c, wire
from pipeline.utils.errors import Failure


@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0])
def test_answers_may_differ_by_their_size(size):
    wanted = np.float32(size) * np.linspace(-1, 0.3, 8, dtype=np.float32)
    golden = {"inputs": {"x": np.arange(8)}, "outputs": {"y": wanted}}

    def off_by(error):
        return exports.Server(lambda x: {"y": wanted[x] + np.float32(error * size)})

    golden_answers.check(off_by(5e-6), "serving_default", golden)
    with pytest.raises(Failure, match="y: differs by .* in a batch of 1"):
        golden_answers.check(off_by(2e-5), "serving_default", golden)


def test_a_few_examples_are_asked_over_and_over():
    golden = {"inputs": {"x": np.arange(5)}, "outputs": {"y": np.arange(5)}}
    server = exports.Server(lambda x: {"y": x})
    golden_answers.check(server, "s", golden)
    assert [shapes["x"] for _, shapes in server.asked] == [(1,), (3,), (64,)]
    spoilt = exports.Server(lambda x: {"y": np.where(np.arange(len(x)) == 63, 9, x)})
    with pytest.raises(Failure, match="y: .*9.* instead of .*3.* in a batch of 64"):
        golden_answers.check(spoilt, "s", golden)


@pytest.mark.parametrize("stored", [np.inf, -np.inf, np.nan])
def test_nothing_is_compared_with_what_is_no_number(stored):
    wanted = np.float32([1, stored])
    golden = {"inputs": {"x": np.arange(2)}, "outputs": {"y": wanted}}
    with pytest.raises(Failure, match="y: a stored answer is not finite"):
        golden_answers.check(exports.Server(lambda x: {"y": wanted[x]}), "s", golden)


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
        golden_answers.check(
            exports.Server(lambda x: {n: v[x] for n, v in other.items()}), "s", golden
        )


def test_only_names_of_nearly_equal_scores_may_change_places():
    scores = np.float32([[0.5, 0.25, 0.2499999, 0.0000001], [0.6, 0.3, 0.07, 0.03]])
    names = np.array([[b"a", b"b", b"c"], [b"a", b"b", b"c"]], object)
    golden = {"inputs": {"x": np.arange(2)}, "outputs": {"p": scores, "top": names}}

    def swapped(row, first, second):
        moved = names.copy()
        moved[row, [first, second]] = names[row, [second, first]]
        return exports.Server(lambda x: {"p": scores[x], "top": moved[x]})

    assert "scores changed places" in golden_answers.check(swapped(0, 1, 2), "s", golden)
    for wrong in (swapped(0, 0, 1), swapped(1, 1, 2), swapped(1, 0, 1)):
        with pytest.raises(Failure, match="top: b'.' instead of b'.'"):
            golden_answers.check(wrong, "s", golden)


def test_half_precision_is_compared_more_loosely():
    wanted = np.linspace(0, 1, 8, dtype=np.float32)
    golden = {"inputs": {"x": np.arange(8)}, "outputs": {"y": wanted}}
    server = exports.Server(lambda x: {"y": wanted[x] + np.float32(5e-4)})
    golden_answers.check(server, "s", golden, precision="float16")
    with pytest.raises(Failure):
        golden_answers.check(server, "s", golden)


# The wire, and checksums


def test_the_wire_is_read_and_written_as_by_protocol_buffers():
    example = tf.train.Example()
    example.features.feature["a"].bytes_list.value.extend([b"", b"xyz"])
    example.features.feature["b"].float_list.value.extend([1.5, -2])
    example.features.feature["c"].int64_list.value.extend([-1, 300])
    found = malformed_files.features(example.SerializeToString())
    assert set(found) == {b"a", b"b", b"c"}
    assert wire.messages(wire.read(found[b"a"][1][0]), 1) == [b"", b"xyz"]
    assert wire.read(found[b"b"][2][0])[1] == [struct.pack("<ff", 1.5, -2)]
    assert wire.numbers(wire.read(found[b"c"][3][0]), 1) == [2**64 - 1, 300]
    again = tf.train.Example.FromString(malformed_files._example(b"k", 3, [1, 2**40]))
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
