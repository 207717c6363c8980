"""Recovers from failures: smaller micro-batches, a lower learning rate, a resume."""

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

LOWER = 0.5  # factor of the learning rate after a roll-back
# Down to an eighth: if training still diverges, the learning rate is not the cause.
ROLL_BACKS = 3
_NAME = "micro-batch"


@contextmanager
def catch_out_of_memory(is_training: bool) -> Iterator[None]:
    """Converts TensorFlow's out-of-memory error to OutOfMemory.

    In an evaluation, where smaller micro-batches do not help, converts it to
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
def report_interruption(config: Config, run: RunDirectory) -> Iterator[None]:
    """After Ctrl-C, a signal or a disk error, prints how to continue the run, if it has
    a checkpoint.
    """
    try:
        yield
    except BrokenPipeError:  # nothing reads the output
        raise
    except BaseException as error:
        where = ""
        if signals.behind(error) or isinstance(error, OSError):
            where = _last_checkpoint(run)
        if where and not config.dry_run:
            command = (
                f"{command_line.PROGRAM} --resume {run} (in Python,"
                f' run_directory="{run}")'
            )
            say("stopped", f"{where}; to continue: {command}")
        raise


def _last_checkpoint(run: RunDirectory) -> str:
    """Where a run, or the last of its folds, can continue; empty if it has no
    checkpoint.
    """
    if steps := run_directory.steps(run.checkpoints):
        return f"after step {steps[-1]:,}"
    folds = sorted(run.folds.glob("*"), key=lambda path: path.name.zfill(4))
    for path in reversed(folds):
        if steps := run_directory.steps(RunDirectory(path).checkpoints):
            return f"after step {steps[-1]:,} of fold {path.name}"
    return ""


@dataclasses.dataclass(frozen=True)
class Attempt:
    """What an attempt to train may change in the config of its run."""

    accumulate: int
    """Micro-batches per step of a replica; at least `train.accumulate`."""
    factor: float | None = None
    """Factor of the learning rate; None: the factor saved in the checkpoint."""
    decisions: tuple[Decision, ...] = ()
    """Decisions so far, newest last; they are printed and saved with the run."""

    def replace(self, decision: Decision, **values: Any) -> Self:
        """Returns a copy with new values, and the decision that explains them."""
        decisions = [item for item in self.decisions if item.name != decision.name]
        decisions.append(decision)
        return dataclasses.replace(self, decisions=tuple(decisions), **values)


def first_attempt(config: Config, replicas: int) -> Attempt:
    """Returns the first attempt of a process.

    It begins with the micro-batch that an earlier process of this run could fit in
    memory.
    """
    attempt = Attempt(config.train.accumulate)
    saved = run_directory.saved_decision(config.run_directory, _NAME)
    if saved is None or not saved.isdecimal():
        return attempt
    part = config.train.batch_size // replicas
    accumulate = _divisor(part, at_least=-(-part // max(1, int(saved))))
    if accumulate <= config.train.accumulate:
        return attempt
    reason = "as before: more does not fit in memory"
    decision = Decision(_NAME, str(part // accumulate), reason)
    return attempt.replace(decision, accumulate=accumulate)


def next_attempt(
    error: OutOfMemory | Diverged,
    attempt: Attempt,
    options: TrainConfig,
    model: keras.Model,
    replicas: int,
) -> Attempt:
    """Returns the next attempt after a failure; raises an error if there is none.

    `model` is in the state in which the failed attempt left it.
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
    return attempt.replace(decision, factor=factor)


def with_smaller_micro_batches(
    error: OutOfMemory, attempt: Attempt, options: TrainConfig, replicas: int
) -> Attempt:
    """Returns the next attempt after running out of memory.

    Raises UsageError if micro-batches cannot be made smaller.
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
    return attempt.replace(decision, accumulate=accumulate)


def _divisor(part: int, at_least: int) -> int:
    """Returns the smallest divisor from `at_least` on, or else `part` itself."""
    divisors = range(min(at_least, part), part + 1)
    return next(divisor for divisor in divisors if part % divisor == 0)
