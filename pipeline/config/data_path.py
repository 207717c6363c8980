"""What is at a path: class folders, arrays, TFRecord files, a table, or boxes."""

import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pipeline.config import box_formats, file_types
from pipeline.utils.console import pluralize, say
from pipeline.utils.errors import NoLabels, UsageError
from pipeline.utils.image_formats import is_ignored, walk

# Columns of a table, as `column` writes them.
IMAGES = [
    "path",
    "file",
    "filename",
    "file_name",
    "filepath",
    "image",
    "image_path",
    "img",
    "image_id",
    "audio_path",
    "audio_file",
    "audio_filepath",
    "id",
]
"""Columns of files."""
LABELS = [
    "label",
    "class",
    "class_name",
    "category",
    "target",
    "species",
    "breed",
    "sentiment",
    "topic",
]
"""Columns of classes."""
SEVERAL_LABELS = ["labels", "tags"]
TARGETS = ["target", "value", "y", "price", "score"]
"""Columns of numbers to predict."""
MASKS = ["mask", "mask_path", "mask_file"]
TRANSCRIPTS = ["transcript", "transcription", "normalized_text", "sentence", "text"]
"""Columns of what recordings say, in a table of files."""
IDS = ["id", "index", "unnamed:_0", ""]
"""Columns of a table without files that name its rows; pandas writes the last two."""
_LJ_SPEECH = ["id", "text", "normalized_text"]
_SPLITS = {"train", "validation", "valid", "val", "test"}
# Source -> the names of its files.
_FILES = {
    "arrays": re.compile(r".*\.npz|images\.npy", re.IGNORECASE),
    "csv": re.compile(r".*\.[ct]sv", re.IGNORECASE),
    "jsonl": re.compile(r".*\.(jsonl|ndjson)", re.IGNORECASE),
    "tfrecord": re.compile(r".*\.tfrec.*|.*-\d{5,}-of-\d{5,}", re.IGNORECASE),
}
_TABLES = ("csv", "jsonl")
# Files that hold the arrays of all examples, not one example each.
_ARRAYS = {"images.npy", "features.npy", "labels.npy"}


def is_path(text: str) -> bool:
    """Whether a text is an existing path or looks like a path."""
    looks_like_path = "/" in text or text.startswith((".", "~"))
    return (looks_like_path and ":" not in text) or Path(text).exists()


def source(
    path: Path,
    class_names: Collection[str] = (),
    task_input: str | None = None,
    allow_one_class: bool = False,
) -> dict[str, Any]:
    """The source for the data at a path: `name`, `path` and perhaps other options, as
    for `Config.changed`.

    A directory that contains nothing but another one stands for the inner one, which is
    printed. The files are those of the input `task_input`, or by default of all
    registered inputs. Raises UsageError if there are no data, or files of a single
    class that is not among the `class_names`, unless one class is allowed.
    """
    options: dict[str, Any] = {}
    file_type = file_types.of(task_input) if task_input else None
    if file_type:
        options = file_type._asdict()
    types = file_types.select(**options) if options else file_types.fields()
    data = _find(path, class_names, types, allow_one_class)
    reads_files = data["name"] in ("folder", "csv", "jsonl")
    return {**data, **options} if reads_files else data


def _find(
    path: Path,
    class_names: Collection[str],
    types: Mapping[str, tuple[str, ...]],
    allow_one_class: bool,
) -> dict[str, Any]:
    """The source for the data at a path, whose files have these types."""
    root = path
    suffixes = tuple(itertools.chain(*types.values()))
    while path.is_dir():
        if boxes := box_formats.find(path):
            return _source(boxes, path, root)
        folders, files = list_folder(path)
        classes = [name for name in folders if _has_file(path / name, suffixes)]
        splits = _SPLITS.intersection(folders)
        data = _data_files(path, files, bool(classes))
        is_class_folder = len(classes) > 1 or not splits.union(class_names).isdisjoint(
            classes
        )
        if is_class_folder and not (data and _are_flat_splits(path, classes)):
            return _source("folder", path, root)
        for name in splits:
            files = files + list_folder(path / name)[1]
        if _ARRAYS.intersection(files):
            return _source("arrays", path, root)
        if "tfrecord" in map(_kind, files):
            return _source("tfrecord", path, root)
        if len(data) > 1:
            first = path / min(data, key=lambda name: "train" not in name)
            raise UsageError(
                f"{path} contains {len(data)} data files; give one of them: {first}"
            )
        entries = data or classes or folders
        if len(entries) != 1:
            raise _problem(path, folders, classes, types, allow_one_class)
        inner = path / entries[0]
        if entries == classes and not list_folder(inner)[0]:
            if allow_one_class:
                return _source("folder", path, root)
            raise _problem(path, folders, classes, types)
        path = inner
    if not path.exists():
        raise UsageError(f"{path}: no such file or directory")
    kind = _kind(path.name) or box_formats.format_of(path)
    if not kind:
        raise UsageError(f"{path} is not a file of examples; {_expected(types)}")
    return _source(kind, path, root)


def _expected(types: Mapping[str, tuple[str, ...]]) -> str:
    suffixes = ", ".join(itertools.chain(*types.values()))
    return (
        f"expected are folders of files ({suffixes}), one for each class; an .npz of"
        " arrays; TFRecord files; a .csv or .jsonl with a row for each example, such as"
        " the columns path and label; or boxes in the format of COCO, VOC or YOLO"
    )


