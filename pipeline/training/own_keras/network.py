"""Adapts users' networks: Keras models, classes, functions and `.keras` files."""

import functools
import inspect
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

import keras
import numpy as np
from scipy import special

from pipeline.contracts import Task
from pipeline.training.own_keras import head
from pipeline.training.pretrained import set_weights
from pipeline.utils.errors import UsageError, reason

# Kind of outputs of a network -> a sentence about it.
NOTES = {
    "softmax": "its softmax is applied after the loss",
    "sigmoid": "its sigmoid is applied after the loss",
    "linear": "it ends in logits",
    "logit": "it ends in the logit of the second class",
    "none": "it returns features; an output layer is added",
}
_UNCHANGED = "your loss gets its outputs as they are"
_NUMBERS = "its outputs are the predictions"
_PROBABILITIES = "it returns probabilities, whose logarithms are the logits"


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
    if type(network) not in (keras.Sequential, head.FUNCTIONAL):
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


def rebuild(model: keras.Model, input_shape: tuple[int, ...]) -> keras.Model:
    """Rebuilds a network with the same weights and the current dtype policy.

    Layers in float32 stay in float32 if the network has another policy. A subclassed
    network cannot be rebuilt from its config and is returned itself.

    Args:
        model: A network, which may not be built yet.
        input_shape: The shape of an example.

    Raises:
        UsageError: The network overrides the training step, or computes in another
            precision.
    """
    kind = type(model)
    for layer in model._flatten_layers():
        if getattr(layer, "stateful", False):
            raise UsageError(
                f"the layer {layer.name!r} of the model is stateful, but the examples"
                " of a batch do not continue those of the batch before; build it with"
                " stateful=False"
            )
    for name in ("train_step", "test_step", "compute_loss"):
        if getattr(kind, name) is not getattr(keras.Model, name):
            raise UsageError(
                f"the model {kind.__name__} overrides {name}, which is not called here;"
                " pass the loss as loss=..., or register an engine"
            )
    if kind not in (keras.Sequential, head.FUNCTIONAL):
        _require_policy(model, keras.config.dtype_policy().name)
        return model
    policy = keras.config.dtype_policy().name
    old_policy = _policy(model)

    def rebuild_layer(layer: keras.Layer) -> keras.Layer:
        if isinstance(layer, keras.layers.Lambda):  # Keras refuses to rebuild it
            if old_policy == "float32" or layer.dtype_policy.name != old_policy:
                return layer
            return _copy_lambda(layer, policy)
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

    is_compiled = model.compiled
    # Otherwise, Keras also rebuilds its loss and metrics from their config.
    model.compiled = False
    try:
        copy = keras.models.clone_model(
            model, clone_function=rebuild_layer, recursive=True
        )
    except (TypeError, ValueError, NotImplementedError) as error:
        raise UsageError(
            f"the model cannot be rebuilt from its config: {reason(error)}; define"
            " get_config, or pass a function (input_shape, classes) that returns the"
            " model"
        ) from error
    finally:
        model.compiled = is_compiled
    if not copy.built:
        _build(copy, input_shape)
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


def _build(model: keras.Model, input_shape: Any) -> None:
    """Builds a Sequential network; gray images may lose their axis of channels."""
    if isinstance(input_shape, dict):
        raise UsageError(
            f"x has the inputs {', '.join(input_shape)}; give a functional model whose"
            " inputs have these names, or an array as x"
        )
    shapes = [input_shape]
    if input_shape[-1:] == (1,):
        shapes.append(input_shape[:-1])
    problems = []
    for shape in shapes:
        try:
            model.build((None, *shape))
        except (ValueError, TypeError) as error:
            problems.append(reason(error))
        else:
            return
    remedy = ""
    if input_shape[-1:] == (1,):
        remedy = '; if x is no gray image, write task={"input": "features"}'
    raise UsageError(
        f"the model cannot be built for inputs of shape {input_shape}:"
        f" {problems[0]}{remedy}"
    )


