"""How an example of an input is shown: drawn on axes, or as HTML.

An input from `tasks/inputs/NAME.py` has its report in `inputs/NAME.py`; a user's input
names its own in the attribute `report`, or is not shown.
"""

from collections.abc import Mapping
from typing import Any

from pipeline.config import registry
from pipeline.contracts import Input


class InputReport:
    """How an example of an input is shown; by default, it is not.

    A subclass is created with the input, which is its attribute `input`. An example has
    the decoded fields, and as `raw` the fields of the source, if it is available.
    """

    def __init__(self, input: Any) -> None:
        self.input = input

    def draw(self, axes: Any, example: Mapping[str, Any]) -> None:
        """Draws an example."""
        axes.axis("off")

    def html(self, example: Mapping[str, Any]) -> str:
        """HTML that shows an example in the report of a run, such as an audio element
        with a data URI; all texts in it are escaped. Empty: the example is drawn.
        """
        return ""


def report_of(input: Input) -> InputReport:
    """The report of an input."""
    return registry.counterpart(input, "report/inputs", InputReport)
