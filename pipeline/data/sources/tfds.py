"""Any prepared image classification data set of TensorFlow Datasets (TFDS)."""

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from pipeline.contracts import Source
from pipeline.data import split_names
from pipeline.data.records import Layout, Records, RecordSource, index_files
from pipeline.utils.errors import UsageError, reason, suggest


def tfds(
    *,
    dataset: str,
    path: Annotated[Path, "directory"] | None = None,
    splits: dict[Literal["train", "validation", "test"], str] | None = None,
    group: str | None = None,
) -> Source:
    """A data set of TensorFlow Datasets: the builder's splits, or parts of them.

    The id of an example is its index in the builder's split, in stored order, and does
    not depend on which part is read. Images stay encoded, and the task decodes them as
    a server does.

    Args:
        dataset: Name of a builder, such as `cifar10`, with a config or version as in
            `tfds.builder`: `cifar10_corrupted/fog_3`.
        path: TFDS's data_dir; by default $TFDS_DATA_DIR, or else ~/tensorflow_datasets.
        splits: What to read as train, validation or test, in TFDS's notation, such as
            `train=train[:10%]`. The other splits are the builder's own, if it has them.
        group: Name of a feature with a number or a string; examples with the same value
            stay in one split.
    """
    builder = _builder(dataset, path)
    layout = _layout(builder, group)
    if not builder.is_prepared():
        above = len(builder.info.full_name.split("/")) - 1  # name[/config]/version
        where = path or Path(builder.data_dir).parents[above]
        raise UsageError(
            f"{dataset} is not prepared in {where}; on a machine with network access,"
            f" run: tfds build {dataset} --data_dir {where}  (or set its directory with"
            " --source.path)"
        )
    return Tfds(builder, layout, splits or {})


class Tfds(RecordSource):
    """A builder whose data is on disk in TFRecord files; arguments as for `tfds`."""

    def __init__(self, builder: Any, layout: Layout, splits: Mapping[Any, str]) -> None:
        self._builder = builder
        self._splits = _chosen(builder, splits)
        self._split_of = _split_numbers(builder)
        records, starts = _records(builder)
        ids = [
            (self._split_of[name] << 40) + np.arange(split.num_examples, dtype=np.int64)
            for name, split in builder.info.splits.items()
        ]
        numbers = {
            s: _numbers(builder, wanted, starts) for s, wanted in self._splits.items()
        }
        super().__init__(records, np.concatenate(ids), numbers, layout)
        image, label = (
            builder.info.features[layout[name][0]] for name in ("image", "label")
        )
        # An alpha channel is dropped, both in training and in serving.
        shape = (*image.shape[:2], 1 if image.shape[2] == 1 else 3)
        self.info = self._info(tuple(label.names), shape)

    def fingerprint(self) -> str:
        """Hash of the builder's full name, the splits, and the sizes and times of its
        files.
        """
        files = [
            (p.name, p.stat().st_size, p.stat().st_ctime_ns)
            for p in self._records.files
        ]
        state = (self._builder.info.full_name, self._splits, self._layout, files)
        return hashlib.sha256(repr(state).encode()).hexdigest()

    def location(self, id: int) -> str:
        """For example, `record 17 of cifar10's train`."""
        names = {number: name for name, number in self._split_of.items()}
        number, record = divmod(id, 1 << 40)
        return f"record {record} of {self._builder.name}'s {names.get(number, number)}"


def _split_numbers(builder: Any) -> dict[str, int]:
    """Maps the builder's splits to the number of the split in ids."""
    aliases = enumerate(split_names.ALIASES.values())
    numbers = {name: number for number, names in aliases for name in names}
    others = sorted(set(builder.info.splits) - set(numbers))
    numbers |= {
        name: number for number, name in enumerate(others, len(split_names.SPLITS))
    }
    return {name: numbers[name] for name in builder.info.splits}


