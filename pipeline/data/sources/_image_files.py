"""A source of image files on disk."""

import hashlib
import itertools
import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example, Info, Source
from pipeline.data.image_sizes import common_shape
from pipeline.utils.errors import UsageError


class ImageFiles(Source):
    """`image` is a string of shape (), the bytes of a file; the other fields are int64.

    Args:
        paths: Split -> paths of its files.
        columns: Split -> `id`, `label` and perhaps `group`, int64 (examples,).
        class_names: Names of the labels 0, 1, ...
        root: Directory that messages and the fingerprint leave out; "" for none.
        notes: Lines for the user.
    """

    def __init__(
        self,
        paths: Mapping[str, Sequence[str]],
        columns: Mapping[str, Mapping[str, np.ndarray]],
        class_names: tuple[str, ...] | None,
        *,
        root: str = "",
        notes: tuple[str, ...] = (),
    ) -> None:
        self._paths, self._columns = paths, columns
        self._names: dict[int, str] = {}
        digest = hashlib.sha256(repr(class_names).encode())
        try:
            for split, files in paths.items():
                names = [path.removeprefix(os.path.join(root, "")) for path in files]
                self._names |= zip(columns[split]["id"].tolist(), names, strict=True)
                # Unlike the modification time, the change time cannot be set by the user.
                states = [(found.st_size, found.st_ctime_ns) for found in map(os.stat, files)]
                digest.update(repr((split, names, states)).encode("utf-8", "surrogateescape"))
                for column in columns[split].values():
                    digest.update(column.tobytes())
            image_shape = common_shape(map(_beginning, itertools.chain(*paths.values())))
        except OSError as error:
            raise UsageError(f"{error.filename} cannot be read: {error.strerror}") from None
        self._fingerprint = digest.hexdigest()
        fields = {name: tf.TensorSpec((), tf.int64) for name in columns["train"]}
        self.info = Info(
            splits={split: len(files) for split, files in paths.items()},
            fields={**fields, "image": tf.TensorSpec((), tf.string)},
            class_names=class_names,
            image_shape=image_shape,
            notes=notes,
        )

    def reader(self, split: str) -> Callable[[tf.Tensor], Example]:
        paths = [os.fsencode(path) for path in self._paths[split]]
        names = tf.constant(paths, tf.string, (len(paths),))
        columns = {name: tf.constant(values) for name, values in self._columns[split].items()}

        def read(position: tf.Tensor) -> Example:
            row = {name: tf.gather(column, position) for name, column in columns.items()}
            return {**row, "image": tf.io.read_file(tf.gather(names, position))}

        return read

    def columns(self, split: str) -> dict[str, np.ndarray]:
        return dict(self._columns[split])

    def fingerprint(self) -> str:
        """Hash of the classes, the columns, and every file's path, size and time of last change."""
        return self._fingerprint

    def location(self, id: int) -> str:
        """The path of the file."""
        return self._names[id]


def _beginning(path: str) -> bytes:
    """Enough bytes for the header, even after a color profile and a thumbnail."""
    with open(path, "rb") as file:
        return file.read(2**18)
