"""What `fit` takes over from Keras: arguments of its `fit`, a compiled model, a dtype
policy.
"""

import json

import keras
import numpy as np
import pytest

from pipeline.config import python_call, resume_policy
from pipeline.utils.errors import UsageError

X, Y = np.zeros((30, 8, 8, 1), np.uint8), np.arange(30) % 3


def network(**options):
    layers = [
        keras.Input((8, 8, 1)),
        keras.layers.Flatten(),
        keras.layers.Dense(3, **options),
    ]
    return keras.Sequential(layers)


def config(recipe=None, **arguments):
    arguments = {"model": network(), "data": (X, Y), **arguments}
    return python_call.request(recipe, arguments).config


def test_arguments_after_a_model_are_those_of_keras():
    def named(*positional, recipe=None, **others):
        first = recipe or network()
        arguments = python_call.name_positional(first, positional, others)
        return python_call.request(first, {**others, **arguments}).config

    found = named(X, Y, 8, 3)
    assert found.source.name.value[0] is X and found.source.name.value[1] is Y
    assert (found.train.batch_size, found.train.epochs) == (8, 3)
    for arguments, message in (
        ({"positional": (X, Y), "y": Y}, "y is given twice"),
        ({"positional": (X, Y, 8, 3, 1)}, "by name"),
        ({"positional": (X, Y), "recipe": "digits"}, "by name: fit.model="),
    ):
        with pytest.raises(UsageError, match=message):
            named(*arguments.pop("positional"), **arguments)


def test_arguments_of_keras_are_used():
    weight = np.ones(30)
    found = config(
        validation_split=0.3, verbose=0, class_weight={0: 1.0, 2: 3.0}, shuffle=True
    )
    assert found.data.validation == 0.3 and not found.log.progress
    assert found.train.class_weight == {"0": 1.0, "2": 3.0}
    assert found.source.name.value[0] is X
    found = config(
        data=None, x=X, y=Y, sample_weight=weight, verbose=2, initial_epoch=0
    )
    assert [
        part is one
        for part, one in zip(found.source.name.value, (X, Y, weight), strict=True)
    ]
    assert found.log.progress
    found = config(sample_weight=weight, validation_split=0.2, data=(X, Y))
    assert found.source.name.value[2] is weight and found.data.validation == 0.2


def test_epochs_weights_and_lines_of_keras(capsys):
    found = config(steps_per_epoch=7, shuffle=False, verbose=2, folds=3)
    assert found.train.steps_per_epoch == 7 and not found.train.shuffle
    assert found.log.progress and not found.log.bar and found.data.folds == 3
    assert config(class_weight="balanced").train.class_weight == "balanced"
    assert config(verbose=1).log.bar and not config(verbose=0).log.progress
    assert not capsys.readouterr().out
    config(validation_split=0.25)
    line = capsys.readouterr().out
    assert "validation_split=0.25 holds out random examples, not the last" in line


def test_a_single_function_is_a_list_of_one_and_a_model_may_come_first():
    stop = keras.callbacks.EarlyStopping()
    found = config(callbacks=stop, metrics="auc", train={"epochs": np.int64(2)})
    assert [name.value for name in found.train.callbacks] == [stop]
    assert found.train.metrics == {"auc": {}} and type(found.train.epochs) is int
    scaled = {"name": "mlp", "options": {"units": (np.int64(3),)}}
    found = config("digits", model=scaled, data=None, export=False, clean=True)
    assert json.dumps(found.as_json()["model"]["options"]) == '{"units": [3]}'
    assert not found.export.enabled and found.clean.enabled
    first = network()
    found = config(first, model=None, learning_rate=np.float64(0.5))
    assert found.model.name.value is first and found.train.learning_rate == 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"train": 3, "epochs": 2}, "train must be a section .*dictionary"),
        ({"train": ["epochs"]}, r"train must be a section .*; got \['epochs'\]"),
        ({"lr": 0.1}, "'lr'; did you mean 'learning_rate'"),
        ({"callbacks": "early_stopping"}, "--train.patience stops early"),
        ({"callbacks": "progres"}, "'progres'; name a function or"),
        ({"shuffle": "batch"}, "--train.shuffle .*True or False; got 'batch'"),
        ({"class_weight": "balance"}, 'class_weight .*"balanced" or a dictionary'),
        ({"initial_epoch": 4}, 'resumed with run_directory="..."'),
        ({"validation_steps": 2}, "the whole validation data"),
        ({"validation_batch_size": 8}, "does not change the results"),
        ({"validation_freq": [1, 5]}, "after each epoch"),
        ({"workers": 4}, "read in parallel"),
        ({"y": Y}, r"y: write data=\(x, y\)"),
        ({"x": X, "y": Y}, r"x, y: write data=\(x, y\)"),
        (
            {"validation_split": 0.2, "validation_data": (X, Y)},
            "use only one of validation_data",
        ),
        (
            {"verbose": 0, "log": {"progress": True}},
            "use only one of verbose=... and log=",
        ),
        ({"recipe": X}, r"got ndarray; .*fit\(data="),
    ],
)
def test_arguments_of_keras_that_mean_something_else_say_what_to_write(
    arguments, message
):
    with pytest.raises(UsageError, match=message) as caught:
        config(**arguments)
    assert "\n" not in str(caught.value)


