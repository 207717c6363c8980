"""The end of a run: test, export and verification of what was trained."""

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from pipeline.config.config import Config
from pipeline.contracts import Batches
from pipeline.data.dataset import Data
from pipeline.evaluation import evaluate
from pipeline.export import run_report, run_result
from pipeline.export.savedmodel import export
from pipeline.export.verification import Check, Verification
from pipeline.runtime import run_directory
from pipeline.runtime.run_directory import RunDirectory
from pipeline.runtime.signals import TIME
from pipeline.training import progress_report
from pipeline.training.callbacks.checkpoint import CheckpointCallback
from pipeline.utils.errors import UsageError


def evaluation_split(splits: Mapping[str, Any]) -> str:
    """The split that the model is judged by."""
    return next(name for name in ("test", "validation", "train") if name in splits)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Handoff:
    """A trained model, on its way to a published version."""

    config: Config
    run: RunDirectory
    data: Data
    evaluated: Mapping[str, Batches]
    """Split -> batches."""
    model: keras.Model
    checkpoint: CheckpointCallback
    start: float
    """`time.monotonic()` when this process began."""

    def conclude(self, trained: bool) -> tuple[dict[str, Any], Path | None]:
        """Tests, exports and reports; the result, and the path that it was written to.

        Args:
            trained: Whether this process trained; if not, a run that was concluded before keeps
                its result.
        """
        fallback = run_result.fallback(self.run)
        self.checkpoint.save_unsaved(fallback.checkpoints)
        progress_report.decision(self.checkpoint.choose())
        self.model.step.update.swap_ema()  # tested and exported are the averaged weights, if any
        judged = evaluation_split(self.evaluated)
        step = self.checkpoint.step
        result = None if trained else run_result.finished(self.config, self.run, step)
        written, why = self.run.result, ""
        if result is not None and judged in result:
            progress_report.finished(self.run)
            run_report.tested(self.config, result, judged)
        else:
            result = self.test()
            run_result.write(result, self.run, fallback)  # already now: the export may be killed
            run_report.tested(self.config, result, judged)
            result = self.export(result)
            written, why = run_result.write(result, self.run, fallback)
        if not self.config.dry_run:
            run_report.written(self.run, fallback, self.checkpoint, written, why)
        run_report.closing(self.config, self.run, result)
        progress_report.late(self.checkpoint, self.config.runtime.time_limit)
        return result, written

    def test(self) -> dict[str, Any]:
        """The result of a run that is not exported yet: the metrics of each split, calibration."""
        task, evaluated, calibration = self.data.task, self.evaluated, {}
        if self.config.export.calibrate and "validation" in evaluated:
            calibration = evaluate.calibration(self.model, task, evaluated["validation"])
        task = evaluate.calibrated_by(task, calibration)
        # The outputs of the network by one trace for all splits; the task makes answers of them.
        outputs = (
            (name, evaluate.answers(self.model, self.data.task, part))
            for name, part in evaluated.items()
        )
        metrics = {name: evaluate.measured(self.model, task, some) for name, some in outputs}
        evaluate.draw(task, metrics[evaluation_split(evaluated)], self.run.path)
        stopped = None if self.checkpoint.complete else TIME
        seconds = time.monotonic() - self.start
        return run_result.measured(
            self.config, self.checkpoint, metrics, seconds, stopped, calibration
        )

    def export(self, result: dict[str, Any]) -> dict[str, Any]:
        """What `test` returned, with the export and its proof, or the reason why there is none."""
        if not self.config.export.enabled:
            return result
        splits, saver = self.data.splits, self.checkpoint
        task = evaluate.calibrated_by(self.data.task, result["calibration"])
        metrics = {name: result[name] for name in splits if name in result}
        trained = {"steps": saver.step, "of": saver.last_step, "complete": saver.complete}
        trained["examples"] = {name: len(split) for name, split in splits.items()}
        trained["left_out"] = len(self.data.cleaning.dropped)
        place, why = run_directory.export_directory(self.config), ""
        examples = splits[evaluation_split(self.evaluated)]
        try:
            proved = export(self.model, task, self.config, examples, metrics, trained)
        except BrokenPipeError:  # nobody reads what it prints
            raise
        except OSError as error:  # as of a full disk; the run is trained and tested all the same
            why = f"{place} cannot be written: {error.strerror or error}"
        except UsageError as error:
            why = str(error)
        if why:
            proved = Verification(place, (Check(run_result.NOT_EXPORTED, False, why),))
        return {
            **result,
            "seconds": round(time.monotonic() - self.start, 2),
            "export": str(proved.directory) if proved.passed else None,
            "verification": proved.as_json(),
        }
