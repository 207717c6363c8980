"""Callbacks that record runs in an experiment tracker: `callbacks=[MLflow()]`.

Each records the config, the metrics of every epoch and of the test, the pictures of the
run, and the verified export. Where it is recorded, and under which account, is set as
the tracker defines it, for example by `MLFLOW_TRACKING_URI` or `WANDB_MODE`.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pipeline.report.run import Run
from pipeline.runtime import environment
from pipeline.utils.errors import UsageError, needs_package

environment.import_tensorflow()

import keras  # noqa: E402

__all__ = ["MLflow", "Trackio", "WandB"]

# MLflow takes at most 100 parameters in a request.
_PARAMETERS = 100


class _Tracker(keras.callbacks.Callback):
    """What the trackers have in common.

    Between `on_run_begin` and `on_run_end`, `run` is the record of the tracker.
    """

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module
        self.run: Any = None

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Records the metrics of an epoch."""
        if self.run is not None:
            metrics = {name: float(value) for name, value in (logs or {}).items()}
            self._log(metrics, epoch + 1)

    def on_run_end(self, run: Run) -> None:
        """Records the test, the pictures and the export, and ends the record."""
        if self.run is not None:
            self._finish(run)
        self.run = None

    def _log(self, metrics: dict[str, float], epoch: int) -> None:
        raise NotImplementedError

    def _finish(self, run: Run) -> None:
        raise NotImplementedError


class MLflow(_Tracker):
    """Records a run in MLflow.

    Args:
        experiment: The experiment; None: that of `MLFLOW_EXPERIMENT_NAME`, or else
            `Default`.

    Raises:
        UsageError: The package mlflow is not installed.
    """

    def __init__(self, *, experiment: str | None = None) -> None:
        try:
            import mlflow
        except ModuleNotFoundError as error:
            raise UsageError(
                needs_package("MLflow", str(error.name), "mlflow")
            ) from None
        super().__init__(mlflow)
        self.experiment = experiment

    def on_run_begin(self, run: Run) -> None:
        """Starts a run of MLflow, inside of the active one if there is one."""
        self.run = self.module.start_run(
            experiment_id=self._experiment_id(),
            run_name=_name(run),
            nested=self.module.active_run() is not None,
        )
        values = list(_flat(run.config.as_json()).items())
        for first in range(0, len(values), _PARAMETERS):
            part = dict(values[first : first + _PARAMETERS])
            self.module.log_params(part, run_id=self._id)

    # The active run may be another one: of another callback, or of the user.
    @property
    def _id(self) -> str:
        return self.run.info.run_id

    def _experiment_id(self) -> str | None:
        # Not `set_experiment`, which would hold for all later runs of the process.
        if self.experiment is None:
            return None
        found = self.module.get_experiment_by_name(self.experiment)
        if found is None:
            return self.module.create_experiment(self.experiment)
        return found.experiment_id

    def _log(self, metrics: dict[str, float], epoch: int) -> None:
        # Asynchronously, so that the training does not wait for a server.
        self.module.log_metrics(
            _flat(metrics), step=epoch, synchronous=False, run_id=self._id
        )

    def _finish(self, run: Run) -> None:
        status = "FAILED"
        try:
            self.module.flush_async_logging()
            if run.result:
                self.module.log_metrics(_flat(_test_metrics(run)), run_id=self._id)
            for path in _pictures(run):
                self.module.log_artifact(str(path), run_id=self._id)
            if run.export is not None:
                self.module.log_artifacts(str(run.export), "export", run_id=self._id)
            status = "FINISHED" if run.result else "FAILED"
        finally:
            active = self.module.active_run()
            if active is not None and active.info.run_id == self._id:
                self.module.end_run(status)
            else:
                self.module.MlflowClient().set_terminated(self._id, status)


