"""The sections of a config: what can be said of data, model, training, machine, export."""

import dataclasses
import os
from pathlib import Path
from typing import Any, Literal

from pipeline.config import registry
from pipeline.config.validation import Checked, require, require_file_name
from pipeline.config.words import Operations, Options
from pipeline.utils.errors import UsageError, one_line


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clean(Checked):
    """Which examples are left out."""

    enabled: bool = False
    """Look for unfit examples before training, as `python -m pipeline.clean` does."""
    manifest: Path | None = None
    """JSON lines with id, reason and action; examples whose action is `drop` are left out."""
    allow_leakage: bool = False
    """Go on although a picture stands in two splits; it is only listed."""
    drop_leakage: bool = False
    """Leave the copy out that is not held out: validation goes before train, test before both."""
    near: bool = True
    """Look for near duplicates, too: re-encoded, resized, mirrored, moved by a pixel. Of those that
    a division of train would put into several splits the held-out ones are kept."""
    directory: Path | None = None
    """Folder for the manifest and the gallery of the command; None: the next free
    cleaned/RECIPE-N."""

    def _check(self) -> None:
        if self.manifest is not None and not os.path.isfile(self.manifest):
            raise UsageError(f"--clean.manifest: {self.manifest} is no file")
        if self.allow_leakage and self.drop_leakage:
            raise UsageError("--clean.allow-leakage and --clean.drop-leakage exclude each other")
        if self.enabled and self.manifest is not None:
            raise UsageError(
                "--clean.enabled makes a manifest of its own; leave --clean.manifest away"
            )


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
    """Seed of these parts and of the sample of `limit`; not the run's seed, so that runs are tested
    on the same examples."""
    splits: Path | None = None
    """Folder of an earlier run, or its splits.npz: its examples stay in their splits, and only new
    ones are divided."""
    limit: int | None = None
    """Use at most this many examples of each split of the source: a sample that has every class."""
    cache: Literal["auto", "device", "memory", "disk", "none"] = "auto"
    """Where decoded examples are kept; auto: on the GPU, in memory or on the disk, the first where
    they fit, else they are decoded anew in each epoch."""
    cache_directory: Path | None = None
    """Folder of the disk cache, which later runs find again; None: $XDG_CACHE_HOME/pipeline, else
    ~/.cache/pipeline. It may be deleted whenever no run uses it."""
    augment: Operations = dataclasses.field(default_factory=dict)
    """Random changes in training, in this order, such as `flip crop padding=4`;
    there are affine, alternating_flip, color_jitter, crop, cutmix, erase, flip, mixup,
    rand_augment, random_resized_crop."""
    augment_on: Literal["auto", "host", "device"] = "auto"
    """Where they are done, to the same bits: by `tf.data` on the host, or on the device inside the
    compiled step; auto: device, as a CPU is no faster the other way."""

    @property
    def cache_folder(self) -> Path:
        """Of the disk cache: the one that was given, else the user's own for caches."""
        if self.cache_directory is not None:
            return self.cache_directory
        return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "pipeline")

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
            registry.check("augment", name, options, "--data.augment: {}")
        if {"cutmix", "mixup"} <= set(self.augment):
            raise UsageError("--data.augment: cutmix and mixup both mix labels; use only one")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model(Checked):
    """The network."""

    name: str = "convnet"
    """airbench, application, convnet, lenet, linear, resnet, sequential, tiny,
    or a dotted name (package.module) of your own."""
    options: Options = dataclasses.field(default_factory=dict)
    """Options of that model, such as `filters=32`."""

    def _check(self) -> None:
        registry.check("models", self.name, self.options, "--model.options {}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train(Checked):
    """How the model is trained."""

    epochs: int = 10
    """Passes over the training split."""
    steps: int | None = None
    """Stop after at most this many optimizer steps, skipped ones counted, even within an epoch."""
    batch_size: int = 32
    """Examples per optimizer step, over all replicas and micro-batches."""
    accumulate: int = 1
    """Micro-batches that each replica's part of a batch is cut into, to need less memory."""
    engine: Literal["model_fit", "gradient_tape"] = "model_fit"
    """Who drives the step: Keras's `fit` or a GradientTape loop."""
    steps_per_call: Literal["auto"] | int = "auto"
    """Steps in one call of the compiled function; auto: as many as take half a second."""
    optimizer: str = "sgd"
    """adam, adamw, lion, muon, nadam, sgd, or a dotted name (package.module.function) of your
    own."""
    optimizer_options: Options = dataclasses.field(default_factory=dict)
    """Options of that optimizer, such as `momentum=0.9`."""
    learning_rate: float = 0.01
    """Highest learning rate of the schedule."""
    learning_rate_batch_size: int | None = None
    """The batch size that the learning rate is meant for; another one scales it in proportion."""
    schedule: str = "constant"
    """constant, cosine, linear, polynomial, step, or a dotted name (package.module.function) of
    your own."""
    schedule_options: Options = dataclasses.field(default_factory=dict)
    """Options of that schedule: `warmup=0.1` rises over a tenth of the steps, step's `at=0.5,0.75`
    says where it drops."""
    weight_decay: float | None = None
    """Share of each weight that a step takes off, times the learning rate; not biases and norms."""
    l2: float = 0.0
    """Factor of the sum of squared weights in the loss; not biases and norms."""
    clip_norm: float | None = None
    """Scale the gradient down to this norm, over all weights together."""
    clip_variable_norm: float | None = None
    """Scale each weight tensor's gradient down to this norm."""
    clip_value: float | None = None
    """Cut each number of the gradient to plus or minus this."""
    clip_adaptive: float | None = None
    """Scale each unit's gradient down to this share of the unit's own weights, such as 0.01."""
    ema: float | None = None
    """Test and export the moving average of the weights, with this momentum, such as 0.999; it
    lags behind by about 1 / (1 - momentum) steps."""
    label_smoothing: float = 0.0
    """Share of each label that is spread over all classes."""
    class_weight: Options = dataclasses.field(default_factory=dict)
    """Factors of the loss by class name, such as `cat=2.0`."""
    freeze: tuple[str, ...] = ()
    """Layers that are not trained, by the beginning of their names."""
    freeze_epochs: int | None = None
    """Train the frozen layers too after this many epochs; None: never."""
    synchronized_batch_norm: bool = False
    """Normalise over the batches of all replicas together."""
    checkpoint_minutes: float = 10.0
    """Save within an epoch, too, when the last checkpoint is older. (At the end of an epoch it is
    saved unless that would take more than 2 % of the time.)"""
    checkpoint_steps: int | None = None
    """Save after every so many steps, too, at the end of the call."""
    patience: int | None = None
    """Stop after this many epochs without a lower validation loss, and take the best weights."""
    max_bad_steps: int = 10
    """Steps in a row without a finite loss and gradient that end training; fewer are skipped."""
    on_bad_steps: Literal["stop", "roll-back"] = "stop"
    """End it with exit code 4; or first, three times, try half the learning rate from the newest
    checkpoint on."""

    def _check(self) -> None:
        for name in (
            *("epochs", "batch_size", "steps", "patience", "accumulate", "steps_per_call"),
            *("freeze_epochs", "learning_rate_batch_size", "checkpoint_steps", "max_bad_steps"),
        ):
            value = getattr(self, name)
            good = value in (None, "auto") or 0 < value <= 10**9
            require(good, _flag(name), value, "at least 1 and at most 10**9")
        for name in ("learning_rate", "clip_norm", "clip_variable_norm", "clip_value"):
            value = getattr(self, name)
            good = value is None or 0 < value < 3e38
            require(good, _flag(name), value, "positive, and finite in float32")
        minutes = self.checkpoint_minutes
        good = 0 < minutes <= 10**6
        require(good, "--train.checkpoint-minutes", minutes, "positive and at most 10**6")
        for name in ("weight_decay", "l2"):
            value = getattr(self, name)
            good = value is None or 0 <= value < 3e38
            require(good, _flag(name), value, "at least 0, and finite in float32")
        for name in ("ema", "label_smoothing", "clip_adaptive"):
            value = getattr(self, name)
            require(value is None or 0 <= value < 1, _flag(name), value, "at least 0 and below 1")
        for name, value in self.class_weight.items():
            good = (
                isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1e6
            )
            flag = f"--train.class-weight {one_line(name)}"
            require(good, flag, repr(value), "a number from 0 to 1e6")
        clips = [n for n in _CLIPS if getattr(self, n) is not None]
        if len(clips) > 1:
            raise UsageError(f"{_flag(clips[0])} and {_flag(clips[1])} exclude each other")
        if self.freeze_epochs is not None and not self.freeze:
            raise UsageError("--train.freeze-epochs says when --train.freeze ends; give both")
        if self.freeze_epochs is not None and self.freeze_epochs >= self.epochs:
            raise UsageError(
                f"--train.freeze-epochs {self.freeze_epochs} never comes in --train.epochs "
                f"{self.epochs}; lower it, or leave it away"
            )
        if self.synchronized_batch_norm and self.accumulate > 1:
            raise UsageError(
                "--train.synchronized-batch-norm cannot meet the other replicas between the "
                "micro-batches of --train.accumulate; leave one of them away"
            )
        if self.batch_size % self.accumulate:
            raise UsageError(
                f"--train.batch-size {self.batch_size} cannot be cut into "
                f"--train.accumulate {self.accumulate} equal parts"
            )
        for kind in ("optimizer", "schedule"):
            options = getattr(self, f"{kind}_options")
            registry.check(f"{kind}s", getattr(self, kind), options, f"--train.{kind}-options {{}}")


_CLIPS = ("clip_norm", "clip_variable_norm", "clip_value", "clip_adaptive")


def _flag(name: str) -> str:
    return f"--train.{name.replace('_', '-')}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Export(Checked):
    """The hand-off to TF Serving."""

    enabled: bool = True
    """Write and verify a SavedModel at the end of the run."""
    directory: Path = Path("saved_models")
    """Folder of all models; this one becomes DIRECTORY/NAME/VERSION."""
    name: str | None = None
    """Name of the model; None: the name of the recipe."""
    precision: Literal["float32", "float16", "bfloat16"] = "float32"
    """What its layers compute in; weights and answers are float32. 16 bits are for servers whose
    devices are fast in them, and change the answers a little."""
    batch_sizes: tuple[int, ...] = (1, 8, 64)
    """Rows of requests that the server is warmed up for, and that it joins requests to."""
    calibrate: bool = True
    """Divide the logits by a temperature that makes the probabilities of the validation split true
    on the average."""
    tolerance: float | None = None
    """Publish only if the test's accuracy, or r2 of a regression, is at most this much worse than
    that of the version which is served; None: whatever it is."""
    keep: int | None = None
    """Delete all but so many of the newest versions, and the pinned one; None: keep all."""

    def _check(self) -> None:
        if self.name is not None:
            require_file_name(self.name, "--export.name")
            good = ":" not in self.name and self.name[0] != "."  # which a list of files hides
            meant = "a name without a colon and with no dot in front"
            require(good, "--export.name", repr(self.name), meant)
        sizes = self.batch_sizes
        good = 0 < len(sizes) <= 100 and min(sizes) > 0 and max(sizes) <= 65536
        meant = "1 to 100 sizes of at least 1 and at most 65536"
        require(good, "--export.batch-sizes", " ".join(map(str, sizes)) or "none", meant)
        tolerance, keep = self.tolerance, self.keep
        good = tolerance is None or 0 <= tolerance < 3e38
        require(good, "--export.tolerance", tolerance, "at least 0, and finite")
        good = keep is None or 0 < keep <= 10**6
        require(good, "--export.keep", keep, "at least 1 and at most 10**6")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Log(Checked):
    """What is shown and written along the way."""

    progress: bool = True
    """Print one line per epoch."""
    tensorboard: bool = True
    """Write scalars for TensorBoard into the run directory."""
