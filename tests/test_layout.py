"""Limits of the layout: sizes, layers, documentation, and the few places that import by name."""

import ast
import configparser
import functools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from pipeline.config import registry

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "pipeline"
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")

MODULES_AT_THE_TOP = 15
MODULES_IN_A_FOLDER = 18
LINES_OF_A_FILE = 400
LINES_OF_FIT = 150
LINES_OF_A_FUNCTION = 60
POSITIONAL_PARAMETERS = 6
LAYERS = 10
# Lines of all modules and templates together, and of all tests. They are lowered when code goes,
# and never raised: something that is added takes the place of something else.
LINES_OF_THE_PACKAGE = 24_000
LINES_OF_THE_TESTS = 23_500
# Importing by a name that is computed hides the import from the layers.
IMPORTS_BY_NAME = {"__init__.py", "__main__.py", "config/registry.py"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Path of every module, relative to the package -> its syntax tree."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return {path.relative_to(PACKAGE).as_posix(): ast.parse(_text(path)) for path in paths}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _lines(name: str) -> int:
    return len(_text(PACKAGE / name).splitlines())


def test_folders_files_functions_and_documentation():
    """One pass over all modules, so that one message lists everything that is to be mended."""
    rules = (_sizes, _docstrings, _functions, _imports_by_name, _imports_of_siblings)
    found = [fault for name in modules() for rule in rules for fault in rule(name)]
    assert not found, "\n".join(["", *found])


def _sizes(name: str) -> Iterator[str]:
    most = LINES_OF_FIT if name == "fit.py" else LINES_OF_A_FILE
    if _lines(name) > most:
        yield f"{name}: {_lines(name)} lines, at most {most}; split it"
    if Path(name).name == "__init__.py" and name != "__init__.py" and _lines(name):
        yield f"{name}: must be empty, so that a package imports nothing"


def _docstrings(name: str) -> Iterator[str]:
    tree = modules()[name]
    if tree.body and not ast.get_docstring(tree):
        yield f"{name}: has no docstring"
    for node in tree.body:
        public = isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_")
        if public and not ast.get_docstring(node):
            yield f"{name}:{node.lineno}: {node.name} has no docstring"


def _functions(name: str) -> Iterator[str]:
    for node in ast.walk(modules()[name]):
        if not isinstance(node, Function):
            continue
        lines = node.end_lineno - node.lineno + 1
        if lines > LINES_OF_A_FUNCTION:
            yield f"{name}:{node.lineno}: {node.name} has {lines} lines; split it"
        parameters = [a.arg for a in node.args.posonlyargs + node.args.args]
        count = len(parameters) - (parameters[:1] in (["self"], ["cls"]))
        if count > POSITIONAL_PARAMETERS:
            yield (
                f"{name}:{node.lineno}: {node.name} has {count} positional parameters, at most "
                f"{POSITIONAL_PARAMETERS}; make some keyword-only"
            )


def _imports_by_name(name: str) -> Iterator[str]:
    if name in IMPORTS_BY_NAME:
        return
    for node in ast.walk(modules()[name]):
        called = getattr(node, "attr", None) or getattr(node, "id", None)
        if isinstance(node, ast.alias):
            called = node.name
        if called in ("import_module", "__import__"):
            where = f"{name}:{getattr(node, 'lineno', '')}"
            yield f"{where}: {called}; only {', '.join(sorted(IMPORTS_BY_NAME))} may"


def _imports_of_siblings(name: str) -> Iterator[str]:
    """Functions of a registry do not know each other; files that begin with `_` are helpers."""
    folder = Path(name).parent.as_posix()
    if folder not in {folder for folder, _ in registry.REGISTRIES.values()}:
        return
    package = f"pipeline.{folder.replace('/', '.')}"
    siblings = {path.stem for path in (PACKAGE / folder).glob("[!_]*.py")}
    for line, imported in _imported(modules()[name]):
        head, _, last = imported.rpartition(".")
        parent, _, module = head.rpartition(".")
        sibling = last if head == package else module if parent == package else None
        if sibling in siblings:
            yield f"{name}:{line}: imports {sibling} of its own registry; move what they share"


def _imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything that a module imports, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def test_the_rules_find_what_breaks_them(monkeypatch):
    """A rule that finds nothing might look at nothing."""
    body = "\n".join(f"    x{number} = 0" for number in range(60))
    bad = {
        "data/cache.py": "def public(self):\n    import_module(self)\n",
        "models/new.py": f'"""New."""\nfrom pipeline.models import tiny\n\n\ndef _long():\n{body}',
        "models/more.py": '"""More."""\nfrom pipeline.models.tiny import tiny\n',
        "tasks/wide.py": '"""Wide."""\n\n\ndef _wide(a, b, c, d, e, f, g, *, h): ...\n',
        "tasks/good.py": '"""Good."""\n\n\nclass _Good:\n    def of(self, a, b, c, d, e, f): ...\n',
    }
    trees = {name: ast.parse(text) for name, text in bad.items()}
    monkeypatch.setattr(sys.modules[__name__], "modules", lambda: trees)

    def found(rule: Callable[[str], Iterator[str]]) -> list[str]:
        return [fault.partition(";")[0] for name in trees for fault in rule(name)]

    assert found(_docstrings) == [
        "data/cache.py: has no docstring",
        "data/cache.py:1: public has no docstring",
    ]
    assert found(_imports_by_name) == ["data/cache.py:2: import_module"]
    assert found(_functions) == [
        "models/new.py:5: _long has 61 lines",
        "tasks/wide.py:4: _wide has 7 positional parameters, at most 6",
    ]
    assert found(_imports_of_siblings) == [
        "models/new.py:2: imports tiny of its own registry",
        "models/more.py:2: imports tiny of its own registry",
    ]


def test_folders_stay_small():
    counts = {}
    for name in modules():
        if Path(name).name != "__init__.py":
            folder = Path(name).parent.as_posix()
            counts[folder] = counts.get(folder, 0) + 1
    assert counts.pop(".") <= MODULES_AT_THE_TOP
    crowded = {folder: count for folder, count in counts.items() if count > MODULES_IN_A_FOLDER}
    assert not crowded, f"more than {MODULES_IN_A_FOLDER} modules in a folder: {crowded}"


def test_the_package_and_the_tests_keep_to_their_budgets():
    package = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.j2")]
    tests = list(PACKAGE.with_name("tests").rglob("*.py"))
    for paths, most in ((package, LINES_OF_THE_PACKAGE), (tests, LINES_OF_THE_TESTS)):
        lines = sum(len(_text(path).splitlines()) for path in paths)
        assert lines <= most, f"{lines} lines, at most {most}; delete something"


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


def test_ci_runs_the_readme_test_command():
    commands = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
    script = _text(REPOSITORY / ".ci/run")
    tests = [command.strip() for command in commands if "pytest" in command]
    assert tests and tests[0] in script


def test_the_pinned_keras_has_the_security_fixes():
    import keras

    assert tuple(int(part) for part in keras.__version__.split(".")[:3]) >= (3, 15, 1)
