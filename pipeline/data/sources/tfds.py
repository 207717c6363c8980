"""Any prepared image-classification set of TensorFlow Datasets."""

import hashlib
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example, Info, Source
from pipeline.data.sources import _record_files
from pipeline.utils.errors import UsageError, suggest
from pipeline.utils.tf_data import joined

# Their names for the three splits, most wanted first.
_SPLITS = {"train": ("train",), "validation": ("validation", "valid", "val"), "test": ("test",)}


def tfds(
    *,
    dataset: str,
    path: Annotated[Path, "directory"] | None = None,
    splits: dict[Literal["train", "validation", "test"], str] | None = None,
    group: str | None = None,
) -> Source:
    """The splits that the builder has, or parts of them.

    The id of an example counts the records of the builder's split in their stored order, and is the
    same in every part of it. Images are left encoded, so that the task decodes them as a server
    does.

    Args:
        dataset: Name of a builder, such as `cifar10`, with a config or version as in
            `tfds.builder`: `cifar10_corrupted/fog_3`.
        path: TFDS's data_dir; by default $TFDS_DATA_DIR, else ~/tensorflow_datasets.
        splits: train, validation or test -> what to read there, as TFDS writes it: `train[:10%]`,
            `train+test`. A split that is not named is the builder's own, if it has one.
        group: Name of a feature, one number or text; examples where it is the same stay in one
            split.

    Raises:
        UsageError: There is no such builder, it is not prepared, is no image classification, two
            splits share examples, or a file is damaged.
    """
    builder = _builder(dataset, path)
    _features(builder)
    if not builder.is_prepared():
        above = len(builder.info.full_name.split("/")) - 1  # name[/config]/version
        where = path or Path(builder.data_dir).parents[above]
        raise UsageError(
            f"{dataset} is not prepared in {where}. Where there is a network, run: "
            f"tfds build {dataset} --data_dir {where}  (or give its folder with --source.path)"
        )
    return Tfds(builder, splits or {}, group)


