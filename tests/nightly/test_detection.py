"""How well boxes around shapes are found after a training of some minutes."""

import box_data
import numpy as np
import pytest
import tensorflow as tf

from pipeline.fit import fit
from pipeline.serving.client import Client

SMALL = {
    "data": {"image_size": (64, 64), "augment": {"flip": {}}},
    "model": {"options": {"widths": (8, 16, 32), "pyramid_channels": 32}},
    "train": {
        **{"batch_size": 8, "learning_rate": 0.01, "ema": 0.98},
        "steps_per_execution": 20,
    },
    "runtime": {"precision": "float32"},
    "log": {"tensorboard": False},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on 240 pictures of 64 pixels, with its export."""
    root = tmp_path_factory.mktemp("detection")
    made = box_data.pictures(240, seed=1, size=(64, 64), most=3, least=14, largest=36)
    box_data.write_yolo(root / "shapes", made)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        run = fit("shapes", epochs=15, **SMALL)
    return root, run, made


def test_shapes_are_found(trained):
    root, run, _ = trained
    directory = root / run.directory
    assert run.config.recipe == "boxes" and run.config.source.name == "yolo"
    assert run.result["test"]["ap50"] >= 0.85
    assert run.result["test"]["loss"] < 1
    assert run.result["verification"]["passed"]
    assert 0.05 < run.result["calibration"]["score_threshold"] < 0.95
    columns = (directory / "predictions.csv").read_text().splitlines()[0]
    assert columns.startswith("file,truth,prediction,correct,right,false,missed,wrong")
    assert (directory / "mistakes.png").is_file()
    report = (directory / "report.html").read_text(encoding="utf-8")
    assert "Precision and recall" in report and "could not be made" not in report


def test_boxes_are_near_the_shapes_in_a_picture_that_is_twice_as_large(trained):
    root, _, made = trained
    pixels, boxes, _ = next(part for part in made if len(part[1]) == 2)
    large = pixels.repeat(2, axis=0).repeat(2, axis=1)
    file = tf.io.encode_png(large).numpy()
    with Client(root / "saved_models/shapes") as client:
        prediction = client.predict("image_bytes", image_bytes=[file])
        small = client.predict(images=pixels[None])
    for predictions, scale, most in ((prediction, 2, 12), (small, 1, 4)):
        found = predictions["boxes"][0, :4]
        for box in boxes:
            distance = np.abs(found - scale * np.array(box)).max(axis=1)
            assert distance.min() < most


def test_more_shapes_are_found_nearly_always(workplace):
    """Of pictures of 96x128 pixels; about a minute of two cores."""
    box_data.write_coco(workplace / "shapes", box_data.pictures(500, seed=2))
    size = {"data": {"image_size": (96, 128), "augment": {"flip": {}}}}
    options = {**SMALL, **size, "model": {"options": {"widths": (8, 16, 32, 64)}}}
    run = fit("shapes", epochs=15, export={"enabled": False}, **options)
    assert run.result["test"]["ap50"] >= 0.95
    assert run.result["test"]["ap"] >= 0.75
