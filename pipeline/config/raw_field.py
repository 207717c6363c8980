"""The raw field of the examples of a source, from the names of its files alone."""

import dataclasses
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.config import box_formats, file_types, tables
from pipeline.config.data_path import IMAGES as IMAGE_COLUMNS
from pipeline.utils.errors import UsageError
from pipeline.utils.image_formats import walk


def raw_field(source: str, options: Mapping[str, Any]) -> str:
    """The raw field of the examples, such as `image` or `features`.

    `image` if the names do not say it, or the data cannot be read: whatever opens the
    source reports that.

    Args:
        source: Name of the source.
        options: Options of the source.
    """
    if source == "scikit_learn" and options.get("dataset", "digits") != "digits":
        return "features"
    value = getattr(source, "value", None)
    if value is not None:
        return _field_of_object(value)
    path = options.get("path")
    if path is None or not Path(path).exists():
        return file_types.IMAGE
    try:
        if source == "folder":
            types = file_types.select(options.get("field"), options.get("suffixes", ()))
            return file_types.most_common(_file_names(Path(path)), types)
        if source in ("csv", "jsonl"):
            return tables.input_field(Path(path), _table_options(options))
    except UsageError:
        return file_types.IMAGE
    if source == "arrays":
        names = _array_names(Path(path))
        if "features" in names and "images" not in names:
            return "features"
    return file_types.IMAGE


def truth_field(source: str, options: Mapping[str, Any]) -> str:
    """The raw field of what is to be predicted, such as `boxes` or, of a table,
    `transcript`; empty if the names do not say it, or the table cannot be read.
    """
    if source in box_formats.FORMATS:
        return "boxes"
    path = options.get("path")
    if source not in ("csv", "jsonl") or path is None or not Path(path).exists():
        return ""
    try:
        columns = tables.columns(tables.read(Path(path)), _table_options(options))
    except UsageError:
        return ""
    return next(iter(columns.truths))


def _table_options(options: Mapping[str, Any]) -> tables.Options:
    """The options of a source that are those of tables."""
    names = {field.name for field in dataclasses.fields(tables.Options)}
    return tables.Options(
        **{name: value for name, value in options.items() if name in names}
    )


def _field_of_object(data: Any) -> str:
    """The raw field of data in memory: of strings, also as one of several inputs, or of
    a table with a column of them; else `image`.
    """
    columns: Any = getattr(data, "column_names", None)
    if columns is None:
        columns = getattr(data, "columns", ())
    names = {str(name).lower() for name in columns}
    for field, texts in file_types.value_columns().items():
        if names.intersection(texts) and names.isdisjoint(IMAGE_COLUMNS):
            return field
    spec = getattr(data, "element_spec", None)
    if spec is not None:
        data = spec if isinstance(spec, tuple) else ()
    if not isinstance(data, tuple | list) or not len(data):
        return file_types.IMAGE
    inputs = data[0].values() if isinstance(data[0], Mapping) else data[:1]
    is_text = any(map(_are_texts, inputs))
    return next(iter(file_types.value_columns())) if is_text else file_types.IMAGE


def _are_texts(x: Any) -> bool:
    """Whether an input, or its specification, has a string for each example."""
    dtype = getattr(x, "dtype", None)
    if dtype is None and isinstance(x, list | tuple):
        return bool(x) and isinstance(x[0], str | bytes)
    if getattr(dtype, "kind", "") == "O" and len(x):
        return isinstance(next(iter(x)), str | bytes)
    return getattr(dtype, "name", "") == "string" or getattr(dtype, "kind", "") in "UST"


def _file_names(folder: Path) -> Iterator[str]:
    for _, _, names in walk(folder):
        yield from names


def _array_names(path: Path) -> set[str]:
    """The names of the arrays in an `.npz` file or a directory of `.npy` files."""
    if path.is_dir():
        return {file.stem for file in path.rglob("*.npy")}
    try:
        with zipfile.ZipFile(path) as archive:
            return {Path(name).stem for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile):
        return set()
