"""Checkpoints and callbacks: saved whole, damage noticed, the best kept, resumed bit for bit."""

import errno
import json
import os
import shutil
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from stopping import scalars

from pipeline.callbacks import Progress, Speed
from pipeline.checkpoints import Checkpoints
from pipeline.config import Train
from pipeline.errors import NoCheckpoint, UsageError
from pipeline.journal import Journal
from pipeline.run_directory import RunDirectory
from pipeline.saver import Saver
from pipeline.stops import Stops


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
    with pytest.raises(UsageError, match=f"step-00000007/{name} is damaged"):
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
    with pytest.raises(UsageError, match=r"step-00000007/manifest\.json is damaged"):
        checkpoints.restore(7)


def test_a_renamed_checkpoint_is_refused(tmp_path):
    checkpoints = checkpoints_of(small_model(), tmp_path)
    checkpoints.save(7, {"waited": 1})
    (tmp_path / "step-00000007").rename(tmp_path / "step-00000009")
    (tmp_path / "step-foo").mkdir()
    assert checkpoints.steps() == [9]
    with pytest.raises(UsageError, match=r"manifest\.json is damaged"):
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

    batch_size, steps_per_epoch, last_step, epochs = 4, 5, 50, 10
    first_step = first_epoch = 0

    def end_of(self, epoch):
        return 5 * (epoch + 1)


def test_patience_stops_and_the_best_comes_back(tmp_path):
    model = small_model()
    saver = Saver(checkpoints_of(model, tmp_path), Steps(), Train(patience=2, checkpoint_steps=5))
    saver.set_model(model)
    weights = {}
    for epoch, loss in enumerate([0.9, 0.5, float("nan"), 0.7]):
        assert not model.stop_training
        model.layers[0].bias.assign(np.full(3, epoch, np.float32))
        weights[epoch] = model.get_weights()
        saver.on_epoch_end(epoch, {"loss": 1.0, "val_loss": loss})
    assert model.stop_training and saver.stopped
    assert checkpoints_of(model, tmp_path).steps() == [10, 15, 20]
    decision = saver.choose()
    assert decision.value == "step 10"
    for one, other in zip(model.get_weights(), weights[1], strict=True):
        np.testing.assert_array_equal(one, other)


def test_without_patience_the_last_weights_stay(tmp_path):
    model = small_model()
    saver = Saver(checkpoints_of(model, tmp_path), Steps(), Train(checkpoint_steps=5))
    saver.set_model(model)
    for epoch, loss in enumerate([0.5, 0.9]):
        model.layers[0].bias.assign(np.full(3, epoch, np.float32))
        saver.on_epoch_end(epoch, {"loss": 1.0, "val_loss": loss})
    assert saver.choose().value == "step 10"
    assert (model.layers[0].bias.numpy() == 1).all()


def test_one_line_of_log_per_epoch(tmp_path, capsys):
    run, steps = RunDirectory(tmp_path), Steps()
    saver = SimpleNamespace(
        epoch=0, history={"loss": [0.25, 0.25], "val_loss": [0.5, 0.5]}, seconds=[1.0, 2.5]
    )
    callbacks = [Journal(run, steps, saver), Progress(steps, Stops())]
    for epoch in range(2):
        saver.epoch += 1
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
    step = SimpleNamespace(traces=0, position=0)
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
            step.position += min(calls, 5 - batch)
            speed.on_train_batch_end(batch + calls - 1)
        logs = {}
        speed.on_epoch_end(epoch, logs)
        assert logs["examples_per_second"] == pytest.approx(4 / 0.5)


def test_the_newest_whole_one_is_taken_and_the_damaged_ones_are_named(tmp_path):
    model = small_model()
    checkpoints = checkpoints_of(model, tmp_path)
    kept = {}
    for step in (1, 2, 3):
        model.layers[0].bias.assign(np.full(3, step, np.float32))
        kept[step] = state_of(model)
        checkpoints.save(step, {"waited": step})
    for step in (3, 2):
        path = tmp_path / f"step-{step:08d}/state.index"
        path.write_bytes(path.read_bytes()[:-1])
    taken = {}
    step, wrong = checkpoints.restore_newest(taken.__setitem__)
    state = taken[step]
    assert (step, state) == (1, {"waited": 1})
    assert [
        f"step-0000000{n}/state.index is damaged" in w for n, w in zip((3, 2), wrong, strict=True)
    ] == [1, 1]
    for one, other in zip(state_of(model), kept[1], strict=True):
        np.testing.assert_array_equal(one, other)
    checkpoints.save(3, {"waited": 3})  # the damaged one is not in its way
    checkpoints.keep({3})
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]
    (tmp_path / "step-00000003/manifest.json").unlink()
    with pytest.raises(NoCheckpoint, match="is whole: .*manifest.json is damaged; start again"):
        checkpoints.restore_newest(lambda step, state: None)
    with pytest.raises(NoCheckpoint):  # also the next time
        checkpoints.restore_newest(lambda step, state: None)


def test_a_new_state_of_the_same_step_replaces_the_old_one(tmp_path):
    model = small_model()
    checkpoints = checkpoints_of(model, tmp_path)
    checkpoints.save(7, {"waited": 1})
    checkpoints.save(7, {"waited": 2})
    assert checkpoints.restore(7) == {"waited": 2}


def test_files_of_elsewhere_are_never_opened(tmp_path):
    model = small_model()
    checkpoints = checkpoints_of(model, tmp_path)
    checkpoints.save(7, {"waited": 1})
    data = tmp_path / "step-00000007/state.index"
    data.rename(tmp_path / "elsewhere")
    data.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=r"state\.index is damaged"):
        checkpoints.restore(7)


