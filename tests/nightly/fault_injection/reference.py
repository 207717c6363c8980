"""The tested run, and how what it left on the disk is compared with an uninterrupted
run.
"""

import functools
import hashlib
import itertools
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from interrupted_run import scalars

from pipeline.layers.convolution import convolution, pool
from pipeline.runtime.run_directory import RunDirectory
from pipeline.serving import repository
from tests.nightly.fault_injection import harness
from tests.nightly.fault_injection.harness import Fault, Result

ENGINES = ("model_fit", "gradient_tape")
EPOCH, CALL = 15, 4  # steps in an epoch, and in a call
# All kinds of state: dropout, BatchNormalization, adam, loss scale, averages, patience.
_WORDS = f"""digits --model.name tests.nightly.fault_injection.reference.subject --data.limit 180
    --train.batch-size 8 --train.epochs 3 --train.steps-per-execution {CALL} --train.ema 0.9
    --train.global-clipnorm 1 --train.checkpoint-steps {CALL} --train.patience 2
    --runtime.precision mixed_float16 --data.augment --log.no-progress --run-directory run"""
# Times differ between equal runs, and exports may.
_IGNORED = (
    "seconds",
    "stages",
    "examples_per_second",
    "elapsed",
    "config_digest",
    "export",
    "verification",
)


class Reference(NamedTuple):
    """The tested run, uninterrupted."""

    evidence: dict[str, Any]
    result: Result
    longest_call: float
    """Seconds; of the first call, which traces the step."""


class Workspace:
    """Directories for trials inside one that the caller removes, and the runs that they
    share.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self.reference = functools.cache(self._reference)
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
        result = run(folder, engine, export)
        require_code(result, 0)
        calls = [result.start, *result.times("call")]
        longest = max(b - a for a, b in itertools.pairwise(calls))
        return Reference(evidence(folder / "run"), result, longest)

    def stopped(self, engine: str, calls: int) -> Path:
        """A copy of a killed run, to resume it."""
        folder = self.fresh()
        shutil.copytree(self.killed(engine, calls), folder, dirs_exist_ok=True)
        return folder

    def _killed(self, engine: str, calls: int) -> Path:
        """A run that was killed after that many calls of the compiled step; trained
        once.
        """
        folder = self.fresh()
        require_code(run(folder, engine, fault=Fault("SIGKILL", "call", calls)), 137)
        return folder

    def finish(self, folder: Path, engine: str, export: bool = False) -> Result:
        """Repeats the command; the run must equal the uninterrupted one bit for bit."""
        result = run(folder, engine, export)
        require_code(result, 0)
        assert (
            differences(self.reference(engine).evidence, evidence(folder / "run")) == []
        )
        # A kill between a number and its directory leaves a gap, one right after it two
        # versions.
        models = folder / "saved_models"
        assert not export or repository.versions(models / "digits"), (
            "nothing was exported"
        )
        hidden = {path.name for path in models.rglob(".*")}
        assert hidden <= {".published"}, "files are left over"
        return result


def run(
    folder: Path,
    engine: str,
    export: bool = False,
    fault: Fault | None = None,
    *more: str,
) -> Result:
    """Runs the tested command."""
    words = [*_WORDS.split(), "--train.engine", engine, *more]
    words += [] if export else ["--export.no-enabled"]
    return harness.run("pipeline.fit", words, folder, fault)


def steps_after(calls: int) -> int:
    """Steps that a run has taken after that many calls."""
    each = -(-EPOCH // CALL)
    return calls // each * EPOCH + min(calls % each * CALL, EPOCH)


def newest(folder: Path) -> int:
    """Step of the newest checkpoint of the run in a folder; -1 if there is none."""
    return newest_of(folder / "run")


def newest_of(run: Path) -> int:
    """Step of the newest checkpoint of a run; -1 if there is none."""
    names = (path.name for path in (run / "checkpoints").glob("step-*"))
    return max((int(name.removeprefix("step-")) for name in names), default=-1)


def require_code(result: Result, *codes: int) -> None:
    """Asserts that the run ended with one of these codes and without a stack trace."""
    assert result.code in codes and "Traceback" not in result.output, result.output[
        -2000:
    ]


def differences(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """The parts in which two runs differ."""
    return [name for name in expected if expected[name] != found[name]]


def subject(x: keras.KerasTensor) -> keras.KerasTensor:
    """The tested network: small, with every kind of state that a network can have.

    The moving averages of BatchNormalization and the seeds of dropout are state without
    gradients, which a checkpoint of the trainable weights alone would lose.
    """
    x = convolution(x, 8, 3, padding="same")
    x = keras.layers.BatchNormalization(momentum=0.9)(x)
    x = pool(keras.layers.ReLU()(x))
    x = keras.layers.Flatten()(x)
    return keras.layers.Dropout(0.3)(keras.layers.Dense(32, activation="relu")(x))


def evidence(path: Path) -> dict[str, Any]:
    """Digests of all variables, state, log, scalars, result, and what is left over."""
    directory = RunDirectory(path)
    checkpoint = max(directory.checkpoints.glob("step-*"))
    reader = tf.train.load_checkpoint(str(checkpoint / "state"))
    names = set(reader.get_variable_to_shape_map()) - {"_CHECKPOINTABLE_OBJECT_GRAPH"}
    values = {name: reader.get_tensor(name) for name in sorted(names)}
    manifest = json.loads((checkpoint / "manifest.json").read_text(encoding="utf-8"))
    log = directory.log.read_text(encoding="utf-8").splitlines()
    return {
        "checkpoints": sorted(path.name for path in directory.checkpoints.iterdir()),
        "variables": {name: _digest(value) for name, value in values.items()},
        "state": _timeless(manifest["state"]),
        "log": [_timeless(json.loads(line)) for line in log],
        "scalars": scalars(path),
        "result": _timeless(json.loads(directory.result.read_text(encoding="utf-8"))),
        "left over": [path.name for path in path.rglob(".*") if path.name != ".lock"],
    }


def _digest(value: Any) -> str:
    value = np.asarray(value)
    digest = hashlib.sha256(repr((value.dtype.str, value.shape)).encode())
    digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


def _timeless(values: Any) -> Any:
    if isinstance(values, dict):
        return {
            name: _timeless(v) for name, v in values.items() if name not in _IGNORED
        }
    return values
