"""Two replicas, two workers, every way to take a step: against one device and stock Keras."""

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time

import keras
import numpy as np
import pytest
from conftest import REPOSITORY, images_and_labels, run_module

from pipeline.evaluation.parity import Case, Result
from pipeline.runtime import cluster, gpu_info
from pipeline.utils.errors import UsageError


def python(*arguments, cwd, environment=None, wait=True):
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return process.communicate(timeout=300) if wait else process


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """What `two_replicas.py` prints."""
    folder = tmp_path_factory.mktemp("two")
    out, errors = python(REPOSITORY / "tests/support/two_replicas.py", cwd=folder)
    assert out.startswith("{"), errors[-3000:]
    return json.loads(out)


def test_one_update_is_that_of_one_device(measured):
    """Clipping and accumulation on, weight decay, L2; each with a way of its own."""
    assert measured["replicas"] == 2
    assert measured["one_update"].keys() == {"sgd", "adamw", "adaptive", "ema"}
    assert max(measured["one_update"].values()) <= 1e-5, measured["one_update"]
    assert measured["eight_steps"] <= 1e-5


def test_replicas_see_the_examples_in_the_same_order(measured):
    assert measured["sample_order"]


def test_an_overflow_on_any_replica_skips_the_step_on_all(measured):
    """Weights, moving statistics, optimizer state of all copies stay; the scale is halved where the
    loss is finite."""
    survived, recovered = measured["overflows"]
    assert survived == recovered == 100


def test_bad_steps_and_norms_are_the_same_on_any_number_of_replicas(measured):
    """The loss and its count are those of the good steps; norms to rounding."""
    one, two = measured["bad_steps"]
    assert one[:3] == two[:3] == [[1, 2], 2, 2 * 16]
    assert one[3:] == pytest.approx(two[3:], rel=1e-4) and np.isfinite(one[3:]).all()


def test_metrics_count_the_examples_of_all_replicas(measured):
    """Top-k accuracy and macro recall of each epoch, of which the latter is no mean of parts."""
    one, *two = measured["metrics"]
    assert all(0 < value < 1 for values in one for value in values)
    for found in two:
        np.testing.assert_allclose(found, one, rtol=1e-6)


