"""Sharded TFRecord files of tf.Example with one encoded image and one label each."""

import glob
import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example, Info, Source
from pipeline.data import shards
from pipeline.data.image_headers import common_shape
from pipeline.data.sources import _example_features
from pipeline.data.sources import _label_names as classes
from pipeline.data.sources._record_files import Records
from pipeline.utils import safe_io
from pipeline.utils.errors import UsageError, reason, suggest
from pipeline.utils.tf_data import READ_ERRORS, joined, without_autotune

_SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val"),
    "test": ("test", "testing"),
}
_WORD = re.compile(r"(?<![a-z])(train|training|validation|valid|val|test|testing)(?![a-z])")
_CLASSES = "labels.txt"
# An id is a hash of the file's path, and in these lowest bits the number of the record.
_BITS = 24


def tfrecord(
    *,
    path: Annotated[Path, "exists"],
    image: str | None = None,
    label: str | None = None,
    group: str | None = None,
    class_names: tuple[str, ...] = (),
) -> Source:
    """Files such as `train-00000-of-00010` or `train.tfrecord`, in the order of their paths.

    The split is the word train, validation (valid, val) or test in a file's name or its folder's;
    where no file has one, all are train. The id of an example is a hash of its file's path from the
    root and its number there, so that adding files moves no other id.

    Args:
        path: A folder, or a pattern such as `data/train-*`.
        image: Feature with the encoded image (JPEG, PNG, GIF, BMP, WebP); None: found by its name.
        label: Feature with the label, a whole number or a text; None: found by its name.
        group: Feature, a whole number or a text; examples where it is the same stay in one split.
        class_names: Names of the classes 0, 1, ...; by default the lines of `labels.txt` in the
            folder, else the labels themselves.

    Raises:
        UsageError: No such files or features; a shard is missing, cut or damaged (`shards.json`,
            which `python -m pipeline.shards` makes, finds those cut at the border of a record).
    """
    return TFRecords(path, {"image": image, "label": label, "group": group}, class_names)


