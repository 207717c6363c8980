"""With XLA, a call of the training step is one program."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from engine_epoch import BATCH, STEPS, prepared, require_equal
from toy_problem import TASK, changed, machine, random_split, settings_of

from pipeline.config import registry
from pipeline.config.sections import TrainConfig
from pipeline.data import batching
from pipeline.data.example_store import DeviceStore, MemoryStore
from pipeline.evaluation import evaluate
from pipeline.training import distributed
from pipeline.training.model_builder import build
from pipeline.utils.errors import UsageError

LAST_STEP = 19  # 2 epochs, and 3 steps of the next
OPTIONS = {
    "optimizer": "adam",
    "optimizer_options": {},
    "schedule": "cosine",
    "epochs": 3,
    "steps": LAST_STEP,
    "global_clipnorm": 0.5,
    "ema": 0.9,
}


def ready(xla=True, store=DeviceStore):
    """(model, training batches, validation batches)."""
    settings = settings_of(train=OPTIONS)
    split = random_split(STEPS * BATCH, store)
    batches = batching.training(split, settings.train, 0)
    model = build(TASK, settings, machine(xla=xla), batches)
    return model, batches, batching.evaluation(split, settings.train)


def variables(model):
    return [variable for group in model.state.values() for variable in group]


def state_of(model):
    return [variable.numpy() for variable in variables(model)]


@pytest.fixture(scope="module")
def compiled():
    """A model whose step is compiled once, its batches, and its first state."""
    model, batches, validation = ready()
    return model, batches, validation, state_of(model)


def trained(compiled, calls, engine):
    """(history, state) after training from the start, `calls` steps in one call."""
    model, batches, validation, start = compiled
    for variable, value in zip(variables(model), start, strict=True):
        variable.assign(value)
    model.steps_per_execution = calls
    history = registry.load("engines", engine)(model, batches, validation, [])
    return history, state_of(model)


@pytest.fixture(scope="module")
def by_epoch(compiled):
    """(history, state): an epoch in a call."""
    return trained(compiled, STEPS, "gradient_tape")


def test_a_call_is_one_xla_program(compiled, by_epoch):
    """One program for calls of any length, with no variable in the host's memory."""
    for name in ("train", "evaluate"):
        call = compiled[0].step.compiled[name]
        assert call.experimental_get_tracing_count() == 1
        (program,) = call._list_all_concrete_functions()
        assert program.function_def.attr["_XlaMustCompile"].b
        assert "IteratorGetNext" not in str(program.graph.as_graph_def())
        assert all(v.dtype != tf.int32 for v in program.graph.variables)


@pytest.mark.parametrize(
    ("calls", "engine"), [(1, "gradient_tape"), (7, "model_fit"), (STEPS, "model_fit")]
)
def test_neither_the_engine_nor_the_length_of_a_call_matters(
    compiled, by_epoch, calls, engine
):
    history, state = trained(compiled, calls, engine)
    assert history == by_epoch[0]
    require_equal(state, by_epoch[1])
    assert compiled[0].step.traces == 1


def test_the_losses_are_those_without_xla(by_epoch):
    model, batches, validation = ready(xla=False)
    model.steps_per_execution = 3
    train = registry.load("engines", "gradient_tape")
    history = train(model, batches, validation, [])
    for name in ("loss", "val_loss"):
        np.testing.assert_allclose(by_epoch[0][name], history[name], rtol=0.01)


def test_a_run_continues_within_an_epoch_and_within_a_block(by_epoch):
    """Here, the batches are not gathered in the program, but stacked on the host."""
    model, batches, _ = ready(store=MemoryStore)
    model.steps_per_execution = 4
    first = dataclasses.replace(batches, last_step=11)
    registry.load("engines", "gradient_tape")(model, first, None, [])
    rest = dataclasses.replace(batches, first_step=11, first_epoch=1)
    registry.load("engines", "model_fit")(model, rest, None, [])
    require_equal(state_of(model), by_epoch[1])


def test_blocks_hold_all_batches_in_their_order():
    _, batches, _ = ready()
    rows = [batch["row"].numpy() for batch in batches.dataset(0)]
    blocks = list(distributed.blocks(batches, 4))
    stacked = np.concatenate([block["row"].numpy() for block in blocks])
    np.testing.assert_array_equal(stacked[:LAST_STEP], rows)
    assert stacked.shape == (20, BATCH) and not stacked[LAST_STEP:].any()
    assert {block["weight"].shape for block in blocks} == {(4, BATCH)}


def test_each_evaluation_sees_the_same_batches_in_padded_blocks(monkeypatch):
    monkeypatch.setattr(distributed, "MAX_DATA_STEPS", 3)
    model, batches, _ = ready(store=MemoryStore)
    validation = batching.evaluation(batches.split, TrainConfig(batch_size=2))
    assert (validation.last_step, distributed.block_length(validation)) == (8, 3)
    model.step.set_inputs(batches, validation)
    model.steps_per_execution = 5
    evaluate_steps = distributed.StepFunction(model, "evaluate", validation)
    results = []
    for _ in range(3):
        model.reset_metrics()
        evaluate_steps()
        logs = evaluate_steps()
        results.append({name: float(value) for name, value in logs.items()})
    found = evaluate.evaluate(model, TASK, validation)
    assert results[0] == results[1] == results[2]
    assert results[0]["loss"] == pytest.approx(found.metrics["loss"], rel=1e-5)


