"""Data sets that are part of the scikit-learn package and need no download."""

from typing import Any, Literal

import numpy as np

from pipeline.config.registry import register
from pipeline.contracts import Source
from pipeline.data.array_source import ArraySource


@register
def scikit_learn(
    *,
    dataset: Literal["digits", "diabetes", "iris", "wine", "breast_cancer", "linnerud"],
) -> Source:
    """A data set of scikit-learn, as the split `train`; ids are the indices.

    Args:
        dataset: `digits`: 1,797 handwritten digits, 8x8 pixels in 17 shades of gray (E.
            Alpaydin, C. Kaynak, UCI 1998), scaled to 0 to 255; `image` is uint8 (8, 8,
            1), `label` is int64. `diabetes`: 442 patients (Efron, Hastie, Johnstone,
            Tibshirani, "Least angle regression", Annals of Statistics 2004); `features`
            is float32 (10,): age, sex, body mass index, blood pressure and six blood
            values, as scaled by scikit-learn; `target` is float32: the progression of
            the disease after one year, from 25 to 346. `iris`: 150 flowers of 3 kinds
            (R. A. Fisher, 1936), `features` (4,). `wine`: 178 wines of 3 growers (S.
            Aeberhard, M. Forina, UCI 1992), `features` (13,). `breast_cancer`: 569
            tumors, malignant or benign (W. Wolberg, O. Mangasarian, N. Street, UCI
            1995), `features` (30,). `linnerud`: 20 men in a fitness club (A. C.
            Linnerud); `features` (3,), three exercises; `target` (3,): weight, waist
            and pulse.
    """
    if dataset == "digits":
        return _digits()
    return _table(dataset)


def _digits() -> Source:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    # 16 -> 255; the 17 shades remain distinct after rounding.
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[..., None]
    return ArraySource(
        {"image": images, "label": bunch.target.astype(np.int64)},
        class_names=_strings(bunch.target_names),
    )


def _table(dataset: str) -> Source:
    """Features with classes or, for `diabetes` and `linnerud`, numbers to predict."""
    import sklearn.datasets

    bunch = getattr(sklearn.datasets, f"load_{dataset}")()
    columns = {"features": bunch.data.astype(np.float32)}
    class_names = None
    if dataset in ("diabetes", "linnerud"):
        columns["target"] = bunch.target.astype(np.float32)
    else:
        columns["label"] = bunch.target.astype(np.int64)
        class_names = _strings(bunch.target_names)
    return ArraySource(
        columns,
        class_names=class_names,
        feature_names=_strings(bunch.feature_names),
    )


def _strings(names: Any) -> tuple[str, ...]:
    return tuple(str(name) for name in names)
