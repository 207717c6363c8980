"""Temperature scaling against what it must find, and the measures against a count by
hand.
"""

import numpy as np
import pytest
from scipy.special import softmax

from pipeline.utils import calibration
from pipeline.utils.calibration import CalibrationError, TemperatureFit, reliability


def fit_temperature(logits, labels, **options):
    fit = TemperatureFit(**options)
    fit.update(logits, labels)
    return fit.result()


def loss_and_error(logits, labels, temperature=1.0):
    error = CalibrationError(temperature)
    error.update(logits, labels)
    return error.result()


def honest(examples=20_000, classes=5):
    """Logits whose softmax is the true distribution of the labels, and such labels."""
    random = np.random.default_rng(3)
    logits = random.normal(0, 2, (examples, classes))
    # The Gumbel trick: the class of the largest noisy logit has the probability of the
    # softmax.
    return logits, (logits + random.gumbel(size=logits.shape)).argmax(axis=1)


@pytest.mark.parametrize("true", [0.4, 1.0, 3.0])
def test_the_temperature_that_spoiled_honest_logits_is_found(true):
    logits, labels = honest()
    found = fit_temperature((logits * true).astype(np.float32), labels)
    assert found == pytest.approx(true, rel=0.03)


def test_calibration_reduces_the_error_and_changes_no_answer():
    logits, labels = honest()
    logits *= 4
    found = fit_temperature(logits, labels)
    before = loss_and_error(logits, labels)
    after = loss_and_error(logits, labels, found)
    assert before["calibration_error"] > 0.15 and after["calibration_error"] < 0.02
    assert after["loss"] < before["loss"]
    np.testing.assert_array_equal((logits / found).argmax(1), logits.argmax(1))


@pytest.mark.parametrize(
    "examples",
    [
        20,
        pytest.param(10, marks=pytest.mark.long),
        pytest.param(50, marks=pytest.mark.long),
    ],
)
def test_few_examples_do_no_harm(examples):
    """Likelihood alone took a network that is right in all of 20 but one to be 10 times
    too shy.
    """
    logits, labels = honest()
    harm = []
    for part in np.split(np.arange(100 * examples), 100):
        found = fit_temperature(logits[part], labels[part])
        harm.append(loss_and_error(logits, labels, found)["loss"])
    before = loss_and_error(logits, labels)["loss"]
    assert max(harm) - before < 0.12 and np.mean(harm) - before < 0.02


@pytest.mark.parametrize("true", [0.85, 1.0, 1.15])
def test_a_temperature_hardly_ever_raises_the_loss(true):
    """Of 30 sets of 100 examples, with logits that are nearly honest."""
    logits, labels = honest()
    logits = logits * true
    before = loss_and_error(logits, labels)["loss"]
    rise = []
    for part in np.split(np.arange(3000), 30):
        found = fit_temperature(logits[part], labels[part])
        after = loss_and_error(logits, labels, found)["loss"]
        rise.append(after - before)
    assert np.mean(np.array(rise) > 1e-4) <= 0.1 and np.mean(rise) < 1e-3


def test_the_measures_equal_a_count_by_hand():
    """Ten examples at 0.9 and ten at 0.6, of which eight and seven are right."""
    probabilities = np.array([[0.9, 0.1]] * 10 + [[0.4, 0.6]] * 10)
    labels = np.array([0] * 8 + [1] * 2 + [1] * 7 + [0] * 3)
    found = loss_and_error(np.log(probabilities), labels)
    assert found["calibration_error"] == pytest.approx((10 * 0.1 + 10 * 0.1) / 20)
    loss = -(8 * np.log(0.9) + 2 * np.log(0.1) + 7 * np.log(0.6) + 3 * np.log(0.4)) / 20
    assert found["loss"] == pytest.approx(loss)


def test_batches_give_the_temperature_and_the_error_of_all_examples():
    logits, labels = honest(3000)
    logits = (logits * 3).astype(np.float32)
    fit, error = calibration.TemperatureFit(), calibration.CalibrationError(2.0)
    for part in np.array_split(np.arange(len(labels)), 7):
        fit.update(logits[part], labels[part])
        error.update(logits[part], labels[part])
    assert fit.result() == pytest.approx(fit_temperature(logits, labels))
    whole = loss_and_error(logits, labels, 2.0)
    assert error.result() == pytest.approx(whole)


def test_the_temperature_is_that_of_a_direct_search():
    """The 64 temperatures and the spline between them against SciPy on all logits."""
    from scipy.optimize import minimize_scalar
    from scipy.special import logsumexp

    logits, labels = honest(2000)
    logits *= 2.3

    def loss(exponent):
        scaled = logits / np.exp(exponent)
        total = logsumexp(scaled, axis=1) - scaled[np.arange(len(labels)), labels]
        return total.sum() + exponent**2 / (2 * 0.35**2)

    best = minimize_scalar(loss, bounds=(-3, 3), method="bounded").x
    found = fit_temperature(logits, labels)
    assert found == pytest.approx(np.exp(best), rel=1e-4)


def test_a_reliability_diagram_equals_a_hand_computation():
    confidence = np.array([0.62, 0.64, 0.66, 0.95, 1.0])
    correct = np.array([True, False, True, True, False])
    diagram = reliability(confidence, correct)
    # The bins ((m - 1) / 15, m / 15]: 9/15 to 10/15, and the last one.
    assert diagram.examples.tolist() == [0] * 9 + [3] + [0] * 4 + [2]
    assert diagram.confidence[9] == pytest.approx(0.64)
    assert diagram.accuracy[9] == pytest.approx(2 / 3)
    assert diagram.confidence[14] == pytest.approx(0.975)
    assert diagram.accuracy[14] == pytest.approx(0.5)
    gaps = 3 * abs(2 / 3 - 0.64) + 2 * abs(0.5 - 0.975)
    assert diagram.error == pytest.approx(gaps / 5)


def test_the_error_of_the_diagram_is_the_calibration_error():
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(500, 4)) * 2
    labels = generator.integers(0, 4, 500)
    probabilities = softmax(logits, axis=1)
    diagram = reliability(probabilities.max(axis=1), logits.argmax(axis=1) == labels)
    expected = loss_and_error(logits, labels)["calibration_error"]
    assert diagram.error == pytest.approx(expected)
