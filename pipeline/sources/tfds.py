"""Any prepared image-classification set of TensorFlow Datasets."""

import logging
from pathlib import Path

import numpy as np
import tensorflow as tf

from pipeline.contracts import Info, Source, short_columns
from pipeline.errors import UsageError, suggest

# Their names for the three splits, most wanted first.
_SPLITS = {"train": ("train",), "validation": ("validation", "valid", "val"), "test": ("test",)}


def source(*, dataset: str, path: Path | None = None) -> Source:
    """The splits that the builder has; ids count the records of each split in their stored order.

    Args:
        dataset: Name of a builder, such as `cifar10`, with a config or version as in
            `tfds.builder`: `cifar10_corrupted/fog_3`.
        path: TFDS's data_dir; by default $TFDS_DATA_DIR, else ~/tensorflow_datasets.
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
    return Tfds(builder)


class Tfds(Source):
    """A builder whose data lie on the disk."""

    def __init__(self, builder: object) -> None:
        self._builder = builder
        image, label = _features(builder)
        self._keys = {"image": image, "label": label}
        found = {o: [n for n in names if n in builder.info.splits] for o, names in _SPLITS.items()}
        self._splits = {ours: theirs[0] for ours, theirs in found.items() if theirs}
        if "train" not in self._splits:
            has = ", ".join(builder.info.splits) or "none"
            raise UsageError(f"{builder.name} has no split 'train'; it has: {has}")
        spec = builder.info.features.get_tensor_info()
        self.info = Info(
            splits={k: builder.info.splits[v].num_examples for k, v in self._splits.items()},
            fields={
                "id": tf.TensorSpec((), tf.int64),
                "image": tf.TensorSpec(spec[image].shape, tf.uint8),
                "label": tf.TensorSpec((), tf.int64),
            },
            class_names=tuple(builder.info.features[label].names),
        )

    def examples(self, split: str) -> tf.data.Dataset:
        return self._read(split, ("image", "label"))

    def columns(self, split: str) -> dict[str, np.ndarray]:
        """The images are not decoded."""
        return short_columns(self._read(split, ("label",)), split)

    def _read(self, split: str, names: tuple[str, ...]) -> tf.data.Dataset:
        """The examples with their `id` and these fields; others are not even parsed."""
        import tensorflow_datasets as tfds

        # One shard after the other: the position in the split is then the same in every run.
        order = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
        records = self._builder.as_dataset(
            split=self._splits[split],
            shuffle_files=False,
            read_config=order,
            decoders=tfds.decode.PartialDecoding({self._keys[name]: True for name in names}),
        )
        first = list(_SPLITS).index(split) << 40  # so that ids differ between splits

        def example(position: tf.Tensor, record: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            fields = {name: record[self._keys[name]] for name in names}
            return {**fields, "id": position + first, "label": tf.cast(fields["label"], tf.int64)}

        return records.enumerate().map(example, num_parallel_calls=tf.data.AUTOTUNE)


def _builder(dataset: str, path: Path | None) -> object:
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


def _features(builder: object) -> tuple[str, str]:
    """Names of the image and the label; refuses a builder that is no image classification."""
    import tensorflow_datasets as tfds

    features = builder.info.features
    items = features.items() if isinstance(features, tfds.features.FeaturesDict) else ()
    images = [name for name, kind in items if isinstance(kind, tfds.features.Image)]
    labels = [name for name, kind in items if isinstance(kind, tfds.features.ClassLabel)]
    supervised = builder.info.supervised_keys or ()
    for found in (images, labels):
        found.sort(key=lambda name: name not in supervised)  # the builder's own choice comes first
    if not images or not labels:
        raise UsageError(
            f"{builder.name} is no image classification: it needs an Image and a ClassLabel, "
            f"its features are {', '.join(dict(items)) or type(features).__name__}"
        )
    return images[0], labels[0]
