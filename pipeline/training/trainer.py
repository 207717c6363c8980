"""Trains the network of a run from its latest checkpoint to the last step."""

import dataclasses
import gc
from collections.abc import Callable, Iterable
from typing import Any

import keras

from pipeline.config import registry
from pipeline.contracts import Batches, Decision
from pipeline.runtime.environment import Machine
from pipeline.runtime.run_directory import RunDirectory
from pipeline.runtime.signals import ELSEWHERE, TIME, Stopped
from pipeline.runtime.watchdog import Watchdog
from pipeline.training import (
    autotune,
    checkpoints,
    distributed,
    recovery,
    run_callbacks,
)
from pipeline.training.callback_context import CallbackContext
from pipeline.training.callbacks.checkpoint import CheckpointCallback
from pipeline.training.callbacks.early_stopping import EarlyStopping
from pipeline.training.callbacks.metric_logger import MetricLogger
from pipeline.training.run_callbacks import RunCallbacks
from pipeline.training.run_setup import Built, RunSetup
from pipeline.utils import files, progress_bar, safe_io
from pipeline.utils.console import say
from pipeline.utils.errors import (
    Diverged,
    OutOfMemory,
    Terminated,
    UsageError,
)

# With one of these, the rate that a callback has assigned no longer counts.
_RATE_FLAGS = (
    "--train.learning-rate",
    "--train.schedule",
    "--train.schedule-options",
)
# With one of these, a run that a callback has ended continues.
_LENGTH_FLAGS = ("--train.epochs", "--train.steps", "--train.callbacks")


