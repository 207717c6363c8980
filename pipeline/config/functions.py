"""Describes functions and classes by their source, without importing them.

The same descriptions are made for the classes of Keras.
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
_RESERVED = frozenset(
    [
        "learning_rate",
        "initial_learning_rate",
        "reduction",
        "dtype",
        "weight_decay",
        "clipnorm",
        "clipvalue",
        "global_clipnorm",
        "use_ema",
        "ema_momentum",
        "ema_overwrite_frequency",
        "loss_scale_factor",
        "gradient_accumulation_steps",
    ]
)
# Names that the annotation of an option may use; with any other name the option is not
# checked.
_HINTS = {
    **{hint.__name__: hint for hint in (int, float, bool, str, tuple, dict, Path)},
    **{"Annotated": Annotated, "Any": Any, "Literal": Literal, "Mapping": Mapping},
}
# Registry -> the module of Keras whose classes, or networks, its names may stand for.
KERAS = {
    "models": "applications",
    "optimizers": "optimizers",
    "schedules": "optimizers.schedules",
    "losses": "losses",
    "metrics": "metrics",
}
# Base classes, and wrappers of other objects. `Accuracy` counts equal numbers; as a
# word, it means the accuracy of a classifier.
_ABSTRACT = frozenset(
    [
        "optimizer",
        "optimizermap",
        "lossscaleoptimizer",
        "multioptimizer",
        "learningrateschedule",
        "loss",
        "metric",
        "mean",
        "sum",
        "meanmetricwrapper",
        "accuracy",
    ]
)
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
    preset: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Values of options that the name stands for, such as the one of a network."""

    @property
    def is_registered(self) -> bool:
        """Whether the function belongs to a subpackage of this package.

        The modules beside them, such as `trackers`, count as user code.
        """
        return self.path.is_relative_to(_PACKAGE) and self.path.parent != _PACKAGE

    @property
    def summary(self) -> str:
        """The first paragraph of the docstring, in one line."""
        paragraph = (ast.get_docstring(self.node) or "").partition("\n\n")[0]
        return " ".join(paragraph.split())

    @property
    def options(self) -> dict[str, Option]:
        """The options by name."""
        arguments = _arguments(self.node)
        meanings = _meanings(self.node)
        positional = [*arguments.posonlyargs, *arguments.args]
        optional = positional[self.required_arguments :]
        pairs = [
            *zip(optional, arguments.defaults, strict=True),
            *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
        ]
        options = {}
        for argument, value in pairs:
            if argument in arguments.posonlyargs:  # has no name for a caller
                continue
            if argument.arg in _RESERVED and not self.is_registered:
                continue
            hint = _hint(argument.annotation, value)
            default = None if value is None else ast.unparse(value)
            if argument.arg in self.preset:
                default = repr(self.preset[argument.arg])
            meaning = meanings.get(argument.arg, "")
            options[argument.arg] = Option(hint, default, meaning)
        return options

    @property
    def takes_metadata(self) -> bool:
        """Whether the second argument is `metadata`, by position only: the metadata of
        the task, such as a vocabulary.
        """
        positional = _arguments(self.node).posonlyargs
        return [argument.arg for argument in positional[1:]] == ["metadata"]

    @property
    def required_arguments(self) -> int:
        """Number of positional arguments without a default, including `self`."""
        arguments = _arguments(self.node)
        positional = len(arguments.posonlyargs) + len(arguments.args)
        return positional - len(arguments.defaults)


def find_dotted(name: str) -> Function:
    """Finds the function `package.module.name`, `package.module:name` or
    `file.py:name`.
    """
    name = f"{name}:" if name.endswith(".py") else name
    module, _, function = name.rpartition(":" if ":" in name else ".")
    if module.endswith(".py"):
        path = Path(module)
        if not path.is_file():
            raise UsageError(f"{name!r}: {path} is not a file")
        module = str(path.resolve())
    else:
        spec = find_spec(module)
        if function in ("h5", "hdf5"):
            raise UsageError(
                f"{name!r}: pass keras.models.load_model({name!r}) in Python, or save"
                " the model as a .keras file"
            )
        if spec is None or not str(spec.origin).endswith(".py"):
            raise UsageError(f"{name!r}: no module named {module!r} on Python's path")
        path = Path(str(spec.origin))
    nodes = functions_of(path)
    if function not in nodes:
        hint = suggest(function, nodes) if nodes else "it defines no public function"
        raise UsageError(f"{name!r}: {path} has no function {function!r}; {hint}")
    return Function(function, module, path, nodes[function])


