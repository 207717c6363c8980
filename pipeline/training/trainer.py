"""The training of a run: builds the model, resumes from the latest checkpoint, and
trains.
"""

import contextlib
import dataclasses
import gc
import math

import keras

from pipeline.config import registry
from pipeline.config.config import RUNS, Config
from pipeline.contracts import Batches, Decision
from pipeline.data import augmentation, batching, split_names
from pipeline.data.dataset import Data
from pipeline.runtime import run_directory
from pipeline.runtime.environment import Runtime
from pipeline.runtime.run_directory import RunDirectory
from pipeline.runtime.signals import ELSEWHERE, TIME, Stopped, StopSignals
from pipeline.runtime.watchdog import Watchdog
from pipeline.training import autotune, checkpoints, distributed, recovery
from pipeline.training.callback_context import CallbackContext
from pipeline.training.callbacks.checkpoint import CheckpointCallback
from pipeline.training.callbacks.early_stopping import EarlyStopping
from pipeline.training.callbacks.metric_logger import MetricLogger
from pipeline.training.model_builder import build
from pipeline.training.preflight import AFTER_CHECKPOINT, BEFORE_CHECKPOINT
from pipeline.utils import files, progress_bar, safe_io
from pipeline.utils.console import clock, pluralize, say
from pipeline.utils.errors import (
    Diverged,
    OutOfMemory,
    Terminated,
    UsageError,
    WorkerLost,
)


