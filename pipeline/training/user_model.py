"""A user's Keras model: inspecting it, and making the network of a run from it."""

import dataclasses
import functools
import inspect
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.contracts import Batches, Task
from pipeline.layers.nested import all_layers
from pipeline.tasks.keras_model import TASK, USER
from pipeline.training.keras_config import missing_arguments
from pipeline.training.pretrained import set_weights
from pipeline.utils.console import for_caller, join_words
from pipeline.utils.errors import UsageError, reason

FUNCTIONAL = type(keras.Model(*[keras.Input((1,))] * 2))
# Operations that change at most the shape of logits and of probabilities.
_TRANSPARENT = {"cast", "dropout", "expanddims", "flatten", "identity", "reshape"}
_TRANSPARENT |= {"activityregularization", "squeeze"}
_PRECISIONS = ("mixed_float16", "mixed_bfloat16", "float16", "bfloat16", "float64")
_COMPARED = 8  # examples
_OVERRIDES = (
    *("train_step", "test_step", "predict_step"),
    *("compute_loss", "compute_metrics"),
)
_REMEDY = (
    "define get_config and from_config, or pass a function (input_shape, classes) that"
    " returns the model"
)


@dataclasses.dataclass(frozen=True)
class UserNetwork:
    """A user's network in a run, and what else Keras needs."""

    original: keras.Model
    """The user's object."""
    network: keras.Model
    """The same network in the precision of the run."""
    loss: Any
    """The loss of Keras with which `model` is compiled, by default."""
    metric: Any
    model: keras.Model
    """A model of Keras that shares all layers, from the inputs of the user's network to
    its outputs.
    """
    note: str
    """A sentence about what its outputs are taken for."""


def layers_of(model: keras.Model) -> list[keras.Layer]:
    """All layers that compute something, including nested ones."""
    kinds = keras.Model | keras.layers.InputLayer
    return [layer for layer in all_layers(model) if not isinstance(layer, kinds)]


@dataclasses.dataclass(frozen=True)
class Output:
    """An output of a model, as inferred from its last layers."""

    name: str
    """Of the layer."""
    shape: tuple[int | None, ...] | None
    """Without the batch; None if it is not known yet."""
    activation: str
    """As `activation_of` names it."""
    is_automatic: bool
    """Whether Keras has named the layer, with a number that depends on the process."""


def outputs_of(model: keras.Model, x_shape: Any = None) -> list[Output]:
    """The outputs of a model, in its order; none of a subclassed one.

    `x_shape` is the shape of x, for a Sequential model without an Input layer.
    """
    tensors = getattr(model, "outputs", None)
    if tensors:
        return [_output(_operation_of(t), tuple(t.shape[1:]), t) for t in tensors]
    if not isinstance(model, keras.Sequential) or not model.layers:
        return []
    shape = None
    if x_shape is not None:
        try:
            shape = tuple(model.compute_output_shape((None, *x_shape[1:]))[1:])
        except Exception:  # of a layer; the model is tried later, with a message
            shape = None
    return [_output(model.layers[-1], shape, model)]


def _output(layer: Any, shape: Any, end: Any) -> Output:
    kind = type(layer).__name__.lower()
    is_automatic = stem(layer.name).replace("_", "") == kind
    activation = activation_of(last_operation(end))
    return Output(layer.name, shape, activation, is_automatic)


def _operation_of(tensor: Any) -> Any:
    return tensor._keras_history.operation


def input_names(model: keras.Model) -> list[str]:
    """The names of the inputs of a model, without the numbers that Keras appends to
    those of inputs without a name; `x` for a single one.
    """
    tensors = keras.tree.flatten(getattr(model, "inputs", None) or [])
    names = []
    for tensor in tensors:
        plain = stem(tensor.name)
        is_automatic = plain.replace("_", "") == "kerastensor"
        if is_automatic and len(tensors) == 1:
            return ["x"]
        names.append(plain if is_automatic else tensor.name)
    return unique_names(names)


def unique_names(names: Sequence[str]) -> list[str]:
    """The names, if needed with numbers: `a`, `a_1`, ..."""
    unique: list[str] = []
    for name in names:
        result = name
        number = 0
        while result in unique:
            number += 1
            result = f"{name}_{number}"
        unique.append(result)
    return unique


