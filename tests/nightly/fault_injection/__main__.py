"""Injects faults into a small run: `python -m tests.nightly.fault_injection`, in a clone.

Exit code 1 if a run did not survive.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable
from typing import Literal

from pipeline.config import cli_parser, help_text
from pipeline.utils import temp_files
from pipeline.utils.errors import run_command
from tests.nightly.fault_injection import faults
from tests.nightly.fault_injection.harness import RunLost
from tests.nightly.fault_injection.reference import Workspace

Name = Literal["kill", "flip", "disk", "term", "race", "nan", "switch", "replicas", "time"]
FAULTS: dict[str, Callable[[Workspace, int], int]] = {
    name: getattr(faults, name) for name in Name.__args__
}


@dataclasses.dataclass(frozen=True)
class Options:
    """Injects faults into a small run, in a temporary directory."""

    faults: tuple[Name, ...] = Name.__args__
    """Which faults."""
    minutes: float = 5.0
    """Starts no trial after this time; each fault gets at least one."""
    trials: int | None = None
    """Trials of each fault, whatever the time."""
    seed: int = 0
    """Seed of the first trial; the next ones count up."""


@dataclasses.dataclass
class Count:
    """Results of one fault."""

    injected: int = 0
    seconds: float = 0.0
    lost: int = 0


def inject(options: Options) -> dict[str, Count]:
    """Tries the faults in turns; prints each run that is lost."""
    counts = {name: Count() for name in options.faults}
    end = time.monotonic() + 60 * options.minutes
    with temp_files.temporary() as folder:
        space = Workspace(folder.resolve())
        for trial in itertools.islice(itertools.count(), options.trials):
            for name, count in counts.items():
                if options.trials is None and trial and time.monotonic() > end:
                    return counts
                begin = time.monotonic()
                try:
                    count.injected += FAULTS[name](space, options.seed + trial)
                except RunLost as error:
                    count.lost += 1
                    print(f"lost      {name}, --seed {options.seed + trial}: {error}", flush=True)
                count.seconds += time.monotonic() - begin
    return counts


def main(arguments: list[str]) -> int:
    """Prints a table of the results."""
    if "--help" in arguments:
        program = "python -m tests.nightly.fault_injection"
        print(help_text.page(program, Options.__doc__ or "", Options()))
        return 0
    counts = inject(Options(**cli_parser.changes(arguments, Options)))
    print(f"{'fault':<9}{'injected':>9}{'lost':>6}{'seconds':>9}")
    for name, count in counts.items():
        print(f"{name:<9}{count.injected:>9}{count.lost:>6}{count.seconds:>9.0f}")
    return int(any(count.lost for count in counts.values()))


if __name__ == "__main__":
    run_command(main)
