"""Help pages of the command line, from the docstrings and types of dataclasses."""

import ast
import dataclasses
import functools
import inspect
import itertools
import re
import shutil
import textwrap
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.config import cli_parser, registry, type_hints
from pipeline.config.functions import Function
from pipeline.utils.errors import UsageError, suggest

_OVERVIEW = """\
Defaults are in brackets. --epochs is short for --train.epochs, and so on. --help
SECTION, such as --help train, shows the meaning, range and default of its options, and
of the options of the functions that it names, such as the model; --help epochs shows
one option."""


def page(
    program: str,
    summary: str,
    options: Any,
    arguments: Mapping[str, str] = {},
    only: Mapping[str, Collection[str]] | None = None,
) -> str:
    """The help page of a command; the values of the dataclass `options` are defaults.

    `arguments` maps the name of a positional argument to its meaning. `only` maps a
    section ("" for the top level) to the options to show; None: all.
    """
    lines = [f"usage: {' '.join([program, *arguments])} [--option VALUE ...]", ""]
    lines += _wrap(summary, 0)
    if arguments:
        lines += ["", "arguments:"]
    for name, meaning in arguments.items():
        lines += [f"  {name}", *_wrap(meaning, 6)]
    for name, (title, section) in _sections(options).items():
        if only is not None:
            section = [entry for entry in section if entry.name in only.get(name, ())]
        if section or not name:
            lines += ["", title, *_paragraphs(section)]
    return "\n".join(lines)


def overview(
    program: str, summary: str, options: Any, planned: Collection[str] = ()
) -> str:
    """A help page with one line for each option: flag, beginning of its meaning,
    default.

    Options that are `planned` have no default.
    """
    short = _short_names(type(options))
    lines = [f"usage: {program} [--option VALUE ...]", "", *_wrap(summary, 0), ""]
    lines += _wrap(_OVERVIEW, 0)
    for title, section in _sections(options, planned).values():
        lines += ["", title]
        for entry in section:
            flag = short.get(entry.flags[0], entry.flags[0])
            if len(entry.flags) > 1:
                flag = re.sub(r"--(\w+\.)?", r"\g<0>[no-]", flag, count=1)
            default = ""
            if entry.default.lower() != "none":
                default = f" [{_shorten(entry.default, 25)}]"
            meaning = re.split(r"[.;]( |$)", entry.meaning)[0]
            width = max(20, _width() - 33 - len(default))
            lines.append(f"  {flag:30} {_shorten(meaning, width)}{default}")
    return "\n".join(lines)


def _short_names(kind: Any) -> dict[str, str]:
    """Flag -> its unambiguous short form, such as `--epochs` for `--train.epochs`."""
    short = {}
    for flag, matches in cli_parser.short_flags(kind).items():
        if len(matches) == 1:
            short[matches[0]] = flag
    flags = cli_parser.flags(kind)
    for name in flags:
        if "." in name:
            continue
        # `--model` and `--model.name` are one flag.
        for synonym in flags:
            if flags[synonym] is flags[name]:
                short[synonym] = name
    return short


def topic(name: str, options: Any, planned: Collection[str] = ()) -> str:
    """The page of `--help NAME`: a section, an option, a registry or a function.

    Sections and options are followed by the functions that they name, with the options
    of the functions. Raises UsageError if nothing has this name.
    """
    plain_name = name.lstrip("-").replace("_", "-")
    kind = type(options)
    sections = _sections(options, planned)
    flags: set[str] = set()
    if plain_name not in sections:
        flags.update(cli_parser.matching_flags(f"--{plain_name}", kind))
    functions = _named_functions(options)
    lines: list[str] = []
    for section, (title, section_entries) in sections.items():
        if plain_name == section:
            matches = section_entries
        else:
            matches = [e for e in section_entries if not flags.isdisjoint(e.flags)]
        if matches:
            lines += ["", title, *_paragraphs(matches)]
        fields = {entry.name for entry in matches}
        for choice, function_options in functions.items():
            if choice.section != section or fields.isdisjoint(
                (choice.field, choice.options)
            ):
                continue
            for word, values in function_options.items():
                function = registry.find(choice.registry, word)
                lines += _describe(word, function, choice, values)
    if not lines:
        option = plain_name.rpartition(".")[2].replace("-", "_")
        for choice, word in registry.functions_with(option, kind):
            if choice.usage(word, option) in flags:
                function = registry.find(choice.registry, word)
                values = functions[choice].get(word, {})
                lines += _describe(word, function, choice, values, {option})
    if name in registry.REGISTRIES or not lines:
        for word, function in registry.look_up(name).items():
            lines += _describe(word, function)
    if not lines:
        hint = suggest(name, [*filter(None, sections), *registry.REGISTRIES])
        raise UsageError(
            f"--help {name}: no section, option or function has this name; {hint}"
        )
    return "\n".join(lines[1:])


