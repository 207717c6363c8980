"""How Ray prepares its workers: TensorFlow starts as in any other run."""

from typing import Any

from ray.train.tensorflow import TensorflowConfig

from pipeline.runtime import environment


class Config(TensorflowConfig):
    """Ray's preparation for TensorFlow, after `environment.import_tensorflow`.

    Otherwise, Ray imports TensorFlow on a worker before the run can choose oneDNN, the
    order of the GPUs and what TensorFlow prints.
    """

    @property
    def backend_cls(self) -> type:
        return _Backend


class _Backend(TensorflowConfig().backend_cls):  # type: ignore[misc]
    """Writes TF_CONFIG on each worker, as Ray does."""

    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        worker_group.execute(environment.import_tensorflow)
        super().on_start(worker_group, backend_config)
