"""The wheel contains the package and nothing else."""

import configparser
import email
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "pipeline"


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
