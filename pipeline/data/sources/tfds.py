"""Any prepared set of TensorFlow Datasets (TFDS) that has images, texts or recordings
with classes, or images with boxes.
"""

import dataclasses
import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tensorflow as tf

from pipeline.config.registry import register
from pipeline.contracts import Example, Source
from pipeline.data import split_names, tfds_boxes
from pipeline.data.records import (
    Layout,
    Records,
    RecordSource,
    index_files,
    parse_records,
)
from pipeline.utils.errors import UsageError, reason, suggest


@register
def tfds(
    *,
    dataset: str,
    path: Annotated[Path, "directory"] | None = None,
    splits: dict[Literal["train", "validation", "test"], str] | None = None,
    group: str | None = None,
) -> Source:
    """A data set of TensorFlow Datasets: the builder's splits, or parts of them.

    The id of an example is its index in the builder's split, in stored order, whichever
    part is read. Images stay encoded, and the task decodes them as a server does.
    Without images, the first feature of text is used, such as that of `imdb_reviews`,
    or of sound, such as that of `speech_commands`, whose samples become WAV files.
    Of images without a class, a sequence with boxes and classes is used, such as that
    of `voc`; difficult boxes and those of crowds need not be found.

    Args:
        dataset: Name of a builder, such as `cifar10`, with a config or version as in
            `tfds.builder`: `cifar10_corrupted/fog_3`.
        path: TFDS's data_dir; by default $TFDS_DATA_DIR, or else ~/tensorflow_datasets.
        splits: What to read as train, validation or test, in TFDS's notation, such as
            `train=train[:10%]`. Other splits come from the builder, if it has them.
        group: Name of a feature with a number or a string; examples with the same value
            stay in one split.
    """
    builder = _builder(dataset, path)
    layout = _layout(builder, group)
    if not builder.is_prepared():
        levels = len(builder.info.full_name.split("/"))  # name[/config]/version
        folder = path or Path(builder.data_dir).parents[levels - 1]
        raise UsageError(
            f"{dataset} is not prepared in {folder}; on a machine with network access,"
            f" run: tfds build {dataset} --data_dir {folder}  (or set its directory"
            " with --source.path)"
        )
    return Tfds(builder, layout, splits or {})


class Tfds(RecordSource):
    """A builder whose data is on disk in TFRecord files; arguments as for `tfds`."""

    def __init__(self, builder: Any, layout: Layout, splits: Mapping[Any, str]) -> None:
        self._builder = builder
        self._splits = _select_splits(builder, splits)
        self._split_numbers = _split_numbers(builder)
        records, starts = _records(builder)
        ids = []
        for name, split in builder.info.splits.items():
            first = self._split_numbers[name] << 40
            ids.append(first + np.arange(split.num_examples, dtype=np.int64))
        numbers = {
            split: _record_numbers(builder, expression, starts)
            for split, expression in self._splits.items()
        }
        super().__init__(records, np.concatenate(ids), numbers, layout)
        self._boxes = None
        class_names: tuple[str, ...] = ()
        if "label" in layout:
            class_names = tuple(builder.info.features[layout["label"][0]].names)
        elif found := tfds_boxes.find(builder.info.features):
            self._boxes = found
            class_names = found.class_names
        shape: tuple[int | None, ...] = (None, None, None)
        if "image" in layout:
            image = builder.info.features[layout["image"][0]]
            # An alpha channel is dropped, both in training and in serving.
            shape = (*image.shape[:2], 1 if image.shape[2] == 1 else 3)
        self.info = self._info(class_names, shape)
        if self._boxes:
            fields = {**self.info.fields, **tfds_boxes.SPECS}
            self.info = dataclasses.replace(self.info, fields=fields)

    def _parse(self, layout: Layout, records: tf.Tensor) -> Example:
        """Parses records; a recording, int64 (samples,), becomes a WAV file."""
        if self._boxes and "image" in layout:
            fields = parse_records(layout, records)
            return {**fields, **self._boxes.parse(records, fields["image"])}
        if "audio" not in layout:
            return parse_records(layout, records)
        others = {field: kind for field, kind in layout.items() if field != "audio"}
        name = layout["audio"][0]
        spec = {name: tf.io.RaggedFeature(tf.int64)}
        samples = tf.io.parse_single_example(records, spec)[name]
        rate = self._builder.info.features[name].sample_rate
        waveform = tf.cast(samples, tf.float32)[:, None] / 2**15
        content = tf.audio.encode_wav(waveform, rate)
        return {"audio": content, **parse_records(others, records)}

    def fingerprint(self) -> str:
        """Hash of the builder's full name, the splits, and file sizes and times."""
        files = []
        for path in self._records.files:
            stat = path.stat()
            files.append((path.name, stat.st_size, stat.st_ctime_ns))
        state = (self._builder.info.full_name, self._splits, self._layout, files)
        return hashlib.sha256(repr(state).encode()).hexdigest()

    def location(self, id: int) -> str:
        """For example, `record 17 of cifar10's train`."""
        names = {number: name for name, number in self._split_numbers.items()}
        number, record = divmod(id, 1 << 40)
        return f"record {record} of {self._builder.name}'s {names.get(number, number)}"


