"""Splits and samples: what stays where it is when others come, and what a run keeps of them."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from conftest import images_and_labels
from counting import Counting, ids, load
from PIL import Image

from pipeline.config import command_line, registry
from pipeline.data import dataset, splits
from pipeline.runtime import run_directory
from pipeline.training import preflight
from pipeline.utils.errors import UsageError


def test_the_limit_takes_a_sample_of_each_split_with_every_class():
    source = Counting(90, splits=("train", "test"), label=lambda i: i // 30)
    splits, _ = load(source, limit=20, validation=0)
    assert [len(split) for split in splits.values()] == [20, 20]
    for split in splits.values():
        assert sorted(np.bincount(split.column("label"))) == [6, 7, 7]


def test_a_sample_has_a_rare_class_in_train_and_no_empty_part():
    source = Counting(6000, label=lambda i: tf.where(i < 5800, i // 5790, 2))
    splits, _ = load(source, limit=100)  # 5,790, 10 and 200 examples
    counts = {name: np.bincount(split.column("label")).tolist() for name, split in splits.items()}
    (common, rare, middle), *_ = counts.values()
    assert rare >= 1 and abs(middle - 2.3) < 2 and abs(common - 67) < 4
    assert abs(sum(counts["validation"]) - 10) < 3 and abs(sum(counts["test"]) - 20) < 3
    assert [len(split) for split in load(source, limit=5)[0].values()] == [3, 1, 1]


def test_a_sample_keeps_its_examples_when_others_are_added():
    def sampled(count):
        splits, _ = load(Counting(count), limit=300)
        return {name: set(ids(split)) for name, split in splits.items()}

    small, large = sampled(3000), sampled(3300)
    for name in small:
        assert {i for i in large[name] if i < 3000} <= small[name], "new ones alone come in"
        assert len(small[name] & large[name]) > 0.8 * len(small[name])


def test_of_near_duplicates_what_is_held_out_is_kept_and_nothing_moves():
    source = Counting(3000)
    groups = {i: i // 7 for i in range(0, 3000, 2)}  # four of seven, or three: only the even ones
    splits, decisions = load(source, groups=groups)
    before, _ = load(source)
    (excluded,) = [d.value for d in decisions if d.name == "excluded"]
    counts = []
    for name, rank in {"train": 0, "validation": 1, "test": 2}.items():
        held_out = {groups.get(i) for other in list(before)[rank + 1 :] for i in ids(before[other])}
        left = [i for i in ids(before[name]) if groups.get(i) is None or groups[i] not in held_out]
        np.testing.assert_array_equal(ids(splits[name]), left)
        counts.append(len(before[name]) - len(left))
    assert counts[2] == 0 < counts[1] < counts[0]
    assert excluded == f"{counts[1]:,} of validation, {counts[0]:,} of train"


def test_the_splits_of_an_earlier_run_are_kept():
    before, _ = load(Counting(500))
    known = {name: ids(split) for name, split in before.items()}
    now = {"split_seed": 7, "test": 0, "splits": "runs/first"}
    splits, decisions = load(Counting(900), range(20), known=known, **now)
    fresh, _ = load(Counting(900), range(20), **now | {"splits": None})
    for name, split in splits.items():
        assert {i for i in ids(split) if i < 500} == {i for i in known[name] if i >= 20}
        assert {i for i in ids(split) if i >= 500} == {
            i for i in ids(fresh.get(name, [])) if i > 499
        }
    (how,) = [d for d in decisions if d.name == "splits"]
    assert str(how) == (
        "0.1 for validation, 0 for test (480 as in runs/first, the others held out of train by a "
        "hash of the ids; 20 of its examples are not here)"
    )

    def told(**options):
        _, decisions = load(Counting(900), known=known, **now, **options)
        return next(str(d) for d in decisions if d.name == "splits")

    assert told().endswith(
        "(500 as in runs/first, the others held out of train by a hash of the ids)"
    )
    assert told(limit=100).endswith("of its examples are not in this sample)")
    with pytest.raises(UsageError, match="none of the 1 examples of runs/first is in this source"):
        load(Counting(50), known={"train": np.array([1234])}, **now)


def test_a_new_example_of_a_known_group_goes_where_the_group_is():
    columns = {"id": np.arange(400), "group": np.arange(400) % 40}
    known = {"test": np.arange(0, 10), "validation": np.arange(10, 15), "train": np.arange(15, 30)}
    part = splits.parts(columns, {"test": 0.5}, 0, known)
    wanted = np.repeat([2, 1, 0], [10, 5, 15])
    np.testing.assert_array_equal(part.reshape(10, 40)[:, :30], np.tile(wanted, (10, 1)))
    assert set(part.reshape(10, 40)[0, 30:]) == {0, 2}


def test_a_run_is_resumed_where_only_the_times_of_files_have_changed(tmp_path):
    root, images = tmp_path / "data", images_and_labels(20, (8, 8, 1))[0]
    for number, image in enumerate(images):
        path = root / "ab"[number % 2] / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(path)
    settings = command_line.recipe("digits").changed(
        source={"name": "folder", "path": root}, run_directory=tmp_path / "run"
    )
    run = run_directory.RunDirectory(tmp_path / "run")
    run.path.mkdir()
    dataset.load(settings).write(run)
    before = registry.load("sources", "folder")(path=root).fingerprint()
    (tmp_path / "copy.png").write_bytes((root / "a/00.png").read_bytes())
    (tmp_path / "copy.png").rename(root / "a/00.png")
    (root / "b/01.png").chmod(0o400)
    (tmp_path / "link.png").hardlink_to(root / "a/02.png")
    now = registry.load("sources", "folder")(path=root).fingerprint()
    assert now != before
    resumed = dataset.load(settings)
    assert "changed" not in {decision.name for decision in resumed.decisions}
    resumed.write(run)
    recorded = json.loads(run.source.read_text())
    assert recorded["fingerprint"] == now and len(recorded["content"]) == 64
    Image.fromarray(images[5][..., 0]).save(root / "a/00.png")
    with pytest.raises(
        UsageError, match="have changed since the run in .*/run began: a file has a"
    ):
        dataset.load(settings)
    assert "changed" in {d.name for d in dataset.load(settings.changed(force=True)).decisions}
    run.source.write_text(json.dumps({"fingerprint": before}))
    with pytest.raises(UsageError, match=r"source\.json is damaged"):
        dataset.load(settings)


def test_splits_are_kept_through_a_run_that_is_gone(tmp_path):
    def settings(count, run, **options):
        images, labels = images_and_labels(count, (8, 8, 1))
        np.savez(tmp_path / "mine.npz", images=images, labels=labels)
        source = {"name": "arrays", "path": tmp_path / "mine.npz"}
        return command_line.recipe("digits").changed(
            source=source, data=options, run_directory=tmp_path / run
        )

    def begun(settings):
        with run_directory.opened(settings) as run:
            found = dataset.load(settings)
            found.write(run)
        return {name: set(ids(split)) for name, split in found.splits.items()}

    first = begun(settings(60, "first", split_seed=3))
    second = settings(80, "second", splits=tmp_path / "first")
    kept = begun(second)
    assert all(first[name] == {i for i in kept[name] if i < 60} for name in first)
    third = begun(settings(80, "third", splits=tmp_path / "second/splits.npz"))
    assert third == kept
    shutil.rmtree(tmp_path / "first")
    preflight.check(second)
    assert begun(second) == kept, "resumed"
    assert json.loads((tmp_path / "second/config.json").read_text())["data"]["splits"]
    wrong = settings(80, "fourth", splits=tmp_path / "first")
    with pytest.raises(UsageError, match="--data.splits: .*first is neither a run directory nor"):
        preflight.check(wrong)
    (tmp_path / "third/splits.npz").write_bytes(b"none")
    with pytest.raises(UsageError, match="splits.npz is damaged; give another --data.splits"):
        dataset.load(settings(80, "fourth", splits=tmp_path / "third"))
