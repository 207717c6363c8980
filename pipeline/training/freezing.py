"""Freezes layers, for the whole training or at its start."""

from collections.abc import Sequence
from fractions import Fraction

import keras

from pipeline.layers.nested import all_layers, leaf_layers
from pipeline.training.layer_names import layers_named
from pipeline.training.train_step import SteppedModel
from pipeline.utils.errors import UsageError


def freeze(
    model: SteppedModel, layers: Sequence[keras.Layer], prefixes: Sequence[str]
) -> None:
    """Freezes the layers whose names start with one of the prefixes.

    Raises UsageError if there are no such layers, or if nothing is left to train.
    """
    for prefix in prefixes:
        for layer in layers_named(layers, prefix, "--train.freeze"):
            layer.trainable = False
            model.frozen += (layer.name,)
    if not model.trainable_variables:
        raise UsageError(
            "--train.freeze: all layers are frozen; nothing is left to train"
        )


def unfreeze(model: SteppedModel, part: Fraction) -> None:
    """Unfreezes a part of the frozen layers, the last layers first.

    Batch normalization stays frozen: the statistics of small batches would replace what
    it has learned of many images (keras.io/guides/transfer_learning).
    """
    layers = all_layers(model)
    frozen = [layer for layer in layers if layer.name in model.frozen]
    unique = dict.fromkeys(leaf for layer in frozen for leaf in leaf_layers(layer))
    leaves = [layer for layer in unique if layer.variables]
    for layer in frozen:
        layer.trainable = True
    count = int(len(leaves) * (1 - part))
    for position, layer in enumerate(leaves):
        if position < count or isinstance(layer, keras.layers.BatchNormalization):
            layer.trainable = False
