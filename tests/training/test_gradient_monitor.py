"""Bad steps: skipped, counted, named; what follows them; the sizes of gradients in the log."""

import dataclasses
import itertools
import json
import shutil

import keras
import numpy as np
import poison
import pytest
import tensorflow as tf
from small import TASK, machine, random_split, settings_of

from pipeline.config import registry
from pipeline.data import batching, dataset
from pipeline.fit import fit
from pipeline.runtime.run_directory import RunDirectory
from pipeline.training import checkpoints
from pipeline.training.callbacks import gradient_monitor
from pipeline.training.model_builder import build
from pipeline.training.optim.learning_rate import Adjusted
from pipeline.training.optim.step_stats import NAMED, Tally
from pipeline.utils.errors import Diverged

STEPS, BATCH = 8, 8


def prepared(precision="float32", model="tiny", calls=1, **train):
    """(model, batches) of an epoch of 8 steps, fed."""
    settings = settings_of(model={"name": model}, train=train)
    batches = batching.training(random_split(STEPS * BATCH), settings.train, 0)
    model = build(TASK, settings, machine(precision), batches)
    model.step.set_inputs(batches, None)
    model.steps_per_execution = calls
    return model, batches


def poisoned(batches, *steps):
    """The same batches; the first example of these steps has a weight that is no number."""

    def spoilt(ticket, number):
        bad = tf.reduce_any(number == tf.constant(steps, tf.int64)) & (tf.range(BATCH) == 0)
        return {**ticket, "weight": tf.where(bad, np.nan, ticket["weight"])}

    def tickets(first, *share):
        numbers = tf.data.Dataset.range(first, batches.last_step)
        return tf.data.Dataset.zip(batches.tickets(first, *share), numbers).map(spoilt)

    return dataclasses.replace(batches, tickets=tickets)


def test_a_row_of_bad_steps_is_counted_over_calls():
    tally = Tally([keras.Variable([1.0])])

    def bad(*steps, is_bad=True):
        for step in steps:
            tally.bad(tf.constant(step, tf.int64), tf.constant(is_bad))

    assert tally.pop_bad_steps() is None
    bad(3, 4, 7)
    first = tally.pop_bad_steps()
    assert (first.steps, first.new, first.row) == (
        (3, 4, 7),
        3,
        2,
    ) and tally.pop_bad_steps() is None
    bad(8, 9)
    bad(10, is_bad=False)
    bad(12)
    second = tally.pop_bad_steps()
    assert (second.steps, second.new, second.row) == ((8, 9, 12), 3, 3) and tally.total == 6
    bad(*range(20, 20 + NAMED + 5))
    third = tally.pop_bad_steps()
    assert third.steps == tuple(range(20, 20 + NAMED))
    assert third.new == third.row == NAMED + 5


@pytest.mark.parametrize(("engine", "accumulate"), [("model_fit", 1), ("gradient_tape", 2)])
def test_bad_steps_leave_no_trace_in_weights_and_metrics(engine, accumulate):
    """The loss of the epoch is that of its other steps; the same for every length of a call."""
    ends = []
    for calls in (1, 3):
        model, batches = prepared(calls=calls, accumulate=accumulate)
        history = registry.load("engines", engine)(model, poisoned(batches, 2, 3, 6), None, [])
        assert np.isfinite(history["loss"]).all() and np.isfinite(history["accuracy"]).all()
        bad = model.step.update.tally.pop_bad_steps()
        assert (bad.steps, bad.new, bad.row) == ((2, 3, 6), 3, 2)
        assert model.step.update.skipped == 3 and model.step.metrics[0].count.numpy() == 5 * BATCH
        ends.append((history, [v.numpy() for group in model.state.values() for v in group]))
    (history, one), (other_history, other) = ends
    assert history == other_history
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_overflow_that_the_loss_scale_explains_is_not_bad():
    model, batches = prepared("mixed_float16")
    model.step.update.scale.assign(2.0**31)
    registry.load("engines", "gradient_tape")(model, batches, None, [])
    assert model.step.update.skipped > 0 == model.step.update.tally.total
    model, batches = prepared("mixed_float16")
    registry.load("engines", "gradient_tape")(model, poisoned(batches, 5), None, [])
    assert model.step.update.tally.pop_bad_steps().steps == (5,)


