"""The types that packages exchange: Source, Task, Batches, Engine, Decision, ...

From the disk to `Task.target`, an example is a dictionary of tensors. It has an `id`
(int64, unique over all splits of the source and the same in every run), a raw field
(`image`, `features`, ...) and labels (`label`, `target`). A batch is the same
dictionary with the batch as the first axis, plus `weight` (float32: 1, or 0 for
padding) and `epoch` (int64), both of shape (batch,).
"""

import abc
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Literal, Self

import keras
import numpy as np
import tensorflow as tf

from pipeline.utils.errors import UsageError
from pipeline.utils.table_column import TableColumn
from pipeline.utils.tf_data import concatenate, is_short

Example = dict[str, tf.Tensor]
Metadata = Mapping[str, Any]
Request = dict[str, np.ndarray | list[bytes]]
"""The arguments of a signature by name."""
ImageShape = tuple[int | None, int | None, int | None]
"""Height, width and channels; None where images differ."""


@dataclasses.dataclass(frozen=True)
class LearnedColumn:
    """A column of the input, and what was learned about it from training examples."""

    name: str
    kind: str
    missing: float
    """The share of the training examples without a value."""
    learned: str
    """Such as mean and deviation, in words."""
    fields: Mapping[str, int]
    """The decoded fields that have its values, and its position in each of them, as the
    index after the batch.
    """


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
    columns: tuple[TableColumn, ...] | None = None
    """The columns of the rows of a table; None for other data."""
    input_name: str | None = None
    """The column of files or of texts in a table; None for other data."""
    target_name: str | None = None
    """The name of `target`, such as of a column; None if it has none."""
    label_shape: tuple[int, ...] = ()
    """The shape of a label in the user's arrays: (), (1,), or (classes,) if one-hot."""
    gray_axis: bool = False
    """Whether images were arrays (height, width), and have got an axis of channels."""
    class_values: tuple[int, ...] = ()
    """Of masks, the values of the classes: gray, or 2**24 + 0xRRGGBB; empty: the
    classes are found in the training masks.
    """
    image_shape: ImageShape = (None, None, None)
    """What encoded images have in common; only that of a sample if there is
    `measure_images`.
    """
    measure_images: Callable[[], ImageShape] | None = None
    """Reads all headers for the exact `image_shape`; None: it is exact."""
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

    def exact_image_shape(self, channels_only: bool = False) -> ImageShape:
        """What all encoded images have in common; with `channels_only`, only the number
        of channels is exact.

        Headers are read only if the sample leaves the answer open: images of different
        sizes, and without exact sizes a color image, decide it.
        """
        channels = self.image_shape[2]
        is_decided = channels is None or (channels_only and channels != 1)
        if self.measure_images is None or is_decided:
            return self.image_shape
        return self.measure_images()


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

    def arrays(self, split: str) -> Mapping[str, np.ndarray] | None:
        """All fields of all examples, with `id`, in order, if they are in memory.

        An array (examples, ...) for each field; texts are bytes in an object array.
        They are read and decoded many at a time, without `reader`. None, the default:
        they are not in memory, or some are encoded files.
        """
        return None

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


