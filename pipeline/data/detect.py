"""Looks at data once: where they are, what they are, and which recipe suits them.

A path may be class folders, arrays, TFRecord files, a table or boxes; data in memory
are arrays, datasets or tables. Nothing here imports TensorFlow.
"""

import ast
import contextlib
import dataclasses
import itertools
import os
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.config import registry
from pipeline.data import (
    box_formats,
    file_types,
    names,
    split_names,
    table,
    table_columns,
)
from pipeline.data.table import Table
from pipeline.data.table_columns import NUMBERS, Options, Roles
from pipeline.utils import image_formats
from pipeline.utils.console import pluralize, say
from pipeline.utils.errors import NoLabels, UsageError
from pipeline.utils.image_formats import is_ignored, walk

_SPLITS = {"train", "validation", "valid", "val", "test"}
# Source -> the names of its files.
_FILES = {
    "arrays": re.compile(r".*\.npz|images\.npy", re.IGNORECASE),
    "tfrecord": re.compile(r".*\.tfrec.*|.*-\d{5,}-of-\d{5,}", re.IGNORECASE),
}
_FOLD = re.compile(r"(fold|part|batch|chunk|shard|session)[ _-]?\d+", re.IGNORECASE)
_MAX_LEVELS = 5  # of directories above transcripts
_MAX_TEXT = 1000  # characters of a transcript
_SPREADSHEETS = (".xls", ".xlsx", ".xlsm", ".ods")
# Files that hold the arrays of all examples, not one example each.
_ARRAYS = {"images.npy", "features.npy", "labels.npy"}


# Layers of a user's network that read steps of numbers, not pixels.
_SEQUENCE_LAYERS = ("LSTM", "GRU", "SimpleRNN", "RNN", "Bidirectional", "Conv1D")


@dataclasses.dataclass(frozen=True)
class Detected:
    """What data are."""

    source: dict[str, Any]
    """`name`, `path` and perhaps other options of the source."""
    recipe: str
    """The recipe that suits them."""


def detect(
    path: Path,
    *,
    task: str | None = None,
    task_input: str | None = None,
    target: str | None = None,
    source_name: str | None = None,
    options: Callable[[str], Mapping[str, Any]] | None = None,
) -> Detected:
    """What the data at a path are.

    Args:
        path: A file or directory.
        task: The name of the task if the user set it.
        task_input: The input of the task if the user set it; it says which files are
            examples.
        target: The column to predict if the user named one.
        source_name: The source if the user named one that reads a path.
        options: Maps the name of the source to its options that the user set.

    Raises:
        UsageError: There are no data, or it is not obvious what is to be predicted.
    """
    # One class may be enough for tasks other than telling classes apart.
    allow_one_class = task not in (None, "supervised")
    source: dict[str, Any] = {"name": source_name, "path": path}
    if source_name is None:
        source = find_source(
            path, task_input=task_input, allow_one_class=allow_one_class
        )
    if target is not None:
        source |= truth_options(source["name"], source, target)
    set_by_user = options(source["name"]) if options else {}
    recipe = find_recipe(source["name"], {**source, **set_by_user}, task)
    return Detected(source, recipe)


def truth_options(
    source: str, options: Mapping[str, Any], target: str
) -> dict[str, Any]:
    """The option of a table's source that names the column to predict.

    Raises UsageError if the data have no such column.
    """
    if source != "table":
        raise UsageError(
            f"--target {target}: it is neither a registered target nor, as"
            f" {options.get('path', source)} is no table, a column"
        )
    roles = _roles(Path(options["path"]), Options(predict=target))
    ((field, (title,)),) = roles.truths.items()
    return {field: title}


