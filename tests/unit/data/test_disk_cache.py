"""The disk cache: found again, shared, verified, rebuilt if it is stale or damaged."""

import errno
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf
from damaged_files import flip

from pipeline.data import cache
from pipeline.utils.errors import UsageError

COUNT, SHAPE = 300, (40, 40, 3)
SPECS = {"id": tf.TensorSpec((), tf.int64), "image": tf.TensorSpec(SHAPE, tf.uint8)}


def columns():
    pixels = np.random.default_rng(0).integers(0, 256, (COUNT, *SHAPE), np.uint8)
    return {"id": np.arange(COUNT) + 7, "image": pixels}


def directory_and_state(directory):
    return directory / "birds-train", {"the data": "a"}


def obtain(where, fail=None):
    def batches():
        everything = columns()
        for start in range(0, COUNT, 90):
            yield {
                name: values[start : start + 90] for name, values in everything.items()
            }
        if fail:
            raise fail

    return cache.load_or_build(*where, SPECS, batches())


def caches(directory):
    return [
        p for p in directory.iterdir() if p.is_dir() and not p.name.endswith(".lock")
    ]


def test_rows_are_read_back_in_any_order(tmp_path):
    store, note = obtain(directory_and_state(tmp_path))
    assert note == "built, because it did not exist" and len(store.short["id"]) == COUNT
    for rows in (
        [3],
        [5, 4, 3, 3, 299, 0],
        range(100, 164),
        [*range(40, 50), *range(45, 60)],
    ):
        rows = np.array(rows)
        taken, whole = store.take(rows), columns()
        (gathered,) = (
            tf.data.Dataset.from_tensors(rows).map(store.gather).as_numpy_iterator()
        )
        for name, values in whole.items():
            np.testing.assert_array_equal(taken[name], values[rows])
            np.testing.assert_array_equal(gathered[name], values[rows])


DAMAGES = {
    "a bit of a picture": lambda folder: flip(folder / "image", 1_234_567),
    "truncated": lambda folder: (folder / "image").write_bytes(b"short"),
    "half a manifest": (
        lambda folder: (folder / "manifest.json").write_text('{"format": 1,')
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_rebuilt(tmp_path, damage):
    where = directory_and_state(tmp_path)
    obtain(where)
    DAMAGES[damage](where[0])
    store, note = obtain(where)
    assert note.startswith("built, because")
    np.testing.assert_array_equal(
        store.take(np.arange(COUNT))["image"], columns()["image"]
    )
    assert obtain(where)[1] == "found and verified"


def test_a_builder_that_died_leaves_nothing_behind(tmp_path):
    where = directory_and_state(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        obtain(where, fail=KeyboardInterrupt())
    assert not caches(tmp_path)
    obtain(where)
    assert caches(tmp_path) == [where[0]]


def test_two_runs_at_once_build_it_once(tmp_path):
    where, both = directory_and_state(tmp_path), threading.Barrier(2)

    def run():
        both.wait()
        return obtain(where)[1]

    with ThreadPoolExecutor(
        2
    ) as pool:  # a lock belongs to an open file, not to a process
        notes = [
            future.result(timeout=60) for future in [pool.submit(run), pool.submit(run)]
        ]
    assert sorted(notes) == ["built, because it did not exist", "found and verified"]


def test_a_full_or_read_only_disk_is_one_line(tmp_path):
    with pytest.raises(UsageError, match="No space left on device; choose"):
        obtain(
            directory_and_state(tmp_path),
            fail=OSError(errno.ENOSPC, "No space left on device"),
        )
    assert not caches(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="--data.cache disk: cannot write"):
        obtain(directory_and_state(tmp_path / "file"))
