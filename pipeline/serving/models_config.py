"""Which versions a server loads: the policy in the `models.config` beside the versions of a model.

The file is a `ModelServerConfig` of TensorFlow Serving in text form and may be edited by hand.
Pinning a version keeps its settings, but not its comments.
"""

from pathlib import Path
from typing import Any

from pipeline.utils import files, safe_io
from pipeline.utils.errors import UsageError, reason

NAME = "models.config"
_MAX_BYTES = 2**20
_NEW = """\
model_config_list {{
  config {{
    name: {name}
    base_path: {path}
    model_platform: 'tensorflow'
    model_version_policy {{ latest {{ num_versions: 1 }} }}
  }}
}}
"""


def pinned(model: Path) -> tuple[int, ...]:
    """Returns the versions that a model is pinned to, ascending; empty if the newest is served."""
    if not (model / NAME).exists():
        return ()
    _, entry = _read(model)
    return tuple(sorted(set(entry.model_version_policy.specific.versions)))


def pin(model: Path, version: int | None) -> None:
    """Pins a model to one version, or with None has servers load the newest again.

    Raises UsageError if `models.config` cannot be read or edited; it is unchanged.
    """
    from google.protobuf import text_format

    if not (model / NAME).exists():
        files.write_text(model / NAME, new(model.name))
    config, entry = _read(model)
    if entry.version_labels:  # a server stops at the label of a version it does not load
        raise UsageError(f"{model / NAME} has labels; edit its model_version_policy by hand")
    entry.model_version_policy.Clear()
    if version is None:
        entry.model_version_policy.latest.num_versions = 1
    else:
        entry.model_version_policy.specific.versions.append(version)
    files.write_text(model / NAME, text_format.MessageToString(config, as_utf8=True))


def new(name: str) -> str:
    """Returns a `models.config` for one model, in a container that has it at /models/NAME."""
    quoted = name.replace("\\", "\\\\").replace("'", "\\'")
    return _NEW.format(name=f"'{quoted}'", path=f"'/models/{quoted}'")


def _read(model: Path) -> tuple[Any, Any]:
    """Returns the config and the entry of a model: the only one, or the one with its name."""
    from google.protobuf import text_format

    from pipeline.utils import protobuf  # imports NumPy, which a preflight check should not

    with protobuf.importable():
        from tensorflow_serving.config import model_server_config_pb2

    path = model / NAME
    try:
        text = safe_io.read_text(path, _MAX_BYTES)
        config = text_format.Parse(text, model_server_config_pb2.ModelServerConfig())
    except (OSError, ValueError, text_format.ParseError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read: {reason(error)}; fix it or remove it") from None
    entries = config.model_config_list.config
    if len(entries) > 1:
        entries = [entry for entry in entries if entry.name == model.name]
    if len(entries) != 1:
        raise UsageError(f"{path} must have one entry for the model {model.name!r}")
    return config, entries[0]
