"""What a run trains with: its data in batches, and its network in a precision."""

import dataclasses
import functools
import gc
from collections.abc import Callable
from typing import Any

from pipeline.config import registry
from pipeline.config.config import Config
from pipeline.contracts import Batches, Decision, Task
from pipeline.data import augmentation, batching, split_names
from pipeline.data.dataset import LoadedData
from pipeline.runtime.environment import Machine
from pipeline.runtime.signals import StopSignals
from pipeline.runtime.watchdog import Watchdog
from pipeline.training import (
    autotune,
    cross_validation,
    distributed,
    model_builder,
    recovery,
)
from pipeline.training.recovery import Attempt
from pipeline.training.train_step import SteppedModel
from pipeline.utils import progress_bar
from pipeline.utils.errors import OutOfMemory


@dataclasses.dataclass(frozen=True)
class Built:
    """A network that is ready for an engine."""

    machine: Machine
    """The machine with the precision of the network."""
    model: SteppedModel
    attempt: Attempt


class RunSetup:
    """The data of a run in batches, from which its network can be built.

    `config` is the config of the run, if it follows folds with the epochs that these
    have found; it never changes. `evaluate` is `evaluation.evaluate.evaluate`, for
    `train.evaluate_every`.
    """

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
        epoch_decisions: list[Decision] = []
        if "validation" not in data.splits:
            config, epoch_decisions = cross_validation.with_epochs_of_folds(config)
        self.config = config
        self.machine = machine
        self.data = data
        self.stops = stops
        self.evaluate = evaluate
        seed = config.runtime.seed
        self.unaugmented = batching.training(data.splits["train"], config.train, seed)
        """Training batches without augmentation."""
        self.batches, augmentation_decisions = augmentation.apply_on_host(
            self.unaugmented, config.data, seed, data.task.target.spatial_fields
        )
        """Training batches for the engine."""
        self.decisions = [*augmentation_decisions, *epoch_decisions]
        """Where the batches are augmented, and the epochs that folds have found."""
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

    def build(self) -> Built:
        """Chooses the precision and builds the network.

        Uses smaller micro-batches if a trial of the precision runs out of memory.
        """
        attempt = recovery.first_attempt(self.config, self.machine.replicas)
        machine = autotune.with_known_precision(self.machine, self.config)
        if machine is None:
            return self._try_precisions(attempt)
        return self.build_again(machine, attempt)

    def build_again(self, machine: Machine, attempt: Attempt) -> Built:
        """Builds the network in the precision of `machine`, for another attempt."""
        with distributed.translate_worker_errors(machine.cluster):
            return Built(machine, self._build(attempt, machine), attempt)

    def _build(self, attempt: Attempt, machine: Machine) -> SteppedModel:
        progress_bar.stage("building", f"{self.config.model.name}, {machine.precision}")
        return model_builder.build(
            self.data.task,
            self.config,
            machine,
            self.unaugmented,
            augment_in_step=self.batches is self.unaugmented,
            accumulate=attempt.accumulate,
            class_weight=self.data.class_weight,
        )

    def _try_precisions(self, attempt: Attempt) -> Built:
        validation = self.evaluation_batches.get("validation")
        while True:
            # The run directory, where stack traces would be written, may not exist yet.
            watchdog = Watchdog(self.config.runtime.hang_timeout, None)
            with distributed.translate_worker_errors(self.machine.cluster), watchdog:
                try:
                    machine, model = autotune.choose_precision(
                        self.machine,
                        functools.partial(self._build, attempt),
                        self.batches,
                        validation,
                        watchdog,
                    )
                    return Built(machine, model, attempt)
                except OutOfMemory as error:
                    attempt = recovery.with_smaller_micro_batches(
                        error, attempt, self.config.train, self.machine.replicas
                    )
            gc.collect()  # the next model needs the memory of this one
