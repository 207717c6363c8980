"""Trains on the workers of a Ray cluster.

    from pipeline.launch import ray

    run = ray.fit("digits", workers=2, run_directory="runs/digits-ray")

Ray Train starts the workers, tells each of them the addresses of all, and starts all of
them again after one was lost. The run then resumes from its last checkpoint.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config import python_call
from pipeline.config.config import RUNS, Config
from pipeline.config.request import Request
from pipeline.report.run import Run
from pipeline.runtime import cluster
from pipeline.training import preflight
from pipeline.utils import files, output
from pipeline.utils.errors import UsageError

__all__ = ["fit"]


def fit(
    recipe: Any = None,
    *,
    workers: int = 2,
    use_gpu: bool = False,
    resources_per_worker: Mapping[str, float] | None = None,
    storage: str | Path | None = None,
    run_config: Any = None,
    **arguments: Any,
) -> Run:
    """Trains as `pipeline.fit.fit` does, on several workers of a Ray cluster.

    The run directory, the directory of the exports, and the data must be on disks that
    all workers share. The caller, too, reads the run directory. Networks, arrays,
    functions and callbacks are sent to the workers, as far as they can be pickled.

    After Ctrl-C, or SIGTERM to the calling process, the workers save a checkpoint and
    end; the same call with the same `run_directory` continues. Workers that are killed
    cannot save: `train={"checkpoint_steps": ...}` limits what they lose.

    Args:
        recipe: As for `pipeline.fit.fit`, as are all other arguments.
        workers: Number of processes that train.
        use_gpu: Whether each of them gets a GPU.
        resources_per_worker: Resources of each of them, such as
            `{"CPU": 8, "GPU": 2}`; None: one CPU, and one GPU with `use_gpu`.
        storage: Where Ray records its own part of the run: a directory that all
            workers share; None: as in `run_config`.
        run_config: A `ray.train.RunConfig`; None: one with which a run is started again
            up to three times.

    Returns:
        The run, loaded from its directory.

    Raises:
        UsageError: The request cannot be carried out.
        ray.train.TrainingFailedError: Workers were lost more often than Ray may start
            them again, or failed for a reason that is no UsageError.
    """
    mode = output.of_options(arguments.get("log"))
    with python_call.errors_in_python(), output.using(mode):
        request = _request(recipe, arguments, workers)
        try:
            from pipeline.launch import ray_training
        except ModuleNotFoundError as error:
            raise UsageError(
                f"pipeline.launch.ray needs the package {error.name}: pip install"
                " 'ray[train]' (or install this package with its extra: '.[ray]')"
            ) from None
        request = _with_absolute_paths(request)
        scaling = {
            "num_workers": workers,
            "use_gpu": use_gpu,
            "resources_per_worker": resources_per_worker,
        }
        ray_training.train(request, scaling, storage, run_config)
        return Run.load(str(request.config.run_directory))


def _request(recipe: Any, arguments: Mapping[str, Any], workers: int) -> Request:
    """The request for all workers; UsageError if it cannot be carried out."""
    if type(workers) is not int or workers < 1:
        raise UsageError(f"workers must be a whole number from 1; got {workers!r}")
    request = python_call.request(recipe, arguments)
    if request.config.dry_run:
        raise UsageError("--dry-run needs no workers; use pipeline.fit.fit")
    if workers > 1:
        # It gets a run directory later.
        config = request.config.changed(run_directory=RUNS)
        cluster.require_supported(config, f"workers={workers}", "or set workers=1")
    preflight.check(request.config, request.planned)
    return request


def _with_absolute_paths(request: Request) -> Request:
    """The request with a run directory; Ray's workers start in a directory of Ray."""
    config: Config = request.config
    directory = config.run_directory or files.make_next(RUNS, config.name)
    return request.changed(
        run_directory=directory.absolute(),
        export={"directory": config.export.directory.absolute()},
    )
