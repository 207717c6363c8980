"""Proof that a server will answer as the trained model does: the command and its verdict."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import tyro

from pipeline import files, proof
from pipeline.checked import require_path
from pipeline.errors import UsageError, run_command

_NEEDED = ("saved_model.pb", "variables/variables.index", str(proof.GOLDEN))
_TIMEOUT_SECONDS = 600


@dataclasses.dataclass(frozen=True)
class Check:
    """One line of the table."""

    name: str
    passed: bool
    detail: str


@dataclasses.dataclass(frozen=True)
class Verification:
    """What was checked of one exported version."""

    directory: Path
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def __str__(self) -> str:
        width = max(len(check.name) for check in self.checks)
        marks = {True: "passed", False: "FAILED"}
        return "\n".join(
            f"{marks[check.passed]}  {check.name:{width}}  {check.detail}" for check in self.checks
        )

    def as_json(self) -> dict:
        """Plain values: passed, directory, checks."""
        checks = [dataclasses.asdict(check) for check in self.checks]
        return {"passed": self.passed, "directory": str(self.directory), "checks": checks}


def verify(directory: Path) -> Verification:
    """Asks the SavedModel in `directory` in a fresh process, through TensorFlow's C++ loader.

    Checks the contract of the signatures, that stored real examples get the answers of the
    trained model (in float32, to 1e-5 of the largest answer), and that wrong requests are refused
    without harm.

    Raises:
        UsageError: There is no export of this package in `directory`.
    """
    for name in _NEEDED:
        if not (directory / name).is_file():
            raise UsageError(f"{directory} is no export of this package: it has no {name}")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    try:
        process = subprocess.run(
            [sys.executable, "-m", "pipeline.proof", str(directory.resolve())],
            env=environment,
            cwd=Path(__file__).parents[1],  # where this package is found, installed or not
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
        )
        output, errors, code = process.stdout, process.stderr, process.returncode
    except subprocess.TimeoutExpired as expired:
        output, errors = (
            (s or b"").decode(errors="replace") for s in (expired.stdout, expired.stderr)
        )
        code = None
    return Verification(directory, tuple(_read(output, errors, code)))


def _read(output: str, errors: str, code: int | None) -> list[Check]:
    """The child's lines; a check that started and never ended took the process with it."""
    checks: dict[str, Check] = {}
    last = "starts"
    for line in output.splitlines():
        values = json.loads(line)
        last = values["check"]
        if "passed" in values:
            checks[last] = Check(**{"name": last, **{k: values[k] for k in ("passed", "detail")}})
    if "finished" not in checks and all(check.passed for check in checks.values()):
        why = "took too long" if code is None else f"ended the process (exit code {code})"
        said = errors.strip().splitlines()
        checks[last] = Check(last, False, f"{why}: {said[-1]}" if said else why)
    return list(checks.values())


def newest(directory: Path) -> Path:
    """A version directory: the given one, or the highest version in a model's folder."""
    if not directory.is_dir():
        raise UsageError(f"{directory} is no folder; give a version, such as saved_models/digits/1")
    if (directory / "saved_model.pb").is_file():
        return directory
    versions = files.versions(directory)
    if not versions:
        raise UsageError(f"{directory} holds no exported version, such as saved_models/digits/1")
    return versions[max(versions)]


def main(arguments: list[str]) -> int:
    """`python -m pipeline.verify DIR [--json]`; 0 if all checks passed, 1 if one failed."""

    def command(directory: tyro.conf.Positional[Path], /, json: bool = False) -> tuple[Path, bool]:
        """Proves that TensorFlow Serving will answer as the trained model does.

        Args:
            directory: A version (saved_models/digits/1), or a model: its newest version.
            json: Print the checks as JSON instead of a table.
        """
        return directory, json

    if "--help" in arguments or "-h" in arguments:
        tyro.cli(command, args=["--help"], prog="python -m pipeline.verify")
    words = [word for word in arguments if word != "--json"]
    if len(words) != 1 or words[0].startswith("-") or not words[0]:
        raise UsageError(
            "python -m pipeline.verify DIRECTORY [--json] takes one folder, such as "
            f"saved_models/digits/1; received {' '.join(arguments)[:200]!r}"
        )
    require_path(Path(words[0]), "DIRECTORY")
    outcome = verify(newest(Path(words[0])))
    if not files.is_version(outcome.directory.name):
        version = Check(
            "version", False, f"{outcome.directory.name!r} is no version number: never served"
        )
        outcome = dataclasses.replace(outcome, checks=(version, *outcome.checks))
    if "--json" in arguments:
        print(json.dumps(outcome.as_json(), indent=2))
    else:
        count = len(outcome.checks)
        print(outcome)
        verdict = f"passed all {count} checks" if outcome.passed else "must not be served"
        print(f"{outcome.directory} {verdict}")
    return 0 if outcome.passed else 1


if __name__ == "__main__":
    run_command(main)
