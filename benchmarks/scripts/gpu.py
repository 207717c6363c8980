"""Checks on one GPU: both engines in each precision, two virtual GPUs, and an export.

    python -m benchmarks.scripts.gpu

Prints a row for each run of `digits`: a digest of the weights, and the test loss. Runs
with the same digest have the same weights, bit for bit. The rows of the two engines
must be equal, because the runs are deterministic.
"""

import contextlib
import hashlib
import io
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

from pipeline.fit import fit
from pipeline.runtime import devices

ENGINES = ("model_fit", "gradient_tape")
PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")
VIRTUAL_MEMORY = 6000  # MiB of each virtual GPU


def row(title: str, engine: str, runtime: dict[str, Any], exported: bool) -> str:
    """Trains for three epochs in an empty directory."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        contextlib.redirect_stdout(io.StringIO()) as lines,
    ):
        run = fit(
            "digits",
            epochs=3,
            train={"engine": engine},
            runtime={"deterministic": True, **runtime},
            export={"enabled": exported},
        )
    content = b"".join(
        np.ascontiguousarray(weight).tobytes() for weight in run.model.get_weights()
    )
    digest = hashlib.sha256(content).hexdigest()[:10]
    text = f"| {title} | {engine} | {digest} | {run.test['loss']:.6f} |"
    if exported and not run.export:
        failures = [line for line in lines.getvalue().splitlines() if "FAILED" in line]
        text += f" not exported: {'; '.join(failures)}"
    return text


def one_gpu() -> None:
    for precision in PRECISIONS:
        for engine in ENGINES:
            print(row(precision, engine, {"precision": precision}, False), flush=True)
    print(row("float32, exported", ENGINES[0], {"precision": "float32"}, True))


def virtual_gpus() -> None:
    """Two replicas on one card. NCCL needs two cards, so the gradients are added on
    one of the virtual GPUs.
    """
    (gpu, *_) = tf.config.list_physical_devices("GPU")
    part = tf.config.LogicalDeviceConfiguration(memory_limit=VIRTUAL_MEMORY)
    tf.config.set_logical_device_configuration(gpu, [part, part])

    def strategy(names: Sequence[str]) -> tf.distribute.Strategy:
        reduce = tf.distribute.ReductionToOneDevice()
        return tf.distribute.MirroredStrategy(list(names), cross_device_ops=reduce)

    mock.patch.multiple(
        devices,
        _select_gpus=lambda options, gpus: gpus,
        _enable_memory_growth=lambda gpus: None,
        _mirrored_strategy=strategy,
    ).start()
    for engine in ENGINES:
        runtime = {"precision": "float32", "replicas": 2}
        print(row("float32, two virtual GPUs", engine, runtime, False), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["virtual"]:
        virtual_gpus()
    else:
        print("| run | engine | weights | test loss |\n|---|---|---|---|", flush=True)
        one_gpu()
        subprocess.run(
            [sys.executable, "-m", "benchmarks.scripts.gpu", "virtual"], check=True
        )
