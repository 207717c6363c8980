"""Boxes: decoding by geometry, the loss, and the predictions in the caller's pixels."""

import io
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from pipeline.config import registry
from pipeline.contracts import Info
from pipeline.data.array_source import ArraySource
from pipeline.evaluation.target_evaluation import evaluation_of
from pipeline.report.target_report import report_of
from pipeline.tasks.targets.box_outputs import BEFORE_LOGITS, best_boxes
from pipeline.tasks.targets.boxes import BoxTarget, boxes
from pipeline.utils.errors import UsageError

NAMES = ["hat", "tie"]
RANDOM = np.random.default_rng(0)


def target_of(height=64, width=96, count=3, **metadata):
    size = {"image_shape": [height, width, 3], "boxes_per_image": count}
    return BoxTarget({"class_names": NAMES, **size, **metadata})


def raw_example(corners, labels, **more):
    corners = np.array(corners, np.float32).reshape(-1, 4)
    labels = np.array(labels, np.int32)
    fields = {"boxes": corners, "box_labels": labels, **more}
    return {name: tf.constant(value) for name, value in fields.items()}


def test_boxes_are_clipped_moved_and_padded():
    geometry = tf.constant([0.5, 0.5, 0, 8, 128, 160.0])
    corners = [[10, 20, 50, 60], [-10, 100, 20, 500], [200, 0, 300, 20]]
    decoded = target_of(count=5).decode(raw_example(corners, [0, 1, 1]), geometry)
    expected = [[13, 10, 33, 30], [8, 50, 18, 64]]
    np.testing.assert_allclose(decoded["boxes"][:2], expected)
    assert decoded["box_labels"].numpy().tolist() == [0, 1, -1, -1, -1]
    assert not decoded["boxes"][2:].numpy().any()
    assert decoded["box_ignored"].dtype == tf.uint8


def test_predictions_have_room_for_the_boxes_of_the_most_crowded_image():
    for count, expected in ((3, 100), (250, 250)):
        fields = {
            "boxes": tf.TensorSpec((count, 4), tf.float32),
            "box_labels": tf.TensorSpec((count,), tf.int32),
        }
        target = boxes(Info({"train": 1}, fields, class_names=NAMES))
        assert target.metadata["max_boxes"] == expected
        fixed = boxes(Info({"train": 1}, fields, class_names=NAMES), max_boxes=20)
        assert fixed.metadata["max_boxes"] == 20


def test_an_unknown_class_is_refused():
    with pytest.raises(tf.errors.InvalidArgumentError, match="not from 0 to 1"):
        geometry = tf.constant([1, 1, 0, 0, 64, 96.0])
        target_of().decode(raw_example([[0, 0, 9, 9]], [2]), geometry)


