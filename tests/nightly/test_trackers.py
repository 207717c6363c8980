"""Callbacks of experiment trackers, passed to `fit` as to Keras; skipped if not
installed.
"""

import keras
import numpy as np
import pytest
from sklearn.datasets import load_digits

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
        return fit(
            model=small,
            data=(DIGITS.images.astype("uint8"), DIGITS.target),
            epochs=epochs,
            callbacks=[callback],
            train={"engine": request.param},
            log={"progress": False, "tensorboard": False},
            export={"enabled": False},
        )

    return run


def test_weights_and_biases_offline(go, workplace, monkeypatch, capfd):
    wandb = pytest.importorskip("wandb", reason="needs wandb")
    keras_callbacks = pytest.importorskip("wandb.integration.keras")
    monkeypatch.setenv("WANDB_MODE", "offline")
    with wandb.init(project="digits", dir=workplace) as record:
        run = go(keras_callbacks.WandbMetricsLogger())
        logged = dict(record.summary)
    assert logged["epoch/epoch"] == 2
    for name in ("loss", "val_loss", "accuracy", "learning_rate"):
        assert logged[f"epoch/{name}"] == pytest.approx(run.history[name][-1])
    assert list(workplace.glob("wandb/offline-run-*/*.wandb"))
    assert "(the callback" not in capfd.readouterr().out, "it logs per epoch"


def test_mlflow_in_a_local_file(go, workplace, capfd):
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow")
    keras_callbacks = pytest.importorskip("mlflow.keras")
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
    optuna = pytest.importorskip("optuna", reason="needs optuna")
    integration = pytest.importorskip(
        "optuna_integration", reason="needs optuna-integration"
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
