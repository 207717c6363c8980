"""Registries: functions are found, checked and loaded by name, without importing
TensorFlow.
"""

import sys

import pytest

from pipeline.config import registry, type_hints
from pipeline.utils.errors import UsageError


def test_every_public_function_of_any_file_is_registered():
    models = (
        "airbench application audio_cnn bag conv_recurrent convnet detector"
        " diffusion_unet keras_hub lenet linear mlp recurrent residual resnet"
        " sequential tabular text_cnn text_transformer tiny unet"
    )
    assert registry.names("models") == models.split()
    assert "muon" in registry.names("optimizers")
    assert registry.find("recipes", "digits").summary.startswith(
        "8x8 handwritten digits"
    )
    for kind in registry.REGISTRIES:
        assert not any(name.startswith("_") for name in registry.names(kind))
        for name in registry.names(kind):
            assert registry.find(kind, name).summary, f"{kind}: {name} has no docstring"


def test_options_are_the_keyword_only_arguments_with_meaning_default_and_limits():
    options = registry.find("models", "convnet").options
    assert (
        type_hints.describe(options["filters"].hint) == "a whole number of at least 1"
    )
    assert options["filters"].default == "64"
    assert options["filters"].meaning == "Channels of each 3x3 convolution."
    required = registry.find("sources", "tfds").options
    assert required["dataset"].default is None and required["path"].default == "None"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("convnt", {}, "'convnt'; did you mean 'convnet'"),
        ("zzz", {}, "choose from airbench, application, .*, or a network of keras"),
        ("convnet", {"filter": 3}, "--model.options filter.*'filters'"),
        ("tiny", {"filters": 3}, "tiny has no option 'filters'; it takes none"),
        ("no.such.module", {}, "no module named 'no.such'"),
        ("mine.py", {}, "'mine.py:': mine.py is not a file"),
    ],
)
def test_wrong_names_and_options_get_the_nearest_good_one(name, options, message):
    with pytest.raises(UsageError, match=message):
        registry.check("models", name, options, "--model.options {}")


@pytest.mark.parametrize("wrong", [None, 0.5, (0.5, "x"), [[0.5]]])
def test_options_of_several_values_are_checked_value_by_value(wrong):
    for good in ((0.5,), [0, 1], ()):  # a list is what a config file makes of a tuple
        registry.check("schedules", "step", {"at": good}, "{}")
    with pytest.raises(UsageError, match="commas.*0 to 1"):
        registry.check("schedules", "step", {"at": wrong}, "{}")


def test_a_dotted_name_works_like_a_registered_one(tmp_path, monkeypatch):
    (tmp_path / "box").mkdir()
    text = "def wide(x, *, width: int = 3):\n    return (x, width)\n"
    (tmp_path / "box/mine.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert registry.find("models", "box.mine.wide").options["width"].default == "3"
    assert registry.call("models", "box.mine.wide", {"width": 5}, 2) == (2, 5)
    with pytest.raises(UsageError, match="width of box.mine.wide"):
        registry.check("models", "box.mine.wide", {"width": "x"}, "{}")


def test_a_function_of_a_notebook_has_no_dotted_name(monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    with pytest.raises(UsageError, match="__main__.net"):
        registry.find("models", "__main__.net")


def test_two_functions_of_one_name_are_refused_with_their_files(tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    for name in "ab":
        code = "@register\ndef net(x):\n    ...\n\n\ndef helper(x):\n    ...\n"
        (tmp_path / f"models/{name}.py").write_text(code)
    monkeypatch.setattr(registry, "_PACKAGE", tmp_path)
    registry._package_functions.cache_clear()
    try:
        with pytest.raises(
            UsageError, match="a.py, line 2, .*b.py, line 2, both define 'net'"
        ):
            registry.names("models")
    finally:
        registry._package_functions.cache_clear()


def test_only_marked_functions_are_registered(tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    code = "@register\ndef net(x):\n    ...\n\n\ndef helper(x):\n    ...\n"
    (tmp_path / "models/a.py").write_text(code)
    monkeypatch.setattr(registry, "_PACKAGE", tmp_path)
    registry._package_functions.cache_clear()
    try:
        assert registry.names("models") == ["net"]
    finally:
        registry._package_functions.cache_clear()


def test_options_are_read_by_the_type_of_the_argument():
    def read(kind, name, **words):
        return registry.read_options(kind, name, words, "{}")

    assert read("schedules", "step", at="0.5,", warmup="0.1") == {
        "at": (0.5,),
        "warmup": 0.1,
    }
    assert read("optimizers", "sgd", nesterov="True") == {"nesterov": True}
    assert read("sources", "folder", group="7") == {
        "group": "7"
    }  # text, although a number
    assert read("sources", "tfds", splits=["train=train[:9]"]) == {
        "splits": {"train": "train[:9]"}
    }


def test_the_name_of_a_network_of_keras_is_a_model_with_its_weights():
    for spelling in ("MobileNetV2", "mobilenetv2"):
        function = registry.find("models", spelling)
        assert function.name == "application"
        assert function.preset == {"name": "MobileNetV2", "weights": "imagenet"}
        assert function.options["weights"].default == "'imagenet'"
    with pytest.raises(UsageError, match="did you mean 'ResNet50'"):
        registry.find("models", "ResNet5")


def test_a_directory_of_keras_hub_is_a_model(tmp_path):
    for name in ("config.json", "metadata.json"):
        (tmp_path / name).write_text("{}")
    function = registry.find("models", str(tmp_path))
    assert function.name == "keras_hub"
    assert function.preset == {"preset": str(tmp_path)}