_PRECISIONS = ("mixed_float16", "mixed_bfloat16", "float16", "bfloat16", "float64")


def _policy(model: keras.Model) -> str:
    """Returns the dtype policy that a network was built with.

    If a single other policy appears beside float32, it is that policy.
    """
    names = {layer.dtype_policy.name for layer in _layers(model)}
    policies = names.intersection(_PRECISIONS)
    return policies.pop() if len(policies) == 1 else "float32"


def _require_policy(model: keras.Model, policy: str) -> None:
    """Raises UsageError if a layer computes in another precision than the run."""
    for layer in _layers(model):
        name = layer.dtype_policy.name
        if name in _PRECISIONS and name != policy:
            raise UsageError(
                f"the layer {layer.name!r} of the model has the dtype policy {name},"
                f" but the precision is {policy}; build the model with that policy, or"
                " pass a function (input_shape, classes) that builds it"
            )


def _layers(model: keras.Model) -> list[keras.Layer]:
    """Returns the layers that compute."""
    kinds = keras.Model | keras.layers.InputLayer
    return [layer for layer in model._flatten_layers() if not isinstance(layer, kinds)]


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


def outputs(model: keras.Model, inputs: Any, task: Task) -> tuple[Any, str, str]:
    """Returns the outputs of a network from `rebuild` as logits or numbers.

    Removes the last activation of the network.

    Returns:
        The outputs; the kind of outputs that the network had: `softmax`, `sigmoid`,
        `linear` (logits or numbers), `logit` (of the second of two classes), or `none`
        if the output layer is the task's; and a sentence about them.

    Raises:
        UsageError: The network takes another shape, or its head has another width.
    """
    shaped_inputs = _reshape_inputs(inputs, model)
    if task.own_outputs:
        call = model
        if type(model) in (keras.Sequential, head.FUNCTIONAL):
            call = head.part(model, getattr(model, "_outputs_struct", model.outputs))
            shaped_inputs = _in_order(shaped_inputs, model)
        named = _named_outputs(call(shaped_inputs), task.own_outputs)
        return named, "own", _UNCHANGED
    returned = keras.tree.flatten(model(shaped_inputs))
    if len(returned) != 1:
        raise UsageError(
            f"the model returns {len(returned)} outputs, but the task needs one; join"
            " them with keras.layers.Concatenate()"
        )
    logits = returned[0]
    expected = task.output
    probed = inputs if isinstance(inputs, dict) else shaped_inputs
    is_functional = type(model) in (keras.Sequential, head.FUNCTIONAL)
    if expected is None or expected.activation == "linear":
        if is_functional:
            logits = head.part(model, model.outputs[0])(_in_order(probed, model))
        if expected is not None:
            logits = _numbers(logits, expected.shape)
        return keras.ops.cast(logits, "float32"), "linear", _NUMBERS
    values = head.probes(probed, task.probe_inputs())
    kind = "unknown"
    if is_functional:
        ordered = _in_order(values, model)
        body, kind = head.remove_activation(head.part(model, model.outputs[0]), ordered)
        logits = body(_in_order(probed, model))
    shape = tuple(logits.shape[1:])
    width = shape[-1] if shape else 1
    classes = expected.shape[-1]
    is_softmax = expected.activation == "softmax"
    is_wide = shape == expected.shape
    is_single = is_softmax and classes == 2 and shape == (*expected.shape[:-1], 1)
    if kind == "unknown":
        answers = _answers(model, values)
        kind = head.kind_of_answers(answers)
        if kind == "log_softmax":  # logarithms of probabilities are logits, too
            kind = "linear"
        if kind == "softmax" and is_wide and is_softmax:
            return _logarithms(logits), kind, _PROBABILITIES
        if kind == "sigmoid" and is_single:
            return _two_logits(_log_odds(logits)), kind, _PROBABILITIES
        is_probability = bool(answers.min() >= 0 and answers.max() <= 1)
        if not is_softmax and is_wide and is_probability:
            return _log_odds(logits), "sigmoid", _PROBABILITIES
        is_positive = np.nanmin(answers) >= 0
        if kind == "linear" and (not (is_wide or is_single) or is_positive):
            kind = "features"
    if kind == "linear" and is_single:
        return _two_logits(logits), "logit", NOTES["logit"]
    if kind == "features":
        if len(shape) == 3 and len(expected.shape) == 1:
            logits = keras.layers.GlobalAveragePooling2D(name="average")(logits)
        logits = task.head(logits, inputs)
        return keras.ops.cast(logits, "float32"), "none", NOTES["none"]
    if kind == "sigmoid" and is_single:
        return _two_logits(logits), kind, NOTES[kind]
    if kind == "sigmoid" and width == classes and is_softmax:
        raise UsageError(
            f"the model ends in a sigmoid of {width} values, but each example has one"
            f" of {classes} classes; use a softmax, or remove the activation"
        )
    if kind == "softmax" and not is_softmax:
        raise UsageError(
            "the model ends in a softmax, which allows one label for each example, but"
            " the examples have several; use a sigmoid, or remove the activation"
        )
    if not is_wide:
        labels = task.metadata.get("class_names", ())
        names = shorten(", ".join(labels), 80, placeholder=" ...")
        raise UsageError(
            f"the model returns {width} values ({kind}) of shape {logits.shape} per"
            f" batch, but the data have {classes} classes ({names}); change its last"
            " layer, or name all classes with class_names=[...]"
        )
    return keras.ops.cast(logits, "float32"), kind, NOTES[kind]


