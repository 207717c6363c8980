"""Ray's `TensorflowTrainer`, with TensorFlow started as in any other run.

Ray imports TensorFlow in the caller, the controller and each worker. Every worker reads
its `Config` first, and so this module.
"""

from pipeline.runtime import environment

# Chooses oneDNN, the order of the GPUs and what TensorFlow prints.
environment.import_tensorflow()

from ray.train.tensorflow import TensorflowConfig, TensorflowTrainer  # noqa: E402

__all__ = ["Config", "TensorflowTrainer"]


class Config(TensorflowConfig):
    """With it, Ray writes TF_CONFIG on each worker."""
