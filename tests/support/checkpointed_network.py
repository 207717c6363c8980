"""A network of three layers, what it consists of, and a folder of its checkpoints."""

import keras
import numpy as np

from pipeline.training.checkpoints import Checkpoints


def small_model(units=3):
    keras.utils.set_random_seed(1)
    layers = [
        keras.layers.Dense(units),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(2),
    ]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    generator = np.random.default_rng(0)
    weights = model.trainable_variables
    gradients = [generator.normal(size=weight.shape) for weight in weights]
    model.optimizer.apply([keras.ops.cast(x, "float32") for x in gradients], weights)
    return model


def checkpoints_of(model, folder):
    state = {"model": model.variables, "optimizer": model.optimizer.variables}
    return Checkpoints(state, folder)


def state_of(model):
    variables = [*model.variables, *model.optimizer.variables]
    return [variable.numpy().copy() for variable in variables]
