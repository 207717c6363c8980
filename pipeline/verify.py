"""Checks that an exported model gives the same answers as the trained model."""

import dataclasses
import json
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Annotated

from pipeline.config import cli_parser, help_text
from pipeline.config.validation import require, require_path
from pipeline.export import proof
from pipeline.export.verification import PROVED, Check, verify
from pipeline.serving import repository
from pipeline.utils import files
from pipeline.utils.errors import UsageError, run_command

_PROGRAM = "python -m pipeline.verify"
_DIRECTORY = """\
A version (saved_models/digits/1), or a model: its served version, which is the pinned one or the
newest."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Checks that TensorFlow Serving will answer as the trained model does.

    Exit code 0 if all checks passed, 1 if one failed: then the model must not be served.
    """

    json: bool = False
    """Print the checks as JSON instead of a table."""
    fuzz: Annotated[int, (0, 10**6)] = 0
    """Also send this many mutated strings to each string input; the server must survive them."""
    python: str | None = None
    """Run the checks with this interpreter, from an environment with another TensorFlow."""
    runtime_version: str | None = None
    """Only print the commands that create such an environment and verify the model in it, for a
    version of TensorFlow such as 2.20, which the released server is built from."""


def instructions(directory: Path, version: str) -> str:
    """Commands that create an environment with another TensorFlow and run the checks in it."""
    good = re.fullmatch(r"[1-9][0-9]?(\.[0-9]{1,3}){1,2}", version) is not None
    require(good, "--runtime-version", repr(version), "a version, such as 2.20")
    environment = f"serving-{version}"
    release = version if version.count(".") == 2 else f"{version}.0"
    return f"""\
python3 -m venv {environment}
{environment}/bin/pip install numpy protobuf google-crc32c
{environment}/bin/pip install --no-deps tensorflow-cpu=={release} tensorflow-serving-api
{_PROGRAM} {shlex.quote(str(directory))} --python {environment}/bin/python"""


def main(arguments: list[str]) -> int:
    """`python -m pipeline.verify DIRECTORY [--option VALUE ...]`; 1 if a check failed, else 0."""
    if "--help" in arguments or "-h" in arguments:
        about = " ".join((Options.__doc__ or "").split())
        positional = {"DIRECTORY": _DIRECTORY}
        print(help_text.page(_PROGRAM, about, Options(), positional))
        return 0
    if not arguments or not arguments[0] or arguments[0].startswith("-"):
        raise UsageError(f"{_PROGRAM} needs a directory first, such as saved_models/digits/1")
    directory, options = Path(arguments[0]), Options(**cli_parser.changes(arguments[1:], Options))
    require_path(directory, "DIRECTORY")
    if options.runtime_version is not None:
        print(instructions(directory, options.runtime_version))
        return 0
    python = shutil.which(options.python) if options.python else None
    if options.python and python is None:
        raise UsageError(f"--python: {options.python!r} is not a program")
    version = repository.chosen(directory)
    outcome = verify(version, fuzz=options.fuzz, python=Path(python).absolute() if python else None)
    name = Path(os.path.abspath(outcome.directory)).name  # of `.`, too
    if not files.is_version(name):
        number = Check("version", False, f"{name!r} is not a version number: it is never served")
        outcome = dataclasses.replace(outcome, checks=(number, *outcome.checks))
    verdict = f"passed all {len(outcome.checks)} checks: {PROVED}"
    if not outcome.passed:
        skipped = outcome.checks[-1].name in proof.STOPS
        verdict = "must not be served" + "; the other checks were skipped" * skipped
    table = f"{outcome}\n{outcome.directory} {verdict}"
    print(json.dumps(outcome.as_json(), indent=2) if options.json else table)
    return 0 if outcome.passed else 1


if __name__ == "__main__":
    run_command(main)
