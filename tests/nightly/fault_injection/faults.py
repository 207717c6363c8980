"""The faults: each function is one trial, and raises `RunLost` if the run does not survive.

Each takes the `Workspace` and the seed of the trial, and returns how many faults were injected: 0
if the run ended first. The engine alternates with the seed.
"""

import contextlib
import random
import signal
from pathlib import Path
from time import monotonic as now

from tests.nightly.fault_injection import harness, reference
from tests.nightly.fault_injection.harness import Child, Fault, Result, RunLost
from tests.nightly.fault_injection.reference import ENGINES, Workspace, require_code

# A signal must take effect within this many seconds after the current call.
_PROMPT = 2.0
_KILLS = 3  # in one run, at most


def kill(space: Workspace, seed: int) -> int:
    """SIGKILL at random times, half of them in a save or an export; then the run is finished."""
    chance = random.Random(seed)
    engine, export = ENGINES[seed % 2], seed % 10 in (4, 9)
    expected = space.reference(engine, export)
    folder, last, kills = space.fresh(), -1, 0
    while kills < _KILLS:
        result = _killed(chance, folder, engine, export, expected)
        if result.code == 0:
            break
        _require_not_damaged(result)
        require_code(result, 137)
        kills += 1
        if reference.newest(folder) < last:
            raise RunLost(f"the checkpoint of step {last} is gone")
        last = reference.newest(folder)
    _require_not_damaged(space.finish(folder, engine, export))
    return kills


def _killed(
    chance: random.Random, folder: Path, engine: str, export: bool, expected: reference.Reference
) -> Result:
    """A run that is killed at a random time, or at a file operation."""
    words = reference.words(engine, export)
    if chance.random() < 0.5:
        name = "export" if export and chance.random() < 0.3 else "save"
        count = chance.randint(1, expected.result.count(name))
        delay = chance.choice((0.0, chance.uniform(0, 0.03)))  # between operations, or in one
        return harness.run("pipeline.fit", words, folder, Fault("SIGKILL", name, count, delay))
    with Child("pipeline.fit", words, folder) as child:
        if child.runs_for(chance.uniform(0, expected.seconds)):
            child.signal(signal.SIGKILL)
        return child.result()


def _require_not_damaged(result: Result) -> None:
    if "damaged" in result.output or "cannot be read" in result.output:
        raise RunLost(f"a kill left a damaged checkpoint: {result.output[-200:]}")


def term(space: Workspace, seed: int) -> int:
    """SIGTERM or SIGINT at random times, every fifth time twice.

    Half of them come during the first trace, a validation, a save or the export.
    """
    chance = random.Random(seed)
    engine, export = ENGINES[seed % 2], seed % 10 in (4, 9)
    expected = space.reference(engine, export)
    folder, words = space.fresh(), reference.words(engine, export)
    name = chance.choice(("SIGTERM", "SIGINT"))
    again = chance.uniform(0, 0.1) if seed % 5 == 4 else None
    if chance.random() < 0.5:
        events = ("trace", "validation", "save", *(("export",) if export else ()))
        event = chance.choice(events)
        count = chance.randint(1, expected.result.count(event))
        fault = Fault(name, event, count, chance.choice((0.0, chance.uniform(0, 0.1))), again)
        result = harness.run("pipeline.fit", words, folder, fault)
        sent = result.fault and result.fault.seconds + fault.delay
    else:
        with Child("pipeline.fit", words, folder) as child:
            sent = None
            if child.runs_for(chance.uniform(0, expected.seconds)):
                sent = now()
                child.signal(getattr(signal, name))
            if sent and again is not None and child.runs_for(again):
                child.signal(getattr(signal, name))
            result = child.result()
    if sent and sent < result.end and result.code:
        _require_stopped(result, sent, folder, 128 + getattr(signal, name), again, expected)
    else:
        sent = None
    space.finish(folder, engine, export)
    return int(sent is not None)


