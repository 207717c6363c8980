"""A Keras model without wrappers: layers have the names and places that their user gave
them.
"""

from typing import Any

import keras


def flat(
    model: keras.Model,
    wrapper: keras.Model | None,
    body: keras.Model | None,
    is_sigmoid: bool,
) -> keras.Model:
    """The same model with the layers of the nested models `wrapper` and `body` as its
    own.

    The layers and their weights are shared. `body` is a functional or `Sequential`
    model in the wrapper, or in the model itself. The new model takes the inputs of the
    body, so that `layer.output` belongs to it and other models can be built from it.
    What comes before the body is left out; it must not change the values. If
    `is_sigmoid`, the body returns the logit of one probability.
    """

    def inline(operation: Any) -> Any:
        if operation is body:
            return lambda *arguments, **named: body.outputs
        if wrapper is not None and operation is wrapper:
            return lambda inputs, **named: wrapper._run_through_graph(inputs, inline)
        if type(operation).__name__ == "Cast":
            # It is not a layer, and a model in an .h5 file must have layers only.
            return lambda x, **named: x if x.dtype == operation.dtype else operation(x)
        return operation

    nested = [part for part in (body, wrapper) if part is not None]
    if not nested:
        return model
    _rename([*nested, model])
    first = model if body is None else body
    if is_sigmoid and body is not None:
        outputs = _probability(body.outputs[0], model)
    else:
        outputs = model._run_through_graph(first.inputs, inline)
    inputs = first.inputs[0] if len(first.inputs) == 1 else first.input
    return keras.Model(inputs, outputs, name=nested[0].name)


def uncompiled(model: keras.Model) -> keras.Model:
    """The same model without an optimizer, for files that have the weights of layers
    only.
    """
    return keras.Model(model.input, model.output, name=model.name)


def _probability(logit: keras.KerasTensor, model: keras.Model) -> keras.KerasTensor:
    """The probability of the second of two classes, for which `model` has a softmax."""
    for layer in model.layers:
        if isinstance(layer, keras.layers.Rescaling) and layer.name.startswith(
            "temperature"
        ):
            logit = layer(logit)
    softmax = next(x for x in model.layers if isinstance(x, keras.layers.Softmax))
    return keras.layers.Activation("sigmoid", dtype="float32", name=softmax.name)(logit)


def _rename(models: list[keras.Model]) -> None:
    """Makes the names of all layers unique; those of the first models remain."""
    taken: set[str] = set()
    for operations in (model.operations for model in models):
        own = [op for op in operations if not isinstance(op, keras.layers.InputLayer)]
        for operation in own if taken else ():
            name, number = operation.name, 1
            while operation.name in taken:
                operation.name = f"{name}_{number}"
                number += 1
        taken |= {operation.name for operation in operations}
