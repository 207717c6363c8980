"""The layout of the package: registries, and the test command of the README."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from pipeline.config import registry

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "pipeline"


def test_registries_and_packages():
    """One pass over all modules, so that one message lists every fault."""
    faults = _faults()
    assert not faults, "\n".join(["", *faults])


def test_each_fault_is_found(tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    (tmp_path / "models/__init__.py").write_text('"""Models."""\nimport keras')
    (tmp_path / "models/other.py").write_text("\n@register\ndef other(): ...")
    (tmp_path / "models/mine.py").write_text("from pipeline.models import other")
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    assert sorted(_faults()) == [
        "models/__init__.py: must only have a docstring, and import nothing",
        (
            "models/mine.py:1: imports pipeline.models.other of the same registry; "
            "move what they share"
        ),
    ]


def _faults() -> list[str]:
    faults = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        text = path.read_text(encoding="utf-8")
        is_package = path.name == "__init__.py" and name != "__init__.py"
        if is_package and len(ast.parse(text).body) > 1:
            faults.append(f"{name}: must only have a docstring, and import nothing")
        faults += [f"{name}:{fault}" for fault in _siblings(name, ast.parse(text))]
    return faults


def _siblings(name: str, tree: ast.Module) -> Iterator[str]:
    """Modules with registered functions do not import each other; others of the folder
    are helpers.
    """
    folder = Path(name).parent.as_posix()
    if folder not in {folder for folder, _ in registry.REGISTRIES.values()}:
        return
    package = f"pipeline.{folder.replace('/', '.')}"
    siblings = {
        f"{package}.{path.stem}"
        for path in (PACKAGE / folder).glob("*.py")
        if "\n@register\n" in path.read_text(encoding="utf-8")
    }
    for node in ast.walk(tree):
        imported = (
            {getattr(node, "module", None)}
            if isinstance(node, ast.ImportFrom)
            else set()
        )
        if isinstance(node, ast.Import | ast.ImportFrom):
            prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            imported |= {f"{prefix}{alias.name}" for alias in node.names}
        for sibling in imported & siblings:
            yield (
                f"{node.lineno}: imports {sibling} of the same registry; move what they"
                " share"
            )


def test_ci_runs_the_test_command_of_the_readme():
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"```sh\n(.*?)```", readme, flags=re.DOTALL)
    tests = [command.strip() for command in commands if "pytest" in command]
    assert tests and tests[0] in (REPOSITORY / ".ci/run").read_text(encoding="utf-8")
