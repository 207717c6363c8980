"""The task of an input and a target."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from pipeline.config import registry
from pipeline.contracts import (
    Example,
    ExpectedArguments,
    Input,
    Metadata,
    OutputSpec,
    Target,
    Task,
)
from pipeline.serving import request_guards
from pipeline.tasks.input_with_columns import InputWithColumns
from pipeline.tasks.several_inputs import SeveralInputs
from pipeline.utils.errors import require_kind


def create_input(metadata: Metadata, name: str | None) -> Input:
    """The input of a run; `name` may be an object of this process."""
    if "inputs" not in metadata:
        input = registry.call("inputs", name or metadata["input"], {}, metadata)
        flag = f"--task.input {metadata['input']}"
        require_kind(input, Input, flag, "an Input")
        return InputWithColumns(metadata, input) if "input_name" in metadata else input
    parts = {}
    for part, values in metadata["inputs"].items():
        parts[part] = registry.call("inputs", name or values["input"], {}, values)
    return SeveralInputs(metadata, parts)


def create_target(metadata: Metadata, name: str | None) -> Target:
    """The target of a run; `name` may be an object of this process."""
    target = registry.call("targets", name or metadata["target"], {}, metadata)
    require_kind(target, Target, f"--task.target {metadata['target']}", "a Target")
    return target


class Supervised(Task):
    """An input and a target, which do not know each other.

    Without them, they are created from their names in the metadata.
    """

    def __init__(
        self,
        metadata: Metadata,
        input: Input | None = None,
        target: Target | None = None,
    ) -> None:
        input = input or create_input(metadata, None)
        super().__init__(metadata, input, target or create_target(metadata, None))

    def serve(self, model: Callable[..., Any], batch: Example) -> Example:
        """As in `Task`; outputs that are not finite are refused."""
        inputs = self.input.network_inputs(self.input.prepare(batch))
        outputs = self.target_outputs(model(inputs, training=False))
        outputs = request_guards.finite(outputs, "outputs of the network")
        return self.target.serve(outputs, batch)

    def user_arguments(
        self, y: Any, outputs: Any, takes: ExpectedArguments
    ) -> tuple[Any, Any]:
        """Labels as whole numbers, unless the function takes them one-hot."""
        expected = self.target.output
        if expected is None or expected.activation == "linear":
            return y, outputs
        if not takes.logits:
            is_softmax = expected.activation == "softmax"
            activation = tf.nn.softmax if is_softmax else tf.sigmoid
            outputs = activation(tf.cast(outputs, tf.float32))
        if _has_one_class(expected) and takes.labels != "one-hot":
            y = tf.argmax(y, axis=-1)
        return y, outputs


def _has_one_class(expected: OutputSpec) -> bool:
    """Whether each example has one of several classes; y has the fraction of each."""
    return expected.activation == "softmax" and len(expected.shape) == 1
