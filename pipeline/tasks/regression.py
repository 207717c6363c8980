"""Regression: one or several numbers for each vector of features."""

from pipeline.contracts import Info, Metadata, Task
from pipeline.tasks.supervised import supervised


def regression(info: Info | Metadata, *, raw: bool = False) -> Task:
    """Numbers from numbers: the input `features` and the target `number`.

    Args:
        info: The source's description, or the metadata of a run.
        raw: Give the model features as they are, instead of with mean 0 and deviation
            1.

    Raises:
        UsageError: A field is missing or has another type or shape.
    """
    options = {"raw": raw}
    parts = {"input": "features", "input_options": options, "target": "number"}
    return supervised(info, parts)


regression.kinds = ("features", "number")  # type: ignore[attr-defined]
