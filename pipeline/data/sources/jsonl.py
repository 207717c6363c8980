"""A file with a JSON object for each example."""

from pathlib import Path
from typing import Annotated

from pipeline.config import tables
from pipeline.contracts import Source
from pipeline.data import table


def jsonl(
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
    """Lines of JSON objects, all with the same keys: a file or numbers, and a label.

    Keys are recognized, files are found and rows are left out as in a table of the
    source `csv`. Without files, the key `features` has a list of numbers, or nested
    lists of equal lengths, in each line; or all keys that have no other use have
    numbers. The id of such an example is the number of its line. A key of texts, such
    as `text`, is used instead of numbers.

    Args:
        path: A `.jsonl` file in UTF-8 with one JSON object per line.
        image: Key of the files; by default recognized by its name, such as path, file,
            image.
        column: Key with the values of an input, such as texts; by default
            recognized by its name, such as text, sentence, review.
        label: Key of the class; by default recognized by its name, such as label,
            class. If all its values are numbers and not all of them are whole, they are
            numbers to predict, unless this option names it.
        labels: Key of a list of labels; by default `labels` or `tags`, if there is no
            key of one label.
        target: Key of a number to predict, or a list of them; by default recognized by
            its name, such as target, value, y, price, if there is no key of labels.
        mask: Key of the files of masks, PNGs with a class for each pixel; by default
            `mask`, if there is no other key of what to predict.
        transcript: Key of what recordings say; by default recognized
            by its name, such as transcript, sentence, text, if there is no key of
            labels.
        group: Key whose equal values stay in one split; by default, without files,
            `group`, if it exists.
        split: Key of train, validation (valid, val) or test; by default `split`, if it
            exists.
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
    return table.source(tables.read_json_lines(path), options)
