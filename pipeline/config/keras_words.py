"""What `fit` takes over from Keras: arguments of its `fit`, a compiled model, a dtype
policy.
"""

import sys
from collections.abc import Mapping
from typing import Any

from pipeline.utils import output
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError, quote

PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")
_EACH_EPOCH = "the validation data are evaluated after each epoch; remove it"
# Argument of `keras.Model.fit` -> a value that changes nothing, and the remedy for any
# other value.
_REFUSED: dict[str, tuple[Any, str]] = {
    "initial_epoch": (0, 'a run is resumed with run_directory="..."; remove it'),
    "validation_steps": (None, "the whole validation data are evaluated; remove it"),
    "validation_batch_size": (None, "it does not change the results; remove it"),
    "validation_freq": (1, _EACH_EPOCH),
    "workers": (1, "data are read in parallel anyway; remove it"),
    "use_multiprocessing": (False, "data are read in parallel anyway; remove it"),
    "max_queue_size": (10, "the number of prefetched batches is chosen; remove it"),
}
_DATA_ARGUMENTS = ("x", "y", "sample_weight")
TRAIN_OPTIONS = ("class_weight", "steps_per_epoch", "shuffle")
"""Arguments that are options of `train`."""
ARGUMENTS = (
    *_DATA_ARGUMENTS,
    "validation_split",
    "verbose",
    *TRAIN_OPTIONS,
    *_REFUSED,
)
"""Arguments of `keras.Model.fit` that are not arguments of `fit` under these names."""


