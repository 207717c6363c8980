"""A backbone of KerasHub with pretrained weights, by preset."""

from typing import Any

import keras
from keras import ops

from pipeline.config.registry import register
from pipeline.contracts import Metadata
from pipeline.data.text_decoding import FIRST, PADDING, UNKNOWN
from pipeline.layers import presets
from pipeline.layers.convolution import to_rgb
from pipeline.layers.tokens import tokens_of
from pipeline.utils.errors import UsageError


@register
def keras_hub(
    x: Any, metadata: Metadata | None = None, /, *, preset: str
) -> keras.KerasTensor:
    """A backbone of KerasHub for images or texts with pretrained weights, by preset.

    Takes images (batch, height, width, 1 or 3), or texts whose `preset` is the same;
    returns a vector per example. For images, it is the mean of the backbone's last
    feature maps or tokens; gray is repeated as red, green and blue; images are resized
    and scaled as by the preset's image converter. For texts, it is the pooled output of
    the backbone, or else the features of the first token. The backbone is one layer
    named `backbone`.

    Args:
        x: Images in [0, 1], or texts.
        metadata: Metadata of the task.
        preset: A directory written by `save_to_preset`, or a name that KerasHub
            downloads, such as `resnet_50_imagenet` (keras.io/keras_hub/presets).

    Raises:
        UsageError: KerasHub is not installed; the preset cannot be loaded, lacks an
            image converter or a tokenizer, or is for other inputs; the images have
            neither 1 nor 3 channels; the texts are longer than the backbone takes.
    """
    option = f"--model.options preset={preset}"
    if isinstance(x, dict) or "int" in x.dtype:
        return _text_features(x, metadata or {}, option, preset)
    return _image_features(x, option, preset)


def _image_features(
    x: keras.KerasTensor, option: str, preset: str
) -> keras.KerasTensor:
    x = to_rgb(x, option)
    network = _load_backbone(option, preset)
    convert = presets.load("layers.ImageConverter", option, preset, dtype="float32")
    features = network.output
    takes_image = isinstance(network.input, keras.KerasTensor)
    if not takes_image or not hasattr(features, "shape"):
        raise UsageError(
            f"{option}: {type(network).__name__} does not turn one image into features"
        )
    axes = tuple(range(1, len(features.shape) - 1))
    features = ops.mean(features, axes)
    # Keras's layers, so that loading the model does not need KerasHub for them.
    if convert.image_size is not None:
        x = convert.resizing(x)
    scale = convert.scale or 1.0
    offset = convert.offset or 0.0
    x = keras.layers.Rescaling(255.0, dtype="float32", name="pixels")(x)
    x = keras.layers.Rescaling(scale, offset, dtype="float32", name="scaled")(x)
    return keras.Model(network.input, features, name="backbone")(x)


def _text_features(
    x: Any, metadata: Metadata, option: str, preset: str
) -> keras.KerasTensor:
    tokens = tokens_of(x, "keras_hub")
    pieces = presets.word_piece_tokenizer(option, preset).vocabulary
    if metadata.get("unit") != "pieces" or metadata["vocabulary"] != pieces:
        raise UsageError(
            f"{option} needs texts in the word pieces of this preset: --task.input text"
            f" --task.input-options preset={preset}"
        )
    network = _load_backbone(option, preset)
    if network.token_embedding.input_dim < len(pieces):
        raise UsageError(
            f"{option}: its vocabulary has {len(pieces):,} pieces, but the backbone"
            f" only has vectors for {network.token_embedding.input_dim:,}"
        )
    if network.max_sequence_length < tokens.shape[1]:
        most = network.max_sequence_length
        raise UsageError(
            f"{option} takes texts of at most {most:,} pieces; set"
            f" --task.input-options preset={preset} length={most}"
        )
    numbers = tokens - FIRST
    for number, name in ((UNKNOWN, "[UNK]"), (PADDING, "[PAD]")):
        numbers = ops.where(ops.equal(tokens, number), pieces.index(name), numbers)
    inputs = {
        "token_ids": numbers,
        "padding_mask": ops.cast(ops.not_equal(tokens, PADDING), "int32"),
        "segment_ids": ops.zeros_like(tokens),
    }
    features = network.output
    if isinstance(features, dict):
        features = features["pooled_output"]
    else:
        features = features[:, network.cls_token_index]
    backbone = keras.Model(network.input, features, name="backbone")
    return backbone({name: inputs[name] for name in network.input})


def _load_backbone(option: str, preset: str) -> keras.Model:
    policy = keras.config.dtype_policy()
    return presets.load("models.Backbone", option, preset, dtype=policy)