class TFRecords(Source):
    """`image` is a string of shape (), an encoded file; `label` and `group` are int64."""

    def __init__(self, path: Path, features: dict[str, str | None], names: tuple[str, ...]) -> None:
        self._root, divided, notes = _files(path)
        everything = [file for files in divided.values() for file in files]
        self._records = shards.records(everything)
        ends = self._records.first[np.cumsum([len(files) for files in divided.values()])]
        runs = zip(divided, [0, *ends[:-1]], ends, strict=True)
        self._numbers = {split: np.arange(start, end) for split, start, end in runs}
        for split, numbers in self._numbers.items():
            if not len(numbers):
                raise UsageError(f"{divided[split][0]}: the files for {split} hold no examples")
        self._hashes = _hashes(self._records, self._root)
        first = self._numbers["train"][:1]
        self._records.require_sound(first)
        record = next(iter(self._records.sequence(first))).numpy()
        self._layout = _example_features.detect(record, features, self._where(first[0]))
        self._columns: dict[str, dict[str, np.ndarray]] = {}
        self._names: tuple[str, ...] | None = None  # while they are looked for
        self._names = self._class_names(names)
        rows = self._explained("train", self._batches("train", ("image",)).as_numpy_iterator())
        self.info = Info(
            splits={split: len(numbers) for split, numbers in self._numbers.items()},
            fields={
                name: tf.TensorSpec((), tf.string if name == "image" else tf.int64)
                for name in ("id", *self._layout)
            },
            class_names=self._names,
            image_shape=common_shape(image for row in rows for image in row["image"]),
            notes=(*notes, *filter(None, [shards.note(everything)])),
        )

    def _class_names(self, given: tuple[str, ...]) -> tuple[str, ...]:
        file = self._root / _CLASSES
        if given:
            return classes.distinct(given, "--source.class-names")
        if file.exists():
            return classes.distinct(_lines(file), f"the lines of {file}")
        if self._layout["label"].whole:
            how = f"--source.class-names, or {_CLASSES} beside the files"
            return classes.named(self.columns("train")["label"], None, str(self._root), how)
        rows = self._explained("train", self._batches("train", ("label",)).as_numpy_iterator())
        texts = {text for row in rows for text in row["label"]}
        return classes.distinct(sorted(map(_text, texts)), f"{self._root}: the labels")

    def _batches(self, split: str, names: tuple[str, ...]) -> tf.data.Dataset:
        """These fields alone of all examples, as they are in the file."""
        layout = {name: self._layout[name] for name in names}
        batches = self._records.sequence(self._numbers[split]).batch(256)
        batches = batches.map(lambda records: _example_features.parse(layout, records), 2)
        return without_autotune(batches.prefetch(2))

    def _numbered(self, found: Example) -> Example:
        """Texts of labels and groups to int64."""
        if "label" in found and not self._layout["label"].whole:
            same = tf.equal(self._names, found["label"][..., None])
            known = tf.reduce_all(tf.reduce_any(same, axis=-1))
            with tf.control_dependencies([tf.debugging.Assert(known, [found["label"]])]):
                found["label"] = tf.argmax(tf.cast(same, tf.int8), axis=-1)
        if "group" in found and not self._layout["group"].whole:
            found["group"] = tf.strings.to_hash_bucket_fast(found["group"], 2**63 - 1)
        return found

    def _explained(self, split: str, rows: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from rows
        except READ_ERRORS as error:
            self._explain(split)
            raise UsageError(f"the split {split!r} cannot be read: {reason(error)}") from None

    def _explain(self, split: str) -> None:
        """Raises UsageError naming the first record that is damaged or unlike the first one."""
        numbers = self._numbers[split]
        self._records.require_sound(numbers)
        text = {name: feature for name, feature in self._layout.items() if not feature.whole}
        text.pop("image")
        for number, record in zip(numbers, self._records.sequence(numbers), strict=True):
            where = self._where(number)
            _example_features.require(self._layout, record.numpy(), where)
            if "label" in text and self._names is not None:
                label = _text(_example_features.parse(text, record)["label"].numpy())
                if label not in self._names:
                    hint = suggest(label, self._names)
                    raise UsageError(f"{where}: there is no class {label!r} in train; {hint}")

    def _where(self, number: int) -> str:
        file, inside = self._records.places(np.int64(number))
        return f"{self._records.files[file]}: record {inside}"

    def _ids(self, numbers: np.ndarray) -> np.ndarray:
        file, inside = self._records.places(numbers)
        return (self._hashes[file] << _BITS) + inside

    def examples(self, split: str) -> tf.data.Dataset:
        numbers = self._numbers[split]
        ids = tf.data.Dataset.from_tensor_slices(self._ids(numbers))
        return tf.data.Dataset.zip(ids, self._records.sequence(numbers)).map(
            self._example, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )

    def _example(self, id: tf.Tensor, record: tf.Tensor) -> Example:
        return {"id": id, **self._numbered(_example_features.parse(self._layout, record))}

    def reader(self, split: str) -> Callable[[tf.Tensor], Example]:
        numbers = self._numbers[split]
        start, ids = tf.constant(numbers[0]), tf.constant(self._ids(numbers))

        def read(position: tf.Tensor) -> Example:
            return self._example(tf.gather(ids, position), self._records.read(start + position))

        return read

    def columns(self, split: str) -> dict[str, np.ndarray]:
        """All records are read once; of each only the short features are parsed."""
        if split not in self._columns:
            short = tuple(name for name in self._layout if name != "image")
            try:
                columns = joined(self._batches(split, short).map(self._numbered), split)
            except UsageError:
                self._explain(split)
                raise
            columns["id"] = self._ids(self._numbers[split])
            self._columns[split] = columns
        return dict(self._columns[split])

    def fingerprint(self) -> str:
        """Hash of the layout, the class names, and every file's path, size and time."""
        paths = [(path.relative_to(self._root), path.stat()) for path in self._records.files]
        files = [(path.as_posix(), there.st_size, there.st_ctime_ns) for path, there in paths]
        told = (list(self._numbers), self._layout, self._names, files)
        return hashlib.sha256(repr(told).encode("utf-8", "surrogateescape")).hexdigest()

    def location(self, id: int) -> str:
        """Such as `record 17 of train-00000-of-00010`."""
        file = np.flatnonzero(self._hashes == id >> _BITS)[0]
        return f"record {id % (1 << _BITS)} of {_relative(self._records.files[file], self._root)}"


def _text(label: bytes) -> str:
    return label.decode("utf-8", "replace")


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _lines(path: Path) -> list[str]:
    try:
        lines = safe_io.read_text(path).split("\n")
    except (OSError, ValueError):
        raise UsageError(f"{path} cannot be read as text in UTF-8") from None
    return [line.strip() for line in (lines[:-1] if not lines[-1] else lines)]


def _hashes(records: Records, root: Path) -> np.ndarray:
    """The hash of each file's path, int64 (files,)."""
    seen: dict[int, str] = {}
    for path, count in zip(records.files, np.diff(records.first), strict=True):
        name = _relative(path, root)
        digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
        number = int.from_bytes(digest[:8], "big") >> (1 + _BITS)  # 63 bits in all
        if number in seen:
            raise UsageError(f"{seen[number]} and {name} have the same id; rename one of them")
        if count > 1 << _BITS:
            raise UsageError(f"{path} holds more than {1 << _BITS:,} records; cut it up")
        seen[number] = name
    return np.array(list(seen), np.int64)


def _files(path: Path) -> tuple[Path, dict[str, list[Path]], tuple[str, ...]]:
    """The root, split -> its files in sorted order, and a note of what was passed by."""
    others: list[str] = []
    if path.is_dir():
        root, found = path, []
        folders = [path, *(path / name for name in _names(path) if _split_of(name))]
        for folder in filter(Path.is_dir, folders):
            for name in _names(folder):
                if shards.is_shard(name):
                    found.append(folder / name)
                elif (folder / name).is_file() and name not in (_CLASSES, shards.MANIFEST):
                    others.append(name)
    elif glob.has_magic(str(path)):
        found = sorted(Path(name) for name in glob.glob(str(path)) if Path(name).is_file())
        root = next(p for p in path.parents if not glob.has_magic(str(p)))
    else:
        root, found = path.parent, [path]
    if not found:
        raise UsageError(f"{path} holds no TFRecord files, such as train-00000-of-00010")
    note = f"{root}: {len(others)} other files are passed by, such as {', '.join(others[:3])}"
    return root, _divided(found, root), (note,) if others else ()


def _names(folder: Path) -> list[str]:
    try:
        return sorted(file.name for file in folder.iterdir() if not file.name.startswith("."))
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}") from None


def _split_of(name: str) -> str | None:
    words = set(_WORD.findall(name.lower()))
    ours = [split for split, theirs in _SPLITS.items() if words & set(theirs)]
    if len(ours) > 1:
        raise UsageError(f"{name} names several splits: {', '.join(ours)}; rename it")
    return ours[0] if ours else None


def _divided(files: list[Path], root: Path) -> dict[str, list[Path]]:
    names = {path: _split_of(_relative(path, root)) for path in files}
    if set(names.values()) == {None}:
        return {"train": files}
    divided = {split: [p for p in files if names[p] == split] for split in _SPLITS}
    for path, split in names.items():
        if split is None:
            raise UsageError(f"{path}: its name must say train, validation or test, as others do")
    if not divided["train"]:
        raise UsageError(
            f"{root} has files for {', '.join(s for s in divided if divided[s])}, none for train"
        )
    return {split: several for split, several in divided.items() if several}
