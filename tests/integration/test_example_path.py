"""How many files handle one example on its way from the disk to the gradient.

A profiler hook sees every call in the package while a model trains, in all threads: `tf.data` and
`tf.function` call it when they trace. A file counts if one of its functions returns examples:
arrays or tensors (symbolic ones too) with at least one axis, datasets, or a container of these.
Weights are not examples. Files of `data/sources` that run always count, because a source may keep
what it has read. The way ends in `Update.apply`, which gets the gradient; metrics are not on it.
Not counted: `utils`, and `config/registry.py`, which returns what the called function returns.
"""

import contextlib
import re
import sys
import threading
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import REPOSITORY
from PIL import Image
from small import machine

from pipeline.config import command_line, registry
from pipeline.data import augmentation, batching, dataset, image_decoding
from pipeline.training.model_builder import build

PACKAGE = f"{REPOSITORY}/pipeline/"
MOST = 16
NOT_COUNTED = ("utils/", "config/registry.py")


def holds_examples(value: object) -> bool:
    """Whether a value is, or contains, an array or tensor with an axis, or a dataset."""
    if isinstance(value, tf.data.Dataset | tf.data.Iterator):
        return True
    if isinstance(value, keras.Variable | tf.Variable):
        return False
    if isinstance(value, np.ndarray | tf.Tensor | keras.KerasTensor):
        return len(value.shape) > 0
    if isinstance(value, dict):
        return any(map(holds_examples, value.values()))
    return isinstance(value, list | tuple) and any(map(holds_examples, value))


class Hook:
    """Collects the files whose functions return examples."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self._thread = threading.local()

    def __call__(self, frame, event, returned) -> None:
        path = frame.f_code.co_filename
        inside = getattr(self._thread, "inside", 0)
        if event not in ("call", "return") or not path.startswith(PACKAGE):
            return
        name, file = frame.f_code.co_qualname, path.removeprefix(PACKAGE)
        if name == "Update.apply" or name.endswith(".update_state"):
            self._thread.inside = inside + (1 if event == "call" else -1)
        elif event == "return" and not inside and not file.startswith(NOT_COUNTED):
            reads = file.startswith("data/sources/") and name != "<module>"
            if reads or holds_examples(returned):
                self.files.add(file)

    @contextlib.contextmanager
    def profiling(self):
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def train(config) -> None:
    """From the source to the last update, as `fit` does it."""
    data = dataset.load(config)
    plain = batching.training(data.splits["train"], config.train, config.runtime.seed)
    batches, _ = augmentation.placed(plain, config.data, config.runtime.seed, data.cache)
    model = build(data.task, config, machine(), plain, augment_in_step=batches is plain)
    before = [weight.numpy() for weight in model.trainable_variables]
    registry.load("engines", config.train.engine)(model, batches, None, [])
    after = [weight.numpy() for weight in model.trainable_variables]
    assert any((a != b).any() for a, b in zip(before, after, strict=True))


@pytest.fixture
def photos(tmp_path) -> Path:
    generator = np.random.default_rng(0)
    for number in range(60):
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (8, 8, 3), np.uint8)).save(path)
    return tmp_path / "photos"


def documented() -> set[str]:
    """The files named in docs/architecture.md; NAME and _* stand for files of a registry."""
    page = (REPOSITORY / "docs/architecture.md").read_text(encoding="utf-8")
    section = page.partition("## The way of one example")[2].partition("\n## ")[0]
    return set(re.findall(r"`([a-z_]+/[\w/*]+\.py)`", section))


def in_general(file: str) -> str:
    folder, _, name = file.rpartition("/")
    return f"{folder}/{'_*' if name.startswith('_') else 'NAME'}.py"


@pytest.mark.parametrize("kind", ["digits", pytest.param("folder", marks=pytest.mark.long)])
def test_at_most_sixteen_files_handle_an_example(kind, photos, workplace):
    changes = {"digits": {}, "folder": {"source": {"name": "folder", "options": {"path": photos}}}}
    train_options = {"epochs": 1, "batch_size": 16, "steps": 2}
    config = command_line.recipe("digits").changed(
        train=train_options, model={"name": "tiny"}, **changes[kind]
    )
    # Traces of earlier tests would hide the decoders.
    image_decoding._traced.cache_clear()
    image_decoding._decoders.cache_clear()
    hook = Hook()
    with hook.profiling():
        train(config)
    expected = {
        "digits": {"data/sources/scikit_learn.py"},
        "folder": {"data/sources/folder.py", "data/image_decoding.py"},
    }
    always = {
        *("data/splits.py", "data/batching.py", "data/augment/crop.py", "models/tiny.py"),
        *("tasks/image_classification.py", "training/train_step.py"),
        "training/optim/gradient_update.py",
    }
    assert expected[kind] | always <= hook.files, "the hook misses a stage"
    assert len(hook.files) <= MOST, "\n".join(["", *sorted(hook.files)])
    known = documented()
    missing = [file for file in hook.files if not {file, in_general(file)} & known]
    assert not missing, f"docs/architecture.md does not name {missing}"