def _named_outputs(returned: Any, names: Sequence[str]) -> dict[str, Any]:
    """The outputs of a network by name; floats of 16 bits as float32."""
    if isinstance(returned, dict):
        if sorted(returned) != sorted(names):
            raise UsageError(
                f"the model returns {', '.join(returned)}, but y has"
                f" {', '.join(names)}; name them alike"
            )
        named = returned
    else:
        tensors = returned if isinstance(returned, list | tuple) else [returned]
        if len(tensors) != len(names):
            raise UsageError(
                f"the model returns {len(tensors)} outputs, but y has"
                f" {', '.join(names)}; give y for each output"
            )
        named = dict(zip(names, tensors, strict=True))
    outputs = {}
    for name in names:
        tensor = named[name]
        is_half = tensor.dtype in ("float16", "bfloat16")
        outputs[name] = keras.ops.cast(tensor, "float32") if is_half else tensor
    return outputs


def _numbers(output: keras.KerasTensor, shape: tuple[int | None, ...]) -> Any:
    """Returns numbers, float32 (batch, *shape)."""
    if tuple(output.shape[1:]) != shape:
        count = "one number" if shape == (1,) else f"{shape[0]} numbers"
        remedy = "change its last layer"
        if len(output.shape) > 2:
            remedy = "end it with keras.layers.Flatten() and a Dense layer"
        raise UsageError(
            f"the model returns values of shape {output.shape} per batch, but the data"
            f" have {count} per example; {remedy}"
        )
    return keras.ops.cast(output, "float32")


def _log_odds(probabilities: keras.KerasTensor) -> keras.KerasTensor:
    """Returns the logits of probabilities of yes and no."""
    probabilities = keras.ops.cast(probabilities, "float32")
    return _logarithms(probabilities) - _logarithms(1 - probabilities)


def _two_logits(logit: keras.KerasTensor) -> keras.KerasTensor:
    """Turns the logit of the second of two classes, (batch, 1), into two logits."""
    logit = keras.ops.cast(logit, "float32")
    return keras.ops.concatenate([keras.ops.zeros_like(logit), logit], axis=-1)


def _logarithms(probabilities: keras.KerasTensor) -> keras.KerasTensor:
    probabilities = keras.ops.cast(probabilities, "float32")
    return keras.ops.log(keras.ops.maximum(probabilities, 1e-7))


