"""Checkpoints: saved atomically, damage detected, the newest intact one restored."""

import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from checkpointed_network import checkpoints_of, small_model, state_of
from engine_epoch import prepared, require_equal

from pipeline.training.checkpoints import Checkpoints
from pipeline.utils.errors import NoCheckpoint, UsageError


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.fixture
def checkpoints(model, tmp_path):
    return checkpoints_of(model, tmp_path)


def test_all_variables_and_the_newest_state_are_restored(model, checkpoints):
    checkpoints.save(7, {"waited": 1})
    checkpoints.save(7, {"waited": 2, "loss": float("nan")})
    before = state_of(model)
    x = np.ones((8, 4), np.float32)
    model.fit(x, x[:, :2], epochs=3, verbose=0)
    assert any((a != b).any() for a, b in zip(before, state_of(model), strict=True))
    assert checkpoints.restore(7) == {"waited": 2, "loss": None}, "NaN is not JSON"
    require_equal(before, state_of(model))
    assert any("seed" in v.path for v in model.variables), (
        "the model has no dropout state"
    )


@pytest.mark.parametrize(
    "name", ["state.data-00000-of-00001", "state.index", "manifest.json"]
)
@pytest.mark.parametrize("damage", ["flip", "truncate", "delete"])
def test_damage_is_detected_and_restores_nothing(
    model, checkpoints, tmp_path, name, damage
):
    checkpoints.save(7, {"waited": 0})
    before, path = state_of(model), tmp_path / "step-00000007" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content if damage == "flip" else content[: len(content) // 2])
    if damage == "delete":
        path.unlink()
    with pytest.raises(UsageError, match=f"step-00000007/{name} is damaged"):
        checkpoints.restore(7)
    require_equal(before, state_of(model))


@pytest.mark.parametrize("text", ["null", '{"step": 7, "files": {}, "state": {}}'])
def test_an_edited_manifest_is_refused_in_one_line(checkpoints, tmp_path, text):
    checkpoints.save(7, {"waited": 1})
    (tmp_path / "step-00000007/manifest.json").write_text(text)
    with pytest.raises(UsageError, match=r"step-00000007/manifest\.json is damaged$"):
        checkpoints.restore(7)


def test_the_checkpoint_of_another_model_is_refused(checkpoints, tmp_path):
    checkpoints.save(7, {"waited": 0})
    with pytest.raises(UsageError, match="belongs to another model"):
        checkpoints_of(small_model(units=5), tmp_path).restore(7)


@pytest.mark.parametrize(
    "kind", [tf.errors.ResourceExhaustedError, tf.errors.NotFoundError]
)
def test_another_error_does_not_mean_another_model(checkpoints, monkeypatch, kind):
    def fail(path):
        raise kind(None, None, "no more handles")

    checkpoints.save(7, {"waited": 0})
    monkeypatch.setattr(checkpoints._checkpoint, "read", fail)
    with pytest.raises(UsageError, match="step-00000007.*no more handles"):
        checkpoints.restore(7)


def test_a_run_directory_may_look_like_a_pattern(model, tmp_path):
    checkpoints = checkpoints_of(model, tmp_path / "run [3]\\4")
    checkpoints.save(7, {"waited": 3})
    assert checkpoints.restore(7) == {"waited": 3}


def test_the_newest_intact_one_is_restored_and_damaged_ones_are_named(
    model, checkpoints, tmp_path
):
    kept = {}
    for step in (1, 2, 3):
        model.layers[0].bias.assign(np.full(3, step, np.float32))
        kept[step] = state_of(model)
        checkpoints.save(step, {"waited": step})
    for step in (3, 2):
        path = tmp_path / f"step-{step:08d}/state.index"
        path.write_bytes(path.read_bytes()[:-1])
    step, state, problems = checkpoints.restore_newest()
    assert (step, state) == (1, {"waited": 1})
    for number, problem in zip((3, 2), problems, strict=True):
        assert f"step-0000000{number}/state.index is damaged" in problem
    require_equal(state_of(model), kept[1])
    checkpoints.save(3, {"waited": 3})  # the damaged one does not prevent it
    checkpoints.keep({3})
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]

    (tmp_path / "step-00000003/state.index").unlink()
    with pytest.raises(NoCheckpoint, match="is intact: .*start again"):
        checkpoints.restore_newest()


def test_keep_deletes_other_checkpoints_and_nothing_else(checkpoints, tmp_path):
    for step in (2, 10, 9):
        checkpoints.save(step, {})
    shutil.copytree(tmp_path / "step-00000010", tmp_path / "step-00000010.bak")
    (tmp_path / "step-99999").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    assert checkpoints.steps() == [2, 9, 10]
    checkpoints.keep({10})
    foreign = ["notes.txt", "step-00000010.bak", "step-99999"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [*foreign, "step-00000010"]
    )


def test_the_averages_of_the_weights_are_restored(tmp_path):
    model, _ = prepared(ema=0.9)
    averages = [weight.numpy() for weight in model.trainable_variables]
    for weight in model.trainable_variables:
        weight.assign_add(keras.ops.ones_like(weight))
    weights = [weight.numpy() for weight in model.trainable_variables]
    checkpoints = Checkpoints(model.state, tmp_path)
    checkpoints.save(1, {})
    model.step.update.swap_ema()
    checkpoints.restore_newest()
    for variable, expected in zip(model.trainable_variables, weights, strict=True):
        np.testing.assert_array_equal(variable, expected)
    model.step.update.swap_ema()
    for variable, expected in zip(model.trainable_variables, averages, strict=True):
        np.testing.assert_array_equal(variable, expected)
