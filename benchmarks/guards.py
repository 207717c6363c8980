"""What the guards add to a training step: their operations beside the step, in turns.

    python benchmarks/guards.py    # 8x8x1 (digits) and 32x32x3, `convnet`, batch 32, one thread

A whole run with and without guards differs by less than it differs from itself, so the added
operations are timed alone, by processor time.
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
from pipeline.training.optim.gradient_update import _norm

REPEATED, ROUNDS, STEPS = 1000, 10, 20


def main() -> None:
    """Prints medians for both sizes."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    settings = command_line.recipe("digits").changed(train={"epochs": 1000}, data={"augment": {}})
    machine = environment.start(settings.runtime)
    for shape in ((8, 8, 1), (32, 32, 3)):
        measure(settings, machine, shape)


def measure(settings: Any, machine: Any, shape: tuple[int, int, int]) -> None:
    """One size of image: the step, what stood there before, what stands there now."""
    model, batches = prepared(settings, machine, shape)
    calls, tickets = distributed.Calls(model, "train", batches), iter(distributed.tickets(batches))
    calls.begin(batches.epochs - 1)
    gradients = [tf.random.normal(variable.shape) for variable in model.trainable_variables]
    plain, guarded = repeated(model, gradients, False), repeated(model, gradients, True)
    timed = {
        "step": lambda: processor(lambda: calls(tickets)["loss"].numpy(), STEPS),
        "plain": lambda: processor(lambda: plain().numpy(), REPEATED),
        "guarded": lambda: processor(lambda: guarded().numpy(), REPEATED),
    }
    for one in timed.values():  # traces
        one()
    rows = [{name: one() for name, one in timed.items()} for _ in range(ROUNDS)]
    step = statistics.median(row["step"] for row in rows)
    added = statistics.median(row["guarded"] - row["plain"] for row in rows)
    held = [variable for group in model.state.values() for variable in group]
    look = processor(lambda: checkpoints.require_finite(held, 1), 1)
    print(
        f"{'x'.join(map(str, shape))}: step {1e3 * step:.1f} ms, guards add {1e6 * added:.0f} us, "
        f"{added / step:.2%}; before a save {1e3 * look:.0f} ms"
    )


def prepared(settings: Any, machine: Any, shape: tuple[int, int, int]) -> tuple[Any, Any]:
    """(model, batches) on random images."""
    generator, count = np.random.default_rng(0), 640
    metadata = {"class_names": [str(n) for n in range(10)], "image_shape": list(shape)}
    columns = {
        "id": tf.range(count, dtype=tf.int64),
        "image": tf.constant(generator.integers(0, 256, (count, *shape), np.uint8)),
        "label": tf.constant(generator.integers(0, 10, count)),
    }
    split = splits.Split(example_store.Memory(columns), np.arange(count))
    batches = batching.training(split, settings.train, 0)
    model = build(
        registry.load("tasks", "image_classification")(metadata), settings, machine, batches
    )
    model.step.set_inputs(batches, None)
    model.steps_per_execution = STEPS
    return model, batches


def repeated(model: Any, gradients: list[tf.Tensor], guarded: bool) -> Callable[[], tf.Tensor]:
    """The judgement of a gradient many times over; guarded: with loss, metrics and tally, too."""
    update = model.step.update

    def body(done: tf.Tensor, some: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        moved = [gradient + some for gradient in gradients]
        if not guarded:
            finite_now = tf.math.is_finite(tf.linalg.global_norm(moved))
            return done + 1, some + tf.where(finite_now, 1e-9, 0.0)
        held = [tf.identity(variable.value) for variable in update.measures]
        norm, halves = _norm(moved)
        loss = tf.reduce_sum((tf.ones([32]) + some) * tf.ones([32])) / 32
        for variable in model.step.metrics[0].variables:  # so that what is held must be a copy
            variable.value.assign_add(some)
        update.tally.good(norm, halves, model.trainable_variables)
        with tf.control_dependencies(held):
            finite_now = tf.math.is_finite(loss) & tf.math.is_finite(norm)
            return done + 1, some + tf.where(finite_now, 1e-9, 0.0)

    def loop() -> tf.Tensor:
        start = (tf.constant(0), tf.constant(0.0))
        return tf.while_loop(lambda done, _: done < REPEATED, body, start, parallel_iterations=1)[1]

    return tf.function(loop, autograph=False)


def processor(call: Callable[[], Any], count: int) -> float:
    """Seconds of processor time of one of the `count` things that a call does."""
    start = time.process_time()
    call()
    return (time.process_time() - start) / count


if __name__ == "__main__":
    main()
