"""Verification of an exported version: runs the checks in a separate process."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pipeline.export import formats, proof
from pipeline.serving import version_manifest
from pipeline.utils import console
from pipeline.utils.errors import UsageError

PROVED = "the SavedModel gives the same predictions as the trained model"
"""What a passed verification proves; it does not prove the quality of the model."""
_TIMEOUT_SECONDS = 600


@dataclasses.dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    passed: bool
    detail: str


@dataclasses.dataclass(frozen=True)
class Verification:
    """The results of all checks of one exported version."""

    directory: Path
    checks: tuple[Check, ...]
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Requested files in other formats that the version lacks, and why."""

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def failed_formats(self) -> dict[str, str]:
        """Files in other formats that failed their check, and why."""
        details = {c.name: c.detail for c in self.checks if not c.passed}
        failed = {}
        for file in formats.FILES.values():
            name = formats.check_name(file)
            if name in details:
                failed[file] = details[name]
        return failed

    def __str__(self) -> str:
        marks = {True: "passed", False: "FAILED"}
        return console.table((marks[c.passed], c.name, c.detail) for c in self.checks)

    def as_json(self) -> dict:
        """Returns plain values: passed, directory, checks, left_out."""
        checks = [dataclasses.asdict(check) for check in self.checks]
        return {
            "passed": self.passed,
            "directory": str(self.directory),
            "checks": checks,
            "left_out": dict(self.left_out),
        }


def start(
    directory: Path, python: Path | None = None, module: str = "proof"
) -> subprocess.Popen[bytes]:
    """Starts the process of the checks, which loads its libraries and waits.

    `begin` and `verify` let it go on.
    """
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    if python is not None:  # it has its own packages
        environment.pop("PYTHONPATH", None)
        environment.pop("PYTHONHOME", None)
    interpreter = str(python or sys.executable)
    module = f"pipeline.export.{module}"
    return subprocess.Popen(
        [interpreter, "-m", module, str(directory.resolve())],
        env=environment,
        cwd=Path(__file__).parents[2],  # which contains this package, installed or not
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def begin(process: subprocess.Popen[bytes]) -> None:
    """Lets the process of `start` run the checks of SavedModel and warm-up requests.

    The other checks wait for `verify`.
    """
    with contextlib.suppress(BrokenPipeError):  # it ended; `verify` tells why
        os.write(process.stdin.fileno(), b"\n")  # type: ignore[union-attr]


def verify(
    directory: Path,
    *,
    python: Path | None = None,
    process: subprocess.Popen[bytes] | None = None,
) -> Verification:
    """Loads a SavedModel with TensorFlow's C++ loader and checks its predictions.

    Args:
        directory: The directory of a version; its name is a number or still hidden.
        python: An interpreter with a different TensorFlow; None: this interpreter.
        process: The result of `start` for this directory, if it was called.

    Raises:
        UsageError: The directory is not an export, or the process cannot be started.
    """
    # An export that lacks one of the two files is damaged; a directory without both is
    # not an export.
    has_golden = (directory / proof.GOLDEN).is_file()
    if not has_golden and not (directory / version_manifest.MANIFEST).is_file():
        raise UsageError(
            f"{directory} is not an export of pipeline: it has no {proof.GOLDEN}"
        )
    checks = _results(process or start(directory, python))
    if python is not None and [check.name for check in checks] == ["starts"]:
        raise UsageError(
            f"--python: {python} does not run the checks: {checks[0].detail}; it must"
            " be a Python with numpy, protobuf, google-crc32c, tensorflow-cpu and"
            " tensorflow-serving-api"
        )
    is_finished = checks[-1].name == "finished"
    if is_finished and python is None and formats.list_files(directory):
        checks += _check_formats(directory)
    return Verification(directory, tuple(checks))


def _check_formats(directory: Path) -> list[Check]:
    """Checks the files in other formats; if the process ends, the rest fail."""
    results = _results(start(directory, module="formats"))
    checks = {check.name: check for check in results}
    last = results[-1]
    missing = f"not compared: {last.name}: {last.detail}"
    names = [formats.check_name(file) for file in formats.list_files(directory)]
    return [checks.get(name) or Check(name, False, missing) for name in names]


def _results(process: subprocess.Popen[bytes]) -> list[Check]:
    """Reads the results that a process prints.

    A check without a result has ended the process.
    """
    code = None
    try:
        output, errors = process.communicate(timeout=_TIMEOUT_SECONDS)
        code = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
    checks: dict[str, Check] = {}
    last = "starts"
    for line in output.decode(errors="replace").splitlines():
        try:
            values = json.loads(line)
            last = values["check"]
            if "passed" in values:
                checks[last] = Check(last, values["passed"], values["detail"])
        except (ValueError, TypeError, LookupError):  # another program
            return [Check("starts", False, f"the process printed {line[:200]!r}")]
    if last not in checks or (code and all(check.passed for check in checks.values())):
        why = f"ended the process (exit code {code})"
        if code is None:
            why = "took too long"
        lines = errors.decode(errors="replace").strip().splitlines()
        checks[last] = Check(last, False, ": ".join([why, *lines[-1:]]))
    return list(checks.values())
