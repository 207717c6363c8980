"""Shapes with boxes: trained by their path, exported, served and drawn."""

import box_data
import pytest

from pipeline.fit import fit

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


@pytest.mark.long
def test_more_shapes_are_found_nearly_always(workplace):
    """Of pictures of 96x128 pixels; about a minute of two cores."""
    box_data.write_coco(workplace / "shapes", box_data.pictures(500, seed=2))
    size = {"data": {"image_size": (96, 128), "augment": {"flip": {}}}}
    options = {**SMALL, **size, "model": {"options": {"widths": (8, 16, 32, 64)}}}
    run = fit("shapes", epochs=15, export={"enabled": False}, **options)
    assert run.result["test"]["ap50"] >= 0.95
    assert run.result["test"]["ap"] >= 0.75
