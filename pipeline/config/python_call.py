"""From the arguments of a call in Python, `fit(model=..., data=..., epochs=3)`, to a
Request.
"""

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.config import (
    cli_parser,
    command_line,
    data_path,
    keras_words,
    objects,
    registry,
)
from pipeline.config.config import Config
from pipeline.config.request import Request
from pipeline.config.sections import SourceConfig, Train
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError, did_you_mean, suggest

_SHORT = {
    **dict.fromkeys(("epochs", "batch_size", "learning_rate", "optimizer"), "train"),
    **dict.fromkeys(("loss", "metrics", "callbacks"), "train"),
    **dict.fromkeys(("validation_data", "test_data", "class_names"), "source"),
}
"""Argument -> its section."""


def request(
    recipe: str | Path | Config | None, arguments: Mapping[str, Any]
) -> Request:
    """What a call of `fit` with these arguments asks for; None stands for no argument.

    `recipe` is the name of one, a path of data, or a Config. None means `photos` if
    `data` is a path and there is no `model`, `digits` if there is no `data`, and else
    no recipe. Raises UsageError for unknown or contradictory arguments, and for wrong
    values.
    """
    given = {
        k: v
        for k, v in arguments.items()
        if v is not None and k not in ("recipe", "changes")
    }
    known = {
        field.name
        for field in dataclasses.fields(Config)
        if not field.metadata.get("hidden")
    }
    for name in given.keys() - known - {*_SHORT, *keras_words.ARGUMENTS}:
        flags = cli_parser.meant(f"--{name}", Config)
        hint = did_you_mean(flags) if flags else suggest(name, {*known, *_SHORT})
        raise UsageError(f"unknown argument {name!r}; {hint}")
    if not isinstance(recipe, str | Path | Config | None):
        raise UsageError(
            f"a recipe must be a name, a path or a Config; got {type(recipe).__name__};"
            " give a model and data by name: fit(model=..., data=(x, y))"
        )
    if isinstance(recipe, Path):
        recipe = str(recipe)  # also the name of a recipe
    given = keras_words.arguments(given)
    data: Any = given.get("data")
    is_text = isinstance(data, str) and data not in registry.names("sources")
    if isinstance(data, str) and not is_text and Path(data).exists():
        say(
            "note",
            f"{data} is the source of this name; for the data beside it, give ./{data}",
        )
    if isinstance(data, Path) or (is_text and data_path.is_path(data)):
        path = Path(given.pop("data"))
        if recipe is None and "model" not in given:
            recipe = path
        else:
            given["source"] = data_path.source(path)
    given, is_compiled = keras_words.compiled(keras_words.precision(given), recipe)
    changes = _changes(_with_rate(given, is_compiled))
    return _start(recipe, changes).changed(**changes)


def _start(recipe: str | Path | Config | None, changes: dict[str, Any]) -> Request:
    """What a recipe asks for, or, without one, a network of the user for a source.

    Takes the source from `changes` if the request begins with it.
    """
    if isinstance(recipe, Config):
        return Request(recipe)
    if isinstance(recipe, Path):
        return command_line.photos_request(recipe)
    if recipe == command_line.PHOTOS and "source" in changes:
        return command_line.photos_request(_source(changes.pop("source")))
    if recipe is None and "source" in changes:
        # Keras's own defaults of `compile` and `fit` suit a network whose rate is
        # unknown.
        train = Train(optimizer="adam", learning_rate=0.001)
        return Request(Config(source=_source(changes.pop("source")), train=train))
    if recipe is None and "model" in changes:
        raise UsageError("give data=... with the model, or the name of a recipe")
    return command_line.recipe_request(recipe or command_line.DEFAULT_RECIPE)


def _source(values: dict[str, Any]) -> SourceConfig:
    """The source of `source={"name": ..., "option": ...}`."""
    name = values.pop("name", SourceConfig.name)
    options = values.pop("options", {})
    return SourceConfig(name=name, options={**options, **values})


# Arguments of a Keras optimizer -> options of the run, which hold for all replicas
# together.
_UPDATE = {
    "global_clipnorm": "clip_norm",
    "clipnorm": "clip_variable_norm",
    "clipvalue": "clip_value",
    "gradient_accumulation_steps": "accumulate",
}


def _with_rate(given: dict[str, Any], is_compiled: bool = False) -> dict[str, Any]:
    """The arguments with the learning rate and the clipping of an optimizer object as
    options.

    A rate that is given replaces that of an optimizer with which a model was compiled.
    """
    optimizer: Any = given.get("optimizer")
    rate, found = given.pop("learning_rate", None), dict[str, Any]()
    scales_loss = hasattr(optimizer, "inner_optimizer")  # refused when it is used
    if (
        hasattr(optimizer, "get_config")
        and hasattr(optimizer, "learning_rate")
        and not scales_loss
    ):
        if rate is not None and not is_compiled:
            raise UsageError(
                "the optimizer has a learning rate; remove learning_rate=..."
            )
        is_said = is_compiled and "learning_rate" in given.get("train", {})
        if rate is None and not is_said:
            rate = getattr(optimizer, "_learning_rate", optimizer.learning_rate)
        known = {own: getattr(optimizer, name, None) for name, own in _UPDATE.items()}
        known["ema"] = (
            optimizer.ema_momentum if getattr(optimizer, "use_ema", False) else None
        )
        found = {name: value for name, value in known.items() if value is not None}
    if hasattr(rate, "get_config") and callable(rate):
        found["schedule"] = rate
    elif rate is not None:
        given["learning_rate"] = (
            rate if isinstance(rate, int | float | str) else float(rate)
        )
    return {**given, "train": {**found, **given.get("train", {})}} if found else given


def _changes(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments as sections: `epochs=3` as `train={"epochs": 3}`."""
    if "data" in given and type(given["data"]) is not dict:
        if "source" in given:
            raise UsageError("use only one of data=... and source=...")
        given["source"] = given.pop("data")
    if "source" in given and type(given["source"]) is not dict:
        given["source"] = {"name": given["source"]}
    changes: dict[str, Any] = {
        name: dict(value) if type(value) is dict else value
        for name, value in given.items()
        if name not in _SHORT
    }
    for name in filter(given.__contains__, _SHORT):
        section = changes.setdefault(_SHORT[name], {})
        if name in section:
            raise UsageError(
                f'use only one of {name}=... and {_SHORT[name]}={{"{name}": ...}}'
            )
        value = given[name]
        section[name] = (
            objects.name_of(value, "sources") if name.endswith("_data") else value
        )
    return changes


@contextlib.contextmanager
def errors_in_python() -> Iterator[None]:
    """UsageErrors with options as arguments: `--train.epochs 3` as `train={"epochs":
    3}`.
    """

    def argument(found: re.Match[str]) -> str:
        section, option, value = found[1], found[2].replace("-", "_"), found[3] or "..."
        return f'{section}={{"{option}": {value}}}' if section else f"{option}={value}"

    flag = r"--(?:(\w+)\.)?([a-z][a-z-]+)(?: (-?\d[\d.]*\d|\d)\b)?"
    try:
        yield
    except UsageError as error:
        error.args = (re.sub(flag, argument, str(error)),)
        raise
