"""Residual networks, airbench and applications: as published, trainable, fed as they
want to be.
"""

import keras
import numpy as np
import pytest
from toy_problem import built

from pipeline.models.detector import detector
from pipeline.utils.errors import UsageError


@pytest.mark.parametrize(
    ("depth", "shape", "classes", "published"),
    [
        # github.com/akamaster/pytorch_resnet_cifar10, option A; the paper: 0.27, 0.85
        # M.
        (20, (32, 32, 3), 10, 269_722),
        (56, (32, 32, 3), 10, 853_018),
        # github.com/kuangliu/pytorch-cifar, option B.
        (18, (32, 32, 3), 10, 11_173_962),
        # torchvision and NVIDIA's v1.5, option B.
        (50, (224, 224, 3), 1000, 25_557_032),
    ],
)
def test_resnets_have_the_published_number_of_parameters(
    depth, shape, classes, published
):
    model = built("resnet", shape, classes, depth=depth)
    assert sum(np.prod(weight.shape) for weight in model.trainable_weights) == published
    convolutions = [la for la in model.layers if isinstance(la, keras.layers.Conv2D)]
    shortcuts = [la for la in convolutions if "shortcut" in la.name]
    assert len(convolutions) - len(shortcuts) + 1 == depth, "the head is a layer too"
    assert len(shortcuts) == {18: 3, 20: 0, 50: 4, 56: 0}[depth]


@pytest.mark.parametrize(
    ("name", "options", "rate"), [("resnet", {}, 0.01), ("airbench", {"width": 8}, 0.1)]
)
def test_learns_one_batch_by_heart(name, options, rate):
    keras.utils.set_random_seed(0)
    model = built(name, (8, 8, 1), **options)
    model = keras.Model(model.input, model.output)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss)
    model.optimizer.build(model.trainable_variables)
    images, labels = (
        np.random.default_rng(0).random((16, 8, 8, 1), np.float32),
        np.arange(16) % 10,
    )
    repeated = np.tile(images, (40, 1, 1, 1)), np.tile(labels, 40)
    model.fit(*repeated, batch_size=16, shuffle=False, verbose=0)
    predictions = model(images, training=False)
    assert loss(labels, predictions) < 0.1
    assert (np.argmax(predictions, axis=1) == labels).all()


def test_an_application_takes_weights_from_a_file_and_can_be_frozen(tmp_path):
    """Small grey images: enlarged, made colours, scaled, as by hand."""
    path = tmp_path / "all.h5"
    there = keras.applications.MobileNet(
        include_top=False, weights=None, input_shape=(32, 48, 3), pooling="avg"
    )
    there.save(path)
    model = built("application", (8, 12, 1), name="MobileNet", weights=str(path))
    images = np.random.default_rng(0).random((2, 8, 12, 1), np.float32)
    large = np.asarray(keras.ops.image.resize(images, (32, 48)))
    fed = keras.applications.mobilenet.preprocess_input(
        255 * np.repeat(large, 3, axis=-1)
    )
    backbone = model.get_layer("backbone")
    ours = keras.Model(model.input, model.get_layer("logits").input)(
        images, training=False
    )
    np.testing.assert_allclose(ours, there(fed, training=False), rtol=1e-4, atol=1e-5)

    backbone.trainable = False
    assert [weight.path for weight in model.trainable_weights] == [
        "logits/kernel",
        "logits/bias",
    ]
    before = backbone.get_weights()
    predictions = model(images, training=True)
    np.testing.assert_array_equal(predictions, model(images, training=False))
    for old, new in zip(before, backbone.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_a_detector_takes_the_maps_of_an_application(tmp_path):
    """The last layers before the strides 16 and 32 begin, and the last one."""
    there = keras.applications.MobileNetV2(
        include_top=False, weights=None, input_shape=(70, 96, 3)
    )
    there.save_weights(tmp_path / "mobile.weights.h5")
    options = {
        "backbone": "MobileNetV2",
        "weights": str(tmp_path / "mobile.weights.h5"),
    }
    x = keras.Input((70, 96, 1))
    maps = detector(x, pyramid_channels=4, **options)
    assert [y.shape for y in maps] == [
        (None, 9, 12, 4),
        (None, 5, 6, 4),
        (None, 3, 3, 4),
    ]
    model = keras.Model(x, maps)
    names = ("block_6_expand_relu", "block_13_expand_relu", "out_relu")
    layers = [there.get_layer(name).output for name in names]
    images = np.random.default_rng(0).random((1, 70, 96, 1), np.float32)
    pixels = 2 * np.repeat(images, 3, axis=-1) - 1
    expected = keras.Model(there.input, layers)(pixels, training=False)
    backbone = model.get_layer("backbone")
    ours = backbone(pixels, training=False)
    for one, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match="at least 75 x 75"):
        detector(x, backbone="InceptionV3")
    with pytest.raises(UsageError, match="InceptionV3.*features"):
        detector(keras.Input((80, 80, 3)), backbone="InceptionV3")
