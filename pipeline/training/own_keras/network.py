"""Users' networks: Keras models, their classes, functions that build them, `.keras` files."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from pipeline.contracts import Task
from pipeline.training.pretrained import set_weights
from pipeline.utils.errors import UsageError, reason

_FUNCTIONAL = type(keras.Model(*[keras.Input((1,))] * 2))
# What a network ended in -> a sentence about it.
_NOTES = {
    "softmax": "its softmax is applied after the loss",
    "sigmoid": "its sigmoid is applied after the loss",
    "linear": "it ends in logits",
    "none": "it returns features; an output layer is added",
}


def adapt(found: Any) -> Callable[..., Any]:
    """A function `(input_shape, classes, **options) -> keras.Model`; features functions as is."""
    if inspect.isclass(found):
        return lambda input_shape, classes, **options: found(**options)
    if callable(found) and not isinstance(found, keras.Model):
        return found
    return functools.partial(from_object, found)


def from_object(network: Any, input_shape: tuple[int, ...], classes: int) -> keras.Model:
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
    if type(network) not in (keras.Sequential, _FUNCTIONAL):
        _require_policy(network, "float32")  # it cannot be exported in another precision
    return network


@functools.cache
def _loaded(path: str) -> keras.Model:
    try:
        return keras.models.load_model(path, compile=False)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"--model.name {path} cannot be loaded: {reason(error)}") from None


def copied(model: keras.Model, input_shape: tuple[int, ...]) -> keras.Model:
    """A new network of the same config and weights, with the present dtype policy.

    Layers in float32 stay in float32 if the network has another policy. A subclassed network cannot
    be rebuilt from its config and is returned itself. The network may not be built yet;
    `input_shape` is that of one example.

    Raises:
        UsageError: The network is trained in its own way, or computes in another precision.
    """
    kind = type(model)
    for name in ("train_step", "test_step", "compute_loss"):
        if getattr(kind, name) is not getattr(keras.Model, name):
            raise UsageError(
                f"the model {kind.__name__} overrides {name}, which is not called here; pass the "
                "loss as loss=..., or register an engine"
            )
    if kind not in (keras.Sequential, _FUNCTIONAL):
        _require_policy(model, keras.config.dtype_policy().name)
        return model
    policy, own = keras.config.dtype_policy().name, _policy(model)

    def in_policy(layer: keras.Layer) -> keras.Layer:
        if isinstance(layer, keras.layers.Lambda):  # Keras refuses to rebuild it
            is_changed = own != "float32" and layer.dtype_policy.name == own
            return _lambda_in(policy, layer) if is_changed else layer
        config = layer.get_config()
        if own != "float32":
            config = _replaced(config, own, policy)
        elif "dtype" in config and layer.dtype_policy.name == own:
            config["dtype"] = policy
        return type(layer).from_config(config)

    try:
        copy = keras.models.clone_model(model, clone_function=in_policy, recursive=True)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise UsageError(
            f"the model cannot be rebuilt from its config: {reason(error)}; define get_config, or "
            "pass a function (input_shape, classes) that returns the model"
        ) from error
    if not copy.built:
        copy.build((None, *input_shape))
    _require_policy(copy, policy)
    for layer, copied_layer in zip(model.layers, copy.layers, strict=True):
        if layer.built:  # in a model that is not, too: an adapted Normalization
            set_weights(copied_layer, layer.get_weights())
    return copy


_PRECISIONS = ("mixed_float16", "mixed_bfloat16", "float16", "bfloat16", "float64")


def _policy(model: keras.Model) -> str:
    """The dtype policy that a network was built with.

    That is float32, unless there is another one, beside which float32 is an exception.
    """
    names = {layer.dtype_policy.name for layer in _layers(model)}
    others = names.intersection(_PRECISIONS)
    return others.pop() if len(others) == 1 else "float32"


def _require_policy(model: keras.Model, policy: str) -> None:
    """Raises UsageError if a layer computes in another precision than the run says."""
    for layer in _layers(model):
        name = layer.dtype_policy.name
        if name in _PRECISIONS and name != policy:
            raise UsageError(
                f"the layer {layer.name!r} of the model has the dtype policy {name}, but the "
                f"precision is {policy}; build the model with that policy, or pass a function "
                "(input_shape, classes) that builds it"
            )


def _layers(model: keras.Model) -> list[keras.Layer]:
    """The layers that compute."""
    kinds = keras.Model | keras.layers.InputLayer
    return [layer for layer in model._flatten_layers() if not isinstance(layer, kinds)]


def _replaced(config: Any, own: str, policy: str) -> Any:
    """The config of a layer, and of layers in it, with another dtype policy."""
    if isinstance(config, list | tuple):
        return type(config)(_replaced(value, own, policy) for value in config)
    if not isinstance(config, dict):
        return config
    if config.get("class_name") == "DTypePolicy" and config["config"] == {"name": own}:
        return policy
    values = {name: _replaced(value, own, policy) for name, value in config.items()}
    return {**values, "dtype": policy} if config.get("dtype") == own else values


def _lambda_in(policy: str, layer: keras.layers.Lambda) -> keras.layers.Lambda:
    """A Lambda layer of the same function with another dtype policy."""
    return keras.layers.Lambda(
        layer.function,
        output_shape=layer._output_shape,
        mask=layer.mask,
        arguments=layer.arguments,
        name=layer.name,
        dtype=policy,
    )


def outputs(
    model: keras.Model, inputs: keras.KerasTensor, task: Task
) -> tuple[keras.KerasTensor, str, str]:
    """The outputs of a network from `copied`, whose last activation is removed, as logits.

    Returns:
        The outputs; the activation with which the network ended: `softmax`, `sigmoid`, `linear`, or
        `none` if the output layer is the task's; and a sentence about it.

    Raises:
        UsageError: The network takes another shape, or its head has another width.
    """
    inputs = _fitting(inputs, model)
    classes = len(task.metadata.get("class_names", ()))
    body, activation = _without_activation(model) if classes else (model, "linear")
    returned = keras.tree.flatten(body(inputs))
    if len(returned) != 1:
        raise UsageError(f"the model returns {len(returned)} outputs, but the task needs one")
    found = returned[0]
    rank, width, wanted = len(found.shape), found.shape[-1], classes or 1
    if activation == "unknown":  # look at what it returns
        activation = _kind_of_answers(body, inputs) if rank == 2 else "none"
        if activation == "softmax" and width == classes:
            found = keras.ops.log(keras.ops.maximum(keras.ops.cast(found, "float32"), 1e-7))
            return found, activation, "it returns probabilities, whose logarithms are the logits"
        if activation == "linear" and width != classes:
            activation = "none"
    is_one_probability = activation == "sigmoid" and width == 1 and classes == 2
    if activation == "none":
        if rank == 4:
            found = keras.layers.GlobalAveragePooling2D(name="average")(found)
        found = task.head(found, inputs)
    elif is_one_probability:
        found = keras.ops.concatenate([keras.ops.zeros_like(found), found], axis=-1)
    elif rank != 2 or width != wanted or activation == "sigmoid":
        raise UsageError(
            f"the model returns {width} values ({activation}) of shape {found.shape} per batch, "
            f"but the data have {wanted} classes; change its last layer, or remove it"
        )
    return keras.ops.cast(found, "float32"), activation, _NOTES[activation]


def _fitting(inputs: keras.KerasTensor, model: keras.Model) -> keras.KerasTensor:
    """The inputs, without the axis for one channel if the network takes (height, width)."""
    known = keras.tree.flatten(getattr(model, "inputs", None) or [])
    if len(known) == 1 and len(known[0].shape) == 3 and inputs.shape[3:] == (1,):
        inputs = keras.layers.Reshape(inputs.shape[1:3])(inputs)
    if len(known) > 1:
        raise UsageError(f"the model has {len(known)} inputs, but the data have one")
    shape = tuple(inputs.shape[1:])
    for wanted in (tuple(tensor.shape[1:]) for tensor in known):
        pairs = zip(wanted, shape, strict=False)
        if len(wanted) != len(shape) or any(a not in (None, b) for a, b in pairs):
            raise UsageError(
                f"the model takes inputs of shape {wanted}, but the data have {shape}; resize the "
                'images with task={"image_size": (height, width)}, or change the model'
            )
    return inputs


def _without_activation(model: keras.Model) -> tuple[keras.Model, str]:
    """The network up to its final softmax or sigmoid, and the name of what it ended in.

    `none` if it ends in features: in another activation, or in a layer without weights.
    """
    if type(model) not in (keras.Sequential, _FUNCTIONAL):
        return model, "unknown"
    if isinstance(model, keras.Sequential):
        model = keras.Model(model.inputs, model.outputs, name=model.name)
    last = model.outputs[0]._keras_history.operation
    if isinstance(last, keras.Model):
        return model, "unknown"
    name = getattr(getattr(last, "activation", None), "__name__", type(last).__name__.lower())
    if name not in ("softmax", "sigmoid", "linear"):
        return model, "none"
    if isinstance(last, keras.layers.Softmax | keras.layers.Activation):
        return keras.Model(model.inputs, last.input, name=model.name), name
    last.activation = keras.activations.linear
    last.dtype_policy = keras.DTypePolicy("float32")
    return model, name


def _kind_of_answers(model: keras.Model, inputs: keras.KerasTensor) -> str:
    """`softmax` if a network returns probabilities for two inputs, else `linear`."""
    values = np.random.default_rng(0).random((2, *inputs.shape[1:]), np.float32)
    answers = np.asarray(model(values, training=False))
    sums = np.abs(answers.sum(axis=-1) - 1).max()
    return "softmax" if answers.min() >= 0 and sums < 1e-3 else "linear"


def give_back(original: keras.Model, copy: keras.Model, input_shape: tuple[int, ...]) -> None:
    """Copies the trained weights into the network that the user handed over."""
    if not original.built:
        original.build((None, *input_shape))
    set_weights(original, copy.get_weights())
