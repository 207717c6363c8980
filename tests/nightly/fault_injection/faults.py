"""The faults of the drill: each function is one trial, and raises `Lost` if the run is lost.

Each takes the ground of the trials and the trial's seed, and returns how often it struck: 0 where
the run was over before. The engine alternates with the seed.
"""

import contextlib
import random
import signal
from pathlib import Path
from time import monotonic as now

from tests.nightly.fault_injection import ground, trials
from tests.nightly.fault_injection.ground import ENGINES, Ground, require_code
from tests.nightly.fault_injection.trials import Child, Ended, Lost, Strike

# Seconds, beyond the call that runs, in which a signal must have been obeyed.
_PROMPT = 2.0
_KILLS = 3  # in one run, at most


def kill(place: Ground, seed: int) -> int:
    """SIGKILL at random moments, half of them in a save or an export, then on to the end."""
    chance = random.Random(seed)
    engine, export = ENGINES[seed % 2], seed % 10 in (4, 9)
    reference = place.reference(engine, export)
    folder, last, kills = place.fresh(), -1, 0
    while kills < _KILLS:
        ended = _killed(chance, folder, engine, export, reference)
        if ended.code == 0:
            break
        _require_not_damaged(ended)
        require_code(ended, 137)
        kills += 1
        if ground.newest(folder) < last:
            raise Lost(f"the checkpoint of step {last} is gone")
        last = ground.newest(folder)
    _require_not_damaged(place.finish(folder, engine, export))
    place.done(folder)
    return kills


def _killed(
    chance: random.Random, folder: Path, engine: str, export: bool, reference: ground.Reference
) -> Ended:
    """A run that is killed at a random moment, from outside or at an operation on a file."""
    words = ground.words(engine, export)
    if chance.random() < 0.5:
        name = "export" if export and chance.random() < 0.3 else "save"
        count = chance.randint(1, reference.ended.count(name))
        delay = chance.choice((0.0, chance.uniform(0, 0.03)))  # between operations, or in one
        return trials.run("pipeline.fit", words, folder, Strike("SIGKILL", name, count, delay))
    with Child("pipeline.fit", words, folder) as child:
        if child.runs_for(chance.uniform(0, reference.seconds)):
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
    reference = place.reference(engine, export)
    folder, words = place.fresh(), ground.words(engine, export)
    name = chance.choice(("SIGTERM", "SIGINT"))
    again = chance.uniform(0, 0.1) if seed % 5 == 4 else None
    if chance.random() < 0.5:
        moments = ("trace", "validation", "save", *(("export",) if export else ()))
        moment = chance.choice(moments)
        count = chance.randint(1, reference.ended.count(moment))
        strike = Strike(name, moment, count, chance.choice((0.0, chance.uniform(0, 0.1))), again)
        ended = trials.run("pipeline.fit", words, folder, strike)
        struck = ended.struck and ended.struck.seconds + strike.delay
    else:
        with Child("pipeline.fit", words, folder) as child:
            struck = None
            if child.runs_for(chance.uniform(0, reference.seconds)):
                struck = now()
                child.signal(getattr(signal, name))
            if struck and again is not None and child.runs_for(again):
                child.signal(getattr(signal, name))
            ended = child.ended()
    if struck and struck < ended.end and ended.code:
        _require_stopped(ended, struck, folder, 128 + getattr(signal, name), again, reference)
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
    reference: ground.Reference,
) -> None:
    """Raises Lost unless a signal was obeyed soon, and everything until then was saved."""
    require_code(ended, code)
    took = ended.end - struck
    allowed = _PROMPT + (reference.longest_call if again is None else again)
    if took > allowed:
        raise Lost(f"the signal was obeyed after {took:.1f} s")
    calls = ended.count("call")
    late = sum(m.name == "computed" and m.seconds > struck for m in ended.moments)
    if late > 1:
        raise Lost(f"{late} calls were made after the signal")
    done = ground.steps_after(calls)
    if again is None and calls and ground.newest(folder) != done:
        raise Lost(f"{done} steps were taken, the newest checkpoint is {ground.newest(folder)}")


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
            child = Child("pipeline.fit", ground.words(engine), folder)
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
    words = ground.words(engine, False, *more, "--runtime.replicas", "2", "--force")
    require_code(trials.run("pipeline.fit", words, folder), 0)
    apart = trials.evidence(folder / "run", whole / "run").get("apart")
    if apart is None or not apart <= ground.TOLERANCE:
        raise Lost(f"variables are {apart} apart, more than {ground.TOLERANCE}")
    place.done(folder)
    return 1


def time(place: Ground, seed: int) -> int:
    """`--runtime.time-limit` in the middle of training: over by at most a call, a save and 2 s."""
    chance = random.Random(seed)
    engine = ENGINES[seed % 2]
    reference = place.reference(engine)
    limit = round(1.5 * reference.seconds + chance.uniform(0, 2), 1)
    folder = place.fresh()
    more = ("--train.epochs", "100000", "--runtime.time-limit", f"{limit}s")
    with Child("pipeline.fit", ground.words(engine, False, *more), folder) as child:
        ended = child.ended()
    require_code(ended, 0)
    over = ended.end - child.start - limit
    if over > _PROMPT + reference.longest_call:
        raise Lost(f"{over:.1f} s over the limit of {limit} s")
    if ground.newest(folder) < 0:
        raise Lost("nothing was saved")
    place.done(folder)
    return 1
