"""From the arguments of a call in Python, `fit(model=..., data=..., epochs=3)`, to a Config."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config import command_line
from pipeline.config.config import Config
from pipeline.config.sections import Source, Train
from pipeline.utils.errors import UsageError

_SHORT = {
    "epochs": "train",
    "batch_size": "train",
    "learning_rate": "train",
    "optimizer": "train",
    "loss": "train",
    "metrics": "train",
    "callbacks": "train",
    "validation_data": "source",
    "test_data": "source",
    "class_names": "source",
}
"""Argument -> its section, or that of which it is an option."""


def config(recipe: str | Config | None, arguments: Mapping[str, Any]) -> Config:
    """The config of a call.

    Args:
        recipe: Name of a recipe, or a Config; None: `digits` if there is no `data`, else none.
        arguments: Of `fit`; those that are None are ignored.

    Raises:
        UsageError: Unknown or contradictory arguments, and wrong values.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    changes = _changes(given)
    if recipe is None and "source" in changes:
        source = changes.pop("source")
        # Keras's own defaults of `compile` and `fit` suit a network whose rate is unknown.
        train = Train(optimizer="adam", learning_rate=0.001)
        recipe = Config(source=Source(**source), train=train)
    elif recipe is None and "model" in changes:
        raise UsageError("give data=... with the model, or the name of a recipe")
    elif not isinstance(recipe, str | Config | None):
        raise UsageError(f"a recipe must be a name or a Config; got {recipe!r}")
    if not isinstance(recipe, Config):
        recipe = command_line.recipe(recipe or command_line.DEFAULT_RECIPE)
    return recipe.changed(**changes)


def _changes(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments as sections: `epochs=3` as `train={"epochs": 3}`."""
    changes: dict[str, Any] = {}
    if "data" in given and type(given["data"]) is not dict:
        if "source" in given:
            raise UsageError("use only one of data=... and source=...")
        given["source"] = given.pop("data")
    for name, value in given.items():
        if name not in _SHORT:
            section = {"name": value} if name in ("source", "model", "task") else value
            changes[name] = dict(value) if type(value) is dict else section
    for name, value in given.items():
        if name in _SHORT:
            section = changes.setdefault(_SHORT[name], {})
            inside = section.setdefault("options", {}) if _SHORT[name] == "source" else section
            if name in inside:
                raise UsageError(f'use only one of {name}=... and {_SHORT[name]}={{"{name}": ...}}')
            inside[name] = value
    path = changes.get("run_directory")
    return {**changes, "run_directory": Path(path)} if isinstance(path, str) else changes


def in_python(message: str) -> str:
    """An error message with options as arguments: `--train.epochs 3` as `train={"epochs": 3}`."""

    def argument(found: re.Match[str]) -> str:
        section, option, value = found[1], found[2].replace("-", "_"), found[3] or "..."
        return f'{section}={{"{option}": {value}}}' if section else f"{option}={value}"

    return re.sub(r"--(?:(\w+)\.)?([a-z][a-z-]+)(?: (-?\d[\d.]*\d|\d)\b)?", argument, message)
