"""The export of a run: its predictions, its files, and what remains of an export that
fails.
"""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from pipeline.contracts import ServingInput
from pipeline.export import savedmodel
from pipeline.serving.savedmodel_session import INVALID_ARGUMENT, ServerError, Session


@pytest.mark.parametrize(("x", "name"), [(-1.0, "NaN"), (0.0, "Inf")])
def test_an_answer_that_is_not_finite_is_refused(tmp_path, x, name):
    specs = {"x": tf.TensorSpec((None,), tf.float32, name="x")}
    default = ServingInput("serving_default", specs, lambda x: {"x": x}, dict)
    task = SimpleNamespace(
        input=SimpleNamespace(signatures=lambda: [default]),
        serve=lambda network, batch: {"y": tf.math.log(batch["x"])},
    )
    savedmodel._save(tmp_path / "1", keras.Sequential(), task)
    session = Session(tmp_path / "1")
    request = np.array([1.0, x], np.float32)
    with pytest.raises(
        ServerError, match=f"y must be finite : Tensor had .*{name}"
    ) as caught:
        session.run("serving_default", {"x": request})
    assert caught.value.code == INVALID_ARGUMENT
    assert session.run("serving_default", {"x": request[:1]})["y"].tolist() == [0.0]
