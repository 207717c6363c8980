"""A source of files, whose content is a field of the examples."""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example, ImageShape
from pipeline.data import mask_files
from pipeline.data.array_source import ArraySource
from pipeline.data.file_list import FileList
from pipeline.data.file_types import IMAGE
from pipeline.data.image_sizes import (
    MAX_DEEP_PNGS,
    common_shape,
    shape,
    spread,
    used_bits,
)
from pipeline.data.seeds import stable_hash
from pipeline.utils import compressed_sound, progress_bar, tiff
from pipeline.utils.errors import UsageError
from pipeline.utils.image_formats import is_deep
from pipeline.utils.tf_data import without_autograph

MASK = "mask"
"""The field of masks of images."""
_SAMPLE = 1000  # files of a split whose beginning is read
_HEADER = 1 << 14  # bytes that tell the size of nearly all images
_LONG_HEADER = 1 << 18


class FileSource(ArraySource):
    """Examples in files; a field with files is a string of shape (), their bytes.

    Args:
        files: Split -> field -> the files of all examples. The files of the first field
            name the examples in messages.
        columns: Split -> field -> its values for all examples, `id` among them.
        class_names: Names of the labels 0, 1, ...
        class_values: As in `Info`.
        notes: Lines for the user.
        group_names: As for `ArraySource`.
        group: Regular expression to search for in the name of each file; files with the
            same match (of its first group, if it has one) stay in one split.
    """

    def __init__(
        self,
        files: Mapping[str, Mapping[str, FileList]],
        columns: Mapping[str, Mapping[str, np.ndarray]],
        class_names: tuple[str, ...] | None,
        *,
        class_values: tuple[int, ...] = (),
        notes: tuple[str, ...] = (),
        group_names: Mapping[str, int] | None = None,
        group: str | None = None,
    ) -> None:
        if group is not None:
            columns, group_names = _grouped(files, columns, group)
        held_out = dict(columns)
        super().__init__(
            held_out.pop("train"),
            held_out,
            class_names=class_names,
            group_names=group_names,
        )
        self._files = files
        self._masks_are_colors = bool(class_values)
        self._orders: dict[str, np.ndarray] = {}
        fields = dict(self.info.fields)
        for field in files["train"]:
            fields[field] = tf.TensorSpec((), tf.string)
        facts = _image_facts(files) if IMAGE in files["train"] else {}
        if MASK in files["train"]:
            _require_equal_sizes(files)
            masks = files["train"][MASK]
            sample = [masks[position] for position in spread(len(masks), _SAMPLE)]
            self._masks_are_colors |= not mask_files.have_palettes_in_common(sample)
        notes = (*notes, *facts.pop("notes", ()))
        self.info = dataclasses.replace(
            self.info, fields=fields, class_values=class_values, notes=notes, **facts
        )

    def arrays(self, split: str) -> None:
        return None

    def _hash(self) -> str:
        """Hashes classes, columns, and name, size and time of every file."""
        digest = hashlib.sha256(repr(self.info.class_names).encode())
        for split, files_by_field in self._files.items():
            for field, files in files_by_field.items():
                digest.update(repr((split, field)).encode() + files.digest())
            for column in self._columns[split].values():
                if column.dtype == object:  # its memory has only addresses
                    digest.update(repr(column.tolist()).encode())
                else:
                    digest.update(column.tobytes())
        return digest.hexdigest()

    def _reader(self, split: str) -> Callable[[tf.Tensor], Example]:
        read_row = super()._reader(split)
        readers = {
            field: _file_reader(field, files, self._masks_are_colors)
            for field, files in self._files[split].items()
        }

        @without_autograph
        def read(position: tf.Tensor) -> Example:
            row = read_row(position)
            for field, read_file in readers.items():
                row[field] = read_file(position)
            return row

        return read

    def location(self, id: int) -> str:
        """Returns the path of the file."""
        for split, files_by_field in self._files.items():
            ids = self._columns[split]["id"]
            if split not in self._orders:
                self._orders[split] = np.argsort(ids)
            order = self._orders[split]
            place = int(np.searchsorted(ids, id, sorter=order))
            if place < len(ids) and ids[order[place]] == id:
                files = next(iter(files_by_field.values()))
                return files.name(int(order[place]))
        raise KeyError(id)


def _grouped(
    files: Mapping[str, Mapping[str, FileList]],
    columns: Mapping[str, Mapping[str, np.ndarray]],
    pattern: str,
) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, int]]:
    """The columns with `group`, and the values of the names of groups of train."""
    names: dict[str, int] = {}
    grouped = {}
    for split, files_by_field in files.items():
        chosen = next(iter(files_by_field.values()))
        titles = _groups(chosen.names(), pattern)
        values = {title: stable_hash(os.fsencode(title)) for title in {*titles}}
        names = values if split == "train" else names
        group = np.array([values[title] for title in titles], np.int64)
        grouped[split] = {**columns[split], "group": group}
    return grouped, names


