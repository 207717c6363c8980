"""Chooses the settings of a run for its data and for the speed of this machine, with
reasons.
"""

import contextlib
import dataclasses
import math
import os
import time
from types import SimpleNamespace
from typing import Any

import keras
import tensorflow as tf

from pipeline.config import registry, type_hints
from pipeline.config.config import Config
from pipeline.config.sections import Model
from pipeline.data import image_sizes, splits
from pipeline.runtime import environment
from pipeline.runtime.run_directory import RunDirectory
from pipeline.training import model_builder
from pipeline.training.distributed import agreed
from pipeline.utils import progress_bar, safe_io
from pipeline.utils.console import counted, say

_SAMPLE = 200  # images that are looked at
_USUAL, _REST = (
    900.0,
    30.0,
)  # seconds: of training without a time limit; of all but training
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
# (benchmarks/photos.md).
_SMALL = 48


def complete(
    config: Config, machine: environment.Runtime, seconds: float | None = None
) -> tuple[Config, environment.Runtime]:
    """Chooses a value for each option that a plan has left open; prints all with their
    reasons.

    What `config.planned` says was given, or chosen when the run began, stays. `seconds`
    is what is left of the time limit of the run, if it has one. Returns the config, and
    the machine with the precision that was chosen. Raises UsageError if the data cannot
    be opened.
    """
    if "" in config.planned.values():
        fast, why = environment.fast_precision()
        config = config.chosen("runtime.precision", fast or "float32", why)
        config = _network(config)
        precision = config.runtime.precision
        if all(decision.name != "precision" for decision in machine.decisions):
            machine = dataclasses.replace(machine, precision=precision)
            machine = machine.decided(
                "precision", precision, config.planned["runtime.precision"]
            )
        each = _seconds_per_pixel(config)  # on one device
        with machine.strategy.scope():
            each = agreed(each / max(1, len(tf.config.get_visible_devices("GPU"))))
        config = _sizes(config, each, seconds)
    for place, reason in config.planned.items() if machine.is_chief else ():
        section, _, option = place.partition(".")
        part = getattr(config, section)
        value = getattr(part, option) if option else {part.name: part.options}
        if section != "source":
            flag = f"--{place}".replace("_", "-")
            say("plan", f"{flag:21} {' '.join(type_hints.words(value))} ({reason})")
    return config, machine


def _network(config: Config) -> Config:
    """Chooses the network of an earlier run, or one whose ImageNet weights Keras has
    downloaded.
    """
    if (path := config.model.weights) is not None:
        value: dict[str, Any] = {"name": config.model.name}
        with contextlib.suppress(
            OSError, LookupError, ValueError, TypeError
        ):  # not a run
            before = safe_io.read_json(RunDirectory(path).config)["model"]
            value = {name: before[name] for name in ("name", "options")}
        return config.chosen("model", value, "as in --model.weights")
    home = os.environ.get("KERAS_HOME") or os.path.expanduser("~/.keras")
    for name, network in _IMAGENET.items():
        if os.path.isfile(file := os.path.join(home, "models", name)):
            value = {
                "name": "application",
                "options": {"name": network, "weights": file},
            }
            return config.chosen("model", value, "pretrained on ImageNet")
    return config  # it follows from the size of the images


