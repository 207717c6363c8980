"""Turns a command line or a saved file into a Config, without importing TensorFlow."""

import contextlib
import dataclasses
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config import cli_parser, data_path, formats, help_text, registry
from pipeline.config.config import RUNS, Config, Source
from pipeline.config.validation import only_one, require_path
from pipeline.utils import safe_io
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError, suggest

PROGRAM = "python -m pipeline.fit"
PURPOSE = """\
Trains a recipe, tests it, exports it for TensorFlow Serving and verifies the export.
--resume RUN, instead of a recipe, continues a run; options may follow."""
DEFAULT_RECIPE = "digits"
_HELP = """\
usage: {program} [RECIPE or PATH] [--config FILE] [--option VALUE ...]

{purpose}

PATH: your images as class folders, arrays (.npz), TFRecord files or a .csv of files and
labels; the recipe photos chooses the settings for them.

recipes (default: {default}):
{recipes}

{program} RECIPE --help  shows all options, one line each.
{program} RECIPE --help SECTION  shows their meaning, range and default in full:
  {sections}.
{program} --help REGISTRY  shows every registered function with its options:
  {registries}.
{program} --help file.py:name  shows those of your own function.
--config runs/digits-1/config.json  uses the recipe and all options of a saved run."""


def configure(
    arguments: list[str], program: str = PROGRAM, purpose: str = PURPOSE
) -> Config:
    """The config of a command line; `--help [TOPIC]` prints a help page and exits.

    The values of the recipe are the defaults, which `--help` after a recipe shows.
    """
    words = list(arguments)
    topic = _pop_help(words)
    if topic in registry.names("recipes") and not words:
        words, topic = [topic], ""
    if topic == "" and not words:
        print(_help(program, purpose))
        sys.exit(0)
    name = words.pop(0) if words and not words[0].startswith("-") else None
    if name is not None and words and not words[0].startswith("-"):
        raise UsageError(
            f"unexpected {words[0]!r} after the recipe {name!r}; options start with --"
        )
    saved = pop_path(words, "--config", "a file, such as runs/digits-1/config.json")
    resumes = program == PROGRAM
    run = (
        pop_path(words, "--resume", "a run, such as runs/digits-1") if resumes else None
    )
    only_one({f"the recipe {name!r}": name, "--config": saved, "--resume": run})
    if folder := run or (saved if saved and saved.is_dir() else None):
        saved = config_file(folder)
    found = cli_parser.changes(words, Config)
    source = found.get("source", {})
    name = name or ("photos" if "path" in source else DEFAULT_RECIPE)
    # The path of a saved config need not exist any more.
    moved = (
        {"path": Path(" ".join(source["path"]))} if source.keys() == {"path"} else {}
    )
    default = read(saved, moved) if saved else recipe(name)
    if topic is not None:
        with contextlib.suppress(UsageError):  # as far as the options are right
            default = default.changed(**_completed(found, default))
        name = "photos" if default.planned else name
        about = f"--config {saved}" if saved else registry.find("recipes", name).summary
        page = help_text.overview(f"{program} {default.recipe}", about, default)
        print(help_text.topic(topic, default) if topic else page)
        sys.exit(0)
    found = _completed(found, default)
    if run:
        only_one({"--resume": run, "--run-directory": found.get("run_directory")})
        found["run_directory"] = run
    return default.changed(**found)


def _pop_help(words: list[str]) -> str | None:
    """Removes `--help [TOPIC]` and returns the topic, which may be ""; None without
    `--help`.
    """
    at = next((at for at, word in enumerate(words) if word in ("--help", "-h")), None)
    if at is None:
        return None
    topic = "".join(words[at + 1 : at + 2])
    del words[at : at + 2]
    return topic


def config_file(run: Path) -> Path:
    """The config of a run directory; UsageError with the closest run if it is none."""
    path = run / "config.json"
    if not path.is_file():
        reason = (
            "it has no config.json" if run.is_dir() else "there is no such directory"
        )
        raise UsageError(f"{run} is not a run: {reason}; {suggest_run(str(run))}")
    return path


def suggest_run(wrong: str) -> str:
    """The end of an error message: the closest run in runs/, or all of them."""
    known = [str(path.parent) for path in RUNS.glob("*/config.json")]
    return (
        suggest(wrong, known)
        if known
        else f"{RUNS}/ has no runs; {PROGRAM} creates one"
    )


