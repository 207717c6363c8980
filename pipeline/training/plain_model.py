"""Flattens nested models: the user's layers become layers of the model itself."""

from typing import Any

import keras


def flatten(
    model: keras.Model,
    wrapper: keras.Model | None,
    body: keras.Model | None,
    is_sigmoid: bool,
) -> keras.Model:
    """Returns the model with the layers of its nested models `wrapper` and `body`.

    The layers and their weights are shared. The new model takes the inputs of the body,
    so that `layer.output` belongs to it and other models can be built from it. Layers
    before the body are dropped; they must not change the values. A body with other
    inputs than the model, such as columns that are joined before it, stays nested.

    Args:
        model: From inputs to answers.
        wrapper: A nested model, if there is one.
        body: A functional or `Sequential` model in the wrapper or in the model itself.
        is_sigmoid: Whether the body returns the logit of one probability.
    """

    if body is not None and not _take_the_same(model, body):
        return _with_nested_body(model, wrapper, body, is_sigmoid)

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
    _make_names_unique([*nested, model])
    first = model if body is None else body
    if is_sigmoid and body is not None:
        outputs = _probability(body.outputs[0], model)
    else:
        # Both have the inputs by the same names, perhaps in another order.
        by_name = {tensor.name: tensor for tensor in first.inputs}
        ordered = [by_name.get(tensor.name) for tensor in model.inputs]
        if len(ordered) == 1 or None in ordered:
            ordered = first.inputs
        outputs = model._run_through_graph(ordered, inline)
    inputs = first.inputs[0] if len(first.inputs) == 1 else first.input
    return keras.Model(inputs, outputs, name=nested[0].name)


def _take_the_same(model: keras.Model, body: keras.Model) -> bool:
    """Whether inputs are the same: one, or several of the same names."""
    names = [{tensor.name for tensor in part.inputs} for part in (model, body)]
    return len(names[0]) == len(names[1]) == 1 or names[0] == names[1]


def _with_nested_body(
    model: keras.Model, wrapper: keras.Model | None, body: keras.Model, is_sigmoid: bool
) -> keras.Model:
    """The model with the layers of `wrapper` only; see `flatten`."""
    outputs: list[keras.KerasTensor] = []

    def inline(operation: Any) -> Any:
        if operation is body:

            def call(*arguments: Any, **named: Any) -> Any:
                returned = body(*arguments, **named)
                outputs[:] = keras.tree.flatten(returned)
                return returned

            return call
        if operation is wrapper:
            return lambda inputs, **named: wrapper._run_through_graph(inputs, inline)
        return operation

    answers = model._run_through_graph(model.inputs, inline)
    if is_sigmoid:
        answers = _probability(outputs[0], model)
    return keras.Model(model.input, answers, name=body.name)


def without_optimizer(model: keras.Model) -> keras.Model:
    """Returns the same model without an optimizer, for files of weights only."""
    return keras.Model(model.input, model.output, name=model.name)


def _probability(logit: keras.KerasTensor, model: keras.Model) -> keras.KerasTensor:
    """Returns the probability of the second of two classes.

    It replaces the softmax of `model`, under the same name.
    """
    for layer in model.layers:
        is_rescaling = isinstance(layer, keras.layers.Rescaling)
        if is_rescaling and layer.name.startswith("temperature"):
            logit = layer(logit)
    softmax = next(x for x in model.layers if isinstance(x, keras.layers.Softmax))
    return keras.layers.Activation("sigmoid", dtype="float32", name=softmax.name)(logit)


def _make_names_unique(models: list[keras.Model]) -> None:
    """Renames layers of later models whose names an earlier model already has."""
    first, *later_models = models
    taken = {operation.name for operation in first.operations}
    for model in later_models:
        for operation in model.operations:
            if isinstance(operation, keras.layers.InputLayer):
                continue
            name = operation.name
            number = 1
            while operation.name in taken:
                operation.name = f"{name}_{number}"
                number += 1
        taken |= {operation.name for operation in model.operations}
