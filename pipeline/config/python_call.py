"""From the arguments of a call in Python, `fit(model=..., data=..., epochs=3)`, to a
Request.
"""

import contextlib
import dataclasses
import re
import sys
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config import (
    cli_parser,
    command_line,
    keras_arguments,
    objects,
    registry,
    type_hints,
    validation,
)
from pipeline.config.config import Config
from pipeline.config.request import Request
from pipeline.config.sections import SourceConfig, TrainConfig
from pipeline.utils import output
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError, did_you_mean, suggest

_POSITIONAL = ("x", "y", "batch_size", "epochs")
"""Arguments of `keras.Model.fit` in their order."""
_SHORT = {
    **dict.fromkeys(("epochs", "batch_size", "learning_rate", "optimizer"), "train"),
    **dict.fromkeys(("loss", "metrics", "callbacks"), "train"),
    **dict.fromkeys(("validation_data", "test_data", "class_names"), "source"),
    "folds": "data",
}
"""Argument -> its section."""
_ARGUMENTS = {**_SHORT, **dict.fromkeys(keras_arguments.TRAIN_OPTIONS, "train")}
"""Argument that stands for an option in messages -> the section of the option."""


def request(
    recipe: str | Path | Config | None, arguments: Mapping[str, Any]
) -> Request:
    """The request of a call of `fit` with these arguments; None stands for no argument.

    `recipe` is the name of a recipe, a path of data, or a Config. None means the path
    if `data` is a path and there is no `model`, `digits` if there is no `data`, and
    else no recipe. A Keras model in place of the recipe is the `model`.

    Raises UsageError for unknown or contradictory arguments, and for wrong values.
    """
    values: dict[str, Any] = {}
    for name, value in arguments.items():
        if value is not None:
            values[name] = value
    _require_known(values)
    _require_sections(values)
    if _is_keras_model(recipe) and "model" not in values:
        values["model"] = recipe
        recipe = None
    if not isinstance(recipe, str | Path | Config | None):
        raise UsageError(
            f"a recipe must be a name, a path or a Config; got {type(recipe).__name__};"
            " pass data and a model by name: fit(data=..., model=...)"
        )
    if isinstance(recipe, Path):
        recipe = str(recipe)  # also the name of a recipe
    values = keras_arguments.translate(values)
    target = values.pop("target", None)
    if target is not None and not _is_column(target):
        task = values.get("task", {})
        task = task if isinstance(task, Mapping) else {"name": task}
        values["task"] = {**task, "target": target}
        target = None
    # `task={"target": "classes"}` may stand beside the column that has the classes.
    target = target or _pop_column(values)
    path = _pop_path(values)
    if (
        path
        and recipe is None
        and ("model" not in values or _is_pretrained(values["model"]))
    ):
        recipe = path
    elif path:
        options = _source_options(values)
        values["source"] = {**_detect_source(path, values, target), **options}
    is_compiled = False
    if "keras" in sys.modules or _has_losses(values):
        user_arguments = registry.user_arguments()
        values = user_arguments.add_precision(values)
        values, is_compiled = user_arguments.add_compile_arguments(values, recipe)
        values = user_arguments.add_rate(user_arguments.add_batch_size(values))
        values = user_arguments.add(values)
    changes = _changes(_with_rate(values, is_compiled))
    source = changes.get("source")
    if target is not None and source and _is_object(source):
        source["predict"] = target
    return _start(recipe, changes, target).changed(**changes)


def _is_keras_model(value: Any) -> bool:
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(value, keras.Model)


def _has_losses(arguments: Mapping[str, Any]) -> bool:
    """Whether a call has losses by output."""
    is_mapping = isinstance(arguments.get("loss"), Mapping)
    return (
        is_mapping
        or "loss_weights" in arguments
        or _task_name(arguments) == "keras_model"
    )


