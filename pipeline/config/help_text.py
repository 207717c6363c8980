"""Help pages of the command line, from the docstrings, types and defaults of dataclass
fields.
"""

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
of those of the functions that it names, such as the model; --help epochs shows one
option."""


def page(
    program: str,
    about: str,
    options: Any,
    arguments: Mapping[str, str] = {},
    only: Mapping[str, Collection[str]] | None = None,
) -> str:
    """The help page of a command; the values of `options`, a dataclass, are shown as
    defaults.

    `arguments` maps the name of a positional argument to its meaning. `only` maps a
    section ("" for the top level) to the options to show; None: all.
    """
    lines = [f"usage: {' '.join([program, *arguments])} [--option VALUE ...]", ""]
    lines += _filled(about, 0)
    if arguments:
        lines += ["", "arguments:"]
    for name, meaning in arguments.items():
        lines += [f"  {name}", *_filled(meaning, 6)]
    for name, (title, found) in _sections(options).items():
        chosen = [
            entry for entry in found if only is None or entry.name in only.get(name, ())
        ]
        lines += ["", title, *_listed(chosen)] if chosen or not name else []
    return "\n".join(lines)


def overview(
    program: str, about: str, options: Any, planned: Collection[str] = ()
) -> str:
    """A help page with one line for each option: flag, beginning of its meaning,
    default. Options that are `planned` have none.
    """
    kind: Any = type(options)
    short = {
        names[0]: flag
        for flag, names in cli_parser.short_flags(kind).items()
        if not names[1:]
    }
    known = cli_parser.flags(kind)  # `--model` and `--model.name` are one flag
    short |= {
        name: flag
        for flag in known
        for name in known
        if known[name] is known[flag] and "." not in flag
    }
    lines = [f"usage: {program} [--option VALUE ...]", "", *_filled(about, 0), ""]
    lines += _filled(_OVERVIEW, 0)
    for title, found in _sections(options, planned).values():
        lines += ["", title]
        for entry in found:
            flag = short.get(entry.flags[0], entry.flags[0])
            if len(entry.flags) > 1:
                flag = re.sub(r"--(\w+\.)?", r"\g<0>[no-]", flag, count=1)
            default = f" [{_shortened(entry.default, 25)}]" * (
                entry.default.lower() != "none"
            )
            meaning = re.split(r"[.;]( |$)", entry.meaning)[0]
            width = max(20, _width() - 33 - len(default))
            lines.append(f"  {flag:30} {_shortened(meaning, width)}{default}")
    return "\n".join(lines)


def topic(name: str, options: Any, planned: Collection[str] = ()) -> str:
    """What `--help NAME` shows: a section, an option, a registry or a function.

    Sections and options are followed by the functions that they name, with their own
    options. Raises UsageError if nothing has this name.
    """
    wanted = name.lstrip("-").replace("_", "-")
    sections = _sections(options, planned)
    kind = type(options)
    flags = set() if wanted in sections else {*cli_parser.meant(f"--{wanted}", kind)}
    lines: list[str] = []
    chosen: dict[registry.Choice, dict[str, dict[str, Any]]] = {}
    for choice in registry.choices(kind):
        part = vars(getattr(options, choice.section))
        chosen[choice] = choice.functions(part[choice.field], part[choice.options])
    for section, (title, known) in sections.items():
        found = [
            entry for entry in known if wanted == section or flags & {*entry.flags}
        ]
        lines += ["", title, *_listed(found)] if found else []
        shown = {entry.name for entry in found}
        for choice, functions in chosen.items():
            if choice.section == section and {choice.field, choice.options} & shown:
                for word, given in functions.items():
                    lines += _function(
                        word, registry.find(choice.registry, word), choice, given
                    )
    option = wanted.rpartition(".")[2].replace("-", "_")
    for choice, word in () if lines else cli_parser.functions_with(option, kind):
        if choice.written(word, option) in flags:
            function, given = (
                registry.find(choice.registry, word),
                chosen[choice].get(word, {}),
            )
            lines += _function(word, function, choice, given, {option})
    if name in registry.REGISTRIES or not lines:
        for word, function in registry.described(name).items():
            lines += _function(word, function)
    if not lines:
        hint = suggest(name, [*filter(None, sections), *registry.REGISTRIES])
        raise UsageError(
            f"--help {name}: no section, option or function has this name; {hint}"
        )
    return "\n".join(lines[1:])


def _function(
    name: str, function: Function, choice: Any = None, given: Any = (), only: Any = None
) -> list[str]:
    """A function with its options, or one of them: as flags, with the values that are
    given.
    """
    title = f"--{choice.section}.{choice.field} {name}" if choice else name
    lines = ["", *_filled(f"{title}: {function.summary}", 0)]
    for option in only or function.options:
        about = function.options[option]
        default = (about.default or "required").strip("'")
        default = (
            " ".join(type_hints.words(given[option])) if option in given else default
        )
        flags = [choice.written(name, option) if choice else option]
        values = type_hints.describe(about.hint)
        lines += _listed([Entry(option, flags, about.meaning, values, default)])
    return lines


def _shortened(text: str, width: int) -> str:
    return textwrap.shorten(text, width, placeholder=" ...", break_on_hyphens=False)


def _sections(
    options: Any, planned: Collection[str] = ()
) -> dict[str, tuple[str, list["Entry"]]]:
    """Name -> title and options: first "" for the top level, then each section."""
    found = {"": ("options:", [*entries(options, "")])}
    for field in dataclasses.fields(options):
        section = getattr(options, field.name)
        if dataclasses.is_dataclass(section):
            paragraph = (type(section).__doc__ or "").partition("\n\n")[0]
            title = " ".join(paragraph.split())
            found[field.name] = (
                f"{field.name}: {title}",
                [*entries(section, field.name, planned)],
            )
    return found


class Entry(typing.NamedTuple):
    """An option in a help page; a bool has two flags, and no words for its values."""

    name: str
    flags: list[str]
    meaning: str
    values: str
    default: str

    @property
    def shown(self) -> str:
        """Values and default."""
        known = (
            f"default: {self.default}" if self.default != "required" else self.default
        )
        return "; ".join(filter(None, (self.values, known)))


def entries(section: Any, name: str, planned: Collection[str] = ()) -> Iterator[Entry]:
    """The options of a section, a class or an instance, with its values but for those
    `planned`.
    """
    prefix = f"--{name}." if name else "--"
    kind = section if isinstance(section, type) else type(section)
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(section):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint) or field.metadata.get("hidden"):
            continue
        # A class has no value of a factory, which is `dict` for all of them.
        words = " ".join(type_hints.words(getattr(section, field.name, {}))) or "none"
        if f"{name}.{field.name}".removesuffix(".name") in planned:
            words = "chosen for your data"
        flags = [f"{prefix}{no}{field.name}".replace("_", "-") for no in ("", "no_")]
        flags, values = (
            (flags, "") if hint is bool else (flags[:1], type_hints.describe(hint))
        )
        yield Entry(
            field.name, flags, _meanings(kind).get(field.name, ""), values, words
        )


def _listed(options: Iterable[Entry]) -> list[str]:
    lines = []
    for entry in options:
        about = f"{entry.meaning} ({entry.shown})".strip()
        lines += [f"  {', '.join(entry.flags)}", *_filled(about, 6)]
    return lines


def _filled(text: str, indent: int) -> list[str]:
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
    found = {}
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            found[ast.unparse(field.target)] = " ".join(
                ast.literal_eval(text.value).split()
            )
    return found


@functools.cache
def _classes(file: str) -> dict[str, ast.ClassDef]:
    nodes = ast.parse(Path(file).read_bytes()).body
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
