"""Which options may change when a run is taken up again: silently, with `--force`, or never.

An option that is in neither table is never changed: what is new here begins as the safe kind. Each
option of a registered function counts on its own, under the place `source.options`.
"""

import dataclasses
import shlex
from collections.abc import Mapping
from typing import Any

from pipeline.config.validation import operation_words, option_words

# What cannot change a result, by place ("" is the top level): where things lie, what is shown,
# who drives the same step, which of a machine's devices are used and how long they are waited for.
HARMLESS: dict[str, tuple[str, ...]] = {
    "": ("run_directory", "dry_run", "force"),
    "clean": ("directory",),
    "data": ("cache", "cache_directory", "augment_on"),
    "train": ("engine", "steps_per_call", "checkpoint_minutes", "checkpoint_steps"),
    "runtime": (
        "time_limit",
        "hang_timeout",
        "worker_timeout",
        "devices",
        "gpu_memory",
        "require_gpu",
    ),
    "export": (
        *("enabled", "directory", "name", "precision", "batch_sizes", "calibrate"),
        *("tolerance", "keep"),
    ),
    "log": ("progress", "tensorboard"),
}
# What changes a result in a way that a person may want: to train longer, to save a run that
# diverges, to go on elsewhere. The checkpoints mean the same under it: their step, their variables.
FORCEABLE: dict[str, tuple[str, ...]] = {
    "clean": ("manifest",),
    "data": ("splits",),
    "source.options": ("path",),
    "train": (
        *("epochs", "steps", "patience", "accumulate", "max_bad_steps", "on_bad_steps"),
        *("learning_rate", "schedule", "schedule_options"),
        *("clip_norm", "clip_variable_norm", "clip_value", "clip_adaptive"),
    ),
    "runtime": ("precision", "replicas", "xla", "deterministic"),
}
_WIDTH = 40  # characters of a value that are shown


@dataclasses.dataclass(frozen=True)
class Change:
    """An option that is not as the run began."""

    flag: str
    then: str
    now: str
    can_be_forced: bool

    def __str__(self) -> str:
        return f"{self.flag} {self.then}, now {self.now}"


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """What differs between two configs as JSON and can change the result."""
    found, earlier = [], _places(before)
    for place, values in _places(now).items():
        then = earlier.get(place, {})
        section = place.removesuffix(".options")
        names = values if section == place else {**values, **then}
        for name in names:
            old, new = ([part[name]] if name in part else [] for part in (then, values))
            if old == new or name in HARMLESS.get(place, ()):
                continue
            flag = f"--{section}.{name}" if section else f"--{name}"
            old, new = (_words(value[0]) if value else "default" for value in (old, new))
            forced = name in FORCEABLE.get(place, ())
            found.append(Change(flag.replace("_", "-"), old, new, forced))
    return found


def _places(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Place -> its options: the top level, each section, and the `options` of a section."""
    found: dict[str, dict[str, Any]] = {"": {}}
    for section, part in values.items():
        if not isinstance(part, dict):
            found[""][section] = part
            continue
        found[section] = dict(part)
        if isinstance(part.get("options"), dict):
            found[f"{section}.options"] = found[section].pop("options")
    return found


def refusal(run: str, found: list[Change]) -> str:
    """What to say of these changes: one line, a line for each of them, and how to resume."""
    remedy = "give a new --run-directory, or its own options"
    if all(change.can_be_forced for change in found):
        remedy = "--force goes on with these, or give a new --run-directory, or its own options"
    rows = [(c.flag, c.then, c.now, "--force accepts it" * c.can_be_forced) for c in found]
    rows.insert(0, ("option", "as it began", "now", ""))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    own = ["--config", f"{run}/config.json", "--run-directory", run]
    return "\n".join(
        [
            f"{run} is a run with other options; {remedy}",
            *map(str.rstrip, lines),
            f"its own options: {shlex.join(own)}",
        ]
    )


def _words(value: Any) -> str:
    """A value as it would be typed, cut to a readable length."""
    if isinstance(value, dict):
        nested = value and all(isinstance(inner, dict) for inner in value.values())
        value = operation_words(value) if nested else option_words(value)
    text = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    text = " ".join(text.split()) or "nothing"
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."