class Tfds(Source):
    """A builder whose data lie on the disk, in TFRecord files.

    `image` is a string of shape (), an encoded file; `label` and `group` are int64.
    """

    def __init__(self, builder: Any, splits: dict[str, str], group: str | None) -> None:
        self._builder = builder
        image, label = _features(builder)
        self._keys = {"image": image, "label": label}
        if group is not None:
            self._keys["group"] = _group(builder, group)
        self._bases = _numbered(builder)
        self._splits = _chosen(builder, splits)
        self._records, starts = _records(builder, self._bases)
        self._numbers = {
            ours: _numbers(builder, theirs, starts) for ours, theirs in self._splits.items()
        }
        self._require_apart()
        features = builder.info.features
        shape = features[image].shape
        short = {name: tf.TensorSpec((), tf.int64) for name in ("id", *self._keys)}
        self.info = Info(
            splits={split: len(numbers) for split, numbers in self._numbers.items()},
            fields={**short, "image": tf.TensorSpec((), tf.string)},
            class_names=tuple(features[label].names),
            # Transparency is dropped, in training as in serving.
            image_shape=(*shape[:2], 1 if shape[2] == 1 else 3),
        )

    def _ids(self, numbers: np.ndarray) -> np.ndarray:
        """Records by number to ids: the builder's split, and 40 bits for the place in it."""
        base = np.searchsorted([first for _, first in self._bases.values()], numbers, "right") - 1
        kinds = np.array([kind for kind, _ in self._bases.values()], np.int64)
        firsts = np.array([first for _, first in self._bases.values()], np.int64)
        return (kinds[base] << 40) + numbers - firsts[base]

    def _require_apart(self) -> None:
        names = list(self._numbers)
        for at, one in enumerate(names):
            for other in names[:at]:
                shared = len(np.intersect1d(self._numbers[one], self._numbers[other]))
                if shared:
                    raise UsageError(
                        f"--source.splits: {other} ({self._splits[other]}) and {one} "
                        f"({self._splits[one]}) share {shared:,} examples"
                    )

    def _part(self, names: Iterable[str]) -> tuple[Any, Any]:
        """TFDS's features for these fields alone, and how it leaves an image encoded."""
        import tensorflow_datasets as tfds

        keys = {name: self._keys[name] for name in names}
        skip = {key: tfds.decode.SkipDecoding() for n, key in keys.items() if n == "image"}
        part = tfds.decode.PartialDecoding(dict.fromkeys(keys.values(), True), decoders=skip)
        return part.extract_features(self._builder.info.features), part.decoders

    def _example(self, id: tf.Tensor, record: tf.Tensor) -> Example:
        features, decoders = self._part(self._keys)
        found = features.deserialize_example(record, decoders=decoders)
        return {"id": id, **{n: _plain(n, found[key]) for n, key in self._keys.items()}}

    def examples(self, split: str) -> tf.data.Dataset:
        numbers = self._numbers[split]
        ids = tf.data.Dataset.from_tensor_slices(self._ids(numbers))
        return tf.data.Dataset.zip(ids, self._records.sequence(numbers)).map(
            self._example, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )

    def columns(self, split: str) -> dict[str, np.ndarray]:
        """The images are passed over."""
        numbers = self._numbers[split]
        keys = {name: key for name, key in self._keys.items() if name != "image"}
        spec = self._part(keys)[0].tf_example_spec

        def parsed(records: tf.Tensor) -> Example:
            found = tf.io.parse_example(records, spec)
            return {name: _plain(name, found[key]) for name, key in keys.items()}

        try:
            columns = joined(self._records.sequence(numbers).batch(256).map(parsed, 2), split)
        except UsageError:
            self._records.require_sound(numbers)
            raise
        return {"id": self._ids(numbers), **columns}

    def reader(self, split: str) -> Callable[[tf.Tensor], Example]:
        numbers = tf.constant(self._numbers[split])
        ids = tf.constant(self._ids(self._numbers[split]))

        def read(position: tf.Tensor) -> Example:
            record = self._records.read(tf.gather(numbers, position))
            return self._example(tf.gather(ids, position), record)

        return read

    def fingerprint(self) -> str:
        """Hash of the builder's full name, the splits, and the sizes and times of its files."""
        files = [(p.name, p.stat().st_size, p.stat().st_ctime_ns) for p in self._records.files]
        told = (self._builder.info.full_name, self._splits, self._keys, files)
        return hashlib.sha256(repr(told).encode()).hexdigest()

    def location(self, id: int) -> str:
        """Such as `record 17 of cifar10's train`."""
        names = {kind: name for name, (kind, _) in self._bases.items()}
        kind, record = divmod(id, 1 << 40)
        return f"record {record} of {self._builder.name}'s {names.get(kind, kind)}"


def _plain(name: str, values: tf.Tensor) -> tf.Tensor:
    """Numbers, or hashes of texts, as int64; images as they are."""
    if name == "image":
        return values
    if values.dtype == tf.string:
        return tf.strings.to_hash_bucket_fast(values, 2**63 - 1)
    return tf.cast(values, tf.int64)


def _numbered(builder: Any) -> dict[str, tuple[int, int]]:
    """The builder's splits -> (number of that split in ids, number of its first record)."""
    kinds = {name: at for at, names in enumerate(_SPLITS.values()) for name in names}
    others = sorted(set(builder.info.splits) - set(kinds))
    kinds.update({name: len(_SPLITS) + at for at, name in enumerate(others)})
    found, first = {}, 0
    for name, split in builder.info.splits.items():
        found[name] = (kinds[name], first)
        first += split.num_examples
    return found


def _chosen(builder: Any, wanted: dict[str, str]) -> dict[str, str]:
    """Our splits -> what to read of the builder."""
    found = {o: [n for n in names if n in builder.info.splits] for o, names in _SPLITS.items()}
    chosen = {ours: theirs[0] for ours, theirs in found.items() if theirs} | wanted
    if "train" not in chosen:
        has = ", ".join(builder.info.splits) or "none"
        raise UsageError(f"{builder.name} has no split 'train'; it has: {has}")
    return {ours: chosen[ours] for ours in _SPLITS if ours in chosen}


