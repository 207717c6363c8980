"""A network of keras.applications by its name alone, fine-tuned as Keras advises.

No weights are downloaded: they are those of a network that the test makes.
"""

from pathlib import Path

import box_data
import keras
import numpy as np
import pytest
from PIL import Image

from pipeline.fit import fit

NAME = "MobileNetV2"
SIDE = 32
QUIET = {"log": {"tensorboard": False, "bar": False}, "export": {"enabled": False}}


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A file of weights, and a folder with two classes of images."""
    root = tmp_path_factory.mktemp("pretrained")
    keras.utils.set_random_seed(0)
    made = keras.applications.MobileNetV2(
        include_top=False, weights=None, input_shape=(SIDE, SIDE, 3)
    )
    made.save_weights(root / "mobile.weights.h5")
    generator = np.random.default_rng(0)
    for name, level in (("dark", 40), ("light", 200)):
        (root / "images" / name).mkdir(parents=True)
        for number in range(24):
            pixels = generator.integers(level - 30, level + 30, (SIDE, SIDE, 3))
            image = Image.fromarray(pixels.astype(np.uint8))
            image.save(root / f"images/{name}/{number}.png")
    return root


def options_of(root, **train):
    return {
        "model": {
            "name": NAME,
            "options": {"weights": str(root / "mobile.weights.h5")},
        },
        "data": {"image_size": (SIDE, SIDE), "augment": {}, "validation": 0.1},
        "train": {"batch_size": 8, "epochs": 2, **train},
        "runtime": {"precision": "float32"},
        **QUIET,
    }


def test_the_new_layers_are_trained_first_and_the_others_slowly(weights, workplace):
    run = fit(str(weights / "images"), **options_of(weights), run_directory="run")
    assert run.config.recipe == "photos"
    train = run.config.train
    assert (train.freeze, train.freeze_epochs) == (("backbone",), 1)
    assert train.layer_rates == {"backbone": 0.1}
    backbone = run.network.get_layer("backbone")
    untrained = keras.applications.MobileNetV2(
        include_top=False, weights=None, input_shape=(SIDE, SIDE, 3), pooling="avg"
    )
    untrained.load_weights(weights / "mobile.weights.h5")
    changed = {}
    for layer, before in zip(backbone.layers, untrained.layers, strict=True):
        for one, other in zip(layer.weights, before.weights, strict=True):
            is_norm = isinstance(layer, keras.layers.BatchNormalization)
            equal = np.array_equal(one.numpy(), other.numpy())
            changed.setdefault(is_norm, []).append(not equal)
    assert not any(changed[True]), "batch normalization stays as it was"
    assert np.mean(changed[False]) > 0.9, "the second epoch trains all other weights"


def test_data_in_memory_are_fine_tuned_likewise(weights, workplace):
    images = np.random.default_rng(0).integers(0, 255, (16, SIDE, SIDE, 3), np.uint8)
    labels = np.arange(16) % 2
    options = options_of(weights, steps=1)
    options["data"] = (images, labels)
    run = fit(**options)
    assert run.config.train.freeze == ("backbone",)
    assert run.config.train.layer_rates == {"backbone": 0.1}


def test_a_path_and_a_name_are_the_recipe_of_the_path(weights, workplace):
    options = options_of(weights, steps=1)
    del options["data"]
    options["data"] = str(weights / "images")
    run = fit(**options)
    assert run.config.recipe == "photos" and run.config.train.freeze == ("backbone",)


def test_a_detector_of_few_images_begins_with_weights_from_a_file(weights, workplace):
    """As docs/detection.md advises for few images, to a verified export."""
    size = {"size": (64, 64), "least": 24, "largest": 36}
    box_data.write_yolo(Path("shapes"), box_data.pictures(24, seed=1, most=2, **size))
    backbone = {"backbone": NAME, "weights": str(weights / "mobile.weights.h5")}
    train = {"epochs": 2, "batch_size": 8, "freeze": ("backbone",), "freeze_epochs": 1}
    train["layer_rates"] = {"backbone": 0.1}
    run = fit(
        "shapes",
        data={"image_size": (64, 64), "augment": {}, "test": 0.1},
        model={"options": backbone},
        train=train,
        export={"batch_sizes": (1,)},
        runtime={"precision": "float32"},
        log={"tensorboard": False, "bar": False},
    )
    assert run.config.recipe == "boxes"
    assert run.result["verification"]["passed"]
    saved = keras.applications.MobileNetV2(
        include_top=False, weights=None, input_shape=(64, 64, 3)
    )
    saved.load_weights(weights / "mobile.weights.h5")
    start = {weight.path: weight.numpy() for weight in saved.weights}
    distances = []
    for weight in run.network.get_layer("backbone").trainable_weights:
        distances.append(np.abs(weight.numpy() - start[weight.path]).max())
    assert 0 < max(distances) < 0.1, "begins with the weights of the file"