def _chosen(builder: Any, wanted: Mapping[Any, str]) -> dict[str, str]:
    """Maps splits to what is read from the builder."""
    found = split_names.matches(builder.info.splits)
    chosen = {split: names[0] for split, names in found.items()} | dict(wanted)
    if "train" not in chosen:
        names = ", ".join(builder.info.splits) or "none"
        raise UsageError(
            f"{builder.name} has no split 'train'; choose from {names} with"
            " --source.splits train="
        )
    return {split: chosen[split] for split in split_names.SPLITS if split in chosen}


def _records(builder: Any) -> tuple[Records, dict[str, int]]:
    """All records of all splits, and the number of the first record of each file."""
    import tensorflow_datasets as tfds

    if builder.info.file_format != tfds.core.FileFormat.TFRECORD:
        raise UsageError(
            f"{builder.info.full_name} is stored as {builder.info.file_format.value};"
            " run: tfds convert_format --out_file_format=tfrecord"
            f" --dataset_dir={builder.data_path}"
        )
    splits = builder.info.splits.values()
    files = [Path(path) for split in splits for path in split.filepaths]
    lengths = [length for split in splits for length in split.shard_lengths]
    records = index_files(files)
    for path, found, length in zip(files, np.diff(records.first), lengths, strict=True):
        if found != length:
            raise UsageError(
                f"{path} has {found} records, but its dataset_info.json lists {length};"
                " copy or build it again"
            )
    return records, {
        str(p): int(n) for p, n in zip(files, records.first[:-1], strict=True)
    }


def _numbers(builder: Any, wanted: str, starts: dict[str, int]) -> np.ndarray:
    """Numbers of the records that an expression such as `train[:10%]` denotes."""
    try:
        instructions = builder.info.splits[wanted].file_instructions
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise UsageError(
            f"--source.splits: TFDS rejects {wanted!r}: {reason(error)}"
        ) from None
    runs = [starts[str(i.filename)] + i.skip + np.arange(i.take) for i in instructions]
    if not runs:
        raise UsageError(
            f"--source.splits: {wanted!r} of {builder.name} has no examples"
        )
    return np.concatenate(runs).astype(np.int64)


def _builder(dataset: str, path: Path | None) -> Any:
    """The builder with this name; reads its directory, without using the network."""
    import tensorflow_datasets as tfds

    # TFDS warns about every half-prepared directory that it skips.
    logging.getLogger("absl").setLevel(logging.ERROR)
    try:
        return tfds.builder(dataset, data_dir=path, try_gcs=False)
    except (
        Exception
    ) as error:  # TFDS's parser and builders raise many types of exceptions
        raise UsageError(
            f"--source.dataset: TFDS rejects {dataset!r}: {reason(error)}; the names"
            " are at tensorflow.org/datasets/catalog"
        ) from None


def _layout(builder: Any, group: str | None) -> Layout:
    """The builder's features for `image`, `label` and `group` (optional); UsageError if
    missing.
    """
    import tensorflow_datasets as tfds

    features = builder.info.features
    items = (
        dict(features.items())
        if isinstance(features, tfds.features.FeaturesDict)
        else {}
    )
    # The builder's supervised keys come first.
    names = sorted(
        items, key=lambda name: name not in (builder.info.supervised_keys or ())
    )
    images = [name for name in names if isinstance(items[name], tfds.features.Image)]
    images = [name for name in images if items[name].np_dtype == np.uint8]
    labels = [
        name for name in names if isinstance(items[name], tfds.features.ClassLabel)
    ]
    if not images or not labels:
        raise UsageError(
            f"{builder.name} is not for image classification, which requires an 8-bit"
            " Image and a ClassLabel; its features are"
            f" {', '.join(items) or type(features).__name__}"
        )
    chosen = {"image": (images[0], "bytes"), "label": (labels[0], "int64")}
    if group is None:
        return chosen
    if group not in items:
        raise UsageError(
            f"--source.group: unknown feature {group!r}; {suggest(group, items)}"
        )
    spec = items[group].get_tensor_info()
    kind = np.dtype(getattr(spec, "np_dtype", float)).kind
    if getattr(spec, "shape", None) != () or kind not in "iuOSU":
        raise UsageError(
            f"--source.group: the feature {group!r} must be a single integer or string"
        )
    return {**chosen, "group": (group, "int64" if kind in "iu" else "bytes")}
