"""Generation: pictures like those of the training examples, drawn from noise.

Flow matching with straight paths: Lipman et al., "Flow matching for generative
modeling", ICLR 2023; Liu et al., "Flow straight and fast", ICLR 2023. At time 0, an
image is noise, and at time 1 the example; in between, it is the mean of both weighted
by the time. The network predicts the velocity, the example minus the noise, and a
sample is drawn by following its velocities from noise.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.config.registry import register
from pipeline.contracts import (
    Calibrator,
    Decision,
    Evaluator,
    Example,
    Info,
    Input,
    Metadata,
    OutputSpec,
    Panel,
    Request,
    ServingInput,
    Source,
    Target,
    Task,
)
from pipeline.data import seeds as random
from pipeline.serving import request_guards
from pipeline.tasks import sample_quality as quality
from pipeline.tasks.inputs.image import ImageInput, image
from pipeline.tasks.targets.classes import ClassTarget
from pipeline.utils.columns import Columns
from pipeline.utils.errors import UsageError
from pipeline.utils.image_sheets import sheet

_MAX_SIDE = 128  # pixels of a side
_MAX_GUIDANCE = 20.0
_STEPS = 8
"""Steps of the sampler until their number is chosen."""
_CHOICES = (4, 8, 12, 16, 24, 32)
_EXACT = 64  # steps whose samples all others are compared with
_CLOSE = 3.0  # mean difference of pixels from 0 to 255
_GOLDEN = 16  # pictures that the export is verified with
_BATCH = 64  # samples at a time
_COLUMNS = 8  # of a sheet
_SHOWN = 80  # samples in a sheet
_MEASURED = 256  # samples that a judge measures
# Share of the loss of independent pixels, above which a model has learned nothing.
_BETTER = 0.95
_BINS = 10  # of the time, for the loss
# Numbers of the independent draws from the seed of an example; augmentations use
# smaller ones.
_TIME, _DROP, _NOISE, _CHOSEN = 1001, 1002, 1003, 1004


@register
def generation(
    info: Info | Metadata,
    *,
    image_size: tuple[int, int] | None = None,
    guidance: Annotated[float, (1, 20), "changeable"] = 2.0,
    drop_label: Annotated[float, (0, 1)] = 0.1,
    steps: Annotated[int, (1, 1000)] | None = None,
    samples: Annotated[int, (8, 1_000_000), "changeable"] | None = None,
    judge: Annotated[Path, "changeable"] | None = None,
) -> Task:
    """New pictures of a class, drawn from noise by a network that learned from yours.

    Args:
        info: The source's description, or the metadata of a run.
        image_size: Height and width to resize images to; None: the size they all have.
        guidance: How much samples follow their class, unless a request says otherwise:
            1 is as learned, and more makes them more typical and less diverse.
        drop_label: Share of the examples whose class is hidden from the network, so
            that it also learns images of any class, which guidance needs.
        steps: Steps of the sampler, each with two evaluations of the network; None: the
            fewest whose samples are close to those of 64 steps, chosen after training.
        samples: Number of pictures to draw in each evaluation; None: 256 with a judge,
            or 80, as many as are shown.
        judge: The directory of a run that classifies the same images: it tells of which
            class samples are, and its features measure quality and diversity. None:
            only the loss is measured.

    Raises:
        UsageError: The images do not have 8 bits, differ in size or are large, or the
            judge is for other images.
    """
    if not isinstance(info, Info):
        return Generation(info)
    found = image(info, image_size=image_size).metadata
    if "image_dtype" in found:
        raise UsageError(
            "generation takes images of uint8 pixels or files; got"
            f" {found['image_dtype']}"
        )
    height, width, _ = found["image_shape"]
    if max(height, width) > _MAX_SIDE:
        raise UsageError(
            f"generation is for images of up to {_MAX_SIDE} x {_MAX_SIDE} pixels; got"
            f" {height} x {width}; set --data.image-size 64 64"
        )
    names = info.class_names if "label" in info.fields else None
    metadata = {
        **found,
        "class_names": list(names or ("image",)),
        "guidance": guidance,
        "drop_label": drop_label,
        "samples": samples or (_SHOWN if judge is None else _MEASURED),
    }
    if steps is not None:
        metadata["steps"] = steps
    if judge is not None:
        quality.check_judge(judge, metadata["class_names"], found["image_shape"])
        metadata["judge"] = str(judge.absolute())
    return Generation(metadata)


# How a source interprets x and y.
generation.kinds = ("image", "classes")  # type: ignore[attr-defined]


class Generation(Task):
    """Decoded examples have `image`, uint8 (height, width, channels), and `label`,
    int64 (), which is 0 if the source has no classes.
    """

    def __init__(
        self,
        metadata: Metadata,
        input: Input | None = None,
        target: Target | None = None,
    ) -> None:
        super().__init__(
            metadata, input or NoisyImages(metadata), target or Velocity(metadata)
        )

    @property
    def title(self) -> str:
        return "generation of images"

    @property
    def test_passes(self) -> int:
        """Each step of a sample takes four: two evaluations, with and without class."""
        passes = Sampler(self.metadata).steps * self.metadata["samples"]
        if "steps" not in self.metadata:  # they are chosen after training
            passes += (_EXACT + _CHOICES[0] + _CHOICES[1]) * _GOLDEN
        return 4 * passes

    def review(self, columns: Mapping[str, np.ndarray]) -> list[Decision]:
        if "judge" in self.metadata:
            return []
        remedy = "--task.options judge=RUN, a run that classifies these images"
        return [Decision("note", "samples are drawn, but not measured", remedy)]

    def step_inputs(
        self, batch: Example, seeds: tf.Tensor
    ) -> tuple[Any, Any, tf.Tensor]:
        """Inputs at a random time, the velocity there, and the weight; see `_noisy`.

        Raises UsageError for images that augmentation has mixed.
        """
        if "partner_label" in batch:
            raise UsageError(
                "--data.augment: generation would draw images like those that mixup and"
                " cutmix make; remove them"
            )
        inputs, velocity = _noisy(self.input.prepare(batch), seeds, self.metadata)
        return inputs, velocity, batch["weight"]

    def serve(self, model: Callable[..., Any], batch: Example) -> Example:
        """Returns `images`, uint8 (batch, height, width, channels)."""
        sampler = Sampler(self.metadata)
        seeds, classes = batch["seed"], batch["class"]
        return {"images": sampler.sample(model, seeds, classes, batch["guidance"])}

    def standalone(self, network: keras.Model) -> keras.Model:
        return keras.Model(network.inputs, network.outputs)

    def draw(
        self, axes: Any, example: Mapping[str, Any], prediction: Mapping[str, Any]
    ) -> None:
        """Draws an example beside what it was taken for when it was noisy."""
        both = np.concatenate([example["image"], prediction["denoised"]], axis=1)
        self.input.draw(axes, {"image": both})
        self.target.draw(axes, example, prediction)


def _noisy(
    batch: Example, seeds: tf.Tensor, metadata: Metadata
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Inputs of the network from prepared images at a random time, and the velocity.

    The seed of an example decides its time, its noise and whether its class is hidden.
    Times are logit-normal: Esser et al., "Scaling rectified flow transformers", ICML
    2024, section 3.1.
    """
    time = tf.sigmoid(random.normal(seeds, (), _TIME))
    noise = random.normal(seeds, tuple(metadata["image_shape"]), _NOISE)
    share = time[:, None, None, None]
    is_hidden = random.uniform(seeds, _DROP) < metadata["drop_label"]
    label = tf.cast(batch["label"], tf.int32)
    label = tf.where(is_hidden, len(metadata["class_names"]), label)
    inputs = {
        "image": share * batch["image"] + (1 - share) * noise,
        "time": time,
        "class": label,
    }
    return inputs, batch["image"] - noise


