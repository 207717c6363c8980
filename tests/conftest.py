"""Shared fixtures, and how tests start Python processes.

`run_module("pipeline.fit", "digits", cwd=tmp_path)` and `run_python("-c", code,
cwd=tmp_path)` fork a process that has already imported TensorFlow, Keras and the
package, which saves 4 to 9 seconds. The child has its own arguments, directory,
environment, streams and exit code. Streams, signals and several processes at once:
`fork_server.Process`, which is used like `subprocess.Popen`.

Pass `fresh=True` for a new interpreter if the test is about the start: which modules
are imported, what native code prints then, variables that Python, TensorFlow, Keras or
matplotlib read when they are imported, or another copy of the package. `fresh=True` is
also faster if the process does not import TensorFlow and no other test of the file
needs the fork server.
"""

import fcntl
import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import fork_server
import numpy as np
import pytest

REPOSITORY = Path(__file__).parents[1]
# They take minutes. Started last, they would run on one core while the other is idle.
SLOW = (
    "test_own_keras.py",
    "test_distributed.py",
    "test_fit.py",
    "test_export_command.py",
    "test_readme.py",
)


def pytest_collection_modifyitems(items):
    """Starts with the slow files; the files of a directory keep their order."""
    items.sort(key=lambda item: item.path.name not in SLOW)


def pytest_collection_finish():
    """What has been imported by now stays: a garbage collection, as at the start of
    each run, need not go through TensorFlow's objects, which takes 0.3 s.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_module(
    module: str,
    *arguments: object,
    cwd: Path,
    options: Sequence[str] = (),
    fresh: bool = False,
) -> subprocess.CompletedProcess:
    """Runs `python -m module arguments` without a terminal; options of Python imply
    `fresh`.
    """
    words = [*options, "-m", module, *arguments]
    return run_python(*words, cwd=cwd, fresh=fresh or bool(options))


def run_python(
    *words: object, cwd: Path, env: Mapping[str, str] | None = None, fresh: bool = False
) -> subprocess.CompletedProcess:
    """Runs `python words` (`-m module`, `-c code` or a file) with this environment and
    `env`.
    """
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "200", **(env or {})}
    if not fresh:
        return fork_server.run(*words, cwd=cwd, env=env)
    command = [sys.executable, *map(str, words)]
    return subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory):
    """A short run of the recipe `digits` with its export; tests must not change it."""
    from pipeline.fit import fit

    # Two processes of pytest-xdist share the directory: the second one finds a complete
    # run.
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "digits"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return fit(
            "digits",
            run_directory=folder / "run",
            train={"epochs": 3},
            export={"directory": folder / "saved_models"},
        )


def images_and_labels(
    count: int = 60, shape: tuple[int, ...] = (6, 6, 1), classes: int = 3
):
    """Random images, and labels 0, 1, ..., 0, 1, ..."""
    generator = np.random.default_rng(7)
    images = generator.integers(0, 256, (count, *shape), np.uint8)
    return images, np.arange(count) % classes


@pytest.fixture
def npz(tmp_path):
    """Writes an .npz and returns its path."""

    def write(images=None, labels=None, **more) -> Path:
        good_images, good_labels = images_and_labels()
        path = tmp_path / "examples.npz"
        columns = {
            "images": good_images if images is None else images,
            "labels": good_labels if labels is None else labels,
            **more,
        }
        np.savez(
            path, **{key: value for key, value in columns.items() if value is not False}
        )
        return path

    return write


def flip(path: Path, at: int) -> None:
    """Changes one bit of the byte at this position of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.fixture
def split():
    """A `Split` of examples whose images say which example they are."""
    import tensorflow as tf

    from pipeline.data.example_store import MemoryStore
    from pipeline.data.splits import Split

    def make(count: int, shape=(2, 2, 1), classes: int = 3):
        columns = {
            "id": tf.range(count, dtype=tf.int64) + 1000,
            "image": (
                tf.cast(tf.reshape(tf.range(count) % 251, (-1, 1, 1, 1)), tf.uint8)
                * tf.ones(shape, tf.uint8)
            ),
            "label": tf.range(count, dtype=tf.int64) % classes,
        }
        return Split(MemoryStore(columns), np.arange(count))

    return make


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A folder of small SavedModels: pictures/1, a classifier, and rows/2,
    a regressor.
    """
    import served_models

    folder = tmp_path_factory.mktemp("models")
    served_models.classifier(folder / "pictures/1")
    served_models.regressor(folder / "rows/2")
    return folder


@pytest.fixture(scope="session")
def backend(models):
    """What stands behind a server of those."""
    import serving

    return serving.Backend(pictures=models / "pictures/1", rows=models / "rows/2")


@pytest.fixture
def direct(monkeypatch):
    """No proxy of the user's between two ports of this machine; each model is loaded
    once.
    """
    import serving

    from pipeline.serving import local

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(local, "Session", serving.once)


@pytest.fixture(scope="session")
def swift(tmp_path_factory):
    """A whole version that takes pixels alone, to be looked at."""
    import exports

    directory = tmp_path_factory.mktemp("swift") / "1"
    exports.swift_version(directory)
    return directory


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """A version with every signature of the contract: small/1."""
    import exports

    directory = tmp_path_factory.mktemp("whole") / "small" / "1"
    exports.honest_version(directory)
    return directory


@pytest.fixture
def version(swift, tmp_path):
    """A copy of it, to be changed: the third of a model."""
    target = tmp_path / "digits" / "3"
    shutil.copytree(swift, target)
    return target


@pytest.fixture
def pictures(workplace):
    """Nine pictures in data/, in two folders, among what is none."""
    from asking import IMAGES
    from served_models import png

    for at, image in enumerate(IMAGES):
        path = (
            workplace
            / "data"
            / "ab"[at % 2]
            / f"bild ü{at}.{'PNG' if at == 3 else 'png'}"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(image))
    (workplace / "data/notes.txt").write_text("none")
    (workplace / "data/.hidden.png").write_bytes(b"none")
    return workplace / "data"


@pytest.fixture
def ask(capsys, monkeypatch):
    """Runs `pipeline.predict` with words, and holds what came of it."""
    from asking import Ran

    # The stream of a test cannot be changed to UTF-8: it is.
    monkeypatch.setattr(sys.stdout, "reconfigure", lambda **_: None, raising=False)
    return lambda *words: Ran(capsys, *words)