def _completed(found: dict[str, Any], default: Config) -> dict[str, Any]:
    """The values that `cli_parser` found, with those of the options of functions.

    The functions are those of `default`, unless others were given. Raises UsageError if
    a name is unknown, or a value does not fit its option.
    """
    source, known = (
        found.get("source", {}),
        registry.find("sources", default.source.name).options,
    )
    if "path" in source and "name" not in source and "path" not in known:
        path, source["name"] = " ".join(source["path"]), "folder"
        if Path(path).exists() and path:
            source |= {
                key: str(value) for key, value in data_path.source(Path(path)).items()
            }
    for choice in registry.choices(Config):
        part, section = found.get(choice.section, {}), getattr(default, choice.section)
        name = part.get(choice.field, getattr(section, choice.field))
        options = (
            choice.functions(name, part[choice.options])
            if choice.options in part
            else {}
        )
        for function, given in options.items():
            given |= registry.read_options(
                choice.registry, function, given, choice.flag
            )
        names = {one.name for one in dataclasses.fields(section)}
        loose = {key: words for key, words in part.items() if key not in names}
        if loose:
            part |= registry.read_options(choice.registry, name, loose, choice.flag)
    return found


def recipe(name: str) -> Config:
    """The config of a recipe by its name, or of the recipe `photos` for the data at a
    path.
    """
    if data_path.is_path(name) and name not in {*registry.names("recipes")} - {
        "photos"
    }:
        return of_data(Path(name))
    if name in registry.names("recipes") and Path(name).exists():
        say(
            "note",
            f"{name} is the recipe of this name; for the data beside it, write"
            f" ./{name}",
        )
    try:
        registry.find("recipes", name)
    except UsageError as error:
        raise UsageError(f"{error} (and no such file or directory)") from None
    try:
        config = registry.load("recipes", name)()
    except TypeError as error:
        raise UsageError(f"the recipe {name!r} cannot be called: {error}") from error
    if not isinstance(config, Config):
        raise UsageError(
            f"the recipe {name!r} must return a Config; got {type(config).__name__}"
        )
    return config


def of_data(path: Path) -> Config:
    """The recipe `photos` for the data at a path, whose name the run and
    its model get.
    """
    require_path(path, "the path of the data")
    config = registry.load("recipes", "photos")().changed(source=data_path.source(path))
    whole = path.resolve()
    name = formats.model_name(whole.name if whole.is_dir() else whole.stem)
    return config.changed(export={"name": name}) if name else config


def pop(words: list[str], wanted: str, meant: str) -> str | None:
    """Removes `--wanted VALUE` from the words and returns the value; `meant` is for the
    error.
    """
    for at, word in enumerate(words):
        flag, _, value = word.partition("=")
        if flag == wanted:
            if word == flag:
                is_value = words[at + 1 :] and not words[at + 1].startswith("--")
                value = words.pop(at + 1) if is_value else ""
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
    sections = [
        f.name for f in dataclasses.fields(Config) if dataclasses.is_dataclass(f.type)
    ]
    lines = [
        f"  {name:{width}}  {registry.find('recipes', name).summary}"
        for name in recipes
    ]
    return _HELP.format(
        program=program,
        purpose=purpose,
        default=DEFAULT_RECIPE,
        recipes="\n".join(lines),
        registries=", ".join(registry.REGISTRIES),
        sections=", ".join(sections),
    )


def read(
    path: Path, source: Mapping[str, Any] | None = None, *, names_only: bool = False
) -> Config:
    """The config saved in a JSON file (`RUN/config.json`); every value is checked
    again.

    The options in `source` replace those of the saved source, such as a new path of the
    data. With `names_only`, what is named in the file is not looked for: a run that
    began with Python objects leaves only their names. Raises UsageError naming the
    invalid value in the file.
    """
    try:
        values = safe_io.read_json(path)
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
        options = registry.convert(
            "sources", given["name"], given["options"] | dict(source or {})
        )
        return Config(source=Source(name=given["name"], options=options)).changed(
            **values
        )
    except UsageError as error:
        raise UsageError(f"--config {path}: {error}") from None
    except (KeyError, TypeError, AttributeError):
        raise UsageError(
            f"--config {path} is not a config; use the config.json of a run"
        ) from None
