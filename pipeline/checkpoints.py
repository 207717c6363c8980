"""Weights and optimizer state of a run on disk: written whole, checked before they are read."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from pipeline import files, finite
from pipeline.errors import UsageError

_MANIFEST = "manifest.json"


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
        self._weights = [
            variable for name, group in state.items() if name != "metrics" for variable in group
        ]
        # Lists, not objects: the names in the file then do not depend on how Keras nests layers.
        self._checkpoint = tf.train.Checkpoint(
            **{name: [variable.value for variable in group] for name, group in state.items()}
        )

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Adds the checkpoint of a step; `state` is plain JSON and comes back from `restore`.

        Raises Diverged, before anything is written, unless all weights are finite.
        """
        finite.require(self._weights, step)
        target = self._path(step)
        if not self._writes or target.exists():  # the same step of the same run: the same numbers
            return
        folder = files.scratch(self._folder)
        self._checkpoint.write(str(folder / "state"))
        sums = {path.name: _sum(path) for path in sorted(folder.iterdir())}
        manifest = {"step": step, "files": sums, "state": state}
        files.write_json(folder / _MANIFEST, manifest)
        files.publish_as(folder, target)

    def restore(self, step: int) -> dict[str, Any]:
        """Puts a step's numbers into the model and its optimizer; returns the state saved with it.

        Raises UsageError if a file is missing or changed, or belongs to another model.
        """
        path = self._path(step)
        manifest = _checked_manifest(path, step)
        try:
            self._checkpoint.read(str(path / "state")).assert_consumed()
        except (AssertionError, ValueError, IndexError, tf.errors.OpError):
            raise UsageError(f"the checkpoint {path} belongs to another model") from None
        return manifest["state"]

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, in rising order."""
        names = (path.name.removeprefix("step-") for path in self._folder.glob("step-*"))
        return sorted(int(name) for name in names if name.isdecimal())

    def keep(self, steps: set[int]) -> None:
        """Deletes the checkpoints of all other steps."""
        for step in set(self.steps()) - steps if self._writes else ():
            files.remove(self._path(step))

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:08d}"


def _checked_manifest(path: Path, step: int) -> dict[str, Any]:
    """The manifest of a checkpoint, after every file was found to be as it was written."""
    remedy = f"delete {path} to go on from the checkpoint before it"
    try:
        manifest = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
        damaged = [n for n, digest in manifest["files"].items() if _sum(path / n) != digest]
        whole = manifest["step"] == step and manifest["files"] and set(manifest["state"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UsageError(f"the checkpoint {path} cannot be read; {remedy}") from None
    if damaged or not whole:
        what = damaged[0] if damaged else _MANIFEST
        raise UsageError(f"the checkpoint {path} is damaged: {what} has changed; {remedy}")
    return manifest


def _sum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