def last_operation(end: Any) -> Any:
    """The layer or operation that computes a symbolic tensor, or in which a Sequential
    model ends; before any that change at most its shape.
    """
    if isinstance(end, keras.Sequential):
        layers = [x for x in end.layers if _class_name(x) not in _TRANSPARENT]
        return (layers or end.layers)[-1]
    operation, _, index = end._keras_history
    if _class_name(operation) in _TRANSPARENT:
        inputs = keras.tree.flatten(operation.input)
        return last_operation(inputs[0]) if len(inputs) == 1 else operation
    if type(operation) in (FUNCTIONAL, keras.Sequential):
        return last_operation(operation.outputs[index])
    return operation


def activation_of(operation: Any) -> str:
    """`softmax`, `log_softmax`, `sigmoid` or `linear`, as the function of a layer or
    the operation is called; "" for any other name.
    """
    operation = getattr(operation, "layer", operation)  # of TimeDistributed
    name = _class_name(operation)
    if callable(function := getattr(operation, "activation", None)):
        name = getattr(function, "__name__", type(function).__name__).lower()
    name = {"softmax_v2": "softmax", "logsoftmax": "log_softmax"}.get(name, name)
    is_known = name in ("softmax", "log_softmax", "sigmoid", "linear")
    return name if is_known else ""


def _class_name(value: Any) -> str:
    return type(value).__name__.lower()


def adapt(network: Any) -> Callable[..., Any]:
    """Returns a function `(input_shape, classes, **options) -> keras.Model`.

    A function, also a function from a tensor to features, is returned unchanged.
    """
    if inspect.isclass(network):
        return lambda input_shape, classes, **options: network(**options)
    if callable(network) and not isinstance(network, keras.Model):
        return network
    return functools.partial(from_object, network)


def from_object(
    network: Any, input_shape: tuple[int, ...], classes: int
) -> keras.Model:
    """Returns the network, which may be in a `.keras` file.

    `input_shape` is the shape of an example; `classes` is 1 for a regression.
    """
    if isinstance(network, Path):
        return _load(str(network))
    if not isinstance(network, keras.Model):
        raise UsageError(
            "a model must be a keras.Model, a function (input_shape, classes) that"
            " returns one, or a function from a tensor to features; got"
            f" {type(network).__name__}"
        )
    if type(network) not in (keras.Sequential, FUNCTIONAL):
        # It cannot be rebuilt for an export in float32.
        _require_policy(network, "float32")
    return network


@functools.cache
def _load(path: str) -> keras.Model:
    try:
        return keras.models.load_model(path, compile=False)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"--model.name {path} cannot be loaded: {reason(error)}"
        ) from None


