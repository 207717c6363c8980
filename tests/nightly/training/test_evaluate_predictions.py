"""--train.evaluate-every: the metrics of the final test during training."""

import numpy as np
import pytest

from pipeline.fit import fit

ENGINES = ("model_fit", "gradient_tape")


def test_the_metric_of_the_test_selects_the_weights_with_both_engines(workplace):
    """Of numbers, r2 is logged by nothing else; the last epoch is measured, too."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 3)).astype(np.float32)
    y = x @ np.float32([1.0, -2.0, 0.5]) + generator.normal(size=200)
    histories = []
    for engine in ENGINES:
        train = {"epochs": 5, "evaluate_every": 2, "patience": 5, "ema": 0.9}
        run = fit(
            model={"name": "linear"},
            data=(x, y.astype(np.float32)),
            train={**train, "engine": engine, "learning_rate": 0.02},
            export={"enabled": False},
        )
        r2 = np.array(run.history["val_r2"], np.float64)
        assert np.isnan(r2).tolist() == [True, False, True, False, False]
        # The weights of the last epoch, which is the best.
        validation = run.splits["validation"]
        predictions = run.predict(features=validation.column("features"))["prediction"]
        truth = validation.column("target")
        error = ((predictions - truth) ** 2).sum() / ((truth - truth.mean()) ** 2).sum()
        assert np.nanmax(r2) == r2[-1] == pytest.approx(1 - error, abs=1e-5)
        histories.append(r2)
    np.testing.assert_array_equal(*histories)
