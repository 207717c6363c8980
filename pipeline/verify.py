"""Proves that a server will answer as the trained model does."""

import dataclasses
import json
import os
import re
import shlex
import shutil
from pathlib import Path

from pipeline.config import cli_parser, help_text
from pipeline.config.validation import require, require_path
from pipeline.export import bad_requests, proof
from pipeline.export.verification import PROVED, Check, verify
from pipeline.serving import repository
from pipeline.utils import files
from pipeline.utils.errors import UsageError, plain, run_command

_PROGRAM = "python -m pipeline.verify"


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


_ABOUT = """\
Verifies that TensorFlow Serving will answer as the trained model does. Exit code 0 if all checks
passed, 1 if one failed: then the model must not be served."""
_DIRECTORY = """\
A version (saved_models/digits/1), or a model: the version that is served, which is the pinned one
or the newest."""


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
        print(help_text.page(_PROGRAM, _ABOUT, Options(), {"DIRECTORY": _DIRECTORY}))
        return 0
    directory, options = _options(arguments)
    if options.runtime_version is not None:
        print(instructions(directory, options.runtime_version))
        return 0
    outcome = verify(repository.chosen(directory), fuzzed=options.fuzz, python=options.python)
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
