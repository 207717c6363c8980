"""The last lines of a run on the console."""

from pipeline.config import command_line
from pipeline.export import run_report


def test_a_loss_is_not_compared_with_another_one(capsys):
    config = command_line.recipe("digits")
    metrics = {"examples": 5, "loss": 1.25, "accuracy": 0.8, "calibration_error": 0.25}
    metrics["calibrated"] = {"loss": 1.5, "calibration_error": 0.125}
    result = {"test": metrics, "examples_per_second": None, "calibration": {"temperature": 2.0}}
    run_report.tested(config, result, "test")
    own = "temperature 2.000, fitted on the validation split; test "
    errors = "calibration_error 0.2500 -> 0.1250"
    assert f"{own}loss 1.2500 -> 1.5000, {errors}\n" in capsys.readouterr().out
    run_report.tested(config.changed(train={"loss": "focal"}), result, "test")
    assert f"{own}{errors}\n" in capsys.readouterr().out
