"""Malformed requests: each must be answered with INVALID_ARGUMENT and leave the server running."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from pipeline.serving.savedmodel_session import INVALID_ARGUMENT, ServerError, Session, as_strings
from pipeline.utils import protobuf
from pipeline.utils.errors import Failure

_IMAGE_HEADERS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM", b"RIFF")
# A tf.Example that announces a string of 2**31 bytes: parsing it ends a process of TensorFlow 2.21.
_TOO_LONG = b"\n\x0f\n\r\n\x01k\x12\x08\n\x06\n\x80\x80\x80\x80\x08"

Inputs = Mapping[str, np.ndarray]
Announce = Callable[[str], None]
"""Called with a description of the next request, in case that request ends the process."""
Check = Callable[[Announce], str]
"""Returns a detail to print, or raises what is wrong."""
_Outputs = dict[str, np.ndarray]
_Send = Callable[[np.ndarray], _Outputs]


def checks(
    session: Session, signature: str, inputs: Inputs, fuzz: int = 0
) -> Iterator[tuple[str, Check]]:
    """(name, check) of one signature; a check raises Failure.

    Args:
        session: Of the version.
        signature: Its name.
        inputs: A valid request; strings as bytes objects.
        fuzz: Mutated strings to send to each string input.
    """
    for name, values in inputs.items():
        target = f"{signature}, {name}" if len(inputs) > 1 else signature
        send = partial(_send, session, signature, inputs, name)
        for what, wrong in malformed_arrays(values):
            yield f"refuses {target}: {what}", partial(_refused, send, wrong)
        if values.dtype.kind != "O":
            continue
        if wrong_strings := malformed_strings(values[0]):
            check = partial(_all_refused, send, values[0], wrong_strings)
            yield f"refuses {target}: malformed strings", check
        if fuzz:
            check = partial(_survived, send, values[:3].tolist(), fuzz)
            yield f"survives {target}: mutated strings", check
    yield f"empty batch {signature}", partial(_empty, session, signature, inputs)


def malformed_arrays(values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """(what is wrong, array) for valid `values`: wrong rank, size, type or range.

    A model without guards would answer some of them: it broadcasts a missing axis, or takes images
    of any size.
    """
    good, strings = values[np.arange(2) % len(values)], values.dtype.kind == "O"
    yield "no batch axis", np.asarray(good[0], object) if strings else good[0]
    yield "one axis too many", good[None]
    for axis in range(1, good.ndim):
        yield f"axis {axis} too long", np.concatenate([good, good], axis=axis)
        yield f"axis {axis} empty", good[(slice(None),) * axis + (slice(0),)]
    yield "wrong type", np.zeros(good.shape, np.float32 if values.dtype == float else np.float64)
    if values.dtype.kind == "f":
        for number in (np.nan, np.inf):
            wrong = good.copy()
            wrong.reshape(-1)[-1] = number
            yield str(number), wrong


def malformed_strings(good: bytes) -> dict[str, bytes]:
    """Name -> bytes that must be refused in place of an encoded image or a tf.Example.

    Empty for any other string: every string may be valid there.
    """
    if good.startswith(_IMAGE_HEADERS):
        return {
            "empty string": b"",
            "not an image": b"not an image",
            "half an image": good[: len(good) // 2],
        }
    with protobuf.importable():
        from google.protobuf.message import DecodeError
        from tensorflow.core.example import example_pb2
    try:
        example = example_pb2.Example.FromString(good)
    except DecodeError:
        return {}
    if not example.features.feature:
        return {}
    wrong = {
        "empty example": b"",
        "not an example": b"not an example",
        "half an example": good[: len(good) // 2],
        "a length of 2**31": _TOO_LONG,
    }
    for name, feature in example.features.feature.items():
        texts, numbers = list(feature.bytes_list.value), list(feature.float_list.value)
        changes: dict[str, Sequence[bytes] | Sequence[int] | Sequence[float]] = {}
        if texts:
            changes = {"is a number": [1], "occurs twice": texts * 2}
        if texts and texts[0].startswith(_IMAGE_HEADERS):
            changes |= {what: [text] for what, text in malformed_strings(texts[0]).items()}
        if numbers:
            changes = {"is a string": [b"1.0"], "is short": numbers[1:], "is long": [*numbers, 0.0]}
            changes |= {str(x): [x, *numbers[1:]] for x in (np.nan, np.inf, -np.inf)}
        for what, values in changes.items():
            wrong[f"{name} {what}"] = protobuf.example({name: values}).SerializeToString()
    return wrong


def mutated(originals: Sequence[bytes], count: int, seed: int = 0) -> Iterator[bytes]:
    """`count` strings, each an original with one to eight random changes."""
    chance = random.Random(seed)
    for _ in range(count):
        text = bytearray(chance.choice(originals))
        for _ in range(chance.choice((1, 1, 2, 4, 8))):
            # Most changes go to headers and lengths, which come first.
            start = chance.randint(0, min(len(text), chance.choice((32, 256, len(text)))))
            size = chance.choice((1, 1, 2, 4, 16))
            piece = bytes(text[start : start + size])
            text[start : start + size] = chance.choice(
                (chance.randbytes(size), bytes(size), b"\xff" * size, b"", piece * 2)
            )
        yield bytes(text)


def _send(
    session: Session, signature: str, inputs: Inputs, name: str, wrong: np.ndarray
) -> _Outputs:
    """Sends `wrong` as the input `name`, beside valid values of the other inputs."""
    rows = len(wrong) if wrong.ndim else 2
    return session.run(signature, {**{k: v[:rows] for k, v in inputs.items()}, name: wrong})


def _refused(send: _Send, wrong: np.ndarray, announce: Announce) -> str:
    outputs = _answer(partial(send, wrong))
    if outputs is not None:
        shapes = {name: value.shape for name, value in outputs.items()}
        raise Failure(f"the model answered, with outputs of the shapes {shapes}")
    return "INVALID_ARGUMENT"


def _all_refused(send: _Send, good: bytes, wrong: Mapping[str, bytes], announce: Announce) -> str:
    """Sends each beside a valid string; one bad string fails the whole batch."""
    for name, text in wrong.items():
        announce(name)
        try:
            _refused(send, as_strings([good, text]), announce)
        except Failure as failure:
            raise Failure(f"{name}: {failure}") from None
    return f"INVALID_ARGUMENT, {len(wrong)} kinds"


def _survived(send: _Send, originals: Sequence[bytes], count: int, announce: Announce) -> str:
    answered = 0
    for number, text in enumerate(mutated(originals, count)):
        announce(f"string {number}")
        answered += _answer(partial(send, as_strings([text]))) is not None
    return f"{answered} answered, {count - answered} INVALID_ARGUMENT"


def _empty(session: Session, signature: str, inputs: Inputs, announce: Announce) -> str:
    """An empty batch must be refused or get empty outputs, depending on the kernels of the model.

    Exports of this package refuse it.
    """
    nothing = {name: values[:0] for name, values in inputs.items()}
    outputs = _answer(partial(session.run, signature, nothing))
    for name, values in (outputs or {}).items():
        if not values.ndim or len(values):
            raise Failure(f"{name} has the shape {values.shape} for an empty batch")
    return "INVALID_ARGUMENT" if outputs is None else "empty outputs"


def _answer(request: Callable[[], _Outputs]) -> _Outputs | None:
    """The outputs; None if the request was refused with INVALID_ARGUMENT."""
    try:
        return request()
    except ServerError as error:
        if error.code != INVALID_ARGUMENT:
            message = f"status {error.code} instead of INVALID_ARGUMENT: {error}"
            raise Failure(message) from None
        return None