@dataclasses.dataclass(frozen=True)
class Decision:
    """An automatic choice with its reason; printed, and saved with the run."""

    name: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"{self.value} ({self.reason})"


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
    def batches(
        self, fields: Collection[str] | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yields fields of a few examples at a time, in the order of the source.

        Without `fields`, all of them. Each pass reads the source once; files only if
        they are among the fields. A field is an array (batch, ...); texts and
        encoded files are bytes in an object array (batch,), as are arrays whose shapes
        differ. Raises UsageError that names the first example that cannot be read.
        """


@dataclasses.dataclass(frozen=True)
class OutputSpec:
    """The outputs of a network that a task expects of each example."""

    shape: tuple[int | None, ...]
    """Their shape without the batch; None for any length."""
    activation: Literal["softmax", "sigmoid", "linear"] = "linear"
    """What turns the outputs, which are logits or numbers, into predictions."""


@dataclasses.dataclass(frozen=True)
class ServingInput:
    """A signature of the export: how a request becomes a batch of decoded examples."""

    name: str
    """Name of the signature, such as `serving_default`."""
    specs: Mapping[str, tf.TensorSpec]
    """The arguments of a request, with the batch as the first axis."""
    read: Callable[..., Example]
    """Takes the arguments in the order of `specs`; returns decoded fields. Begins with
    guards, because a request can contain anything.
    """
    request: Callable[[Mapping[str, np.ndarray]], Request]
    """Builds the request for decoded examples, such as the golden ones."""
    files: tuple[str, ...] = ()
    """Suffixes of the files that `pipeline predict` sends to this signature, each file
    as one example.
    """
    meaning: str = ""
    """What an argument contains if not evident from its type, for `SERVING.md`."""
    defaults: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Values of arguments that are one number each, for `pipeline predict`; empty if
    requests are made of files.
    """
    example: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Typical values of arguments, for `SERVING.md`."""
    optional: tuple[str, ...] = ()
    """Arguments of numbers in which NaN means that there is no value."""
    counts_up: tuple[str, ...] = ()
    """Which of these arguments grow by 1 from example to example, such as a seed."""
    names: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """Names of the values 0, 1, ... of an argument, such as those of classes."""


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Pairs of near duplicates, as positions of examples, `first` less than `second`.

    `is_ambiguous` tells whether other examples are as close as copies would be.
    """

    first: np.ndarray  # int64 (pairs,)
    second: np.ndarray  # int64 (pairs,)
    distance: np.ndarray  # float32 (pairs,)
    is_ambiguous: np.ndarray  # bool (examples,)


@dataclasses.dataclass(frozen=True)
class Similarity:
    """How near duplicates among raw examples are found."""

    sketch: Callable[[Example], tf.Tensor]
    """Describes a raw example by a few numbers of a fixed shape and dtype. Encoded
    images have been decoded.
    """
    spec: tf.TensorSpec
    """Shape and dtype of a sketch."""
    find: Callable[[np.ndarray], Pairs]
    """Finds the near duplicates among sketches, (examples, ...)."""


_KEPT = ("id", "group", "sample_weight")
"""Fields of a raw example that neither the input nor the target reads."""


def plain_name(name: Any, part: Any) -> str:
    """The name of an input or target in words, without its module."""
    name = str(name or type(part).__name__)
    return name.rpartition(".")[2].rpartition(":")[2].replace("_", " ")


def _without(metadata: Metadata, names: frozenset[str]) -> Metadata:
    return {name: value for name, value in metadata.items() if name not in names}


class BatchDecoder:
    """What a `Task`, an `Input` and a `Target` say about their `decode`."""

    decodes_batches: bool = False
    """Whether `decode` also takes a batch of raw examples, none of them encoded files:
    every field, and every result, has the batch as its first axis. A subclass that
    defines `decode` must say so again.
    """

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        """Raises UsageError if a subclass lacks methods, with what they return."""
        lacking = []
        for name in sorted(getattr(cls, "__abstractmethods__", ())):
            sentence = " ".join((getattr(cls, name).__doc__ or "").split())
            lacking.append(f"{name} ({sentence.partition('. ')[0].rstrip('.')})")
        if lacking:
            raise UsageError(f"the class {cls.__name__} lacks {'; '.join(lacking)}")
        return super().__new__(cls)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "decode" in vars(cls) and "decodes_batches" not in vars(cls):
            cls.decodes_batches = False


class Target(BatchDecoder, abc.ABC):
    """What is predicted: from raw fields of an example to loss, metrics, predictions.

    A registered function `(info, **options)` creates it for a source (`Info`), or from
    the metadata of a run. A target does not know the input.
    """

    selection_metric: tuple[str, int] = ("loss", -1)
    """The metric of the evaluator by which versions of a model are compared, and 1 if
    higher is better or -1 if lower is better.
    """
    output: OutputSpec | None = None
    """The outputs that a user's own network must have; None: any."""
    spatial_fields: tuple[str, ...] = ()
    """Fields with positions in the input, such as a mask or boxes: an augmentation that
    moves the input must move them, too.
    """
    not_decoded: frozenset[str] = frozenset()
    """Names of metadata that `decode` does not read, such as means or a temperature."""

    needs_geometry = False
    """Whether decoded examples keep the geometry of their input, for `predict`."""
    evaluation: type | None = None
    """A user's subclass of `pipeline.evaluation.target_evaluation.TargetEvaluation`."""
    report: type | None = None
    """A user's subclass of `pipeline.report.target_report.TargetReport`."""

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata

    def learn(self, examples: TrainingExamples) -> Metadata:
        """Learns metadata from the training examples; it replaces entries of its names.

        It is called before any example is decoded, on an object with the metadata of
        the source alone, and only when a run begins: a resumed run has the result. If
        nothing is needed, `examples.batches` is not called, which reads the data.
        """
        return {}

    @abc.abstractmethod
    def decode(self, example: Example, geometry: tf.Tensor | None) -> Example:
        """The decoded fields of a raw example; `geometry` comes from `Input.decode`."""

    def match(self, source: Source) -> "Target":
        """The same target for the examples of another source; see `Task.match`."""
        return self

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
        return None

    def review(self, columns: Mapping[str, np.ndarray]) -> list[Decision]:
        """Notes about the training examples, from their short fields.

        Raises UsageError if nothing can be learned from them.
        """
        return []

    def class_counts(self, columns: Mapping[str, np.ndarray]) -> dict[str, int] | None:
        """The number of examples of each class, by its name, from their short fields.

        None unless each example has one class.
        """
        return None

    @abc.abstractmethod
    def y(self, batch: Example) -> Any:
        """What the loss compares the outputs with, from a decoded batch."""

    @abc.abstractmethod
    def head(self, features: Any, mask: Any = None) -> Any:
        """Outputs in float32 from a model's features.

        `mask` says which of the features are not padding, if the model returns it.
        """

    @abc.abstractmethod
    def loss(self) -> Callable[[Any, Any], tf.Tensor]:
        """(y, outputs) -> loss of each example, shape (batch,), float32.

        The loss is normalized within its example only, so that it does not depend on
        the other examples of a batch.
        """

    def training_loss(
        self,
        label_smoothing: float,
        class_weight: Mapping[str, float],
        loss: Callable[[Any, Any], tf.Tensor] | None = None,
    ) -> Callable[[Any, Any], tf.Tensor]:
        """The loss for training: the loss of the user, or else `loss`.

        Raises UsageError for options that it does not support.
        """
        options = {"label-smoothing": label_smoothing, "class-weight": class_weight}
        for flag, value in options.items():
            if value:
                raise UsageError(
                    f"--train.{flag} is for classification only; remove it"
                )
        return loss or self.loss()

    def metrics(self) -> list[keras.metrics.Metric]:
        """New running metrics; updated with (y, outputs, sample_weight=weight)."""
        return []

    @abc.abstractmethod
    def predict(self, outputs: Any, batch: Example) -> Example:
        """Turns outputs into the predictions for a client, tensors (batch, ...)."""

    def served_predictions(self, served: Example, batch: Example) -> Example:
        """What `predict` returns for a decoded batch, from the predictions of an export
        for the request made from it.

        A request for decoded images returns boxes in their pixel coordinates, for
        example. Raises UsageError if an export cannot be evaluated on examples.
        """
        return served

    def outputs_of(self, predictions: Example) -> Any:
        """Outputs from which `predict` makes these predictions, for the loss of an
        export; None if they cannot be recovered.
        """
        return None

    def prediction_notes(self) -> list[str]:
        """Sentences of model card and `SERVING.md` about how to read predictions."""
        return []

    def limitations(self) -> list[str]:
        """Sentences of the model card about what to expect from the predictions."""
        return []

    def standalone_loss(self) -> tuple[Any, Any]:
        """Loss and metric of Keras with which `Task.standalone` is compiled; without a
        loss, it is not compiled.
        """
        return "mse", "mae"

    def serve(self, outputs: Any, batch: Example) -> Example:
        """The predictions of the export, which may have more than `predict`."""
        return self.predict(outputs, batch)

    def standalone(self, outputs: Any) -> Any:
        """The predictions of `Task.standalone` from the outputs of the network."""
        return outputs


@dataclasses.dataclass(frozen=True)
class ExpectedArguments:
    """What a user's loss or metric takes as `y_true` and `y_pred`."""

    labels: Literal["", "index", "one-hot"] = ""
    """The form of labels that a class of Keras documents; "": as the user gave y."""
    logits: bool = True
    """Whether `y_pred` is logits instead of probabilities, for a network with the head
    of the task.
    """
    output: str = ""
    """The name of the output, if the user's network has several."""


class Input(BatchDecoder, abc.ABC):
    """What is given: from raw fields of an example to an input of the network.

    A registered function `(info, **options)` creates it for a source (`Info`), or from
    the metadata of a run. An input does not know what is predicted from it. Methods
    without a description mean the same as in `Task` or `Target`.
    """

    not_decoded: frozenset[str] = frozenset()
    compared: tuple[str, ...] | None = ()
    """Short decoded fields that are equal in copies of an example, such as a text; long
    fields are compared, too. None: all fields may be equal by chance.
    """
    report: type | None = None
    """A user's subclass of `pipeline.report.input_report.InputReport`."""

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata

    @property
    def title(self) -> str:
        """What is given, for people."""
        return plain_name(self.metadata.get("input"), self)

    @property
    def decode_metadata(self) -> Metadata:
        """As in `Task`; also that of the target."""
        return _without(self.metadata, self.not_decoded)

    def with_metadata(self, metadata: Metadata) -> "Input":
        """The same input with other metadata."""
        return type(self)(metadata)

    def learn(self, examples: TrainingExamples) -> Metadata:
        return {}

    @abc.abstractmethod
    def decode(self, example: Example) -> tuple[Example, tf.Tensor | None]:
        """The decoded fields of a raw example, and its geometry.

        The geometry of an image is float32 (6,): scale and offset from the original to
        the decoded image (decoded = original * scale + offset; y, x, y, x), and height
        and width of the original after its rotation. None: there is none.
        """

    def check(
        self,
        columns: Mapping[str, np.ndarray],
        split: str,
        locate: Callable[[int], str],
    ) -> None:
        return None

    def review(self) -> list[Decision]:
        """Notes about what was learned, such as the size of a vocabulary."""
        return []

    @property
    def decoders(self) -> list[Any]:
        return [self]

    def match(self, source: Source) -> "Input":
        return self

    @abc.abstractmethod
    def prepare(self, batch: Example) -> Example:
        """Turns a decoded batch into the network's input; also part of the export."""

    @abc.abstractmethod
    def inputs(self) -> Any:
        """The network's symbolic inputs."""

    @abc.abstractmethod
    def network_inputs(self, batch: Example) -> Any:
        """The values of `inputs` in a prepared batch."""

    def model_inputs(self, inputs: Any) -> Any:
        """What a model that returns features gets of the network's inputs; by default,
        all of them.
        """
        return inputs

    def join(self, features: Any, inputs: Any) -> Any:
        """Joins a model's features with inputs of the network that it did not get."""
        return features

    @abc.abstractmethod
    def signatures(self) -> list[ServingInput]:
        """The signatures of the export, `serving_default` first."""

    def standalone(self) -> tuple[Any, Any]:
        """Raw inputs of a Keras model, and the prepared tensors made from them."""
        inputs = self.inputs()
        return inputs, inputs

    def similarity(self, info: Info) -> Similarity | None:
        """How near duplicates among raw examples are found; None: only exact copies
        are.
        """
        return None

    def learned_columns(self) -> list[LearnedColumn]:
        """The columns of a table, whose values can be shuffled between examples; empty
        for other inputs.
        """
        return []

    def limitations(self) -> list[str]:
        return []


class Task(BatchDecoder):
    """The problem to solve: an input and a target, joined.

    A registered function creates the task for a source (`Info`), or from the metadata
    of a run; `learn` adds the metadata that depends on the training examples. Metadata
    are facts about the data that are not weights, such as class names, sizes and means.
    They are JSON and saved with the run, so that every later process creates the same
    object.
    """

    decodes_batches = True  # if the input and the target do
    not_decoded: frozenset[str] = frozenset()
    """Further names of metadata that `decode` does not read."""
    user_outputs: tuple[str, ...] = ()
    """Names of the outputs of a user's whole network, which are a dictionary; empty if
    the target has a head.
    """

    def __init__(self, metadata: Metadata, input: "Input", target: "Target") -> None:
        self.metadata = metadata
        self.input = input
        self.target = target
        self.decodes_batches &= input.decodes_batches and target.decodes_batches

    @property
    def title(self) -> str:
        """Such as "classes from image"."""
        target = plain_name(self.metadata.get("target"), self.target)
        return f"{target} from {self.input.title}"

    @property
    def decode_metadata(self) -> Metadata:
        """The metadata that `decode` may read: all but `not_decoded`.

        Examples that another run has cached on disk are used only if these are equal.
        """
        names = self.not_decoded | self.target.not_decoded
        return _without(self.input.decode_metadata, names)

    @property
    def decoders(self) -> list[Any]:
        """The objects whose classes define `decode`; examples that are cached on disk
        are decoded again if their code has changed.
        """
        return [self, *self.input.decoders, self.target]

    @property
    def test_passes(self) -> int:
        """How many examples a test passes through the network in addition to those
        of its split, such as in the steps of a sampler.
        """
        return 0

    def with_metadata(self, changes: Metadata) -> Self:
        """The same task with changed metadata, such as a temperature."""
        metadata = {**self.metadata, **changes}
        input = self.input.with_metadata(metadata)
        return type(self)(metadata, input, type(self.target)(metadata))

    def match(self, source: Source) -> Self:
        """The same task for the examples of another source, which may name its fields
        or number its classes differently.

        Raises UsageError if the source has something that the task does not know.
        """
        input = self.input.match(source)
        return type(self)(self.metadata, input, self.target.match(source))

    def learn(self, examples: TrainingExamples) -> Metadata:
        """Learns metadata from the training examples; it replaces entries of its names.

        It is called before any example is decoded, on an object with the metadata of
        the source alone, and only when a run begins: a resumed run has the result. If
        nothing is needed, `examples.batches` is not called, which reads the data.
        """
        return {**self.input.learn(examples), **self.target.learn(examples)}

    def decode(self, example: Example) -> Example:
        """Decodes a raw example into compact numbers of fixed shape.

        The result is deterministic and cached; requests to the server are decoded in
        the same way. Texts and encoded files of the raw example must be left out.
        """
        kept = {name: example[name] for name in _KEPT if name in example}
        fields, geometry = self.input.decode(example)
        truths = self.target.decode(example, geometry)
        if self.target.needs_geometry and geometry is not None:
            truths["geometry"] = geometry
        return {**kept, **fields, **truths}

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
        self.input.check(columns, split, locate)
        self.target.check(columns, split, locate)

    def review(self, columns: Mapping[str, np.ndarray]) -> list[Decision]:
        """Notes about the training examples, from their short fields.

        Raises UsageError if nothing can be learned from them.
        """
        return [*self.input.review(), *self.target.review(columns)]

    def step_inputs(
        self, batch: Example, seeds: tf.Tensor
    ) -> tuple[Any, Any, tf.Tensor]:
        """Turns a decoded batch into (inputs, y, weight) of a training step.

        `seeds` has shape (batch,), int64.
        """
        batch = self.input.prepare(batch)
        return self.input.network_inputs(batch), self.target.y(batch), batch["weight"]

    def head(self, features: Any, inputs: Any) -> Any:
        """Turns a model's features into the network's outputs, always in float32.

        `features` is a tensor, or a dictionary of `features` and their `mask`.
        """
        features = self.input.join(features, inputs)
        if isinstance(features, Mapping):
            return self.target.head(features["features"], features.get("mask"))
        return self.target.head(features)

    def target_outputs(self, outputs: Any) -> Any:
        """The part of the network's outputs that the target gets: for its loss, metrics
        and predictions.
        """
        return outputs

    def of_target(
        self, function: Callable[[Any, Any], tf.Tensor]
    ) -> Callable[[Any, Any], tf.Tensor]:
        """A loss of the target, as a function of y and the outputs of the network."""
        return lambda y, outputs: function(y, self.target_outputs(outputs))

    def user_arguments(
        self, y: Any, outputs: Any, takes: ExpectedArguments
    ) -> tuple[Any, Any]:
        """`y_true` and `y_pred` of a user's loss or metric, from those of a step."""
        return y, outputs

    def serve(self, model: Callable[..., Any], batch: Example) -> Example:
        """The predictions of `model(inputs, training=False)` for a requested batch."""
        inputs = self.input.network_inputs(self.input.prepare(batch))
        outputs = self.target_outputs(model(inputs, training=False))
        return self.target.serve(outputs, batch)

    def standalone(self, network: keras.Model) -> keras.Model:
        """Converts a network to a Keras model from raw inputs to predictions, which
        works without this package.
        """
        inputs, prepared = self.input.standalone()
        inner = keras.Model(network.inputs, network.outputs[0], name="network")
        outputs = inner(keras.tree.flatten(prepared))
        return keras.Model(inputs, self.target.standalone(outputs))

    def limitations(self) -> list[str]:
        """Sentences of the model card about what to expect from the predictions."""
        return [*self.target.limitations(), *self.input.limitations()]


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


# (model, train, validation, callbacks) -> history: name of a metric -> value per epoch.
# The model is compiled by `build`; the callbacks are Keras callbacks; the epochs are
# the epochs of `train`.
Engine = Callable[
    [keras.Model, Batches, Batches | None, list[keras.callbacks.Callback]],
    dict[str, list[float]],
]
