"""The faults: each function is one trial, and raises `Lost` if the run is lost.

Each takes the `Ground` of the trials and the trial's seed, and returns how often it struck: 0 where
the run was over before. The engine alternates with the seed.
"""

import contextlib
import random
import signal
from pathlib import Path
from time import monotonic as now

from tests.nightly.fault_injection import harness, reference
from tests.nightly.fault_injection.harness import Child, Ended, Lost, Strike
from tests.nightly.fault_injection.reference import ENGINES, Ground, require_code

# Seconds, beyond the call that runs, in which a signal must have been obeyed.
_PROMPT = 2.0
_KILLS = 3  # in one run, at most


def kill(place: Ground, seed: int) -> int:
    """SIGKILL at random moments, half of them in a save or an export, then on to the end."""
    chance = random.Random(seed)
    engine, export = ENGINES[seed % 2], seed % 10 in (4, 9)
    expected = place.reference(engine, export)
    folder, last, kills = place.fresh(), -1, 0
    while kills < _KILLS:
        ended = _killed(chance, folder, engine, export, expected)
        if ended.code == 0:
            break
        _require_not_damaged(ended)
        require_code(ended, 137)
        kills += 1
        if reference.newest(folder) < last:
            raise Lost(f"the checkpoint of step {last} is gone")
        last = reference.newest(folder)
    _require_not_damaged(place.finish(folder, engine, export))
    place.done(folder)
    return kills


def _killed(
    chance: random.Random, folder: Path, engine: str, export: bool, expected: reference.Reference
) -> Ended:
    """A run that is killed at a random moment, from outside or at an operation on a file."""
    words = reference.words(engine, export)
    if chance.random() < 0.5:
        name = "export" if export and chance.random() < 0.3 else "save"
        count = chance.randint(1, expected.ended.count(name))
        delay = chance.choice((0.0, chance.uniform(0, 0.03)))  # between operations, or in one
        return harness.run("pipeline.fit", words, folder, Strike("SIGKILL", name, count, delay))
    with Child("pipeline.fit", words, folder) as child:
        if child.runs_for(chance.uniform(0, expected.seconds)):
            child.signal(signal.SIGKILL)
        return child.ended()


def _require_not_damaged(ended: Ended) -> None:
    if "damaged" in ended.said or "cannot be read" in ended.said:
        raise Lost(f"a kill left a damaged checkpoint: {ended.said[-200:]}")


def term(place: Ground, seed: int) -> int:
    """SIGTERM or SIGINT at random moments, half of them aimed; every fifth time a second follows.

    Aimed at the first trace, a validation, a save or the export.
    """
    chance = random.Random(seed)
    engine, export = ENGINES[seed % 2], seed % 10 in (4, 9)
    expected = place.reference(engine, export)
    folder, words = place.fresh(), reference.words(engine, export)
    name = chance.choice(("SIGTERM", "SIGINT"))
    again = chance.uniform(0, 0.1) if seed % 5 == 4 else None
    if chance.random() < 0.5:
        moments = ("trace", "validation", "save", *(("export",) if export else ()))
        moment = chance.choice(moments)
        count = chance.randint(1, expected.ended.count(moment))
        strike = Strike(name, moment, count, chance.choice((0.0, chance.uniform(0, 0.1))), again)
        ended = harness.run("pipeline.fit", words, folder, strike)
        struck = ended.struck and ended.struck.seconds + strike.delay
    else:
        with Child("pipeline.fit", words, folder) as child:
            struck = None
            if child.runs_for(chance.uniform(0, expected.seconds)):
                struck = now()
                child.signal(getattr(signal, name))
            if struck and again is not None and child.runs_for(again):
                child.signal(getattr(signal, name))
            ended = child.ended()
    if struck and struck < ended.end and ended.code:
        _require_stopped(ended, struck, folder, 128 + getattr(signal, name), again, expected)
    else:
        struck = None
    place.finish(folder, engine, export)
    place.done(folder)
    return int(struck is not None)


