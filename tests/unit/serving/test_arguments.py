"""Values of the inputs of a model that draws pictures, from words."""

import numpy as np

from pipeline.serving.arguments import Argument


def test_classes_are_named_in_any_case():
    argument = Argument(0, np.dtype(np.int32), names=("Coat", "Sneaker", "2"))
    for word, number in {"sneaker": 1, "Coat": 0, "2": 2, "0": 0}.items():
        assert argument.values("--class", word, 2).tolist() == [number, number]
    assert argument.values("--class", None, 4).tolist() == [0, 1, 2, 0]
    assert Argument(5, np.dtype(np.int64), True).values("--seed", None, 3)[2] == 7
