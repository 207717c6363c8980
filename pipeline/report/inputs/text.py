"""Report views of the input `text`."""

import html
import textwrap
from collections.abc import Mapping
from typing import Any
from unicodedata import east_asian_width

import numpy as np

from pipeline.report.input_report import InputReport
from pipeline.tasks.inputs.text import TextInput, decode_codes

_COLUMNS, _LINES = 32, 11  # of a drawn text
_MAX_SHOWN = 2000  # bytes of a text that is shown


class TextReport(InputReport):
    """Shows an example of `text`."""

    input: TextInput

    def html(self, example: Mapping[str, Any]) -> str:
        """The beginning of the text."""
        text = self._beginning(example).encode(errors="replace").decode()
        return f"<p>{html.escape(text)}</p>"

    def _beginning(self, example: Mapping[str, Any]) -> str:
        content = example.get("raw", {}).get(self.input.field)
        if isinstance(content, bytes):
            return content[:_MAX_SHOWN].decode(errors="replace")
        return decode_codes(np.asarray(example["text"])[:_MAX_SHOWN])

    def draw(self, axes: Any, example: Mapping[str, Any]) -> None:
        """Writes the beginning of the text."""
        axes.set(xticks=[], yticks=[])
        text = self._beginning(example)
        # Characters of Chinese, for example, are twice as wide.
        is_wide = any(east_asian_width(character) in "WF" for character in text)
        lines = textwrap.wrap(text, _COLUMNS // 2 if is_wide else _COLUMNS)
        axes.text(
            0.02,
            0.98,
            "\n".join(lines[:_LINES]),
            fontsize=5.5,
            family=["monospace", "sans-serif"],
            va="top",
            parse_math=False,
            transform=axes.transAxes,
        )
