"""Features: numbers of any meaning, such as measurements, time series or token ids."""

import io
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.config.registry import register
from pipeline.contracts import (
    Example,
    Info,
    Input,
    Metadata,
    Request,
    ServingInput,
    Source,
    TrainingExamples,
)
from pipeline.data.npy_decoding import decode_npy
from pipeline.serving import request_guards
from pipeline.utils.errors import UsageError
from pipeline.utils.tf_data import ensure_shape

_MAX_QUANTILE = 0.95  # of the examples in files, which are not cut


@register
def features(
    info: Info | Metadata,
    *,
    field: str = "features",
    suffixes: tuple[str, ...] = (".npy",),
    shape: tuple[int, ...] | None = None,
    raw: bool = False,
) -> Input:
    """Numbers of any type: a vector, a series (time, channels) or an array of rank 3
    for each example, or `.npy` files of them.

    Args:
        info: The source's description, or the metadata of a run.
        field: The field of the source.
        suffixes: The files of a directory that contain features.
        shape: The shape of an example in files; longer examples are cut at their end,
            and shorter ones are filled with zeros. None: as long as 95% of the training
            examples.
        raw: Give the model numbers as they are. Otherwise each feature (each channel
            of a series) gets mean 0 and deviation 1 over the training examples.

    Raises:
        UsageError: The field is missing or has another type or shape.
    """
    if not isinstance(info, Info):
        return FeatureInput(info)
    spec = info.field(field)
    if spec.dtype == tf.string:
        return FeatureInput(_file_metadata(field, shape, raw))
    sizes = shape or spec.shape.as_list()
    is_number = spec.dtype.is_floating or spec.dtype.is_integer or spec.dtype.is_bool
    if not is_number or not sizes or not all(sizes):
        raise UsageError(
            f"{field}: features must be numbers of a fixed shape, such as (n,) or"
            f" (time, channels); got {spec.dtype.name} of shape {spec.shape}"
        )
    metadata: dict[str, Any] = {"features_shape": list(sizes)}
    if len(sizes) == 1:
        names = info.feature_names or [str(index) for index in range(sizes[0])]
        metadata["feature_names"] = list(names)
    if raw:
        metadata["raw"] = True
        if spec.dtype.is_integer:
            metadata["features_dtype"] = spec.dtype.name
    else:
        metadata["mean"] = [0.0] * sizes[-1]
        metadata["deviation"] = [1.0] * sizes[-1]
    if field != "features":
        metadata["input_field"] = field
    return FeatureInput(metadata)


def _file_metadata(
    field: str, shape: tuple[int, ...] | None, raw: bool
) -> dict[str, Any]:
    """The metadata for files; `learn` adds what is missing."""
    metadata: dict[str, Any] = {"features_in_files": True}
    if shape is not None:
        metadata["features_shape"] = list(shape)
    if field != "features":
        metadata["input_field"] = field
    if raw:
        metadata["raw"] = True
    return metadata


