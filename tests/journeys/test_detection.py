"""Shapes with boxes: trained by their path, exported, served and drawn."""

import io
import json

import box_data
import numpy as np
import pytest
from PIL import Image

from pipeline import predict
from pipeline.fit import fit
from pipeline.serving.client import Client

SMALL = {
    "data": {"image_size": (64, 64), "augment": {"flip": {}}},
    "model": {"options": {"widths": (8, 16, 32), "pyramid_channels": 32}},
    "train": {
        **{"batch_size": 8, "learning_rate": 0.01, "ema": 0.98},
        "steps_per_call": 20,
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


def test_a_picture_of_another_size_is_answered_in_its_own_pixels(trained):
    """Twice as large, and wider, so that it is letterboxed."""
    root, _, made = trained
    pixels, boxes, _ = next(part for part in made if len(part[1]) == 2)
    wide = np.zeros((128, 140, 3), np.uint8)
    wide[:, :128] = pixels.repeat(2, axis=0).repeat(2, axis=1)
    file = io.BytesIO()
    Image.fromarray(wide).save(file, "PNG")
    with Client(root / "saved_models/shapes") as client:
        answer = client.predict("image_bytes", image_bytes=[file.getvalue()])
        small = client.predict(images=pixels[None])
    for answers, scale, most in ((answer, 2, 12), (small, 1, 4)):
        found = answers["boxes"][0, :4]
        for box in boxes:
            distance = np.abs(found - scale * np.array(box)).max(axis=1)
            assert distance.min() < most


def test_the_command_prints_boxes_and_draws_them(trained, workplace, capsys):
    root, _, made = trained
    with_boxes = [number for number, part in enumerate(made) if part[1]][:3]
    files = [root / f"shapes/images/train/{number}.png" for number in with_boxes]
    words = [str(root / "saved_models/shapes"), *map(str, files)]
    assert predict.main([*words, "--pictures", "drawn"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{files[0]}  ")
    assert any(name in shown for name in box_data.NAMES)
    drawn = Image.open(workplace / f"drawn/{with_boxes[0]}.jpg")
    original = Image.open(files[0]).convert("RGB")
    assert drawn.size == original.size
    change = np.abs(np.asarray(drawn, int) - np.asarray(original, int))
    assert (change > 100).any()
    assert predict.main([*words, "--output", "boxes.csv"]) == 0
    assert predict.main([*words, "--output", "boxes.jsonl"]) == 0
    lines = (workplace / "boxes.csv").read_text().splitlines()
    assert lines[0] == "file,label,score,left,top,right,bottom"
    rows = (workplace / "boxes.jsonl").read_text().splitlines()
    records = [json.loads(row) for row in rows]
    assert len(lines) == 1 + sum(record["count"] for record in records) > 3
    assert all(len(r["boxes"]) == len(r["labels"]) == r["count"] for r in records)
