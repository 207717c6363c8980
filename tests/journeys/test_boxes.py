"""Images with boxes: trained by their path, exported, evaluated, served and drawn."""

import io
import json

import box_data
import export_metrics
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from pipeline import predict
from pipeline.fit import fit
from pipeline.serving.client import Client

SIDE = 64
OPTIONS = {
    "data": {"image_size": (SIDE, SIDE), "augment": {}, "test": 0.1},
    "model": {"options": {"widths": (8, 16), "pyramid_channels": 16}},
    "train": {"epochs": 2, "batch_size": 8, "steps_per_execution": 3},
    "export": {"batch_sizes": (1,)},
    "runtime": {"precision": "float32"},
    "log": {"tensorboard": False, "bar": False},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on 36 pictures of shapes, with its export, and the pictures."""
    root = tmp_path_factory.mktemp("boxes")
    size = {"size": (SIDE, SIDE), "least": 24, "largest": 36}
    made = box_data.pictures(36, seed=1, most=2, **size)
    box_data.write_yolo(root / "shapes", made)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        run = fit("shapes", **OPTIONS)
    return root, run, made


def test_a_folder_of_yolo_is_trained_exported_and_reported(trained):
    root, run, _ = trained
    directory = root / run.directory
    assert run.config.recipe == "boxes" and run.config.source.name == "yolo"
    assert np.isfinite(run.history["val_loss"]).tolist() == [True, True]
    assert 0 <= run.test["ap"] <= run.test["ap50"] <= 1
    assert run.result["verification"]["passed"]
    columns = (directory / "predictions.csv").read_text().splitlines()[0]
    assert columns.startswith("file,truth,prediction,correct,right,false,missed,wrong")
    assert (directory / "mistakes.png").is_file()
    report = (directory / "report.html").read_text(encoding="utf-8")
    assert "Precision and recall" in report and "could not be made" not in report


def test_the_export_is_measured_as_the_run(trained, monkeypatch):
    """In pixels of the original images, which are larger than the decoded ones."""
    root, run, _ = trained
    monkeypatch.chdir(root)
    made = box_data.pictures(8, seed=2, most=2, size=(96, 128), least=40, largest=70)
    box_data.write_yolo(root / "larger", made)
    evaluation = export_metrics.require_equal(run, "larger", ("loss",))
    _, predictions = evaluation.predict_rows(np.arange(8))
    _, expected = run.evaluate("larger").predict_rows(np.arange(8))
    np.testing.assert_allclose(predictions["boxes"], expected["boxes"], atol=1e-3)
    assert predictions["boxes"][..., 2].max() > SIDE
    assert "note       no loss" in evaluation.text


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def test_a_picture_of_another_size_is_answered_in_its_own_pixels(trained):
    """Of half the height or twice as large, both letterboxed; what the network sees is
    sent as pixels, too.
    """
    root, run, made = trained
    half = made[0][0][:32]
    files = [png(half), png(half.repeat(2, axis=0).repeat(2, axis=1))]
    decode = run.task.input.decode
    seen = [decode({"image": tf.constant(file)})[0]["image"] for file in files]
    np.testing.assert_array_equal(seen[0][16:48], half)
    with Client(root / run.export) as client:
        of_pixels = client.predict(images=np.stack(seen))
        of_files = client.predict("image_bytes", image_bytes=files)
    for row, scale in enumerate((1, 2)):
        inner = of_pixels["boxes"][row] - [0, 16, 0, 16]
        expected = scale * inner.clip(0, [SIDE, 32, SIDE, 32])
        np.testing.assert_allclose(of_files["boxes"][row], expected, atol=1e-3)
    np.testing.assert_allclose(of_files["scores"], of_pixels["scores"], atol=1e-5)


def test_the_command_lists_and_draws_the_boxes_of_files(trained, workplace):
    root, run, made = trained
    export = str(root / run.export)
    files = [root / f"shapes/images/train/{number}.png" for number in range(4)]
    words = [export, *map(str, files), "--output", "boxes.jsonl", "--pictures", "drawn"]
    assert predict.main(words) == 0
    rows = (workplace / "boxes.jsonl").read_text().splitlines()
    with Client(export) as client:
        served = client.predict(images=np.stack([pixels for pixels, *_ in made[:4]]))
    for row, file, count in zip(rows, files, served["count"], strict=True):
        record = json.loads(row)
        assert record["file"] == str(file) and record["count"] == count
        assert len(record["boxes"]) == len(record["labels"]) == count
        with Image.open(workplace / f"drawn/{file.stem}.jpg") as drawn:
            assert drawn.size == (SIDE, SIDE)