@pytest.mark.parametrize("precision", ["float32", "mixed_float16"])
def test_an_epoch_of_mostly_bad_steps_is_divergence(tmp_path, precision):
    model, batches = prepared(precision)
    guard = gradient_monitor.GradientMonitor(
        settings_of().train, RunDirectory(tmp_path), batches, str
    )
    with pytest.raises(Diverged, match="was not finite in 5 of 8 steps of epoch 1; lower"):
        engine = registry.load("engines", "gradient_tape")
        engine(model, poisoned(batches, 0, 2, 4, 6, 7), None, [guard])


def test_a_loss_that_is_not_finite_keeps_the_loss_scale():
    """No scale helps there; of both engines the same bits."""
    ends = []
    for engine in registry.names("engines"):
        model, batches = prepared("mixed_float16", calls=3)
        update = model.step.update
        registry.load("engines", engine)(model, poisoned(batches, 1, 2, 3, 6), None, [])
        assert update.skipped == 4 and float(update.scale.numpy()) == 2.0**15
        assert int(update._good.numpy()) == 4, "they say nothing of the scale"
        ends.append([v.numpy() for group in model.state.values() for v in group])
    for one, other in zip(*ends, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_loss_that_overflows_is_bad_though_its_gradient_is_finite(workplace):
    """(1e30 - x) squared is infinite in float32, its derivative 2e30 is not."""
    from pipeline.config import command_line
    from pipeline.data import dataset

    config = command_line.recipe("regression_linear").changed(**poison.settings())
    loaded = dataset.load(config)
    poison.spoil(loaded.splits["train"].store, 5, "target", 3e19)
    batches = batching.training(loaded.splits["train"], config.train, 0)
    model = build(loaded.task, config, machine(), batches)
    start = model.get_weights()
    (ticket,) = batches.tickets(0).take(1)
    spoilt = {**ticket, "target": tf.tensor_scatter_nd_update(ticket["target"], [[3]], [3e19])}
    model.step.set_inputs(batches, None)
    gradients, (_, _, losses, _) = model.step._forward_and_backward(model, spoilt)
    assert np.isfinite(gradients[0]).all() and not np.isfinite(losses).all()
    model.step.train(model, spoilt)
    for one, other in zip(start, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert model.step.update.tally.total == 1


def test_the_culprit_is_the_field_else_the_loss_else_the_batch():
    model, batches = prepared()
    spoilt = poisoned(batches, 4)
    model.step.set_inputs(spoilt, None)
    ids = next(iter(batches.tickets(4)))["id"].numpy()
    found = gradient_monitor._of_step(model, spoilt, 4, "file {}".format)
    assert found.reason == "the field 'weight' is not finite" and found.ids == (ids[0],)
    assert (found.step, found.epoch, found.files) == (5, 1, (f"file {ids[0]}",))
    assert gradient_monitor._of_step(model, spoilt, 3, str).reason == "no example alone explains it"
    assert gradient_monitor._of_step(model, spoilt, 3, str).ids == tuple(
        next(iter(batches.tickets(3)))["id"].numpy()
    )
    model.trainable_variables[-1].assign(np.full(3, np.nan))
    assert "it is the weights" in gradient_monitor._of_step(model, spoilt, 3, str).reason


def test_norms_are_those_of_the_steps(tmp_path):
    """Of plain SGD at rate 0.5 a step is half the gradient."""
    norms, before, logs = [], [], {}

    class Look(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            before.append(self.model.get_weights())

        def on_train_batch_end(self, batch, logs=None):
            before.append(self.model.get_weights())
            moved = [(a - b).ravel() for a, b in zip(*before[-2:], strict=True)]
            norms.append(np.linalg.norm(np.concatenate(moved)) / 0.5)

        def on_epoch_end(self, epoch, values=None):
            logs.update(values)

    model, batches = prepared(learning_rate=0.5, optimizer_options={})
    train = settings_of().train
    guard = gradient_monitor.GradientMonitor(train, RunDirectory(tmp_path), batches, str)
    registry.load("engines", "model_fit")(model, poisoned(batches, 2), None, [guard, Look()])
    assert len(norms) == STEPS and norms[2] == 0
    assert logs["gradient_norm"] == pytest.approx(sum(norms) / (STEPS - 1), rel=1e-3)
    assert logs["gradient_norm_max"] == pytest.approx(max(norms), rel=1e-3)
    assert json.loads((tmp_path / "bad_steps.jsonl").read_text())["step"] == 3


def test_a_dead_layer_is_named_once(tmp_path, capsys):
    model, batches = prepared(epochs=2)
    model.layers[1].bias.assign(np.full(3, -1e9))  # behind its ReLU nothing passes
    guard = gradient_monitor.GradientMonitor(
        settings_of().train, RunDirectory(tmp_path), batches, str
    )
    registry.load("engines", "gradient_tape")(model, batches, None, [guard])
    shown = capsys.readouterr().out
    assert shown.count("warning") == 1 and "vanishes: 0 of the largest" in shown
    assert f"epoch 1: the gradient of layer {model.layers[1].name!r}" in shown


@pytest.mark.parametrize(
    ("largest", "layers", "before", "mean", "kinds"),
    [
        (2.0, {"a": 1.0, "b": 1.7}, [], 1.0, []),
        (2.0, {"a": 1.0, "b": 1e-9}, [], 1.0, [("vanishes", "b")]),
        (2.0, {"a": 0.0, "b": 0.0}, [], 1.0, []),
        (31.0, {"a": 1.0, "b": 30.9}, [], 1.0, [("explodes", "b")]),
        (31.0, {"a": 30.0, "b": 4.0}, [3.0, 0.5], 0.5, []),  # a spike that was usual before
        (91.0, {"a": 90.0, "b": 4.0}, [3.0, 0.5], 90.0, [("explodes", "a")]),
        (float("nan"), {"a": 0.0}, [3.0], float("nan"), []),
    ],
)
def test_what_vanishes_and_what_explodes(largest, layers, before, mean, kinds):
    found = gradient_monitor._findings(largest, layers, before, mean)
    assert [(kind, layer) for kind, layer, _ in found] == kinds


def test_a_factor_of_one_changes_no_bit_and_travels_with_the_schedule():
    plain = registry.load("schedules", "cosine")(0.013, 97, warmup=0.1)
    lowered = Adjusted(plain)
    steps = tf.range(97, dtype=tf.int64)
    np.testing.assert_array_equal(plain(steps), lowered(steps))
    lowered.factor.assign(0.5)
    np.testing.assert_array_equal(plain(steps) * 0.5, lowered(steps))
    again = Adjusted.from_config(lowered.get_config())
    np.testing.assert_array_equal(plain(steps), again(steps))


def test_weights_that_are_not_finite_are_not_written(tmp_path):
    model, _ = prepared()
    saved = checkpoints.Checkpoints(model.state, tmp_path)
    checkpoints.require([v for group in model.state.values() for v in group], 3)
    for group in ("model", "optimizer"):
        variable = next(v for v in model.state[group] if "float" in v.dtype and v.shape)
        held = variable.numpy()
        variable.assign(np.where(np.arange(held.size).reshape(held.shape) == 1, np.inf, held))
        with pytest.raises(Diverged, match=f"{variable.path} is not finite after step 3"):
            saved.save(3, {})
        variable.assign(held)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("kind", "engine"),
    [*zip(poison.KINDS, itertools.cycle(registry.names("engines")), strict=False)],
)
def test_a_fault_at_a_random_place(workplace, kind, engine):
    generator = np.random.default_rng([3, poison.KINDS.index(kind)])
    with pytest.MonkeyPatch.context() as patch:
        assert poison.injected(patch, workplace / "run", kind, engine, generator) is None


def test_a_step_that_is_taken_again_is_named_once(workplace, monkeypatch):
    load = dataset.load

    def spoilt(config):
        found = load(config)
        split = found.splits["train"]
        poison.spoil(split.store, int(split.rows[0]), "features", np.nan)
        return found

    monkeypatch.setattr(dataset, "load", spoilt)
    for _ in range(2):
        fit("regression_linear", run_directory=workplace / "run", **poison.CHANGES)
        lines = (workplace / "run/bad_steps.jsonl").read_text().splitlines()
        assert len(lines) == len(set(lines)) == 3, "one bad step in each of three epochs"
        shutil.rmtree(sorted((workplace / "run/checkpoints").iterdir())[-1])


@pytest.mark.long
def test_a_hundred_faults(workplace):
    failures = []
    for number in range(100):
        kind, engine = poison.KINDS[number % 3], registry.names("engines")[number % 2]
        generator = np.random.default_rng([4, number])
        with pytest.MonkeyPatch.context() as patch:
            folder = workplace / str(number)
            failures.append(poison.injected(patch, folder, kind, engine, generator))
    assert failures == [None] * 100
