"""The section `source` of a config: which data, and how they lie on the disk."""

import dataclasses
import glob
import os
from pathlib import Path
from typing import Any

from pipeline.config import registry
from pipeline.config.validation import Checked, require
from pipeline.config.words import Options
from pipeline.utils.errors import UsageError, suggest


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source(Checked):
    """Where the examples come from."""

    name: str = "tfds"
    """arrays, folder, scikit_learn, tfds, tfrecord, or a dotted name (package.module) of your
    own."""
    dataset: str | None = None
    """Which data set: a TensorFlow Datasets builder; `digits` or `diabetes` of scikit-learn."""
    path: Path | None = None
    """TensorFlow Datasets' data_dir; a folder of images with a sub-folder for each class; a folder
    of TFRecord files, or a pattern such as `data/train-*`; an `.npz` file with the keys `images`
    and `labels`, or a folder with `images.npy` and `labels.npy`."""
    splits: Options = dataclasses.field(default_factory=dict)
    """Of TensorFlow Datasets: what train, validation or test is read from, such as
    `train=train[:80%] validation=train[80%:]`; a split that is not named is the data set's own,
    or where it has none held out of train by --data.validation and --data.test."""
    group: str | None = None
    """What must stay in one split: a regular expression on the paths in a folder, or the name of a
    feature of TFRecord files or TensorFlow Datasets."""
    image: str | None = None
    """Feature of TFRecord files that holds the encoded image; None: found by its name."""
    label: str | None = None
    """Feature of TFRecord files that holds the label; None: found by its name."""
    class_names: tuple[str, ...] = ()
    """Names of the labels of TFRecord files; by default the lines of labels.txt beside them, else
    the labels themselves."""

    @property
    def title(self) -> str:
        """What a person calls the data."""
        return self.dataset or (str(self.path) if self.path else self.name)

    def options(self) -> dict[str, Any]:
        """The keyword arguments for the sibling: those that are given."""
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del given["name"]
        return {name: value for name, value in given.items() if value not in (None, (), {})}

    def _check(self) -> None:
        registry.check("sources", self.name, self.options(), "--source.{}")
        # A pattern is matched by the source; Path.exists() may raise.
        path = self.path
        if path is not None and not os.path.exists(path) and not glob.has_magic(str(path)):
            raise UsageError(f"--source.path: {path} does not exist")
        if path is not None and self.name == "folder" and not os.path.isdir(path):
            raise UsageError(f"--source.path: {path} is no folder; give one of images")
        for name, wanted in self.splits.items():
            if name not in (known := ("train", "validation", "test")):
                raise UsageError(f"--source.splits: no split {name!r}; {suggest(name, known)}")
            good = isinstance(wanted, str) and " " not in wanted
            require(
                good,
                f"--source.splits {name}",
                repr(wanted),
                "such as train[:10%], each in quotes of its own",
            )
