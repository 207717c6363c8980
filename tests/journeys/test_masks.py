"""Images with a class for each pixel: a table of files is trained, exported, evaluated
and served.
"""

import json

import export_metrics
import numpy as np
import pytest
from PIL import Image

from pipeline import evaluate, predict
from pipeline.fit import fit
from pipeline.serving.client import Client

COUNT = 36
OPTIONS = {
    "source": {"class_names": ["sky", "tree"]},
    "data": {"augment": {"flip": {}}, "test": 0.1, "image_size": (16, 24)},
    "model": {"name": "unet", "options": {"widths": (4, 8)}},
    "train": {"batch_size": 8, "learning_rate": 0.01, "steps_per_execution": 4},
    "export": {"batch_sizes": (1,)},
    "runtime": {"precision": "float32"},
    "log": {"tensorboard": False, "bar": False},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on bright rectangles, with its export."""
    root = tmp_path_factory.mktemp("masks")
    (root / "files").mkdir()
    generator = np.random.default_rng(0)
    rows = ["image,mask"]
    for number in range(COUNT):
        mask = np.zeros((16, 24), np.uint8)
        top, left = generator.integers(0, 8, 2)
        mask[top : top + 8, left : left + 12] = 1
        pixels = generator.integers(0, 60, (16, 24, 3)) + 150 * mask[..., None]
        Image.fromarray(pixels.astype(np.uint8)).save(root / f"files/{number}.png")
        Image.fromarray(mask).save(root / f"files/{number}_mask.png")
        rows.append(f"files/{number}.png,files/{number}_mask.png")
    (root / "scans.csv").write_text("\n".join(rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        run = fit("scans.csv", run_directory="run", epochs=6, **OPTIONS)
    return root, run


def test_a_table_of_images_and_masks_is_trained_and_exported(trained):
    root, run = trained
    assert run.config.model.name == "unet"
    assert len(run.history["loss"]) == 6
    assert run.history["loss"][-1] < run.history["loss"][0]
    assert run.result["verification"]["passed"]
    assert set(run.test["per_class"]) == {"sky", "tree"}
    report = (root / "run/report.html").read_text(encoding="utf-8")
    assert "verified" in report and "could not be made" not in report
    rows = (root / "run/predictions.csv").read_text().splitlines()
    assert len(rows) == 1 + run.test["examples"]


def test_the_run_is_evaluated_again(trained, monkeypatch, capsys):
    root, run = trained
    monkeypatch.chdir(root)
    assert evaluate.main(["run"]) == 0
    assert f"loss {run.test['loss']:.4f}" in capsys.readouterr().out


def test_the_export_is_measured_as_the_run(trained, monkeypatch):
    root, run = trained
    monkeypatch.chdir(root)
    evaluation = export_metrics.require_equal(run, "scans.csv", ("loss",))
    assert "note       no loss" in evaluation.text
    assert "loss" not in evaluation.predictions


def test_a_file_is_answered_with_a_class_for_each_pixel(trained, workplace):
    root, run = trained
    file = root / "files/3.png"
    pixels = np.asarray(Image.open(file))
    expected = run.predict(images=pixels[None])["mask"]
    assert expected.shape == (1, 16, 24) and set(np.unique(expected)) <= {0, 1}
    export = root / run.export
    with Client(export) as client:
        served = client.predict("image_bytes", image_bytes=[file.read_bytes()])
    np.testing.assert_array_equal(served["mask"], expected)
    assert predict.main([str(export), str(file), "--output", "masks.jsonl"]) == 0
    (row,) = (workplace / "masks.jsonl").read_text().splitlines()
    np.testing.assert_array_equal(json.loads(row)["mask"], expected[0])
    words = [str(export), str(file), "--pictures", "found"]
    assert predict.main([*words, "--output", "drawn.jsonl"]) == 0
    record = json.loads((workplace / "drawn.jsonl").read_text())
    assert record == {"file": str(file), "mask": "found/3.png"}
    np.testing.assert_array_equal(Image.open(record["mask"]), expected[0])
