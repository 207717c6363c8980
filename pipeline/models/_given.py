"""Networks that users hand over: Keras models, their classes, functions that build them, files."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from pipeline.utils.errors import UsageError, reason


def adapt(found: Any) -> Callable[..., Any]:
    """A function `(input_shape, classes, **options) -> keras.Model`; features functions as is."""
    if inspect.isclass(found):
        return lambda input_shape, classes, **options: found(**options)
    if callable(found) and not isinstance(found, keras.Model):
        return found
    return functools.partial(given, found)


def given(network: Any, input_shape: tuple[int, ...], classes: int) -> keras.Model:
    """The network itself, or that of a `.keras` file.

    `input_shape` is that of one example; `classes` is 1 for a regression.
    """
    if isinstance(network, Path):
        return _loaded(str(network))
    if not isinstance(network, keras.Model):
        raise UsageError(
            "a model must be a keras.Model, a function (input_shape, classes) that returns one, or "
            f"a function from a tensor to features; got {type(network).__name__}"
        )
    return network


@functools.cache
def _loaded(path: str) -> keras.Model:
    try:
        return keras.models.load_model(path, compile=False)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"--model.name {path} cannot be loaded: {reason(error)}") from None
