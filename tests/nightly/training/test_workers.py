"""Two workers, as processes of one machine, against two replicas; a lost worker."""

import time

import numpy as np
from optimizer_slots import momenta
from processes import run_python
from worker_processes import Workers

FIT = (
    "-m pipeline.fit digits --model.name tiny --train.optimizer sgd --train.engine"
    " gradient_tape"
)


def test_two_workers_are_two_replicas(tmp_path):
    """One update to 1e-5, one log, one export. The other worker prints who it is and
    waits for the chief, to which TensorFlow would otherwise report a crash.
    """
    words = f"{FIT} --train.steps 1 --data.augment --train.global-clipnorm 0.1 --train.ema 0.9".split()
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


def test_a_lost_worker_is_named_within_seconds(tmp_path):
    words = f"{FIT} --train.epochs 100000 --run-directory run --train.steps-per-execution 5".split()
    with Workers(words, tmp_path) as workers:
        workers.wait_for("\nepoch")
        workers.processes[1].kill()
        killed = time.monotonic()
        code, _, errors = workers.output(0)
    assert time.monotonic() - killed < 30
    assert code == 5, errors[-2000:]
    assert "error: worker 1 (127.0.0.1:" in errors and "resumes from its last" in errors
