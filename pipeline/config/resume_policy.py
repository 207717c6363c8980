"""Which options may change when a run is resumed: silently, with `--force`, or never.

An option in neither table can never change, so a new option is safe by default. The
options of a registered function are compared separately, as the section
`source.options`, for example. A task declares which of its options may change
(`registry.changeable_options`).
"""

import dataclasses
import shlex
import textwrap
from collections.abc import Collection, Mapping
from typing import Any

from pipeline.config import type_hints
from pipeline.utils import console

# Options that cannot change a result, by section ("" is the top level): directories,
# logging, the engine, the devices and time limits.
HARMLESS: dict[str, tuple[str, ...]] = {
    "": ("run_directory", "dry_run", "force", "reasons"),
    "clean": ("directory",),
    "data": ("cache", "cache_directory", "augment_on"),
    "train": (
        "engine",
        "steps_per_execution",
        "checkpoint_minutes",
        "checkpoint_steps",
        "final_test",
    ),
    "runtime": (
        "time_limit",
        "hang_timeout",
        "worker_timeout",
        "devices",
        "gpu_memory",
        "require_gpu",
    ),
    "export": (
        "enabled",
        "directory",
        "name",
        "precision",
        "batch_sizes",
        "calibrate",
        "formats",
        "tolerance",
        "keep",
    ),
    "log": ("progress", "bar", "quiet", "json", "tensorboard"),
}
# Options that a user may want to change: to train longer, to rescue a run that
# diverges, or to continue on another machine. The steps and variables of the
# checkpoints stay valid.
FORCEABLE: dict[str, tuple[str, ...]] = {
    "clean": ("manifest",),
    "source.options": ("path",),
    "train": (
        "epochs",
        "steps",
        "patience",
        "evaluate_every",
        "accumulate",
        "max_bad_steps",
        "on_bad_steps",
        "learning_rate",
        "schedule",
        "schedule_options",
        "callbacks",
        "global_clipnorm",
        "clipnorm",
        "clipvalue",
    ),
    "runtime": ("precision", "replicas", "xla", "deterministic"),
}
# Not a JSON value, so it differs from the value of every option.
_DEFAULT = ("default",)


@dataclasses.dataclass(frozen=True)
class Change:
    """An option whose value differs from the one the run started with."""

    flag: str
    original: str
    current: str
    can_be_forced: bool

    def __str__(self) -> str:
        return f"{self.flag} {self.original}, now {self.current}"


def changes(
    original: Mapping[str, Any],
    current: Mapping[str, Any],
    changeable: Collection[str] = (),
) -> list[Change]:
    """The options that differ between two configs, as JSON, and can change the
    result.

    `changeable` are options of the task that can be forced, too.
    """
    differences = []
    original_sections = _sections(original)
    forceable = {**FORCEABLE, "task.options": changeable}
    for section, values in _sections(current).items():
        original_values = original_sections.get(section, {})
        prefix = section.removesuffix(".options")
        for name in {**values, **original_values}:
            old = original_values.get(name, _DEFAULT)
            new = values.get(name, _DEFAULT)
            if old == new or name in HARMLESS.get(section, ()):
                continue
            flag = f"--{prefix}.{name}" if prefix else f"--{name}"
            can_be_forced = name in forceable.get(section, ())
            differences.append(
                Change(flag.replace("_", "-"), _words(old), _words(new), can_be_forced)
            )
    return differences


def _sections(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Options by section; "" is the top level, and `options` are a section of their
    own.
    """
    sections: dict[str, dict[str, Any]] = {"": {}}
    for name, part in values.items():
        if isinstance(part, dict) and name not in HARMLESS[""]:
            sections[name] = dict(part)
            sections[f"{name}.options"] = sections[name].pop("options", {})
        else:
            sections[""][name] = part
    return sections


def refusal(run: str, differences: list[Change]) -> str:
    """The error message for these changes: a line for each, and how to resume."""
    objects = []
    for change in differences:
        is_object = "<" in (change.original[0], change.current[0])
        if is_object and not change.can_be_forced:
            objects.append(change)
    if objects:
        names = ", ".join(f"{change.flag} {change.original}" for change in objects)
        return (
            f"{run} began with {names}; pass the same Python objects again to fit (a"
            " function with the same source), or choose another"
            " --run-directory"
        )
    remedy = "choose another --run-directory, or resume with its original options"
    if all(change.can_be_forced for change in differences):
        remedy = f"add --force to accept the changes, or {remedy}"
    rows = []
    for change in differences:
        flag = console.for_caller(change.flag)
        note = "--force accepts it" if change.can_be_forced else ""
        rows.append((flag, change.original, change.current, note))
    table = console.table(rows, ("option", "original", "now", ""))
    original = console.for_caller(
        f"its original options: {shlex.join(['--resume', run])}",
        f"its original options are in {run}/config.json",
    )
    first = f"{run} was started with other options; {remedy}"
    return f"{first}\n{textwrap.indent(table, '  ')}\n{original}"


def _words(value: Any) -> str:
    """A value as on a command line, shortened to a readable length."""
    text = " ".join(type_hints.words(value)) or "nothing"
    return text if len(text) <= 40 else f"{text[:37]}..."
