"""Every knob of a run: frozen dataclasses that check themselves, read from words and files.

A `Config` that exists is valid as far as can be known without TensorFlow and without the data:
names are on their shelves, options fit their siblings, numbers are in range. Field docstrings are
the help texts of the command line. The sections stand in `sections.py`.
"""

import dataclasses
import functools
import hashlib
import json
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import tyro

from pipeline.config import registry
from pipeline.config.resume_policy import HARMLESS
from pipeline.config.runtime_section import Runtime
from pipeline.config.sections import Clean, Data, Export, Log, Model, Train
from pipeline.config.source_section import Source
from pipeline.config.validation import Checked, require_file_name
from pipeline.utils import home
from pipeline.utils.errors import UsageError, suggest

__all__ = [
    "BELONGS",
    "Clean",
    "Config",
    "Data",
    "Export",
    "Log",
    "Model",
    "Runtime",
    "Source",
    "Train",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Checked):
    """One run, complete: the same Config, package and machine give the same weights."""

    recipe: tyro.conf.Suppress[str] = "custom"
    """The recipe this config started from; names the run directory and the model."""
    task: str = "image_classification"
    """image_classification, regression, or a dotted name (package.module) of your own."""
    run_directory: Path | None = None
    """Folder of the run. Given again: the run is resumed; None: the next free runs/RECIPE-N."""
    dry_run: bool = False
    """Try every stage once on a few examples, through export and verification; keep nothing."""
    force: bool = False
    """Resume a run although data or options have changed that a person may want to change, such as
    --train.epochs; without it the changes are shown."""
    source: Source
    clean: Clean = Clean()
    data: Data = Data()
    model: Model = Model()
    train: Train = Train()
    runtime: Runtime = Runtime()
    export: Export = Export()
    log: Log = Log()

    def _check(self) -> None:
        require_file_name(self.recipe, "the recipe's name")
        registry.check("tasks", self.task, self.data.task_options(), "--data.{}", entry="facts")
        if self.data.cache == "device" and self.data.augment_on == "host":
            raise UsageError(
                "--data.augment-on host never sees the examples of --data.cache device; "
                "leave one of them away"
            )
        if self.train.patience is not None and not self.data.validation:
            raise UsageError("--train.patience watches the validation loss; give --data.validation")
        if self.train.synchronized_batch_norm and self.runtime.xla == "on":
            raise UsageError(
                "--train.synchronized-batch-norm meets the other replicas in the forward pass, "
                "which --runtime.xla on cannot; leave one of them away"
            )
        if self.runtime.replicas != "auto":
            self.require_equal_parts(self.runtime.replicas)

    def require_equal_parts(self, replicas: int) -> None:
        """Raises UsageError unless each replica gets micro-batches of the same size."""
        batch_size, accumulate = self.train.batch_size, self.train.accumulate
        if batch_size % (replicas * accumulate):
            pieces = f" and {accumulate} micro-batches each" if accumulate > 1 else ""
            near = max(1, batch_size // (replicas * accumulate)) * replicas * accumulate
            raise UsageError(
                f"--train.batch-size {batch_size} cannot be cut into equal parts for {replicas} "
                f"replicas{pieces}; {near} can"
            )

    def changed(self, **changes: Any) -> Self:
        """A copy with other values: `config.changed(train={"epochs": 3}, dry_run=True)`.

        A section takes a mapping of its options; anything else replaces the value.
        Raises UsageError for unknown names and values out of range.
        """
        return _changed(self, changes, "")

    def as_json(self) -> dict[str, Any]:
        """Nested plain values, as `read` takes them back; `~` stands for the home folder."""
        return home.folded(json.loads(json.dumps(dataclasses.asdict(self), default=str)))

    def digest(self) -> str:
        """sha256 of everything that can change the result; 64 hexadecimal digits."""
        values = self.as_json()
        for section, names in HARMLESS.items():
            for name in names:
                del (values[section] if section else values)[name]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


# Options that belong to one sibling: another name on the left empties what stands on the right.
BELONGS = {
    "source.name": {
        **dict.fromkeys(("dataset", "path", "group", "image", "label")),
        **{"splits": {}, "class_names": ()},
    },
    "model.name": {"options": {}},
    "train.optimizer": {"optimizer_options": {}},
    "train.schedule": {"schedule_options": {}},
}


@functools.cache
def _hints(section: type) -> dict[str, Any]:
    return typing.get_type_hints(section)


def _changed(part: Any, changes: Mapping[str, Any], prefix: str) -> Any:
    known = [field.name for field in dataclasses.fields(part)]
    hints, values = _hints(type(part)), {}
    for name, value in changes.items():
        if value != getattr(part, name, value):
            changes = {**BELONGS.get(prefix + name, {}), **changes}
    for name, value in changes.items():
        if name not in known:
            raise UsageError(f"unknown option {prefix + name!r}; {suggest(name, known)}")
        current = getattr(part, name)
        nested = dataclasses.is_dataclass(current) and isinstance(value, Mapping)
        kinds = (hints[name], *typing.get_args(hints[name]))
        if isinstance(value, str) and Path in kinds:
            value = Path(value)
        if isinstance(value, list) and any(typing.get_origin(kind) is tuple for kind in kinds):
            value = tuple(value)
        values[name] = _changed(current, value, f"{prefix}{name}.") if nested else value
    return dataclasses.replace(part, **values)
