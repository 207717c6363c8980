"""Taking a run up again with other options: every one of them is silent, forced, or refused."""

import copy
import dataclasses
import json
import math
from pathlib import Path

import pytest

from pipeline.config import registry, resume_policy
from pipeline.config.config import Config
from pipeline.export import manifest_writer, run_result
from pipeline.runtime import run_directory
from pipeline.training import preflight
from pipeline.utils.errors import UsageError

# What makes a run what it is, and is never changed in it. An option that the tests below miss is to
# be put here, or into a table of `resume_policy.py` where it says why. The options of a registered
# function (`source.options`) are never changed either, but for those in the tables.
NEVER = {
    "": {"recipe"},
    "source": {"name", "options"},
    "task": {"name", "options"},
    "clean": {"enabled", "allow_leakage", "drop_leakage", "near"},
    "data": {"image_size", "validation", "test", "split_seed", "limit", "augment"},
    "model": {"name", "options"},
    "train": {
        *("batch_size", "optimizer", "optimizer_options", "learning_rate_batch_size"),
        *("weight_decay", "l2", "ema", "label_smoothing", "class_weight", "freeze"),
        *("freeze_epochs", "synchronized_batch_norm"),
        *("loss", "loss_options", "metrics", "callbacks"),
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
        assert sum(map(len, tables)) == len(names), f"{section}: an option is in two tables"
    known = {*fields_of(config), *REGISTRIES}
    assert known >= {*resume_policy.HARMLESS, *resume_policy.FORCEABLE, *NEVER}


REGISTRIES = {"source.options": "sources", "task.options": "tasks", "model.options": "models"}


def test_every_table_names_options_that_registered_functions_have():
    for place, registered in REGISTRIES.items():
        functions = [registry.find(registered, name) for name in registry.names(registered)]
        known = {option for function in functions for option in function.options}
        for table in (resume_policy.HARMLESS, resume_policy.FORCEABLE):
            assert known >= set(table.get(place, ()))


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
    found = [(section, name) for section, names in fields_of(config).items() for name in names]
    for place, registered in REGISTRIES.items():
        found.remove((place.removesuffix(".options"), "options"))
        functions = [registry.find(registered, name) for name in registry.names(registered)]
        found += sorted({(place, option) for function in functions for option in function.options})
    return found


def test_every_option_that_changes_the_result_is_refused_or_forced(config):
    now = config.as_json()
    for place, name in options(config):
        found = resume_policy.changes(changed_json(now, place, name), now)
        harmless = name in resume_policy.HARMLESS.get(place, ())
        assert len(found) == (0 if harmless else 1), (place, name)
        if found:
            assert found[0].can_be_forced == (name in resume_policy.FORCEABLE.get(place, ()))
            section = place.removesuffix(".options")
            flag = f"--{section}.{name}" if section else f"--{name}"
            assert found[0].flag == flag.replace("_", "-") and found[0].then == "another"


def test_an_option_of_a_function_that_was_not_given_had_its_default(config):
    now = config.as_json()
    then = copy.deepcopy(now)
    del then["model"]["options"]["blocks"]
    then["source"]["options"]["path"] = "there"
    assert [(str(c), c.can_be_forced) for c in resume_policy.changes(then, now)] == [
        ("--source.path there, now default", True),
        ("--model.blocks default, now 3", False),
    ]


def test_the_digest_is_of_all_that_can_change_the_result(config, monkeypatch):
    digest, now = config.digest(), config.as_json()
    for section, name in options(config):
        values = changed_json(now, section, name)
        monkeypatch.setattr(Config, "as_json", lambda _, values=values: values)
        harmless = name in resume_policy.HARMLESS.get(section, ())
        assert (config.digest() == digest) == harmless, (section, name)


def begun(config, **changes):
    given = config.changed(run_directory="mine", **changes)
    with run_directory.opened(given):
        return given


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
    assert first == (
        "mine is a run with other options; choose another --run-directory, or resume with its "
        "original options"
    )
    assert [" ".join(row.split()) for row in rows] == [
        "option original now",
        "--data.augment crop padding=1 flip crop padding=2",
        "--model.filters default 8",
        "--model.blocks 3 default",
        "--train.epochs 40 60 --force accepts it",
        "--train.batch-size 32 64",
    ]
    assert last == "its original options: --config mine/config.json --run-directory mine"
    assert max(map(len, rows)) < 100


def test_what_a_person_may_want_goes_on_with_force_and_is_kept(config):
    given = begun(config)
    longer = {"train": {"epochs": 60, "patience": 5}, "runtime": {"replicas": 2}}
    assert "add --force to accept the changes" in refusal(given, **longer)[0]
    forced = given.changed(**longer, force=True)
    preflight.check(forced)
    with run_directory.opened(forced) as run:
        assert [str(change) for change in run.changes] == [
            "--train.epochs 40, now 60",
            "--train.patience None, now 5",
            "--runtime.replicas auto, now 2",
        ]
    preflight.check(given.changed(**longer))
    saved = json.loads(Path("mine/config.json").read_text())
    assert saved["train"]["epochs"] == 60 and saved["force"] is False


def test_force_does_not_make_another_run_of_it(config):
    given = begun(config)
    lines = refusal(given, train={"epochs": 60}, runtime={"seed": 1}, force=True)
    assert "--force goes on" not in lines[0] and len(lines) == 5


@pytest.mark.parametrize("engine", ["model_fit", "gradient_tape"])
def test_what_cannot_change_the_result_is_free(config, engine):
    given = begun(config, train={"engine": "model_fit"})
    preflight.check(
        given.changed(
            train={"engine": engine, "steps_per_call": 7},
            data={"cache": "none"},
            runtime={"gpu_memory": "8GiB", "require_gpu": True, "devices": "0"},
            export={"name": "other"},
            log={"tensorboard": False},
        )
    )


def test_a_config_that_lacks_a_section_is_damaged(config):
    given = begun(config)
    path = Path("mine/config.json")
    damaged = ["--run-directory: mine/config.json is damaged; give a new folder"]
    saved = json.loads(path.read_text())
    for text in ("{", json.dumps({**saved, "train": []}), json.dumps({"source": saved["source"]})):
        path.write_text(text)
        assert refusal(given) == damaged


def test_long_values_are_cut(config):
    names = set(registry.names("augment")) - {"mixup"}  # which cannot be used with cutmix
    given = begun(config, data={"augment": {name: {} for name in sorted(names)}})
    line = refusal(given, data={"augment": {}})[2]
    assert "..." in line and len(line) < 100


def test_a_finished_run_is_finished_for_its_own_options_and_place(config):
    given = begun(config)
    version = Path("saved_models/digits/1")
    version.mkdir(parents=True)
    (version / "saved_model.pb").touch()
    (version / "assets.extra").mkdir()
    manifest = {"options": manifest_writer.options(given.export), "config_digest": given.digest()}
    manifest_writer.write(version, manifest)
    result = {"export": str(version), "config_digest": given.digest(), "steps": 7}
    result |= {"examples_per_second": None, "verification": {"passed": True, "checks": []}}
    result |= {"test": {"examples": 3, "loss": 0.5}, "calibration": {}}
    run = run_directory.RunDirectory(Path("mine"))
    run.result.write_text(json.dumps(result))
    assert run_result.finished(given, run) == run_result.finished(given, run, 7) == result
    assert run_result.finished(given, run, 8) is None
    assert run_result.finished(given.changed(log={"progress": False}), run) == result
    longer = given.changed(train={"epochs": 60})
    assert run_result.finished(longer, run, 7) is None
    assert run_result.finished(longer, run) == result, "what it has exported, for `clean`"
    assert run_result.finished(given.changed(export={"name": "other"}), run) is None
    assert run_result.finished(given.changed(export={"enabled": False}), run) == result
    for options in ({"tolerance": 0.1}, {"keep": 3}):
        assert run_result.finished(given.changed(export=options), run) == result
    half = given.changed(export={"precision": "float16", "batch_sizes": (4, 1, 4)})
    assert run_result.finished(half, run) is None, "it is to be exported in another way"
    manifest_writer.write(version, {**manifest, "options": manifest_writer.options(half.export)})
    assert run_result.finished(half, run) == result
    assert run_result.finished(half.changed(export={"batch_sizes": (1, 4)}), run) == result
    assert run_result.finished(half.changed(export={"calibrate": False}), run) is None
    assert run_result.finished(given, run) is None
    manifest_writer.write(version, {**manifest, "config_digest": "of another run"})
    assert run_result.finished(given, run) is None
    (version / manifest_writer.MANIFEST).unlink()
    assert run_result.finished(given, run) is None, "nothing tells how it was exported"
    manifest_writer.write(version, manifest)
    assert run_result.finished(given, run) == result
    for edited in (
        *({"test": None}, {"verification": 5}, {"examples_per_second": "x"}),
        *({"calibration": 1}, {"calibration": {"temperature": "warm"}}),
    ):
        run.result.write_text(json.dumps({**result, **edited}))
        assert run_result.finished(given, run) is None


WARM = {"calibration": {"temperature": 2.0}}
FAILED = {"name": "answers", "passed": False, "detail": "0.5 apart"}


@pytest.mark.parametrize(
    "edited",
    [
        *({"export": value} for value in (3, math.nan, [1], {"a": "b"}, 10**400, True)),
        *({"examples_per_second": value} for value in (10**400, math.nan, math.inf, [], "1")),
        *({"calibration": {"temperature": value}} for value in (10**400, math.nan, 0, None)),
        *({"validation": value} for value in (None, [], {"loss": 0.5}, {"examples": "3"})),
        *({"verification": value} for value in ({}, [], {"passed": True})),
        {"verification": {"passed": True, "checks": []}, "export": None},
        {"verification": {"passed": 1, "checks": []}},
        *({"verification": {"passed": False, "checks": c}} for c in ([], [FAILED])),
        *(
            {"verification": {"passed": False, "directory": "x", "checks": checks}}
            for checks in (None, [3], [{}], [{"passed": False}], "ab")
        ),
        *({**WARM, "test": {"examples": 3, "calibrated": c}} for c in ([], 3, {"loss": 1.0})),
        {**WARM, "test": {"examples": 3, "loss": 1.0, "calibrated": {"loss": 10**400}}},
    ],
)
@pytest.mark.parametrize("enabled", [True, False])
def test_an_edited_result_counts_as_none(config, edited, enabled):
    """`report` would stumble over it."""
    given = begun(config).changed(export={"enabled": enabled})
    run = run_directory.RunDirectory(Path("mine"))
    result = {"export": None, "config_digest": given.digest(), "steps": 7, "calibration": {}}
    result |= {"examples_per_second": 9.5, "verification": None}
    result["test"] = {"examples": 3, "loss": 0.5}
    for whole in ({}, {"verification": {"passed": False, "directory": "x", "checks": [FAILED]}}):
        run.result.write_text(json.dumps({**result, **whole}))
        assert (run_result.finished(given, run) is None) == enabled, "it has no export"
    run.result.write_text(json.dumps({**result, **edited}))
    assert run_result.finished(given, run) is None
    for name in result:
        run.result.write_text(json.dumps({n: v for n, v in result.items() if n != name}))
        assert run_result.finished(given, run) is None


def test_the_home_folder_is_written_as_a_tilde_and_found_again(workplace, monkeypatch, npz):
    monkeypatch.setenv("HOME", str(workplace))
    recipe = registry.load("recipes", "digits")()
    config = recipe.changed(
        source={"name": "arrays", "path": npz()},
        export={"directory": workplace / "models"},
        run_directory=workplace / "mine",
    )
    preflight.check(config)
    with run_directory.opened(config):
        pass
    text = Path("mine/config.json").read_text()
    assert str(workplace) not in text and '"~/examples.npz"' in text
    from pipeline.config.command_line import read

    again = read(Path("mine/config.json"))
    assert again.source.path == config.source.path
    assert again.export.directory == workplace / "models"
    assert again.digest() == config.digest()
    preflight.check(config)
    home = config.changed(export={"directory": workplace, "name": "~"})
    Path("saved.json").write_text(json.dumps(home.as_json()))
    assert '"directory": "~"' in Path("saved.json").read_text()
    assert read(Path("saved.json")) == home, "~ alone, too, where a path is meant"
    monkeypatch.setenv("HOME", str(workplace / "mine"))
    assert "--source.path" in refusal(config)[2], "another home is another place"
    monkeypatch.setenv("HOME", "/")
    assert config.as_json()["source"]["options"]["path"] == str(config.source.path)
