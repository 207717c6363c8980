"""Whether a Keras object can be created again from its config."""

import inspect
from typing import Any


def lost_arguments(value: Any) -> list[str]:
    """The arguments of the constructor that `get_config` of a user's object lacks.

    Keras calls the object itself, so they need not be there; a copy would have their
    default values. Empty for classes of Keras, and if `from_config` is the user's own.
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
        if is_named and name not in config:
            names.append(name)
    return names
