"""A user's network with its own losses and metrics in `fit`, by the names of outputs.

Chooses the task `keras_model` for what no target suits, and brings losses, their
weights and metrics, in the forms that `keras.Model.compile` takes, into one form.
"""

import dataclasses
import inspect
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.config import keras_words, objects
from pipeline.utils.console import join_words, say
from pipeline.utils.errors import UsageError, suggest

TASK = "keras_model"


@dataclasses.dataclass(frozen=True)
class OutputLosses:
    """The losses of a network: output -> a name, a Keras loss, or a function."""

    losses: Mapping[str, Any]
    weights: Mapping[str, float]

    @property
    def __name__(self) -> str:
        """Such as "mse of price and Huber of kind", for the lines of a run."""
        parts = [_word(loss) for loss in self.losses.values()]
        if len(parts) > 1:
            parts = [
                f"{word} of {name}"
                for word, name in zip(parts, self.losses, strict=True)
            ]
        return join_words(parts)

    def get_config(self) -> dict[str, Any]:
        """Equal for equal losses, also in another process."""
        return {
            "losses": {name: _identity(loss) for name, loss in self.losses.items()},
            "weights": dict(self.weights),
        }


@dataclasses.dataclass(frozen=True)
class OutputMetric:
    """A metric of an output: a name, a Keras metric or loss, or a function."""

    output: str
    metric: Any
    name: str | None = None
    """None: the name of the metric."""
    prefix: str = ""

    def get_config(self) -> dict[str, Any]:
        metric = _identity(self.metric)
        return {"output": self.output, "metric": metric, "name": self.name}


def _word(value: Any) -> str:
    if isinstance(value, str):
        return value
    return getattr(value, "__name__", type(value).__name__)


def _identity(value: Any) -> str:
    return value if isinstance(value, str) else objects.digest(value)


@dataclasses.dataclass(frozen=True)
class _Network:
    """What a built Keras model tells about its inputs and outputs."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Name of an output layer in this process -> its name in every process, where they
    differ.
    """
    output_shapes: tuple[tuple[int | None, ...], ...] = ()
    is_dictionary: bool = False
    """Whether the outputs are a dictionary, which has no order of its own."""


def apply(arguments: dict[str, Any]) -> dict[str, Any]:
    """Chooses the task `keras_model` where it is needed, and adds its options.

    Raises UsageError if losses, metrics and y do not belong to the same outputs.
    """
    model = keras_words.model_of(arguments)
    network = _describe(_with_inputs(model, _part(arguments, 0)))
    arguments = dict(arguments)
    for key in ("data", "source", "validation_data", "test_data"):
        if arguments.get(key) is not None:
            arguments[key] = _name_arrays(arguments[key], network)
    data = _data(arguments)
    if model is not None and isinstance(data, tuple | list) and data[1] is None:
        raise UsageError(
            "y is None; give what the loss compares the outputs with, such as"
            " data=(x, x) for an autoencoder"
        )
    task = arguments.get("task")
    name = task.get("name") if isinstance(task, Mapping) else task
    is_free = task is None or task == {}
    weights = arguments.pop("loss_weights", None)
    reason = None
    if is_free and model is not None:
        reason = _reason(arguments, model, network)
    if name != TASK and reason is None:
        if weights is not None or isinstance(arguments.get("loss"), Mapping):
            raise UsageError(
                "losses by output and loss_weights belong to the task keras_model;"
                f' write task="{TASK}"'
            )
        return arguments
    if reason:
        say("task", f"{TASK}, with your own loss and metrics, because {reason}")
    return _with_task(arguments, network, weights)


