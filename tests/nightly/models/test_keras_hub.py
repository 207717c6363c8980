"""Backbones of KerasHub; their tests are skipped without the extra `hub`."""

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from toy_problem import task_of

from pipeline.config import config
from pipeline.contracts import Info
from pipeline.fit import fit
from pipeline.models import keras_hub
from pipeline.serving.client import Client
from pipeline.tasks.inputs.text import TextInput, text
from pipeline.training.model_builder import network
from pipeline.utils.errors import UsageError

MEAN, DEVIATION = [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]
PIECES = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", "good", "film", "the", "bad"]
PIECES += ["##ly", "##ing", "play", "caf", "##e", "\u65e5", "!", "'"]
TEXTS = ["The goodly film!", "playing", "caf\u00e9 \u65e5good", "unknown 'bad'", ""]
LENGTH = 8


@pytest.fixture(scope="module")
def hub():
    return pytest.importorskip("keras_hub", reason="needs the extra hub")


@pytest.fixture
def preset(hub, tmp_path):
    """A directory with a small ResNet and its converter: 12x12 pixels, normalized."""
    backbone = hub.models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[3],
        stackwise_num_filters=[64],
        stackwise_num_blocks=[1],
        stackwise_num_strides=[1],
        block_type="basic_block",
    )
    scale = [1 / 255 / d for d in DEVIATION]
    offset = [-m / d for m, d in zip(MEAN, DEVIATION, strict=True)]
    converter = hub.layers.ResNetImageConverter(
        image_size=(12, 12), scale=scale, offset=offset
    )
    backbone.save_to_preset(str(tmp_path / "preset"))
    converter.save_to_preset(str(tmp_path / "preset"))
    return str(tmp_path / "preset")


def built(shape, preset, precision="float32"):
    options = config.ModelConfig(name="keras_hub", options={"preset": preset})
    return network(task_of(shape), options, precision)


def features(model, images):
    return keras.Model(model.input, model.get_layer("logits").input)(
        images, training=False
    )


def test_a_preset_gets_its_own_preprocessing_and_weights(hub, preset):
    """Against KerasHub's converter and backbone."""
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 10, 3), np.uint8)
    converted = hub.layers.ImageConverter.from_preset(preset)(images.astype("float32"))
    maps = hub.models.Backbone.from_preset(preset)(converted, training=False)
    expected = np.mean(maps, axis=(1, 2))
    ours = features(built((8, 10, 3), preset), images / np.float32(255))
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)
    mixed = built((8, 10, 3), preset, "mixed_bfloat16")
    assert mixed.get_layer("backbone").layers[1].compute_dtype == "bfloat16"
    assert mixed.get_layer("scaled").compute_dtype == "float32"
    ours = features(mixed, images / np.float32(255))
    np.testing.assert_allclose(ours, expected, atol=0.05 * np.abs(expected).max())


def test_the_mean_of_tokens(hub, tmp_path):
    folder = str(tmp_path / "vit")
    backbone = hub.models.ViTBackbone(
        image_shape=(8, 8, 3),
        patch_size=4,
        num_layers=1,
        num_heads=2,
        hidden_dim=6,
        mlp_dim=8,
    )
    backbone.save_to_preset(folder)
    hub.layers.ViTImageConverter(image_size=(8, 8), scale=1 / 255).save_to_preset(
        folder
    )
    images = np.random.default_rng(0).random((2, 8, 8, 1), np.float32)
    tokens = backbone(np.repeat(images, 3, axis=-1), training=False)
    ours = features(built((8, 8, 1), folder), images)
    np.testing.assert_allclose(ours, np.mean(tokens, axis=1), rtol=1e-4, atol=1e-5)


