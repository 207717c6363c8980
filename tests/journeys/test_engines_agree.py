"""Both engines give the same weights bit for bit, also when one continues what the
other began.
"""

import functools
import itertools

import keras
import numpy as np
import pytest
from engine_epoch import BATCH, STEPS, prepared, require_equal, trained
from toy_problem import CLASSES, TASK, machine, random_split, settings_of

from pipeline.config import registry
from pipeline.data import batching
from pipeline.fit import fit
from pipeline.runtime.signals import ELSEWHERE, Stopped, StopSignals
from pipeline.training.callbacks.checkpoint import CheckpointCallback
from pipeline.training.callbacks.early_stopping import EarlyStopping
from pipeline.training.checkpoints import Checkpoints
from pipeline.training.model_builder import build

ENGINES = registry.names("engines")
# Four steps in an epoch; the third epoch has one.
SPLIT, LAST_STEP = random_split(37), 9


def ready(optimizer, precision):
    """(settings, model, training batches) with all that is state: dropout, the loss
    scale, averages, a schedule; with accumulation, clipping and augmentation.
    """
    settings = settings_of(
        data={"augment": {"flip": {}, "crop": {"padding": 1}}},
        model={"name": "sequential"},
        train={
            "optimizer": optimizer,
            "optimizer_options": {},
            "schedule": "cosine",
            "epochs": 9,
            "steps": LAST_STEP,
            "accumulate": 2,
            "global_clipnorm": 0.5,
            "ema": 0.9,
        },
    )
    batches = batching.training(SPLIT, settings.train, settings.runtime.seed)
    model = build(TASK, settings, machine(precision), batches)
    return settings, model, batches


def train(engine, settings, model, batches, callbacks=()):
    """The history after an engine has taken these batches."""
    validation = batching.evaluation(SPLIT, settings.train)
    model.step.set_inputs(batches, validation)
    load = registry.load("engines", engine)
    return load(model, batches, validation, list(callbacks))


def state_of(model):
    return [v.numpy() for group in model.state.values() for v in group]


@functools.cache
def whole(engine, optimizer="adam", precision="mixed_float16"):
    """(history, state, traces of each call) after a training without a pause."""
    settings, model, batches = ready(optimizer, precision)
    history = train(engine, settings, model, batches)
    assert int(model.step.update.steps.numpy()) == LAST_STEP
    calls = model.step.compiled.values()
    traces = [call.experimental_get_tracing_count() for call in calls]
    return history, state_of(model), traces


OTHERS = itertools.product(registry.names("optimizers"), ("float32", "mixed_bfloat16"))


@pytest.mark.parametrize(
    ("optimizer", "precision"),
    [
        ("adam", "mixed_float16"),
        *(pytest.param(*pair, marks=pytest.mark.long) for pair in OTHERS),
    ],
)
def test_engines_agree_bit_for_bit_with_one_trace(optimizer, precision):
    """Weights, optimizer state, averages, loss scale, dropout's state and history."""
    outcomes = [whole(name, optimizer, precision) for name in ENGINES]
    (history, state, traces), (other_history, other_state, other_traces) = outcomes
    assert traces == other_traces == [1, 1]
    assert history == other_history and len(history["loss"]) == 3
    assert set(history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    require_equal(state, other_state)


class StopsAt(StopSignals):
    """Asks to stop after a step of a model."""

    def __init__(self, model, step):
        super().__init__()
        self.model, self.step = model, step

    def reason(self, agreed=float):
        return ELSEWHERE if self.model.step.position == self.step else None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("model_fit", "gradient_tape"),
        pytest.param("gradient_tape", "model_fit", marks=pytest.mark.long),
    ],
)
def test_one_engine_continues_within_an_epoch_what_the_other_began(
    tmp_path, first, second
):
    def with_checkpoints():
        settings, model, batches = ready("adam", "mixed_float16")
        saved = Checkpoints(model.state, tmp_path)
        made = CheckpointCallback(saved, EarlyStopping(None), batches, settings.train)
        return settings, model, made

    settings, model, made = with_checkpoints()
    made.stops = StopsAt(model, 6)
    with pytest.raises(Stopped):
        train(first, settings, model, made.batches, [made.early_stopping, made])
    assert made.step == 6

    settings, model, made = with_checkpoints()
    left = made.resume()
    assert (left.first_step, left.first_epoch) == (6, 1)
    train(second, settings, model, left, [made.early_stopping, made])
    history, state, _ = whole(first)
    assert made.history == history
    require_equal(state_of(model), state)


OPTIONS = {
    "epochs": 3,
    "steps": 2 * STEPS + 3,
    "optimizer": "adam",
    "optimizer_options": {},
}


@pytest.fixture(scope="module")
def single():
    """The variables after a training with one step in each call."""
    model, _ = trained(calls=1, **OPTIONS)
    return [variable.numpy() for variable in model.variables]


