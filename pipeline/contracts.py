"""The types that packages exchange: Example, Info, Source, Task, Batches, Engine,
Decision.

From the disk to `Task.target`, an example is a dictionary of tensors. It has an `id`
(int64, unique over all splits of the source and the same in every run), one raw field
(`image`, `features`, ...) and labels (`label`, `target`). A batch is the same
dictionary with the batch as the first axis, plus `weight` (float32: 1, or 0 for
padding) and `epoch` (int64), both of shape (batch,).
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.utils.errors import UsageError
from pipeline.utils.tf_data import is_short, joined

Example = dict[str, tf.Tensor]
Metadata = Mapping[str, Any]
Signatures = dict[str, tuple[Callable[..., Example], list[tf.TensorSpec]]]
"""Signature name -> (function, its arguments)."""
Requests = dict[str, dict[str, np.ndarray | list[bytes]]]
"""Signature name -> its arguments by name."""


@dataclasses.dataclass(frozen=True)
class Info:
    """A source's description of itself."""

    splits: Mapping[str, int]
    """Number of examples in each split: `train`, and optionally `validation` and
    `test`.
    """
    fields: Mapping[str, tf.TensorSpec]
    """Shape and dtype of each field of an example."""
    class_names: tuple[str, ...] | None = None
    """Names of the labels 0, 1, ...; None if the source has none."""
    feature_names: tuple[str, ...] | None = None
    """Names of the numbers in `features`, in their order; None if the source has none.
    """
    image_shape: tuple[int | None, int | None, int | None] = (None, None, None)
    """Common height, width and channels of encoded images; None for each that differs.
    """
    image_bits: int = 16
    """Bits that the values of encoded images with 16 bits use, of which the highest 8
    are kept.
    """
    notes: tuple[str, ...] = ()
    """Lines for the user, such as what was excluded."""

    def field(self, name: str) -> tf.TensorSpec:
        """Shape and dtype of a field; UsageError if the source does not have it."""
        if name not in self.fields:
            shapes = {
                "image": "; images have shape (n, height, width[, channels])",
                "features": (
                    "; regression takes vectors of shape (n, features), not images"
                ),
            }
            raise UsageError(
                f"the source has no field {name!r} (it has {', '.join(self.fields)})"
                f"{shapes.get(name, '')}; "
                "choose another --task or --source.name"
            )
        return self.fields[name]


class Source(abc.ABC):
    """Where raw examples come from."""

    info: Info

    @abc.abstractmethod
    def reader(self, split: str) -> Callable[[tf.Tensor], Example]:
        """Position in the split (int64, scalar) -> that example with its `id`, inside
        `tf.data`.

        The order of the examples never changes.
        """

    def examples(self, split: str) -> tf.data.Dataset:
        """The split's examples one by one; overridden where reading in
        order is faster.
        """
        positions = tf.data.Dataset.range(self.info.splits[split])
        read = self.reader(split)
        return positions.map(
            read, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )

    def columns(self, split: str) -> Mapping[str, np.ndarray]:
        """The numbers and short vectors (`is_short`) of all examples, in the order of
        `examples`.

        A source that stores them separately overrides this method, to avoid decoding
        the images.
        """
        examples = self.examples(split)
        names = [name for name, spec in examples.element_spec.items() if is_short(spec)]
        rows = examples.map(lambda example: {name: example[name] for name in names})
        return joined(rows.batch(1024), split)

    def fingerprint(self) -> str | None:
        """A string that changes whenever the data changes, and sometimes when only the
        time of a file does; None if all files would have to be read.
        """
        return None

    def location(self, id: int) -> str:
        """The name of an example in messages: a file, or a record of a file."""
        return f"example {id}"


