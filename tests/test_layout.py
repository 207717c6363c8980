"""The layout of the package: layers, registries, what ruff and mypy check, and the
wheel.
"""

import ast
import configparser
import email
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from pipeline.config import registry

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "pipeline"


def test_registries_and_packages():
    """One pass over all modules, so that one message lists every fault."""
    faults = _faults()
    assert not faults, "\n".join(["", *faults])


def test_each_fault_is_found(tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    (tmp_path / "models/__init__.py").write_text("import keras")
    (tmp_path / "models/other.py").write_text("def other(): ...")
    (tmp_path / "models/mine.py").write_text("from pipeline.models import other")
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    assert sorted(_faults()) == [
        "models/__init__.py: must be empty, so that a package imports nothing",
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
        if path.name == "__init__.py" and name != "__init__.py" and text:
            faults.append(f"{name}: must be empty, so that a package imports nothing")
        faults += [f"{name}:{fault}" for fault in _siblings(name, ast.parse(text))]
    return faults


def _siblings(name: str, tree: ast.Module) -> Iterator[str]:
    """Modules of a registry do not import each other; files that begin with `_` are
    helpers.
    """
    folder = Path(name).parent.as_posix()
    if folder not in {folder for folder, _ in registry.REGISTRIES.values()}:
        return
    package = f"pipeline.{folder.replace('/', '.')}"
    siblings = {
        f"{package}.{path.stem}" for path in (PACKAGE / folder).glob("[!_]*.py")
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


def test_imports_point_downward():
    contracts = configparser.ConfigParser()
    contracts.read(REPOSITORY / "setup.cfg")
    kinds = [name for name in contracts if name.startswith("importlinter:contract:")]
    script = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([script], cwd=REPOSITORY, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-3000:]
    assert f"Contracts: {len(kinds)} kept, 0 broken" in result.stdout


def test_ruff_finds_nothing():
    for command in (["check"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *command, "."]
        result = subprocess.run(ruff, cwd=REPOSITORY, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout[-3000:]


def test_mypy_finds_nothing():
    mypy = [sys.executable, "-m", "mypy"]
    result = subprocess.run(mypy, cwd=REPOSITORY, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-3000:]


def test_ci_runs_the_test_command_of_the_readme():
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"```sh\n(.*?)```", readme, flags=re.DOTALL)
    tests = [command.strip() for command in commands if "pytest" in command]
    assert tests and tests[0] in (REPOSITORY / ".ci/run").read_text(encoding="utf-8")


def test_the_wheel_contains_the_package_and_nothing_else(tmp_path):
    """Built offline by the setuptools of this environment, from a copy of the tree."""
    copy, built = tmp_path / "copy", tmp_path / "built"
    copy.mkdir()
    for name in ("pyproject.toml", "setup.cfg", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, copy)
    for name in ("pipeline", "tests", "benchmarks"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / name, copy / name, ignore=ignored)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", built]
    pip = [sys.executable, "-m", "pip", "wheel", *options, copy]
    result = subprocess.run(pip, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    (path,) = built.iterdir()
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        (text,) = (
            wheel.read(name).decode() for name in names if name.endswith("/METADATA")
        )
    kept = (".py", ".j2", "py.typed", "operation_checks.txt")
    tree = [file.relative_to(REPOSITORY).as_posix() for file in PACKAGE.rglob("*")]
    expected = {name for name in tree if name.endswith(kept)}
    assert {"pipeline/py.typed", "pipeline/export/operation_checks.txt"} <= expected
    assert {name for name in names if ".dist-info/" not in name} == expected
    metadata = email.message_from_string(text)
    config = configparser.ConfigParser()
    config.read(REPOSITORY / "setup.cfg")
    declared = config["options"]["install_requires"].splitlines()
    required = [
        line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line
    ]
    plain = [line for line in declared if line and not line.startswith("#")]
    assert metadata["Name"] == config["metadata"]["name"] == "keras-savedmodel-pipeline"
    assert sorted(map(_name, required)) == sorted(map(_name, plain))


def _name(requirement: str) -> str:
    return re.match(r"[\w-]+", requirement)[0].replace("_", "-")
