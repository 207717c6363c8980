"""Turns a command line or a saved file into a Config, without importing TensorFlow."""

import dataclasses
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config import cli_parser, help_text, registry
from pipeline.config.config import Config, Source
from pipeline.config.validation import require_path
from pipeline.utils import files, safe_io
from pipeline.utils.errors import UsageError

PROGRAM = "python -m pipeline.fit"
PURPOSE = "Trains a recipe, tests it, exports it for TensorFlow Serving and verifies the export."
DEFAULT_RECIPE = "digits"
_HELP = """\
usage: {program} [RECIPE] [--config FILE] [--section.option VALUE ...]

{purpose}

recipes (default: {default}):
{recipes}

{program} RECIPE --help  shows every option with its meaning and default.
{program} --help REGISTRY  shows every registered function with its options:
  {registries}.
{program} --help file.py:name  shows those of your own function.
--config runs/digits-1/config.json  uses the recipe and all options of a saved run."""


def configure(arguments: list[str], program: str = PROGRAM, purpose: str = PURPOSE) -> Config:
    """The config of a command line; `--help` prints a help page and exits.

    The values of the recipe are the defaults, which `--help` after a recipe shows.
    """
    words = list(arguments)
    if words[:1] in (["--help"], ["-h"]):
        print(registry.describe(words[1]) if words[1:] else _help(program, purpose))
        sys.exit(0)
    name = words.pop(0) if words and not words[0].startswith("-") else None
    if name is not None and words and not words[0].startswith("-"):
        raise UsageError(
            f"unexpected {words[0]!r} after the recipe {name!r}; options start with --"
        )
    saved = pop_path(words, "--config", "a file, such as runs/digits-1/config.json")
    if name is not None and saved:
        raise UsageError(f"--config {saved} is a complete config; remove the recipe {name!r}")
    name = DEFAULT_RECIPE if name is None else name
    default = read(saved) if saved else recipe(name)
    if "--help" in words or "-h" in words:
        about = f"--config {saved}" if saved else registry.find("recipes", name).summary
        print(help_text.page(f"{program} {default.recipe}", about, default))
        sys.exit(0)
    return default.changed(**changes(words, default))


# Section and field of options -> the field that names their function, its registry, the flag.
_OPTIONS = {
    ("source", "options"): ("name", "sources", "--source.{}"),
    ("task", "options"): ("name", "tasks", "--task.{}"),
    ("model", "options"): ("name", "models", "--model.{}"),
    ("train", "optimizer_options"): ("optimizer", "optimizers", "--train.optimizer-options {}"),
    ("train", "schedule_options"): ("schedule", "schedules", "--train.schedule-options {}"),
    ("train", "loss_options"): ("loss", "losses", "--train.loss-options {}"),
}
_OPERATIONS = {
    ("data", "augment"): "augment",
    ("train", "metrics"): "metrics",
    ("train", "callbacks"): "callbacks",
}


def changes(words: list[str], default: Config) -> dict[str, Any]:
    """The values given by the words, nested as for `Config.changed`.

    Args:
        words: Words of a command line, without `--help`.
        default: Options belong to the functions that it names, unless the words name others.

    Raises:
        UsageError: A flag or name is unknown, or a value does not fit its option.
    """
    found = cli_parser.changes(words, Config)
    for (section, field), (name_field, kind, flag) in _OPTIONS.items():
        part = found.get(section, {})
        name = part.get(name_field, getattr(getattr(default, section), name_field))
        if name is not None and field in part:
            part[field] = registry.read_options(kind, name, part[field], flag)
        if field == "options":
            known = {one.name for one in dataclasses.fields(getattr(default, section))}
            loose = {key: words for key, words in part.items() if key not in known}
            part |= registry.read_options(kind, name, loose, flag) if loose else {}
    for (section, field), kind in _OPERATIONS.items():
        operations = found.get(section, {}).get(field, {})
        for name, options in operations.items():
            flag = f"--{section}.{field}: {{}}"
            operations[name] = registry.read_options(kind, name, options, flag)
    return found


def recipe(name: str) -> Config:
    """The config of a recipe by its name."""
    function = registry.load("recipes", name)
    try:
        config = function()
    except TypeError as error:
        raise UsageError(f"the recipe {name!r} cannot be called: {error}") from error
    if not isinstance(config, Config):
        raise UsageError(f"the recipe {name!r} must return a Config; got {type(config).__name__}")
    return config


def pop(words: list[str], wanted: str, meant: str) -> str | None:
    """Removes `--wanted VALUE` from the words and returns the value; `meant` is for the error."""
    for at, word in enumerate(words):
        flag, _, value = word.partition("=")
        if flag == wanted:
            if word == flag:
                value = words.pop(at + 1) if words[at + 1 :] else ""
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
    lines = [f"  {name:{width}}  {registry.find('recipes', name).summary}" for name in recipes]
    return _HELP.format(
        program=program,
        purpose=purpose,
        default=DEFAULT_RECIPE,
        recipes="\n".join(lines),
        registries=", ".join(registry.REGISTRIES),
    )


def read(
    path: Path, source: Mapping[str, Any] | None = None, *, names_only: bool = False
) -> Config:
    """The config saved in a JSON file (`RUN/config.json`); every value is checked again.

    Args:
        path: The file.
        names_only: Do not look for what is named in the file; for a run that began with Python
            objects, which nothing but their names is left of.
        source: Options of the source that replace the saved ones, such as a new path of the data.

    Raises UsageError naming the invalid value in the file.
    """
    try:
        values = files.expand_home(safe_io.read_json(path))
    except OSError as error:
        raise UsageError(f"--config {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"--config {path} is not a JSON file: {error}") from None
    try:
        if names_only:
            for name, kind in typing.get_type_hints(Config).items():
                if dataclasses.is_dataclass(kind):
                    section: Any = kind  # such as Train
                    checked = name in ("clean", "runtime", "export", "log")
                    values[name] = section.from_file(values[name], checked)
            return Config(**values)
        # The source is created in one step, because some of its options are required.
        given = values.pop("source")
        options = registry.convert("sources", given["name"], given["options"] | dict(source or {}))
        return Config(source=Source(name=given["name"], options=options)).changed(**values)
    except UsageError as error:
        raise UsageError(f"--config {path}: {error}") from None
    except (KeyError, TypeError, AttributeError):
        raise UsageError(f"--config {path} is not a config; use the config.json of a run") from None