def test_a_full_disk_costs_a_checkpoint_and_not_the_run(tmp_path, monkeypatch, capsys):
    model = small_model()
    saver = Saver(checkpoints_of(model, tmp_path), Steps(), Train(checkpoint_steps=5))
    saver.set_model(model)
    saver.on_epoch_end(0, {"loss": 1.0})
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.checkpoints.files.publish_as", no_space)
        for epoch in (1, 2):
            saver.on_epoch_end(epoch, {"loss": 1.0})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000005"]
    saver.on_epoch_end(3, {"loss": 1.0})
    assert checkpoints_of(model, tmp_path).steps() == [5, 20]
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "warning    step 10 could not be saved: No space left on device; training goes on",
        "saved      step 20: the disk can be written again",
    ]


def no_space(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_journal_is_whole_again_after_a_full_disk_and_a_killed_process(tmp_path, monkeypatch):
    run, steps = RunDirectory(tmp_path), Steps()
    losses = [0.4, 0.3, 0.2, 0.1]
    saver = SimpleNamespace(epoch=0, history={"loss": losses}, seconds=[1.0, 2.0, 3.0, 4.0])
    journal = Journal(run, steps, saver)
    for epoch in range(3):
        saver.epoch += 1
        with monkeypatch.context() as patch:
            if epoch == 1:
                patch.setattr("pathlib.Path.open", no_space)
            journal.on_epoch_end(epoch)
    assert logged(run) == losses[:3]
    saver.epoch = 4  # saved, and killed before the journal was written
    Journal(run, steps, saver).write()
    saver.epoch = 2  # taken up at an older checkpoint
    again = Journal(run, steps, saver)
    again.on_train_begin()
    assert logged(run) == losses[:2]
    assert [value for _, _, _, value in scalars(tmp_path)] == pytest.approx(losses[:2])


def logged(run):
    return [json.loads(line)["loss"] for line in run.log.read_text().splitlines()]


def test_only_the_process_that_writes_makes_the_folder(tmp_path):
    """Another worker may come first, and the chief then finds a folder that is no run."""
    state = {"model": small_model().variables}
    Checkpoints(state, tmp_path / "run/checkpoints", writes=False).require_room()
    assert not (tmp_path / "run").exists()
    Checkpoints(state, tmp_path / "run/checkpoints").require_room()
    assert (tmp_path / "run/checkpoints").is_dir()


def test_a_disk_without_room_is_told_before_training(tmp_path, monkeypatch):
    checkpoints = checkpoints_of(small_model(), tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=100))
    with pytest.raises(UsageError, match="checkpoints in .* need 0 MB, and 0 MB are free"):
        checkpoints.require_room()


@pytest.mark.parametrize(
    "forged",
    [
        *({"waited": "x"}, {"seconds": 5}, {"history": {"loss": []}}, {"history": "abc"}),
        *({"running": [["!!!"]]}, {"saved": []}, {"saved": [1, 2]}, {"elapsed": "x"}),
    ],
)
def test_a_state_that_nobody_has_written_is_damage(tmp_path, forged):
    """Its sums agree, as anybody can compute them."""
    batches = SimpleNamespace(epochs=5, last_step=50, end_of=lambda epoch: 10 * epoch + 10)
    checkpoints = checkpoints_of(small_model(), tmp_path)
    saver = Saver(checkpoints, batches, Train())
    saver.seconds, saver.history = [1.0], {"loss": [0.5]}
    for step in (5, 10):
        checkpoints.save(step, saver._state(None, [(5, 5), (10, 10)]))
    path = tmp_path / "step-00000010"
    state = {**json.loads((path / "manifest.json").read_text())["state"], **forged}
    checkpoints.save(10, state)
    step, wrong = checkpoints.restore_newest(saver._take)
    assert step == 5 and saver.history == {"loss": [0.5]}
    assert wrong == [f"{path}/manifest.json is damaged"]


def test_what_lies_beside_the_checkpoints_is_left_alone(tmp_path):
    checkpoints = checkpoints_of(small_model(), tmp_path)
    checkpoints.save(10, {})
    copy = tmp_path / "step-00000010.bak"
    shutil.copytree(tmp_path / "step-00000010", copy)
    (tmp_path / "step-99999").mkdir()
    for name in ("step-00099999", "damaged-step-notes.txt"):
        (tmp_path / name).write_text("mine")
    before = sorted(path.name for path in tmp_path.iterdir())
    assert checkpoints.steps() == [10]
    checkpoints.keep({10})
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_folder_that_goes_while_a_run_is_trained_ends_it(tmp_path):
    checkpoints = checkpoints_of(small_model(), tmp_path / "checkpoints")
    checkpoints.require_room()
    checkpoints.save(10, {})
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(UsageError, match="removed or moved while the run was trained"):
        checkpoints.save(20, {})
    assert not (tmp_path / "checkpoints").exists()


def test_an_epoch_without_a_measure_has_no_number_for_it(tmp_path):
    """Another precision was forced: the loss scale begins, or ends, in the middle of a run."""
    batches = SimpleNamespace(
        epochs=5, last_step=50, steps_per_epoch=10, end_of=lambda epoch: 10 * epoch + 10
    )
    saver = Saver(checkpoints_of(small_model(), tmp_path), batches, Train())
    saver.set_model(small_model())
    saver.on_epoch_end(0, {"loss": 1.0})
    saver.on_epoch_end(1, {"loss": 0.5, "loss_scale": 8.0})
    saver.on_epoch_end(2, {"loss": 0.4})
    assert [len(values) for values in saver.history.values()] == [3, 3]
    np.testing.assert_array_equal(saver.history["loss_scale"], [np.nan, 8.0, np.nan])
