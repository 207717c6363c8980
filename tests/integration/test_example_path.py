"""How many files handle an example on its path from the source to the gradient.

A profiler hook sees every call in the package while a model trains, in all threads: `tf.data` and
`tf.function` call it when they trace. A file counts if one of its functions returns examples:
arrays or tensors (symbolic ones too) with at least one axis, datasets, or a container of these.
Metrics and `Update.apply`, which gets the gradient, are not on the path.
"""

import re
import sys
import threading

import keras
import numpy as np
import tensorflow as tf
from conftest import REPOSITORY
from small import machine

from pipeline.config import command_line, registry
from pipeline.data import augmentation, batching, dataset
from pipeline.training.model_builder import build

PACKAGE = f"{REPOSITORY}/pipeline/"
MOST = 16
# The registry returns what the called function returns.
NOT_COUNTED = ("utils/", "config/registry.py")
SOURCES = "data/sources/"  # which may keep what they have read: they always count


def holds_examples(value: object) -> bool:
    if isinstance(value, tf.data.Dataset | tf.data.Iterator):
        return True
    if isinstance(value, keras.Variable | tf.Variable):
        return False
    if isinstance(value, np.ndarray | tf.Tensor | keras.KerasTensor):
        return len(value.shape) > 0
    if isinstance(value, dict):
        return any(map(holds_examples, value.values()))
    return isinstance(value, list | tuple) and any(map(holds_examples, value))


def files_of_the_path(config) -> set[str]:
    """Trains as `fit` does it; returns the files whose functions return examples."""
    files, thread = set(), threading.local()

    def hook(frame, event, returned):
        path, name = frame.f_code.co_filename, frame.f_code.co_qualname
        if event not in ("call", "return") or not path.startswith(PACKAGE):
            return
        file, inside = path.removeprefix(PACKAGE), getattr(thread, "inside", 0)
        if name == "Update.apply" or name.endswith(".update_state"):
            thread.inside = inside + (1 if event == "call" else -1)
        elif event == "call" or inside or file.startswith(NOT_COUNTED):
            return
        elif holds_examples(returned) or (file.startswith(SOURCES) and name != "<module>"):
            files.add(file)

    threading.setprofile(hook)
    sys.setprofile(hook)
    try:
        data = dataset.load(config)
        plain = batching.training(data.splits["train"], config.train, 0)
        batches, _ = augmentation.placed(plain, config.data, 0, data.cache)
        model = build(data.task, config, machine(), plain, augment_in_step=batches is plain)
        registry.load("engines", config.train.engine)(model, batches, None, [])
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return files


def test_at_most_sixteen_files_handle_an_example_and_are_documented(workplace):
    train = {"epochs": 1, "batch_size": 16, "steps": 2}
    config = command_line.recipe("digits").changed(train=train, model={"name": "tiny"})
    files = files_of_the_path(config)
    expected = {
        *("data/sources/scikit_learn.py", "data/splits.py", "data/batching.py"),
        *("data/augment/crop.py", "tasks/image_classification.py", "models/simple.py"),
        *("training/train_step.py", "training/optim/gradient_update.py"),
    }
    assert expected <= files, "the hook misses a stage"
    assert len(files) <= MOST, "\n".join(["", *sorted(files)])
    page = (REPOSITORY / "docs/architecture.md").read_text(encoding="utf-8")
    section = page.partition("## The path of an example")[2].partition("\n## ")[0]
    documented = set(re.findall(r"`([a-z_/]+[\w*]*\.py)`", section))
    for file in files:
        folder, _, name = file.rpartition("/")
        general = f"{folder}/{'_*' if name.startswith('_') else 'NAME'}.py"
        assert {file, general} & documented, f"docs/architecture.md does not name {file}"
