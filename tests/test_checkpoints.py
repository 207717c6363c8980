"""Checkpoints and callbacks: saved whole, damage noticed, the best kept, resumed bit for bit."""

import json
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from pipeline.callbacks import JsonLog, Progress, Saver, Speed
from pipeline.checkpoints import Checkpoints
from pipeline.errors import UsageError
from pipeline.fit import fit
from pipeline.run_directory import RunDirectory


def small_model(units=3):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(units), keras.layers.Dropout(0.5), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    x = np.random.default_rng(0).random((8, 4), np.float32)
    model.fit(x, x[:, :2], verbose=0)
    return model


def checkpoints_of(model, folder):
    state = {"model": model.variables, "optimizer": model.optimizer.variables}
    return Checkpoints(state, folder)


def state_of(model):
    variables = [*model.variables, *model.optimizer.variables]
    return [variable.numpy().copy() for variable in variables]


def test_everything_comes_back(tmp_path):
    model = small_model()
    checkpoints = checkpoints_of(model, tmp_path)
    checkpoints.save(7, {"waited": 2})
    before = state_of(model)
    x = np.ones((8, 4), np.float32)
    model.fit(x, x[:, :2], epochs=3, verbose=0)
    assert any((a != b).any() for a, b in zip(before, state_of(model), strict=True))
    assert checkpoints.restore(7) == {"waited": 2}
    for one, other in zip(before, state_of(model), strict=True):
        np.testing.assert_array_equal(one, other)
    assert any("seed" in v.path for v in model.variables), "dropout's state was not tried"


