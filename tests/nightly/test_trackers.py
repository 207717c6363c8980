"""Callbacks of experiment trackers, passed to `fit` as to Keras; skipped if not
installed.
"""

import hashlib
import json
import sqlite3
from pathlib import Path

import keras
import numpy as np
import pytest
from sklearn.datasets import load_digits
from tensorboard.backend.event_processing import event_accumulator

from pipeline import trackers
from pipeline.fit import fit

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]
DIGITS = load_digits()


def small(input_shape, classes):
    """A network of its own."""
    layers = [
        keras.Input(input_shape),
        keras.layers.Rescaling(1 / 16),
        keras.layers.Flatten(),
    ]
    return keras.Sequential([*layers, keras.layers.Dense(classes)])


@pytest.fixture(params=["model_fit", "gradient_tape"])
def go(workplace, request):
    def run(callback, epochs=3):
        return train(callback, epochs, request.param)

    return run


def train(callback, epochs=2, engine="model_fit", export=False):
    return fit(
        model=small,
        data=(DIGITS.images.astype("uint8"), DIGITS.target),
        epochs=epochs,
        callbacks=[callback] if callback else None,
        train={"engine": engine},
        log={"progress": False},
        export=export,
    )


def test_mlflow_has_config_metrics_pictures_and_export(workplace, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="pip install mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{workplace}/mlflow.db")
    mlflow.set_tracking_uri(None)
    run = train(trackers.MLflow(experiment="digits"), export=True)
    assert mlflow.active_run() is None
    (record,) = mlflow.search_runs(experiment_names=["digits"], output_format="list")
    assert (record.info.run_name, record.info.status) == ("custom-1", "FINISHED")
    assert record.data.params["train.epochs"] == "2"
    assert record.data.metrics["test_accuracy"] == run.test["accuracy"]
    client = mlflow.MlflowClient()
    points = client.get_metric_history(record.info.run_id, "val_loss")
    logged = {point.step: point.value for point in points}
    assert [logged[1], logged[2]] == pytest.approx(run.history["val_loss"])
    names = {file.path for file in client.list_artifacts(record.info.run_id)}
    assert {"curves.png", "mistakes.png", "report.html", "export"} <= names
    folder = mlflow.artifacts.download_artifacts(
        run_id=record.info.run_id, artifact_path="export"
    )
    assert same_files(run.export, folder)
    with mlflow.start_run() as outer:
        train(trackers.MLflow())
        assert mlflow.active_run().info.run_id == outer.info.run_id
    (inner,) = mlflow.search_runs(
        filter_string=f"tags.mlflow.parentRunId = '{outer.info.run_id}'",
        output_format="list",
    )
    assert inner.info.run_name == "custom-2"


def test_records_of_folds_name_their_run(workplace, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="pip install mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{workplace}/mlflow.db")
    mlflow.set_tracking_uri(None)
    fit("digits", epochs=1, folds=2, export=False, callbacks=[trackers.MLflow()])
    records = mlflow.search_runs(output_format="list")
    names = {record.info.run_name for record in records}
    assert names == {"digits-1 fold 1", "digits-1 fold 2", "digits-1"}


def test_two_records_of_mlflow_are_apart(workplace, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="pip install mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{workplace}/mlflow.db")
    mlflow.set_tracking_uri(None)
    names = ["first", "second"]
    run = fit(
        "digits",
        epochs=2,
        export=False,
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="right@1 (%)")],
        callbacks=[trackers.MLflow(experiment=name) for name in names],
    )
    assert mlflow.active_run() is None
    client = mlflow.MlflowClient()
    for name in names:
        (record,) = mlflow.search_runs(experiment_names=[name], output_format="list")
        assert record.info.status == "FINISHED"
        points = client.get_metric_history(record.info.run_id, "loss")
        assert sorted(point.step for point in points) == [1, 2]
        assert record.data.metrics["test_accuracy"] == run.test["accuracy"]
        assert "test_right_1 ___" in record.data.metrics


def test_wandb_offline_has_config_metrics_pictures_and_export(workplace, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="pip install wandb")
    records, added = [], []
    finish, add_dir = wandb.Run.finish, wandb.Artifact.add_dir

    def on_finish(record, *arguments, **named):
        records.append((record.name, dict(record.config), dict(record.summary)))
        finish(record, *arguments, **named)

    def on_add(artifact, path):
        added.append(path)
        return add_dir(artifact, path)

    monkeypatch.setattr(wandb.Run, "finish", on_finish)
    monkeypatch.setattr(wandb.Artifact, "add_dir", on_add)
    run = train(trackers.WandB(project="digits", mode="offline"), export=True)
    ((name, config, summary),) = records
    assert name == "custom-1" and config["train"]["epochs"] == 2
    assert summary["val_loss"] == pytest.approx(run.history["val_loss"][-1])
    assert summary["test_accuracy"] == run.test["accuracy"]
    assert added == [str(run.export)]
    assert list(workplace.glob("wandb/offline-run-*/files/media/images/curves*.png"))
    assert list(workplace.glob("wandb/offline-run-*/*.wandb"))
    assert wandb.run is None, "it is over"


