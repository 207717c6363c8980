"""Boxes in the records of TensorFlow Datasets, such as those of `voc` and `coco`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from pipeline.contracts import Example

_PADDED_TO = 100
"""Boxes of an image that are kept, the largest; images of COCO have up to 93. How many
boxes the records have is only known after reading all of them.
"""
_IGNORED = ("is_difficult", "is_crowd")  # flags of boxes that need not be found


@dataclasses.dataclass(frozen=True)
class BoxFeatures:
    """The features of a sequence of boxes, by their names in a record."""

    corners: str
    """float32 (n, 4): top, left, bottom and right, as fractions of the image."""
    label: str
    ignored: str | None
    class_names: tuple[str, ...]

    def parse(self, record: tf.Tensor, image: tf.Tensor) -> Example:
        """`boxes`, `box_labels` and `box_ignored` of a record, padded."""
        types = {self.corners: tf.float32, self.label: tf.int64}
        if self.ignored:
            types[self.ignored] = tf.int64
        spec = {name: tf.io.RaggedFeature(dtype) for name, dtype in types.items()}
        values = tf.io.parse_single_example(record, spec)
        labels = tf.cast(values[self.label], tf.int32)
        ignored = tf.zeros_like(labels)
        if self.ignored:
            ignored = tf.cast(values[self.ignored], tf.int32)
        top, left, bottom, right = tf.unstack(
            tf.reshape(values[self.corners], (-1, 4)), axis=1
        )
        size = tf.cast(_size(image), tf.float32)
        corners = tf.stack([left, top, right, bottom], axis=1)
        corners *= tf.concat([size[::-1]] * 2, axis=0)
        area = (right - left) * (bottom - top)
        count = tf.minimum(tf.size(area), _PADDED_TO)
        chosen = tf.sort(tf.math.top_k(area, count).indices)
        missing = [0, _PADDED_TO - count]

        def pad(values: tf.Tensor, value: int = 0) -> tf.Tensor:
            padded = tf.pad(tf.gather(values, chosen), [missing], constant_values=value)
            return tf.ensure_shape(padded, (_PADDED_TO,))

        corners = tf.pad(tf.gather(corners, chosen), [missing, [0, 0]])
        return {
            "boxes": tf.ensure_shape(corners, (_PADDED_TO, 4)),
            "box_labels": pad(labels, -1),
            "box_ignored": tf.cast(pad(ignored), tf.uint8),
        }


SPECS = {
    "boxes": tf.TensorSpec((_PADDED_TO, 4), tf.float32),
    "box_labels": tf.TensorSpec((_PADDED_TO,), tf.int32),
    "box_ignored": tf.TensorSpec((_PADDED_TO,), tf.uint8),
}
"""What `BoxFeatures.parse` returns."""


def find(features: Mapping[str, Any]) -> BoxFeatures | None:
    """The first sequence with boxes and their classes, if there is one."""
    import tensorflow_datasets as tfds

    for name, sequence in features.items():
        parts = getattr(sequence, "feature", None)
        if not isinstance(parts, tfds.features.FeaturesDict):
            continue
        kinds = {part: type(parts[part]) for part in parts}
        corners = [p for p, kind in kinds.items() if kind is tfds.features.BBoxFeature]
        # Others, such as the pose of an object, are not its class.
        if corners and kinds.get("label") is tfds.features.ClassLabel:
            flags = [f"{name}/{flag}" for flag in _IGNORED if flag in kinds]
            return BoxFeatures(
                f"{name}/{corners[0]}",
                f"{name}/label",
                flags[0] if flags else None,
                tuple(parts["label"].names),
            )
    return None


def _size(image: tf.Tensor) -> tf.Tensor:
    """Height and width, int32 (2,), of a JPEG or PNG file, which TFDS writes."""

    def size_of_png() -> tf.Tensor:
        # PNG specification, 11.2.2: width and height, big-endian.
        numbers = tf.io.decode_raw(tf.strings.substr(image, 16, 8), tf.int32, False)
        return numbers[::-1]

    is_png = tf.strings.substr(image, 1, 3) == "PNG"
    return tf.cond(is_png, size_of_png, lambda: tf.io.extract_jpeg_shape(image)[:2])
