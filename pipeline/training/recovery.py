"""What mends a run that cannot go on as it is: smaller micro-batches, a lower learning rate."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import keras
import tensorflow as tf

from pipeline.config.config import Config
from pipeline.contracts import Decision
from pipeline.models._layers import normalises_apart
from pipeline.runtime import run_directory
from pipeline.runtime.run_directory import RunDirectory
from pipeline.utils import files, safe_io
from pipeline.utils.errors import Diverged, OutOfMemory, UsageError, reason

# Three times to an eighth: what still diverges there has another fault than its learning rate.
LOWER, ROLL_BACKS = 0.5, 3
_NAME = "micro-batch"


@contextmanager
def out_of_memory(is_training: bool) -> Iterator[None]:
    """Turns what TensorFlow says of full memory during a call into OutOfMemory.

    An evaluation, which smaller micro-batches do not help, ends with a UsageError.
    """
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        if is_training:
            raise OutOfMemory(f"out of memory: {reason(error)}") from error
        raise UsageError(
            f"out of memory in an evaluation: {reason(error)}; lower --train.batch-size, of which "
            "it takes four at once"
        ) from error


@dataclasses.dataclass(frozen=True)
class Plan:
    """How the next try is made."""

    settings: Config
    """What the model is built from; its `train.accumulate` may be above the one asked for."""
    factor: float | None = None
    """Of the learning rate, in place of the checkpoint's; None: the checkpoint's."""
    decisions: tuple[Decision, ...] = ()
    """What was found, and why; to be said, and kept in the run. The newest comes last."""

    def _decided(self, decision: Decision) -> "Plan":
        others = [one for one in self.decisions if one.name != decision.name]
        return dataclasses.replace(self, decisions=(*others, decision))


def begun(config: Config, replicas: int) -> Plan:
    """The first try: with the micro-batch that an earlier process of this run has found."""
    found = run_directory.decided(config.run_directory, _NAME)
    if found is None or not found.isdecimal() or len(found) > 9:
        return Plan(config)
    part = config.train.batch_size // replicas
    pieces = _divisor(part, at_least=-(-part // max(1, int(found))))
    if pieces <= config.train.accumulate:
        return Plan(config)
    decision = Decision(_NAME, str(part // pieces), "as this run found: more need more memory")
    return Plan(config.changed(train={"accumulate": pieces}))._decided(decision)


def after(
    error: OutOfMemory | Diverged, plan: Plan, model: keras.Model | None, replicas: int
) -> Plan:
    """The next try after a fault; raises what the user is to read where there is none.

    Args:
        error: That has ended the last try.
        plan: Of the last try.
        model: As the last try has left it; None: it was out of memory before it began.
        replicas: That share each batch.
    """
    if isinstance(error, OutOfMemory):
        return _smaller(error, plan, replicas, model is not None and normalises_apart(model))
    if plan.settings.train.on_bad_steps == "stop":
        raise error
    factor = LOWER * float(model.step.update.factor.numpy())
    if factor < LOWER**ROLL_BACKS:
        raise Diverged(f"{error}; it was rolled back {ROLL_BACKS} times before") from error
    value = f"{factor:g} times the learning rate"
    decision = Decision("roll-back", value, str(error).partition(";")[0])
    return dataclasses.replace(plan, factor=factor)._decided(decision)


def _smaller(error: OutOfMemory, plan: Plan, replicas: int, normalises: bool) -> Plan:
    train = plan.settings.train
    part = train.batch_size // replicas
    size = part // train.accumulate
    if train.synchronized_batch_norm:
        raise UsageError(
            f"{error}; --train.synchronized-batch-norm allows no smaller micro-batches than the "
            f"{size} examples of a replica: lower --train.batch-size"
        ) from error
    if size == 1:
        raise UsageError(
            f"{error}; a micro-batch is one example on each replica already: take a smaller "
            "--model.name, smaller --data.image-size or a 16-bit --runtime.precision"
        ) from error
    pieces = _divisor(part, at_least=2 * train.accumulate)
    settings = plan.settings.changed(train={"accumulate": pieces})
    why = f"out of memory with {size}; {pieces} of them make each replica's part of a step"
    if normalises:
        why += "; BatchNormalization sees these smaller batches, which changes its statistics"
    return dataclasses.replace(plan, settings=settings)._decided(
        Decision(_NAME, str(part // pieces), why)
    )


def _divisor(part: int, at_least: int) -> int:
    """The smallest number of equal pieces of a part, from `at_least` on, if there are so many."""
    return next(n for n in range(min(at_least, part), part + 1) if part % n == 0)


def keep(run: RunDirectory, decisions: Sequence[Decision]) -> None:
    """Puts these into what the run has stored, in place of those of the same names."""
    try:
        stored = safe_io.read_json(run.decisions)
        names = {decision.name for decision in decisions}
        stored = [one for one in stored if one["name"] not in names]
    except (OSError, ValueError, KeyError, TypeError):
        stored = []
    files.write_json(run.decisions, [*stored, *map(dataclasses.asdict, decisions)])
