"""A folder of photos in one line, and what is said of folders that have faults."""

import numpy as np

from pipeline.fit import fit


def test_a_hundred_classes_of_two_pictures(workplace, capsys):
    images = np.random.default_rng(0).integers(0, 256, (200, 8, 8, 3), np.uint8)
    np.savez("many.npz", images=images, labels=np.arange(200) // 2)
    size = {"data": {"image_size": (16, 16)}, "export": {"enabled": False}}
    run = fit("many.npz", epochs=1, model="tiny", **size)
    assert "note       train has no example of '" in capsys.readouterr().out
    assert run.history["loss"]
