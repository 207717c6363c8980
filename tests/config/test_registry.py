"""Registries: functions are found, checked and loaded by name, without importing TensorFlow."""

import sys

import pytest

from pipeline.config import registry
from pipeline.utils.errors import UsageError


def test_every_public_function_of_any_file_is_registered():
    models = "airbench application convnet lenet linear resnet sequential tiny"
    assert registry.names("models") == models.split()
    assert {"adam", "adamw", "nadam", "sgd"} < set(registry.names("optimizers"))  # one file
    assert registry.find("recipes", "digits").summary.startswith("8x8 handwritten digits")
    for kind in registry.REGISTRIES:
        assert not any(name.startswith("_") for name in registry.names(kind))
        for name in registry.names(kind):
            assert registry.find(kind, name).summary, f"{kind}: {name} has no docstring"


def test_options_are_the_keyword_only_arguments_with_meaning_default_and_limits():
    options = registry.find("models", "convnet").options
    assert str(options["filters"]) == "a whole number of at least 1 (default 64)"
    assert options["filters"].meaning == "Channels of each 3x3 convolution."
    required = registry.find("sources", "tfds").options
    assert required["dataset"].default is None and required["path"].default == "None"
    assert "filters: a whole number of at least 1 (default 64). Channels" in registry.describe(
        "models"
    )


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("convnt", {}, "unknown model 'convnt'; did you mean 'convnet'?"),
        ("zzz", {}, "choose from airbench, application, convnet, lenet, linear, resnet, "),
        ("convnet", {"filter": 3}, "--model.options filter.*did you mean 'filters'"),
        ("tiny", {"filters": 3}, "tiny has no option 'filters'; it takes none"),
        ("no.such.module", {}, "there is no module 'no.such'"),
    ],
)
def test_wrong_names_and_options_get_the_nearest_good_one(name, options, message):
    with pytest.raises(UsageError, match=message):
        registry.check("models", name, options, "--model.options {}")


def test_a_missing_required_option_is_named():
    with pytest.raises(UsageError, match=r"arrays needs --source\.path"):
        registry.check("sources", "arrays", {}, "--source.{}")


@pytest.mark.parametrize("wrong", [None, 0.5, "0.5", (0.5, "x"), [True], [1.5], [[0.5]]])
def test_options_of_several_values_are_checked_value_by_value(wrong):
    for good in ((0.5,), [0, 1], ()):  # a list is what a config file makes of a tuple
        registry.check("schedules", "step", {"at": good}, "{}")
    with pytest.raises(UsageError, match=r"values separated by commas, each a number from 0 to 1"):
        registry.check("schedules", "step", {"at": wrong}, "{}")


@pytest.fixture
def box(tmp_path, monkeypatch):
    """A package of the user's."""
    folder = tmp_path / "box"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "box"]:
        monkeypatch.delitem(sys.modules, name)
    return folder


def test_a_dotted_name_works_like_a_registered_one(box):
    (box / "mine.py").write_text("def wide(x, *, width: int = 3):\n    return (x, width)\n")
    (box / "ops.py").write_text("def invert(batch, seeds, *, share: float):\n    return share\n")
    assert registry.find("models", "box.mine.wide").options["width"].default == "3"
    assert registry.call("models", "box.mine.wide", {"width": 5}, 2) == (2, 5)
    assert registry.find("augment", "box.ops.invert").options["share"].default is None
    assert registry.call("augment", "box.ops.invert", {"share": 0.5}, None, None) == 0.5
    with pytest.raises(UsageError, match="no function 'narrow'; did you mean|choose from wide"):
        registry.check("models", "box.mine.narrow", {}, "{}")
    with pytest.raises(UsageError, match="width of box.mine.wide must be a whole number"):
        registry.check("models", "box.mine.wide", {"width": "x"}, "{}")


def test_a_module_that_cannot_be_imported_is_named_with_its_line(box):
    (box / "broken.py").write_text("import math\n\nmath.nothing()\n\ndef net(x):\n    ...\n")
    with pytest.raises(UsageError, match=r"broken.py, line 3, fails to import: AttributeError"):
        registry.load("models", "box.broken.net")
    (box / "wrong.py").write_text("x = 1\ndef net(:\n")
    with pytest.raises(UsageError, match=r"wrong.py is not valid Python: .*line 2"):
        registry.load("models", "box.wrong.net")


def test_options_are_read_by_the_type_of_the_argument():
    def read(kind, name, **words):
        return registry.read_options(kind, name, words, "{}")

    assert read("schedules", "step", at="0.5,0.75", warmup="0.1") == {
        "at": (0.5, 0.75),
        "warmup": 0.1,
    }
    assert read("schedules", "step", at="0.5,") == {"at": (0.5,)}
    assert read("optimizers", "sgd", nesterov="True") == {"nesterov": True}
    assert read("sources", "folder", group="7") == {"group": "7"}  # text, although a number
    assert read("sources", "tfds", splits=["train=train[:9]"]) == {"splits": {"train": "train[:9]"}}