class Trainer:
    """Builds, resumes and trains the model of a run; retries after a failure.

    `config` is the config of the run. What a retry changes is in `attempt`.
    """

    model: keras.Model  # set by `build`
    run: RunDirectory  # set by `resume`, as are the attributes below
    checkpoint: CheckpointCallback
    left: Batches  # the training batches that are left

    def __init__(
        self, config: Config, machine: Runtime, data: Data, stops: StopSignals
    ) -> None:
        # Before anything is written: importing a user's module may raise an error.
        registry.load("engines", config.train.engine)
        for name in config.train.callbacks:
            registry.load("callbacks", name)
        self.config, self.machine, self.data, self.stops = config, machine, data, stops
        self.attempt = recovery.first_attempt(config, machine.replicas)
        seed = config.runtime.seed
        self.plain = batching.training(data.splits["train"], config.train, seed)
        """Training batches without augmentation."""
        self.batches, self.augmentation_decisions = augmentation.apply_on_host(
            self.plain, config.data, seed
        )
        """Training batches for the engine, and where they are augmented."""
        # Not `train` if there is another split: that would take as long as a third of
        # an epoch.
        judged = split_names.judged(data.splits)
        self.evaluated = {
            name: batching.evaluation(split, config.train, machine.replicas)
            for name, split in data.splits.items()
            if name in ("validation", judged)
        }
        """Split -> batches of `validation`, after each epoch, and of the split that
        judges.
        """

    def build(self) -> None:
        """Chooses the precision and builds the model; uses smaller micro-batches if a
        trial of the precision runs out of memory.
        """
        if not self._set_precision():
            self._try_precisions()
            return
        with distributed.lost_workers(self.machine.cluster):
            self.model = self._built(self.machine)

    def _set_precision(self) -> bool:
        """Sets the precision that was requested, planned, or found by a trial at the
        start of the run; returns False if a trial must find it now.
        """
        if any(decision.name == "precision" for decision in self.machine.decisions):
            return True
        precision: str | None = self.config.runtime.precision
        reason = self.config.reasons.get("runtime.precision", "requested")
        if precision == "auto":
            precision = run_directory.decided(self.config.run_directory, "precision")
            reason = "as at the start of this run"
        if precision is None:
            return False
        machine = dataclasses.replace(self.machine, precision=precision)
        self.machine = machine.decided("precision", precision, reason)
        return True

    def _built(self, machine: Runtime) -> keras.Model:
        progress_bar.stage("building", f"{self.config.model.name}, {machine.precision}")
        in_step = self.batches is self.plain
        accumulate = self.attempt.accumulate
        task = self.data.task
        return build(task, self.config, machine, self.plain, in_step, accumulate)

    def _try_precisions(self) -> None:
        validation = self.evaluated.get("validation")
        while True:
            # The run directory, where stack traces would be written, may not exist yet.
            watchdog = Watchdog(self.config.runtime.hang_timeout, None)
            with distributed.lost_workers(self.machine.cluster), watchdog:
                try:
                    self.machine, self.model = autotune.precision(
                        self.machine, self._built, self.batches, validation, watchdog
                    )
                    return
                except OutOfMemory as error:
                    self.attempt = recovery.with_smaller_micro_batches(
                        error, self.attempt, self.config.train, self.machine.replicas
                    )
            gc.collect()  # the next model needs the memory of this one

    def resume(self, run: RunDirectory, writes: bool = True) -> None:
        """Restores the latest checkpoint of a run, if there is one; `writes` to save
        others.
        """
        is_first = not hasattr(self, "run")
        self.run = run
        writes = writes and self.machine.is_chief
        saved = checkpoints.Checkpoints(self.model.state, run.checkpoints, writes)
        early_stopping = EarlyStopping(self.config.train.patience)
        self.checkpoint = CheckpointCallback(
            saved, early_stopping, self.batches, self.config.train, self.stops
        )
        self.left = self.checkpoint.resume()
        if not self.checkpoint.has_same_order and not run.changes:
            raise UsageError(
                f"{run}: the order of the examples has changed since the checkpoint,"
                " because the training data or the version of NumPy has changed; start"
                " again in a new --run-directory"
            )
        if is_first:
            self._forget_rate()
        if self.attempt.factor is not None:
            self.model.step.update.factor.assign(self.attempt.factor)

    def _forget_rate(self) -> None:
        """Forgets the rate that a callback had set, if another one is forced by an
        option.
        """
        flags = {change.flag for change in self.run.changes}
        rates = {
            "--train.learning-rate",
            "--train.schedule",
            "--train.schedule-options",
        }
        machine = self.machine
        with machine.strategy.scope(), distributed.lost_workers(machine.cluster):
            if distributed.agreed(
                float(bool(flags & rates))
            ):  # the chief has the changes
                self.model.step.update.rate.assigned.assign(-1.0)

    def report(self) -> None:
        """Prints and saves the choices that the run begins with."""
        data = self.data
        dry = "(dry run: two steps on a few examples)"
        say(
            "run",
            f"{self.config.recipe} {dry if self.config.dry_run else f'in {self.run}'}",
        )
        counts = ", ".join(
            f"{name} {len(split):,}" for name, split in data.splits.items()
        )
        fields = ", ".join(
            f"{name} {'x'.join(map(str, spec.shape))} {spec.dtype.name}".replace(
                "  ", " "
            )
            for name, spec in data.splits["train"].store.specs.items()
            if name != "id"
        )
        say("data", f"{counts}; {fields}")
        for note in data.source.info.notes:
            say("note", note)
        for one in self._store_decisions():
            say(one.name, one)
        self._say_model()

    def _store_decisions(self) -> list[Decision]:
        """Writes the choices made so far into the run directory."""
        decisions = [*self.machine.decisions, *self.data.decisions]
        decisions += self.augmentation_decisions
        decisions += [
            Decision("changed", str(change), "--force") for change in self.run.changes
        ]
        decisions += self.attempt.decisions
        files.write_json(
            self.run.decisions, [dataclasses.asdict(one) for one in decisions]
        )
        return decisions

    def _say_model(self) -> None:
        model, batches = self.model, self.left
        trained = sum(
            math.prod(variable.shape) for variable in model.trainable_variables
        )
        line = f"{self.config.model.name}, {model.count_params():,} parameters"
        if model.frozen:
            line += f", {trained:,} of them trained, frozen: {' '.join(model.frozen)}"
        say("model", f"{line}; {model.note}" if model.note else line)
        size, each = batches.batch_size, batches.steps_per_epoch
        steps, examples = (
            pluralize(batches.last_step, "step"),
            pluralize(size, "example"),
        )
        say("training", f"{steps} of {examples}, {each:,} per epoch")
        if batches.first_step:
            say(
                "resumed",
                f"after step {batches.first_step:,}, from the newest intact checkpoint",
            )
            if self.stops.limit:
                used = f"{clock(self.stops.elapsed)} of {clock(self.stops.limit)} used"
                say("time", f"{used}; a longer --runtime.time-limit continues longer")

    def train(self) -> bool:
        """Trains to the last step or until the time is up; returns whether a step was
        left.

        If a call runs out of memory or training diverges, training continues from the
        latest checkpoint with the next attempt, if there is one.
        """
        while True:
            try:
                return self._train()
            except (OutOfMemory, Diverged) as error:
                self.attempt = recovery.next_attempt(
                    error,
                    self.attempt,
                    self.config.train,
                    self.model,
                    self.machine.replicas,
                )
            del self.model, self.checkpoint
            gc.collect()  # the next model needs their memory
            self.build()
            self.resume(self.run)
            if self.machine.is_chief:
                self._store_decisions()
                step, newest = self.left.first_step, self.attempt.decisions[-1]
                where = f"after step {step:,}" if step else "from the start"
                say(newest.name, f"{newest}; again {where}")

    def _train(self) -> bool:
        config, machine, checkpoint, batches = (
            self.config,
            self.machine,
            self.checkpoint,
            self.left,
        )
        context = self._context()
        over = self.stops.reason(distributed.agreed) or self._used_up()
        if checkpoint.complete or (checkpoint.step and over):
            if (
                machine.is_chief
            ):  # the process may have ended between checkpoint and log
                MetricLogger(context).write()
            return False
        engine = registry.load("engines", config.train.engine)
        validation = self.evaluated.get("validation")
        watchdog = Watchdog(config.runtime.hang_timeout, self.run.hang)
        with (
            machine.strategy.scope(),
            distributed.lost_workers(machine.cluster),
            watchdog,
        ):
            if distributed.agreed(batches.first_step) != batches.first_step:
                raise UsageError(
                    "--run-directory must be on a disk that all workers share"
                )
            checksum = batches.order_checksum(batches.first_epoch)
            if distributed.agreed(checksum) != checksum:
                raise UsageError(
                    "the workers order the examples differently; use the same data and"
                    " the same version of NumPy on all of them"
                )
            callbacks = [watchdog, *standard_callbacks(context)]
            reasons = [c.per_batch for c in callbacks if getattr(c, "per_batch", None)]
            progress_bar.stage("tracing", "the training step")
            with watchdog.watching():
                decision = autotune.steps_per_call(
                    self.model,
                    config.train.steps_per_call,
                    batches,
                    validation,
                    reasons,
                )
            if machine.is_chief:
                say(decision.name, decision)
            try:
                with self.stops.deferred():
                    engine(self.model, batches, validation, callbacks)
            except Stopped as stopped:
                self.wait_for_workers()  # the chief may still be saving
                self.stops.check()
                if stopped.reason == ELSEWHERE:
                    raise Terminated from None
                if machine.is_chief:
                    limit = f"--runtime.time-limit {config.runtime.time_limit}"
                    where = f"after step {checkpoint.step:,}"
                    say("stopped", f"{where}: {limit}; a longer limit continues")
        return True

    def _used_up(self) -> bool:
        """Whether the run ended at this step because of the same time limit."""
        try:
            result = safe_io.read_json(self.run.result)
            ended = [result[name] for name in ("stopped", "steps", "time_limit")]
        except (OSError, ValueError, LookupError, TypeError):
            return False
        return ended == [TIME, self.checkpoint.step, self.config.runtime.time_limit]

    def _context(self) -> CallbackContext:
        parts = self.evaluated.values()
        return CallbackContext(
            run=self.run,
            batches=self.left,
            checkpoint=self.checkpoint,
            train=self.config.train,
            log=self.config.log,
            stops=self.stops,
            time_limit=self.config.runtime.time_limit,
            exports=self.config.export.enabled,
            evaluated=sum(part.batch_size * part.last_step for part in parts),
            locate=self.data.source.location,
            is_chief=self.machine.is_chief,
        )

    def work(self) -> None:
        """Trains in a worker other than the chief, which writes, tests and exports."""
        self.resume(RunDirectory(self.config.run_directory or RUNS))
        if self.machine.cluster:
            index, count = self.machine.cluster.index, len(self.machine.cluster.workers)
            say("worker", f"{index} of {count} trains; worker 0 prints and writes")
        self.train()
        self.wait_for_workers()

    def wait_for_workers(self) -> None:
        """Waits until all workers get here: the chief has more to do, such as saving
        and testing.

        TensorFlow reports a worker that exits before the chief as crashed. The chief
        does not need the others any more: for it, a worker that is lost here has
        finished its work.
        """
        ignored = contextlib.suppress(*[WorkerLost] if self.machine.is_chief else [])
        lost = distributed.lost_workers(self.machine.cluster)
        with ignored, self.stops.at_once(), self.machine.strategy.scope(), lost:
            distributed.agreed(0.0)


def standard_callbacks(context: CallbackContext) -> list[keras.callbacks.Callback]:
    """The callbacks of every run, in order, and then those of `train.callbacks`."""
    more = context.train.callbacks
    before, after, added = (
        [
            registry.call("callbacks", name, more.get(name, {}), context)
            for name in names
        ]
        for names in (BEFORE_CHECKPOINT, AFTER_CHECKPOINT, more)
    )
    for name, callback in zip(more, added, strict=True):
        if not isinstance(callback, keras.callbacks.Callback | None):
            raise UsageError(
                f"--train.callbacks: {name} must return a callback; got {callback!r}"
            )
    checkpoint = context.checkpoint
    callbacks = [*before, checkpoint.early_stopping, checkpoint, *after, *added]
    return [callback for callback in callbacks if callback is not None]
