"""Shared fixtures, and the time that unit tests may take."""

import fcntl
import gc
import os
import shutil
import sys
import tempfile
from pathlib import Path

# Before Keras is imported: not the settings of the user's ~/.keras/keras.json.
_KERAS_HOME = tempfile.TemporaryDirectory(prefix="keras-home-")
os.environ |= {"KERAS_BACKEND": "tensorflow", "KERAS_HOME": _KERAS_HOME.name}

import default_seed  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

default_seed.apply()
_generators = {}
"""Module of tests -> its random generators, each with the state after the import."""
TESTS = Path(__file__).parent
UNIT_SECONDS = 0.2  # of a unit test; more is a warning
SLOW_UNIT_SECONDS = 2.0  # an error in the summary, but no failed test


def pytest_ignore_collect(collection_path, config):
    """The default tests do not import the nightly ones."""
    is_nightly = collection_path == TESTS / "nightly"
    return True if is_nightly and config.option.markexpr == "not long" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Nightly tests are `long`. The journeys take longest: started last, they would run
    on one core while the other is idle.
    """
    for item in items:
        if TESTS / "nightly" in item.path.parents:
            item.add_marker("long")
    for module in {item.module for item in items}:
        _generators[module] = [
            (value, value.bit_generator.state)
            for value in vars(module).values()
            if isinstance(value, np.random.Generator)
        ]
    items.sort(key=lambda item: TESTS / "journeys" not in item.path.parents)


def pytest_collection_finish():
    """Keeps TensorFlow's objects out of garbage collections, such as at the start of
    each run, which would take 0.3 s each.
    """
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter):
    """Names the unit tests that take too long."""
    reports = terminalreporter.stats.get("passed", [])
    seconds = {
        report.nodeid: report.duration
        for report in reports
        if report.when == "call" and report.nodeid.startswith("tests/unit/")
    }
    slow = sorted(seconds, key=seconds.get, reverse=True)
    slow = [name for name in slow if seconds[name] > UNIT_SECONDS]
    if slow:
        level = "error" if seconds[slow[0]] > SLOW_UNIT_SECONDS else "warning"
        terminalreporter.write_line(
            f"{level}: {len(slow)} unit tests took more than {UNIT_SECONDS} s; the"
            f" slowest: {slow[0]} ({seconds[slow[0]]:.1f} s)",
            red=level == "error",
            yellow=level == "warning",
        )


@pytest.fixture(autouse=True)
def same_random_numbers(request):
    """The generators of a module draw the same numbers whichever of its tests ran
    before.
    """
    for generator, state in _generators[request.module]:
        generator.bit_generator.state = state


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory):
    """A short run of the recipe `digits` with its export; tests must not change it."""
    from pipeline.fit import fit

    # Two processes of pytest-xdist share the directory; the second finds a complete run.
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


@pytest.fixture
def npz(tmp_path):
    """Writes an .npz and returns its path."""

    from random_images import images_and_labels

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
    """The backend of a fake server for `models`."""
    import fake_serving

    return fake_serving.Backend(pictures=models / "pictures/1", rows=models / "rows/2")


@pytest.fixture
def no_proxy(monkeypatch):
    """Bypasses the user's proxy for 127.0.0.1; each model is loaded once."""
    import fake_serving

    from pipeline.serving import local

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(local, "Session", fake_serving.once)


@pytest.fixture(scope="session")
def pixel_version(tmp_path_factory):
    """A complete exported version that takes only pixels; read-only."""
    import reference_exports

    directory = tmp_path_factory.mktemp("swift") / "1"
    reference_exports.swift_version(directory)
    return directory


@pytest.fixture(scope="session")
def full_version(tmp_path_factory):
    """An exported version with every signature of the contract, small/1; read-only."""
    import reference_exports

    directory = tmp_path_factory.mktemp("whole") / "small" / "1"
    reference_exports.honest_version(directory)
    return directory


@pytest.fixture
def version(pixel_version, tmp_path):
    """A writable copy of `pixel_version`, as version 3 of `digits`."""
    target = tmp_path / "digits" / "3"
    shutil.copytree(pixel_version, target)
    return target


@pytest.fixture
def pictures(workplace):
    """Nine images in data/, in two folders, beside files that are no images."""
    from predict_command import IMAGES
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


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """What two workers that nothing stops leave on the disk."""
    from recorded_workers import train

    from tests.nightly.fault_injection import reference

    folder = tmp_path_factory.mktemp("undisturbed")
    ends, _ = train(folder)
    assert [code for code, _, _ in ends] == [0, 0], ends
    return reference.evidence(folder / "run")


@pytest.fixture
def predict_command(capsys, monkeypatch):
    """Runs `pipeline predict` in this process, and returns its result."""
    from predict_command import Ran

    # pytest's stream cannot be reconfigured; it is UTF-8 already.
    monkeypatch.setattr(sys.stdout, "reconfigure", lambda **_: None, raising=False)
    return lambda *words: Ran(capsys, *words)
