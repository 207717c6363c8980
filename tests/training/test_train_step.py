"""The step against independent references: stock Keras, NumPy, finite differences."""

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

ENGINES = registry.names("engines")


def ready(settings, split, precision="float32"):
    """A built model and its training batches."""
    batches = batching.training(split, settings.train, settings.runtime.seed)
    model = build(TASK, settings, machine(precision), batches)
    model.step.set_inputs(batches, batching.evaluation(split, settings.train))
    return model, batches


def plain(**train):
    """A model and batches of `tiny` with plain settings, and the first ticket."""
    model, batches = ready(settings_of(train=train), random_split())
    (ticket, *_) = batches.dataset
    return model, batches, ticket


@pytest.mark.parametrize("name", ["tiny", "convnet", "resnet"])
def test_the_gradient_is_that_of_the_loss(name):
    """Central differences of NumPy's cross-entropy of the same network in float64."""
    settings = settings_of(model={"name": name}, train={"accumulate": 1, "l2": 0.01})
    model, batches = ready(settings, random_split(8))
    generator = np.random.default_rng(0)
    for variable in model.trainable_variables:  # at scales of 0 ReLUs would be at their kink
        variable.assign_add(generator.normal(scale=0.1, size=variable.shape))
    (ticket, *_) = batches.dataset
    gradients, _ = model.step._forward_and_backward(model, ticket)
    single = keras.Model(model.inputs[0], model.outputs[0])

    def in_float64(layer):
        own = {"dtype": "float64"} if isinstance(layer, keras.Layer) else {}
        return type(layer).from_config({**layer.get_config(), **own})

    inputs = keras.Input(TASK.metadata["image_shape"], dtype="float64")
    twin = keras.models.clone_model(single, input_tensors=inputs, clone_function=in_float64)
    twin.set_weights(single.get_weights())
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
        pairs = [*zip((g.numpy() for g in gradients), direction, strict=True)]
        along = sum(float((g * d).sum()) for g, d in pairs)
        size = sum(np.linalg.norm(g) * np.linalg.norm(d) for g, d in pairs)
        # float32 against float64: up to 5e-5 of the sum was seen.
        assert abs((ahead - behind) / 2e-7 - along) <= 1e-4 * size


def test_padding_counts_neither_in_loss_nor_in_accuracy():
    """21 examples in batches of 8: three of padding."""
    split, settings = random_split(21), settings_of(train={"steps": 1})
    model, batches = ready(settings, split)
    evaluation = batching.evaluation(split, config.Train(batch_size=2))
    history = registry.load("engines", "gradient_tape")(model, batches, evaluation, [])
    columns = split.take(np.arange(21))
    outputs = model(columns["image"].astype(np.float32) / 255, training=False).numpy()
    log_shares = outputs - np.log(np.exp(outputs).sum(1, keepdims=True))
    losses, right = -log_shares[np.arange(21), columns["label"]], outputs.argmax(1)
    assert history["val_loss"] == [pytest.approx(losses.mean(), rel=1e-5)]
    assert history["val_accuracy"] == [pytest.approx((right == columns["label"]).mean())]


