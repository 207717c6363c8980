"""A folder of image files, one sub-folder for each class."""

import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example, Info, Source
from pipeline.data.image_headers import common_shape
from pipeline.utils.errors import UsageError, suggest

_KINDS = {".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp"}
# No image below decoding's limit of pixels takes more; a longer file would be read whole.
_MOST_BYTES = 2**29
_SPLITS = {"train": ("train",), "validation": ("validation", "valid", "val"), "test": ("test",)}
# What people name them, too.
_NEARLY = ("training", "dev", "eval", "evaluation", "testing")


class _File(NamedTuple):
    relative: str
    """Path from the root, with `/`."""
    size: int
    time: int
    """0 where it cannot be read: then it is one without any bytes."""


def folder(*, path: Annotated[Path, "directory"], group: str | None = None) -> Source:
    """The files of `CLASS/...`, or of `train/CLASS/...` and such folders for the other splits.

    Files are JPEG, PNG, GIF, BMP or WebP by their names' endings, at any depth below the class, in
    the sorted order of their paths; hidden ones are passed by, and others with a note. One that
    cannot be read is an example that cannot be decoded: a cleaning lists it. A class without any is
    refused: it would be a class of the model that nothing teaches. The id of an
    example is a hash of its path from the root, so that adding files moves no other id.

    Args:
        path: The root. The other splits are `validation` (or `valid`, `val`) and `test`; a class
            may lack there.
        group: Regular expression, searched in the path from the root. What its first group
            matches (the whole match where it has none) is the same for files that must stay in one
            split, as the images of one patient: `patient(\\d+)`.

    Raises:
        UsageError: No classes, an empty one, a file that is in no group.
    """
    if not path.is_dir():
        raise UsageError(f"--source.path: {path} is no folder")
    return Folder(path, group)


class Folder(Source):
    """`image` is a string of shape (), the bytes of a file; `label` and `group` are int64."""

    def __init__(self, root: Path, group: str | None) -> None:
        self._root = root
        self._ignored: list[str] = []
        self._unreadable: list[str] = []
        folders = _split_folders(root)
        # Where links inside of a class must not lead: the root may be relative, or a link itself.
        self._real = {folder.resolve() for folder in (root, *folders.values())}
        classes = tuple(sorted(_folders(folders["train"])))
        if not classes:
            raise UsageError(f"{folders['train']} has no sub-folders; make one for each class")
        self._files: dict[str, list[_File]] = {}
        self._columns: dict[str, dict[str, np.ndarray]] = {}
        self._paths: dict[int, str] = {}
        for split, folder in folders.items():
            files, labels = self._scan(folder, classes, split)
            columns = {"id": self._ids(files), "label": np.array(labels, np.int64)}
            if group is not None:
                columns["group"] = _groups(files, group)
            self._files[split], self._columns[split] = files, columns
        fields = {name: tf.TensorSpec((), tf.int64) for name in self._columns["train"]}
        everything = (root / f.relative for files in self._files.values() for f in files if f.time)
        self.info = Info(
            splits={split: len(files) for split, files in self._files.items()},
            fields={**fields, "image": tf.TensorSpec((), tf.string)},
            class_names=classes,
            image_shape=common_shape(map(_beginning, everything)),
            notes=(*_note(root, self._ignored), *_unreadable_note(root, self._unreadable)),
        )

    def _scan(
        self, folder: Path, classes: tuple[str, ...], split: str
    ) -> tuple[list[_File], list[int]]:
        files: list[_File] = []
        labels: list[int] = []
        for name in sorted(_folders(folder, self._ignored)):
            if name not in classes:
                raise UsageError(
                    f"{folder / name}: train has no class {name!r}; {suggest(name, classes)}"
                )
            found = sorted(self._images(folder / name, set()))
            if not found and split == "train":
                raise UsageError(
                    f"{folder / name} holds no images; remove it, or fill it with files named "
                    f"*{', *'.join(sorted(_KINDS))}"
                )
            files += found
            labels += [classes.index(name)] * len(found)
        return files, labels

    def _images(self, folder: Path, seen: set[tuple[int, int]]) -> Iterator[_File]:
        """Image files at any depth; each real folder once, so that links in a circle end.

        A link to another place among the data would bring the images of other classes.
        """
        there, relative = folder.stat(), folder.relative_to(self._root).as_posix()
        if folder.is_symlink() and self._is_data(folder.resolve()):
            self._ignored.append(f"{relative} (a link back into the data)")
            return
        if (there.st_dev, there.st_ino) in seen:
            self._ignored.append(f"{relative} (read by another name)")
            return
        seen.add((there.st_dev, there.st_ino))
        for entry in sorted(_entries(folder), key=lambda entry: entry.name):
            if _is_folder(entry):
                yield from self._images(folder / entry.name, seen)
            elif Path(entry.name).suffix.lower() not in _KINDS:
                self._ignored.append(entry.name)
            else:
                yield self._file(entry, f"{relative}/{entry.name}")

    def _is_data(self, real: Path) -> bool:
        return any(real.is_relative_to(own) or own.is_relative_to(real) for own in self._real)

    def _file(self, entry: os.DirEntry[str], relative: str) -> _File:
        """What is known without opening it: a pipe would wait for a writer."""
        try:
            found = entry.stat()
            if not os.access(entry.path, os.R_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            if found.st_size > _MOST_BYTES:
                raise OSError(errno.EFBIG, f"larger than {_MOST_BYTES // 2**20} MiB")
        except OSError as error:  # an example that cannot be decoded
            self._unreadable.append(f"{relative}: {error.strerror}")
            return _File(relative, 0, 0)
        # The time of the last change of anything: who puts other bytes in can set the other.
        return _File(relative, found.st_size, found.st_ctime_ns)

    def _ids(self, files: list[_File]) -> np.ndarray:
        for file in files:
            id = _hash(file.relative)
            if id in self._paths:
                raise UsageError(
                    f"{self._paths[id]} and {file.relative} have the same id; rename one of them"
                )
            self._paths[id] = file.relative
        return np.array([_hash(file.relative) for file in files], np.int64)

    def _tensors(self, split: str) -> dict[str, tf.Tensor]:
        readable = (self._root / f.relative if f.time else os.devnull for f in self._files[split])
        paths = [os.fsencode(path) for path in readable]
        columns = {"path": tf.constant(paths, tf.string, (len(paths),))}
        return columns | {k: tf.constant(v) for k, v in self._columns[split].items()}

    def examples(self, split: str) -> tf.data.Dataset:
        rows = tf.data.Dataset.from_tensor_slices(self._tensors(split))
        return rows.map(_read, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)

    def reader(self, split: str) -> Callable[[tf.Tensor], Example]:
        columns = self._tensors(split)
        return lambda position: _read({k: tf.gather(v, position) for k, v in columns.items()})

    def columns(self, split: str) -> dict[str, np.ndarray]:
        """Found by the paths alone; no file is opened."""
        return dict(self._columns[split])

    def fingerprint(self) -> str:
        """Hash of the classes, groups, and every file's path, size and time of last change."""
        digest = hashlib.sha256(repr(self.info.class_names).encode())
        for split, files in self._files.items():
            digest.update(repr((split, files)).encode())
            digest.update(self._columns[split].get("group", np.array([])).tobytes())
        return digest.hexdigest()

    def location(self, id: int) -> str:
        """Path from the root."""
        return self._paths[id]


def _read(row: dict[str, tf.Tensor]) -> Example:
    fields = {name: value for name, value in row.items() if name != "path"}
    return {**fields, "image": tf.io.read_file(row["path"])}


def _beginning(path: Path) -> bytes:
    """Enough for a header, even behind a colour profile and a thumbnail."""
    try:
        with path.open("rb") as file:
            return file.read(2**18)
    except OSError:  # decoding or cleaning says so
        return b""


def _hash(text: str) -> int:
    """63 bits of a text's SHA-256."""
    return int.from_bytes(hashlib.sha256(os.fsencode(text)).digest()[:8], "big") >> 1


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}") from None


