"""Data sets that are part of the scikit-learn package and need no download."""

from typing import Literal

import numpy as np

from pipeline.contracts import Source
from pipeline.data.array_source import ArraySource


def scikit_learn(*, dataset: Literal["digits", "diabetes"]) -> Source:
    """A data set of scikit-learn, as the split `train`; ids are the indices.

    Args:
        dataset: `digits`: 1,797 handwritten digits, 8x8 pixels in 17 shades of gray (E.
            Alpaydin, C. Kaynak, UCI 1998), scaled to 0 to 255; `image` is uint8 (8, 8,
            1), `label` is int64. `diabetes`: 442 patients (Efron, Hastie, Johnstone,
            Tibshirani, "Least angle regression", Annals of Statistics 2004); `features`
            is float32 (10,): age, sex, body mass index, blood pressure and six blood
            values, as scaled by scikit-learn; `target` is float32: the progression of
            the disease after one year, from 25 to 346.
    """
    return {"digits": _digits, "diabetes": _diabetes}[dataset]()


def _digits() -> Source:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    # 16 -> 255; the 17 shades remain distinct after rounding.
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[..., None]
    return ArraySource(
        {"image": images, "label": bunch.target.astype(np.int64)},
        class_names=tuple(str(name) for name in bunch.target_names),
    )


def _diabetes() -> Source:
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes()
    return ArraySource(
        {
            "features": bunch.data.astype(np.float32),
            "target": bunch.target.astype(np.float32),
        },
        feature_names=tuple(bunch.feature_names),
    )
