"""Sharded TFRecord files of tf.Example with one encoded image and one label each."""

import dataclasses
import hashlib
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example, Source
from pipeline.data import split_names
from pipeline.data.image_sizes import common_shape, used_bits
from pipeline.data.labels import distinct, from_labels, in_order
from pipeline.data.records import (
    Layout,
    RecordSource,
    detect_layout,
    list_files,
    open_files,
    parse_records,
)
from pipeline.data.seeds import stable_hash
from pipeline.utils import safe_io
from pipeline.utils.errors import UsageError

# Words in the name of a file or its directory that indicate the split.
_WORDS = {name: split for split, names in split_names.ALIASES.items() for name in names}
_WORDS |= {"training": "train", "testing": "test"}
_WORD = re.compile(rf"(?<![a-z])({'|'.join(_WORDS)})(?![a-z])")
_CLASSES = "labels.txt"
# An id is a hash of the file's path, with the number of the record in these lowest
# bits.
_BITS = 24
_SAMPLE = 1000  # records that may be 16-bit PNGs


def tfrecord(
    *,
    path: Annotated[Path, "exists"],
    image: str | None = None,
    label: str | None = None,
    group: str | None = None,
    class_names: tuple[str, ...] = (),
) -> Source:
    """TFRecord files such as `train-00000-of-00010` or `train.tfrecord`, ordered by
    their paths.

    The split is the word train, validation (valid, val) or test in the name of a file
    or its directory; if no name contains one, all files are train. The id of an example
    is a hash of the file's path below the root and the record's number, so adding files
    does not change other ids.

    Args:
        path: A directory or a file.
        image: Feature with the encoded image (JPEG, PNG, GIF, BMP, WebP); None: found
            by its name.
        label: Feature with the label, a whole number or a string; None: found by its
            name.
        group: Feature with an integer or a string; examples with the same value stay in
            one split.
        class_names: Names of the classes 0, 1, ...; by default the lines of
            `labels.txt` in the directory, or else the labels themselves.
    """
    return TFRecords(
        path, {"image": image, "label": label, "group": group}, class_names
    )


class TFRecords(RecordSource):
    """The examples of TFRecord files; arguments as for `tfrecord`."""

    def __init__(
        self, path: Path, features: dict[str, str | None], names: tuple[str, ...]
    ) -> None:
        self._root, divided = _files(path)
        files = [file for several in divided.values() for file in several]
        records = open_files(files)
        paths = (os.fsencode(_relative(file, self._root)) for file in files)
        self._hashes = np.array(
            [stable_hash(path) >> _BITS for path in paths], np.int64
        )
        ends = records.first[np.cumsum([len(several) for several in divided.values()])]
        runs = zip(divided, [0, *ends[:-1]], ends, strict=True)
        numbers = {split: np.arange(start, end) for split, start, end in runs}
        for split in divided:
            if not len(numbers[split]):
                raise UsageError(
                    f"{divided[split][0]}: the files for {split} contain no examples"
                )
        first = numbers["train"][:1]
        records.require_sound(first)
        record = next(iter(records.sequence(first))).numpy()
        layout = detect_layout(record, features, records.location(first[0]))
        file, inside = records.locate(np.arange(len(records)))
        super().__init__(
            records, (self._hashes[file] << _BITS) + inside, numbers, layout
        )
        self._names: tuple[str, ...] = ()  # until they are known
        self._names = self._class_names(names)
        info = self._info(self._names, common_shape(self._values("image")))
        bits, notes = used_bits(itertools.islice(self._values("image"), _SAMPLE))
        self.info = dataclasses.replace(info, image_bits=bits, notes=notes)

    def _class_names(self, given: tuple[str, ...]) -> tuple[str, ...]:
        if given:
            return distinct(given, "--source.class-names")
        file = self._root / _CLASSES
        if file.exists():
            try:
                lines = safe_io.read_text(file).rstrip().split("\n")
            except (OSError, ValueError):
                raise UsageError(f"{file} cannot be read as UTF-8 text") from None
            return distinct([line.strip() for line in lines], f"the lines of {file}")
        if self._layout["label"][1] != "bytes":
            option = f"--source.class-names, or {_CLASSES} next to the files"
            labels = self.columns("train")["label"]
            return from_labels(labels, str(self._root), option)
        values = set(self._values("label"))
        texts = in_order(value.decode("utf-8", "surrogateescape") for value in values)
        return distinct(texts, f"{self._root}: the labels")

    def _parse(self, layout: Layout, records: tf.Tensor) -> Example:
        found = super()._parse(layout, records)
        if "label" in found and found["label"].dtype == tf.string:
            same = tf.equal(self._names, found["label"][..., None])
            labels, missing = found["label"], ~tf.reduce_any(same, axis=-1)
            unknown = tf.boolean_mask(
                tf.reshape(labels, [-1]), tf.reshape(missing, [-1])
            )
            known = tf.debugging.Assert(
                tf.size(unknown) == 0, ["unknown class", unknown]
            )
            with tf.control_dependencies([known]):
                found["label"] = tf.argmax(tf.cast(same, tf.int8), axis=-1)
        return found

    def _values(self, field: str) -> Iterator[bytes]:
        """The unchanged values of a field in train."""
        layout = {field: self._layout[field]}
        for batch in self._batches("train", lambda r: parse_records(layout, r)):
            yield from batch[field]

    def fingerprint(self) -> str:
        """Hash of the layout, the class names, and every file's path, size and time."""
        paths = [
            (path.relative_to(self._root), path.stat()) for path in self._records.files
        ]
        files = [
            (path.as_posix(), stat.st_size, stat.st_ctime_ns) for path, stat in paths
        ]
        state = (list(self._numbers), self._layout, self._names, files)
        return hashlib.sha256(
            repr(state).encode("utf-8", "surrogateescape")
        ).hexdigest()

    def location(self, id: int) -> str:
        """For example, `record 17 of train-00000-of-00010`."""
        file = np.flatnonzero(self._hashes == id >> _BITS)[0]
        return (
            f"record {id % (1 << _BITS)} of"
            f" {_relative(self._records.files[file], self._root)}"
        )


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _files(path: Path) -> tuple[Path, dict[str, list[Path]]]:
    """The root, and a map from splits to their files in sorted order."""
    root = path if path.is_dir() else path.parent
    found = [path] if root != path else list_files(root, _split_of)
    return root, _divided(found, root)


def _split_of(name: str) -> str | None:
    words = {_WORDS[word] for word in _WORD.findall(name.lower())}
    if len(words) > 1:
        raise UsageError(
            f"{name} names several splits: {', '.join(sorted(words))}; rename it"
        )
    return words.pop() if words else None


def _divided(files: list[Path], root: Path) -> dict[str, list[Path]]:
    names = {path: _split_of(_relative(path, root)) for path in files}
    if set(names.values()) == {None}:
        return {"train": files}
    divided = {
        split: [p for p in files if names[p] == split] for split in split_names.SPLITS
    }
    if None in names.values() or not divided["train"]:
        other = next((path for path in files if names[path] is None), root)
        raise UsageError(
            f"{other}: the name of each file must contain train, validation or test,"
            " and at least one file must be for train; rename the files"
        )
    return {split: several for split, several in divided.items() if several}
