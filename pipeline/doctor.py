"""Checks whether this machine can train and export."""

from pipeline.utils import console
from pipeline.utils.errors import UsageError, run_command

PROGRAM = "pipeline doctor"
_HELP = f"""\
usage: {PROGRAM}

Checks Python, packages, GPUs, CPU, memory and disk."""


def main(arguments: list[str]) -> int:
    """`pipeline doctor`.

    Prints the result of all checks. Returns 1 if a required component is missing or
    broken.
    """
    if "--help" in arguments or "-h" in arguments:
        print(_HELP)
        return 0
    if arguments:
        raise UsageError(f"{PROGRAM} takes no arguments; got {arguments[0]!r}")
    from pipeline.runtime import environment_check

    findings = list(environment_check.check())
    rows = [(f.status, f.name, f.value, f.remedy) for f in findings]
    print(console.table(rows, ["status", "check", "found", "remedy"]))
    errors = sum(finding.status == "error" for finding in findings)
    if errors:
        print(f"{errors} of {len(findings)} checks failed")
        return 1
    print("the environment is usable")
    return 0


if __name__ == "__main__":
    run_command(main)
