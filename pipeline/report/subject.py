"""What a report is about."""

import dataclasses
import functools

from pipeline.config.formats import parse_duration
from pipeline.data.dataset import LoadedData
from pipeline.evaluation import robustness
from pipeline.evaluation.predictions import Evaluation
from pipeline.evaluation.robustness import Robustness
from pipeline.report.run import Run

_SHARE = 0.1  # of the time of training that robustness may take


@dataclasses.dataclass(frozen=True)
class Measured:
    """What `pipeline evaluate` has measured."""

    model: str
    data: str
    """The path; empty for the data of the run."""
    command: str


@dataclasses.dataclass(frozen=True)
class Subject:
    """An evaluation, and the run whose model it measures."""

    evaluation: Evaluation
    run: Run | None = None
    """None if the model is an export whose run is not known."""
    data: LoadedData | None = None
    """The data of the run; None if it is not loaded, or gone."""
    measured: Measured | None = None
    """None: the report is part of a run."""

    @property
    def place(self) -> str:
        """What was measured, such as "the test split" or "photos/new"."""
        evaluation = self.evaluation
        path = self.measured.data if self.measured else ""
        if evaluation.split == "data":
            return path or "the data"
        return (
            f"the {evaluation.place} of {path}" if path else f"the {evaluation.place}"
        )

    @functools.cached_property
    def wants_robustness(self) -> bool:
        """Whether robustness is to be measured, and can be."""
        if self.run is None or self.run.config.report.robustness == "off":
            return False
        evaluation = self.evaluation
        return evaluation.network is not None and bool(
            evaluation.task.input.corruptions()
        )

    @functools.cached_property
    def robustness(self) -> Robustness | None:
        """The metric on corrupted examples; None if that would take too long."""
        if self.run is None or not self.wants_robustness:
            return None
        seconds = float("inf")
        if self.run.config.report.robustness == "auto":
            result = self.run.result
            seconds = result.get("stages", {}).get("training", 0.0) * _SHARE
            limit = self.run.config.runtime.time_limit
            if limit is not None and self.measured is None:
                left = parse_duration(limit) - result.get("seconds", 0.0)
                seconds = min(seconds, left)
        return robustness.measure(self.evaluation, self.run.config.train, seconds)
