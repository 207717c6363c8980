"""Renders the text files of an export from the templates in `templates/`."""

import shlex
from typing import Any


def render(template: str, **values: Any) -> str:
    """The text of `templates/NAME.j2` with these values."""
    import jinja2  # takes 40 ms, which only an export needs

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pipeline.export"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"cell": _cell, "shell": shlex.quote}
    return environment.get_template(f"{template}.j2").render(values)


def _cell(value: Any) -> str:
    """A cell of a Markdown table; a class name may contain anything."""
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, int):
        return f"{value:,}"
    return " ".join(str(value).replace("|", "\\|").split())
