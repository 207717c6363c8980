"""Raw examples of a split, which are read from the source and not decoded."""

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example, Source, TrainingExamples
from pipeline.utils import progress_bar
from pipeline.utils.errors import UsageError, reason
from pipeline.utils.tf_data import READ_ERRORS, is_short, row_bytes, with_options

_BLOCK = 256  # examples that are read at once
_ROWS = 4096  # the same, if they are in memory
_FILES = 32  # the same, if their sizes are not known
_BLOCK_BYTES = 8 << 20


@dataclasses.dataclass(frozen=True)
class RawSplit(TrainingExamples):
    """Examples of one split as they are in the source, before they are decoded."""

    source: Source
    source_split: str
    """The split of the source that has the examples."""
    positions: np.ndarray
    """Their positions in it, int64 (examples,), in ascending order."""
    columns: Mapping[str, np.ndarray]
    """Short fields of the whole split of the source: `id`, `group` if it has groups."""

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def short_fields(self) -> frozenset[str]:
        fields = self.source.info.fields.items()
        return frozenset(name for name, spec in fields if is_short(spec))

    def column(self, name: str) -> np.ndarray:
        columns = self.columns
        if name not in columns:
            columns = self.source.columns(self.source_split)
        return np.ascontiguousarray(columns[name][self.positions])

    def keys(self) -> dict[str, np.ndarray]:
        """The columns `id` and, if there are groups, `group`."""
        names = [name for name in ("id", "group") if name in self.columns]
        return {name: self.column(name) for name in names}

    def select(self, is_selected: np.ndarray) -> "RawSplit":
        """The examples for which a mask, bool (examples,), is true."""
        return dataclasses.replace(self, positions=self.positions[is_selected])

    def take(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """All fields of the examples at these positions of this split, in their order.

        Arrays as those of `batches`.
        """
        parts = list(self._read(self.positions[np.asarray(positions)]))
        names = parts[0] if parts else ()
        return {name: np.concatenate([part[name] for part in parts]) for name in names}

    def batches(
        self, fields: Collection[str] | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        progress_bar.stage("reading", f"{len(self):,} training examples")
        done = 0
        for batch in self._read(self.positions, fields and {"id", *fields}):
            yield batch
            done += len(batch["id"])
            progress_bar.count("reading", done, len(self))

    def _read(
        self, positions: np.ndarray, fields: Collection[str] | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yields the examples at these positions in the split of the source, with these
        fields or all.
        """
        arrays = self.source.arrays(self.source_split)
        if arrays is not None:
            specs = self.source.info.fields
            size = max(1, min(_ROWS, _BLOCK_BYTES // max(1, row_bytes(specs))))
            for start in range(0, len(positions), size):
                rows = positions[start : start + size]
                yield {name: column[rows] for name, column in arrays.items()}
            return
        read_all = self.source.reader(self.source_split)

        def read(position: tf.Tensor) -> Example:  # other fields leave the graph
            example = read_all(position)
            return {name: example[name] for name in fields or example}

        examples = tf.data.Dataset.from_tensor_slices(positions).map(
            read, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
        done = 0
        try:
            for batch in _batches(examples):
                yield batch
                done += len(batch["id"])
        except READ_ERRORS as error:
            for position in positions[done : done + _BLOCK]:
                self._require_readable(read, position)
            raise UsageError(
                f"the split {self.source_split!r} cannot be read: {reason(error)}"
            ) from None

    def _require_readable(self, read: Callable[..., Example], position: int) -> None:
        try:
            read(tf.constant(position, tf.int64))
        except READ_ERRORS as error:
            name = self.source.location(int(self.columns["id"][position]))
            raise UsageError(f"{name} cannot be read: {reason(error)}") from None


def _batches(examples: tf.data.Dataset) -> Iterator[dict[str, np.ndarray]]:
    """Yields the examples in batches of bounded size, as NumPy arrays."""
    specs = examples.element_spec
    if all(spec.shape.is_fully_defined() for spec in specs.values()):
        is_encoded = any(spec.dtype == tf.string for spec in specs.values())
        largest = _FILES if is_encoded else _BLOCK
        size = max(1, min(largest, _BLOCK_BYTES // max(1, row_bytes(specs))))
        yield from with_options(examples.batch(size).prefetch(1)).as_numpy_iterator()
        return
    rows = with_options(examples).as_numpy_iterator()
    while part := list(itertools.islice(rows, _FILES)):
        yield {name: _stack([row[name] for row in part], specs[name]) for name in specs}


def _stack(values: list[Any], spec: tf.TensorSpec) -> np.ndarray:
    """An array (values, ...); an object array (values,) if their shapes may differ."""
    if spec.shape.is_fully_defined() and spec.dtype != tf.string:
        return np.stack(values)
    array = np.empty(len(values), object)
    for row, value in enumerate(values):
        array[row] = value
    return array
