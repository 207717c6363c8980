"""Residual networks, airbench and applications: as published, trainable, fed as they
want to be.
"""

import inspect
import urllib.error

import keras
import numpy as np
import pytest
from sklearn.datasets import load_digits, load_sample_images
from toy_problem import built

from pipeline.layers import applications
from pipeline.models.airbench import Identity, Whitening
from pipeline.utils.errors import UsageError


def test_resnet_shortcuts_of_option_a_take_every_second_pixel_and_add_zeros():
    model = built("resnet", (8, 8, 3))
    for layer in model.layers:
        if isinstance(layer, keras.layers.Conv2D) and layer.name != "stem_convolution":
            layer.kernel.assign(np.zeros(layer.kernel.shape))
    images = np.random.default_rng(0).random((2, 8, 8, 3), np.float32)
    stem, average = (model.get_layer(name).output for name in ("stem_relu", "average"))
    maps, vector = keras.Model(model.input, [stem, average])(images)
    expected = np.zeros((2, 64))
    expected[:, :16] = np.asarray(maps)[:, ::4, ::4].mean(axis=(1, 2))
    np.testing.assert_allclose(vector, expected, atol=1e-6)


def photographs():
    """32x32 parts of two photographs, (520, 32, 32, 3) in [0, 1]."""
    images = np.stack(load_sample_images().images).astype(np.float32) / 255
    rows, columns = range(0, 385, 32), range(0, 609, 32)
    return np.concatenate(
        [images[:, i : i + 32, j : j + 32] for i in rows for j in columns]
    )


@pytest.mark.parametrize(
    "images",
    [photographs(), load_digits().images[..., None] / 16, np.eye(4)[:, None, None]],
    ids=["photographs", "digits", "pixels"],
)
def test_whitening_makes_patches_white(images):
    layer, images = Whitening(), images.astype(np.float32)
    layer.adapt(images)
    responses = np.asarray(layer(images), np.float64)
    half = responses.shape[-1] // 2
    responses = responses.reshape(-1, 2 * half)
    np.testing.assert_allclose(responses[:, :half], -responses[:, half:], atol=1e-3)
    assert np.abs(responses.mean(axis=0)).max() < 1e-3
    covariance = np.cov(responses[:, :half].T, bias=True)
    assert np.abs(covariance - np.diag(np.diag(covariance))).max() < 1e-3
    # 1 but for directions in which the images hardly differ: those are not magnified to
    # 1.
    assert (np.diff(np.diag(covariance)) < 1e-4).all() and np.diag(covariance)[
        0
    ] <= 1 + 1e-4
    seen = np.diag(covariance) > 0.01
    assert (np.diag(covariance)[seen] > 0.5).all()
    assert np.abs(np.diag(covariance)[: seen.sum() // 2] - 1).max() < 0.02


def test_airbench_begins_as_the_paper_says():
    model = built("airbench", (32, 32, 3), width=16)
    whitening = model.get_layer("whitening")
    assert [weight.path for weight in whitening.trainable_weights] == ["whitening/bias"]
    basis = np.asarray(whitening.kernel).reshape(12, 24)
    np.testing.assert_allclose(basis @ basis.T, np.eye(12), atol=1e-6)
    maps = np.random.default_rng(0).random((2, 5, 5, 6), np.float32)
    same = keras.ops.conv(maps, Identity()((3, 3, 6, 9), "float32"), padding="same")
    np.testing.assert_array_equal(same[..., :6], maps)
    assert np.asarray(same)[..., 6:].std() > 0
    assert Identity()((3, 3, 9, 6), "float32").shape == (3, 3, 9, 6)
    ends = [model.get_layer("largest").output, model.get_layer("ninth").output]
    largest, ninth = keras.Model(model.input, ends)(np.ones((1, 32, 32, 3), np.float32))
    np.testing.assert_allclose(largest, 9 * np.asarray(ninth), rtol=1e-5)


def test_airbench_averages_the_logits_of_six_views():
    plain = built("airbench", (8, 7, 3), width=4)
    model = built("airbench", (8, 7, 3), width=4, test_time_augmentation=True)
    model.set_weights(plain.get_weights())
    x = np.random.default_rng(0).random((5, 8, 7, 3), np.float32)
    wide = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="reflect")
    logits = []
    for view in (x, x, wide[:, :-2, :-2], wide[:, 2:, 2:]):
        logits += [plain(view).numpy(), plain(view[:, :, ::-1]).numpy()]
    np.testing.assert_allclose(model(x), np.mean(logits, axis=0), rtol=1e-4, atol=1e-5)
    assert np.abs(model(x) - logits[0]).max() > 0.001
    np.testing.assert_array_equal(model(x, training=True), plain(x, training=True))


@pytest.mark.parametrize("name", [n for n in dir(keras.applications) if n[0].isupper()])
def test_an_application_is_fed_as_its_preprocess_input_says(name):
    construct = getattr(keras.applications, name)
    x = keras.Input((4, 5, 3))
    fed = keras.Model(x, applications.preprocess(x, construct))
    images = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3)).astype(np.float32)
    expected = inspect.getmodule(construct).preprocess_input(images.copy())
    np.testing.assert_allclose(fed(images / 255), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "channels", "message"),
    [
        ({"name": "ResNet5"}, 3, "name=ResNet5: .*did you mean 'ResNet50'"),
        ({"name": "VGG16"}, 4, "VGG16 needs images of 1 or 3 channels; got 4"),
        (
            {"name": "VGG16", "weights": "none.h5"},
            3,
            "weights=none.h5: no such file",
        ),
        (
            {"name": "VGG16", "weights": "imagnet"},
            3,
            "weights=imagnet: no such file",
        ),
        (
            {"name": "VGG16", "weights": "o.weights.h5"},
            3,
            "not the weights of VGG16 without",
        ),
    ],
)
def test_a_wrong_application_is_told_in_one_line(options, channels, message, workplace):
    x = keras.Input((2, 2, 3))
    keras.Model(x, keras.layers.Conv2D(1, 1)(x)).save_weights("o.weights.h5")
    with pytest.raises(UsageError, match=message) as caught:
        built("application", (32, 32, channels), **options)
    assert "\n" not in str(caught.value)


def test_imagenet_weights_without_a_network_name_the_remedy(tmp_path, monkeypatch):
    def fetch(*_):
        raise urllib.error.URLError("no route")

    monkeypatch.setattr("keras.src.utils.file_utils.urlretrieve", fetch)
    monkeypatch.setattr("keras.src.backend.config.keras_home", lambda: str(tmp_path))
    with pytest.raises(
        UsageError, match="no route.*put https://.*vgg16.*.h5 into .*models, or train"
    ) as caught:
        built("application", (32, 32, 3), name="VGG16", weights="imagenet")
    assert "\n" not in str(caught.value)
