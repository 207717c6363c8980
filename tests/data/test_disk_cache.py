"""The disk cache: found again, shared, verified, rebuilt if it is stale or damaged."""

import errno
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from pipeline.data import disk_cache
from pipeline.utils import temp_files
from pipeline.utils.errors import UsageError

COUNT, SHAPE = 300, (40, 40, 3)
SPECS = {"id": tf.TensorSpec((), tf.int64), "image": tf.TensorSpec(SHAPE, tf.uint8)}


def columns(seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (COUNT, *SHAPE), np.uint8)
    return {"id": np.arange(COUNT) + 7, "image": pixels}


def place(directory, split="train", **state):
    return directory / f"birds-{split}", {"the data": "a", **state}


def obtain(where, seed=0, fail=None):
    def batches():
        everything = columns(seed)
        for start in range(0, COUNT, 90):
            yield {name: values[start : start + 90] for name, values in everything.items()}
        if fail:
            raise fail

    return disk_cache.obtained(*where, SPECS, batches())


def caches(directory):
    return [p for p in directory.iterdir() if p.is_dir() and not p.name.endswith(".lock")]


def test_rows_are_read_back_in_any_order(tmp_path):
    store, note = obtain(place(tmp_path))
    assert note == "built, because it did not exist" and len(store) == COUNT
    for rows in ([3], [5, 4, 3, 3, 299, 0], range(100, 164), [*range(40, 50), *range(45, 60)]):
        rows = np.array(rows)
        taken, whole = store.take(rows), columns()
        (gathered,) = tf.data.Dataset.from_tensors(rows).map(store.gather).as_numpy_iterator()
        for name, values in whole.items():
            np.testing.assert_array_equal(taken[name], values[rows])
            np.testing.assert_array_equal(gathered[name], values[rows])


def test_a_second_run_finds_it_and_decodes_nothing(tmp_path):
    obtain(place(tmp_path))
    store, note = obtain(place(tmp_path), fail=AssertionError("decoded again"))
    assert note == "found and verified"
    np.testing.assert_array_equal(store.take(np.arange(COUNT))["image"], columns()["image"])


def test_other_data_replace_it_while_a_run_still_reads_the_old(tmp_path):
    old, _ = obtain(place(tmp_path))
    new, note = obtain(place(tmp_path, **{"the data": "b"}), seed=1)
    assert note == "built, because the data changed"
    some = np.array([9, 2])
    np.testing.assert_array_equal(old.take(some)["image"], columns(0)["image"][some])
    np.testing.assert_array_equal(new.take(some)["image"], columns(1)["image"][some])
    assert len(caches(tmp_path)) == 1
    obtain(place(tmp_path, "test"))
    assert len(caches(tmp_path)) == 2, "each identity has a separate directory"


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "a bit of a picture": lambda folder: flip(folder / "image", 1_234_567),
    "a bit of an id": lambda folder: flip(folder / "id", 17),
    "truncated": lambda folder: (folder / "image").write_bytes(b"short"),
    "a missing field": lambda folder: (folder / "image").unlink(),
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
    "half a manifest": lambda folder: (folder / "manifest.json").write_text('{"format": 1,'),
    "another manifest": lambda folder: (folder / "manifest.json").write_text("[]"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_rebuilt(tmp_path, damage):
    where = place(tmp_path)
    obtain(where)
    DAMAGES[damage](where[0])
    store, note = obtain(where)
    assert note.startswith("built, because")
    np.testing.assert_array_equal(store.take(np.arange(COUNT))["image"], columns()["image"])
    assert obtain(where)[1] == "found and verified"


def test_a_builder_that_died_leaves_nothing_behind(tmp_path):
    where = place(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        obtain(where, fail=KeyboardInterrupt())
    assert not caches(tmp_path)
    left = temp_files.folder(tmp_path)  # of a process that was killed
    (left / "image").write_bytes(b"half")
    obtain(where)
    assert left.exists(), "its process is alive"
    shutil.rmtree(where[0])
    temp_files.release(left)
    obtain(where)
    assert caches(tmp_path) == [where[0]]


def test_two_runs_at_once_build_it_once(tmp_path):
    where, both = place(tmp_path), threading.Barrier(2)

    def run():
        both.wait()
        return obtain(where)[1]

    with ThreadPoolExecutor(2) as pool:  # a lock belongs to an open file, not to a process
        notes = [future.result(timeout=60) for future in [pool.submit(run), pool.submit(run)]]
    assert sorted(notes) == ["built, because it did not exist", "found and verified"]


def test_a_full_or_read_only_disk_is_one_line(tmp_path):
    with pytest.raises(UsageError, match="cannot write .*: No space left on device; choose anoth"):
        obtain(place(tmp_path), fail=OSError(errno.ENOSPC, "No space left on device"))
    assert not caches(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="--data.cache disk: cannot write"):
        obtain(place(tmp_path / "file"))


def test_truncation_while_in_use_is_reported(tmp_path):
    store, _ = obtain(place(tmp_path))
    with (place(tmp_path)[0] / "image").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(UsageError, match="'image' was truncated while it was in use; run again"):
        store.raise_if_undecodable(np.array([299]))
