"""A run inside Ray Train: what the caller, the controller and each worker do."""

import asyncio
import contextlib
import copy
import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
import ray.train
from ray import cloudpickle

from pipeline.config import python_call
from pipeline.config.request import Request
from pipeline.launch import ray_backend
from pipeline.runtime.signals import StopSignals
from pipeline.utils import output
from pipeline.utils.errors import Terminated, UsageError, WorkerLost, reason

_RESTARTS = 3
_POLL = 0.2  # seconds between two looks for signals


class _Messages:
    """An actor between the caller, the controller and the workers of a run."""

    def __init__(self) -> None:
        self._stop = asyncio.Event()
        self._error: UsageError | None = None

    async def stop(self) -> None:
        """Asks the workers to save and end."""
        self._stop.set()

    async def wait_for_stop(self) -> None:
        await self._stop.wait()

    async def is_final(self) -> bool:
        """Whether the workers must not be started again."""
        return self._stop.is_set() or self._error is not None

    async def fail(self, error: UsageError) -> None:
        """Records an error that another attempt would meet again."""
        self._error = self._error or error

    async def error(self) -> UsageError | None:
        return self._error


class _Final(Exception):
    """Raised in the controller so that it does not start the workers again."""


class _EndAttempts(ray.train.UserCallback):
    """Ends Ray's run after an error of the user, and when the caller wants to stop."""

    def __init__(self, messages: Any) -> None:
        self._messages = messages

    def after_exception(
        self, run_context: Any, worker_exceptions: Mapping[int, Exception]
    ) -> None:
        # Ray starts the workers again after any exception of a worker, but not after
        # one of a callback.
        if ray.get(self._messages.is_final.remote()):
            raise _Final


def train(
    request: Request,
    scaling: Mapping[str, Any],
    storage: str | Path | None,
    run_config: ray.train.RunConfig | None,
) -> None:
    """Carries out a request on Ray's workers.

    Raises UsageError, `Terminated` and KeyboardInterrupt as `pipeline.fit.run` does.
    """
    try:
        pickled = cloudpickle.dumps(request)
    except Exception as error:
        raise UsageError(
            f"an argument cannot be sent to the workers: {reason(error)}; give a path,"
            " arrays, or a function that creates it"
        ) from None
    # Ray 2.60 prints each line of `print` twice if it sends it to its log.
    os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")
    if not ray.is_initialized():
        ray.init()
    messages = ray.remote(num_cpus=0)(_Messages).remote()
    trainer = ray_backend.DataParallelTrainer(
        _work,
        train_loop_config={
            "request": pickled,
            "directory": os.getcwd(),
            "messages": messages,
        },
        backend_config=ray_backend.Addresses(),
        scaling_config=ray.train.ScalingConfig(**scaling),
        run_config=_run_config(run_config, storage, messages),
    )
    errors: list[BaseException] = []
    # In the main thread, Ray would end the workers on Ctrl-C before they can save.
    stops = StopSignals()
    with stops.listening(), stops.defer():
        thread = _start(_fit, trainer, errors)
        while thread.is_alive() and not stops.reason():
            thread.join(_POLL)
        if thread.is_alive():
            messages.stop.remote()
        thread.join()
    if errors:
        raise ray.get(messages.error.remote()) or errors[0]


def _fit(trainer: Any, errors: list[BaseException]) -> None:
    try:
        trainer.fit()
    except BaseException as error:
        errors.append(error)


def _run_config(
    given: ray.train.RunConfig | None, storage: str | Path | None, messages: Any
) -> ray.train.RunConfig:
    failures = ray.train.FailureConfig(max_failures=_RESTARTS)
    config = copy.copy(given) or ray.train.RunConfig(failure_config=failures)
    if storage is not None:
        config.storage_path = str(storage)
    config.callbacks = [*(config.callbacks or ()), _EndAttempts(messages)]
    return config


def _work(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What each worker does; returns and reports the metrics of the run."""
    with contextlib.suppress(OSError):  # it need not exist on every machine
        os.chdir(settings["directory"])
    request = cloudpickle.loads(settings["request"])
    messages = settings["messages"]
    context = ray.train.get_context()
    is_chief = context.get_world_rank() == 0
    stops = StopSignals(request.config.runtime.time_limit)
    if is_chief:  # all workers stop when one does
        _start(_watch_caller, messages, stops)
        if context.get_world_size() > 1:
            _start(_watch_workers, stops)
    from pipeline import fit  # a command, whose `run` is the one of all launchers

    mode: output.Mode = "text" if is_chief else "quiet"
    with python_call.errors_in_python(), output.using(mode):
        try:
            run = fit.run(request, stops)
        except UsageError as error:
            if not isinstance(error, WorkerLost):
                ray.get(messages.fail.remote(error))
            raise
        except (Terminated, KeyboardInterrupt):
            raise _Stopped from None
    metrics = _metrics(run)
    ray.train.report(metrics)
    return metrics


class _Stopped(Exception):
    """Raised in a worker that was told to stop and has saved."""


def _start(function: Any, *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def _watch_caller(messages: Any, stops: StopSignals) -> None:
    """Stops training when the caller wants to stop."""
    ray.get(messages.wait_for_stop.remote())
    stops.request(signal.SIGTERM)


def _watch_workers(stops: StopSignals) -> None:
    """Stops training after SIGTERM to any worker.

    TensorFlow takes the signal as soon as the workers are connected, and writes this
    key on all of them. Ray then starts the workers again.
    """
    # Before the workers are connected, the question would keep them from it.
    while not stops.has_begun:
        time.sleep(_POLL)
    from tensorflow.python.eager import context

    context.context().get_config_key_value("TF_DEFAULT_PREEMPTION_NOTICE_KEY")
    stops.request(signal.SIGTERM)


def _metrics(run: Any) -> dict[str, Any]:
    """The metrics of the last epoch, and of the final test as `test_accuracy`."""
    metrics = {name: values[-1] for name, values in run.history.items()}
    for name, value in run.test.items():
        if isinstance(value, int | float):
            metrics[f"{run.test_split}_{name}"] = float(value)
    return metrics
