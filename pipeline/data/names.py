"""Names of columns and what a cell without a value contains: the only lists of them."""

import keyword
import re
import unicodedata
from collections.abc import Collection

FILES = (
    "path",
    "file",
    "filename",
    "file_name",
    "filepath",
    "image",
    "image_path",
    "img",
    "image_id",
    "audio_path",
    "audio_file",
    "audio_filepath",
    "slice_file_name",
)
"""Columns of files."""
LABELS = (
    "label",
    "class",
    "class_name",
    "category",
    "target",
    "species",
    "breed",
    "sentiment",
    "topic",
)
"""Columns of classes."""
SEVERAL_LABELS = ("labels", "tags")
TARGETS = ("target", "value", "y", "price", "score")
"""Columns of numbers to predict."""
BOX_SIDES = ("xmin", "ymin", "xmax", "ymax")
"""Columns of a table with a row for each box."""
BOX_FILES = ("imageid",)
"""Columns of the files of boxes, beside `FILES`."""
BOX_LABELS = ("name", "labelname", "class_id", "classid")
"""Columns of the classes of boxes, beside `LABELS`."""
IMAGE_FOLDERS = {"images", "image", "imgs", "img", "jpegimages", "original", "input"}
MASK_FOLDERS = {
    "masks",
    "mask",
    "labels",
    "label",
    "annotations",
    "segmentationclass",
    "trimaps",
    "groundtruth",
    "ground truth",
    "ground_truth",
    "gt",
}
"""Folders beside each other, of images and of their masks, in lower case."""
INSTANCE_FOLDERS = {"segmentationobject"}
"""Folders of masks of objects, not of classes."""
IMAGE_SUFFIX = re.compile(r"[_-]images?$", re.IGNORECASE)
"""The end of the names of folders of images whose masks are in `..._masks`."""
MASK_SUFFIX = re.compile(r"[_-](masks?|segmentation|seg)$", re.IGNORECASE)
"""The end of the names of masks, or of their folders."""
MASKS = ("mask", "mask_path", "mask_file")
TRANSCRIPTS = ("transcript", "transcription", "normalized_text", "sentence", "text")
"""Columns of what recordings say, in a table of files."""
SPEAKERS = ("speaker", "speaker_id", "client_id", "spk")
"""Columns of who speaks, in a table of recordings."""
ROW_NAMES = ("id", "index", "unnamed:_0", "")
"""Columns that name the rows; pandas writes the last two."""
LJ_SPEECH = ("id", "text", "normalized_text")
"""Columns of the LJ Speech data set, whose table has no header."""

MISSING_NUMBERS = (
    "",
    "-",
    "--",
    ".",
    "?",
    "na",
    "n/a",
    "#n/a",
    "<na>",
    "nan",
    "nat",
    "nil",
    "none",
    "(none)",
    "null",
    "missing",
    "unknown",
)
"""Lower-case words that stand for no value in a column of numbers or dates."""
MISSING_TEXTS = ("", "nan", "NaN", "<NA>", "NaT", "#N/A")
"""What programs write for no value; in a column of words, NA and None are words."""
AMBIGUOUS_TEXTS = ("NA", "N/A", "n/a", "None", "none", "NULL", "null")
"""Words in a column of classes that may mean no value; a note names them."""


def column(name: object) -> str:
    """The name of a column in lower case, with underscores for spaces."""
    return str(name).strip().lower().replace(" ", "_")


def argument(title: str) -> str:
    """The argument of a request for a column: letters of ASCII, digits and underscores,
    as signatures of TensorFlow need, and no word that Python takes.
    """
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
    if not re.search("[A-Za-z]", plain):  # of another alphabet
        plain = "".join(
            f"u{ord(letter):04x}" if ord(letter) > 127 else letter for letter in title
        )
    name = re.sub(r"\W+", "_", plain).strip("_")
    is_free = name[:1].isalpha() and not keyword.iskeyword(name) and name != "self"
    return name if is_free else f"column_{name}".rstrip("_")


def first(names: Collection[str], titles: Collection[str]) -> str | None:
    """The first title that is one of the names, in the order of the names."""
    by_name = {column(title): title for title in reversed([*titles])}
    return next((by_name[name] for name in names if name in by_name), None)