def test_a_block_is_at_most_an_epoch_and_fits(monkeypatch):
    _, batches, _ = ready(store=MemoryStore)
    assert distributed.block_length(batches) == STEPS
    monkeypatch.setattr(distributed, "MAX_DATA_STEPS", 5)
    assert distributed.block_length(batches) == 5
    example = 8 * 8 + 3 * 8 + 4  # pixels; id, label and epoch; weight
    monkeypatch.setattr(distributed, "BLOCK_BYTES", 3 * BATCH * example)
    assert distributed.block_length(batches) == 3
    monkeypatch.setattr(distributed, "BLOCK_BYTES", 1)
    assert distributed.block_length(batches) == 1


def test_a_bad_step_in_the_middle_of_a_call_changes_only_the_counters():
    """A loss that is not finite, in step 5, and gradients that overflow, before it."""

    def spoil(batch, step):
        is_bad = (step == 5) & (tf.range(BATCH) == 0)
        return {**batch, "weight": tf.where(is_bad, np.nan, 1.0)}

    model, batches = prepared("mixed_float16", xla=True)
    model.step.update.scale.assign(2.0**22)
    update = model.step.update
    states, skipped = [], []

    class Keep(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            trained = [*model.weights, *model.optimizer.variables]
            states.append([variable.numpy() for variable in trained])
            skipped.append(update.skipped_steps)

    start = state_of(model)
    train = registry.load("engines", "gradient_tape")
    spoilt = changed(batches, spoil)
    history = train(model, spoilt, None, [Keep()])
    assert 1 < skipped[4] < skipped[5] < STEPS
    for step in range(1, STEPS):
        is_same = all(map(np.array_equal, states[step - 1], states[step]))
        assert is_same == (skipped[step] > skipped[step - 1])
    assert update.step_stats.pop_bad_steps() == ([5], 1, 1)
    assert float(update.scale.numpy()) == 2.0 ** (22 - update.skipped_steps + 1)
    assert model.step.metrics[0].count.numpy() == (STEPS - 1) * BATCH
    end = state_of(model)

    for variable, value in zip(variables(model), start, strict=True):
        variable.assign(value)
    model.steps_per_execution = STEPS
    assert train(model, spoilt, None, []) == history
    assert update.step_stats.pop_bad_steps() == ([5], 1, 1)
    require_equal(state_of(model), end)


UNSUPPORTED = """
import tensorflow as tf
import keras

class Enlarge(keras.layers.Layer):
    def call(self, x):
        return tf.image.resize(x, (16, 16), "bicubic")

class Host(keras.optimizers.SGD):
    def update_step(self, gradient, variable, learning_rate):
        gradient = tf.numpy_function(lambda x: x, [gradient], tf.float32)
        super().update_step(gradient, variable, learning_rate)

def host(rate):
    return Host(rate)

def network(x):
    x = Enlarge(name="enlarge")(x)
    return keras.layers.GlobalAveragePooling2D()(x)
"""


@pytest.fixture
def unsupported(tmp_path, monkeypatch):
    (tmp_path / "bicubic.py").write_text(UNSUPPORTED)
    monkeypatch.syspath_prepend(tmp_path)

    def built(requested, **train):
        settings = settings_of(
            model={"name": "bicubic.network"}, runtime={"xla": requested}, train=train
        )
        split = random_split(STEPS * BATCH)
        batches = batching.training(split, settings.train, 0)
        model = build(TASK, settings, machine(xla=requested != "off"), batches)
        return model, batches, batching.evaluation(split, settings.train)

    return built


def test_what_xla_cannot_compile_is_named_and_trained_without_it(unsupported, capsys):
    ends = []
    for requested in ("auto", "off"):
        model, batches, validation = unsupported(requested)
        model.steps_per_execution = 3
        train = registry.load("engines", "gradient_tape")
        ends.append(train(model, batches, validation, []))
        result = evaluate.evaluate(model, TASK, validation)
        assert result.metrics["loss"] == pytest.approx(ends[-1]["val_loss"][0])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines] == [
        "off for train: it cannot compile ResizeBicubic in the layer 'enlarge'"
    ]
    for name in ("loss", "val_loss"):
        np.testing.assert_allclose(ends[0][name], ends[1][name], rtol=0.01)


@pytest.mark.long
def test_an_optimizer_may_need_the_host(unsupported):
    options = {"optimizer": "bicubic.host", "optimizer_options": {}}
    model, batches, _ = unsupported("auto", **options)
    history = registry.load("engines", "model_fit")(model, batches, None, [])
    assert np.isfinite(history["loss"]).all()
    assert set(model.step.not_compiled) == {"train", "update"}


def test_xla_on_fails_with_one_line(unsupported):
    model, batches, _ = unsupported("on")
    with pytest.raises(UsageError, match="ResizeBicubic .*'enlarge'; use") as caught:
        registry.load("engines", "model_fit")(model, batches, None, [])
    assert "\n" not in str(caught.value)


def test_the_outputs_of_a_batch_are_one_program(compiled, by_epoch):
    model, _, validation, _ = compiled
    found = evaluate.evaluate(model, TASK, validation)
    (key,) = [key for key in model.step.compiled if key[0] == "outputs"]
    assert model.step.compiled[key].function_def.attr["_XlaMustCompile"].b
    assert found.metrics["loss"] == pytest.approx(by_epoch[0]["val_loss"][-1], rel=1e-5)
