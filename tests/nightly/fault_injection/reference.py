"""The run under trial, what it leaves on the disk, and the judgement of that.

`main` runs in a child of the harness and writes what a run left as JSON; nothing else here imports
TensorFlow before it is called.
"""

import dataclasses
import hashlib
import itertools
import json
import re
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.runtime.run_directory import RunDirectory
from pipeline.utils import files
from pipeline.utils.errors import UsageError
from tests.nightly.fault_injection import harness
from tests.nightly.fault_injection.harness import Child, Ended, Lost, Strike

if TYPE_CHECKING:
    import keras

ENGINES = ("model_fit", "gradient_tape")
EPOCHS, EPOCH, CALL = 3, 15, 4  # epochs; steps in an epoch, and in a call
# Everything that is state: dropout, BatchNormalization, adam, loss scale, averages, patience.
_WORDS = f"""digits --model.name tests.nightly.fault_injection.reference.subject --data.limit 180
    --train.batch-size 8 --train.epochs {EPOCHS} --train.steps-per-call {CALL} --train.ema 0.9
    --train.clip-norm 1 --train.checkpoint-steps {CALL} --train.patience 2
    --runtime.precision mixed_float16 --data.augment --log.no-progress --run-directory run"""
# Figures of the clock are left out of the evidence: they differ between equal runs.
_CLOCK = ("seconds", "examples_per_second", "elapsed")
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
                found = evidence(folder / "run")
                self._references[key] = Reference(found, ended, ended.end - child.start, longest)
            return self._references[key]

    def kept(self, engine: str, *more: str) -> Path:
        """Folder of an uninterrupted run with other options; trained once."""
        key = (engine, *more)
        with self._lock:
            if key not in self._kept:
                folder = self.fresh()
                require_code(harness.run("pipeline.fit", words(engine, False, *more), folder), 0)
                self._kept[key] = folder
            return self._kept[key]

    def stopped(self, engine: str, calls: int, *more: str) -> Path:
        """A copy of a run that was killed after so many calls of the compiled step."""
        key = (engine, calls, more)
        with self._lock:
            if key not in self._stopped:
                folder = self.fresh()
                strike = Strike("SIGKILL", "call", calls)
                ended = harness.run("pipeline.fit", words(engine, False, *more), folder, strike)
                require_code(ended, 137)
                self._stopped[key] = folder
        folder = self.fresh()
        shutil.copytree(self._stopped[key], folder, dirs_exist_ok=True)
        return folder

    def finish(self, folder: Path, engine: str, export: bool = False) -> Ended:
        """Gives the command again until it is done; raises Lost unless all is as it must be."""
        ended = harness.run("pipeline.fit", words(engine, export), folder)
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
        expected, found = self.reference(engine).evidence, evidence(folder / "run")
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


def subject(x: "keras.KerasTensor") -> "keras.KerasTensor":
    """The network under trial: small, with every kind of state that a network can have.

    Maps of shape (batch, height, width, channels) to a vector per image. Moving averages of
    BatchNormalization and the seeds of dropout are state that no gradient touches, and that a
    checkpoint of the weights alone would lose.
    """
    import keras

    from pipeline.models import _layers

    x = _layers.convolution(x, 8, 3, padding="same")
    x = keras.layers.BatchNormalization(momentum=0.9)(x)
    x = _layers.pool(keras.layers.ReLU()(x))
    x = keras.layers.Flatten()(x)
    return keras.layers.Dropout(0.3)(keras.layers.Dense(32, activation="relu")(x))


def evidence(*runs: Path) -> dict[str, Any]:
    """What `main` finds of a run, or of two that are to be compared.

    Raises Lost if it cannot be read.
    """
    words = [str(path.resolve()) for path in runs]
    ended = harness.run("tests.nightly.fault_injection.reference", words, runs[0].parent)
    if ended.code:
        raise Lost(f"the run cannot be read: {ended.said[-300:]}")
    return json.loads(ended.said.splitlines()[-1])


def main(arguments: list[str]) -> int:
    """Prints what a run left; with another run, also how far apart their variables are."""
    runs = [RunDirectory(Path(argument)) for argument in arguments]
    found = _found(runs[0])
    if len(runs) > 1:
        found["apart"] = _apart(*(_newest_checkpoint(run) for run in runs))
    print(json.dumps(files.strict(found)))
    return 0


