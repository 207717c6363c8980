"""Chooses the settings of a run for its images and for the speed of this machine, with
reasons.
"""

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
from pipeline.data import image_sizes, splits
from pipeline.runtime import dtype_policy
from pipeline.runtime.environment import Runtime
from pipeline.runtime.run_directory import RunDirectory
from pipeline.training import model_builder
from pipeline.training.distributed import agreed
from pipeline.utils import progress_bar, safe_io
from pipeline.utils.console import pluralize, say

_SAMPLE = 200  # images that are looked at
_USUAL = 900.0  # seconds of training without a time limit
_REST = 30.0  # seconds of all but training
# Pixels whose forward and backward pass take `residual` as long as an update of Muon.
_UPDATE = 50_000
_TIMED = 32  # images
_AVERAGED = 0.03  # fraction of the steps whose weights are averaged
# Files of weights that Keras downloads -> the network of keras.applications; its least
# side.
_IMAGENET = {
    "efficientnetb0_notop.h5": "EfficientNetB0",
    "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_224_no_top.h5": "MobileNetV2",
    "resnet50_weights_tf_dim_ordering_tf_kernels_notop.h5": "ResNet50",
}
_LEAST = 96
# Pixels, up to which the first convolution keeps the size of an image
# (benchmarks/README.md).
_SMALL = 48
_SCRATCH = (
    "from scratch; ImageNet weights are downloaded by --model.name application"
    " --model.options name=EfficientNetB0 weights=imagenet"
)


class _Choices:
    """A config whose open options are chosen one after another, with reasons."""

    def __init__(self, request: Request) -> None:
        self.config = request.config
        self._planned = set(request.planned)

    def is_open(self, name: str) -> bool:
        """Whether an option was neither set by the user nor chosen yet."""
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


def photos(request: Request, machine: Runtime, seconds: float | None = None) -> Config:
    """The config of a run for photos: sets the planned options of a request for the
    files, this machine and the time.

    `seconds` is what is left of the time limit of the run, if it has one. Prints the
    expected time. Raises UsageError if the data cannot be opened.
    """
    choices = _Choices(request)
    fast, reason = dtype_policy.fast_policy()
    choices.choose("runtime.precision", fast or "float32", reason)
    _choose_pretrained(choices)
    options = choices.config.source
    source = registry.call("sources", options.name, options.options)
    precision: str = choices.config.runtime.precision
    if precision == "auto":
        precision = machine.precision
    seconds_per_pixel = _seconds_per_pixel(choices.config, source, precision)
    with machine.strategy.scope():
        devices = max(1, len(tf.config.get_visible_devices("GPU")))
        seconds_per_pixel = agreed(seconds_per_pixel / devices)
    return _choose_sizes(choices, source, seconds_per_pixel, seconds)


def _choose_pretrained(choices: _Choices) -> None:
    """Chooses the network of an earlier run, or one whose ImageNet weights Keras has
    downloaded.
    """
    config = choices.config
    if (path := config.model.weights) is not None:
        value: dict[str, Any] = {"name": config.model.name}
        with contextlib.suppress(
            OSError, LookupError, ValueError, TypeError
        ):  # not a run
            before = safe_io.read_json(RunDirectory(path).config)["model"]
            value = {name: before[name] for name in ("name", "options")}
        choices.choose("model", value, "as in --model.weights")
        return
    home = os.environ.get("KERAS_HOME") or os.path.expanduser("~/.keras")
    for name, network in _IMAGENET.items():
        file = os.path.join(home, "models", name)
        if os.path.isfile(file):
            options = {"name": network, "weights": file}
            value = {"name": "application", "options": options}
            choices.choose("model", value, "pretrained on ImageNet")
            return


