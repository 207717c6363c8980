"""A directory of image files, with one subdirectory for each class."""

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example, Info, Source
from pipeline.data import split_names
from pipeline.data.image_headers import common_shape
from pipeline.data.seeds import stable_hash
from pipeline.data.sources import _label_names
from pipeline.utils import image_formats
from pipeline.utils.errors import UsageError, suggest

_NAMES = {name for names in split_names.ALIASES.values() for name in names}
# Other common names of splits, which would be mistaken for classes.
_SIMILAR_NAMES = {"training", "dev", "eval", "evaluation", "testing"}
_NAMED = 20  # number of unreadable files named in a note


class _File(NamedTuple):
    relative: str
    """Path below the root, with `/`."""
    size: int
    time: int


def folder(*, path: Annotated[Path, "directory"], group: str | None = None) -> Source:
    """Image files in `CLASS/...`, or in `train/CLASS/...` and the same for the other splits.

    Reads JPEG, PNG, GIF, BMP and WebP files, recognized by their suffixes, at any depth below the
    class, sorted by path. Hidden files are ignored; other files too, with a note. A class without
    files in train is an error. The id of an example is a hash of its path below the root, so adding
    files does not change other ids.

    Args:
        path: The root directory. The other splits are `validation` (or `valid`, `val`) and `test`;
            they need not contain every class.
        group: Regular expression to search for in each path below the root. Files with the same
            match (of its first group, if it has one) stay in one split; for example,
            `patient(\\d+)` keeps all images of a patient together.
    """
    return Folder(path, group)


class Folder(Source):
    """`image` is a string of shape (), the bytes of a file; `label` and `group` are int64."""

    def __init__(self, root: Path, group: str | None) -> None:
        self._root = root
        self._ignored: list[str] = []
        self._unreadable: list[str] = []
        folders = _split_folders(root)
        names, _ = _list(folders["train"], root)
        if not names:
            raise UsageError(f"{folders['train']} has no subdirectories; create one for each class")
        classes = _label_names.distinct(names, f"the subdirectories of {folders['train']}")
        self._files: dict[str, list[_File]] = {}
        self._columns: dict[str, dict[str, np.ndarray]] = {}
        self._paths: dict[int, str] = {}
        for split, folder in folders.items():
            files, labels = self._scan(folder, classes, split)
            ids = [stable_hash(os.fsencode(file.relative)) for file in files]
            columns = {"id": np.array(ids, np.int64), "label": np.array(labels, np.int64)}
            self._paths |= {id: file.relative for id, file in zip(ids, files, strict=True)}
            if group is not None:
                columns["group"] = _groups(files, group)
            self._files[split], self._columns[split] = files, columns
        fields = {name: tf.TensorSpec((), tf.int64) for name in self._columns["train"]}
        paths = (root / file.relative for files in self._files.values() for file in files)
        self.info = Info(
            splits={split: len(files) for split, files in self._files.items()},
            fields={**fields, "image": tf.TensorSpec((), tf.string)},
            class_names=classes,
            image_shape=common_shape(map(_beginning, paths)),
            notes=tuple(self._notes()),
        )

    def _scan(
        self, folder: Path, classes: tuple[str, ...], split: str
    ) -> tuple[list[_File], list[int]]:
        """The files of a split in sorted order, and their labels."""
        files: list[_File] = []
        labels: list[int] = []
        names, others = _list(folder, self._root)
        self._ignored += others
        for name in names:
            if name not in classes:
                raise UsageError(
                    f"{folder / name}: train has no class {name!r}; {suggest(name, classes)}"
                )
            found = sorted(self._images(folder / name))
            if not found and split == "train":
                raise UsageError(
                    f"{folder / name} contains no image files; remove it, or add files named "
                    f"*{', *'.join(sorted(image_formats.SUFFIXES))}"
                )
            files += found
            labels += [classes.index(name)] * len(found)
        return files, labels

    def _images(self, folder: Path) -> Iterator[_File]:
        """Image files at any depth; links to directories are not followed."""
        for place, folders, files in os.walk(folder, onerror=_raise):
            folders[:] = [name for name in folders if not name.startswith(".")]
            self._ignored += [name for name in folders if os.path.islink(os.path.join(place, name))]
            for name in files:
                if name.startswith("."):
                    continue
                path = Path(place, name)
                relative = path.relative_to(self._root).as_posix()
                if path.suffix.lower() not in image_formats.SUFFIXES:
                    self._ignored.append(name)
                elif not _is_readable(path):
                    self._unreadable.append(relative)
                else:
                    # Unlike the modification time, the change time cannot be set by the user.
                    found = path.stat()
                    yield _File(relative, found.st_size, found.st_ctime_ns)

    def _notes(self) -> Iterator[str]:
        """Notes about ignored files: names of unreadable image files, and the number of others."""
        if self._unreadable:
            names = ", ".join(self._unreadable[:_NAMED])
            names += ", ..." * (len(self._unreadable) > _NAMED)
            yield (
                f"{self._root}: {len(self._unreadable):,} image files are ignored because they "
                "cannot be read, are not regular files, or are larger than "
                f"{image_formats.MOST_BYTES >> 20} MiB: {names}"
            )
        if self._ignored:
            some = ", ".join(sorted(set(self._ignored))[:3])
            yield (
                f"{self._root}: {len(self._ignored):,} entries are ignored, such as {some}: they "
                "do not have the suffix of an image file, or are links to directories"
            )

    def _tensors(self, split: str) -> dict[str, tf.Tensor]:
        paths = [os.fsencode(self._root / file.relative) for file in self._files[split]]
        columns = {"path": tf.constant(paths, tf.string, (len(paths),))}
        return columns | {k: tf.constant(v) for k, v in self._columns[split].items()}

    def examples(self, split: str) -> tf.data.Dataset:
        rows = tf.data.Dataset.from_tensor_slices(self._tensors(split))
        return rows.map(_read, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)

    def reader(self, split: str) -> Callable[[tf.Tensor], Example]:
        columns = self._tensors(split)
        return lambda position: _read({k: tf.gather(v, position) for k, v in columns.items()})

    def columns(self, split: str) -> dict[str, np.ndarray]:
        """Derived from the paths, without opening files."""
        return dict(self._columns[split])

    def fingerprint(self) -> str:
        """Hash of the classes, groups, and every file's path, size and time of last change."""
        digest = hashlib.sha256(repr(self.info.class_names).encode())
        for split, files in self._files.items():
            digest.update(repr((split, files)).encode())
            digest.update(self._columns[split].get("group", np.array([])).tobytes())
        return digest.hexdigest()

    def location(self, id: int) -> str:
        """The path relative to the root."""
        return self._paths[id]


