"""What callbacks keep during training: checkpoints, the log and the
scalars, the speed.
"""

import errno
import json
import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from checkpointed_network import checkpoints_of, small_model
from interrupted_run import scalars
from tensorboard.backend.event_processing import event_accumulator
from toy_problem import Steps

from pipeline.config.sections import LogConfig, TrainConfig
from pipeline.runtime.run_directory import RunDirectory
from pipeline.runtime.signals import Stopped, StopSignals
from pipeline.training import tensorboard
from pipeline.training.callbacks.checkpoint import CheckpointCallback
from pipeline.training.callbacks.early_stopping import EarlyStopping
from pipeline.training.callbacks.metric_logger import MetricLogger
from pipeline.training.callbacks.progress import Progress
from pipeline.training.callbacks.throughput import Throughput
from pipeline.utils import progress_bar
from pipeline.utils.errors import Terminated

POINT = (("batch_loss", 0.75), ("batch_learning_rate", 0.5))
# Five steps per epoch; these callbacks read no data.
STEPS = Steps(batch_size=4, steps_per_epoch=5, last_step=50)


@pytest.fixture
def model():
    return small_model()


@pytest.fixture
def callback(model, tmp_path):
    """A function that makes the checkpoint callback with options of the
    section train.
    """

    def make(stops=None, **options):
        checkpoints = checkpoints_of(model, tmp_path)
        train = TrainConfig(**options)
        early_stopping = EarlyStopping(train.patience)
        early_stopping.set_model(model)
        made = CheckpointCallback(checkpoints, early_stopping, STEPS, train, stops)
        made.set_model(model)
        return made

    return make


def end_epoch(callback, epoch, logs):
    """Calls the checkpoint callback and the one before it, as an engine does."""
    callback.early_stopping.on_epoch_end(epoch, logs)
    callback.on_epoch_end(epoch, logs)


def no_space(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(("patience", "chosen"), [(2, 10), (None, 20)])
def test_patience_stops_and_restores_the_best_weights(
    model, callback, tmp_path, patience, chosen, capsys
):
    made, weights = callback(patience=patience, checkpoint_steps=5), {}
    for epoch, loss in enumerate([0.9, 0.5, float("nan"), 0.7]):
        assert not model.stop_training
        model.layers[0].bias.assign(np.full(3, epoch, np.float32))
        weights[5 * (epoch + 1)] = model.get_weights()
        end_epoch(made, epoch, {"loss": 1.0, "val_loss": loss})
    assert made.complete == model.stop_training == (patience is not None)
    why = "no lower val_loss for 2 epochs (--train.patience)"
    assert made.why_early == (why if patience else "")
    assert checkpoints_of(model, tmp_path).steps() == [10, 15, 20]
    assert made.restore_final_weights().value == f"step {chosen}"
    for one, other in zip(model.get_weights(), weights[chosen], strict=True):
        np.testing.assert_array_equal(one, other)
    next(tmp_path.rglob("step-00000010/manifest.json")).unlink()
    assert made.restore_final_weights().value == "step 20"
    noted = "warning    the best weights cannot be read: " in capsys.readouterr().out
    assert noted == (patience is not None)


def test_a_full_disk_costs_a_checkpoint_but_not_the_run(
    model, callback, tmp_path, monkeypatch, capsys
):
    made = callback(checkpoint_steps=5)
    end_epoch(made, 0, {"loss": 1.0})
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.training.checkpoints.files.publish_as", no_space)
        for epoch in (1, 2):
            end_epoch(made, epoch, {"loss": 1.0})
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000005"]
    end_epoch(made, 3, {"loss": 1.0})
    assert checkpoints_of(model, tmp_path).steps() == [5, 20]
    assert capsys.readouterr().out.splitlines() == [
        "warning    step 10 was not saved: No space left on device; training continues",
        "saved      step 20: the disk is writable again",
    ]


@pytest.mark.parametrize("is_end", [False, True])
def test_a_signal_during_a_save_is_obeyed_before_the_next_call(
    model, callback, tmp_path, is_end
):
    stops = StopSignals()
    model.step = SimpleNamespace(position=5 if is_end else 3, metrics=[])
    made = callback(stops, checkpoint_steps=3)
    write = made._checkpoints.save

    def interrupted(*arguments):
        write(*arguments)
        signal.raise_signal(signal.SIGTERM)

    made._checkpoints.save = interrupted
    with stops.listening(), pytest.raises(Terminated), stops.defer():
        made.on_epoch_begin(0)
        with pytest.raises(Stopped, match="SIGTERM"):
            if is_end:
                end_epoch(made, 0, {"loss": 1.0})
            else:
                made.on_train_batch_end(0)
            made.on_epoch_begin(1)
    assert checkpoints_of(model, tmp_path).steps()[-1] == (5 if is_end else 3)


def test_an_epoch_whose_last_step_the_time_limit_allows_is_finished(
    model, callback, tmp_path
):
    made = callback(StopSignals("1s"))
    made.stops.resume(10.0)  # seconds that are used up
    model.step = SimpleNamespace(position=5, metrics=[])
    made.on_train_batch_end(4)
    made.on_test_begin()
    made.on_test_batch_end(0)
    made.on_test_end()
    end_epoch(made, 0, {"loss": 1.0})
    with pytest.raises(Stopped, match="time"):
        made.on_epoch_begin(1)
    assert checkpoints_of(model, tmp_path).steps() == [5] and made.epoch == 1
    model.step.position = 6
    with pytest.raises(Stopped, match="time"):
        made.on_train_batch_end(0)


@pytest.mark.parametrize("running", [None, [["AAAA", "AAAA"], ["AAAA"]]])
def test_the_state_of_a_run_is_restored(callback, running):
    made, again = callback(), callback()
    made.seconds, made.step = [0.0, 1.5], 12
    names = ["loss", "val_top_5_accuracy", "F1 (macro)", "größe/mittel"]
    made.history = {name: [0.5, float("nan")] for name in names}
    made._save(running)
    again.resume()
    np.testing.assert_equal(again.history, made.history)
    assert (again.step, again.epoch, again._running) == (12, 2, running)


def test_the_best_weights_are_those_before_a_resume(callback, model):
    made = callback(patience=3, checkpoint_steps=5)
    model.set_weights([np.ones_like(weight) for weight in model.get_weights()])
    end_epoch(made, 0, {"loss": 1.0, "val_loss": 0.5})
    model.set_weights([np.zeros_like(weight) for weight in model.get_weights()])
    end_epoch(made, 1, {"loss": 0.5, "val_loss": 0.9})
    again = callback(patience=3)
    again.resume()
    assert again.best_epoch == 1
    assert again.restore_final_weights().value == "step 5"
    for weight in model.get_weights():
        np.testing.assert_array_equal(weight, np.ones_like(weight))


def test_a_signal_during_validation_is_obeyed_after_its_batch(model, callback):
    """The epoch is validated again when the run is resumed."""
    stops = StopSignals()
    update = SimpleNamespace(swap_ema=lambda: None)
    model.step = SimpleNamespace(position=5, metrics=[], update=update)
    made = callback(stops)
    with stops.listening(), pytest.raises(Terminated), stops.defer():
        made.on_train_batch_end(4)
        made.on_test_begin()
        made.on_test_batch_end(0)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Stopped, match="SIGTERM"):
            made.on_test_batch_end(1)
    again = callback()
    left = again.resume()
    assert (left.first_step, left.first_epoch) == (5, 0)


