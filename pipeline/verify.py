"""Checks that an exported model gives the same predictions as the trained model."""

import dataclasses
import json
import shutil
from pathlib import Path

from pipeline.config import cli_parser, help_text
from pipeline.config.validation import require_path
from pipeline.export import proof
from pipeline.export.verification import PROVED, verify
from pipeline.serving import repository
from pipeline.utils.errors import UsageError, run_command

_PROGRAM = "pipeline verify"
_DIRECTORY = """\
The directory of a version (saved_models/digits/1), or of a model, to check its served
version (the pinned one or the newest)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """Checks that TensorFlow Serving will give the same predictions as the trained
    model.

    The exit code is 0 if all checks passed, and 1 if one failed: then the model must
    not be served.
    """

    json: bool = False
    """Print the checks as JSON instead of a table."""
    python: str | None = None
    """Run the checks with this interpreter, from an environment with a different
    TensorFlow.
    """


def main(arguments: list[str]) -> int:
    """`pipeline verify DIRECTORY [--option VALUE ...]`; returns 1 if a check failed."""
    if "--help" in arguments or "-h" in arguments:
        purpose = " ".join((VerifyOptions.__doc__ or "").split())
        positional = {"DIRECTORY": _DIRECTORY}
        print(help_text.page(_PROGRAM, purpose, VerifyOptions(), positional))
        return 0
    if not arguments or not arguments[0] or arguments[0].startswith("-"):
        raise UsageError(
            f"{_PROGRAM} needs a directory first, such as saved_models/digits/1"
        )
    directory = Path(arguments[0])
    options = VerifyOptions(**cli_parser.changes(arguments[1:], VerifyOptions))
    require_path(directory, "DIRECTORY")
    python = shutil.which(options.python) if options.python else None
    if options.python and python is None:
        raise UsageError(f"--python: {options.python!r} is not a program")
    version = repository.select_version(directory)
    interpreter = Path(python).absolute() if python else None
    outcome = verify(version, python=interpreter)
    verdict = "must not be served"
    if outcome.passed:
        verdict = f"passed all {len(outcome.checks)} checks: {PROVED}"
    elif outcome.checks[-1].name in proof.STOPS:
        verdict += "; the other checks were skipped"
    if options.json:
        print(json.dumps(outcome.as_json(), indent=2))
    else:
        print(f"{outcome}\n{outcome.directory} {verdict}")
    return 0 if outcome.passed else 1


if __name__ == "__main__":
    run_command(main)
