"""From the words of a command line, or a saved file, to a Config; no TensorFlow is imported."""

import dataclasses
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tyro

from pipeline.config import cli_parser, registry, type_hints
from pipeline.config.config import Config, Source
from pipeline.config.validation import require_path
from pipeline.utils import files, safe_io
from pipeline.utils.errors import UsageError, did_you_mean, one_line, suggest

PROGRAM = "python -m pipeline.fit"
PURPOSE = "Trains a recipe, tests it, exports it for TensorFlow Serving and verifies the export."
DEFAULT_RECIPE = "digits"


def configure(arguments: list[str], program: str = PROGRAM, purpose: str = PURPOSE) -> Config:
    """The recipe is chosen here, so that its values are the defaults that `--help` shows."""
    words = list(arguments)
    if words[:1] in (["--help"], ["-h"]):
        print(registry.describe(words[1]) if words[1:] else _help(program, purpose))
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
        about = f"--config {saved}" if saved else registry.find("recipes", name).summary
        program = f"{program} {default.recipe}"
        tyro.cli(Config, args=["--help"], default=default, prog=program, description=about)
    return default.changed(**changes(words, default))


# Section and field that hold options -> the field that names the function, the registry, the flag.
_OPTIONS = {
    ("source", "options"): ("name", "sources", "--source.{}"),
    ("task", "options"): ("name", "tasks", "--task.{}"),
    ("model", "options"): ("name", "models", "--model.{}"),
    ("train", "optimizer_options"): ("optimizer", "optimizers", "--train.optimizer-options {}"),
    ("train", "schedule_options"): ("schedule", "schedules", "--train.schedule-options {}"),
    ("train", "loss_options"): ("loss", "losses", "--train.loss-options {}"),
}
_OPERATIONS = {("data", "augment"): "augment", ("train", "metrics"): "metrics"} | {
    ("train", "callbacks"): "callbacks"
}


def changes(words: list[str], default: Config) -> dict[str, Any]:
    """The values that the words give, nested as `Config.changed` takes them.

    Args:
        words: Of a command line, without `--help`.
        default: Names the functions that options belong to, if the words do not.

    Raises:
        UsageError: An unknown flag or name, or a value that an option does not take.
    """
    found = cli_parser.changes(words, Config)
    for (section, field), (name_field, kind, flag) in _OPTIONS.items():
        part = found.get(section, {})
        name = part.get(name_field, getattr(getattr(default, section), name_field))
        fields = {one.name for one in dataclasses.fields(getattr(default, section))}
        if name is not None and field in part:
            part[field] = registry.read_options(kind, name, part[field], flag)
        if field == "options":
            loose = {key: words for key, words in part.items() if key not in fields}
            for key in loose.keys() - registry.find(kind, name).options.keys():
                if near := cli_parser.same_in_other_sections(key, Config):
                    wrong = f"{flag.format(one_line(key))}: {name} has no option {key!r}"
                    raise UsageError(f"{wrong}; {did_you_mean(near)}")
            part |= registry.read_options(kind, name, loose, flag) if loose else {}
    for (section, field), kind in _OPERATIONS.items():
        part = found.get(section, {})
        for name, options in part.get(field, {}).items():
            flag = f"--{section}.{field}: {{}}"
            part[field][name] = registry.read_options(kind, name, options, flag)
    weights = found.get("train", {}).get("class_weight", {})
    weights |= {name: type_hints.value_of(text) for name, text in weights.items()}
    return found


def recipe(name: str) -> Config:
    """The config of a recipe by its name."""
    if not registry.find("recipes", name).is_complete:
        raise UsageError(f"the recipe {name!r} needs arguments; give a function without any")
    config = registry.load("recipes", name)()
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
    lines = [f"  {name:{width}}  {registry.find('recipes', name).summary}" for name in recipes]
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
            f"{program} --help REGISTRY  shows every registered function with its options:",
            f"  {', '.join(registry.REGISTRIES)}.",
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
        values = files.expand_home(safe_io.read_json(path))
    except OSError as error:
        raise UsageError(f"--config {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"--config {path} is no JSON file: {error}") from None
    given = values.pop("source", None) if isinstance(values, dict) else None
    if not isinstance(given, dict):
        raise UsageError(f"--config {path} holds no config: it has no section 'source'")
    values = _at_home(values, Config)
    try:
        # The source cannot be changed in steps: some options are required from the start.
        for name in sorted(given.keys() - {"name", "options"}):
            hint = suggest(name, ["name", "options"])
            raise UsageError(f"unknown option {f'source.{name}'!r}; {hint}")
        kind, options = given.get("name", Source.name), given.get("options", {})
        if isinstance(kind, str) and isinstance(options, dict):
            options = registry.convert("sources", kind, {**options, **(source or {})})
        return Config(source=Source(name=kind, options=options)).changed(**values)
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
            found[name] = files.expand_home("~/")
    return found
