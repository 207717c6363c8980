"""Text files of an export: the model card of a version, and the files next to the
versions.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from pipeline.config.config import Config
from pipeline.serving import file_predictions, repository
from pipeline.serving.signatures import Field, Signature
from pipeline.utils import files

IMAGE = "tensorflow/serving:2.20.0"
"""The newest released server; the tag `latest` has lagged behind."""
GENERATED = ("batching.config", "monitoring.config", "compose.yaml", "SERVING.md")
"""Files that each export writes again, unless the user has removed the mark in the
first line.
"""
_MARK = "Written by pipeline at each export; delete this line to keep your own changes."
_FILE = "a JPEG, PNG, GIF, BMP or WebP file"
_PICTURE = '{"b64": picture}'  # in a request that is a Python expression
MODEL_CARD = Path("assets.extra/MODEL_CARD.md")
_MOST_CLASSES = 10  # in the table of the classes with the lowest recall


def model_card(
    config: Config,
    about: Mapping[str, Any],
    metrics: Mapping[str, Mapping[str, Any]],
    limits: Sequence[str],
) -> str:
    """The card as Markdown; `about` is the manifest without the digests of files.

    Mitchell et al., "Model Cards for Model Reporting", FAT* 2019. The card is for
    people; the manifest is for programs.
    """
    splits = {name: numbers(part) for name, part in metrics.items()}
    classes = metrics.get(about["judged"], {}).get("per_class", {}).items()
    return _render(
        "MODEL_CARD.md",
        **about,
        config=config,
        title=config.source.title,
        task_name=config.task.name.rpartition(".")[2].replace("_", " "),
        counts=about["trained"].get("examples", {}),
        splits=splits,
        rows=list(dict.fromkeys(name for part in splits.values() for name in part)),
        same_precision=about["precision"]
        == about["trained_precision"].removeprefix("mixed_"),
        other_splits=[name for name in metrics if name != about["judged"]],
        class_count=len(classes),
        worst=sorted(classes, key=lambda item: item[1]["recall"])[:_MOST_CLASSES],
        differences=differences(about["difference"]),
        limits=limits,
        config_json=json.dumps(config.as_json(), indent=2, ensure_ascii=False),
    )


def numbers(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The scalar metrics of a split; nested ones as `calibrated.loss`."""
    found: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, int | float):
            found[prefix + name] = value
        elif isinstance(value, dict) and name != "per_class":
            found |= numbers(value, f"{prefix}{name}.")
    return found


def differences(found: Mapping[str, float]) -> str:
    """The result of `savedmodel.difference`, in words."""
    parts = ", ".join(f"{name} {value:.3g}" for name, value in found.items())
    return f"largest difference (of classes and labels, how many differ): {parts}"


def write(
    parent: Path, signatures: Mapping[str, Any], batch_sizes: Sequence[int]
) -> None:
    """Writes the files to a model's directory, except those that a user has edited.

    `models.config` is written once, because it determines which versions are served. No
    file has a number as its name, because a server would treat it as a version.
    """
    name = parent.name
    if not (parent / repository.CONFIG).exists():
        files.write_text(parent / repository.CONFIG, repository.new_config(name))
    taken = file_predictions.takes(
        {key: _signature(one) for key, one in signatures.items()}
    )
    images = taken is not None and taken[2] is None
    target = f"/models/{name}"
    options = [
        f"--model_config_file={target}/models.config",
        "--model_config_file_poll_wait_seconds=60",
        "--enable_batching",
        f"--batching_parameters_file={target}/batching.config",
        f"--monitoring_config_file={target}/monitoring.config",
    ]
    values = {
        "mark": _MARK,
        "name": name,
        "target": target,
        "options": options,
        "image": IMAGE,
        "batch_sizes": sorted(set(batch_sizes)),
        "address": f"http://localhost:8501/v1/models/{quote(name)}",
        "signatures": [_described(key, signatures, images) for key in signatures],
        "files": ("FILES" if images else "rows.csv") if taken else None,
        "yaml": (
            lambda value: json.dumps(value).replace("$", "$$")
        ),  # `$` begins a variable
    }
    for file in GENERATED:
        path = parent / file
        if not path.exists() or _MARK in path.read_text(
            encoding="utf-8", errors="replace"
        ):
            files.write_text(path, _render(file, **values))


def _signature(fields: Mapping[str, Any]) -> Signature:
    """A signature of the manifest as a client sees it; the outputs are left out."""
    inputs = {}
    for name, field in fields["inputs"].items():
        dtype = np.dtype(object if field["dtype"] == "string" else field["dtype"])
        inputs[name] = Field(dtype, tuple(field["shape"]))
    return Signature(inputs, {})


def _described(
    name: str, signatures: Mapping[str, Any], images: bool
) -> dict[str, Any]:
    """The values of one signature in the template of `SERVING.md`.

    Strings are the contents of files if the model takes `images`.
    """
    fields = signatures[name]
    (key, field), *others = fields["inputs"].items()
    meaning = ""
    has_example = not others
    if field["dtype"] == "string" and images:
        value, meaning = f'{{"{key}": {_PICTURE}}}', f"each {_FILE}"
    else:
        plain = {"string": '"text"', "bool": "False"}
        value = plain.get(field["dtype"], "0.0" if "float" in field["dtype"] else "0")
        # What would be in the bytes is not known.
        has_example &= not key.endswith("_bytes")
        for size in reversed(field["shape"][1:]):
            value = f"[{value}] * {size or 1}"
    return {
        "name": name,
        "inputs": _row(fields["inputs"]) + (f": {meaning}" if meaning else ""),
        "outputs": _row(fields["outputs"]),
        "picture": _PICTURE in value,
        "request": f'{{"signature_name": "{name}", "instances": [{value}]}}',
        "has_example": has_example,
    }


def _row(fields: Mapping[str, Any]) -> str:
    parts = []
    for name, field in fields.items():
        shape = ", ".join("N" if size is None else str(size) for size in field["shape"])
        parts.append(f"`{name}` {field['dtype']} [{shape}]")
    return "; ".join(parts)


def _render(template: str, **values: Any) -> str:
    """The text of `templates/NAME.j2` with these values."""
    import jinja2  # takes 40 ms, which only an export needs

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pipeline.export"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"cell": _cell, "shell": shlex.quote}
    return environment.get_template(f"{template}.j2").render(values)


def _cell(value: Any) -> str:
    """A cell of a Markdown table; a class name may contain anything."""
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, int):
        return f"{value:,}"
    return " ".join(str(value).replace("|", "\\|").split())
