"""What a user's Keras model adds to the arguments of `fit`.

The task if no target suits, losses and metrics by output, what it was compiled with,
and its dtype policy.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from pipeline.tasks.keras_model import keras_model
from pipeline.training import user_loss, user_model
from pipeline.training.user_loss import OutputLosses
from pipeline.training.user_metrics import OutputMetric
from pipeline.utils.console import join_words, say
from pipeline.utils.errors import UsageError, suggest

TASK = keras_model.__name__
PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")


@dataclasses.dataclass(frozen=True)
class _Network:
    """The inputs and outputs of a model by name; none of a subclassed one."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    parts: tuple[user_model.Output, ...] = ()
    is_dictionary: bool = False
    """Whether the outputs are a dictionary, which has no order of its own."""

    @property
    def aliases(self) -> dict[str, str]:
        """Name of an output layer in this process -> its name in every process, where
        they differ.
        """
        names = [part.name for part in self.parts]
        return {
            name: stable
            for name, stable in zip(names, self.outputs, strict=False)
            if names.count(name) == 1 and name != stable
        }


def _describe(model: Any, x: Any) -> _Network:
    if not isinstance(model, keras.Model):
        return _Network()
    parts = user_model.outputs_of(model, _shape(x))
    if not parts:
        return _Network()
    inputs = user_model.input_names(model) or ["x"]
    is_functional = type(model) is user_model.FUNCTIONAL
    structure = model.output if is_functional else None
    if isinstance(structure, Mapping):
        names = list(structure)
        if len(names) != len(parts) or not all(isinstance(n, str) for n in names):
            raise UsageError(
                "the outputs of the model must be a dictionary of tensors by name,"
                " without further dictionaries or lists inside"
            )
        parts = [
            dataclasses.replace(part, name=name)
            for name, part in zip(names, parts, strict=True)
        ]
    elif len(parts) == 1 and parts[0].is_automatic:
        names = ["output"]
    else:
        names = user_model.unique_names(
            [user_model.stem(p.name) if p.is_automatic else p.name for p in parts]
        )
    is_dictionary = isinstance(structure, Mapping)
    return _Network(tuple(inputs), tuple(names), tuple(parts), is_dictionary)


def add(arguments: dict[str, Any]) -> dict[str, Any]:
    """Chooses the task `keras_model` where it is needed, and adds its options.

    Raises UsageError if losses, metrics and y do not belong to the same outputs.
    """
    model = model_of(arguments)
    network = _describe(model, _part(arguments, 0))
    arguments = dict(arguments)
    for key in ("data", "source", "validation_data", "test_data"):
        value = arguments.get(key)
        if type(value) is dict and "name" in value:
            arguments[key] = {**value, "name": _name_arrays(value["name"], network)}
        elif value is not None:
            arguments[key] = _name_arrays(value, network)
    data = _data(arguments)
    if model is not None and isinstance(data, tuple | list) and data[1] is None:
        raise UsageError(
            "y is None; pass what the loss compares the outputs with, such as"
            " data=(x, x) for an autoencoder"
        )
    task = arguments.get("task")
    name = task.get("name") if isinstance(task, Mapping) else task
    is_free = task is None or task == {}
    weights = arguments.pop("loss_weights", None)
    if len(network.outputs) == 1 and not isinstance(arguments.get("loss"), Mapping):
        weights = _without_output(weights, network)
        weights = None if weights in (1, [1], (1,)) else weights
        if "metrics" in arguments:
            metrics = _without_output(arguments["metrics"], network)
            arguments["metrics"] = _metrics(metrics)
    reason = None
    if is_free and isinstance(model, keras.Model):
        reason = _reason(arguments, network, weights is not None)
    if is_free and reason is None and len(network.parts) == 1:
        arguments = _with_target(arguments, network.parts[0])
    if name != TASK and reason is None:
        if weights is not None or isinstance(arguments.get("loss"), Mapping):
            raise UsageError(
                "losses per output and loss_weights belong to the task keras_model;"
                f' write task="{TASK}"'
            )
        return arguments
    if reason:
        say("task", f"{TASK}, with your own loss and metrics, because {reason}")
    return _with_task(arguments, network, weights)


