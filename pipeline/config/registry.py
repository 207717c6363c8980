"""Registries: folders whose public functions can be named in a config.

The name is that of a public function of any file in the folder (usually the file's name); files
that begin with `_` hold helpers. A dotted name, `package.module.function`, works wherever a
registered one does. The keyword-only arguments of a function are its options. Everything but `load`
reads the source text, so that a misspelt name is found without importing TensorFlow.
"""

import ast
import dataclasses
import functools
import importlib
import sys
import traceback
import typing
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from pipeline.config import type_hints
from pipeline.config.validation import require_path
from pipeline.utils import files
from pipeline.utils.errors import UsageError, one_line, suggest

_PACKAGE = Path(__file__).parents[1]
# Registry -> its folder, and what one of its functions is called in a message.
REGISTRIES = {
    "recipes": ("recipes", "recipe"),
    "sources": ("data/sources", "source"),
    "augment": ("data/augment", "augmentation"),
    "tasks": ("tasks", "task"),
    "models": ("models", "model"),
    "engines": ("training/engines", "engine"),
    "callbacks": ("training/callbacks", "callback"),
    "losses": ("training/losses", "loss"),
    "metrics": ("training/metrics", "metric"),
    "optimizers": ("training/optim/optimizers", "optimizer"),
    "schedules": ("training/optim/schedules", "schedule"),
}
# The names that an annotation of an option may use; an option with another one is not checked.
_HINTS = {
    **{hint.__name__: hint for hint in (int, float, bool, str, tuple, dict, Path)},
    **{"Annotated": Annotated, "Any": Any, "Literal": Literal, "Mapping": Mapping},
}


@dataclasses.dataclass(frozen=True)
class Option:
    """A keyword-only argument of a registered function."""

    hint: Any
    default: str | None
    """As the source has it; None: the option is required."""
    meaning: str
    """From the section `Args` of the docstring."""

    def __str__(self) -> str:
        default = "required" if self.default is None else f"default {self.default}"
        return f"{type_hints.describe(self.hint)} ({default})"


@dataclasses.dataclass(frozen=True)
class Sibling:
    """A registered function, as its source text describes it."""

    name: str
    module: str
    path: Path
    node: ast.FunctionDef

    @property
    def summary(self) -> str:
        """First line of the docstring."""
        return (ast.get_docstring(self.node) or "").partition("\n")[0]

    @property
    def options(self) -> dict[str, Option]:
        """The options by name."""
        arguments, meanings = self.node.args, _meanings(self.node)
        return {
            argument.arg: Option(
                _hint(argument.annotation),
                None if default is None else ast.unparse(default),
                meanings.get(argument.arg, ""),
            )
            for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        }

    @property
    def is_complete(self) -> bool:
        """Whether it can be called without arguments."""
        arguments = self.node.args
        given = len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)
        return given <= 0 and None not in arguments.kw_defaults


def names(registry: str) -> list[str]:
    """The registered names, sorted."""
    return sorted(_siblings(registry))


def find(registry: str, name: str) -> Sibling:
    """The function of a name; UsageError, with the nearest good name, if there is none."""
    if "." in name:
        return _dotted(name)
    siblings = _siblings(registry)
    if name not in siblings:
        raise UsageError(f"unknown {REGISTRIES[registry][1]} {name!r}; {suggest(name, siblings)}")
    return siblings[name]


def named(registry: str) -> Any:
    """For the type of a field that takes names of a registry: its help text lists them."""
    return tyro.conf.arg(
        help_behavior_hint=lambda default: (
            f"({', '.join(names(registry))}, or package.module.function; default: {default})"
        )
    )


def check(registry: str, name: str, given: Mapping[str, Any], flag: str) -> None:
    """Raises UsageError unless `name` is registered and takes just the options `given`.

    Args:
        registry: Key of `REGISTRIES`.
        name: Of a function in it, or a dotted name.
        given: Option -> value.
        flag: Where the options come from, with `{}` for an option's name: `--source.{}`.
    """
    known = find(registry, name).options
    for option, value in given.items():
        if option not in known:
            hint = suggest(option, known) if known else "it takes none"
            asked = flag.format(one_line(option))
            raise UsageError(f"{asked}: {name} has no option {option!r}; {hint}")
        if _is_path(known[option].hint) and isinstance(value, str | Path):
            require_path(Path(value), flag.format(option))
        if not type_hints.fits(known[option].hint, value):
            meant = type_hints.describe(known[option].hint)
            received = str(value) if isinstance(value, Path) else value
            flag = f"{flag.format(option)} of {name}"
            raise UsageError(f"{flag} must be {meant}, received {received!r}")
    for option, wanted in known.items():
        if wanted.default is None and option not in given:
            raise UsageError(f"{name} needs {flag.format(option)}")


def read_options(registry: str, name: str, given: Mapping[str, Any], flag: str) -> dict[str, Any]:
    """Options with the words of a command line replaced by the values that they stand for.

    Raises UsageError for words that an option does not take; an unknown name or option is left
    to `check`.
    """
    known = find(registry, name).options
    found = {}
    for option, words in given.items():
        hint = known[option].hint if option in known else Any
        if _is_path(hint):
            require_path(Path(*([words] if isinstance(words, str) else words)), flag.format(option))
        try:
            found[option] = type_hints.read(hint, [words] if isinstance(words, str) else words)
        except ValueError as error:
            received = one_line(words if isinstance(words, str) else " ".join(words))
            raise UsageError(
                f"{flag.format(option)} of {name} must be {error}, received {received!r}"
            ) from None
    return found


