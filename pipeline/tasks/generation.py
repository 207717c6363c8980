"""Generation: pictures like those of the training examples, drawn from noise.

Flow matching with straight paths: Lipman et al., "Flow matching for generative
modeling", ICLR 2023; Liu et al., "Flow straight and fast", ICLR 2023. At time 0, an
image is noise, and at time 1 the example; in between, it is the mean of both weighted
by the time. The network predicts the velocity, the example minus the noise, and a
sample is drawn by following its velocities from noise.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.config.registry import register
from pipeline.contracts import (
    Decision,
    Example,
    Info,
    Input,
    Metadata,
    OutputSpec,
    Request,
    ServingInput,
    Source,
    Target,
    Task,
)
from pipeline.data import seeds as random
from pipeline.serving import request_guards
from pipeline.tasks.inputs.image import ImageInput, image
from pipeline.tasks.sample_judge import check_judge
from pipeline.tasks.targets.classes import ClassTarget
from pipeline.utils.errors import UsageError

_MAX_SIDE = 128  # pixels of a side
_MAX_GUIDANCE = 20.0
_GUIDED_FROM = 0.2
"""The time from which guidance above 1 counts (benchmarks/README.md, "Generation")."""
_STEPS = 8
"""Steps of the sampler until their number is chosen."""
STEP_CHOICES = (4, 8, 12, 16, 24, 32)
EXACT_STEPS = 64  # steps whose samples all others are compared with
GOLDEN = 16  # pictures that the export is verified with
_BATCH = 64  # samples at a time
_SHOWN = 80  # samples in a sheet
_MEASURED = 256  # samples that a judge measures
# Numbers of the independent draws from the seed of an example; augmentations use
# smaller ones.
_TIME, _DROP, _NOISE, CHOSEN = 1001, 1002, 1003, 1004


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
        check_judge(judge, metadata["class_names"], found["image_shape"])
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
            passes += (EXACT_STEPS + STEP_CHOICES[0] + STEP_CHOICES[1]) * GOLDEN
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


def scale_pixels(images: tf.Tensor) -> tf.Tensor:
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
        return {**batch, "image": scale_pixels(batch["image"])}

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
        labels = columns["label"][:GOLDEN].astype(np.int32)
        return {
            "seed": np.arange(len(labels), dtype=np.int64),
            "class_id": labels,
            "guidance": np.full(len(labels), self._guidance, np.float32),
        }

    def standalone(self) -> tuple[Any, Any]:
        inputs = self.inputs()
        return inputs, inputs

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
        and Salimans, arXiv 2207.12598; more than 1 not while there is mostly noise, as
        in Kynkaanniemi et al., "Applying guidance in a limited interval improves sample
        and distribution quality in diffusion models", NeurIPS 2024.

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
            # In float32, 5 * (1 / 25) is less than 0.2.
            is_guided = (time > _GUIDED_FROM - 1e-4) | (guidance < 1)
            scale = tf.where(is_guided, guidance, 1.0)
            return of_any + scale * (of_class - of_any)

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
        self.labels = labels or ClassTarget({"class_names": metadata["class_names"]})
        self.sampler = Sampler(metadata)
        self.output = OutputSpec(self.sampler.image_shape)

    def match(self, source: Source) -> "Velocity":
        labels = self.labels
        if "label" in source.info.fields:
            labels = labels.match(source)
        return Velocity(self.metadata, labels)

    def decode(self, example: Example, geometry: tf.Tensor | None) -> Example:
        if "label" not in example:
            return {"label": tf.zeros_like(example["id"])}
        return self.labels.decode(example, None)

    def check(
        self,
        columns: Mapping[str, np.ndarray],
        split: str,
        locate: Callable[[int], str],
    ) -> None:
        self.labels.check(columns, split, locate)

    def class_counts(self, columns: Mapping[str, np.ndarray]) -> dict[str, int]:
        return self.labels.class_counts(columns)

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
        prepared = {**batch, "image": scale_pixels(batch["image"])}
        inputs, _ = _noisy(prepared, batch["id"], self.metadata)  # as in evaluation
        rest = 1 - inputs["time"][:, None, None, None]
        denoised = inputs["image"] + rest * tf.cast(outputs, tf.float32)
        return {"time": inputs["time"], "denoised": _pixels(denoised)}

    def served_predictions(self, served: Example, batch: Example) -> Example:
        raise UsageError(
            "an export that draws pictures cannot be evaluated on data; evaluate its"
            " run: pipeline evaluate RUN"
        )

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
