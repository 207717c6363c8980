"""From examples on disk to a verified SavedModel, with Keras 3 and TensorFlow.

A `Config` and its sections (`SourceConfig`, `TrainConfig`, ...) describe a run; `from
pipeline.fit import fit` starts a run and returns a `Run`; a `Client` queries an
exported model. `pipeline.contracts` has the base classes of custom sources and tasks.

Names are imported on first use: `import pipeline` imports nothing else.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline import contracts as contracts
    from pipeline import fit as fit
    from pipeline.config.config import Config as Config
    from pipeline.config.sections import CleanConfig as CleanConfig
    from pipeline.config.sections import DataConfig as DataConfig
    from pipeline.config.sections import ExportConfig as ExportConfig
    from pipeline.config.sections import LogConfig as LogConfig
    from pipeline.config.sections import ModelConfig as ModelConfig
    from pipeline.config.sections import RuntimeConfig as RuntimeConfig
    from pipeline.config.sections import SourceConfig as SourceConfig
    from pipeline.config.sections import TaskConfig as TaskConfig
    from pipeline.config.sections import TrainConfig as TrainConfig
    from pipeline.contracts import Batches as Batches
    from pipeline.contracts import Decision as Decision
    from pipeline.contracts import Info as Info
    from pipeline.report.run import Run as Run
    from pipeline.serving.client import Client as Client
    from pipeline.utils.errors import UsageError as UsageError

__version__ = "0.1.0"

# Public name -> the module that defines it; for a module, the module itself.
_MODULES = {
    "Batches": "pipeline.contracts",
    "CleanConfig": "pipeline.config.sections",
    "Client": "pipeline.serving.client",
    "Config": "pipeline.config.config",
    "DataConfig": "pipeline.config.sections",
    "Decision": "pipeline.contracts",
    "ExportConfig": "pipeline.config.sections",
    "Info": "pipeline.contracts",
    "LogConfig": "pipeline.config.sections",
    "ModelConfig": "pipeline.config.sections",
    "Run": "pipeline.report.run",
    "RuntimeConfig": "pipeline.config.sections",
    "SourceConfig": "pipeline.config.sections",
    "TaskConfig": "pipeline.config.sections",
    "TrainConfig": "pipeline.config.sections",
    "UsageError": "pipeline.utils.errors",
    "contracts": "pipeline.contracts",
    "fit": "pipeline.fit",
}
__all__ = ["__version__", *sorted(_MODULES)]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'pipeline' has no attribute {name!r}")
    module = importlib.import_module(_MODULES[name])
    value = module if module.__name__ == f"pipeline.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
