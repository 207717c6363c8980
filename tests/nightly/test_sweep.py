"""`pipeline sweep`: its trials, a kill in the middle, and what it refuses."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from processes import REPOSITORY, run_module

from pipeline import sweep
from pipeline.utils.errors import UsageError

optuna = pytest.importorskip("optuna", reason="pip install optuna")
WORDS = [
    "points.csv",
    "--train.epochs",
    "3",
    "--train.patience",
    "3",
    "--data.test",
    "0.3",
    "--over",
    "train.learning-rate=1e-3..1e-1:log",
    "model.units=2,8",
    "--trials",
    "4",
    "--jobs",
    "2",
]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A directory with a table of points of two classes."""
    folder = tmp_path_factory.mktemp("sweep")
    x = np.random.default_rng(0).normal(size=(120, 2))
    rows = [
        f"{a:.4f},{b:.4f},{'inside' if a * a + b * b < 1 else 'outside'}" for a, b in x
    ]
    (folder / "points.csv").write_text("\n".join(["a,b,label", *rows]))
    return folder


def trials_of(folder):
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(folder / "trials.log"))
    )
    return optuna.load_study(study_name="sweep", storage=storage).trials


@pytest.fixture(scope="module")
def killed(workplace):
    """A sweep that is killed after its first trial, and continued."""
    command = [sys.executable, "-m", "pipeline.sweep", *WORDS]
    process = subprocess.Popen(
        command,
        cwd=workplace,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("finished"):
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    before = trials_of(workplace / "sweeps/points-1")
    done = run_module(
        "pipeline.sweep", "--resume", "sweeps/points-1", cwd=workplace, fresh=True
    )
    assert done.returncode == 0, done.stderr
    return workplace / "sweeps/points-1", before, "".join(lines) + done.stdout


def test_a_killed_sweep_loses_no_trial_and_repeats_none(killed):
    folder, before, output = killed
    trials = trials_of(folder)
    assert [trial.number for trial in trials] == [0, 1, 2, 3]
    assert all(trial.state.is_finished() for trial in trials)
    for old in before:
        assert trials[old.number].params == old.params
    assert output.count("finished") + output.count("pruned") == 4
    for trial in trials:
        run = folder / "trials" / f"{trial.number:03}"
        epochs = [
            json.loads(line)["epoch"]
            for line in (run / "log.jsonl").read_text().splitlines()
        ]
        assert epochs == sorted(set(epochs)), "no epoch was trained twice"


def test_the_best_trial_is_that_of_the_validation_split(killed):
    folder, _, output = killed
    found = {}
    for trial in trials_of(folder):
        run = folder / "trials" / f"{trial.number:03}"
        if trial.state != optuna.trial.TrialState.COMPLETE:
            continue
        result = json.loads((run / "result.json").read_text())
        assert "test" not in result and result["export"] is None
        found[trial.number] = result["validation"]["accuracy"]
        config = json.loads((run / "config.json").read_text())
        rate = trial.params["train.learning-rate"]
        assert config["train"]["learning_rate"] == rate
    best = max(found, key=found.get)
    assert f"best       trial {best}: validation accuracy" in output
    config = json.loads((folder / "best.json").read_text())
    assert config["train"]["final_test"] and config["export"]["enabled"]
    rows = (folder / "trials.csv").read_text().splitlines()
    assert rows[0].startswith("trial,state,value,epochs,seconds,train.learning-rate")
    assert len(rows) == 5
    page = (folder / "report.html").read_text()
    assert "the test split has not been measured" in page and "<svg" in page


def test_the_best_config_gives_the_same_model(killed, workplace):
    folder, _, output = killed
    done = run_module(
        "pipeline.fit",
        "--config",
        folder / "best.json",
        "--run-directory",
        "best",
        "--no-export",
        cwd=workplace,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((workplace / "best/result.json").read_text())
    number = int(output.rpartition("best       trial ")[2].partition(":")[0])
    trial = folder / "trials" / f"{number:03}"
    before = json.loads((trial / "result.json").read_text())
    assert result["validation"] == before["validation"] and "test" in result


def test_options_of_tensorboard_are_written(killed):
    from tensorboard.backend.event_processing import event_accumulator

    folder, *_ = killed
    number = next(t.number for t in trials_of(folder) if "value" in t.user_attrs)
    folder = folder / f"trials/{number:03}/tensorboard/hparams"
    board = event_accumulator.EventAccumulator(str(folder)).Reload()
    tags = board.Tags()["tensors"]
    assert tags == ["_hparams_/session_start_info", "validation_accuracy"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("digits", "--over needs at least one option"),
        ("digits --over train.epoch=1,2", r"unknown option '--train.epoch'"),
        ("digits --over train.epochs=0..5", r"--train.epochs must be"),
        ("digits --over model.depth=1,2", r"convnet has no option 'depth'"),
        ("nothing --over train.epochs=1,2", r"nothing"),
        ("digits --sampler grid --over train.ema=0.1..0.9", "needs a list of values"),
        ("digits --over train.epochs=1,2 --trials 0", "--trials must be"),
        ("digits --over data.split-seed=1,2", "cannot vary the splits"),
        ("digits --over train.epochs=1,2 --folds 3", "cannot be combined"),
        ("digits --over train.epochs=1,2 --dry-run", "cannot be combined"),
        ("digits --over train.epochs=1,2 --run-directory x", "its own"),
        ("--resume nowhere", "is not a sweep"),
        ("digits --over train.epochs=1,2 --time-limit soon", "time"),
        ("photos --over train.epochs=1,2", "in its place: pipeline sweep PATH"),
        (
            "digits --over train.epochs=1,2 --train.callbacks pipeline.trackers:MLflow",
            "MLflow needs the package mlflow: pip install mlflow",
        ),
    ],
)
def test_a_wrong_request_is_one_line_before_anything_is_written(
    words, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "mlflow", None)  # as if it were not installed
    with pytest.raises(UsageError, match=message):
        sweep.main(words.split())
    assert not list(tmp_path.iterdir())


def test_a_sweep_by_several_workers_is_refused(tmp_path, monkeypatch):
    """Each of its trials would wait for the others."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SM_HOSTS", '["algo-1", "algo-2"]')
    monkeypatch.setenv("SM_CURRENT_HOST", "algo-1")
    with pytest.raises(UsageError, match="unset SM_HOSTS"):
        sweep.main(["digits", "--over", "train.epochs=1,2"])
    assert not list(tmp_path.iterdir())


def test_options_come_in_any_order():
    plan = sweep._read(["--no-prune", "digits", "--over=lr=0.1,0.2", "--trials=3"])
    assert plan.words == ["digits"] and plan.space[0].choices == ("0.1", "0.2")
    assert not plan.options.prune and plan.options.trials == 3


class FakeTrial:
    """A trial that has ended with its number as accuracy, instead of a process."""

    returncode = 0
    epochs_of_log = ()

    def __init__(self, number, words, metric):
        self.number, self.process, self.device = number, self, 0
        self.is_pruned, self.epochs, self.words = False, 0, words
        self.result = {
            "selection_metric": [metric, 1],
            "validation": {metric: number / 10},
        }

    def poll(self):
        return 0

    def new_epochs(self):
        return iter(self.epochs_of_log)


def search(folder, sampler, trials, monkeypatch, over=None, metric="accuracy"):
    """The options of all trials of a sweep whose trials are not run."""
    monkeypatch.setattr(sweep, "_PAUSE", 0)
    monkeypatch.setattr(
        sweep.trials,
        "start",
        lambda number, run, words, *_: FakeTrial(number, words, metric),
    )
    over = over or ["units=2,8", "epochs=1,2" if sampler == "grid" else "lr=0.1..0.9"]
    words = ["digits", "--over", *over, "--sampler", sampler, "--trials", str(trials)]
    folder.mkdir(exist_ok=True)
    study = sweep._Sweep(folder, sweep._read(words))
    study._search()
    return [trial.params for trial in trials_of(folder)]


def test_a_grid_has_all_combinations_once(tmp_path, monkeypatch):
    found = search(tmp_path / "grid", "grid", 20, monkeypatch)
    assert len(found) == len({str(sorted(params.items())) for params in found}) == 4


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_continued_sweep_draws_what_it_would_have_drawn(
    sampler, tmp_path, monkeypatch
):
    whole = search(tmp_path / "whole", sampler, 14, monkeypatch)
    search(tmp_path / "parts", sampler, 3, monkeypatch)
    with (tmp_path / "parts/trials.log").open("ab") as journal:
        journal.write(b'{"op_code":')  # a full disk
    assert search(tmp_path / "parts", sampler, 14, monkeypatch) == whole
    assert len({params["lr"] for params in whole}) == 14


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_the_first_trial_has_the_defaults(sampler, tmp_path, monkeypatch, capsys):
    over = ("units=2,8", "train.epochs=20..60", "lr=0.1..0.9")
    search(tmp_path, sampler, 3, monkeypatch, over)
    first, *others = (trial.params for trial in trials_of(tmp_path))
    assert first["train.epochs"] == 40 and len(others) == 2
    assert "the defaults, except for units and lr" in capsys.readouterr().out


def test_trials_are_pruned_by_the_metric_that_selects_them(
    tmp_path, monkeypatch, capsys
):
    """The loss of validation says the opposite."""
    epochs = [{"epoch": n, "val_f1": 0.1 * n, "val_loss": n} for n in (1, 2)]
    monkeypatch.setattr(FakeTrial, "epochs_of_log", epochs)
    search(tmp_path, "random", 2, monkeypatch, metric="f1")
    for trial in trials_of(tmp_path):
        assert trial.intermediate_values == {1: -0.1, 2: -0.2}
    assert "no trial is pruned" not in capsys.readouterr().out
    search(tmp_path / "without", "random", 2, monkeypatch, metric="mean_iou")
    assert "--train.evaluate-every 1 measures it" in capsys.readouterr().out


def test_a_damaged_sweep_is_one_line(tmp_path, monkeypatch):
    search(tmp_path, "random", 2, monkeypatch)
    (tmp_path / "trials.log").write_text("damaged\n")
    with pytest.raises(UsageError, match=r"trials.log is damaged"):
        search(tmp_path, "random", 2, monkeypatch)


def test_trials_that_all_fail_end_the_sweep(workplace, tmp_path):
    (tmp_path / "points.csv").write_text("a,label\n1,x\n2,x\n3,x\n")
    done = run_module("pipeline.sweep", *WORDS, cwd=tmp_path, fresh=True)
    assert done.returncode == 2
    assert "the first 3 trials failed, the last one with:" in done.stderr
    assert "Traceback" not in done.stderr
