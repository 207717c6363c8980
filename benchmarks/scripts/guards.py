"""Measures the time that the guards against bad steps add to a training step.

    python benchmarks/scripts/guards.py

`convnet` on images of 8x8x1 (digits) and 32x32x3, batch 32, one thread.

Whole runs with and without guards differ by less than two identical runs do, so the
added operations are timed separately, by CPU time, alternating with the step.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.config import command_line, registry
from pipeline.data import batching, example_store, splits
from pipeline.runtime import environment
from pipeline.training import checkpoints, distributed
from pipeline.training.model_builder import build

REPEATED, ROUNDS, STEPS = 1000, 10, 20


def main() -> None:
    """Prints the medians for both image sizes."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    settings = command_line.recipe("digits").changed(
        train={"epochs": 1000}, data={"augment": {}}
    )
    machine = environment.start(settings.runtime)
    for shape in ((8, 8, 1), (32, 32, 3)):
        measure(settings, machine, shape)


def measure(settings: Any, machine: Any, shape: tuple[int, int, int]) -> None:
    """Times, for one image size, the step and its gradient check without and with
    guards.
    """
    model, batches = prepared(settings, machine, shape)
    calls = distributed.StepFunction(model, "train", batches)
    calls.begin(batches.epochs - 1)
    gradients = [
        tf.random.normal(variable.shape) for variable in model.trainable_variables
    ]
    plain, guarded = repeated(model, gradients, False), repeated(model, gradients, True)
    timed = {
        "step": lambda: cpu_seconds(lambda: calls()["loss"].numpy(), STEPS),
        "plain": lambda: cpu_seconds(lambda: plain().numpy(), REPEATED),
        "guarded": lambda: cpu_seconds(lambda: guarded().numpy(), REPEATED),
    }
    for one in timed.values():  # traces
        one()
    rows = [{name: one() for name, one in timed.items()} for _ in range(ROUNDS)]
    step = statistics.median(row["step"] for row in rows)
    added = statistics.median(row["guarded"] - row["plain"] for row in rows)
    variables = [variable for group in model.state.values() for variable in group]
    check = cpu_seconds(lambda: checkpoints.require_finite(variables, 1), 1)
    print(
        f"{'x'.join(map(str, shape))}: step {1e3 * step:.1f} ms, guards add"
        f" {1e6 * added:.0f} us, {added / step:.2%}; check before a save"
        f" {1e3 * check:.0f} ms"
    )


def prepared(
    settings: Any, machine: Any, shape: tuple[int, int, int]
) -> tuple[Any, Any]:
    """Returns (model, batches) with random images."""
    generator, count = np.random.default_rng(0), 640
    metadata = {"class_names": [str(n) for n in range(10)], "image_shape": list(shape)}
    columns = {
        "id": tf.range(count, dtype=tf.int64),
        "image": tf.constant(generator.integers(0, 256, (count, *shape), np.uint8)),
        "label": tf.constant(generator.integers(0, 10, count)),
    }
    split = splits.Split(example_store.MemoryStore(columns), np.arange(count))
    batches = batching.training(split, settings.train, 0)
    model = build(
        registry.load("tasks", "image_classification")(metadata),
        settings,
        machine,
        batches,
    )
    step: Any = model.step
    step.set_inputs(batches, None)
    model.steps_per_execution = STEPS
    return model, batches


def repeated(
    model: Any, gradients: list[tf.Tensor], guarded: bool
) -> Callable[[], tf.Tensor]:
    """Returns a function that checks a gradient many times; guarded: also loss,
    metrics, counts.
    """
    update = model.step.update

    def body(done: tf.Tensor, some: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        moved = [gradient + some for gradient in gradients]
        if not guarded:
            finite_now = tf.math.is_finite(tf.linalg.global_norm(moved))
            return done + 1, some + tf.where(finite_now, 1e-9, 0.0)
        saved = [tf.identity(variable.value) for variable in update.metric_variables]
        halves = tf.stack([tf.nn.l2_loss(gradient) for gradient in moved])
        norm = tf.sqrt(2.0 * tf.reduce_sum(halves))
        loss = tf.reduce_sum((tf.ones([32]) + some) * tf.ones([32])) / 32
        for variable in model.step.metrics[
            0
        ].variables:  # forces the saved values to be copies
            variable.value.assign_add(some)
        update.step_stats.record_good_step(norm, halves, model.trainable_variables)
        with tf.control_dependencies(saved):
            finite_now = tf.math.is_finite(loss) & tf.math.is_finite(norm)
            return done + 1, some + tf.where(finite_now, 1e-9, 0.0)

    def loop() -> tf.Tensor:
        start = (tf.constant(0), tf.constant(0.0))
        return tf.while_loop(
            lambda done, _: done < REPEATED, body, start, parallel_iterations=1
        )[1]

    return tf.function(loop, autograph=False)


def cpu_seconds(call: Callable[[], Any], count: int) -> float:
    """Returns the CPU time of a call, in seconds, divided by `count`."""
    start = time.process_time()
    call()
    return (time.process_time() - start) / count


if __name__ == "__main__":
    main()
