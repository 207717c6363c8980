"""Chooses options of a run for its data and the speed of this machine."""

import contextlib
import dataclasses
import math
import os
import time
from typing import Any

import tensorflow as tf

from pipeline.config import registry
from pipeline.config.config import Config
from pipeline.config.request import Request
from pipeline.config.sections import ModelConfig
from pipeline.contracts import Source
from pipeline.data import dataset, image_sizes, splits
from pipeline.layers import applications
from pipeline.runtime import dtype_policy
from pipeline.runtime.environment import Machine
from pipeline.runtime.run_directory import RunDirectory
from pipeline.training import model_builder
from pipeline.training.distributed import mean_over_workers
from pipeline.utils import progress_bar, safe_io
from pipeline.utils.console import pluralize, say

_SAMPLE_IMAGES = 200
_DEFAULT_SECONDS = 900.0  # of training, without a time limit
_OTHER_SECONDS = 30.0  # for everything except training
# An update of Muon takes as long as a forward and backward pass of `residual` for this
# number of pixels.
_UPDATE_PIXELS = 50_000
_TIMED_IMAGES = 32
_AVERAGED_FRACTION = 0.03  # of the steps; the moving average of the weights covers it
# Files of weights that Keras downloads -> the network of keras.applications.
_IMAGENET = {
    "efficientnetb0_notop.h5": "EfficientNetB0",
    "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_224_no_top.h5": "MobileNetV2",
    "resnet50_weights_tf_dim_ordering_tf_kernels_notop.h5": "ResNet50",
}
_FROZEN_FRACTION = 0.2  # of the epochs of fine-tuning
_IMAGENET_MIN_SIDE = 96  # pixels
# For images up to this side, the first convolution has stride 1 (benchmarks/README.md).
_SMALL_SIDE = 48
# Images are mixed if there are this many epochs, and not in the last of them.
_MIXED_EPOCHS = 20
_MIXED_FRACTION = 0.85
# A recipe whose epochs suit thousands of examples needs more of them for a hundred.
_MIN_STEPS = 2000
_MAX_FACTOR = 5  # of the recipe's epochs
_STEPS_PER_EPOCH = 80  # of a table
_MIN_ROWS, _MAX_ROWS = 64, 4096  # of a batch
_EPOCHS_OF_THOUSAND, _MAX_EPOCHS = 10, 40
_SCRATCH = (
    "from scratch; --model EfficientNetB0, or another network of keras.applications,"
    " downloads its ImageNet weights"
)


class _Choices:
    """Chooses the open options of a config one after another, with reasons."""

    def __init__(self, request: Request) -> None:
        self.config = request.config
        self._planned = set(request.planned)

    def is_open(self, name: str) -> bool:
        """Whether an option is neither set by the user nor chosen yet."""
        return name in self._planned - self.config.reasons.keys()

    def choose(self, name: str, value: Any, reason: str) -> None:
        """Sets an option, such as `train.epochs`, if it is open."""
        if not self.is_open(name):
            return
        section, _, option = name.partition(".")
        part = {option: value} if option else value
        config = self.config.changed(**{section: part})
        reasons = {**config.reasons, name: reason}
        self.config = dataclasses.replace(config, reasons=reasons)


_MIN_BATCHES = 1.25  # the count before the random splits is not exact


