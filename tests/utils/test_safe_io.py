"""A run directory, data or a model from a stranger: limits first, nothing runs, nothing outside."""

import ast
import configparser
import hashlib
import io
import json
import os
import pickle
import sys
import tracemalloc
import types
import zipfile
from pathlib import Path
from typing import ClassVar

import keras
import numpy as np
import pytest
from conftest import REPOSITORY

from pipeline.config import registry
from pipeline.data import dataset, shards, splits
from pipeline.data.cleaning import manifest
from pipeline.data.sources import arrays
from pipeline.export import proof, run_result
from pipeline.runtime import run_directory
from pipeline.runtime.run_directory import RunDirectory
from pipeline.training import preflight
from pipeline.training.checkpoints import Checkpoints
from pipeline.utils import npz, safe_io
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


class Watch:
    """Files that are opened and code that is run, as Python's audit events tell."""

    on = False
    opened: ClassVar[list[str]] = []
    run: ClassVar[list[str]] = []


def _hook(event, arguments):
    if Watch is None:  # the interpreter is being taken down; a hook cannot be removed
        return
    if Watch.on and event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        Watch.opened.append(os.path.realpath(os.fsdecode(arguments[0])))
    elif Watch.on and event in ("pickle.find_class", "os.system", "subprocess.Popen"):
        Watch.run.append(event)


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """A folder `box` for the stranger's files and a file beside it; says at the end who looked."""
    if not Watch.opened:
        Watch.opened.append("")
        sys.addaudithook(_hook)  # stays for as long as the process
    box, secret = tmp_path / "box", tmp_path / "secret.json"
    box.mkdir()
    secret.write_text('{"password": 1}')
    monkeypatch.chdir(box)
    Watch.opened[:], Watch.run[:], Watch.on = [""], [], True
    try:
        yield box
    finally:
        Watch.on = False
    assert not Watch.run
    assert os.path.realpath(secret) not in Watch.opened
    assert not (tmp_path / "it-ran").exists()


