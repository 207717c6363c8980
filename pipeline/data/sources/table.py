"""A table with a row for each example."""

from pathlib import Path
from typing import Annotated

import pyarrow as pa

from pipeline.config.registry import register
from pipeline.contracts import Source
from pipeline.data import detect, table_source
from pipeline.data.table_columns import Options


@register
def table(
    *,
    path: Annotated[Path, "file"],
    image: str | None = None,
    column: str | None = None,
    columns: tuple[str, ...] = (),
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
    """A table of files, of texts or of columns of any kind, with a label or another
    truth in each row.

    Files are searched below the directory of the table, by their path with slashes or
    backslashes. If no file is there, as with a table from another machine, they are
    searched by the last parts of the path, upper or lower case, with or without suffix;
    a note says so. The id of an example is a hash of its path below the directory of
    the table.

    A table with a column of texts, such as `text`, is one of texts. Of any other table
    without files, all columns that have no other use are inputs: numbers, words, dates
    and short texts. `columns` names those that are inputs beside files or texts. The id
    of an example is the number of its row. Lines of JSON may have a list of numbers, or
    nested lists of equal lengths, under the key `features`.

    Rows without a label, or without an existing file or a text, are left out, with a
    note. Labels that are all numbers are in the order of their values.

    Args:
        path: A `.csv` or `.tsv` file whose first line names the columns, with commas,
            semicolons, tabs or bars between the cells; a `.jsonl` file with an object
            per line; all of them also as `.gz`; or a `.parquet` or `.feather` file.
        image: Column with the files; by default recognized by its name, such as path,
            file, image.
        column: Column with the values of an input, such as texts; by default
            recognized by its name, such as text, sentence, review.
        columns: Columns that are inputs. By default all of a table without files and
            long texts; those beside files or texts have to be named, and join the
            features that a model makes of the file or text.
        label: Column with the names of the classes; by default recognized by its name,
            such as label, class. If all its values are numbers and not all of them are
            whole, they are numbers to predict, unless this option names it.
        labels: Column with any number of labels, with |, ; or , between them or as a
            list; or columns of 0 and 1, one for each label, with commas between their
            names. By default `labels` or `tags`, if there is no column of one label.
        target: Column with the numbers to predict, or lists of them; by default
            recognized by its name, such as target, value, y, price, if there is no
            column of labels.
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
            field of the input that reads most of the files. `numbers` makes all columns
            of a table with texts inputs.
        suffixes: Suffixes of the files; by default those of the input. Files of an
            input of your own need `field`, too.
        class_names: Names of the classes in their order; by default the labels of the
            training examples.
    """
    options = Options(
        image=image,
        column=column,
        columns=columns,
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
    source = table_source.from_table(detect.take_table(path), options)
    pa.default_memory_pool().release_unused()  # of the table
    return source
