"""An input outside the package: time series in `.npy` files."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.contracts import Info, Input, ServingInput
from pipeline.data.npy_decoding import decode_npy
from pipeline.serving import request_guards


def series(
    info: Any,
    *,
    field: str = "series",
    suffixes: tuple[str, ...] = (".npy",),
    length: int = 20,
    channels: int = 2,
) -> Input:
    """Time series of `length` steps; the deviation of each channel is learned."""
    if not isinstance(info, Info):
        return Series(info)
    info.field(field)
    return Series({"input_field": field, "shape": [length, channels]})


class Series(Input):
    not_decoded = frozenset({"scale"})

    def __init__(self, metadata):
        super().__init__(metadata)
        self.shape = tuple(metadata["shape"])
        self.scale = np.array(metadata.get("scale", 1.0), np.float32)

    def learn(self, examples):
        """The deviation of each channel over the raw training examples."""
        squares = np.zeros(self.shape[1])
        count = 0
        for batch in examples.batches():
            for content in batch[self.metadata["input_field"]]:
                values = decode_npy(tf.constant(content), self.shape).numpy()
                squares += (values.astype(np.float64) ** 2).sum(axis=0)
                count += len(values)
        return {"scale": np.sqrt(squares / count).tolist()}

    def decode(self, example):
        values = decode_npy(example[self.metadata["input_field"]], self.shape)
        return {"series": values}, None

    def prepare(self, batch):
        return {**batch, "series": batch["series"] / self.scale}

    def inputs(self):
        return keras.Input(self.shape, name="series")

    def network_inputs(self, batch):
        return batch["series"]

    def signatures(self):
        arrays = tf.TensorSpec((None, *self.shape), tf.float32, name="series")
        contents = tf.TensorSpec((None,), tf.string, name="series_bytes")
        return [
            ServingInput(
                "serving_default",
                {"series": arrays},
                self.read_arrays,
                lambda columns: {"series": columns["series"]},
            ),
            ServingInput(
                "series_bytes",
                {"series_bytes": contents},
                self.read_files,
                lambda columns: {"series_bytes": list(map(npy, columns["series"]))},
                files=(".npy",),
                meaning="each an .npy file",
            ),
        ]

    def read_arrays(self, series):
        series = request_guards.batch(series, (None, *self.shape))
        return {"series": request_guards.finite(series, "series")}

    def read_files(self, contents):
        series = tf.map_fn(
            lambda content: decode_npy(content, self.shape),
            request_guards.files(contents),
            fn_output_signature=tf.TensorSpec(self.shape, tf.float32),
        )
        return self.read_arrays(series)


def npy(values):
    """The bytes of an `.npy` file."""
    import io

    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()
