"""Settings of the user's account that belong to other work: none may change a result."""

import json
import os
import subprocess
import sys

from conftest import REPOSITORY

_STARTED = """
from pipeline.config import command_line
from pipeline.runtime import environment
environment.start(command_line.configure(["digits"]).runtime)
import keras
print(keras.backend.backend(), keras.backend.floatx(), keras.backend.image_data_format())
"""


def _python(folder, *words, **environment):
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_another_backend_and_other_types_of_keras_are_not_taken(tmp_path):
    values = {"backend": "jax", "floatx": "float64", "image_data_format": "channels_first"}
    (tmp_path / "keras.json").write_text(json.dumps(values))
    done = _python(tmp_path, "-c", _STARTED, KERAS_HOME=str(tmp_path), KERAS_BACKEND="torch")
    assert done.stdout.split() == ["tensorflow", "float32", "channels_last"], done.stderr
