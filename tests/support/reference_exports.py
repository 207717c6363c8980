"""Versions of a small classifier, made without the export of the package.

The parts between a request and its prediction can be replaced: then the stored predictions,
which are those of the correct parts, must reveal it.
"""

import dataclasses
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image
from tensorflow_serving.apis import prediction_log_pb2

from pipeline.data import image_decoding
from pipeline.export import proof, warmup
from pipeline.serving import version_manifest

SIDE, CLASSES, BEST = 8, ["owl", "ant", "cat", "bee"], 3
MEAN, DEVIATION, TEMPERATURE = (0.45, 0.5, 0.4), (0.25, 0.2, 0.3), 1.5
SIZES = (1, 8)  # of the warm-up requests


class Network(tf.Module):
    """Convolution, batch normalisation, dropout, dense: (batch, 8, 8, 3) to logits
    (batch, 4).
    """

    def __init__(self) -> None:
        super().__init__()
        chance = np.random.default_rng(5)

        def some(*shape: int) -> tf.Variable:
            return tf.Variable(chance.normal(0, 0.5, shape), dtype=tf.float32)

        self.kernel, self.mean = some(3, 3, 3, 6), some(6)
        self.variance = tf.Variable(chance.uniform(0.5, 2, 6), dtype=tf.float32)
        self.dense, self.bias = some(SIDE * SIDE * 6, len(CLASSES)), some(len(CLASSES))

    def __call__(
        self, x, *, dropout=False, statistics=False, dtype=tf.float32, share=1.0
    ):
        maps = tf.nn.conv2d(
            tf.cast(x, dtype), tf.cast(self.kernel * share, dtype), 1, "SAME"
        )
        maps = tf.cast(maps, tf.float32)
        moments = (
            tf.nn.moments(maps, [0, 1, 2]) if statistics else (self.mean, self.variance)
        )
        maps = tf.nn.relu(tf.nn.batch_normalization(maps, *moments, None, None, 1e-3))
        maps = tf.nn.dropout(maps, 0.5) if dropout else maps
        flat = tf.cast(tf.reshape(maps, (-1, SIDE * SIDE * 6)), dtype)
        return tf.cast(flat @ tf.cast(self.dense * 0.1, dtype), tf.float32) + self.bias


def answered(
    logits: tf.Tensor, names: list[str] = CLASSES, temperature: float = TEMPERATURE
) -> dict[str, tf.Tensor]:
    """The outputs of the signatures for logits."""
    probabilities = tf.nn.softmax(logits / temperature)
    index = tf.argmax(probabilities, -1, output_type=tf.int32)
    scores, best = tf.math.top_k(probabilities, BEST)
    return {
        "probabilities": probabilities,
        "class": index,
        "label": tf.gather(names, index),
        "top_scores": scores,
        "top_labels": tf.gather(names, best),
    }


