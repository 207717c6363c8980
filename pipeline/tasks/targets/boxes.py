"""Boxes around objects in images, each with a class."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from pipeline.config.registry import register
from pipeline.contracts import Example, Info, Metadata, Source, Target
from pipeline.layers.convolution import normalized_convolution
from pipeline.tasks.targets.box_outputs import best_boxes, detection_loss
from pipeline.tasks.targets.class_names import match_names
from pipeline.utils.errors import UsageError

_COCO_BOXES = 100  # predictions for an image that COCO evaluates
_SIDE = 4.0  # strides: the side of the box that a location predicts at first
_MAX_LOGARITHM = 6.0  # of a side relative to `_SIDE`
_RARE = 0.01  # score of all classes at first, as in Lin et al.


@register
def boxes(
    info: Info | Metadata,
    *,
    field: str = "boxes",
    max_boxes: Annotated[int, (1, 1000)] | None = None,
    iou_threshold: Annotated[float, (0, 1)] = 0.6,
) -> Target:
    """Boxes around objects in images, each with a class whose name the source knows.

    The source has `boxes`, float32 (count, 4): left, top, right and bottom in pixels of
    the upright image; `box_labels`, whole numbers (count,), -1 for padding; and perhaps
    `box_ignored`, 1 for boxes that need not be found, such as of crowds.

    Args:
        info: The source's description, or the metadata of a run.
        field: The field of the source.
        max_boxes: Largest number of boxes in a prediction, and in the average
            precision. None: 100, as for COCO, or as many as the image of the source
            with the most boxes has.
        iou_threshold: Of two predicted boxes of a class whose intersection over union
            is higher, only the one with the higher score is kept (non-maximum
            suppression).

    Raises:
        UsageError: A field is missing or has another type or shape.
    """
    if not isinstance(info, Info):
        return BoxTarget(info)
    spec = info.field(field)
    names = info.class_names or ()
    if not names:
        raise UsageError("boxes need the names of their classes: class_names=[...]")
    shape = tuple(spec.shape)
    if len(shape) != 2 or shape[1] != 4 or not spec.dtype.is_floating:
        raise UsageError(
            f"{field}: boxes must be floats (count, 4), left, top, right and bottom, in"
            f" a padded array; got {spec.dtype.name} of shape {spec.shape}"
        )
    for name in ("box_labels", "box_ignored"):
        if name == "box_labels" or name in info.fields:
            other = tuple(info.field(name).shape)
            if other != shape[:1]:
                raise UsageError(
                    f"{name} must have the shape {shape[:1]}, a number for each of"
                    f" {field}; got {other}"
                )
    metadata: dict[str, Any] = {
        "class_names": list(names),
        "boxes_per_image": max(int(shape[0]), 1),
        "max_boxes": max_boxes or max(int(shape[0]), _COCO_BOXES),
        "iou_threshold": iou_threshold,
    }
    if field != "boxes":
        metadata["target_field"] = field
    return BoxTarget(metadata)


class BoxTarget(Target):
    """Decoded examples have `boxes`, float32 (count, 4), in pixels of the decoded
    image; `box_labels`, int32 (count,), -1 for padding; `box_ignored`, uint8 (count,).
    """

    selection_metric = ("ap", 1)
    spatial_fields = ("boxes",)
    needs_geometry = True
    not_decoded = frozenset({"max_boxes", "iou_threshold", "score_threshold"})

    def __init__(
        self, metadata: Metadata, new_numbers: np.ndarray | None = None
    ) -> None:
        super().__init__(metadata)
        self.class_names: list[str] = metadata["class_names"]
        # The shape of the input's images; unknown until target and input are joined.
        self._height = metadata.get("image_shape", [0])[0]
        self._count = metadata["boxes_per_image"]
        self.max_boxes: int = metadata.get("max_boxes", _COCO_BOXES)
        self._iou_threshold = metadata.get("iou_threshold", 0.6)
        self._field = metadata.get("target_field", "boxes")
        self._new_numbers = new_numbers
        """Maps the classes of other data to those of the task."""

    def decode(self, example: Example, geometry: tf.Tensor | None) -> Example:
        """Clips boxes to the image, moves them to the decoded image, and pads them."""
        if geometry is None:
            raise UsageError("boxes are positions in images; --task.input must be one")
        boxes = tf.cast(example[self._field], tf.float32)
        labels = tf.cast(example["box_labels"], tf.int32)
        ignored = tf.cast(example.get("box_ignored", tf.zeros_like(labels)), tf.uint8)
        if self._new_numbers is not None:
            new = tf.gather(self._new_numbers, tf.maximum(labels, 0))
            labels = tf.where(labels < 0, -1, tf.cast(new, tf.int32))
        labels = self._require_classes(labels)
        size = tf.concat([geometry[5:3:-1]] * 2, axis=0)
        boxes = tf.clip_by_value(boxes, 0.0, size) * geometry_scale(geometry)
        boxes += geometry_offset(geometry)
        is_empty = tf.reduce_any(boxes[:, 2:] <= boxes[:, :2], axis=1)
        labels = tf.where(is_empty, -1, labels)
        boxes = tf.where((labels < 0)[:, None], 0.0, boxes)
        missing = [0, max(self._count - boxes.shape[0], 0)]
        return {
            "boxes": tf.pad(boxes, [missing, [0, 0]]),
            "box_labels": tf.pad(labels, [missing], constant_values=-1),
            "box_ignored": tf.pad(ignored, [missing]),
        }

    def _require_classes(self, labels: tf.Tensor) -> tf.Tensor:
        count = len(self.class_names)
        is_class = (labels >= -1) & (labels < count)
        message = f"a class of box_labels is not from 0 to {count - 1}, nor -1"
        check = tf.debugging.Assert(tf.reduce_all(is_class), [message])
        with tf.control_dependencies([check]):
            return tf.identity(labels)

    def match(self, source: Source) -> "BoxTarget":
        field = self._field if self._field in source.info.fields else "boxes"
        new_numbers = match_names(source.info.class_names, self.class_names)
        return BoxTarget({**self.metadata, "target_field": field}, new_numbers)

    def y(self, batch: Example) -> tf.Tensor:
        """Boxes with class and whether they are ignored, float32 (batch, count, 6)."""
        labels = tf.cast(batch["box_labels"], tf.float32)
        ignored = tf.cast(batch["box_ignored"], tf.float32)
        parts = [batch["boxes"], labels[..., None], ignored[..., None]]
        return tf.concat(parts, axis=2)

    def head(self, features: Any, mask: Any = None) -> keras.KerasTensor:
        """Outputs of all locations of all maps, float32 (batch, locations, 7 +
        classes), as in `box_outputs`.

        Each map has a convolution of its own for classes and one for boxes; the last
        convolutions are shared. Raises UsageError unless features are a map, (batch, h,
        w, n), or several of n channels.
        """
        maps = list(features) if isinstance(features, Sequence) else [features]
        channels = {x.shape[-1] for x in maps}
        if any(len(x.shape) != 4 for x in maps) or len(channels) > 1:
            shapes = ", ".join(str(("batch", *x.shape[1:])) for x in maps)
            raise UsageError(
                "--model.name: boxes need a map of features, (batch, height, width, n),"
                f" or several with the same n; got {shapes}; detector returns them"
            )
        (width,) = channels
        options = {"dtype": "float32", "kernel_initializer": _small()}
        predict_boxes = keras.layers.Conv2D(4, 1, name="box_sides", **options)
        rare = keras.initializers.Constant(float(np.log(_RARE / (1 - _RARE))))
        predict_classes = keras.layers.Conv2D(
            len(self.class_names), 1, name="logits", bias_initializer=rare, **options
        )
        parts = []
        for number, x in enumerate(maps, 1):
            sides = predict_boxes(_branch(x, width, f"head{number}_box_"))
            logits = predict_classes(_branch(x, width, f"head{number}_class_"))
            boxes = self._boxes(sides)
            outputs = ops.concatenate([boxes, logits], axis=-1)
            flat = (-1, outputs.shape[1] * outputs.shape[2], outputs.shape[3])
            parts.append(ops.reshape(outputs, flat))
        return ops.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]

    def _boxes(self, sides: keras.KerasTensor) -> keras.KerasTensor:
        """Boxes, and the centers and strides of the locations, (batch, h, w, 7)."""
        height = sides.shape[1]
        # Maps are rounded up: 33 pixels with stride 2 have 17 rows.
        stride = 2.0 ** round(float(np.log2(self._height / height)))
        ones = ops.ones_like(sides[..., :1])
        x = (ops.cumsum(ones, axis=2) - 0.5) * stride
        y = (ops.cumsum(ones, axis=1) - 0.5) * stride
        center = ops.concatenate([x, y], axis=-1)
        middle = center + sides[..., :2] * stride
        logarithm = ops.clip(sides[..., 2:], -_MAX_LOGARITHM, _MAX_LOGARITHM)
        half = ops.exp(logarithm) * (stride * _SIDE / 2)
        parts = [middle - half, middle + half, center, ones * stride]
        return ops.concatenate(parts, axis=-1)

    def loss(self) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
        """Focal loss of the classes and GIoU loss of the boxes: `detection_loss`."""
        return detection_loss

    def predict(self, outputs: tf.Tensor, batch: Example) -> Example:
        """Boxes in pixels of the original image, the highest scores first.

        Returns `boxes`, float32 (batch, max_boxes, 4): left, top, right, bottom;
        `scores`, float32, and `classes`, int32, (batch, max_boxes), 0 and -1 after the
        last box; and `count`, int32 (batch,): how many of them reach the score
        threshold, the one with the best F1 on the validation split.
        """
        boxes, scores, classes = best_boxes(
            outputs, self.max_boxes, self._iou_threshold
        )
        boxes = _in_original(boxes, batch["geometry"])
        is_box = scores > 0
        threshold = self.metadata.get("score_threshold", 0.3)
        count = tf.math.count_nonzero(scores >= threshold, axis=1, dtype=tf.int32)
        return {
            "boxes": tf.where(is_box[..., None], boxes, 0.0),
            "scores": scores,
            "classes": tf.where(is_box, classes, -1),
            "count": count,
        }

    def serve(self, outputs: tf.Tensor, batch: Example) -> Example:
        """The predictions, and `labels`: the names of the classes, empty after the
        last.
        """
        predictions = self.predict(outputs, batch)
        names = tf.constant(["", *self.class_names])
        return {**predictions, "labels": tf.gather(names, predictions["classes"] + 1)}

    def served_predictions(self, served: Example, batch: Example) -> Example:
        """Moves boxes from the decoded images that were sent to the original ones."""
        is_box = served["classes"] >= 0
        boxes = _in_original(served["boxes"], batch["geometry"])
        return {**served, "boxes": tf.where(is_box[..., None], boxes, 0.0)}

    def prediction_notes(self) -> list[str]:
        return [
            (
                "`boxes` are left, top, right and bottom in pixels of the image that is"
                " sent, the highest `scores` first. Use the first `count` of them: the"
                " others are below the score threshold."
            )
        ]

    def limitations(self) -> list[str]:
        return [
            (
                f"At most {self.max_boxes} boxes of {len(self.class_names)} classes"
                " are answered for an image; objects of other classes are not found."
            )
        ]

    def standalone_loss(self) -> tuple[Any, Any]:
        """None: Keras has no such loss."""
        return None, None


def _small() -> keras.initializers.Initializer:
    return keras.initializers.RandomNormal(stddev=0.01)


def _branch(x: keras.KerasTensor, width: int, prefix: str) -> keras.KerasTensor:
    x = normalized_convolution(x, width, 3, prefix, momentum=0.9)
    return keras.layers.ReLU(name=f"{prefix}relu")(x)


def geometry_scale(geometry: Any) -> Any:
    """x, y, x, y of the scale of a geometry (..., 6)."""
    return tf.concat([geometry[..., 1::-1]] * 2, axis=-1)


def geometry_offset(geometry: Any) -> Any:
    """x, y, x, y of the offset of a geometry (..., 6)."""
    return tf.concat([geometry[..., 3:1:-1]] * 2, axis=-1)


def _in_original(boxes: tf.Tensor, geometry: tf.Tensor) -> tf.Tensor:
    """Boxes of decoded images, float32 (batch, n, 4), in pixels of the original ones
    and clipped to them; `geometry` is float32 (batch, 6).
    """
    geometry = tf.cast(geometry, tf.float32)[:, None]
    boxes = (boxes - geometry_offset(geometry)) / geometry_scale(geometry)
    size = tf.concat([geometry[..., 5:3:-1]] * 2, axis=-1)
    return tf.clip_by_value(boxes, 0.0, size)
