"""What `fit` takes over from Keras: arguments of its `fit`, a compiled model, a dtype
policy.
"""

import sys
from collections.abc import Mapping
from typing import Any

from pipeline.utils.console import say
from pipeline.utils.errors import UsageError

PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")
_ONE_PASS = "an epoch is one pass over the data"
# Argument of `keras.Model.fit` -> a value that changes nothing, and what to write
# instead.
_REFUSED: dict[str, tuple[Any, str]] = {
    "shuffle": (True, "each epoch shuffles the training data; remove it"),
    "initial_epoch": (0, 'a run is resumed with run_directory="..."; remove it'),
    "validation_steps": (None, "the whole validation data are evaluated; remove it"),
    "validation_batch_size": (None, "it does not change the results; remove it"),
    "validation_freq": (
        1,
        "the validation data are evaluated after each epoch; remove it",
    ),
    "workers": (1, "data are read in parallel anyway; remove it"),
    "use_multiprocessing": (False, "data are read in parallel anyway; remove it"),
    "max_queue_size": (10, "the number of prefetched batches is chosen; remove it"),
}
ARGUMENTS = (
    *("x", "y", "sample_weight", "validation_split", "class_weight", "verbose"),
    *("steps_per_epoch", *_REFUSED),
)
"""Arguments of `keras.Model.fit` that are not arguments of `fit` under these names."""


def arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call with those of `keras.Model.fit` in terms of `fit`.

    Raises UsageError, which says what to write, for those that mean something else
    here.
    """
    known = {name: value for name, value in given.items() if name not in ARGUMENTS}
    own = {name: value for name, value in given.items() if name in ARGUMENTS}
    for name in filter(own.__contains__, _REFUSED):
        usual, remedy = _REFUSED[name]
        if own[name] is not usual and own[name] != usual:
            raise UsageError(f"{name}={own[name]!r} is not supported: {remedy}")
    if "steps_per_epoch" in own:
        steps = f"{own['steps_per_epoch']} * epochs"
        if isinstance(epochs := known.get("epochs"), int):
            steps = str(own["steps_per_epoch"] * epochs)
        raise UsageError(
            f'steps_per_epoch: {_ONE_PASS}; write train={{"steps": {steps}}} to train'
            " for as many steps"
        )
    known = _with_arrays(known, own)
    if "validation_split" in own:
        known = _with_split(known, own["validation_split"])
    for name, section, option, value in (
        ("class_weight", "train", "class_weight", own.get("class_weight")),
        ("verbose", "log", "progress", own.get("verbose") not in (0, False)),
    ):
        if name in own:
            known[section] = _with_option(known, section, option, value, name)
    return known


def _with_arrays(given: dict[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """`data` from `x`, `y` and `sample_weight`."""
    parts = [own[name] for name in ("x", "y", "sample_weight") if name in own]
    if not parts:
        return given
    data: Any = given.get("data", given.get("source"))
    is_pair = isinstance(data, tuple) and len(data) == 2
    if "x" in own and data is None:
        # A dataset has its own labels.
        data = tuple(parts) if len(parts) > 1 else parts[0]
        return {**given, "data": data}
    if is_pair and "sample_weight" in own and not own.keys() & {"x", "y"}:
        others = {name: value for name, value in given.items() if name != "source"}
        return {**others, "data": (data[0], data[1], own["sample_weight"])}
    names = ", ".join(name for name in ("x", "y", "sample_weight") if name in own)
    raise UsageError(
        f"{names}: write data=(x, y) or data=(x, y, sample_weight) instead"
    )


def _with_split(given: dict[str, Any], share: Any) -> dict[str, Any]:
    """`validation_split=0.2` as the option `validation` of the section `data`."""
    if "validation_data" in given:
        raise UsageError("use only one of validation_data=... and validation_split=...")
    given = dict(given)
    if "data" in given and type(given["data"]) is not dict:  # the data, not the section
        if "source" in given:
            raise UsageError("use only one of data=... and source=...")
        given["source"] = given.pop("data")
    given["data"] = _with_option(given, "data", "validation", share, "validation_split")
    return given


def _with_option(
    given: Mapping[str, Any], section: str, option: str, value: Any, name: str
) -> dict[str, Any]:
    """A section with one more option."""
    options = given.get(section, {})
    if option in options:
        raise UsageError(
            f'use only one of {name}=... and {section}={{"{option}": ...}}'
        )
    return {**options, option: value}


def compiled(given: dict[str, Any], recipe: Any) -> tuple[dict[str, Any], bool]:
    """The arguments of a call, with what its model was compiled with where they say
    nothing.

    Also returns whether the optimizer is that of `compile`. Prints a line about it.
    """
    model = _model(given)
    values = getattr(getattr(model, "_compile_config", None), "config", None)
    if not isinstance(values, Mapping) or getattr(model, "is_compiled_by_run", False):
        return given, False
    if recipe is not None:
        say(
            "compiled",
            f"the recipe {recipe} is used instead of what the model was compiled with",
        )
        return given, False
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    values = {
        **values,
        "optimizer": optimizer,
        "metrics": _metrics(values.get("metrics")),
    }
    values["loss"] = _loss(values.get("loss"))
    names = ("optimizer", "loss", "metrics")
    said = {*given, *given.get("train", {})}
    used = {name: values[name] for name in names if values[name] and name not in said}
    automatic = getattr(model, "_resolve_auto_jit_compile", lambda: True)
    if values.get("jit_compile") and automatic():
        values["jit_compile"] = None
    ignored = [
        f"{name} ({why})" for name, why in _UNUSED.items() if _is_set(values.get(name))
    ]
    parts = []
    if used:
        shown = {name: _word(value) for name, value in used.items()}
        if "optimizer" in used and "learning_rate" not in said:
            shown["optimizer"] += f" of learning rate {_rate(optimizer)}"
        words = ", ".join(f"{name} {word}" for name, word in shown.items())
        parts.append(f"{words}, as the model was compiled")
    if ignored:
        parts.append(f"not used: {', '.join(ignored)}")
    if parts:
        say("compiled", "; ".join(parts))
    return {**given, **used}, "optimizer" in used


_UNUSED = {
    "loss_weights": "a run has one loss",
    "weighted_metrics": "metrics ignore the weights of examples",
    "run_eagerly": "write tf.config.run_functions_eagerly(True)",
    "jit_compile": 'write runtime={"xla": "on"}',
    "steps_per_execution": 'write train={"steps_per_call": N}',
}
"""Argument of `compile` -> why it is not used, or what to write instead."""


def _model(given: Mapping[str, Any]) -> Any:
    """The model of a call: an object, or that in `model={"name": ...}`."""
    model = given.get("model")
    return model.get("name") if isinstance(model, Mapping) else model


def _loss(value: Any) -> Any:
    """The loss of `compile` for one output."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, list | tuple):
        return value
    if len(value) != 1:
        raise UsageError("the model was compiled with several losses; give loss=...")
    return value[0]


