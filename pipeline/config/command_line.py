"""From a command line or a saved file to a Request, without importing TensorFlow."""

import contextlib
import dataclasses
import functools
import re
import sys
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline.config import cli_parser, formats, help_text, registry
from pipeline.config.config import FORMAT, RUNS, Config, SourceConfig
from pipeline.config.request import Request
from pipeline.config.validation import only_one, require_path
from pipeline.utils import safe_io
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError, suggest

PROGRAM = "pipeline fit"
PURPOSE = """\
Trains a recipe, tests it, exports it for TensorFlow Serving and verifies the export.
--resume RUN, instead of a recipe, continues a run; options may follow."""
DEFAULT_RECIPE = "digits"
PHOTOS = "photos"
"""The recipe for the images at a path."""
DATA = "data"
"""The recipe for other data at a path."""
OWN_DATA = tuple(
    name
    for name in registry.names("recipes")
    if registry.find("recipes", name).required_arguments == 1
)
"""The recipes that take the data of the user."""
# For a help page before there are data; a folder without a path cannot be opened.
_NO_DATA = SourceConfig.from_file({"name": "folder", "options": {}}, checked=False)
_HELP = """\
usage: {program} [RECIPE or PATH] [--config FILE] [--option VALUE ...]

{purpose}

PATH: your images or other files as class folders, arrays (.npz), TFRecord files, or a
table (.csv, .tsv, .jsonl, .parquet) of files, texts or columns of any kind, of which
--target COLUMN is to be predicted; the recipes photos, texts and tables choose the
settings for them, and data is the recipe for anything else.

recipes (default: {default}):
{recipes}

{program} RECIPE --help  shows all options, one line each.
{program} RECIPE --help SECTION  shows their meaning, range and default in full:
  {sections}.
{program} --help REGISTRY  shows every registered function with its options:
  {registries}.
{program} --help file.py:name  shows the options of your own function.
--config runs/digits-1/config.json  uses the recipe and all options of a saved run."""


def configure(
    arguments: list[str], program: str = PROGRAM, purpose: str = PURPOSE
) -> Config:
    """The config of a command line before it is resolved; see `request`."""
    return request(arguments, program, purpose).config