def _require_stopped(
    result: Result,
    sent: float,
    folder: Path,
    code: int,
    again: float | None,
    expected: reference.Reference,
) -> None:
    """Raises RunLost unless the run stopped soon after the signal and saved everything."""
    require_code(result, code)
    took = result.end - sent
    allowed = _PROMPT + (expected.longest_call if again is None else again)
    if took > allowed:
        raise RunLost(f"the run stopped {took:.1f} s after the signal")
    calls = result.count("call")
    late = sum(e.name == "computed" and e.seconds > sent for e in result.events)
    if late > 1:
        raise RunLost(f"{late} calls were made after the signal")
    done = reference.steps_after(calls)
    if again is None and calls and reference.newest(folder) != done:
        raise RunLost(
            f"{done} steps were taken, the newest checkpoint is {reference.newest(folder)}"
        )


def switch(space: Workspace, seed: int) -> int:
    """Stopped with one engine at a random call, resumed with the other."""
    chance = random.Random(seed)
    one, other = ENGINES[seed % 2], ENGINES[1 - seed % 2]
    folder = space.stopped(one, chance.randint(1, 11))
    space.finish(folder, other)
    return 1


def race(space: Workspace, seed: int) -> int:
    """2 to 4 runs start in one directory, new or resumed: exactly one of them trains."""
    chance = random.Random(seed)
    engine = ENGINES[seed % 2]
    folder = space.stopped(engine, 6) if seed % 3 == 2 else space.fresh()
    with contextlib.ExitStack() as stack:
        runners: list[Child] = []
        for _ in range(chance.randint(2, 4)):
            child = Child("pipeline.fit", reference.words(engine), folder)
            runners.append(stack.enter_context(child))
            child.runs_for(chance.choice((0.0, chance.uniform(0, 1))))
        results = [runner.result() for runner in runners]
    trained = [result for result in results if result.count("call")]
    if len(trained) != 1:
        raise RunLost(f"{len(trained)} of {len(runners)} trained")
    require_code(trained[0], 0)
    for result in results:
        if not result.count("call"):
            # One that starts after the first has finished finds a complete run.
            require_code(result, *((0,) if "was complete" in result.output else (2,)))
    space.require_equal(folder, engine)
    return 1


def replicas(space: Workspace, seed: int) -> int:
    """Stopped on one replica, resumed on two: equal except for the order of sums."""
    more = ("--model.name", "tiny", "--runtime.precision", "float32")
    chance = random.Random(seed)
    engine = ENGINES[seed % 2]
    whole = space.complete(engine, *more)
    folder = space.stopped(engine, chance.randint(1, 11), *more)
    words = reference.words(engine, False, *more, "--runtime.replicas", "2", "--force")
    require_code(harness.run("pipeline.fit", words, folder), 0)
    apart = reference.evidence(folder / "run", whole / "run").get("apart")
    if apart is None or not apart <= reference.TOLERANCE:
        raise RunLost(f"variables are {apart} apart, more than {reference.TOLERANCE}")
    return 1


def time(space: Workspace, seed: int) -> int:
    """`--runtime.time-limit` during training: exceeded by at most a call, a save and 2 s."""
    chance = random.Random(seed)
    engine = ENGINES[seed % 2]
    expected = space.reference(engine)
    limit = round(1.5 * expected.seconds + chance.uniform(0, 2), 1)
    folder = space.fresh()
    more = ("--train.epochs", "100000", "--runtime.time-limit", f"{limit}s")
    with Child("pipeline.fit", reference.words(engine, False, *more), folder) as child:
        result = child.result()
    require_code(result, 0)
    over = result.end - child.start - limit
    if over > _PROMPT + expected.longest_call:
        raise RunLost(f"{over:.1f} s over the limit of {limit} s")
    if reference.newest(folder) < 0:
        raise RunLost("nothing was saved")
    return 1


