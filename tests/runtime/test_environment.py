"""Settings of the user's account that belong to other work: none may change a result."""

import json

from conftest import run_python

_STARTED = """
from pipeline.config import command_line
from pipeline.runtime import environment
environment.start(command_line.configure(["digits"]).runtime)
import keras
print(keras.backend.backend(), keras.backend.floatx(), keras.backend.image_data_format())
"""


def test_another_backend_and_other_types_of_keras_are_not_taken(tmp_path):
    values = {"backend": "jax", "floatx": "float64", "image_data_format": "channels_first"}
    (tmp_path / "keras.json").write_text(json.dumps(values))
    other = {"KERAS_HOME": str(tmp_path), "KERAS_BACKEND": "torch"}
    done = run_python("-c", _STARTED, cwd=tmp_path, env=other, fresh=True)
    assert done.stdout.split() == ["tensorflow", "float32", "channels_last"], done.stderr
