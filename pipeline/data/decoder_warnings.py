"""What libjpeg and libpng write to stderr about images, with the names of
the images.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import tensorflow as tf

from pipeline.contracts import Decision
from pipeline.data.example_store import OnTheFly
from pipeline.data.image_decoding import WARNINGS
from pipeline.runtime import native_logs
from pipeline.utils.console import pluralize
from pipeline.utils.tf_data import READ_ERRORS

_MOST = 3  # names in a note
_SECONDS = 2.0  # at most, to find them


class Warnings:
    """The warnings of one pass over the examples of a split."""

    def __init__(self, lines: native_logs.Lines) -> None:
        self._lines = lines
        self._first = 0
        self._is_silent = True

    def passed(self, count: int) -> None:
        """Tells that batches with `count` examples were decoded, so that fewer are
        searched.
        """
        if self._is_silent and self._lines.size:
            self._is_silent = False
        elif self._is_silent:
            self._first = count

    @property
    def lines(self) -> list[str]:
        """The warnings, after the block."""
        return self._lines.dropped

    def notes(self, store: OnTheFly, locate: Callable[[int], str]) -> list[Decision]:
        """A line that names the first images with warnings, if there were any.

        `store` decodes the examples again, in the same order.
        """
        if not self.lines:
            return []
        names, end = [], time.monotonic() + _SECONDS
        for row in range(self._first, len(store.short["id"])):
            with native_logs.held(WARNINGS) as one:
                try:
                    store.decode(tf.constant(row, tf.int64))
                except READ_ERRORS:  # said elsewhere
                    continue
            names += [locate(int(store.short["id"][row]))] if one.dropped else []
            if len(names) == _MOST or time.monotonic() > end:
                break
        where = f", such as of {', '.join(names)}" if names else ""
        count = pluralize(len(self.lines), "warning")
        text = f"{count} of the image decoders{where}: {self.lines[0].strip()}"
        return [Decision("note", text, "the images are used as they were decoded")]


@contextmanager
def held() -> Iterator[Warnings]:
    """Collects the warnings of the block, which libjpeg writes without
    names of files.
    """
    with native_logs.held(WARNINGS) as lines:
        yield Warnings(lines)
