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
NEWEST = "model_version_policy { latest { num_versions: 1 } }"
"""The policy of a model that is not pinned, which is the server's default."""

_MAX_BYTES = 2**20
_NEW = """\
model_config_list {{
  config {{
    name: {name}
    base_path: {path}
    model_platform: 'tensorflow'
    {policy}
  }}
}}
"""
_STRING_OR_COMMENT = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\#[^\n]*""")
_POLICY = re.compile(r"\bmodel_version_policy\s*:?\s*\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")
_MODEL = re.compile(r"\bconfig\s*:?\s*\{")


def pinned(model: Path) -> tuple[int, ...]:
    """Returns the versions that a model is pinned to, ascending; empty if the newest is served.

    Args:
        model: The directory of its versions.

    Raises:
        UsageError: `models.config` cannot be read.
    """
    text = _read(model / NAME)
    models = _parse(model / NAME, text).model_config_list.config if text else ()
    if not models:
        return ()
    return tuple(sorted(set(models[_index(model, models)].model_version_policy.specific.versions)))


def pin(model: Path, version: int | None) -> None:
    """Pins a model to one version, or with None has servers load the newest again.

    Args:
        model: The directory of its versions.
        version: Its number.

    Raises:
        UsageError: `models.config` cannot be read or edited; it is unchanged.
    """
    path = model / NAME
    policy = NEWEST
    if version is not None:
        policy = f"model_version_policy {{ specific {{ versions: {version} }} }}"
    text = _read(path) or new(model.name)
    files.write_text(path, _with_policy(model, text, policy))


def rename(model: Path) -> None:
    """Writes the name of the directory into a file that `new` made under another name.

    That is the case after a directory was copied or renamed. A file that was edited, except for its
    policy, is left alone, and so is a directory that is a symbolic link.
    """
    text = _read(model / NAME)
    policies = _POLICY.findall(text)
    if model.is_symlink() or len(policies) != 1:
        return
    models = _parse(model / NAME, text).model_config_list.config
    if [text] == [new(entry.name, policies[0]) for entry in models]:
        files.write_text(model / NAME, new(model.name, policies[0]))


def new(name: str, policy: str = NEWEST) -> str:
    """Returns a `models.config` for one model, in a container that has it at /models/NAME."""
    quoted = name.replace("\\", "\\\\").replace("'", "\\'")
    return _NEW.format(name=f"'{quoted}'", path=f"'/models/{quoted}'", policy=policy)


def _with_policy(model: Path, text: str, policy: str) -> str:
    path, by_hand = model / NAME, f"edit it by hand: {policy}"
    config = _parse(path, text)
    models = config.model_config_list.config
    if not models:
        raise UsageError(f"{path} lists no models; {by_hand}")
    index = _index(model, models)
    if models[index].version_labels:  # a server stops at the label of a version it does not load
        raise UsageError(f"{path} has labels, which must name loaded versions; {by_hand}")
    plain = _STRING_OR_COMMENT.sub(lambda found: "_" * len(found[0]), text)
    plain = plain.replace("<", "{").replace(">", "}")
    if models[index].HasField("model_version_policy"):
        spans = [found.span() for found in _POLICY.finditer(plain)]
        place = sum(one.HasField("model_version_policy") for one in models[:index])
    else:
        spans = [(found.end(), found.end()) for found in _MODEL.finditer(plain)]
        place, policy = index, f"\n    {policy}"
    if place < len(spans):
        start, end = spans[place]
        edited = text[:start] + policy + text[end:]
        new_policy = _parse(path, f"model_config_list {{ config {{ {policy} }} }}")
        wanted = new_policy.model_config_list.config[0].model_version_policy
        models[index].model_version_policy.CopyFrom(wanted)
        if _parse(path, edited) == config:
            return edited
    raise UsageError(f"{path} has no policy that can be replaced; {by_hand}")


def _index(model: Path, models: Any) -> int:
    """Returns the index of the entry for a directory: the only one, or the one with its name."""
    names = [entry.name for entry in models]
    if len(names) == 1:
        return 0
    if (count := names.count(model.name)) != 1:
        raise UsageError(
            f"{model / NAME} lists {len(names)} models, {count or 'none'} of them named "
            f"{model.name!r}; give that name to the entry of this directory"
        )
    return names.index(model.name)


def _parse(path: Path, text: str) -> Any:
    from google.protobuf import text_format

    from pipeline.utils import protobuf  # imports NumPy, which a preflight check should not

    with protobuf.importable():
        from tensorflow_serving.config import model_server_config_pb2

    try:
        return text_format.Parse(text, model_server_config_pb2.ModelServerConfig())
    except (text_format.ParseError, RecursionError) as error:
        raise UsageError(
            f"{path} is not a valid ModelServerConfig: {reason(error)}; fix it or remove it"
        ) from None


def _read(path: Path) -> str:
    try:
        return safe_io.read_text(path, _MAX_BYTES)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{path} cannot be read: {why}; fix it or remove it") from None