def rebuild(
    model: keras.Model, input_shape: tuple[int, ...], gray_axis: bool = False
) -> keras.Model:
    """Rebuilds a network with the same weights and the current dtype policy.

    Layers in float32 stay in float32 if the network has another policy. A subclassed
    network cannot be rebuilt from its config and is returned itself.

    Args:
        model: A network, which may not be built yet.
        input_shape: The shape of an example.
        gray_axis: As in `Info`: Keras would build the network without this axis.

    Raises:
        UsageError: The network overrides the training step, or computes in another
            precision.
    """
    kind = type(model)
    for layer in all_layers(model):
        if getattr(layer, "stateful", False):
            raise UsageError(
                f"the layer {layer.name!r} of the model is stateful, but the examples"
                " of a batch do not continue those of the batch before; build it with"
                " stateful=False"
            )
    for name in _OVERRIDES:
        is_own = getattr(kind, name) is not getattr(keras.Model, name)
        if is_own or name in vars(model):
            raise UsageError(
                f"the model {kind.__name__} overrides {name}, which is not called here;"
                " pass the loss as loss=..., or register an engine"
            )
    if kind not in (keras.Sequential, FUNCTIONAL):
        _require_policy(model, keras.config.dtype_policy().name)
        return model
    policy = keras.config.dtype_policy().name
    old_policies = policies(model)
    old_policy = old_policies.pop() if len(old_policies) == 1 else "float32"

    def rebuild_layer(layer: keras.Layer) -> keras.Layer:
        if isinstance(layer, keras.layers.Lambda):  # Keras refuses to rebuild it
            if old_policy == "float32" or layer.dtype_policy.name != old_policy:
                return layer
            return _copy_lambda(layer, policy)
        if names := missing_arguments(layer):
            raise TypeError(
                f"get_config of the layer {layer.name!r} lacks {join_words(names)}"
            )
        with warnings.catch_warnings():
            # Keras warns of lambdas, which are not loaded from the config here.
            warnings.simplefilter("ignore")
            config = layer.get_config()
        # Keras cannot find functions of other packages, such as tf.nn.softmax, by name.
        for name, value in vars(layer).items():
            if name in config and callable(value) and not hasattr(value, "get_config"):
                config[name] = value
        if hasattr(layer, "get_vocabulary"):
            config |= _vocabulary(layer)
        if old_policy != "float32":
            config = _replace_policy(config, old_policy, policy)
        elif "dtype" in config and layer.dtype_policy.name == old_policy:
            config["dtype"] = policy
        return type(layer).from_config(config)

    def rebuild_model() -> keras.Model:
        is_compiled = model.compiled
        # Otherwise, Keras also rebuilds its loss and metrics from their config.
        model.compiled = False
        try:
            return keras.models.clone_model(
                model, clone_function=rebuild_layer, recursive=True
            )
        except (TypeError, ValueError, NotImplementedError) as error:
            raise UsageError(
                f"the model cannot be rebuilt from its config: {reason(error)};"
                f" {_REMEDY}"
            ) from error
        finally:
            model.compiled = is_compiled

    copy = rebuild_model()
    shapes = _possible_shapes(input_shape, gray_axis) if not copy.built else []
    for number, shape in enumerate(shapes, 1):
        try:
            copy.build((None, *shape))
        except (ValueError, TypeError) as error:
            if number == len(shapes):
                raise _cannot_be_built(input_shape, error) from None
        else:
            if number == len(shapes) or _have_equal_shapes(model, copy):
                break
        copy = rebuild_model()  # the first one would keep its shape
    if model.built and len(copy.weights) != len(model.weights):
        raise UsageError(
            f"the model has {len(model.weights)} weights, and {len(copy.weights)} if it"
            " is rebuilt from its config, such as of layers that share their weights;"
            f" {_REMEDY}"
        )
    _require_policy(copy, policy)
    for layer, copied_layer in zip(model.layers, copy.layers, strict=True):
        # A model that is not built may have built layers: an adapted Normalization.
        if layer.built:
            set_weights(copied_layer, layer.get_weights())
    return copy


def _vocabulary(layer: keras.Layer) -> dict[str, Any]:
    """The vocabulary of a layer that was adapted, which its config lacks."""
    vocabulary = layer.get_vocabulary(include_special_tokens=False)
    if not vocabulary:
        return {}
    lookup = getattr(layer, "_lookup_layer", layer)
    weights = None
    if lookup.output_mode == "tf_idf":
        start = lookup._token_start_index()
        weights = lookup.idf_weights.numpy()[start : start + len(vocabulary)].tolist()
    return {"vocabulary": vocabulary, "idf_weights": weights}


def _possible_shapes(input_shape: Any, gray_axis: bool) -> list[tuple[int, ...]]:
    """The shapes for which a Sequential network may be built, the first one first."""
    if isinstance(input_shape, dict):
        raise UsageError(
            f"x has the inputs {', '.join(input_shape)}; pass a functional model whose"
            " inputs have these names, or an array as x"
        )
    if input_shape[-1:] != (1,):
        return [input_shape]
    shapes = [input_shape, input_shape[:-1]]
    return shapes[::-1] if gray_axis else shapes


def _have_equal_shapes(model: keras.Model, copy: keras.Model) -> bool:
    """Whether the layers that are built, such as an adapted one, fit the copy."""
    for layer, copied_layer in zip(model.layers, copy.layers, strict=True):
        shapes = [weight.shape for weight in copied_layer.weights]
        if layer.built and [weight.shape for weight in layer.weights] != shapes:
            return False
    return True


def _cannot_be_built(input_shape: tuple[int, ...], error: Exception) -> UsageError:
    remedy = ""
    if input_shape[-1:] == (1,):
        remedy = '; if x is not a gray image, write task={"input": "features"}'
    return UsageError(
        f"the model cannot be built for inputs of shape {input_shape}: {reason(error)}"
        f"{remedy}"
    )


