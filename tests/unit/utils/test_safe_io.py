"""Untrusted run directories, data and models: damaged files, and no code is run."""

import ast
import os
import pickle
from pathlib import Path

import keras
import numpy as np
import pytest
from processes import REPOSITORY

from pipeline.config import registry
from pipeline.data import splits
from pipeline.data.cleaning import manifest
from pipeline.data.sources import arrays
from pipeline.export import run_result
from pipeline.runtime import run_directory
from pipeline.runtime.run_directory import RunDirectory
from pipeline.training import preflight
from pipeline.training.checkpoints import Checkpoints
from pipeline.utils.errors import UsageError

PACKAGE = REPOSITORY / "pipeline"
# They run what they read, or have done so by a mistake of theirs.
MODULES = {
    "pickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
    "h5py",
}
CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "load_model",
    "model_from_json",
    "system",
}
CALLS |= {
    "model_from_config",
    "deserialize_keras_object",
    "enable_unsafe_deserialization",
}

# The last ones run in Keras's safe mode, which refuses code in the file: copies of a
# schedule with its optimizer, and files of the run or those that the user names.
SAFE = {"re.compile", "model.compile", "plain.compile", "torch.compile"}
SAFE |= {"keras.saving.deserialize_keras_object", "keras.models.load_model"}
WEIGHTS = {"layers/applications.py", "training/pretrained.py"}
NAMED = {
    *WEIGHTS,
    "training/plan.py",
}  # looks for files of weights, without opening them


def test_nothing_in_the_source_can_run_what_it_reads():
    """Every file is looked at, so that one message lists every fault."""
    faults = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_bytes())):
            if fault := unsafe(node, name):
                faults.append(f"{name}:{getattr(node, 'lineno', '?')}: {fault}")
    assert not faults, "\n".join(["", *faults])


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from yaml import load",
        "np.load(path, allow_pickle=True)",
        "np.load(path)",
        "run(words, shell=True)",
        "eval(text)",
        "os.system(text)",
        "yaml.load(text, Loader=yaml.Loader)",
        "model.load_weights(path)",
        "path = 'model.pkl'",
    ],
)
def test_each_way_to_run_what_is_read_is_found(code):
    assert any(unsafe(node, "fit.py") for node in ast.walk(ast.parse(code)))


def unsafe(node, file):
    """What of a node could run what it reads; None if nothing."""
    match node:
        case ast.Import(names=names):
            return {alias.name.partition(".")[0] for alias in names} & MODULES
        case ast.ImportFrom(module=str(module)):
            return {module.partition(".")[0]} & {*MODULES, "yaml"}
        case ast.keyword(arg="safe_mode" | "shell"):
            return f"{node.arg}="
        case ast.keyword(arg="allow_pickle", value=value):
            is_off = isinstance(value, ast.Constant) and value.value is False
            return None if is_off else "allow_pickle="
        case ast.Call(func=ast.Name(id=name)):
            return {name} & CALLS
        case ast.Call(func=ast.Attribute(value=owner, attr=name)):
            return unsafe_call(node, ast.unparse(owner), name, file)
        case ast.Constant(value=str(text)):
            is_pickle = text.endswith((".h5", ".hdf5", ".pkl"))
            return text if is_pickle and file not in NAMED else None


def unsafe_call(call, owner, name, file):
    """What of a call of a method could run what it reads."""
    if name in CALLS and f"{owner}.{name}" not in SAFE:
        return name
    options = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    # YAML's other loaders create objects of any Python class.
    if owner == "yaml" and "load" in name:
        is_safe = name == "load" and options.get("Loader") == "yaml.BaseLoader"
        return None if is_safe else f"yaml.{name}"
    if owner in ("np", "numpy") and name == "load" and "allow_pickle" not in options:
        return "np.load without allow_pickle=False"
    # Files of weights: only those that a user gives by name, into a network of ours.
    return name if name == "load_weights" and file not in WEIGHTS else None


class Bomb:
    """Unpickled, it creates a directory."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return (os.mkdir, (str(self.folder.parent / "it-ran"),))


@pytest.fixture
def box(tmp_path, monkeypatch):
    """A directory for the files of a stranger, none of which may run anything."""
    path = tmp_path / "box"
    path.mkdir()
    monkeypatch.chdir(path)
    yield path
    assert not (tmp_path / "it-ran").exists()


JSON = {
    "nested": lambda path: path.write_text("[" * 10**6 + "]" * 10**6),
    "directory": os.mkdir,
    "pickle": lambda path: path.write_bytes(pickle.dumps(Bomb(path.parent))),
}


@pytest.mark.parametrize("kind", JSON)
def test_a_damaged_json_file_is_one_line_or_ignored(box, kind):
    config = registry.load("recipes", "digits")().changed(run_directory=box)
    run = RunDirectory(box)
    for path in (run.config, run.metadata, run.result, run.decisions, run.manifest):
        JSON[kind](path)
    with pytest.raises(UsageError, match=r"config.json is damaged|no run"):
        preflight.check(config)
    assert run_result.load_result(config, run, 7) is None
    assert run_directory.saved_decision(box, "precision") is None
    with pytest.raises(UsageError):
        manifest.read(run.manifest)
    store, _, path = saved(box / "new")
    (path / "manifest.json").unlink()
    JSON[kind](path / "manifest.json")
    with pytest.raises(UsageError):
        store.restore(3)


def objects(path):
    np.savez(path, train=np.array([Bomb(path.parent)], object))


@pytest.mark.parametrize(
    "write", [objects, os.mkdir, lambda path: path.write_text("[]")]
)
def test_archives_that_are_not_of_plain_arrays_are_refused(box, write):
    write(box / "splits.npz")
    with pytest.raises(UsageError, match="splits.npz is damaged"):
        splits.require_same_examples(box / "splits.npz", {}, str)


def test_arrays_larger_than_the_memory_are_refused_by_their_table_of_contents(
    box, monkeypatch
):
    images, labels = np.zeros((4096, 32, 32, 1), np.uint8), np.arange(4096) % 2
    np.savez_compressed("images.npz", images=images, labels=labels)
    assert arrays.arrays(path=Path("images.npz")).info.splits == {"train": 4096}
    free = type("Memory", (), {"available": 2**20})
    monkeypatch.setattr(arrays.psutil, "virtual_memory", lambda: free)
    with pytest.raises(UsageError) as caught:
        arrays.arrays(path=Path("images.npz"))
    said = "does not fit into memory (it unpacks to 4,227,"
    assert said in str(caught.value) and "save images.npy" in str(caught.value)
    np.save("labels.npy", np.array([Bomb(box)], object), allow_pickle=True)
    np.save("images.npy", images)
    with pytest.raises(UsageError, match="labels.npy"):
        arrays.arrays(path=Path())


def saved(folder):
    """A checkpoint of two numbers, and its store."""
    variable = keras.Variable([1.0, 2.0])
    store = Checkpoints({"model": [variable]}, folder)
    store.save(3, {"history": {}})
    return store, variable, folder / "step-00000003"
