"""The sections of a config: every option of data, model, training, machine and export.

The docstring under a field is its help text. Limits are part of the type: see `type_hints`.
"""

import dataclasses
import os
from pathlib import Path
from typing import Annotated, Literal

from pipeline.config import registry
from pipeline.config.registry import named
from pipeline.config.validation import (
    Checked,
    Operations,
    Options,
    parse_duration,
    require,
    require_file_name,
    require_gpu_options,
)
from pipeline.utils.errors import UsageError, one_line

Count = Annotated[int, (1, 10**9)]
Seed = Annotated[int, "seed"]
Share = Annotated[float, "share"]
Positive = Annotated[float, "positive"]
NotNegative = Annotated[float, "not negative"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source(Checked):
    """Where the examples come from."""

    name: Annotated[str, named("sources")] = "tfds"
    """The kind of source."""
    options: Options = dataclasses.field(default_factory=dict)
    """Options of that source; `--source.path DIR` is the same as `--source.options path=DIR`."""

    @property
    def path(self) -> Path | None:
        """Where the data are stored, if the source has the option `path`."""
        return Path(self.options["path"]) if self.options.get("path") is not None else None

    @property
    def title(self) -> str:
        """What to call the data in a message."""
        return str(self.options.get("dataset") or self.path or self.name)

    def _check(self) -> None:
        registry.check("sources", self.name, self.options, "--source.{}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(Checked):
    """What the problem is."""

    name: Annotated[str, named("tasks")] = "image_classification"
    """The kind of problem."""
    options: Options = dataclasses.field(default_factory=dict)
    """Options of that task."""

    def _check(self) -> None:
        registry.check("tasks", self.name, self.options, "--task.{}")


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
            raise UsageError(f"--clean.manifest: {self.manifest} is not a file")
        if self.allow_leakage and self.drop_leakage:
            raise UsageError("use only one of --clean.allow-leakage and --clean.drop-leakage")
        if self.enabled and self.manifest is not None:
            raise UsageError(
                "--clean.enabled makes its own manifest; use only one of it and --clean.manifest"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data(Checked):
    """How examples become batches."""

    image_size: tuple[Annotated[int, (1, 16384)], Annotated[int, (1, 16384)]] | None = None
    """Height and width that every image is resized to; None: the size that all images share."""
    validation: Share = 0.1
    """Share of train that is held out for validation if the source has no such split."""
    test: Share = 0.2
    """Share of train that is held out for the test if the source has no such split."""
    split_seed: Seed = 0
    """Seed of these parts and of the sample of `limit`; not the run's seed, so that runs are tested
    on the same examples."""
    splits: Path | None = None
    """Folder of an earlier run, or its splits.npz: its examples stay in their splits, and only new
    ones are divided."""
    limit: Count | None = None
    """Use at most this many examples of each split of the source: a sample that has every class."""
    cache: Literal["auto", "device", "memory", "disk", "none"] = "auto"
    """Where decoded examples are kept; auto: on the GPU, in memory or on disk, the first where
    they fit, else they are decoded again in each epoch."""
    cache_directory: Path | None = None
    """Folder of the disk cache, which later runs find again; None: $XDG_CACHE_HOME/pipeline, else
    ~/.cache/pipeline. It may be deleted whenever no run uses it."""
    augment: Annotated[Operations, named("augment")] = dataclasses.field(default_factory=dict)
    """Random changes in training, in this order, such as `flip crop padding=4`."""
    augment_on: Literal["auto", "host", "device"] = "auto"
    """Where images are augmented, with the same result: by `tf.data` on the host, or in the
    compiled step on the device; auto: device, as a CPU is no faster the other way."""

    @property
    def cache_folder(self) -> Path:
        """Of the disk cache: the given one, else the user's cache folder."""
        if self.cache_directory is not None:
            return self.cache_directory
        return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "pipeline")

    def _check(self) -> None:
        held_out = self.validation + self.test
        require(held_out < 1, "--data.validation plus --data.test", held_out, "below 1")
        for name, options in self.augment.items():
            registry.check("augment", name, options, "--data.augment: {}")
        if {"cutmix", "mixup"} <= set(self.augment):
            raise UsageError("--data.augment: cutmix and mixup both mix labels; use only one")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model(Checked):
    """The network."""

    name: Annotated[str, named("models")] = "convnet"
    """The architecture."""
    options: Options = dataclasses.field(default_factory=dict)
    """Options of that model; `--model.filters 32` is the same as `--model.options filters=32`."""

    def _check(self) -> None:
        registry.check("models", self.name, self.options, "--model.{}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train(Checked):
    """How the model is trained."""

    epochs: Count = 10
    """Passes over the training split."""
    steps: Count | None = None
    """Stop after at most this many optimizer steps, including skipped ones, even within an
    epoch."""
    batch_size: Count = 32
    """Examples per optimizer step, over all replicas and micro-batches."""
    accumulate: Count = 1
    """Micro-batches that each replica's part of a batch is split into, to need less memory."""
    engine: Annotated[str, named("engines")] = "model_fit"
    """What runs the training loop: Keras's `fit` or a GradientTape loop."""
    steps_per_call: Literal["auto"] | Count = "auto"
    """Steps in one call of the compiled function; auto: as many as take half a second."""
    optimizer: Annotated[str, named("optimizers")] = "sgd"
    """The optimizer."""
    optimizer_options: Options = dataclasses.field(default_factory=dict)
    """Options of that optimizer, such as `momentum=0.9`."""
    learning_rate: Positive = 0.01
    """Highest learning rate of the schedule."""
    learning_rate_batch_size: Count | None = None
    """The batch size that the learning rate is meant for; another one scales it in proportion."""
    schedule: Annotated[str, named("schedules")] = "constant"
    """The learning rate schedule."""
    schedule_options: Options = dataclasses.field(default_factory=dict)
    """Options of that schedule: `warmup=0.1` rises over a tenth of the steps, `at=0.5,0.75` of
    step says where it drops."""
    loss: Annotated[str | None, named("losses")] = None
    """The training loss; None: the one of the task."""
    loss_options: Options = dataclasses.field(default_factory=dict)
    """Options of that loss."""
    metrics: Annotated[Operations, named("metrics")] = dataclasses.field(default_factory=dict)
    """Metrics beside those of the task, such as `top_k_accuracy k=3`."""
    callbacks: Annotated[Operations, named("callbacks")] = dataclasses.field(default_factory=dict)
    """Callbacks beside those of every run."""
    weight_decay: NotNegative | None = None
    """Share of each weight that a step removes, times the learning rate; not of biases and
    normalization layers."""
    l2: NotNegative = 0.0
    """Factor of the sum of squared weights in the loss; not of biases and normalization layers."""
    clip_norm: Positive | None = None
    """Scale the gradient down to this norm, over all weights together."""
    clip_variable_norm: Positive | None = None
    """Scale the gradient of each weight tensor down to this norm."""
    clip_value: Positive | None = None
    """Clip each number of the gradient to plus or minus this value."""
    clip_adaptive: Share | None = None
    """Scale the gradient of each unit down to this share of the unit's weights, such as 0.01."""
    ema: Share | None = None
    """Test and export the moving average of the weights, with this momentum, such as 0.999; it
    lags behind by about 1 / (1 - momentum) steps."""
    label_smoothing: Share = 0.0
    """Share of each label that is spread over all classes."""
    class_weight: Options = dataclasses.field(default_factory=dict)
    """Factors of the loss by class name, such as `cat=2.0`."""
    freeze: tuple[str, ...] = ()
    """Layers that are not trained, by the beginning of their names."""
    freeze_epochs: Count | None = None
    """Train the frozen layers too after this many epochs; None: never."""
    synchronized_batch_norm: bool = False
    """Normalize over the batches of all replicas together."""
    checkpoint_minutes: Annotated[float, "positive"] = 10.0
    """Save within an epoch, too, when the last checkpoint is older. (At the end of an epoch a
    checkpoint is saved unless that would take more than 2 % of the time.)"""
    checkpoint_steps: Count | None = None
    """Save after this many steps, too, at the end of the call."""
    patience: Count | None = None
    """Stop after this many epochs without a lower validation loss, and use the best weights."""
    max_bad_steps: Count = 10
    """Steps in a row without a finite loss and gradient that end training; fewer are skipped."""
    on_bad_steps: Literal["stop", "roll-back"] = "stop"
    """End training with exit code 4; or first, three times, try half the learning rate from the
    latest checkpoint."""

    def _check(self) -> None:
        for name, value in self.class_weight.items():
            good = isinstance(value, int | float) and not isinstance(value, bool)
            flag = f"--train.class-weight {one_line(name)}"
            require(good and 0 <= value <= 1e6, flag, repr(value), "a number from 0 to 1e6")
        clips = [n for n in _CLIPS if getattr(self, n) is not None]
        if len(clips) > 1:
            raise UsageError(f"use only one of {_flag(clips[0])} and {_flag(clips[1])}")
        if self.freeze_epochs is not None and not self.freeze:
            raise UsageError("--train.freeze-epochs ends --train.freeze; give both")
        if self.freeze_epochs is not None and self.freeze_epochs >= self.epochs:
            raise UsageError(
                f"--train.freeze-epochs {self.freeze_epochs} is never reached in --train.epochs "
                f"{self.epochs}; lower it, or remove it"
            )
        if self.synchronized_batch_norm and self.accumulate > 1:
            raise UsageError(
                "--train.synchronized-batch-norm cannot synchronize the micro-batches of "
                "--train.accumulate; use only one of them"
            )
        if self.batch_size % self.accumulate:
            raise UsageError(
                f"--train.batch-size {self.batch_size} cannot be split into "
                f"--train.accumulate {self.accumulate} equal parts"
            )
        registry.find("engines", self.engine)
        for kind in ("optimizer", "schedule", "loss"):
            name, options = getattr(self, kind), getattr(self, f"{kind}_options")
            flag = f"--train.{kind}-options {{}}"
            if name is not None:
                registry.check("losses" if kind == "loss" else f"{kind}s", name, options, flag)
            elif options:
                raise UsageError(f"{flag.format('').strip()} needs --train.{kind}")
        if self.loss is not None and (self.label_smoothing or self.class_weight):
            raise UsageError(
                "--train.label-smoothing and --train.class-weight change the loss of the task; "
                "remove them, or --train.loss"
            )
        for kind in ("metrics", "callbacks"):
            for name, options in getattr(self, kind).items():
                registry.check(kind, name, options, f"--train.{kind}: {{}}")


_CLIPS = ("clip_norm", "clip_variable_norm", "clip_value", "clip_adaptive")


def _flag(name: str) -> str:
    return f"--train.{name.replace('_', '-')}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Runtime(Checked):
    """What the run may use of the machine."""

    precision: Literal["auto", "float32", "mixed_float16", "mixed_bfloat16"] = "auto"
    """Precision of the layers' computations, not of the weights; auto: 16 bits if a trial is a
    fifth faster."""
    replicas: Literal["auto"] | Annotated[int, (1, 1024)] = "auto"
    """Copies of the model that share each batch; auto: one per GPU. On a CPU: logical devices."""
    devices: str = "auto"
    """GPUs by their numbers in nvidia-smi, such as `0,2`, or `cpu`; auto: all, and those with the
    most free memory if --runtime.replicas asks for fewer."""
    gpu_memory: str | None = None
    """Limit on each GPU's memory, such as `8GiB` or `80%`; CUDA and cuDNN use some more
    themselves. None: memory is allocated as it is needed."""
    require_gpu: bool = False
    """End at once if there is no GPU, instead of training on the CPU."""
    xla: Literal["auto", "on", "off"] = "auto"
    """Compile forward and backward pass; auto: on GPUs only, as it halves the speed of CPUs."""
    time_limit: str | None = None
    """End training in time for test and export within 90s, 10m, 1h30m, ... (resumed time counts; a
    longer limit continues the run)."""
    worker_timeout: Annotated[float, "positive"] = 60.0
    """Seconds to wait at the start for the other workers of TF_CONFIG."""
    hang_timeout: Annotated[float, "positive"] | None = 1800.0
    """Seconds in which a call must return, or the process ends; tracing counts; None: no limit."""
    deterministic: bool = False
    """Use only operations that give the same bits each time (slower on GPUs)."""
    seed: Seed = 0
    """Seed of initial weights, order of the examples, augmentation, dropout."""

    def _check(self) -> None:
        if self.time_limit is not None:
            try:
                parse_duration(self.time_limit)
            except ValueError as error:
                raise UsageError(f"--runtime.time-limit: {error}") from None
        require_gpu_options(self.devices, self.gpu_memory, self.require_gpu, self.replicas)
        if self.deterministic and self.xla == "on":
            raise UsageError(
                "use only one of --runtime.deterministic and --runtime.xla on: XLA has no "
                "deterministic gradient of max-pooling"
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
    precision: Literal["float32", "float16", "bfloat16"] = "float32"
    """What its layers compute in; weights and answers are float32. 16 bits are for servers with
    devices that are fast in them, and change the answers a little."""
    batch_sizes: tuple[Annotated[int, (1, 65536)], ...] = (1, 8, 64)
    """Rows of requests that the server is warmed up for, and that it joins requests to."""
    calibrate: bool = True
    """Divide the logits by a temperature that is fitted on the validation split (temperature
    scaling)."""
    tolerance: NotNegative | None = None
    """Publish only if the test accuracy, or r2 of a regression, is at most this much worse than
    that of the version which is served; None: always."""
    keep: Annotated[int, (1, 10**6)] | None = None
    """Keep only this many of the newest versions, and the pinned one; None: keep all."""

    def _check(self) -> None:
        if self.name is not None:
            require_file_name(self.name, "--export.name")
            good = ":" not in self.name and self.name[0] != "."  # which a list of files hides
            meant = "a name without a colon that does not begin with a dot"
            require(good, "--export.name", repr(self.name), meant)
        sizes = self.batch_sizes
        require(0 < len(sizes) <= 100, "--export.batch-sizes", len(sizes), "1 to 100 sizes")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Log(Checked):
    """What is shown and written during training."""

    progress: bool = True
    """Print one line per epoch."""
    tensorboard: bool = True
    """Write scalars for TensorBoard into the run directory."""
