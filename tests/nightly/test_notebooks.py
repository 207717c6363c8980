"""The notebooks are stored with their outputs, which are those of the present code."""

import re

import nbformat
import pytest
import stored_notebooks
from processes import REPOSITORY

pytestmark = pytest.mark.filterwarnings("ignore")  # of nbformat and nbclient
PATHS = stored_notebooks.paths()
NAMES = [path.stem for path in PATHS]
# Paths of a machine, and of the package's own files.
_PRIVATE = re.compile(r"(?<![\w.:/])/(?:home|root|tmp|opt|usr|work)/|site-packages")


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_outputs_are_stored_and_fit_for_a_reader(path):
    assert path.stat().st_size < 300_000
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    first, *others = stored_notebooks.code(notebook)
    assert "%pip install" in first.source and not first.outputs
    assert sum(bool(cell.outputs) for cell in others) >= len(others) / 2
    for cell in others:
        for output in cell.outputs:
            assert output.output_type != "error", cell.source
            assert output.get("name") != "stderr", output.text
            shown = output.get("text") or str(output.get("data", {}))
            assert not _PRIVATE.search(shown), shown
        assert max(map(len, cell.source.splitlines())) <= 100 or "!" in cell.source


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_outputs_are_those_of_the_present_code(path, tmp_path):
    """Executed by Jupyter's kernel; numbers may differ within a tolerance."""
    pytest.importorskip("nbclient", reason="pip install nbclient")
    pytest.importorskip("ipykernel", reason="pip install ipykernel")
    stored = nbformat.read(path, as_version=4)
    new = stored_notebooks.execute(path, tmp_path)
    found = stored_notebooks.differences(stored, new)
    assert not found, "\n".join(found)


def test_differences_are_found():
    def notebook(text, tags=()):
        output = nbformat.v4.new_output("stream", text=text)
        cell = nbformat.v4.new_code_cell("", outputs=[output], metadata={"tags": tags})
        return nbformat.v4.new_notebook(cells=[cell])

    stored = notebook("accuracy 0.99 of 361, 1,560 steps")
    for text, is_same in (
        ("accuracy 0.97 of 361, 1,560 steps", True),
        ("accuracy 0.79 of 361, 1,560 steps", False),
        ("accuracy 0.99 of 361, 860 steps", False),
        ("precision 0.99 of 361, 1,560 steps", False),
    ):
        assert (not stored_notebooks.differences(stored, notebook(text))) is is_same, (
            text
        )
    figures = []
    for size in ("820x615 with 3 Axes", "820x320 with 4 Axes"):
        data = {"image/png": "", "text/plain": f"<Figure size {size}>"}
        output = nbformat.v4.new_output("display_data", data=data)
        cell = nbformat.v4.new_code_cell("", outputs=[output])
        figures.append(nbformat.v4.new_notebook(cells=[cell]))
    assert not stored_notebooks.differences(*figures), "a picture of one mistake more"
    stored, other = (notebook(text, ["varies"]) for text in "ab")
    assert not stored_notebooks.differences(stored, other)
    assert stored_notebooks.differences(
        stored, nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("")])
    ), "an output is missing"


def test_each_notebook_is_listed():
    text = (REPOSITORY / "docs/notebooks.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\| \[\w+\]\(notebooks/(\w+)\.md\)", text)) == NAMES