def _split_numbers(builder: Any) -> dict[str, int]:
    """Maps the builder's splits to their numbers in ids."""
    numbers = {}
    for number, aliases in enumerate(split_names.ALIASES.values()):
        numbers.update(dict.fromkeys(aliases, number))
    extra = sorted(set(builder.info.splits) - set(numbers))
    for number, name in enumerate(extra, start=len(split_names.SPLITS)):
        numbers[name] = number
    return {name: numbers[name] for name in builder.info.splits}


def _select_splits(builder: Any, requested: Mapping[Any, str]) -> dict[str, str]:
    """Maps splits to TFDS's expressions of what to read."""
    matches = split_names.matches(builder.info.splits)
    selected = {split: names[0] for split, names in matches.items()}
    selected.update(requested)
    if "train" not in selected:
        names = ", ".join(builder.info.splits) or "none"
        raise UsageError(
            f"{builder.name} has no split 'train'; choose from {names} with"
            " --source.splits train="
        )
    return {split: selected[split] for split in split_names.SPLITS if split in selected}


def _records(builder: Any) -> tuple[Records, dict[str, int]]:
    """The records of all splits, and the number of the first record of each file."""
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
    counts = np.diff(records.first)
    for path, count, length in zip(files, counts, lengths, strict=True):
        if count != length:
            raise UsageError(
                f"{path} has {count} records, but its dataset_info.json lists {length};"
                " copy or build it again"
            )
    starts = {
        str(path): int(first)
        for path, first in zip(files, records.first[:-1], strict=True)
    }
    return records, starts


def _record_numbers(
    builder: Any, expression: str, starts: dict[str, int]
) -> np.ndarray:
    """Numbers of the records that an expression such as `train[:10%]` selects."""
    try:
        instructions = builder.info.splits[expression].file_instructions
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise UsageError(
            f"--source.splits: TFDS rejects {expression!r}: {reason(error)}"
        ) from None
    numbers = []
    for instruction in instructions:
        first = starts[str(instruction.filename)] + instruction.skip
        numbers.append(first + np.arange(instruction.take))
    if not numbers:
        raise UsageError(
            f"--source.splits: {expression!r} of {builder.name} has no examples"
        )
    return np.concatenate(numbers).astype(np.int64)


def _builder(dataset: str, path: Path | None) -> Any:
    """Reads the directory of the builder with this name, without using the network."""
    import tensorflow_datasets as tfds

    # TFDS warns about every half-prepared directory that it skips.
    logging.getLogger("absl").setLevel(logging.ERROR)
    try:
        return tfds.builder(dataset, data_dir=path, try_gcs=False)
    except Exception as error:  # TFDS raises many types of exceptions
        raise UsageError(
            f"--source.dataset: TFDS rejects {dataset!r}: {reason(error)}; the names"
            " are at tensorflow.org/datasets/catalog"
        ) from None


def _layout(builder: Any, group: str | None) -> Layout:
    """The builder's features for `image`, `text` or `audio`, `label` and optionally
    `group`.

    Raises UsageError if a feature is missing.
    """
    import tensorflow_datasets as tfds

    features = builder.info.features
    items = {}
    if isinstance(features, tfds.features.FeaturesDict):
        items = dict(features.items())
    # The builder's supervised keys come first.
    supervised_keys = builder.info.supervised_keys or ()
    names = sorted(items, key=lambda name: name not in supervised_keys)
    images = [name for name in names if isinstance(items[name], tfds.features.Image)]
    images = [name for name in images if items[name].np_dtype == np.uint8]
    labels = [
        name for name in names if isinstance(items[name], tfds.features.ClassLabel)
    ]
    texts = [name for name in names if isinstance(items[name], tfds.features.Text)]
    sounds = [name for name in names if _is_sound(items[name])]
    inputs = [("image", name, "bytes") for name in images]
    inputs += [("text", name, "bytes") for name in texts]
    inputs += [("audio", name, "int64") for name in sounds]
    has_boxes = bool(images) and tfds_boxes.find(items) is not None
    if not inputs or not (labels or has_boxes):
        raise UsageError(
            f"{builder.name} cannot be learned: an 8-bit Image, a Text or an Audio of"
            " one channel with a sample rate is required, and a ClassLabel, or a"
            " sequence of BBoxFeature and ClassLabel for an image; its features are"
            f" {', '.join(items) or type(features).__name__}"
        )
    field, feature, kind = inputs[0]
    layout = {field: (feature, kind)}
    if labels:
        layout["label"] = (labels[0], "int64")
    if group is None:
        return layout
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
    layout["group"] = (group, "int64" if kind in "iu" else "bytes")
    return layout


def _is_sound(feature: Any) -> bool:
    """Whether a feature has samples of 16 bits, stored as they are."""
    import tensorflow_datasets as tfds

    if not isinstance(feature, tfds.features.Audio) or not feature.sample_rate:
        return False
    spec = feature.get_serialized_info()
    is_plain = spec.np_dtype is not None and np.dtype(spec.np_dtype).kind == "i"
    return is_plain and tuple(feature.shape) == (None,)
