"""Python objects in place of names: a network, arrays, a loss, a function of a notebook
cell.
"""

import dataclasses
import functools
import hashlib
import inspect
import json
import re
import sys
import types
from collections.abc import Mapping
from typing import Any


class ObjectName(str):
    """The text that stands for an object in a config, with the object as `value`.

    The text describes the object and ends with a digest, so that a resumed run can tell
    whether the object is still the same. Text alone, as read from a file, cannot be
    used in place of the object.
    """

    value: Any
    weights: str
    """Digest of the initial weights of a network. It is separate from the text, because
    a run that is resumed replaces them by the weights of its checkpoint.
    """

    def __new__(
        cls, title: str, digest: str, value: Any, weights: str = ""
    ) -> "ObjectName":
        text = f"<{title} {digest[:12]}>" if digest else f"<{title}>"
        self = super().__new__(cls, text)
        self.value = value
        self.weights = weights
        return self

    def __deepcopy__(self, memo: Any) -> "ObjectName":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_name, (str(self), self.value, self.weights)


def _restore_name(text: str, value: Any, weights: str) -> ObjectName:
    name = str.__new__(ObjectName, text)
    name.value = value
    name.weights = weights
    return name


def is_text_only(name: str) -> bool:
    """Whether a name stands for an object that belonged to another process."""
    return name.startswith("<") and not isinstance(name, ObjectName)


def has_object(value: Any) -> bool:
    """Whether an object is among the values or keys of a nested config."""
    if isinstance(value, Mapping):
        return any(map(has_object, (*value, *value.values())))
    if isinstance(value, tuple):
        return any(map(has_object, value))
    return isinstance(value, ObjectName)


def title(name: str) -> str:
    """A name for people: the class or function of an object, without its module."""
    value = getattr(name, "value", None)
    if value is None:
        return name.rpartition(":")[2]
    return getattr(value, "__name__", type(value).__name__)


def name_of(value: Any, registry: str) -> str:
    """A config's name for an object: `module:function` if it can be imported, else an
    `ObjectName`.
    """
    if isinstance(value, str):
        return value
    kind = type(value)
    if isinstance(value, types.FunctionType | type):
        if _is_importable(value):
            return f"{value.__module__}:{value.__qualname__}"
        return ObjectName(f"function {value.__qualname__}", digest(value), value)
    if registry == "sources":  # a run stores the digest of the content of its data
        return ObjectName(_shapes(value), "", value)
    if registry == "callbacks":  # its attributes change during training
        return ObjectName(f"callback {kind.__qualname__}", digest(kind), value)
    public = "keras" if kind.__module__.startswith("keras.") else kind.__module__
    weights = ""
    if callable(getattr(value, "get_weights", None)):
        weights = _hash(b"".join(array.tobytes() for array in value.get_weights()))
    return ObjectName(f"{public}.{kind.__qualname__}", digest(value), value, weights)


def _shapes(data: Any) -> str:
    """Such as `arrays (60000, 28, 28) uint8, (60000,) int64`."""
    if not isinstance(data, tuple):
        return f"{type(data).__module__}.{type(data).__qualname__}"
    parts = []
    for array in data:
        if hasattr(array, "shape"):
            dtype = getattr(array, "dtype", type(array).__name__)
            parts.append(f"{array.shape} {dtype}")
        elif hasattr(array, "__len__"):
            parts.append(f"{len(array)} {type(array).__name__}")
        else:
            parts.append(type(array).__name__)
    return f"arrays {', '.join(parts)}"


def names_of(hint: Any, value: Any) -> Any:
    """The value of a config field, with names for objects if its hint names a registry.

    In a field of several functions with their options, a list stands for functions
    without options, and anything else for one function.
    """
    registry = _registry_of(hint)
    if registry is None or value is None:
        return value
    if hint.__origin__ in (str, str | None):
        return name_of(value, registry)
    pairs: list[tuple[Any, Any]]
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        pairs = [(item, {}) for item in value]
    else:
        pairs = [(value, {})]
    names: dict[str, Any] = {}
    for item, options in pairs:
        names[_unique(name_of(item, registry), names)] = options
    return names


def _registry_of(hint: Any) -> str | None:
    for mark in getattr(hint, "__metadata__", ()):
        if hasattr(mark, "registry"):
            return mark.registry
    return None


def _unique(name: str, names: Mapping[str, Any]) -> str:
    """The name, with a number for a second object of the same class and config."""
    if not isinstance(name, ObjectName):
        return name
    unique = name
    number = 2
    while unique in names:
        unique = _restore_name(f"{name[:-1]} #{number}>", name.value, name.weights)
        number += 1
    return unique


def digest(value: Any) -> str:
    """Digest of a function's source, or of an object's class and Keras config.

    What a function uses from outside does not count.
    """
    return _hash(_text(value).encode())


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _text(value: Any) -> str:
    """A text that is equal for equal objects, also in another process."""
    if isinstance(value, functools.partial):
        value = (value.func, value.args, value.keywords)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = vars(value)
    if isinstance(value, Mapping):
        value = [*value.items()]
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, types.FunctionType | type):
        return _source(value)
    return f"{_source(type(value))} {_config(value)}"


def _is_importable(value: Any) -> bool:
    """Whether a later process can import a function or class by its module and name."""
    module = sys.modules.get(value.__module__)
    is_found = getattr(module, value.__qualname__, None) is value
    return is_found and value.__module__ != "__main__"


def _source(value: Any) -> str:
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):
        return f"{value.__module__}.{value.__qualname__}"


def _config(value: Any) -> Any:
    """The Keras config of an object, without the numbers that Keras appends to names.

    Without a config, the attributes that are numbers or text.
    """
    try:
        text = json.dumps(value.get_config(), sort_keys=True, default=str)
    except (AttributeError, NotImplementedError, TypeError, ValueError):
        attributes = vars(value) if hasattr(value, "__dict__") else {}
        simple = bool | int | float | str
        return [name for name in attributes.items() if isinstance(name[1], simple)]
    names: dict[str, str] = {}
    for name in re.findall(r'"name": "([^"\\]+)"', text):
        names.setdefault(name, f"#{len(names)}")
    return re.sub(r'"([^"\\]+)"', lambda word: f'"{names.get(word[1], word[1])}"', text)
