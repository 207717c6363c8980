"""Resuming a run with other options: each one is ignored, accepted with --force, or
refused.
"""

import copy
import dataclasses
import json
from pathlib import Path

import pytest
from begun_run import begun

from pipeline.config import registry, resume_policy
from pipeline.config.config import Config
from pipeline.export import run_result
from pipeline.runtime import run_directory
from pipeline.serving import version_manifest
from pipeline.training import preflight
from pipeline.utils.errors import UsageError

# Options that define a run and never change in it. A new option goes here, or into a
# table of `resume_policy.py` with the reason. Options of registered functions
# (`source.options`) never change either, except for those in the tables.
NEVER = {
    "": {"recipe"},
    "source": {"name", "options"},
    "task": {
        *("name", "options", "input", "input_options", "target", "target_options"),
    },
    "clean": {"enabled", "allow_leakage", "drop_leakage", "near"},
    "data": {
        *("image_size", "validation", "test", "validation_groups", "test_groups"),
        *("split_seed", "limit", "augment", "folds", "fold"),
    },
    "model": {"name", "options", "weights", "fused_batch_norm"},
    "train": {
        *("batch_size", "optimizer", "optimizer_options"),
        *("weight_decay", "l2", "ema", "label_smoothing", "class_weight", "freeze"),
        *("freeze_epochs", "unfreeze", "layer_rates", "synchronized_batch_norm"),
        *("loss", "loss_options", "metrics", "steps_per_epoch", "shuffle"),
    },
    "runtime": {"seed"},
}


@pytest.fixture
def config(workplace):
    return registry.load("recipes", "digits")()


def fields_of(config):
    """Section ("" is the top level) -> names of its options."""
    found = {"": set()}
    for field in dataclasses.fields(config):
        part = getattr(config, field.name)
        if dataclasses.is_dataclass(part):
            found[field.name] = {inner.name for inner in dataclasses.fields(part)}
        else:
            found[""].add(field.name)
    return found


def test_every_option_is_classified_once(config):
    for section, names in fields_of(config).items():
        tables = [
            set(t.get(section, ()))
            for t in (resume_policy.HARMLESS, resume_policy.FORCEABLE, NEVER)
        ]
        assert set.union(*tables) == names, f"{section}: {set.union(*tables) ^ names}"
        assert sum(map(len, tables)) == len(names), (
            f"{section}: an option is in two tables"
        )
    known = {*fields_of(config), *REGISTRIES}
    assert known >= {*resume_policy.HARMLESS, *resume_policy.FORCEABLE, *NEVER}


REGISTRIES = {
    "source.options": "sources",
    "task.options": "tasks",
    "model.options": "models",
}


def part_of(values, place):
    """The mapping of a config as JSON that holds the options of a place."""
    for section in filter(None, place.split(".")):
        values = values[section]
    return values


def changed_json(values, place, name):
    """A config as JSON with another value of one option."""
    values = copy.deepcopy(values)
    part = part_of(values, place)
    part[name] = "another" if part.get(name) != "another" else "yet another"
    return values


def options(config):
    """(place, name) of every option, those of each registered function among them."""
    found = [
        (section, name)
        for section, names in fields_of(config).items()
        for name in names
    ]
    for place, registered in REGISTRIES.items():
        found.remove((place.removesuffix(".options"), "options"))
        functions = [
            registry.find(registered, name) for name in registry.names(registered)
        ]
        found += sorted(
            {(place, option) for function in functions for option in function.options}
        )
    return found


def test_every_option_that_changes_the_result_is_refused_or_forced(config, monkeypatch):
    """And is part of the digest."""
    now, digest = config.as_json(), config.digest()
    for place, name in options(config):
        then = changed_json(now, place, name)
        found = resume_policy.changes(then, now)
        harmless = name in resume_policy.HARMLESS.get(place, ())
        assert len(found) == (0 if harmless else 1), (place, name)
        if found:
            assert found[0].can_be_forced == (
                name in resume_policy.FORCEABLE.get(place, ())
            )
            section = place.removesuffix(".options")
            flag = f"--{section}.{name}" if section else f"--{name}"
            assert (
                found[0].flag == flag.replace("_", "-")
                and found[0].original == "another"
            )
        with monkeypatch.context() as patch:
            patch.setattr(Config, "as_json", lambda _, then=then: then)
            assert (config.digest() == digest) == harmless, (place, name)


def test_an_option_of_a_function_that_was_not_given_had_its_default(config):
    now = config.as_json()
    then = copy.deepcopy(now)
    del then["model"]["options"]["blocks"]
    then["source"]["options"]["path"] = "there"
    assert [(str(c), c.can_be_forced) for c in resume_policy.changes(then, now)] == [
        ("--source.path there, now default", True),
        ("--model.blocks default, now 3", False),
    ]


