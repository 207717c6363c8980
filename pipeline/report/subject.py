"""The run or the evaluation that a report describes."""

import dataclasses

from pipeline.data.dataset import LoadedData
from pipeline.report.evaluation import Evaluation
from pipeline.report.run import Run


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
