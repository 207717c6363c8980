"""Verification of an exported version in a fresh process: the checks and their verdict."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

from pipeline.export import bad_requests, proof
from pipeline.serving import version_manifest
from pipeline.utils.errors import UsageError

PROVED = "the SavedModel answers as the trained model does"
"""What the checks show of a version that passed them; not how good the model is."""
# A folder that holds none of them is no export of this package; one that lacks some is damaged.
_OURS = (version_manifest.GOLDEN, version_manifest.MANIFEST)
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
            cwd=Path(__file__).parents[2],  # where this package is found, installed or not
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
