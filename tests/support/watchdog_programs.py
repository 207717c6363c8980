"""Children of one process that has imported TensorFlow and done nothing: which of them
hang.
"""

import os
import sys
import threading
from pathlib import Path

import tensorflow as tf
from toy_problem import changed

from pipeline.data import batching
from pipeline.fit import fit
from pipeline.runtime import dtype_policy
from pipeline.runtime.watchdog import Watchdog


def never():
    threading.Event().wait()


def between_calls(folder):
    """Nothing runs for four times the limit, and each call ends before it."""
    with Watchdog(0.4, folder / "hang.txt") as watchdog:
        for _ in range(4):
            with watchdog.watching():
                threading.Event().wait(0.1)
            threading.Event().wait(0.5)


def in_a_call(folder):
    with Watchdog(0.4, folder / "hang.txt") as watchdog, watchdog.watching():
        never()


def in_the_data(folder, precision="float32", arithmetic=(None, "none")):
    """A function of tf.data never comes back, in the second epoch."""
    training = batching.training
    dtype_policy.fast_policy = lambda: arithmetic

    def stuck(row):
        never()
        return row

    def wait(batch, step):
        ids = batch["id"]
        held = tf.cond(
            step < 12, lambda: ids, lambda: tf.py_function(stuck, [ids], tf.int64)
        )
        return {**batch, "id": tf.ensure_shape(held, ids.shape)}

    def blocked(*arguments):
        return changed(training(*arguments), wait)

    batching.training = blocked
    fit(
        "regression_linear",
        run_directory=folder / "run",
        train={
            "epochs": 3,
            "batch_size": 32,
            "steps_per_execution": 1,
            "engine": "gradient_tape",
        },
        runtime={"hang_timeout": 6.0, "precision": precision},  # the first call traces
        export={"enabled": False},
        log={"tensorboard": False},
    )


def in_the_trial(folder):
    """The same, in the steps that choose the precision, before there is a folder of the
    run.
    """
    in_the_data(folder, "auto", ("mixed_bfloat16", "a trial"))


def main(folder):
    children = {}
    for function in (between_calls, in_a_call, in_the_data, in_the_trial):
        if not (child := os.fork()):
            own = folder / function.__name__
            own.mkdir()
            os.dup2(os.open(own / "stderr", os.O_CREAT | os.O_WRONLY), 2)
            function(own)
            os._exit(0)
        children[child] = function.__name__
    for _ in range(len(children)):
        child, status = os.wait()
        print(children[child], os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
