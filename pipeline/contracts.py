"""The few types that rooms exchange: Example, Info, Source, Task, Batches, Engine.

An example is a dictionary of tensors from the disk until `Task.target`. It has `id` (int64,
unique over all splits of the source and the same in every run), one raw field (`image`,
`features`, ...) and what is to be learned (`label`, `target`). A batch is the same dictionary with
the batch as the first axis, plus `weight` (float32: 1, or 0 for padding) and `epoch` (int64), both
of shape (batch,).
"""

import abc
import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.utils.errors import UsageError
from pipeline.utils.tf_data import joined, short_columns

Example = dict[str, tf.Tensor]
Metadata = Mapping[str, Any]
_KEY = (0x70697065, 0x6C696E65)  # of SipHash


@dataclasses.dataclass(frozen=True)
class Info:
    """What a source says of itself."""

    splits: Mapping[str, int]
    """Examples in each split; the names are train, validation and test, of which train is there."""
    fields: Mapping[str, tf.TensorSpec]
    """Shape and dtype of each field of an example."""
    class_names: tuple[str, ...] | None = None
    """Names of the labels 0, 1, ...; None where the source has none."""
    feature_names: tuple[str, ...] | None = None
    """Names of the numbers in `features`, in their order; None where the source has none."""
    image_shape: tuple[int | None, int | None, int | None] = (None, None, None)
    """Height, width and channels that all images have where `image` holds encoded bytes; None for
    each that differs."""
    notes: tuple[str, ...] = ()
    """Lines that a person should read, such as what was left out."""

    def field(self, name: str) -> tf.TensorSpec:
        """Shape and dtype of a field; UsageError if the source does not have it."""
        if name not in self.fields:
            raise UsageError(
                f"the source has no field {name!r} (it has {', '.join(self.fields)}); "
                "choose another --task or --source.name"
            )
        return self.fields[name]


class Source(abc.ABC):
    """Where raw examples come from."""

    info: Info

    @abc.abstractmethod
    def examples(self, split: str) -> tf.data.Dataset:
        """The split's examples one by one, in an order that never changes, each with its `id`."""

    def reader(self, split: str) -> Callable[[tf.Tensor], Example] | None:
        """Position in `examples` (int64, scalar) -> that example, called inside `tf.data`.

        None where examples can be read only one after the other.
        """
        return None

    def columns(self, split: str) -> Mapping[str, np.ndarray]:
        """The fields that are numbers or short vectors (`is_short`), of all examples.

        In the order of `examples`, (examples, ...). No image is decoded or read where that can be
        avoided: a source that keeps such fields apart answers from there.

        Raises UsageError if the examples cannot be read.
        """
        return short_columns(self.examples(split), split)

    def fingerprint(self) -> str | None:
        """Another text for other data; None where that cannot be told without reading them all.

        It may change although the data have not, as by a time of the files.
        """
        return None

    def content(self) -> str:
        """Another text for other examples or names; reads all examples and decodes none."""
        names = (self.info.class_names, self.info.feature_names)
        digest = hashlib.sha256(repr(names).encode("utf-8", "surrogateescape"))
        for split in self.info.splits:
            hashes = self.examples(split).map(_hashes, num_parallel_calls=tf.data.AUTOTUNE)
            digest.update(joined(hashes.batch(1024), split)["hashes"].tobytes())
        return digest.hexdigest()

    def location(self, id: int) -> str:
        """What a person calls the example: a file, or a record in one."""
        return f"example {id}"


def _hashes(example: Example) -> Example:
    """Of each field, with its type and shape."""
    contents = [tf.io.serialize_tensor(example[name]) for name in sorted(example)]
    hashes = [tf.strings.to_hash_bucket_strong(c, 2**63 - 1, _KEY) for c in contents]
    return {"hashes": tf.stack(hashes)}


