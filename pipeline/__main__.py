"""The command line `pipeline COMMAND ...`: lists the commands, or runs a command."""

import ast
import os
import runpy
import sys
from pathlib import Path

import pipeline
from pipeline.utils.errors import UsageError, run_command, suggest

_PACKAGE = Path(__file__).parent
_USAGE = """\
usage: pipeline COMMAND [ARGUMENT ...]   (or: python -m pipeline.COMMAND [ARGUMENT ...])

From examples on disk to a verified SavedModel, with Keras 3 and TensorFlow.

commands:
{commands}

pipeline COMMAND --help  shows the arguments of a command.
pipeline --version       shows the version of the package."""


def main() -> None:
    """The console script `pipeline`, which runs a command like `python -m
    pipeline.COMMAND`.

    The current directory comes last on Python's path, so that dotted names such as
    `mine.model.function` are found but no file there shadows a package.
    """
    if not sys.argv[1:] or sys.argv[1] not in commands():
        run_command(_list)
    sys.path.append(os.getcwd())
    name = sys.argv.pop(1)
    runpy.run_module(f"pipeline.{name}", run_name="__main__", alter_sys=True)


def commands() -> dict[str, str]:
    """Maps each command to its summary, without importing the command.

    A command is a module, or the `__main__.py` of a subpackage, with a function `main`.
    """
    summaries = {}
    for path in (*_PACKAGE.glob("[!_]*.py"), *_PACKAGE.glob("*/__main__.py")):
        tree = ast.parse(path.read_bytes())
        functions = [
            node.name for node in tree.body if isinstance(node, ast.FunctionDef)
        ]
        if "main" in functions:
            name = path.parent.name if path.stem == "__main__" else path.stem
            paragraph = (ast.get_docstring(tree) or "").partition("\n\n")[0]
            summaries[name] = " ".join(paragraph.split())
    return dict(sorted(summaries.items()))


def _list(arguments: list[str]) -> int:
    """Prints the commands, or the version; UsageError for any other word."""
    if arguments == ["--version"]:
        print(f"pipeline {pipeline.__version__}")
        return 0
    summaries = commands()
    if arguments and arguments[0] not in ("--help", "-h"):
        raise UsageError(
            f"unknown command {arguments[0]!r}; {suggest(arguments[0], summaries)}"
        )
    width = max(map(len, summaries))
    lines = [f"  {name:{width}}  {summary}" for name, summary in summaries.items()]
    print(_USAGE.format(commands="\n".join(lines)))
    return 0


if __name__ == "__main__":
    main()
