"""Shelves: what stands there is found, checked and taken by name, without importing TensorFlow."""

import pytest

from pipeline.config import registry
from pipeline.config.config import Config, Data, Model, Source, Train
from pipeline.utils.errors import UsageError


def test_folder_and_module_shelves_list_their_siblings():
    models = "airbench application convnet lenet linear resnet sequential tiny"
    assert registry.names("models") == models.split()
    assert {"crop", "flip"} < set(registry.names("augment"))
    assert registry.names("schedules")[:2] == ["constant", "step"]  # the order of the file
    assert registry.summary("recipes", "digits").startswith("8x8 handwritten digits")


def test_options_are_the_keyword_only_arguments():
    assert registry.options("augment", "crop") == {"padding": False, "fill": False}
    assert registry.options("sources", "tfds") == {
        "dataset": True,
        "path": False,
        "splits": False,
        "group": False,
    }


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("convnt", {}, "unknown model 'convnt'; did you mean 'convnet'?"),
        ("zzz", {}, "there are: airbench, application, convnet, lenet, linear, resnet, "),
        ("convnet", {"filter": 3}, "--model.options filter.*did you mean 'filters'"),
        ("tiny", {"filters": 3}, "tiny has no option 'filters'; it takes none"),
        ("no.such.module", {}, "no module 'no.such.module'"),
    ],
)
def test_wrong_names_and_options_get_the_nearest_good_one(name, options, message):
    with pytest.raises(UsageError, match=message):
        registry.check("models", name, options, "--model.options {}")


def test_a_missing_required_option_is_named():
    with pytest.raises(UsageError, match="arrays needs --source.path"):
        registry.check("sources", "arrays", {}, "--source.{}")


@pytest.mark.parametrize("wrong", [None, 0.5, "0.5", (0.5, "x"), [True], [1.5], [[0.5]]])
def test_options_of_several_values_are_checked_value_by_value(wrong):
    for good in ((0.5,), [0, 1], ()):  # a list is what a config file makes of a tuple
        registry.check("schedules", "step", {"at": good}, "{}")
    with pytest.raises(UsageError, match="values with commas .one: `value,`., each float, from 0"):
        registry.check("schedules", "step", {"at": wrong}, "{}")


def test_a_dotted_name_works_like_a_shelf_name(tmp_path, monkeypatch):
    box = tmp_path / "box"
    box.mkdir()
    (box / "__init__.py").write_text("")
    (box / "mine.py").write_text("def features(x, *, width=3):\n    return (x, width)\n")
    (box / "ops.py").write_text("def invert(batch, seeds, *, share: float):\n    return 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert registry.options("models", "box.mine") == {"width": False}
    assert registry.take("models", "box.mine")(2) == (2, 3)
    assert registry.options("augment", "box.ops.invert") == {"share": True}
    assert registry.take("augment", "box.ops.invert")(None, None, share=1) == 7
    with pytest.raises(UsageError, match="no function 'features'"):
        registry.check("models", "box.ops", {}, "{}")


def test_help_texts_name_every_sibling():
    import inspect

    sections = {"sources": Source, "models": Model, "optimizers": Train, "schedules": Train}
    sections["tasks"] = Config
    for name, section in sections.items():
        text = inspect.getsource(section)
        for sibling in registry.names(name):
            assert sibling in text, f"the help of {section.__name__} does not name {sibling}"
    assert all(name in inspect.getsource(Data) for name in registry.names("augment"))
