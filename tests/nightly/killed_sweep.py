"""A sweep that kills itself before or after a call.

`python -m tests.nightly.killed_sweep FUNCTION before|after WORDS` runs `pipeline sweep
WORDS`; FUNCTION is one of `FUNCTIONS`.
"""

import os
import signal
import sys
from typing import Any

import optuna

from pipeline import sweep
from pipeline.runtime import trials
from pipeline.utils.errors import run_command

FUNCTIONS: dict[str, tuple[Any, str]] = {
    "ask": (optuna.Study, "ask"),
    "suggest": (optuna.trial.Trial, "suggest_float"),
    "start": (trials, "start"),
    "report": (optuna.trial.Trial, "report"),
    "tell": (optuna.Study, "tell"),
    "end": (sweep._Sweep, "_report"),
}


def kill_at(function: str, when: str) -> None:
    """Kills this process at the first call of a function."""
    owner, name = FUNCTIONS[function]
    original = getattr(owner, name)

    def replaced(*arguments: Any, **options: Any) -> None:
        if when == "after":
            original(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, replaced)


if __name__ == "__main__":
    kill_at(sys.argv[1], sys.argv[2])
    sys.argv[1:3] = []
    run_command(sweep.main)
