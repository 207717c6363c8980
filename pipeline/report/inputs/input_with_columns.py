"""Report views of the input `input_with_columns`."""

from collections.abc import Mapping
from typing import Any

from pipeline.report.input_report import InputReport, report_of
from pipeline.tasks.input_with_columns import InputWithColumns


class InputWithColumnsReport(InputReport):
    """Shows an example of `input_with_columns`."""

    input: InputWithColumns

    def draw(self, axes: Any, example: Mapping[str, Any]) -> None:
        report_of(self.input.input).draw(axes, example)

    def html(self, example: Mapping[str, Any]) -> str:
        html = report_of(self.input.input).html(example)
        return html and html + report_of(self.input.columns).html(example)
