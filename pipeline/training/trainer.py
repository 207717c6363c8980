"""From a plan to a trained model: built, taken up at its newest checkpoint, watched to the end."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping

from pipeline.utils.errors import OutOfMemory, Terminated, WorkerLost, not_a_command

if __name__ == "__main__":  # before TensorFlow is imported
    not_a_command("pipeline.training.trainer is not a command: python -m pipeline.fit trains")

import keras

from pipeline.config import registry
from pipeline.config.config import Config
from pipeline.contracts import Batches, Task
from pipeline.runtime import run_directory
from pipeline.runtime.environment import Runtime
from pipeline.runtime.run_directory import RunDirectory
from pipeline.runtime.signals import ELSEWHERE, Stopped, Stops
from pipeline.runtime.watchdog import Watchdog, Watched
from pipeline.training import autotune, checkpoints, distributed, progress_report, recovery
from pipeline.training.callbacks.callbacks import standard
from pipeline.training.callbacks.checkpoint import Saver
from pipeline.training.callbacks.gradient_monitor import Guard
from pipeline.training.callbacks.metric_logger import Journal
from pipeline.training.model_builder import build
from pipeline.training.recovery import Plan


def built(
    task: Task,
    plan: Plan,
    machine: Runtime,
    plain: Batches,
    batches: Batches,
    validation: Batches | None,
) -> tuple[Runtime, keras.Model, Plan]:
    """The built model, the machine with the precision that was chosen for it, the plan it fits.

    `plain` are the batches without augmentation, `batches` those that the engine will get.
    """
    config = plan.settings

    newest: list[keras.Model] = []

    def ready(machine: Runtime) -> keras.Model:
        newest[:] = [build(task, config, machine, plain, augment_in_step=batches is plain)]
        return newest[0]

    known = ("float32", "mixed_float16", "mixed_bfloat16")
    chosen = run_directory.decided(config.run_directory, "precision", known)
    decided = any(decision.name == "precision" for decision in machine.decisions)
    if chosen and not decided:
        machine = dataclasses.replace(machine, precision=chosen)
        machine = machine.decided("precision", chosen, "as this run began")
    # The folder of the run, and with it a place for a file of stacks, may be still to come.
    watchdog = Watchdog(config.runtime.hang_timeout, None)
    with distributed.lost_workers(machine.cluster), watchdog:
        if chosen or decided:
            return machine, ready(machine), plan
        try:
            return *autotune.precision(machine, ready, batches, validation, watchdog), plan
        except OutOfMemory as error:
            model = newest.pop() if newest else None
            plan = recovery.after(error, plan, model, machine.replicas)
            del model  # before the next one needs its memory
    return built(task, plan, machine, plain, batches, validation)


def resumed(
    config: Config,
    machine: Runtime,
    model: keras.Model,
    run: RunDirectory,
    batches: Batches,
    stops: Stops,
    plan: Plan,
) -> tuple[Saver, Batches]:
    """The model at the newest checkpoint, if there is one, and the batches that are left."""
    folder = checkpoints.Checkpoints(model.state, run.checkpoints, machine.is_chief)
    saver = Saver(folder, batches, config.train, stops, distributed.agreed)
    left = saver.resume()
    folder.require_room()
    if plan.factor is not None:
        model.step.update.factor.assign(plan.factor)
    return saver, left


def trained(
    config: Config,
    machine: Runtime,
    model: keras.Model,
    run: RunDirectory,
    saver: Saver,
    batches: Batches,
    held: Mapping[str, Batches],
    locate: Callable[[int], str],
) -> bool:
    """From the first step that is left to the last, or until the time is up; whether any was."""
    if saver.complete or (saver.step and saver.stops.time_is_up(distributed.agreed)):
        if machine.is_chief:  # the process may have ended between the checkpoint and the journal
            Journal(run, batches, saver, config.log.tensorboard).write()
        return False
    engine, validation = registry.take("engines", config.train.engine), held.get("validation")
    watchdog = Watchdog(config.runtime.hang_timeout, run.hang)
    with machine.strategy.scope(), distributed.lost_workers(machine.cluster), watchdog:
        distributed.require_same(batches.first_step, "checkpoints", "--run-directory")
        with watchdog.watching():
            decision = autotune.steps_per_call(
                model, config.train.steps_per_call, batches, validation
            )
        named = run if machine.is_chief else None
        norms = saver.history.get("gradient_norm", ())
        guard = Guard(config.train, named, batches, locate, norms)
        judged = sum(part.batch_size * part.last_step for part in held.values())
        callbacks = standard(
            config, run, batches, saver, distributed.agreed, judged, machine.is_chief
        )
        if machine.is_chief:
            progress_report.decision(decision)
        try:
            with saver.stops.deferred():
                engine(model, batches, validation, [Watched(watchdog), guard, *callbacks])
        except Stopped as stopped:
            saver.stops.check()
            if stopped.reason == ELSEWHERE:
                raise Terminated from None
            if machine.is_chief:
                progress_report.time_is_up(config, saver)
    return True


def end_together(machine: Runtime, stops: Stops) -> None:
    """Waits until all workers are here; the others wait for the chief, who tests and exports.

    TensorFlow takes a worker that leaves before the chief for crashed, and says so in the chief's
    log. A worker that is lost here has done its part.
    """
    done = contextlib.suppress(WorkerLost) if machine.is_chief else stops.at_once()
    with done, machine.strategy.scope(), distributed.lost_workers(machine.cluster):
        distributed.agreed(0.0)
