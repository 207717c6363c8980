"""Imports all that a run imports: the fork server loads this module by name, its children have it.

Only imports: a process that has run an operation has threads, which a fork does not take along.
"""

import importlib
import os

from pipeline.runtime import native_logs

_MODULES = (
    *("tensorflow", "sklearn.datasets", "matplotlib.backends.backend_agg"),
    "tests.nightly.fault_injection.reference",
    *("pipeline.fit", "pipeline.export.__main__", "pipeline.report.run"),
    *("pipeline.data.sources.scikit_learn", "pipeline.data.augment.crop"),
    *("pipeline.tasks.image_classification", "pipeline.models.tiny"),
    *("pipeline.training.engines.model_fit", "pipeline.training.engines.gradient_tape"),
    *("pipeline.training.optim.optimizers.adam", "pipeline.training.optim.schedules.cosine"),
)

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
with native_logs.of_start():
    for _name in _MODULES:
        importlib.import_module(_name)