def _require_stopped(
    ended: Ended,
    struck: float,
    folder: Path,
    code: int,
    again: float | None,
    expected: reference.Reference,
) -> None:
    """Raises Lost unless a signal was obeyed soon, and everything until then was saved."""
    require_code(ended, code)
    took = ended.end - struck
    allowed = _PROMPT + (expected.longest_call if again is None else again)
    if took > allowed:
        raise Lost(f"the signal was obeyed after {took:.1f} s")
    calls = ended.count("call")
    late = sum(m.name == "computed" and m.seconds > struck for m in ended.moments)
    if late > 1:
        raise Lost(f"{late} calls were made after the signal")
    done = reference.steps_after(calls)
    if again is None and calls and reference.newest(folder) != done:
        raise Lost(f"{done} steps were taken, the newest checkpoint is {reference.newest(folder)}")


def switch(place: Ground, seed: int) -> int:
    """Stopped under one engine at a random call, continued under the other."""
    chance = random.Random(seed)
    one, other = ENGINES[seed % 2], ENGINES[1 - seed % 2]
    folder = place.stopped(one, chance.randint(1, 11))
    place.finish(folder, other)
    place.done(folder)
    return 1


def race(place: Ground, seed: int) -> int:
    """2 to 4 starts in one directory, new or taken up: exactly one of them trains."""
    chance = random.Random(seed)
    engine = ENGINES[seed % 2]
    folder = place.stopped(engine, 6) if seed % 3 == 2 else place.fresh()
    with contextlib.ExitStack() as stack:
        runners: list[Child] = []
        for _ in range(chance.randint(2, 4)):
            child = Child("pipeline.fit", reference.words(engine), folder)
            runners.append(stack.enter_context(child))
            child.runs_for(chance.choice((0.0, chance.uniform(0, 1))))
        all_ended = [runner.ended() for runner in runners]
    trained = [ended for ended in all_ended if ended.count("call")]
    if len(trained) != 1:
        raise Lost(f"{len(trained)} of {len(runners)} trained")
    require_code(trained[0], 0)
    for ended in all_ended:
        if not ended.count("call"):
            # One that came when the first was done finds a complete run.
            require_code(ended, *((0,) if "was complete" in ended.said else (2,)))
    place.require_equal(folder, engine)
    place.done(folder)
    return 1


def replicas(place: Ground, seed: int) -> int:
    """Stopped on one replica, continued on two: the same but for the order of sums."""
    more = ("--model.name", "tiny", "--runtime.precision", "float32")
    chance = random.Random(seed)
    engine = ENGINES[seed % 2]
    whole = place.kept(engine, *more)
    folder = place.stopped(engine, chance.randint(1, 11), *more)
    words = reference.words(engine, False, *more, "--runtime.replicas", "2", "--force")
    require_code(harness.run("pipeline.fit", words, folder), 0)
    apart = reference.evidence(folder / "run", whole / "run").get("apart")
    if apart is None or not apart <= reference.TOLERANCE:
        raise Lost(f"variables are {apart} apart, more than {reference.TOLERANCE}")
    place.done(folder)
    return 1


def time(place: Ground, seed: int) -> int:
    """`--runtime.time-limit` in the middle of training: over by at most a call, a save and 2 s."""
    chance = random.Random(seed)
    engine = ENGINES[seed % 2]
    expected = place.reference(engine)
    limit = round(1.5 * expected.seconds + chance.uniform(0, 2), 1)
    folder = place.fresh()
    more = ("--train.epochs", "100000", "--runtime.time-limit", f"{limit}s")
    with Child("pipeline.fit", reference.words(engine, False, *more), folder) as child:
        ended = child.ended()
    require_code(ended, 0)
    over = ended.end - child.start - limit
    if over > _PROMPT + expected.longest_call:
        raise Lost(f"{over:.1f} s over the limit of {limit} s")
    if reference.newest(folder) < 0:
        raise Lost("nothing was saved")
    place.done(folder)
    return 1