def find_recipe(source: str, options: Mapping[str, Any], task: str | None) -> str:
    """The recipe for the examples of a source: one whose options `field`, `target` and
    `task` have defaults that fit them, or else `data`.

    Raises UsageError if it is not obvious what is to be predicted.
    """
    field, truth = _fields(source, options)
    if task == "supervised":
        task = None
    recipes = {}
    for name in registry.names("recipes"):
        suits = registry.find("recipes", name).options
        if "field" in suits and _default(suits, "field") == field:
            recipes[_default(suits, "target"), _default(suits, "task")] = name
    keys: list[tuple[str | None, str | None]] = [(truth or None, None), (None, None)]
    if task:
        keys.insert(0, (None, task))
    for key in keys:
        if key in recipes:
            return recipes[key]
    return "data"


def _default(options: Mapping[str, Any], name: str) -> Any:
    """The default of an option of a recipe; None if there is none."""
    return ast.literal_eval(options[name].default) if name in options else None


def field_of(source: str, options: Mapping[str, Any]) -> str:
    """The raw field of the examples of a source, such as `image` or `features`."""
    return _fields(source, options)[0]


def _fields(source: str, options: Mapping[str, Any]) -> tuple[str, str]:
    """The raw fields of what is given, and of what is to be predicted; of the second,
    those that choose a recipe, else empty.

    `image` if nothing says it: whatever opens the source reports data that cannot be
    read.
    """
    if source == "scikit_learn" and options.get("dataset", "digits") != "digits":
        return "features", ""
    value = getattr(source, "value", None)
    if value is not None:
        return _fields_of_object(value, options)
    truth = "boxes" if source in box_formats.FORMATS else ""
    if source == "masks":
        return file_types.IMAGE, "mask"
    if source == "speech":
        return "audio", "transcript"
    path = options.get("path")
    if path is None or not Path(path).exists():
        return file_types.IMAGE, truth
    if source == "table":
        return _fields_of_table(Path(path), options)
    if source == "folder":
        types = file_types.select(options.get("field"), options.get("suffixes", ()))
        return file_types.most_common(_file_names(Path(path)), types), truth
    if source == "arrays":
        arrays = _array_names(Path(path))
        if "features" in arrays and "images" not in arrays:
            return "features", ""
    return file_types.IMAGE, truth


def _fields_of_table(path: Path, options: Mapping[str, Any]) -> tuple[str, str]:
    known = {field.name for field in dataclasses.fields(Options)}
    chosen: dict[str, Any] = {}
    for name, value in options.items():
        if name in known:
            chosen[name] = tuple(value) if isinstance(value, list) else value
    roles = _roles(path, Options(**chosen))
    return roles.field, next(iter(roles.truths))


_Key = tuple[str, int, int]
# The table that was looked at last, until its source takes it; and what its columns
# are for, so that the report does not read the file again.
_tables: dict[_Key, Table] = {}
_roles_of_table: dict[tuple[_Key, Options], Roles] = {}


def _roles(path: Path, options: Options) -> Roles:
    key = (_key(path), options)
    if key not in _roles_of_table:
        read = _read_once(path)
        _roles_of_table[key] = table_columns.find_roles(read, options)
    return _roles_of_table[key]


def _read_once(path: Path) -> Table:
    key = _key(path)
    if key not in _tables:
        _tables.clear()
        _roles_of_table.clear()
        _tables[key] = table.read(path)
    return _tables[key]


def take_table(path: Path) -> Table:
    """The table at a path, which is not read again if it has been looked at."""
    read = _read_once(path)
    _tables.clear()
    return read


