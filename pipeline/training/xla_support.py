"""What XLA cannot compile, or not within a minute."""

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from pipeline.layers.nested import all_layers
from pipeline.utils.console import say

ERRORS = (
    tf.errors.InvalidArgumentError,
    tf.errors.UnimplementedError,
    tf.errors.InternalError,
)
"""Raised by the first call of a function that XLA cannot compile; other failures raise
them, too.
"""
_LONG = 60.0  # seconds
_UNSUPPORTED = re.compile(r"XLA_\w+_JIT: (\w+) .*?\{\{node ([^}]+)\}\}", re.DOTALL)


@contextlib.contextmanager
def say_if_slow(name: str) -> Iterator[None]:
    """Says so if the first call of a compiled function takes more than a minute.

    Args:
        name: As in `Step.is_compiled`.
    """
    advice = "--runtime.xla off runs it without XLA"
    line = f"compiling {name} takes more than a minute; {advice}"
    timer = threading.Timer(_LONG, say, ("xla", line))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def with_notice(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The same function, whose first call is in `say_if_slow`."""
    compilation = [say_if_slow(name)]

    def call(*values: Any) -> Any:
        with compilation.pop() if compilation else contextlib.nullcontext():
            return function(*values)

    return call


def why_not_compiled(error: tf.errors.OpError, model: keras.Model) -> str:
    """Names the operation that XLA cannot compile, and the layer that it is in.

    Empty if the error is not XLA's.
    """
    message = error.message or ""
    if found := _UNSUPPORTED.search(message):
        operation, node = found.groups()
        layer = _layer(node, model)
        return f"{operation} in the layer {layer!r}" if layer else operation
    if "tf2xla" in message or "XlaMustCompile" in message:
        return f"a part of it ({message.splitlines()[0].strip().rstrip('.')})"
    return ""


def _layer(node: str, model: keras.Model) -> str:
    """The innermost layer in the path of a node, such as `while/up_1/Cast`."""
    names = {layer.name for layer in all_layers(model)}
    for part in reversed(node.split("/")):
        for name in (part, re.sub(r"_\d+$", "", part)):
            if name in names:
                return name
    return ""