def _sizes(config: Config, seconds_per_pixel: float, limit: float | None) -> Config:
    """Chooses the batch, the image size, the epochs, and what depends on them."""
    source = registry.call("sources", config.source.name, config.source.options)
    total = source.info.splits["train"]
    why = (
        f"{total:,} images"
        if "test" not in source.info.splits
        else "unused: there is a test split"
    )
    config = config.chosen("data.test", 0.1 if total >= 2000 else 0.2, why)
    held_out = sum(splits.shares(source.info.splits, config.data).values())
    most = source.info.splits["train"] if config.dry_run else config.data.limit or 10**9
    count = max(1, int(min(total, most) * (1 - held_out)))
    classes = counted(len(source.info.class_names or ()), "class")
    images = f"about {counted(count, 'training image')} of {classes}"
    usual = 128 if count >= 10_000 else 64 if count >= 600 else 32
    most = 2 ** int(math.log2(max(count // 4, 2)))  # at least four steps per epoch
    config = config.chosen("train.batch_size", min(usual, most), images)
    batch = config.train.batch_size
    steps = max(1, count // batch)

    def seconds(height: int, width: int) -> float:
        """Of an epoch."""
        return steps * (batch * height * width + _UPDATE) * seconds_per_pixel

    tuned = config.model.weights is not None or "weights" in config.model.options
    epochs = round(
        min(200, max(10, 100 * math.sqrt(4000 / count))) / (5 if tuned else 1)
    )
    epochs = epochs if config.planned.get("train.epochs") == "" else config.train.epochs
    time_left = _USUAL if limit is None else max(limit - _REST, limit / 2)
    detail = image_sizes.detail_size(image_sizes.sample(source, _SAMPLE)) or 64
    least = _LEAST if "weights" in config.model.options else 0
    sizes = [
        size for size in image_sizes.SIZES if least <= size <= max(least, 2 * detail)
    ]
    fits = [size for size in sizes if 0.75 * epochs * seconds(size, size) <= time_left]
    size = max(fits, default=sizes[0])
    short = f"fit into {'15 minutes' if limit is None else 'the time limit'}"
    reason = f"the files hold the detail of about {detail} pixels"
    reason += f"; more would not {short}" * (size < detail)
    config = config.chosen("data.image_size", (size, size), reason)
    sides: Any = config.data.image_size or (size, size)
    small = {"widths": (32, 64, 128), "stem_stride": 1} if max(sides) <= _SMALL else {}
    reason = (
        "from scratch; ImageNet weights are downloaded by --model.name application "
    )
    reason += "--model.options name=EfficientNetB0 weights=imagenet"
    config = config.chosen(
        "model", {"name": config.model.name, "options": small}, reason
    )
    each = seconds(*sides)
    most = max(1, int(time_left / each))
    config = config.chosen(
        "train.epochs",
        min(most, epochs),
        f"as many as {short}" if most < epochs else images,
    )
    epochs = config.train.epochs
    total = min(epochs * each, time_left if limit else math.inf)
    about = f"{total / 60:.0f} min" if total > 90 else f"{total:.0f} s"
    speed = f"{steps * batch / each:,.0f} images/s"
    say("plan", f"about {about}: {counted(epochs, 'epoch')} at {speed}, with")
    rate = round((0.002 if tuned else 0.02) * math.sqrt(min(batch, 64) / 64), 4)
    config = config.chosen("train.learning_rate", rate, f"for batches of {batch}")
    operations = {"flip": {}, "crop": {"padding": min(sides) // 8}}
    config = config.chosen("data.augment", operations, "usual for photographs")
    lag = max(1.0, steps * epochs * _AVERAGED)
    reason = f"about {lag:,.0f} of {counted(steps * epochs, 'step')}"
    return config.chosen("train.ema", round(1 - 1 / (1 + lag), 4), reason)


def _seconds_per_pixel(config: Config) -> float:
    """What the forward and backward pass of a pixel takes; measured in about two
    seconds.
    """
    progress_bar.stage("timing", "this machine")
    options = config.model
    if registry.builds_whole_model(options.name):
        options = Model(name="residual")  # a network of one's own is built once
    given: Any = config.data.image_size
    side = max(given) if given else _LEAST if "weights" in options.options else 48
    task: Any = SimpleNamespace(
        inputs=lambda: keras.Input((side, side, 3)),
        head=lambda features, _: features,
        metadata={},
    )
    network = model_builder.network(task, options, config.runtime.precision)
    images = tf.random.stateless_uniform((_TIMED, side, side, 3), (0, 1))

    @tf.function
    def gradients() -> tf.Tensor:
        with tf.GradientTape() as tape:
            features = network(images, training=True)
        return tf.linalg.global_norm(
            tape.gradient(features, network.trainable_variables)
        )

    best = math.inf
    for _ in range(4):  # the first call traces
        start = time.monotonic()
        gradients().numpy()
        best = min(best, time.monotonic() - start)
    return best / (_TIMED * side * side)
