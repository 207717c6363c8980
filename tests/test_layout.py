"""Limits of the layout: sizes, layers, and what ruff checks."""

import ast
import configparser
import email
import io
import re
import shutil
import subprocess
import sys
import tokenize
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pipeline.config import registry

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "pipeline"

MODULES_AT_THE_TOP = 15
MODULES_IN_A_FOLDER = 18
LINES_OF_A_FILE = 400
LINES_OF_FIT = 150
LINES_OF_A_FUNCTION = 60
POSITIONAL_PARAMETERS = 6
LAYERS = 10
# Lines of all modules and templates together, and of all tests. They are lowered when code goes;
# something that is added takes the place of something else.
LINES_OF_THE_PACKAGE = 22_700
LINES_OF_THE_TESTS = 17_000


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_files_and_functions():
    """One pass over all modules, so that one message lists every fault."""
    found = _faults()
    assert not found, "\n".join(["", *found])


def test_each_fault_is_found(tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    (tmp_path / "models/other.py").write_text("def other(): ...")
    lines = ["from pipeline.models import other", "def wide(a, b, c, d, e, f, g): ..."]
    lines += ["def long():", *["    pass"] * 60]
    (tmp_path / "models/mine.py").write_text("\n".join(lines))
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    assert sorted(_faults()) == [
        "models/mine.py:1: imports pipeline.models.other of the same registry; "
        "move what they share",
        "models/mine.py:2: wide has 7 positional parameters",
        "models/mine.py:3: long has 61 lines; split it",
    ]


def _faults() -> list[str]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        most = LINES_OF_FIT if name == "fit.py" else LINES_OF_A_FILE
        if _lines(path) > most:
            found.append(f"{name}: {_lines(path)} lines, at most {most}; split it")
        if path.name == "__init__.py" and name != "__init__.py" and _lines(path):
            found.append(f"{name}: must be empty, so that a package imports nothing")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found += [f"{name}:{fault}" for fault in (*_functions(tree), *_siblings(name, tree))]
    return found


def _functions(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = node.end_lineno - node.lineno + 1
        if lines > LINES_OF_A_FUNCTION:
            yield f"{node.lineno}: {node.name} has {lines} lines; split it"
        parameters = [a.arg for a in node.args.posonlyargs + node.args.args]
        count = len(parameters) - (parameters[:1] in (["self"], ["cls"]))
        if count > POSITIONAL_PARAMETERS:
            yield f"{node.lineno}: {node.name} has {count} positional parameters"


def _siblings(name: str, tree: ast.Module) -> Iterator[str]:
    """Modules of a registry do not import each other; files that begin with `_` are helpers."""
    folder = Path(name).parent.as_posix()
    if folder not in {folder for folder, _ in registry.REGISTRIES.values()}:
        return
    package = f"pipeline.{folder.replace('/', '.')}"
    siblings = {f"{package}.{path.stem}" for path in (PACKAGE / folder).glob("[!_]*.py")}
    for node in ast.walk(tree):
        imported = {getattr(node, "module", None)} if isinstance(node, ast.ImportFrom) else set()
        if isinstance(node, ast.Import | ast.ImportFrom):
            prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            imported |= {f"{prefix}{alias.name}" for alias in node.names}
        for sibling in imported & siblings:
            yield f"{node.lineno}: imports {sibling} of the same registry; move what they share"


def test_folders_and_the_whole_stay_small():
    counts = Counter(p.parent for p in PACKAGE.rglob("*.py") if p.name != "__init__.py")
    assert counts.pop(PACKAGE) <= MODULES_AT_THE_TOP
    crowded = {folder: count for folder, count in counts.items() if count > MODULES_IN_A_FOLDER}
    assert not crowded, f"more than {MODULES_IN_A_FOLDER} modules in a folder: {crowded}"
    package = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.j2")]
    tests = list(REPOSITORY.glob("tests/**/*.py"))
    for paths, most in ((package, LINES_OF_THE_PACKAGE), (tests, LINES_OF_THE_TESTS)):
        lines = sum(map(_lines, paths))
        assert lines <= most, f"{lines} lines, at most {most}; delete something"
        assert lines >= most - 1000, f"{lines} lines, at most {most}: lower the budget"


def test_the_documented_sizes_are_true():
    page = (REPOSITORY / "docs/architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `?([a-z]+|commands.*?)/?`? \| ([\d,]+) \|$", page, flags=re.MULTILINE)
    documented = {name: int(lines.replace(",", "")) for name, lines in rows}
    found = Counter()
    for path in PACKAGE.rglob("*.py"):
        folder, *inside = path.relative_to(PACKAGE).parts
        found[folder if inside else "commands and contracts"] += _source_lines(path)
    found["all"] = found.total()
    assert documented.keys() == found.keys()
    for name, lines in found.items():
        assert abs(documented[name] - lines) <= max(10, 0.05 * lines), f"{name} has {lines:,} lines"


def _source_lines(path: Path) -> int:
    """The lines of a module that are neither blank nor only a comment or a docstring."""
    text = path.read_text(encoding="utf-8")
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.DEDENT, tokenize.ENDMARKER):
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):  # also the docstring of a field
                lines -= set(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def test_imports_point_downward():
    contracts = configparser.ConfigParser()
    contracts.read(REPOSITORY / "setup.cfg")
    layers = contracts["importlinter:contract:layers"]["layers"].split("\n")
    assert len([layer for layer in layers if layer.strip()]) <= LAYERS
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
        (text,) = (wheel.read(name).decode() for name in names if name.endswith("/METADATA"))
    kept = (".py", ".j2", "py.typed", "operation_checks.txt")
    tree = [file.relative_to(REPOSITORY).as_posix() for file in PACKAGE.rglob("*")]
    expected = {name for name in tree if name.endswith(kept)}
    assert {"pipeline/py.typed", "pipeline/export/operation_checks.txt"} <= expected
    assert {name for name in names if ".dist-info/" not in name} == expected
    metadata = email.message_from_string(text)
    config = configparser.ConfigParser()
    config.read(REPOSITORY / "setup.cfg")
    declared = config["options"]["install_requires"].splitlines()
    required = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    plain = [line for line in declared if line and not line.startswith("#")]
    assert metadata["Name"] == config["metadata"]["name"] == "keras-savedmodel-pipeline"
    assert sorted(map(_name, required)) == sorted(map(_name, plain))


def _name(requirement: str) -> str:
    return re.match(r"[\w-]+", requirement)[0].replace("_", "-")