def load(registry: str, name: str) -> Callable:
    """The function itself; imports its module, and so in most registries TensorFlow.

    Raises UsageError, naming file and line, if a module outside the package cannot be imported.
    """
    sibling = find(registry, name)
    if "." not in name:
        return getattr(importlib.import_module(sibling.module), name)
    try:
        module = importlib.import_module(sibling.module)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((f.lineno for f in reversed(frames) if f.filename == str(sibling.path)), "?")
        raise UsageError(
            f"{name!r}: {sibling.path}, line {line}, raises while it is imported: "
            f"{type(error).__name__}: {error}"
        ) from error
    return getattr(module, sibling.name)


def bind(registry: str, name: str, options: Mapping[str, Any]) -> Callable:
    """A registered function with its options, which may come from a JSON file."""
    return functools.partial(load(registry, name), **convert(registry, name, options))


def convert(registry: str, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as a JSON file has them, with the types of the function: `Path`, tuples."""
    known, found = find(registry, name).options, dict(options)
    for option, value in options.items():
        if isinstance(value, str) and option in known and _is_path(known[option].hint):
            found[option] = Path(files.expand_home("~/") if value == "~" else value)
        elif isinstance(value, list):
            found[option] = tuple(value)
    return found


def call(registry: str, name: str, options: Mapping[str, Any], *arguments: Any) -> Any:
    """Calls a registered function with its options."""
    return bind(registry, name, options)(*arguments)


def describe(registry: str) -> str:
    """Every registered function with its options: meaning, type and range, default.

    Raises UsageError for an unknown registry.
    """
    if registry not in REGISTRIES:
        raise UsageError(f"unknown registry {registry!r}; {suggest(registry, REGISTRIES)}")
    lines = []
    for name in names(registry):
        sibling = find(registry, name)
        lines += [f"{name}: {sibling.summary}"]
        for option, about in sibling.options.items():
            lines += [f"    {option}: {about}" + (f". {about.meaning}" if about.meaning else "")]
    return "\n".join(lines)


@functools.cache
def _siblings(registry: str) -> dict[str, Sibling]:
    folder = REGISTRIES[registry][0]
    found: dict[str, Sibling] = {}
    for path in sorted((_PACKAGE / folder).glob("[!_]*.py")):
        module = ".".join(["pipeline", *folder.split("/"), path.stem])
        for name, node in _functions(path).items():
            if name in found:
                other = found[name]
                raise UsageError(
                    f"{path}, line {node.lineno}, and {other.path}, line {other.node.lineno}, both "
                    f"define {name!r}; rename one of them"
                )
            found[name] = Sibling(name, module, path, node)
    return found


def _dotted(name: str) -> Sibling:
    module, _, function = name.rpartition(".")
    spec = _found(module)
    if spec is None or not str(spec.origin).endswith(".py"):
        raise UsageError(f"{name!r}: there is no module {module!r} on Python's path")
    path = Path(str(spec.origin))
    functions = _functions(path)
    if function not in functions:
        if _found(name) is not None:
            raise UsageError(f"{name!r} is a module; name a function in it, such as {name}.NAME")
        hint = suggest(function, functions) if functions else "it defines no public function"
        raise UsageError(f"{name!r}: {path} has no function {function!r}; {hint}")
    return Sibling(function, module, path, functions[function])


def _found(module: str) -> ModuleSpec | None:
    """Where a module is; `importlib.util.find_spec` would run the packages around it."""
    first, *others = module.split(".")
    if not all(part.isidentifier() for part in (first, *others)):
        return None
    finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
    found = (find_spec(first, None) for find_spec in finders if find_spec)
    spec = next((one for one in found if one is not None), None)
    for part in others:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(part, list(spec.submodule_search_locations))
    return spec


@functools.cache
def _functions(path: Path) -> dict[str, ast.FunctionDef]:
    """Public functions of a source file, in the order of the file."""
    try:
        nodes = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f"{path}, line {line}," if line else f"{path}"
        raise UsageError(f"{where} is not valid Python: {error}") from None
    return {n.name: n for n in nodes if isinstance(n, ast.FunctionDef) and n.name[0] != "_"}


def _hint(annotation: ast.expr | None) -> Any:
    """The type that an annotation stands for; Any for one that uses other names."""
    try:
        return _type(annotation)
    except (KeyError, TypeError):
        return Any


def _type(node: ast.expr | None) -> Any:
    """The same without running any code; KeyError or TypeError for what is no type."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)):
            return -value
        case ast.Name(id=name):
            return _HINTS[name]
        case ast.Tuple(elts=items):
            return tuple(map(_type, items))
        case ast.Subscript(value=kind, slice=inside):
            return _type(kind)[_type(inside)]
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _type(left) | _type(right)
    raise TypeError(node)


def _is_path(hint: Any) -> bool:
    return hint is Path or any(map(_is_path, typing.get_args(hint)))


def _meanings(node: ast.FunctionDef) -> dict[str, str]:
    """Argument -> its text in the section `Args` of the docstring."""
    found: dict[str, str] = {}
    _, _, section = (ast.get_docstring(node) or "").partition("Args:\n")
    name = None
    for line in section.splitlines():
        indent = len(line) - len(line.lstrip())
        if not line.strip() or indent < 4:
            break
        head, colon, text = line.strip().partition(": ")
        if indent == 4 and colon:
            name, found[head] = head, text
        elif name is not None:
            found[name] += f" {line.strip()}"
    return found
