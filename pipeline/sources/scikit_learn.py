"""The real data sets inside the scikit-learn wheel: they need no download."""

from typing import Literal

import numpy as np

from pipeline.array_source import ArraySource
from pipeline.contracts import Source


def source(*, dataset: Literal["digits"]) -> Source:
    """One split `train`; the id of an example is its position in scikit-learn's order.

    Args:
        dataset: `digits`: 1,797 handwritten digits, 8x8 pixels in 17 shades of grey (E. Alpaydin,
            C. Kaynak, UCI 1998), stretched to 0 ... 255.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    # 16 -> 255; rounding keeps the 17 shades apart.
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[..., None]
    return ArraySource(images, bunch.target, tuple(str(name) for name in bunch.target_names))
