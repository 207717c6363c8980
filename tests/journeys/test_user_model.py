"""A user's own Keras model, data, loss, metrics and callbacks, handed to `fit`."""

import re
import shutil
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf
from digit_networks import (
    DIGITS,
    NAMES,
    OFF,
    Subclassed,
    X,
    Y,
    convolution,
    go,
    go_with_convolution,
    network,
)
from processes import run_python
from short_run import options

from pipeline.config import python_call, registry
from pipeline.data import dataset
from pipeline.fit import fit
from pipeline.training import callback_order
from pipeline.utils.errors import UsageError

long = pytest.mark.long


class Overridden(Subclassed):
    def train_step(self, data):
        return {}


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A run of a network with a convolution; tests must not change it."""
    return go_with_convolution(tmp_path_factory.mktemp("first"))


def test_model_keras_needs_keras_alone(first, workplace):
    """Where `pipeline` cannot be imported. It has the inputs that were handed in, and
    the class names.
    """
    code = f"""
        import json, sys, zipfile, keras, numpy as np
        for name in [name for name in sys.modules if name.partition(".")[0] == "pipeline"]:
            del sys.modules[name]
        sys.modules["pipeline"] = None
        keras.saving.get_custom_objects().clear()
        path = {str(first.directory / "model.keras")!r}
        model = keras.models.load_model(path)
        images = np.load("images.npy")
        np.testing.assert_allclose(model.predict(images), np.load("predictions.npy"), atol=1e-6)
        about = json.loads(zipfile.ZipFile(path).read("metadata.json"))
        assert about["task"]["class_names"][3] == "digit 3"
    """
    images = X[:5, ..., None].astype("float32")
    np.save("images.npy", images)
    np.save("predictions.npy", first.model.predict(images, verbose=0))
    result = run_python("-c", textwrap.dedent(code), cwd=workplace)
    assert result.returncode == 0, result.stderr[-2000:]


FLOATS = (DIGITS.images[:600] / 16).astype("float32")
DATASET = tf.data.Dataset.from_tensor_slices((X[..., None], Y)).batch(64)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        at = slice(60 * index, 60 * index + 60)
        return X[at], Y[at]


DATA = {
    "floats": ((FLOATS, Y), "float32"),
    "uint16": (((FLOATS * 65535).astype("uint16"), Y), "uint16"),
    "one-hot": ((X, np.eye(10)[Y]), "uint8"),
    "strings": ((X, np.array(NAMES)[Y]), "uint8"),
    "batched dataset": (DATASET, "uint8"),
    "dictionaries": (
        DATASET.unbatch().map(lambda x, y: {"image": x, "label": y}),
        "uint8",
    ),
    "PyDataset": (Batches(), "uint8"),
}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(name, marks=long) if name in ("uint16", "PyDataset") else name
        for name in DATA
    ],
)
def test_data_keep_their_type(workplace, kind):
    """The other tests train on uint8."""
    data, dtype = DATA[kind]
    body = [keras.layers.Rescaling(255.0 if dtype == "float32" else 1.0)]
    if dtype == "uint8":
        request = python_call.request(None, {"data": data, "model": network()})
        loaded = dataset.load(request.config)
        splits, task = loaded.splits, loaded.task
    else:
        run = go(model=network(body=body), data=data, epochs=1)
        splits, task = run.splits, run.task
    assert splits["train"].column("image").dtype == dtype
    np.testing.assert_array_equal(
        splits["train"].column("label"), Y[splits["train"].column("id")]
    )
    default, *others = task.input.signatures()
    assert default.specs["images"].dtype == dtype
    names = [serving_input.name for serving_input in others]
    assert names == (["image_bytes"] if dtype == "uint8" else [])
    if kind == "strings":
        assert task.metadata["class_names"][3] == "digit 3"
    if dtype == "float32":
        assert task.metadata["image_range"] == [0.0, 1.0]
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="from 0 to 1, as in training"
        ):
            default.read(tf.constant(FLOATS[:2, ..., None] * 255))


def test_sample_weights_are_those_of_keras(workplace, capsys):
    """Against stock Keras: one step of SGD on all examples; also with `verbose=0`,
    which prints nothing but warnings.
    """
    weight = np.linspace(0, 2, 600).astype("float32")
    ours, theirs = network(), network()
    theirs.set_weights(ours.get_weights())
    sections = {"data": {"validation": 0.0, "test": 0.0}, "train": {"batch_size": 600}}
    fit(
        model=ours,
        source={"name": (X, Y, weight)},
        epochs=1,
        optimizer=keras.optimizers.SGD(0.5),
        verbose=0,
        **sections,
        export=OFF["export"],
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith("warning")] == []
    theirs.compile(keras.optimizers.SGD(0.5), "sparse_categorical_crossentropy")
    theirs.fit(X[..., None], Y, sample_weight=weight, batch_size=600, verbose=0)
    for one, other in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


class Recorder(keras.callbacks.Callback):
    """What Keras would tell it, and what it sees of the model."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def on_train_begin(self, logs=None):
        self.calls.append(("begin", self.params["epochs"], len(self.model.layers) > 0))

    def on_epoch_end(self, epoch, logs=None):
        _, accuracy = self.model.evaluate(X[..., None].astype("float32"), Y, verbose=0)
        self.calls.append((epoch, logs["loss"], accuracy))
        self.model.stop_training = epoch == 2


