"""Writes the source trees of `docs/architecture.md` and README, from docstrings.

python docs/source_tree.py
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from pipeline.config import registry

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "pipeline"
REGISTRIES = {folder for folder, _ in registry.REGISTRIES.values()}
_WIDTH = 30  # of the column of names


def sentence(path: Path) -> str:
    """The first sentence of the docstring of a module."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    return re.split(r"(?<=\.) ", paragraph)[0]


def tree(*, with_files: bool) -> str:
    """The packages, or all modules, with their first sentences."""
    return "\n".join(_lines(PACKAGE, 0, with_files)) + "\n"


def _lines(folder: Path, depth: int, with_files: bool) -> Iterator[str]:
    is_registry = folder.relative_to(PACKAGE).as_posix() in REGISTRIES
    mark = " *" if is_registry else ""
    yield _line(f"{folder.name}/{mark}", folder / "__init__.py", depth)
    if with_files:
        for path in sorted(folder.glob("*.py")):
            if path.name != "__init__.py":
                yield _line(path.name, path, depth + 1)
    for path in sorted(folder.iterdir()):
        if (path / "__init__.py").exists():
            yield from _lines(path, depth + 1, with_files)


def _line(name: str, path: Path, depth: int) -> str:
    return f"{'  ' * depth + name:{_WIDTH}} {sentence(path)}"


PAGES = {"docs/architecture.md": True, "README.md": False}
"""Page -> whether its tree has files."""
_BLOCK = re.compile(r"(?<=```\n)pipeline/ .*?(?=```)", re.DOTALL)


def updated(page: str) -> str:
    """The text of a page with its tree as it is now."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    return _BLOCK.sub(lambda _: tree(with_files=PAGES[page]), text, count=1)


if __name__ == "__main__":
    for page in PAGES:
        (REPOSITORY / page).write_text(updated(page), encoding="utf-8")