def _records(
    builder: Any, bases: dict[str, tuple[int, int]]
) -> tuple[_record_files.Records, dict[str, int]]:
    """All records of all splits, and file -> number of its first record."""
    import tensorflow_datasets as tfds

    if builder.info.file_format != tfds.core.FileFormat.TFRECORD:
        raise UsageError(
            f"{builder.info.full_name} is stored as {builder.info.file_format.value}; run: "
            f"tfds convert_format --out_file_format=tfrecord --dataset_dir={builder.data_path}"
        )
    files, lengths = [], []
    for name in bases:
        files += [Path(path) for path in builder.info.splits[name].filepaths]
        lengths += builder.info.splits[name].shard_lengths
    records = _record_files.index(files)
    for path, found, said in zip(files, np.diff(records.first), lengths, strict=True):
        if found != said:
            raise UsageError(
                f"{path} holds {found} records, its dataset_info.json says {said}; copy or build "
                "it again"
            )
    return records, {str(p): int(n) for p, n in zip(files, records.first[:-1], strict=True)}


def _numbers(builder: Any, wanted: str, starts: dict[str, int]) -> np.ndarray:
    """Numbers of the records that an expression such as `train[:10%]` asks for."""
    try:
        instructions = builder.info.splits[wanted].file_instructions
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        reason = " ".join(str(error).strip("'\"").split("\n", 1)[:1])
        raise UsageError(f"--source.splits: {wanted!r} is refused by TFDS: {reason}") from None
    runs = [starts[str(i.filename)] + i.skip + np.arange(i.take) for i in instructions]
    numbers = np.concatenate([np.empty(0, np.int64), *runs]).astype(np.int64)
    if not len(numbers):
        raise UsageError(f"--source.splits: {wanted!r} of {builder.name} holds no examples")
    return numbers


def _builder(dataset: str, path: Path | None) -> Any:
    """The builder of a name; it reads its folder and asks no network."""
    import tensorflow_datasets as tfds

    # It warns of every half-prepared folder that it passes by.
    logging.getLogger("absl").setLevel(logging.ERROR)
    try:
        builder = tfds.builder(dataset, data_dir=path, try_gcs=False)
    except tfds.core.DatasetNotFoundError:
        hint = suggest(dataset, tfds.list_builders(with_community_datasets=False))
        if len(hint) > 100:  # not near any of more than a thousand names
            hint = "the names are at tensorflow.org/datasets/catalog"
        raise UsageError(f"--source.dataset: there is no builder {dataset!r}; {hint}") from None
    except Exception as error:  # whatever its parser or a builder's own code makes of the name
        first = str(error).strip().partition("\n")[0]
        raise UsageError(f"--source.dataset {dataset!r} is refused by TFDS: {first}") from None
    return builder


def _features(builder: Any) -> tuple[str, str]:
    """Names of the image and the label; refuses a builder that is no image classification."""
    import tensorflow_datasets as tfds

    features = builder.info.features
    items = features.items() if isinstance(features, tfds.features.FeaturesDict) else ()
    images = [
        name
        for name, kind in items
        if isinstance(kind, tfds.features.Image) and kind.np_dtype == np.uint8
    ]
    labels = [name for name, kind in items if isinstance(kind, tfds.features.ClassLabel)]
    supervised = builder.info.supervised_keys or ()
    for found in (images, labels):
        found.sort(key=lambda name: name not in supervised)  # the builder's own choice comes first
    if not images or not labels:
        raise UsageError(
            f"{builder.name} is no image classification: it needs an Image of 8 bits and a "
            f"ClassLabel, its features are {', '.join(dict(items)) or type(features).__name__}"
        )
    return images[0], labels[0]


def _group(builder: Any, name: str) -> str:
    """The name, if it is that of a number or a text."""
    features = builder.info.features
    if name not in features:
        raise UsageError(f"--source.group: there is no feature {name!r}; {suggest(name, features)}")
    spec = features[name].get_tensor_info()
    if getattr(spec, "shape", None) != () or np.dtype(spec.np_dtype).kind not in "iuOSU":
        raise UsageError(f"--source.group: the feature {name!r} is not one whole number or text")
    return name
