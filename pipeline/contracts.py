"""The types that packages exchange: Source, Task, Batches, Engine, Decision, ...

From the disk to `Task.target`, an example is a dictionary of tensors. It has an `id`
(int64, unique over all splits of the source and the same in every run), a raw field
(`image`, `features`, ...) and labels (`label`, `target`). A batch is the same
dictionary with the batch as the first axis, plus `weight` (float32: 1, or 0 for
padding) and `epoch` (int64), both of shape (batch,).
"""

import abc
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.utils.errors import UsageError
from pipeline.utils.tf_data import concatenate, is_short

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
    """Common height, width and channels of encoded images; None where images differ."""
    image_bits: int = 16
    """Number of bits in use in the values of 16-bit images; the highest 8 of them are
    kept.
    """
    notes: tuple[str, ...] = ()
    """Lines for the user, such as what was excluded."""

    def field(self, name: str) -> tf.TensorSpec:
        """Shape and dtype of a field; UsageError if the source does not have it."""
        if name in self.fields:
            return self.fields[name]
        hint = ""
        if name == "image":
            hint = "; images have shape (n, height, width[, channels])"
        elif name == "features":
            hint = "; regression takes vectors of shape (n, features), not images"
        raise UsageError(
            f"the source has no field {name!r} (it has {', '.join(self.fields)}){hint};"
            " choose another --task or --source.name"
        )


class Source(abc.ABC):
    """Where raw examples come from."""

    info: Info

    @abc.abstractmethod
    def reader(self, split: str) -> Callable[[tf.Tensor], Example]:
        """A function of `tf.data` that reads the example at a position in the split.

        It maps a position (int64, scalar) to an example with its `id`. The order of the
        examples never changes.
        """

    def examples(self, split: str) -> tf.data.Dataset:
        """The examples of a split in order; override it if this can be read faster."""
        positions = tf.data.Dataset.range(self.info.splits[split])
        read = self.reader(split)
        return positions.map(
            read, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )

    def columns(self, split: str) -> Mapping[str, np.ndarray]:
        """The numbers and short vectors (`is_short`) of all examples, in order.

        A source that stores them separately overrides this method, to avoid decoding
        the images.
        """
        examples = self.examples(split)
        names = [name for name, spec in examples.element_spec.items() if is_short(spec)]
        rows = examples.map(lambda example: {name: example[name] for name in names})
        return concatenate(rows.batch(1024), split)

    def split_keys(self, split: str) -> Mapping[str, np.ndarray]:
        """At least the columns `id` and, if there are groups, `group`.

        They divide the examples into splits before anything is decoded. A source that
        knows them without reading its examples overrides this method.
        """
        return self.columns(split)

    def group_names(self) -> Mapping[str, int]:
        """Maps the names of the groups in `train` to the values of `group`.

        By default, the names are the values. A source that makes `group` of texts
        overrides this method, so that users can name their groups.
        """
        groups = self.columns("train").get("group", np.empty(0, np.int64))
        return {str(group): group for group in np.unique(groups).tolist()}

    def fingerprint(self) -> str | None:
        """A string that changes whenever the data changes.

        It may also change with the time of a file. None if all files would have to be
        read.
        """
        return None

    def location(self, id: int) -> str:
        """The name of an example in messages: a file, or a record of a file."""
        return f"example {id}"