def _reason(
    arguments: Mapping[str, Any], network: _Network, has_weights: bool
) -> str | None:
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
    if has_weights:
        return "there are loss_weights"
    takes_strings = _takes_strings(model_of(arguments))
    for title, values in _named(x):
        if _is_text(values) and takes_strings:
            return f"{title} holds text"
        if len(_shape(values) or ()) > 4:
            return f"{title} has {len(values.shape)} axes"
    if y is not None and y is x:
        return "y is x"
    if not network.parts:
        return None
    (output,) = network.parts
    if output.activation == "softmax" and _is_soft(y):
        return "y has fractions of classes"
    return _reason_of_shape(y, output.shape) or _reason_of_loss(loss, output)


def _without_output(value: Any, network: _Network) -> Any:
    """Metrics or weights of the only output, as Keras takes them: by its name, or in a
    list for each output.
    """
    names = {*network.outputs, *network.aliases, *(part.name for part in network.parts)}
    if isinstance(value, Mapping) and len(value) == 1 and names.issuperset(value):
        return next(iter(value.values()))
    is_nested = isinstance(value, list) and len(value) == 1
    return value[0] if is_nested and isinstance(value[0], list) else value


def _is_soft(y: Any) -> bool:
    """Whether y has rows of fractions, such as the probabilities of another model."""
    values: Any = y if isinstance(y, np.ndarray) else np.empty(0)
    if values.ndim != 2 or values.shape[1] < 2 or values.dtype.kind != "f":
        return False
    return bool(((values > 0) & (values < 1)).any())


def _with_target(
    arguments: dict[str, Any], output: user_model.Output
) -> dict[str, Any]:
    """The arguments with what whole numbers as y are, if model and loss tell.

    They are numbers if the loss compares numbers with outputs without an activation,
    and classes from 0 to the width of the output after a softmax.
    """
    y = _part(arguments, 1)
    loss = arguments.get("loss", arguments.get("train", {}).get("loss"))
    source = arguments.get("source")
    section = source if isinstance(source, Mapping) else {}
    named = "class_names" in {*arguments, *section}
    if named or output.shape is None or not isinstance(y, list | np.ndarray):
        return arguments
    values = np.asarray(y)
    if not values.size or values.dtype.kind not in "iubf":
        return arguments
    if output.activation == "linear" and user_loss.compares_numbers(loss):
        return {**arguments, "task": {"target": "number"}}
    if values.dtype.kind == "f":
        return arguments
    width = output.shape[-1] or 0
    is_index = values.ndim == 1 or values.shape[1:] == (1,)
    is_sparse = user_loss.labels_of(user_loss.of_keras(loss)) == "index"
    takes_classes = output.activation == "softmax" or is_sparse
    if width < 2 or not is_index or not takes_classes or output.shape[:-1]:
        return arguments
    if values.min() < 0 or values.max() >= width or len(np.unique(values)) == width:
        return arguments
    return {**arguments, "class_names": [str(number) for number in range(width)]}


def _takes_strings(model: keras.Model) -> bool:
    """Whether a model reads texts itself, or is not built yet."""
    tensors = getattr(model, "inputs", None)
    return not tensors or any(tensor.dtype == "string" for tensor in tensors)


def _reason_of_shape(y: Any, output: tuple[int | None, ...] | None) -> str | None:
    shape = _shape(y)
    if shape is None or output is None:
        return None
    truth = shape[1:]
    is_plane = len(output) == 3 and truth[:2] == output[:2]
    if len(truth) > 1 and _is_whole(y) and is_plane and truth[2:] in ((), (1,)):
        return None  # a mask
    if len(truth) <= 1 and len(output) != 2:
        return None
    return f"an example of y has the shape {truth}, and the output {output}"


def _reason_of_loss(loss: Any, output: user_model.Output) -> str | None:
    """The reason if neither loss nor last layer says what the outputs are."""
    if output.activation or loss is None or not user_loss.is_vague(loss):
        return None
    return (
        f"the last layer {output.name!r} and the loss do not tell whether the outputs"
        " are logits or probabilities"
    )


