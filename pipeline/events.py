"""TensorBoard's files of a run, under names that say nothing of the machine."""

import re
from pathlib import Path
from typing import Any

import keras

# TensorFlow puts host and process into the names; only the time is needed, as the order of files.
_NAME = re.compile(r"(events\.out\.tfevents\.\d+)\..*\.(\d+\.\d+\.v2)")


class TensorBoard(keras.callbacks.TensorBoard):
    """Keras's own, with scalars alone; its files lose the host's name when training ends.

    Args:
        folder: Of the run. Files of a run that was killed are renamed at once.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, write_graph=False)
        self._folder = folder
        _rename(folder)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_end(logs)  # closes them; an open one would be begun anew
        _rename(self._folder)


def _rename(folder: Path) -> None:
    for path in folder.glob("*/events.out.tfevents.*"):
        if found := _NAME.fullmatch(path.name):
            path.rename(path.with_name(f"{found[1]}.{found[2]}"))
