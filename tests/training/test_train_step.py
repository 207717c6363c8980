"""The step against references that share no code with it: stock Keras, NumPy, differences."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from small import TASK, machine, random_split, settings_of

from pipeline.config import config, registry
from pipeline.data import batching
from pipeline.data.seeds import uniform
from pipeline.training.model_builder import build
from pipeline.utils.errors import UsageError


@pytest.fixture
def task():
    return TASK


def ready(task, settings, split, precision="float32"):
    """A built model and its training batches."""
    keras.utils.set_random_seed(0)
    batches = batching.training(split, settings.train, settings.runtime.seed)
    model = build(task, settings, machine(precision), batches)
    model.step.set_inputs(batches, batching.evaluation(split, settings.train))
    return model, batches


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_fit_equals_stock_keras(task, optimizer):
    settings = settings_of(train={"optimizer": optimizer, "optimizer_options": {}, "epochs": 2})
    split = random_split()
    model, batches = ready(task, settings, split)
    stock = keras.models.clone_model(keras.Model(model.inputs, model.outputs))
    stock.set_weights(model.get_weights())
    rows = list(batches.dataset.as_numpy_iterator())
    stock.compile(
        {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}[optimizer](0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    for row in rows:
        stock.train_on_batch(row["image"].astype(np.float32) * (1 / 255), row["label"])
    registry.load("engines", "model_fit")(model, batches, None, [])
    for ours, theirs in zip(model.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)
    assert int(model.optimizer.iterations) == len(rows) == 8


@pytest.mark.parametrize("name", ["tiny", "convnet", "resnet"])
def test_the_gradient_is_that_of_the_loss(task, name):
    """Central differences of NumPy's cross-entropy of the same network in float64."""
    settings = settings_of(model={"name": name}, train={"accumulate": 1, "l2": 0.01})
    model, batches = ready(task, settings, random_split(8))
    generator = np.random.default_rng(0)
    for variable in model.trainable_variables:  # scales that start at 0 put ReLUs on their kink
        variable.assign_add(generator.normal(scale=0.1, size=variable.shape))
    (ticket, *_) = batches.dataset
    gradients, _ = model.step._forward_and_backward(model, ticket)
    plain = keras.Model(model.inputs[0], model.outputs[0])

    def in_float64(layer):
        own = {"dtype": "float64"} if isinstance(layer, keras.Layer) else {}
        return type(layer).from_config({**layer.get_config(), **own})

    inputs = keras.Input(TASK.metadata["image_shape"], dtype="float64")
    twin = keras.models.clone_model(plain, input_tensors=inputs, clone_function=in_float64)
    twin.set_weights(plain.get_weights())
    images, labels = ticket["image"].numpy() / 255.0, ticket["label"].numpy()
    start = [v.numpy() for v in twin.trainable_variables]
    others = [v.numpy() for v in twin.non_trainable_variables]
    assert all(values.dtype == np.float64 for values in start)

    def loss_at(weights):
        for variable, value in zip(twin.trainable_variables, weights, strict=True):
            variable.assign(value)
        outputs = twin(images, training=True).numpy()
        for variable, value in zip(twin.non_trainable_variables, others, strict=True):
            variable.assign(value)
        logs = outputs - np.log(np.exp(outputs).sum(1, keepdims=True))
        penalty = sum((value**2).sum() for value in weights if value.ndim > 1)
        return -logs[np.arange(8), labels].mean() + 0.01 * penalty

    for _ in range(5):
        direction = [generator.normal(size=value.shape) for value in start]
        ahead, behind = (
            loss_at([w + sign * 1e-7 * d for w, d in zip(start, direction, strict=True)])
            for sign in (1, -1)
        )
        along = sum(float((g.numpy() * d).sum()) for g, d in zip(gradients, direction, strict=True))
        lengths = [
            np.linalg.norm(g.numpy()) * np.linalg.norm(d)
            for g, d in zip(gradients, direction, strict=True)
        ]
        # float32 against float64: up to 5e-5 of the sum was seen.
        assert abs((ahead - behind) / 2e-7 - along) <= 1e-4 * sum(lengths)


