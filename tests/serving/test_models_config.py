"""The version policy in `models.config`: reading, pinning, and keeping the rest of the file."""

import pytest
from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from pipeline.serving import models_config
from pipeline.serving.models_config import pin, pinned
from pipeline.utils.errors import UsageError

EDITED = """\
# model_version_policy { specific { versions: 99 } } is how a rollback looks
model_config_list: {
  config: {
    name: "di}gits {"  base_path: "/models/"  '# digits'
    model_platform: 'tensorflow'
    model_version_policy: { specific { versions: [4, 2]  versions: 0x3 } }  # two, and one
    logging_config { sampling_config { sampling_rate: 0.1 } }
  }
}
"""


@pytest.fixture
def path(tmp_path):
    folder = tmp_path / "di'gits"
    folder.mkdir()
    return folder / models_config.NAME


def entries(text):
    """The models in a file, as the server parses it."""
    return text_format.Parse(
        text, model_server_config_pb2.ModelServerConfig()
    ).model_config_list.config


def test_pins_are_written_read_and_removed(path):
    assert pinned(path.parent) == ()
    for version in (3, 12, None, 7):
        pin(path.parent, version)
        assert pinned(path.parent) == (() if version is None else (version,))
    assert path.read_text() == models_config.new(
        "di'gits", "model_version_policy { specific { versions: 7 } }"
    )
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
        (
            'model_config_list { config { base_path: "a" } }\n',
            (),
            "config { b",
            "config {\n    model_version_policy { specific { versions: 5 } } b",
        ),
    ],
    ids=["edited", "no policy"],
)
def test_only_the_policy_of_the_model_is_replaced(path, text, before, old, new):
    path.write_text(text)
    assert pinned(path.parent) == before
    pin(path.parent, 5)
    assert pinned(path.parent) == (5,)
    assert path.read_text() == text.replace(old, new)
    pin(path.parent, None)
    (entry,) = entries(path.read_text())
    assert entry.model_version_policy.latest.num_versions == 1


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"\xff\xfe", "cannot be read: it is "),
        (b"model_config_list { config { model_version_policy { specific { versions: 3", "not a va"),
        (None, "cannot be read: Is a directory"),
    ],
    ids=["bytes", "cut off", "directory"],
)
def test_files_that_cannot_be_read_are_named(path, raw, why):
    path.mkdir() if raw is None else path.write_bytes(raw)
    for act in (lambda: pinned(path.parent), lambda: pin(path.parent, 1)):
        with pytest.raises(UsageError, match=why) as caught:
            act()
        message = str(caught.value)
        assert message.startswith(str(path)) and message.endswith("; fix it or remove it")
        assert "\n" not in message