def policies(model: keras.Model) -> set[str]:
    """The dtype policies of the layers of a network, other than float32."""
    names = {layer.dtype_policy.name for layer in layers_of(model)}
    return names.intersection(_PRECISIONS)


def require_channels_last(model: keras.Model) -> None:
    """Raises UsageError if a layer takes images with the channels first."""
    for layer in layers_of(model):
        if getattr(layer, "data_format", None) == "channels_first":
            raise UsageError(
                f"the layer {layer.name!r} of the model takes channels first, but"
                " images have shape (height, width, channels): build it with"
                ' data_format="channels_last"'
            )


def stem(name: str) -> str:
    """A name without the number that Keras appends to it."""
    return re.sub(r"_\d+$", "", name)


def _require_policy(model: keras.Model, policy: str) -> None:
    """Raises UsageError if a layer computes in another precision than the run."""
    for layer in layers_of(model):
        name = layer.dtype_policy.name
        if name in _PRECISIONS and name != policy:
            raise UsageError(
                f"the layer {layer.name!r} of the model has the dtype policy {name},"
                f" but the precision is {policy}; build the model with that policy, or"
                " pass a function (input_shape, classes) that builds it"
            )


def _replace_policy(config: Any, old: str, new: str) -> Any:
    """Replaces a dtype policy in the config of a layer and of layers in it."""
    if isinstance(config, list | tuple):
        return type(config)(_replace_policy(value, old, new) for value in config)
    if not isinstance(config, dict):
        return config
    if config.get("class_name") == "DTypePolicy" and config["config"] == {"name": old}:
        return new
    values = {name: _replace_policy(value, old, new) for name, value in config.items()}
    if config.get("dtype") == old:
        values["dtype"] = new
    return values


def _copy_lambda(layer: keras.layers.Lambda, policy: str) -> keras.layers.Lambda:
    """Returns a Lambda layer of the same function with another dtype policy."""
    return keras.layers.Lambda(
        layer.function,
        output_shape=layer._output_shape,
        mask=layer.mask,
        arguments=layer.arguments,
        name=layer.name,
        dtype=policy,
    )


def connect(
    original: keras.Model,
    network: keras.Model,
    inputs: Any,
    task: Task,
    from_logits: bool | None,
) -> tuple[Any, UserNetwork]:
    """Connects a network from `rebuild` with the inputs of a task.

    Args:
        original: The user's object.
        network: The network.
        inputs: The symbolic inputs of the task.
        task: The task; for its outputs, see `KerasModel` and `KerasModelOfArrays`.
        from_logits: Whether the loss takes logits; None if there is no loss, or it does
            not specify it.

    Returns:
        The outputs for the task, and what Keras needs.

    Raises:
        UsageError: The network takes another shape, or its outputs do not suit the
            task or the loss.
    """
    arguments = _reshape_inputs(inputs, network)
    try:
        returned = network(arguments)
    except NotImplementedError as error:
        raise UsageError(
            f"the model {type(network).__name__} cannot be called: {reason(error)};"
            " define call, and compute_output_shape if Keras asks for it"
        ) from None
    if not task.user_outputs:
        output = keras.ops.cast(keras.tree.flatten(returned)[0], "float32")
        model = _plain(network, inputs, {USER: output})
        note = "the task gets its output as it is"
        return output, UserNetwork(original, network, None, None, model, note)
    if task.user_outputs != (USER,):
        named = _by_name(returned, task.user_outputs)
        model = _plain(network, inputs, named)
        note = "your loss gets its outputs as they are"
        named = {name: _as_float32(tensor) for name, tensor in named.items()}
        return named, UserNetwork(original, network, None, None, model, note)
    outputs = keras.tree.flatten(returned)
    if len(outputs) != 1:
        raise UsageError(
            f"the model returns {len(outputs)} outputs, but the task needs one; join"
            " them with keras.layers.Concatenate()"
        )
    (output,) = outputs
    activation = ""
    if type(network) in (keras.Sequential, FUNCTIONAL):
        activation = activation_of(last_operation(network.outputs[0]))
    logits, is_probability = _task_outputs(output, activation, from_logits, task)
    expected = task.target.output
    if expected is None or expected.activation == "linear":
        loss: Any = keras.losses.MeanSquaredError()
        metric: Any = "mae"
        note = "its outputs are the predictions"
    else:
        loss, metric = _usual_loss(output, task, not is_probability)
        note = f"it returns {'probabilities' if is_probability else 'logits'}"
    model = _plain(network, inputs, {USER: output})
    user = UserNetwork(original, network, loss, metric, model, note)
    return {USER: _as_float32(output), TASK: logits}, user


