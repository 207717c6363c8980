"""Registries: packages whose marked functions can be selected by name in a config.

Every function in any file of the package that is marked with `@register` has its name
(usually the name of the file). A config may also name the networks, optimizers,
schedules, losses and metrics of Keras (`ResNet50`, `lamb`, `f1_score`), a directory of
`save_to_preset` of KerasHub as a model, a function elsewhere (`package.module:name`,
`package.module.name`, `file.py:name`), or a function that an installed package offers
as an entry point of the group `pipeline.REGISTRY`. In Python, it may contain the
function or the object itself.

The keyword-only arguments of a function, and arguments with a default, are its options.
Only `load`, `counterpart`, `detector` and `user_arguments` import modules; everything
else reads the source, so that a misspelled name is reported without importing
TensorFlow.
"""

import ast
import dataclasses
import functools
import importlib.metadata
import importlib.util
import os
import sys
import traceback
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, TypeVar

from pipeline.config import objects, type_hints, validation
from pipeline.config.functions import (
    KERAS,
    Function,
    find_dotted,
    from_signature,
    functions_of,
    keras_class,
    keras_names,
)
from pipeline.utils.errors import UsageError, did_you_mean, nearest, quote, suggest

_PACKAGE = Path(__file__).parents[1]
# Registry -> its directory, and the noun for its functions in messages.
REGISTRIES = {
    "recipes": ("recipes", "recipe"),
    "sources": ("data/sources", "source"),
    "augment": ("data/augment", "augmentation"),
    "tasks": ("tasks", "task"),
    "inputs": ("tasks/inputs", "input"),
    "targets": ("tasks/targets", "target"),
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
    "models": "training/user_model",
    "callbacks": "training/user_callback",
    "losses": "training/user_loss",
    "metrics": "training/user_metrics",
    "optimizers": "training/user_optimizer",
    "schedules": "training/user_schedule",
}


Registered = TypeVar("Registered", bound=Callable)


def register(function: Registered) -> Registered:
    """Marks a function of a registry, which options can name; others are helpers."""
    return function


def names(registry: str) -> list[str]:
    """The registered names, sorted."""
    return sorted(_package_functions(registry))


def find(registry: str, name: str) -> Function:
    """Finds the function with this name.

    Raises UsageError with the closest name if there is none.
    """
    kind = REGISTRIES[registry][1]
    if objects.is_text_only(name):
        raise UsageError(
            f"the {kind} {name} was an object of the Python process that started the"
            " run; pass it again: fit(..., run_directory=...)"
        )
    value = name.value if isinstance(name, objects.ObjectName) else None
    if isinstance(value, type | types.FunctionType):
        return from_signature(value)
    if value is not None or (registry == "models" and name.endswith(".keras")):
        validation.require_path(Path(name), "--model.name")
        adapter = _adapter(registry)
        if adapter is None:
            raise UsageError(f"a {kind} must be a name or a function; got {name}")
        return adapter
    functions = _package_functions(registry)
    for spelling in (name, name.lower()):  # as in Keras, `Accuracy` is `accuracy`
        if spelling in functions:
            return functions[spelling]
    if registry == "models" and (model := pretrained(name)):
        function, preset = model
        return dataclasses.replace(functions[function], preset=preset)
    if "." in name or ":" in name:
        return find_dotted(name)
    class_name = keras_class(registry, name)
    if class_name:
        return find_dotted(class_name)
    group = f"pipeline.{registry}"
    for entry_point in importlib.metadata.entry_points(group=group, name=name):
        return find_dotted(entry_point.value)
    raise UsageError(f"unknown {kind} {name!r}; {_suggest_name(registry, name)}")


def pretrained(name: str) -> tuple[str, dict[str, Any]] | None:
    """The model that a word stands for, with options: a network of keras.applications
    with its ImageNet weights, or a directory of KerasHub; None for other words.
    """
    files = (os.path.join(name, file) for file in ("config.json", "metadata.json"))
    if all(map(os.path.isfile, files)):
        return "keras_hub", {"preset": name}
    path = keras_class("models", name)
    if path is None:
        return None
    return "application", {"name": path.rpartition(":")[2], "weights": "imagenet"}


