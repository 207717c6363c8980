"""A list of files that needs little memory, and their paths inside a graph."""

import hashlib
import itertools
import os
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from pipeline.utils.errors import UsageError
from pipeline.utils.tf_data import without_autograph

_BLOCK = 64  # names in a string of a reader


class FileList(Sequence[str]):
    """Paths of files; each needs the length of its name below `root`, and 8 bytes.

    A list of strings needs about 100 bytes more for each.
    """

    def __init__(self, root: str = "", prefix: str | None = None) -> None:
        self._root = os.path.join(root, "") if root else ""
        self._prefix = self._root if prefix is None else prefix
        self._text = bytearray()
        self._ends = array("q", [0])
        self._digest = hashlib.sha256()

    @classmethod
    def of(cls, paths: Sequence[str], root: str = "") -> "FileList":
        """A list of these files; UsageError naming one that cannot be read."""
        prefix = os.path.join(root, "") if root else ""
        if not all(path.startswith(prefix) for path in paths):
            prefix = ""
        files = cls(root, prefix)
        for path in paths:
            try:
                status = os.stat(path)
            except OSError as error:
                raise UsageError(f"{path} cannot be read: {error.strerror}") from None
            files.add(path.removeprefix(prefix), status)
        return files

    def add(self, name: str, status: os.stat_result) -> None:
        """Appends a file by its name below the root."""
        encoded = os.fsencode(name)
        self._text += encoded
        self._ends.append(len(self._text))
        # Unlike the modification time, users cannot set the change time.
        state = struct.pack("<qqq", len(encoded), status.st_size, status.st_ctime_ns)
        self._digest.update(encoded + state)

    def digest(self) -> bytes:
        """A hash of the names, sizes and times of all files."""
        return self._digest.digest()

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self._prefix + os.fsdecode(self._encoded(index))

    def name(self, index: int) -> str:
        """The name of a file in messages: its path below the root."""
        return self[index].removeprefix(self._root)

    def names(self) -> Iterator[str]:
        """Yields the names of all files."""
        return map(self.name, range(len(self)))

    def encoded_names(self) -> Iterator[bytes]:
        """Yields the names as bytes, as they were added."""
        return map(self._encoded, range(len(self)))

    def _encoded(self, index: int) -> bytes:
        return bytes(self._text[self._ends[index] : self._ends[index + 1]])

    def reader(self) -> Callable[[tf.Tensor], tf.Tensor]:
        """A function from a position, int64 (), to the file's content."""
        ends = np.frombuffer(self._ends, np.int64)
        bounds = [*ends[:-1:_BLOCK].tolist(), len(self._text)]
        # Not as one text: a graph has a copy of each tensor of one value that it uses.
        blocks = tf.constant(
            [bytes(self._text[start:end]) for start, end in itertools.pairwise(bounds)]
        )
        ends = tf.constant(ends)
        prefix = os.fsencode(self._prefix)

        @without_autograph
        def read(position: tf.Tensor) -> tf.Tensor:
            if tf.executing_eagerly():
                return tf.io.read_file(os.fsencode(self[int(position)]))
            block = position // _BLOCK
            start = tf.gather(ends, position)
            end = tf.gather(ends, position + 1)
            name = tf.strings.substr(
                tf.gather(blocks, block),
                start - tf.gather(ends, block * _BLOCK),
                end - start,
            )
            return tf.io.read_file(tf.strings.join([prefix, name]))

        return read
