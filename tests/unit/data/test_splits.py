"""Splits and samples: stable when examples are added, and what a resumed run requires
of them.
"""

import numpy as np
import pytest
from numbered_images import divide, numbers

from pipeline.config.sections import DataConfig
from pipeline.data import seeds, splits
from pipeline.data.array_source import ArraySource
from pipeline.utils.errors import UsageError


def sets(source, **options):
    parts, _ = divide(source, **options)
    return {name: set(split.column("id").tolist()) for name, split in parts.items()}


def test_held_out_splits_are_disjoint_complete_and_per_class():
    splits, decisions = divide(numbers(30_000))
    assert list(splits) == ["train", "validation", "test"]
    everything = np.concatenate([split.column("id") for split in splits.values()])
    assert len(everything) == 30_000 == len(set(everything))
    for name, share in {"validation": 0.1, "test": 0.2}.items():
        counts = np.bincount(splits[name].column("label"), minlength=3)
        sigma = np.sqrt(10_000 * share * (1 - share))
        assert (np.abs(counts - 10_000 * share) < 4 * sigma).all()
    assert any(decision.name == "splits" for decision in decisions)


def test_an_example_never_changes_its_split():
    small, large = sets(numbers(500)), sets(numbers(900))
    fewer = sets(numbers(900), excluded=range(0, 900, 7))
    for name in large:
        assert small[name] == {i for i in large[name] if i < 500}
        assert fewer[name] == {i for i in large[name] if i % 7}


def test_the_split_depends_on_its_seed_and_not_on_other_shares():
    default = sets(numbers(900))
    assert default["test"] != sets(numbers(900), split_seed=1)["test"]
    larger = sets(numbers(900), validation=0.3)
    without = sets(numbers(900), validation=0)
    assert default["test"] == larger["test"] == without["test"]
    assert default["validation"] < larger["validation"]
    assert "validation" not in without


def test_splits_of_the_source_are_kept():
    splits, decisions = divide(numbers(90, validation=90, test=90))
    assert [len(split) for split in splits.values()] == [90, 90, 90]
    assert not any(decision.name == "splits" for decision in decisions)
    splits, _ = divide(numbers(90, test=90))
    assert len(splits["train"]) + len(splits["validation"]) == 90 == len(splits["test"])


def test_a_sample_has_a_rare_class_in_train_and_no_empty_split():
    source = numbers(6000, np.repeat([0, 1, 2], [5790, 10, 200]))
    splits, _ = divide(source, limit=100)  # 5,790, 10 and 200 examples
    counts = {
        name: np.bincount(split.column("label")).tolist()
        for name, split in splits.items()
    }
    (common, rare, middle), *_ = counts.values()
    assert rare >= 1 and abs(middle - 2.3) < 2 and abs(common - 67) < 4
    assert abs(sum(counts["validation"]) - 10) < 3 and abs(sum(counts["test"]) - 20) < 3
    few, _ = divide(source, limit=5)
    assert [len(split) for split in few.values()] == [3, 1, 1]
    assert set(few["train"].column("label")) == {0, 1, 2}


def test_a_sample_keeps_its_examples_when_others_are_added():
    small, large = (sets(numbers(count), limit=300) for count in (3000, 3300))
    for name in small:
        assert {i for i in large[name] if i < 3000} <= small[name], (
            "an old example was added"
        )
        assert len(small[name] & large[name]) > 0.8 * len(small[name])


def test_near_duplicates_of_held_out_examples_are_excluded_and_nothing_moves():
    source = numbers(3000)
    groups = {
        i: i // 7 for i in range(0, 3000, 2)
    }  # four of seven, or three: only the even ones
    splits, decisions = divide(source, groups=groups)
    before, _ = divide(source)
    (excluded,) = [d.value for d in decisions if d.name == "excluded"]
    counts = []
    for name, rank in {"train": 0, "validation": 1, "test": 2}.items():
        held_out = {
            groups.get(i)
            for later in list(before)[rank + 1 :]
            for i in before[later].column("id").tolist()
        }
        left = [
            i
            for i in before[name].column("id").tolist()
            if groups.get(i) is None or groups[i] not in held_out
        ]
        np.testing.assert_array_equal(splits[name].column("id"), left)
        counts.append(len(before[name]) - len(left))
    assert counts[2] == 0 < counts[1] < counts[0]
    assert excluded == f"{counts[1]:,} of validation, {counts[0]:,} of train"


def grouped(groups, splits=("train",)):
    """Splits with these groups, a number or text for each example."""
    values, numbers = np.unique(groups, return_inverse=True)
    names = {str(value): 1000 + n for n, value in enumerate(values)}
    columns = {
        "image": np.zeros((len(groups), 2, 2, 1), np.uint8),
        "label": np.arange(len(groups)) % 3,
        "group": 1000 + numbers,
    }
    held_out = dict.fromkeys(splits[1:], columns)
    return ArraySource(
        columns, held_out, class_names=("a", "b", "c"), group_names=names
    )


def groups_of(source, **options):
    """The names of the groups of each split."""
    names = {value: name for name, value in source.group_names().items()}
    options = DataConfig(**options)
    included = splits.included(splits.limit_examples(source, options))
    return {
        name: {names[group] for group in split.column("group").tolist()}
        for name, split in splits.divide(included, options)[0].items()
    }


