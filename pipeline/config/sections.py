"""The sections of a config: every option of data, model, training, machine and export.

The docstring under a field is its help text. Limits are part of the type: see
`type_hints`.
"""

import dataclasses
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pipeline.config import formats, registry
from pipeline.config.registry import Named
from pipeline.config.validation import Checked, only_one, require
from pipeline.utils import files, output
from pipeline.utils.console import for_caller
from pipeline.utils.errors import UsageError, did_you_mean

Options = dict[str, Any]
Operations = dict[str, dict[str, Any]]
Count = Annotated[int, (1, 10**9)]
Pixels = Annotated[int, (1, 16384)]
Seed = Annotated[int, "seed"]
Share = Annotated[float, "share"]
Positive = Annotated[float, "positive"]
NotNegative = Annotated[float, "not negative"]


class FunctionSection(Checked):
    """A section that names registered functions; it checks them and their options."""

    def _check(self) -> None:
        for choice in registry.choices(type(self)):
            value = getattr(self, choice.field)
            options = getattr(self, choice.options)
            if options and value is None:
                flag = f"--{choice.section}.{choice.field}"
                fits = [
                    f"{flag} {name}"
                    for name in registry.names(choice.registry)
                    if {*options} <= {*registry.find(choice.registry, name).options}
                ]
                hint = f", such as {' or '.join(fits)}" if fits else ""
                raise UsageError(f"{choice.flag.format('').strip()} needs {flag}{hint}")
            functions = choice.functions(value, options)
            for name, function_options in functions.items():
                registry.check(choice.registry, name, function_options, choice.flag)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceConfig(FunctionSection):
    """Where the examples come from."""

    name: Annotated[str, Named("sources")] = "tfds"
    """The kind of source."""
    options: Options = dataclasses.field(default_factory=dict)
    """Options of the source; `--source.path DIR` is short for `--source.options
    path=DIR`.
    """

    @property
    def path(self) -> Path | None:
        """Where the data is stored, if the source has the option `path`."""
        path = self.options.get("path")
        return None if path is None else Path(path)

    @property
    def title(self) -> str:
        """The name of the data in messages."""
        return str(self.options.get("dataset") or self.path or self.name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig(FunctionSection):
    """The problem to solve."""

    name: Annotated[str, Named("tasks")] = "supervised"
    """The kind of task."""
    options: Options = dataclasses.field(default_factory=dict)
    """Options of the task."""
    input: Annotated[str | None, Named("inputs")] = None
    """What is given; None: the input that suits the fields of the source."""
    input_options: Options = dataclasses.field(default_factory=dict)
    """Options of the input, such as `field=x`."""
    target: Annotated[str | None, Named("targets")] = None
    """What is predicted; None: the target that suits the fields of the source."""
    target_options: Options = dataclasses.field(default_factory=dict)
    """Options of the target."""

    def _check(self) -> None:
        if self.name == "supervised":
            self._refuse_options_of_parts()
        super()._check()
        for name in ("input", "target"):
            if getattr(self, name) is not None and self.name != "supervised":
                raise UsageError(
                    f"--task.{name} belongs to --task.name supervised, not to"
                    f" {self.name}; use only one of them"
                )

    def _refuse_options_of_parts(self) -> None:
        """Raises UsageError for an option of an input or target as one of the task."""
        for option, value in self.options.items():
            flags = []
            for choice, name in registry.functions_with(option, TaskConfig):
                part = f"--task.{choice.field} {name}"
                flags.append(f"{part} {choice.usage(name, option)}")
            if not flags:
                continue
            arguments = registry.arguments_with(option, TaskConfig, value)
            hint = for_caller(did_you_mean(flags), did_you_mean(arguments))
            raise UsageError(f"--task.{option}: the task has no such option; {hint}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CleanConfig(Checked):
    """Which examples are excluded."""

    enabled: bool = False
    """Look for unsuitable examples before training, as `pipeline clean` does."""
    manifest: Annotated[Path, "file"] | None = None
    """JSON lines with id, reason and action; examples whose action is `drop` are
    excluded.
    """
    allow_leakage: bool = False
    """If examples occur in several splits, list them instead of stopping."""
    drop_leakage: bool = False
    """If an example occurs in several splits, keep one copy: in test, or else in
    validation.
    """
    near: bool = True
    """Among images, also look for near duplicates: copies that were re-encoded,
    resized, mirrored or shifted by a pixel. If they fall into several splits, only the
    held-out ones are kept.
    """
    directory: Path | None = None
    """Directory for the manifest and the gallery of the command `clean`; None: the next
    free cleaned/NAME-N.
    """

    def _check(self) -> None:
        only_one(
            {
                "--clean.allow-leakage": self.allow_leakage,
                "--clean.drop-leakage": self.drop_leakage,
            }
        )
        only_one({"--clean.enabled": self.enabled, "--clean.manifest": self.manifest})


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(FunctionSection):
    """How examples become batches."""

    image_size: Pixels | tuple[Pixels, Pixels] | None = None
    """Height and width to which every image is resized, or one number for both; None:
    the size that all images share.
    """
    validation: Share = 0.1
    """Fraction of train held out for validation if the source has no validation split.
    """
    test: Share = 0.2
    """Fraction of train held out for testing if the source has no test split."""
    validation_groups: tuple[str, ...] = ()
    """Groups of train that are the validation split, by their names in the source;
    instead of --data.validation.
    """
    test_groups: tuple[str, ...] = ()
    """Groups of train that are the test split, by their names in the source, such as
    patients or days; instead of --data.test.
    """
    split_seed: Seed = 0
    """Seed of the held-out splits and of the sample that --data.limit draws. It is
    separate from the seed of the run, so that all runs are tested on the same examples.
    """
    folds: Annotated[int, (2, 1000)] | None = None
    """Cross-validate: train and test this many runs, each tested on another part of
    train, with equal shares of each class; then train the run that is exported on all
    of train. Replaces --data.validation and --data.test.
    """
    fold: Count | None = dataclasses.field(default=None, metadata={"hidden": True})
    """The part of train that this run is tested on, from 1; None: it is trained on all
    of them.
    """
    limit: Count | None = None
    """Use at most this many examples of each split of the source, sampled from all
    classes.
    """
    cache: Literal["auto", "device", "memory", "disk", "none"] = "auto"
    """Where decoded examples are cached; auto: the first of GPU, memory and disk in
    which they fit, or else none.
    """
    cache_directory: Path | None = None
    """Directory of the disk cache, which later runs reuse; None:
    $XDG_CACHE_HOME/pipeline or ~/.cache/pipeline; without a home directory, one for
    temporary files. It can be deleted whenever no run is using it.
    """
    augment: Annotated[Operations, Named("augment")] = dataclasses.field(
        default_factory=dict
    )
    """Random augmentations of training images, in this order, such as `flip crop
    padding=4`; `none` on the command line for none.
    """
    augment_on: Literal["auto", "host", "device"] = "auto"
    """Where images are augmented: on the host, by `tf.data`, or on the device, in the
    compiled step. The result is the same; auto: device.
    """

    @property
    def cache_folder(self) -> Path:
        """The directory of the disk cache, by default in the user's cache."""
        if self.cache_directory is not None:
            return self.cache_directory
        parent = os.environ.get("XDG_CACHE_HOME")
        if parent:
            return Path(parent, "pipeline")
        if not files.has_home():
            return files.temporary_home() / "cache"
        return Path(os.path.expanduser("~/.cache/pipeline"))

    def _check(self) -> None:
        if isinstance(self.image_size, int):
            object.__setattr__(self, "image_size", (self.image_size, self.image_size))
        for name in self.test_groups:
            if name in self.validation_groups:
                raise UsageError(
                    f"--data.validation-groups and --data.test-groups share {name!r}"
                )
        if self.fold is not None:
            require(
                self.folds is not None and self.fold <= self.folds,
                "--data.fold",
                self.fold,
                "one of --data.folds",
            )
        held_out = self.validation + self.test
        require(held_out < 1, "--data.validation plus --data.test", held_out, "below 1")
        super()._check()
        only_one(
            {
                "--data.augment cutmix": "cutmix" in self.augment,
                "--data.augment mixup": "mixup" in self.augment,
            }
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(FunctionSection):
    """The network."""

    name: Annotated[str, Named("models")] = "convnet"
    """The architecture."""
    options: Options = dataclasses.field(default_factory=dict)
    """Options of the model; `--model.filters 32` is short for `--model.options
    filters=32`.
    """

    weights: Path | None = None
    """Initial weights: an earlier run, or a .keras or .weights.h5 file. The output
    layer is new if the classes differ.
    """
    fused_batch_norm: bool = False
    """Compute each BatchNormalization of your own network, or of keras.applications, in
    one operation, as the other models do: faster, with equal results up to rounding.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig(FunctionSection):
    """How the model is trained."""

    epochs: Count = 10
    """Passes over the training split."""
    steps: Count | None = None
    """Stop after this many optimizer steps, including skipped ones, even within an
    epoch.
    """
    steps_per_epoch: Count | None = None
    """Steps of an epoch, after which the model is validated; the next epoch goes on
    where the last one ended. None: one pass over the training split.
    """
    shuffle: bool = True
    """Train on the examples in a new order in each pass; otherwise, in the order of the
    source, again and again.
    """
    batch_size: Count = 32
    """Global batch size: examples per optimizer step, over all replicas and
    micro-batches.
    """
    accumulate: Count = 1
    """Split each replica's batch into this many micro-batches and accumulate their
    gradients, to save memory.
    """
    engine: Annotated[str, Named("engines")] = "model_fit"
    """The training loop: Keras's `fit` or a GradientTape loop."""
    steps_per_execution: Literal["auto"] | Count = "auto"
    """Steps per call of the compiled function; auto: as many as take about half a
    second.
    """
    optimizer: Annotated[str, Named("optimizers")] = "sgd"
    """The optimizer."""
    optimizer_options: Options = dataclasses.field(default_factory=dict)
    """Options of the optimizer, such as `momentum=0.9`."""
    learning_rate: Positive = 0.01
    """Peak learning rate of the schedule."""
    schedule: Annotated[str, Named("schedules")] = "constant"
    """The learning rate schedule."""
    schedule_options: Options = dataclasses.field(default_factory=dict)
    """Options of the schedule: `warmup=0.1` warms up over a tenth of the steps;
    `at=0.5,0.75` sets when `step` drops the rate.
    """
    loss: Annotated[str | None, Named("losses")] = None
    """The training loss; None: the loss of the task."""
    loss_options: Options = dataclasses.field(default_factory=dict)
    """Options of the loss."""
    metrics: Annotated[Operations, Named("metrics")] = dataclasses.field(
        default_factory=dict
    )
    """Additional metrics, such as `f1_score average=micro`."""
    callbacks: Annotated[Operations, Named("callbacks")] = dataclasses.field(
        default_factory=dict
    )
    """Additional callbacks."""
    weight_decay: NotNegative | None = None
    """Decoupled weight decay: each step subtracts this fraction of every weight, times
    the learning rate. Biases and normalization layers are exempt.
    """
    l2: NotNegative = 0.0
    """Factor of the L2 penalty in the loss. Biases and normalization layers are exempt.
    """
    global_clipnorm: Positive | None = None
    """Clip the gradient to this global norm."""
    clipnorm: Positive | None = None
    """Clip the gradient of each variable to this norm."""
    clipvalue: Positive | None = None
    """Clip each element of the gradient to plus or minus this value."""
    ema: Share | None = None
    """Test and export the exponential moving average of the weights with this momentum,
    such as 0.999; the average lags by about 1 / (1 - momentum) steps, and by at most a
    ninth of the steps so far.
    """
    final_test: bool = True
    """Evaluate the test split at the end. Otherwise, the validation split is evaluated,
    and the test split is kept for the settings that are chosen in the end.
    """
    label_smoothing: Share = 0.0
    """Fraction of each label that is spread over all classes."""
    class_weight: Literal["balanced"] | dict[str, Annotated[float, (0, 10**6)]] = (
        dataclasses.field(default_factory=dict)
    )
    """Weight of each class in the loss, by the name of the class, such as `cat=2.0`, or
    by its number if the names are not numbers themselves. balanced: the number of
    training examples / (classes * examples of the class), as in scikit-learn.
    """
    freeze: tuple[str, ...] = ()
    """Freeze the layers whose names start with one of these prefixes."""
    freeze_epochs: Count | None = None
    """Unfreeze the frozen layers after this many epochs, except for batch
    normalization; None: never.
    """
    unfreeze: Literal["at-once", "gradually"] = "at-once"
    """gradually: unfreeze a quarter of the frozen layers after every
    --train.freeze-epochs epochs, the last layers first.
    """
    layer_rates: dict[str, Annotated[float, (0, 1000)]] = dataclasses.field(
        default_factory=dict
    )
    """Factors of the learning rate for the layers whose names start with these
    prefixes, such as `backbone=0.1`.
    """
    synchronized_batch_norm: bool = False
    """Compute the statistics of BatchNormalization over all replicas."""
    checkpoint_minutes: Positive = 10.0
    """Also save a checkpoint within an epoch if the last one is older than this. At the
    end of each epoch, one is saved unless saving would take more than 2% of the time.
    """
    checkpoint_steps: Count | None = None
    """Also save a checkpoint at this interval of steps, rounded up to the end of
    a call.
    """
    patience: Count | None = None
    """Stop after this many epochs without a lower validation loss, and restore the best
    weights. With --train.evaluate-every, the accuracy of classes, the F1 of labels, the
    r2 of numbers or the IoU of masks takes the place of the loss, and only the epochs
    after which it is computed are counted.
    """
    evaluate_every: Count | None = None
    """Also compute the metrics of the final test for the validation split, after every
    this many epochs, with the averaged weights if there are any.
    """
    max_bad_steps: Count = 10
    """Stop after this many consecutive bad steps: their loss or gradient is not finite,
    and until then they are skipped.
    """
    on_bad_steps: Literal["stop", "roll-back"] = "stop"
    """What to do after too many bad steps: exit with code 4, or first retry up to three
    times from the latest checkpoint, each time with half the learning rate.
    """

    def _check(self) -> None:
        only_one(
            {
                "--train.global-clipnorm": self.global_clipnorm is not None,
                "--train.clipnorm": self.clipnorm is not None,
                "--train.clipvalue": self.clipvalue is not None,
            }
        )
        only_one(
            {
                "--train.synchronized-batch-norm": self.synchronized_batch_norm,
                "--train.accumulate": self.accumulate > 1,
            }
        )
        only_one(
            {"--train.loss": self.loss, "--train.label-smoothing": self.label_smoothing}
        )
        if self.freeze_epochs is not None and not self.freeze:
            raise UsageError("--train.freeze-epochs requires --train.freeze")
        if self.unfreeze == "gradually" and self.freeze_epochs is None:
            raise UsageError(
                "--train.unfreeze gradually requires --train.freeze-epochs"
            )
        if self.batch_size % self.accumulate:
            raise UsageError(
                f"--train.batch-size {self.batch_size} cannot be split into "
                f"--train.accumulate {self.accumulate} equal parts"
            )
        registry.find("engines", self.engine)
        super()._check()


@dataclasses.dataclass(frozen=True, kw_only=True)
class RuntimeConfig(Checked):
    """How the run uses the machine."""

    precision: Literal["auto", "float32", "mixed_float16", "mixed_bfloat16"] = "auto"
    """Keras dtype policy of the layers; auto: a 16-bit policy if it is faster in three
    trials, by at least 5%. The weights are always float32.
    """
    replicas: Literal["auto"] | Annotated[int, (1, 1024)] = "auto"
    """Copies of the model that each batch is divided among, on GPUs or on logical
    devices of the CPU; auto: one per GPU.
    """
    devices: Annotated[str, "devices"] = "auto"
    """GPUs by their numbers in nvidia-smi, such as `0,2`, or `cpu`; auto: all GPUs or,
    if --runtime.replicas is lower, those with the most free memory.
    """
    gpu_memory: Annotated[str, "memory"] | None = None
    """Memory limit per GPU, such as `8GiB` or `80%`, not including what CUDA and cuDNN
    need; None: allocate memory as needed.
    """
    require_gpu: bool = False
    """Stop at once if there is no GPU, instead of training on the CPU."""
    xla: Literal["auto", "on", "off"] = "auto"
    """Compile with XLA: whole steps on one device; on several, each replica's forward
    and backward pass and its update. auto: on GPUs only, because XLA slows CPUs down,
    and without it for what XLA cannot compile.
    """
    time_limit: Annotated[str, "duration"] | None = None
    """End training in time to test and export within this limit, which includes the
    time before a resume. To continue, resume with a longer limit.
    """
    worker_timeout: Positive = 60.0
    """Seconds to wait at the start for the other workers."""
    hang_timeout: Positive | None = 1800.0
    """End the process if a call takes longer than this many seconds, tracing included;
    None: no limit.
    """
    deterministic: bool = False
    """Use only deterministic operations; slower on GPUs."""
    seed: Seed = 0
    """Seed of weight initialization, example order, augmentation and dropout."""

    def _check(self) -> None:
        gpus = formats.parse_devices(self.devices)
        if gpus and isinstance(self.replicas, int) and self.replicas > len(gpus):
            raise UsageError(
                f"--runtime.replicas {self.replicas} is more than the {len(gpus)} GPUs"
                f" of --runtime.devices {self.devices}"
            )
        on_cpu = {"--runtime.devices cpu": self.devices == "cpu"}
        only_one({**on_cpu, "--runtime.require-gpu": self.require_gpu})
        only_one({**on_cpu, "--runtime.gpu-memory": self.gpu_memory})
        # XLA has no deterministic gradient of max-pooling.
        only_one(
            {
                "--runtime.deterministic": self.deterministic,
                "--runtime.xla on": self.xla == "on",
            }
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportConfig(Checked):
    """The export for TensorFlow Serving."""

    enabled: bool = True
    """Write and verify a SavedModel at the end of the run."""
    directory: Path = Path("saved_models")
    """Directory of all models; this one is exported to DIRECTORY/NAME/VERSION."""
    name: Annotated[str, "model name"] | None = None
    """Name of the model, and of new directories, such as runs/NAME-1; None: the name of
    the recipe.
    """
    precision: Literal["float32", "float16", "bfloat16"] = "float32"
    """Compute dtype of the exported layers; weights and predictions stay float32. A
    16-bit dtype is faster on some servers and changes the predictions slightly.
    """
    batch_sizes: Annotated[
        tuple[Annotated[int, (1, 65536)], ...], "1 to 100 values"
    ] = (1, 8, 64)
    """Batch sizes of the warm-up requests, and of the server's batching."""
    calibrate: bool = True
    """Calibrate probabilities with temperature scaling, fitted on the validation split.
    """
    formats: tuple[Literal["keras", "litert", "onnx"], ...] = ()
    """Also write the model in these formats, in float32: model.keras, model.tflite,
    model.onnx.
    """
    tolerance: NotNegative | None = None
    """Publish a version only if its test accuracy (r2 for regression) is at most this
    much below the accuracy of the served version; None: always.
    """
    keep: Annotated[int, (1, 10**6)] | None = None
    """Keep only this many of the newest versions, plus the pinned one; None: keep all.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogConfig(Checked):
    """What is printed and logged during training."""

    progress: bool = True
    """Show what is being done, a bar within each epoch, and one line per epoch."""
    bar: bool = True
    """Show a bar within each epoch; otherwise, only the lines of epochs."""
    quiet: bool = False
    """Print nothing but errors and the lines of the final result."""
    json: bool = False
    """Print one JSON object per line instead of text, and nothing else; errors,
    too.
    """
    tensorboard: bool = True
    """Write metrics, the config and pictures for TensorBoard into the run directory."""

    def _check(self) -> None:
        only_one({"--log.quiet": self.quiet, "--log.json": self.json})

    @property
    def mode(self) -> output.Mode:
        """How the run prints."""
        return output.of_options(dataclasses.asdict(self))
