"""Boxes around objects in images, each with a class."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from pipeline.config.registry import register
from pipeline.contracts import (
    Calibrator,
    Evaluator,
    Example,
    Info,
    Metadata,
    Panel,
    Score,
    Source,
    Target,
)
from pipeline.layers.convolution import normalized_convolution
from pipeline.tasks.targets import box_metrics, panels
from pipeline.tasks.targets.box_metrics import AveragePrecision, Boxes
from pipeline.tasks.targets.box_outputs import best_boxes, detection_loss
from pipeline.tasks.targets.class_names import match_names
from pipeline.utils import console
from pipeline.utils.errors import UsageError

_COCO_BOXES = 100  # predictions for an image that COCO evaluates
_ROWS = 20  # classes in a table
_MIN_AP50 = 0.05  # a detector with less finds nearly nothing
_SIDE = 4.0  # strides: the side of the box that a location predicts at first
_MAX_LOGARITHM = 6.0  # of a side relative to `_SIDE`
_RARE = 0.01  # score of all classes at first, as in Lin et al.
_COLORS = {"right": "lime", "wrong_class": "orange", "false": "red"}


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

    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        self.class_names: list[str] = metadata["class_names"]
        # The shape of the input's images; unknown until target and input are joined.
        self._height = metadata.get("image_shape", [0])[0]
        self._count = metadata["boxes_per_image"]
        self.max_boxes: int = metadata.get("max_boxes", _COCO_BOXES)
        self._iou_threshold = metadata.get("iou_threshold", 0.6)
        self._field = metadata.get("target_field", "boxes")
        self._classes: np.ndarray | None = None
        """Maps the classes of other data to those of the task."""

    def decode(self, example: Example, geometry: tf.Tensor | None) -> Example:
        """Clips boxes to the image, moves them to the decoded image, and pads them."""
        if geometry is None:
            raise UsageError("boxes are positions in images; --task.input must be one")
        boxes = tf.cast(example[self._field], tf.float32)
        labels = tf.cast(example["box_labels"], tf.int32)
        ignored = tf.cast(example.get("box_ignored", tf.zeros_like(labels)), tf.uint8)
        if self._classes is not None:
            new = tf.gather(self._classes, tf.maximum(labels, 0))
            labels = tf.where(labels < 0, -1, tf.cast(new, tf.int32))
        labels = self._require_classes(labels)
        size = tf.concat([geometry[5:3:-1]] * 2, axis=0)
        boxes = tf.clip_by_value(boxes, 0.0, size) * _scale(geometry)
        boxes += _offset(geometry)
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
        matched = BoxTarget({**self.metadata, "target_field": field})
        matched._classes = match_names(source.info.class_names, self.class_names)
        return matched

    def describe(
        self, columns: Mapping[str, Mapping[str, np.ndarray]]
    ) -> Iterator[tuple[str, str]]:
        yield (
            "classes",
            f"{len(self.class_names):,}: {', '.join(self.class_names[:20])}",
        )
        for split, fields in columns.items():
            if "box_labels" in fields:
                labels = fields["box_labels"]
                yield "boxes", f"{split}: {self._counts(labels[labels >= 0])}"

    def _counts(self, labels: np.ndarray) -> str:
        """Such as `3 cat, 1 dog`; `none` without boxes."""
        counts = Counter(labels.ravel().tolist())
        parts = [
            f"{counts[number]:,} {self._name(number)}" for number in sorted(counts)
        ]
        return ", ".join(parts) or "none"

    def _name(self, number: int) -> str:
        return self.class_names[number]

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

    def evaluator(self, model: Any = None) -> Evaluator:
        return BoxEvaluator(self)

    def calibrator(self, model: Any = None) -> Calibrator:
        return _ScoreCalibrator(self)

    def table(self, predictions: Example, batch: Example) -> dict[str, np.ndarray]:
        """`truth` and `prediction`, the classes of confident boxes in words; whether
        they are `correct`; the number of `right`, `false` and `missed` boxes, and of
        those of a `wrong_class`; the `probability` of the most confident mistake; and
        the `loss`.
        """
        rows = []
        for truths, found, count in _images(predictions, batch):
            confident = _first(found, count)
            outcome = box_metrics.pair(truths, confident)
            mistakes = confident.scores[outcome["false"] | outcome["wrong_class"]]
            counts = {
                name: int(outcome[name].sum())
                for name in ("right", "false", "missed", "wrong_class")
            }
            rows.append(
                {
                    "truth": self._counts(truths.classes[~truths.ignored]),
                    "prediction": self._counts(confident.classes),
                    "correct": len(mistakes) + counts["missed"] == 0,
                    **counts,
                    "probability": float(mistakes.max(initial=0.0)),
                }
            )
        columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        columns["probability"] = columns["probability"].astype(np.float32)
        return {**columns, "loss": predictions["loss"].numpy()}

    def scores(self, rows: Mapping[str, np.ndarray]) -> dict[str, Score]:
        """The F1 of confident boxes at an intersection over union of 0.5, and the loss.

        Unlike an average precision, it is a ratio of sums over images.
        """
        names = ("right", "false", "missed", "wrong_class")
        right, false, missed, wrong_class = (rows[n].astype(np.float64) for n in names)
        # Predicted and true boxes.
        boxes = 2 * right + false + missed + 2 * wrong_class
        return {"f1": Score(2 * right, boxes, 1), "loss": super().scores(rows)["loss"]}

    def summary(self, metrics: Mapping[str, Any], split: str) -> list[str]:
        """A table of the classes, the lowest average precision first."""
        rows = []
        for name, score in metrics["per_class"].items():
            keys = ("ap50", "ap", "precision", "recall")
            numbers = [f"{score[key]:.3f}" for key in keys]
            rows.append([name[:30], *numbers, f"{score['boxes']:,}"])
        rows.sort(key=lambda row: row[1])
        header = ["class", "ap50", "ap", "precision", "recall", "boxes"]
        lines = console.table(rows[:_ROWS], header, range(1, 6)).splitlines()
        mistakes = ", ".join(
            f"{metrics['mistakes'][name]:,} {name.replace('_', ' ')}"
            for name in ("false", "missed", "wrong_class")
        )
        return [*lines, f"{'boxes':10} {mistakes}"]

    def no_better_than(self, metrics: Mapping[str, Any]) -> str:
        """No boxes at all, if nearly none is right."""
        if metrics["ap50"] >= _MIN_AP50 or not any(
            score["boxes"] for score in metrics["per_class"].values()
        ):
            return ""
        return f"finding no boxes (ap50 {metrics['ap50']:.3f})"

    def pictures(
        self, metrics: Mapping[str, Any], columns: Mapping[str, np.ndarray]
    ) -> dict[str, Any]:
        return {"precision_recall.png": _curves(metrics["curves"])}

    def panels(
        self, metrics: Mapping[str, Any], columns: Mapping[str, np.ndarray]
    ) -> Iterator[Panel]:
        yield panels.class_table(metrics["per_class"], "ap50")
        yield Panel(
            "Precision and recall",
            _curves(metrics["curves"]),
            "Of boxes with an intersection over union of at least 0.5.",
        )

    def draw(
        self, axes: Any, example: Mapping[str, Any], prediction: Mapping[str, Any]
    ) -> None:
        """Draws confident boxes: right ones in green, false ones in red, those of a
        wrong class in orange; missed ones dashed in blue.
        """
        ((truths, found, count),) = _images(_batch_of(prediction), _batch_of(example))
        confident = _first(found, count)
        outcome = box_metrics.pair(truths, confident)
        geometry = np.asarray(example["geometry"], np.float32)
        for number in range(len(confident.classes)):
            kinds = [kind for kind in _COLORS if outcome[kind][number]]
            label = f"{self._name(confident.classes[number])}"
            label += f" {confident.scores[number]:.2f}"
            color = _COLORS[kinds[0]] if kinds else "gray"
            _draw_box(axes, confident.corners[number], geometry, color, label)
        for missed in np.flatnonzero(outcome["missed"]):
            label = self._name(truths.classes[missed])
            box = truths.corners[missed]
            _draw_box(axes, box, geometry, "deepskyblue", label, "--")
        parts = []
        for name in ("false", "missed", "wrong_class"):
            if outcome[name].any():
                parts.append(f"{outcome[name].sum()} {name.replace('_', ' ')}")
        title = ", ".join(parts) or f"all {len(confident.classes)} right"
        axes.set_title(title, color="red" if parts else "green", fontsize=9)

    def draw_truth(self, axes: Any, example: Mapping[str, Any]) -> None:
        """Draws true boxes; dashed if they do not count."""
        unmoved = np.array([1, 1, 0, 0, 0, 0], np.float32)
        labels = np.asarray(example["box_labels"])
        for number in np.flatnonzero(labels >= 0):
            name = self._name(labels[number])
            style = "--" if example["box_ignored"][number] else "-"
            box = np.asarray(example["boxes"])[number]
            _draw_box(axes, box, unmoved, "lime", name, style)

    def truth(self, example: Mapping[str, Any]) -> str:
        labels = np.asarray(example["box_labels"])
        return self._counts(labels[labels >= 0])

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


def _scale(geometry: Any) -> Any:
    """x, y, x, y of the scale of a geometry (..., 6)."""
    return tf.concat([geometry[..., 1::-1]] * 2, axis=-1)


def _offset(geometry: Any) -> Any:
    """x, y, x, y of the offset of a geometry (..., 6)."""
    return tf.concat([geometry[..., 3:1:-1]] * 2, axis=-1)


def _in_original(boxes: tf.Tensor, geometry: tf.Tensor) -> tf.Tensor:
    """Boxes of decoded images, float32 (batch, n, 4), in pixels of the original ones
    and clipped to them; `geometry` is float32 (batch, 6).
    """
    geometry = tf.cast(geometry, tf.float32)[:, None]
    boxes = (boxes - _offset(geometry)) / _scale(geometry)
    size = tf.concat([geometry[..., 5:3:-1]] * 2, axis=-1)
    return tf.clip_by_value(boxes, 0.0, size)


def _batch_of(example: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """A batch of one example, of the fields that `_images` reads."""
    names = ("boxes", "box_labels", "box_ignored", "geometry", "scores", "classes")
    fields = {name: example[name] for name in (*names, "count") if name in example}
    return {
        name: tf.constant(np.asarray(value)[None]) for name, value in fields.items()
    }


def _images(predictions: Example, batch: Example) -> Iterator[tuple[Boxes, Boxes, int]]:
    """Yields true boxes, predictions, and how many of these are confident, for each
    example; all in pixels of the original image.
    """
    geometry = batch["geometry"][:, None]
    corners = ((batch["boxes"] - _offset(geometry)) / _scale(geometry)).numpy()
    labels = batch["box_labels"].numpy()
    ignored = batch["box_ignored"].numpy() > 0
    found = {name: predictions[name].numpy() for name in ("boxes", "scores", "classes")}
    counts = predictions["count"].numpy().tolist()
    for row, count in enumerate(counts):
        is_true = labels[row] >= 0
        truths = Boxes(
            corners[row][is_true],
            labels[row][is_true],
            np.empty(0),
            ignored[row][is_true],
        )
        is_box = found["classes"][row] >= 0
        none = np.zeros(int(is_box.sum()), bool)
        boxes, scores, classes = (values[row][is_box] for values in found.values())
        yield truths, Boxes(boxes, classes, scores, none), count


def _first(boxes: Boxes, count: int) -> Boxes:
    """The first boxes."""
    return Boxes(
        boxes.corners[:count],
        boxes.classes[:count],
        boxes.scores[:count],
        boxes.ignored[:count],
    )


def _draw_box(
    axes: Any,
    corners: np.ndarray,
    geometry: np.ndarray,
    color: str,
    label: str,
    style: str = "-",
) -> None:
    """Draws a box of the original image on the decoded image."""
    from matplotlib.patches import Rectangle

    scale = np.tile(geometry[1::-1], 2)
    left, top, right, bottom = corners * scale + np.tile(geometry[3:1:-1], 2) - 0.5
    box = Rectangle((left, top), right - left, bottom - top)
    box.set(fill=False, edgecolor=color, linewidth=1, linestyle=style)
    axes.add_patch(box)
    axes.text(
        left, top, label, color=color, fontsize=5, verticalalignment="bottom"
    ).set_parse_math(False)


def _curves(curves: Mapping[str, list[float]]) -> Any:
    """Precision against recall of each class."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    for name, precision in list(curves.items())[:_ROWS]:
        axes.plot(box_metrics.RECALLS, precision, label=name[:30])
    axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.02))
    if curves:
        axes.legend(fontsize=7)
    return figure


