"""Networks that begin with the weights of another network."""

import numpy as np
import pytest

from pipeline.config import registry
from pipeline.config.sections import ModelConfig
from pipeline.training import pretrained
from pipeline.training.model_builder import network
from pipeline.utils.errors import UsageError

WIDTHS = (8, 12, 16)


def network_of(target, model, **options):
    metadata = {"image_shape": [32, 32, 3], "class_names": ["a", "b"]}
    metadata |= {"input": "image", "target": target, "boxes_per_image": 2}
    task = registry.call("tasks", "supervised", {}, metadata)
    return network(task, ModelConfig(name=model, options=options), "float32")


def test_a_detector_begins_with_the_network_of_a_classification(tmp_path):
    photos = network_of("classes", "residual", widths=WIDTHS, blocks=1)
    photos.to_keras_model().save(tmp_path / "model.keras")
    detector = network_of("boxes", "detector", widths=(*WIDTHS, 20), min_level=2)
    note = pretrained.load(detector, tmp_path / "model.keras")
    shared = len(photos.weights) - 2
    assert note.startswith(f"{shared} of {len(detector.weights)} weights from")
    assert note.endswith("layers are new")
    values = {variable.path: variable.numpy() for variable in detector.weights}
    for variable in photos.weights[:shared]:
        np.testing.assert_array_equal(values[variable.path], variable)
    other = network_of("boxes", "detector", widths=(8, 12, 18))
    with pytest.raises(UsageError, match="does not fit: stage3"):
        pretrained.load(other, tmp_path / "model.keras")
