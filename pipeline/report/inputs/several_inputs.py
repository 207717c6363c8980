"""Report views of the input `several_inputs`."""

from collections.abc import Mapping
from typing import Any

from pipeline.report.input_report import InputReport, report_of
from pipeline.tasks.several_inputs import SeveralInputs, select_part


class SeveralInputsReport(InputReport):
    """Shows an example of `several_inputs`."""

    input: SeveralInputs

    def _drawn(self, example: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """The name and the fields of the part that stands for an example: an image, or
        else what has parts of its own, such as words, or else the first.
        """
        names = list(self.input.parts)
        fields = {}
        for name in names:
            fields[name] = select_part(example, name)
            fields[name]["raw"] = select_part(example.get("raw", {}), name)
        for name in names:
            if "image" in fields[name]:
                return name, fields[name]
        for name in names:
            if report_of(self.input.parts[name]).html(fields[name]):
                return name, fields[name]
        return names[0], fields[names[0]]

    def draw(self, axes: Any, example: Mapping[str, Any]) -> None:
        """Draws the part that stands for the example."""
        name, fields = self._drawn(example)
        report_of(self.input.parts[name]).draw(axes, fields)

    def html(self, example: Mapping[str, Any]) -> str:
        name, fields = self._drawn(example)
        return report_of(self.input.parts[name]).html(fields)
