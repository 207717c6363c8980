"""Grad-CAM: the regions of an image that a network bases its prediction on.

Selvaraju et al., "Grad-CAM: Visual explanations from deep networks via gradient-based
localization", ICCV 2017, section 3.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.contracts import Task
from pipeline.evaluation.target_evaluation import evaluation_of
from pipeline.layers.nested import graph_of, match_inputs, replay


def heat_maps(
    network: Any, task: Task, examples: Mapping[str, np.ndarray]
) -> np.ndarray | None:
    """The last feature map with spatial axes of each example, weighted by the gradient
    of the task's `explained_output`.

    Args:
        network: The network of a run.
        task: Its task.
        examples: A few decoded examples.

    Returns:
        Float32 (examples, height, width) of the feature map, from 0 to 1 in each
        example; all 0 where nothing supports the prediction. None for a network
        without convolutions, or a task that names no output.
    """
    if graph_of(network) is None:
        return None
    batch = {name: tf.constant(values) for name, values in examples.items()}
    batch["weight"] = tf.ones(len(examples["id"]))
    inputs, _, _ = task.step_inputs(batch, batch["id"])
    maps: list[tf.Tensor] = []
    with tf.GradientTape() as tape:
        outputs = _call(graph_of(network), inputs, maps, tape)
        score = evaluation_of(task.target).explained_output(
            task.target_outputs(outputs)
        )
    if score is None or not maps:
        return None
    features = maps[-1]
    gradient = tape.gradient(score, features)
    if gradient is None:
        return None
    weights = tf.reduce_mean(tf.cast(gradient, tf.float32), axis=(1, 2), keepdims=True)
    heat = tf.reduce_sum(tf.cast(features, tf.float32) * weights, axis=-1)
    heat = tf.nn.relu(heat).numpy()
    highest = heat.max(axis=(1, 2), keepdims=True)
    return heat / np.maximum(highest, 1e-12)


def _call(
    network: Any, inputs: Any, maps: list[tf.Tensor], tape: tf.GradientTape
) -> Any:
    """The outputs of a network; adds its feature maps to `maps`, and watches them.

    Feature maps are what follows the first convolution and has more than one position,
    also in nested networks.
    """

    def watched(operation: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            if inner := graph_of(operation):
                return _call(inner, arguments[0], maps, tape)
            outputs = operation(*arguments, **options)
            if _is_map(outputs) and (maps or _is_convolution(operation)):
                tape.watch(outputs)
                maps.append(outputs)
            return outputs

        return call

    outputs = replay(network, match_inputs(network, inputs), watched)
    is_single = isinstance(outputs, list | tuple) and len(outputs) == 1
    return outputs[0] if is_single else outputs


def _is_map(values: Any) -> bool:
    if not tf.is_tensor(values) or values.shape.rank != 4:
        return False
    return values.shape[1] * values.shape[2] > 1


def _is_convolution(operation: Any) -> bool:
    kernel = getattr(operation, "kernel", None)
    return kernel is not None and len(kernel.shape) == 4