def _plain(network: keras.Model, inputs: Any, named: dict[str, Any]) -> keras.Model:
    """A functional model with the layers of a network; a subclassed one is a layer."""
    if type(network) in (keras.Sequential, FUNCTIONAL):
        is_functional = type(network) is FUNCTIONAL
        inputs = network.inputs[0]
        if len(network.inputs) > 1:
            inputs = network.input
        named = _by_name(
            network.output if is_functional else network.outputs[0], tuple(named)
        )
    outputs = named if len(named) > 1 else next(iter(named.values()))
    return keras.Model(inputs, outputs, name=network.name)


def _by_name(returned: Any, names: Sequence[str]) -> dict[str, Any]:
    """The outputs of a network by name."""
    if isinstance(returned, dict) and len(names) > 1:
        if sorted(returned) != sorted(names):
            raise UsageError(
                f"the model returns {', '.join(returned)}, but y has"
                f" {', '.join(names)}; name them alike"
            )
        return {name: returned[name] for name in names}
    tensors = keras.tree.flatten(returned)
    if len(tensors) != len(names):
        raise UsageError(
            f"the model returns {len(tensors)} outputs, but y has {', '.join(names)};"
            " pass y for each output"
        )
    return dict(zip(names, tensors, strict=True))


def _task_outputs(
    output: keras.KerasTensor, activation: str, from_logits: bool | None, task: Task
) -> tuple[keras.KerasTensor, bool]:
    """The logits or numbers from which the target predicts, float32; and whether the
    output is probabilities.
    """
    shape = tuple(output.shape[1:])
    expected = task.target.output
    if expected is None or expected.activation == "linear":
        if expected is not None:
            _require_numbers(output, expected.shape)
        return keras.ops.cast(output, "float32"), False
    is_softmax = expected.activation == "softmax"
    classes = expected.shape[-1]
    is_single = is_softmax and classes == 2 and shape == (*expected.shape[:-1], 1)
    if activation == "softmax" and shape[-1:] == (1,):
        raise UsageError(
            "the model ends in a softmax over one value, which is always 1; end it in a"
            ' sigmoid: Dense(1, activation="sigmoid")'
        )
    if activation == "sigmoid" and is_softmax and shape == expected.shape:
        raise UsageError(
            f"the model ends in a sigmoid of {classes} values, but each example has one"
            f" of {classes} classes; use a softmax, or remove the activation"
        )
    if activation == "softmax" and not is_softmax:
        raise UsageError(
            "the model ends in a softmax, which allows one label for each example, but"
            " the examples have several; use a sigmoid, or remove the activation"
        )
    if shape != expected.shape and not is_single:
        _refuse_width(output, task)
    is_probability = returns_probabilities(activation, from_logits)
    if is_probability:
        is_log = is_softmax and not is_single
        logits = _Logits(is_log, dtype="float32", name="logits")(output)
    else:
        logits = keras.ops.cast(output, "float32")
    if is_single:
        zeros = keras.ops.zeros_like(logits)
        logits = keras.ops.concatenate([zeros, logits], axis=-1)
    return logits, is_probability


def returns_probabilities(activation: str, from_logits: bool | None) -> bool:
    """Whether an output is a probability, by its activation and its loss.

    Raises UsageError if they contradict.
    """
    if activation in ("softmax", "sigmoid"):
        if from_logits:
            raise UsageError(
                f"the loss has from_logits=True, but the model returns probabilities"
                f" ({activation}); set from_logits=False"
            )
        return True
    if activation in ("linear", "log_softmax"):
        if from_logits is False:
            raise UsageError(
                "the loss expects probabilities, but the model ends without an"
                " activation, in logits; pass a loss that takes them, such as"
                f" {_remedy()}, or end the model in a softmax or sigmoid"
            )
        return False
    if from_logits is None:
        raise UsageError(
            "the last layer of the model does not tell whether it returns logits or"
            f" probabilities; pass a loss that does, such as {_remedy()}"
        )
    return not from_logits