def _read(row: dict[str, tf.Tensor]) -> Example:
    fields = {name: value for name, value in row.items() if name != "path"}
    return {**fields, "image": tf.io.read_file(row["path"])}


def _is_readable(path: Path) -> bool:
    """Whether this is a regular file; opening a pipe would block."""
    good = path.is_file() and path.stat().st_size <= image_formats.MOST_BYTES
    return good and os.access(path, os.R_OK)


def _beginning(path: Path) -> bytes:
    """Enough bytes for the header, even after a color profile and a thumbnail."""
    with path.open("rb") as file:
        return file.read(2**18)


def _raise(error: OSError) -> None:
    raise UsageError(f"{error.filename} cannot be read: {error.strerror}") from None


def _list(folder: Path, root: Path) -> tuple[list[str], list[str]]:
    """Sorted names of the subdirectories, and of all other entries that are not hidden.

    A link to a directory that is in the data, or contains the data, is not a subdirectory.
    """
    try:
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError as error:
        _raise(error)
    data = Path(os.path.realpath(root))
    folders: list[str] = []
    others: list[str] = []
    for name in names:
        path = folder / name
        real = Path(os.path.realpath(path))
        back = path.is_symlink() and (real.is_relative_to(data) or data.is_relative_to(real))
        (folders if path.is_dir() and not back else others).append(name)
    return folders, others


def _split_folders(root: Path) -> dict[str, Path]:
    """Maps splits to directories; `train` is the root if no subdirectory has this name."""
    names = set(_list(root, root)[0])
    similar = {name.lower() for name in names} <= _NAMES | _SIMILAR_NAMES
    if "train" not in names and not (names and similar):
        return {"train": root}
    if "train" not in names or names - _NAMES:
        raise UsageError(
            f"{root} has the directories {', '.join(sorted(names))}; splits must be named train, "
            "validation and test, without other directories next to them"
        )
    return split_names.directories(root, names)


def _groups(files: list[_File], pattern: str) -> np.ndarray:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UsageError(
            f"--source.group must be a valid regular expression; got {pattern!r}: {error}"
        ) from None
    matches = [compiled.search(file.relative) for file in files]
    texts = [match[1 if compiled.groups else 0] or "" if match else "" for match in matches]
    if "" in texts:
        first = files[texts.index("")].relative
        raise UsageError(f"--source.group {pattern!r} does not match {first}")
    return np.array([stable_hash(os.fsencode(text)) for text in texts], np.int64)
