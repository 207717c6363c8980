"""Weights and optimizer state of a run on disk: written whole, checked before they are read."""

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
_LARGEST_MANIFEST = 256 << 20  # bytes; a history of 100,000 epochs takes 20 MB
_LARGEST_INDEX = 64 << 20  # bytes; a model of 10,000 variables has one of 1 MB
WRITE_ERRORS = (OSError, tf.errors.OpError)
"""What `Checkpoints.save` raises where the disk is full or has gone."""


class Damaged(UsageError):
    """A checkpoint is not as it was written."""


class FolderGone(UsageError):
    """The folder of a run is not where it was."""


class Checkpoints:
    """A folder of `step-XXXXXXXX/`, each a TensorFlow checkpoint with sums of its files.

    Args:
        state: Variables by what they belong to.
        folder: Made when needed.
        writes: Whether this process saves and deletes; of several workers only one does.
    """

    def __init__(
        self,
        state: Mapping[str, Sequence[keras.Variable]],
        folder: Path,
        writes: bool = True,
    ) -> None:
        self._folder = folder
        self._writes = writes
        self._made = False
        self._variables = [variable for group in state.values() for variable in group]
        # Lists, not objects: the names in the file then do not depend on how Keras nests layers.
        self._state = {
            name: [variable.value for variable in group] for name, group in state.items()
        }
        self._checkpoint = tf.train.Checkpoint(**self._state)

    def at(self, folder: Path) -> "Checkpoints":
        """The same variables, with another folder."""
        other = copy.copy(self)
        other._folder, other._made = folder, False
        return other

    def require_room(self) -> None:
        """Raises UsageError unless the disk can take the three that are ever there at once."""
        if not self._writes:  # what another worker makes first, the chief takes for no run
            return
        size = 3 * self._size()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._made = True
        free = shutil.disk_usage(self._folder).free
        if free < size:
            raise UsageError(
                f"--run-directory: checkpoints in {self._folder} need {size / 1e6:,.0f} MB, and "
                f"{free / 1e6:,.0f} MB are free; free some, or give a folder on another disk"
            )

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Adds the checkpoint of a step; `state` is plain JSON and comes back from `restore`.

        Where the step has one, its numbers stay, being those of the same run, and `state` replaces
        the former one.

        Raises one of WRITE_ERRORS where it cannot be written; what was there before is as it was.
        Raises Diverged, before anything is written, unless all weights are finite.
        """
        require(self._variables, step)
        target = self._path(step)
        if not self._writes:
            return
        if self._made and not self._folder.is_dir():
            raise FolderGone(
                f"{self._folder} was removed or moved while the run was trained; nothing more can "
                "be saved there"
            )
        if target.exists():
            try:
                _write_manifest(target, step, self._checked(step)["files"], state)
                return
            except Damaged:
                self._set_aside(step)
        folder = temp_files.folder(self._folder)
        try:
            self._checkpoint.write(str(folder / "state"))
            sums = {path.name: _sums(path) for path in sorted(folder.iterdir())}
            _write_manifest(folder, step, sums, state)
            files.publish_as(folder, target)
        except BaseException:
            temp_files.remove(folder)
            raise

    def restore(self, step: int) -> dict[str, Any]:
        """Puts a step's numbers into the model and its optimizer; returns the state saved with it.

        Raises:
            Damaged: A file is missing or changed.
            UsageError: It belongs to another model.
        """
        path = self._path(step)
        manifest = self._checked(step)
        try:
            self._checkpoint.read(str(path / "state")).assert_consumed()
        except (AssertionError, ValueError, IndexError, tf.errors.OpError):
            raise UsageError(f"the checkpoint {path} belongs to another model") from None
        return manifest["state"]

    def restore_newest(
        self, take: Callable[[int, dict[str, Any]], None]
    ) -> tuple[int, list[str]] | None:
        """Restores the newest checkpoint that is whole; None if there has never been one.

        Damaged ones are renamed, so that their step can be saved again, and deleted by `keep`.

        Args:
            take: Gets the step and the state saved with it; what it raises, but for a UsageError,
                is damage.

        Returns: (step, what is wrong with each newer one).

        Raises NoCheckpoint if there are some, but all are damaged.
        """
        wrong: list[str] = []
        for step in reversed(self.steps()):
            try:
                take(step, self.restore(step))
                return step, wrong
            except Damaged as error:
                wrong.append(str(error))
            except UsageError:
                raise
            except Exception:  # sums agree, but nobody has written this: whatever it makes us raise
                wrong.append(f"{self._path(step) / _MANIFEST} is damaged")
            self._set_aside(step)
        if wrong or self._damaged():
            raise NoCheckpoint(
                f"no checkpoint in {self._folder} is whole: {'; '.join(wrong) or 'all damaged'}; "
                "start again in a new --run-directory"
            )
        return None

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, in rising order."""
        return run_directory.steps(self._folder)

    def keep(self, steps: set[int]) -> None:
        """Deletes the checkpoints of all other steps, and the damaged ones."""
        if self._writes:
            for step in set(self.steps()) - steps:
                temp_files.remove(self._path(step))
            for path in self._damaged():
                temp_files.remove(path)

    def _size(self) -> int:
        """Bytes of all variables."""
        tensors = tf.nest.flatten([list(group) for group in self._state.values()])
        return sum(tensor.dtype.size * tensor.shape.num_elements() for tensor in tensors)

    def _checked(self, step: int) -> dict[str, Any]:
        return _checked_manifest(self._path(step), step, self._size() + _LARGEST_INDEX)

    def _damaged(self) -> list[Path]:
        names = (path.name.removeprefix("damaged-") for path in self._folder.glob("damaged-*"))
        return [
            self._folder / f"damaged-{name}" for name in names if run_directory.STEP.fullmatch(name)
        ]

    def _set_aside(self, step: int) -> None:
        if self._writes:
            aside = self._folder / f"damaged-{self._path(step).name}"
            temp_files.remove(aside)
            self._path(step).rename(aside)

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:08d}"


