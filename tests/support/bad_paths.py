"""Commands on paths that cannot be used, as a program: reads cases as JSON, prints what was said.

One process without TensorFlow for all of them. Where a command would go on to import it, the case
ends as accepted.
"""

import contextlib
import io
import json
import os
import sys
import time

from pipeline import clean, fit, inspect
from pipeline.runtime import environment
from pipeline.utils.errors import UsageError

COMMANDS = {"fit": fit.main, "clean": clean.main, "inspect": inspect.main}
NOBODY = 65534


class Accepted(Exception):
    """TensorFlow would be imported now."""


def accept(*_):
    raise Accepted


def outcome(command, words):
    start, said = time.process_time(), ""
    try:
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            COMMANDS[command](words)
        kind = "done"
    except Accepted:
        kind = "accepted"
    except UsageError as error:
        kind, said = f"exit {error.exit_code}", f"error: {error}"
    except SystemExit as stop:
        kind, said = f"exit {stop.code}", errors.getvalue()
    except OSError as error:  # what `run_command` makes of it names no remedy
        kind, said = "unnamed", f"{error.strerror}: {error.filename}"
    except Exception as error:
        kind, said = "traceback", repr(error)
    return {"kind": kind, "said": said, "seconds": time.process_time() - start}


def main():
    environment.start = accept
    cases = json.load(sys.stdin)
    for command in COMMANDS:  # imports all that comes before
        outcome(command, [])
    results = []
    for case in cases:
        os.chdir(case["folder"])
        os.environ.update(case.get("environment", {}))
        if case.get("nobody") and os.geteuid() == 0:
            os.seteuid(NOBODY)
        results.append(outcome(case["command"], case["words"]))
        if os.getuid() == 0:
            os.seteuid(0)
        for name in case.get("environment", {}):
            del os.environ[name]
    heavy = sorted({"tensorflow", "keras", "numpy"} & set(sys.modules))
    print(json.dumps({"results": results, "heavy": heavy}))


if __name__ == "__main__":
    main()
