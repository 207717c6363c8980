"""After a failure: a retry with smaller micro-batches or a lower learning rate, or a
resume.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import keras
import tensorflow as tf

from pipeline.config import command_line
from pipeline.config.config import Config
from pipeline.config.sections import TrainConfig
from pipeline.contracts import Decision
from pipeline.runtime import run_directory, signals
from pipeline.runtime.run_directory import RunDirectory
from pipeline.utils.console import say
from pipeline.utils.errors import Diverged, OutOfMemory, UsageError, reason

# Down to an eighth: if training still diverges, the learning rate is not the cause.
LOWER, ROLL_BACKS = 0.5, 3
_NAME = "micro-batch"


@contextmanager
def out_of_memory(is_training: bool) -> Iterator[None]:
    """Converts TensorFlow's out-of-memory error to OutOfMemory.

    In an evaluation, where smaller micro-batches do not help, converts it to a
    UsageError.
    """
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        if is_training:
            raise OutOfMemory(f"out of memory: {reason(error)}") from error
        raise UsageError(
            f"out of memory during evaluation: {reason(error)}; lower"
            " --train.batch-size: evaluation uses batches four times as large"
        ) from error


@contextmanager
def interruptible(config: Config, run: RunDirectory) -> Iterator[None]:
    """After Ctrl-C, a signal or a disk error, prints how to continue; raises the error
    again.
    """
    try:
        yield
    except BrokenPipeError:  # nothing reads the output
        raise
    except BaseException as error:
        asked = signals.behind(error) or isinstance(error, OSError)
        steps = run_directory.steps(run.checkpoints) if asked else []
        if steps and not config.dry_run:
            command = (
                f"{command_line.PROGRAM} --resume {run} (in Python,"
                f' run_directory="{run}")'
            )
            say("stopped", f"after step {steps[-1]:,}; to continue: {command}")
        raise


@dataclasses.dataclass(frozen=True)
class Attempt:
    """What an attempt to train may change about the config of its run."""

    accumulate: int
    """Micro-batches per step of a replica; at least `train.accumulate`."""
    factor: float | None = None
    """Factor of the learning rate; None: the factor saved in the checkpoint."""
    decisions: tuple[Decision, ...] = ()
    """Choices made so far, newest last; they are printed and saved with the run."""

    def changed(self, decision: Decision, **values: Any) -> Self:
        """A copy with other values, and the reason for them."""
        others = [made for made in self.decisions if made.name != decision.name]
        decisions = (*others, decision)
        return dataclasses.replace(self, decisions=decisions, **values)


def first_attempt(config: Config, replicas: int) -> Attempt:
    """Begins with the micro-batch that fitted into memory in an earlier process of this
    run.
    """
    attempt = Attempt(config.train.accumulate)
    saved = run_directory.decided(config.run_directory, _NAME)
    if saved is None or not saved.isdecimal():
        return attempt
    part = config.train.batch_size // replicas
    accumulate = _divisor(part, at_least=-(-part // max(1, int(saved))))
    if accumulate <= config.train.accumulate:
        return attempt
    reason = "as before: more does not fit in memory"
    decision = Decision(_NAME, str(part // accumulate), reason)
    return attempt.changed(decision, accumulate=accumulate)


def next_attempt(
    error: OutOfMemory | Diverged,
    attempt: Attempt,
    options: TrainConfig,
    model: keras.Model,
    replicas: int,
) -> Attempt:
    """The next attempt after a failure; raises the final error if there is none.

    The model is as the last attempt left it.
    """
    if isinstance(error, OutOfMemory):
        return with_smaller_micro_batches(error, attempt, options, replicas)
    if options.on_bad_steps == "stop":
        raise error
    factor = LOWER * float(model.step.update.factor.numpy())
    if factor < LOWER**ROLL_BACKS:
        raise Diverged(
            f"{error}; it was already rolled back {ROLL_BACKS} times"
        ) from error
    value = f"{factor:g} times the learning rate"
    decision = Decision("roll-back", value, str(error).partition(";")[0])
    return attempt.changed(decision, factor=factor)


def with_smaller_micro_batches(
    error: OutOfMemory, attempt: Attempt, options: TrainConfig, replicas: int
) -> Attempt:
    """The next attempt after running out of memory; raises UsageError if there is
    none.
    """
    part = options.batch_size // replicas
    size = part // attempt.accumulate
    if options.synchronized_batch_norm:
        raise UsageError(
            f"{error}; --train.synchronized-batch-norm does not allow micro-batches"
            f" smaller than the {size} examples of a replica: lower --train.batch-size"
        ) from error
    if size == 1:
        raise UsageError(
            f"{error}; a micro-batch is already one example on each replica: choose a"
            " smaller --model.name, a smaller --data.image-size or a 16-bit"
            " --runtime.precision"
        ) from error
    accumulate = _divisor(part, at_least=2 * attempt.accumulate)
    reason = (
        f"out of memory with {size}; each replica now runs {accumulate} micro-batches"
        " per step"
    )
    decision = Decision(_NAME, str(part // accumulate), reason)
    return attempt.changed(decision, accumulate=accumulate)


def _divisor(part: int, at_least: int) -> int:
    """The smallest divisor of `part` from `at_least` on; `part` itself if there is
    none.
    """
    return next(n for n in range(min(at_least, part), part + 1) if part % n == 0)
