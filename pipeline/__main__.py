"""Lists the commands and runs one: `pipeline COMMAND ...` or `python -m pipeline
COMMAND ...`.
"""

import ast
import os
import runpy
import sys
from pathlib import Path

from pipeline.utils.errors import UsageError, run_command, suggest

_PACKAGE = Path(__file__).parent
_USAGE = """\
usage: pipeline COMMAND [ARGUMENT ...]   (or: python -m pipeline.COMMAND [ARGUMENT ...])

From images on disk to a verified SavedModel, with Keras 3 and TensorFlow.

commands:
{commands}

pipeline COMMAND --help  shows the arguments of a command."""


def main() -> None:
    """The console script `pipeline`: runs a command as `python -m pipeline.COMMAND`
    does.

    The current directory comes last on Python's path, so that dotted names such as
    `mine.model.function` are found but no file there shadows a package.
    """
    if not sys.argv[1:] or sys.argv[1] not in commands():
        run_command(_list)
    sys.path.append(os.getcwd())
    name = sys.argv.pop(1)
    runpy.run_module(f"pipeline.{name}", run_name="__main__", alter_sys=True)


def commands() -> dict[str, str]:
    """Maps each command to the first line of its docstring, without importing the
    command.

    A command is a module, or the `__main__.py` of a subpackage, with a function `main`.
    """
    found = {}
    for path in (*_PACKAGE.glob("[!_]*.py"), *_PACKAGE.glob("*/__main__.py")):
        tree = ast.parse(path.read_bytes())
        if any(
            isinstance(node, ast.FunctionDef) and node.name == "main"
            for node in tree.body
        ):
            name = path.parent.name if path.stem == "__main__" else path.stem
            paragraph = (ast.get_docstring(tree) or "").partition("\n\n")[0]
            found[name] = " ".join(paragraph.split())
    return dict(sorted(found.items()))


def _list(arguments: list[str]) -> int:
    """Prints the commands; UsageError for any other word."""
    known = commands()
    if arguments and arguments[0] not in ("--help", "-h"):
        raise UsageError(
            f"unknown command {arguments[0]!r}; {suggest(arguments[0], known)}"
        )
    width = max(map(len, known))
    lines = [f"  {name:{width}}  {summary}" for name, summary in known.items()]
    print(_USAGE.format(commands="\n".join(lines)))
    return 0


if __name__ == "__main__":
    main()