def flip(space: Workspace, seed: int) -> int:
    """A file of the newest checkpoint loses a bit, its end or its content, or is deleted.

    The run must name it and resume from the checkpoint before. Every tenth time all checkpoints are
    damaged.
    """
    chance = random.Random(seed)
    engine = ENGINES[seed % 2]
    folder = space.stopped(engine, chance.choice((7, 9, 11)))
    checkpoints = sorted((folder / "run/checkpoints").glob("step-*"))
    damaged = checkpoints if seed % 10 == 9 else checkpoints[-1:]
    for checkpoint in damaged:
        corrupt(chance, chance.choice(sorted(checkpoint.iterdir())))
    if len(damaged) == len(checkpoints):
        result = harness.run("pipeline.fit", reference.words(engine), folder)
        require_code(result, 3)
        errors = [line for line in result.output.splitlines() if line.startswith("error: ")]
        if errors != result.output.splitlines()[-1:]:
            raise RunLost(f"not one line: {result.output[-300:]}")
    else:
        result = space.finish(folder, engine)
        if damaged[0].name not in result.output:
            raise RunLost(f"the damaged {damaged[0].name} was not named")
        before = int(checkpoints[-2].name.removeprefix("step-"))
        if reference.resumed(result) != before:
            raise RunLost(f"resumed from step {reference.resumed(result)}, not {before}")
    return 1


def corrupt(chance: random.Random, path: Path) -> str:
    """Damages a file in one of four ways; returns which."""
    content = bytearray(path.read_bytes())
    harm = chance.choice(("flip", "cut", "empty", "delete"))
    if harm == "delete":
        path.unlink()
        return harm
    if harm == "flip":
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    kept = {"flip": len(content), "cut": chance.randrange(1, len(content)), "empty": 0}[harm]
    path.write_bytes(content[:kept])
    return harm


def disk(space: Workspace, seed: int) -> int:
    """The disk is full in a save: for one operation, beyond a file size, or until the next save.

    The run must continue with one warning.
    """
    chance = random.Random(seed)
    engine = ENGINES[seed % 2]
    expected = space.reference(engine).result
    count = chance.randint(1, expected.count("save"))
    action = chance.choice(("full", "limit", "fill"))
    size = chance.choice((0, chance.randint(1, 60_000)))
    folder = space.fresh()
    fault = Fault(action, "save", count, bytes=size)
    result = harness.run("pipeline.fit", reference.words(engine), folder, fault)
    if result.code == 2 and not result.count("call"):
        # Before the first step there is nothing to lose: the run does not begin.
        require_code(result, 2)
    elif result.count("call") != expected.count("call"):
        raise RunLost(f"training ended; exit code {result.code}: {result.output[-200:]}")
    else:
        # If the disk is still full at the end, the result is missing; the command is repeated.
        require_code(result, *((0, 1) if action == "fill" else (0,)))
    warnings = [line for line in result.output.splitlines() if line.startswith("warning")]
    if len(warnings) > 1:
        raise RunLost(f"{len(warnings)} warnings: {warnings}")
    if result.code or reference.newest(folder) < reference.EPOCHS * reference.EPOCH:
        space.finish(folder, engine)  # the last save failed: its steps are repeated
    space.require_equal(folder, engine, unsaved=bool(warnings))
    return int(result.fault is not None)


def nan(space: Workspace, seed: int) -> int:
    """The pixels of one training example are NaN: the step is skipped and reported."""
    chance = random.Random(seed)
    engine = ENGINES[seed % 2]
    id = chance.choice(space.reference(engine).evidence["train"])
    folder = space.fresh()
    with Child("pipeline.fit", reference.words(engine), folder, nan=id) as child:
        result = child.result()
    require_code(result, 0)
    found = reference.evidence(folder / "run")
    if not found["finite"]:
        raise RunLost("a checkpoint contains values that are not finite")
    if not any(id in entry["ids"] for entry in found["bad steps"]):
        raise RunLost(f"example {id} was not reported; bad steps: {found['bad steps']}")
    return 1
