"""The version policy in `models.config`: reading, pinning, and keeping the rest of the
file.
"""

import pytest
from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from pipeline.serving import repository
from pipeline.serving.repository import pin, pinned_versions
from pipeline.utils.errors import UsageError

EDITED = """\
# model_version_policy { specific { versions: 99 } } is how a rollback looks
model_config_list: {
  config: {
    name: "di}gits {"  base_path: "/models/"  '# digits'
    model_version_policy: { specific { versions: [4, 2]  versions: 0x3 } }  # two, and one
    logging_config { sampling_config { sampling_rate: 0.1 } }
  }
}
"""
MANY = """\
model_config_list {
  config { name: 'other' base_path: '/models/other' # } config {
    model_version_policy { specific { versions: 3 } } version_labels { key: 'a' value: 3 } }
  config { base_path: "/models/mine" name: "NAME" model_version_policy { specific { versions: 8 } }
    logging_config { sampling_config { sampling_rate: 0.5 } } }
}
"""


@pytest.fixture
def path(tmp_path):
    folder = tmp_path / "di'gits"
    folder.mkdir()
    return folder / repository.CONFIG


def entries(text):
    """The models in a file, as the server parses it."""
    config = text_format.Parse(text, model_server_config_pb2.ModelServerConfig())
    return config.model_config_list.config


def test_pins_are_written_read_and_removed(path):
    assert pinned_versions(path.parent) == ()
    for version in (3, 12, None, 7):
        pin(path.parent, version)
        assert pinned_versions(path.parent) == (() if version is None else (version,))
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "before", "old", "new"),
    [
        (
            EDITED,
            (2, 3, 4),
            "model_version_policy: { specific { versions: [4, 2]  versions: 0x3 } }",
            "model_version_policy { specific { versions: 5 } }",
        ),
        (MANY.replace("NAME", "di'gits"), (8,), "versions: 8", "versions: 5"),
    ],
    ids=["edited", "many"],
)
def test_only_the_policy_of_the_model_is_replaced(path, text, before, old, new):
    path.write_text(text)
    assert pinned_versions(path.parent) == before
    pin(path.parent, 5)
    assert pinned_versions(path.parent) == (5,)
    assert path.read_text() == text.replace(old, new)
    pin(path.parent, None)
    policies = [entry.model_version_policy for entry in entries(path.read_text())]
    assert policies[-1].latest.num_versions == 1
    assert list(policies[0].specific.versions) == ([3] if len(policies) > 1 else [])


def test_a_policy_whose_place_is_not_found_is_left_alone(path):
    text = "model_config_list { config { name: 'a' } }"
    path.write_text(text)
    with pytest.raises(UsageError, match="by hand: .*specific { versions: 5"):
        pin(path.parent, 5)
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"\xff\xfe", "cannot be read: it is "),
        (b"model_config_list { config { name: 'cut", "cannot be read: 1:"),
        (None, "cannot be read: .*Is a directory"),
        (MANY.encode(), "must have one entry for the model"),
    ],
    ids=["bytes", "open string", "directory", "stranger"],
)
def test_files_that_cannot_be_used_are_named(path, raw, why):
    path.mkdir() if raw is None else path.write_bytes(raw)
    for act in (lambda: pinned_versions(path.parent), lambda: pin(path.parent, 1)):
        with pytest.raises(UsageError, match=why) as caught:
            act()
        assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)
