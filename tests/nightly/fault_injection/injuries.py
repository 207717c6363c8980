"""Faults of a run's files and data, for the drill: each function is a trial, as in `faults`."""

import random
from pathlib import Path

from tests.nightly.fault_injection import ground, trials
from tests.nightly.fault_injection.ground import ENGINES, Ground, require_code
from tests.nightly.fault_injection.trials import Child, Lost, Strike


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
        ended = trials.run("pipeline.fit", ground.words(engine), folder)
        require_code(ended, 3)
        errors = [line for line in ended.said.splitlines() if line.startswith("error: ")]
        if errors != ended.said.splitlines()[-1:]:
            raise Lost(f"not one line: {ended.said[-300:]}")
    else:
        ended = place.finish(folder, engine)
        if hurt[0].name not in ended.said:
            raise Lost(f"the damaged {hurt[0].name} was not named")
        before = int(checkpoints[-2].name.removeprefix("step-"))
        if ground.resumed(ended) != before:
            raise Lost(f"it went on after step {ground.resumed(ended)}, not {before}")
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
    reference = place.reference(engine).ended
    count = chance.randint(1, reference.count("save"))
    action = chance.choice(("full", "limit", "fill"))
    size = chance.choice((0, chance.randint(1, 60_000)))
    folder = place.fresh()
    strike = Strike(action, "save", count, bytes=size)
    ended = trials.run("pipeline.fit", ground.words(engine), folder, strike)
    if ended.code == 2 and not ended.count("call"):
        # Before the first step there is nothing to lose: the run does not begin.
        require_code(ended, 2)
    elif ended.count("call") != reference.count("call"):
        raise Lost(f"training did not go on; exit code {ended.code}: {ended.said[-200:]}")
    else:
        # A disk that is still full at the end cannot take the result; the command is repeated.
        require_code(ended, *((0, 1) if action == "fill" else (0,)))
    warnings = [line for line in ended.said.splitlines() if line.startswith("warning")]
    if len(warnings) > 1:
        raise Lost(f"{len(warnings)} warnings: {warnings}")
    if ended.code or ground.newest(folder) < ground.EPOCHS * ground.EPOCH:
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
    with Child("pipeline.fit", ground.words(engine), folder, poison=id) as child:
        ended = child.ended()
    require_code(ended, 0)
    found = trials.evidence(folder / "run")
    if not found["finite"]:
        raise Lost("a checkpoint holds numbers that are not finite")
    if not any(id in entry["ids"] for entry in found["bad steps"]):
        raise Lost(f"example {id} was not named; bad steps: {found['bad steps']}")
    place.done(folder)
    return 1