def _with_task(
    arguments: dict[str, Any], network: _Network, weights: Any
) -> dict[str, Any]:
    names = _target_names(arguments, network)
    given = arguments.get("loss", arguments.get("train", {}).get("loss"))
    losses = _by_output(given, names, network, "loss")
    losses = {key: loss for key, loss in losses.items() if loss is not None}
    missing = [key for key in names if key not in losses]
    if missing:
        listing = f'{{"{missing[0]}": ...}}' if len(names) > 1 else "..."
        raise UsageError(
            f"there is no loss for the output {missing[0]!r}; give loss={listing}, such"
            ' as "mse" or "binary_crossentropy"'
        )
    if extra := [key for key in losses if key not in names]:
        raise UsageError(
            f"there is a loss for the output {extra[0]!r}, but y has only"
            f" {join_words(names)}"
        )
    weights = _by_output(weights, names, network, "loss_weights")
    factors = {}
    for key, value in weights.items():
        if value is None:
            continue
        if isinstance(value, str) or not 0 <= value < math.inf:
            raise UsageError(
                f"loss_weights must be numbers of at least 0; got {value!r} for {key!r}"
            )
        factors[key] = float(value)
    metrics = []
    prefix = "{}_" if len(losses) > 1 else ""
    if len(losses) > 1:
        for key, loss in losses.items():
            metrics.append(OutputMetric(key, loss, f"{key}_loss"))
    given = arguments.get("metrics", arguments.get("train", {}).get("metrics"))
    for key, values in _by_output(given, names, network, "metrics").items():
        if isinstance(values, str) or not isinstance(values, list | tuple):
            values = [] if values is None else [values]
        if values and key not in names:
            raise UsageError(
                f"there is a metric for the output {key!r}, but y has only"
                f" {join_words(names)}"
            )
        for metric in values:
            metrics.append(OutputMetric(key, metric, prefix=prefix.format(key)))
    if arguments.get("class_names") is not None:
        raise UsageError(
            "class_names belongs to the target classes; with your own losses, remove it"
        )
    train = dict(arguments.get("train", {}))
    train.pop("metrics", None)
    train["loss"] = OutputLosses(losses, factors)
    if metrics:
        train["metrics"] = metrics
    options = {"inputs": network.inputs, "outputs": network.outputs}
    task = arguments.get("task")
    if isinstance(task, Mapping):
        options |= task.get("options", {})
    arguments = {**arguments, "train": train}
    arguments["task"] = {"name": TASK, "options": options}
    arguments.pop("loss", None)
    arguments.pop("metrics", None)
    return arguments


def _target_names(arguments: Mapping[str, Any], network: _Network) -> list[str]:
    """The outputs with a y: the names of y, or the only output."""
    y = _part(arguments, 1)
    if isinstance(y, Mapping):
        for key in y:
            if network.outputs and key not in network.outputs:
                raise UsageError(
                    f"y has {key!r}, but the model has the outputs"
                    f" {join_words(network.outputs)}; name them alike"
                )
        return list(y)
    if len(network.outputs) > 1:
        raise UsageError(
            f"the model has the outputs {join_words(network.outputs)}, but y is one"
            " array; give y as a dictionary {output: array}"
        )
    return list(network.outputs or ("output",))


def _by_output(
    value: Any, names: Sequence[str], network: _Network, title: str
) -> dict[str, Any]:
    """Losses, weights or metrics by output, from a dictionary, a list or one value."""
    if value is None:
        return {}
    outputs = network.outputs or tuple(names)
    if isinstance(value, Mapping):
        by_output = _by_stable_name(value, network)
        for key in by_output:
            if key not in outputs:
                raise UsageError(
                    f"{title} names the output {key!r}; {suggest(str(key), outputs)}"
                )
        return by_output
    is_list = isinstance(value, list | tuple)
    if len(outputs) == 1:
        if is_list and title != "metrics":
            if len(value) != 1:
                raise UsageError(
                    f"{title} has {len(value)} parts, but the model has one output"
                )
            (value,) = value
        return {outputs[0]: value}
    if is_list and len(value) == len(outputs) and not network.is_dictionary:
        return dict(zip(outputs, value, strict=True))
    parts = ", ".join(f'"{output}": ...' for output in outputs)
    raise UsageError(
        f"the model has the outputs {join_words(outputs)}; give {title}={{{parts}}}"
    )


def _by_stable_name(values: Mapping[Any, Any], network: _Network) -> dict[Any, Any]:
    """Replaces names that Keras gave to layers of this process by stable names."""
    for key in values:
        if network.aliases.get(key, key) != key and key in network.outputs:
            raise UsageError(
                f"{key!r} may mean two outputs, because Keras has named their layers;"
                " give the output layers a name=..."
            )
    return {network.aliases.get(key, key): part for key, part in values.items()}


