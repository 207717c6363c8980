"""The arguments of `keras.Model.fit` as arguments of `fit`."""

from collections.abc import Mapping
from typing import Any

from pipeline.utils import output
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError, quote

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
