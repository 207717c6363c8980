"""Keras's optimizers, schedules, losses and metrics by name, found without importing Keras."""

import functools
import re
from pathlib import Path

from pipeline.config import functions

FOLDERS = {
    "optimizers": "optimizers",
    "schedules": "optimizers.schedules",
    "losses": "losses",
    "metrics": "metrics",
}
# Base classes, and wrappers of other objects.
_ABSTRACT = {
    *("optimizer", "optimizermap", "lossscaleoptimizer", "multioptimizer", "learningrateschedule"),
    *("loss", "metric", "mean", "sum", "meanmetricwrapper"),
}
_ALIASES = {
    "mse": "meansquarederror",
    "mae": "meanabsoluteerror",
    "mape": "meanabsolutepercentageerror",
    "msle": "meansquaredlogarithmicerror",
    "rmse": "rootmeansquarederror",
}


def find(registry: str, name: str) -> str | None:
    """`module:Class` by a name in any spelling: `adam_w`, `adamw` or `AdamW`."""
    plain = name.replace("_", "").lower()
    return _classes(registry).get(_ALIASES.get(plain, plain))


def names(registry: str) -> list[str]:
    """The names of the classes in lower case with underscores, as in Keras: `f1_score`, `auc`."""
    starts = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
    found = (name.rpartition(":")[2] for name in _classes(registry).values())
    return sorted(re.sub(starts, "_", name).lower() for name in found)


@functools.cache
def _classes(registry: str) -> dict[str, str]:
    """Name in lower case -> `module:Class`, of the classes that Keras exports."""
    if registry not in FOLDERS:
        return {}
    spec = functions.spec_of(f"keras.{FOLDERS[registry]}")
    text = Path(str(spec and spec.origin)).read_text(encoding="utf-8")
    found = re.findall(r"^from (\S+) import \(?\s*([A-Z]\w*) as \2", text, re.MULTILINE)
    known = {name.lower(): f"{module}:{name}" for module, name in found}
    return {name: place for name, place in known.items() if name not in _ABSTRACT}
