"""Masks: a class for each pixel of an image."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.config.registry import register
from pipeline.contracts import (
    Decision,
    Example,
    Info,
    Metadata,
    OutputSpec,
    Source,
    Target,
    TrainingExamples,
)
from pipeline.data import mask_files
from pipeline.data.mask_files import IGNORED
from pipeline.tasks.targets.class_names import match_names
from pipeline.utils.errors import UsageError

_MAX_CLASSES = 256
_MAX_UNNAMED = 64  # without names of the classes
_MAX_SMALL = 32  # numbers of classes, of which some may be missing
_SHOWN = 6  # values in a message
_SMOOTHING = 1.0  # pixels added to the counts of the Dice coefficient


@register
def mask(
    info: Info | Metadata,
    *,
    field: str = "mask",
    image_size: tuple[int, int] | None = None,
) -> Target:
    """A class for each pixel.

    Masks are arrays of the size of their images, or files of any format of Pillow. What
    the pixels mean is decided from all masks for training: small whole numbers are the
    numbers of the classes, and 255 among them is a pixel that does not count; of 0 and
    255 alone, both are classes; colors are classes in their order, unless the source
    has a table of them.

    Args:
        info: The source's description, or the metadata of a run.
        field: The field of the source.
        image_size: Height and width to which images and masks are resized; None: the
            size that all masks have.

    Raises:
        UsageError: The field is missing or has another type or shape.
    """
    if not isinstance(info, Info):
        return MaskTarget(info)
    spec = info.field(field)
    names = info.class_names or ()
    if len(names) == 1:
        raise UsageError(
            "masks need at least 2 classes; --source.class-names has 1 name: name the"
            " background, too"
        )
    if spec.dtype == tf.string:
        size = image_size or info.exact_image_shape()[:2]
    else:
        size = image_size or tuple(spec.shape[:2])
    is_mask = spec.dtype == tf.string or (
        spec.dtype.is_integer and spec.shape.rank in (2, 3)
    )
    if not is_mask or None in size:
        raise UsageError(
            f"{field}: a mask must be whole numbers (height, width), or a file; got"
            f" {spec.dtype.name} of shape {spec.shape}; masks of several sizes need"
            " --data.image-size"
        )
    metadata: dict[str, Any] = {"class_names": list(names), "mask_shape": list(size)}
    if info.class_values:
        metadata["class_values"] = list(info.class_values)
    if field != "mask":
        metadata["target_field"] = field
    return MaskTarget(metadata)


class MaskTarget(Target):
    """Decoded examples have `mask`, uint8 (height, width)."""

    selection_metric = ("mean_iou", 1)
    spatial_fields = ("mask",)

    def __init__(
        self, metadata: Metadata, new_numbers: np.ndarray | None = None
    ) -> None:
        super().__init__(metadata)
        self.class_names: list[str] = metadata["class_names"]
        self._values: list[int] | None = metadata.get("class_values")
        self._height, self._width = metadata["mask_shape"]
        self._field = metadata.get("target_field", "mask")
        self._new_numbers = new_numbers
        """Maps the classes of other data to those of the task."""
        # As of two classes, until the masks for training have been read.
        self._count = len(self.class_names) or 2
        self.output = OutputSpec((self._height, self._width, self._count), "softmax")

    def learn(self, examples: TrainingExamples) -> Metadata:
        """Learns the values of the classes, and their names if the source has none."""
        if self._values:
            return {}
        values: set[int] = set()
        for batch in examples.batches():
            for raw in batch[self._field]:
                values |= _distinct(raw)
            if len(values) > _MAX_CLASSES:
                break
        if not values:  # the files are damaged, which decoding reports
            return {}
        classes = _classes(sorted(values), self.class_names)
        learned: dict[str, Any] = {}
        if classes != [*range(len(classes))]:
            learned["class_values"] = classes
        if IGNORED in values and IGNORED not in classes:
            learned["has_ignored"] = True
        if not self.class_names:
            learned["class_names"] = mask_files.describe_values(classes)
        return learned

    def review(self, columns: Mapping[str, np.ndarray]) -> list[Decision]:
        """Says which values are the classes."""
        values = self._values or range(len(self.class_names))
        shown = []
        texts = mask_files.describe_values(values)[:_SHOWN]
        for text, name in zip(texts, self.class_names, strict=False):
            shown.append(text if text == name else f"{text} {name}")
        listing = ", ".join(shown) + (", ..." if len(values) > _SHOWN else "")
        if self.metadata.get("has_ignored"):
            listing += f"; pixels of {IGNORED} do not count"
        reason = "in all masks for training; --source.class-names names the classes"
        return [Decision("masks", f"values of the classes: {listing}", reason)]

    def decode(self, example: Example, geometry: tf.Tensor | None) -> Example:
        """Decodes a mask and resizes it to the size of the decoded image, nearest.

        Pixels beside a letterboxed image do not count.
        """
        mask = _values(example[self._field])
        if geometry is not None:
            mask = _require_size(mask, tf.cast(geometry[4:], tf.int32))
        if self._values:
            mask = _look_up(mask, self._values)
        if self._new_numbers is not None:
            last = len(self._new_numbers) - 1
            is_class = (mask >= 0) & (mask <= last)
            new = tf.gather(self._new_numbers, tf.clip_by_value(mask, 0, last))
            mask = tf.where(is_class, tf.cast(new, tf.int32), mask)
        mask = self._require_classes(mask)
        size = (self._height, self._width)
        if mask.shape != size:
            inner = size
            if geometry is not None:
                inner = tf.cast(tf.round(geometry[:2] * geometry[4:]), tf.int32)
            mask = tf.image.resize(mask[..., None], inner, "nearest")[..., 0]
            missing = size - tf.shape(mask)
            before = missing // 2
            paddings = tf.stack([before, missing - before], axis=1)
            mask = tf.pad(mask, paddings, constant_values=IGNORED)
        return {"mask": tf.ensure_shape(tf.cast(mask, tf.uint8), size)}

    def match(self, source: Source) -> "MaskTarget":
        field = self._field if self._field in source.info.fields else "mask"
        new_numbers = match_names(source.info.class_names, self.class_names)
        return MaskTarget({**self.metadata, "target_field": field}, new_numbers)

    def _require_classes(self, mask: tf.Tensor) -> tf.Tensor:
        count = self._count
        is_class = (mask >= 0) & (mask < count) | (mask == IGNORED)
        message = f"a pixel of the mask is not from 0 to {count - 1}, nor {IGNORED}"
        if self._values:
            listing = ", ".join(mask_files.describe_values(self._values)[:_SHOWN])
            message = f"a pixel of the mask has another value than {listing}"
        message += "; --source.class-names names all classes"
        check = tf.debugging.Assert(tf.reduce_all(is_class), [message])
        with tf.control_dependencies([check]):
            return tf.identity(mask)

    def y(self, batch: Example) -> tf.Tensor:
        """The class of each pixel, int32 (batch, height, width)."""
        return tf.cast(batch["mask"], tf.int32)

    def head(self, features: keras.KerasTensor, mask: Any = None) -> keras.KerasTensor:
        """Returns logits of each pixel, (batch, height, width, classes).

        Raises UsageError unless features are a map, (batch, h, w, n).
        """
        if len(features.shape) != 4:
            shape = ", ".join(map(str, ("batch", *features.shape[1:])))
            raise UsageError(
                "--model.name: a mask needs a map of features, (batch, height, width,"
                f" n); got ({shape}); unet returns one"
            )
        logits = keras.layers.Conv2D(self._count, 1, dtype="float32", name="logits")
        outputs = logits(features)
        if tuple(outputs.shape[1:3]) != (self._height, self._width):
            resize = keras.layers.Resizing(
                self._height, self._width, dtype="float32", name="resize_logits"
            )
            outputs = resize(outputs)
        return outputs

    def loss(self) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
        """The cross-entropy, averaged over the pixels that have a class, plus one minus
        the Dice coefficient, averaged over the classes of the image.

        Both together as in Isensee et al., "nnU-Net", Nature Methods 2021: the
        coefficient counts a class of few pixels as much as one of many.
        """

        def loss(y: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
            outputs = tf.cast(outputs, tf.float32)
            counts = tf.cast(y != IGNORED, tf.float32)
            labels = tf.where(y != IGNORED, y, 0)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)
            total = tf.reduce_sum(losses * counts, axis=(1, 2))
            crossentropy = total / tf.maximum(tf.reduce_sum(counts, axis=(1, 2)), 1.0)

            counts = counts[..., None]
            truth = tf.one_hot(labels, self._count) * counts
            probabilities = tf.nn.softmax(outputs) * counts
            pixels = tf.reduce_sum(truth, axis=(1, 2))
            both = tf.reduce_sum(truth * probabilities, axis=(1, 2))
            sizes = pixels + tf.reduce_sum(probabilities, axis=(1, 2))
            missing = 1 - (2 * both + _SMOOTHING) / (sizes + _SMOOTHING)
            occurs = tf.cast(pixels > 0, tf.float32)
            missing = tf.reduce_sum(missing * occurs, axis=-1)
            classes = tf.maximum(tf.reduce_sum(occurs, axis=-1), 1.0)
            return crossentropy + missing / classes

        return loss

    def metrics(self) -> list[keras.metrics.Metric]:
        return [PixelAccuracy(name="pixel_accuracy")]

    def predict(self, outputs: tf.Tensor, batch: Example) -> Example:
        """Returns `mask`, uint8 (batch, height, width): the most probable class of each
        pixel; and `probability`, float32: how probable it is.
        """
        probabilities = tf.nn.softmax(tf.cast(outputs, tf.float32))
        mask = tf.argmax(probabilities, axis=-1, output_type=tf.int32)
        probability = tf.reduce_max(probabilities, axis=-1)
        return {"mask": tf.cast(mask, tf.uint8), "probability": probability}

    def limitations(self) -> list[str]:
        return [
            (
                f"Masks have {self._height} x {self._width} pixels, the size to which"
                " images are resized. Every pixel is assigned to one of"
                f" {len(self.class_names)} classes."
            )
        ]

    def standalone(self, outputs: keras.KerasTensor) -> keras.KerasTensor:
        """Probabilities of each pixel."""
        return keras.layers.Softmax(dtype="float32", name="probabilities")(outputs)

    def standalone_loss(self) -> tuple[Any, Any]:
        loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=IGNORED)
        return loss, "accuracy"


def _values(mask: tf.Tensor) -> tf.Tensor:
    """The values of the pixels of a raw mask, int32 (height, width): gray, or of a
    color `COLORS` and 0xRRGGBB.
    """
    if mask.dtype == tf.string:
        return _decode_png(mask)
    mask = tf.cast(mask, tf.int32)
    if mask.shape.rank == 3:
        return _values_of_colors(mask) if mask.shape[-1] == 3 else mask[..., 0]
    return mask


def _distinct(mask: Any) -> set[int]:
    """The different values of a raw mask; empty if it cannot be decoded."""
    try:
        values = _values(tf.constant(mask)).numpy().ravel()
    except tf.errors.InvalidArgumentError:
        return set()
    if values.min() >= 0 and values.max() < _MAX_CLASSES:  # faster than sorting
        values = np.flatnonzero(np.bincount(values))
    return {*np.unique(values).tolist()}


def _decode_png(content: tf.Tensor) -> tf.Tensor:
    """The values in a PNG with 8 bits, int32 (height, width)."""
    # Byte 25 of a PNG is its color type: 0 is gray, 2 is RGB, 3 a palette, whose
    # indices TensorFlow does not return; `mask_files.to_png` does.
    last = tf.strings.length(content) - 1
    byte = tf.strings.substr(content, tf.minimum(25, last), 1)
    color = tf.io.decode_raw(byte, tf.uint8)
    is_plain = tf.reduce_all((color == 0) | (color == 2))
    message = (
        "a mask must be a file of class numbers, of a palette or of at most"
        f" {_MAX_CLASSES} colors, and a JPEG has two classes"
    )
    with tf.control_dependencies([tf.debugging.Assert(is_plain, [message])]):
        content = tf.identity(content)
    return tf.cond(
        tf.reduce_all(color == 2),
        lambda: _values_of_colors(tf.io.decode_png(content, channels=3)),
        lambda: tf.cast(tf.io.decode_png(content, channels=1)[..., 0], tf.int32),
    )


def _values_of_colors(pixels: tf.Tensor) -> tf.Tensor:
    """The values of pixels (height, width, 3), int32 (height, width)."""
    red, green, blue = tf.unstack(tf.cast(pixels, tf.int32), 3, axis=-1)
    is_gray = (red == green) & (green == blue)
    return tf.where(is_gray, red, mask_files.COLORS + (red * 256 + green) * 256 + blue)


def _look_up(mask: tf.Tensor, values: Sequence[int]) -> tf.Tensor:
    """The classes of values, int32; -1 for a value of no class, which is not 255."""
    order = np.argsort(values).astype(np.int32)
    known = np.array(values, np.int32)[order]
    place = tf.searchsorted(known, tf.reshape(mask, [-1]))
    place = tf.reshape(tf.minimum(place, len(known) - 1), tf.shape(mask))
    other = tf.where(mask == IGNORED, mask, -1)
    return tf.where(tf.gather(known, place) == mask, tf.gather(order, place), other)


def _classes(values: Sequence[int], names: Sequence[str]) -> list[int]:
    """The values of the classes, of all values of the masks in ascending order.

    Small numbers are the numbers of the classes, and 255 among them is none. Otherwise,
    each value is a class.

    Raises UsageError if there are too many, or not as many as names.
    """
    numbers = [value for value in values if value != IGNORED]
    largest = max(numbers, default=0)
    are_small = largest < max(_MAX_SMALL, 2 * len(numbers))
    is_binary = len(values) == 2 and IGNORED in values and len(names) in (0, 2)
    if is_binary or not are_small:
        numbers = [*values]
    listing = ", ".join(mask_files.describe_values(values)[:_SHOWN])
    listing += ", ..." if len(values) > _SHOWN else ""
    if names:
        if are_small and not is_binary and largest < len(names):
            return [*range(len(names))]
        if len(names) not in (len(numbers), len(values)):
            raise UsageError(
                f"the masks have {len(values)} values, {listing}, for"
                f" {len(names)} names of classes; name a class for each value, in this"
                " order, with --source.class-names"
            )
        return numbers if len(numbers) == len(names) else [*values]
    if len(numbers) < 2:
        raise UsageError(
            f"all pixels of the masks for training are {listing}; masks need at least 2"
            " classes"
        )
    if len(numbers) > _MAX_UNNAMED:
        raise UsageError(
            f"the masks have {_MAX_UNNAMED} values and more, such as {listing}: were"
            " they resized with interpolation, or compressed? If not, name all classes"
            " with --source.class-names"
        )
    is_dense = numbers[0] == 0 and largest < 2 * len(numbers)
    return [*range(largest + 1)] if is_dense and not is_binary else numbers


def _require_size(mask: tf.Tensor, image_size: tf.Tensor) -> tf.Tensor:
    size = tf.shape(mask)
    message = "the mask has another size (height, width) than its image:"
    is_equal = tf.reduce_all(size == image_size)
    check = tf.debugging.Assert(is_equal, [message, size, image_size])
    with tf.control_dependencies([check]):
        return tf.identity(mask)


@keras.saving.register_keras_serializable("pipeline")
class PixelAccuracy(keras.metrics.Mean):
    """The fraction of right pixels of each example, averaged over the examples."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        predictions = tf.argmax(y_pred, axis=-1, output_type=tf.int32)
        counts = tf.cast(y_true != IGNORED, tf.float32)
        right = tf.cast(predictions == y_true, tf.float32) * counts
        pixels = tf.maximum(tf.reduce_sum(counts, axis=(1, 2)), 1.0)
        accuracy = tf.reduce_sum(right, axis=(1, 2)) / pixels
        super().update_state(accuracy, sample_weight=sample_weight)
