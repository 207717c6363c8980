"""Not a command; prints which command to use instead."""

from pipeline.utils.errors import UsageError, run_command


def _refuse(arguments: list[str]) -> None:
    run = arguments[0] if arguments else "RUN"
    raise UsageError(
        "pipeline.evaluate is not a command: python -m pipeline.fit evaluates each run at the end "
        f"({run}/result.json), and python -m pipeline.export {run} evaluates its latest checkpoint "
        "and exports it"
    )


if __name__ == "__main__":
    run_command(_refuse)
