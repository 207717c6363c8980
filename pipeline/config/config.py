"""Every option of a run, as frozen dataclasses that validate themselves.

A `Config` is valid as far as this can be checked without TensorFlow and the data: names
are registered, options fit their functions, numbers are in range. The docstrings of the
fields are the help texts of the command line. The sections are in `sections.py`.
"""

import dataclasses
import hashlib
import json
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pipeline.config import objects, registry, type_hints
from pipeline.config.resume_policy import HARMLESS
from pipeline.config.sections import (
    CleanConfig,
    DataConfig,
    ExportConfig,
    LogConfig,
    ModelConfig,
    RuntimeConfig,
    SourceConfig,
    TaskConfig,
    TrainConfig,
)
from pipeline.config.validation import Checked, only_one
from pipeline.utils.errors import UsageError, suggest

RUNS = Path("runs")
"""Parent of the run directories."""
FORMAT = 1
"""Version of the files in a run directory; increase it when older runs cannot be
resumed.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Checked):
    """Describes a run completely: the same Config, package and machine produce the same
    weights.
    """

    recipe: Annotated[str, "file name"] = dataclasses.field(
        default="custom", metadata={"hidden": True}
    )
    """The recipe this config started from."""
    reasons: dict[str, str] = dataclasses.field(
        default_factory=dict, metadata={"hidden": True}
    )
    """Options that were chosen for the data and the machine, such as `train.epochs`,
    and why.
    """
    run_directory: Path | None = None
    """Directory of the run. If it already contains a run, the run is resumed; None: the
    next free runs/NAME-N.
    """
    dry_run: bool = False
    """Try every stage on a few examples, including export and verification, and keep
    nothing.
    """
    force: bool = False
    """Resume a run even if the data, or options such as --train.epochs, have changed;
    otherwise the command lists the changes and stops.
    """
    source: SourceConfig
    # Factories, so that a mistake in a registry is an error of the command, not of this
    # import.
    task: TaskConfig = dataclasses.field(default_factory=TaskConfig)
    clean: CleanConfig = dataclasses.field(default_factory=CleanConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    runtime: RuntimeConfig = dataclasses.field(default_factory=RuntimeConfig)
    export: ExportConfig = dataclasses.field(default_factory=ExportConfig)
    log: LogConfig = dataclasses.field(default_factory=LogConfig)

    def _check(self) -> None:
        if self.data.image_size is not None:
            self._check_image_size()
        only_one(
            {
                "--data.cache device": self.data.cache == "device",
                "--data.augment-on host": self.data.augment_on == "host",
            }
        )
        if self.train.patience is not None and not self.data.validation:
            raise UsageError(
                "--train.patience monitors the validation loss; set --data.validation"
                " above 0, or --train.patience None"
            )
        only_one(
            {
                "--data.folds": self.data.folds,
                "--runtime.time-limit": self.runtime.time_limit,
            }
        )
        synchronized = self.train.synchronized_batch_norm
        only_one(
            {
                "--train.synchronized-batch-norm": synchronized,
                "--runtime.xla on": self.runtime.xla == "on",
            }
        )
        if self.runtime.replicas != "auto":
            self.require_equal_parts(self.runtime.replicas)

    @property
    def name(self) -> str:
        """The name of the exported model, also used for directories."""
        return self.export.name or self.recipe

    def _check_image_size(self) -> None:
        """Raises UsageError unless the task or its input takes a size."""
        task = self.task
        size = {"image_size": self.data.image_size}
        flag = "--data.image-size"
        if task.name != "supervised":
            registry.check("tasks", task.name, {**task.options, **size}, flag)
        elif task.input is not None:
            registry.check("inputs", task.input, {**task.input_options, **size}, flag)

    def require_equal_parts(self, replicas: int) -> None:
        """Raises UsageError unless the batch divides into equal micro-batches for each
        replica.
        """
        batch_size = self.train.batch_size
        accumulate = self.train.accumulate
        parts = replicas * accumulate
        if batch_size % parts == 0:
            return
        micro_batches = ""
        if accumulate > 1:
            micro_batches = f" and {accumulate} micro-batches each"
        nearest = max(1, batch_size // parts) * parts
        raise UsageError(
            f"--train.batch-size {batch_size} cannot be split into equal parts for"
            f" {replicas} replicas{micro_batches}; {nearest} can"
        )

    def changed(self, **changes: Any) -> Self:
        """A copy with other values: `config.changed(train={"epochs": 3},
        dry_run=True)`.

        A mapping changes options of a section; any other value replaces the old one.
        `export=False` is short for `export={"enabled": False}`.
        Raises UsageError for unknown names and invalid values.
        """
        return _replace(self, changes, "")

    def as_json(self) -> dict[str, Any]:
        """Nested plain values and the `FORMAT` of a run, which `read` can load."""
        values = {"format": FORMAT, **dataclasses.asdict(self)}
        return json.loads(json.dumps(values, default=str))

    def digest(self) -> str:
        """sha256 of everything that can change the result, in hexadecimal digits."""
        values = self.as_json()
        for section, names in HARMLESS.items():
            for name in names:
                del (values[section] if section else values)[name]
        # The initial weights of a network of the user; a checkpoint replaces them.
        values["weights"] = getattr(self.model.name, "weights", "")
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _replace(part: Any, changes: Mapping[str, Any], prefix: str) -> Any:
    """A copy of a config, or of a section, with other values; see `Config.changed`."""
    hints = typing.get_type_hints(type(part), include_extras=True)
    values: dict[str, Any] = {}
    changes = {
        name: type_hints.plain(objects.names_of(hints.get(name), value))
        for name, value in changes.items()
    }
    for name, value in changes.items():
        # Options belong to a registered function: another name discards them.
        options_field = "options" if name == "name" else f"{name}_options"
        if options_field in hints and value != getattr(part, name):
            values[options_field] = {}
    for name, value in changes.items():
        if name not in hints:
            if "options" not in hints:
                raise UsageError(
                    f"unknown option {prefix + name!r}; {suggest(name, hints)}"
                )
            # An option of the registered function.
            options = values.get("options", part.options)
            values["options"] = {**options, name: value}
            continue
        current = getattr(part, name)
        if not dataclasses.is_dataclass(current):
            values[name] = type_hints.from_json(hints[name], value)
            continue
        if isinstance(value, bool) and hasattr(current, "enabled"):
            value = {"enabled": value}
        elif hasattr(current, "name") and type(value) not in (dict, type(current)):
            value = {"name": value}
        if isinstance(value, Mapping):
            value = _replace(current, value, f"{prefix}{name}.")
        values[name] = value
    return dataclasses.replace(part, **values)
