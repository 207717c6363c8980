"""How predictions are compared with the stored ones."""

import numpy as np
import pytest
import reference_exports
import tensorflow as tf

from pipeline.export import request_checks, savedmodel
from pipeline.utils.errors import Failure


def server(values):
    return reference_exports.Server(lambda x: {"y": values[x]})


def golden(values):
    return {"inputs": {"x": np.arange(len(values))}, "outputs": {"y": values}}


@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0])
def test_floats_may_differ_relative_to_the_largest_answer(size):
    stored = np.float32(size) * np.linspace(-1, 0.3, 8, dtype=np.float32)
    request_checks.check_predictions(
        server(stored + np.float32(5e-6 * size)), "s", golden(stored)
    )
    with pytest.raises(Failure, match=r"y: differs by .* in a batch of 1"):
        request_checks.check_predictions(
            server(stored + np.float32(2e-5 * size)), "s", golden(stored)
        )
    half = server(stored + np.float32(5e-4 * size))
    request_checks.check_predictions(half, "s", golden(stored), precision="float16")


ONES = np.ones((4, 2), np.float32)


@pytest.mark.parametrize(
    "prediction",
    [{"z": ONES}, {"y": ONES.astype(np.float64)}, {"y": ONES * np.nan}],
    ids=["name", "type", "nan"],
)
def test_other_outputs_differ(prediction):
    model = reference_exports.Server(
        lambda x: {name: values[x] for name, values in prediction.items()}
    )
    with pytest.raises(Failure):
        request_checks.check_predictions(model, "s", golden(ONES))


def test_pixels_may_differ_by_rounding_or_on_average_by_the_tolerance():
    stored = np.full((4, 5, 5, 1), 100, np.uint8)
    rounded = stored + (np.arange(25) % 2).reshape(5, 5, 1).astype(np.uint8)
    text = request_checks.check_predictions(server(rounded), "s", golden(stored))
    assert "largest difference 1" in text
    changed = stored.copy()
    changed[2, 0, 0] += 2
    with pytest.raises(Failure, match="image 2 .*by up to 2"):
        request_checks.check_predictions(server(changed), "s", golden(stored))
    request_checks.check_predictions(
        server(changed), "s", golden(stored), precision="bfloat16"
    )


def test_only_labels_of_nearly_equal_scores_may_swap():
    scores = np.float32([[0.5, 0.25, 0.2499999, 0.0000001], [0.6, 0.3, 0.07, 0.03]])
    names = np.array([[b"a", b"b", b"c"], [b"a", b"b", b"c"]], object)
    stored = {"inputs": {"x": np.arange(2)}, "outputs": {"p": scores, "top": names}}

    def swapped(row, first, second):
        moved = names.copy()
        moved[row, [first, second]] = names[row, [second, first]]
        return reference_exports.Server(lambda x: {"p": scores[x], "top": moved[x]})

    assert "scores are nearly equal" in request_checks.check_predictions(
        swapped(0, 1, 2), "s", stored
    )
    for wrong in (swapped(0, 0, 1), swapped(1, 1, 2), swapped(1, 0, 1)):
        with pytest.raises(Failure, match="top: b'.' instead of b'.'"):
            request_checks.check_predictions(wrong, "s", stored)


def test_many_exports_in_a_process_do_not_warn_of_retracing(caplog):
    """As in a notebook. The logger of TensorFlow has a handler of its own."""
    spec = tf.TensorSpec((None,), tf.float32, name="x")
    tf.get_logger().addHandler(caplog.handler)
    for _ in range(9):
        function = tf.function(lambda x: {"y": x + 1}, [spec], autograph=False)
        found = savedmodel._predictions(
            (function, [spec]), {"x": np.zeros(2, np.float32)}
        )
    tf.get_logger().removeHandler(caplog.handler)
    np.testing.assert_array_equal(found["y"], [1, 1])
    assert not caplog.records


def test_entries_of_lists_are_compared_in_any_order():
    """Of detected boxes with nearly equal scores, either may be the first."""
    generator = np.random.default_rng(0)
    scores = np.sort(generator.random((4, 50)).astype(np.float32))[:, ::-1]
    boxes = 100 * generator.random((4, 50, 4)).astype(np.float32)
    classes = generator.integers(0, 3, (4, 50))
    outputs = {"boxes": boxes, "scores": scores, "classes": classes}
    stored = {"inputs": {"x": np.arange(4)}, "outputs": outputs}

    def server(order, change=0):
        moved = {name: values[:, order] for name, values in outputs.items()}
        moved["classes"] = (moved["classes"] + change) % 3
        return reference_exports.Server(
            lambda x: {name: v[x] for name, v in moved.items()}
        )

    order = np.arange(50)
    order[[10, 11]] = 11, 10
    text = request_checks.check_predictions(server(order), "s", stored, (4,))
    assert text.endswith("; 8 of 200 boxes have another rank: scores are nearly equal")
    outputs["boxes"] = boxes.copy()
    outputs["boxes"][2, 7] += 0.0001
    outputs["boxes"][3, 7] += 9
    text = request_checks.check_predictions(server(np.arange(50)), "s", stored, (4,))
    assert text == "batches of 4; largest difference 0"
    stored["outputs"] = {**outputs, "boxes": boxes}
    text = request_checks.check_predictions(server(np.arange(50)), "s", stored, (4,))
    assert text == (
        "batches of 4; largest difference 0.0001; 1 of 200 boxes are others: rounding"
        " decides which of two that overlap is kept"
    )
    with pytest.raises(Failure, match="200 of 200 entries"):
        request_checks.check_predictions(server(order, 1), "s", stored, (4,))
