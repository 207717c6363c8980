"""Sharded TFRecord files of tf.Example with one encoded image and one label each."""

import dataclasses
import functools
import hashlib
import itertools
import os
import re
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import tensorflow as tf

from pipeline.config.registry import register
from pipeline.contracts import Example, ImageShape, Source
from pipeline.data import split_names
from pipeline.data.image_sizes import MAX_DEEP_PNGS, common_shape, shape, used_bits
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
from pipeline.utils import progress_bar, safe_io
from pipeline.utils.errors import UsageError

# Words in the name of a file or its directory that indicate the split.
_WORDS = {name: split for split, names in split_names.ALIASES.items() for name in names}
_WORDS |= {"training": "train", "testing": "test"}
_WORD = re.compile(rf"(?<![a-z])({'|'.join(_WORDS)})(?![a-z])")
_CLASSES_FILE = "labels.txt"
# The lowest bits of an id are the number of the record, the others a hash of the file's
# path.
_RECORD_BITS = 24
_SAMPLE = 1000  # records whose sizes and bits are read


@register
def tfrecord(
    *,
    path: Annotated[Path, "exists"],
    image: str | None = None,
    label: str | None = None,
    group: str | None = None,
    class_names: tuple[str, ...] = (),
) -> Source:
    """TFRecord files such as `train-00000-of-00010` or `train.tfrecord`, by path.

    The split is the word train, validation (valid, val) or test in the name of a file
    or its directory; if no name contains such a word, all files are train. The id of an
    example is a hash of the file's path below the root and the record's number, so
    adding files does not change other ids.

    Args:
        path: A directory or a file.
        image: Feature with the encoded image (JPEG, PNG, GIF, BMP, WebP); by default
            recognized by its name.
        label: Feature with the label, a whole number or a string; by default recognized
            by its name.
        group: Feature with an integer or a string; examples with the same value stay in
            one split.
        class_names: Names of the classes 0, 1, ...; by default the lines of
            `labels.txt` in the directory, or else the labels themselves.
    """
    features = {"image": image, "label": label, "group": group}
    return TFRecords(path, features, class_names)


