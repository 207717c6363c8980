"""Whether a Keras object can be created again from its config."""

import inspect
from typing import Any

_MISSING = object()


def missing_arguments(value: Any) -> list[str]:
    """The arguments of the constructor that `get_config` of a user's object lacks.

    Keras calls the object itself, so they need not be there; a copy would have their
    default values. Empty for classes of Keras, if `from_config` is the user's own, and
    without those whose attribute of the same name is the default.
    """
    kind = type(value)
    constructor = kind.__init__
    if constructor.__module__.startswith("keras.") or "from_config" in vars(kind):
        return []
    try:
        config = value.get_config()
    except NotImplementedError:  # of Keras, which names the remedy
        return []
    names = []
    for name, parameter in list(inspect.signature(constructor).parameters.items())[1:]:
        is_named = parameter.kind in (
            parameter.POSITIONAL_OR_KEYWORD,
            parameter.KEYWORD_ONLY,
        )
        has_default = getattr(value, name, _MISSING) is parameter.default
        if is_named and name not in config and not has_default:
            names.append(name)
    return names