def _suggest_name(registry: str, wrong: str) -> str:
    """The end of an error message about an unknown name."""
    if registry == "models":
        candidates = [*names(registry), *keras_names(registry)]
        if near := nearest(wrong, candidates, cutoff=0.5):
            return did_you_mean(near)
        return f"{suggest(wrong, names(registry))}, or a network of keras.applications"
    if registry != "callbacks":
        return suggest(wrong, [*names(registry), *keras_names(registry)])
    # The registered ones are part of every run.
    if wrong.replace("_", "").lower() == "earlystopping":
        return "--train.patience stops early"
    return "name a function or a class: package.module:name"


@dataclasses.dataclass(frozen=True)
class Named:
    """Annotates a field that takes names of a registry; its description lists them."""

    registry: str

    def __call__(self) -> str:
        own = "package.module:name"
        if self.registry == "callbacks":  # the registered ones are part of every run
            return own
        values = names(self.registry)
        if self.registry in KERAS:
            networks = "any of keras.applications"
            values.append(networks if self.registry == "models" else "any of Keras")
        return f"{', '.join(values)}, or {own}"


@dataclasses.dataclass(frozen=True)
class Choice:
    """A field of a section that names functions, and the field of their options."""

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
        if self.options == "options":
            return f"--{self.section}.{{}}"
        return f"--{self.section}.{self.options.replace('_', '-')} {{}}"

    def usage(self, name: str, option: str) -> str:
        """How to write an option of the function `name` on a command line."""
        if self.options == self.field:
            return f"--{self.section}.{self.field} {name} {option}=VALUE"
        if self.options == "options":
            return self.flag.format(option.replace("_", "-"))
        return self.flag.format(f"{option}=VALUE")

    def arguments(self, names: Sequence[str], option: str, value: Any) -> list[str]:
        """How to write an option that the functions `names` have in Python."""
        text = repr(value) if isinstance(value, int | float | str) else "..."
        inner = f'{{"{option}": {text}}}'
        if self.options == self.field:
            return [
                f'{self.section}={{"{self.field}": {{"{n}": {inner}}}}}' for n in names
            ]
        if self.options == "options":
            return [f"{self.section}={inner}"]
        function = f'"{self.field}": "{names[0]}", ' if len(names) == 1 else ""
        return [f'{self.section}={{{function}"{self.options}": {inner}}}']

    def functions(self, value: Any, options: Any) -> dict[str, dict[str, Any]]:
        """Maps each function that the two fields name to its options."""
        if self.options == self.field:
            return value
        return {value: options} if value else {}


def choices(kind: Any) -> list[Choice]:
    """The fields of a section, or of all sections of a config, that name functions with
    options.
    """
    fields = []
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        if dataclasses.is_dataclass(hint):
            fields += choices(hint)
        for mark in getattr(hint, "__metadata__", ()):
            if not isinstance(mark, Named):
                continue
            options = "options" if name == "name" else f"{name}_options"
            if typing.get_origin(hint.__origin__) is dict:
                options = name
            if options in kind.__annotations__:
                section = validation.section_name(kind)
                fields.append(Choice(section, name, mark.registry, options))
    return fields


def functions_with(option: str, kind: Any) -> Iterator[tuple[Choice, str]]:
    """The functions with an option, such as `path`, that a section or a config may
    name.
    """
    for choice in choices(kind):
        candidates = names(choice.registry)
        # Not Keras's metrics: reading them all takes long. Its networks have those of
        # `application`.
        if choice.options != choice.field and choice.registry != "models":
            candidates += keras_names(choice.registry)
        for name in candidates:
            if option in find(choice.registry, name).options:
                yield choice, name


def arguments_with(option: str, kind: Any, value: Any) -> list[str]:
    """How to write an option of a function in Python; see `functions_with`."""
    functions: dict[Choice, list[str]] = {}
    for choice, name in functions_with(option, kind):
        functions.setdefault(choice, []).append(name)
    arguments = []
    for choice, function_names in functions.items():
        arguments += choice.arguments(function_names, option, value)
    return arguments


