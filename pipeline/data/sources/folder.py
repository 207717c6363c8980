"""A directory of files, with one subdirectory for each class."""

import itertools
import os
import stat
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import numpy as np

from pipeline.config.registry import register
from pipeline.contracts import Source
from pipeline.data import detect, file_types, split_names
from pipeline.data.file_list import FileList
from pipeline.data.file_source import FileSource
from pipeline.data.labels import distinct, in_order
from pipeline.data.seeds import stable_hash
from pipeline.utils import image_formats, progress_bar
from pipeline.utils.console import pluralize
from pipeline.utils.errors import UsageError, suggest

# Other common names of splits, which would be mistaken for classes.
_SIMILAR_NAMES = {"training", "dev", "eval", "evaluation", "testing"}
# Of Speech Commands: lists of splits, and a folder of long recordings.
_LISTS = {"validation_list.txt": "validation", "testing_list.txt": "test"}
_NOISE = "_background_noise_"
_READABLE = 0o444  # by everyone


@register
def folder(
    *,
    path: Annotated[Path, "directory"],
    group: str | None = None,
    field: str | None = None,
    suffixes: tuple[str, ...] = (),
) -> Source:
    """Files in `CLASS/...`, or in `train/CLASS/...` and likewise for each split.

    Reads the files of one input, recognized by their suffixes, at any depth below the
    class, sorted by path: images are JPEG, PNG, GIF, BMP and WebP files. Hidden files
    and folders of systems and tools, such as `__MACOSX` and `@eaDir`, are ignored;
    other files too, with a note. The lists `validation_list.txt` and `testing_list.txt`
    of Speech Commands are splits, and its `_background_noise_` is left out. Classes
    that are all numbers are in the order of their values. A class without files in
    train is an error. The id of an example is a hash of its path below the root, so
    adding files does not change other ids.

    Args:
        path: The root directory. The other splits are `validation` (or `valid`, `val`)
            and `test`; they need not contain every class.
        group: Regular expression to search for in each path below the root. Files with
            the same match (of its first group, if it has one) stay in one split; for
            example, `patient(\\d+)` keeps all images of a patient together.
        field: Raw field for the content of a file, `image` for images; by default the
            field of the input that reads most of the files.
        suffixes: Suffixes of the files to read, such as `.png`; by default those of the
            input. Files of an input of your own need `field`, too.
    """
    types = file_types.select(field, suffixes)
    folders = _split_folders(path)
    names, _ = detect.list_folder(folders["train"])
    noise = _NOISE if len(names) > 2 and _NOISE in names else ""
    names = [name for name in names if name != noise]
    if not names:
        raise UsageError(
            f"{folders['train']} has no subdirectories; create one for each class"
        )
    classes = distinct(in_order(names), f"the subdirectories of {folders['train']}")
    numbers = {name: number for number, name in enumerate(classes)}
    listing = _Listing(path, types, noise, _listed_splits(path, folders))
    for split, folder in folders.items():
        listing.add(split, folder, numbers)
    field = max(types, key=lambda name: listing.totals[name])
    files: dict[str, dict[str, FileList]] = {}
    columns: dict[str, dict[str, np.ndarray]] = {}
    for split in filter(listing.files.get, split_names.SPLITS):
        folder = folders.get(split, path)
        chosen, counts = listing.files[split][field]
        if not len(chosen):
            continue
        if split == "train" and not all(counts.values()):
            empty = next(name for name, count in counts.items() if not count)
            raise UsageError(
                f"{folder / empty} contains no {field} files; remove it, or add files"
                f" named *{', *'.join(sorted(types[field]))}"
            )
        labels = np.array([numbers[name] for name in counts], np.int64)
        columns[split] = {
            "id": np.fromiter(map(stable_hash, chosen.encoded_names()), np.int64),
            "label": np.repeat(labels, list(counts.values())),
        }
        files[split] = {field: chosen}
    return FileSource(
        files,
        columns,
        classes,
        notes=(*_notes(path, listing, field), *_notes_of_lists(path, files, noise)),
        group=group,
    )