class Trainer:
    """Trains a network from the latest checkpoint of a run; retries after a failure.

    Args:
        setup: The batches, and how the network is built again.
        built: The network, which gets the weights of the checkpoint.
        run: The directory of the run.
        writes: False if the run must not be changed.

    Raises:
        UsageError: The run cannot be continued with these batches.
    """

    def __init__(
        self, setup: RunSetup, built: Built, run: RunDirectory, writes: bool = True
    ) -> None:
        self.setup = setup
        self.config = setup.config
        self.data = setup.data
        self.stops = setup.stops
        self.run = run
        self.built = built
        self.callbacks = RunCallbacks()
        self._writes = writes
        self.checkpoint, self.remaining = self._restore()
        self.history = self.checkpoint.history
        if self._is_forced(_RATE_FLAGS):
            # The rate that a callback has assigned.
            with self.machine.strategy.scope():
                self.model.step.update.rate.assigned.assign(-1.0)
        if self._is_forced(_LENGTH_FLAGS):
            self.checkpoint.ended = False

    @property
    def machine(self) -> Machine:
        """The `Machine` with the precision of the network."""
        return self.built.machine

    @property
    def model(self) -> Any:  # its methods of Keras have no types
        """The `SteppedModel` in training."""
        return self.built.model

    def _restore(self) -> tuple[CheckpointCallback, Batches]:
        """Restores the latest checkpoint, if there is one.

        Returns:
            The callback that writes the next ones, and the remaining training batches.
        """
        writes = self._writes and self.machine.is_chief
        saved = checkpoints.Checkpoints(self.model.state, self.run.checkpoints, writes)
        checkpoint = CheckpointCallback(
            saved,
            self._early_stopping(),
            self.setup.batches,
            self.config.train,
            self.stops,
        )
        remaining = checkpoint.resume()
        if not checkpoint.has_same_order and not self.run.changes:
            raise UsageError(
                f"{self.run}: the order of the examples has changed since the"
                " checkpoint, because the training data or the version of NumPy has"
                " changed; start again in a new --run-directory"
            )
        if self.built.attempt.factor is not None:
            self.model.step.update.factor.assign(self.built.attempt.factor)
        return checkpoint, remaining

    def _early_stopping(self) -> EarlyStopping:
        patience = self.config.train.patience
        has_validation = "validation" in self.setup.evaluation_batches
        if self.config.train.evaluate_every is None or not has_validation:
            return EarlyStopping(patience)
        metric, direction = self.data.task.target.selection_metric
        return EarlyStopping(patience, f"val_{metric}", direction)

    def _evaluate_validation(self) -> Callable[[Any], Any] | None:
        """A function from the model to its results on the validation split."""
        evaluate = self.setup.evaluate
        validation = self.setup.evaluation_batches.get("validation")
        if evaluate is None or validation is None:
            return None
        return lambda model: evaluate(model, self.data.task, validation)

    def _is_forced(self, flags: Iterable[str]) -> bool:
        """Whether `--force` has changed one of these options."""
        changed = {change.flag for change in self.run.changes}
        is_forced = not changed.isdisjoint(flags)  # only the chief has the changes
        machine = self.machine
        with (
            machine.strategy.scope(),
            distributed.translate_worker_errors(machine.cluster),
        ):
            return distributed.mean_over_workers(float(is_forced)) > 0

    def save_decisions(self) -> list[Decision]:
        """Writes the decisions so far into the run directory."""
        decisions = [*self.machine.decisions, *self.data.decisions]
        decisions += self.setup.decisions
        for change in self.run.changes:
            decisions.append(Decision("changed", str(change), "--force"))
        decisions += self.built.attempt.decisions
        for part, what in self.model.step.not_compiled.items():
            why = f"XLA cannot compile {what}"
            decisions.append(Decision("xla", f"off for {part}", why))
        entries = [dataclasses.asdict(decision) for decision in decisions]
        files.write_json(self.run.decisions, entries)
        return decisions

    def train(self, run: Any = None) -> bool:
        """Trains to the last step or until the time is up.

        If a call runs out of memory or training diverges, training continues from the
        latest checkpoint with the next attempt, if there is one.

        Args:
            run: What `on_run_begin` of the callbacks gets.

        Returns:
            Whether there was anything to train.
        """
        while True:
            try:
                return self._train(run)
            except (OutOfMemory, Diverged) as error:
                attempt = recovery.next_attempt(
                    error,
                    self.built.attempt,
                    self.config.train,
                    self.model,
                    self.machine.replicas,
                )
            machine = self.machine
            del self.built, self.checkpoint
            gc.collect()  # the next model needs their memory
            self.built = self.setup.build_again(machine, attempt)
            self.checkpoint, self.remaining = self._restore()
            self.history = self.checkpoint.history
            if self.machine.is_chief:
                self.save_decisions()
                step = self.remaining.first_step
                decision = attempt.decisions[-1]
                where = f"after step {step:,}" if step else "from the start"
                say(decision.name, f"{decision}; again {where}")

    def _train(self, run: Any) -> bool:
        config = self.config
        machine = self.machine
        checkpoint = self.checkpoint
        batches = self.remaining
        context = self._context()
        stop = self.stops.reason(distributed.mean_over_workers)
        if stop not in (None, TIME):  # requested by another thread before training
            self.stops.check()
            raise Terminated
        is_over = stop or self.has_used_time_limit()
        if checkpoint.complete or (checkpoint.step and is_over):
            # The process may have ended between writing the checkpoint and the log.
            if machine.is_chief:
                MetricLogger(context).write()
            return False
        engine = registry.load("engines", config.train.engine)
        validation = self.setup.evaluation_batches.get("validation")
        watchdog = Watchdog(config.runtime.hang_timeout, self.run.hang)
        with (
            machine.strategy.scope(),
            distributed.translate_worker_errors(machine.cluster),
            watchdog,
        ):
            _require_same_start(batches)
            callbacks = [watchdog, *run_callbacks.create(context)]
            if not config.dry_run:
                self.callbacks.begin(run, callbacks)
            self._choose_steps_per_execution(callbacks, validation, watchdog)
            progress_bar.begin("training")
            try:
                with self.stops.defer():
                    engine(self.model, batches, validation, callbacks)
            except Stopped as stopped:
                self._end_early(stopped)
            if machine.is_chief and self.model.step.not_compiled:
                self.save_decisions()
            if machine.is_chief and (why := checkpoint.why_early):
                where = f"after epoch {checkpoint.epoch}"
                say("stopped", f"{where}: {why}")
        return True

    def _choose_steps_per_execution(
        self,
        callbacks: list[keras.callbacks.Callback],
        validation: Batches | None,
        watchdog: Watchdog,
    ) -> None:
        reasons = [getattr(callback, "per_batch", None) for callback in callbacks]
        is_compiled = self.model.step.is_compiled("train")
        how = "the training step, compiled with XLA"
        progress_bar.stage("tracing", how if is_compiled else "the training step")
        with watchdog.watching():
            decision = autotune.choose_steps_per_execution(
                self.model,
                self.config.train.steps_per_execution,
                self.remaining,
                validation,
                per_batch=list(filter(None, reasons)),
            )
        if self.machine.is_chief:
            say(decision.name, decision)

    def _end_early(self, stopped: Stopped) -> None:
        """After the time limit, goes on to the test; otherwise, ends the run."""
        # The chief may still be saving.
        distributed.wait_for_workers(self.machine, self.stops)
        self.stops.check()
        if stopped.reason == ELSEWHERE:
            raise Terminated from None
        if self.machine.is_chief:
            limit = f"--runtime.time-limit {self.config.runtime.time_limit}"
            where = f"after step {self.checkpoint.step:,}"
            say("stopped", f"{where}: {limit}; a longer limit continues")

    def has_used_time_limit(self) -> bool:
        """Whether the run has ended at this step because of the same time limit."""
        try:
            result = safe_io.read_json(self.run.result)
            end = [result[name] for name in ("stopped", "steps", "time_limit")]
        except (OSError, ValueError, LookupError, TypeError):
            return False
        return end == [TIME, self.checkpoint.step, self.config.runtime.time_limit]

    def _context(self) -> CallbackContext:
        evaluated = self.data.task.test_passes
        for name, batches in self.setup.evaluation_batches.items():
            # The last epoch, the calibration and the final test each evaluate the
            # validation split.
            passes = 3 if name == "validation" else 1
            evaluated += passes * batches.batch_size * batches.last_step
        return CallbackContext(
            run=self.run,
            batches=self.remaining,
            checkpoint=self.checkpoint,
            train=self.config.train,
            log=self.config.log,
            stops=self.stops,
            time_limit=self.config.runtime.time_limit,
            exports=self.config.export.enabled,
            evaluated=evaluated,
            locate=self.data.source.location,
            is_chief=self.machine.is_chief,
            evaluate=self._evaluate_validation(),
        )

    def train_as_worker(self) -> None:
        """Trains in a worker that is not the chief and so writes nothing."""
        cluster = self.machine.cluster
        if cluster:
            number = f"{cluster.index} of {len(cluster.workers)}"
            say("worker", f"{number} trains; worker 0 prints and writes")
        self.train()
        distributed.wait_for_workers(self.machine, self.stops)


def _require_same_start(batches: Batches) -> None:
    """Raises UsageError unless all workers begin at the same step in the same order."""
    if distributed.mean_over_workers(batches.first_step) != batches.first_step:
        raise UsageError("--run-directory must be on a disk that all workers share")
    checksum = batches.order_checksum(batches.first_epoch)
    if distributed.mean_over_workers(checksum) != checksum:
        raise UsageError(
            "the workers order the examples differently; use the same data and"
            " the same version of NumPy on all of them"
        )