def builds_whole_model(name: str) -> bool:
    """Whether a model is a user's whole network, from raw inputs to its own outputs.

    A whole network is an object, a `.keras` file, a class, or a function `(input_shape,
    classes)`. Raises UsageError for a function with other arguments.
    """
    function = find("models", name)
    value = getattr(name, "value", None)
    is_class = isinstance(value, type) or isinstance(function.node, ast.ClassDef)
    if function.name == "from_object" or is_class:
        return True
    if function.required_arguments not in (1, 2):
        raise UsageError(
            f"--model.name {name} must be a function (input_shape, classes) that"
            f" returns a keras.Model; it has {function.required_arguments} arguments"
            " without a default"
        )
    return function.required_arguments == 2


def check(registry: str, name: str, values: Mapping[str, Any], flag: str) -> None:
    """Raises UsageError unless the function `name` accepts the options with these
    values.

    `name` may also be dotted. `flag` is the flag of an option, with `{}` for its name:
    `--source.{}`.
    """
    options = find(registry, name).options
    for option, value in values.items():
        option_flag = flag.format(repr(option[:100])[1:-1])
        if option not in options:
            remedy = suggest(option[:100], options) if options else "it takes none"
            raise UsageError(
                f"{option_flag}: {name} has no option {quote(option)}; {remedy}"
            )
        validation.require_value(
            options[option].hint, value, f"{option_flag} of {name}"
        )
    for option, description in options.items():
        if description.default is None and option not in values:
            raise UsageError(f"{name} needs {flag.format(option)}")


def read_options(
    registry: str, name: str, words: Mapping[str, Any], flag: str
) -> dict[str, Any]:
    """Converts the words of a command line to the values of options.

    Raises UsageError for words that do not fit an option; unknown names and options are
    left to `check`.
    """
    hints = _hints(registry, name)
    values = {}
    for option, text in words.items():
        option_words = [text] if isinstance(text, str) else text
        hint = hints.get(option, Any)
        option_flag = f"{flag.format(option)} of {name}"
        values[option] = validation.read(hint, option_words, option_flag)
    return values


def _hints(registry: str, name: str) -> dict[str, Any]:
    options = find(registry, name).options
    return {option: description.hint for option, description in options.items()}


def changeable_options(task: str) -> frozenset[str]:
    """The options of a registered task that decide how it is measured, not what a run
    learns.
    """
    if task not in names("tasks"):  # of a file that may be gone
        return frozenset()
    hints = _hints("tasks", task).items()
    return frozenset(name for name, hint in hints if type_hints.is_changeable(hint))


def load(registry: str, name: str) -> Callable:
    """Imports a function, and with most registries TensorFlow.

    An object or a function of the user is adapted to the contract of its registry.
    Raises UsageError, with file and line, if a module outside the package cannot be
    imported.
    """
    function = find(registry, name)
    value: Any
    if isinstance(name, objects.ObjectName):
        value = name.value
    elif name.endswith(".keras"):
        value = Path(name)
    elif function.is_registered:
        return getattr(importlib.import_module(function.module), function.name)
    else:
        value = _import(function, name)
    adapter = _adapter(registry)
    if adapter is None:
        return value
    return importlib.import_module(adapter.module).adapt(value)


def _import(function: Function, name: str) -> Any:
    try:
        module = _import_module(function)
    except Exception as error:
        line: int | str | None = "?"
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == str(function.path):
                line = frame.lineno
        raise UsageError(
            f"{name!r}: {function.path}, line {line}, fails to import: "
            f"{type(error).__name__}: {error}"
        ) from error
    return getattr(module, function.name)


def _import_module(function: Function) -> Any:
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
    preset = find(registry, name).preset
    values = {**preset, **convert(registry, name, options)}
    return functools.partial(load(registry, name), **values)


