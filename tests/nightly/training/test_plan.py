"""The plan of the recipe `photos`: what is chosen for which data, machine and time."""

import numpy as np
import pytest

from pipeline.config import command_line, registry
from pipeline.training import plan


@pytest.mark.parametrize("words", ["--model.widths 4,8", "--image-size 20"])
def test_the_speed_of_the_machine_is_measured(workplace, words):
    images = np.zeros((8, 2, 2, 1), np.uint8)
    np.savez("images.npz", images=images, labels=np.arange(8) % 2)
    config = command_line.configure(["images.npz", *words.split()])
    source = registry.call("sources", config.source.name, config.source.options)
    assert 1e-10 < plan._seconds_per_pixel(config, source, "float32") < 1e-3