@pytest.mark.parametrize(
    "engine", ["model_fit", pytest.param("gradient_tape", marks=long)]
)
def test_callbacks_are_called_as_keras_calls_them(workplace, engine, capfd):
    seen, scheduler, tracker = (
        Recorder(),
        keras.callbacks.LearningRateScheduler(lambda e, r: 0.01 / (e + 1)),
        SeesRun(),
    )
    run = go(
        model=network(),
        epochs=9,
        callbacks=[seen, scheduler, keras.callbacks.TerminateOnNaN(), tracker],
        train={"engine": engine},
        runtime={"deterministic": False},
    )
    assert seen.calls[0] == ("begin", 9, True)
    assert [call[0] for call in seen.calls[1:]] == [0, 1, 2]
    assert [call[1] for call in seen.calls[1:]] == pytest.approx(run.history["loss"])
    assert seen.calls[3][2] > seen.calls[1][2], "the model has the present weights"
    rates = run.history["learning_rate"]
    np.testing.assert_allclose(rates, [0.01, 0.005, 0.01 / 3], rtol=1e-5)
    output = capfd.readouterr().out
    assert "call" in output
    begun, ended = tracker.runs
    assert begun.directory == ended.directory == run.directory and not begun.result
    assert ended.result == run.result
    assert (
        f"note       after the run, the callback {type(tracker).__name__}: no server"
        in output
    )


class SeesRun(keras.callbacks.Callback):
    """As a tracker; its server cannot be reached at the end."""

    def __init__(self):
        super().__init__()
        self.runs = []

    def on_run_begin(self, run):
        assert (run.directory / "config.json").exists()
        self.runs.append(run)

    def on_run_end(self, run):
        self.runs.append(run)
        raise OSError("no server")


def test_another_model_or_other_data_do_not_resume(first, workplace):
    shutil.copytree(first.directory, "run")
    with pytest.raises(UsageError, match=r'model=\{"name"') as caught:
        go(model=network(body=[keras.layers.Dropout(0.5)]), run_directory="run")
    assert not re.search("--|\n", str(caught.value))
    other = X.copy()
    other[:, 0, 0] = 9
    with pytest.raises(UsageError, match="data in .* changed since"):
        same = {"model": network(body=convolution()), "class_names": NAMES}
        go(**same, data=(other, Y), run_directory="run")
    result = run_python("-m", "pipeline.fit", "--resume", "run", cwd=workplace)
    assert (
        result.returncode == 2
        and "was an object of the Python process" in result.stderr
    )
    assert result.stderr.count("\n") == 1


class Wrapped(keras.layers.Layer):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer


def mean_error(y_true, y_pred):
    return keras.ops.mean(keras.ops.square(y_true[:, None] - y_pred))


def wrong_form(y_true, y_pred):
    return keras.ops.square(y_true - y_pred)