def require_equal_answers(
    original: keras.Model, trained: keras.Model, output_kind: str, task: Task
) -> None:
    """Raises UsageError if a rebuilt network answers differently than the original.

    Nothing is compared in 16 bits, or if the user's network answers differently each
    time.

    Args:
        original: The user's network; not compared if it is not built yet.
        trained: The network rebuilt from its config, with logits as outputs.
        output_kind: The kind of outputs of the user's network; see `outputs`.
        task: The task of the run.
    """
    if keras.config.dtype_policy().name != "float32" or not original.built:
        return
    if any(
        layer.compute_dtype in ("float16", "bfloat16") for layer in _layers(original)
    ):
        return
    values = head.probes(trained.input, task.probe_inputs())
    original_values = values
    if not isinstance(values, dict):
        inputs = keras.tree.flatten(getattr(original, "inputs", None) or [])
        if inputs and len(inputs[0].shape) == values.ndim - 1:
            original_values = values[..., 0]
        elif inputs and len(inputs[0].shape) == values.ndim + 1:
            original_values = values[..., None]
    names = task.own_outputs
    expected = _answers(original, original_values, names)
    answers = _answers(trained, values, names)
    is_softmax = task.output is not None and task.output.activation == "softmax"
    if output_kind == "softmax":
        answers = special.softmax(answers, axis=-1)
    elif output_kind in ("sigmoid", "logit") and is_softmax:
        answers = answers[..., 1:] - answers[..., :1]
    if output_kind == "sigmoid":
        answers = special.expit(answers)
    if np.allclose(expected, answers, rtol=1e-3, atol=1e-4, equal_nan=True):
        return
    if np.array_equal(
        expected, _answers(original, original_values, names), equal_nan=True
    ):
        difference = np.nanmax(np.abs(expected - answers))
        raise UsageError(
            f"the model {original.name} answers differently once it is rebuilt from its"
            f" config (by up to {difference:.2g}); check get_config of your layers, or"
            " pass a function (input_shape, classes) that returns the model"
        )


def _answers(model: keras.Model, values: Any, names: Sequence[str] = ()) -> np.ndarray:
    """The outputs of a network; several in one array (batch, n), in this order."""
    with head.errors_of_model():
        results = model(_structured(values, model), training=False)
    if isinstance(results, dict) and names:
        results = [results[name] for name in names]
    arrays = [keras.ops.convert_to_numpy(part) for part in keras.tree.flatten(results)]
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate([part.reshape(len(part), -1) for part in arrays], axis=1)


def _in_order(values: Any, model: keras.Model) -> Any:
    """A dictionary of inputs as a list in the order of the network's inputs."""
    if not isinstance(values, dict):
        return values
    ordered = [values[tensor.name] for tensor in model.inputs]
    return ordered if len(ordered) > 1 else ordered[0]


def _structured(values: Any, model: keras.Model) -> Any:
    """A dictionary of inputs in the form in which the network takes them."""
    is_list = isinstance(getattr(model, "_inputs_struct", None), list | tuple)
    return _in_order(values, model) if is_list else values


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
    names = [tensor.name for tensor in model_inputs]
    if model_inputs and sorted(names) != sorted(inputs):
        raise UsageError(
            f"the model has the inputs {', '.join(names)}, but x has"
            f" {', '.join(inputs)}; name them alike: keras.Input(..., name=...)"
        )
    for tensor in model_inputs:
        _require_shape(inputs[tensor.name], tensor)
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
                'resize the images with task={"image_size": (height, width)}, or'
                " change the model"
            )
        raise UsageError(
            f"the model takes inputs of shape {expected}, but the data have {shape};"
            f" {remedy}"
        )


def copy_weights_to_original(
    original: keras.Model, copy: keras.Model, input_shape: tuple[int, ...]
) -> None:
    """Copies the trained weights into the network that the user passed."""
    if not original.built:
        original.build((None, *input_shape))
    set_weights(original, copy.get_weights())