def _with_task(
    arguments: dict[str, Any], network: _Network, weights: Any
) -> dict[str, Any]:
    names = _target_names(arguments, network)
    train = dict(arguments.get("train", {}))
    loss = arguments.get("loss", train.get("loss"))
    losses = _by_output(loss, names, network, "loss")
    losses = {key: loss for key, loss in losses.items() if loss is not None}
    if not losses:
        losses = {key: _usual_loss(key, arguments, network) for key in names}
    _require_y(losses, names, "loss")
    _require_suitable(losses, network)
    factors = {}
    for key, value in _by_output(weights, names, network, "loss_weights").items():
        if value is None:
            continue
        if isinstance(value, str) or not 0 <= value < float("inf"):
            remedy = "; did you mean metrics=...?" if isinstance(value, str) else ""
            raise UsageError(
                f"loss_weights must be numbers of at least 0; got {value!r} for {key!r}"
                f"{remedy}"
            )
        factors[key] = float(value)
    metrics = []
    if len(losses) > 1:
        for key, loss in losses.items():
            metrics.append(OutputMetric(key, loss, f"{key}_loss"))
    given = arguments.get("metrics", train.pop("metrics", None))
    for key, values in _by_output(given, names, network, "metrics").items():
        if isinstance(values, str) or not isinstance(values, list | tuple):
            values = [] if values is None else [values]
        if values:
            _require_y([key], names, "metric")
        prefix = f"{key}_" if len(losses) > 1 else ""
        for metric in values:
            metrics.append(OutputMetric(key, metric, prefix=prefix))
    if arguments.get("class_names") is not None:
        raise UsageError(
            "class_names belongs to the target classes; with your own losses, remove it"
        )
    in_order = {name: losses[name] for name in names if name in losses}
    train["loss"] = OutputLosses(in_order, factors)
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


def _require_suitable(losses: Mapping[str, Any], network: _Network) -> None:
    """Raises UsageError if a loss and the last layer of its output contradict."""
    for name, part in zip(network.outputs, network.parts, strict=False):
        if name in losses and part.activation:
            logits = user_loss.from_logits_of(user_loss.of_keras(losses[name]))
            try:
                user_model.returns_probabilities(part.activation, logits)
            except UsageError as error:
                raise UsageError(f"the output {name!r}: {error}") from None


def _require_y(keys: Any, names: Sequence[str], kind: str) -> None:
    for key in keys:
        if key not in names:
            raise UsageError(
                f"there is a {kind} for the output {key!r}, but y has only"
                f" {join_words(names)}"
            )


def _usual_loss(name: str, arguments: Mapping[str, Any], network: _Network) -> str:
    """The loss that Keras's guides pair with y and the last layer of an output.

    Raises UsageError if the last layer does not tell.
    """
    y = _part(arguments, 1)
    y = y[name] if isinstance(y, Mapping) else y
    output = None
    if name in network.outputs:
        output = network.parts[network.outputs.index(name)]
    shape = _shape(y)
    loss = None
    if output is not None and output.shape is not None and shape is not None:
        is_index = len(shape) <= len(output.shape) or shape[-1] == 1
        softmax = f"{'sparse_' * is_index}categorical_crossentropy"
        losses = {"softmax": softmax, "sigmoid": "binary_crossentropy"}
        if output.activation == "linear" and not (is_index and _is_whole(y)):
            losses["linear"] = "mse"
        loss = losses.get(output.activation)
    if loss is None:
        listing = f'{{"{name}": ...}}' if len(network.outputs) > 1 else "..."
        raise UsageError(
            f"there is no loss for the output {name!r}; pass loss={listing}, such as"
            ' "mse" or "binary_crossentropy"'
        )
    ending = output.activation if output else ""
    say("loss", f"{loss} for the output {name!r}, which ends in {ending}")
    return loss


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
            " array; pass y as a dictionary {output: array}"
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
    if title == "loss" and not is_list:
        return dict.fromkeys(names, value)
    parts = ", ".join(f'"{output}": ...' for output in outputs)
    raise UsageError(
        f"the model has the outputs {join_words(outputs)}; pass {title}={{{parts}}}"
    )