class TrainingExamples(abc.ABC):
    """The raw examples of the training split, for `Task.learn`; none is held out."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """The number of examples."""

    @property
    @abc.abstractmethod
    def short_fields(self) -> frozenset[str]:
        """Names of the fields that `column` takes: numbers and short vectors."""

    @abc.abstractmethod
    def column(self, name: str) -> np.ndarray:
        """A short field of all examples, (examples, ...), in the order of the source.

        Raises KeyError for a field that is not short.
        """

    @abc.abstractmethod
    def batches(self) -> Iterator[dict[str, np.ndarray]]:
        """Yields all fields of a few examples at a time, in the order of the source.

        Each pass reads the source once. A field is an array (batch, ...); texts and
        encoded files are bytes in an object array (batch,), as are arrays whose shapes
        differ. Raises UsageError that names the first example that cannot be read.
        """


class Task(abc.ABC):
    """The problem to solve: targets, head, loss, metrics and answers.

    A task is created from its metadata alone: facts about the data that are not
    weights, such as class names, sizes and means. The metadata is JSON and saved with
    the run, so that every later process creates the same task. A registered function
    creates the task for a source; `learn` adds the metadata that depends on the
    training examples.
    """

    selection_metric: tuple[str, int] = ("loss", -1)
    """The metric of `evaluate` by which versions of a model are compared, and 1 if
    higher is better or -1 if lower is better.
    """
    not_decoded: frozenset[str] = frozenset()
    """Names of metadata that `decode` does not read, such as means or a temperature."""

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata

    @property
    def decode_metadata(self) -> Metadata:
        """The metadata that `decode` may read: all but `not_decoded`.

        Examples that another run has cached on disk are used only if these are equal.
        """
        return {
            name: value
            for name, value in self.metadata.items()
            if name not in self.not_decoded
        }

    @abc.abstractmethod
    def decode(self, example: Example) -> Example:
        """Decodes a raw example into compact numbers of fixed shape.

        The result is deterministic and cached; requests to the server are decoded in
        the same way. Texts and encoded files of the raw example must be left out.
        """

    @abc.abstractmethod
    def check(
        self,
        columns: Mapping[str, np.ndarray],
        split: str,
        locate: Callable[[int], str],
    ) -> None:
        """Raises UsageError if a decoded example cannot be used for training.

        `columns` are the short fields of a split; `locate` returns the name of an
        example by id.
        """

    def learn(self, examples: TrainingExamples) -> Metadata:
        """Learns metadata from the training examples; it replaces entries of its names.

        It is called before any example is decoded, on a task with the metadata of the
        source alone, and only when a run begins: a resumed run has the result. A task
        that needs nothing does not call `examples.batches`, which reads the data.
        """
        return {}

    def calibrate(self, outputs: np.ndarray, truth: np.ndarray) -> Metadata:
        """Metadata that calibrates the answers of the network, such as a temperature.

        `outputs` of the network are for held-out examples; `truth` comes from
        `Task.truth`.
        """
        return {}

    def limitations(self) -> list[str]:
        """Sentences of the model card about what to expect from the answers."""
        return []

    @abc.abstractmethod
    def prepare(self, batch: Example) -> Example:
        """Turns a decoded batch into the network's input; also part of the export."""

    @abc.abstractmethod
    def target(self, batch: Example, seeds: tf.Tensor) -> tuple[Any, Any, tf.Tensor]:
        """Turns a prepared batch into (inputs, y, weight).

        `seeds` has shape (batch,), int64.
        """

    def truth(self, y: Any) -> Any:
        """The part of y that is stored with the answers for `evaluate`."""
        return y

    def y(self, truth: Any) -> Any:
        """Restores y from a stored truth, for metrics of all answers."""
        return truth

    @abc.abstractmethod
    def inputs(self) -> Any:
        """The network's symbolic inputs."""

    @abc.abstractmethod
    def head(self, features: Any, inputs: Any) -> Any:
        """Turns a model's features into the network's outputs, always in float32."""

    def standalone(self, network: keras.Model, output_kind: str) -> keras.Model:
        """Converts a network to a Keras model from raw inputs to answers, which works
        without this package.

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
        """The loss for training: the loss of the user, or else of the task.

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
        """Turns outputs into the answers for a client, tensors (batch, ...)."""

    @abc.abstractmethod
    def evaluate(self, answers: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """The metrics of a whole split from its answers, losses and labels, as JSON."""

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
        """Builds the request of each signature for these decoded examples."""


@dataclasses.dataclass(frozen=True)
class ReplicaPart:
    """The rows of each batch to read: `count` consecutive parts of `total` equal parts,
    with a part for each replica.
    """

    first: int = 0
    count: int = 1
    total: int = 1


WHOLE_BATCH = ReplicaPart()


@dataclasses.dataclass(frozen=True)
class Batches(abc.ABC):
    """The batches of an engine, for training or evaluation.

    They depend on the seed and the step alone, so that resuming needs no state of an
    iterator.

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
        """The batches from `first_step` to `last_step` - 1: dictionaries of tensors.

        Their first axis has the static size `batch_size` / `part.total`. If `part` has
        several parts, all parts of a step follow each other.
        """

    @abc.abstractmethod
    def rows(self, step: int) -> np.ndarray:
        """Rows of a step's examples in the cache of the split, int64 (batch_size,)."""

    @abc.abstractmethod
    def raise_if_undecodable(self, first: int, last: int) -> None:
        """Raises UsageError if an example of the steps `first` ... `last` - 1 cannot be
        decoded.
        """

    def order_checksum(self, epoch: int) -> int:
        """CRC-32 of the order of the examples in an epoch; 0 if it never changes."""
        return 0

    @property
    def device_cache(self) -> Any:
        """The cache on the device if `dataset` yields only row numbers; else None."""
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
# The model is compiled by `build`; the callbacks are Keras callbacks; the epochs are
# the epochs of `train`.
Engine = Callable[
    [keras.Model, Batches, Batches | None, list[keras.callbacks.Callback]],
    dict[str, list[float]],
]