def test_a_frozen_backbone_is_trained_exported_and_loaded_by_keras(preset, workplace):
    sections = {"data": {"limit": 300}, "train": {"epochs": 2, "freeze": ("backbone",)}}
    model = {"name": "keras_hub", "options": {"preset": preset}}
    run = fit(
        "digits", model=model, **sections, log={"progress": False, "tensorboard": False}
    )
    assert run.export is not None
    frozen = run.network.get_layer("backbone")
    start = built((8, 8, 1), preset).get_layer("backbone")
    for one, other in zip(frozen.get_weights(), start.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    loaded = keras.models.load_model(run.directory / "model.keras")
    assert not any(
        "keras_hub" in type(la).__module__ for la in loaded._flatten_layers()
    )


def test_its_directory_is_the_name_of_a_model(preset, workplace):
    log = {"progress": False, "tensorboard": False}
    run = fit("digits", model=preset, train={"steps": 1}, export=False, log=log)
    backbone = run.network.get_layer("backbone")
    start = built((8, 8, 1), preset).get_layer("backbone")
    pairs = zip(backbone.trainable_weights, start.trainable_weights, strict=True)
    for one, other in pairs:  # after a step of 0.002 or less
        np.testing.assert_allclose(one, other, atol=0.01)


def test_what_cannot_be_loaded_is_one_line(hub, preset, tmp_path):
    for shape, name, message in (
        ((8, 8, 4), preset, "images of 1 or 3 channels; got 4"),
        ((8, 8, 3), "resnet50", "resnet50 cannot be loaded: there is no such dir"),
        ((8, 8, 3), str(tmp_path), "config.json"),
    ):
        with pytest.raises(UsageError, match=message) as caught:
            built(shape, name)
        assert "\n" not in str(caught.value)
    text = hub.models.BertBackbone(9, 1, 1, 4, 4)
    text.save_to_preset(str(tmp_path / "bert"))
    hub.layers.ImageConverter().save_to_preset(str(tmp_path / "bert"))
    with pytest.raises(UsageError, match="bert"):
        built((8, 8, 3), str(tmp_path / "bert"))


@pytest.fixture
def save(hub, tmp_path):
    """Saves a text preset with random weights; returns its directory."""

    def save(kind="Bert", count=17):
        folder = str(tmp_path / kind)
        keras.utils.set_random_seed(0)
        backbone = getattr(hub.models, f"{kind}Backbone")
        backbone = backbone(count, 1, 2, 8, 8, max_sequence_length=LENGTH)
        backbone.save_to_preset(folder)
        tokenizer = getattr(hub.models, f"{kind}Tokenizer")
        tokenizer(PIECES, lowercase=True, strip_accents=True).save_to_preset(folder)
        return folder

    return save


def text_input(length=LENGTH, **options):
    info = Info({"train": 1}, {"text": tf.TensorSpec((), tf.string)})
    metadata = text(info, length=length, **options).metadata
    return TextInput({"vocabulary": ["good"], **metadata, "bytes": 100})


def of_texts(own_input, preset):
    """The features of texts."""
    inputs = own_input.inputs()
    outputs = keras_hub.keras_hub(inputs, own_input.metadata, preset=preset)
    (signature,) = own_input.signatures()
    batch = signature.read(tf.constant(TEXTS))
    return keras.Model(inputs, outputs)(own_input.network_inputs(batch))


@pytest.mark.parametrize("kind", ["Bert", "DistilBert"])
def test_texts_get_the_pieces_and_weights_of_a_preset(hub, save, kind):
    """Against KerasHub's tokenizer and backbone."""
    preset = save(kind)
    preprocess = hub.models.TextClassifierPreprocessor.from_preset(
        preset, sequence_length=LENGTH
    )
    outputs = hub.models.Backbone.from_preset(preset)(preprocess(TEXTS))
    expected = outputs["pooled_output"] if kind == "Bert" else outputs[:, 0]
    ours = of_texts(text_input(preset=preset), preset)
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)
    assert len(np.unique(ours, axis=0)) == len(TEXTS)


def test_a_frozen_text_network_is_trained_and_answers_strings(hub, save, workplace):
    preset = save()
    rows = ["the good film,yes\n", "the bad film,no\n"] * 40
    (workplace / "a.csv").write_text("text,label\n" + "".join(rows))
    options = {"preset": preset}
    run = fit(
        "a.csv",
        task={"input": "text", "input_options": options},
        model={"name": "keras_hub", "options": options},
        train={"epochs": 1, "batch_size": 16, "freeze": ("backbone",)},
        log={"progress": False, "tensorboard": False},
    )
    frozen = run.network.get_layer("backbone")
    weights = hub.models.Backbone.from_preset(preset).get_weights()
    for one, other in zip(frozen.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(one, other)
    assert run.result["verification"]["passed"]
    with Client(run.export) as client:
        predictions = client.predict(text=[*TEXTS, b"\xff", "\U0001f600" * 500])
    assert set(predictions["label"]) <= {"yes", "no"}
    keras.models.load_model(run.directory / "model.keras")


def test_texts_and_presets_that_do_not_fit_are_one_line(hub, preset, save):
    bert = save()
    for own_input, name, message in (
        (text_input(), bert, f"needs texts in .* --task.input-options preset={bert}"),
        (text_input(preset=bert), preset, "cannot be loaded: .*[tT]okenizer"),
        (text_input(9, preset=bert), bert, "at most 8 pieces; set .* length=8"),
    ):
        with pytest.raises(UsageError, match=message) as caught:
            of_texts(own_input, name)
        assert "\n" not in str(caught.value)
    save(count=9)
    with pytest.raises(UsageError, match="17 pieces.*9"):
        of_texts(text_input(preset=bert), bert)


def test_a_tokenizer_without_word_pieces_is_refused(hub, tmp_path):
    folder = str(tmp_path / "gpt2")
    hub.models.GPT2Backbone(9, 1, 1, 4, 4).save_to_preset(folder)
    pieces = {"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}
    hub.models.GPT2Tokenizer(pieces, ["a b"]).save_to_preset(folder)
    with pytest.raises(UsageError, match="GPT2Tokenizer.*word pieces"):
        text_input(preset=folder)


def test_without_the_extra_the_message_has_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "keras_hub", None)
    with pytest.raises(UsageError, match="pip install keras-hub"):
        built((8, 8, 3), "any")