def convert(registry: str, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Converts options of a JSON file to the types of the function: `Path`, tuples."""
    hints = _hints(registry, name)
    return {
        option: type_hints.from_json(hints.get(option, Any), value)
        for option, value in options.items()
    }


def counterpart(part: Any, folder: str, default: Any) -> Any:
    """What belongs to an input or target, created with it, such as how it is shown.

    It is the class that the class of `part`, or else its nearest base, names in an
    attribute, such as `report` for `report/targets`; for classes of the package, the
    subclass of `default` in the module of `folder` with the same name. Without either,
    it is `default`.
    """
    attribute = folder.partition("/")[0]
    kinds = type(part).__mro__
    own = getattr(part, "__dict__", {}).get(attribute)
    for kind in kinds:
        package, _, name = kind.__module__.rpartition(".")
        is_registered = package.startswith("pipeline.tasks")
        if not is_registered and kind is not object:
            own = own or vars(kind).get(attribute)
            _require_elsewhere(kind, attribute, default)
        if own is not None:
            if not isinstance(own, type) or not issubclass(own, default):
                raise UsageError(
                    f"{kinds[0].__name__}.{attribute} must be a subclass of"
                    f" {default.__module__}.{default.__name__}; got {own!r}"
                )
            return own(part)
        if is_registered and (_PACKAGE / folder / f"{name}.py").exists():
            path = f"pipeline.{folder.replace('/', '.')}.{name}"
            for view in vars(importlib.import_module(path)).values():
                is_view = isinstance(view, type) and issubclass(view, default)
                if is_view and view.__module__ == path:
                    return view(part)
    return default(part)


def _require_elsewhere(kind: type, attribute: str, default: type) -> None:
    """Raises UsageError if a class defines methods that belong to its counterpart."""
    for name, value in vars(default).items():
        if callable(value) and not name.startswith("_") and name in vars(kind):
            raise UsageError(
                f"{kind.__name__}.{name} is not called: define it in a subclass of"
                f" {default.__module__}.{default.__name__}, and write"
                f" {attribute} = THAT_CLASS in {kind.__name__}"
            )


def detector() -> Any:
    """The module that looks at data, which imports NumPy and pyarrow."""
    return importlib.import_module("pipeline.data.detect")


def user_arguments() -> Any:
    """The module about a user's Keras model in a call, which imports Keras."""
    return importlib.import_module("pipeline.training.user_arguments")


def call(registry: str, name: str, options: Mapping[str, Any], *arguments: Any) -> Any:
    """Calls a registered function with its options."""
    return bind(registry, name, options)(*arguments)


def look_up(topic: str) -> dict[str, Function]:
    """The functions that a topic of the help stands for, by name.

    A topic is a registry, a name that is registered in any of them, or a dotted name.
    """
    if topic in REGISTRIES:
        words = [*names(topic), *keras_names(topic)]
        return {word: find(topic, word) for word in words}
    if "." in topic or ":" in topic:
        return {topic: find_dotted(topic)}
    matches = {}
    for registry in REGISTRIES:
        function = _package_functions(registry).get(topic)
        if function:
            matches[function.name] = function
    return matches


@functools.cache
def _package_functions(registry: str) -> dict[str, Function]:
    folder = REGISTRIES[registry][0]
    package = ".".join(["pipeline", *folder.split("/")])
    functions: dict[str, Function] = {}
    for path in sorted((_PACKAGE / folder).glob("*.py")):
        for name, node in functions_of(path).items():
            if not any(ast.unparse(mark) == "register" for mark in node.decorator_list):
                continue
            if name in functions:
                first = functions[name]
                raise UsageError(
                    f"{first.path}, line {first.node.lineno}, and {path}, line"
                    f" {node.lineno}, both define {name!r}; rename one of them"
                )
            functions[name] = Function(name, f"{package}.{path.stem}", path, node)
    return functions


def _adapter(registry: str) -> Function | None:
    """The function `from_object` of a registry, which has the options of an object."""
    if registry not in _ADAPTERS:
        return None
    path = _PACKAGE / f"{_ADAPTERS[registry]}.py"
    module = f"pipeline.{_ADAPTERS[registry].replace('/', '.')}"
    return Function("from_object", module, path, functions_of(path)["from_object"])