def flip(place: Ground, seed: int) -> int:
    """A file of the newest checkpoint is flipped in one bit, cut, emptied or deleted.

    It must be named, the checkpoint before it used. Every tenth time all of them are hurt.
    """
    chance = random.Random(seed)
    engine = ENGINES[seed % 2]
    folder = place.stopped(engine, chance.choice((7, 9, 11)))
    checkpoints = sorted((folder / "run/checkpoints").glob("step-*"))
    hurt = checkpoints if seed % 10 == 9 else checkpoints[-1:]
    for checkpoint in hurt:
        injure(chance, chance.choice(sorted(checkpoint.iterdir())))
    if len(hurt) == len(checkpoints):
        ended = harness.run("pipeline.fit", reference.words(engine), folder)
        require_code(ended, 3)
        errors = [line for line in ended.said.splitlines() if line.startswith("error: ")]
        if errors != ended.said.splitlines()[-1:]:
            raise Lost(f"not one line: {ended.said[-300:]}")
    else:
        ended = place.finish(folder, engine)
        if hurt[0].name not in ended.said:
            raise Lost(f"the damaged {hurt[0].name} was not named")
        before = int(checkpoints[-2].name.removeprefix("step-"))
        if reference.resumed(ended) != before:
            raise Lost(f"it went on after step {reference.resumed(ended)}, not {before}")
    place.done(folder)
    return 1


def injure(chance: random.Random, path: Path) -> str:
    """Does a file one of four harms; returns which."""
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


def disk(place: Ground, seed: int) -> int:
    """The disk is full in a save, for one operation or for all bytes beyond a size, or until the
    next save; the run goes on, and says so.
    """
    chance = random.Random(seed)
    engine = ENGINES[seed % 2]
    expected = place.reference(engine).ended
    count = chance.randint(1, expected.count("save"))
    action = chance.choice(("full", "limit", "fill"))
    size = chance.choice((0, chance.randint(1, 60_000)))
    folder = place.fresh()
    strike = Strike(action, "save", count, bytes=size)
    ended = harness.run("pipeline.fit", reference.words(engine), folder, strike)
    if ended.code == 2 and not ended.count("call"):
        # Before the first step there is nothing to lose: the run does not begin.
        require_code(ended, 2)
    elif ended.count("call") != expected.count("call"):
        raise Lost(f"training did not go on; exit code {ended.code}: {ended.said[-200:]}")
    else:
        # A disk that is still full at the end cannot take the result; the command is repeated.
        require_code(ended, *((0, 1) if action == "fill" else (0,)))
    warnings = [line for line in ended.said.splitlines() if line.startswith("warning")]
    if len(warnings) > 1:
        raise Lost(f"{len(warnings)} warnings: {warnings}")
    if ended.code or reference.newest(folder) < reference.EPOCHS * reference.EPOCH:
        place.finish(folder, engine)  # the last save has failed: its few steps are taken again
    place.require_equal(folder, engine, unsaved=bool(warnings))
    place.done(folder)
    return int(ended.struck is not None)


def nan(place: Ground, seed: int) -> int:
    """The pixels of one training example are NaN: skipped and named, and never in a checkpoint."""
    chance = random.Random(seed)
    engine = ENGINES[seed % 2]
    id = chance.choice(place.reference(engine).evidence["train"])
    folder = place.fresh()
    with Child("pipeline.fit", reference.words(engine), folder, poison=id) as child:
        ended = child.ended()
    require_code(ended, 0)
    found = reference.evidence(folder / "run")
    if not found["finite"]:
        raise Lost("a checkpoint holds numbers that are not finite")
    if not any(id in entry["ids"] for entry in found["bad steps"]):
        raise Lost(f"example {id} was not named; bad steps: {found['bad steps']}")
    place.done(folder)
    return 1
