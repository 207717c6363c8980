"""The version policy in `models.config`: what is read, what is written, what is left alone."""

import contextlib

import pytest

from pipeline.serving import models_config
from pipeline.serving.models_config import pin, pinned
from pipeline.utils.errors import UsageError

EDITED = """\
# model_version_policy { specific { versions: 99 } } is how a roll-back looks
model_config_list: {
  config: {
    name: "di}gits {"  base_path: "/models/# digits"
    model_platform: 'tensorflow'
    model_version_policy: { specific { versions: [4, 2]  versions: 3 } }  # two, and one
    logging_config { sampling_config { sampling_rate: 0.1 } }
  }
}
"""


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "di'gits"
    folder.mkdir()
    return folder


def test_a_model_without_a_policy_is_not_pinned(model):
    assert pinned(model) == ()
    (model / models_config.NAME).write_text("model_config_list { config { name: 'digits' } }")
    assert pinned(model) == ()


def test_a_pin_is_written_read_replaced_and_taken_away(model):
    for version in (3, 12, 3, None, 7):
        pin(model, version)
        assert pinned(model) == (() if version is None else (version,))
    path = model / models_config.NAME
    text = path.read_text()
    assert "model_version_policy { specific { versions: 7 } }" in text
    assert text.count("model_version_policy") == 1 and text.count("{") == text.count("}")
    assert [p.name for p in model.iterdir()] == [path.name]


def test_what_else_stands_in_the_file_stays(model):
    path = model / models_config.NAME
    path.write_text(EDITED)
    assert pinned(model) == (2, 3, 4)
    pin(model, 5)
    assert pinned(model) == (5,)
    policy = "model_version_policy: { specific { versions: [4, 2]  versions: 3 } }"
    assert path.read_text() == EDITED.replace(
        policy, "model_version_policy { specific { versions: 5 } }"
    )


def test_a_policy_is_added_where_there_was_none(model):
    path = model / models_config.NAME
    path.write_text('model_config_list { config { name: "a" base_path: "/models/a" } }\n')
    pin(model, 5)
    assert pinned(model) == (5,)
    assert path.read_text() == (
        'model_config_list { config { name: "a" base_path: "/models/a"\n'
        "    model_version_policy { specific { versions: 5 } } } }\n"
    )


MANY = """\
model_config_list {
  config < name: 'other' base_path: '/models/other' # } config {
    model_version_policy < specific < versions: 3 > > version_labels { key: 'a' value: 3 } >
  config { base_path: "/models/mine" name: "NAME" model_version_policy { specific { versions: 8 } }}
  config { name: 'third' base_path: '/models/third' }
}
"""


def test_of_many_models_the_one_of_this_name_is_meant(model):
    path = model / models_config.NAME
    text = MANY.replace("NAME", model.name)
    path.write_text(text)
    assert pinned(model) == (8,)
    pin(model, 9)
    assert pinned(model) == (9,)
    assert path.read_text() == text.replace("versions: 8", "versions: 9")
    policies = {m.name: m.model_version_policy for m in as_a_server_reads(path.read_text())}
    assert list(policies["other"].specific.versions) == [3]
    assert list(policies[model.name].specific.versions) == [9]


@pytest.mark.parametrize("name", ["stranger", "other", ""])
def test_many_models_of_which_none_is_this_one_are_refused(model, name):
    path = model / models_config.NAME
    path.write_text(MANY.replace("NAME", name))
    for ask in (lambda: pinned(model), lambda: pin(model, 1)):
        with pytest.raises(UsageError, match="tells of 3 models, none of them with the name"):
            ask()
    assert path.read_text() == MANY.replace("NAME", name)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("custom_model_config { }", "tells of no model"),
        ("config { name: 'a' }", "has no policy that can be replaced"),
        (
            "config { base_path: 'a' model_version_policy { all { } } model_version_policy { } }",
            "no",
        ),
        (
            "config { base_path: 'a' version_labels { key: 'stable' value: 1 } }",
            "has labels, which must name versions that are loaded",
        ),
    ],
)
def test_a_file_that_a_policy_would_not_fit_is_left_alone(model, text, why):
    path = model / models_config.NAME
    path.write_text(text)
    with pytest.raises(UsageError, match=why) as caught:
        pin(model, 5)
    assert "by hand: model_version_policy { specific { versions: 5 } }" in str(caught.value)
    assert path.read_text() == text


def test_a_file_that_cannot_be_read_is_named(model):
    path = model / models_config.NAME
    path.write_bytes(b"\xff\xfe")
    for ask in (lambda: pinned(model), lambda: pin(model, 1)):
        with pytest.raises(UsageError, match=r"models\.config cannot be read: it is no text"):
            ask()
    path.unlink()
    path.mkdir()
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        pinned(model)


def as_a_server_reads(text):
    """The models in a file, by the server's own message."""
    config = pytest.importorskip(
        "tensorflow_serving.config.model_server_config_pb2",
        reason="tensorflow-serving-api, of the extra `serving`, is not installed",
    )
    from google.protobuf import text_format

    return text_format.Parse(text, config.ModelServerConfig()).model_config_list.config


@pytest.mark.parametrize("name", ["digits", 'it\'s "mine" \\ ü $x {', "a b"])
def test_a_new_file_names_the_folder_of_the_versions(name):
    (found,) = as_a_server_reads(models_config.new(name))
    assert (found.name, found.base_path) == (name, f"/models/{name}")
    assert found.model_platform == "tensorflow"
    assert found.model_version_policy.latest.num_versions == 1


@pytest.mark.parametrize("text", [None, EDITED, 'model_config_list{config{base_path:"/a"}}'])
def test_a_server_reads_what_was_written(model, text):
    if text is not None:
        (model / models_config.NAME).write_text(text)
    pin(model, 6)
    (found,) = as_a_server_reads((model / models_config.NAME).read_text())
    assert list(found.model_version_policy.specific.versions) == [6]
    pin(model, None)
    (found,) = as_a_server_reads((model / models_config.NAME).read_text())
    assert found.model_version_policy.latest.num_versions == 1


@pytest.mark.parametrize("number", ["0x1", "01", "9" * 5000, "1.5", "[1, two]"])
def test_versions_that_are_no_numbers_are_refused(model, number):
    path = model / models_config.NAME
    path.write_text(f"config {{ model_version_policy {{ specific {{ versions: {number} }} }} }}")
    with pytest.raises(UsageError, match="pins version '.*'; write a whole number"):
        pinned(model)


@pytest.mark.parametrize(
    "text",
    [
        "config{" * 100_000,
        "'" + r"\'" * 300_000,
        "specific" + " " * 900_000,
        "model_version_policy" + " " * 900_000 + ":",
        "model_version_policy{" * 40_000,
        "config{} " * 100_000,
    ],
    ids=["models", "quotes", "spaces", "more spaces", "policies", "closed"],
)
def test_a_file_of_a_megabyte_is_read_at_once(model, text):
    """What took a time in the square of the length took half an hour; this hangs then."""
    (model / models_config.NAME).write_text(text)
    with contextlib.suppress(UsageError):
        assert pinned(model) == ()