def _reason(arguments: Mapping[str, Any], model: Any, network: _Network) -> str | None:
    """Why no target suits a model and its data; None if one does."""
    loss = arguments.get("loss", arguments.get("train", {}).get("loss"))
    x = _part(arguments, 0)
    y = _part(arguments, 1)
    if len(network.outputs) > 1:
        return f"the model has the outputs {join_words(network.outputs)}"
    if isinstance(y, Mapping):
        return "y is a dictionary"
    if isinstance(loss, Mapping):
        return "the losses are given by output"
    for title, values in _named(x):
        if _is_text(values) and _takes_strings(model):
            return f"{title} holds text"
        if len(_shape(values) or ()) > 4:
            return f"{title} has {len(values.shape)} axes"
    if y is not None and y is x:
        return "y is x"
    return _reason_of_shape(y, network) or _reason_of_loss(loss, model, y)


def _takes_strings(model: Any) -> bool:
    """Whether a model reads texts itself: one of Keras that has an input of strings, or
    that is not built yet.
    """
    if isinstance(model, str | Mapping) or inspect.isfunction(model):
        return False
    tensors = getattr(model, "inputs", None)
    return not tensors or any(tensor.dtype == "string" for tensor in tensors)


def _reason_of_shape(y: Any, network: _Network) -> str | None:
    shape = _shape(y)
    if shape is None or not network.output_shapes:
        return None
    (output,) = network.output_shapes
    truth = shape[1:]
    plane = truth[:2]
    is_mask = _is_whole(y) and len(output) == 3 and plane == output[:2]
    if len(truth) > 1 and is_mask and truth[2:] in ((), (1,)):
        return None
    if len(truth) <= 1 and len(output) != 2:
        return None
    return f"an example of y has the shape {truth}, and the output {output}"


def _reason_of_loss(loss: Any, model: Any, y: Any) -> str | None:
    """For a loss of the user on outputs that are no logits and no probabilities."""
    is_own = callable(loss) and not type(loss).__module__.startswith("keras.")
    is_own = is_own and not getattr(loss, "__module__", "").startswith("keras.")
    tensors = getattr(model, "outputs", None)
    if not is_own or not tensors:
        return None
    layer = tensors[0]._keras_history.operation
    while getattr(layer, "outputs", None) and hasattr(layer, "layers"):
        layer = layer.outputs[0]._keras_history.operation
    words = ("activation", "softmax", "sigmoid", "reshape", "flatten", "identity")
    kind = type(layer).__name__.lower()
    if hasattr(layer, "activation") or any(word in kind for word in words):
        return None
    return (
        f"the loss is your own, and the last layer {layer.name!r} need not return"
        " logits or probabilities"
    )


def _with_inputs(model: Any, x: Any) -> Any:
    """The model, or a built copy of a Sequential model without an Input layer."""
    shape = _shape(x)
    layers = getattr(model, "layers", None)
    has_no_inputs = layers and not getattr(model, "inputs", None)
    if shape is None or _is_text(x) or not has_no_inputs:
        return model
    try:
        copy = type(model).from_config(model.get_config())
        copy.build((None, *shape[1:]))
    except Exception:  # of a layer; the model is tried later, with a message
        return model
    return copy


def _describe(model: Any) -> _Network:
    """The inputs and outputs of a model; nothing if it is not built yet."""
    tensors = getattr(model, "inputs", None)
    outputs = getattr(model, "outputs", None)
    if not tensors or not outputs:
        return _Network()
    inputs = _stable_names([tensor.name for tensor in tensors], tensors)
    if len(inputs) == 1 and _automatic(tensors[0].name, tensors[0]):
        inputs = ["x"]
    structure = getattr(model, "_outputs_struct", None)
    if isinstance(structure, Mapping):
        names = stable = list(structure)
        outputs = list(structure.values())
        if not all(isinstance(name, str) for name in names) or any(
            not hasattr(output, "shape") for output in outputs
        ):
            raise UsageError(
                "the outputs of the model must be a dictionary of tensors by name,"
                " without further dictionaries or lists inside"
            )
    else:
        names = [tensor._keras_history.operation.name for tensor in outputs]
        stable = _stable_names(names, outputs)
        if len(names) == 1 and _automatic(names[0], outputs[0]):
            stable = ["output"]
    shapes = tuple(tuple(tensor.shape[1:]) for tensor in outputs)
    aliases = {}
    for name, stable_name in zip(names, stable, strict=True):
        if names.count(name) == 1 and name != stable_name:
            aliases[name] = stable_name
    return _Network(
        tuple(inputs), tuple(stable), aliases, shapes, isinstance(structure, Mapping)
    )


