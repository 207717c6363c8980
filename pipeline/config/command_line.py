"""From the words of a command line, or a saved file, to a Config; no TensorFlow is imported."""

import dataclasses
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tyro

from pipeline.config import cli_parser, registry
from pipeline.config.config import Config, Source
from pipeline.config.validation import require_path
from pipeline.utils import home, safe_io
from pipeline.utils.errors import UsageError, suggest

PROGRAM = "python -m pipeline.fit"
PURPOSE = "Trains a recipe, tests it, exports it for TensorFlow Serving and proves the export."
DEFAULT_RECIPE = "digits"


def configure(arguments: list[str], program: str = PROGRAM, purpose: str = PURPOSE) -> Config:
    """The recipe is chosen here, so that its values are the defaults that `--help` shows."""
    words = list(arguments)
    if words[:1] in (["--help"], ["-h"]):
        print(_help(program, purpose))
        sys.exit(0)
    name = words.pop(0) if words and not words[0].startswith("-") else None
    if name is not None and words and not words[0].startswith("-"):
        raise UsageError(
            f"{words[0]!r} is too much after the recipe {name!r}; options start with --"
        )
    saved = pop_path(words, "--config", "a file, such as runs/digits-1/config.json")
    if name is not None and saved:
        raise UsageError(f"--config {saved} is a whole config; leave the recipe {name!r} away")
    name = DEFAULT_RECIPE if name is None else name
    default = read(saved) if saved else recipe(name)
    if "--help" in words or "-h" in words:
        about = f"--config {saved}" if saved else registry.summary("recipes", name)
        about += f" Model options: {_model_options()}."
        program = f"{program} {default.recipe}"
        tyro.cli(Config, args=["--help"], default=default, prog=program, description=about)
    return default.changed(**cli_parser.changes(words, Config))


def _model_options() -> str:
    known = {name: registry.options("models", name) for name in registry.names("models")}
    return "; ".join(f"{name}: {', '.join(options)}" for name, options in known.items() if options)


def recipe(name: str) -> Config:
    """The config of a recipe by its name."""
    if registry.needs(name):
        raise UsageError(f"the recipe {name!r} needs arguments; give a function without any")
    config = registry.take("recipes", name)()
    if not isinstance(config, Config):
        raise UsageError(f"the recipe {name!r} returns no Config but {type(config).__name__}")
    return config


def pop(words: list[str], wanted: str, meant: str) -> str | None:
    """Takes `--wanted VALUE` out of the words, if it is there; `meant` is for the error."""
    for at, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag == wanted:
            if not equals and at + 1 == len(words):
                raise UsageError(f"{wanted} needs {meant}")
            value = value if equals else words.pop(at + 1)
            if not value:
                raise UsageError(f"{wanted} needs {meant}")
            del words[at]
            return value
    return None


def pop_path(words: list[str], wanted: str, meant: str) -> Path | None:
    """The same for `--wanted PATH`."""
    value = pop(words, wanted, meant)
    if value is None:
        return None
    require_path(Path(value), wanted)
    return Path(value)


def _help(program: str, purpose: str) -> str:
    recipes = registry.names("recipes")
    width = max(map(len, recipes))
    lines = [f"  {name:{width}}  {registry.summary('recipes', name)}" for name in recipes]
    return "\n".join(
        [
            f"usage: {program} [RECIPE] [--config FILE] [--section.option VALUE ...]",
            "",
            purpose,
            "",
            f"recipes (without one: {DEFAULT_RECIPE}):",
            *lines,
            "",
            f"{program} RECIPE --help  shows every option with its meaning and default.",
            "--config runs/digits-1/config.json  takes the recipe and all options of a saved run.",
        ]
    )


def read(path: Path, source: Mapping[str, Any] | None = None) -> Config:
    """The config saved in a JSON file (`RUN/config.json`); every value is checked again.

    Args:
        path: The file.
        source: Options of the source in place of its own, such as where the data lie now.

    Raises UsageError naming what is wrong in the file.
    """
    try:
        values = home.unfolded(safe_io.read_json(path))
    except OSError as error:
        raise UsageError(f"--config {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"--config {path} is no JSON file: {error}") from None
    if not isinstance(values, dict) or not isinstance(values.get("source"), dict):
        raise UsageError(f"--config {path} holds no config: it has no section 'source'")
    values = _at_home(values, Config)
    try:
        # The source cannot be changed in steps: some need an option from the first on.
        source = _source({**values.pop("source"), **(source or {})})
        return Config(source=source).changed(**values)
    except UsageError as error:
        raise UsageError(f"--config {path}: {error}") from None


def _at_home(values: Mapping[str, Any], section: type) -> dict[str, Any]:
    """The home folder for a `~` alone where a path is meant; elsewhere it may be any word."""
    found, hints = dict(values), typing.get_type_hints(section)
    for name, value in values.items():
        hint = hints.get(name)
        if dataclasses.is_dataclass(hint) and isinstance(value, dict):
            found[name] = _at_home(value, hint)
        elif value == "~" and Path in (hint, *typing.get_args(hint)):
            found[name] = home.unfolded("~/")
    return found


def _source(values: Mapping[str, Any]) -> Source:
    known = [field.name for field in dataclasses.fields(Source)]
    for name in values:
        if name not in known:
            raise UsageError(f"unknown option {f'source.{name}'!r}; {suggest(name, known)}")
    path, names = values.get("path"), values.get("class_names", ())
    values = {**values, "path": Path(path) if isinstance(path, str) else path}
    return Source(**values | {"class_names": tuple(names) if isinstance(names, list) else names})