def from_signature(value: Callable) -> Function:
    """Describes a function or class of this process by its signature."""
    parameters = []
    for parameter in inspect.signature(value).parameters.values():
        default = parameter.default
        if not _is_literal(default) and default is not parameter.empty:
            default = None
        parameters.append(
            parameter.replace(annotation=parameter.empty, default=default)
        )
    code = f"def function{inspect.Signature(parameters)}: ..."
    node = ast.parse(code).body[0]
    if not isinstance(node, ast.FunctionDef):
        raise TypeError(code)
    path = Path(f"<{value.__module__}>")
    return Function(value.__name__, value.__module__, path, node)


def _is_literal(default: Any) -> bool:
    """Whether the text of a default is its source code."""
    if isinstance(default, tuple):
        return all(map(_is_literal, default))
    return isinstance(default, bool | int | float | str)


def find_spec(module: str) -> ModuleSpec | None:
    """Finds a module without importing its packages, as `importlib` alone would."""
    parts = module.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    try:
        spec = importlib.util.find_spec(parts[0])
    except ValueError:  # __main__ of a notebook
        return None
    for part in parts[1:]:
        if spec is None:
            return None
        spec = PathFinder.find_spec(part, spec.submodule_search_locations or [])
    return spec


@functools.cache
def functions_of(path: Path) -> dict[str, ast.FunctionDef | ast.ClassDef]:
    """The public functions and classes of a source file, in order."""
    try:
        nodes = ast.parse(path.read_bytes(), path.name).body
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{path} is not valid Python: {error}") from None
    functions = {}
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_":
            functions[node.name] = node
    return functions


def _arguments(node: ast.FunctionDef | ast.ClassDef) -> ast.arguments:
    if isinstance(node, ast.FunctionDef):
        return node.args
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            return method.args
    return ast.arguments([], [], None, [], [], None, [])


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
    """Evaluates an annotation without running code.

    Raises KeyError or TypeError if it is not a type.
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
    docstring = ast.get_docstring(node) or ""
    section = docstring.partition("Args:\n")[2].partition("\n\n")[0]
    entry = r"^ {4}(\w+): (.+(?:\n {5,}.+)*)"
    entries = re.findall(entry, section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def keras_class(registry: str, name: str) -> str | None:
    """`module:Class` by a name in any spelling: `adam_w`, `adamw` or `AdamW`."""
    plain = name.replace("_", "").lower()
    return _keras_classes(registry).get(_ALIASES.get(plain, plain))


def keras_names(registry: str) -> list[str]:
    """The names of the Keras classes as Keras spells them: `f1_score`, `auc`; those of
    networks are those of its functions: `ResNet50`.
    """
    if registry == "models":
        return sorted(p.rpartition(":")[2] for p in _keras_classes(registry).values())
    starts = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
    names = []
    for path in _keras_classes(registry).values():
        class_name = path.rpartition(":")[2]
        names.append(re.sub(starts, "_", class_name).lower())
    return sorted(names)


@functools.cache
def _keras_classes(registry: str) -> dict[str, str]:
    """Name in lower case -> `module:Class`, of what Keras exports in a module."""
    if registry not in KERAS:
        return {}
    spec = find_spec(f"keras.{KERAS[registry]}")
    text = Path(str(spec and spec.origin)).read_text(encoding="utf-8")
    line = r"^from (\S+) import \(?\s*([A-Z]\w*) as \2"
    classes = {}
    for module, name in re.findall(line, text, re.MULTILINE):
        if name.lower() not in _ABSTRACT:
            classes[name.lower()] = f"{module}:{name}"
    return classes