def request(
    arguments: list[str], program: str = PROGRAM, purpose: str = PURPOSE
) -> Request:
    """The request of a command line; `--help [TOPIC]` prints a help page and exits.

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
    run = None
    if program == PROGRAM:
        run = pop_path(words, "--resume", "a run, such as runs/digits-1")
    only_one({f"the recipe {name!r}": name, "--config": saved, "--resume": run})
    if run:
        saved = config_file(run)
    elif saved and saved.is_dir():
        saved = config_file(saved)
    # `--task.target classes` may stand beside the column that has the classes.
    column = pop(words, "--target", "the name of a column")
    if column is not None and is_target(column):
        words += ["--task.target", column]
        column = None
    options = cli_parser.changes(words, Config)
    target = column or _pop_column(options)
    source = options.get("source", {})
    no_recipe = name is None and "path" not in source
    if no_recipe:
        name = DEFAULT_RECIPE
    if saved:
        start = _saved_request(saved, source)
    elif no_recipe and _has_other_data(source):
        fields = {"name": _word(source["name"]), "options": {}}
        start = data_request(SourceConfig.from_file(fields, checked=False), recipe=DATA)
    else:
        start = _recipe_request(
            name,
            source,
            _task_word(options, "input"),
            _task_word(options, "name"),
            program,
            allow_no_data=topic is not None,
            target=target,
        )
    if topic is not None:
        with contextlib.suppress(UsageError):  # as far as the options are right
            start = start.changed(**_read_functions(options, start.config))
        if saved:
            summary = f"--config {saved}"
        else:
            if name is None or is_data(name):
                name = start.config.recipe
            summary = registry.find("recipes", name).summary
        print(_recipe_help(program, summary, start, topic))
        sys.exit(0)
    if target is not None and start.config.source.name != "table":
        registry.find("targets", target)  # raises an error with the closest name
    options = _read_functions(options, start.config)
    if run:
        only_one({"--resume": run, "--run-directory": options.get("run_directory")})
        options["run_directory"] = run
    return start.changed(**options)


def _pop_help(words: list[str]) -> str | None:
    """Removes `--help [TOPIC]` and returns the topic, which may be ""; None without
    `--help`.
    """
    for index, word in enumerate(words):
        if word in ("--help", "-h"):
            topic = "".join(words[index + 1 : index + 2])
            del words[index : index + 2]
            return topic
    return None


def config_file(run: Path) -> Path:
    """The config of a run directory.

    Raises UsageError with the closest run if the directory is not a run.
    """
    path = run / "config.json"
    if not path.is_file():
        reason = (
            "it has no config.json" if run.is_dir() else "there is no such directory"
        )
        raise UsageError(f"{run} is not a run: {reason}; {suggest_run(str(run))}")
    return path


def suggest_run(wrong: str) -> str:
    """The end of an error message: the closest run in runs/, or all of them."""
    runs = [str(path.parent) for path in RUNS.glob("*/config.json")]
    if not runs:
        return f"{RUNS}/ has no runs; {PROGRAM} creates one"
    return suggest(wrong, runs)


def _read_functions(options: dict[str, Any], default: Config) -> dict[str, Any]:
    """Converts the words for options of registered functions to values.

    `options` comes from `cli_parser`; functions that it does not name are taken from
    `default`. Raises UsageError if a name is unknown, or a value does not fit its
    option.
    """
    source = options.get("source", {})
    if "path" not in registry.find("sources", default.source.name).options:
        _add_kind(source, _task_word(options, "input"))
    for choice in registry.choices(Config):
        part = options.get(choice.section, {})
        section = getattr(default, choice.section)
        name = part.get(choice.field, getattr(section, choice.field))
        read_options = functools.partial(registry.read_options, choice.registry)
        if choice.options in part:
            functions = choice.functions(name, part[choice.options])
            for function, values in functions.items():
                values |= read_options(function, values, choice.flag)
        fields = {field.name for field in dataclasses.fields(section)}
        # `--source.path DIR` is short for `--source.options path=DIR`.
        short = {key: words for key, words in part.items() if key not in fields}
        if short and choice.options == "options":
            part |= read_options(name, short, choice.flag)
    return options


def task_options(options: dict[str, Any], config: Config) -> dict[str, Any]:
    """Converts the words for options of the task of a run to values, name -> value."""
    read = dict(_read_functions({"task": dict(options)}, config)["task"])
    return {**read.pop("options", {}), **read}


def _add_kind(
    source: dict[str, Any], task_input: str | None = None, target: str | None = None
) -> None:
    """Adds the name of the source for `--source.path`, if there is no name, and the
    option that names the column to predict.
    """
    if "path" not in source:
        return
    path = " ".join(source["path"])
    if "name" not in source:
        source["name"] = "folder"  # which refuses a path that does not exist
        has_types = "field" in source or "suffixes" in source
        if not path or not Path(path).exists() or (has_types and Path(path).is_dir()):
            return
        found = registry.detector().find_source(Path(path), task_input=task_input)
        for option, value in found.items():
            source[option] = list(value) if isinstance(value, tuple) else str(value)
    if target is not None:
        name = _word(source["name"])
        source |= registry.detector().truth_options(name, {"path": path}, target)


def _pop_column(options: dict[str, Any]) -> str | None:
    """Removes and returns the word of `--task.target` that names a column, not a
    registered target.
    """
    task = options.get("task", {})
    target = _task_word(options, "target")
    if target is None or is_target(target):
        return None
    del task["target"]
    return target


def is_target(name: str) -> bool:
    """Whether a word is a registered target or dotted, not the name of a column."""
    is_dotted = re.fullmatch(r"[\w./]+[.:]\w+", name) is not None
    return name in registry.names("targets") or is_dotted


def _has_other_data(source: Mapping[str, Any]) -> bool:
    """Whether a source without a path has other data than images, or unknown data."""
    options = {key: _word(words) for key, words in source.items()}
    name = options.pop("name", "")
    is_own = "." in name or ":" in name
    if is_own or not name:
        return is_own
    return registry.detector().field_of(name, options) != "image"


def _task_word(options: Mapping[str, Any], option: str) -> str | None:
    """The word of `--task.input` or `--task.name`."""
    words = options.get("task", {}).get(option)
    return None if words is None else _word(words)


def _word(words: str | list[str]) -> str:
    return words if isinstance(words, str) else " ".join(words)


def recipe(name: str) -> Config:
    """The config of a recipe, or for the data at a path, before it is resolved."""
    return recipe_request(name).config


def recipe_request(name: str, program: str = PROGRAM) -> Request:
    """The request of a recipe; a path stands for `photos` or `data` with its data.

    An error about a recipe without data advises `program PATH`.
    """
    if is_data(name):
        return path_request(Path(name))
    if name in registry.names("recipes") and Path(name).exists():
        say(
            "note",
            f"{name} is the recipe of this name; for the data beside it, write"
            f" ./{name}",
        )
    if name in OWN_DATA:
        noun = "images" if name == PHOTOS else "data"
        raise UsageError(
            f"the recipe {name!r} has no data; give the path of your {noun} in its"
            f" place: {program} PATH"
        )
    try:
        registry.find("recipes", name)
    except UsageError as error:
        if "." in name and registry.detector().is_data_file(name):
            raise UsageError(f"{name}: no such file") from None
        raise UsageError(f"{error} (and no such file or directory)") from None
    try:
        start = registry.load("recipes", name)()
    except TypeError as error:
        raise UsageError(f"the recipe {name!r} cannot be called: {error}") from error
    if isinstance(start, Config):
        return Request(start)
    if isinstance(start, Request):
        return start
    raise UsageError(
        f"the recipe {name!r} must return a Config; got {type(start).__name__}"
    )


def path_request(
    path: Path,
    task_input: str | None = None,
    options: Callable[[str], Mapping[str, Any]] | None = None,
    task: str | None = None,
    target: str | None = None,
    source_name: str | None = None,
) -> Request:
    """The request for the data at a path.

    Args:
        path: A file or directory.
        task_input: The input of the task if the user set it; it says which files are
            examples.
        options: Maps the name of the source to its options that the user set.
        task: The name of the task if the user set it.
        target: The column to predict if the user named one.
        source_name: The name of the source if the user set it.
    """
    if source_name and "path" not in registry.find("sources", source_name).options:
        source_name = None
    require_path(path, "the path of the data")
    detected = registry.detector().detect(
        path,
        task=task,
        task_input=task_input,
        target=target,
        source_name=source_name,
        options=options,
    )
    values = dict(detected.source)
    source = SourceConfig(name=values.pop("name"), options=values)
    request = data_request(source, recipe=detected.recipe)
    file = path.resolve()
    stem = file.name if file.is_dir() else file.stem.removesuffix(".csv")
    task_name = request.config.task.name
    if task_name != "supervised":  # not a version of the classifier of these images
        stem = f"{stem}_{task_name}"
    config = request.config.changed(export={"name": formats.model_name(stem)})
    return dataclasses.replace(request, config=config)


def data_request(
    source: SourceConfig, recipe: str | None = None, task: str | None = None
) -> Request:
    """The request for the data of a source, with a recipe of `OWN_DATA`.

    Without a `recipe`, it is the one that suits the examples and the name of the task.
    """
    if recipe is None:
        recipe = registry.detector().find_recipe(source.name, source.options, task)
    start = registry.load("recipes", recipe)(source)
    return Request(start) if isinstance(start, Config) else start


def recipe_of_object(source: SourceConfig, task: str | None = None) -> str | None:
    """The recipe for data in memory, if there is one for them other than `photos`,
    whose plan needs files.
    """
    recipe = registry.detector().find_recipe(source.name, source.options, task)
    return None if recipe in (PHOTOS, DATA) else recipe


def is_data(name: str) -> bool:
    """Whether the first word of a command line is a path of data, not a recipe."""
    recipes = {*registry.names("recipes")} - {*OWN_DATA}
    return name not in recipes and is_path(name)


def is_path(text: str) -> bool:
    """Whether a text is an existing path or looks like a path."""
    looks_like_path = "/" in text or text.startswith((".", "~"))
    return (looks_like_path and ":" not in text) or Path(text).exists()


def _recipe_request(
    name: str | None,
    source: dict[str, Any],
    task_input: str | None,
    task: str | None,
    program: str,
    allow_no_data: bool = False,
    target: str | None = None,
) -> Request:
    """The request of a recipe; None is the recipe for the data of `source`.

    `source` has the words of `--source`, which may name the data of `photos` or `data`.
    """
    if name is not None and is_data(name) and not is_own_data(name, source):
        options_of = functools.partial(_valid_options, source)
        try:
            named = _word(source["name"]) if "name" in source else None
            return path_request(Path(name), task_input, options_of, task, target, named)
        except UsageError:  # a folder of this name should not hide the help page
            if name not in OWN_DATA or not allow_no_data:
                raise
            return data_request(_NO_DATA, recipe=name)
    if name is not None and name not in OWN_DATA:
        return recipe_request(name, program)
    try:
        _add_kind(source, task_input, target)
        if name is not None and "name" not in source:
            return recipe_request(name, program)
        options = _source_options(source["name"], source)
        return data_request(
            SourceConfig(name=source["name"], options=options), recipe=name, task=task
        )
    except UsageError:
        if not allow_no_data:
            raise
    return data_request(_NO_DATA, recipe=name)


def is_own_data(name: str, source: Mapping[str, Any]) -> bool:
    """Whether a name is a recipe for the data of a source, not the path of the data."""
    return name in OWN_DATA and not source.keys().isdisjoint(("name", "path"))


def _valid_options(source: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The options of a source; empty if one is wrong, which is reported later."""
    with contextlib.suppress(UsageError):
        return _source_options(name, source)
    return {}


