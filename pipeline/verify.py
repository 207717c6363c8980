"""Proof that a server will answer as the trained model does: the command and its verdict."""

import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import tyro

from pipeline.config import cli_parser
from pipeline.config.validation import require, require_path
from pipeline.export import bad_requests, proof
from pipeline.serving import models_config, repository, version_manifest
from pipeline.utils import files
from pipeline.utils.errors import UsageError, plain, run_command

PROVED = "the SavedModel answers as the trained model does"
"""What the checks show of a version that passed them; not how good the model is."""
_PROGRAM = "python -m pipeline.verify"
# A folder that holds none of them is no export of this package; one that lacks some is damaged.
_OURS = (proof.GOLDEN, version_manifest.MANIFEST)
_TIMEOUT_SECONDS = 600
_SECONDS_EACH = 1  # of a fuzzed string: an image of the most pixels that are decoded takes as long


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


def verify(
    directory: Path, *, fuzzed: int = bad_requests.FUZZED, python: Path | None = None
) -> Verification:
    """Asks the SavedModel in `directory` in a fresh process, through TensorFlow's C++ loader.

    Checks the digests of its files, and if they are right the contract of the signatures, that
    the released server has every operation, that the warm-up requests are answered, that stored
    real examples get the answers of the trained model (in float32, to 1e-5 of the largest answer),
    and that wrong and hostile requests are refused without harm.

    Args:
        directory: A version, under its number or still under a hidden name.
        fuzzed: Changed byte strings that are sent to each signature that takes strings.
        python: An interpreter with another TensorFlow, whose runtime answers; None: this one.

    Raises:
        UsageError: There is no export of this package in `directory`, or the process cannot be
            started.
    """
    if not any((directory / name).is_file() for name in _OURS):
        raise UsageError(f"{directory} is no export of this package: it has no {_OURS[0]}")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    if python is not None:  # it has packages of its own, and not those of this one
        environment.pop("PYTHONPATH", None)
        environment.pop("PYTHONHOME", None)
    interpreter = str(python or sys.executable)
    words = [interpreter, "-m", "pipeline.export.proof", str(directory.resolve()), str(fuzzed)]
    try:
        process = subprocess.run(
            words,
            env=environment,
            cwd=Path(__file__).parents[1],  # where this package is found, installed or not
            capture_output=True,
            encoding="utf-8",
            errors="replace",  # a model prints what it likes
            timeout=_TIMEOUT_SECONDS + fuzzed * _SECONDS_EACH,
        )
        output, errors, code = process.stdout, process.stderr, process.returncode
    except subprocess.TimeoutExpired as expired:
        output, errors = (
            (s or b"").decode(errors="replace") for s in (expired.stdout, expired.stderr)
        )
        code = None
    except OSError as error:
        raise UsageError(
            f"the process that runs the checks cannot be started with {interpreter}: "
            f"{error.strerror or error}"
        ) from None
    checks = _read(output, errors, code)
    if python is not None and [check.name for check in checks] == ["starts"]:
        raise UsageError(
            f"--python: {python} does not run the proof: {checks[0].detail}; it must be a Python "
            "that has numpy, protobuf and tensorflow-cpu (--runtime-version 2.20 tells how)"
        )
    return Verification(directory, tuple(checks))


def _read(output: str, errors: str, code: int | None) -> list[Check]:
    """The child's lines; a check that started and never ended took the process with it."""
    checks: dict[str, Check] = {}
    last, now = "starts", ""
    for line in output.splitlines():
        try:
            values = dict(json.loads(line))
            last, now = str(values["check"]), values.get("now", "")
            if "passed" in values:
                checks[last] = Check(last, bool(values["passed"]), str(values["detail"]))
        except (ValueError, TypeError, KeyError):
            return [Check("starts", False, f"the proof did not run: it said {line[:200]!r}")]
    over = last in proof.STOPS and last in checks and not checks[last].passed
    if "finished" not in checks and not over:
        why = "took too long" if code is None else f"ended the process (exit code {code})"
        why = f"{now}: {why}" if now else why
        said = errors.strip().splitlines()
        checks[last] = Check(last, False, f"{why}: {said[-1]}" if said else why)
    elif not over and code != int(not all(check.passed for check in checks.values())):
        checks["ends"] = Check("ends", False, f"with the exit code {code}")
    return list(checks.values())


