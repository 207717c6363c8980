"""Python objects in place of names: a network, arrays, a loss, a function of a notebook
cell.
"""

import functools
import hashlib
import inspect
import json
import re
import sys
import types
from collections.abc import Mapping
from typing import Any


class Given(str):
    """The text that stands for an object in a config, with the object itself as
    `value`.

    The text describes the object and ends with a digest, so that a resumed run can tell
    whether it was given the same object. Text alone, as read from a file, cannot be
    used in place of the object.
    """

    value: Any
    weights: str
    """Digest of the initial weights of a network. It is separate from the text, because
    a run that is resumed replaces them by those of its checkpoint.
    """

    def __new__(cls, title: str, digest: str, value: Any, weights: str = "") -> "Given":
        self = super().__new__(cls, f"<{title}{' ' * bool(digest)}{digest[:12]}>")
        self.value, self.weights = value, weights
        return self

    def __deepcopy__(self, memo: Any) -> "Given":
        return self


def is_text_only(name: str) -> bool:
    """Whether a name stands for an object that belonged to another process."""
    return name.startswith("<") and not isinstance(name, Given)


def used_in(value: Any) -> bool:
    """Whether an object is among the values or keys of a nested config."""
    if isinstance(value, Mapping):
        return any(map(used_in, (*value, *value.values())))
    return isinstance(value, Given) or (
        isinstance(value, tuple) and any(map(used_in, value))
    )


def name_of(value: Any, registry: str) -> str:
    """A config's name for an object: `module:function` if it can be imported, else a
    `Given`.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, types.FunctionType | type):
        if _is_importable(value):
            return f"{value.__module__}:{value.__qualname__}"
        return Given(f"function {value.__qualname__}", digest(value), value)
    if registry == "sources":  # a run stores the digest of the content of its data
        return Given(_shapes(value), "", value)
    if registry == "callbacks":  # its attributes change during training
        return Given(f"callback {type(value).__qualname__}", digest(type(value)), value)
    kind = type(value)
    public = "keras" if kind.__module__.startswith("keras.") else kind.__module__
    weights = ""
    if callable(getattr(value, "get_weights", None)):
        weights = _hash(b"".join(array.tobytes() for array in value.get_weights()))
    return Given(f"{public}.{kind.__qualname__}", digest(value), value, weights)


def _shapes(data: Any) -> str:
    """Such as `arrays (60000, 28, 28) uint8, (60000,) int64`."""
    if not isinstance(data, tuple):
        return f"{type(data).__module__}.{type(data).__qualname__}"
    parts = (
        f"{getattr(one, 'shape', len(one))} {getattr(one, 'dtype', 'list')}"
        for one in data
    )
    return f"arrays {', '.join(parts)}"


def names_of(hint: Any, value: Any) -> Any:
    """The value of a config field, with names for objects if its hint names a registry.

    In a field of several functions with their options, a list stands for functions
    without options.
    """
    marks = getattr(hint, "__metadata__", ())
    registry = next(
        (mark.registry for mark in marks if hasattr(mark, "registry")), None
    )
    if registry is None or value is None:
        return value
    if hint.__origin__ in (str, str | None):
        return name_of(value, registry)
    pairs = (
        value.items() if isinstance(value, Mapping) else ((item, {}) for item in value)
    )
    names: dict[str, Any] = {}
    for item, options in pairs:
        names[_unique(name_of(item, registry), names)] = options
    return names


def _unique(name: str, names: Mapping[str, Any]) -> str:
    """The name, with a number for a second object of the same class and config."""
    if not isinstance(name, Given):
        return name
    unique = name
    number = 2
    while unique in names:
        unique = str.__new__(Given, f"{name[:-1]} #{number}>")
        unique.value = name.value
        unique.weights = name.weights
        number += 1
    return unique


def digest(value: Any) -> str:
    """Digest of a function's source and the values that it uses, or of an object's
    Keras config.
    """
    return _hash(json.dumps(_described(value, set()), sort_keys=True).encode())


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _described(value: Any, seen: set[int]) -> Any:
    """JSON that is equal for equal objects."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, set | frozenset):  # in another order in each process
        value = sorted(value, key=repr)
    if isinstance(value, list | tuple):
        return [_described(one, seen) for one in value]
    if isinstance(value, Mapping):
        return {str(key): _described(one, seen) for key, one in value.items()}
    if isinstance(value, types.ModuleType):
        return value.__name__
    if id(value) in seen:  # a recursive function
        return None
    seen.add(id(value))
    if isinstance(value, functools.partial):
        return [
            _described(part, seen) for part in (value.func, value.args, value.keywords)
        ]
    if isinstance(value, types.FunctionType):
        return _of_function(value, seen)
    if isinstance(value, type):
        return [value.__qualname__, _source(value)]
    if hasattr(value, "tobytes") and hasattr(value, "shape"):  # an array
        return [str(value.dtype), list(value.shape), _hash(value.tobytes())]
    return [_described(type(value), seen), _config(value)]


def _of_function(function: types.FunctionType, seen: set[int]) -> Any:
    """Its source, and the values of the variables that it uses from outside."""
    if _is_importable(function):
        return [function.__module__, function.__qualname__, _source(function)]
    used = inspect.getclosurevars(function)
    outside = {**used.globals, **used.nonlocals, "defaults": function.__defaults__}
    return [
        _source(function),
        {name: _described(one, seen) for name, one in outside.items()},
    ]


def _is_importable(value: Any) -> bool:
    """Whether a later process can import a function or class by its module and name."""
    found = getattr(sys.modules.get(value.__module__), value.__qualname__, None)
    return found is value and value.__module__ != "__main__"


def _source(value: Any) -> str:
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):
        return f"{value.__module__}.{value.__qualname__}"


def _config(value: Any) -> Any:
    """The Keras config of an object, without the numbers that Keras appends to names.

    Of an object that has none, its attributes that are numbers or text.
    """
    try:
        text = json.dumps(value.get_config(), sort_keys=True, default=str)
    except (AttributeError, NotImplementedError, TypeError, ValueError):
        plain = (bool, int, float, str)
        return {
            k: v
            for k, v in getattr(value, "__dict__", {}).items()
            if isinstance(v, plain)
        }
    names: dict[str, str] = {}
    for layer in (
        value._flatten_layers() if hasattr(value, "_flatten_layers") else [value]
    ):
        if isinstance(name := getattr(layer, "name", None), str):
            names.setdefault(name, f"#{len(names)}")
    return re.sub(r'"([^"\\]+)"', lambda word: f'"{names.get(word[1], word[1])}"', text)