@pytest.mark.parametrize(
    "engine", ["model_fit", pytest.param("gradient_tape", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("calls", [3, pytest.param(100, marks=pytest.mark.long)])
def test_calls_of_any_length_are_the_same_steps(single, engine, calls):
    firsts = []

    class Record(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            firsts.append(batch)

    model, batches = trained(
        calls=calls, engine=engine, callbacks=[Record()], **OPTIONS
    )
    for one, other in zip(single, model.variables, strict=True):
        np.testing.assert_array_equal(one, other.numpy())
    epoch = list(range(0, STEPS, calls))
    assert firsts == [*epoch, *epoch, *range(0, 3, calls)]
    assert int(model.optimizer.iterations) == batches.last_step


# The update rule on one device, where stock Keras is right: every option against
# Keras's own.


CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


FOCAL = keras.losses.CategoricalFocalCrossentropy(from_logits=True)


SMOOTHED = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.2)


def sgd(**options):
    return keras.optimizers.SGD(0.1, momentum=0.9, **options)


@pytest.fixture(scope="module")
def start():
    """(model, images, labels) before any step, in the order of training."""
    model, batches = prepared()
    rows = list(batches.dataset(0))
    images = np.concatenate([row["image"] for row in rows]).astype(np.float32) / 255
    return model, images, np.concatenate([row["label"] for row in rows])


@pytest.fixture
def stock(start):
    """The weights after Keras's own `fit`, which begins with the same weights."""
    model, images, labels = start

    def fit(
        optimizer, loss=CROSS_ENTROPY, size=BATCH, change=lambda copy: None, **options
    ):
        copy = keras.models.clone_model(keras.Model(model.inputs, model.outputs))
        copy.set_weights(model.get_weights())
        change(copy)
        copy.compile(optimizer, loss, jit_compile=False)
        is_one_hot = loss is SMOOTHED or loss is FOCAL
        y = np.eye(CLASSES, dtype=np.float32)[labels] if is_one_hot else labels
        copy.fit(images, y, batch_size=size, shuffle=False, verbose=0, **options)
        return copy.get_weights()

    return fit


def require_close(one, other, atol=2e-6):
    for left, right in zip(one, other, strict=True):
        np.testing.assert_allclose(left, right, atol=atol)


def moved(one, other):
    return max(np.abs(a - b).max() for a, b in zip(one, other, strict=True))


@pytest.fixture(scope="module")
def plain():
    return trained()[0].get_weights()


def regularize(model):
    for layer in model.layers:
        if hasattr(layer, "kernel"):
            layer.kernel.regularizer = keras.regularizers.L2(0.05)


def decayed():
    optimizer = sgd(weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


ACCUMULATED = {"gradient_accumulation_steps": 2, "global_clipnorm": 0.05}


nightly = functools.partial(pytest.param, marks=pytest.mark.long)


WEIGHTED = {"class_weight": {0: 3.0, 1: 1.0, 2: 0.5}}


@pytest.mark.parametrize(
    ("ours", "theirs", "options"),
    [
        nightly({"clipnorm": 0.02}, lambda: sgd(clipnorm=0.02), {}),
        nightly({"clipvalue": 0.005}, lambda: sgd(clipvalue=0.005), {}),
        nightly(
            {"accumulate": 2, "global_clipnorm": 0.05},
            lambda: sgd(**ACCUMULATED),
            {"size": BATCH // 2},
        ),
        nightly(
            {"l2": 0.05, "label_smoothing": 0.2},
            sgd,
            {"change": regularize, "loss": SMOOTHED},
        ),
        (
            {"weight_decay": 0.1, "class_weight": {"a": 3.0, "c": 0.5}},
            decayed,
            WEIGHTED,
        ),
        nightly(
            {
                "loss": "categorical_focal_crossentropy",
                "class_weight": {"a": 3.0, "c": 0.5},
            },
            sgd,
            {"loss": FOCAL, **WEIGHTED},
        ),
    ],
)
def test_options_are_those_of_keras(stock, plain, ours, theirs, options):
    found = trained(**ours)[0].get_weights()
    require_close(found, stock(theirs(), **options))
    assert moved(found, plain) > 1e-3, "the options did nothing"


def test_the_average_of_the_weights_forgets_the_first_ones(stock):
    """Its momentum is at most (n - 1) / (n + 8) in step n."""
    averaged, _ = trained(ema=0.8)
    raw = averaged.get_weights()
    averaged.step.update.swap_ema()
    copies, steps = [], []
    record = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda *_, **__: steps.append(copies[0].get_weights())
    )
    stock(sgd(), change=copies.append, callbacks=[record])
    expected = steps[0]
    for n, weights in enumerate(steps[1:], 2):
        momentum = min(0.8, (n - 1) / (n + 8))
        expected = [
            momentum * average + (1 - momentum) * weight
            for average, weight in zip(expected, weights, strict=True)
        ]
    require_close(averaged.get_weights(), expected)
    averaged.step.update.swap_ema()
    require_close(averaged.get_weights(), raw, atol=0)


# A run with averaged weights, however short it is.


def test_the_average_of_a_short_run_is_as_good_as_the_last_weights(workplace):
    """A constant momentum of 0.999 would keep 90% of the first weights after 100
    steps.
    """
    losses = [
        fit(
            "digits",
            train={"steps": 100, "ema": momentum},
            data={"validation": 0.2},
            export={"enabled": False},
        ).history["val_loss"][-1]
        for momentum in (None, 0.999)
    ]
    assert losses[1] < 1.2 * losses[0]
