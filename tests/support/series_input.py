"""An input outside the package: time series in `.npy` files, two numbers a step."""

import io

import keras
import numpy as np
import tensorflow as tf

from pipeline.contracts import Info, Input, ServingInput
from pipeline.data.npy_decoding import decode_npy
from pipeline.serving import request_guards

SHAPE = (20, 2)


def series(info, *, field: str = "series", suffixes: tuple[str, ...] = (".npy",)):
    return Series({"input_field": field} if isinstance(info, Info) else info)


class Series(Input):
    not_decoded = frozenset({"scale"})

    def learn(self, examples):
        values = []
        for batch in examples.batches():
            for content in batch[self.metadata["input_field"]]:
                values.append(decode_npy(tf.constant(content), SHAPE).numpy())
        return {"scale": float(np.std(values))}

    def decode(self, example):
        content = example[self.metadata["input_field"]]
        return {"series": decode_npy(content, SHAPE)}, None

    def prepare(self, batch):
        return {**batch, "series": batch["series"] / self.metadata.get("scale", 1.0)}

    def inputs(self):
        return keras.Input(SHAPE, name="series")

    def network_inputs(self, batch):
        return batch["series"]

    def signatures(self):
        specs = {"series_bytes": tf.TensorSpec((None,), tf.string, name="series_bytes")}
        return [ServingInput("serving_default", specs, read, request, (".npy",))]


def read(contents):
    """Refuses what is no series of numbers."""
    files = request_guards.files(contents)
    spec = tf.TensorSpec(SHAPE, tf.float32)
    values = tf.map_fn(lambda x: decode_npy(x, SHAPE), files, fn_output_signature=spec)
    return {"series": request_guards.finite(values, "series")}


def request(columns):
    files = [io.BytesIO() for _ in columns["series"]]
    for file, values in zip(files, columns["series"], strict=True):
        np.save(file, values)
    return {"series_bytes": [file.getvalue() for file in files]}