def test_a_weight_of_two_doubles_the_gradient_of_an_example():
    """Whatever the weights of the other examples are."""
    model, _, ticket = plain(optimizer_options={})

    def change(weight):
        before = model.get_weights()
        model.step.train(model, {**ticket, "weight": tf.constant(weight, tf.float32)})
        after = model.get_weights()
        model.set_weights(before)
        return [a - b for a, b in zip(after, before, strict=True)]

    first, second = np.eye(8)[0], np.eye(8)[1]
    parts = [2 * a + b for a, b in zip(change(first), change(second), strict=True)]
    for one, other in zip(change(2 * first + second), parts, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_training_augments_and_evaluation_does_not(monkeypatch):
    settings = settings_of(data={"augment": {"crop": {"padding": 2}}})
    model, batches = ready(settings, random_split())
    seen, prepare = [], TASK.prepare
    monkeypatch.setattr(TASK, "prepare", lambda batch: seen.append(batch) or prepare(batch))
    (ticket, *_) = batches.dataset
    model.step.train(model, ticket)
    model.step.evaluate(model, ticket)
    assert (seen[0]["image"].numpy() != ticket["image"].numpy()).any()
    np.testing.assert_array_equal(seen[1]["image"], ticket["image"])
    later = {**ticket, "epoch": ticket["epoch"] + 1}
    again, next_epoch = (model.step.augment(t)[0]["image"].numpy() for t in (ticket, later))
    np.testing.assert_array_equal(again, seen[0]["image"])
    assert (again != next_epoch).any(), "every epoch has the same augmentation"


def test_each_augmentation_draws_different_numbers(tmp_path, monkeypatch):
    operation = "def {0}(batch, seeds):\n    return {{**batch, '{0}': uniform(seeds)}}\n\n\n"
    source = "from pipeline.data.seeds import uniform\n\n\n"
    (tmp_path / "drawing.py").write_text(source + "".join(map(operation.format, ("one", "two"))))
    monkeypatch.syspath_prepend(tmp_path)
    settings = settings_of(data={"augment": {"drawing.one": {}, "drawing.two": {}}})
    model, batches = ready(settings, random_split())
    (ticket, *_) = batches.dataset
    batch, own = model.step.augment(ticket)
    drawn = [batch["one"].numpy(), batch["two"].numpy(), uniform(own).numpy()]
    for one, other in itertools.combinations(drawn, 2):
        assert not np.isclose(one, other).any()


def test_augmentations_that_do_not_fit_are_refused_before_training():
    settings = settings_of(data={"augment": {"crop": {"padding": 8}}})
    with pytest.raises(UsageError, match="crop: padding 8 is too large for images of 8x8"):
        ready(settings, random_split())


def test_only_registered_engines_are_accepted():
    assert ENGINES == ["gradient_tape", "model_fit"]
    with pytest.raises(UsageError, match="unknown engine 'model_fi'; did you mean 'model_fit'"):
        config.Train(engine="model_fi")


@pytest.mark.parametrize(
    ("optimizer", "precision"),
    [
        ("adam", "mixed_float16"),
        *(
            pytest.param(name, precision, marks=pytest.mark.long)
            for name in registry.names("optimizers")
            for precision in ("float32", "mixed_bfloat16")
        ),
    ],
)
def test_engines_agree_bit_for_bit_with_one_trace(optimizer, precision):
    """Weights, optimizer state, dropout's state and history, with augmentation and schedule; the
    last epoch has one step."""
    outcomes = []
    for name in ENGINES:
        settings = settings_of(
            data={"augment": {"flip": {}, "crop": {"padding": 1}}},
            model={"name": "sequential"},
            train={
                "optimizer": optimizer,
                "optimizer_options": {},
                "schedule": "cosine",
                "epochs": 9,
                "steps": 9,
            },
        )
        split = random_split(37)
        model, batches = ready(settings, split, precision)
        validation = batching.evaluation(split, settings.train)
        history = registry.load("engines", name)(model, batches, validation, [])
        calls = model.step.compiled.values()
        assert [call.experimental_get_tracing_count() for call in calls] == [1, 1]
        assert int(model.step.update.steps.numpy()) == 9
        outcomes.append((history, [v for group in model.state.values() for v in group]))
    (history, variables), (other_history, others) = outcomes
    assert history == other_history and len(history["loss"]) == 3
    assert set(history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    for one, other in zip(variables, others, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


@pytest.mark.parametrize("name", ENGINES)
def test_a_callback_can_end_training(name):
    points = []

    class Listener(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            points.append(f"begin {epoch}")

        def on_train_batch_end(self, batch, logs=None):
            points.append(batch)
            assert isinstance(logs["loss"], float)

        def on_epoch_end(self, epoch, logs=None):
            points.append(f"end {epoch}")
            self.model.stop_training = epoch == 1

        def on_train_end(self, logs=None):
            points.append("end")

    model, batches = ready(settings_of(train={"epochs": 5, "batch_size": 16}), random_split())
    registry.load("engines", name)(model, batches, None, [Listener()])
    assert points == ["begin 0", 0, 1, "end 0", "begin 1", 0, 1, "end 1", "end"]