def _by_stable_name(values: Mapping[Any, Any], network: _Network) -> dict[Any, Any]:
    """Replaces names that Keras gave to layers of this process by stable names."""
    for key in values:
        if network.aliases.get(key, key) != key and key in network.outputs:
            raise UsageError(
                f"{key!r} may refer to two outputs, as Keras has named their layers;"
                " name the output layers: name=..."
            )
    return {network.aliases.get(key, key): part for key, part in values.items()}


def _data(arguments: Mapping[str, Any]) -> Any:
    """The data of a call, unless they are a name, a path or a section."""
    for name in ("data", "source"):
        value: Any = arguments.get(name)
        if type(value) is dict:  # a section
            value = value.get("name")
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
                    "y is a list, but the outputs of the model are a dictionary; pass y"
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


def add_compile_arguments(
    arguments: dict[str, Any], recipe: Any
) -> tuple[dict[str, Any], bool]:
    """Adds the arguments of `compile` where the call says nothing.

    Also returns whether the optimizer comes from `compile`. Prints a line about it.
    """
    model = model_of(arguments)
    is_compiled = isinstance(model, keras.Model) and model.compiled
    if not is_compiled or getattr(model, "is_compiled_by_run", False):
        return arguments, False
    config = model._compile_config.config
    if recipe is not None:
        say(
            "compiled",
            f"the recipe {recipe} is used instead of what the model was compiled with",
        )
        return arguments, False
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    compiled = {
        "optimizer": optimizer,
        "loss": _loss(config.get("loss")),
        "loss_weights": config.get("loss_weights"),
        "metrics": _metrics(config.get("metrics")),
    }
    explicit = {*arguments, *arguments.get("train", {})}
    used = {}
    for name, value in compiled.items():
        if value and name not in explicit:
            used[name] = value
    has_rate = "learning_rate" in explicit
    parts = []
    if used:
        parts.append(f"{_describe_used(used, has_rate)}, as the model was compiled")
    ignored = _ignored(config)
    if "optimizer" in used and (steps := int(optimizer.iterations)):
        ignored.append(f"the state of the optimizer after {steps:,} steps")
    if ignored:
        parts.append(f"not used: {', '.join(ignored)}")
    if parts:
        say("compiled", "; ".join(parts))
    return {**arguments, **used}, "optimizer" in used


def add_batch_size(arguments: dict[str, Any]) -> dict[str, Any]:
    """Adds the batch size of a dataset, if a model of Keras is trained with it."""
    data = _data(arguments)
    has_size = "batch_size" in {*arguments, *arguments.get("train", {})}
    if has_size or not isinstance(model_of(arguments), keras.Model):
        return arguments
    if hasattr(data, "num_batches"):  # a PyDataset
        batch = data[0]
    elif hasattr(data, "element_spec") and _is_batched(data.element_spec):
        batch = next(iter(data.take(1)), None)
    else:
        return arguments
    sizes = {len(part) for part in keras.tree.flatten(batch) if part is not None}
    if len(sizes) != 1:
        return arguments
    (size,) = sizes
    say("batch size", f"{size}, of the dataset")
    return {**arguments, "batch_size": size}


def _is_batched(spec: Any) -> bool:
    """Whether the number of examples in an element of a dataset is open."""
    shapes = [part.shape for part in keras.tree.flatten(spec)]
    return all(shape.rank and shape[0] is None for shape in shapes)


def add_rate(arguments: dict[str, Any]) -> dict[str, Any]:
    """Adds the learning rate that an optimizer of Keras has by default, if a model of
    Keras is trained with the name or the class of the optimizer.
    """
    train = arguments.get("train", {})
    optimizer = arguments.get("optimizer", train.get("optimizer"))
    options = train.get("optimizer_options", {})
    has_rate = "learning_rate" in {*arguments, *train, *options}
    if has_rate or not isinstance(model_of(arguments), keras.Model):
        return arguments
    try:
        if isinstance(optimizer, str):
            optimizer = keras.optimizers.get(optimizer)
        elif isinstance(optimizer, type):
            optimizer = optimizer()
        else:
            return arguments
    except (TypeError, ValueError):  # of the package, or not an optimizer
        return arguments
    rate = getattr(optimizer, "learning_rate", None)
    # Not the digits of float32: 0.001 instead of 0.0010000000474974513.
    return (
        arguments
        if rate is None
        else {**arguments, "learning_rate": float(f"{float(rate):g}")}
    )


