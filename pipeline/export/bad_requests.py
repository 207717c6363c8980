"""Malformed requests: each must be answered with INVALID_ARGUMENT and leave the server running."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from pipeline.serving.savedmodel_session import INVALID_ARGUMENT, ServerError, Session
from pipeline.serving.signatures import strings
from pipeline.utils import image_formats, protobuf
from pipeline.utils.errors import Failure

# A tf.Example that declares a string of 2**31 bytes; parsing it crashes TensorFlow 2.21.
_TOO_LONG = b"\n\x0f\n\r\n\x01k\x12\x08\n\x06\n\x80\x80\x80\x80\x08"

Inputs = Mapping[str, np.ndarray]
Check = Callable[[], str]
"""Returns a detail to print, or raises Failure."""


def checks(
    session: Session, signature: str, inputs: Inputs, fuzz: int = 0
) -> Iterator[tuple[str, Check]]:
    """Yields (name, check) for a signature; `inputs` is a valid request. A check raises Failure.

    `fuzz` mutated strings are also sent to each string input.
    """
    for name in inputs:
        target = f"{signature}, {name}" if len(inputs) > 1 else signature
        yield f"refuses {target}", partial(_all_refused, session, signature, inputs, name)
        if fuzz and inputs[name].dtype.kind == "O":
            yield f"survives {target}", partial(_survived, session, signature, inputs, name, fuzz)


def malformed(values: np.ndarray) -> dict[str, np.ndarray]:
    """Maps problems to malformed arrays, from valid `values`: wrong rank, size, type or content.

    A model without guards would answer some of them, because it broadcasts a missing axis or takes
    images of any size.
    """
    good, is_text = values[np.arange(2) % len(values)], values.dtype.kind == "O"
    wrong = {
        "no batch axis": np.asarray(good[0], object) if is_text else good[0],
        "one axis too many": good[None],
        "empty batch": good[:0],
        "wrong type": np.zeros(good.shape, np.float32 if values.dtype == float else np.float64),
    }
    for axis in range(1, good.ndim):
        wrong[f"axis {axis} too long"] = np.concatenate([good, good], axis=axis)
        wrong[f"axis {axis} empty"] = good[(slice(None),) * axis + (slice(0),)]
    if values.dtype.kind == "f":
        for number in (np.nan, np.inf):
            spoiled = good.copy()
            spoiled.reshape(-1)[-1] = number
            wrong[str(number)] = spoiled
    if is_text:  # one malformed string fails the whole batch
        texts = malformed_strings(good[0])
        wrong |= {name: strings([good[0], text]) for name, text in texts.items()}
    return wrong


def malformed_strings(good: bytes) -> dict[str, bytes]:
    """Maps problems to malformed versions of an encoded image or a tf.Example.

    Empty for other strings, because any string may be valid.
    """
    half = good[: len(good) // 2]
    if image_formats.is_image(good):
        return {"empty string": b"", "not an image": b"not an image", "half an image": half}
    with protobuf.importable():
        from google.protobuf.message import DecodeError
        from tensorflow.core.example import example_pb2
    try:
        features = example_pb2.Example.FromString(good).features.feature
    except DecodeError:
        features = {}
    if not features:
        return {}
    wrong = {"empty example": b"", "not an example": b"not an example", "half an example": half}
    for name in features:
        wrong[f"{name} is empty"] = protobuf.example({name: []})
        wrong[f"{name} is a number"] = protobuf.example({name: [1]})
    return {**wrong, "a length of 2**31": _TOO_LONG}


def mutated(originals: Sequence[bytes], count: int, seed: int = 0) -> Iterator[bytes]:
    """Yields `count` strings, each an original with one to eight random changes."""
    chance = random.Random(seed)
    for _ in range(count):
        text = bytearray(chance.choice(originals))
        for _ in range(chance.randint(1, 8)):
            # Headers and lengths come first.
            start = chance.randint(0, min(len(text), chance.choice((32, 256, len(text)))))
            size = chance.choice((1, 2, 16))
            text[start : start + size] = chance.choice((chance.randbytes(size), bytes(size), b""))
        yield bytes(text)


def _survived(session: Session, signature: str, inputs: Inputs, name: str, count: int) -> str:
    texts = mutated(inputs[name][:3].tolist(), count)
    answered = sum(_answered(session, signature, inputs, name, strings([text])) for text in texts)
    return f"{answered} mutated strings answered, {count - answered} INVALID_ARGUMENT"


def _all_refused(session: Session, signature: str, inputs: Inputs, name: str) -> str:
    wrong = malformed(inputs[name])
    for problem, values in wrong.items():
        try:
            answered = _answered(session, signature, inputs, name, values)
        except Failure as error:
            raise Failure(f"{problem}: {error}") from None
        if answered:
            raise Failure(f"{problem}: the model answered")
    return f"INVALID_ARGUMENT for {len(wrong)} kinds of requests"


def _answered(
    session: Session, signature: str, inputs: Inputs, name: str, values: np.ndarray
) -> bool:
    """Whether a request is answered; False if it is rejected with INVALID_ARGUMENT."""
    rows = len(values) if values.ndim else 2
    request = {**{key: value[:rows] for key, value in inputs.items()}, name: values}
    try:
        session.run(signature, request)
    except ServerError as error:
        if error.code != INVALID_ARGUMENT:
            raise Failure(f"status {error.code} instead of INVALID_ARGUMENT: {error}") from None
        return False
    return True
