"""Registries: packages whose public functions can be selected by name in a config.

Every public function in any file of the package is registered under its name (usually that of the
file); files that begin with `_` contain helpers. A dotted name, `package.module.function`, works
wherever a registered one does. The keyword-only arguments of a function are its options. Only
`load` imports modules; everything else reads the source, so that a misspelled name is found
without importing TensorFlow.
"""

import ast
import contextlib
import dataclasses
import functools
import importlib.util
import re
import traceback
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Annotated, Any, Literal

from pipeline.config import type_hints, validation
from pipeline.utils.errors import UsageError, suggest

_PACKAGE = Path(__file__).parents[1]
# Registry -> its directory, and what messages call one of its functions.
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
# Names that the annotation of an option may use; with any other name the option is not checked.
_HINTS = {
    **{hint.__name__: hint for hint in (int, float, bool, str, tuple, dict, Path)},
    **{"Annotated": Annotated, "Any": Any, "Literal": Literal, "Mapping": Mapping},
}


@dataclasses.dataclass(frozen=True)
class Option:
    """A keyword-only argument of a registered function."""

    hint: Any
    default: str | None
    """Source code of the default; None if the option is required."""
    meaning: str
    """From the section `Args` of the docstring."""

    def __str__(self) -> str:
        default = "required" if self.default is None else f"default {self.default}"
        return f"{type_hints.describe(self.hint)} ({default})"


@dataclasses.dataclass(frozen=True)
class Function:
    """A registered function, as described by its source."""

    name: str
    module: str
    path: Path
    node: ast.FunctionDef

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return (ast.get_docstring(self.node) or "").partition("\n")[0]

    @property
    def options(self) -> dict[str, Option]:
        """The options by name."""
        arguments, meanings = self.node.args, _meanings(self.node)
        found = {}
        for argument, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            hint: Any = Any  # of an annotation with other names than `_HINTS`
            with contextlib.suppress(KeyError, TypeError):
                hint = _type(argument.annotation)
            default = None if value is None else ast.unparse(value)
            found[argument.arg] = Option(hint, default, meanings.get(argument.arg, ""))
        return found


def names(registry: str) -> list[str]:
    """The registered names, sorted."""
    return sorted(_registered(registry))


def find(registry: str, name: str) -> Function:
    """The function with this name; raises UsageError with the closest name if there is none."""
    if "." in name:
        return _dotted(name)
    known = _registered(registry)
    if name not in known:
        raise UsageError(f"unknown {REGISTRIES[registry][1]} {name!r}; {suggest(name, known)}")
    return known[name]


def named(registry: str) -> Callable[[], str]:
    """Annotates a field that takes names of a registry; its description lists them."""
    return lambda: f"{', '.join(names(registry))}, or package.module.function"


def check(registry: str, name: str, given: Mapping[str, Any], flag: str) -> None:
    """Raises UsageError unless `name` is registered and accepts exactly the options `given`.

    Args:
        registry: Key of `REGISTRIES`.
        name: A name in it, or a dotted name.
        given: Option -> value.
        flag: The flag of an option, with `{}` for its name: `--source.{}`.
    """
    known = find(registry, name).options
    for option, value in given.items():
        shown = flag.format(repr(option)[1:-1])
        if option not in known:
            hint = suggest(option, known) if known else "it takes none"
            raise UsageError(f"{shown}: {name} has no option {option!r}; {hint}")
        validation.require_value(known[option].hint, value, f"{shown} of {name}")
    for option, about in known.items():
        if about.default is None and option not in given:
            raise UsageError(f"{name} needs {flag.format(option)}")


def read_options(registry: str, name: str, given: Mapping[str, Any], flag: str) -> dict[str, Any]:
    """Options with the words of a command line replaced by the values that they stand for.

    Raises UsageError for words that do not fit an option; unknown names and options are left to
    `check`.
    """
    known = find(registry, name).options
    found = {}
    for option, text in given.items():
        words = [text] if isinstance(text, str) else text
        hint = known[option].hint if option in known else Any
        found[option] = validation.read(hint, words, f"{flag.format(option)} of {name}")
    return found


