"""Training with several tasks of a real Slurm, which these tests start and stop."""

import json
import os
import re
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from optimizer_slots import momenta
from processes import REPOSITORY, run_python
from recorded_workers import WORDS

from pipeline.runtime.cpu_info import cores
from tests.nightly.fault_injection import reference
from tests.nightly.slurm import cluster

pytestmark = [
    pytest.mark.skipif(bool(cluster.missing()), reason=cluster.missing()),
]
# One step, whose update can be read from the momentum.
_STEP = """digits --model.name tiny --train.optimizer sgd --train.steps 1 --data.augment
    --train.optimizer-options momentum=0.9 --train.global-clipnorm 0.1"""
STEP = _STEP.split()
EXAMPLE = REPOSITORY / "docs/examples/train.sbatch"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with cluster.Slurm(tmp_path_factory.mktemp("slurm"), nodes=2) as running:
        yield running


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A directory with the command `pipeline` of this clone."""
    folder = tmp_path_factory.mktemp("bin")
    path = folder / "pipeline"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -m pipeline "$@"\n')
    path.chmod(0o755)
    return folder


@pytest.fixture
def srun(slurm, program, tmp_path):
    """Runs `srun` with words; returns its process with its output."""

    def run(*words):
        return subprocess.run(
            ["srun", *map(str, words)],
            cwd=tmp_path,
            env=environment(slurm, program),
            capture_output=True,
            text=True,
            timeout=600,
        )

    return run


def environment(slurm, program):
    return {
        **slurm.environment,
        "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY}/tests/support",
        "PATH": f"{program}:{os.environ['PATH']}",
    }


def wait_for(condition, seconds=300):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it does not happen"
        threading.Event().wait(0.1)
    return found


class Job:
    """A job of the example script."""

    def __init__(self, slurm, program, folder, *words, options=()):
        self._slurm = slurm
        self.output = folder / "train.log"
        result = subprocess.run(
            # Two tasks on one node; see above.
            [
                "sbatch",
                "--parsable",
                "-N1",
                "--ntasks-per-node=2",
                *options,
                EXAMPLE,
                *words,
            ],
            cwd=folder,
            env=environment(slurm, program),
            capture_output=True,
            text=True,
        )
        self.number = result.stdout.strip()
        assert self.number.isdecimal(), result.stderr

    def text(self):
        return self.output.read_text() if self.output.exists() else ""

    def state(self):
        return self._field("JobState")

    def restarts(self):
        return int(self._field("Restarts"))

    def _field(self, name):
        text = self._slurm.ask("scontrol", "show", "job", self.number)
        return re.search(rf"\b{name}=(\S+)", text)[1]


def test_two_tasks_are_two_replicas(srun, tmp_path):
    """On one node: TensorFlow's servers of two imitated nodes would use one port."""
    words = [*STEP, "--export.no-enabled"]
    both = ["fit", *words, "--run-directory", "run"]
    result = srun("-N1", "-n2", "pipeline", *both)
    assert result.returncode == 0, result.stderr[-2000:]
    assert "2 workers, 2 replicas" in result.stdout
    assert "SLURM_STEP_NUM_TASKS; this is worker 0 (127.0.0.2:" in result.stdout
    one = run_python(
        *("-m", "pipeline.fit", *words, "--train.engine", "gradient_tape"),
        *("--run-directory", "one", "--runtime.replicas", "2"),
        cwd=tmp_path,
    )
    assert one.returncode == 0, one.stderr[-2000:]
    updates = [
        momenta(tmp_path / name / "checkpoints/step-00000001")
        for name in ("run", "one")
    ]
    for own, other in zip(*updates, strict=True):
        assert np.linalg.norm(own - other) <= 1e-5 * np.linalg.norm(other)
    results = [
        json.loads((tmp_path / name / "result.json").read_text())["test"]
        for name in ("run", "one")
    ]
    for name in ("loss", "accuracy"):
        assert results[0][name] == pytest.approx(results[1][name], rel=1e-4)


def test_one_task_is_no_cluster(srun):
    result = srun("-n1", "pipeline", "fit", *STEP, "--dry-run", "--export.no-enabled")
    assert result.returncode == 0, result.stderr[-2000:]
    assert "workers" not in result.stdout


