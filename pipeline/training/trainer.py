"""Builds the model of a run, resumes from the latest checkpoint, and trains."""

import dataclasses
import gc
from collections.abc import Callable, Iterable
from typing import Any

import keras

from pipeline.config import registry
from pipeline.config.config import RUNS, Config
from pipeline.contracts import Batches, Decision, Task
from pipeline.data import augmentation, batching, split_names
from pipeline.data.dataset import LoadedData
from pipeline.runtime.environment import Machine
from pipeline.runtime.run_directory import RunDirectory
from pipeline.runtime.signals import ELSEWHERE, TIME, Stopped, StopSignals
from pipeline.runtime.watchdog import Watchdog
from pipeline.training import (
    autotune,
    checkpoints,
    cross_validation,
    distributed,
    recovery,
    run_callbacks,
)
from pipeline.training.callback_context import CallbackContext
from pipeline.training.callbacks.checkpoint import CheckpointCallback
from pipeline.training.callbacks.early_stopping import EarlyStopping
from pipeline.training.callbacks.metric_logger import MetricLogger
from pipeline.training.model_builder import build
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
    """Builds, resumes and trains the model of a run; retries after a failure.

    `config` is the config of the run, if it follows folds with the epochs that these
    have found; it never changes. `attempt` has what a retry changes. `evaluate` is
    `evaluation.evaluate.evaluate`, for `train.evaluate_every`.
    """

    model: keras.Model  # set by `build`
    run: RunDirectory  # set by `resume`, as are the attributes below
    checkpoint: CheckpointCallback
    remaining: Batches  # the remaining training batches

    def __init__(
        self,
        config: Config,
        machine: Machine,
        data: LoadedData,
        stops: StopSignals,
        evaluate: Callable[[Any, Task, Batches], Any] | None = None,
    ) -> None:
        # Before anything is written: importing a user's module may raise an error.
        registry.load("engines", config.train.engine)
        for name in config.train.callbacks:
            registry.load("callbacks", name)
        self.epoch_decisions: list[Decision] = []
        if "validation" not in data.splits:
            config, self.epoch_decisions = cross_validation.with_epochs_of_folds(config)
        self.config = config
        self.machine = machine
        self.data = data
        self.stops = stops
        self._evaluate = evaluate
        self.callbacks = run_callbacks.RunCallbacks()
        self.attempt = recovery.first_attempt(config, machine.replicas)
        seed = config.runtime.seed
        self.unaugmented = batching.training(data.splits["train"], config.train, seed)
        """Training batches without augmentation."""
        self.batches, self.augmentation_decisions = augmentation.apply_on_host(
            self.unaugmented, config.data, seed, data.task.target.spatial_fields
        )
        """Training batches for the engine, and where they are augmented."""
        # Evaluating `train` takes as long as a third of an epoch, so it is evaluated
        # only if it is the only split.
        available = set(data.splits)
        if not config.train.final_test:
            available.discard("test")
        names = {"validation", split_names.evaluation_split(available)}
        self.evaluation_batches = {
            name: batching.evaluation(split, config.train, machine.replicas)
            for name, split in data.splits.items()
            if name in names
        }
        """Split -> batches: `validation`, for each epoch, and the split for the final
        metrics.
        """

    def build(self) -> None:
        """Chooses the precision and builds the model.

        Uses smaller micro-batches if a trial of the precision runs out of memory.
        """
        machine = autotune.with_known_precision(self.machine, self.config)
        if machine is None:
            self._try_precisions()
            return
        self.machine = machine
        with distributed.translate_worker_errors(machine.cluster):
            self.model = self._build_model(machine)

    def _build_model(self, machine: Machine) -> keras.Model:
        progress_bar.stage("building", f"{self.config.model.name}, {machine.precision}")
        return build(
            self.data.task,
            self.config,
            machine,
            self.unaugmented,
            augment_in_step=self.batches is self.unaugmented,
            accumulate=self.attempt.accumulate,
            class_weight=self.data.class_weight,
        )

    def _try_precisions(self) -> None:
        validation = self.evaluation_batches.get("validation")
        while True:
            # The run directory, where stack traces would be written, may not exist yet.
            watchdog = Watchdog(self.config.runtime.hang_timeout, None)
            with distributed.translate_worker_errors(self.machine.cluster), watchdog:
                try:
                    self.machine, self.model = autotune.choose_precision(
                        self.machine,
                        self._build_model,
                        self.batches,
                        validation,
                        watchdog,
                    )
                    return
                except OutOfMemory as error:
                    self.attempt = recovery.with_smaller_micro_batches(
                        error, self.attempt, self.config.train, self.machine.replicas
                    )
            gc.collect()  # the next model needs the memory of this one

    def resume(self, run: RunDirectory, writes: bool = True) -> None:
        """Restores the latest checkpoint of a run, if there is one.

        `writes` is False if the run must not be changed.
        """
        is_first = not hasattr(self, "run")
        self.run = run
        writes = writes and self.machine.is_chief
        saved = checkpoints.Checkpoints(self.model.state, run.checkpoints, writes)
        early_stopping = self._early_stopping()
        self.checkpoint = CheckpointCallback(
            saved, early_stopping, self.batches, self.config.train, self.stops
        )
        self.remaining = self.checkpoint.resume()
        if not self.checkpoint.has_same_order and not run.changes:
            raise UsageError(
                f"{run}: the order of the examples has changed since the checkpoint,"
                " because the training data or the version of NumPy has changed; start"
                " again in a new --run-directory"
            )
        if is_first and self._is_forced(_RATE_FLAGS):
            # The rate that a callback has assigned.
            with self.machine.strategy.scope():
                self.model.step.update.rate.assigned.assign(-1.0)
        if is_first and self._is_forced(_LENGTH_FLAGS):
            self.checkpoint.ended = False
        if self.attempt.factor is not None:
            self.model.step.update.factor.assign(self.attempt.factor)

    def _early_stopping(self) -> EarlyStopping:
        patience = self.config.train.patience
        has_validation = "validation" in self.evaluation_batches
        if self.config.train.evaluate_every is None or not has_validation:
            return EarlyStopping(patience)
        metric, direction = self.data.task.target.selection_metric
        return EarlyStopping(patience, f"val_{metric}", direction)

    def _evaluate_validation(self) -> Callable[[Any], Any] | None:
        """A function from the model to its results on the validation split."""
        evaluate = self._evaluate
        validation = self.evaluation_batches.get("validation")
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
        decisions += [*self.augmentation_decisions, *self.epoch_decisions]
        for change in self.run.changes:
            decisions.append(Decision("changed", str(change), "--force"))
        decisions += self.attempt.decisions
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
                self.save_decisions()
                step = self.remaining.first_step
                decision = self.attempt.decisions[-1]
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
        validation = self.evaluation_batches.get("validation")
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
            reasons = [getattr(callback, "per_batch", None) for callback in callbacks]
            is_compiled = self.model.step.is_compiled("train")
            how = "the training step, compiled with XLA"
            progress_bar.stage("tracing", how if is_compiled else "the training step")
            with watchdog.watching():
                decision = autotune.choose_steps_per_execution(
                    self.model,
                    config.train.steps_per_execution,
                    batches,
                    validation,
                    per_batch=list(filter(None, reasons)),
                )
            if machine.is_chief:
                say(decision.name, decision)
            progress_bar.begin("training")
            try:
                with self.stops.defer():
                    engine(self.model, batches, validation, callbacks)
            except Stopped as stopped:
                distributed.wait_for_workers(
                    self.machine, self.stops
                )  # the chief may still be saving
                self.stops.check()
                if stopped.reason == ELSEWHERE:
                    raise Terminated from None
                if machine.is_chief:
                    limit = f"--runtime.time-limit {config.runtime.time_limit}"
                    where = f"after step {checkpoint.step:,}"
                    say("stopped", f"{where}: {limit}; a longer limit continues")
            if machine.is_chief and self.model.step.not_compiled:
                self.save_decisions()
            if machine.is_chief and (why := checkpoint.why_early):
                where = f"after epoch {checkpoint.epoch}"
                say("stopped", f"{where}: {why}")
        return True

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
        for name, batches in self.evaluation_batches.items():
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

    def run_worker(self) -> None:
        """Trains in a worker that is not the chief and so writes nothing."""
        self.resume(RunDirectory(self.config.run_directory or RUNS))
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
