"""Layers inside of models and layers, for which Keras has no public function."""

from collections.abc import Callable
from typing import Any

import keras


def all_layers(model: keras.Layer) -> list[keras.Layer]:
    """The layers of a model, also those in other layers, without the model itself."""
    return list(model._flatten_layers(include_self=False))


def leaf_layers(layer: keras.Layer) -> list[keras.Layer]:
    """The layers in a layer that contain no others, in their order, or itself."""
    leaves = []
    for inner in layer._layers:
        leaves += leaf_layers(inner)
    return leaves or [layer]


def graph_of(network: Any) -> Any:
    """The functional model of a network; None if its layers are not known."""
    if isinstance(network, keras.Sequential):
        return network._functional
    return network if hasattr(network, "_run_through_graph") else None


def replay(
    model: keras.Model, inputs: Any, replace: Callable[[Any], Callable[..., Any]]
) -> Any:
    """Calls the operations of a functional model in order.

    `replace` returns what is called in place of an operation.
    """
    return model._run_through_graph(inputs, operation_fn=replace)


def match_inputs(model: keras.Model, inputs: Any) -> Any:
    """The inputs in the form and the dtype in which a functional model takes them."""
    return model._standardize_inputs(inputs)