def _describe_used(used: Mapping[str, Any], has_rate: bool) -> str:
    """Such as `optimizer SGD of learning rate 0.3, loss mse`."""
    words = {name: _word(value) for name, value in used.items()}
    if "optimizer" in words and not has_rate:
        words["optimizer"] += f" of learning rate {_rate(used['optimizer'])}"
    return ", ".join(f"{name} {word}" for name, word in words.items())


_UNUSED = {
    "weighted_metrics": "metrics ignore sample weights",
    "run_eagerly": "write tf.config.run_functions_eagerly(True)",
    "jit_compile": 'write runtime={"xla": "on"}',
    "steps_per_execution": 'write train={"steps_per_execution": N}',
}
"""Argument of `compile` -> why it is not used, or what to write instead."""
_DEFAULTS: tuple[Any, ...] = (None, False, "auto", 1, [], {})


def _ignored(config: Mapping[str, Any]) -> list[str]:
    """The arguments of `compile` that a run does not use, with the reasons."""
    ignored = []
    for name, remedy in _UNUSED.items():
        value = config.get(name)
        if value is True or value not in _DEFAULTS:
            ignored.append(f"{name} ({remedy})")
    return ignored


def _loss(value: Any) -> Any:
    """The loss of `compile`; of one output, without its name."""
    losses = value
    if isinstance(losses, Mapping):
        losses = list(losses.values())
    is_list = isinstance(losses, list | tuple)
    return losses[0] if is_list and len(losses) == 1 else value


def _metrics(value: Any) -> Any:
    """The metrics of `compile`; those of one output as a list."""
    is_one = isinstance(value, str) or not hasattr(value, "__iter__")
    return [value] if is_one and value is not None else value


def _word(value: Any) -> str:
    """The name of an optimizer, a loss or a metric, or the names of several."""
    if isinstance(value, Mapping):
        return " ".join(f"{name}={_word(part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(_word, value))
    if isinstance(value, str | int | float):
        return str(value)
    return getattr(value, "__name__", type(value).__name__)


def _rate(optimizer: Any) -> str:
    """The learning rate of an optimizer, or the name of its schedule."""
    rate = getattr(optimizer, "_learning_rate", optimizer.learning_rate)
    return type(rate).__name__ if callable(rate) else f"{float(rate):g}"


def add_precision(arguments: dict[str, Any]) -> dict[str, Any]:
    """Adds the dtype policy of the model, or of Keras, as the precision of the run.

    Raises UsageError for a policy in which a run cannot compute.
    """
    runtime = arguments.get("runtime", {})
    model = model_of(arguments)
    policy = "float32"
    if isinstance(model, keras.Model):
        user_model.require_channels_last(model)
        if type(model) in (keras.Sequential, user_model.FUNCTIONAL):
            # A subclassed model cannot be rebuilt with the policy of a run, which
            # checks its layers.
            policy = min(user_model.policies(model), default=policy)
        origin = "the dtype policy of the model"
    elif keras.config.dtype_policy().name != keras.config.floatx():
        # The default does not hold in a run.
        policy = keras.config.dtype_policy().name
        origin = "the global dtype policy of Keras"
    if policy == "float32" or "precision" in runtime:
        return arguments
    if policy not in PRECISIONS:
        raise UsageError(
            f"{origin} is {policy}; a run computes in {', '.join(PRECISIONS[:-1])} or "
            f'{PRECISIONS[-1]}: change it, or set runtime={{"precision": ...}}'
        )
    say("precision", f"{policy}, {origin}")
    return {**arguments, "runtime": {**runtime, "precision": policy}}


def model_of(arguments: Mapping[str, Any]) -> Any:
    """The model of a call, as an object or in `model={"name": ...}`."""
    model = arguments.get("model")
    return model.get("name") if isinstance(model, Mapping) else model