def _key(path: Path) -> tuple[str, int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    return str(path), status.st_mtime_ns, status.st_size


def _fields_of_object(data: Any, options: Mapping[str, Any]) -> tuple[str, str]:
    """The raw fields of data in memory: of a table, of strings, also as one of several
    inputs, or else `image`.
    """
    if isinstance(data, tuple | list) and is_mixed_table(data):
        return NUMBERS, ""
    read = None if has_pictures(data) else table.from_object(data, "the table")
    if read is not None:
        columns = tuple(options.get("columns", ()))
        chosen = Options(predict=options.get("predict"), columns=columns)
        roles = table_columns.find_roles(read, chosen)
        return roles.field, next(iter(roles.truths))
    spec = getattr(data, "element_spec", None)
    if spec is not None:
        data = spec if isinstance(spec, tuple) else ()
    if not isinstance(data, tuple | list) or not len(data):
        return file_types.IMAGE, ""
    inputs = data[0].values() if isinstance(data[0], Mapping) else data[:1]
    is_text = any(map(_are_texts, inputs))
    return next(iter(file_types.value_columns())) if is_text else file_types.IMAGE, ""


def is_mixed_table(data: Any) -> bool:
    """Whether x of (x, y) is a DataFrame with other columns than numbers, or gaps."""
    x: Any = data[0] if len(data) in (2, 3) else None
    if not hasattr(x, "iloc") or x.ndim != 2:
        return False
    kinds = {getattr(dtype, "kind", "O") for dtype in x.dtypes}
    return not kinds <= {*"biuf"} or bool(x.isna().to_numpy().any())


def has_pictures(data: Any) -> bool:
    """Whether a dataset of Hugging Face has a column of decoded images."""
    features = getattr(data, "features", None)
    if not isinstance(features, Mapping) or not hasattr(data, "column_names"):
        return False
    kinds = {title: type(feature).__name__ for title, feature in features.items()}
    return any(kinds.get(title, "Value") != "Value" for title in ("image", "img"))


def array_kinds(
    source: str, kinds: tuple[str | None, str | None], model: Any
) -> dict[str, str]:
    """The options of a source that say how it interprets x and y, if it has them:
    the input and the target of the task, or steps of numbers if the user's network
    begins with a layer that reads them, such as an LSTM.
    """
    input, target = kinds
    if input is None:
        layers = getattr(getattr(model, "value", None), "layers", ())
        if any(type(layer).__name__ in _SEQUENCE_LAYERS for layer in layers):
            input = "features"
    options = {"input": input, "target": target}
    # `target` alone is a column of a table.
    if not options.keys() <= registry.find("sources", source).options.keys():
        return {}
    return {key: str(value) for key, value in options.items() if value}


def _are_texts(x: Any) -> bool:
    """Whether an input, or its specification, has a string for each example."""
    if hasattr(x, "columns"):
        return False
    dtype = getattr(x, "dtype", None)
    if dtype is None and isinstance(x, list | tuple):
        return bool(x) and isinstance(x[0], str | bytes)
    if getattr(dtype, "kind", "") == "O" and len(x):
        return isinstance(next(iter(x)), str | bytes)
    return getattr(dtype, "name", "") == "string" or getattr(dtype, "kind", "") in "UST"


def _file_names(folder: Path) -> Iterator[str]:
    for _, _, files in walk(folder):
        yield from files


def _array_names(path: Path) -> set[str]:
    """The names of the arrays in an `.npz` file or a directory of `.npy` files."""
    if path.is_dir():
        return {file.stem for file in path.rglob("*.npy")}
    try:
        with zipfile.ZipFile(path) as archive:
            return {Path(name).stem for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile):
        return set()


def find_source(
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
    if task_input == "table" and data["name"] == "table":
        options = {"field": NUMBERS}
    reads_files = data["name"] in ("folder", "table")
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
        if not any(_lists_files(_header(path / name)) for name in data):
            if _has_masks(path, folders):
                return _source("masks", path, root)
            if _has_transcripts(path):
                return _source("speech", path, root)
        is_table = len(data) == 1 and _is_of_masks_or_boxes(path / data[0])
        if is_class_folder and not (
            is_table or (data and _are_flat_splits(path, classes))
        ):
            if all(map(_FOLD.fullmatch, classes)):
                raise _folds(path, root, classes)
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
        has_class = entries == classes and not list_folder(inner)[0]
        if has_class and not _holds_masks(inner) and not _has_transcripts(inner):
            if allow_one_class:
                return _source("folder", path, root)
            raise _problem(path, folders, classes, types)
        path = inner
    if not path.exists():
        raise UsageError(f"{path}: no such file or directory")
    kind = _kind(path.name) or box_formats.format_of(path)
    if kind == "table" and _has_boxes(_header(path)):
        kind = "box_table"
    if path.suffix.lower() in _SPREADSHEETS:
        raise UsageError(f"{path} is a spreadsheet; save it as .csv")
    if not kind:
        raise UsageError(f"{path} is not a file of examples; {_expected(types)}")
    return _source(kind, path, root)


def _folds(path: Path, root: Path, classes: list[str]) -> UsageError:
    """An error about parts of the data that are not classes, which names a table."""
    remedy = _table_in(root) or "a table with a row for each file"
    return UsageError(
        f"{path}: {classes[0]}, {classes[1]}, ... are parts of the data, not classes;"
        f" give {remedy} in their place, or write --source.name folder"
    )


def _table_in(path: Path) -> str:
    """The first table of files in a directory or in its folders; empty without one."""
    for file in sorted([*path.glob("*"), *path.glob("*/*")]):
        if table.is_table(file) and _lists_files(_header(file)):
            return str(file)
    return ""


def _has_masks(path: Path, folders: list[str]) -> bool:
    """Whether images and their masks are side by side in a directory, or in those of
    its splits: in two folders, or by the ends of their names.
    """
    of_splits = [path / name for name in folders if split_names.split_of_folder(name)]
    return any(_holds_masks(folder) for folder in (path, *of_splits))


def _holds_masks(path: Path) -> bool:
    folders, files = list_folder(path)
    lower = {name.lower(): path / name for name in folders}
    pairs = []
    for name, folder in lower.items():
        plain = names.MASK_SUFFIX.sub("", name)
        images = [
            lower[name] for name in lower if names.IMAGE_SUFFIX.sub("", name) == plain
        ]
        if name in names.MASK_FOLDERS:
            images = [lower[name] for name in lower if name in names.IMAGE_FOLDERS]
        if name in names.MASK_FOLDERS or plain != name:
            pairs += [(of_images, folder) for of_images in images]
    for of_images, of_masks in pairs:
        if not _stems(_file_names(of_images)).isdisjoint(_stems(_file_names(of_masks))):
            return True
    stems = {Path(name).stem for name in filter(_is_image, files)}
    return any(
        names.MASK_SUFFIX.search(stem) and names.MASK_SUFFIX.sub("", stem) in stems
        for stem in stems
    )


def _stems(files: Iterable[str]) -> set[str]:
    """What the names of images and of their masks share."""
    return {
        names.MASK_SUFFIX.sub("", Path(name).stem.lower())
        for name in files
        if _is_image(name)
    }


def _is_image(name: str) -> bool:
    return name.lower().endswith(image_formats.SUFFIXES)


def _expected(types: Mapping[str, tuple[str, ...]]) -> str:
    suffixes = ", ".join(itertools.chain(*types.values()))
    return (
        f"expected are folders of files ({suffixes}), one for each class; an .npz of"
        " arrays; TFRecord files; a table (.csv, .tsv, .jsonl, .parquet, .feather) with"
        " a row for each example; boxes in the format of COCO, VOC or YOLO; or images"
        " and their masks in the folders images and masks"
    )


def _data_files(path: Path, files: list[str], has_classes: bool) -> list[str]:
    """The data files of a directory; tables of anything else are not data."""
    data = [name for name in files if _kind(name)]
    if not has_classes and len(data) == 1 and not data[0].endswith(".jsonl"):
        return data
    unknown_files = [name for name in data if _kind(name) != "table"]
    headers = {name: _header(path / name) for name in data if _kind(name) == "table"}
    of_files = [name for name, header in headers.items() if _lists_files(header)]
    if unknown_files or of_files or has_classes:
        return sorted(unknown_files + of_files)
    return [name for name, header in headers.items() if _has_truth(header)]


def _has_transcripts(path: Path) -> bool:
    """Whether a directory has recordings with transcripts: of Kaldi, or in the first
    directory of each level those of LibriSpeech, or a text beside most recordings.
    """
    folders, files = list_folder(path)
    places = [path, *(path / name for name in folders)]
    if any((place / "wav.scp").is_file() for place in places):
        return True
    suffixes = file_types.fields()["audio"]
    for _ in range(_MAX_LEVELS):
        if any(name.endswith(".trans.txt") for name in files):
            return True
        recordings = [name for name in files if name.lower().endswith(suffixes)]
        if recordings:
            texts = texts_of(files)
            described = [name for name in recordings if Path(name).stem in texts]
            if 2 * len(described) <= len(recordings):
                return False
            return _are_words(path / texts[Path(described[0]).stem])
        if not folders:
            return False
        path = path / folders[0]
        folders, files = list_folder(path)
    return False


def texts_of(files: Iterable[str]) -> dict[str, str]:
    """Stem -> the text of one recording each, such as `a.txt` or `a.lab`."""
    lower = (".txt", ".lab")
    return {Path(n).stem: n for n in sorted(files) if n.lower().endswith(lower)}


def _are_words(file: Path) -> bool:
    """Whether a text is a transcript, not times or other numbers."""
    with contextlib.suppress(OSError):
        words = file.read_text(errors="replace")[:_MAX_TEXT].split()
        numbers = [word for word in words if re.fullmatch(r"[-+.,\d]+", word)]
        return bool(words) and 2 * len(numbers) <= len(words)
    return False


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
        noun = _noun(file_types.most_common(_file_names(path / classes[0]), types))
        found = _table_in(path)
        if found:
            return UsageError(f"{path} has {noun} and a table; give the table: {found}")
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
    tables = [name for name in files if _kind(name) == "table"]
    if len(tables) > 1:
        first = path / min(tables, key=lambda name: "train" not in name)
        return UsageError(
            f"{path} contains {len(tables)} tables; give one of them, and --target with"
            f" the column to predict: {first}"
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


def _header(path: Path) -> set[str]:
    """The columns that a table has; empty if they are not known without reading it."""
    try:
        return set(map(names.column, table.header(path)))
    except UsageError:
        return set()


def _has_boxes(header: set[str]) -> bool:
    """Whether there are the sides of boxes in images."""
    has_files = not header.isdisjoint({*names.FILES, *names.BOX_FILES})
    return has_files and header.issuperset(names.BOX_SIDES)


def _is_of_masks_or_boxes(path: Path) -> bool:
    """Whether a file is a table of masks or boxes, which are not classes in folders."""
    header = _header(path) if _kind(path.name) == "table" else set()
    return _has_boxes(header) or not header.isdisjoint(names.MASKS)


def _lists_files(header: set[str]) -> bool:
    """Whether there is a column of files, and one of what to predict."""
    if _has_boxes(header):
        return True
    has_truth = _has_truth(header) or not header.isdisjoint(names.TRANSCRIPTS)
    return not header.isdisjoint({*names.FILES, "id"}) and has_truth


def _has_truth(header: set[str]) -> bool:
    usual = (*names.LABELS, *names.SEVERAL_LABELS, *names.TARGETS, *names.MASKS)
    return not header.isdisjoint(usual)


def _kind(name: str) -> str:
    """The source that reads a file of this name; empty if there is none."""
    if table.is_table(Path(name)):
        return "table"
    for kind, pattern in _FILES.items():
        if pattern.fullmatch(name):
            return kind
    return ""


def is_data_file(name: str) -> bool:
    """Whether a file of this name has examples, by its suffix."""
    return _kind(name) != ""


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