def _remedy() -> str:
    """How to pass a loss that takes logits."""
    return for_caller(
        "--train.loss sparse_categorical_crossentropy --train.loss-options"
        " from_logits=True",
        "loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)",
    )


def _refuse_width(output: keras.KerasTensor, task: Task) -> None:
    labels = task.metadata.get("class_names", ())
    names = shorten(", ".join(labels), 80, placeholder=" ...")
    count = len(labels)
    raise UsageError(
        f"the model returns outputs of shape {output.shape}, but the data have"
        f" {count} classes ({names}); end it in Dense({count}), name all classes with"
        ' class_names=[...], or for numbers write task={"target": "number"}'
    )


class _Logits(keras.layers.Layer):
    """Logits of probabilities: of a softmax, or of one or several sigmoids."""

    def __init__(self, is_softmax: bool, **options: Any) -> None:
        super().__init__(autocast=False, **options)
        self._is_softmax = is_softmax

    def call(self, probabilities: Any) -> Any:
        # Keras keeps the logits of its activations, as its losses use them.
        logits = getattr(probabilities, "_keras_logits", None)
        if logits is not None:
            return keras.ops.cast(logits, "float32")
        values = keras.ops.cast(probabilities, "float32")
        logarithm = keras.ops.log(keras.ops.maximum(values, 1e-7))
        if self._is_softmax:
            return logarithm
        return logarithm - keras.ops.log(keras.ops.maximum(1 - values, 1e-7))

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape


def _usual_loss(output: Any, task: Task, from_logits: bool) -> tuple[Any, Any]:
    """The loss of Keras for the labels of a task and such outputs, and the accuracy."""
    expected: Any = task.target.output
    if output.shape[-1] != expected.shape[-1] or expected.activation == "sigmoid":
        threshold = 0.0 if from_logits else 0.5
        accuracy = keras.metrics.BinaryAccuracy("accuracy", threshold=threshold)
        return keras.losses.BinaryCrossentropy(from_logits=from_logits), accuracy
    is_one_hot = task.metadata.get("label_shape") == [output.shape[-1]]
    if is_one_hot:
        return keras.losses.CategoricalCrossentropy(from_logits=from_logits), "accuracy"
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits)
    return loss, "accuracy"


def call_of(loss: keras.losses.Loss) -> str:
    """Such as `BinaryCrossentropy(from_logits=True)`."""
    arguments = "from_logits=True" if loss.get_config().get("from_logits") else ""
    return f"{type(loss).__name__}({arguments})"


def _as_float32(tensor: Any) -> Any:
    is_half = tensor.dtype in ("float16", "bfloat16")
    return keras.ops.cast(tensor, "float32") if is_half else tensor


def _require_numbers(output: keras.KerasTensor, shape: tuple[int | None, ...]) -> None:
    """Raises UsageError unless the outputs are numbers (batch, *shape)."""
    if tuple(output.shape[1:]) != shape:
        count = "one number" if shape == (1,) else f"{shape[0]} numbers"
        remedy = "change its last layer"
        if len(output.shape) > 2:
            remedy = "end it with keras.layers.Flatten() and a Dense layer"
        raise UsageError(
            f"the model returns values of shape {output.shape} per batch, but the data"
            f" have {count} per example; {remedy}"
        )


def _reshape_inputs(inputs: Any, model: keras.Model) -> Any:
    """Adds or drops the axis of a single channel as the network takes it."""
    model_inputs = keras.tree.flatten(getattr(model, "inputs", None) or [])
    if isinstance(inputs, dict):
        return _match_inputs(inputs, model, model_inputs)
    if len(model_inputs) > 1:
        raise UsageError(
            f"the model has {len(model_inputs)} inputs, but the data have one"
        )
    ranks = [len(tensor.shape) for tensor in model_inputs]
    if ranks == [len(inputs.shape) - 1] and inputs.shape[-1] == 1:
        inputs = keras.layers.Reshape(inputs.shape[1:-1])(inputs)
    elif ranks == [len(inputs.shape) + 1] and model_inputs[0].shape[-1] == 1:
        inputs = keras.layers.Reshape((*inputs.shape[1:], 1))(inputs)
    for tensor in model_inputs:
        _require_shape(inputs, tensor)
    return inputs