def _stable_names(names: Sequence[str], tensors: Sequence[Any]) -> list[str]:
    """Names without the numbers that Keras appends to those of other models."""
    stable: list[str] = []
    for name, tensor in zip(names, tensors, strict=True):
        name = _automatic(name, tensor) or name
        unique = name
        number = 0
        while unique in stable:
            number += 1
            unique = f"{name}_{number}"
        stable.append(unique)
    return stable


def _automatic(name: str, tensor: Any) -> str | None:
    """The name that Keras gave to an operation, without its number; None if the user
    has named it.
    """
    kind = type(tensor._keras_history.operation).__name__.lower()
    stem = re.sub(r"_\d+$", "", name)
    return stem if stem.replace("_", "") in (kind, "kerastensor") else None


def _data(arguments: Mapping[str, Any]) -> Any:
    """The data of a call, unless they are a name, a path or a section."""
    for name in ("data", "source"):
        value: Any = arguments.get(name)
        if isinstance(value, tuple | list) and len(value) in (2, 3):
            return value
        if hasattr(value, "element_spec") or hasattr(value, "num_batches"):
            return value
    return None


def _part(arguments: Mapping[str, Any], index: int) -> Any:
    """x (0) or y (1) of the data; of a tf.data.Dataset, their specs."""
    data = _data(arguments)
    parts = getattr(data, "element_spec", data)
    if hasattr(data, "num_batches"):  # a PyDataset
        parts = data[0]
    if isinstance(parts, tuple | list) and len(parts) > index:
        return parts[index]
    return None


def name_arrays(data: Any, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    """Turns lists of arrays in data for a network with these names into dictionaries.

    `data` is a tuple (x, y) or (x, y, sample_weight), or a tf.data.Dataset of them;
    anything else is returned unchanged.
    """
    return _name_arrays(data, _Network(tuple(inputs), tuple(outputs)))


def _name_arrays(data: Any, network: _Network) -> Any:
    def named(parts: Any) -> Any:
        if not isinstance(parts, tuple | list) or len(parts) not in (2, 3):
            return parts
        x, y, *weight = parts
        if len(network.inputs) > 1 and isinstance(x, tuple | list):
            x = _by_position(x, network.inputs, "x", "inputs")
        if isinstance(y, Mapping):
            y = _by_stable_name(y, network)
        elif len(network.outputs) > 1 and isinstance(y, tuple | list):
            if network.is_dictionary:
                raise UsageError(
                    "y is a list, but the outputs of the model are a dictionary; give y"
                    f" by name: {join_words(network.outputs)}"
                )
            y = _by_position(y, network.outputs, "y", "outputs")
        return (x, y, *weight)

    spec = getattr(data, "element_spec", None)
    if spec is None:
        return named(data)
    if _structure(named(spec)) == _structure(spec):
        return data
    return data.map(lambda *parts: named(parts))


def _by_position(
    arrays: Sequence[Any], names: Sequence[str], title: str, kind: str
) -> dict[str, Any]:
    if len(arrays) != len(names):
        raise UsageError(
            f"{title} is a list of {len(arrays)} arrays, but the model has the {kind}"
            f" {join_words(names)}"
        )
    return dict(zip(names, arrays, strict=True))


def _structure(parts: Any) -> Any:
    if isinstance(parts, Mapping):
        return sorted(parts)
    if isinstance(parts, tuple | list):
        return [_structure(part) for part in parts]
    return None


def _named(x: Any) -> list[tuple[str, Any]]:
    if isinstance(x, Mapping):
        return [(f"x[{key!r}]", values) for key, values in x.items()]
    return [] if x is None else [("x", x)]


def _shape(values: Any) -> tuple[int | None, ...] | None:
    """The shape of an array or spec; None if it is not known."""
    shape = getattr(values, "shape", None)
    if shape is None or getattr(shape, "rank", 0) is None:
        return None
    return tuple(shape)


def _is_whole(values: Any) -> bool:
    name = str(getattr(values, "dtype", ""))
    return "int" in name or "bool" in name


def _is_text(values: Any) -> bool:
    """Whether values are an array, a list or a spec of strings."""
    if isinstance(values, list | tuple):
        return bool(values) and isinstance(values[0], str | bytes)
    dtype: Any = getattr(values, "dtype", None)
    name = str(getattr(dtype, "name", dtype))
    if name == "object":
        flat = getattr(values, "flat", None) or getattr(values, "array", [])
        return len(flat) > 0 and isinstance(flat[0], str | bytes)
    return name.startswith(("str", "bytes"))