def test_padding_counts_neither_in_loss_nor_in_accuracy(task):
    split = random_split(21)
    settings = settings_of()
    model, _ = ready(task, settings, split)
    evaluation = batching.evaluation(split, config.Train(batch_size=2))  # 8, 8, 5 and 3 of padding
    logs = model.evaluate(evaluation.dataset, return_dict=True, verbose=0)
    columns = split.take(np.arange(21))
    outputs = model(columns["image"].astype(np.float32) / 255, training=False).numpy()
    log_shares = outputs - np.log(np.exp(outputs).sum(1, keepdims=True))
    losses = -log_shares[np.arange(21), columns["label"]]
    assert logs["loss"] == pytest.approx(losses.mean(), rel=1e-5)
    assert logs["accuracy"] == pytest.approx((outputs.argmax(1) == columns["label"]).mean())


def test_weights_scale_an_example(task):
    """A weight of 2 doubles the example's gradient, whatever the others weigh."""
    settings = settings_of(train={"optimizer_options": {}})
    model, batches = ready(task, settings, random_split(8))
    (ticket, *_) = batches.dataset

    def change(weight):
        before = model.get_weights()
        model.step.train(model, {**ticket, "weight": tf.constant(weight, tf.float32)})
        after = model.get_weights()
        model.set_weights(before)
        return [a - b for a, b in zip(after, before, strict=True)]

    first, both = np.eye(8)[0], np.eye(8)[0] + np.eye(8)[1]
    second = both - first
    parts = [2 * a + b for a, b in zip(change(first), change(second), strict=True)]
    for one, other in zip(change(2 * first + second), parts, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_training_augments_and_evaluation_does_not(task, monkeypatch):
    split = random_split()
    settings = settings_of(data={"augment": {"crop": {"padding": 2}}})
    model, batches = ready(task, settings, split)
    seen = []
    prepare = task.prepare
    monkeypatch.setattr(task, "prepare", lambda batch: seen.append(batch) or prepare(batch))
    (ticket, *_) = batches.dataset
    model.step.train(model, ticket)
    model.step.evaluate(model, ticket)
    assert (seen[0]["image"].numpy() != ticket["image"].numpy()).any()
    np.testing.assert_array_equal(seen[1]["image"], ticket["image"])
    later = {**ticket, "epoch": ticket["epoch"] + 1}
    again, next_epoch = (model.step.augment(t)[0]["image"].numpy() for t in (ticket, later))
    np.testing.assert_array_equal(again, seen[0]["image"])
    assert (again != next_epoch).any(), "every epoch has the same augmentation"


def test_each_augmentation_draws_its_own_numbers(task, tmp_path, monkeypatch):
    operation = "def {0}(batch, seeds):\n    return {{**batch, '{0}': uniform(seeds)}}\n\n\n"
    source = "from pipeline.data.seeds import uniform\n\n\n"
    (tmp_path / "drawing.py").write_text(source + "".join(map(operation.format, ("one", "two"))))
    monkeypatch.syspath_prepend(tmp_path)
    settings = settings_of(data={"augment": {"drawing.one": {}, "drawing.two": {}}})
    model, batches = ready(task, settings, random_split())
    (ticket, *_) = batches.dataset
    batch, own = model.step.augment(ticket)
    drawn = [batch["one"].numpy(), batch["two"].numpy(), uniform(own).numpy()]
    for one, other in itertools.combinations(drawn, 2):
        assert not np.isclose(one, other).any()


ENGINES = registry.names("engines")


def test_only_engines_of_the_registry_are_taken():
    assert ENGINES == ["gradient_tape", "model_fit"]
    for name in ENGINES:
        assert config.Train(engine=name).engine == name
    with pytest.raises(UsageError, match="unknown engine 'model_fi'; did you mean 'model_fit'"):
        config.Train(engine="model_fi")


@pytest.mark.parametrize(
    ("optimizer", "steps", "precision"),
    [
        *((name, None, "float32") for name in registry.names("optimizers")),
        ("adam", 9, "mixed_float16"),
        ("sgd", 9, "mixed_bfloat16"),
    ],
)
def test_engines_agree_bit_for_bit(task, optimizer, steps, precision):
    """Weights, optimizer state, dropout's state and history, with augmentation and schedule."""
    outcomes = []
    for name in ENGINES:
        settings = settings_of(
            data={"augment": {"flip": {}, "crop": {"padding": 1}}},
            model={"name": "sequential"},
            train={
                "optimizer": optimizer,
                "optimizer_options": {},
                "schedule": "cosine",
                "epochs": 3,
                "steps": steps,
            },
        )
        split = random_split(37)
        model, batches = ready(task, settings, split, precision)
        validation = batching.evaluation(split, settings.train)
        history = registry.load("engines", name)(model, batches, validation, [])
        outcomes.append((history, [v for group in model.state.values() for v in group]))
    (history, variables), (other_history, others) = outcomes
    assert history == other_history and set(history) == {
        "loss",
        "accuracy",
        "val_loss",
        "val_accuracy",
    }
    assert len(history["loss"]) == 3
    for one, other in zip(variables, others, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


@pytest.mark.parametrize("name", ENGINES)
def test_callbacks_hear_the_same_and_may_stop(task, name):
    class Listener(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.heard = []

        def on_epoch_begin(self, epoch, logs=None):
            self.heard.append(f"begin {epoch}")

        def on_train_batch_end(self, batch, logs=None):
            self.heard.append(batch)
            assert isinstance(logs["loss"], float)

        def on_epoch_end(self, epoch, logs=None):
            self.heard.append(f"end {epoch}")
            self.model.stop_training = epoch == 1

        def on_train_end(self, logs=None):
            self.heard.append("end")

    listener = Listener()
    settings = settings_of(train={"epochs": 5, "batch_size": 16})
    model, batches = ready(task, settings, random_split())
    registry.load("engines", name)(model, batches, None, [listener])
    assert listener.heard == ["begin 0", 0, 1, "end 0", "begin 1", 0, 1, "end 1", "end"]


@pytest.mark.parametrize("name", ENGINES)
def test_one_trace_for_training_and_one_for_validation(task, monkeypatch, name):
    split = random_split(37)
    settings = settings_of(train={"epochs": 3})
    model, batches = ready(task, settings, split)
    traced = []
    train, evaluate = model.step.train, model.step.evaluate
    monkeypatch.setattr(model.step, "train", lambda *a: traced.append("train") or train(*a))
    monkeypatch.setattr(model.step, "evaluate", lambda *a: traced.append("test") or evaluate(*a))
    validation = batching.evaluation(split, settings.train)
    history = registry.load("engines", name)(model, batches, validation, [])
    assert traced == ["train", "test"]
    assert len(history["val_loss"]) == 3 == len(history["accuracy"])


def test_foreign_data_are_refused_by_name(task):
    model, _ = ready(task, settings_of(), random_split())
    images, labels = np.zeros((8, *TASK.metadata["image_shape"]), np.float32), np.zeros(8)
    for use in (model.fit, model.evaluate):
        with pytest.raises(UsageError, match="give arrays to pipeline.fit"):
            use(images, labels, verbose=0)


def test_augmentations_that_do_not_fit_are_refused_before_training(task):
    settings = settings_of(data={"augment": {"crop": {"padding": 8}}})
    with pytest.raises(UsageError, match="crop: padding 8 is too large for images of 8x8"):
        ready(task, settings, random_split())


@pytest.mark.parametrize("name", ENGINES)
def test_the_engine_stops_with_the_last_step(task, name):
    settings = settings_of(train={"steps": 6, "epochs": 9})
    model, batches = ready(task, settings, random_split())
    history = registry.load("engines", name)(model, batches, None, [])
    assert int(model.optimizer.iterations) == 6
    assert len(history["loss"]) == 2  # 4 steps, then 2


@pytest.mark.parametrize("name", registry.names("optimizers"))
def test_every_optimizer_overfits_one_batch(task, name):
    settings = settings_of(
        train={"optimizer": name, "optimizer_options": {}, "epochs": 250, "learning_rate": 0.02},
        model={"name": "linear"},
    )
    settings = settings.changed(train={"learning_rate": 2.0} if name == "sgd" else {})
    model, batches = ready(task, settings, random_split(8))
    history = registry.load("engines", "model_fit")(model, batches, None, [])
    assert history["accuracy"][-1] == 1.0
