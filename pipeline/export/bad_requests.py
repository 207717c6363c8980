"""Wrong and hostile requests: each must get INVALID_ARGUMENT, and the server must live on."""

import resource
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from pipeline.export import malformed_files
from pipeline.serving.savedmodel_session import INVALID_ARGUMENT, ServerError, Session, as_strings
from pipeline.utils.errors import Failure

FUZZED = 200
"""Strings for each signature that takes bytes."""
# A file refused by its header costs nothing; the bomb among them unfolds to 400 MB at least.
_MOST_MEMORY = 200  # MB

Inputs = Mapping[str, np.ndarray]
Now = Callable[[str], None]


def checks(
    session: Session, signature: str, inputs: Inputs, fuzzed: int = FUZZED
) -> Iterator[tuple[str, Callable[[Now], str]]]:
    """(name, check) of one signature.

    A check is handed a function to be told what it is about to ask, should that end the process;
    it returns a detail or raises Failure.

    Args:
        session: Of the version.
        signature: Which one.
        inputs: A good request, each (examples, ...); strings as bytes objects.
        fuzzed: How many changed strings are sent to each input of strings.
    """
    several = len(inputs) > 1
    for name, values in inputs.items():
        of = f"{signature}, {name}" if several else signature

        def send(wrong: Any, name: str = name) -> dict[str, np.ndarray]:
            others = {key: v[: len(wrong) if np.ndim(wrong) else 2] for key, v in inputs.items()}
            return session.run(signature, {**others, name: wrong})

        for what, wrong in wrong_forms(values):
            yield f"refuses {of}: {what}", partial(_refused, send, wrong)
        if values.dtype.kind == "O":
            yield from _strings(send, of, values, fuzzed)
    yield f"empty batch {signature}", partial(_empty, session, signature, inputs)


def wrong_forms(values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """(what is wrong, the values so) for values of another shape, type or range.

    A model that multiplies by a missing axis, or takes an image of any size, answers all these.
    """
    rows = np.arange(2) % len(values)
    good, strings = values[rows], values.dtype.kind == "O"
    yield "no batch axis", np.asarray(good[0], object) if strings else good[0]
    yield "one axis too many", good[None]
    for axis in range(1, good.ndim):
        yield f"axis {axis} too long", np.concatenate([good, good], axis=axis)
        yield f"axis {axis} empty", good[(slice(None),) * axis + (slice(0),)]
    other = np.float32 if values.dtype == np.float64 else np.float64
    yield "another type", np.zeros(good.shape, other)
    if values.dtype.kind == "f":
        for wrong in ("nan", "inf"):
            spoilt = good.copy()
            spoilt.reshape(-1)[-1] = float(wrong)
            yield wrong, spoilt


def _strings(
    send: Callable[[np.ndarray], Any], of: str, values: np.ndarray, fuzzed: int
) -> Iterator[tuple[str, Callable[[Now], str]]]:
    """For images, or tf.Examples; other texts may be anything, and only their shapes are wrong."""
    good = values[0]
    image, within = good, lambda image: image
    originals = list(values[:3])
    if not malformed_files.is_image(good):
        try:
            found = malformed_files.example_image(good)
        except ValueError:
            return
        wrong = malformed_files.broken_examples(good)
        yield f"refuses {of}: wrong examples", partial(_all_refused, send, good, wrong)
        if found is None:
            yield f"survives {of}: fuzzed bytes", partial(_survived, send, originals, fuzzed)
            return
        image, within = found
    wrong = {name: within(file) for name, file in malformed_files.broken_images(image).items()}
    odd = {name: within(file) for name, file in malformed_files.odd_images().items()}
    yield f"refuses {of}: hostile files", partial(_all_refused, send, good, wrong)
    yield f"survives {of}: odd files", partial(_lived, send, odd)
    originals += odd.values()
    yield f"survives {of}: fuzzed bytes", partial(_survived, send, originals, fuzzed)


def _refused(send: Callable[[Any], dict], wrong: np.ndarray, now: Now) -> str:
    if (shapes := _answer(send, wrong)) is not None:
        raise Failure(f"it was answered with {shapes}")
    return "INVALID_ARGUMENT"


def _all_refused(
    send: Callable[[Any], dict], good: bytes, wrong: Mapping[str, bytes], now: Now
) -> str:
    """Each beside a good one, which must not be answered either: a batch has one status."""
    before = _peak()
    for name, text in wrong.items():
        now(name)
        if (shapes := _answer(send, as_strings([good, text]), name)) is not None:
            raise Failure(f"{name}: it was answered with {shapes}")
    if (taken := _peak() - before) > _MOST_MEMORY:
        raise Failure(f"to refuse them took {taken} MB of memory: one was unfolded first")
    return f"INVALID_ARGUMENT, {len(wrong)} kinds"


def _lived(send: Callable[[Any], dict], odd: Mapping[str, bytes], now: Now) -> str:
    answered = 0
    for name, text in odd.items():
        now(name)
        answered += _answer(send, as_strings([text]), name) is not None
    return f"{answered} answered, {len(odd) - answered} INVALID_ARGUMENT"


def _survived(send: Callable[[Any], dict], originals: list[bytes], count: int, now: Now) -> str:
    answered = 0
    for number, text in enumerate(malformed_files.fuzzed(originals, count)):
        now(f"string {number}")
        answered += _answer(send, as_strings([text]), f"string {number}") is not None
    return f"{answered} answered, {count - answered} INVALID_ARGUMENT"


def _empty(session: Session, signature: str, inputs: Inputs, now: Now) -> str:
    """A batch of nothing is refused or gets no answers: kernels differ in what they make of it.

    Exports of this package refuse it.
    """
    try:
        outputs = session.run(signature, {name: values[:0] for name, values in inputs.items()})
    except ServerError as error:
        if error.code != INVALID_ARGUMENT:
            raise Failure(f"status {error.code} instead of INVALID_ARGUMENT: {error}") from None
        return "INVALID_ARGUMENT"
    for name, values in outputs.items():
        if not values.ndim or len(values):
            raise Failure(f"{name} of no example has the shape {values.shape}")
    return "no answers"


def _answer(send: Callable[[Any], dict], values: np.ndarray, what: str = "") -> dict | None:
    """Shapes of the outputs; None if the request was refused as it must be."""
    try:
        outputs = send(values)
    except ServerError as error:
        if error.code != INVALID_ARGUMENT:
            what = f"{what}: " if what else ""
            said = f"status {error.code} instead of INVALID_ARGUMENT: {error}"
            raise Failure(what + said) from None
        return None
    return {name: value.shape for name, value in outputs.items()}


def _peak() -> int:
    """Most memory that this process has had so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
