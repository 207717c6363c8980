"""Checkpoints: saved whole, damage noticed, the newest whole one taken, nothing foreign touched."""

import hashlib
import json
import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from saved import checkpoints_of, small_model, state_of

from pipeline.training.checkpoints import Checkpoints
from pipeline.utils.errors import NoCheckpoint, UsageError


def test_everything_comes_back(tmp_path):
    model = small_model()
    checkpoints = checkpoints_of(model, tmp_path)
    checkpoints.save(7, {"waited": 2})
    before = state_of(model)
    x = np.ones((8, 4), np.float32)
    model.fit(x, x[:, :2], epochs=3, verbose=0)
    assert any((a != b).any() for a, b in zip(before, state_of(model), strict=True))
    assert checkpoints.restore(7) == {"waited": 2}
    for one, other in zip(before, state_of(model), strict=True):
        np.testing.assert_array_equal(one, other)
    assert any("seed" in v.path for v in model.variables), "dropout's state was not tried"


@pytest.mark.parametrize("name", ["state.data-00000-of-00001", "state.index", "manifest.json"])
@pytest.mark.parametrize("harm", ["flip", "cut", "delete"])
def test_damage_is_noticed(tmp_path, name, harm):
    model = small_model()
    checkpoints = checkpoints_of(model, tmp_path)
    checkpoints.save(7, {"waited": 0})
    before = state_of(model)
    path = tmp_path / "step-00000007" / name
    raw = bytearray(path.read_bytes())
    if harm == "flip":
        raw[len(raw) // 2] ^= 0x10
        path.write_bytes(raw)
    elif harm == "cut":
        path.write_bytes(raw[: len(raw) // 2])
    else:
        path.unlink()
    with pytest.raises(UsageError, match=f"step-00000007/{name} is damaged"):
        checkpoints.restore(7)
    for one, other in zip(before, state_of(model), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "text",
    ["null", "[1]", "{}", '{"step": 7, "files": {}, "state": {}}', "[" * 100_000],
)
def test_a_manifest_that_says_nothing_is_refused(tmp_path, text):
    checkpoints = checkpoints_of(small_model(), tmp_path)
    checkpoints.save(7, {"waited": 1})
    (tmp_path / "step-00000007/manifest.json").write_text(text)
    with pytest.raises(UsageError, match=r"step-00000007/manifest\.json is damaged"):
        checkpoints.restore(7)


def test_a_renamed_checkpoint_is_refused(tmp_path):
    checkpoints = checkpoints_of(small_model(), tmp_path)
    checkpoints.save(7, {"waited": 1})
    (tmp_path / "step-00000007").rename(tmp_path / "step-00000009")
    (tmp_path / "step-foo").mkdir()
    assert checkpoints.steps() == [9]
    with pytest.raises(UsageError, match=r"manifest\.json is damaged"):
        checkpoints.restore(9)


def test_another_model_is_refused(tmp_path):
    checkpoints_of(small_model(), tmp_path).save(7, {"waited": 0})
    with pytest.raises(UsageError, match="belongs to another model"):
        checkpoints_of(small_model(units=5), tmp_path).restore(7)


def test_only_named_steps_are_kept(tmp_path):
    checkpoints = checkpoints_of(small_model(), tmp_path)
    for step in (2, 10, 9):
        checkpoints.save(step, {"waited": 0})
    assert checkpoints.steps() == [2, 9, 10]
    checkpoints.keep({9})
    assert checkpoints.steps() == [9] and len(list(tmp_path.iterdir())) == 1


def test_the_newest_whole_one_is_taken_and_the_damaged_ones_are_named(tmp_path):
    model = small_model()
    checkpoints = checkpoints_of(model, tmp_path)
    kept = {}
    for step in (1, 2, 3):
        model.layers[0].bias.assign(np.full(3, step, np.float32))
        kept[step] = state_of(model)
        checkpoints.save(step, {"waited": step})
    for step in (3, 2):
        path = tmp_path / f"step-{step:08d}/state.index"
        path.write_bytes(path.read_bytes()[:-1])
    taken = {}
    step, wrong = checkpoints.restore_newest(taken.__setitem__)
    state = taken[step]
    assert (step, state) == (1, {"waited": 1})
    assert [
        f"step-0000000{n}/state.index is damaged" in w for n, w in zip((3, 2), wrong, strict=True)
    ] == [1, 1]
    for one, other in zip(state_of(model), kept[1], strict=True):
        np.testing.assert_array_equal(one, other)
    checkpoints.save(3, {"waited": 3})  # the damaged one is not in its way
    checkpoints.keep({3})
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]
    (tmp_path / "step-00000003/manifest.json").unlink()
    with pytest.raises(NoCheckpoint, match="is whole: .*manifest.json is damaged; start again"):
        checkpoints.restore_newest(lambda step, state: None)
    with pytest.raises(NoCheckpoint):  # also the next time
        checkpoints.restore_newest(lambda step, state: None)


def test_a_new_state_of_the_same_step_replaces_the_old_one(tmp_path):
    model = small_model()
    checkpoints = checkpoints_of(model, tmp_path)
    checkpoints.save(7, {"waited": 1})
    checkpoints.save(7, {"waited": 2})
    assert checkpoints.restore(7) == {"waited": 2}


def test_files_of_elsewhere_are_never_opened(tmp_path):
    model = small_model()
    checkpoints = checkpoints_of(model, tmp_path)
    checkpoints.save(7, {"waited": 1})
    data = tmp_path / "step-00000007/state.index"
    data.rename(tmp_path / "elsewhere")
    data.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=r"state\.index is damaged"):
        checkpoints.restore(7)


def test_only_the_process_that_writes_makes_the_folder(tmp_path):
    """Another worker may come first, and the chief then finds a folder that is no run."""
    state = {"model": small_model().variables}
    Checkpoints(state, tmp_path / "run/checkpoints", writes=False).require_room()
    assert not (tmp_path / "run").exists()
    Checkpoints(state, tmp_path / "run/checkpoints").require_room()
    assert (tmp_path / "run/checkpoints").is_dir()


def test_a_disk_without_room_is_told_before_training(tmp_path, monkeypatch):
    checkpoints = checkpoints_of(small_model(), tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=100))
    with pytest.raises(UsageError, match="checkpoints in .* need 0 MB, and 0 MB are free"):
        checkpoints.require_room()