def _data_files(path: Path, files: list[str], has_classes: bool) -> list[str]:
    """The data files of a directory; tables of anything else are not data."""
    names = [name for name in files if _kind(name)]
    if not has_classes and len(names) == 1 and not is_json_lines(names[0]):
        return names
    unknown_files = [name for name in names if _kind(name) not in _TABLES]
    headers = {name: _header(path / name) for name in names if _kind(name) in _TABLES}
    of_files = [name for name, header in headers.items() if _lists_files(header)]
    if unknown_files or of_files or has_classes:
        return sorted(unknown_files + of_files)
    return [name for name, header in headers.items() if _has_truth(header)]


def _are_flat_splits(path: Path, classes: list[str]) -> bool:
    """Whether these folders are splits without folders of classes."""
    if not _SPLITS.issuperset(classes):
        return False
    return not any(list_folder(path / name)[0] for name in classes)


def _source(name: str, path: Path, root: Path) -> dict[str, Any]:
    if path != root:
        say("data", f"{path}, the only data in {root}")
    return {"name": name, "path": path}


def _problem(
    path: Path,
    folders: list[str],
    classes: list[str],
    types: Mapping[str, tuple[str, ...]],
    allow_one_class: bool = False,
) -> UsageError:
    """An error that says what a directory contains instead of data, and the remedy."""
    files = list_folder(path)[1]
    if len(classes) == 1:
        names = (name for _, _, names in walk(path / classes[0]) for name in names)
        noun = _noun(file_types.most_common(names, types))
        return UsageError(
            f"{path} has {noun} of only one class, {classes[0]!r}; add a folder for"
            " another class, or a .csv with the columns path and label"
        )
    counts = Counter(file_types.field_of(name, types) for name in files)
    del counts[""]
    for field, count in counts.most_common(1):
        noun = _noun(field)
        found = pluralize(count, noun.removesuffix("s"))
        if allow_one_class:
            return UsageError(
                f"{path} contains {found}, but no class folders; move them into one,"
                f" such as {path / noun}"
            )
        return NoLabels(
            f"{path} contains {found}, but no class folders; move the {noun}"
            " of each class into a folder of its own, or list them in a .csv with the"
            " columns path and label"
        )
    entries = [*(f"{name}/" for name in folders), *files]
    if not entries:
        return UsageError(f"{path} is empty; {_expected(types)}")
    content = ", ".join(entries[:3])
    if len(entries) > 3:
        content += ", ..."
    suffixes: set[str] = set()
    for folder in folders:
        for _, _, names_below in walk(path / folder):
            suffixes.update(Path(name).suffix for name in names_below)
    suffixes.discard("")
    if suffixes:
        content += f" with {', '.join(sorted(suffixes)[:3])} files"
    return UsageError(f"{path} contains only {content}; {_expected(types)}")


def _noun(field: str) -> str:
    return "images" if field == file_types.IMAGE else f"{field} files"


def with_slashes(path: str) -> str:
    """A Windows path with slashes; a path that exists is unchanged."""
    if "\\" not in path or os.path.exists(path):
        return path
    return path.replace("\\", "/")


def column(name: str) -> str:
    """The name of a column in lower case, with underscores for spaces."""
    return name.strip().lower().replace(" ", "_")


def split_bars(line: str) -> list[str]:
    """The columns of a table with `|` between them, from its first line; empty if it
    is another table.

    A line without the name of a column of files, as in the LJ Speech data set, is an
    example: its id, its transcript, and perhaps the transcript in words.
    """
    cells = line.strip().split("|")
    if not 2 <= len(cells) <= len(_LJ_SPEECH) or "\t" in line:
        return []
    if {*map(column, cells)}.isdisjoint(IMAGES):
        return _LJ_SPEECH[: len(cells)]
    return cells


def _header(path: Path) -> set[str]:
    """The columns that the first line of a table names; empty if it is not a table."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        line = file.readline()
    if not is_json_lines(path.name):
        names = split_bars(line) or re.split("[,;\t]", line)
        return {column(name).strip('"') for name in names}
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return set()
    return set(map(column, row)) if isinstance(row, dict) else set()


def _lists_files(header: set[str]) -> bool:
    """Whether there is a column of files, and one of what to predict."""
    has_truth = _has_truth(header) or not header.isdisjoint(TRANSCRIPTS)
    return not header.isdisjoint(IMAGES) and has_truth


def _has_truth(header: set[str]) -> bool:
    return not header.isdisjoint(LABELS + SEVERAL_LABELS + TARGETS + MASKS)


def _kind(name: str) -> str:
    """The source that reads a file of this name; empty if there is none."""
    for kind, pattern in _FILES.items():
        if pattern.fullmatch(name):
            return kind
    return ""


def is_json_lines(name: str) -> bool:
    """Whether a file of this name has a JSON object in each line."""
    return _kind(name) == "jsonl"


def list_folder(folder: Path) -> tuple[list[str], list[str]]:
    """Sorted names of the directories and of the files, without ignored names."""
    _, folders, files = next(walk(folder, onerror=unreadable))
    return sorted(folders), sorted(files)


def unreadable(error: OSError) -> None:
    """Raises UsageError for an error of `os.walk`."""
    raise UsageError(f"{error.filename} cannot be read: {error.strerror}") from None


def _has_file(folder: str | os.PathLike[str], suffixes: tuple[str, ...]) -> bool:
    """Whether there is a file with one of the suffixes at any depth.

    Stops at the first one. The files beside `_ARRAYS` do not count.
    """
    holds_arrays = any(os.path.exists(os.path.join(folder, name)) for name in _ARRAYS)
    folders = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if is_ignored(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif not holds_arrays and entry.name.lower().endswith(suffixes):
                    return True
    except OSError:  # whoever opens the source reports it
        return False
    return any(_has_file(inside, suffixes) for inside in folders)
