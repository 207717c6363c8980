"""A user's own Keras model, data, loss, metrics and callbacks, handed to `fit`."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest
from digit_networks import (
    NAMES,
    Subclassed,
    X,
    Y,
    convolution,
    go,
    go_with_convolution,
    network,
)
from processes import REPOSITORY, run_python

from pipeline.fit import fit
from pipeline.utils.errors import UsageError


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A run of a network with a convolution; tests must not change it."""
    return go_with_convolution(tmp_path_factory.mktemp("first"))


def test_the_pages_run_as_they_are_written(workplace):
    """The example of the README, to a verified export; the blocks of docs/user_model.md
    in order.
    """
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(import keras.*?)```", readme, flags=re.DOTALL)
    lines = [line for line in example.splitlines() if line and "import" not in line]
    assert len(["from pipeline.fit import fit", *lines]) <= 4
    page = (REPOSITORY / "docs/user_model.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    code = f"{example}\nassert run.export.is_dir()\n" + "\n".join(blocks)
    # The first one is exported; one epoch is enough for the others.
    assert "digits.target))" in code and 'metrics=["f1_score"])' in code
    code = code.replace("digits.target))", "digits.target), epochs=1)")
    code = code.replace('["f1_score"])', '["f1_score"], export={"enabled": False})')
    code = code.replace("epochs=5", "epochs=1")
    result = run_python("-c", code, cwd=workplace)
    assert result.returncode == 0, result.stderr[-2000:]
    assert "verified: the SavedModel gives the same predictions" in result.stdout
    assert len((workplace / "epochs.csv").read_text().splitlines()) == 3
    assert list((workplace / "board").rglob("events.out*"))


@pytest.mark.parametrize("has_input", [True, False])
def test_an_adapted_normalization_is_kept(workplace, has_input):
    images = X[..., None].astype("float32")
    layers = [
        keras.layers.Normalization(),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
    layers[0].adapt(images)
    model = keras.Sequential([*[keras.Input((8, 8, 1))] * has_input, *layers])
    run = go(model=model, epochs=1)
    np.testing.assert_allclose(run.model(images), model(images), atol=1e-5)
    np.testing.assert_allclose(layers[0].mean, [[[[images.mean()]]]], rtol=1e-4)


class Predictions(keras.callbacks.Callback):
    def on_train_end(self, logs=None):
        self.predictions = self.model.predict(X[:5, ..., None], verbose=0)


def test_a_fused_network_with_a_lambda_is_not_rebuilt(workplace):
    def features(x):
        x = keras.layers.BatchNormalization(momentum=0.5)(x)
        return keras.layers.Flatten()(keras.layers.Lambda(lambda x: 2 * x)(x))

    callback = Predictions()
    run = go(model={"name": features, "fused_batch_norm": True}, callbacks=[callback])
    loaded = keras.models.load_model(run.directory / "model.keras", safe_mode=False)
    for model in (run.model, loaded):
        predictions = model.predict(X[:5, ..., None], verbose=0)
        np.testing.assert_allclose(callback.predictions, predictions, atol=1e-5)


def test_two_classes_with_one_sigmoid(workplace):
    model, odd = network("sigmoid", 1), Y % 2
    run = go(
        model=model,
        data=(X, odd),
        epochs=10,
        learning_rate=0.01,
        loss=keras.losses.BinaryCrossentropy(),
        metrics=[
            "accuracy",
            "binary_accuracy",
            "auc",
            keras.metrics.Precision(name="auc"),
        ],
    )
    assert run.test["binary_accuracy"] == pytest.approx(run.test["accuracy"])
    assert run.history["loss"][-1] < run.history["loss"][0]
    # The precision of the second class, under a number because its name was taken.
    precision = run.test["per_class"]["1"]["precision"]
    assert run.test["auc_1"] == pytest.approx(precision) and "val_auc_1" in run.history
    predictions = model.predict(X[..., None].astype("float32"), verbose=0)
    assert predictions.shape == (600, 1)
    test = run.splits["test"]
    examples = test.take(np.arange(len(test)))
    right = (predictions[examples["id"], 0] > 0.5) == examples["label"]
    assert right.mean() == pytest.approx(run.test["accuracy"])


def test_a_table_of_files(workplace, tmp_path):
    pandas = pytest.importorskip("pandas")
    for n in range(60):
        keras.utils.save_img(tmp_path / f"{n}.png", X[n][..., None], scale=False)
    paths = [str(tmp_path / f"{n}.png") for n in range(60)]
    table = pandas.DataFrame({"image": paths, "label": np.array(NAMES)[Y[:60]]})
    run = go(model=network(), data=table, epochs=1, train={"batch_size": 8})
    assert sorted(run.task.metadata["class_names"]) == NAMES
    first = run.splits["train"].take(np.arange(1))
    file = run.trainer.data.source.location(int(first["id"][0]))
    pixels = X[int(Path(file).stem)]
    np.testing.assert_array_equal(first["image"][0, ..., 0], pixels)


class Counter(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1


def test_a_callback_that_counts_batches_sees_each_step(workplace, capfd):
    counter = Counter()
    run = go(model=network(), callbacks=[counter])
    assert counter.batches == run.result["steps"]
    line = "call       1 step (the callback Counter has on_train_batch_end)"
    assert line in capfd.readouterr().out


def test_keras_optimizers_losses_and_metrics_by_name_and_as_objects(workplace):
    """The same mathematics either way."""
    start, found = network().get_weights(), []
    names = {
        "optimizer": "lamb",
        "loss": "categorical_crossentropy",
        "learning_rate": 0.01,
    }
    objects = {
        "optimizer": keras.optimizers.Lamb(0.01, global_clipnorm=10.0),
        "loss": keras.losses.CategoricalCrossentropy(),
    }
    for given in ({**names, "train": {"global_clipnorm": 10.0}}, objects):
        model = network()
        model.set_weights(start)
        run = go(model=model, metrics=["f1_score"], **given)
        found.append((run.test["f1_score"], *model.get_weights()))
        assert 0 < run.test["f1_score"] <= 1 and "val_f1_score" in run.history
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_layer_with_a_lookup_table_is_exported(workplace):
    """Token ids that are not 0, 1, ... need a table, which the SavedModel contains."""
    ids = np.random.default_rng(0).integers(10, 60, (120, 6))
    model = keras.Sequential(
        [
            keras.Input((6,), dtype="int64"),
            keras.layers.IntegerLookup(vocabulary=list(range(10, 60))),
            keras.layers.Embedding(60, 4),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(2),
        ]
    )
    classes = (ids < 25).sum(axis=1) > 1
    run = fit(model=model, data=(ids, classes), epochs=1, log={"tensorboard": False})
    assert run.export and run.task.metadata["features_dtype"] == "int64"


class Raises(keras.callbacks.Callback):
    def __init__(self, error, epoch):
        super().__init__()
        self.error, self.epoch = error, epoch

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.epoch:
            raise self.error

    def on_run_end(self, run):
        self.ended = run


class SetsRate(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 0:
            self.model.optimizer.learning_rate.assign(0.004)


def test_an_error_of_a_callback_passes_through_and_the_run_resumes(workplace):
    """With each engine; a rate that was set before lasts."""
    start = network(body=[keras.layers.Dropout(0.3)]).get_weights()

    def trained(place, engine, *callbacks):
        model = network(body=[keras.layers.Dropout(0.3)])
        model.set_weights(start)
        train = {"engine": engine, "checkpoint_steps": 1}
        more = {"callbacks": list(callbacks), "force": True}
        run = go(model=model, epochs=4, train=train, run_directory=place, **more)
        assert run.history["learning_rate"] == pytest.approx([0.004] * 4)
        return model

    whole = trained("whole", "model_fit", SetsRate())
    for error, epoch, engine, *others in (
        (StopIteration("mine"), 0, "model_fit", SetsRate()),
        (KeyError("other"), 2, "gradient_tape"),
    ):
        raises = Raises(error, epoch)
        with pytest.raises(type(error)) as caught:
            trained("parts", engine, *others, raises)
        assert raises.ended.result == {}, "it was called, with a run without a result"
        assert "raised by the callback Raises" in caught.value.__notes__[0]
    resumed = trained("parts", "gradient_tape")
    for one, other in zip(whole.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_weights_of_an_earlier_run_under_another_head(first, workplace, capfd):
    weights = str(first.directory)
    again = network(body=convolution())
    go(
        model={"name": again, "weights": weights},
        class_names=NAMES,
        epochs=1,
        train={"freeze": ("convolution",)},
    )
    assert f"4 of 4 weights from {weights}\n" in capfd.readouterr().out
    kernel = first.network.get_weights()[0]
    np.testing.assert_array_equal(again.get_weights()[0], kernel)
    two = network(units=2, body=convolution())
    go(
        model={"name": two, "weights": weights},
        data=(X, Y % 2),
        epochs=1,
        train={"layer_rates": {"convolution": 0.0}},
    )
    np.testing.assert_array_equal(two.get_weights()[0], kernel)
    assert (
        f"2 of 4 weights from {weights}; the output layer is new"
        in capfd.readouterr().out
    )
    with pytest.raises(UsageError, match="no layer.*weights"):
        go(model={"name": network(units=2), "weights": weights}, data=(X, Y % 2))


long = pytest.mark.long


LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
USUAL = "for which the loss is SparseCategoricalCrossentropy"
HEADS = {
    "softmax": (
        lambda: network(),
        None,
        f"it returns probabilities, {USUAL}()",
    ),
    "logits": (
        lambda: network(None),
        None,
        f"it returns logits, {USUAL}(from_logits=True)",
    ),
    "softmax layer": (
        lambda: keras.Sequential(
            [keras.Input((8, 8)), *network(None).layers, keras.layers.Softmax()]
        ),
        None,
        "it returns probabilities",
    ),
    "lambda": (
        lambda: network(body=[keras.layers.Lambda(abs)]),
        "sparse_categorical_crossentropy",
        "it returns probabilities",
    ),
    "subclassed": (lambda: Subclassed(), LOGITS, "it returns logits"),
    "subclassed softmax": (
        lambda: Subclassed("softmax"),
        keras.losses.SparseCategoricalCrossentropy(),
        "it returns probabilities",
    ),
}


@pytest.mark.parametrize(
    "head",
    [
        name if name == "subclassed softmax" else pytest.param(name, marks=long)
        for name in HEADS
    ],
)
def test_every_head_is_trained_and_gets_its_weights_back(workplace, head, capfd):
    build, loss, note = HEADS[head]
    model = build()
    train = {"batch_size": 16}
    run = go(model=model, loss=loss, epochs=2, learning_rate=0.01, train=train)
    assert run.history["loss"][1] < run.history["loss"][0]
    lines = capfd.readouterr().out
    assert re.search(rf"^model .*{re.escape(note)}", lines, re.MULTILINE)
    assert ("for which the loss is" in lines) == (loss is None)
    images = X[:40, ..., None].astype("float32")
    predictions = run.model(images).numpy()
    accuracy = (predictions.argmax(axis=1) == Y[:40]).mean()
    assert run.model.evaluate(images, Y[:40], verbose=0)[1] == pytest.approx(accuracy)
    np.testing.assert_allclose(model(images), predictions, atol=1e-5)
    if head not in ("logits", "subclassed"):
        np.testing.assert_allclose(predictions.sum(axis=1), 1, atol=1e-5)
    served = run.predict(X[:40, ..., None])
    np.testing.assert_array_equal(predictions.argmax(axis=1), served["class"])