class Task(abc.ABC):
    """The problem to solve: targets, head, loss, metrics and answers; no loop, step or
    optimizer.

    A task is created from its metadata alone: what was learned from the data but is not
    a weight, such as class names, sizes and means. The metadata is JSON and saved with
    the run, so that every later process creates the same task. A registered function
    creates the task for a source; `learn` adds the metadata that depends on the
    training examples.
    """

    selection_metric: tuple[str, int] = ("loss", -1)
    """The metric of `evaluate` by which versions of a model are compared; 1 if higher
    is better, -1 if lower is.
    """

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata

    @abc.abstractmethod
    def decode(self, example: Example) -> Example:
        """Turns a raw example into compact arrays of fixed shape. Deterministic,
        cached, served.
        """

    @abc.abstractmethod
    def check(
        self,
        columns: Mapping[str, np.ndarray],
        split: str,
        locate: Callable[[int], str],
    ) -> None:
        """Raises UsageError naming the first decoded example that cannot be used for
        training.

        `columns` are the short fields of a split; `locate` returns the name of an
        example by id.
        """

    def learn(self, column: Callable[[str], np.ndarray]) -> Metadata:
        """Metadata that depends on the training examples; it replaces entries of the
        same name.

        `column` returns a decoded field of all training examples, (examples, ...).
        `decode` must not depend on this metadata, because it runs first.
        """
        return {}

    def calibrate(self, outputs: np.ndarray, truth: np.ndarray) -> Metadata:
        """Metadata that calibrates the answers of the trained network, such as a
        temperature.

        `outputs` are those of the network for held-out examples; `truth` is from
        `Task.truth`.
        """
        return {}

    def limitations(self) -> list[str]:
        """Sentences of the model card about what to expect from the answers."""
        return []

    @abc.abstractmethod
    def prepare(self, batch: Example) -> Example:
        """Turns a decoded batch into the network's input. Cheap, batched, also
        exported.
        """

    @abc.abstractmethod
    def target(self, batch: Example, seeds: tf.Tensor) -> tuple[Any, Any, tf.Tensor]:
        """Turns a prepared batch into (inputs, y, weight); `seeds` has shape (batch,),
        int64.
        """

    def truth(self, y: Any) -> Any:
        """What is stored of y beside the answers, for `evaluate` and `calibrate`."""
        return y

    def y(self, truth: Any) -> Any:
        """The y of a stored truth, for a metric of all answers."""
        return truth

    @abc.abstractmethod
    def inputs(self) -> Any:
        """The network's symbolic inputs."""

    @abc.abstractmethod
    def head(self, features: Any, inputs: Any) -> Any:
        """Turns a model's features into the network's outputs, in float32 at every
        precision.
        """

    def standalone(self, network: keras.Model, output_kind: str) -> keras.Model:
        """A network as a Keras model that works without this package: from raw inputs
        to answers.

        The answers are logits if `output_kind` is `linear`; for two classes, the
        probability of the second one if it is `sigmoid`, and its logit if it is
        `logit`.
        """
        return keras.Model(network.inputs, network.outputs)

    @abc.abstractmethod
    def loss(self) -> Callable[[Any, Any], tf.Tensor]:
        """(y, outputs) -> loss of each example, shape (batch,), float32."""

    def training_loss(
        self,
        label_smoothing: float,
        class_weight: Mapping[str, float],
        loss: Callable[[Any, Any], tf.Tensor] | None = None,
    ) -> Callable[[Any, Any], tf.Tensor]:
        """The loss for training: that of the user, or like `loss`.

        Raises UsageError for options that it does not support.
        """
        options = {"label-smoothing": label_smoothing, "class-weight": class_weight}
        for flag, value in options.items():
            if value:
                raise UsageError(
                    f"--train.{flag} is for classification only; remove it"
                )
        return loss or self.loss()

    @abc.abstractmethod
    def metrics(self) -> list[keras.metrics.Metric]:
        """New running metrics; updated with (y, outputs, sample_weight=weight)."""

    @abc.abstractmethod
    def answer(self, outputs: Any, batch: Example) -> Example:
        """Turns outputs into what a client gets; the first axis of every tensor is the
        batch.
        """

    @abc.abstractmethod
    def evaluate(self, answers: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Metrics of a whole split from its answers, losses and labels; plain JSON
        values.
        """

    @abc.abstractmethod
    def pictures(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """File name -> matplotlib figure of the metrics from `evaluate`."""

    @abc.abstractmethod
    def show(
        self, axes: Any, example: Mapping[str, Any], answer: Mapping[str, Any]
    ) -> None:
        """Draws one decoded example and its answer."""

    @abc.abstractmethod
    def serve(self, model: Callable[..., Any]) -> Signatures:
        """The signatures of the export, which call `model(inputs, training=False)`.

        Each begins with guards, because a request can contain anything.
        """

    @abc.abstractmethod
    def requests(self, columns: Mapping[str, np.ndarray]) -> Requests:
        """The request that a client would send to each signature for these decoded
        examples.
        """


@dataclasses.dataclass(frozen=True)
class ReplicaPart:
    """Which rows of each batch to read: `count` consecutive parts of `total` equal
    parts, one part for each replica.
    """

    first: int = 0
    count: int = 1
    total: int = 1


WHOLE_BATCH = ReplicaPart()


@dataclasses.dataclass(frozen=True)
class Batches(abc.ABC):
    """What an engine trains on or evaluates: batches that depend on the seed and the
    step alone, so that resuming needs no state of an iterator.

    Training: the steps `first_step` ... `last_step` - 1 of the whole run, over all
    epochs. Evaluation: one pass, with the last batch padded by examples of weight 0.
    """

    batch_size: int
    steps_per_epoch: int
    last_step: int
    first_step: int = 0
    first_epoch: int = 0
    """The first unfinished epoch; possibly only its validation is missing."""

    @abc.abstractmethod
    def dataset(
        self, first_step: int, part: ReplicaPart = WHOLE_BATCH
    ) -> tf.data.Dataset:
        """The batches from `first_step` to `last_step` - 1: dictionaries of tensors
        whose first axis has the static size `batch_size` / `part.total`.

        If `part` has several parts, those of one step follow each other.
        """

    @abc.abstractmethod
    def rows(self, step: int) -> np.ndarray:
        """The rows of all examples of a step in the cache of the split, int64
        (batch_size,).
        """

    @abc.abstractmethod
    def raise_if_undecodable(self, first: int, last: int) -> None:
        """Raises UsageError naming an example of the steps `first` ... `last` - 1 that
        cannot be decoded, if there is one.
        """

    def order_checksum(self, epoch: int) -> int:
        """CRC-32 of the order of the examples in an epoch; 0 if it never changes."""
        return 0

    @property
    def device_cache(self) -> Any:
        """What holds the examples on the device if `dataset` yields only row numbers;
        otherwise None.
        """
        return None

    def gather(self, batch: Example) -> Example:
        """All fields of a batch of `dataset`; called inside the compiled step."""
        if self.device_cache is None:
            return batch
        return self.device_cache.gather(batch)

    @property
    def epochs(self) -> int:
        """Epochs of the whole run; the last may be incomplete."""
        return -(-self.last_step // self.steps_per_epoch)

    def end_of(self, epoch: int) -> int:
        """The step count after an epoch; epochs count from 0."""
        return min((epoch + 1) * self.steps_per_epoch, self.last_step)


@dataclasses.dataclass(frozen=True)
class Decision:
    """An automatic choice with its reason; printed, and saved with the run."""

    name: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"{self.value} ({self.reason})"


# (model, train, validation, callbacks) -> history: name of a metric -> value per epoch.
# The model is compiled by `build`; the callbacks are Keras's; the epochs are those of
# `train`.
Engine = Callable[
    [keras.Model, Batches, Batches | None, list[keras.callbacks.Callback]],
    dict[str, list[float]],
]
