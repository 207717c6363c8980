"""Shelves of interchangeable siblings: what stands there, what it takes, and taking one by name.

A shelf is a folder of modules (`models/convnet.py`, each with one function of the name in `ENTRY`)
or a module of functions (`schedules.py`). The file is the registry: a file name, or a function
name, is the name used in a config. Listing and checking read the source text, so that a typing
error is found without importing TensorFlow. A dotted name (`mypackage.models.foo`) works
everywhere.
"""

import ast
import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from pipeline.utils.errors import UsageError, one_line, suggest

ROOT = Path(__file__).parents[1]
# Where the modules of a registry lie, inside the package.
PLACES = {
    "sources": "data.sources",
    "augment": "data.augment",
    "engines": "training.engines",
    "optimizers": "training.optim.optimizers",
    "schedules": "training.optim.schedules",
    "recipes": "recipes.images",
}
# The function that a module on each folder shelf offers; None: the function of the file's name.
ENTRY = {
    "sources": "source",
    "models": "features",
    "tasks": "task",
    "engines": "train",
    "augment": None,
}


def _package(shelf: str) -> str:
    return f"pipeline.{PLACES.get(shelf, shelf)}"


def _folder(shelf: str) -> Path:
    return ROOT.joinpath(*PLACES.get(shelf, shelf).split("."))


def names(shelf: str) -> list[str]:
    """Names on a shelf: sorted files of a folder, or functions of a module in their order there."""
    if shelf in ENTRY:
        return sorted(p.stem for p in _folder(shelf).glob("*.py") if not p.stem.startswith("_"))
    return list(_functions(_folder(shelf).with_suffix(".py")))


def summary(shelf: str, name: str) -> str:
    """First line of the docstring of a sibling on a module shelf."""
    return (ast.get_docstring(_function(shelf, name)) or "").partition("\n")[0]


def options(shelf: str, name: str, entry: str | None = None) -> dict[str, bool]:
    """The keyword-only arguments of a sibling; True where one has no default and must be given."""
    arguments = _function(shelf, name, entry).args
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return {argument.arg: default is None for argument, default in pairs}


def needs(recipe: str) -> bool:
    """Whether a recipe cannot be called without arguments."""
    arguments = _function("recipes", recipe).args
    given = len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)
    return given > 0 or None in arguments.kw_defaults


def check(
    shelf: str, name: str, given: Mapping[str, Any], flag: str, entry: str | None = None
) -> None:
    """Raises UsageError unless `name` is on the shelf and takes just the options `given`.

    `flag` is where the options come from, with `{}` for one option's name: `--source.{}`.
    """
    known = options(shelf, name, entry)
    annotations = {a.arg: a.annotation for a in _function(shelf, name, entry).args.kwonlyargs}
    for option, value in given.items():
        if option not in known:
            hint = suggest(option, known) if known else "it takes none"
            asked = flag.format(one_line(option))
            raise UsageError(f"{asked}: {name} has no option {option!r}; {hint}")
        if annotations[option] and not _fits(annotations[option], value):
            meant = _meaning(annotations[option])
            raise UsageError(f"{flag.format(option)} of {name} must be {meant}, received {value!r}")
    for option, required in known.items():
        if required and option not in given:
            raise UsageError(f"{name} needs {flag.format(option)}")


def _fits(annotation: ast.expr, value: Any) -> bool:
    """Whether a value has the type that an annotation says; unknown annotations let all pass.

    Understands int, float, bool, str, None, unions, Literal, `Annotated[int, (1, 9)]`: 1 to 9,
    where None stands for no limit, and `tuple[int, ...]`, as which a list of a JSON file counts.
    """
    match annotation:
        case ast.Constant(value=None):
            return value is None
        case ast.Name(id="float"):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case ast.Name(id="int"):
            return isinstance(value, int) and not isinstance(value, bool)
        case ast.Name(id="bool" | "str" as name):
            return type(value).__name__ == name
        case ast.BinOp(left=left, right=right):
            return _fits(left, value) or _fits(right, value)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=ast.Tuple() as names):
            return value in ast.literal_eval(names)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=name):
            return value == ast.literal_eval(name)
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[kind, limits])):
            low, high = ast.literal_eval(limits)
            inside = _fits(kind, value) and (low is None or low <= value)
            return inside and (high is None or value <= high)
        case ast.Subscript(
            value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[kind, ast.Constant()])
        ):
            return isinstance(value, tuple | list) and all(_fits(kind, item) for item in value)
    return True


def _meaning(annotation: ast.expr) -> str:
    """An annotation in words: `int, at least 1`, `one of 'zero', 'reflect'`."""
    match annotation:
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[kind, limits])):
            low, high = ast.literal_eval(limits)
            limit = f"at least {low}" if high is None else f"from {low} to {high}"
            return f"{_meaning(kind)}, {limit}"
        case ast.Subscript(value=ast.Name(id="Literal"), slice=names):
            return f"one of {ast.unparse(names).strip('()')}"
        case ast.Subscript(
            value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[kind, ast.Constant()])
        ):
            return f"values with commas (one: `value,`), each {_meaning(kind)}"
    return ast.unparse(annotation)


def take(shelf: str, name: str, entry: str | None = None) -> Callable:
    """The function itself; imports its module, and so, on most shelves, TensorFlow."""
    _function(shelf, name, entry)  # a wrong name is an error of the user, not of the import
    path, entry = _place(shelf, name, entry)
    return getattr(importlib.import_module(path), entry)


def _place(shelf: str, name: str, entry: str | None) -> tuple[str, str]:
    """(module, function) behind a name."""
    if ENTRY.get(shelf):
        return name if "." in name else f"{_package(shelf)}.{name}", entry or ENTRY[shelf]
    module, _, function = name.rpartition(".")
    if shelf in ENTRY and not module:
        return f"{_package(shelf)}.{name}", name
    return module or _package(shelf), function


def _function(shelf: str, name: str, entry: str | None = None) -> ast.FunctionDef:
    module, function = _place(shelf, name, entry)
    if "." not in name:
        if name not in names(shelf):
            kind = "augmentation" if shelf == "augment" else shelf.removesuffix("s")
            raise UsageError(f"unknown {kind} {name!r}; {suggest(name, names(shelf))}")
        place = _folder(shelf)
        path = place / f"{name}.py" if shelf in ENTRY else place.with_suffix(".py")
    else:
        spec = _found(module)
        if spec is None or not str(spec.origin).endswith(".py"):
            raise UsageError(f"{name!r}: there is no module {module!r} on Python's path")
        path = Path(spec.origin)
    functions = _functions(path)
    if function not in functions:
        raise UsageError(f"{name!r}: {path} has no function {function!r}")
    return functions[function]


def _found(module: str) -> ModuleSpec | None:
    """Where a module lies; `importlib.util.find_spec` would run the packages that it lies in."""
    first, *others = module.split(".")
    if not all(part.isidentifier() for part in (first, *others)):
        return None
    finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
    found = (find(first, None) for find in finders if find)
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
        raise UsageError(f"{path} is no Python: {error}") from None
    return {n.name: n for n in nodes if isinstance(n, ast.FunctionDef) and n.name[0] != "_"}
