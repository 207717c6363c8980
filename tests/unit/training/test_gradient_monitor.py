"""Bad steps: skipped, counted, named; what follows them; the norms of gradients in the
log.
"""

import json
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from engine_epoch import BATCH, STEPS, prepared
from toy_problem import changed, settings_of

from pipeline.config import registry
from pipeline.runtime.run_directory import RunDirectory
from pipeline.training import checkpoints
from pipeline.training.callbacks import gradient_monitor
from pipeline.utils.errors import Diverged


def poisoned(batches, *steps):
    """The same batches; the first example of these steps has a NaN as its weight."""

    def spoil(batch, step):
        is_bad = tf.reduce_any(step == tf.constant(steps, tf.int64))
        is_first = tf.range(BATCH) == 0
        return {**batch, "weight": tf.where(is_bad & is_first, np.nan, 1.0)}

    return changed(batches, spoil)


def monitor(path, batches, model=None, history=None):
    context = SimpleNamespace(
        train=settings_of().train,
        run=RunDirectory(path),
        batches=batches,
        locate="file {}".format,
        checkpoint=SimpleNamespace(history=history or {}),
        is_chief=True,
    )
    found = gradient_monitor.GradientMonitor(context)
    if model is not None:
        found.set_model(model)
    return found


def train(model, batches, *callbacks, engine="gradient_tape", calls=1):
    model.steps_per_execution = calls
    return registry.load("engines", engine)(model, batches, None, list(callbacks))


def state_of(model):
    return [v.numpy() for group in model.state.values() for v in group]


def test_bad_steps_leave_no_trace_in_weights_and_metrics():
    """The loss of the epoch is that of its other steps, for every length of a call, and
    with either engine. A loss that is not finite does not change the loss scale.
    """
    ends = []
    for engine, calls in (("model_fit", 1), ("gradient_tape", 3)):
        model, batches = prepared("mixed_float16")
        history = train(model, poisoned(batches, 2, 3, 6), engine=engine, calls=calls)
        assert (
            np.isfinite(history["loss"]).all()
            and np.isfinite(history["accuracy"]).all()
        )
        update = model.step.update
        assert update.step_stats.pop_bad_steps() == ([2, 3, 6], 3, 2)
        assert (
            update.skipped_steps == 3
            and model.step.metrics[0].count.numpy() == 5 * BATCH
        )
        assert (
            float(update.scale.numpy()) == 2.0**15
            and int(update._good_steps.numpy()) == 5
        )
        ends.append((history, state_of(model)))
    (history, one), (other_history, other) = ends
    assert history == other_history
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_epoch_of_mostly_bad_steps_is_divergence(tmp_path):
    model, batches = prepared()
    with pytest.raises(Diverged, match="5 of 8 steps of epoch 1"):
        train(model, poisoned(batches, 0, 2, 4, 6, 7), monitor(tmp_path, batches))


def test_the_culprit_is_a_field_or_a_loss_or_the_batch(tmp_path):
    model, batches = prepared()
    spoilt = poisoned(batches, 4)
    model.step.set_inputs(spoilt, None)
    found = monitor(tmp_path, spoilt, model)
    ids = [batch["id"].numpy().tolist() for batch in batches.dataset(0)]
    assert found._entry(4) == {
        "step": 5,
        "epoch": 1,
        "reason": "the field 'weight' is not finite",
        "ids": ids[4][:1],
        "files": [f"file {ids[4][0]}"],
    }
    whole = found._entry(3)
    assert whole["reason"] == "no single example explains it" and whole["ids"] == ids[3]
    model.trainable_variables[-1].assign(np.full(3, np.nan))
    assert "the weights are the cause" in found._entry(3)["reason"]


def test_norms_are_those_of_the_steps(tmp_path):
    """With plain SGD at rate 0.5 a step is half the gradient."""
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
    spoilt = poisoned(batches, 2)
    train(model, spoilt, monitor(tmp_path, spoilt), Look())
    assert len(norms) == STEPS and norms[2] == 0
    assert logs["gradient_norm"] == pytest.approx(sum(norms) / (STEPS - 1), rel=1e-3)
    assert logs["gradient_norm_max"] == pytest.approx(max(norms), rel=1e-3)
    assert json.loads((tmp_path / "bad_steps.jsonl").read_text())["step"] == 3


def test_a_dead_layer_is_named_once(tmp_path, capsys):
    model, batches = prepared(epochs=2)
    model.layers[1].bias.assign(np.full(3, -1e9))  # nothing passes its ReLU
    history = {"loss": [0.0], "gradient_norm": [1.0]}
    train(model, batches, monitor(tmp_path, batches, history=history))
    shown = capsys.readouterr().out
    assert shown.count("warning") == 1 and "vanishes: 0 of the largest" in shown
    assert f"epoch 1: the gradient of layer {model.layers[1].name!r}" in shown


@pytest.mark.parametrize(
    ("largest", "layers", "norms", "kinds"),
    [
        (2.0, {"a": 1.0, "b": 1.7}, [1.0], []),
        (2.0, {"a": 1e-9, "b": 1.0}, [1.0], [("vanishes", "a")]),
        (2.0, {"a": 1.0, "b": 0.0}, [1.0], []),  # a branch without examples
        (2.0, {"a": 1e-9, "b": 1.0}, [], []),  # the first epoch
        (0.001, {"a": 0.0, "b": 1e-3}, [1.0], []),  # a fitted model
        (91.0, {"a": 90.0, "b": 4.0}, [3.0, 0.5], [("explodes", "a")]),
        (31.0, {"a": 30.0, "b": 4.0}, [3.0, 0.5], []),  # usual in an earlier epoch
        (31.0, {"a": 1.0, "b": 30.9}, [], []),  # the first epoch
        (0.177, {"a": 0.1, "b": 0.15}, [5.4e-11], []),  # a fitted model
        (float("nan"), {"a": 0.0}, [3.0], []),
    ],
)
def test_what_vanishes_and_what_explodes(largest, layers, norms, kinds):
    history = {"loss": [1.0] * len(norms), "gradient_norm": norms}

    def problems(loss):
        yielded = gradient_monitor._gradient_problems(largest, layers, loss, history)
        return [(kind, layer) for kind, layer, _ in yielded]

    assert problems(1.1) == kinds
    assert problems(0.9) == [], "the loss falls"


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    model, _ = prepared()
    saved = checkpoints.Checkpoints(model.state, tmp_path)
    for group in ("model", "optimizer"):
        variable = next(v for v in model.state[group] if "float" in v.dtype and v.shape)
        values = variable.numpy()
        variable.assign(
            np.where(np.arange(values.size).reshape(values.shape) == 1, np.inf, values)
        )
        with pytest.raises(
            Diverged, match=f"{variable.path} is not finite after step 3"
        ):
            saved.save(3, {})
        variable.assign(values)
    assert not list(tmp_path.iterdir())
    saved.save(3, {})