def _folders(folder: Path, ignored: list[str] | None = None) -> Iterator[str]:
    """Names of the folders in a folder; the names of files go to `ignored`."""
    for entry in _entries(folder):
        if _is_folder(entry):
            try:
                entry.name.encode()
            except UnicodeEncodeError:
                raise UsageError(f"{entry.path!r}: rename it; its name is not UTF-8") from None
            yield entry.name
        elif ignored is not None:
            ignored.append(entry.name)


def _split_folders(root: Path) -> dict[str, Path]:
    """Split -> its folder; `train` is the root itself where no sub-folder has that name."""
    names = set(_folders(root))
    known = {name for theirs in _SPLITS.values() for name in theirs}
    if "train" not in names:
        if names and {name.lower() for name in names} <= {*known, *_NEARLY}:
            if names <= known:
                raise UsageError(f"{root} has {', '.join(sorted(names))} but no folder train")
            raise UsageError(
                f"{root} has {', '.join(sorted(names))}, which would be classes; splits are named "
                "train, validation and test"
            )
        return {"train": root}
    if names - known:
        raise UsageError(
            f"{root / min(names - known)} is no split beside train; move it away, or name it "
            "validation or test"
        )
    found = {ours: [name for name in theirs if name in names] for ours, theirs in _SPLITS.items()}
    for several in found.values():
        if len(several) > 1:
            raise UsageError(f"{root} has {' and '.join(several)}, which are one split; join them")
    return {ours: root / theirs[0] for ours, theirs in found.items() if theirs}


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:  # a link to itself
        if Path(entry.name).suffix.lower() in _KINDS:
            return False
        raise UsageError(f"{entry.path} cannot be read: {error.strerror}; remove it") from None


def _groups(files: list[_File], pattern: str) -> np.ndarray:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"--source.group {pattern!r} is no regular expression: {error}") from None
    matches = [compiled.search(file.relative) for file in files]
    texts = [match and match.group(1 if compiled.groups else 0) for match in matches]
    if missing := [file.relative for file, text in zip(files, texts, strict=True) if not text]:
        raise UsageError(
            f"--source.group {pattern!r} matches nothing in {missing[0]} "
            f"({len(missing):,} of {len(files):,} such files)"
        )
    return np.array([_hash(text) for text in texts], np.int64)


def _note(root: Path, ignored: list[str]) -> tuple[str, ...]:
    if not ignored:
        return ()
    names = ", ".join(sorted(set(ignored))[:3])
    return (
        f"{root}: {len(ignored)} files that are no images by name, or links back into the data, "
        f"are left out, such as {names}",
    )


def _unreadable_note(root: Path, unreadable: list[str]) -> tuple[str, ...]:
    if not unreadable:
        return ()
    count, first = len(unreadable), unreadable[0]
    return (f"{root}: {count} files cannot be read, such as {first}; --clean.enabled drops them",)