class _Listing:
    """The files below the classes of each split.

    Nothing but the name and the status of a file is read.
    """

    def __init__(
        self,
        root: Path,
        types: Mapping[str, tuple[str, ...]],
        noise: str,
        listed_splits: Mapping[str, str],
    ) -> None:
        self._root = root
        self._types = types
        self._noise = noise
        self._listed_splits = listed_splits
        self.files: dict[str, dict[str, tuple[FileList, dict[str, int]]]] = {}
        """Split -> field -> its files, and the number of them in each class; classes in
        alphabetical order, then files.
        """
        self.totals: Counter[str] = Counter()
        """Field -> number of files; those of several fields count for the first."""
        self.ignored: list[str] = []
        """Names of the files that are not read."""

    def add(self, split: str, folder: Path, classes: Collection[str]) -> None:
        """Lists the files of a split."""
        names, files = detect.list_folder(folder)
        names = [name for name in names if name != self._noise]
        self.ignored += [name for name in files if name not in _LISTS]
        for name in names:
            if name not in classes:
                raise UsageError(
                    f"{folder / name}: train has no class {name!r};"
                    f" {suggest(name, classes)}"
                )
        for part in {split, *self._listed_splits.values()}:
            self.files[part] = {
                field: (FileList(str(self._root)), dict.fromkeys(names, 0))
                for field in self._types
            }
        for number, name in enumerate(names):
            self._add_class(split, folder, name)
            count = f"{self.totals.total():,} files"
            progress_bar.update("listing", count, number / len(names))

    def _add_class(self, split: str, folder: Path, name: str) -> None:
        path = str(folder / name)
        above = Path(path).relative_to(self._root).as_posix()
        for file in sorted(self._names(path)):
            status = _status(f"{path}/{file}")
            if status is None:
                self.ignored.append(os.path.basename(file))
                continue
            fields = [
                field
                for field, suffixes in self._types.items()
                if file.lower().endswith(suffixes)
            ]
            self.totals[fields[0]] += 1
            listed = self._listed_splits.get(f"{above}/{file}", split)
            for field in fields:
                files, counts = self.files[listed][field]
                files.add(f"{above}/{file}", status)
                counts[name] += 1

    def _names(self, folder: str) -> Iterator[str]:
        """Yields the paths of files below a class, at any depth; links to directories
        are not followed.
        """
        suffixes = tuple(itertools.chain(*self._types.values()))
        walk = image_formats.walk(folder, onerror=detect.unreadable)
        for directory, folders, names in walk:
            for name in folders:
                if os.path.islink(os.path.join(directory, name)):
                    self.ignored.append(name)
            below = os.path.relpath(directory, folder)
            prefix = "" if below == "." else f"{below}/"
            for name in names:
                if name.lower().endswith(suffixes):
                    yield prefix + name
                else:
                    self.ignored.append(name)


def _status(path: str) -> os.stat_result | None:
    """The status of a file; None if it cannot be read, such as a link to nothing.

    Opening a pipe would block.
    """
    try:
        status = os.stat(path)
    except OSError:
        return None
    may_read = status.st_mode & _READABLE == _READABLE or os.access(path, os.R_OK)
    return status if stat.S_ISREG(status.st_mode) and may_read else None


def _notes(root: Path, listing: _Listing, field: str) -> tuple[str, ...]:
    """What was not read: files of other fields, and files that no input reads."""
    notes = []
    totals = listing.totals
    for unread, count in totals.items():
        if unread == field:
            continue
        notes.append(
            f"{root}: {totals[field]:,} of {totals.total():,} files are read, the"
            f" {field} files; --source.field {unread} reads"
            f" {pluralize(count, f'{unread} file')} instead"
        )
    if listing.ignored:
        sample = ", ".join(sorted(set(listing.ignored))[:3])
        notes.append(
            f"{root}: ignored {pluralize(len(listing.ignored), 'file')}, such as"
            f" {sample}: without the suffix of {field} files, not readable, or a link"
            " to a directory"
        )
    return tuple(notes)


def _split_folders(root: Path) -> dict[str, Path]:
    """Maps splits to directories; the root is `train` if there are no splits."""
    names = set(detect.list_folder(root)[0])
    all_similar = {name.lower() for name in names} <= split_names.WORDS | _SIMILAR_NAMES
    if "train" not in names and not (names and all_similar):
        return {"train": root}
    if "train" not in names or names - split_names.WORDS:
        raise UsageError(
            f"{root} has the directories {', '.join(sorted(names))}; splits must be"
            " named train, validation and test, without other directories next to them"
        )
    return split_names.directories(root, names)


def _listed_splits(root: Path, folders: Mapping[str, Path]) -> dict[str, str]:
    """Path below the root -> its split, of the lists of Speech Commands; empty if there
    are none, or the directories are splits.
    """
    splits: dict[str, str] = {}
    if folders == {"train": root}:
        for name, split in _LISTS.items():
            if (root / name).is_file():
                lines = (root / name).read_text("utf-8", errors="replace").splitlines()
                splits |= dict.fromkeys(map(str.strip, lines), split)
    return splits


def _notes_of_lists(
    root: Path, files: Mapping[str, Mapping[str, FileList]], noise: str
) -> list[str]:
    notes = []
    if noise:
        notes.append(f"{root}: left out {noise}, which is not a word")
    for name, split in _LISTS.items():
        if (root / name).is_file() and split in files:
            (chosen,) = files[split].values()
            count = pluralize(len(chosen), "file")
            notes.append(f"{root}: {count} in {name}, the {split} split")
    return notes
