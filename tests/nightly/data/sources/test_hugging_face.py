"""Hugging Face datasets; skipped without the extra `hf`."""

import numpy as np
import pytest

from pipeline.data.in_memory import from_object
from pipeline.fit import fit
from pipeline.utils.errors import UsageError

datasets = pytest.importorskip("datasets", reason="needs the extra hf")


PIL = pytest.importorskip("PIL.Image")


PIXELS = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 3), np.uint8)


NAMES = ["zebra", "ant", "mouse"]  # not in alphabetical order


def dataset(pictures, labels, names=NAMES):
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=names)}
    columns = {"image": pictures, "label": labels}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))


def test_pixels_labels_and_names_are_those_of_the_dataset():
    labels = [n % 3 for n in range(60)]
    source = from_object(
        dataset(list(map(PIL.fromarray, PIXELS)), labels),
        validation_data=dataset([PIL.fromarray(PIXELS[0])], [0], ["ant", "zebra"]),
    )
    assert source.info.class_names == tuple(NAMES)
    np.testing.assert_array_equal(source.columns("train")["label"], labels)
    np.testing.assert_array_equal(source.columns("validation")["label"], [1])
    images = [
        example["image"] for example in source.examples("train").as_numpy_iterator()
    ]
    np.testing.assert_array_equal(images, PIXELS)


def test_a_palette_is_decoded_to_colors():
    picture = PIL.fromarray(
        np.repeat([[0, 200]], 8, axis=0).astype("uint8").repeat(4, axis=1)
    )
    source = from_object(dataset([picture.convert("P")] * 6, [0, 1, 2] * 2))
    (example,) = source.examples("train").take(1).as_numpy_iterator()
    np.testing.assert_array_equal(example["image"], np.asarray(picture.convert("RGB")))


def test_a_run(workplace):
    data = dataset(list(map(PIL.fromarray, PIXELS)), [n % 3 for n in range(60)])
    run = fit(
        model="linear", data=data, epochs=1, batch_size=8, export={"enabled": False}
    )
    assert run.task.metadata["class_names"] == NAMES


def test_what_cannot_be_used_is_one_line():
    pictures = list(map(PIL.fromarray, PIXELS[:3]))
    larger = [*pictures[:2], PIL.fromarray(PIXELS[0].repeat(2, axis=0))]
    for data, message in (
        (
            dataset(pictures, [0, 1, -1]),
            "label -1, which is none of its 3 .* with filter",
        ),
        (dataset(larger, [0, 1, 2]), "the parts of x have different shapes"),
        (
            dataset(pictures, [0, 1, 2]).to_iterable_dataset(),
            "IterableDataset cannot be used",
        ),
        (
            datasets.DatasetDict(train=dataset(pictures, [0, 1, 2])),
            "DatasetDict cannot be used",
        ),
        (
            dataset(pictures, [0, 1, 2]).rename_column("image", "photo"),
            "exactly one field or column must be named",
        ),
    ):
        with pytest.raises(UsageError, match=message) as caught:
            from_object(data)
        assert "\n" not in str(caught.value)
