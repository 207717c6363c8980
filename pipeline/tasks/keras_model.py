"""A user's whole network: its loss and metrics get its outputs as they are."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.config.registry import register
from pipeline.contracts import (
    Example,
    ExpectedArguments,
    Info,
    Input,
    Metadata,
    Request,
    ServingInput,
    Target,
    Task,
)
from pipeline.serving import request_guards
from pipeline.tasks.pair import Supervised
from pipeline.utils.console import join_words
from pipeline.utils.errors import UsageError

USER = "user"
TASK = "task"
"""The outputs of a network for a `KerasModel`."""
TEXT = "/text"  # ends the names of fields with the bytes of texts


@register
def keras_model(
    info: Info | Metadata | Task,
    *,
    inputs: tuple[str, ...] = (),
    outputs: tuple[str, ...] = (),
) -> Task:
    """Your own network, loss and metrics: its inputs are the arrays of x, and the loss
    compares its outputs with the arrays of y, all unchanged.

    Args:
        info: The source's description, the metadata of a run, or the task of an input
            and a target.
        inputs: Names of the inputs of the network; by default, those of x, or `x`.
        outputs: Names of its outputs; by default, those of y, or `output`.

    Raises:
        UsageError: The names of the data differ from those of the network.
    """
    if isinstance(info, Supervised):
        return KerasModel(info.metadata, info.input, info.target)
    if isinstance(info, Task):
        return info
    if not isinstance(info, Info):
        return KerasModelOfArrays(info)
    x = _fields(info, "x")
    y = _fields(info, "y")
    if not x or not y:
        raise UsageError(
            "--task.name keras_model needs the arrays x and y, as in"
            " fit(model=..., data=(x, y))"
        )
    x = _rename(x, inputs, "x", "input")
    y = _rename(y, outputs, "y", "output")
    names = outputs or tuple(y)
    if unknown := y.keys() - set(names):
        raise UsageError(
            f"y has {join_words(sorted(unknown))}, but the outputs of the model are"
            f" {join_words(names)}; name them alike"
        )
    metadata = {"inputs": x, "targets": y, "outputs": list(names)}
    return KerasModelOfArrays(metadata)


# How a source interprets x and y for this task.
_KINDS = ("arrays", "arrays")
keras_model.kinds = _KINDS  # type: ignore[attr-defined]


def _fields(info: Info, name: str) -> dict[str, dict[str, Any]]:
    """The fields of x or y: name of the array, or "" -> its field, shape and dtype."""
    fields = {}
    for field, spec in info.fields.items():
        first, _, rest = field.removesuffix(TEXT).partition("/")
        if first != name:
            continue
        shape = spec.shape.as_list()
        dtype = spec.dtype.name
        if field.endswith(TEXT):
            shape.pop()
            dtype = "string"
        fields[rest] = {"field": field, "shape": shape, "dtype": dtype}
    return fields


def _rename(
    fields: dict[str, Any], names: Sequence[str], array: str, kind: str
) -> dict[str, Any]:
    """Gives a single array the name of the network; checks the names of several."""
    if list(fields) == [""]:
        if len(names) > 1:
            raise UsageError(
                f"the model has the {kind}s {join_words(names)}, but {array} is one"
                f" array; pass {array} as a dictionary {{name: array}}"
            )
        (name,) = names or (array if kind == "input" else kind,)
        return {name: fields[""]}
    if kind == "input" and names and sorted(names) != sorted(fields):
        raise UsageError(
            f"the model has the inputs {join_words(names)}, but x has"
            f" {join_words(list(fields))}; name them alike: keras.Input(..., name=...)"
        )
    return fields


class KerasModel(Supervised):
    """A user's whole network for an input and a target.

    The outputs of the network are a dictionary: `USER`, as the user's network returns
    them, for losses and metrics of the user; and `TASK`, the logits or numbers that
    follow from them, from which the target predicts.
    """

    user_outputs = (USER,)

    def target_outputs(self, outputs: Any) -> Any:
        return outputs[TASK]

    def user_arguments(
        self, y: Any, outputs: Any, takes: ExpectedArguments
    ) -> tuple[Any, Any]:
        """Labels in the form that a class of Keras documents; for a function, in the
        form of the user's array.
        """
        prediction = outputs[USER]
        expected = self.target.output
        if expected is None or expected.activation != "softmax":
            return y, prediction
        is_single = prediction.shape[-1] == 1 and expected.shape[-1] != 1
        if len(expected.shape) > 1:  # the class of each pixel
            return (tf.cast(y, tf.float32)[..., None] if is_single else y), prediction
        if takes.labels and is_single:
            return y[:, 1:], prediction
        shape = tuple(self.metadata.get("label_shape", ()))
        if takes.labels == "one-hot" or (not takes.labels and shape not in ((), (1,))):
            return y, prediction
        index = tf.argmax(y, axis=-1)
        return (index[:, None] if shape == (1,) else index), prediction


class TaskMetric(keras.metrics.Metric):
    """A metric of y and the outputs from which the target predicts."""

    def __init__(self, metric: keras.metrics.Metric, name: str | None = None) -> None:
        super().__init__(name=name or metric.name)
        self._metric = type(metric).from_config(metric.get_config())
        # Keras callbacks read from this whether higher is better.
        self._direction = getattr(metric, "_direction", None)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self._metric.update_state(y_true, y_pred[TASK], sample_weight=sample_weight)

    def result(self) -> Any:
        return self._metric.result()

    def reset_state(self) -> None:
        self._metric.reset_state()

    def get_config(self) -> dict[str, Any]:
        return {"metric": self._metric, "name": self.name}


class KerasModelOfArrays(Task):
    """A network with any inputs and outputs, and a loss for each output with a y."""

    kinds = _KINDS

    def __init__(
        self,
        metadata: Metadata,
        input: Input | None = None,
        target: Target | None = None,
    ) -> None:
        super().__init__(
            metadata, input or ArrayInput(metadata), target or ArrayTarget(metadata)
        )
        self.user_outputs = tuple(metadata["outputs"])

    @property
    def title(self) -> str:
        """Such as "custom loss of price and kind"."""
        return f"custom loss of {join_words(list(self.metadata['targets']))}"

    def user_arguments(
        self, y: Any, outputs: Any, takes: ExpectedArguments
    ) -> tuple[Any, Any]:
        return y[takes.output], outputs[takes.output]

    def standalone(self, network: keras.Model) -> keras.Model:
        return keras.Model(network.inputs, network.outputs)


class ArrayInput(Input):
    """Arrays as they are. Decoded examples have `x/NAME` for each input of the network;
    a text is `x/NAME/text`, uint8 (..., bytes).
    """

    decodes_batches = True

    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        self.arrays: Mapping[str, Any] = metadata["inputs"]

    def decode(self, example: Example) -> tuple[Example, None]:
        """Names the arrays of x as the network does."""
        fields = {}
        for name, part in self.arrays.items():
            ending = TEXT if part["dtype"] == "string" else ""
            fields[f"x/{name}{ending}"] = example[part["field"]]
        return fields, None

    def prepare(self, batch: Example) -> Example:
        return dict(batch)

    def network_inputs(self, batch: Example) -> Any:
        """Also of a request, whose fields are the names of the inputs."""
        inputs = {}
        for name, part in self.arrays.items():
            if name in batch:
                inputs[name] = batch[name]
            elif part["dtype"] == "string":
                inputs[name] = _text_of(batch[f"x/{name}{TEXT}"])
            else:
                inputs[name] = batch[f"x/{name}"]
        return _single(inputs)

    def inputs(self) -> Any:
        inputs = {}
        for name, part in self.arrays.items():
            inputs[name] = keras.Input(part["shape"], dtype=part["dtype"], name=name)
        return _single(inputs)

    def signatures(self) -> list[ServingInput]:
        """`serving_default` takes the arrays of x by the names of the network."""
        specs = {}
        for name, part in self.arrays.items():
            specs[name] = tf.TensorSpec((None, *part["shape"]), part["dtype"], name)
        return [ServingInput("serving_default", specs, self._read, self._request)]

    def _read(self, *arguments: tf.Tensor) -> Example:
        """Rejects wrong shapes, unequal numbers of examples, and non-finite numbers."""
        batch: Example = {}
        count = None
        for (name, part), values in zip(self.arrays.items(), arguments, strict=True):
            values = request_guards.batch(values, (None, *part["shape"]))
            if count is not None:
                values = request_guards.count(values, count, name)
            count = tf.shape(values)[0]
            if values.dtype.is_floating:
                values = request_guards.finite(values, name)
            batch[name] = values
        return batch

    def _request(self, columns: Mapping[str, np.ndarray]) -> Request:
        request: dict[str, Any] = {}
        for name, part in self.arrays.items():
            if part["dtype"] == "string":
                request[name] = strings_of(columns[f"x/{name}{TEXT}"])
            else:
                request[name] = columns[f"x/{name}"]
        return request


class ArrayTarget(Target):
    """Arrays as they are, for the user's losses. Decoded examples have `y/NAME` for
    each output with a loss.
    """

    decodes_batches = True

    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        self._targets: Mapping[str, Any] = metadata["targets"]

    def decode(self, example: Example, geometry: tf.Tensor | None) -> Example:
        """Names the arrays of y as the network does."""
        targets = self._targets.items()
        return {f"y/{name}": example[part["field"]] for name, part in targets}

    def y(self, batch: Example) -> dict[str, tf.Tensor]:
        return {name: batch[f"y/{name}"] for name in self._targets}

    def head(self, features: Any, mask: Any = None) -> Any:
        raise UsageError(
            "--task.name keras_model needs a whole network with its outputs: pass"
            " model=... a keras.Model"
        )

    def loss(self) -> Callable[[Any, Any], tf.Tensor]:
        raise UsageError(
            "the losses of this run were given to fit in Python; evaluate the run that"
            " fit returns: fit(..., run_directory=...)"
        )

    def training_loss(
        self,
        label_smoothing: float,
        class_weight: Mapping[str, float],
        loss: Callable[[Any, Any], tf.Tensor] | None = None,
    ) -> Callable[[Any, Any], tf.Tensor]:
        options = {"label-smoothing": label_smoothing, "class-weight": class_weight}
        for flag, value in options.items():
            if value:
                raise UsageError(
                    f"--train.{flag} belongs to your own loss in the task keras_model;"
                    " remove it"
                )
        return loss or self.loss()

    def predict(self, outputs: Any, batch: Example) -> Example:
        """Returns each output under its name, (batch, ...)."""
        return dict(outputs)

    def outputs_of(self, predictions: Example) -> Example:
        return dict(predictions)


def _single(values: dict[str, Any]) -> Any:
    """The only value of a dictionary, or the dictionary."""
    return values if len(values) > 1 else next(iter(values.values()))


def _text_of(contents: tf.Tensor) -> tf.Tensor:
    """Joins bytes, uint8 (..., bytes), to strings (...); zeros are left out."""
    characters = [b"", *(bytes([code]) for code in range(1, 256))]
    letters = tf.gather(tf.constant(characters), tf.cast(contents, tf.int32))
    return tf.strings.reduce_join(letters, axis=-1)


def strings_of(contents: np.ndarray) -> np.ndarray:
    """Bytes, uint8 (..., bytes), as an object array (...) of bytes."""
    length = contents.shape[-1]
    rows = np.ascontiguousarray(contents).view(f"S{length}")
    return rows[..., 0].astype(object)
