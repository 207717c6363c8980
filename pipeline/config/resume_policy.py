"""Which options may change when a run is resumed: silently, with `--force`, or never.

An option in neither table can never change, so a new option is safe by default. The
options of a registered function are compared one by one, under a place such as
`source.options`.
"""

import dataclasses
import shlex
import textwrap
from collections.abc import Mapping
from typing import Any

from pipeline.config import type_hints
from pipeline.utils import console

# Options that cannot change a result, by place ("" is the top level): directories,
# logging, the engine, the devices and time limits.
HARMLESS: dict[str, tuple[str, ...]] = {
    "": ("run_directory", "dry_run", "force", "reasons"),
    "clean": ("directory",),
    "data": ("cache", "cache_directory", "augment_on"),
    "train": ("engine", "steps_per_call", "checkpoint_minutes", "checkpoint_steps"),
    "runtime": (
        *("time_limit", "hang_timeout", "worker_timeout"),
        *("devices", "gpu_memory", "require_gpu"),
    ),
    "export": (
        *("enabled", "directory", "name", "precision", "batch_sizes", "calibrate"),
        *("formats", "tolerance", "keep"),
    ),
    "log": ("progress", "tensorboard"),
}
# Options that a user may want to change: to train longer, to rescue a run that
# diverges, or to continue on another machine. The steps and variables of the
# checkpoints stay valid.
FORCEABLE: dict[str, tuple[str, ...]] = {
    "clean": ("manifest",),
    "source.options": ("path",),
    "train": (
        *("epochs", "steps", "patience", "accumulate", "max_bad_steps", "on_bad_steps"),
        *("learning_rate", "schedule", "schedule_options", "callbacks"),
        *("clip_norm", "clip_variable_norm", "clip_value", "clip_adaptive"),
    ),
    "runtime": ("precision", "replicas", "xla", "deterministic"),
}
_DEFAULT = (
    "default",
)  # not a JSON value, so it differs from every option that is given


@dataclasses.dataclass(frozen=True)
class Change:
    """An option whose value differs from the one the run started with."""

    flag: str
    then: str
    now: str
    can_be_forced: bool

    def __str__(self) -> str:
        return f"{self.flag} {self.then}, now {self.now}"


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """The options that differ between two configs, as JSON, and can change
    the result.
    """
    found, earlier = [], _places(before)
    for place, values in _places(now).items():
        then = earlier.get(place, {})
        section = place.removesuffix(".options")
        for name in {**values, **then}:
            old, new = then.get(name, _DEFAULT), values.get(name, _DEFAULT)
            if old != new and name not in HARMLESS.get(place, ()):
                flag = f"--{section}.{name}" if section else f"--{name}"
                forced = name in FORCEABLE.get(place, ())
                found.append(
                    Change(flag.replace("_", "-"), _words(old), _words(new), forced)
                )
    return found


def _places(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Place -> its options: the top level, each section, and the `options` of a
    section.
    """
    places: dict[str, dict[str, Any]] = {"": {}}
    for section, part in values.items():
        if isinstance(part, dict) and section not in HARMLESS[""]:
            places[section] = dict(part)
            places[f"{section}.options"] = places[section].pop("options", {})
        else:
            places[""][section] = part
    return places


def refusal(run: str, found: list[Change]) -> str:
    """The error message for these changes: a line for each of them, and
    how to resume.
    """
    given = [c for c in found if "<" in (c.then[0], c.now[0]) and not c.can_be_forced]
    if given:
        names = ", ".join(f"{change.flag} {change.then}" for change in given)
        return (
            f"{run} began with {names}; pass the same Python objects again to fit (a"
            " function with the same source and values), or choose another"
            " --run-directory"
        )
    remedy = "choose another --run-directory, or resume with its original options"
    if all(change.can_be_forced for change in found):
        remedy = f"add --force to accept the changes, or {remedy}"
    rows = [
        (c.flag, c.then, c.now, "--force accepts it" * c.can_be_forced) for c in found
    ]
    table = console.table(rows, ("option", "original", "now", ""))
    original = shlex.join(["--resume", run])
    first = f"{run} was started with other options; {remedy}"
    return f"{first}\n{textwrap.indent(table, '  ')}\nits original options: {original}"


def _words(value: Any) -> str:
    """A value as it would be typed, shortened to a readable length."""
    text = " ".join(type_hints.words(value)) or "nothing"
    return text if len(text) <= 40 else f"{text[:37]}..."