def _found(run: RunDirectory) -> dict[str, Any]:
    """Sums of weights and all other variables, state, log, scalars, result; what is left over.

    Raises UsageError if there is no checkpoint.
    """
    path = _newest_checkpoint(run)
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    return {
        "checkpoints": sorted(p.name for p in run.checkpoints.glob("step-*")),
        "variables": {name: _sum(value) for name, value in _variables(path).items()},
        "state": _timeless(manifest["state"]),
        "log": [_timeless(json.loads(line)) for line in _lines(run.log)],
        "scalars": _scalars(run.tensorboard),
        "result": _result(run.result),
        "finite": all(_is_finite(value) for value in _variables(path).values()),
        "bad steps": [json.loads(line) for line in _lines(run.path / "bad_steps.jsonl")],
        "train": np.load(run.splits, allow_pickle=False)["train"].tolist(),
        "left over": sorted(_left_over(run)),
    }


def _newest_checkpoint(run: RunDirectory) -> Path:
    """The checkpoint of the highest step."""
    found = sorted(run.checkpoints.glob("step-*"))
    if not found:
        raise UsageError(f"{run} has no checkpoint")
    return found[-1]


def _variables(checkpoint: Path) -> dict[str, np.ndarray]:
    """Everything in a TensorFlow checkpoint but the graph of its objects."""
    import tensorflow as tf

    (index,) = checkpoint.glob("*.index")
    reader = tf.train.load_checkpoint(str(index.with_suffix("")))
    names = sorted(reader.get_variable_to_shape_map())
    return {n: reader.get_tensor(n) for n in names if n != "_CHECKPOINTABLE_OBJECT_GRAPH"}


def _scalars(folder: Path) -> list[list[Any]]:
    """[folder, tag, step, value] of all scalars that TensorBoard would show, in the order written.

    A step that was written twice is there twice.
    """
    import tensorflow as tf

    found = []
    for path in sorted(folder.rglob("events.out.tfevents.*")):
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            for value in event.summary.value:
                if not value.tag.endswith(_CLOCK):
                    number = tf.make_ndarray(value.tensor) if value.HasField("tensor") else None
                    number = value.simple_value if number is None else float(number)
                    found.append([path.parent.name, value.tag, event.step, number])
    return sorted(found)


def _apart(one: Path, other: Path) -> float:
    """Largest distance of a floating-point variable in two checkpoints, as a share of its norm."""
    ours, theirs = _variables(one), _variables(other)
    return max(
        float(np.linalg.norm(ours[n] - theirs[n]) / (np.linalg.norm(ours[n]) + 1e-12))
        for n in ours
        if np.issubdtype(ours[n].dtype, np.floating)
    )


def _sum(value: Any) -> str:
    value = np.asarray(value)
    digest = hashlib.sha256(repr((value.dtype.str, value.shape)).encode())
    digest.update(np.ascontiguousarray(value))
    return digest.hexdigest()


def _is_finite(value: Any) -> bool:
    value = np.asarray(value)
    return not np.issubdtype(value.dtype, np.floating) or bool(np.isfinite(value).all())


def _timeless(values: Any) -> Any:
    if isinstance(values, dict):
        return {n: _timeless(v) for n, v in values.items() if not n.endswith(_CLOCK)}
    return [_timeless(value) for value in values] if isinstance(values, list) else values


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _result(path: Path) -> dict[str, Any]:
    """Metrics of the run; not whether and where it was exported, in which runs may differ."""
    if not path.exists():
        return {}
    values = _timeless(json.loads(path.read_text(encoding="utf-8")))
    return {n: v for n, v in values.items() if n not in ("config_digest", "export", "verification")}


def _left_over(run: RunDirectory) -> list[str]:
    """Hidden files and folders of writes that were never finished, of the run and its models."""
    models = run.path.parent / "saved_models"
    found = [*run.path.rglob(".*"), *(models.rglob(".*") if models.exists() else ())]
    return [path.name for path in found if path.name not in (".lock", ".published")]