def chosen(directory: Path) -> Path:
    """A version directory: the given one, or in a model's folder that which a server would answer
    with, the pinned one or the newest.

    Raises:
        UsageError: There is none.
    """
    if not directory.is_dir():
        raise UsageError(f"{directory} is no folder; give a version, such as saved_models/digits/1")
    if any((directory / name).is_file() for name in ("saved_model.pb", *_OURS)):
        return directory
    if not files.versions(directory):
        raise UsageError(f"{directory} holds no exported version, such as saved_models/digits/1")
    live = repository.live(directory)
    if live is None:
        pinned = ", ".join(map(str, models_config.pinned(directory)))
        # As a path, which no name in saved_models/ can be.
        path = directory if len(directory.parts) > 1 else f"./{directory}"
        raise UsageError(
            f"{directory / models_config.NAME} pins version {pinned}, which is not there: a "
            "server would answer nothing; python -m pipeline.export "
            f"{shlex.quote(str(path))} --unpin takes the newest"
        )
    return live


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What the command takes beside a folder."""

    json: bool = False
    """Print the checks as JSON instead of a table."""
    fuzz: int = bad_requests.FUZZED
    """Changed byte strings that are sent to each signature that takes strings."""
    python: Path | None = None
    """Run the proof with this interpreter, of an environment with another TensorFlow."""
    runtime_version: str | None = None
    """Only print the commands that make such an environment and prove this model in it, for a
    version of TensorFlow: 2.20 is that of the released server."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Command(Options):
    """Proves that TensorFlow Serving will answer as the trained model does.

    Exit code 0 if all checks passed, 1 if one failed: then the model must not be served.
    """

    directory: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="DIRECTORY")]]
    """A version (saved_models/digits/1), or a model: the version that is served, which is the
    pinned one or the newest."""


def _options(arguments: list[str]) -> tuple[Path, Options]:
    """A folder, in front or alone, and options; raises UsageError."""
    json_asked = "--json" in arguments  # stands anywhere, and takes no value
    words = [word for word in arguments if word != "--json"]
    if not words or words[0].startswith("-") or not words[0]:
        raise UsageError(
            f"{_PROGRAM} DIRECTORY [--json] [--fuzz N] [--python PYTHON] takes one folder, first, "
            f"such as saved_models/digits/1; received {' '.join(arguments)[:200]!r}"
        )
    if len(words) > 1 and not words[1].startswith("-"):
        raise UsageError(f"{_PROGRAM} takes one folder; received {' '.join(words)[:200]!r}")
    options = Options(**{"json": json_asked, **cli_parser.changes(words[1:], Options)})
    require_path(Path(words[0]), "DIRECTORY")
    good = 0 <= options.fuzz <= 10**6
    require(good, "--fuzz", options.fuzz, "at least 0 and at most 10**6")
    if options.python is not None:
        require_path(options.python, "--python")
        # A path is searched for a bare name only, and `./python` has become one.
        here = options.python.is_file() and os.access(options.python, os.X_OK)
        found = options.python if here else shutil.which(options.python)
        if found is None:
            raise UsageError(
                f"--python: {options.python} is no program; give an interpreter, such as "
                "serving-2.20/bin/python"
            )
        options = dataclasses.replace(options, python=Path(found).absolute())
    version = options.runtime_version
    if version is not None:
        good = re.fullmatch(r"[1-9][0-9]?(\.[0-9]{1,3}){1,2}", version) is not None
        require(good, "--runtime-version", repr(version), "a version, such as 2.20")
    return Path(words[0]), options


def instructions(directory: Path, version: str) -> str:
    """Commands that make an environment with another TensorFlow, and run the proof in it.

    Its Python packages are not needed but for NumPy and protobuf; the wheel's libraries are.
    """
    folder = f"serving-{version}"
    whole = version if version.count(".") == 2 else f"{version}.0"
    return "\n".join(
        (
            f"python3 -m venv {folder}",
            f"{folder}/bin/pip install numpy protobuf",
            f"{folder}/bin/pip install --no-deps tensorflow-cpu=={whole}",
            f"{_PROGRAM} {shlex.quote(str(directory))} --python {folder}/bin/python",
        )
    )


def main(arguments: list[str]) -> int:
    """`python -m pipeline.verify DIR [--option VALUE ...]`; 0 if all checks passed, else 1."""

    if "--help" in arguments or "-h" in arguments:
        tyro.cli(_Command, args=["--help"], prog=_PROGRAM)
    directory, options = _options(arguments)
    if options.runtime_version is not None:
        print(instructions(directory, options.runtime_version))
        return 0
    outcome = verify(chosen(directory), fuzzed=options.fuzz, python=options.python)
    name = Path(os.path.abspath(outcome.directory)).name  # of `.`, too
    if not files.is_version(name):
        why = f"{name!r} is no version number: never served"
        if name == repository.REFUSED:
            why = "held back by --export.tolerance, as it is worse than what was served: no number"
        version = Check("version", False, why)
        outcome = dataclasses.replace(outcome, checks=(version, *outcome.checks))
    if options.json:
        print(json.dumps(outcome.as_json(), indent=2))
    else:
        print(plain(str(outcome)))
        verdict = f"passed all {len(outcome.checks)} checks: {PROVED}"
        if not outcome.passed:
            skipped = outcome.checks[-1].name in proof.STOPS
            verdict = "must not be served" + "; the other checks were skipped" * skipped
        print(f"{outcome.directory} {verdict}")
    return 0 if outcome.passed else 1


if __name__ == "__main__":
    run_command(main)
