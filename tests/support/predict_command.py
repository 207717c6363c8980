"""Test images, and the command `predict` run in this process."""

import json

import numpy as np
from served_models import SIDE

from pipeline import predict

IMAGES = np.random.default_rng(2).integers(0, 256, (9, SIDE, SIDE, 3), np.uint8)


class Ran:
    """Exit code, stdout and stderr of the command."""

    def __init__(self, capsys, *words):
        self.code = predict.main([str(word) for word in words])
        self.text, self.said = capsys.readouterr()

    @property
    def records(self):
        return [json.loads(line) for line in self.text.splitlines()]


def number(record):
    """Returns the index of the image of a record."""
    return int(record["file"].partition("ü")[2].partition(".")[0])
