"""What is kept while a run is trained: the best and the newest, the journal, the speed."""

import errno
import json
import os
import signal
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from saved import checkpoints_of, small_model
from stopping import scalars

from pipeline.config.config import Train
from pipeline.runtime.run_directory import RunDirectory
from pipeline.runtime.signals import Stopped, Stops
from pipeline.training.callbacks.checkpoint import CheckpointCallback
from pipeline.training.callbacks.metric_logger import MetricLogger
from pipeline.training.callbacks.progress import Progress
from pipeline.training.callbacks.throughput import Throughput
from pipeline.utils.errors import Terminated, UsageError


class Steps:
    """The two members of Batches that callbacks ask for."""

    batch_size, steps_per_epoch, last_step, epochs = 4, 5, 50, 10
    first_step = first_epoch = 0

    def end_of(self, epoch):
        return 5 * (epoch + 1)


def test_patience_stops_and_the_best_comes_back(tmp_path):
    model = small_model()
    saver = CheckpointCallback(
        checkpoints_of(model, tmp_path), Steps(), Train(patience=2, checkpoint_steps=5)
    )
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
    saver = CheckpointCallback(checkpoints_of(model, tmp_path), Steps(), Train(checkpoint_steps=5))
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
    callbacks = [MetricLogger(run, steps, saver), Progress(steps, Stops())]
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
    monkeypatch.setattr("pipeline.training.callbacks.throughput.time.monotonic", lambda: now[0])
    speed = Throughput(Steps())
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


def test_a_full_disk_costs_a_checkpoint_and_not_the_run(tmp_path, monkeypatch, capsys):
    model = small_model()
    saver = CheckpointCallback(checkpoints_of(model, tmp_path), Steps(), Train(checkpoint_steps=5))
    saver.set_model(model)
    saver.on_epoch_end(0, {"loss": 1.0})
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.training.checkpoints.files.publish_as", no_space)
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


@pytest.mark.parametrize("where", ["within an epoch", "at its end", "after it"])
def test_a_signal_while_a_checkpoint_is_written_is_obeyed_before_the_next_call(tmp_path, where):
    model, stops = small_model(), Stops()
    model.step = SimpleNamespace(position=5 if where == "at its end" else 3, metrics=[])
    checkpoints, options = checkpoints_of(model, tmp_path), Train(checkpoint_steps=3)
    saver = CheckpointCallback(checkpoints, Steps(), options, stops)
    saver.set_model(model)
    write = checkpoints.save

    def struck(*arguments):
        write(*arguments)
        signal.raise_signal(signal.SIGTERM)

    def struck_train():
        if where == "within an epoch":
            checkpoints.save = struck
        saver.on_train_batch_end(0)
        if where == "at its end":
            checkpoints.save = struck
        saver.on_epoch_end(0, {"loss": 1.0})
        if where == "after it":
            signal.raise_signal(signal.SIGTERM)
        saver.on_epoch_begin(1)
        raise AssertionError("the next call would run")

    with stops.listening(), pytest.raises(Terminated), stops.deferred():
        saver.on_epoch_begin(0)
        with pytest.raises(Stopped, match="SIGTERM"):
            struck_train()
    assert checkpoints_of(model, tmp_path).steps()[-1] == (3 if where == "within an epoch" else 5)


def no_space(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_journal_is_whole_again_after_a_full_disk_and_a_killed_process(tmp_path, monkeypatch):
    run, steps = RunDirectory(tmp_path), Steps()
    losses = [0.4, 0.3, 0.2, 0.1]
    saver = SimpleNamespace(epoch=0, history={"loss": losses}, seconds=[1.0, 2.0, 3.0, 4.0])
    journal = MetricLogger(run, steps, saver)
    for epoch in range(3):
        saver.epoch += 1
        with monkeypatch.context() as patch:
            if epoch == 1:
                patch.setattr("pathlib.Path.open", no_space)
            journal.on_epoch_end(epoch)
    assert logged(run) == losses[:3]
    saver.epoch = 4  # saved, and killed before the journal was written
    MetricLogger(run, steps, saver).write()
    saver.epoch = 2  # taken up at an older checkpoint
    again = MetricLogger(run, steps, saver)
    again.on_train_begin()
    assert logged(run) == losses[:2]
    assert [value for _, _, _, value in scalars(tmp_path)] == pytest.approx(losses[:2])


@pytest.mark.parametrize("broken", ["tensorboard", "log"])
def test_the_log_and_the_scalars_are_written_each_for_itself(tmp_path, capsys, broken):
    run, steps, losses = RunDirectory(tmp_path), Steps(), [0.4, 0.3, 0.2]
    saver = SimpleNamespace(epoch=0, history={"loss": losses}, seconds=[1.0, 2.0, 3.0])
    if broken == "log":
        run.log.mkdir()
    else:
        run.tensorboard.write_text("mine")
    journal = MetricLogger(run, steps, saver)
    for epoch in range(3):
        saver.epoch += 1
        journal.on_epoch_end(epoch)
    why = {"log": "log.jsonl cannot be written: Is a", "tensorboard": "cannot be written: Not a"}
    said = f"{why[broken]} directory; training goes on"
    assert capsys.readouterr().out.count(said) == 1, "once, not at each epoch"
    if broken == "log":
        assert [value for _, _, _, value in scalars(tmp_path)] == pytest.approx(losses)
        run.log.rmdir()
    else:
        assert logged(run) == losses and run.tensorboard.read_text() == "mine"
        run.tensorboard.unlink()
    MetricLogger(run, steps, saver).write()
    assert logged(run) == losses
    assert [value for _, _, _, value in scalars(tmp_path)] == pytest.approx(losses)


def test_a_full_disk_is_not_told_by_the_journal(tmp_path, monkeypatch, capsys):
    saver = SimpleNamespace(epoch=1, history={"loss": [0.4]}, seconds=[1.0])
    journal = MetricLogger(RunDirectory(tmp_path), Steps(), saver)
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):

        def full(*_, number=number, **__):
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch:
            patch.setattr("pathlib.Path.open", full)
            journal.write()
    assert capsys.readouterr().out == ""