def _source_options(name: str, source: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a source from the words of `--source`."""
    words = {**source.get("options", {}), **source}
    words.pop("name", None)
    words.pop("options", None)
    return registry.read_options("sources", name, words, "--source.{}")


def _saved_request(path: Path, source: dict[str, Any]) -> Request:
    """The request of a saved config, which leaves nothing to a plan."""
    new_source = {}
    if source.keys() == {"path"}:  # the path in the file need not exist any more
        new_source["path"] = Path(" ".join(source["path"]))
    return Request(read(path, new_source))


def pop(words: list[str], flag: str, expected: str) -> str | None:
    """Removes `--flag VALUE` from the words and returns the value.

    Raises UsageError with the `expected` value if there is none, or if there are two.
    """
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name != flag:
            continue
        following = words[index + 1 : index + 2]
        if not equals and following and not following[0].startswith("--"):
            value = words.pop(index + 1)
        if not value:
            raise UsageError(f"{flag} needs {expected}")
        del words[index]
        if any(word.partition("=")[0] == flag for word in words):
            raise UsageError(f"{flag} is given twice; keep one")
        return value
    return None


def pop_path(words: list[str], flag: str, expected: str) -> Path | None:
    """Removes `--flag PATH` from the words and returns the path; see `pop`."""
    value = pop(words, flag, expected)
    if value is None:
        return None
    require_path(Path(value), flag)
    return Path(value)


def _recipe_help(program: str, summary: str, request: Request, topic: str) -> str:
    """The help page of a recipe, or its part for a topic."""
    if topic:
        return help_text.topic(topic, request.config, request.planned)
    program = f"{program} {request.config.recipe}"
    return help_text.overview(program, summary, request.config, request.planned)


def _help(program: str, purpose: str) -> str:
    recipes = registry.names("recipes")
    width = max(map(len, recipes))
    lines = []
    for name in recipes:
        summary = registry.find("recipes", name).summary
        lines.append(f"  {name:{width}}  {summary}")
    sections = []
    for field in dataclasses.fields(Config):
        if dataclasses.is_dataclass(field.type):
            sections.append(field.name)
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
    """Reads the config of a JSON file (`RUN/config.json`) and checks every value again.

    The options in `source` replace options of the saved source, such as a new path of
    the data. With `names_only`, functions named in the file are not looked up: a run
    that began with Python objects stores only their names. Raises UsageError naming the
    invalid value in the file.
    """
    try:
        values = safe_io.read_json(path)
    except OSError as error:
        raise UsageError(f"--config {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"--config {path} is not a JSON file: {error}") from None
    is_current = True
    try:
        # What a user has written need not say its format.
        is_current = values.pop("format", None) == FORMAT or "recipe" not in values
        if names_only:
            return _read_names_only(values)
        # The source is created in one step, because some of its options are required.
        saved = values.pop("source")
        name = saved["name"]
        options = saved["options"] | dict(source or {})
        options = registry.convert("sources", name, options)
        config = Config(source=SourceConfig(name=name, options=options))
        return config.changed(**values)
    except UsageError as error:
        _require_current(is_current, path)
        raise UsageError(f"--config {path}: {error}") from None
    except (KeyError, TypeError, AttributeError):
        _require_current(is_current, path)
        raise UsageError(
            f"--config {path} is not a config; use the config.json of a run"
        ) from None


def _require_current(is_current: bool, path: Path) -> None:
    """Raises UsageError for the config of a run of an earlier version."""
    if not is_current:
        raise UsageError(
            f"{path.parent} was started by an earlier version; start it again in a new"
            " --run-directory"
        )


def _read_names_only(values: dict[str, Any]) -> Config:
    for name, kind in typing.get_type_hints(Config).items():
        if dataclasses.is_dataclass(kind):
            section: Any = kind  # such as Train
            is_checked = name in ("clean", "runtime", "export", "log")
            values[name] = section.from_file(values[name], is_checked)
    return Config(**values)
