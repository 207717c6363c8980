"""Which bytes may reach TensorFlow's parser of tf.Example: it ends the process for some
others.
"""

import contextlib

import exports
import numpy as np
import pytest
import tensorflow as tf

from pipeline.export import request_checks
from pipeline.serving import request_guards

ASKED = tf.function(
    request_guards.are_examples, [tf.TensorSpec((None,), tf.string)], autograph=False
)


def message():
    example = tf.train.Example()
    example.features.feature["texts"].bytes_list.value.extend([b"", b"x" * 300])
    example.features.feature["floats"].float_list.value.extend([1, -2.5, 3])
    example.features.feature["numbers"].int64_list.value.extend([-1, 2**40, 0])
    example.features.feature["none"].SetInParent()
    return example.SerializeToString()


def field(number, content):
    """A field of a message: a length of less than 128, and that many bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


def of_list(number, content):
    """An example whose feature k has a list, by its field number: bytes 1, floats 2,
    integers 3.
    """
    return field(1, field(1, field(1, b"k") + field(2, field(number, content))))


def varint(value):
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def of_length(length):
    """An example whose text is said to be so long, and is of three bytes."""
    return of_list(1, b"\n" + varint(length) + b"abc")


def test_examples_are_let_through():
    good = [message(), b"", *exports.requests(3)["classify"]["inputs"], of_length(3)]
    good.append(good[0] + good[2])  # two messages make one
    # A number after the other, as old writers do, and not packed.
    good.append(of_list(2, b"\x0d\0\0\x80\x3f\x0d\0\0\0\0"))
    good.append(of_list(3, b"\x08\x01\x08" + varint(2**63)))
    assert ASKED(good).numpy().all()
    for text in good:
        tf.train.Example.FromString(text)


@pytest.mark.parametrize(
    "length", [4, 2**28, 2**31 - 1, 2**31, 2**32 - 4, 2**32 + 3, 2**64 - 1]
)
def test_lengths_that_do_not_fit_are_refused(length):
    assert not ASKED([of_length(length)]).numpy()[0]
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="a string is not a tf.Example"
    ):
        request_guards.examples(
            tf.constant([message(), of_length(length)]),
            {"k": tf.io.FixedLenFeature((), tf.string)},
        )


def test_what_is_cut_anywhere_is_no_example():
    whole = message()
    cut = [whole[:at] for at in range(1, len(whole))]
    found = ASKED(cut).numpy()
    parsed = []
    for text in cut:
        try:
            parsed.append(tf.train.Example.FromString(text) is not None)
        except Exception:
            parsed.append(False)
    np.testing.assert_array_equal(found, parsed)


def test_other_bytes_and_one_of_endless_parts_are_no_examples():
    other = [
        b"no example",
        b"\x00",
        b"\n",
        b"\x0b\x0c",
        b"\xff" * 40,
        message() + b"\x12\x00",
    ]
    assert not ASKED([*other, b"\n\x00" * 200_000]).numpy().any()
    assert ASKED([b"\n\x00" * 1000]).numpy()[0]


def test_fuzzed_examples_are_refused_or_parsed():
    """Each in the process of the tests, which would end with one that harms."""
    parse = tf.function(
        lambda text: tf.io.parse_example(
            text, {"texts": tf.io.VarLenFeature(tf.string)}
        ),
        [tf.TensorSpec((None,), tf.string)],
    )
    originals = [message(), *exports.requests(3)["classify"]["inputs"]]
    strings = list(request_checks.mutated(originals, 3000, seed=4))
    sound = ASKED(strings).numpy()
    assert 100 < sound.sum() < 2900
    for text in np.array(strings, object)[sound]:
        with contextlib.suppress(tf.errors.InvalidArgumentError):
            parse([text])