def test_trackio_on_this_machine_has_config_metrics_pictures_and_export(
    workplace, monkeypatch
):
    monkeypatch.setenv("TRACKIO_DIR", str(workplace / "trackio"))
    trackio = pytest.importorskip("trackio", reason="pip install trackio")
    run = train(trackers.Trackio(project="digits"), export=True)
    (record,) = trackio.Api().runs("digits")
    assert record.name == "custom-1" and record.config["train"]["epochs"] == 2
    with sqlite3.connect(workplace / "trackio/digits.db") as database:
        rows = database.execute("SELECT step, metrics FROM metrics").fetchall()
    logged = {}
    for step, text in rows:
        logged.setdefault(step, {}).update(json.loads(text))
    losses = [logged[1]["val_loss"], logged[2]["val_loss"]]
    assert losses == pytest.approx(run.history["val_loss"])
    assert logged[3]["test_accuracy"] == run.test["accuracy"]
    assert logged[3]["curves"]["_type"] == "trackio.image"
    stored = {
        path.name for path in workplace.glob("trackio/artifacts/digits/blobs/*/*/*")
    }
    for path in run.export.rglob("*"):
        if path.is_file():
            assert hashlib.sha256(path.read_bytes()).hexdigest() in stored, path


def test_tensorboard_has_config_metrics_and_pictures(workplace):
    """Without a callback."""
    run = train(None)
    folder = run.directory / "tensorboard"
    tags = {part.name: tags_of(part) for part in folder.iterdir()}
    assert {"epoch_loss", "epoch_accuracy"} <= tags["train"]
    assert {"epoch_accuracy", "curves", "mistakes"} <= tags["test"]
    assert any("config" in names for names in tags.values())


def tags_of(folder):
    board = event_accumulator.EventAccumulator(str(folder)).Reload()
    return {*board.Tags()["tensors"]}


def same_files(folder, other):
    names = [p.relative_to(folder) for p in folder.rglob("*") if p.is_file()]
    return names and all(
        (folder / name).read_bytes() == (Path(other) / name).read_bytes()
        for name in names
    )


def test_weights_and_biases_offline(go, workplace, capfd):
    wandb = pytest.importorskip("wandb", reason="pip install wandb")
    keras_callbacks = pytest.importorskip(
        "wandb.integration.keras", reason="pip install wandb"
    )
    with wandb.init(project="digits", dir=workplace, mode="offline") as record:
        run = go(keras_callbacks.WandbMetricsLogger())
        logged = dict(record.summary)
    assert logged["epoch/epoch"] == 2
    for name in ("loss", "val_loss", "accuracy", "learning_rate"):
        assert logged[f"epoch/{name}"] == pytest.approx(run.history[name][-1])
    assert list(workplace.glob("wandb/offline-run-*/*.wandb"))
    assert "(the callback" not in capfd.readouterr().out, "it logs per epoch"


def test_mlflow_in_a_local_file(go, workplace, capfd):
    mlflow = pytest.importorskip("mlflow", reason="pip install mlflow")
    keras_callbacks = pytest.importorskip("mlflow.keras", reason="pip install mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{workplace}/mlflow.db")
    with mlflow.start_run() as record:
        run = go(keras_callbacks.MlflowCallback())
        mlflow.flush_async_logging()
    client = mlflow.MlflowClient()
    for name in ("loss", "val_loss", "accuracy"):
        points = client.get_metric_history(record.info.run_id, name)
        logged = [point.value for point in sorted(points, key=lambda point: point.step)]
        np.testing.assert_allclose(logged, run.history[name], rtol=1e-6)
    assert client.get_run(record.info.run_id).data.params["optimizer_name"]
    assert "(the callback" not in capfd.readouterr().out, "it logs per epoch"


def test_optuna_prunes_a_trial(go):
    """Its exception ends `fit` unchanged, so that the study counts the
    trial as pruned.
    """
    optuna = pytest.importorskip("optuna", reason="pip install optuna")
    integration = pytest.importorskip(
        "optuna_integration", reason="pip install optuna-integration"
    )
    epochs = []

    def objective(trial):
        run = go(integration.KerasPruningCallback(trial, "val_loss"), epochs=2)
        epochs.append(len(run.history["loss"]))
        return run.history["val_loss"][-1]

    # Every value is above the limit: each trial is pruned after its second epoch.
    study = optuna.create_study(
        pruner=optuna.pruners.ThresholdPruner(upper=0, n_warmup_steps=1)
    )
    study.optimize(objective, n_trials=2)
    states = [trial.state for trial in study.trials]
    assert states == [optuna.trial.TrialState.PRUNED] * 2 and not epochs
    assert [len(trial.intermediate_values) for trial in study.trials] == [2, 2]
