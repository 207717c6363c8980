"""The tested run, and how what it left on the disk is compared with an uninterrupted run.

`main` runs in a child of the harness and prints as JSON what a run left; nothing else here imports
TensorFlow before it is called.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.runtime.run_directory import RunDirectory
from pipeline.utils import files
from pipeline.utils.errors import UsageError
from tests.nightly.fault_injection import harness
from tests.nightly.fault_injection.harness import Child, Fault, Result, RunLost

if TYPE_CHECKING:
    import keras

ENGINES = ("model_fit", "gradient_tape")
EPOCHS, EPOCH, CALL = 3, 15, 4  # epochs; steps in an epoch, and in a call
# All kinds of state: dropout, BatchNormalization, adam, loss scale, averages, patience.
_WORDS = f"""digits --model.name tests.nightly.fault_injection.reference.subject --data.limit 180
    --train.batch-size 8 --train.epochs {EPOCHS} --train.steps-per-call {CALL} --train.ema 0.9
    --train.clip-norm 1 --train.checkpoint-steps {CALL} --train.patience 2
    --runtime.precision mixed_float16 --data.augment --log.no-progress --run-directory run"""
# Times are not compared: they differ between equal runs.
_CLOCK = ("seconds", "examples_per_second", "elapsed")
# Largest distance of a variable, relative to its norm, after up to 44 steps of Adam in float32 if
# gradients were summed in another order.
TOLERANCE = 1e-3


@dataclasses.dataclass(frozen=True)
class Reference:
    """The tested run, uninterrupted."""

    evidence: dict[str, Any]
    result: Result
    seconds: float
    longest_call: float
    """Seconds; of the first call, which traces the step."""


class Workspace:
    """Directories for trials inside one that the caller removes, and the runs that they share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self.reference = functools.cache(self._reference)
        self.complete = functools.cache(self._complete)
        self.killed = functools.cache(self._killed)

    def fresh(self) -> Path:
        """A new directory to start the tested run in."""
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir(parents=True)
        return folder

    def _reference(self, engine: str, export: bool = False) -> Reference:
        """The uninterrupted run with an engine; trained once."""
        folder = self.fresh()
        with Child("pipeline.fit", words(engine, export), folder) as child:
            result = child.result()
        require_code(result, 0)
        calls = [e.seconds for e in result.events if e.name in ("trace", "call")]
        longest = max(b - a for a, b in itertools.pairwise(calls))
        return Reference(evidence(folder / "run"), result, result.end - child.start, longest)

    def _complete(self, engine: str, *more: str) -> Path:
        """Directory of an uninterrupted run with more options; trained once."""
        folder = self.fresh()
        require_code(harness.run("pipeline.fit", words(engine, False, *more), folder), 0)
        return folder

    def stopped(self, engine: str, calls: int, *more: str) -> Path:
        """A copy of a killed run, to resume it."""
        folder = self.fresh()
        shutil.copytree(self.killed(engine, calls, *more), folder, dirs_exist_ok=True)
        return folder

    def _killed(self, engine: str, calls: int, *more: str) -> Path:
        """A run that was killed after that many calls of the compiled step; trained once."""
        folder, fault = self.fresh(), Fault("SIGKILL", "call", calls)
        result = harness.run("pipeline.fit", words(engine, False, *more), folder, fault)
        require_code(result, 137)
        return folder

    def finish(self, folder: Path, engine: str, export: bool = False) -> Result:
        """Repeats the command; raises RunLost unless everything is as it must be."""
        result = harness.run("pipeline.fit", words(engine, export), folder)
        require_code(result, 0)
        self.require_equal(folder, engine)
        # A kill between a number and its directory leaves a gap, one right after it two versions.
        if export and not files.versions(folder / "saved_models/digits"):
            raise RunLost("nothing was exported")
        return result

    def require_equal(self, folder: Path, engine: str, unsaved: bool = False) -> None:
        """Raises RunLost unless a finished run equals the uninterrupted one bit for bit.

        If a checkpoint could not be written (`unsaved`), an earlier one is kept instead: there must
        be at least two, and the last one must be among them.
        """
        expected, found = self.reference(engine).evidence, evidence(folder / "run")
        if unsaved:
            kept, last = found["checkpoints"], expected["checkpoints"][-1]
            if len(kept) < 2 or kept[-1] != last:
                raise RunLost(f"the checkpoints are {', '.join(kept)}, not two and {last}")
            expected, found = _without_checkpoints(expected), _without_checkpoints(found)
        different = differences(expected, found)
        if different:
            raise RunLost(f"differs from the uninterrupted run: {'; '.join(different[:3])}")


def _without_checkpoints(evidence: dict[str, Any]) -> dict[str, Any]:
    return {**evidence, "checkpoints": None, "state": {**evidence["state"], "saved": None}}