def _scaled(images: tf.Tensor) -> tf.Tensor:
    """Pixels from -1 to 1."""
    return tf.cast(images, tf.float32) * (2.0 / 255) - 1.0


def _pixels(images: tf.Tensor) -> tf.Tensor:
    """Images from -1 to 1 as uint8."""
    images = request_guards.finite(images, "images")
    pixels = tf.round((images + 1) * 127.5)
    return tf.cast(tf.clip_by_value(pixels, 0, 255), tf.uint8)


class NoisyImages(ImageInput):
    """A noisy image, its time from 0 to 1, and the number of its class, which is the
    number of classes if it is hidden.
    """

    decodes_batches = True

    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        self._class_names: list[str] = metadata["class_names"]
        self._guidance = float(metadata.get("guidance", 2.0))

    def prepare(self, batch: Example) -> Example:
        return {**batch, "image": _scaled(batch["image"])}

    def inputs(self) -> dict[str, keras.KerasTensor]:
        return {
            "image": keras.Input(self.image_shape, dtype="float32", name="image"),
            "time": keras.Input((), dtype="float32", name="time"),
            "class": keras.Input((), dtype="int32", name="class"),
        }

    def network_inputs(self, batch: Example) -> dict[str, tf.Tensor]:
        """As the seeds of an evaluation decide, which are the ids."""
        inputs, _ = _noisy(batch, batch["id"], self.metadata)
        return inputs

    def signatures(self) -> list[ServingInput]:
        """`serving_default` takes a seed, a class and the guidance of each picture."""
        specs = {
            "seed": tf.TensorSpec((None,), tf.int64, name="seed"),
            "class_id": tf.TensorSpec((None,), tf.int32, name="class_id"),
            "guidance": tf.TensorSpec((None,), tf.float32, name="guidance"),
        }
        names = ", ".join(f"{i} ({n})" for i, n in enumerate(self._class_names[:10]))
        if len(self._class_names) > 10:
            names += ", ..."
        return [
            ServingInput(
                "serving_default",
                specs,
                self._read,
                self._request,
                meaning=f"`class_id` is {names}; `guidance` is from 0 to"
                f" {_MAX_GUIDANCE:g}",
                defaults={
                    "seed": 0,
                    "class_id": 0,
                    "guidance": self._guidance,
                },
                counts_up=("seed",),
                names={"class_id": tuple(self._class_names)},
            )
        ]

    def _read(self, seed: tf.Tensor, label: tf.Tensor, guidance: tf.Tensor) -> Example:
        seed = request_guards.batch(seed, (None,))
        count = tf.shape(seed)[0]
        label = request_guards.batch(label, (None,))
        label = request_guards.count(label, count, "class_id")
        label = request_guards.between(label, 0, len(self._class_names) - 1, "class_id")
        guidance = request_guards.batch(guidance, (None,))
        guidance = request_guards.count(guidance, count, "guidance")
        guidance = request_guards.between(guidance, 0, _MAX_GUIDANCE, "guidance")
        return {"seed": seed, "class": label, "guidance": guidance}

    def _request(self, columns: Mapping[str, np.ndarray]) -> Request:
        """A picture of the class of each of the first examples."""
        labels = columns["label"][:_GOLDEN].astype(np.int32)
        return {
            "seed": np.arange(len(labels), dtype=np.int64),
            "class_id": labels,
            "guidance": np.full(len(labels), self._guidance, np.float32),
        }

    def standalone(self) -> tuple[Any, Any]:
        inputs = self.inputs()
        return inputs, inputs

    def corruptions(self) -> Mapping[str, Callable[..., Example]]:
        return {}

    def limitations(self) -> list[str]:
        return []