def name_positional(
    recipe: Any, positional: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of `fit` after a Keras model, by their names.

    Raises UsageError after anything else, or for one that is also among the named ones.
    """
    is_model = _is_keras_model(recipe)
    if positional and (not is_model or len(positional) > len(_POSITIONAL)):
        raise UsageError("pass the arguments by name: fit(model=..., data=(x, y))")
    arguments = dict(zip(_POSITIONAL, positional, strict=False))
    for name in arguments:
        if named.get(name) is not None:
            raise UsageError(f"{name} is given twice, by its position and its name")
    return arguments


def _require_known(arguments: Mapping[str, Any]) -> None:
    """Raises UsageError for an argument that `fit` does not have."""
    fields = set()
    for field in dataclasses.fields(Config):
        if not field.metadata.get("hidden"):
            fields.add(field.name)
    known = {*_SHORT, "loss_weights", "target", *keras_arguments.ARGUMENTS}
    for name in arguments.keys() - fields - known:
        flags = cli_parser.matching_flags(f"--{name}", Config)
        if flags == ["--train.learning-rate"]:  # `lr`
            flags = ["learning_rate"]
        elif flags and flags[0] not in cli_parser.flags(Config):
            flags = registry.arguments_with(name, Config, arguments[name])
        hint = did_you_mean(flags) if flags else suggest(name, {*fields, *_SHORT})
        raise UsageError(f"unknown argument {name!r}; {hint}")


def _require_sections(arguments: Mapping[str, Any]) -> None:
    """Raises UsageError for a section that is neither a dictionary nor its class."""
    for name, kind in typing.get_type_hints(Config).items():
        value = arguments.get(name)
        is_bool = isinstance(value, bool) and hasattr(kind, "enabled")
        if value is None or not dataclasses.is_dataclass(kind) or is_bool:
            continue
        # A section with a name also takes the name alone; `data` is also the data.
        if name != "data" and not hasattr(kind, "name"):
            is_section = isinstance(value, dict | kind)
            expected = type_hints.describe(kind)
            validation.require(is_section, f"--{name}", repr(value), expected)


def _pop_path(arguments: dict[str, Any]) -> Path | None:
    """Removes and returns `data` if it is a path."""
    data: Any = arguments.get("data")
    if isinstance(data, Path):
        return arguments.pop("data")
    if not isinstance(data, str):
        return None
    if data in registry.names("sources"):
        if Path(data).exists():
            say(
                "note",
                f"{data} is the source of this name; for the data beside it, pass"
                f" ./{data}",
            )
        return None
    return Path(arguments.pop("data")) if command_line.is_path(data) else None


def _is_object(source: dict[str, Any]) -> bool:
    """Whether the section is about data in memory, which has no path."""
    return "name" in source and "path" not in {**_options(source), **source}


def _is_pretrained(model: Any) -> bool:
    """Whether `model=...` is the name of a network of Keras, with its weights."""
    name = model.get("name") if isinstance(model, Mapping) else model
    return isinstance(name, str) and registry.pretrained(name) is not None


def _source_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The options in `source={...}` for `data`; UsageError if it has data, too."""
    options = arguments.get("source", {})
    if type(options) is not dict or not options.keys().isdisjoint(("name", "path")):
        raise UsageError("use only one of data=... and source=...")
    return options


def _detect_source(
    path: Path, arguments: Mapping[str, Any], target: str | None
) -> dict[str, Any]:
    """The source for data at a path, with the option for the column to predict."""
    detector = registry.detector()
    source = detector.find_source(path, task_input=_task_input(arguments))
    if target is not None:
        source |= detector.truth_options(source["name"], source, target)
    return source


def _is_column(target: Any) -> bool:
    return isinstance(target, str) and not command_line.is_target(target)


def _pop_column(arguments: dict[str, Any]) -> str | None:
    """Removes and returns the target in `task={"target": ...}` if it is the name of a
    column, not a registered target.
    """
    task: Any = arguments.get("task")
    target = task.get("target") if isinstance(task, Mapping) else None
    if not _is_column(target):
        return None
    arguments["task"] = {**task}
    del arguments["task"]["target"]
    return target


def _start(
    recipe: str | Path | Config | None,
    changes: dict[str, Any],
    target: str | None = None,
) -> Request:
    """The request of a recipe; without a recipe, a network of the user for a source.

    Takes the source from `changes` if the request begins with it.
    """
    if isinstance(recipe, Config):
        return Request(recipe)
    source = changes.get("source", {})
    names_data = {**_options(source), **source}
    if isinstance(recipe, str) and command_line.is_own_data(recipe, names_data):
        return command_line.data_request(_source(changes.pop("source")), recipe=recipe)
    if isinstance(recipe, Path) or (recipe and command_line.is_data(recipe)):
        options = _options(source)
        return command_line.path_request(
            Path(recipe),
            _task_input(changes),
            lambda _: options,
            _task_name(changes),
            target,
            source.get("name") if isinstance(source.get("name"), str) else None,
        )
    if recipe is None and "source" in changes and "model" not in changes:
        task = _task_name(changes)
        own = command_line.recipe_of_object(_source(changes["source"]), task)
        if own:
            return command_line.data_request(_source(changes.pop("source")), recipe=own)
    if recipe is None and "source" in changes:
        # The defaults of Keras's `compile` and `fit` suit a network whose rate is
        # unknown.
        train = TrainConfig(optimizer="adam", learning_rate=0.001)
        if _is_pretrained(changes.get("model")):  # as in the plan of photos
            train = dataclasses.replace(train, layer_rates={"backbone": 0.1})
            if "freeze" not in changes.get("train", {}):
                train = dataclasses.replace(
                    train, freeze=("backbone",), freeze_epochs=2
                )
        return Request(Config(source=_source(changes.pop("source")), train=train))
    if recipe is None and "model" in changes:
        raise UsageError("pass data=... with the model, or the name of a recipe")
    return command_line.recipe_request(recipe or command_line.DEFAULT_RECIPE)


def _source(values: dict[str, Any]) -> SourceConfig:
    """The source of `source={"name": ..., "option": ...}`."""
    name = values.get("name", SourceConfig.name)
    return SourceConfig(name=name, options=_options(values))


def _options(values: Mapping[str, Any]) -> dict[str, Any]:
    """The options in `source={"name": ..., "option": ...}`."""
    options = {**values.get("options", {}), **values}
    options.pop("name", None)
    options.pop("options", None)
    return options


def _task_input(arguments: Mapping[str, Any]) -> str | None:
    """The name of the input in `task={"input": ...}`."""
    task = arguments.get("task")
    value = task.get("input") if isinstance(task, Mapping) else None
    return None if value is None else objects.name_of(value, "inputs")


def _task_name(arguments: Mapping[str, Any]) -> str | None:
    """The name in `task={"name": ...}`."""
    task = arguments.get("task")
    value = task.get("name") if isinstance(task, Mapping) else task
    return value if isinstance(value, str) else None


# Arguments of a Keras optimizer -> options of the run, which hold for all replicas
# together.
_UPDATE = {
    "global_clipnorm": "global_clipnorm",
    "clipnorm": "clipnorm",
    "clipvalue": "clipvalue",
}


def _with_rate(arguments: dict[str, Any], is_compiled: bool = False) -> dict[str, Any]:
    """The arguments with the learning rate and the clipping of an optimizer object as
    options.

    A rate in the arguments replaces the rate of an optimizer from `compile`.
    """
    train = arguments.get("train", {})
    optimizer: Any = arguments.get("optimizer")
    rate = arguments.pop("learning_rate", None)
    is_object = hasattr(optimizer, "get_config") and not isinstance(optimizer, type)
    has_rate = is_object and hasattr(optimizer, "learning_rate")
    scales_loss = hasattr(optimizer, "inner_optimizer")  # refused when it is used
    options: dict[str, Any] = {}
    if has_rate and not scales_loss:
        if rate is not None and not is_compiled:
            raise UsageError(
                "the optimizer has a learning rate; remove learning_rate=..."
            )
        is_explicit = is_compiled and "learning_rate" in train
        if rate is None and not is_explicit:
            rate = getattr(optimizer, "_learning_rate", optimizer.learning_rate)
        options = _update_options(optimizer)
    if hasattr(rate, "get_config") and callable(rate):
        options["schedule"] = rate
    elif isinstance(rate, int | float | str):
        arguments["learning_rate"] = rate
    elif rate is not None:
        arguments["learning_rate"] = float(rate)
    return {**arguments, "train": {**options, **train}} if options else arguments


def _update_options(optimizer: Any) -> dict[str, Any]:
    """The options of a Keras optimizer that are options of the run."""
    options = {}
    for name, option in _UPDATE.items():
        value = getattr(optimizer, name, None)
        if value is not None:
            options[option] = value
    if getattr(optimizer, "use_ema", False) and optimizer.ema_momentum is not None:
        options["ema"] = optimizer.ema_momentum
    return options


def _changes(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments as sections: `epochs=3` as `train={"epochs": 3}`."""
    if "data" in arguments and type(arguments["data"]) is not dict:
        options = _source_options(arguments)
        arguments["source"] = {"name": arguments.pop("data"), **options}
    if "source" in arguments and type(arguments["source"]) is not dict:
        arguments["source"] = {"name": arguments["source"]}
    changes: dict[str, Any] = {}
    for name, value in arguments.items():
        if name not in _SHORT:
            changes[name] = dict(value) if type(value) is dict else value
    for name, section in _SHORT.items():
        if name not in arguments:
            continue
        options = changes.setdefault(section, {})
        if name in options:
            raise UsageError(
                f'use only one of {name}=... and {section}={{"{name}": ...}}'
            )
        value = arguments[name]
        if name.endswith("_data"):
            value = objects.name_of(value, "sources")
        options[name] = value
    return changes


@contextlib.contextmanager
def errors_in_python() -> Iterator[None]:
    """Rewrites options in UsageErrors as arguments: `--train.patience 3` as
    `train={"patience": 3}`.
    """
    try:
        with output.changed(in_python=_in_python):
            yield
    except UsageError as error:
        error.args = (_in_python(str(error)),)
        raise


def _in_python(text: str) -> str:
    """A text with arguments of `fit` in place of options of the command line."""
    number = r" (-?\d[\d.]*\d|\d)\b"
    name = r" (\w+)(?=:| of |$)"  # of an option of a registered function
    flag = rf"--(?:(\w+)\.)?([a-z][\w-]+)(?:{number}|{name})?"
    return re.sub(flag, _argument, text)


def _argument(match: re.Match[str]) -> str:
    section, option, number, name = match.groups()
    option = option.replace("-", "_")
    value = number or "..."
    flags = cli_parser.flags(Config)
    flag = flags.get(match[0])
    flag_of_word = flags.get(match[0].removesuffix(f" {name}"))
    if flag is not None and flag.switch is not None:
        option = flag.path[-1]
        value = str(flag.switch)
    rest = ""
    if (section, option) == (None, "target") and name:
        return f'target="{name}"'
    if name and option.endswith("options"):
        value = f'{{"{name}": ...}}'
    elif flag_of_word is not None and name in typing.get_args(flag_of_word.hint):
        value = f'"{name}"'
    elif name:
        rest = f" {name}"
    if not section or section == _ARGUMENTS.get(option):
        return f"{option}={value}{rest}"
    return f'{section}={{"{option}": {value}}}{rest}'