class BoxEvaluator(Evaluator):
    """Loss, the average precisions of COCO for all classes and sizes, for each class
    its best precision and recall, curves, and the number of mistakes.
    """

    def __init__(self, target: BoxTarget) -> None:
        self._names = target.class_names
        self._examples = 0
        self._loss = 0.0
        self._precision = AveragePrecision(len(self._names), target.max_boxes)
        self._mistakes: Counter[str] = Counter()

    def update(self, outputs: Any, predictions: Example, batch: Example) -> None:
        self._loss += float(predictions["loss"].numpy().astype(np.float64).sum())
        for truths, found, count in _images(predictions, batch):
            self._examples += 1
            self._precision.update(truths, found)
            outcome = box_metrics.pair(truths, _first(found, count))
            for name in ("right", "false", "missed", "wrong_class"):
                self._mistakes[name] += int(outcome[name].sum())

    def result(self) -> dict[str, Any]:
        precisions = self._precision.result()
        per_class = {}
        curves = {}
        for number, name in enumerate(self._names):
            per_class[name] = precisions.of_class(number)
            if precisions.counts[number]:
                curves[name] = precisions.curve(number)
        return {
            "examples": self._examples,
            "loss": self._loss / self._examples,
            **precisions.summary(),
            "mistakes": dict(self._mistakes),
            "per_class": per_class,
            "curves": curves,
        }


class _ScoreCalibrator(Calibrator):
    """Fits the score threshold: the one with the best F1 of all classes."""

    def __init__(self, target: BoxTarget) -> None:
        self._target = target
        self._precision = AveragePrecision(len(target.class_names), target.max_boxes)

    def update(self, outputs: Any, batch: Example) -> None:
        predictions = self._target.predict(outputs, batch)
        for truths, found, _ in _images(predictions, batch):
            self._precision.update(truths, found)

    def result(self) -> Metadata:
        score = self._precision.best_score()
        return {} if score is None else {"score_threshold": score}