def _named_functions(
    options: Any,
) -> dict[registry.Choice, dict[str, dict[str, Any]]]:
    """The functions that a config names, with their options, by the field that does."""
    functions = {}
    for choice in registry.choices(type(options)):
        section = getattr(options, choice.section)
        value = getattr(section, choice.field)
        function_options = getattr(section, choice.options)
        functions[choice] = choice.functions(value, function_options)
    return functions


def _describe(
    name: str,
    function: Function,
    choice: registry.Choice | None = None,
    values: Mapping[str, Any] = {},
    only: Collection[str] = (),
) -> list[str]:
    """A function with its options, or with `only` a few of them.

    With a `choice`, the options are shown as flags; `values` replace their defaults.
    """
    title = f"--{choice.section}.{choice.field} {name}" if choice else name
    lines = ["", *_wrap(f"{title}: {function.summary}", 0)]
    options = function.options
    for option in only or options:
        description = options[option]
        if option in values:
            default = " ".join(type_hints.words(values[option]))
        else:
            default = (description.default or "required").strip("'")
        flag = choice.usage(name, option) if choice else option
        hint = type_hints.describe(description.hint)
        entry = Entry(option, [flag], description.meaning, hint, default)
        lines += _paragraphs([entry])
    return lines


def _shorten(text: str, width: int) -> str:
    return textwrap.shorten(text, width, placeholder=" ...", break_on_hyphens=False)


def _sections(
    options: Any, planned: Collection[str] = ()
) -> dict[str, tuple[str, list["Entry"]]]:
    """Name -> title and options: first "" for the top level, then each section."""
    sections = {"": ("options:", [*entries(options, "")])}
    for field in dataclasses.fields(options):
        section = getattr(options, field.name)
        if dataclasses.is_dataclass(section):
            paragraph = (type(section).__doc__ or "").partition("\n\n")[0]
            title = f"{field.name}: {' '.join(paragraph.split())}"
            sections[field.name] = (title, [*entries(section, field.name, planned)])
    return sections


class Entry(typing.NamedTuple):
    """An option in a help page; a bool has two flags, and no words for its values."""

    name: str
    flags: list[str]
    meaning: str
    values: str
    default: str

    @property
    def details(self) -> str:
        """Values and default."""
        default = self.default
        if default != "required":
            default = f"default: {default}"
        return f"{self.values}; {default}" if self.values else default


def entries(section: Any, name: str, planned: Collection[str] = ()) -> Iterator[Entry]:
    """The options of a section, a class or an instance, with its values as defaults.

    Options that are `planned` have no default.
    """
    prefix = f"--{name}." if name else "--"
    kind = section if isinstance(section, type) else type(section)
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(section):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint) or field.metadata.get("hidden"):
            continue
        # A class has no value of a factory, which is `dict` for all of them.
        default = " ".join(type_hints.words(getattr(section, field.name, {}))) or "none"
        if f"{name}.{field.name}".removesuffix(".name") in planned:
            default = "chosen for your data"
        flags = [f"{prefix}{field.name}".replace("_", "-")]
        if hint is bool:
            flags.append(f"{prefix}no_{field.name}".replace("_", "-"))
        values = "" if hint is bool else type_hints.describe(hint)
        meaning = _meanings(kind).get(field.name, "")
        yield Entry(field.name, flags, meaning, values, default)


def _paragraphs(options: Iterable[Entry]) -> list[str]:
    lines = []
    for entry in options:
        text = f"{entry.meaning} ({entry.details})".strip()
        lines += [f"  {', '.join(entry.flags)}", *_wrap(text, 6)]
    return lines


def _wrap(text: str, indent: int) -> list[str]:
    space = " " * indent
    return textwrap.wrap(
        text,
        _width(),
        initial_indent=space,
        subsequent_indent=space,
        break_on_hyphens=False,
    )


def _width() -> int:
    return min(shutil.get_terminal_size().columns, 100)


@functools.cache
def _meanings(kind: type) -> dict[str, str]:
    """Field -> the docstring below it."""
    body = _classes(inspect.getfile(kind))[kind.__name__].body
    meanings = {}
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            docstring = ast.literal_eval(text.value)
            meanings[ast.unparse(field.target)] = " ".join(docstring.split())
    return meanings


@functools.cache
def _classes(file: str) -> dict[str, ast.ClassDef]:
    nodes = ast.parse(Path(file).read_bytes()).body
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