def _match_inputs(
    inputs: dict[str, Any], model: keras.Model, model_inputs: list[Any]
) -> Any:
    """The inputs of the data in the form in which the network takes them."""
    names = input_names(model)
    if model_inputs and sorted(names) != sorted(inputs):
        raise UsageError(
            f"the model has the inputs {', '.join(names)}, but x has"
            f" {', '.join(inputs)}; name them alike: keras.Input(..., name=...)"
        )
    for name, tensor in zip(names, model_inputs, strict=True):
        _require_shape(inputs[name], tensor)
    return _structured(inputs, model)


def _require_shape(inputs: Any, tensor: Any) -> None:
    """Raises UsageError unless the data have the shape of an input of the network."""
    shape = tuple(inputs.shape[1:])
    expected = tuple(tensor.shape[1:])
    pairs = zip(expected, shape, strict=False)
    if len(expected) != len(shape) or any(a not in (None, b) for a, b in pairs):
        remedy = "change the model"
        if None not in expected and np.prod(expected) == np.prod(shape):
            sizes = ", ".join(map(str, expected))
            remedy = f"reshape x to (n, {sizes}), or change the model"
        elif len(shape) == 3:
            remedy = (
                'resize the images with task={"input": "image", "input_options":'
                ' {"image_size": (height, width)}}, or change the model'
            )
        raise UsageError(
            f"the model takes inputs of shape {expected}, but the data have {shape};"
            f" {remedy}"
        )


def copy_weights_to_original(user: UserNetwork | None) -> None:
    """Copies the trained weights into the network that the user passed, if any."""
    if user is None or user.original is user.network:
        return
    if not user.original.built:
        user.original.build(user.network.input_shape)
    set_weights(user.original, user.network.get_weights())


def _structured(values: Any, model: keras.Model) -> Any:
    """A dictionary of inputs in the form in which the network takes them."""
    if type(model) is not FUNCTIONAL or not isinstance(values, dict):
        return values
    tensors = [values[name] for name in input_names(model)]
    if isinstance(model.input, list | tuple):
        return tensors
    names = [tensor.name for tensor in model.inputs]
    return dict(zip(names, tensors, strict=True))


def require_equal_outputs(user: UserNetwork, task: Task, train: Batches) -> None:
    """Raises UsageError if a rebuilt network returns other outputs than the original.

    Both get a few training examples. Nothing is compared in 16 bits, if the original is
    not built yet, or if it returns other outputs each time.
    """
    original, network = user.original, user.network
    halves = {layer.compute_dtype for layer in layers_of(original)} - {"float32"}
    is_float32 = keras.config.dtype_policy().name == "float32"
    if (
        original is network
        or not original.built
        or not is_float32
        or (halves & {"float16", "bfloat16"})
    ):
        return
    first = train.gather(next(iter(train.dataset(0))))
    batch = {name: values[:_COMPARED] for name, values in first.items()}
    inputs, _, _ = task.step_inputs(batch, batch["id"])
    values = _structured(inputs, original)
    if isinstance(inputs, tf.Tensor) and len(original.inputs) == 1:
        shape = original.inputs[0].shape[1:]
        if len(shape) + 1 != inputs.shape.rank:  # the axis of gray images
            values = keras.ops.reshape(inputs, (-1, *shape))
    try:
        pairs = [_flat(model(values, training=False)) for model in (original, network)]
        again = _flat(original(values, training=False))
    except tf.errors.OpError as error:
        raise UsageError(
            f"the model cannot be called on the examples: {reason(error)}"
        ) from None
    for expected, output, repeated in zip(*pairs, again, strict=True):
        is_equal = np.allclose(expected, output, rtol=1e-3, atol=1e-4, equal_nan=True)
        if not is_equal and np.array_equal(expected, repeated, equal_nan=True):
            difference = np.nanmax(np.abs(expected - output))
            raise UsageError(
                f"the model {original.name} answers differently once it is rebuilt from"
                f" its config (by up to {difference:.2g}); {_REMEDY}"
            )


def _flat(outputs: Any) -> list[np.ndarray]:
    return [keras.ops.convert_to_numpy(part) for part in keras.tree.flatten(outputs)]