def words(engine: str, export: bool = False, *more: str) -> list[str]:
    """Arguments of the tested run."""
    exported = () if export else ("--export.no-enabled",)
    return [*_WORDS.split(), "--train.engine", engine, *exported, *more]


def steps_after(calls: int) -> int:
    """Steps that a run has taken after that many calls."""
    each = -(-EPOCH // CALL)
    return calls // each * EPOCH + min(calls % each * CALL, EPOCH)


def newest(folder: Path) -> int:
    """Step of the newest checkpoint of a run; -1 if there is none."""
    names = (path.name for path in (folder / "run/checkpoints").glob("step-*"))
    return max((int(name.removeprefix("step-")) for name in names), default=-1)


def resumed(result: Result) -> int:
    """The step from which a run says that it resumes; 0 for a new one."""
    found = re.search(r"^resumed +\D*([\d,]+)", result.output, re.MULTILINE)
    return int(found[1].replace(",", "")) if found else 0


def require_code(result: Result, *codes: int) -> None:
    """Raises RunLost unless the run ended with one of these codes and without a stack trace."""
    if result.code not in codes or "Traceback" in result.output:
        expected = " or ".join(map(str, codes))
        raise RunLost(f"exit code {result.code}, not {expected}: {result.output[-2000:]}")


def differences(expected: Any, found: Any, where: str = "") -> list[str]:
    """Where two nested plain values differ, as text."""
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
    """The tested network: small, with every kind of state that a network can have.

    The moving averages of BatchNormalization and the seeds of dropout are state without gradients,
    which a checkpoint of the trainable weights alone would lose.
    """
    import keras

    from pipeline.models import _layers

    x = _layers.convolution(x, 8, 3, padding="same")
    x = keras.layers.BatchNormalization(momentum=0.9)(x)
    x = _layers.pool(keras.layers.ReLU()(x))
    x = keras.layers.Flatten()(x)
    return keras.layers.Dropout(0.3)(keras.layers.Dense(32, activation="relu")(x))


def evidence(*runs: Path) -> dict[str, Any]:
    """What `main` prints of a run, or of two runs; raises RunLost if it cannot be read."""
    words = [str(path.resolve()) for path in runs]
    result = harness.run("tests.nightly.fault_injection.reference", words, runs[0].parent)
    if result.code:
        raise RunLost(f"the run cannot be read: {result.output[-300:]}")
    return json.loads(result.output.splitlines()[-1])


def main(arguments: list[str]) -> int:
    """Prints what a run left; with a second run, also how far apart their variables are."""
    runs = [RunDirectory(Path(argument)) for argument in arguments]
    found = _found(runs[0])
    if len(runs) > 1:
        found["apart"] = _apart(*(_newest_checkpoint(run) for run in runs))
    print(json.dumps(files.strict(found)))
    return 0


def _found(run: RunDirectory) -> dict[str, Any]:
    """Digests of all variables, state, log, scalars, result, leftovers.

    Raises UsageError without a checkpoint.
    """
    path = _newest_checkpoint(run)
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    return {
        "checkpoints": sorted(p.name for p in run.checkpoints.glob("step-*")),
        "variables": {name: _digest(value) for name, value in _variables(path).items()},
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
    """Everything in a TensorFlow checkpoint except its object graph."""
    import tensorflow as tf

    (index,) = checkpoint.glob("*.index")
    reader = tf.train.load_checkpoint(str(index.with_suffix("")))
    names = sorted(reader.get_variable_to_shape_map())
    return {n: reader.get_tensor(n) for n in names if n != "_CHECKPOINTABLE_OBJECT_GRAPH"}


def _scalars(folder: Path) -> list[list[Any]]:
    """[split, tag, step, value] of all scalars in TensorBoard; duplicates are kept."""
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
    """Largest distance of a floating-point variable in two checkpoints, relative to its norm."""
    a, b = _variables(one), _variables(other)
    return max(
        float(np.linalg.norm(a[name] - b[name]) / (np.linalg.norm(a[name]) + 1e-12))
        for name in a
        if np.issubdtype(a[name].dtype, np.floating)
    )


def _digest(value: Any) -> str:
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
    """Metrics of the run, without its export, which may differ."""
    if not path.exists():
        return {}
    values = _timeless(json.loads(path.read_text(encoding="utf-8")))
    return {n: v for n, v in values.items() if n not in ("config_digest", "export", "verification")}


def _left_over(run: RunDirectory) -> list[str]:
    """Hidden files and directories of unfinished writes of the run and its models."""
    models = run.path.parent / "saved_models"
    found = [*run.path.rglob(".*"), *(models.rglob(".*") if models.exists() else ())]
    return [path.name for path in found if path.name not in (".lock", ".published")]
