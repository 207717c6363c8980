"""Functions and classes, also of Keras, as their source describes them, without
importing them.
"""

import ast
import dataclasses
import functools
import importlib.util
import inspect
import re
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Annotated, Any, Literal

from pipeline.utils.errors import UsageError, suggest

_PACKAGE = Path(__file__).parents[1]
# Options that the package sets itself.
_RESERVED = (
    *("learning_rate", "initial_learning_rate", "reduction", "dtype", "weight_decay"),
    *("clipnorm", "clipvalue", "global_clipnorm", "use_ema", "ema_momentum"),
    *("ema_overwrite_frequency", "loss_scale_factor", "gradient_accumulation_steps"),
)
# Names that the annotation of an option may use; with any other name the option is not
# checked.
_HINTS = {
    **{hint.__name__: hint for hint in (int, float, bool, str, tuple, dict, Path)},
    **{"Annotated": Annotated, "Any": Any, "Literal": Literal, "Mapping": Mapping},
}
# Registry -> the module of Keras whose classes its names may stand for.
KERAS = {
    "optimizers": "optimizers",
    "schedules": "optimizers.schedules",
    "losses": "losses",
    "metrics": "metrics",
}
# Base classes, and wrappers of other objects.
_ABSTRACT = {
    *(
        "optimizer",
        "optimizermap",
        "lossscaleoptimizer",
        "multioptimizer",
        "learningrateschedule",
    ),
    *("loss", "metric", "mean", "sum", "meanmetricwrapper"),
    # counts equal numbers; as a word, it means the accuracy of a classifier
    "accuracy",
}
_ALIASES = {
    "mse": "meansquarederror",
    "mae": "meanabsoluteerror",
    "mape": "meanabsolutepercentageerror",
    "msle": "meansquaredlogarithmicerror",
    "rmse": "rootmeansquarederror",
    "bce": "binarycrossentropy",
    "kld": "kldivergence",
}


@dataclasses.dataclass(frozen=True)
class Option:
    """A keyword-only argument of a registered function."""

    hint: Any
    default: str | None
    """Source code of the default; None if the option is required."""
    meaning: str
    """From the section `Args` of the docstring."""


@dataclasses.dataclass(frozen=True)
class Function:
    """A function, or a class and its constructor, as described by its source."""

    name: str
    module: str
    path: Path
    node: ast.FunctionDef | ast.ClassDef

    @property
    def is_registered(self) -> bool:
        """Whether it is one of this package."""
        return self.path.is_relative_to(_PACKAGE)

    @property
    def summary(self) -> str:
        """The first paragraph of the docstring, in one line."""
        paragraph = (ast.get_docstring(self.node) or "").partition("\n\n")[0]
        return " ".join(paragraph.split())

    @property
    def options(self) -> dict[str, Option]:
        """The options by name."""
        found, meanings = _arguments(self.node), _meanings(self.node)
        optional = found.args[len(found.args) - len(found.defaults) :]
        pairs = [
            *zip(optional, found.defaults, strict=True),
            *zip(found.kwonlyargs, found.kw_defaults, strict=True),
        ]
        known = {}
        for argument, value in pairs:
            if argument.arg in _RESERVED and not self.is_registered:
                continue
            hint = _hint(argument.annotation, value)
            default = None if value is None else ast.unparse(value)
            known[argument.arg] = Option(hint, default, meanings.get(argument.arg, ""))
        return known

    @property
    def required(self) -> int:
        """Number of its positional arguments without a default, including `self`."""
        found = _arguments(self.node)
        return len(found.args) - len(found.defaults)


def dotted(name: str) -> Function:
    """`package.module.name`, `package.module:name` or `file.py:name`."""
    name = f"{name}:" if name.endswith(".py") else name
    module, _, function = name.rpartition(":" if ":" in name else ".")
    if module.endswith(".py"):
        path = Path(module)
        if not path.is_file():
            raise UsageError(f"{name!r}: {path} is not a file")
        module = str(path.resolve())
    else:
        spec = spec_of(module)
        if spec is None or not str(spec.origin).endswith(".py"):
            raise UsageError(f"{name!r}: no module named {module!r} on Python's path")
        path = Path(str(spec.origin))
    known = functions_of(path)
    if function not in known:
        hint = suggest(function, known) if known else "it defines no public function"
        raise UsageError(f"{name!r}: {path} has no function {function!r}; {hint}")
    return Function(function, module, path, known[function])


