"""Compares a served model's answers with the golden answers, in batches of different sizes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.serving.savedmodel_session import Session
from pipeline.utils.errors import Failure

BATCH_SIZES = (1, 3, 64)
# Float32 sums in a different order (with another batch size or CPU) differ by about 1e-6 of their
# size. The scale is the largest stored answer, because a small answer may be a difference of large
# terms. Rounding of 16-bit numbers may differ by a unit in the last place: 2**-10, 2**-7.
TOLERANCES = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 1e-2}
"""Tolerance for each precision of the exported network, relative to the largest answer."""
# Classes whose scores differ by less than this many tolerances, relative to their size, may swap
# ranks: the error of a probability is the error of its logit times the probability.
_TIES = 100

Golden = Mapping[str, Mapping[str, np.ndarray]]
"""`inputs` and `outputs`: name -> values of all stored examples."""


def check(
    session: Session,
    signature: str,
    golden: Golden,
    sizes: tuple[int, ...] = BATCH_SIZES,
    precision: str = "float32",
) -> str:
    """Sends the stored requests of a signature; raises Failure if an answer differs.

    Floats may differ by `TOLERANCES`; integers and strings must be equal, except for ranks with
    nearly equal scores. If a batch needs more examples than are stored, examples are repeated.
    """
    inputs, outputs = golden["inputs"], golden["outputs"]
    tolerance = TOLERANCES.get(precision, TOLERANCES["float32"])
    ties, swapped, worst = _ties(outputs, tolerance), 0, 0.0
    for size in sizes:
        rows = np.arange(size) % len(next(iter(inputs.values())))
        answers = session.run(signature, {name: v[rows] for name, v in inputs.items()})
        if set(answers) != set(outputs):
            raise Failure(f"the outputs are {sorted(answers)}, not {sorted(outputs)}")
        for name, stored in outputs.items():
            got, want = answers[name], stored[rows]
            if got.shape != want.shape or got.dtype != want.dtype:
                raise Failure(f"{name}: {got.dtype} {got.shape}, not {want.dtype} {want.shape}")
            if got.dtype.kind == "f":
                difference = float(np.abs(got - want).max(initial=0.0))
                if not difference <= tolerance * np.abs(stored).max(initial=0.0):  # also if NaN
                    raise Failure(f"{name}: differs by {difference:.2g} in a batch of {size}")
                worst = max(worst, difference)
            else:
                unequal, tied = got != want, _tied_values(ties, rows, want.shape)
                if (unequal & ~tied).any():
                    at = tuple(np.argwhere(unequal & ~tied)[0])
                    raise Failure(f"{name}: {got[at]!r} instead of {want[at]!r}, batch of {size}")
                swapped += int(unequal.sum())
    note = f"; {swapped} values differ where scores are nearly equal" if swapped else ""
    return f"batches of {', '.join(map(str, sizes))}; largest difference {worst:.1g}{note}"


def _ties(outputs: Mapping[str, Any], tolerance: float) -> np.ndarray:
    """bool (examples, ranks): whether the score of a rank nearly equals an adjacent one.

    The scores are the float output (examples, n) with the largest n; empty if there is none.
    """
    tables = [v for v in outputs.values() if v.dtype.kind == "f" and v.ndim > 1]
    if not tables:
        return np.zeros((0, 0), bool)
    scores = max(tables, key=lambda values: values.shape[1])
    scores = -np.sort(-scores.reshape(len(scores), -1), axis=1)
    # After the last rank comes nothing, or a score that is not stored and at most as large.
    close = -np.diff(scores, axis=1) <= _TIES * tolerance * np.abs(scores[:, :-1])
    last = np.abs(scores[:, -1:]) <= tolerance
    return np.hstack([close, last]) | np.hstack([last & False, close])


def _tied_values(ties: np.ndarray, rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Which values of an output of this shape may differ; its second axis is the rank."""
    ranks = 1 if len(shape) == 1 else shape[1]
    if len(shape) > 2 or not ties.size or ranks > ties.shape[1]:
        return np.zeros(shape, bool)
    return ties[rows][:, :ranks].reshape(shape)
