"""A column of a table, for `contracts` and for what reads tables without TensorFlow."""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class TableColumn:
    """A column of a table from which is predicted.

    Numbers and booleans are in the raw field `numbers`, the others in `strings`, both
    in the order of the columns.
    """

    name: str
    kind: Literal["number", "boolean", "category", "date", "text"]
    order: str = ""
    """Of dates: the order of year, month and day in a string, such as `ymd`."""
