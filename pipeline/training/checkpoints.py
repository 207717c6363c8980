"""Checkpoints of a run: written atomically, and verified before they are restored."""

import copy
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from pipeline.runtime import run_directory
from pipeline.utils import files, safe_io, temp_files
from pipeline.utils.errors import Diverged, NoCheckpoint, UsageError

_MANIFEST = "manifest.json"
_LARGEST_MANIFEST = 256 << 20  # bytes; the history of 100,000 epochs takes 20 MB
WRITE_ERRORS = (OSError, tf.errors.OpError)
"""What `Checkpoints.save` raises if the disk is full or unavailable."""


class Damaged(UsageError):
    """A file of a checkpoint is missing or has changed."""


class Checkpoints:
    """A directory of `step-XXXXXXXX/`: TensorFlow checkpoints with checksums of their files.

    Args:
        state: Variables by the part of the training that they belong to.
        directory: Created when it is needed.
        writes: Whether this process saves and deletes; of several workers only the chief does.
    """

    def __init__(
        self,
        state: Mapping[str, Sequence[keras.Variable]],
        directory: Path,
        writes: bool = True,
    ) -> None:
        self._directory = directory
        self._writes = writes
        self._created = False
        self._variables = [variable for group in state.values() for variable in group]
        # Lists, not objects: the names in the file then do not depend on how Keras nests layers.
        self._state = {
            name: [variable.value for variable in group] for name, group in state.items()
        }
        self._checkpoint = tf.train.Checkpoint(**self._state)

    def at(self, directory: Path) -> "Checkpoints":
        """The same variables with another directory."""
        other = copy.copy(self)
        other._directory, other._created = directory, False
        return other

    def require_room(self) -> None:
        """Raises UsageError unless the disk has room for three checkpoints, the most there are."""
        if not self._writes:  # the chief would not accept a directory that a worker has created
            return
        tensors = tf.nest.flatten([list(group) for group in self._state.values()])
        size = 3 * sum(tensor.dtype.size * tensor.shape.num_elements() for tensor in tensors)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._created = True
        free = shutil.disk_usage(self._directory).free
        if free < size:
            raise UsageError(
                f"--run-directory: checkpoints in {self._directory} need {size / 1e6:,.0f} MB, but "
                f"only {free / 1e6:,.0f} MB are free; free some space or choose a directory on "
                "another disk"
            )

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Adds the checkpoint of a step; `state` is plain JSON, which `restore` returns.

        If the step already has a checkpoint, only its `state` is replaced: the variables are those
        of the same run.

        Raises one of WRITE_ERRORS if it cannot be written; existing checkpoints stay as they are.
        Raises Diverged, before anything is written, unless all weights are finite.
        """
        require_finite(self._variables, step)
        if not self._writes:
            return
        if self._created and not self._directory.is_dir():
            raise UsageError(
                f"{self._directory} was removed or moved during training; nothing more can be "
                "saved there"
            )
        target = self._path(step)
        if target.exists():
            try:
                _write_manifest(target, step, _verified_manifest(target, step)["files"], state)
                return
            except Damaged:
                self._set_aside(step)
        directory = temp_files.folder(self._directory)
        try:
            self._checkpoint.write(str(directory / "state"))
            checksums = {path.name: _checksum(path) for path in sorted(directory.iterdir())}
            _write_manifest(directory, step, checksums, state)
            files.publish_as(directory, target)
        except BaseException:
            temp_files.remove(directory)
            raise

    def restore(self, step: int) -> dict[str, Any]:
        """Restores model and optimizer to a step; returns the state saved with it.

        Raises:
            Damaged: A file is missing or has changed.
            UsageError: It belongs to another model.
        """
        path = self._path(step)
        manifest = _verified_manifest(path, step)
        try:
            self._checkpoint.read(str(path / "state")).assert_consumed()
        except (AssertionError, ValueError, IndexError, tf.errors.OpError):
            raise UsageError(f"the checkpoint {path} belongs to another model") from None
        return manifest["state"]

    def restore_newest(
        self, accept: Callable[[int, dict[str, Any]], None]
    ) -> tuple[int, list[str]] | None:
        """Restores the newest undamaged checkpoint; None if there has never been one.

        Damaged ones are renamed, so that their step can be saved again, and deleted by `keep`.

        Args:
            accept: Called with the step and the state saved with it; it raises an error, but no
                UsageError, if the state was edited.

        Returns: (step, what is wrong with each newer one).

        Raises NoCheckpoint if all checkpoints are damaged.
        """
        problems: list[str] = []
        for step in reversed(self.steps()):
            try:
                accept(step, self.restore(step))
                return step, problems
            except Damaged as error:
                problems.append(str(error))
            except (AttributeError, LookupError, TypeError, ValueError):
                problems.append(f"{self._path(step) / _MANIFEST} is damaged")
            self._set_aside(step)
        if problems or self._damaged():
            raise NoCheckpoint(
                f"no checkpoint in {self._directory} is intact: "
                f"{'; '.join(problems) or 'all are damaged'}; "
                "start again in a new --run-directory"
            )
        return None

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, in ascending order."""
        return run_directory.steps(self._directory)

    def keep(self, steps: set[int]) -> None:
        """Deletes the checkpoints of all other steps, and the damaged ones."""
        if self._writes:
            for step in set(self.steps()) - steps:
                temp_files.remove(self._path(step))
            for path in self._damaged():
                temp_files.remove(path)

    def _damaged(self) -> list[Path]:
        found = self._directory.glob("damaged-*")
        return [p for p in found if run_directory.STEP.fullmatch(p.name.removeprefix("damaged-"))]

    def _set_aside(self, step: int) -> None:
        if self._writes:
            aside = self._directory / f"damaged-{self._path(step).name}"
            temp_files.remove(aside)
            self._path(step).rename(aside)

    def _path(self, step: int) -> Path:
        return self._directory / f"step-{step:08d}"


