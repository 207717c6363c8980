"""What a report is about."""

import dataclasses

from pipeline.data.dataset import LoadedData
from pipeline.evaluation.answers import Evaluation
from pipeline.report.run import Run


@dataclasses.dataclass(frozen=True)
class Subject:
    """An evaluation, and the run whose model it measures."""

    evaluation: Evaluation
    run: Run | None = None
    """None if the model is an export whose run is not known."""
    data: LoadedData | None = None
    """The data of the run; None if it is not loaded, or gone."""