@pytest.mark.parametrize("name", ["state.data-00000-of-00001", "state.index", "manifest.json"])
@pytest.mark.parametrize("harm", ["flip", "cut", "delete"])
def test_damage_is_noticed(tmp_path, name, harm):
    model = small_model()
    checkpoints = checkpoints_of(model, tmp_path)
    checkpoints.save(7, {"waited": 0})
    before = state_of(model)
    path = tmp_path / "step-00000007" / name
    raw = bytearray(path.read_bytes())
    if harm == "flip":
        raw[len(raw) // 2] ^= 0x10
        path.write_bytes(raw)
    elif harm == "cut":
        path.write_bytes(raw[: len(raw) // 2])
    else:
        path.unlink()
    with pytest.raises(UsageError, match=r"step-00000007 (is damaged|cannot be read).*; delete"):
        checkpoints.restore(7)
    for one, other in zip(before, state_of(model), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "text",
    ["null", "[1]", "{}", '{"step": 7, "files": {}, "state": {}}', "[" * 100_000],
)
def test_a_manifest_that_says_nothing_is_refused(tmp_path, text):
    checkpoints = checkpoints_of(small_model(), tmp_path)
    checkpoints.save(7, {"waited": 1})
    (tmp_path / "step-00000007/manifest.json").write_text(text)
    with pytest.raises(UsageError, match=r"step-00000007.* delete "):
        checkpoints.restore(7)


def test_a_renamed_checkpoint_is_refused(tmp_path):
    checkpoints = checkpoints_of(small_model(), tmp_path)
    checkpoints.save(7, {"waited": 1})
    (tmp_path / "step-00000007").rename(tmp_path / "step-00000009")
    (tmp_path / "step-foo").mkdir()
    assert checkpoints.steps() == [9]
    with pytest.raises(UsageError, match=r"manifest\.json has changed"):
        checkpoints.restore(9)


def test_another_model_is_refused(tmp_path):
    checkpoints_of(small_model(), tmp_path).save(7, {"waited": 0})
    with pytest.raises(UsageError, match="belongs to another model"):
        checkpoints_of(small_model(units=5), tmp_path).restore(7)


def test_only_named_steps_are_kept(tmp_path):
    checkpoints = checkpoints_of(small_model(), tmp_path)
    for step in (2, 10, 9):
        checkpoints.save(step, {"waited": 0})
    assert checkpoints.steps() == [2, 9, 10]
    checkpoints.keep({9})
    assert checkpoints.steps() == [9] and len(list(tmp_path.iterdir())) == 1


class Steps:
    """The two members of Batches that callbacks ask for."""

    batch_size, steps_per_epoch, last_step, first_step, epochs = 4, 5, 50, 0, 10

    def end_of(self, epoch):
        return 5 * (epoch + 1)


def test_patience_stops_and_the_best_comes_back(tmp_path):
    model = small_model()
    saver = Saver(checkpoints_of(model, tmp_path), Steps(), patience=2)
    saver.set_model(model)
    weights = {}
    for epoch, loss in enumerate([0.9, 0.5, float("nan"), 0.7]):
        assert not model.stop_training
        model.layers[0].bias.assign(np.full(3, epoch, np.float32))
        weights[epoch] = model.get_weights()
        saver.on_epoch_end(epoch, {"loss": 1.0, "val_loss": loss})
    assert model.stop_training and saver.stopped
    assert checkpoints_of(model, tmp_path).steps() == [10, 20]
    decision = saver.choose()
    assert decision.value == "step 10"
    for one, other in zip(model.get_weights(), weights[1], strict=True):
        np.testing.assert_array_equal(one, other)


def test_without_patience_the_last_weights_stay(tmp_path):
    model = small_model()
    saver = Saver(checkpoints_of(model, tmp_path), Steps(), patience=None)
    saver.set_model(model)
    for epoch, loss in enumerate([0.5, 0.9]):
        model.layers[0].bias.assign(np.full(3, epoch, np.float32))
        saver.on_epoch_end(epoch, {"loss": 1.0, "val_loss": loss})
    assert saver.choose().value == "step 10"
    assert (model.layers[0].bias.numpy() == 1).all()


def test_one_line_of_log_per_epoch(tmp_path, capsys):
    run = RunDirectory(tmp_path)
    callbacks = [JsonLog(run, Steps()), Progress(Steps())]
    for epoch in range(2):
        for callback in callbacks:
            callback.on_epoch_end(epoch, {"loss": 0.25, "examples_per_second": 1234.5})
    lines = [json.loads(line) for line in run.log.read_text().splitlines()]
    assert [(e["epoch"], e["step"], e["loss"]) for e in lines] == [(1, 5, 0.25), (2, 10, 0.25)]
    shown = capsys.readouterr().out.splitlines()
    assert shown[1].startswith("epoch  2/10  loss 0.2500  1,234 examples/s") and "left" in shown[1]


@pytest.mark.parametrize("calls", [1, 3])
def test_speed_counts_training_alone_without_traces(monkeypatch, calls):
    now = [100.0]
    monkeypatch.setattr("pipeline.callbacks.time.monotonic", lambda: now[0])
    speed = Speed(Steps())
    step = SimpleNamespace(traces=0)
    speed.set_model(SimpleNamespace(step=step))
    for epoch in range(3):
        now[0] += 1000  # validation
        speed.on_epoch_begin(epoch)
        for batch in range(0, 5, calls):
            speed.on_train_batch_begin(batch)
            # The first call traces, and one in the middle; a shorter last call takes less time.
            traces = batch == 0 and epoch in (0, 2)
            step.traces += traces
            now[0] += 50 if traces else 0.5 * min(calls, 5 - batch)
            speed.on_train_batch_end(batch + calls - 1)
        logs = {}
        speed.on_epoch_end(epoch, logs)
        assert logs["examples_per_second"] == pytest.approx(4 / 0.5)


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    """Stopped after 2 of 4 epochs; weights, optimizer state and history are the same bits."""
    changes = {
        "data": {"limit": 200},
        "model": {"name": "sequential"},  # with dropout
        "train": {"epochs": 4, "batch_size": 16},
        "export": {"enabled": False},
    }

    class Killed(Exception):
        pass

    whole = fit("digits", run_directory=tmp_path / "whole", **changes)

    def killed(model, train, validation, callbacks):
        class Kill(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                if epoch == 1:
                    raise Killed

        original(model, train, validation, [*callbacks, Kill()])

    import pipeline.engines.model_fit as engine

    original = engine.train
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "train", killed)
        with pytest.raises(Killed):
            fit("digits", run_directory=tmp_path / "killed", **changes)
    resumed = fit("digits", run_directory=tmp_path / "killed", **changes)
    for one, other in zip(state_of(whole.model), state_of(resumed.model), strict=True):
        np.testing.assert_array_equal(one, other)
    for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
        assert whole.history[name] == resumed.history[name]
    assert whole.test == resumed.test
    lines = (tmp_path / "killed/log.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3, 4]