def enough_epochs(request: Request, source: Source) -> Config:
    """Returns a config with at least as many epochs as the recipe has.

    With few examples, there are more: as many as 2,000 steps need, but at most five
    times the recipe's (benchmarks/README.md, "few recordings"). If predictions are to
    be evaluated mid-training, it is every 2,000 steps. If weights are averaged, it is
    over the last 3% of the steps. Examples that might not fill a batch get a smaller
    one.
    """
    choices = _Choices(request)
    config = choices.config
    count = _training_count(source, config)
    if count < _MIN_BATCHES * config.train.batch_size:
        batch_size = 2 ** int(math.log2(max(count / 2, 1)))
        reason = f"for about {pluralize(count, 'training example')}"
        choices.choose("train.batch_size", batch_size, reason)
        config = choices.config
    steps = config.train.steps_per_epoch or max(1, count // config.train.batch_size)
    usual = config.train.epochs
    epochs = min(math.ceil(_MIN_STEPS / steps), _MAX_FACTOR * usual)
    if epochs > usual and config.train.steps is None:
        examples = pluralize(count, "training example")
        reason = f"{usual} of about {examples} would be {usual * steps:,} steps"
        choices.choose("train.epochs", epochs, reason)
    if config.train.evaluate_every is not None:
        every = math.ceil(_MIN_STEPS / steps)
        reason = f"every {_MIN_STEPS:,} steps, and at the end"
        choices.choose("train.evaluate_every", every, reason)
    _choose_average(choices, steps)
    return choices.config


def rows(request: Request, source: Source) -> Config:
    """Returns a config with a batch size and epochs for the rows of a table.

    About 80 steps per epoch, in batches of 64 to 4,096 rows; 10 epochs for a thousand
    rows, and with the square root of their number up to 40: more steps overfit small
    tables (results in docs/tables.md).
    """
    choices = _Choices(request)
    count = _training_count(source, choices.config)
    size = 2 ** round(math.log2(max(count / _STEPS_PER_EPOCH, 1)))
    size = min(max(size, _MIN_ROWS), _MAX_ROWS, 2 ** int(math.log2(max(count // 2, 1))))
    examples = pluralize(count, "training example")
    choices.choose("train.batch_size", size, f"for about {examples}")
    epochs = round(_EPOCHS_OF_THOUSAND * math.sqrt(count / 1000))
    epochs = min(max(epochs, _EPOCHS_OF_THOUSAND), _MAX_EPOCHS)
    choices.choose("train.epochs", epochs, f"for about {examples}")
    return choices.config


def _choose_average(choices: _Choices, steps_per_epoch: int) -> None:
    """Chooses the momentum of the averaged weights for the length of the run."""
    train = choices.config.train
    steps = train.steps or train.epochs * steps_per_epoch
    lag = max(1.0, steps * _AVERAGED_FRACTION)
    rest = float(f"{1 / (1 + lag):.2g}")  # two digits of it, as 1 is no average
    reason = f"about {lag:,.0f} of {pluralize(steps, 'step')}"
    choices.choose("train.ema", round(1 - rest, 12), reason)


def _training_count(source: Source, config: Config) -> int:
    """The examples that are left to train on, about."""
    total = source.info.splits["train"]
    held_out = sum(splits.shares(source.info.splits, config.data).values())
    limited = min(total, config.data.limit or total)
    return max(1, int(limited * (1 - held_out)))


def photos(
    request: Request,
    machine: Machine,
    source: Source,
    seconds: float | None = None,
) -> Config:
    """Returns the config of a run for photos, and prints the expected time.

    Args:
        request: Its planned options are chosen for the files, this machine and the
            time.
        machine: Where the run is going to be trained.
        source: The files, with all examples.
        seconds: Remaining time of the run; None: there is no limit.
    """
    choices = _Choices(request)
    fast, reason = dtype_policy.fast_policy()
    choices.choose("runtime.precision", fast or "float32", reason)
    _choose_for_target(choices, source)
    _choose_pretrained(choices)
    precision: str = choices.config.runtime.precision
    if precision == "auto":
        precision = machine.precision
    seconds_per_pixel = _seconds_per_pixel(choices.config, source, precision)
    with machine.strategy.scope():
        devices = max(1, len(tf.config.get_visible_devices("GPU")))
        seconds_per_pixel = mean_over_workers(seconds_per_pixel / devices)
    parts = machine.replicas * choices.config.train.accumulate
    return _choose_sizes(choices, source, seconds_per_pixel, seconds, parts)


def _choose_for_target(choices: _Choices, source: Source) -> None:
    """Chooses what depends on what is predicted: classes, labels, numbers or masks."""
    fields = source.info.fields
    if "mask" in fields:
        choices.choose("model", {"name": "unet"}, "a mask needs a map of features")
    smoothing, reason = 0.0, "for classes only"
    if "label" in fields:
        smoothing, reason = 0.1, "usual for classes"
    choices.choose("train.label_smoothing", smoothing, reason)


def _choose_pretrained(choices: _Choices) -> None:
    """Chooses a pretrained network.

    It is the network of an earlier run, or one with ImageNet weights that Keras has
    downloaded.
    """
    config = choices.config
    path = config.model.weights
    if path is not None:
        value: dict[str, Any] = {"name": config.model.name}
        # The path may be a file instead of a run.
        with contextlib.suppress(OSError, LookupError, ValueError, TypeError):
            saved = safe_io.read_json(RunDirectory(path).config)["model"]
            value = {"name": saved["name"], "options": saved["options"]}
        choices.choose("model", value, "as in --model.weights")
        return
    for name, network in _IMAGENET.items():
        file = os.path.join(applications.weights_folder(), name)
        if os.path.isfile(file):
            options = {"name": network, "weights": file}
            value = {"name": "application", "options": options}
            choices.choose("model", value, "pretrained on ImageNet")
            return


def _choose_sizes(
    choices: _Choices,
    source: Source,
    seconds_per_pixel: float,
    limit: float | None,
    parts: int,
) -> Config:
    """Chooses the batch size, the image size, the epochs, and what depends on them.

    The batch size is a multiple of `parts`.
    """
    total = source.info.splits["train"]
    reason = f"{total:,} images"
    if "test" in source.info.splits:
        reason = "unused: there is a test split"
    elif choices.config.data.test_groups:
        reason = "unused: --data.test-groups"
    elif choices.config.data.folds:
        reason = "unused: --data.folds"
    choices.choose("data.test", 0.1 if total >= 2000 else 0.2, reason)
    config = choices.config
    count = _training_count(source, config)
    images = f"about {pluralize(count, 'training image')}"
    if source.info.class_names:
        images += f" of {pluralize(len(source.info.class_names), 'class')}"
    batch = _batch_size(count)
    # CutMix pairs the images of each part.
    batch = batch // (2 * parts) * 2 * parts or max(1, batch // parts) * parts
    choices.choose("train.batch_size", batch, images)
    batch = choices.config.train.batch_size
    steps = choices.config.train.steps_per_epoch or max(1, count // batch)

    def epoch_seconds(height: int, width: int) -> float:
        pixels = batch * height * width + _UPDATE_PIXELS
        return steps * pixels * seconds_per_pixel

    is_pretrained = config.model.weights is not None or _has_backbone(config.model)
    epochs = config.train.epochs
    if choices.is_open("train.epochs"):
        epochs = _epochs(count, is_pretrained)
    time_left = _DEFAULT_SECONDS
    if limit is not None:
        time_left = max(limit - _OTHER_SECONDS, limit / 2)
    detail = image_sizes.detail_size(image_sizes.sample(source, _SAMPLE_IMAGES)) or 64
    smallest = _IMAGENET_MIN_SIDE if _has_backbone(config.model) else 0
    largest = max(smallest, 2 * detail)
    sizes = [size for size in image_sizes.SIZES if smallest <= size <= largest]
    affordable = [
        size for size in sizes if 0.75 * epochs * epoch_seconds(size, size) <= time_left
    ]
    size = max(affordable, default=sizes[0])
    fit = "fit into 15 minutes" if limit is None else "fit into the time limit"
    reason = f"the files hold the detail of about {detail} pixels"
    if size < detail:
        reason += f"; more would not {fit}"
    choices.choose("data.image_size", (size, size), reason)
    sides: Any = choices.config.data.image_size or (size, size)
    options: dict[str, Any] = {}
    if max(sides) <= _SMALL_SIDE:
        options = {"widths": (32, 64, 128), "stem_stride": 1}
    choices.choose("model", {"name": config.model.name, "options": options}, _SCRATCH)
    seconds = epoch_seconds(*sides)
    max_epochs = max(1, int(time_left / seconds))
    reason = f"as many as {fit}" if max_epochs < epochs else images
    choices.choose("train.epochs", min(max_epochs, epochs), reason)
    epochs = choices.config.train.epochs
    duration = epochs * seconds
    if limit:
        duration = min(duration, time_left)
    text = f"{duration / 60:.0f} min" if duration > 90 else f"{duration:.0f} s"
    speed = f"{steps * batch / seconds:,.0f} images/s"
    say("plan", f"about {text}: {pluralize(epochs, 'epoch')} at {speed}, with")
    base_rate = 0.002 if is_pretrained else 0.02
    rate = round(base_rate * math.sqrt(min(batch, 64) / 64), 4)
    choices.choose("train.learning_rate", rate, f"for batches of {batch}")
    if _has_backbone(config.model):
        _choose_fine_tuning(choices)
    operations, reason = _augmentation(choices.config, source, min(sides), parts)
    choices.choose("data.augment", operations, reason)
    _choose_average(choices, steps)
    return choices.config


def _has_backbone(model: ModelConfig) -> bool:
    """Whether a network begins with a pretrained one, whose layer is `backbone`."""
    function = registry.find("models", model.name)
    options = {**function.preset, **model.options}
    is_known = function.name in ("application", "keras_hub")
    return is_known and bool(options.get("weights") or options.get("preset"))


def _choose_fine_tuning(choices: _Choices) -> None:
    """The new layers first, then all, the pretrained ones at a tenth of the rate.

    As in Keras's guide, keras.io/guides/transfer_learning: large gradients of new
    layers would destroy what the others know.
    """
    choices.choose("train.freeze", ("backbone",), "the new layers first")
    if not choices.config.train.freeze:
        return
    epochs = choices.config.train.epochs
    frozen = max(1, round(_FROZEN_FRACTION * epochs))
    choices.choose("train.freeze_epochs", frozen, f"of {pluralize(epochs, 'epoch')}")
    choices.choose("train.layer_rates", {"backbone": 0.1}, "usual for fine-tuning")


def _augmentation(
    config: Config, source: Source, side: int, parts: int
) -> tuple[dict[str, Any], str]:
    """The operations for photographs of this side, and why.

    A network that sees the same photographs of classes again and again memorizes them:
    then half of them are mixed (CutMix; benchmarks/README.md), unless there are columns
    alongside them, which cannot be mixed.
    """
    spec = source.info.fields.get("image")
    channels = source.info.image_shape[2]
    if spec is not None and spec.shape.rank:
        channels = spec.shape[-1]
    # Gray images, such as of letters or garments, often have an empty border.
    fill = "zero" if channels == 1 else "reflect"
    crop = {"padding": side // 8, "fill": fill}
    operations: dict[str, Any] = {"alternating_flip": {}, "crop": crop}
    reason = "usual for photographs"
    epochs = config.train.epochs
    is_paired = config.train.batch_size % (2 * parts) == 0
    is_alone = source.info.columns is None
    is_of_classes = "label" in source.info.fields and is_alone
    if is_of_classes and is_paired and epochs >= _MIXED_EPOCHS:
        mixed = round(_MIXED_FRACTION * epochs)
        operations["cutmix"] = {"probability": 0.5, "epochs": mixed}
        reason += f"; mixed, because each is seen {epochs} times"
    return operations, reason


def _batch_size(count: int) -> int:
    """Returns a batch size for at least four steps per epoch of `count` images."""
    largest = 2 ** int(math.log2(max(count // 4, 2)))
    if count >= 10_000:
        return min(128, largest)
    return min(64 if count >= 600 else 32, largest)


def _epochs(count: int, is_pretrained: bool) -> int:
    """Returns the number of epochs for `count` training images."""
    epochs = min(200, max(10, 100 * math.sqrt(4000 / count)))
    return round(epochs / 5 if is_pretrained else epochs)


def _seconds_per_pixel(config: Config, source: Source, precision: str) -> float:
    """Measures the forward and backward pass on one device, in about two seconds."""
    progress_bar.stage("timing", "this machine")
    model = config.model
    if registry.builds_whole_model(model.name):
        model = ModelConfig(name="residual")  # a user's network is built only once
    side = _IMAGENET_MIN_SIDE if _has_backbone(model) else 48
    if config.data.image_size is not None:
        side = max(config.data.image_size)  # type: ignore[arg-type]
    task = dataset.create_task(
        config.changed(data={"image_size": (side, side)}), source.info
    )
    network = model_builder.network(task, model, precision)

    def values(x: Any) -> tf.Tensor:
        shape = (_TIMED_IMAGES, *x.shape[1:])
        return tf.cast(tf.random.stateless_uniform(shape, (0, 1)), x.dtype)

    inputs = tf.nest.map_structure(values, task.input.inputs())

    @tf.function(autograph=False)
    def gradients() -> tf.Tensor:
        with tf.GradientTape() as tape:
            outputs = network(inputs, training=True)
        slopes = tape.gradient(outputs, network.trainable_variables)
        return tf.linalg.global_norm(slopes)

    best = math.inf
    for _ in range(4):  # the first call traces
        start = time.monotonic()
        gradients().numpy()
        best = min(best, time.monotonic() - start)
    return best / (_TIMED_IMAGES * side * side)
