"""Injects faults into a small run: `python -m tests.nightly.fault_injection`, at the root.

Exit code 1 if a run was lost, 2 for wrong options.
"""

import dataclasses
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from pipeline.config import cli_parser, help_text
from pipeline.utils import temp_files
from pipeline.utils.errors import UsageError, run_command, suggest
from tests.nightly.fault_injection import faults, harness
from tests.nightly.fault_injection.harness import Lost
from tests.nightly.fault_injection.reference import Ground

FAULTS: dict[str, Callable[[Ground, int], int]] = {
    "kill": faults.kill,
    "flip": faults.flip,
    "disk": faults.disk,
    "term": faults.term,
    "race": faults.race,
    "nan": faults.nan,
    "switch": faults.switch,
    "replicas": faults.replicas,
    "time": faults.time,
}
_COUNTING = threading.Lock()
_MEANING = {
    "kill": "SIGKILL at random moments, half of them in a save or an export",
    "flip": "a file of the newest checkpoint changed, cut, emptied or deleted; or of all of them",
    "disk": "no space left during a save, or until the next",
    "term": "SIGTERM or Ctrl-C at random moments, or in a trace, validation, save, export",
    "race": "2 to 4 starts in one run directory",
    "nan": "an example whose pixels are not a number",
    "switch": "stopped under one engine, continued under the other",
    "replicas": "stopped on one replica, continued on two",
    "time": "--runtime.time-limit in the middle of training",
}


@dataclasses.dataclass(frozen=True)
class Options:
    """Faults injected into a small run on this machine; nothing outside a temporary folder."""

    minutes: float = 5.0
    """Time for everything; each fault gets an equal share of it, and at least one trial."""
    faults: str = ",".join(FAULTS)
    """Which, separated by commas."""
    trials: int | None = None
    """So many of each fault, whatever the time; None: as many as there is time for."""
    at_once: int = 1
    """Trials at the same time; each takes a core and a gigabyte."""
    seed: int | None = None
    """Only the trial of this number, as a loss names it."""


@dataclasses.dataclass
class Count:
    """What became of one fault."""

    tried: int = 0
    """How often it struck; a run may be killed more than once."""
    begun: int = 0
    trials: int = 0
    seconds: float = 0.0
    lost: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    """Seed of a trial, and how its run was lost."""


def inject(options: Options) -> dict[str, Count]:
    """Tries each fault, next always the one that has had the least time.

    Raises UsageError for a fault that there is not.
    """
    counts = {name: Count() for name in _names(options)}
    with temp_files.temporary() as folder, ThreadPoolExecutor(options.at_once) as pool:
        place, order = Ground(folder.resolve()), _order(options, counts)
        running: set[Future[None]] = set()
        try:
            while True:
                while len(running) < options.at_once and (chosen := next(order, None)):
                    running.add(pool.submit(_try, place, counts[chosen[0]], *chosen))
                if not running:
                    return counts
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for trial in done:
                    trial.result()
                _show_progress(counts)
        except KeyboardInterrupt:
            print(table(counts), flush=True)
            while running:  # a trial may start its run again before it gives up
                harness.kill_all()
                running = wait(running, 0.1).not_done
            raise


def _try(place: Ground, count: Count, name: str, seed: int) -> None:
    """One trial, counted."""
    begin, lost = time.monotonic(), None
    try:
        tried = FAULTS[name](place, seed)
    except Lost as error:
        tried, lost = 1, str(error)
        print(f"lost      {name}, --seed {seed}: {error}", flush=True)
    with _COUNTING:
        count.tried += tried
        count.lost += [] if lost is None else [(seed, lost)]
        count.trials += 1
        count.seconds += time.monotonic() - begin


def _show_progress(counts: dict[str, Count]) -> None:
    if sys.stderr.isatty():
        text = "  ".join(f"{name} {count.tried}" for name, count in counts.items())
        print(f"\r{text}\r", end="", file=sys.stderr, flush=True)


def _names(options: Options) -> list[str]:
    names = [name.strip() for name in options.faults.split(",") if name.strip()]
    for name in names:
        if name not in FAULTS:
            raise UsageError(f"--faults {name}: {suggest(name, FAULTS)}")
    if not names:
        raise UsageError(f"--faults names none; there are: {', '.join(FAULTS)}")
    for name in ("minutes", "trials"):
        value = getattr(options, name)
        if value is not None and not 0 < value < 10**6:
            raise UsageError(f"--{name} must be positive and below 10**6, received {value}")
    most = os.cpu_count() or 1
    if not 1 <= options.at_once <= most:
        raise UsageError(f"--at-once must be 1 to {most}, a core each, received {options.at_once}")
    if options.seed is not None and options.seed < 0:
        raise UsageError(f"--seed must be at least 0, received {options.seed}")
    return list(dict.fromkeys(names))


def _order(options: Options, counts: dict[str, Count]) -> Iterator[tuple[str, int]]:
    """(fault, seed) of one trial after the other, by what has become of those before it."""
    if options.seed is not None:
        yield from ((name, options.seed) for name in counts)
        return
    until = time.monotonic() + 60 * options.minutes
    while True:
        left = [n for n, c in counts.items() if options.trials is None or c.tried < options.trials]
        if options.trials is None and time.monotonic() > until:
            left = [name for name in left if not counts[name].begun]
        if not left:
            return
        name = min(left, key=lambda name: counts[name].seconds)
        counts[name].begun += 1
        yield name, counts[name].begun - 1


def table(counts: dict[str, Count]) -> str:
    """fault | tried | survived | lost | seconds | what it is, a line each."""
    rows: list[Sequence[object]] = [("fault", "tried", "survived", "lost", "seconds", "")]
    for name, count in counts.items():
        lost, seconds = len(count.lost), f"{count.seconds:.0f}"
        rows.append((name, count.tried, count.tried - lost, lost, seconds, _MEANING[name]))
    lines = [f"{r[0]!s:<8}" + "".join(f"{c!s:>9}" for c in r[1:5]) + f"  {r[5]}" for r in rows]
    return "\n".join(line.rstrip() for line in lines)


def main(arguments: list[str]) -> int:
    """`python -m tests.nightly.fault_injection [--option VALUE ...]`; 1 if a run was lost."""
    if "--help" in arguments or "-h" in arguments:
        print(help_text.page("python -m tests.nightly.fault_injection", __doc__, Options()))
        return 0
    options = Options(**cli_parser.changes(arguments, Options))
    names = ", ".join(_names(options))
    timed = options.trials is None and options.seed is None
    print(f"faults    {names}{f'; {options.minutes:g} minutes' if timed else ''}", flush=True)
    counts = inject(options)
    print(table(counts))
    lost = sum(len(count.lost) for count in counts.values())
    words = {0: "no run was lost", 1: "1 run was lost"}
    print(words.get(lost, f"{lost} runs were lost"))
    return 1 if lost else 0


if __name__ == "__main__":
    run_command(main)
