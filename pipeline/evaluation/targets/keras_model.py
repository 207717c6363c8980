"""Evaluation of the target `keras_model`."""

import numpy as np

from pipeline.contracts import Example
from pipeline.evaluation.target_evaluation import TargetEvaluation
from pipeline.tasks.keras_model import ArrayTarget

_COLUMNS = 32  # numbers of an output in a table of predictions


class ArrayEvaluation(TargetEvaluation):
    """Evaluates predictions of `keras_model`."""

    target: ArrayTarget

    def table(self, predictions: Example, batch: Example) -> dict[str, np.ndarray]:
        """`loss`, and outputs and targets of a few numbers, such as `price` and
        `price_true`; several numbers as `price_0`, `price_1`, ...
        """
        single: dict[str, np.ndarray] = {}
        several: dict[str, np.ndarray] = {}
        arrays = {}
        for name in self.target.metadata["outputs"]:
            arrays[name] = predictions[name].numpy()
            if name in self.target.metadata["targets"]:
                arrays[f"{name}_true"] = batch[f"y/{name}"].numpy()
        for name, values in arrays.items():
            columns = _columns(name, values)
            (single if len(columns) == 1 else several).update(columns)
        return {"loss": predictions["loss"].numpy(), **single, **several}


def _columns(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """The numbers of an output for a table; none if there are many."""
    rows = values.reshape(len(values), -1)
    if rows.shape[1] == 1:
        return {name: rows[:, 0]}
    if rows.shape[1] > _COLUMNS:
        return {}
    return {f"{name}_{index}": rows[:, index] for index in range(rows.shape[1])}