def outputs_of(target, y, stride=8):
    """Outputs that answer the true boxes exactly, with certainty."""
    height, width = target.metadata["image_shape"][:2]
    maps = keras.Input((height // stride, width // stride, 4))
    model = keras.Model(maps, target.head(maps))
    zeros = np.zeros((len(y), height // stride, width // stride, 4), np.float32)
    outputs = model(zeros).numpy()
    for row, example in enumerate(y):
        for box in example[(example[:, 4] >= 0) & (example[:, 5] == 0)]:
            center = (box[:2] + box[2:4]) / 2
            near = np.abs(outputs[row, :, 4:6] - center).max(axis=1) <= 1.5 * stride
            outputs[row, near, :4] = box[:4]
            outputs[row, near, BEFORE_LOGITS + int(box[4])] = 20.0
    return outputs


def y_of(*examples):
    y = np.zeros((len(examples), 3, 6), np.float32)
    y[..., 4] = -1
    for row, example in enumerate(examples):
        y[row, : len(example)] = np.reshape(example, (-1, 6))
    return y


def test_the_head_knows_where_its_locations_are():
    outputs = outputs_of(target_of(), y_of([]))
    assert outputs.shape == (1, 8 * 12, BEFORE_LOGITS + 2)
    grid = outputs[0].reshape(8, 12, -1)
    np.testing.assert_allclose(grid[2, 5, 4:7], [44, 20, 8])
    np.testing.assert_allclose(grid[2, 5, :4], [28, 4, 60, 36], atol=1)
    assert (tf.sigmoid(outputs[..., 7:]).numpy() < 0.02).all()


def test_the_loss_of_right_boxes_is_nearly_zero_and_of_each_example_alone():
    box = [10, 10, 40, 40, 1, 0]
    y = y_of([box], [[30, 8, 90, 50, 0, 0]], [])
    target = target_of()
    outputs = outputs_of(target, y)
    right = target.loss()(y, tf.constant(outputs)).numpy()
    assert right.shape == (3,) and (right < 0.02).all()
    moved = outputs.copy()
    moved[0, :, :4] += 6
    wrong = target.loss()(y, tf.constant(moved)).numpy()
    assert wrong[0] > 0.5
    np.testing.assert_array_equal(wrong[1:], right[1:])
    other = target.loss()(y_of([[*box[:4], 0, 0]]), tf.constant(outputs[:1]))
    assert float(other[0]) > 1


def test_answers_in_a_box_that_does_not_count_cost_nothing():
    box = [8, 8, 60, 60, 0, 0]
    target = target_of()
    outputs = outputs_of(target, y_of([box]))
    nothing = target.loss()(y_of([]), tf.constant(outputs))
    ignored = target.loss()(y_of([[*box[:5], 1]]), tf.constant(outputs))
    assert float(nothing[0]) > 10 > 0.02 > float(ignored[0])


def test_each_box_is_answered_once_in_pixels_of_the_original():
    boxes = [[10, 10, 40, 40, 1, 0], [30, 8, 90, 50, 0, 0]]
    target = target_of(max_boxes=20)
    outputs = outputs_of(target, y_of(boxes))
    geometry = tf.constant([[0.5, 0.25, 4, 6, 120, 400.0]])
    predictions = target.serve(tf.constant(outputs), {"geometry": geometry})
    assert predictions["boxes"].shape == (1, 20, 4)
    assert predictions["count"].numpy().tolist() == [2]
    assert predictions["labels"][0, :2].numpy().tolist() == [b"tie", b"hat"]
    expected = [[16, 12, 136, 72], [96, 8, 336, 92]]
    np.testing.assert_allclose(predictions["boxes"][0, :2], expected, rtol=1e-5)
    assert (predictions["scores"][0, :2] > 0.99).numpy().all()


def test_suppression_equals_that_of_tensorflow():
    locations = 120
    outputs = np.zeros((2, locations, BEFORE_LOGITS + 1), np.float32)
    first = RANDOM.uniform(0, 60, (2, locations, 2))
    outputs[..., :2] = first
    outputs[..., 2:4] = first + RANDOM.uniform(5, 60, (2, locations, 2))
    outputs[..., BEFORE_LOGITS] = RANDOM.normal(size=(2, locations))
    found, scores, _ = tf.function(best_boxes)(tf.constant(outputs), 30, 0.4)
    for row in range(2):
        own = tf.sigmoid(outputs[row, :, BEFORE_LOGITS])
        kept = tf.image.non_max_suppression(outputs[row, :, :4], own, 30, 0.4)
        count = len(kept)
        np.testing.assert_allclose(scores[row, :count], tf.gather(own, kept))
        np.testing.assert_allclose(
            found[row, :count], tf.gather(outputs[row, :, :4], kept)
        )
        assert not scores[row, count:].numpy().any()


def test_a_box_repeats_only_boxes_of_its_class():
    outputs = np.zeros((1, 3, BEFORE_LOGITS + 2), np.float32)
    outputs[..., :4] = [10, 10, 30, 30]
    outputs[0, :, BEFORE_LOGITS:] = [[2, -9], [1, -9], [-9, 0]]
    _, scores, classes = best_boxes(tf.constant(outputs), 3, 0.4)
    np.testing.assert_allclose(scores[0], [*tf.sigmoid([2.0, 0.0]), 0])
    assert classes[0, :2].numpy().tolist() == [0, 1]


def test_boxes_are_selected_in_litert_too():
    outputs = RANDOM.uniform(0, 60, (2, 64, BEFORE_LOGITS + 2)).astype(np.float32)
    outputs[..., 2:4] += outputs[..., :2]
    outputs[..., BEFORE_LOGITS:] = outputs[..., BEFORE_LOGITS:] / 10 - 3

    def select(outputs):
        return dict(zip("abc", best_boxes(outputs, 20, 0.4), strict=True))

    shape = tf.TensorSpec((None, *outputs.shape[1:]))
    select = tf.function(select, input_signature=[shape], autograph=False)
    functions = [select.get_concrete_function()]
    model = tf.lite.TFLiteConverter.from_concrete_functions(
        functions, tf.Module()
    ).convert()
    with warnings.catch_warnings(action="ignore"):
        runner = tf.lite.Interpreter(model_content=model).get_signature_runner()
    found = runner(outputs=outputs)
    for name, expected in select(outputs).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-5)


def test_runs_are_compared_by_f1():
    rows = {
        "right": ["2", "0"],
        "false": ["1", "0"],
        "missed": ["0", "1"],
        "wrong_class": ["0", "1"],
        "loss": ["0.5", "1.5"],
    }
    columns = {name: np.array(values) for name, values in rows.items()}
    scores = evaluation_of(target_of()).scores(columns)
    assert list(scores) == ["f1", "loss"]
    # 4 answered boxes, 4 true ones, of which 2 are found.
    assert scores["f1"].values.sum() / scores["f1"].weights.sum() == 0.5


def encoded(pixels, kind, **options):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["png", "jpeg", "array", "turned"])
def test_a_letterboxed_image_and_its_boxes(kind):
    """A white rectangle stays where its box is, in files of any kind."""
    pixels = np.zeros((400, 200, 3), np.uint8)
    pixels[40:120, 100:160] = 255
    box = [100, 40, 160, 120]
    content = pixels
    if kind == "turned":
        exif = Image.Exif()
        exif[274] = 6
        content = encoded(np.rot90(pixels).copy(), "jpeg", quality=95, exif=exif)
    elif kind != "array":
        content = encoded(pixels, kind)
    raw = tf.constant(content)
    spec = tf.TensorSpec(raw.shape, raw.dtype)
    info = Info({"train": 1}, {"image": spec}, image_shape=(None, None, 3))
    options = {"image_size": (64, 96), "resize": "letterbox"}
    reader = registry.call("inputs", "image", options, info)
    fields, geometry = reader.decode({"image": raw})
    assert fields["image"].shape == (64, 96, 3)
    decoded = target_of().decode(raw_example([box], [0]), geometry)
    left, top, right, bottom = decoded["boxes"][0].numpy()
    np.testing.assert_allclose([left, top, right, bottom], [48, 6.4, 57.6, 19.2])
    image = fields["image"].numpy()[..., 0] / 255.0
    assert image.sum() == pytest.approx((right - left) * (bottom - top), rel=0.03)
    rows, columns = np.nonzero(image > 0.5)
    assert abs(columns.min() - left) < 1 and abs(columns.max() + 1 - right) < 1
    assert abs(rows.min() - top) < 1 and abs(rows.max() + 1 - bottom) < 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"boxes": np.zeros((3, 4), np.float32)}, r"floats \(count, 4\)"),
        ({"boxes": np.zeros((3, 2, 4), np.int32)}, r"floats \(count, 4\)"),
        ({"boxes": np.zeros((3, 2, 4), np.float32)}, "no field 'box_labels'"),
        (
            {
                "boxes": np.zeros((3, 2, 4), np.float32),
                "box_labels": np.zeros((3, 5), np.int32),
            },
            r"box_labels .*\(2,\).*\(5,\)",
        ),
    ],
)
def test_a_field_of_another_form_is_one_line(values, message):
    info = ArraySource(values, class_names=tuple(NAMES)).info
    with pytest.raises(UsageError, match=message) as caught:
        boxes(info)
    assert "\n" not in str(caught.value)


def test_true_boxes_are_drawn_where_they_are():
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    example = {
        "boxes": np.array([[10, 20, 40, 50], [0, 0, 0, 0]], np.float32),
        "box_labels": np.array([1, -1]),
        "box_ignored": np.array([0, 0]),
    }
    report_of(target_of()).draw_truth(axes, example)
    (box,) = axes.patches
    assert box.get_bbox().bounds == (9.5, 19.5, 30, 30)
    assert [text.get_text() for text in axes.texts] == ["tie"]
