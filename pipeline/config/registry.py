"""Registries: packages whose public functions can be selected by name in a config.

Every public function in any file of the package is registered under its name (usually
that of the file); files that begin with `_` contain helpers. Wherever a registered name
works, so do the optimizers, schedules, losses and metrics of Keras (`lamb`,
`f1_score`), `package.module:name`, `package.module.name`, `file.py:name`, functions
that an installed package offers as entry points of the group `pipeline.REGISTRY`, and
in Python the function or the object itself.

The keyword-only arguments of a function, and those with a default, are its options.
Only `load` imports modules; everything else reads the source, so that a misspelled name
is found without importing TensorFlow.
"""

import ast
import dataclasses
import functools
import importlib.metadata
import importlib.util
import sys
import traceback
import types
import typing
from collections.abc import Callable, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from pipeline.config import functions, objects, type_hints, validation
from pipeline.config.functions import Function, declared, dotted, functions_of
from pipeline.utils.errors import UsageError, quoted, suggest

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
# Registry -> the module that turns a user's object into one of its functions.
_ADAPTERS = {
    "sources": "data/in_memory",
    "models": "training/own_keras/network",
    "callbacks": "training/own_keras/callback",
    "losses": "training/own_keras/loss",
    "metrics": "training/own_keras/metric",
    "optimizers": "training/own_keras/optimizer",
    "schedules": "training/own_keras/schedule",
}


def names(registry: str) -> list[str]:
    """The registered names, sorted."""
    return sorted(_registered(registry))


def find(registry: str, name: str) -> Function:
    """The function with this name; raises UsageError with the closest name if there is
    none.
    """
    kind = REGISTRIES[registry][1]
    if objects.is_text_only(name):
        raise UsageError(
            f"the {kind} {name} was an object of the Python process that started the"
            " run; pass it again: fit(..., run_directory=...)"
        )
    value = name.value if isinstance(name, objects.Given) else None
    if isinstance(value, type | types.FunctionType):
        return declared(value)
    if value is not None or (registry == "models" and name.endswith(".keras")):
        validation.require_path(Path(name), "--model.name")
        adapter = _adapter(registry)
        if adapter is None:
            raise UsageError(f"a {kind} must be a name or a function; got {name}")
        return adapter
    if "." in name or ":" in name:
        return dotted(name)
    known = _registered(registry)
    for spelling in (name, name.lower()):  # as in Keras, `Accuracy` is `accuracy`
        if spelling in known:
            return known[spelling]
    if found := functions.keras_class(registry, name):
        return dotted(found)
    for entry in importlib.metadata.entry_points(
        group=f"pipeline.{registry}", name=name
    ):
        return dotted(entry.value)
    others = functions.keras_names(registry)
    raise UsageError(f"unknown {kind} {name!r}; {suggest(name, [*known, *others])}")


@dataclasses.dataclass(frozen=True)
class Named:
    """Annotates a field that takes names of a registry; its description lists them."""

    registry: str

    def __call__(self) -> str:
        known = [
            *names(self.registry),
            *["any of Keras"] * (self.registry in functions.KERAS),
        ]
        return f"{', '.join(known)}, or package.module:name"


@dataclasses.dataclass(frozen=True)
class Choice:
    """A field of a section that names functions of a registry, and the field of their
    options.
    """

    section: str
    field: str
    registry: str
    options: str
    """The same field if it maps names to options, as `data.augment` does."""

    @property
    def flag(self) -> str:
        """The flag of an option in messages, with `{}` for its name."""
        if self.options == self.field:
            return f"--{self.section}.{self.field}: {{}}"
        field = (
            "" if self.options == "options" else f"{self.options.replace('_', '-')} "
        )
        return f"--{self.section}.{field}{{}}"

    def written(self, name: str, option: str) -> str:
        """How an option of the function `name` is written on a command line."""
        if self.options == self.field:
            return f"--{self.section}.{self.field} {name} {option}=VALUE"
        if self.options == "options":
            return self.flag.format(option.replace("_", "-"))
        return self.flag.format(f"{option}=VALUE")

    def functions(self, value: Any, options: Any) -> dict[str, dict[str, Any]]:
        """Each function that the two fields name, with its options."""
        return (
            value if self.options == self.field else {value: options} if value else {}
        )


def choices(kind: Any) -> list[Choice]:
    """Every choice of functions that have options, in a section or in all sections of a
    config.
    """
    found = []
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        if dataclasses.is_dataclass(hint):
            found += choices(hint)
        own = "options" if name == "name" else f"{name}_options"
        for named in getattr(hint, "__metadata__", ()):
            is_dict = typing.get_origin(hint.__origin__) is dict
            if isinstance(named, Named) and (is_dict or own in kind.__annotations__):
                section = kind.__name__.removesuffix("Config").lower()
                found.append(
                    Choice(section, name, named.registry, name if is_dict else own)
                )
    return found


def builds_whole_model(name: str) -> bool:
    """Whether a model is a user's whole network, from raw inputs to its own outputs.

    Such are objects, `.keras` files, classes, and functions `(input_shape, classes)`.

    Raises UsageError for a function of other arguments.
    """
    function = find("models", name)
    value = getattr(name, "value", None)
    is_class = isinstance(value, type) or isinstance(function.node, ast.ClassDef)
    if function.name == "from_object" or is_class:
        return True
    if function.required not in (1, 2):
        raise UsageError(
            f"--model.name {name} must be a function (input_shape, classes) that"
            f" returns a keras.Model; it has {function.required} arguments without a"
            " default"
        )
    return function.required == 2