def test_messages_of_a_call_in_python_name_its_arguments():
    nested = 'task={"target": "classes", "target_options": {"abstain_below": 0.9}}'
    low = {"target": "classes", "target_options": {"abstain_below": 2}}
    for arguments, message in (
        ({"abstain_below": 0.9}, f"did you mean '{nested}'?"),
        (
            {"padding": 2},
            'did you mean \'data={"augment": {"crop": {"padding": 2}}}\'?',
        ),
        ({"task": {"abstain_below": 0.9}}, f"such option; did you mean '{nested}'?"),
        ({"task": low}, 'task={"target_options": {"abstain_below": ...}} of classes'),
        ({"callbacks": "early_stopping"}, 'train={"patience": ...} stops early'),
        (
            {"class_weight": {0: -1}},
            "class_weight=... must be balanced or a dictionary",
        ),
    ):
        with pytest.raises(UsageError) as caught, python_call.errors_in_python():
            config(**arguments)
        assert message in str(caught.value)
    with pytest.raises(UsageError) as caught, python_call.errors_in_python():
        raise UsageError("--runtime.xla on: no; use --runtime.xla auto")
    assert str(caught.value) == 'runtime={"xla": "on"}: no; use runtime={"xla": "auto"}'
    original, now = config(callbacks=keras.callbacks.History()), config(epochs=3)
    changes = resume_policy.changes(original.as_json(), now.as_json())
    with pytest.raises(UsageError) as caught, python_call.errors_in_python():
        raise UsageError(resume_policy.refusal("runs/1", changes))
    first, header, epochs, callbacks, last = str(caught.value).splitlines()
    assert "; add force=True to accept the changes, or choose" in first
    assert epochs.split() == ["epochs=...", "10", "3", "force=True", "accepts", "it"]
    assert callbacks.lstrip().startswith("callbacks=...")
    assert header.index("original") == epochs.index("1") == callbacks.index("<")
    assert last == "its original options are in runs/1/config.json"


def test_what_a_model_was_compiled_with_is_used_where_the_call_says_nothing(capsys):
    model = network()
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    metrics = ["accuracy", keras.metrics.AUC(name="area"), "mse"]
    model.compile(
        keras.optimizers.SGD(0.3, momentum=0.7, clipnorm=2.0), loss, metrics=metrics
    )
    train = config(model=model).train
    assert train.optimizer.value is model.optimizer and train.loss.value is loss
    assert train.learning_rate == pytest.approx(0.3) and train.clipnorm == 2.0
    assert [getattr(name, "value", name) for name in train.metrics] == metrics
    line = (
        "compiled   optimizer SGD of learning rate 0.3, loss CategoricalCrossentropy,"
        " metrics accuracy AUC mse, as the model was compiled\n"
    )
    assert capsys.readouterr().out == line
    train = config(model=model, learning_rate=0.1, loss="mse", metrics=["auc"]).train
    assert train.optimizer.value is model.optimizer and train.learning_rate == 0.1
    assert train.loss == "mse" and [*train.metrics] == ["auc"]
    assert (
        capsys.readouterr().out
        == "compiled   optimizer SGD, as the model was compiled\n"
    )
    train = config(
        model=model, train={"optimizer": "lion", "loss": "mse", "metrics": []}
    ).train
    assert (train.optimizer, train.learning_rate) == ("lion", 0.001)
    assert not capsys.readouterr().out


def test_names_of_compile_have_the_rates_that_keras_gives_them(capsys):
    model = network()
    model.compile("sgd", {"dense": "mse"}, run_eagerly=True, steps_per_execution=4)
    train = config(model={"name": model}).train
    assert train.learning_rate == pytest.approx(0.01) and train.loss == "mse"
    line = capsys.readouterr().out
    assert "steps_per_execution" in line and "run_functions_eagerly(True)" in line
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 100)
    model.compile(keras.optimizers.Adam(schedule))
    assert config(model=model).train.schedule.value is schedule
    assert "Adam of learning rate CosineDecay" in capsys.readouterr().out


def test_a_recipe_is_said(capsys):
    model = network()
    model.compile("sgd", "mse")
    assert config("digits", model=model, data=None).train.loss is None
    assert "the recipe digits is used instead" in capsys.readouterr().out


@pytest.fixture
def policy():
    """Sets the global dtype policy; it is restored after the test."""
    yield keras.config.set_dtype_policy
    keras.config.set_dtype_policy("float32")


def test_a_dtype_policy_is_the_precision_of_the_run(policy, capsys):
    policy("mixed_float16")
    by_function = config(model=lambda input_shape, classes: network())
    assert by_function.runtime.precision == "mixed_float16"
    assert "mixed_float16, the global dtype policy of Keras" in capsys.readouterr().out
    mixed = network()
    mixed.add(keras.layers.Dense(3, dtype="float32"))
    policy("float32")
    assert config(model=mixed).runtime.precision == "mixed_float16"
    assert "mixed_float16, the dtype policy of the model" in capsys.readouterr().out
    stated = config(model=mixed, runtime={"precision": "mixed_bfloat16"})
    assert stated.runtime.precision == "mixed_bfloat16"
    policy("mixed_bfloat16")
    assert config(model=network(dtype="float32")).runtime.precision == "mixed_bfloat16"
    policy("float32")
    assert config(model=network()).runtime.precision == "auto"
    assert (
        config(model=network(dtype="mixed_bfloat16")).runtime.precision
        == "mixed_bfloat16"
    )


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float64"])
def test_a_policy_of_one_other_type_is_refused(policy, name):
    with pytest.raises(UsageError, match=f"the dtype policy of the model is {name}"):
        config(model=network(dtype=name))
    policy(name)
    with pytest.raises(UsageError, match=f"the global dtype policy of Keras is {name}"):
        config("digits", model=None, data=None)


def test_layers_that_take_channels_first_are_refused():
    layers = [
        keras.Input((1, 8, 8)),
        keras.layers.MaxPooling2D(data_format="channels_first"),
    ]
    with pytest.raises(UsageError, match="takes channels first"):
        config(model=keras.Sequential(layers))
