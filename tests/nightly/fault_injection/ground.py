"""Where trials take place: the run under trial, what it must leave, and the judgement of it."""

import dataclasses
import itertools
import re
import shutil
import threading
from pathlib import Path
from typing import Any

from pipeline.utils import files
from tests.nightly.fault_injection import trials
from tests.nightly.fault_injection.trials import Child, Ended, Lost, Strike

ENGINES = ("model_fit", "gradient_tape")
EPOCHS, EPOCH, CALL = 3, 15, 4  # epochs; steps in an epoch, and in a call
# Everything that is state: dropout, BatchNormalization, adam, loss scale, averages, patience.
_WORDS = f"""digits --model.name tests.nightly.fault_injection.subject --data.limit 180 --train.batch-size 8
    --train.epochs {EPOCHS} --train.steps-per-call {CALL} --train.ema 0.9 --train.clip-norm 1
    --train.checkpoint-steps {CALL} --train.patience 2 --runtime.precision mixed_float16
    --data.augment --log.no-progress --run-directory run"""

# Largest distance of a variable, as a share of its norm, after up to 44 steps of adam in float32
# whose gradients were summed in another order.
TOLERANCE = 1e-3


@dataclasses.dataclass(frozen=True)
class Reference:
    """The run under trial, uninterrupted."""

    evidence: dict[str, Any]
    ended: Ended
    seconds: float
    longest_call: float
    """Seconds; the first one, in which the step is traced."""


class Ground:
    """Folders of trials in one that the caller removes, and the references that all share.

    Trials in several threads may share it; who needs a run that another trains waits for it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.RLock()
        self._count = 0
        self._references: dict[tuple, Reference] = {}
        self._stopped: dict[tuple, Path] = {}
        self._kept: dict[tuple, Path] = {}

    def fresh(self) -> Path:
        """A new folder, to start the run under trial in."""
        with self._lock:
            self._count += 1
            folder = self._folder / str(self._count)
        folder.mkdir(parents=True)
        return folder

    def done(self, folder: Path) -> None:
        """Removes the folder of a trial."""
        shutil.rmtree(folder, ignore_errors=True)

    def reference(self, engine: str, export: bool = False) -> Reference:
        """The uninterrupted run under an engine; trained once."""
        key = (engine, export)
        with self._lock:
            if key not in self._references:
                folder = self.fresh()
                with Child("pipeline.fit", words(engine, export), folder) as child:
                    ended = child.ended()
                require_code(ended, 0)
                calls = [m.seconds for m in ended.moments if m.name in ("trace", "call")]
                longest = max(b - a for a, b in itertools.pairwise(calls))
                found = trials.evidence(folder / "run")
                self._references[key] = Reference(found, ended, ended.end - child.start, longest)
            return self._references[key]

    def kept(self, engine: str, *more: str) -> Path:
        """Folder of an uninterrupted run with other options; trained once."""
        key = (engine, *more)
        with self._lock:
            if key not in self._kept:
                folder = self.fresh()
                require_code(trials.run("pipeline.fit", words(engine, False, *more), folder), 0)
                self._kept[key] = folder
            return self._kept[key]

    def stopped(self, engine: str, calls: int, *more: str) -> Path:
        """A copy of a run that was killed after so many calls of the compiled step."""
        key = (engine, calls, more)
        with self._lock:
            if key not in self._stopped:
                folder = self.fresh()
                strike = Strike("SIGKILL", "call", calls)
                ended = trials.run("pipeline.fit", words(engine, False, *more), folder, strike)
                require_code(ended, 137)
                self._stopped[key] = folder
        folder = self.fresh()
        shutil.copytree(self._stopped[key], folder, dirs_exist_ok=True)
        return folder

    def finish(self, folder: Path, engine: str, export: bool = False) -> Ended:
        """Gives the command again until it is done; raises Lost unless all is as it must be."""
        ended = trials.run("pipeline.fit", words(engine, export), folder)
        require_code(ended, 0)
        self.require_equal(folder, engine)
        # A kill between a number and its folder leaves a gap, one right after it two versions.
        if export and not files.versions(folder / "saved_models/digits"):
            raise Lost("nothing was exported")
        return ended

    def require_equal(self, folder: Path, engine: str, unsaved: bool = False) -> None:
        """Raises Lost unless a finished run is, bit for bit, as the uninterrupted one.

        Where a checkpoint could not be written (`unsaved`), one before it is kept in its place: at
        least two, the last one among them, must be there.
        """
        expected, found = self.reference(engine).evidence, trials.evidence(folder / "run")
        if unsaved:
            kept, last = found["checkpoints"], expected["checkpoints"][-1]
            if len(kept) < 2 or kept[-1] != last:
                raise Lost(f"of the checkpoints {', '.join(kept)} are left, not two and {last}")
            expected, found = _whatever_is_kept(expected), _whatever_is_kept(found)
        different = differences(expected, found)
        if different:
            raise Lost(f"not as uninterrupted: {'; '.join(different[:3])}")


def _whatever_is_kept(evidence: dict[str, Any]) -> dict[str, Any]:
    return {**evidence, "checkpoints": None, "state": {**evidence["state"], "saved": None}}


def words(engine: str, export: bool = False, *more: str) -> list[str]:
    """Arguments of the run under trial."""
    exported = () if export else ("--export.no-enabled",)
    return [*_WORDS.split(), "--train.engine", engine, *exported, *more]


def steps_after(calls: int) -> int:
    """Steps of a run that took so many calls from its beginning."""
    each = -(-EPOCH // CALL)
    return calls // each * EPOCH + min(calls % each * CALL, EPOCH)


def newest(folder: Path) -> int:
    """Step of the newest checkpoint of a run; -1 if there is none."""
    names = (path.name for path in (folder / "run/checkpoints").glob("step-*"))
    return max((int(name.removeprefix("step-")) for name in names), default=-1)


def resumed(ended: Ended) -> int:
    """The step after which a run says that it goes on; 0 for a new one."""
    found = re.search(r"^resumed +after step ([\d,]+)", ended.said, re.MULTILINE)
    return int(found[1].replace(",", "")) if found else 0


def require_code(ended: Ended, *codes: int) -> None:
    """Raises Lost unless the run ended with one of these codes, and without a stack trace."""
    if ended.code not in codes or "Traceback" in ended.said:
        said, trace, rest = ended.said.partition("Traceback")
        last = ((rest or said).strip().splitlines() or ["nothing was said"])[-1]
        wanted = " or ".join(map(str, codes))
        place = f"{said[-200:]}{trace}{rest[:2000]}\n" if trace else ""
        raise Lost(f"{place}exit code {ended.code}, not {wanted}: {last[:200]}")


def differences(expected: Any, found: Any, where: str = "") -> list[str]:
    """Places in nested plain values where two of them differ, in words."""
    if isinstance(expected, dict) and isinstance(found, dict):
        names = dict.fromkeys([*expected, *found])
        parts = [(expected.get(n), found.get(n), f"{where} {n}".strip()) for n in names]
        return [text for part in parts for text in differences(*part)]
    if expected == found:
        return []
    if isinstance(expected, list) and isinstance(found, list) and len(expected) != len(found):
        return [f"{where}: {len(found)} entries instead of {len(expected)}"]
    return [f"{where}: {str(found)[:80]} instead of {str(expected)[:80]}"]