def test_the_loss_scale_grows_after_good_steps(measured):
    assert measured["growth"] == 2.0 ** (15 + (1 + 8) // 3)


def test_replicas_draw_different_dropout_masks(measured):
    replicas_differ, steps_differ, same_step_is_same = measured["dropout"]
    assert replicas_differ and steps_differ and same_step_is_same


def test_each_replica_reads_a_copy_on_its_own_device(measured):
    copies, same = measured["resident"]
    assert len(copies) == 2 and same
    assert all(len(places) == 1 and places[0].endswith(name) for name, places in copies.items())


def test_augmentation_on_the_host_is_that_of_the_step(measured):
    """Losses and all variables, for 1 and 2 micro-batches; MixUp in the parts of each replica."""
    assert measured["augmented"] == {"1": True, "2": True}


def test_synchronised_batch_normalisation_is_that_of_the_whole_batch(measured):
    assert measured["synchronized"] <= 1e-5 and measured["statistics"] <= 1e-6


def test_parity_in_its_small_form(tmp_path):
    """Both engines, 1 and 2 replicas, 1 and 8 steps a call, clipping, against stock Keras."""
    options = "--parity digits --model tiny --precisions float32 --accumulate 4"
    result = run_module("pipeline.doctor", *options.split(), cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "4 of 4 cases are as close as they must be" in result.stdout
    rows = [line.split() for line in result.stdout.splitlines() if " sgd " in line]
    assert {row[5] for row in rows} == {"0"} and len(rows) == 4
    assert max(float(row[6]) for row in rows if row[0] == "1") <= 1e-5


def test_parity_judges():
    case = Case(replicas=1, optimizer="sgd", precision="float32", accumulate=1, clip=False)
    low = dataclasses.replace(case, precision="mixed_bfloat16")
    assert Result(case, 0.0, 1e-6, 1e-6, 0.0).passed
    assert not Result(case, 1e-12, 1e-6, 1e-6, 0.0).passed
    assert not Result(case, 0.0, 2e-5, 2e-5, 0.0).passed
    assert Result(case, 0.0, 2e-5, 2e-5, 0.0, judged=False).passed
    assert Result(case).passed and not Result(case, error="died").passed
    assert Result(low, 0.0, 0.1, 0.02, 0.011).passed
    assert not Result(low, 0.0, 0.1, 0.03, 0.011).passed


def test_33_examples_on_2_replicas_with_batch_16(tmp_path, npz):
    """Uneven at every turn. What the replicas found in validation, and the test, equal NumPy's."""
    program = f"""
import json, numpy as np
from pipeline.fit import fit
run = fit("digits", source={{"name": "arrays", "path": {str(npz(*images_and_labels(33)))!r}}},
          data={{"augment": {{}}, "validation": 0.25, "test": 0.25, "split_seed": 4}},
          model={{"name": "tiny"}}, runtime={{"replicas": 2}},
          train={{"batch_size": 16, "epochs": 2, "ema": 0.5}}, export={{"calibrate": False}})
found = {{"sizes": [len(split) for split in run.splits.values()], "export": str(run.export)}}
for name in ("validation", "test"):
    columns = run.splits[name].take(np.arange(len(run.splits[name])))
    answers = run.predict(images=columns["image"])
    chosen = answers["probabilities"][np.arange(len(columns["label"])), columns["label"]]
    right = answers["class"] == columns["label"]
    found[name] = [float(-np.log(chosen).mean()), float(right.mean())]
found["seen"] = {{"validation": [run.history[f"val_{{n}}"][-1] for n in ("loss", "accuracy")],
                 "test": [run.test[n] for n in ("loss", "accuracy")]}}
print(json.dumps(found))
"""
    out, errors = python("-c", program, cwd=tmp_path)
    found = json.loads(out.splitlines()[-1]) if out else pytest.fail(errors[-2000:])
    assert sum(found["sizes"]) == 33 and found["sizes"][1] == 7, "an odd part is wanted"
    assert found["export"] == "saved_models/digits/1"
    for name in ("validation", "test"):
        assert found["seen"][name] == pytest.approx(found[name], rel=1e-5)


def test_the_private_hook_of_keras_is_still_there():
    """`gradient_update.py` replaces it, so Keras does not sum gradients over replicas again."""
    called = []
    optimizer = keras.optimizers.SGD(0.1)
    weight = keras.Variable([1.0])
    optimizer._all_reduce_sum_gradients = lambda pairs: called.append(1) or pairs
    optimizer.build([weight])
    optimizer.apply([keras.ops.ones(1)], [weight])
    assert called == [1] and weight.numpy() == pytest.approx([0.9])


# Several machines, as processes on one


def ports(count):
    import socket

    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    found = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return found


def tf_config(addresses, index):
    task = {"type": "worker", "index": index}
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": task})}


def workers(arguments, count, cwd):
    addresses = [f"127.0.0.1:{port}" for port in ports(count)]
    return [
        python(*arguments, cwd=cwd, environment=tf_config(addresses, index), wait=False)
        for index in range(count)
    ]


FIT = "-m pipeline.fit digits --model.name tiny --train.optimizer sgd --train.engine gradient_tape"


def momenta(path):
    """The momentum of each weight, which after one step is the update itself."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(path / "state"))
    names = sorted(n for n in reader.get_variable_to_shape_map() if n.startswith("optimizer/"))
    values = [reader.get_tensor(name) for name in names]
    return [value for value in values if value.dtype == np.float32 and value.ndim]


def test_two_workers_are_two_replicas(tmp_path):
    """One update to 1e-5; one log, one export. The worker that is not the chief is silent and waits
    for it: TensorFlow would tell the chief that it has crashed."""
    words = f"{FIT} --train.steps 1 --data.augment --train.clip-norm 0.1 --train.ema 0.9".split()
    words += ["--train.optimizer-options", "momentum=0.9"]
    chief, waiting = workers([*words, "--run-directory", "run"], 2, tmp_path)
    other, warned = waiting.communicate(timeout=300)
    is_done = (tmp_path / "run" / "result.json").exists()
    said, errors = chief.communicate(timeout=100)
    assert (chief.returncode, waiting.returncode) == (0, 0), errors[-2000:]
    assert is_done and "unhealthy" not in errors + warned and "crashed" not in errors + warned
    assert "2 workers, 2 replicas" in said and other.count("\n") == 1
    assert other.startswith("worker     1 of 2")
    assert (tmp_path / "saved_models" / "digits" / "1").is_dir()
    assert len((tmp_path / "run" / "log.jsonl").read_text().splitlines()) == 1
    out, errors = python(*words, "--run-directory", "one", "--runtime.replicas", 2, cwd=tmp_path)
    assert "2 logical devices" in out, errors[-2000:]
    updates = [
        momenta(tmp_path / name / "checkpoints" / "step-00000001") for name in ("run", "one")
    ]
    assert len(updates[0]) == 10
    for one, other in zip(*updates, strict=True):
        assert np.linalg.norm(one - other) <= 1e-5 * np.linalg.norm(other)


def test_a_lost_worker_is_named_within_seconds(tmp_path):
    words = f"{FIT} --train.epochs 100000 --run-directory run --train.steps-per-call 5".split()
    chief, other = workers(words, 2, tmp_path)
    trained = any(line.startswith("epoch") for line in chief.stdout)
    other.kill()
    assert trained, [process.communicate(timeout=100)[1][-2000:] for process in (chief, other)]
    killed = time.monotonic()
    _, errors = chief.communicate(timeout=100)
    other.communicate()
    assert time.monotonic() - killed < 30
    assert chief.returncode == 5, errors[-2000:]
    assert "error: worker 1 (127.0.0.1:" in errors and "goes on after its last" in errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (FIT.replace("gradient_tape", "model_fit"), "with which Keras's fit crashes"),
        (FIT, "need a common run: set --run-directory"),
        (f"{FIT} --run-directory run --runtime.replicas 2", "give --runtime.replicas auto"),
        (
            f"{FIT} --run-directory run --runtime.worker-timeout 1",
            "did not respond within 1 seconds",
        ),
    ],
)
def test_what_several_workers_cannot_do_is_refused(tmp_path, words, message):
    addresses = [f"127.0.0.1:{port}" for port in ports(2)]
    process = python(*words.split(), cwd=tmp_path, environment=tf_config(addresses, 0), wait=False)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 2 and message in errors, errors[-1000:]


def text_of(workers, kind="worker", index=0):
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": kind, "index": index}})


def test_workers_with_other_options_are_refused():
    """TensorFlow would wait for ever, deaf to SIGTERM, for steps that the other does not take."""
    addresses = tuple(f"127.0.0.1:{port}" for port in ports(2))
    found = {}

    def meet(index, token):
        try:
            cluster.Cluster(addresses, index).meet(20, token)
        except UsageError as error:
            found[index] = str(error)

    for tokens in (("same", "same"), ("one", "other")):
        threads = [threading.Thread(target=meet, args=pair) for pair in enumerate(tokens)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if tokens[0] == tokens[1]:
            assert not found
    assert all("was started with other options" in found[index] for index in (0, 1))
    assert "worker 1 (127.0.0.1:" in found[0] and "worker 0 (127.0.0.1:" in found[1]


def test_an_unknown_host_is_named():
    found = cluster.Cluster(("127.0.0.1:1", "no-such-host.invalid:2"), 0)
    with pytest.raises(UsageError, match=r"cannot resolve the host of no-such-host.invalid:2"):
        found.meet(1, "token")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "has no cluster or no task"),
        ('{"cluster": {"worker": ["a:1", "b:2"]}}', "has no cluster or no task"),
        ('{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 0}}', "parameter servers"),
        *(
            (text_of([first, "b:2"]), "must be different host:port")
            for first in ("a", "a..b:1", f"{'a' * 64}:1", "B:2", "a:0", "a:1\n", 1)
        ),
        (text_of(["a:1", "b:2"], index=2), "is not one of its workers"),
        (text_of(["a:1", "b:2"], index=True), "is not one of its workers"),
        (text_of(["a:1", "b:2"], "chief"), "is not one of its chiefs"),
    ],
)
def test_a_broken_tf_config_is_refused(text, message):
    with pytest.raises(UsageError, match=message):
        cluster.read({"TF_CONFIG": text})


def test_tf_config_with_a_chief_counts_it_first():
    text = {"cluster": {"chief": ["c:1"], "worker": ["a:1", "b:2"]}}
    found = cluster.read(
        {"TF_CONFIG": json.dumps({**text, "task": {"type": "worker", "index": 1}})}
    )
    assert found.workers == ("c:1", "a:1", "b:2") and found.index == 2 and not found.is_chief
    assert cluster.read({}) is None
    alone = {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}
    assert cluster.read({"TF_CONFIG": json.dumps(alone)}) is None


# A GPU that cannot be used


def test_a_driver_without_libraries_is_explained(tmp_path, monkeypatch):
    version = tmp_path / "version"
    assert gpu_info.missing_gpu(version) is None
    text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Wed\nGCC version: 12\n"
    version.write_text(text.format("470.82.01"))
    assert "driver 470.82.01 is installed, but CUDA 12 needs 525" in gpu_info.missing_gpu(version)
    version.write_text(text.format("570.10"))
    there = set(gpu_info._LIBRARIES)
    monkeypatch.setattr(gpu_info, "_opens", lambda name, folder: name in there)
    assert "check `nvidia-smi`" in gpu_info.missing_gpu(version)
    there.remove("libcudnn.so.9")
    found = gpu_info.missing_gpu(version)
    assert "libcudnn.so.9 cannot be opened: pip install 'tensorflow[and-cuda]'" in found
    there.remove("libcuda.so.1")
    assert "install the driver's user library" in gpu_info.missing_gpu(version)
