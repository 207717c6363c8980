"""Image classification: a label per image."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.contracts import (
    Example,
    Info,
    Metadata,
    Requests,
    Signatures,
    Task,
    TrainingExamples,
)
from pipeline.data import image_decoding
from pipeline.data.pixel_scaling import pixel_scale, scale_pixels
from pipeline.serving import request_guards
from pipeline.tasks import _confusion_matrix, _metrics, _plots
from pipeline.tasks._class_weights import crossentropy, weights_by_name
from pipeline.utils.calibration import fit_temperature
from pipeline.utils.errors import UsageError


def image_classification(
    info: Info | Metadata,
    *,
    image_size: tuple[int, int] | None = None,
    raw: bool = False,
) -> Task:
    """One label per image; for sources with the fields `image` (pixels or a file) and
    `label`.

    Images are uint8, uint16, float32, or the bytes of a file, which is decoded to
    uint8.

    Args:
        info: The source's description, or the metadata of a run.
        image_size: Height and width to resize images to; None: the size they all have.
        raw: Give the model pixels as they are. Otherwise whole numbers are scaled to
            [0, 1]; floats are never scaled.

    Raises:
        UsageError: A field is missing or has another type, or `image_size` is None
            although images differ in size.
    """
    if not isinstance(info, Info):
        return ImageClassification(info)
    metadata = _metadata(info, image_size)
    return ImageClassification({**metadata, "raw": True} if raw else metadata)


def _metadata(info: Info, image_size: tuple[int, int] | None) -> dict[str, Any]:
    """Returns class names, and shape (height, width, channels) of a decoded image."""
    field = info.field("image")
    dtypes = (tf.uint8, tf.uint16, tf.float32, tf.string)
    if field.dtype not in dtypes or not info.field("label").dtype.is_integer:
        raise UsageError(
            "images must be uint8, uint16, float32 or encoded files, and labels must be"
            " integers"
        )
    *size, channels = info.image_shape if field.dtype == tf.string else field.shape
    if image_size is not None:
        size = list(image_size)
    if None in size:
        raise UsageError(
            "the images have different sizes; set --data.image-size HEIGHT WIDTH"
        )
    names = info.class_names or ()
    if len(names) < 2:
        text = ", ".join(names) or "none"
        raise UsageError(f"classification needs at least 2 classes; got {text}")
    metadata: dict[str, Any] = {
        "class_names": list(names),
        "image_shape": [*size, channels or 3],
    }
    if info.image_bits != 16:
        metadata["image_bits"] = info.image_bits
    if field.dtype in (tf.uint16, tf.float32):
        metadata["image_dtype"] = field.dtype.name
    return metadata


class ImageClassification(Task):
    """Batches have `image` uint8 (batch, height, width, channels) and `label` int64
    (batch,).

    In training, after mixup or cutmix, also `partner_label` and `share`.
    """

    not_decoded = frozenset({"image_range", "temperature"})

    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        self.class_names: list[str] = metadata["class_names"]
        self.image_shape = tuple(metadata["image_shape"])
        self.dtype = tf.as_dtype(metadata.get("image_dtype", "uint8"))
        self._takes_files = self.dtype == tf.uint8 and self.image_shape[2] in (1, 3)
        self.selection_metric = ("accuracy", 1)
        self.temperature = float(metadata.get("temperature", 1.0))

    def decode(self, example: Example) -> Example:
        """Decodes and resizes an image to `image_shape`, in training as in serving."""
        image = example["image"]
        height, width, channels = self.image_shape
        if image.dtype == tf.string:
            bits = self.metadata.get("image_bits", 16)
            image = image_decoding.pixels(image, channels, bits)
        if image.shape != self.image_shape:
            image = image_decoding.resize(image, height, width)
        return {**example, "image": tf.ensure_shape(image, self.image_shape)}

    def check(
        self,
        columns: Mapping[str, np.ndarray],
        split: str,
        locate: Callable[[int], str],
    ) -> None:
        labels = columns["label"]
        last = len(self.class_names) - 1
        if len(labels) and labels.min() == 1 and labels.max() == last + 1:
            raise UsageError(
                f"split {split}: the labels are from 1 to {last + 1}; subtract 1,"
                " because classes count from 0"
            )
        for row in np.flatnonzero((labels < 0) | (labels > last)):
            name = locate(int(columns["id"][row]))
            raise UsageError(
                f"split {split}: the label of {name} must be from 0 to {last}; got"
                f" {labels[row]}; --clean.enabled excludes such examples"
            )

    def learn(self, examples: TrainingExamples) -> Metadata:
        """Learns the range of float pixels, which a server enforces."""
        if not self.dtype.is_floating:
            return {}
        low, high = np.inf, -np.inf
        for batch in examples.batches():
            for image in batch["image"]:
                low = min(low, float(image.min()))
                high = max(high, float(image.max()))
        return {"image_range": [low, high]}

    def calibrate(self, outputs: np.ndarray, truth: np.ndarray) -> Metadata:
        """Fits the temperature by which the logits are divided."""
        return {"temperature": fit_temperature(outputs, truth)}

    def limitations(self) -> list[str]:
        height, width, _ = self.image_shape
        return [
            (
                f"Every image is assigned to one of {len(self.class_names)} classes,"
                " even if it shows none of them."
            ),
            (
                f"Images of other sizes are resized to {height} x {width} pixels"
                " without preserving their aspect ratio."
            ),
            (
                "The metrics and the calibration hold for images like those in the test"
                " split; images from other cameras, places and times have not been"
                " tested."
            ),
        ]

    def prepare(self, batch: Example) -> Example:
        """Converts pixels to float32; scales whole numbers to [0, 1], unless raw."""
        return {**batch, "image": scale_pixels(batch["image"], self._scale)}

    @property
    def _scale(self) -> float:
        return 1.0 if self.metadata.get("raw") else pixel_scale(self.dtype)

    def target(
        self, batch: Example, seeds: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns inputs, y and weights.

        y is the share of each class, float32 (batch, classes): one-hot, unless mixed.
        """
        y = self.y(batch["label"])
        if "partner_label" in batch:
            share = batch["share"][:, None]
            y = y * share + self.y(batch["partner_label"]) * (1 - share)
        return batch["image"], y, batch["weight"]

    def truth(self, y: tf.Tensor) -> tf.Tensor:
        """Returns the label with the largest share, int64 (batch,)."""
        return tf.argmax(y, axis=-1)

    def y(self, truth: tf.Tensor) -> tf.Tensor:
        """Returns one-hot labels, float32 (batch, classes)."""
        return tf.one_hot(truth, len(self.class_names))

    def inputs(self) -> keras.KerasTensor:
        return keras.Input(self.image_shape, dtype="float32", name="image")

    def head(
        self, features: keras.KerasTensor, inputs: keras.KerasTensor
    ) -> keras.KerasTensor:
        """Returns logits; raises UsageError unless features are (batch, n)."""
        if len(features.shape) != 2:
            shape = ", ".join(map(str, ("batch", *features.shape[1:])))
            raise UsageError(
                "--model.name: the features must be a vector per example, (batch, n);"
                f" got ({shape}); add GlobalAveragePooling2D or Flatten"
            )
        units = len(self.class_names)
        return keras.layers.Dense(units, dtype="float32", name="logits")(features)

    def standalone(self, network: keras.Model, output_kind: str) -> keras.Model:
        inputs = self.inputs()
        rescale = keras.layers.Rescaling(self._scale, dtype="float32", name="pixels")
        inner = keras.Model(network.inputs, network.outputs[0], name="network")
        logits = inner(rescale(inputs))
        if self.temperature != 1:
            calibrate = keras.layers.Rescaling(
                1 / self.temperature, dtype="float32", name="temperature"
            )
            logits = calibrate(logits)
        if output_kind == "linear":
            return keras.Model(inputs, logits)
        if output_kind == "logit":
            return keras.Model(inputs, logits[:, 1:] - logits[:, :1])
        answers = keras.layers.Softmax(dtype="float32", name="probabilities")(logits)
        return keras.Model(
            inputs, answers[:, 1:] if output_kind == "sigmoid" else answers
        )

    def loss(self) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
        return keras.losses.CategoricalCrossentropy(from_logits=True, reduction=None)

    def training_loss(
        self,
        label_smoothing: float,
        class_weight: Mapping[str, float],
        loss: Callable[[Any, Any], tf.Tensor] | None = None,
    ) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
        """Returns the cross-entropy with smoothed labels and class weights.

        The loss of a mixed example is the mean of the losses of its two labels,
        weighted by their shares. Smoothing: Szegedy et al., "Rethinking the Inception
        architecture", CVPR 2016, section 7. A custom loss replaces the cross-entropy,
        and is multiplied by the weights, too. Classes that `class_weight` does not name
        have weight 1.

        Raises UsageError if it names an unknown class.
        """
        weight_of = weights_by_name(class_weight, self.class_names)
        if not label_smoothing and not weight_of:
            return loss or self.loss()
        weights = tf.constant([float(weight_of.get(n, 1.0)) for n in self.class_names])
        if loss is None:
            return lambda y, outputs: crossentropy(y, outputs, weights, label_smoothing)
        return lambda y, outputs: loss(y, outputs) * tf.reduce_sum(y * weights, axis=-1)

    def metrics(self) -> list[keras.metrics.Metric]:
        return [keras.metrics.CategoricalAccuracy(name="accuracy")]

    def answer(self, outputs: tf.Tensor, batch: Example) -> Example:
        """Returns calibrated `probabilities`, `class` and `label`.

        They are float32 (batch, classes), int32 (batch,) and string (batch,).
        """
        probabilities = tf.nn.softmax(tf.cast(outputs, tf.float32) / self.temperature)
        index = tf.argmax(probabilities, axis=-1, output_type=tf.int32)
        names = tf.constant(self.class_names)
        label = tf.gather(names, index)
        return {"probabilities": probabilities, "class": index, "label": label}

    def evaluate(self, answers: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """See `_metrics.classification`."""
        fitted = self.temperature if "temperature" in self.metadata else None
        return _metrics.classification(answers, self.class_names, fitted)

    def pictures(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        figure = _confusion_matrix.draw(metrics, self.class_names)
        return {"confusion_matrix.png": figure}

    def show(
        self, axes: Any, example: Mapping[str, Any], answer: Mapping[str, Any]
    ) -> None:
        """Draws the image with the answer as its title: green if right, else red."""
        _plots.classified_image(axes, example, answer, self.class_names)

    def serve(self, model: Callable[..., tf.Tensor]) -> Signatures:
        """`serving_default` takes pixels, `image_bytes` encoded files."""
        shape = (None, *self.image_shape)

        def pixels(images: tf.Tensor) -> Example:
            images = request_guards.batch(images, shape)
            if "image_range" in self.metadata:
                limits = self.metadata["image_range"]
                images = request_guards.within(images, limits, "images")
            batch = {"image": images}
            outputs = model(self.prepare(batch)["image"], training=False)
            outputs = request_guards.finite(outputs, "outputs of the network")
            answer = self.answer(outputs, batch)
            probabilities = answer["probabilities"]
            labels, scores = request_guards.best(probabilities, self.class_names)
            return {**answer, "top_labels": labels, "top_scores": scores}

        def image_bytes(image_bytes: tf.Tensor) -> Example:
            images = tf.map_fn(
                lambda item: self.decode({"image": item})["image"],
                request_guards.files(image_bytes),
                fn_output_signature=tf.TensorSpec(self.image_shape, tf.uint8),
            )
            return pixels(images)

        images = tf.TensorSpec(shape, self.dtype, name="images")
        signatures: Signatures = {"serving_default": (pixels, [images])}
        if self._takes_files:
            contents = tf.TensorSpec((None,), tf.string, name="image_bytes")
            signatures["image_bytes"] = (image_bytes, [contents])
        return signatures

    def requests(self, columns: Mapping[str, np.ndarray]) -> Requests:
        requests: Requests = {"serving_default": {"images": columns["image"]}}
        if self._takes_files:
            files = request_guards.encode_images(columns["image"])
            requests["image_bytes"] = {"image_bytes": files}
        return requests