class WandB(_Tracker):
    """Records a run in Weights & Biases.

    Args:
        project: The project; None: that of `WANDB_PROJECT`, or else `uncategorized`.
        mode: `online`, or `offline` to record in the directory `wandb` only; None:
            that of `WANDB_MODE`.

    Raises:
        UsageError: The package wandb is not installed.
    """

    def __init__(
        self,
        *,
        project: str | None = None,
        mode: Literal["online", "offline"] | None = None,
    ) -> None:
        try:
            import wandb
        except ModuleNotFoundError as error:
            raise UsageError(needs_package("WandB", str(error.name), "wandb")) from None
        super().__init__(wandb)
        self.project = project
        self.mode: Any = mode

    def on_run_begin(self, run: Run) -> None:
        """Starts a run of W&B, beside the active one if there is one."""
        self.run = self.module.init(
            project=self.project,
            mode=self.mode,
            name=_name(run),
            config=run.config.as_json(),
            reinit="create_new",
        )

    def _log(self, metrics: dict[str, float], epoch: int) -> None:
        self.run.log(metrics, step=epoch)

    def _finish(self, run: Run) -> None:
        if run.result:
            self.run.summary.update(_test_metrics(run))
        pictures = {p.stem: self.module.Image(str(p)) for p in _pictures(run, ".png")}
        self.run.log(pictures)
        if run.export is not None:
            artifact = self.module.Artifact(run.config.name, "model")
            artifact.add_dir(str(run.export))
            self.run.log_artifact(artifact)
        self.run.finish(exit_code=0 if run.result else 1)


class Trackio(_Tracker):
    """Records a run in Trackio, on this machine or in a Space of Hugging Face.

    Args:
        project: The project.
        space: A Space such as `name/space`; None: only on this machine.

    Raises:
        UsageError: The package trackio is not installed.
    """

    def __init__(self, *, project: str = "pipeline", space: str | None = None) -> None:
        try:
            import trackio
        except ModuleNotFoundError as error:
            raise UsageError(
                needs_package("Trackio", str(error.name), "trackio")
            ) from None
        super().__init__(trackio)
        self.project = project
        self.space = space

    def on_run_begin(self, run: Run) -> None:
        """Starts a run of Trackio."""
        self.run = self.module.init(
            project=self.project,
            name=_name(run),
            space_id=self.space,
            config=run.config.as_json(),
            embed=False,
        )

    def _log(self, metrics: dict[str, float], epoch: int) -> None:
        self.run.log(metrics, step=epoch)

    def _finish(self, run: Run) -> None:
        pictures = {p.stem: self.module.Image(p) for p in _pictures(run, ".png")}
        results = {**_test_metrics(run), **pictures}
        if results:
            self.run.log(results)
        if run.export is not None:
            self.run.log_artifact(run.export, name=run.config.name, type="model")
        self.module.finish()


def _name(run: Run) -> str:
    """Such as `digits-1`, `digits-1 fold 2` or, for a trial of a sweep, `digits-1 trial
    003`.
    """
    directory = run.directory.absolute()
    part = {"folds": "fold", "trials": "trial"}.get(directory.parent.name)
    if part is None or not directory.name.isdecimal():
        return directory.name
    return f"{directory.parent.parent.name} {part} {directory.name}"


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Names with dots, as in `train.epochs`, for the options in nested mappings."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            # MLflow allows these characters only.
            flat[re.sub(r"[^\w\-. :/]", "_", f"{prefix}{name}")] = value
    return flat


def _test_metrics(run: Run) -> dict[str, float]:
    """`test_accuracy` and so on: the metrics of the final test that are numbers."""
    metrics = {}
    for name, value in run.test.items():
        if isinstance(value, int | float):
            metrics[f"{run.test_split}_{name}"] = float(value)
    return metrics


def _pictures(run: Run, *suffixes: str) -> list[Path]:
    """The pictures of a run, and without `suffixes` its report."""
    suffixes = suffixes or (".png", ".html")
    return [p for p in sorted(run.directory.iterdir()) if p.suffix in suffixes]
