"""Recognizes the outputs of a user's network: logits, probabilities or features.

An activation is recognized by what it computes, not by its name: a layer, a function,
an operation and the last layer of a nested model are all compared with softmax and
sigmoid on the same numbers.
"""

import contextlib
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from scipy import special

from pipeline.utils.errors import UsageError, reason

FUNCTIONAL = type(keras.Model(*[keras.Input((1,))] * 2))

_ACTIVATIONS = {
    "softmax": functools.partial(special.softmax, axis=-1),
    "sigmoid": special.expit,
}


def probe_inputs(shape: tuple[int, ...]) -> np.ndarray:
    """Returns eight inputs of different ranges, float32 (8, *shape).

    They include negative and large numbers, so that logits do not look like
    probabilities by chance.
    """
    generator = np.random.default_rng(0)
    uniform = generator.random(shape)
    normal = generator.normal(size=shape)
    rows = [uniform, 255 * uniform, 1 - uniform, 255 * (1 - uniform)]
    rows += [normal, -normal, 100 * normal, -100 * normal]
    return np.stack(rows).astype(np.float32)


def probes(inputs: Any, values: Any = None) -> Any:
    """`probe_inputs` for symbolic inputs, also in a dictionary.

    `values` has numbers for inputs that do not take any numbers, such as token ids.
    """
    if isinstance(inputs, dict):
        values = values or {}
        return {name: probes(part, values.get(name)) for name, part in inputs.items()}
    if values is not None:
        return values
    numbers = probe_inputs(tuple(inputs.shape[1:]))
    if "int" in inputs.dtype:  # such as codes of words, of which small ones exist
        return (np.abs(numbers).round() % 8).astype(inputs.dtype)
    return numbers


@contextlib.contextmanager
def errors_of_model() -> Iterator[None]:
    """Turns an error of TensorFlow, such as an id beyond an embedding, into a line."""
    try:
        yield
    except tf.errors.OpError as error:
        raise UsageError(
            f"the model cannot be called on numbers like those of x: {reason(error)}"
        ) from None


def part(model: keras.Model, output: Any) -> keras.Model:
    """Returns the functional network up to one or several of its tensors."""
    inputs = model.inputs[0] if len(model.inputs) == 1 else model.inputs
    return keras.Model(inputs, output, name=model.name)


def remove_activation(model: keras.Model, values: Any) -> tuple[keras.Model, str]:
    """Removes the final softmax or sigmoid of a functional network.

    Args:
        model: A functional network with one output. The activation of its last layer is
            changed.
        values: Inputs on which operations are compared.

    Returns:
        The network, and its kind of outputs: `softmax` or `sigmoid`, which was removed;
        `linear` for an output layer without activation; `features` for a layer with a
        different activation; `unknown` if the last operation does not tell.
    """
    output = model.outputs[0]
    operation, node_index, _ = output._keras_history
    node = operation._inbound_nodes[node_index]
    sources = node.input_tensors
    if len(sources) != 1:
        return model, "unknown"
    source = sources[0]
    if type(operation) in (FUNCTIONAL, keras.Sequential):
        if len(operation.outputs) != 1:
            return model, "unknown"
        nested = part(operation, operation.outputs[0])
        nested, kind = remove_activation(nested, _run(model, source, values))
        if kind not in _ACTIVATIONS:
            return model, "unknown"
        return part(model, nested(source)), kind
    if "activation" in vars(operation) and operation.weights:
        nodes = itertools.chain(*model._nodes_by_depth.values())
        is_shared = sum(node.operation is operation for node in nodes) > 1
        if is_shared:
            return model, "unknown"
        return _remove_fused_activation(model, values)
    with errors_of_model():
        computed = part(model, [source, output])(values, training=False)
    before, after = map(keras.ops.convert_to_numpy, computed)
    if not getattr(operation, "weights", None) and _is_identity(operation, before):
        # Dropout, a reshape, an identity: the activation is in front of it.
        inner, kind = remove_activation(part(model, source), values)
        if kind in _ACTIVATIONS:
            return part(model, operation(inner.outputs[0])), kind
        return model, kind if before.shape == after.shape else "unknown"
    kind = _activation(before, after)
    if kind:
        return part(model, source), kind
    return model, "unknown"


def _remove_fused_activation(
    model: keras.Model, values: Any
) -> tuple[keras.Model, str]:
    """`remove_activation` for a last layer that has an argument `activation`."""
    layer = model.outputs[0]._keras_history.operation
    activation = layer.activation
    layer.activation = keras.activations.linear
    before = _run(model, model.outputs[0], values)
    # Not in another pass of the network, which may be random.
    after = keras.ops.convert_to_numpy(activation(keras.ops.convert_to_tensor(before)))
    kind = "linear" if _close(before, after) else _activation(before, after)
    if not kind:
        layer.activation = activation
        return model, "features" if kind_of_answers(after) == "linear" else "unknown"
    layer.dtype_policy = keras.DTypePolicy("float32")
    return model, kind


def _is_identity(operation: Any, values: np.ndarray) -> bool:
    """Whether an operation changes at most the shape of logits and probabilities."""
    generator = np.random.default_rng(0)
    numbers = generator.normal(scale=5, size=values.shape).astype(values.dtype)
    try:
        result = operation(keras.ops.convert_to_tensor(numbers))
        computed = keras.ops.convert_to_numpy(result)
    except Exception:  # it needs other arguments
        return False
    if computed.size != numbers.size:
        return False
    return _close(computed.reshape(numbers.shape), numbers)


def kind_of_answers(answers: np.ndarray) -> str:
    """Returns the kind of the answers of a network to several examples.

    It is `softmax` for rows of probabilities, `log_softmax` for their logarithms,
    `sigmoid` for a single probability, and otherwise `linear`.
    """
    tolerance = _tolerance(answers)
    answers = answers.astype(np.float32)
    if answers.ndim < 2:
        return "linear"
    answers = answers.reshape(-1, answers.shape[-1])  # of all pixels of a map
    answers = answers[np.isfinite(answers).all(axis=1)]
    if not len(answers):
        return "linear"
    if answers.shape[1] == 1:
        return "sigmoid" if answers.min() >= 0 and answers.max() <= 1 else "linear"
    if answers.min() >= 0 and np.abs(answers.sum(axis=1) - 1).max() < tolerance:
        return "softmax"
    if np.abs(special.logsumexp(answers, axis=1)).max() < tolerance:
        return "log_softmax"
    return "linear"


def _activation(before: np.ndarray, after: np.ndarray) -> str:
    """Returns `softmax` or `sigmoid` if it turns `before` into `after`, or else ""."""
    if before.shape != after.shape:
        return ""
    for name, function in _ACTIVATIONS.items():
        if _close(function(before.astype(np.float32)), after):
            return name
    return ""


def _run(model: keras.Model, tensor: keras.KerasTensor, values: Any) -> np.ndarray:
    """Computes a tensor of a functional network for these inputs."""
    with errors_of_model():
        computed = part(model, tensor)(values, training=False)
    return keras.ops.convert_to_numpy(computed)


def _close(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether the numbers are equal up to the rounding of their precision."""
    tolerance = max(_tolerance(first), _tolerance(second))
    first = first.astype(np.float32)
    second = second.astype(np.float32)
    return np.allclose(first, second, rtol=tolerance, atol=tolerance, equal_nan=True)


def _tolerance(values: np.ndarray) -> float:
    return 1e-3 if values.dtype.itemsize > 2 else 0.03
