"""A source of files, whose content is a field of the examples."""

import dataclasses
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.config.file_types import IMAGE
from pipeline.contracts import Example
from pipeline.data.array_source import ArraySource
from pipeline.data.image_sizes import common_shape, spread, used_bits
from pipeline.utils.errors import UsageError
from pipeline.utils.image_formats import is_deep

_SAMPLE = 1000  # files whose beginning is read


class FileSource(ArraySource):
    """Examples in files; a field with files is a string of shape (), their bytes.

    Args:
        paths: Split -> field -> the files of all examples. The files of the first field
            name the examples in messages.
        columns: Split -> field -> its values for all examples, `id` among them.
        class_names: Names of the labels 0, 1, ...
        root: Directory that messages and the fingerprint leave out.
        notes: Lines for the user.
        group_names: As for `ArraySource`.
    """

    def __init__(
        self,
        paths: Mapping[str, Mapping[str, Sequence[str]]],
        columns: Mapping[str, Mapping[str, np.ndarray]],
        class_names: tuple[str, ...] | None,
        *,
        root: str = "",
        notes: tuple[str, ...] = (),
        group_names: Mapping[str, int] | None = None,
    ) -> None:
        self._fields = tuple(paths["train"])
        self._names: dict[int, str] = {}
        digest = hashlib.sha256(repr(class_names).encode())
        tables = {}
        try:
            for split, files_by_field in paths.items():
                table = dict(columns[split])
                for field, files in files_by_field.items():
                    names = _relative(files, root)
                    if field == self._fields[0]:
                        self._names |= zip(table["id"].tolist(), names, strict=True)
                    # Unlike the modification time, users cannot set the change time.
                    states = [(s.st_size, s.st_ctime_ns) for s in map(os.stat, files)]
                    text = repr((split, names, states))
                    digest.update(text.encode("utf-8", "surrogateescape"))
                    table[field] = np.array(list(map(os.fsencode, files)), object)
                for column in columns[split].values():
                    digest.update(column.tobytes())
                tables[split] = table
            facts = _image_facts(paths) if IMAGE in self._fields else {}
        except OSError as error:
            raise UsageError(
                f"{error.filename} cannot be read: {error.strerror}"
            ) from None
        self._fingerprint = digest.hexdigest()
        super().__init__(
            tables.pop("train"),
            tables,
            class_names=class_names,
            group_names=group_names,
        )
        notes = (*notes, *facts.pop("notes", ()))
        self.info = dataclasses.replace(self.info, notes=notes, **facts)

    def reader(self, split: str) -> Callable[[tf.Tensor], Example]:
        read_row = super().reader(split)

        def read(position: tf.Tensor) -> Example:
            row = read_row(position)
            for field in self._fields:
                row[field] = tf.io.read_file(row[field])
            return row

        return read

    def fingerprint(self) -> str:
        """Returns a hash of classes, columns, and path, size and time of every file."""
        return self._fingerprint

    def location(self, id: int) -> str:
        """Returns the path of the file."""
        return self._names[id]


def _relative(files: Sequence[str], root: str) -> list[str]:
    return [file.removeprefix(os.path.join(root, "")) for file in files]


def _image_facts(
    paths: Mapping[str, Mapping[str, Sequence[str]]],
) -> dict[str, Any]:
    """`image_shape`, `image_bits` and `notes` of `Info`, from the headers of images.

    Raises OSError if a file cannot be read.
    """
    images = {split: files[IMAGE] for split, files in paths.items()}
    shape = common_shape(map(_read_header, itertools.chain(*images.values())))
    bits, notes = used_bits(_deep_files(images["train"]))
    return {"image_shape": shape, "image_bits": bits, "notes": notes}


def _read_header(path: str) -> bytes:
    """Reads enough for the size, even after a color profile and a thumbnail."""
    with open(path, "rb") as file:
        return file.read(2**18)


def _deep_files(paths: Sequence[str]) -> Iterator[bytes]:
    """Yields the 16-bit PNGs in an evenly spread sample of files."""
    for position in spread(len(paths), _SAMPLE):
        with open(paths[position], "rb") as file:
            head = file.read(32)
            if is_deep(head):
                yield head + file.read()