class Bomb:
    """Unpickled, it writes a file."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return (os.mkdir, (str(self.folder.parent / "it-ran"),))


def hole(path):
    """A file of a terabyte that takes no room on the disk."""
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
    "deep": lambda path: path.write_text("[" * 10**6 + "]" * 10**6),
    "deep objects": lambda path: path.write_text('{"a":' * 10**6 + "1" + "}" * 10**6),
    "deep enough": lambda path: path.write_text('{"a":' * 100 + "1" + "}" * 100),
    "endless": hole,
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "circle": lambda path: path.symlink_to(path.name),
    "folder": os.mkdir,
    "bytes": lambda path: path.write_bytes(bytes(range(256))),
    "number": lambda path: path.write_text("9" * 10**6),
    "pickle": lambda path: path.write_bytes(pickle.dumps(Bomb(path.parent))),
}


@pytest.mark.parametrize("kind", JSON)
def test_json_of_a_stranger_is_refused_or_passed_over(watched, kind):
    config = registry.load("recipes", "digits")().changed(run_directory=watched)
    run = RunDirectory(watched)
    for path in (run.config, run.metadata, run.result, run.decisions, run.manifest):
        JSON[kind](path)
    JSON[kind](watched / "shards.json")
    (watched / "data.tfrecord").write_bytes(b"")
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match=r"config.json is damaged|cannot use|no run"):
            preflight.check(config)
        if kind != "circle":  # that is no file at all
            with pytest.raises(UsageError, match="metadata.json is damaged"):
                run_directory.frozen(watched, {"class_names": []})
        assert run_result.finished(config, run) is None
        assert run_directory.decided(watched, "precision", ("float32",)) is None
        with pytest.raises(UsageError, match="cannot be read|the form"):
            manifest.read(run.manifest)
        if (watched / "shards.json").is_file():
            with pytest.raises(UsageError, match=r"shards.json is not of the form"):
                shards.records([watched / "data.tfrecord"])
        assert tracemalloc.get_traced_memory()[1] < 4 * safe_io.MOST_JSON
    finally:
        tracemalloc.stop()


SOURCES = [b"", b"null", b"[]", b"{}", b"3", b'{"fingerprint": 3}', bytes(range(256))]
SOURCES += [b'{"fingerprint": "a", "content": 3}']


@pytest.mark.parametrize("text", SOURCES)
def test_a_damaged_source_is_not_taken_for_other_data(watched, text):
    config = registry.load("recipes", "digits")()
    run = RunDirectory(watched)
    source = types.SimpleNamespace(fingerprint=lambda: None)
    assert dataset._require_unchanged(run, source, config) == [], "a new run"
    run.source.write_text('{"fingerprint": null, "content": null}')
    assert dataset._require_unchanged(run, source, config) == []
    run.source.write_bytes(text)
    with pytest.raises(
        UsageError, match=r"source\.json is damaged; start again in a new --run-dir"
    ):
        dataset._require_unchanged(run, source, config)


@pytest.mark.parametrize("text", ["{}", "[]", "null", '{"class_names": ["a", "b"]}', "3", '"x"'])
def test_facts_that_lack_one_are_damaged(watched, text):
    metadata = {"class_names": ["a", "b"], "image_shape": [8, 8, 1]}
    RunDirectory(watched).metadata.write_text(text)
    with pytest.raises(
        UsageError, match=r"metadata\.json is damaged; start again in a new --run-dir"
    ):
        run_directory.frozen(watched, metadata)


def test_values_of_a_stranger_choose_nothing(watched):
    config = registry.load("recipes", "digits")()
    run = RunDirectory(watched)
    (watched.parent / "model").mkdir()
    (watched.parent / "model/saved_model.pb").write_text("")
    for version in (str(watched.parent / "model"), "../model", "saved_models/digits/../../..", 5):
        run.result.write_text(json.dumps({"export": version, "steps": 1}))
        assert run_result.finished(config, run) is None
    for value in ("evil", ["float32"], {"a": 1}, None, 5):
        run.decisions.write_text(json.dumps([{"name": "precision", "value": value}]))
        assert run_directory.decided(watched, "precision", ("float32",)) is None
    (watched / "data.tfrecord").write_bytes(b"")
    for name in ("../secret.json", str(watched.parent / "secret.json")):
        (watched / "shards.json").write_text(json.dumps({name: {"examples": 0, "sha256": ""}}))
        with pytest.raises(UsageError, match="secret.json is listed in shards.json but missing"):
            shards.records([watched / "data.tfrecord"])


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
def test_archives_of_a_stranger_are_refused_before_they_are_unpacked(watched, kind):
    path = watched / "splits.npz"
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


def test_arrays_larger_than_the_memory_are_refused_by_their_table_of_contents(watched, monkeypatch):
    images, labels = np.zeros((4096, 32, 32, 1), np.uint8), np.arange(4096) % 2
    np.savez_compressed("images.npz", images=images, labels=labels)
    assert arrays.arrays(path=Path("images.npz")).info.splits == {"train": 4096}
    free = type("Memory", (), {"available": 2**20})
    monkeypatch.setattr(arrays.psutil, "virtual_memory", lambda: free)
    with pytest.raises(UsageError) as caught:
        arrays.arrays(path=Path("images.npz"))
    said = "images.npz does not fit into the free memory: it unpacks to 4,227,"
    assert str(caught.value).startswith(said) and "save images.npy" in str(caught.value)
    np.savez("objects.npz", images=images[:9], labels=np.array([Bomb(watched)] * 9, object))
    with pytest.raises(UsageError, match=r"objects.npz is not an .npz of plain arrays"):
        arrays.arrays(path=Path("objects.npz"))
    np.save("labels.npy", np.array([Bomb(watched)], object), allow_pickle=True)
    np.save("images.npy", images)
    with pytest.raises(
        UsageError, match=r"labels.npy is not a complete .npy file of a plain array"
    ):
        arrays.arrays(path=Path())


def test_stored_answers_of_a_stranger_are_weighed_first(watched, monkeypatch):
    monkeypatch.setattr(proof, "_MOST_GOLDEN", 2**20)
    unpacks_to(watched / "golden.npz", 2**21)
    with pytest.raises(npz.TooLarge, match="it unpacks to"):
        proof.read_golden(watched / "golden.npz")


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
    "above": renamed("../../../secret.json"),
    "absolute": renamed("/etc/hostname"),
    "nothing": renamed(""),
    "nul": renamed("a\0b"),
    "long": renamed("x" * 5000),
    "no files": lambda values: values.update(files={}),
    "a list": lambda values: values.update(files=["state.index"]),
    "sums of another kind": lambda values: values["files"].update({"state.index": 5}),
    "no state": lambda values: values.pop("state"),
    "another step": lambda values: values.update(step="3"),
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_manifest_is_refused(watched, kind):
    store, variable, path = saved(watched / "checkpoints")
    forge(path, FORGED[kind])
    variable.assign([5.0, 6.0])
    with pytest.raises(UsageError) as caught:
        store.restore(3)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    assert variable.numpy().tolist() == [5.0, 6.0]
    assert "/etc/hostname" not in Watch.opened


@pytest.mark.parametrize("kind", JSON)
def test_a_manifest_that_is_no_manifest_is_refused(watched, kind):
    store, _, path = saved(watched / "checkpoints")
    (path / "manifest.json").unlink()
    JSON[kind](path / "manifest.json")
    with pytest.raises(UsageError):
        store.restore(3)