@pytest.mark.parametrize("seed", range(10))
def test_each_split_gets_one_of_a_few_groups(seed):
    wards = [f"ward {n % 6}" for n in range(120)]
    parts = groups_of(grouped(wards), validation=0.1, test=0.1, split_seed=seed)
    assert [len(groups) for groups in parts.values()] == [4, 1, 1]
    # Neither more examples, nor fewer, nor another order move a group.
    for others in (wards + ["ward 1"] * 500, wards[::-1], wards[:90]):
        again = groups_of(grouped(others), validation=0.1, test=0.1, split_seed=seed)
        assert again == parts
    limited = groups_of(
        grouped(wards), validation=0.1, test=0.1, split_seed=seed, limit=60
    )
    assert limited == parts
    more = groups_of(grouped(wards), validation=0.3, test=0.1, split_seed=seed)
    assert len(more["validation"]) == 2 and more["test"] == parts["test"]


def test_seeds_choose_different_groups():
    wards = grouped([f"ward {n % 6}" for n in range(120)])
    chosen = {str(groups_of(wards, split_seed=seed)["test"]) for seed in range(20)}
    assert len(chosen) > 3


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_groups_are_an_error(count):
    with pytest.raises(UsageError, match="'validation' is empty.*--data"):
        divide(grouped([n % count for n in range(60)]))
    if count == 2:
        parts = groups_of(grouped([n % 2 for n in range(60)]), validation=0, test=0.9)
        assert [len(groups) for groups in parts.values()] == [1, 1]


def test_many_groups_are_hashed_one_by_one():
    source = grouped(np.arange(2000) % 20)
    parts = groups_of(source, validation=0.2, test=0.3, split_seed=1)
    names = sorted(source.group_names(), key=source.group_names().get)
    keys = seeds.example_seeds(1, 0, np.arange(1000, 1020))
    hashes = dict(zip(names, seeds.uniform(keys).numpy(), strict=True))
    assert parts["validation"] == {name for name in names if hashes[name] < 0.2}
    assert parts["test"] == {name for name in names if hashes[name] >= 1 - 0.3}


def test_named_groups_are_the_splits():
    wards = grouped([f"ward {n % 30}" for n in range(300)])
    hashed = groups_of(wards)
    parts = groups_of(wards, test_groups=("ward 3", "ward 4"))
    assert parts["test"] == {"ward 3", "ward 4"}
    assert parts["validation"] == hashed["validation"] - parts["test"]
    name = min(hashed["validation"])  # a name goes before a hash
    parts = groups_of(wards, test_groups=(name,))
    assert parts["test"] == {name}
    assert parts["validation"] == hashed["validation"] - {name}
    both = {"test_groups": ("ward 3",), "validation_groups": ("ward 1", "ward 2")}
    parts = groups_of(wards, **both)
    assert parts["validation"] == {"ward 1", "ward 2"} and parts["test"] == {"ward 3"}
    assert len(parts["train"]) == 27
    assert groups_of(wards, limit=100, **both)["test"] == {"ward 3"}
    decisions = [str(d) for d in divide(wards, **both)[1] if d.name == "splits"]
    assert decisions == [
        "2 groups (ward 1, ward 2) for validation, 1 group (ward 3) for test"
        " (taken from train by name)"
    ]
    few = grouped([f"ward {n % 4}" for n in range(40)])
    parts = groups_of(few, test_groups=("ward 3",))
    assert parts["test"] == {"ward 3"} and len(parts["validation"]) == 1


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (
            grouped([f"ward {n % 9}" for n in range(90)]),
            {"test_groups": ("wart 8",)},
            "--data.test-groups: .*'wart 8'; .*'ward 8'",
        ),
        (
            grouped([n % 9 for n in range(90)], splits=("train", "test")),
            {"test_groups": ("8",)},
            "--data.test-groups: .*split 'test'; remove",
        ),
        (
            numbers(90),
            {"validation_groups": ("8",)},
            "--data.validation-groups: .*--source.group",
        ),
        (
            grouped([n % 2 for n in range(90)]),
            {"test_groups": ("0", "1"), "validation": 0},
            "'train' is empty; .*--data.test-groups",
        ),
        (
            numbers(9),
            {"validation_groups": ("7", "8"), "test_groups": ("8",)},
            "--data.validation-groups and .*share '8'",
        ),
    ],
)
def test_groups_that_cannot_be_held_out_are_one_line(source, options, message):
    with pytest.raises(UsageError, match=message):
        divide(source, **options)


def test_splits_must_not_share_a_group_or_an_id():
    def split(*ids, groups):
        columns = {"id": np.array(ids), "group": np.array(groups)}
        return splits.RawSplit(None, "train", np.arange(len(ids)), columns)

    train = split(1, 2, 3, groups=[7, 8, 8])
    message = "1 groups are in both train and test, such as the group of 2; move each"
    with pytest.raises(UsageError, match=message):
        splits.require_disjoint(
            {"train": train, "test": split(4, 5, groups=[9, 8])}, str
        )
    with pytest.raises(UsageError, match="train and test share 2 ids, such as 2"):
        splits.require_disjoint(
            {"train": train, "test": split(2, 3, 5, groups=[1, 2, 3])}, str
        )


def test_a_resumed_run_must_find_its_examples(tmp_path):
    path, now = (
        tmp_path / "splits.npz",
        {n: divide(numbers(n))[0] for n in (50, 60, 62)},
    )

    def require(count):
        paths = {
            id: f"dogs/{id}.png" for id in range(count)
        }  # a source knows no others
        splits.require_same_examples(path, now[count], paths.__getitem__)

    require(60)  # a new run
    splits.write_examples(path, now[60])
    require(60)
    message = (
        r"0 missing, 2 added \(such as dogs/6.*; restore the data, or use a new"
        r" --run-dir"
    )
    with pytest.raises(UsageError, match=message):
        require(62)
    with pytest.raises(UsageError, match=r"\d missing, 0 added; restore the data"):
        require(50)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(UsageError, match="splits.npz is damaged"):
        require(60)
