"""What several workers share, and GPUs that cannot be used."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from worker_processes import text_of

from pipeline.config import command_line
from pipeline.contracts import ReplicaPart
from pipeline.data import batching
from pipeline.runtime import cluster, gpu_info
from pipeline.training import distributed
from pipeline.utils.errors import UsageError


class Strategy(tf.distribute.MultiWorkerMirroredStrategy):
    """That of the second of two workers, each with one device."""

    num_replicas_in_sync = 2
    extended = SimpleNamespace(
        worker_devices=["/job:worker/replica:0/task:1/device:CPU:0"]
    )

    def __init__(self):
        pass

    def run(self, function):
        return 1


@pytest.mark.parametrize("repeat", [False, True])
def test_the_iterators_of_workers_are_not_tuned(split, monkeypatch, repeat):
    """Deleting a tuned iterator waits for the next round of tuning, at the end of the
    process.
    """
    options = (
        command_line.recipe("digits")
        .changed(train={"batch_size": 4, "epochs": 1})
        .train
    )
    batches = batching.training(split(20), options, seed=0)
    part = ReplicaPart(1, 1, 2)
    expected = [batch["image"].numpy() for batch in batches.dataset(0, part)]
    monkeypatch.setattr(tf.distribute, "get_strategy", Strategy)
    dataset = distributed.dataset(batches, repeat)
    assert (
        isinstance(dataset, tf.data.Dataset)
        and dataset.options().autotune.enabled is False
    )
    images = [batch["image"].numpy() for batch in dataset.take(5)]
    np.testing.assert_array_equal(images, expected)


def test_what_several_workers_cannot_do_is_refused(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text_of(["127.0.0.1:1", "127.0.0.1:2"]))
    single = command_line.recipe("digits")
    with pytest.raises(
        UsageError,
        match="TF_CONFIG .*--run-directory",
    ):
        cluster.of_run(single)
    with pytest.raises(UsageError, match="--data.folds trains in one process"):
        cluster.of_run(single.changed(data={"folds": 2}))


def test_a_gpu_that_cannot_be_used_is_explained(tmp_path, monkeypatch):
    version = tmp_path / "version"
    monkeypatch.setattr(gpu_info, "_DRIVER", version)
    assert gpu_info.missing_gpu() is None
    text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Wed\nGCC version: 12\n"
    version.write_text(text.format("470.82.01"))
    assert "470.82.01" in gpu_info.missing_gpu() and "525" in gpu_info.missing_gpu()
    version.write_text(text.format("570.10"))
    there = set(gpu_info._LIBRARIES)
    monkeypatch.setattr(gpu_info, "_opens", lambda name: name in there)
    assert "nvidia-smi" in gpu_info.missing_gpu()
    there.remove("libcudnn.so.9")
    assert "pip install 'tensorflow[and-cuda]'" in gpu_info.missing_gpu()
    there.remove("libcuda.so.1")
    assert "install the driver's user library" in gpu_info.missing_gpu()
