"""Boxes and their names are drawn inside of the picture."""

import numpy as np
from PIL import Image

from pipeline.report import box_pictures


def test_the_name_of_a_box_at_the_border_can_be_read(tmp_path):
    file = tmp_path / "a.png"
    Image.new("RGB", (160, 80), "white").save(file)
    texts = []
    for left in (20, 140):
        record = {
            "boxes": [[left, 30, left + 20, 60]],
            "scores": [0.5],
            "classes": [0],
            "labels": ["triangle"],
        }
        pixels = np.asarray(box_pictures.draw(file, record), int)
        texts.append((pixels.sum(axis=2) < 150).sum())
    assert texts[0] == texts[1] > 50
