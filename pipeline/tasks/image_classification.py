"""One label out of several for an image."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.contracts import Example, Facts, Info, Task
from pipeline.data import image_decoding
from pipeline.tasks import _calibration, _signatures
from pipeline.utils.errors import UsageError, suggest


def facts(info: Info, *, image_size: tuple[int, int] | None = None) -> dict[str, Any]:
    """What the data say: class names, and the shape (height, width, channels) of a decoded image.

    Raises UsageError if images differ in size and no `image_size` (height, width) is given.
    """
    field = info.field("image")
    if field.dtype not in (tf.uint8, tf.string) or not info.field("label").dtype.is_integer:
        raise UsageError("images must be uint8 or encoded files, and labels whole numbers")
    *size, channels = info.image_shape if field.dtype == tf.string else field.shape
    size = size if image_size is None else list(image_size)
    if None in size:
        raise UsageError("the images have different sizes; give --data.image-size HEIGHT WIDTH")
    if not info.class_names or len(info.class_names) < 2:
        raise UsageError(f"classification needs at least 2 classes, found {info.class_names}")
    return {"class_names": list(info.class_names), "image_shape": [*size, channels or 3]}


def task(facts: Facts) -> Task:
    """The task of these facts."""
    return ImageClassification(facts)


def _is_mixed(y: tf.Tensor) -> bool:
    """Whether y is the share of each class, not the number of one."""
    return len(y.shape) == 2


class _Accuracy(keras.metrics.SparseCategoricalAccuracy):
    """Share of the examples answered with their label, or with the larger of two."""

    def update_state(self, y_true: tf.Tensor, y_pred: tf.Tensor, sample_weight: Any = None) -> None:
        label = tf.argmax(y_true, axis=-1) if _is_mixed(y_true) else y_true
        super().update_state(label, y_pred, sample_weight)


class ImageClassification(Task):
    """Batches hold `image` uint8 (batch, height, width, channels) and `label` int64 (batch,).

    In training, after mixup or cutmix, also `partner_label` and `share`.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.class_names: list[str] = facts["class_names"]
        self.image_shape = tuple(facts["image_shape"])
        self.compared_by = ("accuracy", 1)
        self.temperature = float(facts.get("temperature", 1.0))

    def decode(self, example: Example) -> Example:
        """Encoded bytes or uint8 pixels to uint8 of `image_shape`.

        Another size is resized bilinearly with antialiasing and rounded, in training as in serving.
        """
        image = example["image"]
        height, width, channels = self.image_shape
        if image.dtype == tf.string:
            image = image_decoding.pixels(image, channels)
        if image.shape != self.image_shape:
            resized = tf.image.resize(image, (height, width), antialias=True)
            image = tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8)
        return {**example, "image": tf.ensure_shape(image, self.image_shape)}

    def check(
        self, columns: Mapping[str, np.ndarray], split: str, locate: Callable[[int], str]
    ) -> None:
        labels, classes = columns["label"], len(self.class_names)
        wrong = np.flatnonzero((labels < 0) | (labels >= classes))
        if len(wrong):
            at = wrong[0]
            raise UsageError(
                f"split {split}: label {labels[at]} of {locate(int(columns['id'][at]))} is out of "
                f"range: there are {classes} classes, 0 ... {classes - 1}; --clean.enabled leaves "
                "such examples out"
            )

    def calibrate(self, outputs: np.ndarray, truth: np.ndarray) -> Facts:
        """The temperature that the logits are divided by."""
        return {"temperature": _calibration.temperature(outputs, truth)}

    def limits(self) -> list[str]:
        height, width, _ = self.image_shape
        return [
            f"Every image is given to one of {len(self.class_names)} classes, also one that shows "
            "none of them.",
            f"Images of another size are resized to {height} x {width} pixels, whatever their "
            "proportions.",
            "The metrics hold for images like those of the test split, and the probabilities are "
            "as good as there; of other cameras, places and times nothing has been measured.",
        ]

    def prepare(self, batch: Example) -> Example:
        """Pixels to float32 in [0, 1]."""
        return {**batch, "image": tf.cast(batch["image"], tf.float32) * (1 / 255)}

    def target(self, batch: Example, seeds: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """y is `label`, (batch,), or after mixing the share of each class, (batch, classes)."""
        y = batch["label"]
        if "partner_label" in batch:
            share = batch["share"][:, None]
            own, other = (
                tf.one_hot(batch[name], len(self.class_names))
                for name in ("label", "partner_label")
            )
            y = own * share + other * (1 - share)
        return batch["image"], y, batch["weight"]

    def inputs(self) -> keras.KerasTensor:
        return keras.Input(self.image_shape, dtype="float32", name="image")

    def head(self, features: keras.KerasTensor, inputs: keras.KerasTensor) -> keras.KerasTensor:
        """One logit per class."""
        return keras.layers.Dense(len(self.class_names), dtype="float32", name="logits")(features)

    def loss(self) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
        plain = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
        mixed = keras.losses.CategoricalCrossentropy(from_logits=True, reduction=None)
        return lambda y, outputs: (mixed if _is_mixed(y) else plain)(y, outputs)

    def training_loss(
        self, label_smoothing: float, class_weight: Mapping[str, float]
    ) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
        """Cross-entropy with smoothed labels, each example times the weight of its class.

        An example of two labels has the mean of their losses, by their shares.

        Args:
            label_smoothing: Share of the label spread over all classes (Szegedy et al.,
                "Rethinking the Inception architecture", CVPR 2016, section 7).
            class_weight: Name of a class -> factor; 1 for those not named.

        Raises:
            UsageError: A class is unknown.
        """
        for name in class_weight:
            if name not in self.class_names:
                raise UsageError(
                    f"--train.class-weight: unknown class {name!r}; "
                    f"{suggest(name, self.class_names)}"
                )
        if not label_smoothing and not class_weight:
            return self.loss()
        classes = len(self.class_names)
        weights = tf.constant([float(class_weight.get(n, 1.0)) for n in self.class_names])

        def loss(y: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
            if _is_mixed(y):
                wanted = y * weights
                total = tf.reduce_sum(wanted, axis=-1, keepdims=True)
                wanted = wanted * (1.0 - label_smoothing) + total * label_smoothing / classes
                # The kernel below takes it that labels sum to 1; these sum to their weight.
                return -tf.reduce_sum(wanted * tf.nn.log_softmax(outputs), axis=-1)
            wanted = tf.one_hot(y, classes) * (1.0 - label_smoothing) + label_smoothing / classes
            losses = tf.nn.softmax_cross_entropy_with_logits(wanted, outputs)
            return losses * tf.gather(weights, y)

        return loss

    def metrics(self) -> list[keras.metrics.Metric]:
        return [_Accuracy(name="accuracy")]

    def answer(self, outputs: tf.Tensor, batch: Example) -> Example:
        """`probabilities` float32 (batch, classes), `class` int32 and `label` string (batch,).

        Calibrated, where a temperature was fitted.
        """
        probabilities = tf.nn.softmax(tf.cast(outputs, tf.float32) / self.temperature)
        index = tf.argmax(probabilities, axis=-1, output_type=tf.int32)
        names = tf.constant(self.class_names)
        return {"probabilities": probabilities, "class": index, "label": tf.gather(names, index)}

    def evaluate(self, answers: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Loss, accuracy, top-k accuracy, precision, recall and F1 per class, confusion matrix.

        `confusion_matrix[i][j]` counts examples of class i answered as class j. A class that is
        never answered has precision 0; one without examples has recall 0. `loss` and
        `calibration_error` are those of the network as it was trained; `calibrated`, where there
        is a temperature, holds both of the probabilities that are answered.
        """
        from sklearn import metrics

        truth, answered = answers["truth"], answers["class"]
        classes = np.arange(len(self.class_names))
        scores = metrics.precision_recall_fscore_support(
            truth, answered, labels=classes, zero_division=0.0
        )
        of_truth = answers["probabilities"][np.arange(len(truth)), truth]
        # Classes that are surely less probable; a tie, or NaN, counts against the model.
        rank = len(classes) - 1 - (answers["probabilities"] < of_truth[:, None]).sum(axis=1)
        top = min(5, len(classes) - 1)
        logits, calibrated = answers["outputs"], {}
        if "temperature" in self.facts:
            calibrated["calibrated"] = _calibration.measured(logits, truth, self.temperature)
        return {
            "examples": len(truth),
            "loss": float(answers["loss"].mean()),
            "accuracy": float((truth == answered).mean()),
            **({f"top_{top}_accuracy": float((rank < top).mean())} if top > 1 else {}),
            "calibration_error": _calibration.measured(logits, truth)["calibration_error"],
            **calibrated,
            "per_class": {
                name: dict(zip(("precision", "recall", "f1", "examples"), row, strict=True))
                for name, row in zip(
                    self.class_names, zip(*(s.tolist() for s in scores), strict=True), strict=True
                )
            },
            "confusion_matrix": metrics.confusion_matrix(truth, answered, labels=classes).tolist(),
        }

    def pictures(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        from matplotlib.figure import Figure

        counts = np.asarray(metrics["confusion_matrix"])
        side = min(3 + 0.45 * len(counts), 20)
        figure = Figure(figsize=(side + 1, side), layout="constrained")
        axes = figure.subplots()
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        if len(counts) <= 30:  # more would not be readable
            for (i, j), count in np.ndenumerate(counts):
                if count:
                    colour = "white" if shares[i, j] > 0.5 else "black"
                    axes.text(j, i, count, ha="center", va="center", color=colour, fontsize=8)
            axes.set_xticks(range(len(counts)), self.class_names, rotation=45, ha="right")
            axes.set_yticks(range(len(counts)), self.class_names)
            for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
                label.set_parse_math(False)  # a dollar sign is a dollar sign
        axes.set(xlabel="answered", ylabel="true", title=f"accuracy {metrics['accuracy']:.4f}")
        return {"confusion_matrix.png": figure}

    def show(self, axes: Any, example: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """The image; its title is the answer, green where right and red where wrong."""
        image = np.asarray(example["image"])
        axes.imshow(image.squeeze(), cmap="gray" if image.shape[-1] == 1 else None)
        label = self.class_names[int(answer["class"])]
        share = float(np.max(answer["probabilities"]))
        right = int(answer["class"]) == int(example["label"])
        colour = "green" if right else "red"
        axes.set_title(f"{label} {share:.2f}", color=colour, fontsize=9, parse_math=False)
        axes.axis("off")

    def serve(
        self, model: Callable[..., tf.Tensor]
    ) -> dict[str, tuple[Callable[..., Example], list[tf.TensorSpec]]]:
        """`serving_default` takes pixels, `image_bytes` encoded files, `classify` them in examples.

        `classify(inputs)` is what the Classify and MultiInference requests of TensorFlow Serving
        ask for: serialized `tf.Example`s with the bytes of a file in `image/encoded`.
        """
        shape = (None, *self.image_shape)
        encoded = {"image/encoded": tf.io.FixedLenFeature((), tf.string)}

        def pixels(images: tf.Tensor) -> Example:
            batch = {"image": _signatures.batch(images, shape)}
            outputs = model(self.prepare(batch)["image"], training=False)
            answer = self.answer(_signatures.finite(outputs, "outputs of the network"), batch)
            labels, scores = _signatures.best(answer["probabilities"], self.class_names)
            return {**answer, "top_labels": labels, "top_scores": scores}

        def image_bytes(image_bytes: tf.Tensor) -> Example:
            images = tf.map_fn(
                lambda item: self.decode({"image": item})["image"],
                _signatures.files(image_bytes),
                fn_output_signature=tf.TensorSpec(self.image_shape, tf.uint8),
            )
            return pixels(images)

        def classify(inputs: tf.Tensor) -> Example:
            answer = image_bytes(_signatures.examples(inputs, encoded)["image/encoded"])
            return {"classes": answer["top_labels"], "scores": answer["top_scores"]}

        return {
            "serving_default": (pixels, [tf.TensorSpec(shape, tf.uint8, name="images")]),
            "image_bytes": (image_bytes, [tf.TensorSpec((None,), tf.string, name="image_bytes")]),
            "classify": (classify, [tf.TensorSpec((None,), tf.string, name="inputs")]),
        }

    def requests(
        self, columns: Mapping[str, np.ndarray]
    ) -> dict[str, dict[str, np.ndarray | list[bytes]]]:
        images = columns["image"]
        encoded = _signatures.encoded(images)
        return {
            "serving_default": {"images": images},
            "image_bytes": {"image_bytes": encoded},
            "classify": {"inputs": [_signatures.example({"image/encoded": e}) for e in encoded]},
        }
