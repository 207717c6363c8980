"""Executes the notebooks, and compares or stores their outputs.

Before a release, stores what the present code prints (needs the extra `test`):
`python tests/support/stored_notebooks.py [NAME ...]`.
"""

import math
import os
import re
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "notebooks"
SECONDS = 900
# Numbers may differ by as much: another CPU rounds differently, and training
# multiplies the difference.
RELATIVE, ABSOLUTE = 0.15, 0.05
_NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")
# What TensorFlow writes about the machine when it is imported before this package.
_START = re.compile(r"(?:WARNING: All log|[EIW]0000|To enable the following).*\n?")
# A line up to where it is written anew.
_OVERWRITTEN = re.compile(r"^[^\n]*(?:\r|\x1b\[2K)", re.MULTILINE)
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def paths() -> list[Path]:
    """The notebooks of the repository."""
    return sorted(FOLDER.glob("*.ipynb"))


def execute(path: Path, folder: Path) -> Any:
    """Executes a notebook in a folder, in a process of its own, and returns it with
    outputs that name neither this machine nor the folder.
    """
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "100"}
    where = {"metadata": {"path": str(folder)}}
    client = NotebookClient(
        notebook, timeout=SECONDS, resources=where, record_timing=False
    )
    client.execute(env=env)
    for cell in code(notebook):
        outputs = []
        for output in cell.outputs:
            if outputs and _is_same_stream(outputs[-1], output):
                outputs[-1]["text"] += output["text"]
            else:
                outputs.append(output)
        cleaned = [_cleaned(output, folder) for output in outputs]
        cell.outputs = [output for output in cleaned if not _is_empty(output)]
    return notebook


def code(notebook: Any) -> list[Any]:
    """The cells of code."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def text(cell: Any) -> str:
    """What the outputs of a cell show as text, which does not include pictures."""
    parts = []
    for output in cell.outputs:
        data = output.get("data", {})
        if "image/png" not in data:  # else, the text is the size of the picture
            parts.append(output.get("text") or data.get("text/plain", ""))
    return "".join(parts)


def differences(stored: Any, new: Any) -> list[str]:
    """Where the outputs differ: words, or numbers by more than the tolerance.

    Only the kinds of the outputs of cells with the tag `varies` are compared.
    """
    found = []
    for before, after in zip(code(stored), code(new), strict=True):
        kinds = [{_kind(output) for output in cell.outputs} for cell in (before, after)]
        if kinds[0] != kinds[1]:
            found.append(f"{before.source}\n{kinds[0]} became {kinds[1]}")
        elif "varies" not in before.metadata.get("tags", ()):
            found += _text_differences(text(before), text(after))
    return found


def _text_differences(before: str, after: str) -> list[str]:
    # Columns are as wide as their numbers.
    words = [re.sub(r"[-\s]+", " ", _NUMBER.sub("#", part)) for part in (before, after)]
    if words[0] != words[1]:
        return [f"{before}\nbecame\n{after}"]
    found = []
    pairs = zip(_NUMBER.findall(before), _NUMBER.findall(after), strict=True)
    for one, other in pairs:
        numbers = (float(one.replace(",", "")), float(other.replace(",", "")))
        if not math.isclose(*numbers, rel_tol=RELATIVE, abs_tol=ABSOLUTE):
            found.append(f"{one} became {other} in\n{after}")
    return found


def _kind(output: Any) -> str:
    return output.get("name") or ", ".join(sorted(output.get("data", {})))


def _is_same_stream(one: Any, other: Any) -> bool:
    streams = one.output_type == other.output_type == "stream"
    return streams and one.name == other.name


def _is_empty(output: Any) -> bool:
    return output.output_type == "stream" and not output.text.strip()


def _cleaned(output: Any, folder: Path) -> Any:
    """An output without control characters, the path of the folder and the lines with
    which TensorFlow starts.
    """
    for part in (output, output.get("data", {})):
        for name, value in part.items():
            if isinstance(value, str) and not name.startswith("image/"):
                value = _OVERWRITTEN.sub("", value.replace("\r\n", "\n"))
                part[name] = _ANSI.sub("", value).replace(f"{folder}/", "")
    if "image/png" in output.get("data", {}):
        output.data.pop("image/jpeg", None)  # IPython shows an image in both formats
    if output.get("name") == "stderr":
        output.text = _START.sub("", output.text)
    return output


def main(names: list[str]) -> None:
    """Stores the outputs of these notebooks, or of all."""
    for path in paths():
        if names and path.stem not in names:
            continue
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with tempfile.TemporaryDirectory() as folder:
            notebook = execute(path, Path(folder))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        nbformat.write(notebook, path)
        kilobytes = path.stat().st_size / 1000
        print(f"{path.stem}: {seconds:.0f} s of CPU time, {kilobytes:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
