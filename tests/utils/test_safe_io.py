"""Untrusted run directories, data and models: bounded reading, and no code is run."""

import ast
import configparser
import hashlib
import io
import json
import os
import pickle
import tracemalloc
import types
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest
from conftest import REPOSITORY

from pipeline.config import registry
from pipeline.data import dataset, shards, splits
from pipeline.data.cleaning import manifest
from pipeline.data.sources import arrays
from pipeline.export import run_result
from pipeline.runtime import run_directory
from pipeline.runtime.run_directory import RunDirectory
from pipeline.training import preflight
from pipeline.training.checkpoints import Checkpoints
from pipeline.utils import npz
from pipeline.utils.errors import UsageError

ROOMS = sorted((REPOSITORY / "pipeline").rglob("*.py"))
# They run what they read, or have done so by a mistake of theirs.
MODULES = {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml", "h5py"}
CALLS = {"eval", "exec", "compile", "__import__", "load_model", "model_from_json", "system"}
CALLS |= {"model_from_config", "deserialize_keras_object", "enable_unsafe_deserialization"}

# The last one copies a schedule with its optimizer, within a process and in Keras's safe mode.
SAFE = {"re.compile", "model.compile", "keras.saving.deserialize_keras_object"}


@pytest.mark.parametrize("path", ROOMS, ids=lambda p: str(p.relative_to(REPOSITORY)))
def test_nothing_in_the_source_can_run_what_it_reads(path):
    tree, inside = ast.parse(path.read_bytes()), path.relative_to(REPOSITORY / "pipeline")
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found = {alias.name.partition(".")[0] for alias in names}
                assert not found & MODULES
            case ast.ImportFrom(module=str(module)):
                assert module.partition(".")[0] not in MODULES
            case ast.keyword(arg="safe_mode" | "shell"):
                pytest.fail(f"line {node.value.lineno}: {node.arg}=")
            case ast.keyword(arg="allow_pickle", value=value):
                assert isinstance(value, ast.Constant) and value.value is False
            case ast.Call(func=ast.Name(id=name)):
                assert name not in CALLS
            case ast.Call(func=ast.Attribute(value=owner, attr=name)):
                whole = ast.unparse(node.func)
                assert name not in CALLS or whole in SAFE, whole
                if ast.unparse(owner) in ("np", "numpy") and name == "load":
                    assert any(keyword.arg == "allow_pickle" for keyword in node.keywords)
                # Files of weights: only those that a user gives by name, into a network of ours.
                assert name != "load_weights" or str(inside) == "models/application.py"
            case ast.Constant(value=str(text)) if text.endswith((".h5", ".hdf5", ".pkl")):
                assert str(inside) == "models/application.py"


def test_the_keras_that_is_demanded_has_the_security_fixes():
    """CVE-2026-12479, -12480 and -12481 are closed in 3.15.1."""
    assert tuple(int(part) for part in keras.__version__.split(".")[:3]) >= (3, 15, 1)
    declared = configparser.ConfigParser()
    declared.read(REPOSITORY / "setup.cfg")
    needed = declared["options"]["install_requires"].splitlines()
    assert "keras>=3.15.1,<4" in needed


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


def hole(path):
    """A file of a terabyte that takes no space on the disk."""
    with path.open("wb") as file:
        file.truncate(2**40)


def unpacks_to(path, size):
    """A small archive whose member holds `size` zeros, a kilobyte for each megabyte."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (size,)}
    )
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("train.npy", "w") as member,
    ):
        member.write(header.getvalue())
        for _ in range(size >> 20):
            member.write(bytes(2**20))


JSON = {
    "nested": lambda path: path.write_text("[" * 10**6 + "]" * 10**6),
    "huge": hole,
    "directory": os.mkdir,
    "bytes": lambda path: path.write_bytes(bytes(range(256))),
    "pickle": lambda path: path.write_bytes(pickle.dumps(Bomb(path.parent))),
}


@pytest.mark.parametrize("kind", JSON)
def test_a_damaged_json_file_is_one_line_or_ignored(box, kind):
    config = registry.load("recipes", "digits")().changed(run_directory=box)
    run = RunDirectory(box)
    for path in (run.config, run.metadata, run.result, run.decisions, run.manifest):
        JSON[kind](path)
    JSON[kind](box / "shards.json")
    (box / "data.tfrecord").write_bytes(b"")
    with pytest.raises(UsageError, match=r"config.json is damaged|no run"):
        preflight.check(config)
    with pytest.raises(UsageError, match="metadata.json is damaged"):
        run_directory.frozen(box, {"class_names": []})
    assert run_result.finished(config, run) is None
    assert run_directory.decided(box, "precision", ("float32",)) is None
    with pytest.raises(UsageError):
        manifest.read(run.manifest)
    if kind != "directory":
        with pytest.raises(UsageError, match=r"shards.json"):
            shards.records([box / "data.tfrecord"])
    store, _, path = saved(box / "new")
    (path / "manifest.json").unlink()
    JSON[kind](path / "manifest.json")
    with pytest.raises(UsageError):
        store.restore(3)


SOURCES = [b"", b"[]", b"{}", b'{"fingerprint": 3}']


@pytest.mark.parametrize("text", SOURCES)
def test_a_damaged_source_is_not_taken_for_other_data(box, text):
    config = registry.load("recipes", "digits")()
    run = RunDirectory(box)
    source = types.SimpleNamespace(fingerprint=lambda: None)
    assert dataset._require_unchanged(run, source, config) == [], "a new run"
    run.source.write_text('{"fingerprint": null, "content": null}')
    assert dataset._require_unchanged(run, source, config) == []
    run.source.write_bytes(text)
    with pytest.raises(
        UsageError, match=r"source\.json is damaged; start again in a new --run-dir"
    ):
        dataset._require_unchanged(run, source, config)


@pytest.mark.parametrize("text", ["{}", "[]", "null", '{"class_names": ["a", "b"]}'])
def test_incomplete_metadata_is_damaged(box, text):
    metadata = {"class_names": ["a", "b"], "image_shape": [8, 8, 1]}
    RunDirectory(box).metadata.write_text(text)
    with pytest.raises(
        UsageError, match=r"metadata\.json is damaged; start again in a new --run-dir"
    ):
        run_directory.frozen(box, metadata)


def objects(path):
    np.savez(path, train=np.array([Bomb(path.parent)], object))


ARCHIVES = {
    "pickle": lambda path: path.write_bytes(pickle.dumps(Bomb(path.parent))),
    "objects": objects,
    "bomb": lambda path: unpacks_to(path, 2**28),
    "endless": hole,
    "no arrays": lambda path: zipfile.ZipFile(path, "w").writestr("train.npy", b"text"),
    "text": lambda path: path.write_text("[]"),
    "folder": os.mkdir,
}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_unsafe_archives_are_refused_before_they_are_unpacked(box, kind):
    path = box / "splits.npz"
    ARCHIVES[kind](path)
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match=r"splits.npz is damaged; start again in a new"):
            splits.require_same_examples(path, {}, str)
        with pytest.raises((ValueError, OSError)):
            npz.read(path, 2**20)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_arrays_larger_than_the_memory_are_refused_by_their_table_of_contents(box, monkeypatch):
    images, labels = np.zeros((4096, 32, 32, 1), np.uint8), np.arange(4096) % 2
    np.savez_compressed("images.npz", images=images, labels=labels)
    assert arrays.arrays(path=Path("images.npz")).info.splits == {"train": 4096}
    free = type("Memory", (), {"available": 2**20})
    monkeypatch.setattr(arrays.psutil, "virtual_memory", lambda: free)
    with pytest.raises(UsageError) as caught:
        arrays.arrays(path=Path("images.npz"))
    said = "does not fit into memory (it unpacks to 4,227,"
    assert said in str(caught.value) and "save images.npy" in str(caught.value)
    np.savez("objects.npz", images=images[:9], labels=np.array([Bomb(box)] * 9, object))
    with pytest.raises(UsageError, match=r"objects.npz is not an .npz of plain arrays"):
        arrays.arrays(path=Path("objects.npz"))
    np.save("labels.npy", np.array([Bomb(box)], object), allow_pickle=True)
    np.save("images.npy", images)
    with pytest.raises(
        UsageError, match=r"labels.npy is not a complete .npy file of a plain array"
    ):
        arrays.arrays(path=Path())


def saved(folder):
    """A checkpoint of two numbers, and its store."""
    variable = keras.Variable([1.0, 2.0])
    store = Checkpoints({"model": [variable]}, folder)
    store.save(3, {"history": {}})
    return store, variable, folder / "step-00000003"


def forge(path, change):
    """Changes the manifest and sums it up again, as one does who knows how it is written."""
    values = json.loads((path / "manifest.json").read_text())
    values.pop("sha256", None)
    change(values)
    body = json.dumps(values, sort_keys=True).encode()
    values = {"sha256": hashlib.sha256(body).hexdigest(), **values}
    (path / "manifest.json").write_text(json.dumps(values))


def renamed(name):
    """The first file is called otherwise."""

    def change(values):
        first = next(iter(values["files"]))
        values["files"][name] = values["files"].pop(first)

    return change


FORGED = {
    "another name": renamed("../../../secret.json"),
    "no files": lambda values: values.update(files={}),
    "sums of another kind": lambda values: values["files"].update({"state.index": 5}),
    "no state": lambda values: values.pop("state"),
    "another step": lambda values: values.update(step="3"),
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_manifest_is_refused(box, kind):
    store, variable, path = saved(box / "checkpoints")
    forge(path, FORGED[kind])
    variable.assign([5.0, 6.0])
    with pytest.raises(UsageError) as caught:
        store.restore(3)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    assert variable.numpy().tolist() == [5.0, 6.0]
