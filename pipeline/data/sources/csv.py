"""A table of files, or of numbers, with a label or another truth in each row."""

from pathlib import Path
from typing import Annotated

from pipeline.config import tables
from pipeline.contracts import Source
from pipeline.data import table


def csv(
    *,
    path: Annotated[Path, "file"],
    image: str | None = None,
    column: str | None = None,
    label: str | None = None,
    labels: str | None = None,
    target: str | None = None,
    mask: str | None = None,
    transcript: str | None = None,
    group: str | None = None,
    split: str | None = None,
    field: str | None = None,
    suffixes: tuple[str, ...] = (),
    class_names: tuple[str, ...] = (),
) -> Source:
    """A table with a row for each example: a file or numbers, a label, perhaps a split.

    Files are searched below the directory of the table, by their path with slashes or
    backslashes. If no file is there, as with a table from another machine, they are
    searched by the last parts of the path, upper or lower case, with or without suffix;
    a note says so. Rows without a label or an existing file are left out, with a note.
    The id of an example is a hash of its path below the directory of the table. Labels
    that are all numbers are in the order of their values.

    A table without files has features: all columns that have no other use contain
    numbers, without gaps. The id of an example is the number of its row. A column of
    texts, such as `text`, is used instead of numbers; rows without a text or a label
    are left out, with a note.

    Args:
        path: A `.csv` or `.tsv` file in UTF-8 whose first line names the columns.
        image: Column with the files; by default recognized by its name, such as path,
            file, image.
        column: Column with the values of an input, such as texts; by default
            recognized by its name, such as text, sentence, review.
        label: Column with the names of the classes; by default recognized by its name,
            such as label, class. If all its values are numbers and not all of them are
            whole, they are numbers to predict, unless this option names it.
        labels: Column with any number of labels, with | or ; between them; by default
            `labels` or `tags`, if there is no column of one label.
        target: Column with the numbers to predict; by default recognized by its name,
            such as target, value, y, price, if there is no column of labels.
        mask: Column with the files of masks, PNGs with a class for each pixel; by
            default `mask`, if there is no other column of what to predict.
        transcript: Column of what recordings say; by default recognized
            by its name, such as transcript, sentence, text, if there is no column of
            labels.
        group: Column whose equal values stay in one split; by default, in a table
            without files, `group`, if it exists.
        split: Column with train, validation (valid, val) or test; by default `split`,
            if it exists.
        field: Raw field for the content of a file, `image` for images; by default the
            field of the input that reads most of the files.
        suffixes: Suffixes of the files; by default those of the input. Files of an
            input of your own need `field`, too.
        class_names: Names of the classes in their order; by default the labels of the
            training examples.
    """
    options = tables.Options(
        image=image,
        column=column,
        label=label,
        labels=labels,
        target=target,
        mask=mask,
        transcript=transcript,
        group=group,
        split=split,
        field=field,
        suffixes=suffixes,
        class_names=class_names,
    )
    return table.source(tables.read_csv(path), options)