def declared(value: Callable) -> Function:
    """A function or class of this process, of which only the signature is read."""
    parameters = []
    for one in inspect.signature(value).parameters.values():
        shown = (
            isinstance(one.default, bool | int | float | str)
            or one.default is one.empty
        )
        default = one.default if shown else None
        parameters.append(one.replace(annotation=one.empty, default=default))
    code = f"def function{inspect.Signature(parameters)}: ..."
    (node,) = (n for n in ast.parse(code).body if isinstance(n, ast.FunctionDef))
    return Function(
        value.__name__, value.__module__, Path(f"<{value.__module__}>"), node
    )


def spec_of(module: str) -> ModuleSpec | None:
    """Finds a module without importing its packages, as `find_spec` alone would."""
    first, *others = module.split(".")
    if not all(part.isidentifier() for part in (first, *others)):
        return None
    try:
        spec = importlib.util.find_spec(first)
    except ValueError:  # __main__ of a notebook
        return None
    for part in others:
        spec = (
            PathFinder.find_spec(part, spec.submodule_search_locations or [])
            if spec
            else None
        )
    return spec


@functools.cache
def functions_of(path: Path) -> dict[str, ast.FunctionDef | ast.ClassDef]:
    """The public functions and classes of a source file, in order."""
    try:
        nodes = ast.parse(path.read_bytes(), path.name).body
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{path} is not valid Python: {error}") from None
    kinds = ast.FunctionDef | ast.ClassDef
    return {n.name: n for n in nodes if isinstance(n, kinds) and n.name[0] != "_"}


def _arguments(node: ast.FunctionDef | ast.ClassDef) -> ast.arguments:
    if isinstance(node, ast.FunctionDef):
        return node.args
    methods = (
        n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"
    )
    method = next(methods, None)
    return method.args if method else ast.arguments([], [], None, [], [], None, [])


def _hint(annotation: ast.expr | None, default: ast.expr | None) -> Any:
    """The type of an option; Any for an annotation with other names than `_HINTS`.

    Without an annotation, as in Keras, the type of the default.
    """
    kind = type(default.value) if isinstance(default, ast.Constant) else None
    if annotation is None and kind in (bool, int, float, str):
        return int | float if kind is int else kind
    try:
        return _type(annotation)
    except (KeyError, TypeError):
        return Any


def _type(node: ast.expr | None) -> Any:
    """Evaluates an annotation without running code; KeyError or TypeError if it is not
    a type.
    """
    match node:
        case ast.Constant(value=value):
            return value
        case ast.UnaryOp(
            op=ast.USub(), operand=ast.Constant(value=int() | float() as value)
        ):
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


def _meanings(node: ast.FunctionDef | ast.ClassDef) -> dict[str, str]:
    """Argument -> its description in the section `Args` of the docstring."""
    _, _, section = (ast.get_docstring(node) or "").partition("Args:\n")
    entries = re.findall(
        r"^ {4}(\w+): (.+(?:\n {5,}.+)*)", section.partition("\n\n")[0], re.MULTILINE
    )
    return {name: " ".join(text.split()) for name, text in entries}


def keras_class(registry: str, name: str) -> str | None:
    """`module:Class` by a name in any spelling: `adam_w`, `adamw` or `AdamW`."""
    plain = name.replace("_", "").lower()
    return _keras_classes(registry).get(_ALIASES.get(plain, plain))


def keras_names(registry: str) -> list[str]:
    """The names of the classes in lower case with underscores, as in Keras: `f1_score`,
    `auc`.
    """
    starts = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
    found = (name.rpartition(":")[2] for name in _keras_classes(registry).values())
    return sorted(re.sub(starts, "_", name).lower() for name in found)


@functools.cache
def _keras_classes(registry: str) -> dict[str, str]:
    """Name in lower case -> `module:Class`, of the classes that Keras exports."""
    if registry not in KERAS:
        return {}
    spec = spec_of(f"keras.{KERAS[registry]}")
    text = Path(str(spec and spec.origin)).read_text(encoding="utf-8")
    found = re.findall(r"^from (\S+) import \(?\s*([A-Z]\w*) as \2", text, re.MULTILINE)
    known = {name.lower(): f"{module}:{name}" for module, name in found}
    return {name: place for name, place in known.items() if name not in _ABSTRACT}