class Sampler:
    """Draws images with a network, by the metadata of the task."""

    def __init__(self, metadata: Metadata) -> None:
        self.class_names: list[str] = metadata["class_names"]
        self.image_shape = tuple(metadata["image_shape"])
        self.guidance = float(metadata.get("guidance", 2.0))
        self.steps = int(metadata.get("steps", _STEPS))
        self._sampler: tuple[Any, Callable[..., tf.Tensor]] | None = None
        """The last network, and the compiled function that draws with it."""

    def sample(
        self,
        model: Callable[..., Any],
        seeds: tf.Tensor,
        classes: tf.Tensor,
        guidance: tf.Tensor,
        steps: tf.Tensor | int | None = None,
    ) -> tf.Tensor:
        """Draws images, uint8 (batch, height, width, channels), by the midpoint rule.

        A seed decides the noise, whatever the batch. Guidance without a classifier: Ho
        and Salimans, arXiv 2207.12598.

        Args:
            model: The network.
            seeds: int64 (batch,).
            classes: int32 (batch,).
            guidance: float32 (batch,); 1 is the velocity of the class, 0 that of any.
            steps: The number of steps, int32 (); None: that of the task.
        """
        if steps is None:
            steps = self.steps
        size = 1 / tf.cast(steps, tf.float32)
        both = tf.concat([classes, tf.zeros_like(classes) + len(self.class_names)], 0)
        guidance = guidance[:, None, None, None]

        def velocity(images: tf.Tensor, time: tf.Tensor) -> tf.Tensor:
            inputs = {
                "image": tf.concat([images, images], 0),
                "time": tf.zeros_like(both, tf.float32) + time,
                "class": both,
            }
            outputs = model(inputs, training=False)
            of_class, of_any = tf.split(outputs, 2)
            return of_any + guidance * (of_class - of_any)

        def advance(step: tf.Tensor, images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            time = tf.cast(step, tf.float32) * size
            middle = images + velocity(images, time) * (size / 2)
            return step + 1, images + velocity(middle, time + size / 2) * size

        noise = random.normal(seeds, self.image_shape, _NOISE)
        start = (tf.constant(0), noise)
        _, images = tf.while_loop(lambda step, _: step < steps, advance, start)
        return _pixels(images)

    def draw_samples(
        self,
        model: Callable[..., Any],
        classes: np.ndarray,
        steps: int | None = None,
        first_seed: int = 0,
    ) -> np.ndarray:
        """Samples of these classes, uint8 (classes, height, width, channels), with the
        guidance of the task and a seed each.
        """
        if self._sampler is None or self._sampler[0] is not model:
            self._sampler = model, self._trace(model)
        draw = self._sampler[1]
        number = tf.constant(self.steps if steps is None else steps)
        parts = []
        for start in range(0, len(classes), _BATCH):
            part = tf.constant(classes[start : start + _BATCH], tf.int32)
            seeds = tf.range(len(part), dtype=tf.int64) + first_seed + start
            parts.append(draw(seeds, part, number).numpy())
        return np.concatenate(parts)

    def _trace(self, model: Callable[..., Any]) -> Callable[..., tf.Tensor]:
        """A compiled function (seeds, classes, steps) -> samples."""
        step = getattr(model, "step", None)
        xla = step is not None and step.is_one_program("samples")

        @tf.function(autograph=False, jit_compile=xla or None)
        def draw(seeds: tf.Tensor, classes: tf.Tensor, steps: tf.Tensor) -> tf.Tensor:
            guidance = tf.zeros_like(seeds, tf.float32) + self.guidance
            return self.sample(model, seeds, classes, guidance, steps)

        return draw.get_concrete_function(
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([None], tf.int32),
            tf.TensorSpec([], tf.int32),
        )


class Velocity(Target):
    """The velocity from noise to an image, from which images are drawn."""

    decodes_batches = True
    not_decoded = frozenset(
        (
            *("class_names", "guidance", "drop_label", "samples", "judge"),
            *("steps", "differences"),
        )
    )

    def __init__(self, metadata: Metadata, labels: ClassTarget | None = None) -> None:
        super().__init__(metadata)
        self._labels = labels or ClassTarget({"class_names": metadata["class_names"]})
        self.sampler = Sampler(metadata)
        self.output = OutputSpec(self.sampler.image_shape)

    def match(self, source: Source) -> "Velocity":
        labels = self._labels
        if "label" in source.info.fields:
            labels = labels.match(source)
        return Velocity(self.metadata, labels)

    def decode(self, example: Example, geometry: tf.Tensor | None) -> Example:
        if "label" not in example:
            return {"label": tf.zeros_like(example["id"])}
        return self._labels.decode(example, None)

    def check(
        self,
        columns: Mapping[str, np.ndarray],
        split: str,
        locate: Callable[[int], str],
    ) -> None:
        self._labels.check(columns, split, locate)

    def class_counts(self, columns: Mapping[str, np.ndarray]) -> dict[str, int]:
        return self._labels.class_counts(columns)

    def describe(
        self, columns: Mapping[str, Mapping[str, np.ndarray]]
    ) -> Iterator[tuple[str, str]]:
        return self._labels.describe(columns)

    def y(self, batch: Example) -> tf.Tensor:
        """As the seeds of an evaluation decide, which are the ids."""
        _, velocity = _noisy(batch, batch["id"], self.metadata)
        return velocity

    def head(self, features: Any, mask: Any = None) -> keras.KerasTensor:
        """The velocity of each pixel; UsageError unless features are a map of the size
        of the images.
        """
        if (
            tuple(features.shape[1:3]) != self.sampler.image_shape[:2]
            or len(features.shape) < 4
        ):
            raise UsageError(
                "--model.name: generation needs a map of the size of the images, such"
                " as that of diffusion_unet"
            )
        velocity = keras.layers.Conv2D(
            self.sampler.image_shape[2],
            3,
            padding="same",
            kernel_initializer="zeros",
            dtype="float32",
            name="velocity",
        )
        return velocity(features)

    def loss(self) -> Callable[[Any, Any], tf.Tensor]:
        """The squared error of the velocity, averaged over the pixels."""
        return _squared_error

    def predict(self, outputs: Any, batch: Example) -> Example:
        """Returns `time`, float32 (batch,), and `denoised`: the image that the velocity
        points to, uint8 (batch, height, width, channels).
        """
        prepared = {**batch, "image": _scaled(batch["image"])}
        inputs, _ = _noisy(prepared, batch["id"], self.metadata)  # as in evaluation
        rest = 1 - inputs["time"][:, None, None, None]
        denoised = inputs["image"] + rest * tf.cast(outputs, tf.float32)
        return {"time": inputs["time"], "denoised": _pixels(denoised)}

    def served_predictions(self, served: Example, batch: Example) -> Example:
        raise UsageError(
            "an export that draws pictures cannot be evaluated on data; evaluate its"
            " run: pipeline evaluate RUN"
        )

    def evaluator(self, model: Callable[..., Any] | None = None) -> Evaluator:
        return SampleEvaluator(self, model)

    def calibrator(self, model: Callable[..., Any] | None = None) -> Calibrator | None:
        """Chooses the number of steps, unless it is an option."""
        if model is None or "steps" in self.metadata:
            return None
        return _Steps(self.sampler, model)

    def table(self, predictions: Example, batch: Example) -> dict[str, np.ndarray]:
        """`class`, `time` and `loss`."""
        return {
            "class": batch["label"].numpy().astype(np.int32),
            "time": predictions["time"].numpy(),
            "loss": predictions["loss"].numpy(),
        }

    def readable(self, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        names = np.array(self.sampler.class_names)
        return {**columns, "class": names[columns["class"]]}

    def summary(self, metrics: Mapping[str, Any], split: str) -> list[str]:
        """How the number of steps was chosen."""
        differences = self.metadata.get("differences")
        if not differences:
            return []
        count = self.sampler.steps
        parts = [f"{steps} steps {value:.1f}" for steps, value in differences.items()]
        return [
            f"{'sampler':10} {count} steps, {2 * count} evaluations of the"
            f" network; mean difference of pixels, of 255, from {_EXACT} steps:"
            f" {', '.join(parts)}"
        ]

    def no_better_than(self, metrics: Mapping[str, Any]) -> str:
        """Noise, if each pixel can be predicted as well by itself."""
        noise = metrics["independent_pixels"]["loss"]
        if metrics["loss"] < _BETTER * noise:
            return ""
        return f"drawing each pixel by itself, which is noise (loss {noise:.4f})"

    def headline(self, metrics: Mapping[str, Any]) -> str:
        if "accuracy" not in metrics:
            return f"loss {metrics['loss']:.4f}; samples were not measured"
        return (
            f"accuracy {metrics['accuracy']:.1%}: this share of"
            f" {metrics['samples']:,} samples is of the class asked for, according to a"
            f" classifier that is right about {metrics['judge_accuracy']:.1%} of the"
            " real images"
        )

    def panels(
        self, metrics: Mapping[str, Any], columns: Mapping[str, np.ndarray]
    ) -> Iterator[Panel]:
        losses = metrics["loss_by_time"]
        times = [f"{i / _BINS:.1f} to {(i + 1) / _BINS:.1f}" for i in range(_BINS)]
        rows = [(t, x) for t, x in zip(times, losses, strict=True) if x is not None]
        yield Panel(
            "Loss by time",
            Columns(time=[time for time, _ in rows], loss=[loss for _, loss in rows]),
            "At time 0, an image is only noise, and the best prediction is the mean of"
            " the images; at time 1, it is the example, and the noise is to be found.",
        )

    def truth(self, example: Mapping[str, Any]) -> str:
        return self._labels.truth(example)

    def draw(
        self, axes: Any, example: Mapping[str, Any], prediction: Mapping[str, Any]
    ) -> None:
        """Adds the class and the time as the title."""
        time = float(prediction["time"])
        axes.set_title(f"{self.truth(example)}, denoised from {time:.2f}", fontsize=8)

    def prediction_notes(self) -> list[str]:
        return [
            (
                "`seed` decides the noise from which a picture is drawn: the same seed,"
                " class and guidance give the same picture in any batch, up to"
                " rounding."
            ),
            (
                "`guidance` says how much a picture follows its class: 1 is as learned,"
                f" the default of `predict` is {self.sampler.guidance:g}."
            ),
        ]

    def limitations(self) -> list[str]:
        return [
            (
                "Pictures are like the training examples, with their errors and biases;"
                " some may be nearly copies of them."
            )
        ]


@tf.autograph.experimental.do_not_convert
def _squared_error(y: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    difference = tf.cast(outputs, tf.float32) - y
    return tf.reduce_mean(tf.square(difference), axis=(1, 2, 3))


class SampleEvaluator(Evaluator):
    """The loss, and with a model samples; with a judge, how good they are.

    Samples are of all classes in turn, with the seeds 0, 1, ...
    """

    def __init__(self, target: Velocity, model: Callable[..., Any] | None) -> None:
        self._sampler = sampler = target.sampler
        metadata = target.metadata
        self._count = 0
        self._loss = np.zeros(_BINS)
        self._by_time = np.zeros(_BINS)
        self._times: list[np.ndarray] = []
        self._sums = np.zeros((2, *sampler.image_shape))
        """Of the pixels from -1 to 1, and of their squares."""
        self._real = np.empty((0, *sampler.image_shape), np.uint8)
        """Images of the split, as many as samples, and the number that chose each."""
        self._chosen = np.empty(0, np.float32)
        self._features: list[np.ndarray] = []
        self._is_right: list[np.ndarray] = []
        self._judge: quality.Judge | None = None
        self._samples: np.ndarray | None = None
        self._nearest: tuple[quality.Nearest, quality.Nearest] | None = None
        """Of the samples and of as many real images, among the training images."""
        self._model = model if callable(model) else None
        self.reads_training = self._model is not None
        if self._model is not None and "judge" in metadata:
            judge = Path(metadata["judge"])
            self._judge = quality.Judge(judge, sampler.class_names)
        # In the order of the classes.
        numbers = np.arange(metadata.get("samples", 256))
        self._asked = numbers * len(sampler.class_names) // len(numbers)

    def update(self, outputs: Any, predictions: Example, batch: Example) -> None:
        losses = predictions["loss"].numpy().astype(np.float64)
        bins = (predictions["time"].numpy() * _BINS).astype(np.int64).clip(0, _BINS - 1)
        self._count += len(losses)
        self._times.append(predictions["time"].numpy())
        pixels = _scaled(batch["image"]).numpy().astype(np.float64)
        self._sums += pixels.sum(axis=0), (pixels**2).sum(axis=0)
        self._loss += np.bincount(bins, losses, _BINS)
        self._by_time += np.bincount(bins, minlength=_BINS)
        if self._model is None:
            return
        images = batch["image"].numpy()
        self._keep(images, batch["id"])
        if self._judge is not None:
            features, classes = self._judge(images)
            self._features.append(features)
            self._is_right.append(classes == batch["label"].numpy())

    def _keep(self, images: np.ndarray, ids: tf.Tensor) -> None:
        """Keeps as many images as there are samples, at random: a split may be in the
        order of its classes.
        """
        images = np.concatenate([self._real, images])
        numbers = random.uniform(ids, _CHOSEN).numpy()
        numbers = np.concatenate([self._chosen, numbers])
        first = np.argsort(numbers, kind="stable")[: len(self._asked)]
        self._real, self._chosen = images[first], numbers[first]

    def update_training(self, batch: Example) -> None:
        if self._nearest is None:
            samples = self._draw()
            self._nearest = quality.Nearest(samples), quality.Nearest(self._real)
        for nearest in self._nearest:
            nearest.add(batch["image"].numpy())

    def _draw(self) -> np.ndarray:
        if self._samples is None and self._model is not None:
            self._samples = self._sampler.draw_samples(self._model, self._asked)
        return np.asarray(self._samples)

    def result(self) -> dict[str, Any]:
        """`loss`, `loss_by_time` in tenths of the time, and as `independent_pixels` the
        loss of a model that predicts each pixel by itself.

        With a judge also `accuracy`, the share of samples of the class asked for,
        `judge_accuracy` on the real images, `frechet_distance`, `precision` and
        `recall`; with the training examples `nearer_than_real`: the probability that a
        sample is nearer to a training image than a real image of the split is, which is
        0.5 for new images and 1 for copies.
        """
        losses: list[float | None] = []
        for loss, count in zip(self._loss, self._by_time, strict=True):
            losses.append(float(loss / count) if count else None)
        metrics: dict[str, Any] = {
            "examples": self._count,
            "loss": float(self._loss.sum() / self._count),
            "loss_by_time": losses,
            "independent_pixels": {"loss": self._independent_pixels()},
        }
        if self._model is None:
            return metrics
        samples = self._draw()
        metrics["samples"] = len(samples)
        if self._judge is not None:
            metrics |= self._judged(samples, self._judge)
        if self._nearest is not None:
            squares = [nearest.squares for nearest in self._nearest]
            metrics["nearer_than_real"] = quality.share_nearer(*squares)
        return metrics

    def _independent_pixels(self) -> float:
        """The loss of the best linear prediction of each pixel from itself.

        A pixel of variance v, mixed with noise at time t, leaves the error v / (t² v +
        (1 - t)²) of its velocity.
        """
        mean, square = self._sums / self._count
        variance = np.maximum(square - mean**2, 0).ravel()
        losses = []
        for time in np.concatenate(self._times).astype(np.float64):
            noisy = time**2 * variance + (1 - time) ** 2
            losses.append(np.mean(variance / np.maximum(noisy, 1e-12)))
        return float(np.mean(losses))

    def _judged(self, samples: np.ndarray, judge: quality.Judge) -> dict[str, float]:
        features, classes = judge(samples)
        real = np.concatenate(self._features)
        count = min(len(features), len(real))
        # Both may be in the order of their classes.
        rows = [quality.spread(len(part), count) for part in (real, features)]
        precision, recall = quality.precision_and_recall(
            real[rows[0]], features[rows[1]]
        )
        return {
            "accuracy": float((classes == self._asked).mean()),
            "judge_accuracy": float(np.concatenate(self._is_right).mean()),
            "frechet_distance": quality.frechet_distance(real, features),
            "precision": precision,
            "recall": recall,
        }

    def pictures(self) -> dict[str, np.ndarray]:
        """`samples`: a row for each of some classes; and `nearest`: samples above the
        training images that are nearest to them.
        """
        if self._samples is None:
            return {}
        count = len(self._sampler.class_names)
        shown = []
        for label in np.linspace(0, count - 1, min(count, 10)).round():
            rows = np.flatnonzero(self._asked == label)[:_COLUMNS]
            shown.extend(rows.tolist())
        pictures = {"samples": sheet(self._samples[shown], _COLUMNS)}
        if self._nearest is not None:
            spread = np.linspace(0, len(self._samples) - 1, 2 * _COLUMNS).astype(int)
            pairs = []
            for rows in (spread[:_COLUMNS], spread[_COLUMNS:]):
                pairs += [self._samples[rows], self._nearest[0].images[rows]]
            pictures["nearest"] = sheet(np.concatenate(pairs), _COLUMNS)
        return pictures


class _Steps(Calibrator):
    """Chooses the fewest steps whose samples are close to those of many steps."""

    def __init__(self, sampler: Sampler, model: Callable[..., Any]) -> None:
        self._sampler = sampler
        self._model = model

    def update(self, outputs: Any, batch: Example) -> None:
        return None

    def result(self) -> Metadata:
        """`steps`, and `differences`: steps -> mean difference of pixels."""
        classes = np.arange(_GOLDEN) % len(self._sampler.class_names)
        exact = self._draw(classes, _EXACT)
        differences = {}
        for steps in _CHOICES:
            difference = float(np.abs(self._draw(classes, steps) - exact).mean())
            differences[str(steps)] = round(difference, 2)
            if difference <= _CLOSE:
                break
        return {"steps": steps, "differences": differences}

    def _draw(self, classes: np.ndarray, steps: int) -> np.ndarray:
        samples = self._sampler.draw_samples(self._model, classes, steps)
        return samples.astype(np.float64)
