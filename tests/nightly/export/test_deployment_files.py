"""The files beside the versions, and the examples in SERVING.md, which run
unchanged.
"""

import re

import fake_serving
import numpy as np
import pytest
import tensorflow as tf


@pytest.fixture(scope="module")
def ports(digits_run):
    """Port in the examples -> that of a server of the exported digits."""
    with fake_serving.both(fake_serving.Backend(digits=digits_run.export)) as ports:
        yield ports


@pytest.fixture
def picture(digits_run, workplace):
    """Writes the first test image to picture.png; the prediction of the model."""
    image = digits_run.splits["test"].take(np.arange(1))["image"]
    tf.io.write_file("picture.png", tf.io.encode_png(image[0]))
    return digits_run.predict(images=image)


@pytest.mark.parametrize("way", fake_serving.WAYS)
@pytest.mark.parametrize("signature", ["serving_default", "image_bytes"])
def test_the_examples_run_unchanged(ports, digits_run, picture, signature, way, capsys):
    expected = picture
    if signature == "serving_default":
        expected = digits_run.predict(images=np.zeros((1, 8, 8, 1), np.uint8))
    document = (digits_run.export.parent / "SERVING.md").read_text()
    shown = fake_serving.shown(document, signature, way, ports, capsys)
    scores = [float(number) for number in re.findall(r"\b\d\.\d+(?:e-\d+)?", shown)]
    assert max(scores) == pytest.approx(expected["probabilities"].max(), rel=1e-3)
    assert expected["label"][0] in shown
