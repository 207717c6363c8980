"""Finds layers by the beginning of their names, as options name them."""

from collections.abc import Sequence

import keras

from pipeline.utils.errors import UsageError, suggest


def layers_named(
    layers: Sequence[keras.Layer], prefix: str, flag: str
) -> list[keras.Layer]:
    """Returns the layers whose names start with a prefix; UsageError if none does."""
    matches = [layer for layer in layers if layer.name.startswith(prefix)]
    if not matches:
        names = [layer.name for layer in layers if layer.variables]
        raise UsageError(f"{flag}: unknown layer {prefix!r}; {suggest(prefix, names)}")
    return matches