BAD = {
    "width": (
        {"model": lambda: network(units=8)},
        r"shape \(None, 8\), but the data have 10 classes",
    ),
    "shape": ({"data": lambda: (X[:, :6], Y)}, r"takes inputs of shape \(8, 8, 1\)"),
    "train_step": ({"model": lambda: Overridden()}, "overrides train_step"),
    "no model": ({"model": lambda: 3}, "must be a keras.Model.*got int"),
    "from_logits": (
        {"loss": lambda: keras.losses.SparseCategoricalCrossentropy(from_logits=True)},
        "from_logits=True, but the model returns probabilities",
    ),
    "endless": ({"data": lambda: DATASET.repeat()}, "never ends; remove repeat"),
    "generator": ({"data": lambda: iter([])}, "cannot be used; pass"),
    "no label": (
        {"data": lambda: (X, np.where(Y == 3, np.nan, Y))},
        r"example \d+ has no label \(nan\)",
    ),
    "negative labels": ({"data": lambda: (X, Y - 1)}, "must be from 0 to"),
    "lengths": ({"data": lambda: (X[:5], Y)}, "lengths of x and y must be equal"),
    "two inputs": (
        {"data": lambda: ([X, X[:, :2]], Y)},
        "the parts of x have different shapes",
    ),
    "no data": ({"data": lambda: None}, "pass data=... with the model"),
    "rate twice": (
        {"optimizer": lambda: keras.optimizers.Adam(), "learning_rate": lambda: 0.1},
        "remove learning_rate",
    ),
    "callback": (
        {"callbacks": lambda: [3]},
        "must be a name or a Keras callback; got int",
    ),
    "best weights": (
        {
            "callbacks": lambda: [
                keras.callbacks.EarlyStopping(restore_best_weights=True)
            ]
        },
        'use train={"patience": 1}',
    ),
    "backup": (
        {"callbacks": lambda: [keras.callbacks.BackupAndRestore("x")]},
        "resumed from its checkpoints",
    ),
    "flat images": (
        {"data": lambda: (X.reshape(-1, 64), Y)},
        r"the data have \(64,\); reshape x to \(n, 8, 8, 1\), or change the model",
    ),
    "no arguments": (
        {"model": lambda: lambda: network()},
        "must be a function .*; it has 0 arg",
    ),
    "no config": (
        {"model": lambda: keras.Sequential([Wrapped(keras.layers.Dense(10))])},
        "rebuilt from its config: Object Wrapped was created by passing",
    ),
    "a loss of the batch": (
        {"loss": lambda: mean_error},
        "mean_error returns one number for the batch; it must return one value per",
    ),
    "a loss of labels in another form": (
        {"loss": lambda: wrong_form},
        r"wrong_form does not fit: y is float32 of shape \(8,\), the output float32 of",
    ),
    "loss scale": (
        {
            "optimizer": lambda: keras.optimizers.LossScaleOptimizer(
                keras.optimizers.Adam()
            )
        },
        "pass the inner optimizer",
    ),
    "misspelled": (
        {"epoch": lambda: 3},
        "unknown argument 'epoch'; did you mean 'epochs'",
    ),
    "short": (
        {"time_limit": lambda: "2m"},
        r"did you mean 'runtime=\{\"time_limit\": \.\.\.\}'\?",
    ),
    "unknown": (
        {"xyzzy": lambda: 3},
        "; choose from .*, clean, data, dry_run, .*optimizer, run_",
    ),
    "twice": (
        {"train": lambda: {"epochs": 3}},
        "use only one of epochs=... and train=",
    ),
    "a section": (
        {"train": lambda: {"batch_size": 0}},
        r"batch_size=\.\.\. must be",
    ),
    "metric": ({"metrics": lambda: ["f1_scor"]}, "did you mean 'f1_score'"),
    "nothing to train": (
        {
            "model": lambda: keras.Sequential(
                [keras.layers.Flatten(), keras.layers.Softmax()]
            )
        },
        "64 values|no trainable weights",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_used_is_one_line(workplace, case):
    changes, message = BAD[case]
    arguments = {"model": network, **changes}
    with pytest.raises(UsageError, match=message) as caught:
        go(**{name: make() for name, make in arguments.items()})
    assert "\n" not in str(caught.value)
    assert caught.value._render_traceback_() == [f"UsageError: {caught.value}"]


class Deaf(keras.metrics.Mean):
    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(keras.ops.max(y_pred, axis=-1))


def test_a_metric_that_ignores_weights_is_rejected(workplace):
    with pytest.raises(UsageError, match="ignores sample_weight"):
        go(model=network(), metrics=[Deaf(name="deaf")])


# Callbacks of the user, in addition to those of every run.


def test_one_of_every_run_is_refused_before_anything_is_written(workplace):
    for name in (*callback_order.BEFORE_CHECKPOINT, *callback_order.AFTER_CHECKPOINT):
        assert name in registry.names("callbacks")
        with pytest.raises(UsageError) as caught:
            fit("digits", **options(**{name: {}}))
        assert (
            str(caught.value)
            == f"callbacks=...: {name} is part of every run; remove it"
        )
    assert not list(workplace.iterdir())


def test_copies_of_training_examples_are_left_out_of_the_test(tmp_path, capsys):
    tested = np.concatenate([X[:20], X[500:540]]), np.concatenate([Y[:20], Y[500:540]])
    run = fit(
        model=network(),
        data=(X[:300], Y[:300]),
        validation_data=(X[300:340], Y[300:340]),
        test_data=tested,
        epochs=1,
        run_directory=tmp_path / "run",
        export={"enabled": False},
    )
    assert run.test["examples"] == 40 == len(run.evaluation)
    assert run.test["with_copies"]["examples"] == 60
    evaluation = run.evaluate(tested)
    assert evaluation.metrics["loss"] == pytest.approx(
        run.test["with_copies"]["loss"], rel=1e-4
    )
    assert "20 of 60 test examples are exact copies" in capsys.readouterr().out
