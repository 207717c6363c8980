"""Which versions a server loads: the policy in `models.config`, next to the versions of a model.

The file is a `ModelServerConfig` of TensorFlow Serving in text form and may be edited by hand. Only
the policy of the model is replaced; everything else, including comments, is kept.
"""

import re
from pathlib import Path
from typing import Any

from pipeline.utils import files, safe_io
from pipeline.utils.errors import UsageError, reason

NAME = "models.config"
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
_STRING_OR_COMMENT = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\#[^\n]*""")
_POLICY = re.compile(r"\bmodel_version_policy\s*:?\s*\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")


def pinned(model: Path) -> tuple[int, ...]:
    """Returns the versions that a model is pinned to, ascending; empty if the newest is served."""
    if not (model / NAME).exists():
        return ()
    config = _parse(model / NAME, _text(model / NAME))
    return tuple(sorted(set(_entry(model, config).model_version_policy.specific.versions)))


def pin(model: Path, version: int | None) -> None:
    """Pins a model to one version; with None, servers load the newest version again.

    Raises UsageError if `models.config` cannot be read or edited; the file is then unchanged.
    """
    path = model / NAME
    text = _text(path) if path.exists() else new(model.name)
    wanted = _parse(path, text)
    entry = _entry(model, wanted)
    if entry.version_labels:  # a server exits if a labeled version is not loaded
        raise UsageError(f"{path} has labels; edit its model_version_policy by hand")
    entry.ClearField("model_version_policy")
    if version is None:
        policy = "model_version_policy { latest { num_versions: 1 } }"
        entry.model_version_policy.latest.num_versions = 1
    else:
        policy = f"model_version_policy {{ specific {{ versions: {version} }} }}"
        entry.model_version_policy.specific.versions.append(version)
    plain = _STRING_OR_COMMENT.sub(lambda found: " " * len(found[0]), text)
    for old in _POLICY.finditer(plain):  # replacing the policy of the model gives `wanted`
        edited = text[: old.start()] + policy + text[old.end() :]
        if _parse(path, edited) == wanted:
            files.write_text(path, edited)
            return
    raise UsageError(f"{path} has no policy that can be replaced; edit it by hand: {policy}")


def new(name: str) -> str:
    """Returns a `models.config` for one model, for a container that mounts it at /models/NAME."""
    quoted = name.replace("\\", "\\\\").replace("'", "\\'")
    return _NEW.format(name=f"'{quoted}'", path=f"'/models/{quoted}'")


def _entry(model: Path, config: Any) -> Any:
    """Returns the entry of a model: the only one, or the one with its name."""
    entries = config.model_config_list.config
    found = [one for one in entries if len(entries) == 1 or one.name == model.name]
    if len(found) != 1:
        raise UsageError(f"{model / NAME} must have one entry for the model {model.name!r}")
    return found[0]


def _text(path: Path) -> str:
    try:
        return safe_io.read_text(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {reason(error)}; fix it or remove it") from None


def _parse(path: Path, text: str) -> Any:
    from google.protobuf import text_format

    from pipeline.utils import protobuf  # imports NumPy, which a preflight check should not

    with protobuf.importable():
        from tensorflow_serving.config import model_server_config_pb2

    try:
        return text_format.Parse(text, model_server_config_pb2.ModelServerConfig())
    except (text_format.ParseError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read: {reason(error)}; fix it or remove it") from None
