"""Collects warnings that libjpeg and libpng write to stderr, and names the images."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import tensorflow as tf

from pipeline.contracts import Decision
from pipeline.data.example_store import OnTheFly
from pipeline.data.image_decoding import DAMAGE, WARNINGS
from pipeline.runtime import native_logs
from pipeline.utils.console import pluralize
from pipeline.utils.tf_data import READ_ERRORS

_MAX_NAMES = 3  # in a note
_MAX_SECONDS = 2.0  # to find the names


class DecoderWarnings:
    """The warnings of one pass over the examples of a split."""

    def __init__(self, lines: native_logs.Lines) -> None:
        self._lines = lines
        self._first = 0
        self._is_silent = True

    def mark_decoded(self, count: int) -> None:
        """Reports that `count` examples were decoded.

        If there was no warning so far, `notes` does not decode them again.
        """
        if self._is_silent and self._lines.size:
            self._is_silent = False
        elif self._is_silent:
            self._first = count

    @property
    def lines(self) -> list[str]:
        """The warnings, once the block of `collect` has ended."""
        return _warnings(self._lines)

    def notes(self, store: OnTheFly, locate: Callable[[int], str]) -> list[Decision]:
        """A note that names the first images with warnings, if there were any.

        `store` decodes the examples again, in the same order.
        """
        if not self.lines:
            return []
        names: list[str] = []
        end = time.monotonic() + _MAX_SECONDS
        for row in range(self._first, len(store.short["id"])):
            if _has_warnings(store, row):
                names.append(locate(int(store.short["id"][row])))
            if len(names) == _MAX_NAMES or time.monotonic() > end:
                break
        examples = f", such as of {', '.join(names)}" if names else ""
        count = pluralize(len(self.lines), "warning")
        text = f"{count} of the image decoders{examples}: {self.lines[0].strip()}"
        return [Decision("note", text, "the images are used as they were decoded")]


def _has_warnings(store: OnTheFly, row: int) -> bool:
    with native_logs.filter_stderr(WARNINGS) as lines:
        try:
            store.decode(tf.constant(row, tf.int64))
        except READ_ERRORS:  # reported elsewhere
            return False
    return bool(_warnings(lines))


def _warnings(lines: native_logs.Lines) -> list[str]:
    """The lines about images that were decoded all the same."""
    return [line for line in lines.dropped if DAMAGE not in line]


@contextmanager
def collect() -> Iterator[DecoderWarnings]:
    """Collects the warnings of a block instead of printing them.

    Decoders write them without the names of the files.
    """
    with native_logs.filter_stderr(WARNINGS) as lines:
        yield DecoderWarnings(lines)
