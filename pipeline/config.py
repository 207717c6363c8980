"""Every knob of a run: frozen dataclasses that check themselves, read from words and files.

A `Config` that exists is valid as far as can be known without TensorFlow and without the data:
names are on their shelves, options fit their siblings, numbers are in range. Field docstrings are
the help texts of the command line.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import tyro

from pipeline import shelf
from pipeline.checked import Checked, require, require_file_name
from pipeline.errors import UsageError, suggest
from pipeline.words import Operations, Options


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source(Checked):
    """Where the examples come from."""

    name: str = "tfds"
    """arrays, scikit_learn, tfds, or a dotted name (package.module) of your own."""
    dataset: str | None = None
    """Which data set of the source: a TensorFlow Datasets builder, or `digits` of scikit-learn."""
    path: Path | None = None
    """TensorFlow Datasets' data_dir, or an `.npz` file with the keys `images` and `labels`."""

    def options(self) -> dict[str, Any]:
        """The keyword arguments for the sibling."""
        given = {"dataset": self.dataset, "path": self.path}
        return {name: value for name, value in given.items() if value is not None}

    def _check(self) -> None:
        shelf.check("sources", self.name, self.options(), "--source.{}")
        if self.path is not None and not os.path.exists(self.path):  # Path.exists() may raise
            raise UsageError(f"--source.path: {self.path} does not exist")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clean(Checked):
    """Which examples are left out."""

    manifest: Path | None = None
    """JSON lines with id, reason and action; examples whose action is `drop` are left out."""

    def _check(self) -> None:
        if self.manifest is not None and not os.path.isfile(self.manifest):
            raise UsageError(f"--clean.manifest: {self.manifest} is no file")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data(Checked):
    """How examples become batches."""

    image_size: tuple[int, int] | None = None
    """Height and width that every image is resized to; None: the size that all images share."""
    validation: float = 0.1
    """Share of train that is held out for validation, where the source has no such split."""
    test: float = 0.2
    """Share of train that is held out for the test, where the source has no such split."""
    split_seed: int = 0
    """Seed of these parts; not the run's seed, so that runs are tested on the same examples."""
    limit: int | None = None
    """Read at most this many examples of each split of the source."""
    cache: Literal["auto", "memory"] = "auto"
    """Where decoded examples are kept; auto checks that they fit into the free memory."""
    augment: Operations = dataclasses.field(default_factory=dict)
    """Random changes in training, in this order, such as `flip crop padding=4`."""

    def task_options(self) -> dict[str, Any]:
        """Keyword arguments for the task's facts."""
        return {} if self.image_size is None else {"image_size": self.image_size}

    def _check(self) -> None:
        for name in ("validation", "test"):
            share = getattr(self, name)
            require(0 <= share < 1, f"--data.{name}", share, "at least 0 and below 1")
        held_out = self.validation + self.test
        require(held_out < 1, "--data.validation plus --data.test", held_out, "below 1")
        require(self.limit is None or self.limit > 0, "--data.limit", self.limit, "at least 1")
        size = self.image_size
        good = size is None or (min(size) > 0 and max(size) <= 16384)
        require(good, "--data.image-size", size, "at least 1 and at most 16384")
        seed = self.split_seed
        require(0 <= seed < 2**31, "--data.split-seed", seed, "at least 0 and below 2**31")
        for name, options in self.augment.items():
            shelf.check("augment", name, options, "--data.augment: {}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model(Checked):
    """The network."""

    name: str = "convnet"
    """airbench, application, convnet, lenet, linear, resnet, sequential, tiny,
    or a dotted name (package.module) of your own."""
    options: Options = dataclasses.field(default_factory=dict)
    """Options of that model, such as `filters=32`."""

    def _check(self) -> None:
        shelf.check("models", self.name, self.options, "--model.options {}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train(Checked):
    """How the model is trained."""

    epochs: int = 10
    """Passes over the training split."""
    steps: int | None = None
    """Stop after at most this many optimizer steps, skipped ones counted, even within an epoch."""
    batch_size: int = 32
    """Images per optimizer step, over all replicas and micro-batches."""
    engine: Literal["model_fit", "gradient_tape"] = "model_fit"
    """Who drives the step: Keras's `fit` or a GradientTape loop."""
    optimizer: str = "sgd"
    """adam, sgd, or a dotted name (package.module.function) of your own."""
    optimizer_options: Options = dataclasses.field(default_factory=dict)
    """Options of that optimizer, such as `momentum=0.9`."""
    learning_rate: float = 0.01
    """Highest learning rate of the schedule."""
    schedule: str = "constant"
    """constant, cosine, or a dotted name (package.module.function) of your own."""
    schedule_options: Options = dataclasses.field(default_factory=dict)
    """Options of that schedule: `warmup=0.1` rises over a tenth of the steps."""
    patience: int | None = None
    """Stop after this many epochs without a lower validation loss, and take the best weights."""

    def _check(self) -> None:
        for name in ("epochs", "batch_size", "steps", "patience"):
            value, flag = getattr(self, name), f"--train.{name.replace('_', '-')}"
            require(
                value is None or 0 < value <= 10**9, flag, value, "at least 1 and at most 10**9"
            )
        rate = self.learning_rate
        require(0 < rate < float("inf"), "--train.learning-rate", rate, "positive and finite")
        for kind in ("optimizer", "schedule"):
            options = getattr(self, f"{kind}_options")
            shelf.check(f"{kind}s", getattr(self, kind), options, f"--train.{kind}-options {{}}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Runtime(Checked):
    """What the run may use of the machine."""

    precision: Literal["auto", "float32", "mixed_float16", "mixed_bfloat16"] = "auto"
    """Number format of the layers' arithmetic; weights are float32 in each."""
    replicas: int = 1
    """Copies of the model that share each batch; without GPUs they are logical CPU devices."""
    seed: int = 0
    """Initial weights, order of the examples, augmentation, dropout."""

    def _check(self) -> None:
        require(self.replicas > 0, "--runtime.replicas", self.replicas, "at least 1")
        require(0 <= self.seed < 2**31, "--runtime.seed", self.seed, "at least 0 and below 2**31")
        if self.replicas > 1:
            raise UsageError(f"--runtime.replicas {self.replicas}: more than 1 is not there yet")
        if self.precision == "mixed_float16":
            raise UsageError(
                "--runtime.precision mixed_float16 is not there yet (it needs loss scaling); "
                "use mixed_bfloat16"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Export(Checked):
    """The hand-off to TF Serving."""

    enabled: bool = True
    """Write and verify a SavedModel at the end of the run."""
    directory: Path = Path("saved_models")
    """Folder of all models; this one becomes DIRECTORY/NAME/VERSION."""
    name: str | None = None
    """Name of the model; None: the name of the recipe."""

    def _check(self) -> None:
        if self.name is not None:
            require_file_name(self.name, "--export.name")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Log(Checked):
    """What is shown and written along the way."""

    progress: bool = True
    """Print one line per epoch."""
    tensorboard: bool = True
    """Write scalars for TensorBoard into the run directory."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Checked):
    """One run, complete: the same Config, package and machine give the same weights."""

    recipe: tyro.conf.Suppress[str] = "custom"
    """The recipe this config started from; names the run directory and the model."""
    task: str = "image_classification"
    """What the problem is: image_classification."""
    run_directory: Path | None = None
    """Folder of the run. Given again: the run is resumed; None: the next free runs/RECIPE-N."""
    dry_run: bool = False
    """Try every stage once on a few examples, through export and verification; keep nothing."""
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
        shelf.check("tasks", self.task, self.data.task_options(), "--data.{}", entry="facts")
        if self.train.patience is not None and not self.data.validation:
            raise UsageError("--train.patience watches the validation loss; give --data.validation")

    def changed(self, **changes: Any) -> Self:
        """A copy with other values: `config.changed(train={"epochs": 3}, dry_run=True)`.

        A section takes a mapping of its options; anything else replaces the value.
        Raises UsageError for unknown names and values out of range.
        """
        return _changed(self, changes, "")

    def as_json(self) -> dict[str, Any]:
        """Nested plain values, as `read` takes them back."""
        return json.loads(json.dumps(dataclasses.asdict(self), default=str))

    def digest(self) -> str:
        """sha256 of everything that can change the result; 64 hexadecimal digits."""
        values = self.as_json()
        for name in ("run_directory", "log", "export"):
            del values[name]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


# Options that belong to one sibling: another name on the left empties what stands on the right.
BELONGS = {
    "source.name": {"dataset": None, "path": None},
    "model.name": {"options": {}},
    "train.optimizer": {"optimizer_options": {}},
    "train.schedule": {"schedule_options": {}},
}


def _changed(part: Any, changes: Mapping[str, Any], prefix: str) -> Any:
    known = [field.name for field in dataclasses.fields(part)]
    values = {}
    for name, value in changes.items():
        if value != getattr(part, name, value):
            changes = {**BELONGS.get(prefix + name, {}), **changes}
    for name, value in changes.items():
        if name not in known:
            raise UsageError(f"unknown option {prefix + name!r}; {suggest(name, known)}")
        current = getattr(part, name)
        nested = dataclasses.is_dataclass(current) and isinstance(value, Mapping)
        is_path = isinstance(value, str) and name in (
            "path",
            "manifest",
            "directory",
            "run_directory",
        )
        value = Path(value) if is_path else value
        value = tuple(value) if isinstance(value, list) and name == "image_size" else value
        values[name] = _changed(current, value, f"{prefix}{name}.") if nested else value
    return dataclasses.replace(part, **values)
