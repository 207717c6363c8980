"""All that a run imports, imported once: the drill's fork server loads it, its children have it."""

import importlib
import io
import os

from pipeline.runtime import native_logs

_ROOMS = (
    "fit",
    "struck",
    "evidence",
    "subject",
    "export",
    "export_command",
    "report",
    "data",
    "evaluate",
    "augmenter",
)
_SHELVES = (
    *("sources.scikit_learn", "tasks.image_classification"),
    *("augment.crop", "engines.model_fit", "engines.gradient_tape"),
)

# Only imports: a process that has run an operation has threads, which a fork does not take along.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
with native_logs.of_start():
    for _name in ("tensorflow", "sklearn.datasets"):
        importlib.import_module(_name)
    for _name in (*_ROOMS, *_SHELVES):
        importlib.import_module(f"pipeline.{_name}")

# Fonts are looked for when the first figure is drawn: a second for each run.
importlib.import_module("matplotlib.figure").Figure().savefig(io.BytesIO())