class TFRecords(RecordSource):
    """The examples of TFRecord files; arguments as for `tfrecord`."""

    def __init__(
        self,
        path: Path,
        features: dict[str, str | None],
        class_names: tuple[str, ...],
    ) -> None:
        self._root = path if path.is_dir() else path.parent
        files_by_split = _find_files(path)
        files = [*itertools.chain.from_iterable(files_by_split.values())]
        records = open_files(files)
        paths = [os.fsencode(_relative(file, self._root)) for file in files]
        hashes = [stable_hash(path) >> _RECORD_BITS for path in paths]
        self._hashes = np.array(hashes, np.int64)
        numbers = {}
        start = 0
        for split, split_files in files_by_split.items():
            end = start + len(split_files)
            numbers[split] = np.arange(records.first[start], records.first[end])
            if not len(numbers[split]):
                raise UsageError(
                    f"{split_files[0]}: the files for {split} contain no examples"
                )
            start = end
        first = numbers["train"][:1]
        records.require_sound(first)
        record = next(iter(records.sequence(first))).numpy()
        layout = detect_layout(record, features, records.location(first[0]))
        file, position = records.locate(np.arange(len(records)))
        ids = (self._hashes[file] << _RECORD_BITS) + position
        super().__init__(records, ids, numbers, layout)
        # Reading the labels below needs the attribute.
        self._names: tuple[str, ...] = ()
        self._names = self._class_names(class_names)
        hashes = _hash_texts(list(self._names)).numpy()
        self._classes_by_hash = np.sort(hashes), np.argsort(hashes)
        """Of the names of the classes, in ascending order, and their classes."""
        info = self._info(
            self._names, common_shape(map(shape, self._sample_images(_SAMPLE)))
        )
        bits, notes = used_bits(self._sample_images(MAX_DEEP_PNGS))
        self.info = dataclasses.replace(info, image_bits=bits, notes=notes)
        if info.splits["train"] > _SAMPLE:
            measure = functools.cache(self._measure)
            self.info = dataclasses.replace(self.info, measure_images=measure)

    def _sample_images(self, limit: int) -> Iterator[bytes]:
        layout = {"image": self._layout["image"]}
        for batch in self._sample("train", limit, lambda r: parse_records(layout, r)):
            yield from batch["image"]

    def _measure(self) -> ImageShape:
        """The shape that all images of train share, from their headers."""
        total = self.info.splits["train"]
        progress_bar.stage("measuring", f"the sizes of {total:,} images")

        def shapes() -> Iterator[tuple[int, int, bool]]:
            for done, image in enumerate(self._values("image")):
                yield shape(image)
                progress_bar.count("measuring", done + 1, total)

        return common_shape(shapes())

    def _class_names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        if names:
            return distinct(names, "--source.class-names")
        file = self._root / _CLASSES_FILE
        if file.exists():
            try:
                lines = safe_io.read_text(file).rstrip().split("\n")
            except (OSError, ValueError):
                raise UsageError(f"{file} cannot be read as UTF-8 text") from None
            return distinct([line.strip() for line in lines], f"the lines of {file}")
        if self._layout["label"][1] != "bytes":
            option = f"--source.class-names, or {_CLASSES_FILE} next to the files"
            labels = self.columns("train")["label"]
            return from_labels(labels, str(self._root), option)
        numbers: dict[bytes, int] = {}  # of the texts, in the order of the records
        found = array("q")
        for value in self._values("label"):
            found.append(numbers.setdefault(value, len(numbers)))
        texts = [value.decode("utf-8", "surrogateescape") for value in numbers]
        names = distinct(in_order(texts), f"{self._root}: the labels")
        if set(self._layout) == {"image", "label"}:  # do not read all records again
            classes = np.array([names.index(text) for text in texts], np.int64)
            ids = self._ids[self._numbers["train"]]
            self._columns["train"] = {"id": ids, "label": classes[found]}
        return names

    def _parse(self, layout: Layout, records: tf.Tensor) -> Example:
        fields = super()._parse(layout, records)
        if "label" not in fields or fields["label"].dtype != tf.string:
            return fields
        shape = fields["label"].shape
        texts = tf.reshape(fields["label"], [-1])
        # Comparing a text with all of 1,000 names takes 20 us.
        keys, classes = self._classes_by_hash
        place = tf.searchsorted(keys, _hash_texts(texts))
        labels = tf.gather(classes, tf.minimum(place, len(classes) - 1))
        is_unknown = tf.gather(list(self._names), labels) != texts
        unknown = tf.boolean_mask(texts, is_unknown)
        check = tf.debugging.Assert(tf.size(unknown) == 0, ["unknown class", unknown])
        with tf.control_dependencies([check]):
            labels = tf.identity(labels)
        fields["label"] = labels if shape.rank else labels[0]
        return fields

    def _values(self, field: str) -> Iterator[bytes]:
        """Yields the values of a field in train, as they are in the records."""
        layout = {field: self._layout[field]}
        for batch in self._batches("train", lambda r: parse_records(layout, r)):
            yield from batch[field]

    def fingerprint(self) -> str:
        """Hash of the layout, the class names, and every file's path, size and time."""
        files = []
        for path in self._records.files:
            stat = path.stat()
            name = _relative(path, self._root)
            files.append((name, stat.st_size, stat.st_ctime_ns))
        state = repr((list(self._numbers), self._layout, self._names, files))
        return hashlib.sha256(state.encode("utf-8", "surrogateescape")).hexdigest()

    def location(self, id: int) -> str:
        """For example, `record 17 of train-00000-of-00010`."""
        file = np.flatnonzero(self._hashes == id >> _RECORD_BITS)[0]
        name = _relative(self._records.files[file], self._root)
        return f"record {id % (1 << _RECORD_BITS)} of {name}"


def _hash_texts(texts: tf.Tensor | list[str]) -> tf.Tensor:
    return tf.strings.to_hash_bucket_fast(texts, tf.int64.max)


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _find_files(path: Path) -> dict[str, list[Path]]:
    """Maps splits to their sorted files."""
    if not path.is_dir():
        return _divide([path], path.parent)
    return _divide(list_files(path, _split_of), path)


def _split_of(name: str) -> str | None:
    splits = {_WORDS[word] for word in _WORD.findall(name.lower())}
    if len(splits) > 1:
        raise UsageError(
            f"{name} names several splits: {', '.join(sorted(splits))}; rename it"
        )
    return splits.pop() if splits else None


def _divide(files: list[Path], root: Path) -> dict[str, list[Path]]:
    splits = {path: _split_of(_relative(path, root)) for path in files}
    if set(splits.values()) == {None}:
        return {"train": files}
    unnamed = [path for path in files if splits[path] is None]
    if unnamed or "train" not in splits.values():
        raise UsageError(
            f"{unnamed[0] if unnamed else root}: the name of each file must contain"
            " train, validation or test, and at least one file must be for train;"
            " rename the files"
        )
    files_by_split: dict[str, list[Path]] = {}
    for split in split_names.SPLITS:
        split_files = [path for path in files if splits[path] == split]
        if split_files:
            files_by_split[split] = split_files
    return files_by_split