def _write_manifest(
    folder: Path, step: int, sums: dict[str, dict[str, Any]], state: dict[str, Any]
) -> None:
    body = files.strict({"step": step, "files": sums, "state": state})
    text = json.dumps({"sha256": _digest(body), **body}, indent=1)
    files.write_text(folder / _MANIFEST, text)


def _checked_manifest(path: Path, step: int, most: int) -> dict[str, Any]:
    """The manifest of a checkpoint, after every file was found to be as it was written.

    A file is read only if it has the size that it was written with, and at most `most` bytes.
    """
    try:
        there = {file.name: file for file in path.iterdir()}
        manifest = safe_io.read_json(path / _MANIFEST, _LARGEST_MANIFEST)
        own, sums = manifest.pop("sha256"), dict(manifest["files"])
        sizes = {name: int(expected["bytes"]) for name, expected in sums.items()}
        unknown = [n for n in there if n.startswith("state") and n not in sums]
        if own != _digest(manifest) or manifest["step"] != step or not sums or unknown:
            raise ValueError
        dict(manifest["state"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise Damaged(f"{path / _MANIFEST} is damaged") from None
    for name, expected in sums.items():
        # A name of another folder, which only a forger writes, is not there. No link is followed.
        file = there.get(name)
        if file is None or file.is_symlink() or not file.is_file():
            raise Damaged(f"{path / Path(name).name} is damaged")
        if not sizes[name] == file.stat().st_size <= most or _sums(file) != expected:
            raise Damaged(f"{file} is damaged")
    return manifest


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _sums(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": file.tell(), "sha256": digest}


def require(variables: Sequence[keras.Variable], step: int) -> None:
    """Raises Diverged, naming the first variable that holds a NaN or an infinity.

    Each is read once where it lies; only one vector of truths comes from there.

    Args:
        variables: Of any type; those of integers are finite.
        step: After which they are to be written.
    """
    floats = [variable for variable in variables if "float" in variable.dtype]
    sound = [tf.reduce_all(tf.math.is_finite(variable.value)) for variable in floats]
    for variable, is_sound in zip(floats, tf.stack(sound).numpy(), strict=True):
        if not is_sound:
            raise Diverged(
                f"training diverged: {variable.path} is not finite after step {step:,}; lower "
                "--train.learning-rate. It was not saved"
            )
