"""Writes checkpoints atomically, and verifies them before it restores them."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.runtime import run_directory
from pipeline.utils import files, safe_io, temp_files, tf_paths
from pipeline.utils.errors import Diverged, NoCheckpoint, UsageError, reason

_MANIFEST = "manifest.json"
WRITE_ERRORS = (OSError, tf.errors.OpError)
"""What `Checkpoints.save` raises if the disk is full or unavailable."""
# Raised for variables of a different number, shape or dtype.
_MISMATCH_ERRORS = (
    AssertionError,
    ValueError,
    IndexError,
    tf.errors.InvalidArgumentError,
)


class Damaged(UsageError):
    """A file of a checkpoint is missing or has changed."""


class Checkpoints:
    """A directory of TensorFlow checkpoints `step-XXXXXXXX/` with file checksums.

    Args:
        state: Groups of variables by name.
        directory: Where the checkpoints are.
        writes: Whether this process saves and deletes; of several workers, only the
            chief does.
    """

    def __init__(
        self,
        state: Mapping[str, Sequence[keras.Variable]],
        directory: Path,
        writes: bool = True,
    ) -> None:
        self._directory = directory
        self._writes = writes
        self._variables = [variable for group in state.values() for variable in group]
        # Lists, not objects, so that the names in the file do not depend on how Keras
        # nests layers.
        values = {
            name: [variable.value for variable in group]
            for name, group in state.items()
        }
        self._checkpoint = tf.train.Checkpoint(**values)

    def save(
        self, step: int, state: dict[str, Any], directory: Path | None = None
    ) -> None:
        """Saves the checkpoint of a step; replaces an earlier one of the same step.

        Args:
            step: Number of steps taken.
            state: Plain JSON, which `restore` returns.
            directory: Where to save instead of the directory of these checkpoints.

        Raises:
            OSError, tf.errors.OpError: It cannot be written; existing checkpoints stay
                unchanged.
            Diverged: A weight is not finite; nothing was written.
        """
        require_finite(self._variables, step)
        if not self._writes:
            return
        parent = directory or self._directory
        folder = temp_files.folder(parent)
        try:
            self._checkpoint.write(str(folder / "state"))
            paths = sorted(folder.iterdir())
            checksums = {path.name: _checksum(path) for path in paths}
            body = files.strict({"step": step, "files": checksums, "state": state})
            text = json.dumps({"sha256": _digest(body), **body}, indent=1)
            files.write_text(folder / _MANIFEST, text)
            target = parent / self._path(step).name
            if target.exists():
                temp_files.remove(target)
            files.publish_as(folder, target)
        except BaseException:
            temp_files.remove(folder)
            raise

    def restore(self, step: int) -> dict[str, Any]:
        """Restores the variables of a step; returns the state saved with them.

        Raises:
            Damaged: A file is missing or has changed.
            UsageError: The checkpoint belongs to another model or cannot be read.
        """
        path = self._path(step)
        manifest = _verified_manifest(path, step)
        try:
            with tf_paths.literal(path) as directory:
                self._checkpoint.read(f"{directory}/state").assert_consumed()
        except _MISMATCH_ERRORS:
            raise UsageError(
                f"the checkpoint {path} belongs to another model"
            ) from None
        except tf.errors.OpError as error:
            raise UsageError(
                f"the checkpoint {path} cannot be read: {reason(error)}"
            ) from None
        return manifest["state"]

    def restore_newest(self) -> tuple[int, dict[str, Any], list[str]] | None:
        """Restores the newest undamaged checkpoint.

        Returns:
            (step, the state saved with it, the problem of each newer checkpoint); None
            if there are no checkpoints.

        Raises:
            NoCheckpoint: All checkpoints are damaged.
        """
        problems: list[str] = []
        for step in reversed(self.steps()):
            try:
                return step, self.restore(step), problems
            except Damaged as error:
                problems.append(str(error))
        if problems:
            raise NoCheckpoint(
                f"no checkpoint in {self._directory} is intact: {'; '.join(problems)}; "
                "start again in a new --run-directory"
            )
        return None

    def steps(self) -> list[int]:
        """Returns the steps that have a checkpoint, in ascending order."""
        return run_directory.steps(self._directory)

    def keep(self, steps: set[int]) -> None:
        """Deletes the checkpoints of all other steps."""
        if not self._writes:
            return
        for step in set(self.steps()) - steps:
            temp_files.remove(self._path(step))

    def _path(self, step: int) -> Path:
        return self._directory / f"step-{step:08d}"


def _verified_manifest(path: Path, step: int) -> dict[str, Any]:
    """Returns the manifest of a checkpoint whose files are all unchanged."""
    try:
        manifest = safe_io.read_json(path / _MANIFEST)
        expected = manifest.pop("sha256")
        if expected != _digest(manifest) or manifest["step"] != step:
            raise ValueError
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise Damaged(f"{path / _MANIFEST} is damaged") from None
    for name, expected in manifest["files"].items():
        file = path / Path(name).name
        if _checksum(file) != expected:
            raise Damaged(f"{file} is damaged")
    return manifest


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _checksum(path: Path) -> str | None:
    """Returns the SHA-256 of a file; None if it cannot be read."""
    try:
        return files.sha256(path)
    except (OSError, ValueError):
        return None


def require_finite(variables: Sequence[keras.Variable], step: int) -> None:
    """Raises Diverged if a variable contains a NaN or an infinity."""
    floats = [variable for variable in variables if "float" in variable.dtype]
    finite = [tf.reduce_all(tf.math.is_finite(variable.value)) for variable in floats]
    for variable, is_finite in zip(floats, tf.stack(finite).numpy(), strict=True):
        if not is_finite:
            raise Diverged(
                f"training diverged: {variable.path} is not finite after step {step:,};"
                " lower --train.learning-rate. It was not saved"
            )


def metric_state(metrics: Sequence[keras.metrics.Metric]) -> list[list[str]]:
    """Returns the metrics as plain JSON: for each variable, its bytes on each replica
    in base64.
    """
    return [
        [base64.b64encode(value.tobytes()).decode() for value in values]
        for values in _replica_values(_variables(metrics))
    ]


def restore_metrics(
    metrics: Sequence[keras.metrics.Metric], state: Sequence[Sequence[str]]
) -> None:
    """Restores what `metric_state` returned into the same metrics.

    If the number of replicas has changed, the first replica gets the sum, which leaves
    the metrics over all replicas unchanged up to rounding.
    """
    strategy = tf.distribute.get_strategy()
    count = strategy.num_replicas_in_sync
    for variable, texts in zip(_variables(metrics), state, strict=True):
        dtype = np.dtype(variable.dtype)
        values = [
            np.frombuffer(base64.b64decode(text), dtype).reshape(variable.shape)
            for text in texts
        ]
        if len(values) != count:
            total = np.sum(values, axis=0, dtype=dtype)
            values = [total] + [np.zeros_like(total)] * (count - 1)
        local = strategy.experimental_local_results(variable.value)
        first = _worker_index(strategy) * len(local)
        for replica, value in zip(local, values[first:], strict=False):
            replica.assign(value)


def _replica_values(variables: list[keras.Variable]) -> list[list[np.ndarray]]:
    """Returns the values of each variable on the replicas of all workers."""
    strategy = tf.distribute.get_strategy()
    if not _has_workers(strategy):
        replicas = [
            strategy.experimental_local_results(variable.value)
            for variable in variables
        ]
        return [[value.numpy() for value in values] for values in replicas]

    def gather() -> list[tf.Tensor]:
        context = tf.distribute.get_replica_context()
        values = [tf.convert_to_tensor(variable.value) for variable in variables]
        return [context.all_gather(value[None], axis=0) for value in values]

    gathered = tf.function(lambda: strategy.run(gather), autograph=False)()
    first = [strategy.experimental_local_results(value)[0] for value in gathered]
    return [list(value.numpy()) for value in first]


def _variables(metrics: Sequence[keras.metrics.Metric]) -> list[keras.Variable]:
    return [variable for metric in metrics for variable in metric.variables]


def _has_workers(strategy: tf.distribute.Strategy) -> bool:
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def _worker_index(strategy: tf.distribute.Strategy) -> int:
    if not _has_workers(strategy):
        return 0
    return strategy.cluster_resolver.task_id or 0
