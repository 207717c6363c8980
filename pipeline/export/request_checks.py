"""Checks the responses of a served model to stored and to malformed requests.

Stored requests, in batches of different sizes, must get the predictions of the trained
model. Malformed requests must get INVALID_ARGUMENT and leave the server running.
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
# 1e-6 of their size. The scale is the largest stored prediction, because a small
# prediction may be a difference of large terms. Rounding of 16-bit numbers may differ
# by a unit in the last place: 2**-10, 2**-7.
TOLERANCES = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 1e-2}
"""Tolerance for each precision of the exported network, relative to the largest
prediction.
"""
# Classes whose scores differ by less than this many tolerances, relative to their size,
# may swap ranks: the error of a probability is the error of its logit times the
# probability.
_TIES = 100
# Share of the entries of lists, such as detected boxes, that may have no partner:
# rounding can change which of two boxes suppresses the other, or is the last.
_UNEQUAL_ENTRIES = 0.01

Golden = Mapping[str, Mapping[str, np.ndarray]]
"""`inputs` and `outputs`: name -> values of all stored examples."""
_CONTROLS = {chr(number) for number in range(32)} - {*"\t\n\r"}

Inputs = Mapping[str, np.ndarray]
Check = Callable[[], str]
"""Returns a detail to print, or raises Failure."""


def check_predictions(
    session: Session,
    signature: str,
    golden: Golden,
    sizes: tuple[int, ...] = BATCH_SIZES,
    precision: str = "float32",
    *,
    tolerances: int = 1,
) -> str:
    """Sends the stored requests of a signature; raises Failure if a prediction differs.

    Floats may differ by `tolerances` times the tolerance of the precision; integers and
    strings must be equal, except for ranks with nearly equal scores, and pixels
    (`are_pixels`). The entries of lists (`_lists`) are compared in any order. If a
    batch needs more examples than are stored, examples are repeated.
    """
    inputs = golden["inputs"]
    outputs = golden["outputs"]
    tolerance = tolerances * TOLERANCES.get(precision, TOLERANCES["float32"])
    ties = _ties(outputs, tolerance)
    lists = _lists(outputs)
    swapped = 0
    moved = 0
    replaced = 0
    entries = 0
    vectors = next((name for name in lists if outputs[name].ndim == 3), "")
    worst = 0.0
    for size in sizes:
        rows = np.arange(size) % len(next(iter(inputs.values())))
        predictions = session.run(
            signature, {name: v[rows] for name, v in inputs.items()}
        )
        if set(predictions) != set(outputs):
            raise Failure(
                f"the outputs are {sorted(predictions)}, not {sorted(outputs)}"
            )
        for name, stored in outputs.items():
            actual = predictions[name]
            expected = stored[rows]
            if actual.shape != expected.shape or actual.dtype != expected.dtype:
                raise Failure(
                    f"{name}: {actual.dtype} {actual.shape}, not {expected.dtype}"
                    f" {expected.shape}"
                )
            if name in lists:
                continue
            if are_pixels(expected):
                worst = max(worst, _compare_pixels(name, actual, expected, tolerance))
            elif actual.dtype.kind == "f":
                difference = float(np.abs(actual - expected).max(initial=0.0))
                limit = tolerance * np.abs(stored).max(initial=0.0)
                if not difference <= limit:  # also if NaN
                    raise Failure(
                        f"{name}: differs by {difference:.2g} in a batch of {size}"
                    )
                worst = max(worst, difference)
            else:
                unequal = actual != expected
                wrong = unequal & ~_tied_values(ties, rows, expected.shape)
                for position in np.argwhere(wrong)[:1]:
                    at = tuple(position)
                    raise Failure(
                        f"{name}: {actual[at]!r} instead of {expected[at]!r}, batch of"
                        f" {size}"
                    )
                swapped += int(unequal.sum())
        if lists:
            expected_lists = {name: outputs[name][rows] for name in lists}
            actual_lists = {name: predictions[name] for name in lists}
            difference, elsewhere, missing = _compare_lists(
                actual_lists, expected_lists, tolerance
            )
            worst = max(worst, difference)
            moved += elsewhere
            replaced += missing
            entries += expected_lists["scores"].size
    batches = ", ".join(map(str, sizes))
    summary = f"batches of {batches}; largest difference {worst:.1g}"
    if swapped:
        summary += f"; {swapped} values differ where scores are nearly equal"
    if moved:
        summary += (
            f"; {moved:,} of {entries:,} {vectors} have another rank: scores are nearly"
            " equal"
        )
    if replaced:
        summary += (
            f"; {replaced:,} of {entries:,} {vectors} are others: rounding decides"
            " which of two that overlap is kept"
        )
    return summary


def are_pixels(values: np.ndarray) -> bool:
    """Whether an output has images: uint8 (examples, height, width, channels)."""
    return values.dtype == np.uint8 and values.ndim == 4


def _compare_pixels(
    name: str, actual: np.ndarray, expected: np.ndarray, tolerance: float
) -> float:
    """The largest difference of pixels; raises Failure if an image differs.

    A pixel may differ by 1, because rounding can turn any difference into 1, or the
    pixels of an image on average by the tolerance.
    """
    difference = np.abs(actual.astype(np.int64) - expected)
    largest = difference.max(axis=(1, 2, 3))
    mean = difference.mean(axis=(1, 2, 3))
    differs = (largest > 1) & (mean > 255 * tolerance)
    if differs.any():
        row = int(np.argmax(differs))
        raise Failure(
            f"{name}: image {row} differs by up to {largest[row]}, on average by"
            f" {mean[row]:.2g}, in a batch of {len(actual)}"
        )
    return float(largest.max())


def _lists(outputs: Mapping[str, np.ndarray]) -> list[str]:
    """Names of the outputs that are lists of entries, such as detected boxes.

    They have `scores`, (examples, entries), vectors of each entry, (examples, entries,
    n), and perhaps more with the same first axes.
    """
    shape = getattr(outputs.get("scores"), "shape", ())
    if len(shape) != 2:
        return []
    names = [name for name, values in outputs.items() if values.shape[:2] == shape]
    has_vectors = any(outputs[name].ndim == 3 for name in names)
    return names if has_vectors else []


def _compare_lists(
    actual: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    tolerance: float,
) -> tuple[float, int, int]:
    """Finds a partner for each entry: the equal one of the same rank, or of another.

    Returns the largest difference of partners, and how many entries have a partner of
    another rank, and none. Raises Failure if too many have none.
    """
    examples, entries = expected["scores"].shape
    worst = 0.0
    moved = 0
    missing = 0
    for row in range(examples):
        is_equal = np.ones((entries, entries), bool)
        differences = np.zeros((entries, entries))
        for name, values in expected.items():
            one = values[row].reshape(entries, 1, -1)
            other = actual[name][row].reshape(1, entries, -1)
            if values.dtype.kind == "f":
                limit = tolerance * np.abs(values).max(initial=0.0)
                difference = np.abs(one - other).max(axis=2, initial=0.0)
                is_equal &= difference <= limit
                differences = np.maximum(differences, difference)
            else:
                is_equal &= (one == other).all(axis=2)
        is_free = np.ones(entries, bool)
        for entry in range(entries):
            partners = is_equal[entry] & is_free
            if not partners.any():
                missing += 1
                continue
            partner = entry if partners[entry] else int(partners.argmax())
            is_free[partner] = False
            moved += partner != entry
            worst = max(worst, float(differences[entry, partner]))
    if missing > _UNEQUAL_ENTRIES * examples * entries:
        raise Failure(
            f"{', '.join(expected)}: {missing:,} of {examples * entries:,} entries are"
            f" not in the predictions, batch of {examples}"
        )
    return worst, moved, missing


def _ties(outputs: Mapping[str, Any], tolerance: float) -> np.ndarray:
    """Whether the score of a rank nearly equals an adjacent score.

    The scores are the float output (examples, n) with the largest n. Returns bool
    (examples, ranks), empty if there are no scores.
    """
    tables = [v for v in outputs.values() if v.dtype.kind == "f" and v.ndim > 1]
    if not tables:
        return np.zeros((0, 0), bool)
    scores = max(tables, key=lambda values: values.shape[1])
    scores = -np.sort(-scores.reshape(len(scores), -1), axis=1)
    # The score after the last rank is not stored; it is at most as large as the last.
    close = -np.diff(scores, axis=1) <= _TIES * tolerance * np.abs(scores[:, :-1])
    last = np.abs(scores[:, -1:]) <= tolerance
    return np.hstack([close, last]) | np.hstack([last & False, close])


def _tied_values(
    ties: np.ndarray, rows: np.ndarray, shape: tuple[int, ...]
) -> np.ndarray:
    """Which values of an output may differ; its second axis is the rank."""
    ranks = 1 if len(shape) == 1 else shape[1]
    if len(shape) > 2 or not ties.size or ranks > ties.shape[1]:
        return np.zeros(shape, bool)
    return ties[rows][:, :ranks].reshape(shape)


def refusal_checks(
    session: Session, signature: str, inputs: Inputs, optional: Collection[str] = ()
) -> Iterator[tuple[str, Check]]:
    """Yields a check for each input of a signature; `inputs` is a valid request.

    An `optional` input takes NaN, which means that there is no value.
    """
    for name in inputs:
        target = f"{signature}, {name}" if len(inputs) > 1 else signature
        check = partial(
            _check_refusals, session, signature, inputs, name, name in optional
        )
        yield f"refuses {target}", check


def malformed_arrays(
    values: np.ndarray, free: Collection[int] = (), is_optional: bool = False
) -> dict[str, np.ndarray]:
    """Makes malformed arrays, by problem, from valid `values`; NaN is one of them
    unless they are optional.

    Their rank, size, type or content is wrong. The axes that are `free` may have any
    length. A model without guards would answer some of these requests, because it
    broadcasts a missing axis or takes images of any size.
    """
    good = values[np.arange(2) % len(values)]
    is_text = values.dtype.kind == "O"
    other_type = np.float32 if values.dtype == float else np.float64
    wrong = {
        "no batch axis": np.asarray(good[0], object) if is_text else good[0],
        "one axis too many": good[None],
        "empty batch": good[:0],
        "wrong type": np.zeros(good.shape, other_type),
    }
    for axis in {*range(1, good.ndim)} - {*free}:
        wrong[f"axis {axis} too long"] = np.concatenate([good, good], axis=axis)
        wrong[f"axis {axis} empty"] = good[(slice(None),) * axis + (slice(0),)]
    if values.dtype.kind == "f":
        for number in (np.inf,) if is_optional else (np.nan, np.inf):
            damaged = good.copy()
            damaged.reshape(-1)[-1] = number
            wrong[str(number)] = damaged
    if is_text:  # one malformed string fails the whole batch
        texts = malformed_strings(good.reshape(-1)[0])
        for name, text in texts.items():
            damaged = good.copy()
            damaged.reshape(-1)[-1] = text
            wrong[name] = damaged
    return wrong


def malformed_strings(good: bytes) -> dict[str, bytes]:
    """Makes malformed versions, by problem, of an encoded image or of other bytes.

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
    """Whether a string is text in UTF-8 rather than the content of a file."""
    try:
        return not set(content.decode()) & _CONTROLS
    except UnicodeDecodeError:
        return False


def _check_refusals(
    session: Session, signature: str, inputs: Inputs, name: str, is_optional: bool
) -> str:
    free = _free_axes(session, signature, name)
    wrong = malformed_arrays(inputs[name], free, is_optional)
    for problem, values in wrong.items():
        try:
            has_prediction = _is_answered(session, signature, inputs, name, values)
        except Failure as error:
            raise Failure(f"{problem}: {error}") from None
        if has_prediction:
            raise Failure(f"{problem}: the model answered")
    return f"INVALID_ARGUMENT for {len(wrong)} kinds of requests"


def _free_axes(session: Session, signature: str, name: str) -> list[int]:
    """The axes of an input that may have any length, the batch included."""
    definition = session.signatures.get(signature)
    axes = definition.inputs[name].tensor_shape.dim if definition else ()
    return [number for number, axis in enumerate(axes) if axis.size < 0]


def _is_answered(
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
