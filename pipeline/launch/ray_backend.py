"""Ray's `TensorflowTrainer`, with TensorFlow started as in any other run.

Ray imports TensorFlow in the caller, the controller and each worker. Every worker reads
its `BackendConfig` first, and so this module.
"""

from pipeline.runtime import environment

# Chooses oneDNN, the order of the GPUs and what TensorFlow prints.
environment.import_tensorflow()

from ray.train.tensorflow import TensorflowConfig, TensorflowTrainer  # noqa: E402

__all__ = ["BackendConfig", "TensorflowTrainer"]


class BackendConfig(TensorflowConfig):
    """With it, Ray writes TF_CONFIG on each worker."""
