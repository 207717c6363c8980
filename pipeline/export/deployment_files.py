"""Files next to a model's versions: server configuration, and how to call the model."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pipeline.export import _templates
from pipeline.serving import models_config
from pipeline.utils import files

IMAGE = "tensorflow/serving:2.20.0"
"""The newest released server; the tag `latest` has lagged behind."""
GENERATED = ("batching.config", "monitoring.config", "compose.yaml", "SERVING.md")
"""Files that each export writes again, unless the user has removed the mark in the first line."""
_MARK = "Written by pipeline at each export; delete this line to keep your own changes."
_FILE = "a JPEG, PNG, GIF, BMP or WebP file"
_PICTURE = '{"b64": picture}'  # in a request that is a Python expression


def write(parent: Path, signatures: Mapping[str, Any], batch_sizes: Sequence[int]) -> None:
    """Writes the files to a model's directory, except those that a user has edited.

    `models.config` is written once, because it determines which versions are served. No file has a
    number as its name, because a server would treat it as a version.
    """
    name = parent.name
    if not (parent / models_config.NAME).exists():
        files.write_text(parent / models_config.NAME, models_config.new(name))
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
        "signatures": [_described(key, signatures) for key in signatures],
        "yaml": lambda value: json.dumps(value).replace("$", "$$"),  # `$` begins a variable
    }
    for file in GENERATED:
        path = parent / file
        if not path.exists() or _MARK in path.read_text(encoding="utf-8", errors="replace"):
            files.write_text(path, _templates.render(file, **values))


def _described(name: str, signatures: Mapping[str, Any]) -> dict[str, Any]:
    """The values of one signature in the template of `SERVING.md`."""
    fields = signatures[name]
    (key, field), *others = fields["inputs"].items()
    outputs = set(fields["outputs"])
    method, meaning = "predict", ""
    if key == "inputs" and outputs == {"classes", "scores"}:
        method, value = "classify", f'{{"image/encoded": {_PICTURE}}}'
        meaning = f"each a serialized `tf.Example` whose `image/encoded` is {_FILE}"
    elif key == "inputs" and outputs == {"outputs"}:
        default = signatures.get("serving_default", fields)["inputs"].values()
        width = next((f["shape"][1] for f in default if len(f["shape"]) == 2), 1)
        method, value = "regress", f'{{"features": [0.0] * {width}}}'
        meaning = "each a serialized `tf.Example` whose `features` are the numbers"
    elif field["dtype"] == "string":
        value, meaning = f'{{"{key}": {_PICTURE}}}', f"each {_FILE}"
    else:
        value = "0.0" if "float" in field["dtype"] else "0"
        for size in reversed(field["shape"][1:]):
            value = f"[{value}] * {size or 1}"
    rows = "instances" if method == "predict" else "examples"
    return {
        "name": name,
        "inputs": _row(fields["inputs"]) + (f": {meaning}" if meaning else ""),
        "outputs": _row(fields["outputs"]),
        "method": method,
        "picture": _PICTURE in value,
        "request": f'{{"signature_name": "{name}", "{rows}": [{value}]}}',
        "has_example": not others,
        "answers": "predictions" if method == "predict" else "results",
    }


def _row(fields: Mapping[str, Any]) -> str:
    parts = []
    for name, field in fields.items():
        shape = ", ".join("N" if size is None else str(size) for size in field["shape"])
        parts.append(f"`{name}` {field['dtype']} [{shape}]")
    return "; ".join(parts)