def translate(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Translates the arguments of `keras.Model.fit` to arguments of `fit`.

    Raises UsageError, which says what to write, for arguments with another meaning
    here.
    """
    of_keras: dict[str, Any] = {}
    of_fit: dict[str, Any] = {}
    for name, value in arguments.items():
        target = of_keras if name in ARGUMENTS else of_fit
        target[name] = value
    for name, (default, remedy) in _REFUSED.items():
        value = of_keras.get(name, default)
        if value is not default and value != default:
            raise UsageError(f"{name}={value!r} is not supported: {remedy}")
    of_fit = _with_arrays(of_fit, of_keras)
    if "validation_split" in of_keras:
        of_fit = _with_split(of_fit, of_keras["validation_split"])
    _require_class_weight(of_keras.get("class_weight", {}))
    for name in TRAIN_OPTIONS:
        if name in of_keras:
            of_fit["train"] = _with_option(of_fit, "train", name, of_keras[name], name)
    if "verbose" in of_keras:
        option, value = _verbosity(of_keras["verbose"])
        of_fit["log"] = _with_option(of_fit, "log", option, value, "verbose")
    return of_fit


def _require_class_weight(value: Any) -> None:
    is_balanced = isinstance(value, str) and value == "balanced"
    if not is_balanced and not isinstance(value, Mapping):
        raise UsageError(
            'class_weight must be "balanced" or a dictionary {class: weight}; got'
            f" {quote(value) if isinstance(value, str) else type(value).__name__}"
        )


def output_mode(arguments: Mapping[str, Any]) -> output.Mode:
    """How a call prints: with `verbose=0`, warnings only."""
    mode = output.of_options(arguments.get("log"))
    is_silent = arguments.get("verbose", 1) in (0, False)
    return "silent" if mode == "text" and is_silent else mode


def _verbosity(verbose: Any) -> tuple[str, bool]:
    """The option of `log` that `verbose` sets: 0 is silent, 2 a line for each epoch."""
    if type(verbose) is int and verbose == 2:
        return "bar", False
    return "progress", verbose not in (0, False)


def _with_arrays(of_fit: dict[str, Any], of_keras: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with `data` from `x`, `y` and `sample_weight`."""
    names = [name for name in _DATA_ARGUMENTS if name in of_keras]
    if not names:
        return of_fit
    arrays = tuple(of_keras[name] for name in names)
    data: Any = of_fit.get("data", of_fit.get("source"))
    if "x" in of_keras and data is None:
        # A dataset contains its labels.
        return {**of_fit, "data": arrays if len(arrays) > 1 else arrays[0]}
    is_pair = isinstance(data, tuple) and len(data) == 2
    if is_pair and names == ["sample_weight"]:
        weighted = {**of_fit, "data": (*data, *arrays)}
        weighted.pop("source", None)
        return weighted
    raise UsageError(
        f"{', '.join(names)}: write data=(x, y) or data=(x, y, sample_weight) instead"
    )


def _with_split(arguments: dict[str, Any], share: Any) -> dict[str, Any]:
    """The arguments with `validation_split=0.2` as the option `data.validation`."""
    if "validation_data" in arguments:
        raise UsageError("use only one of validation_data=... and validation_split=...")
    if share:
        say(
            "validation",
            f"validation_split={share} holds out random examples, not the last ones as"
            " Keras does; validation_data=(x, y) chooses them",
        )
    arguments = dict(arguments)
    if "data" in arguments and type(arguments["data"]) is not dict:
        # The data, not the section.
        if "source" in arguments:
            raise UsageError("use only one of data=... and source=...")
        arguments["source"] = arguments.pop("data")
    arguments["data"] = _with_option(
        arguments, "data", "validation", share, "validation_split"
    )
    return arguments


def _with_option(
    arguments: Mapping[str, Any], section: str, option: str, value: Any, name: str
) -> dict[str, Any]:
    """The options of a section and one from the argument `name`."""
    options = arguments.get(section, {})
    if option in options:
        raise UsageError(
            f'use only one of {name}=... and {section}={{"{option}": ...}}'
        )
    return {**options, option: value}


def add_compile_arguments(
    arguments: dict[str, Any], recipe: Any
) -> tuple[dict[str, Any], bool]:
    """Adds the arguments of `compile` where the call says nothing.

    Also returns whether the optimizer comes from `compile`. Prints a line about it.
    """
    model = model_of(arguments)
    config = getattr(getattr(model, "_compile_config", None), "config", None)
    if not isinstance(config, Mapping) or getattr(model, "is_compiled_by_run", False):
        return arguments, False
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
        parts.append(f"{_describe(used, has_rate)}, as the model was compiled")
    ignored = _ignored(model, config)
    if ignored:
        parts.append(f"not used: {', '.join(ignored)}")
    if parts:
        say("compiled", "; ".join(parts))
    return {**arguments, **used}, "optimizer" in used


def _describe(used: Mapping[str, Any], has_rate: bool) -> str:
    """Such as `optimizer SGD of learning rate 0.3, loss mse`."""
    words = {name: _word(value) for name, value in used.items()}
    if "optimizer" in words and not has_rate:
        words["optimizer"] += f" of learning rate {_rate(used['optimizer'])}"
    return ", ".join(f"{name} {word}" for name, word in words.items())


_UNUSED = {
    "weighted_metrics": "metrics ignore the weights of examples",
    "run_eagerly": "write tf.config.run_functions_eagerly(True)",
    "jit_compile": 'write runtime={"xla": "on"}',
    "steps_per_execution": 'write train={"steps_per_execution": N}',
}
"""Argument of `compile` -> why it is not used, or what to write instead."""


def _ignored(model: Any, config: Mapping[str, Any]) -> list[str]:
    """The arguments of `compile` that a run does not use, with the reasons."""
    values = {name: config.get(name) for name in _UNUSED}
    is_automatic = getattr(model, "_resolve_auto_jit_compile", lambda: True)
    if values["jit_compile"] and is_automatic():
        values["jit_compile"] = None
    return [f"{name} ({_UNUSED[name]})" for name in _UNUSED if _is_set(values[name])]


def model_of(arguments: Mapping[str, Any]) -> Any:
    """The model of a call, as an object or in `model={"name": ...}`."""
    model = arguments.get("model")
    return model.get("name") if isinstance(model, Mapping) else model


def _loss(value: Any) -> Any:
    """The loss of `compile`; of one output, without its name."""
    losses = value
    if isinstance(losses, Mapping):
        losses = list(losses.values())
    is_list = isinstance(losses, list | tuple)
    return losses[0] if is_list and len(losses) == 1 else value


def _is_set(value: Any) -> bool:
    is_default = value is None or value is False or value in ("auto", [], {})
    return not is_default and (value is True or value != 1)


def _metrics(value: Any) -> Any:
    """The metrics of `compile` as a list, without the accuracy that each run measures;
    those of several outputs as they are.
    """
    if value is None:
        return []
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        value = [value]
    is_nested = any(isinstance(metric, list | tuple | Mapping) for metric in value)
    if isinstance(value, Mapping) or is_nested:
        return value
    return [metric for metric in value if metric not in ("accuracy", "acc")]


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
    keras = sys.modules.get("keras")
    runtime = arguments.get("runtime", {})
    model = model_of(arguments)
    has_layers = hasattr(model, "_flatten_layers") and not isinstance(model, type)
    if has_layers:
        _require_channels_last(model)
    if keras is None or not hasattr(keras, "config") or "precision" in runtime:
        return arguments
    if has_layers:
        policy = _policy_of(model)
        origin = "the dtype policy of the model"
    else:
        policy = keras.config.dtype_policy().name
        origin = "the global dtype policy of Keras"
        if policy == keras.config.floatx():  # a default, which does not hold in a run
            return arguments
    if policy == "float32":
        return arguments
    if policy not in PRECISIONS:
        raise UsageError(
            f"{origin} is {policy}; a run computes in {', '.join(PRECISIONS[:-1])} or "
            f'{PRECISIONS[-1]}: change it, or set runtime={{"precision": ...}}'
        )
    say("precision", f"{policy}, {origin}")
    return {**arguments, "runtime": {**runtime, "precision": policy}}


def _require_channels_last(model: Any) -> None:
    for layer in model._flatten_layers():
        if getattr(layer, "data_format", None) == "channels_first":
            raise UsageError(
                f"the layer {layer.name!r} of the model takes channels first, but"
                " images have shape (height, width, channels): build it with"
                ' data_format="channels_last"'
            )


def _policy_of(model: Any) -> str:
    """The policy of a functional or Sequential model: its first one that is not
    float32.

    A subclassed model cannot be rebuilt with the policy of a run, which checks its
    layers.
    """
    if not (hasattr(model, "operations") or hasattr(model, "_functional")):
        return "float32"
    policies = set()
    for layer in model._flatten_layers():
        is_container = hasattr(layer, "layers")
        if not is_container and type(layer).__name__ != "InputLayer":
            policies.add(layer.dtype_policy.name)
    for policy in sorted(policies):
        if "float" in policy and policy != "float32":
            return policy
    return "float32"
