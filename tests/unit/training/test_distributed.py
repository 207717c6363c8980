"""Two replicas and two workers against one device and stock Keras."""

import json
import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from optimizer_slots import momenta
from processes import REPOSITORY, run_python
from worker_processes import Workers, text_of

from pipeline.config import command_line
from pipeline.contracts import ReplicaPart
from pipeline.data import batching
from pipeline.runtime import cluster, gpu_info
from pipeline.training import distributed
from pipeline.utils.errors import UsageError


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The output of `two_replicas.py`."""
    result = run_python(
        REPOSITORY / "tests/support/two_replicas.py", cwd=tmp_path_factory.mktemp("two")
    )
    assert result.stdout.startswith("{"), result.stderr[-3000:]
    return json.loads(result.stdout)


def test_updates_are_those_of_one_device(measured):
    """With clipping, accumulation, weight decay and L2; with synchronized batch
    normalisation; with a copy of the examples on each device. Muon's matrix products
    magnify rounding.
    """
    assert (
        measured["replicas"] == 2 and measured["muon"] <= 5e-5 and measured["planned"]
    )
    copies, distance = measured["device_cache"]
    assert distance <= 1e-5 and len(copies) == 2
    assert all(
        len(places) == 1 and places[0].endswith(name) for name, places in copies.items()
    )
    weights, statistics = measured["synchronized"]
    assert weights <= 1e-5 and statistics <= 1e-6


def test_replicas_get_the_same_examples_in_the_same_order(measured):
    """Augmented on the host or in the step, and prefetched to the device
    that computes.
    """
    assert measured["sample_order"] and measured["augmented"]
    assert len(measured["prefetched"]) == 5
    assert all(device.endswith("CPU:1") for device in measured["prefetched"])


def test_an_overflow_on_any_replica_skips_the_step_on_all(measured):
    """Weights, moving statistics and optimizer state of all copies are kept; the loss
    scale is halved if the loss is finite.
    """
    assert measured["overflows"] == [20, 20]


def test_statistics_and_metrics_do_not_depend_on_the_replicas(measured):
    """Those of bad steps and the norms; top-k accuracy, and macro recall, which is not
    a mean of parts.
    """
    one, two = measured["bad_steps"]
    assert one[:3] == two[:3] == [[1, 2], 2, 2 * 16]
    assert one[3:] == pytest.approx(two[3:], rel=1e-4) and np.isfinite(one[3:]).all()
    one, two = measured["metrics"]
    assert all(0 < value < 1 for values in one for value in values)
    np.testing.assert_allclose(one, two, rtol=1e-6)


def test_replicas_draw_different_dropout_masks(measured):
    replicas_differ, steps_differ, same_step_is_same = measured["dropout"]
    assert replicas_differ and steps_differ and same_step_is_same


# Several machines, as processes on one


FIT = (
    "-m pipeline.fit digits --model.name tiny --train.optimizer sgd --train.engine"
    " gradient_tape"
)


def test_two_workers_are_two_replicas(tmp_path):
    """One update to 1e-5, one log, one export. The other worker prints who it is and
    waits for the chief, to which TensorFlow would otherwise report a crash.
    """
    words = f"{FIT} --train.steps 1 --data.augment --train.clip-norm 0.1 --train.ema 0.9".split()
    words += ["--train.optimizer-options", "momentum=0.9"]
    with Workers([*words, "--run-directory", "run"], tmp_path) as workers:
        code, other, warned = workers.output(1)
        assert code == 0, warned[-2000:]
        assert (tmp_path / "run" / "result.json").exists()
        code, said, errors = workers.output(0)
    assert code == 0, errors[-2000:]
    assert "unhealthy" not in errors + warned and "crashed" not in errors + warned
    assert "2 workers, 2 replicas" in said
    (line,) = other.splitlines()
    assert line.startswith("worker     1 of 2")
    assert (tmp_path / "saved_models" / "digits" / "1").is_dir()
    assert len((tmp_path / "run" / "log.jsonl").read_text().splitlines()) == 1
    words += [
        "--export.no-enabled",
        "--run-directory",
        "one",
        "--runtime.replicas",
        "2",
    ]
    result = run_python(*words, cwd=tmp_path)
    assert "2 logical devices" in result.stdout, result.stderr[-2000:]
    updates = [
        momenta(tmp_path / name / "checkpoints" / "step-00000001")
        for name in ("run", "one")
    ]
    assert len(updates[0]) == 10
    for one, other in zip(*updates, strict=True):
        assert np.linalg.norm(one - other) <= 1e-5 * np.linalg.norm(other)


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


def test_a_lost_worker_is_named_within_seconds(tmp_path):
    words = f"{FIT} --train.epochs 100000 --run-directory run --train.steps-per-call 5".split()
    with Workers(words, tmp_path) as workers:
        workers.wait_for("\nepoch")
        workers.processes[1].kill()
        killed = time.monotonic()
        code, _, errors = workers.output(0)
    assert time.monotonic() - killed < 30
    assert code == 5, errors[-2000:]
    assert "error: worker 1 (127.0.0.1:" in errors and "resumes from its last" in errors


def test_what_several_workers_cannot_do_is_refused(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text_of(["127.0.0.1:1", "127.0.0.1:2"]))
    single = command_line.recipe("digits")
    with pytest.raises(
        UsageError,
        match="TF_CONFIG describes .* set --run-directory .* unset TF_CONFIG",
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
