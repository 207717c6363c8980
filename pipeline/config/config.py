"""Every option of a run: frozen dataclasses that check themselves, from words, files or Python.

A `Config` that exists is valid as far as can be known without TensorFlow and without the data:
names are registered, options fit their functions, numbers are in range. Field docstrings are the
help texts of the command line. The sections are in `sections.py`.
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
from pipeline.config.sections import Clean, Data, Export, Log, Model, Runtime, Source, Task, Train
from pipeline.config.validation import Checked, require_file_name
from pipeline.utils import files
from pipeline.utils.errors import UsageError, suggest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Checked):
    """One run, complete: the same Config, package and machine give the same weights."""

    recipe: tyro.conf.Suppress[str] = "custom"
    """The recipe this config started from; names the run directory and the model."""
    run_directory: Path | None = None
    """Folder of the run. Given again: the run is resumed; None: the next free runs/RECIPE-N."""
    dry_run: bool = False
    """Try every stage once on a few examples, through export and verification; keep nothing."""
    force: bool = False
    """Resume a run although data or options have changed that a person may want to change, such as
    --train.epochs; without it the changes are shown."""
    source: Source
    # Made when they are needed: what they find wrong in a registry is told by the command.
    task: Task = dataclasses.field(default_factory=Task)
    clean: Clean = dataclasses.field(default_factory=Clean)
    data: Data = dataclasses.field(default_factory=Data)
    model: Model = dataclasses.field(default_factory=Model)
    train: Train = dataclasses.field(default_factory=Train)
    runtime: Runtime = dataclasses.field(default_factory=Runtime)
    export: Export = dataclasses.field(default_factory=Export)
    log: Log = dataclasses.field(default_factory=Log)

    def _check(self) -> None:
        require_file_name(self.recipe, "the recipe's name")
        if self.data.image_size is not None:  # passed on to the task
            options = {**self.task.options, "image_size": self.data.image_size}
            registry.check("tasks", self.task.name, options, "--data.image-size")
        if self.data.cache == "device" and self.data.augment_on == "host":
            raise UsageError(
                "--data.augment-on host never sees the examples of --data.cache device; "
                "use only one of them"
            )
        if self.train.patience is not None and not self.data.validation:
            raise UsageError("--train.patience watches the validation loss; give --data.validation")
        if self.train.synchronized_batch_norm and self.runtime.xla == "on":
            raise UsageError(
                "--train.synchronized-batch-norm synchronizes replicas in the forward pass, "
                "which --runtime.xla on cannot; use only one of them"
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
        return files.collapse_home(json.loads(json.dumps(dataclasses.asdict(self), default=str)))

    def digest(self) -> str:
        """sha256 of everything that can change the result; 64 hexadecimal digits."""
        values = self.as_json()
        for section, names in HARMLESS.items():
            for name in names:
                del (values[section] if section else values)[name]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


# Options that belong to one registered function: another name on the left empties the right.
BELONGS = {
    "source.name": ("options", {}),
    "task.name": ("options", {}),
    "model.name": ("options", {}),
    "train.optimizer": ("optimizer_options", {}),
    "train.schedule": ("schedule_options", {}),
    "train.loss": ("loss_options", {}),
}


@functools.cache
def _hints(section: type) -> dict[str, Any]:
    return typing.get_type_hints(section)


def _changed(part: Any, changes: Mapping[str, Any], prefix: str) -> Any:
    known = [field.name for field in dataclasses.fields(part)]
    hints = _hints(type(part))
    values: dict[str, Any] = {}
    for name, value in changes.items():
        owned = BELONGS.get(prefix + name)
        if owned and value != getattr(part, name):
            values[owned[0]] = owned[1]
    for name, value in changes.items():
        if name not in known and "options" not in known:
            raise UsageError(f"unknown option {prefix + name!r}; {suggest(name, known)}")
        if name not in known:  # an option of the registered function
            options = values.get("options", part.options)
            values["options"] = {**options, name: value}
            continue
        current = getattr(part, name)
        section = dataclasses.is_dataclass(current)
        if section and isinstance(value, str) and hasattr(current, "name"):
            value = {"name": value}
        nested = section and isinstance(value, Mapping)
        kinds = (hints[name], *typing.get_args(hints[name]))
        if isinstance(value, str) and Path in kinds:
            value = Path(value)
        if isinstance(value, list) and any(typing.get_origin(kind) is tuple for kind in kinds):
            value = tuple(value)
        values[name] = _changed(current, value, f"{prefix}{name}.") if nested else value
    return dataclasses.replace(part, **values)