def refusal(config, **changes):
    with pytest.raises(UsageError) as caught:
        preflight.check(config.changed(**changes))
    return str(caught.value).splitlines()


def test_all_differences_are_shown_old_and_new(config):
    given = begun(config)
    first, *rows, last = refusal(
        given,
        train={"epochs": 60, "batch_size": 64},
        model={"name": "convnet", "options": {"filters": 8}},
        data={"augment": {"flip": {}, "crop": {"padding": 2}}},
        log={"progress": False},
    )
    assert (
        first
        == "mine was started with other options; choose another --run-directory, or"
        " resume with its original options"
    )
    assert [" ".join(row.split()) for row in rows] == [
        "option original now",
        "--data.augment crop padding=1 flip crop padding=2",
        "--model.filters default 8",
        "--model.blocks 3 default",
        "--train.epochs 40 60 --force accepts it",
        "--train.batch-size 32 64",
    ]
    assert last == "its original options: --resume mine"
    assert max(map(len, rows)) < 100


def test_some_options_are_accepted_with_force_and_saved(config):
    given = begun(config)
    longer = {"train": {"epochs": 60, "patience": 5}, "runtime": {"replicas": 2}}
    assert "add --force to accept the changes" in refusal(given, **longer)[0]
    forced = given.changed(**longer, force=True)
    preflight.check(forced)
    with run_directory.open_run(forced) as run:
        assert [str(change) for change in run.changes] == [
            "--train.epochs 40, now 60",
            "--train.patience None, now 5",
            "--runtime.replicas auto, now 2",
        ]
    preflight.check(given.changed(**longer))
    saved = json.loads(Path("mine/config.json").read_text())
    assert saved["train"]["epochs"] == 60 and saved["force"] is False


def test_force_does_not_accept_every_option(config):
    given = begun(config)
    lines = refusal(given, train={"epochs": 60}, runtime={"seed": 12345}, force=True)
    assert "add --force" not in lines[0] and len(lines) == 5


def test_a_run_is_finished_only_with_its_options_and_its_export(config):
    given = begun(config)
    version = Path("saved_models/digits/1")
    (version / "assets.extra").mkdir(parents=True)
    (version / "saved_model.pb").touch()
    manifest = {
        "options": run_result.options(given.export),
        "config_digest": given.digest(),
    }
    version_manifest.write(version, manifest)
    result = {"export": str(version), "config_digest": given.digest(), "steps": 7}
    result |= {
        "examples_per_second": None,
        "verification": {"passed": True, "checks": []},
    }
    result |= {"test": {"examples": 3, "loss": 0.5}, "calibration": {}}
    run = run_directory.RunDirectory(Path("mine"))
    run.result.write_text(json.dumps(result))

    def finished(config=given, **changes):
        return run_result.load_result(config.changed(**changes), run, 7)

    assert finished() == result
    assert run_result.load_result(given, run, 8) is None, "a later checkpoint"
    for harmless in ({"log": {"progress": False}}, {"export": {"enabled": False}}):
        assert finished(**harmless) == result
    for harmless in ({"tolerance": 0.1}, {"keep": 3}):
        assert finished(export=harmless) == result
    assert finished(train={"epochs": 60}) is None
    assert finished(export={"name": "other"}) is None
    half = given.changed(export={"precision": "float16", "batch_sizes": (4, 1, 4)})
    assert finished(half) is None, "it must be exported with these options"
    version_manifest.write(
        version, {**manifest, "options": run_result.options(half.export)}
    )
    assert finished(half) == finished(half, export={"batch_sizes": (1, 4)}) == result
    assert finished(half, export={"calibrate": False}) is finished() is None
    version_manifest.write(version, {**manifest, "config_digest": "of another run"})
    assert finished() is None
    version_manifest.write(version, manifest)
    assert finished() == result
    for damaged in ("{", "[]"):
        run.result.write_text(damaged)
        assert finished() is None


def test_a_task_declares_the_options_that_may_change(config):
    changeable = registry.changeable_options("generation")
    assert changeable == {"guidance", "judge", "samples"}
    assert registry.changeable_options("supervised") == set()
    assert registry.changeable_options("a_file_that_is_gone.task") == set()
    now = config.as_json()
    then = copy.deepcopy(now)
    then["task"]["options"] = {"guidance": 3.0, "drop_label": 0.2}
    changes = resume_policy.changes(then, now, changeable)
    assert {c.flag: c.can_be_forced for c in changes} == {
        "--task.guidance": True,
        "--task.drop-label": False,
    }