def _write_manifest(
    directory: Path, step: int, checksums: Mapping[str, str | None], state: dict[str, Any]
) -> None:
    body = files.strict({"step": step, "files": checksums, "state": state})
    text = json.dumps({"sha256": _digest(body), **body}, indent=1)
    files.write_text(directory / _MANIFEST, text)


def _verified_manifest(path: Path, step: int) -> dict[str, Any]:
    """The manifest of a checkpoint, after all files were found to be unchanged."""
    try:
        manifest = safe_io.read_json(path / _MANIFEST, _LARGEST_MANIFEST)
        expected = manifest.pop("sha256")
        checksums = dict(manifest["files"])
        has_state = isinstance(manifest["state"], dict) and bool(checksums)
        if expected != _digest(manifest) or manifest["step"] != step or not has_state:
            raise ValueError
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise Damaged(f"{path / _MANIFEST} is damaged") from None
    for name, expected in checksums.items():
        file = path / Path(name).name
        if _checksum(file) != expected:
            raise Damaged(f"{file} is damaged")
    return manifest


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _checksum(path: Path) -> str | None:
    """SHA-256 of a file; None if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):
        return None


def require_finite(variables: Sequence[keras.Variable], step: int) -> None:
    """Raises Diverged, naming the first variable that contains a NaN or an infinity.

    Each is checked on its own device; one vector of booleans is copied to the host.

    Args:
        variables: Of any dtype; integers are always finite.
        step: The step after which they are to be saved.
    """
    floats = [variable for variable in variables if "float" in variable.dtype]
    finite = [tf.reduce_all(tf.math.is_finite(variable.value)) for variable in floats]
    for variable, is_finite in zip(floats, tf.stack(finite).numpy(), strict=True):
        if not is_finite:
            raise Diverged(
                f"training diverged: {variable.path} is not finite after step {step:,}; lower "
                "--train.learning-rate. It was not saved"
            )