def test_what_lies_beside_the_checkpoints_is_left_alone(tmp_path):
    checkpoints = checkpoints_of(small_model(), tmp_path)
    checkpoints.save(10, {})
    copy = tmp_path / "step-00000010.bak"
    shutil.copytree(tmp_path / "step-00000010", copy)
    (tmp_path / "step-99999").mkdir()
    for name in ("step-00099999", "damaged-step-notes.txt"):
        (tmp_path / name).write_text("mine")
    before = sorted(path.name for path in tmp_path.iterdir())
    assert checkpoints.steps() == [10]
    checkpoints.keep({10})
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_folder_that_goes_while_a_run_is_trained_ends_it(tmp_path):
    checkpoints = checkpoints_of(small_model(), tmp_path / "checkpoints")
    checkpoints.require_room()
    checkpoints.save(10, {})
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(UsageError, match="removed or moved while the run was trained"):
        checkpoints.save(20, {})
    assert not (tmp_path / "checkpoints").exists()


def test_a_file_of_another_size_is_not_read(tmp_path, monkeypatch):
    """A sparse file of a terabyte would be summed for an hour, also where its size was forged."""
    checkpoints = checkpoints_of(small_model(), tmp_path)
    checkpoints.save(7, {})
    folder = tmp_path / "step-00000007"
    path, manifest = folder / "state.index", folder / "manifest.json"
    os.truncate(path, 1 << 40)
    digest = hashlib.file_digest

    def of_others(file, name):
        assert not file.name.endswith("state.index")
        return digest(file, name)

    monkeypatch.setattr("hashlib.file_digest", of_others)
    for size in (None, 1 << 40):
        if size:
            told = json.loads(manifest.read_text())
            del told["sha256"]
            told["files"]["state.index"]["bytes"] = size
            own = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
            manifest.write_text(json.dumps({"sha256": own, **told}))
        with pytest.raises(UsageError, match=r"state\.index is damaged"):
            checkpoints.restore(7)
