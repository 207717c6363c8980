"""Which versions a server loads: the policy in the `models.config` beside the versions of a model.

The file is a `ModelServerConfig` of TensorFlow Serving in text form and may be edited by hand. Only
the policy of the model is replaced; everything else, including comments, is kept.
"""

import re
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
_STRING_OR_COMMENT = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\#[^\n]*""")
_POLICY = re.compile(r"\bmodel_version_policy\s*:?\s*\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")
_ENTRY = re.compile(r"\bconfig\s*:?\s*\{")


def pinned(model: Path) -> tuple[int, ...]:
    """Returns the versions that a model is pinned to, ascending; empty if the newest is served."""
    if not (model / NAME).exists():
        return ()
    text = _text(model / NAME)
    entries = _parse(model / NAME, text).model_config_list.config
    return tuple(
        sorted(set(entries[_index(model, entries)].model_version_policy.specific.versions))
    )


def pin(model: Path, version: int | None) -> None:
    """Pins a model to one version, or with None has servers load the newest again.

    Raises UsageError if `models.config` cannot be read or edited; it is unchanged.
    """
    path = model / NAME
    text = _text(path) if path.exists() else new(model.name)
    config = _parse(path, text)
    entries = config.model_config_list.config
    index = _index(model, entries)
    if entries[index].version_labels:  # a server stops at the label of a version it does not load
        raise UsageError(f"{path} has labels; edit its model_version_policy by hand")
    policy = (
        "latest { num_versions: 1 }" if version is None else f"specific {{ versions: {version} }}"
    )
    policy = f"model_version_policy {{ {policy} }}"
    edited = _with_policy(text, entries, index, policy)
    alone = _parse(path, f"model_config_list {{ config {{ {policy} }} }}").model_config_list
    entries[index].model_version_policy.CopyFrom(alone.config[0].model_version_policy)
    if edited is None or _parse(path, edited) != config:
        raise UsageError(f"{path} has no policy that can be replaced; edit it by hand: {policy}")
    files.write_text(path, edited)


def new(name: str) -> str:
    """Returns a `models.config` for one model, in a container that has it at /models/NAME."""
    quoted = name.replace("\\", "\\\\").replace("'", "\\'")
    return _NEW.format(name=f"'{quoted}'", path=f"'/models/{quoted}'")


def _with_policy(text: str, entries: Any, index: int, policy: str) -> str | None:
    """Returns the text with this policy of one entry; None if its place is not found."""
    plain = _STRING_OR_COMMENT.sub(lambda found: " " * len(found[0]), text)
    plain = plain.replace("<", "{").replace(">", "}")
    if entries[index].HasField("model_version_policy"):
        spans = [found.span() for found in _POLICY.finditer(plain)]
        index = sum(entry.HasField("model_version_policy") for entry in entries[:index])
    else:
        spans = [(found.end(), found.end()) for found in _ENTRY.finditer(plain)]
        policy = f"\n    {policy}"
    if index >= len(spans):
        return None
    start, end = spans[index]
    return text[:start] + policy + text[end:]


def _index(model: Path, entries: Any) -> int:
    """Returns the index of the entry of a model: the only one, or the one with its name."""
    found = [n for n, one in enumerate(entries) if len(entries) == 1 or one.name == model.name]
    if len(found) != 1:
        raise UsageError(f"{model / NAME} must have one entry for the model {model.name!r}")
    return found[0]


def _text(path: Path) -> str:
    try:
        return safe_io.read_text(path, _MAX_BYTES)
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
