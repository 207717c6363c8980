"""After a failure: a retry with smaller micro-batches or a lower learning rate, or a
resume.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import keras
import tensorflow as tf

from pipeline.config import command_line
from pipeline.config.config import Config
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
class Plan:
    """The settings of one attempt to train."""

    settings: Config
    """What the model is built from; `train.accumulate` may be higher than requested."""
    factor: float | None = None
    """Factor of the learning rate; None: the factor saved in the checkpoint."""
    decisions: tuple[Decision, ...] = ()
    """Choices made so far, newest last; they are printed and saved with the run."""

    def _decided(self, decision: Decision) -> "Plan":
        others = [one for one in self.decisions if one.name != decision.name]
        return dataclasses.replace(self, decisions=(*others, decision))


def begun(config: Config, replicas: int) -> Plan:
    """The first attempt, with the micro-batch that an earlier process of this run
    found.
    """
    found = run_directory.decided(config.run_directory, _NAME)
    if found is None or not found.isdecimal():
        return Plan(config)
    part = config.train.batch_size // replicas
    pieces = _divisor(part, at_least=-(-part // max(1, int(found))))
    if pieces <= config.train.accumulate:
        return Plan(config)
    decision = Decision(
        _NAME, str(part // pieces), "as before: more does not fit in memory"
    )
    return Plan(config.changed(train={"accumulate": pieces}))._decided(decision)


def after(
    error: OutOfMemory | Diverged, plan: Plan, model: keras.Model, replicas: int
) -> Plan:
    """The next attempt after a failure; raises the final error if there is none.

    The model is as the last attempt, with this plan, left it.
    """
    if isinstance(error, OutOfMemory):
        return smaller(error, plan, replicas)
    if plan.settings.train.on_bad_steps == "stop":
        raise error
    factor = LOWER * float(model.step.update.factor.numpy())
    if factor < LOWER**ROLL_BACKS:
        raise Diverged(
            f"{error}; it was already rolled back {ROLL_BACKS} times"
        ) from error
    value = f"{factor:g} times the learning rate"
    decision = Decision("roll-back", value, str(error).partition(";")[0])
    return dataclasses.replace(plan, factor=factor)._decided(decision)


def smaller(error: OutOfMemory, plan: Plan, replicas: int) -> Plan:
    """The next attempt, with smaller micro-batches; raises UsageError if there are
    none.
    """
    train = plan.settings.train
    part = train.batch_size // replicas
    size = part // train.accumulate
    if train.synchronized_batch_norm:
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
    pieces = _divisor(part, at_least=2 * train.accumulate)
    settings = plan.settings.changed(train={"accumulate": pieces})
    why = (
        f"out of memory with {size}; each replica now runs {pieces} micro-batches per"
        " step"
    )
    decision = Decision(_NAME, str(part // pieces), why)
    return dataclasses.replace(plan, settings=settings)._decided(decision)


def _divisor(part: int, at_least: int) -> int:
    """The smallest divisor of `part` from `at_least` on; `part` itself if there is
    none.
    """
    return next(n for n in range(min(at_least, part), part + 1) if part % n == 0)