def logged(run):
    return [json.loads(line)["loss"] for line in run.log.read_text().splitlines()]


@pytest.mark.parametrize(
    "forged",
    [
        *({"waited": "x"}, {"seconds": 5}, {"history": {"loss": []}}, {"history": "abc"}),
        *({"running": [["!!!"]]}, {"saved": []}, {"saved": [1, 2]}, {"elapsed": "x"}),
        *({"running": [[]]}, {"running": {}}, {"running": "abcd"}, {"running": ["abcd"]}),
        *({"running": [[5]]}, {"running": 0}, {"running": False}, {"history": {}}),
        *(
            {"history": {"loss": [0.5], name: [1.0]}}
            for name in ("val_\ud800", "../../x", "/x", "")
        ),
        *({"history": {"loss": value}} for value in (["0.5"], "1", {"a": 1}, [[]], [10**400])),
        *({"history": {"val_loss": [0.5]}}, {"history": [["loss", [0.5]]]}),
        *({"elapsed": -1e300}, {"seconds": [-1.0]}, {"elapsed": None}, {"ended": 0}),
    ],
)
def test_a_state_that_nobody_has_written_is_damage(tmp_path, forged):
    """Its sums agree, as anybody can compute them."""
    batches = SimpleNamespace(epochs=5, last_step=50, end_of=lambda epoch: 10 * epoch + 10)
    checkpoints = checkpoints_of(small_model(), tmp_path)
    saver = CheckpointCallback(checkpoints, batches, Train())
    saver.seconds, saver.history = [1.0], {"loss": [0.5]}
    for step in (5, 10):
        checkpoints.save(step, saver._state(None, [(5, 5), (10, 10)]))
    path = tmp_path / "step-00000010"
    state = {**json.loads((path / "manifest.json").read_text())["state"], **forged}
    checkpoints.save(10, state)
    step, wrong = checkpoints.restore_newest(saver._take)
    assert step == 5 and saver.history == {"loss": [0.5]}
    assert wrong == [f"{path}/manifest.json is damaged"]


@pytest.mark.parametrize("elapsed", ["NaN", "Infinity", "-Infinity"])
def test_no_time_at_all_is_damage(tmp_path, elapsed):
    """JSON as Python reads it has these, though it is never written with them."""
    saver = CheckpointCallback(checkpoints_of(small_model(), tmp_path), Steps(), Train())
    with pytest.raises(ValueError, match="no time"):
        saver._take(5, {**saver._state(None, [(5, 5)]), "elapsed": json.loads(elapsed)})


@pytest.mark.parametrize("running", [None, [["AAAA", "AAAA"], ["AAAA"]]])
def test_whatever_a_healthy_run_has_measured_is_taken(tmp_path, running):
    names = ["loss", "val_top_5_accuracy", "F1 (macro)", "precision@0.5", "größe/mittel", "a..b"]
    checkpoints = checkpoints_of(small_model(), tmp_path)
    saver = CheckpointCallback(checkpoints, Steps(), Train())
    saver.seconds = [0.0, 1.5]
    saver.history = {name: [0.5, float("nan")] for name in names}
    checkpoints.save(12, saver._state(running, [(12, 12)]))
    again = CheckpointCallback(checkpoints, Steps(), Train())
    checkpoints.restore_newest(again._take)
    np.testing.assert_equal(again.history, saver.history)
    assert again.epoch == 2 and again._running == running


def test_metrics_that_the_task_no_longer_has_are_told(tmp_path):
    model = small_model()
    model.step = SimpleNamespace(metrics=[keras.metrics.Mean()])
    saver = CheckpointCallback(checkpoints_of(model, tmp_path), Steps(), Train())
    saver.set_model(model)
    for running in ([], [["AAAA"], ["AAAA"]], [["AAAA"]] * 3):
        saver._running = running
        with pytest.raises(UsageError, match="saved within an epoch by a task with other metrics"):
            saver.on_epoch_begin(0)


def test_an_epoch_without_a_measure_has_no_number_for_it(tmp_path):
    """Another precision was forced: the loss scale begins, or ends, in the middle of a run."""
    batches = SimpleNamespace(
        epochs=5, last_step=50, steps_per_epoch=10, end_of=lambda epoch: 10 * epoch + 10
    )
    saver = CheckpointCallback(checkpoints_of(small_model(), tmp_path), batches, Train())
    saver.set_model(small_model())
    saver.on_epoch_end(0, {"loss": 1.0})
    saver.on_epoch_end(1, {"loss": 0.5, "loss_scale": 8.0})
    saver.on_epoch_end(2, {"loss": 0.4})
    assert [len(values) for values in saver.history.values()] == [3, 3]
    np.testing.assert_array_equal(saver.history["loss_scale"], [np.nan, 8.0, np.nan])
