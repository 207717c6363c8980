"""`pipeline.launch.ray` with a local Ray: equal to two replicas, restarted, stopped."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from processes import REPOSITORY, run_python


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """What `ray_runs.py` measured, the output of each of its runs, and its directory."""
    pytest.importorskip("ray", reason="pip install 'ray[train]'")
    folder = tmp_path_factory.mktemp("ray")
    env = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    command = [sys.executable, REPOSITORY / "tests/nightly/ray_runs.py"]
    result = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=3600
    )
    output, found, results = result.stdout.partition("RESULTS ")
    assert found, output[-3000:] + result.stderr[-3000:]
    parts = re.split(r"^RUN (\w+)\n", output, flags=re.MULTILINE)
    outputs = dict(zip(parts[1::2], parts[2::2], strict=True))
    return json.loads(results), outputs, folder


def last_variables(run):
    last = max((run / "checkpoints").glob("step-*"))
    reader = tf.train.load_checkpoint(str(last / "state"))
    names = sorted(reader.get_variable_to_shape_map())
    values = [reader.get_tensor(n) for n in names if n.startswith("model/")]
    return [value for value in values if value.dtype == np.float32]


def test_two_workers_are_two_replicas(measured):
    """As far as rounding allows: the workers add gradients in another order."""
    results, _, folder = measured
    words = "digits --model.name tiny --train.optimizer sgd --train.epochs 8"
    words += " --train.engine gradient_tape --export.no-enabled --runtime.replicas 2"
    words += " --train.steps-per-execution 3 --run-directory replicas"
    result = run_python("-m", "pipeline.fit", *words.split(), cwd=folder)
    assert result.returncode == 0, result.stderr[-2000:]
    test = json.loads((folder / "replicas" / "result.json").read_text())["test"]
    assert results["test"]["loss"] == pytest.approx(test["loss"], rel=1e-5)
    pairs = zip(
        last_variables(folder / "runs" / "whole"),
        last_variables(folder / "replicas"),
        strict=True,
    )
    for one, other in pairs:
        assert np.linalg.norm(one - other) <= 1e-5 * np.linalg.norm(other)


def test_lines_appear_once_and_files_beside_the_caller(measured):
    results, outputs, folder = measured
    version = folder / "saved_models" / "digits" / "1"
    assert Path(results["export"]) == version
    assert (version / "saved_model.pb").exists()
    for line in ("starting ", "epoch 1/8", "testing ", "written ", ", verified: "):
        assert outputs["whole"].count(line) == 1, line
    assert "trains; worker 0" not in outputs["whole"]  # a line of the second worker


def test_a_killed_worker_is_started_again_and_the_run_resumes(measured):
    results, outputs, _ = measured
    assert "resumed    after step" in outputs["killed"]
    assert results["killed"] == results["whole"]


def test_a_terminated_worker_saves_and_the_run_resumes(measured):
    results, outputs, _ = measured
    (step,) = re.findall(r"stopped    after step (\d+)", outputs["terminated"])
    assert f"resumed    after step {step}," in outputs["terminated"]
    assert results["terminated"] == results["whole"]


def test_ctrl_c_saves_and_the_same_call_continues(measured):
    results, outputs, _ = measured
    # Ray forwards the lines of a worker with a delay: the last one may come later.
    said = outputs["stopped"] + outputs["again"]
    (step,) = re.findall(r"stopped    after step (\d+)", said)
    assert results["workers_left"] == 0
    assert f"resumed    after step {step}," in outputs["again"]
    assert results["stopped"] == results["whole"]


def test_an_error_of_a_worker_is_raised_without_another_attempt(measured):
    results, outputs, _ = measured
    assert results["refused"].startswith('runtime={"replicas": 2}')
    assert outputs["refused"].count("starting ") == 1