def check(registry: str, name: str, given: Mapping[str, Any], flag: str) -> None:
    """Raises UsageError unless `name` is registered and accepts exactly the options
    `given`.

    `name` may also be dotted. `flag` is the flag of an option, with `{}` for its name:
    `--source.{}`.
    """
    known = find(registry, name).options
    for option, value in given.items():
        shown = flag.format(repr(option[:100])[1:-1])
        if option not in known:
            hint = suggest(option[:100], known) if known else "it takes none"
            raise UsageError(f"{shown}: {name} has no option {quoted(option)}; {hint}")
        validation.require_value(known[option].hint, value, f"{shown} of {name}")
    for option, about in known.items():
        if about.default is None and option not in given:
            raise UsageError(f"{name} needs {flag.format(option)}")


def read_options(
    registry: str, name: str, given: Mapping[str, Any], flag: str
) -> dict[str, Any]:
    """Options with the words of a command line replaced by the values that they stand
    for.

    Raises UsageError for words that do not fit an option; unknown names and options are
    left to `check`.
    """
    known = find(registry, name).options
    found = {}
    for option, text in given.items():
        words = [text] if isinstance(text, str) else text
        hint = known[option].hint if option in known else Any
        found[option] = validation.read(hint, words, f"{flag.format(option)} of {name}")
    return found


def load(registry: str, name: str) -> Callable:
    """The function itself; imports its module, which imports TensorFlow in most
    registries.

    What a user hands over becomes a function with the contract of its registry. Raises
    UsageError, with file and line, if a module outside the package cannot be imported.
    """
    function = find(registry, name)
    if isinstance(name, objects.Given):
        found = name.value
    elif name.endswith(".keras"):
        found = Path(name)
    elif function.is_registered:
        return getattr(importlib.import_module(function.module), function.name)
    else:
        found = _imported(function, name)
    adapter = _adapter(registry)
    return importlib.import_module(adapter.module).adapt(found) if adapter else found


def _imported(function: Function, name: str) -> Any:
    """What a name outside the package stands for."""
    try:
        module = _module(function)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = next(
            (f.lineno for f in reversed(frames) if f.filename == str(function.path)),
            "?",
        )
        raise UsageError(
            f"{name!r}: {function.path}, line {line}, fails to import: "
            f"{type(error).__name__}: {error}"
        ) from error
    return getattr(module, function.name)


def _module(function: Function) -> Any:
    if not function.module.endswith(".py"):
        return importlib.import_module(function.module)
    if function.module not in sys.modules:
        loader = SourceFileLoader(function.path.stem, function.module)
        module = types.ModuleType(function.path.stem)
        module.__file__ = function.module
        loader.exec_module(module)
        sys.modules[function.module] = module
    return sys.modules[function.module]


def bind(registry: str, name: str, options: Mapping[str, Any]) -> Callable:
    """A registered function with its options, which may come from a JSON file."""
    return functools.partial(load(registry, name), **convert(registry, name, options))


def convert(registry: str, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Converts options of a JSON file to the types that the function takes: `Path`,
    tuples.
    """
    known = find(registry, name).options
    return {
        option: type_hints.from_json(
            known[option].hint if option in known else Any, value
        )
        for option, value in options.items()
    }


def call(registry: str, name: str, options: Mapping[str, Any], *arguments: Any) -> Any:
    """Calls a registered function with its options."""
    return bind(registry, name, options)(*arguments)


def described(name: str) -> dict[str, Function]:
    """The functions of a registry, or of any registry by one name, or by a
    dotted name.
    """
    if name in REGISTRIES:
        return {
            word: find(name, word)
            for word in (*names(name), *functions.keras_names(name))
        }
    if "." in name or ":" in name:
        return {name: dotted(name)}
    registered = (_registered(registry).get(name) for registry in REGISTRIES)
    return {function.name: function for function in filter(None, registered)}


@functools.cache
def _registered(registry: str) -> dict[str, Function]:
    folder = REGISTRIES[registry][0]
    found: dict[str, Function] = {}
    for path in sorted((_PACKAGE / folder).glob("[!_]*.py")):
        module = ".".join(["pipeline", *folder.split("/"), path.stem])
        for name, node in functions_of(path).items():
            if isinstance(node, ast.ClassDef):
                continue
            if name in found:
                other = found[name]
                raise UsageError(
                    f"{other.path}, line {other.node.lineno}, and {path}, line"
                    f" {node.lineno}, both define {name!r}; rename one of them"
                )
            found[name] = Function(name, module, path, node)
    return found


def _adapter(registry: str) -> Function | None:
    """The function `from_object` for objects of a registry, whose options
    are theirs.
    """
    if registry not in _ADAPTERS:
        return None
    path = _PACKAGE / f"{_ADAPTERS[registry]}.py"
    module = f"pipeline.{_ADAPTERS[registry].replace('/', '.')}"
    return Function("from_object", module, path, functions_of(path)["from_object"])