class FeatureInput(Input):
    """Decoded examples have `features`, float32 of a fixed shape; whole numbers stay
    whole for a user's own network, whose first layer may be an embedding.

    Other networks get features with mean 0 and standard deviation 1 over the training
    examples: least squares has the same solution in any units, but gradient descent
    needs steps proportional to the spread of each feature.
    """

    decodes_batches = True
    not_decoded = frozenset({"mean", "deviation"})

    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        names = metadata.get("feature_names", ())
        self.names: list[str] = list(names)
        self._shape = tuple(metadata.get("features_shape", (len(names),)))
        self._dtype = tf.as_dtype(metadata.get("features_dtype", "float32"))
        self._field = metadata.get("input_field", "features")
        self._is_raw = bool(metadata.get("raw"))
        self._order: list[int] | None = None
        """Positions of the features in the columns of other data."""
        self._takes_files = bool(metadata.get("features_in_files"))
        self.mean = np.array(metadata.get("mean", 0.0), np.float32)
        self.deviation = np.array(metadata.get("deviation", 1.0), np.float32)

    def learn(self, examples: TrainingExamples) -> Metadata:
        """Learns mean and deviation of each feature, and the shape of examples in
        files.
        """
        if self._takes_files and "features_shape" not in self.metadata:
            shape = {"features_shape": _shape_of_files(examples, self._field)}
            return {
                **shape,
                **self.with_metadata({**self.metadata, **shape}).learn(examples),
            }
        if self._dtype.is_integer or self._is_raw:
            return {}
        # `check` refuses numbers that are not finite, later.
        with np.errstate(invalid="ignore", over="ignore"):
            mean, deviation = self._moments(examples)
        # Dividing a feature that is constant in float32 would only amplify rounding
        # errors.
        smallest = np.maximum(np.abs(mean) * np.finfo(np.float32).eps, 1e-30)
        varies = deviation > smallest
        return {
            "mean": mean.tolist(),
            "deviation": np.where(varies, deviation, 1.0).tolist(),
        }

    def _moments(self, examples: TrainingExamples) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of each feature or channel, float64.

        Those of long examples come from sums of differences from the first one, which
        keeps them exact for a large mean.
        """
        if len(self._shape) == 1 and self._field in examples.short_fields:
            values = examples.column(self._field).astype(np.float32)
            values = values.astype(np.float64)
            return values.mean(axis=0), values.std(axis=0)
        count = 0
        shift: Any = None
        total: Any = 0.0
        squares: Any = 0.0
        for batch in self._read(examples):
            rows = batch.reshape(-1, self._shape[-1])
            if shift is None:
                shift = rows[0]
            rows = rows - shift
            count += len(rows)
            total = total + rows.sum(axis=0)
            squares = squares + (rows**2).sum(axis=0)
        mean = total / count
        variance = np.maximum(squares / count - mean**2, 0.0)
        return shift + mean, np.sqrt(variance)

    def _read(self, examples: TrainingExamples) -> Any:
        """Yields batches of features as in training, float64 or whole numbers."""
        for batch in examples.batches():
            values = batch[self._field]
            if values.dtype == object:
                rows = [self.decode({self._field: tf.constant(row)}) for row in values]
                values = np.stack([row[0]["features"].numpy() for row in rows])
            if self._dtype.is_integer:
                yield values
            else:
                yield values.astype(np.float32).astype(np.float64)

    def decode(self, example: Example) -> tuple[Example, None]:
        """Converts numbers of any type to float32, or to the type of whole numbers."""
        values = example[self._field]
        if values.dtype == tf.string:
            values = decode_npy(values, self._shape)
        if self._order is not None:
            values = tf.gather(values, self._order, axis=-1)
        values = ensure_shape(values, self._shape)
        return {"features": tf.cast(values, self._dtype)}, None

    def match(self, source: Source) -> "FeatureInput":
        """Takes the columns of a table by their names, in any order."""
        field = self._field if self._field in source.info.fields else "features"
        matched = FeatureInput({**self.metadata, "input_field": field})
        names = source.info.feature_names
        has_names = self.names != [str(index) for index in range(len(self.names))]
        if names is None or not self.names or not has_names:
            return matched
        missing = [name for name in self.names if name not in names]
        if missing:
            raise UsageError(
                f"the data have no column {missing[0]!r}; the model takes"
                f" {', '.join(self.names)}"
            )
        matched._order = [names.index(name) for name in self.names]
        return matched

    def check(self, columns: Any, split: str, locate: Any) -> None:
        values = columns.get("features")
        if values is None or values.dtype.kind != "f":
            return
        for row, *index in np.argwhere(~np.isfinite(values)):
            name = f"feature {index}"
            if self.names:
                name = f"feature {self.names[index[0]]!r}"
            raise UsageError(
                f"split {split}: {name} of {locate(int(columns['id'][row]))} is"
                f" {values[row, *index]} in float32; use a finite number, or remove"
                " the example"
            )

    def prepare(self, batch: Example) -> Example:
        """Scales features to mean 0 and deviation 1 over the training examples."""
        if self._is_raw:
            return dict(batch)
        return {**batch, "features": (batch["features"] - self.mean) / self.deviation}

    def inputs(self) -> keras.KerasTensor:
        return keras.Input(self._shape, dtype=self._dtype.name, name="features")

    def network_inputs(self, batch: Example) -> tf.Tensor:
        return batch["features"]

    def signatures(self) -> list[ServingInput]:
        """`serving_default(features)` takes unscaled features, (batch, ...)."""
        spec = tf.TensorSpec((None, *self._shape), self._dtype, name="features")
        default = ServingInput(
            "serving_default",
            {"features": spec},
            self._read_request,
            lambda columns: {"features": columns["features"]},
        )
        if not self._takes_files:
            return [default]
        contents = tf.TensorSpec((None,), tf.string, name="features_bytes")
        files = ServingInput(
            "features_bytes",
            {"features_bytes": contents},
            self._read_files,
            _npy_files,
            files=(".npy",),
            meaning="each an .npy file of numbers",
        )
        return [default, files]

    def _read_files(self, contents: tf.Tensor) -> Example:
        """Cuts or fills the arrays in files, as in training."""
        features = tf.map_fn(
            lambda content: self.decode({self._field: content})[0]["features"],
            request_guards.files(contents),
            fn_output_signature=tf.TensorSpec(self._shape, self._dtype),
        )
        return self._read_request(features)

    def _read_request(self, features: tf.Tensor) -> Example:
        """Rejects numbers that are not finite, or so large that their scaled values
        would not be finite.
        """
        features = request_guards.batch(features, (None, *self._shape))
        batch = {"features": features}
        if self._dtype.is_integer:
            return batch
        scaled = self.prepare(batch)["features"]
        with tf.control_dependencies([request_guards.finite(scaled, "features")]):
            return {"features": tf.identity(features)}

    def standalone(self) -> tuple[keras.KerasTensor, keras.KerasTensor]:
        inputs = self.inputs()
        if self._is_raw:
            return inputs, inputs
        standardize = keras.layers.Normalization(
            mean=self.mean.tolist(),
            variance=(self.deviation.astype(np.float64) ** 2).tolist(),
            dtype="float32",
            name="standardize",
        )
        return inputs, standardize(inputs)

    def limitations(self) -> list[str]:
        sentences = [
            "The metrics hold for features like those of the training examples; other"
            " features have not been tested."
        ]
        if self.names:
            names = ", ".join(self.names)
            sentences.append(f"Features are identified only by their order: {names}.")
        return sentences


def _shape_of_files(examples: TrainingExamples, field: str) -> list[int]:
    """The length of 95% of the arrays in files, and the shape of their rows."""
    lengths = []
    rows = set()
    for batch in examples.batches():
        for content in batch[field]:
            try:
                array = np.load(io.BytesIO(content), allow_pickle=False)
            except (ValueError, OSError, EOFError):
                continue  # `decode` reports it
            lengths.append(len(array) if array.ndim else 0)
            rows.add(array.shape[1:])
    if not lengths:
        raise UsageError(f"{field}: no file is an .npy file of numbers")
    if len(rows) > 1:
        shapes = " and ".join(str(shape) for shape in sorted(rows)[:2])
        raise UsageError(
            f"{field}: the arrays in the files have rows of the shapes {shapes}; all"
            " rows must have the same shape"
        )
    length = int(np.quantile(lengths, _MAX_QUANTILE, method="lower"))
    return [max(length, 1), *rows.pop()]


def _npy_files(columns: Mapping[str, np.ndarray]) -> Request:
    """`.npy` files of decoded features."""
    contents = []
    for values in columns["features"]:
        file = io.BytesIO()
        np.save(file, values)
        contents.append(file.getvalue())
    return {"features_bytes": contents}