def test_tasks_that_are_not_in_the_order_of_the_nodes_are_refused(srun):
    """All of them at once, rather than after some have waited for the others."""
    words = [*STEP, "--run-directory", "run"]
    result = srun("-N2", "-n4", "--distribution=cyclic", "pipeline", "fit", *words)
    assert result.returncode == 2
    lines = [line for line in result.stderr.splitlines() if line[:4] != "srun"]
    assert len(lines) == 4
    assert all("use srun --distribution=block" in line for line in lines)


def test_tasks_that_do_not_share_the_run_directory_are_refused(srun, tmp_path):
    for number in (0, 1):
        (tmp_path / str(number)).mkdir()
    command = 'cd $SLURM_PROCID && exec pipeline fit "$@"'
    words = [*STEP, "--run-directory", "run"]
    result = srun("-n2", "bash", "-c", command, "-", *words)
    assert result.returncode == 2
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 2
    assert all("a disk that all workers share" in line for line in lines)


@pytest.mark.parametrize("how", ["requeue", "scancel"])
def test_a_job_that_is_stopped_is_requeued_and_ends_as_if_it_had_not(
    slurm, program, tmp_path, undisturbed, how
):
    """By a preemption, which is a requeue, or by SIGTERM to its tasks."""
    words = [word for word in WORDS if word not in ("--run-directory", "run")]
    job = Job(slurm, program, tmp_path, *words)
    run = tmp_path / "runs/train"
    wait_for(lambda: reference.newest_of(run) > 0)
    if how == "requeue":
        slurm.ask("scontrol", "requeue", job.number)
    else:
        slurm.ask("scancel", "--signal=TERM", job.number)
    wait_for(lambda: job.restarts() == 1 and job.state() == "PENDING")
    assert "stopped    after step " in job.text(), job.text()[-2000:]
    wait_for(lambda: job.state() in ("COMPLETED", "FAILED"))
    assert job.state() == "COMPLETED", job.text()[-2000:]
    assert "resumed    after step " in job.text()
    assert reference.differences(undisturbed, reference.evidence(run)) == []


def test_a_job_is_stopped_before_its_time_limit_and_requeued(slurm, program, tmp_path):
    words = [*STEP, "--train.steps", "1000000", "--train.epochs", "100000"]
    options = ("--time=4", "--signal=TERM@60")
    job = Job(slurm, program, tmp_path, *words, "--log.no-progress", options=options)
    wait_for(lambda: job.restarts() == 1 and job.state() == "PENDING")
    slurm.ask("scancel", job.number)
    assert "stopped    after step " in job.text(), job.text()[-2000:]
    assert "TIME LIMIT" not in job.text()


def test_a_task_that_is_killed_ends_the_others(slurm, program, tmp_path):
    words = [*STEP, "--train.steps", "1000000", "--train.epochs", "100000"]
    words += ["--run-directory", "run"]
    command = 'echo $$ > $SLURM_PROCID; exec "$@"'
    with subprocess.Popen(
        ["srun", "-n2", "bash", "-c", command, "-", "pipeline", "fit", *words],
        cwd=tmp_path,
        env=environment(slurm, program),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        output = []
        for line in process.stdout:
            output.append(line)
            if line.startswith("epoch"):
                break
        os.kill(int((tmp_path / "1").read_text()), 9)
        killed = time.monotonic()
        output += process.stdout
        code = process.wait()
    assert time.monotonic() - killed < 30 * max(1.0, os.getloadavg()[0] / cores())
    text = "".join(output)
    assert code == 137, text[-2000:]
    assert "error: worker 1 (127.0.0." in text and "Exited with exit code 5" in text


def test_srun_starts_soon(slurm, program, tmp_path):
    """Seconds that `srun` takes beyond two processes: of a command that does not train,
    because the time of training varies by more.
    """

    def seconds(commands):
        start = time.monotonic()
        processes = [
            subprocess.Popen(
                [*command, "pipeline", "--help"],
                cwd=tmp_path,
                env=environment(slurm, program),
                stdout=subprocess.DEVNULL,
            )
            for command in commands
        ]
        assert [process.wait(60) for process in processes] == [0] * len(commands)
        return time.monotonic() - start

    beyond = []
    for _ in range(3):
        plain = seconds([[], []])
        beyond.append(seconds([["srun", "-n2"]]) - plain)
        print(f"two processes {plain:.2f} s, srun {beyond[-1]:+.2f} s")
    assert sorted(beyond)[1] < 2 * max(1.0, os.getloadavg()[0] / cores())