def test_an_epoch_that_a_smaller_number_of_steps_had_cut_short_goes_on(callback):
    made, again = callback(), callback()
    made.seconds, made.step, made.history = [0.0, 1.5], 8, {"loss": [0.5, 0.4]}
    made._save(None)
    left = again.resume()
    assert (left.first_step, left.first_epoch, again.epoch) == (8, 1, 1)
    assert (again.seconds, again.history) == ([0.0], {"loss": [0.5]})


# The log and the scalars for TensorBoard


class Logged:
    """A run directory whose epochs are logged one after the other."""

    def __init__(self, path):
        self.run = RunDirectory(path)
        self.losses = [0.4, 0.3, 0.2, 0.1]
        seconds = [1.0, 2.0, 3.0, 4.0]
        self.saved = SimpleNamespace(
            epoch=0, history={"loss": self.losses}, seconds=seconds
        )
        self.saved.step = 0
        self.step = SimpleNamespace(position=0, update=SimpleNamespace())
        self.model = SimpleNamespace(
            step=self.step, optimizer=SimpleNamespace(learning_rate=0.5)
        )

    def context(self):
        return SimpleNamespace(
            run=self.run,
            batches=STEPS,
            checkpoint=self.saved,
            log=LogConfig(),
            stops=StopSignals(),
        )

    def logger(self):
        made = MetricLogger(self.context())
        made.set_model(self.model)
        return made

    def train(self, logger, epochs=1):
        for _ in range(epochs):
            self.step.position += 2
            logger.on_train_batch_end(1, {"loss": 0.75})
            self.step.position += 3
            self.saved.epoch, self.saved.step = self.saved.epoch + 1, self.step.position
            logger.on_epoch_end(self.saved.epoch - 1)

    def read(self):
        return [
            json.loads(line)["loss"] for line in self.run.log.read_text().splitlines()
        ]

    def read_within(self):
        values = tensorboard.read_scalars(self.run.tensorboard / "train")
        return [point for point in values if point[1].startswith("batch_")]

    def read_scalars(self):
        return pytest.approx([value for *_, value in scalars(self.run.path)])


@pytest.fixture
def logged(tmp_path):
    return Logged(tmp_path)


def test_each_epoch_has_a_line_in_the_log(logged):
    logged.train(logged.logger(), 2)
    second = json.loads(logged.run.log.read_text().splitlines()[1])
    assert second == {"epoch": 2, "step": 10, "seconds": 2.0, "loss": 0.3}


