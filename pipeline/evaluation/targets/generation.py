"""Evaluation of the target `generation`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example, Metadata
from pipeline.data import seeds as random
from pipeline.evaluation import sample_quality as quality
from pipeline.evaluation.target_evaluation import (
    Calibrator,
    Evaluator,
    TargetEvaluation,
)
from pipeline.tasks.generation import (
    CHOSEN,
    EXACT_STEPS,
    GOLDEN,
    STEP_CHOICES,
    Sampler,
    Velocity,
    scale_pixels,
)
from pipeline.tasks.sample_judge import Judge
from pipeline.utils.image_sheets import sheet

_COLUMNS = 8  # of a sheet
_CLOSE = 3.0  # mean difference of pixels from 0 to 255

TIME_BINS = 10  # of the time, for the loss
# Share of the loss of independent pixels, above which a model has learned nothing.
_BETTER = 0.95


class SampleEvaluation(TargetEvaluation):
    """Evaluates predictions of `generation`."""

    target: Velocity

    def evaluator(self, model: Callable[..., Any] | None = None) -> Evaluator:
        return SampleEvaluator(self.target, model)

    def calibrator(self, model: Callable[..., Any] | None = None) -> Calibrator | None:
        """Chooses the number of steps, unless it is an option."""
        if model is None or "steps" in self.target.metadata:
            return None
        return _Steps(self.target.sampler, model)

    def table(self, predictions: Example, batch: Example) -> dict[str, np.ndarray]:
        """`class`, `time` and `loss`."""
        return {
            "class": batch["label"].numpy().astype(np.int32),
            "time": predictions["time"].numpy(),
            "loss": predictions["loss"].numpy(),
        }

    def readable(self, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        names = np.array(self.target.sampler.class_names)
        return {**columns, "class": names[columns["class"]]}

    def no_better_than(self, metrics: Mapping[str, Any]) -> str:
        """Noise, if each pixel can be predicted as well by itself."""
        noise = metrics["independent_pixels"]["loss"]
        if metrics["loss"] < _BETTER * noise:
            return ""
        return f"drawing each pixel by itself, which is noise (loss {noise:.4f})"


class SampleEvaluator(Evaluator):
    """The loss, and with a model samples; with a judge, how good they are.

    Samples are of all classes in turn, with the seeds 0, 1, ...
    """

    def __init__(self, target: Velocity, model: Callable[..., Any] | None) -> None:
        self._sampler = sampler = target.sampler
        metadata = target.metadata
        self._count = 0
        self._loss = np.zeros(TIME_BINS)
        self._by_time = np.zeros(TIME_BINS)
        self._times: list[np.ndarray] = []
        self._sums = np.zeros((2, *sampler.image_shape))
        """Of the pixels from -1 to 1, and of their squares."""
        self._real = np.empty((0, *sampler.image_shape), np.uint8)
        """Images of the split, as many as samples, and the number that chose each."""
        self._chosen = np.empty(0, np.float32)
        self._features: list[np.ndarray] = []
        self._is_right: list[np.ndarray] = []
        self._judge: Judge | None = None
        self._samples: np.ndarray | None = None
        self._nearest: tuple[quality.Nearest, quality.Nearest] | None = None
        """Of the samples and of as many real images, among the training images."""
        self._model = model if callable(model) else None
        self.reads_training = self._model is not None
        if self._model is not None and "judge" in metadata:
            judge = Path(metadata["judge"])
            self._judge = Judge(judge, sampler.class_names)
        # In the order of the classes.
        numbers = np.arange(metadata.get("samples", 256))
        self._asked = numbers * len(sampler.class_names) // len(numbers)

    def update(self, outputs: Any, predictions: Example, batch: Example) -> None:
        losses = predictions["loss"].numpy().astype(np.float64)
        times = predictions["time"].numpy()
        bins = (times * TIME_BINS).astype(np.int64).clip(0, TIME_BINS - 1)
        self._count += len(losses)
        self._times.append(times)
        pixels = scale_pixels(batch["image"]).numpy().astype(np.float64)
        self._sums += pixels.sum(axis=0), (pixels**2).sum(axis=0)
        self._loss += np.bincount(bins, losses, TIME_BINS)
        self._by_time += np.bincount(bins, minlength=TIME_BINS)
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
        numbers = random.uniform(ids, CHOSEN).numpy()
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

    def _judged(self, samples: np.ndarray, judge: Judge) -> dict[str, float]:
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
        classes = np.arange(GOLDEN) % len(self._sampler.class_names)
        exact = self._draw(classes, EXACT_STEPS)
        differences = {}
        for steps in STEP_CHOICES:
            difference = float(np.abs(self._draw(classes, steps) - exact).mean())
            differences[str(steps)] = round(difference, 2)
            if difference <= _CLOSE:
                break
        return {"steps": steps, "differences": differences}

    def _draw(self, classes: np.ndarray, steps: int) -> np.ndarray:
        samples = self._sampler.draw_samples(self._model, classes, steps)
        return samples.astype(np.float64)