def _choose_sizes(
    choices: _Choices, source: Source, seconds_per_pixel: float, limit: float | None
) -> Config:
    """Chooses the batch, the image size, the epochs, and what depends on them."""
    total = source.info.splits["train"]
    why = f"{total:,} images"
    if "test" in source.info.splits:
        why = "unused: there is a test split"
    choices.choose("data.test", 0.1 if total >= 2000 else 0.2, why)
    config = choices.config
    held_out = sum(splits.shares(source.info.splits, config.data).values())
    most = min(total, config.data.limit or total)
    count = max(1, int(most * (1 - held_out)))
    classes = pluralize(len(source.info.class_names or ()), "class")
    images = f"about {pluralize(count, 'training image')} of {classes}"
    choices.choose("train.batch_size", _batch_size(count), images)
    batch = choices.config.train.batch_size
    steps = max(1, count // batch)

    def seconds(height: int, width: int) -> float:
        """Of an epoch."""
        return steps * (batch * height * width + _UPDATE) * seconds_per_pixel

    tuned = config.model.weights is not None or "weights" in config.model.options
    epochs = config.train.epochs
    if choices.is_open("train.epochs"):
        epochs = _epochs(count, tuned)
    time_left = _USUAL if limit is None else max(limit - _REST, limit / 2)
    detail = image_sizes.needed(image_sizes.sample(source, _SAMPLE)) or 64
    least = _LEAST if "weights" in config.model.options else 0
    sizes = [
        size for size in image_sizes.SIZES if least <= size <= max(least, 2 * detail)
    ]
    fits = [size for size in sizes if 0.75 * epochs * seconds(size, size) <= time_left]
    size = max(fits, default=sizes[0])
    short = f"fit into {'15 minutes' if limit is None else 'the time limit'}"
    reason = f"the files hold the detail of about {detail} pixels"
    if size < detail:
        reason += f"; more would not {short}"
    choices.choose("data.image_size", (size, size), reason)
    sides: Any = choices.config.data.image_size or (size, size)
    small = {"widths": (32, 64, 128), "stem_stride": 1} if max(sides) <= _SMALL else {}
    choices.choose("model", {"name": config.model.name, "options": small}, _SCRATCH)
    epoch = seconds(*sides)
    affordable = max(1, int(time_left / epoch))
    reason = f"as many as {short}" if affordable < epochs else images
    choices.choose("train.epochs", min(affordable, epochs), reason)
    epochs = choices.config.train.epochs
    duration = min(epochs * epoch, time_left if limit else math.inf)
    about = f"{duration / 60:.0f} min" if duration > 90 else f"{duration:.0f} s"
    speed = f"{steps * batch / epoch:,.0f} images/s"
    say("plan", f"about {about}: {pluralize(epochs, 'epoch')} at {speed}, with")
    rate = round((0.002 if tuned else 0.02) * math.sqrt(min(batch, 64) / 64), 4)
    choices.choose("train.learning_rate", rate, f"for batches of {batch}")
    operations = {"flip": {}, "crop": {"padding": min(sides) // 8}}
    choices.choose("data.augment", operations, "usual for photographs")
    lag = max(1.0, steps * epochs * _AVERAGED)
    reason = f"about {lag:,.0f} of {pluralize(steps * epochs, 'step')}"
    choices.choose("train.ema", round(1 - 1 / (1 + lag), 4), reason)
    return choices.config


def _batch_size(count: int) -> int:
    """For this number of training images: at least four steps per epoch."""
    largest = 2 ** int(math.log2(max(count // 4, 2)))
    if count >= 10_000:
        return min(128, largest)
    return min(64 if count >= 600 else 32, largest)


def _epochs(count: int, tuned: bool) -> int:
    """For this number of training images; fewer if the network is pretrained."""
    epochs = min(200, max(10, 100 * math.sqrt(4000 / count)))
    return round(epochs / 5 if tuned else epochs)


def _seconds_per_pixel(config: Config, source: Source, precision: str) -> float:
    """What the forward and backward pass of a pixel takes on one device; measured in
    about two seconds.
    """
    progress_bar.stage("timing", "this machine")
    model = config.model
    if registry.builds_whole_model(model.name):
        model = ModelConfig(name="residual")  # a network of one's own is built once
    side = _LEAST if "weights" in model.options else 48
    if config.data.image_size is not None:
        side = max(config.data.image_size)  # type: ignore[arg-type]
    options = {"image_size": (side, side), **config.task.options}
    registry.check("tasks", config.task.name, options, "--data.image-size")
    task = registry.call("tasks", config.task.name, options, source.info)
    network = model_builder.network(task, model, precision)
    shape = (_TIMED, *network.inputs[0].shape[1:])
    images = tf.random.stateless_uniform(shape, (0, 1))

    @tf.function
    def gradients() -> tf.Tensor:
        with tf.GradientTape() as tape:
            outputs = network(images, training=True)
        return tf.linalg.global_norm(
            tape.gradient(outputs, network.trainable_variables)
        )

    best = math.inf
    for _ in range(4):  # the first call traces
        start = time.monotonic()
        gradients().numpy()
        best = min(best, time.monotonic() - start)
    return best / (_TIMED * side * side)
