"""From images on disk to a verified SavedModel, with Keras 3 and TensorFlow.

`Config` and its sections describe a run; `from pipeline.fit import fit` starts one and
returns a `Run`; a `Client` queries an exported model. The base classes `Source` and
`Task`, for custom sources and tasks, are in `pipeline.contracts`.

Names are imported on first use: `import pipeline` imports nothing else.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline import contracts as contracts
    from pipeline import fit as fit
    from pipeline.config.config import Config as Config
    from pipeline.config.sections import Clean as Clean
    from pipeline.config.sections import Data as Data
    from pipeline.config.sections import Export as Export
    from pipeline.config.sections import Log as Log
    from pipeline.config.sections import Model as Model
    from pipeline.config.sections import Runtime as Runtime
    from pipeline.config.sections import SourceConfig as SourceConfig
    from pipeline.config.sections import TaskConfig as TaskConfig
    from pipeline.config.sections import Train as Train
    from pipeline.contracts import Batches as Batches
    from pipeline.contracts import Decision as Decision
    from pipeline.contracts import Info as Info
    from pipeline.report.run import Run as Run
    from pipeline.serving.client import Client as Client
    from pipeline.utils.errors import UsageError as UsageError

__version__ = "0.1.0"

# Public name -> the module that defines it; for a module, the module itself.
_MODULES = {
    "Config": "pipeline.config.config",
    **dict.fromkeys(
        (
            "Clean",
            "Data",
            "Export",
            "Log",
            "Model",
            "Runtime",
            "SourceConfig",
            "TaskConfig",
            "Train",
        ),
        "pipeline.config.sections",
    ),
    **dict.fromkeys(("Batches", "Decision", "Info"), "pipeline.contracts"),
    "Client": "pipeline.serving.client",
    "Run": "pipeline.report.run",
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