def _is_set(value: Any) -> bool:
    is_default = value is None or value is False or value in ("auto", [], {})
    return not is_default and (value is True or value != 1)


def _metrics(value: Any) -> list[Any]:
    """The metrics of `compile` as a list, without the accuracy that each
    run measures.
    """
    value = [] if value is None else value
    value = (
        [value] if isinstance(value, str) or not hasattr(value, "__iter__") else value
    )
    if isinstance(value, Mapping) or any(
        isinstance(x, list | tuple | Mapping) for x in value
    ):
        raise UsageError(
            "the model was compiled with metrics for several outputs; a run has one:"
            " give metrics=[...]"
        )
    return [metric for metric in value if metric not in ("accuracy", "acc")]


def _word(value: Any) -> str:
    """The name of an optimizer, loss or metric, or of each in a list."""
    if isinstance(value, list):
        return " ".join(map(_word, value))
    if isinstance(value, str):
        return value
    return getattr(value, "__name__", type(value).__name__)


def _rate(optimizer: Any) -> str:
    """The learning rate of an optimizer, or the name of its schedule."""
    rate = getattr(optimizer, "_learning_rate", optimizer.learning_rate)
    return type(rate).__name__ if callable(rate) else f"{float(rate):g}"


def precision(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call, with the dtype policy of its model or of Keras as the
    precision.

    Raises UsageError for a policy in which a run cannot compute.
    """
    keras = sys.modules.get("keras")
    runtime, model = given.get("runtime", {}), _model(given)
    has_layers = hasattr(model, "_flatten_layers") and not isinstance(model, type)
    if has_layers:
        _require_channels_last(model)
    if keras is None or not hasattr(keras, "config") or "precision" in runtime:
        return given
    if has_layers:
        policy, origin = _policy_of(model), "the dtype policy of the model"
    else:
        policy, origin = (
            keras.config.dtype_policy().name,
            "the global dtype policy of Keras",
        )
        if policy == keras.config.floatx():  # a default, which does not hold in a run
            return given
    if policy == "float32":
        return given
    if policy not in PRECISIONS:
        raise UsageError(
            f"{origin} is {policy}; a run computes in {', '.join(PRECISIONS[:-1])} or "
            f'{PRECISIONS[-1]}: change it, or set runtime={{"precision": ...}}'
        )
    say("precision", f"{policy}, {origin}")
    return {**given, "runtime": {**runtime, "precision": policy}}


def _require_channels_last(model: Any) -> None:
    """Raises UsageError for a layer that takes images in another layout than those of a
    run.
    """
    for layer in model._flatten_layers():
        if getattr(layer, "data_format", None) == "channels_first":
            raise UsageError(
                f"the layer {layer.name!r} of the model takes channels first, but"
                " images have shape (height, width, channels): build it with"
                ' data_format="channels_last"'
            )


def _policy_of(model: Any) -> str:
    """The policy that differs from float32 in a functional or Sequential model, if one
    does.

    A subclassed model cannot be rebuilt with the policy of a run, which checks its
    layers.
    """
    if not (hasattr(model, "operations") or hasattr(model, "_functional")):
        return "float32"
    layers = model._flatten_layers()
    inner = [
        x
        for x in layers
        if not (hasattr(x, "layers") or type(x).__name__ == "InputLayer")
    ]
    names = {layer.dtype_policy.name for layer in inner}
    others = sorted(name for name in names if "float" in name and name != "float32")
    return others[0] if others else "float32"