@dataclasses.dataclass(frozen=True)
class Parts:
    """The functions between a request and its prediction."""

    network: Callable[[tf.Tensor], tf.Tensor]
    decode: Callable[[tf.Tensor], tf.Tensor] = lambda contents: image_decoding.pixels(
        contents, 3
    )
    resize: Callable[[tf.Tensor], tf.Tensor] = lambda image: tf.clip_by_value(
        tf.round(tf.image.resize(image, (SIDE, SIDE), antialias=True)), 0, 255
    )
    prepare: Callable[[tf.Tensor], tf.Tensor] = lambda images: (
        (tf.cast(images, tf.float32) / 255 - MEAN) / DEVIATION
    )
    prediction: Callable[[tf.Tensor], dict[str, tf.Tensor]] = answered

    def pixels(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        images = tf.ensure_shape(images, (None, SIDE, SIDE, 3))
        with tf.control_dependencies(
            [tf.debugging.Assert(tf.shape(images)[0] > 0, ["empty"])]
        ):
            images = tf.identity(images)
        return self.prediction(self.network(self.prepare(images)))

    def image_bytes(self, contents: tf.Tensor) -> dict[str, tf.Tensor]:
        spec = tf.TensorSpec((SIDE, SIDE, 3), tf.float32)
        images = tf.map_fn(
            lambda one: self.resize(self.decode(one)),
            tf.ensure_shape(contents, (None,)),
            fn_output_signature=spec,
        )
        return self.pixels(images)


SPECS = {
    "pixels": tf.TensorSpec((None, SIDE, SIDE, 3), tf.uint8, name="images"),
    "image_bytes": tf.TensorSpec((None,), tf.string, name="image_bytes"),
}


def requests(count: int = 10) -> dict[str, dict[str, Any]]:
    """Kind of a signature -> its inputs; files are PNG and JPEG of another size."""
    chance = np.random.default_rng(3)
    images = chance.integers(0, 256, (count, SIDE, SIDE, 3), np.uint8)
    files = []
    for number in range(count):
        small = chance.integers(0, 256, (5, 6, 3), np.uint8)
        file = io.BytesIO()
        image = Image.fromarray(small).resize((23, 19), Image.Resampling.BICUBIC)
        image.save(file, ("PNG", "JPEG")[number % 2])
        files.append(file.getvalue())
    return {
        "pixels": {"images": images},
        "image_bytes": {"image_bytes": files},
    }


def write(
    directory: Path,
    served: dict[str, tuple[str, Parts]],
    honest: Parts,
    warm: bool = True,
) -> None:
    """A version with signatures name -> (kind, parts), and golden predictions of the honest
    parts.
    """
    asked, predictions, golden, signatures = requests(), {}, {}, {}
    module = tf.Module()
    module.network = honest.network
    for name, (kind, parts) in served.items():
        traced = tf.function(getattr(parts, kind), [SPECS[kind]], autograph=False)
        signatures[name] = traced.get_concrete_function()
        (values,) = asked[kind].values()
        if kind not in predictions:
            trained = tf.function(getattr(honest, kind), [SPECS[kind]], autograph=False)
            outputs = trained(tf.constant(values))
            predictions[kind] = {key: value.numpy() for key, value in outputs.items()}
        golden[name] = {"inputs": asked[kind], "outputs": predictions[kind]}
    module.functions = list(signatures.values())
    tf.saved_model.save(module, str(directory), signatures=signatures)
    proof.write_golden(directory / proof.GOLDEN, golden)
    if warm:
        inputs = {name: sides["inputs"] for name, sides in golden.items()}
        warmup.write(directory / warmup.FILE, "small", inputs, SIZES)
    write_manifest(directory)


def honest_version(directory: Path) -> None:
    """A correct version with every signature."""
    parts = Parts(Network())
    kinds = {"serving_default": "pixels", "image_bytes": "image_bytes"}
    write(directory, {name: (kind, parts) for name, kind in kinds.items()}, parts)


def swift_version(directory: Path) -> None:
    """A correct version with pixels only, which is verified in a second."""
    parts = Parts(Network())
    write(directory, {"serving_default": ("pixels", parts)}, parts)


def record(signature: str, tensors: dict[str, Any]) -> bytes:
    """A PredictionLog of a PredictRequest."""
    log = prediction_log_pb2.PredictionLog()
    request = log.predict_log.request
    request.model_spec.name, request.model_spec.signature_name = "small", signature
    for name, tensor in tensors.items():
        request.inputs[name].CopyFrom(tensor)
    return log.SerializeToString()


def write_records(path: Path, records: list[bytes]) -> None:
    """An uncompressed TFRecord file."""
    with tf.io.TFRecordWriter(str(path)) as file:
        for one in records:
            file.write(one)


def write_manifest(directory: Path) -> None:
    """Digests of all files as they are now."""
    version_manifest.write(directory, {"precision": "float32"})


def failures(directory: Path) -> dict[str, str]:
    """Name -> message of the failed checks of a version, run in this process."""
    lines = io.StringIO()
    proof.run(proof.checks(directory), lines)
    results = map(json.loads, lines.getvalue().splitlines())
    failed = {r["check"]: r["detail"] for r in results if not r.get("passed", True)}
    failed.pop("finished", None)  # Python TensorFlow is imported here
    return failed


class Server:
    """A session that answers with a function and records the requests."""

    def __init__(self, prediction, signatures=()):
        self.prediction, self.signatures, self.asked = (
            prediction,
            dict.fromkeys(signatures),
            [],
        )

    def run(self, signature, inputs):
        self.asked.append(
            (signature, {name: np.shape(v) for name, v in inputs.items()})
        )
        return self.prediction(**inputs)
