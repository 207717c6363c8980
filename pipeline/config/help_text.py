"""Help pages of the command line, from the docstrings, types and defaults of dataclass fields."""

import ast
import dataclasses
import functools
import inspect
import itertools
import shutil
import textwrap
import typing
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.config import type_hints


def page(
    program: str,
    about: str,
    options: Any,
    arguments: Mapping[str, str] | None = None,
    only: Mapping[str, Collection[str]] | None = None,
) -> str:
    """The help page of a command.

    Args:
        program: How the command is called.
        about: Its purpose.
        options: An instance of the dataclass of its options; its values are shown as defaults.
        arguments: Name of a positional argument -> its meaning.
        only: Section ("" for the top level) -> the options to show; None: all.
    """
    arguments = arguments or {}
    lines = [f"usage: {' '.join([program, *arguments])} [--option VALUE ...]", ""]
    lines += _filled(about, 0)
    if arguments:
        lines += ["", "arguments:"]
    for name, meaning in arguments.items():
        lines += [f"  {name}", *_filled(meaning, 6)]
    lines += ["", "options:", *_listed(options, "", only)]
    for field in dataclasses.fields(options):
        section = getattr(options, field.name)
        if dataclasses.is_dataclass(section):
            title = (type(section).__doc__ or "").partition("\n")[0]
            if listed := _listed(section, field.name, only):
                lines += ["", f"{field.name}: {title}", *listed]
    return "\n".join(lines)


def entries(section: Any, prefix: str) -> Iterator[tuple[str, str, str]]:
    """Yields (flags, meaning, type and default) for each option of a section.

    Args:
        section: A dataclass, or an instance of one, whose values are shown as the defaults.
        prefix: The beginning of each flag, such as `--train.`.
    """
    kind = section if isinstance(section, type) else type(section)
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(section):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint) or field.metadata.get("hidden"):
            continue
        if section is kind and field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        else:
            default = getattr(section, field.name)
        shown = f"default: {' '.join(type_hints.words(default)) or 'none'}"
        flag = f"{prefix}{field.name}".replace("_", "-")
        if hint is bool:
            flag += f", {prefix}no-{field.name}".replace("_", "-")
        else:
            shown = f"{type_hints.describe(hint)}; {shown}"
        yield flag, _meanings(kind).get(field.name, ""), shown


def _listed(section: Any, name: str, only: Mapping[str, Collection[str]] | None) -> list[str]:
    prefix, lines = f"--{name}." if name else "--", []
    for flags, meaning, shown in entries(section, prefix):
        option = flags.partition(",")[0].removeprefix(prefix).replace("-", "_")
        if only is not None and option not in only.get(name, ()):
            continue
        lines += [f"  {flags}", *_filled(f"{meaning} ({shown})", 6)]
    return lines


def _filled(text: str, indent: int) -> list[str]:
    width = min(shutil.get_terminal_size().columns, 100)
    space = " " * indent
    return textwrap.wrap(
        text, width, initial_indent=space, subsequent_indent=space, break_on_hyphens=False
    )


def _meanings(kind: type) -> dict[str, str]:
    """Field -> the docstring below it."""
    body = _classes(inspect.getfile(kind))[kind.__name__].body
    found = {}
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            found[ast.unparse(field.target)] = " ".join(ast.literal_eval(text.value).split())
    return found


@functools.cache
def _classes(file: str) -> dict[str, ast.ClassDef]:
    nodes = ast.parse(Path(file).read_bytes()).body
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