def _groups(files: Iterable[str], pattern: str) -> list[str]:
    """The name of each file's group."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UsageError(
            f"--source.group must be a valid regular expression; got {pattern!r}:"
            f" {error}"
        ) from None
    number = 1 if compiled.groups else 0
    groups = []
    for file in files:
        match = compiled.search(file)
        text = match[number] if match else None
        if not text:
            raise UsageError(f"--source.group {pattern!r} does not match {file}")
        groups.append(text)
    return groups


def _file_reader(
    field: str, files: FileList, in_colors: bool
) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function from a position to a file's content; compressed sound becomes WAV,
    TIFF becomes PNG, and masks PNG without a palette, `in_colors` or with its indices.

    Raises UsageError if this needs a package that is not installed.
    """
    read = files.reader()
    if field == MASK:
        of_mask = functools.partial(mask_files.to_png, in_colors=in_colors)
        return _converting(read, of_mask, None)
    suffixes: tuple[str, ...] = compressed_sound.SUFFIXES
    convert: Callable[[bytes], bytes] = compressed_sound.to_wav
    if field == IMAGE:
        suffixes, convert = tiff.SUFFIXES, tiff.to_png
    endings = tuple(suffix.encode() for suffix in suffixes)
    needs_conversion = [
        name.lower().endswith(endings) for name in files.encoded_names()
    ]
    if not any(needs_conversion):
        return read
    if field != IMAGE:
        compressed_sound.require_soundfile(files[needs_conversion.index(True)])
    return _converting(
        read, convert, None if all(needs_conversion) else needs_conversion
    )


def _converting(
    read: Callable[[tf.Tensor], tf.Tensor],
    convert: Callable[[bytes], bytes],
    needs_conversion: Sequence[bool] | None,
) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function from a position to converted content; None: all files need it."""
    flags = None if needs_conversion is None else tf.constant(needs_conversion)

    @tf.function  # outside of a graph, `convert` would get an array instead of bytes
    def call(content: tf.Tensor) -> tf.Tensor:
        return tf.numpy_function(convert, [content], tf.string, stateful=False)

    def read_file(position: tf.Tensor) -> tf.Tensor:
        content = read(position)
        if flags is None:
            return tf.ensure_shape(call(content), ())
        content = tf.cond(
            tf.gather(flags, position), lambda: call(content), lambda: content
        )
        return tf.ensure_shape(content, ())

    return read_file


def _require_equal_sizes(files: Mapping[str, Mapping[str, FileList]]) -> None:
    """Raises UsageError naming an image and a mask of another size."""
    for files_by_field in files.values():
        for image, mask in zip(
            files_by_field[IMAGE], files_by_field[MASK], strict=True
        ):
            sizes = [_shape(file)[:2] for file in (image, mask)]
            if (0, 0) not in sizes and sizes[0] != sizes[1]:
                of_image, of_mask = (f"{width}x{height}" for height, width in sizes)
                raise UsageError(
                    f"{mask} has {of_mask} pixels, but its image {image} {of_image};"
                    " resize the mask without interpolation, or remove both"
                )


def _image_facts(files: Mapping[str, Mapping[str, FileList]]) -> dict[str, Any]:
    """Fields of `Info` about images, from the beginnings of a sample of files."""
    images = [files_by_field[IMAGE] for files_by_field in files.values()]
    image_shape = common_shape(itertools.chain(*map(_sampled_shapes, images)))
    bits, notes = used_bits(_deep_files(files["train"][IMAGE]))
    facts = {"image_shape": image_shape, "image_bits": bits, "notes": notes}
    if max(map(len, images)) > _SAMPLE:
        facts["measure_images"] = functools.cache(lambda: _measure(images))
    return facts


def _sampled_shapes(files: FileList) -> Iterator[tuple[int, int, bool]]:
    return (_shape(files[position]) for position in spread(len(files), _SAMPLE))


def _measure(images: Sequence[FileList]) -> ImageShape:
    """The shape that all images share, from their headers."""
    total = sum(map(len, images))
    progress_bar.stage("measuring", f"the sizes of {total:,} images")

    def shapes() -> Iterator[tuple[int, int, bool]]:
        for done, file in enumerate(itertools.chain(*images)):
            yield _shape(file)
            progress_bar.count("measuring", done + 1, total)

    return common_shape(shapes())


def _shape(path: str) -> tuple[int, int, bool]:
    return read_header(path, shape)


def read_header(path: str, measure: Callable[[bytes], Any]) -> Any:
    """What `measure` says of the beginning of a file: height, width, and more.

    Reads more of a file with a color profile and a thumbnail, if both are 0.
    """
    with _readable(path) as file:
        if path.lower().endswith(tiff.SUFFIXES):  # its header may be at the end
            return measure(file.read())
        header = file.read(_HEADER)
        result = measure(header)
        if not result[0] * result[1] and len(header) == _HEADER:
            result = measure(header + file.read(_LONG_HEADER))
    return result


def _deep_files(files: FileList) -> Iterator[bytes]:
    """Yields evenly spread 16-bit images, as PNGs, of an evenly spread sample of files.

    Files are in the order of their classes, whose images may use different values.
    """
    deep = []
    for position in spread(len(files), _SAMPLE):
        is_tiff = files[position].lower().endswith(tiff.SUFFIXES)
        with _readable(files[position]) as file:
            if tiff.is_deep(file.read()) if is_tiff else is_deep(file.read(32)):
                deep.append(files[position])
    for position in spread(len(deep), MAX_DEEP_PNGS):
        with _readable(deep[position]) as file:
            content = file.read()
            is_tiff = deep[position].lower().endswith(tiff.SUFFIXES)
            yield tiff.to_png(content) if is_tiff else content


@contextlib.contextmanager
def _readable(path: str) -> Iterator[BinaryIO]:
    """Opens a file; UsageError if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            yield file
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
