"""Sphinx: `python -m sphinx -W -b html docs build/docs`. The reference pages come from
the code.

Where a page has the comment `<!-- NAME -->`, the result of `_NAME()` below takes its
place. Each page in `notebooks/` is the stored notebook of that name.
"""

import ast
import dataclasses
import html
import json
import os
import re
import subprocess
import sys
import typing
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sphinx.ext.napoleon import GoogleDocstring

import pipeline
from pipeline.__main__ import commands
from pipeline.config import help_text, registry, type_hints
from pipeline.config.config import Config

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
project = "pipeline"
version = release = pipeline.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"pipeline {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = html_show_sourcelink = False
myst_heading_anchors = 3
myst_enable_extensions = ["deflist"]
default_role = "code"  # docstrings have single backticks around code
autodoc_typehints = "none"
autodoc_member_order = "bysource"
# Their defaults would fill a page; the command reference has them.
_SIGNATURE = dict.fromkeys(
    ("pipeline.config.config", "pipeline.config.sections"), "(**options)"
)
# Around text that may contain such fences of three.
_FENCE = "`" * 6


def _commands() -> str:
    """What `--help` of every command prints."""
    words = [
        [sys.executable, "-m", f"pipeline.{name}", "--help"] for name in commands()
    ]
    environment = {
        **os.environ,
        "COLUMNS": "100",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }

    def helped(command: list[str]) -> str:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    with ThreadPoolExecutor(2) as pool:
        texts = pool.map(helped, words)
    found = zip(commands().items(), texts, strict=True)
    return "\n\n".join(
        f"### {name}\n\n{summary}\n\n```text\n{text}\n```"
        for (name, summary), text in found
    )


def _options() -> str:
    """Every section of a config with its fields: meaning, type or range, default."""
    parts = [_section(Config, "")]
    for field in dataclasses.fields(Config):
        if dataclasses.is_dataclass(field.type):
            about = (field.type.__doc__ or "").partition("\n\n")[0]
            parts += [f"### {field.name}\n\n{about}", _section(field.type, field.name)]
    return "\n\n".join(parts)


def _section(section: type, name: str) -> str:
    parts = []
    for entry in help_text.entries(section, name):
        flags = ", ".join(f"`{flag}`" for flag in entry.flags)
        parts.append(f"{flags}\n: {_prose(entry.meaning)}\n: *{_prose(entry.details)}*")
    return "\n\n".join(parts)


def _registries() -> str:
    """Every function of every registry with its options."""
    parts = []
    for kind, (folder, _) in registry.REGISTRIES.items():
        names = registry.names(kind)
        parts += [f"### {kind}\n\nIn `pipeline/{folder}/`."] if names else []
        for function in (registry.find(kind, name) for name in names):
            parts.append(f"#### {function.name}\n\n{_prose(function.summary)}")
            for option, about in function.options.items():
                meaning = f": {_prose(about.meaning)}\n" if about.meaning else ""
                default = (
                    "required" if about.default is None else f"default {about.default}"
                )
                values = _prose(f"{type_hints.describe(about.hint)} ({default})")
                parts.append(f"`{option}`\n{meaning}: *{values}*")
    return "\n\n".join(parts)


def _prose(text: str) -> str:
    """Outside of code, Markdown would take these characters for something else."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"[\\*_<\[\]$]", r"\\\g<0>", part) for part in parts[::2]]
    return "`".join(parts)


def _api() -> str:
    """The functions behind the commands, the public names of the package, the trackers,
    Ray, the contracts, and what evaluates and shows predictions.
    """
    functions = [name for name in commands() if _defines(f"{name}.py", name)]
    values = {name: getattr(pipeline, name) for name in pipeline.__all__}
    classes = {
        name: (
            f".. autoclass:: pipeline.{name}{_SIGNATURE.get(value.__module__, '')}\n  "
            " :members:"
        )
        for name, value in values.items()
        if isinstance(value, type) and value.__module__ != "pipeline.contracts"
    }
    parts = {
        "Functions": [
            f".. autofunction:: pipeline.{name}.{name}" for name in functions
        ],
        "Classes": list(classes.values()),
        "Trackers": [".. automodule:: pipeline.trackers\n   :members:"],
        "Ray": [".. autofunction:: pipeline.launch.ray.fit"],
        "Contracts": [".. automodule:: pipeline.contracts\n   :members:"],
        "Evaluation and report of a target or input": [
            f".. automodule:: pipeline.{module}\n   :members:"
            for module in (
                "evaluation.target_evaluation",
                "report.target_report",
                "report.input_report",
            )
        ],
    }
    return "\n\n".join(
        "\n\n".join([f"## {title}", "```{eval-rst}", *directives, "```"])
        for title, directives in parts.items()
    )


def _notebook(name: str) -> str:
    """The cells of a notebook with their stored outputs."""
    path = Path(__file__).parents[1] / f"notebooks/{name}.ipynb"
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        # Pygments knows no commands of a shell within Python.
        language = "text" if re.search("^!", source, re.MULTILINE) else "python"
        parts.append(f"{_FENCE}{language}\n{source}\n{_FENCE}")
        parts += [_output(output) for output in cell["outputs"]]
    return "\n\n".join(parts)


def _output(output: dict[str, typing.Any]) -> str:
    """An output of a cell: pictures as HTML, all else as text."""
    data = output.get("data", {})
    text = "".join(output.get("text") or data.get("text/plain", ""))
    pictures = "".join(data.get("text/html", ""))
    if "image/png" in data:
        code = "".join(data["image/png"]).strip()
        alt = html.escape(text)
        pictures = f'<img src="data:image/png;base64,{code}" alt="{alt}">'
    if "<img" not in pictures:
        options = "{code-block} text\n:class: output\n\n"
        return f"{_FENCE}{options}{text.rstrip()}\n{_FENCE}"
    block = f'<div class="output">{pictures}</div>'
    return f"{_FENCE}{{raw}} html\n{block}\n{_FENCE}"


def _defines(file: str, name: str) -> bool:
    path = Path(pipeline.__file__).with_name(file)
    nodes = ast.parse(path.read_bytes()).body if path.is_file() else []
    return any(
        isinstance(node, ast.FunctionDef) and node.name == name for node in nodes
    )


def _fill(app: typing.Any, page: str, source: list[str]) -> None:
    if page.startswith("notebooks/"):
        name = page.removeprefix("notebooks/")
        app.env.note_dependency(f"../notebooks/{name}.ipynb")  # from the docs
        source[0] = _notebook(name)
    for name in ("commands", "options", "registries", "api"):
        mark = f"<!-- {name} -->"
        if mark in source[0]:
            source[0] = source[0].replace(mark, globals()[f"_{name}"]())


def _read_sections(app, what, name, value, options, lines: list[str]) -> None:
    """Docstrings in Google's style. Napoleon itself would take `text:
    text` for a type.
    """
    if what not in ("attribute", "property"):
        lines[:] = GoogleDocstring(lines, what=what, name=name, obj=value).lines()


def setup(app: typing.Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _fill)
    app.connect("autodoc-process-docstring", _read_sections)