def load(registry: str, name: str) -> Callable:
    """The function itself; imports its module, which imports TensorFlow in most registries.

    Raises UsageError, with file and line, if a module outside the package cannot be imported.
    """
    function = find(registry, name)
    if "." not in name:
        return getattr(importlib.import_module(function.module), name)
    try:
        module = importlib.import_module(function.module)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((f.lineno for f in reversed(frames) if f.filename == str(function.path)), "?")
        raise UsageError(
            f"{name!r}: {function.path}, line {line}, fails to import: "
            f"{type(error).__name__}: {error}"
        ) from error
    return getattr(module, function.name)


def bind(registry: str, name: str, options: Mapping[str, Any]) -> Callable:
    """A registered function with its options, which may come from a JSON file."""
    return functools.partial(load(registry, name), **convert(registry, name, options))


def convert(registry: str, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Converts options of a JSON file to the types that the function takes: `Path`, tuples."""
    known = find(registry, name).options
    return {
        option: type_hints.from_json(known[option].hint if option in known else Any, value)
        for option, value in options.items()
    }


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
        function = find(registry, name)
        lines += [f"{name}: {function.summary}"]
        for option, about in function.options.items():
            lines += [f"    {option}: {about}" + (f". {about.meaning}" if about.meaning else "")]
    return "\n".join(lines)


@functools.cache
def _registered(registry: str) -> dict[str, Function]:
    folder = REGISTRIES[registry][0]
    found: dict[str, Function] = {}
    for path in sorted((_PACKAGE / folder).glob("[!_]*.py")):
        module = ".".join(["pipeline", *folder.split("/"), path.stem])
        for name, node in _functions(path).items():
            if name in found:
                other = found[name]
                raise UsageError(
                    f"{other.path}, line {other.node.lineno}, and {path}, line {node.lineno}, both "
                    f"define {name!r}; rename one of them"
                )
            found[name] = Function(name, module, path, node)
    return found


def _dotted(name: str) -> Function:
    module, _, function = name.rpartition(".")
    spec = _found(module)
    if spec is None or not str(spec.origin).endswith(".py"):
        raise UsageError(f"{name!r}: no module named {module!r} on Python's path")
    path = Path(str(spec.origin))
    functions = _functions(path)
    if function not in functions:
        hint = suggest(function, functions) if functions else "it defines no public function"
        raise UsageError(f"{name!r}: {path} has no function {function!r}; {hint}")
    return Function(function, module, path, functions[function])


def _found(module: str) -> ModuleSpec | None:
    """Finds a module without importing its packages, as `find_spec` alone would."""
    first, *others = module.split(".")
    if not all(part.isidentifier() for part in (first, *others)):
        return None
    try:
        spec = importlib.util.find_spec(first)
    except ValueError:  # __main__ of a notebook
        return None
    for part in others:
        spec = PathFinder.find_spec(part, spec.submodule_search_locations or []) if spec else None
    return spec


@functools.cache
def _functions(path: Path) -> dict[str, ast.FunctionDef]:
    """The public functions of a source file, in order."""
    try:
        nodes = ast.parse(path.read_bytes(), path.name).body
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{path} is not valid Python: {error}") from None
    return {n.name: n for n in nodes if isinstance(n, ast.FunctionDef) and n.name[0] != "_"}


def _type(node: ast.expr | None) -> Any:
    """Evaluates an annotation without running code; KeyError or TypeError if it is not a type."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
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


def _meanings(node: ast.FunctionDef) -> dict[str, str]:
    """Argument -> its description in the section `Args` of the docstring."""
    _, _, section = (ast.get_docstring(node) or "").partition("Args:\n")
    entries = re.findall(
        r"^ {4}(\w+): (.+(?:\n {5,}.+)*)", section.partition("\n\n")[0], re.MULTILINE
    )
    return {name: " ".join(text.split()) for name, text in entries}
