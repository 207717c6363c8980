"""Whether a server's answers are the stored ones, in batches of every size."""

from collections.abc import Mapping

import numpy as np

from pipeline.serving.savedmodel_session import Session
from pipeline.utils.errors import Failure

BATCH_SIZES = (1, 3, 64)
# Float32 sums in another order (other batch size, another CPU) differ by about 1e-6 of their size;
# the largest stored answer stands for it, because a small one may be a difference of large terms.
# 16 bits that are rounded elsewhere differ by a unit in the last place: 2**-10, 2**-7.
TOLERANCES = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 1e-2}
"""Precision of the served network -> largest difference, as a share of the largest answer."""
# Scores nearer to each other than this many tolerances, as a share of their size, may change
# places: the error of a probability is that of its logit, times the probability.
_NEAR = 100

Golden = Mapping[str, Mapping[str, np.ndarray]]
"""`inputs` and `outputs`: name -> values of all stored examples."""


def check(
    session: Session,
    signature: str,
    golden: Golden,
    sizes: tuple[int, ...] = BATCH_SIZES,
    precision: str = "float32",
) -> str:
    """Asks the stored requests of a signature; raises Failure if an answer is another one.

    Of fewer examples than a batch has, some are asked again. Numbers may differ by `TOLERANCES`;
    whole numbers and texts must be equal, but for those of scores that are nearly equal.
    """
    count = len(next(iter(golden["inputs"].values())))
    tolerance, worst, moved = TOLERANCES[precision], 0.0, 0
    near = _near(golden["outputs"], tolerance)
    for name, stored in golden["outputs"].items():
        if stored.dtype.kind == "f" and not np.isfinite(stored).all():
            raise Failure(f"{name}: a stored answer is not finite, so that anything would pass")
    for size in sizes:
        rows = np.arange(size) % count
        outputs = session.run(signature, {n: v[rows] for n, v in golden["inputs"].items()})
        if set(outputs) != set(golden["outputs"]):
            raise Failure(f"outputs are {sorted(outputs)}, not {sorted(golden['outputs'])}")
        for name, stored in golden["outputs"].items():
            got, wanted = outputs[name], stored[rows]
            if got.shape != wanted.shape or got.dtype != wanted.dtype:
                raise Failure(f"{name}: {got.dtype} {got.shape}, not {wanted.dtype} {wanted.shape}")
            if got.dtype.kind == "f":
                # Written so that NaN fails: every comparison with it is false.
                difference = np.abs(got - wanted)
                largest = np.abs(stored).max(initial=0.0)
                if not (difference <= tolerance * largest).all():
                    raise Failure(f"{name}: differs by {difference.max():.2g} in a batch of {size}")
                worst = max(worst, float(difference.max(initial=0.0)))
            else:
                wrong = got != wanted
                allowed = wrong & _places(near, rows, wrong.shape)
                if (wrong & ~allowed).any():
                    at = np.argwhere(wrong & ~allowed)[0]
                    found, meant = got[tuple(at)], wanted[tuple(at)]
                    raise Failure(f"{name}: {found!r} instead of {meant!r} in a batch of {size}")
                moved += int(allowed.sum())
    ties = f"; {moved} of nearly equal scores changed places" if moved else ""
    return f"batches of {', '.join(map(str, sizes))}; largest difference {worst:.1g}{ties}"


def _near(outputs: Mapping[str, np.ndarray], tolerance: float) -> np.ndarray:
    """bool (examples, ranks): whether the score of a rank is nearly that of the next or last one.

    Scores are the numbers (examples, n) of most columns; without such nothing is near.
    """
    tables = [values for values in outputs.values() if values.dtype.kind == "f" and values.ndim > 1]
    if not tables:
        return np.zeros((0, 0), bool)
    scores = max(tables, key=lambda values: values.shape[1])
    scores = -np.sort(-scores.reshape(len(scores), -1), axis=1)
    # Behind the last stands nothing, or what was not stored and is at most as large.
    following = np.concatenate([scores[:, 1:], np.zeros_like(scores[:, :1])], axis=1)
    close = scores - following <= _NEAR * tolerance * np.abs(scores)
    close[:, -1] = np.abs(scores[:, -1]) <= tolerance
    before = np.concatenate([np.zeros_like(close[:, :1]), close[:, :-1]], axis=1)
    return close | before


def _places(near: np.ndarray, rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Which values of an output of this shape may be others, as ranks 0, 1, ... stand for them."""
    ranks = 1 if len(shape) == 1 else shape[1]
    if len(shape) > 2 or not near.size or ranks > near.shape[1]:
        return np.zeros(shape, bool)
    return near[rows][:, :ranks].reshape(shape)
