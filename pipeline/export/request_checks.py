"""Requests to a served model: stored ones get the stored answers, malformed ones are
refused.

The answers of the trained model are compared in batches of different sizes. Each
malformed request must be answered with INVALID_ARGUMENT and leave the server running.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from pipeline.serving.savedmodel_session import INVALID_ARGUMENT, ServerError, Session
from pipeline.utils import image_formats
from pipeline.utils.errors import Failure

BATCH_SIZES = (1, 3, 64)
# Float32 sums in a different order (with another batch size or CPU) differ by about
# 1e-6 of their size. The scale is the largest stored answer, because a small answer may
# be a difference of large terms. Rounding of 16-bit numbers may differ by a unit in the
# last place: 2**-10, 2**-7.
TOLERANCES = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 1e-2}
"""Tolerance for each precision of the exported network, relative to the largest answer.
"""
# Classes whose scores differ by less than this many tolerances, relative to their size,
# may swap ranks: the error of a probability is the error of its logit times the
# probability.
_TIES = 100

Golden = Mapping[str, Mapping[str, np.ndarray]]
"""`inputs` and `outputs`: name -> values of all stored examples."""
_CONTROLS = {chr(number) for number in range(32)} - {*"\t\n\r"}

Inputs = Mapping[str, np.ndarray]
Check = Callable[[], str]
"""Returns a detail to print, or raises Failure."""


def check_answers(
    session: Session,
    signature: str,
    golden: Golden,
    sizes: tuple[int, ...] = BATCH_SIZES,
    precision: str = "float32",
    *,
    tolerances: int = 1,
) -> str:
    """Sends the stored requests of a signature; raises Failure if an answer differs.

    Floats may differ by `tolerances` times the tolerance of the precision; integers and
    strings must be equal, except for ranks with nearly equal scores. If a batch needs
    more examples than are stored, examples are repeated.
    """
    inputs, outputs = golden["inputs"], golden["outputs"]
    tolerance = tolerances * TOLERANCES.get(precision, TOLERANCES["float32"])
    ties, swapped, worst = _ties(outputs, tolerance), 0, 0.0
    for size in sizes:
        rows = np.arange(size) % len(next(iter(inputs.values())))
        answers = session.run(signature, {name: v[rows] for name, v in inputs.items()})
        if set(answers) != set(outputs):
            raise Failure(f"the outputs are {sorted(answers)}, not {sorted(outputs)}")
        for name, stored in outputs.items():
            got, want = answers[name], stored[rows]
            if got.shape != want.shape or got.dtype != want.dtype:
                raise Failure(
                    f"{name}: {got.dtype} {got.shape}, not {want.dtype} {want.shape}"
                )
            if got.dtype.kind == "f":
                difference = float(np.abs(got - want).max(initial=0.0))
                if not difference <= tolerance * np.abs(stored).max(
                    initial=0.0
                ):  # also if NaN
                    raise Failure(
                        f"{name}: differs by {difference:.2g} in a batch of {size}"
                    )
                worst = max(worst, difference)
            else:
                unequal, tied = got != want, _tied_values(ties, rows, want.shape)
                if (unequal & ~tied).any():
                    at = tuple(np.argwhere(unequal & ~tied)[0])
                    raise Failure(
                        f"{name}: {got[at]!r} instead of {want[at]!r}, batch of {size}"
                    )
                swapped += int(unequal.sum())
    note = f"; {swapped} values differ where scores are nearly equal" if swapped else ""
    return (
        f"batches of {', '.join(map(str, sizes))}; largest difference {worst:.1g}{note}"
    )


def _ties(outputs: Mapping[str, Any], tolerance: float) -> np.ndarray:
    """bool (examples, ranks): whether the score of a rank nearly equals an adjacent
    one.

    The scores are the float output (examples, n) with the largest n; empty if there is
    none.
    """
    tables = [v for v in outputs.values() if v.dtype.kind == "f" and v.ndim > 1]
    if not tables:
        return np.zeros((0, 0), bool)
    scores = max(tables, key=lambda values: values.shape[1])
    scores = -np.sort(-scores.reshape(len(scores), -1), axis=1)
    # After the last rank comes nothing, or a score that is not stored and at most as
    # large.
    close = -np.diff(scores, axis=1) <= _TIES * tolerance * np.abs(scores[:, :-1])
    last = np.abs(scores[:, -1:]) <= tolerance
    return np.hstack([close, last]) | np.hstack([last & False, close])


def _tied_values(
    ties: np.ndarray, rows: np.ndarray, shape: tuple[int, ...]
) -> np.ndarray:
    """Which values of an output of this shape may differ; its second axis
    is the rank.
    """
    ranks = 1 if len(shape) == 1 else shape[1]
    if len(shape) > 2 or not ties.size or ranks > ties.shape[1]:
        return np.zeros(shape, bool)
    return ties[rows][:, :ranks].reshape(shape)


def refusal_checks(
    session: Session, signature: str, inputs: Inputs
) -> Iterator[tuple[str, Check]]:
    """Yields (name, check) for a signature; `inputs` is a valid request. A check raises
    Failure.
    """
    for name in inputs:
        target = f"{signature}, {name}" if len(inputs) > 1 else signature
        check = partial(_all_refused, session, signature, inputs, name)
        yield f"refuses {target}", check


def malformed(values: np.ndarray, free: Collection[int] = ()) -> dict[str, np.ndarray]:
    """Maps problems to malformed arrays, from valid `values`: wrong rank, size, type or
    content.

    The axes that are `free` may have any length. A model without guards would answer
    some of them, because it broadcasts a missing axis or takes images of any size.
    """
    good, is_text = values[np.arange(2) % len(values)], values.dtype.kind == "O"
    wrong = {
        "no batch axis": np.asarray(good[0], object) if is_text else good[0],
        "one axis too many": good[None],
        "empty batch": good[:0],
        "wrong type": np.zeros(
            good.shape, np.float32 if values.dtype == float else np.float64
        ),
    }
    for axis in {*range(1, good.ndim)} - {*free}:
        wrong[f"axis {axis} too long"] = np.concatenate([good, good], axis=axis)
        wrong[f"axis {axis} empty"] = good[(slice(None),) * axis + (slice(0),)]
    if values.dtype.kind == "f":
        for number in (np.nan, np.inf):
            spoiled = good.copy()
            spoiled.reshape(-1)[-1] = number
            wrong[str(number)] = spoiled
    if is_text:  # one malformed string fails the whole batch
        texts = malformed_strings(good.reshape(-1)[0])
        for name, text in texts.items():
            spoiled = good.copy()
            spoiled.reshape(-1)[-1] = text
            wrong[name] = spoiled
    return wrong


def malformed_strings(good: bytes) -> dict[str, bytes]:
    """Maps problems to malformed versions of an encoded image or of other bytes.

    Empty for text, because any text may be valid.
    """
    if image_formats.is_image(good):
        half = good[: len(good) // 2]
        return {
            "empty string": b"",
            "not an image": b"not an image",
            "half an image": half,
        }
    if _is_text(good):
        return {}
    return {"empty string": b"", "not such a file": b"garbage"}


def _is_text(content: bytes) -> bool:
    """Whether a string is text in UTF-8, in contrast to the content of a file."""
    try:
        return not set(content.decode()) & _CONTROLS
    except UnicodeDecodeError:
        return False


def _all_refused(session: Session, signature: str, inputs: Inputs, name: str) -> str:
    wrong = malformed(inputs[name], _free_axes(session, signature, name))
    for problem, values in wrong.items():
        try:
            answered = _answered(session, signature, inputs, name, values)
        except Failure as error:
            raise Failure(f"{problem}: {error}") from None
        if answered:
            raise Failure(f"{problem}: the model answered")
    return f"INVALID_ARGUMENT for {len(wrong)} kinds of requests"


def _free_axes(session: Session, signature: str, name: str) -> list[int]:
    """The axes of an input that may have any length, the batch included."""
    definition = session.signatures.get(signature)
    axes = definition.inputs[name].tensor_shape.dim if definition else ()
    return [number for number, axis in enumerate(axes) if axis.size < 0]


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
            raise Failure(
                f"status {error.code} instead of INVALID_ARGUMENT: {error}"
            ) from None
        return False
    return True