class Task(abc.ABC):
    """What the problem is. Answers questions; holds no loop, step or optimizer.

    A task is made from its metadata alone: what was learned from the data but is not a weight, such
    as class names, sizes and means. They are JSON and part of the run, so that every later process
    makes the same task. A registered function makes the task of a source; `learn` adds the metadata
    that only the training examples show.
    """

    selection_metric: tuple[str, int] = ("loss", -1)
    """By which number of `evaluate` versions of a model are compared; 1 where more is better, -1
    where less is."""

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata

    @abc.abstractmethod
    def decode(self, example: Example) -> Example:
        """One raw example to compact arrays of fixed shape. Deterministic, cached, served."""

    @abc.abstractmethod
    def check(
        self, columns: Mapping[str, np.ndarray], split: str, locate: Callable[[int], str]
    ) -> None:
        """Raises UsageError naming the first decoded example that cannot be learned from.

        Args:
            columns: The short fields of all examples of a split, (examples, ...).
            split: Its name.
            locate: Id -> what a person calls the example.
        """

    def learn(self, column: Callable[[str], np.ndarray]) -> Metadata:
        """Metadata that change with the training examples, replacing those of the same name.

        Asked once, after the splits are made and checked, so that nothing held out is learned from.
        `decode` must not depend on them: it has been done by then.

        Args:
            column: Name of a decoded field -> its values in all training examples, (examples, ...).
        """
        return {}

    def calibrate(self, outputs: np.ndarray, truth: np.ndarray) -> Metadata:
        """Metadata that calibrate the answers of the trained network, such as a temperature.

        Asked once, after training; none where answers are no probabilities.

        Args:
            outputs: Of the network, for examples that were held out, (examples, ...).
            truth: What `target` gives as y for them.
        """
        return {}

    def limitations(self) -> list[str]:
        """What those who use the answers should know of them: sentences of the model card."""
        return []

    @abc.abstractmethod
    def prepare(self, batch: Example) -> Example:
        """A decoded batch to what the network eats. Cheap, batched, in the step and the export."""

    @abc.abstractmethod
    def target(self, batch: Example, seeds: tf.Tensor) -> tuple[Any, Any, tf.Tensor]:
        """A prepared batch to (inputs, y, weight); `seeds` has shape (batch,), int64."""

    @abc.abstractmethod
    def inputs(self) -> Any:
        """The network's symbolic inputs."""

    @abc.abstractmethod
    def head(self, features: Any, inputs: Any) -> Any:
        """Features of a model to the network's outputs, in float32 under every precision."""

    @abc.abstractmethod
    def loss(self) -> Callable[[Any, Any], tf.Tensor]:
        """(y, outputs) -> loss of each example, shape (batch,), float32."""

    def training_loss(
        self, label_smoothing: float, class_weight: Mapping[str, float]
    ) -> Callable[[Any, Any], tf.Tensor]:
        """As `loss`, for training; raises UsageError for what this kind of problem cannot have."""
        for flag, given in {
            "label-smoothing": label_smoothing,
            "class-weight": class_weight,
        }.items():
            if given:
                raise UsageError(f"--train.{flag} is for classification only; leave it away")
        return self.loss()

    @abc.abstractmethod
    def metrics(self) -> list[keras.metrics.Metric]:
        """New running metrics; updated with (y, outputs, sample_weight=weight)."""

    @abc.abstractmethod
    def answer(self, outputs: Any, batch: Example) -> Example:
        """Outputs to what a caller wants to know; the batch is the first axis of every tensor."""

    @abc.abstractmethod
    def evaluate(self, answers: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Metrics of a whole split from its answers, losses and labels; plain JSON values."""

    @abc.abstractmethod
    def pictures(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """File name -> matplotlib figure of what `evaluate` returned."""

    @abc.abstractmethod
    def show(self, axes: Any, example: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Draws one decoded example and its answer, for a person."""

    @abc.abstractmethod
    def serve(
        self, model: Callable[..., Any]
    ) -> dict[str, tuple[Callable[..., Example], list[tf.TensorSpec]]]:
        """Signature name -> (function, its arguments), with `model(inputs, training=False)`.

        Each function begins with the guards of `endpoints`: what comes in may be anything.
        """

    @abc.abstractmethod
    def requests(
        self, columns: Mapping[str, np.ndarray]
    ) -> dict[str, dict[str, np.ndarray | list[bytes]]]:
        """Signature name -> its arguments for these decoded examples: what a client would send."""


@dataclasses.dataclass(frozen=True)
class Share:
    """Some neighbouring parts of each batch, which is cut into `of` equal ones: one a replica."""

    first: int = 0
    count: int = 1
    of: int = 1


@dataclasses.dataclass(frozen=True)
class Batches:
    """What an engine eats: tickets for batches, all of one shape.

    Training: tickets of the steps `first_step` ... `last_step` - 1 of the whole run, over all
    epochs. Evaluation: one pass, the last batch padded with examples of weight 0.
    """

    tickets: Callable[..., tf.data.Dataset]
    """(first step, share of each batch = all) -> dataset of the tickets from there to
    `last_step`; with several parts in the share, those of one step follow each other."""
    materialize: Callable[[Any], Example]
    """Ticket -> batch, called inside the compiled step; the identity where the host feeds."""
    raise_if_undecodable: Callable[[int, int], None]
    """(first step, last step + 1): raises UsageError naming an example of these steps that cannot
    be decoded, if there is one."""
    batch_size: int
    steps_per_epoch: int
    last_step: int
    first_step: int = 0
    first_epoch: int = 0
    """The first one that is not finished: all its steps may have been done, but not its
    validation."""

    @property
    def dataset(self) -> tf.data.Dataset:
        """Tickets of whole batches."""
        return self.tickets(self.first_step)

    @property
    def epochs(self) -> int:
        """Epochs of the whole run; the last may be cut short."""
        return -(-self.last_step // self.steps_per_epoch)

    def end_of(self, epoch: int) -> int:
        """The step count after an epoch; epochs count from 0."""
        return min((epoch + 1) * self.steps_per_epoch, self.last_step)


@dataclasses.dataclass(frozen=True)
class Decision:
    """An automatic choice with its reason; printed, and stored in the run."""

    name: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"{self.value} ({self.reason})"


# (model, train, validation, callbacks) -> history: name of a metric -> value per epoch.
# The model comes compiled from `build`; the callbacks are Keras's; the epochs are those of `train`.
Engine = Callable[
    [keras.Model, Batches, Batches | None, list[keras.callbacks.Callback]],
    dict[str, list[float]],
]
