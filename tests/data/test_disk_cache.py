"""The disk cache: found again, shared, checked, built anew when stale or torn."""

import fcntl
import json
import queue
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from pipeline.data import disk_cache
from pipeline.utils import locks, temp_files
from pipeline.utils.errors import UsageError

COUNT, SHAPE = 1000, (40, 40, 3)
SPECS = {"id": tf.TensorSpec((), tf.int64), "image": tf.TensorSpec(SHAPE, tf.uint8)}


def columns(seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (COUNT, *SHAPE), np.uint8)
    return {"id": np.arange(COUNT) + 7, "image": pixels}


def place(directory, **state):
    return disk_cache.Place(
        directory, "birds-train", {"split": "train"}, {"the data": "a", **state}
    )


def obtain(where, made=None, seed=0):
    """`made` counts how often the examples are decoded."""

    def batches():
        if made is not None:
            made.append(1)
        everything = columns(seed)
        for start in range(0, COUNT, 300):
            yield {name: values[start : start + 300] for name, values in everything.items()}

    return disk_cache.obtained(where, SPECS, COUNT, batches)


def test_rows_come_as_they_were_written_in_any_order(tmp_path):
    store, note = obtain(place(tmp_path))
    assert note == "built, because it was not there" and len(store) == COUNT
    for rows in ([3], [5, 4, 3, 3, 999, 0], range(100, 164), [*range(40, 50), *range(45, 60)]):
        rows = np.array(rows)
        taken, whole = store.take(rows), columns()
        (gathered,) = tf.data.Dataset.from_tensors(rows).map(store.gather).as_numpy_iterator()
        for name, values in whole.items():
            np.testing.assert_array_equal(taken[name], values[rows])
            np.testing.assert_array_equal(gathered[name], values[rows])


def test_a_second_run_finds_it_and_decodes_nothing(tmp_path):
    made = []
    obtain(place(tmp_path), made)
    store, note = obtain(place(tmp_path), made)
    assert (note, made) == ("found and checked", [1])
    np.testing.assert_array_equal(store.take(np.arange(COUNT))["image"], columns()["image"])


def test_other_data_replace_it_while_a_run_still_reads_the_old(tmp_path):
    old, _ = obtain(place(tmp_path))
    new, note = obtain(place(tmp_path, **{"the data": "b"}), seed=1)
    assert note == "built, because the data changed"
    some = np.array([9, 2])
    np.testing.assert_array_equal(old.take(some)["image"], columns(0)["image"][some])
    np.testing.assert_array_equal(new.take(some)["image"], columns(1)["image"][some])
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1


def test_each_identity_has_a_folder_of_its_own(tmp_path):
    obtain(place(tmp_path))
    obtain(disk_cache.Place(tmp_path, "birds-train", {"split": "test"}, {}))
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 2


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "a bit of a picture": lambda folder: flip(folder / "image", 1_234_567),
    "a bit of an id": lambda folder: flip(folder / "id", 17),
    "cut off": lambda folder: (folder / "image").write_bytes(b"short"),
    "a field is gone": lambda folder: (folder / "image").unlink(),
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
    "half a manifest": lambda folder: (folder / "manifest.json").write_text('{"format": 1,'),
    "another manifest": lambda folder: (folder / "manifest.json").write_text("[]"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_built_anew(tmp_path, damage):
    where, made = place(tmp_path), []
    obtain(where, made)
    DAMAGES[damage](where.folder)
    store, note = obtain(where, made)
    assert note.startswith("built, because") and len(made) == 2
    np.testing.assert_array_equal(store.take(np.arange(COUNT))["image"], columns()["image"])
    assert obtain(where)[1] == "found and checked"


def test_a_builder_that_died_leaves_nothing_behind(tmp_path):
    where = place(tmp_path)

    def dies():
        yield {name: values[:300] for name, values in columns().items()}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        disk_cache.obtained(where, SPECS, COUNT, dies)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    left = temp_files.folder(tmp_path)  # by one that had no time to tidy up
    (left / "image").write_bytes(b"half")
    obtain(where)
    assert left.exists(), "its maker lives"
    shutil.rmtree(where.folder)
    temp_files.release(left)
    obtain(where)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [where.folder.name]


def test_who_comes_second_waits_and_then_finds_it(tmp_path, monkeypatch):
    where, said = place(tmp_path), queue.Queue()
    monkeypatch.setattr(locks, "print", said.put, raising=False)
    with ThreadPoolExecutor(1) as pool:
        # The lock belongs to the open file, so that a thread stands for another process.
        with where.folder.with_name(f"{where.folder.name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            second = pool.submit(obtain, where)
            assert "waiting for another process" in said.get(timeout=60)
            assert not second.done() and not where.folder.exists()
        assert second.result(timeout=60)[1] == "built, because it was not there"
    assert obtain(where)[1] == "found and checked" and said.empty()


def test_a_full_or_closed_disk_is_one_line(tmp_path, monkeypatch):
    class Usage:
        free = 1000

    monkeypatch.setattr(disk_cache.shutil, "disk_usage", lambda _: Usage)
    short = f"examples need 4.8 MB, but {tmp_path} has 1.0 kB free; free some, or choose another"
    with pytest.raises(UsageError, match=short):
        obtain(place(tmp_path))
    shown = [disk_cache._shown(size) for size in (0, 40_000_000, 2_345_600_000)]
    assert shown == ["0.0 kB", "40.0 MB", "2.3 GB"]
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="--data.cache disk: cannot write"):
        obtain(place(tmp_path / "file"))


def test_what_is_cut_off_in_use_is_said(tmp_path):
    where = place(tmp_path)
    store, _ = obtain(where)
    with (where.folder / "image").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(UsageError, match="'image' was cut off while it was in use; run again"):
        store.raise_if_undecodable(np.array([999]))


def test_the_manifest_says_what_it_is_of(tmp_path):
    where = place(tmp_path)
    obtain(where)
    manifest = json.loads((where.folder / "manifest.json").read_text())
    assert manifest["of"] == {"split": "train"} and manifest["state"] == {"the data": "a"}