def test_progress_within_and_after_epochs(logged, capsys, monkeypatch):
    now, progress = [1000.0], Progress(logged.context())
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    progress.set_model(logged.model)
    with progress_bar.show(True):
        for epoch in range(2):
            progress.on_epoch_begin(epoch)
            for batch in (1, 4):
                logged.step.position, now[0] = 5 * epoch + batch, now[0] + 60
                progress.on_train_batch_end(batch, {"loss": 0.5, "accuracy": batch / 5})
            now[0] += 60
            progress.on_test_batch_begin(0)
            logged.step.position = 5 * epoch + 5
            progress.on_epoch_end(epoch, {"loss": 0.25, "examples_per_second": 1234.5})
    assert capsys.readouterr().out.splitlines()[:5] == [
        (
            "epoch  1/10 20%  4:00 left (run 49:00)  loss 0.5000  accuracy 0.2000  0.1"
            " examples/s"
        ),
        (
            "epoch  1/10 80%  0:30 left (run 23:00)  loss 0.5000  accuracy 0.8000  0.2"
            " examples/s"
        ),
        "epoch  1/10 80%  validation",
        "epoch  1/10  loss 0.2500  1,234 examples/s  27:00 left",
        (
            "epoch  2/10 20%  2:40 left (run 29:20)  loss 0.5000  accuracy 0.2000  0.1"
            " examples/s"
        ),
    ]


def test_the_log_is_complete_after_a_full_disk_and_a_killed_process(
    logged, monkeypatch, capsys
):
    logger = logged.logger()
    logged.train(logger)
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.open", no_space)
        logged.train(logger, 2)
    said = "log.jsonl cannot be written: No space left on device; training continues"
    assert capsys.readouterr().out.count(said) == 1, "once, not in each epoch"
    logged.saved.epoch = 4  # saved, and killed before the log was written
    logged.logger().write()
    assert logged.read() == logged.losses
    logged.saved.epoch = 2  # resumed from an older checkpoint
    logged.logger().on_train_begin()
    assert logged.read() == logged.losses[:2] == logged.read_scalars()


def test_points_within_epochs_are_kept_up_to_the_checkpoint(logged, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    logged.run.config.write_text('{"seed": 1}')
    logger = logged.logger()
    logger.on_train_begin()
    for seconds in (0.5, 0.9, 1.6, 5.0):
        now[0] = seconds
        logged.train(logger)
    steps = [2, 12, 17]  # the second point came too early
    rates = [(step, tag, value) for step in steps for tag, value in POINT]
    assert logged.read_within() == rates
    logged.saved.epoch, logged.saved.step = (
        2,
        12,
    )  # killed, and resumed within the third epoch
    logged.logger().on_train_begin()
    assert (
        logged.read_within() == rates[:4] and logged.read_scalars() == logged.losses[:2]
    )
    board = event_accumulator.EventAccumulator(str(logged.run.tensorboard / "train"))
    board.Reload()
    (text,) = board.Tensors("config")
    assert text.tensor_proto.string_val == [b'    {"seed": 1}']


def test_the_results_and_pictures_are_shown_once(logged):
    picture = np.zeros((3, 5, 3), np.uint8)
    for name in ("confusion_matrix.png", "mistakes.png"):
        (logged.run.path / name).write_bytes(tf.io.encode_png(picture).numpy())
    for accuracy in (0.5, 0.75):
        metrics = {"accuracy": accuracy, "examples": 7, "per_class": {}}
        tensorboard.write_results(logged.run, "test", 3, metrics)
    board = event_accumulator.EventAccumulator(str(logged.run.tensorboard / "test"))
    board.Reload()
    names = ["confusion_matrix", "epoch_accuracy", "mistakes"]
    assert sorted(board.Tags()["tensors"]) == names
    (picture,) = board.Tensors("mistakes")
    assert picture.tensor_proto.string_val[:2] == [b"5", b"3"]
    (point,) = board.Tensors("epoch_accuracy")
    assert (point.step, tf.make_ndarray(point.tensor_proto)) == (3, 0.75)


@pytest.mark.parametrize("calls", [1, 3])
def test_speed_is_that_of_training_without_traces(monkeypatch, calls):
    now = [100.0]
    monkeypatch.setattr(
        "pipeline.training.callbacks.throughput.time.monotonic", lambda: now[0]
    )
    speed, step = Throughput(batch_size=4), SimpleNamespace(traces=0, position=0)
    speed.set_model(SimpleNamespace(step=step))
    for epoch in range(3):
        now[0] += 1000  # validation
        speed.on_epoch_begin(epoch)
        for batch in range(0, 5, calls):
            speed.on_train_batch_begin(batch)
            # Two calls trace; a shorter last call takes less time.
            traces = batch == 0 and epoch in (0, 2)
            step.traces += traces
            now[0] += 50 if traces else 0.5 * min(calls, 5 - batch)
            step.position += min(calls, 5 - batch)
            speed.on_train_batch_end(batch + calls - 1)
        logs = {}
        speed.on_epoch_end(epoch, logs)
        assert logs["examples_per_second"] == pytest.approx(4 / 0.5)
