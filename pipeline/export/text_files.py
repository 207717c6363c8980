"""Writes the model card of a version, and the text files next to the versions."""

import json
import re
import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from pipeline.config.config import Config
from pipeline.contracts import Task
from pipeline.evaluation.predictions import no_skill_warning
from pipeline.evaluation.target_evaluation import evaluation_of
from pipeline.serving import file_predictions, repository
from pipeline.serving.signatures import Field, Signature
from pipeline.utils import files

SERVER_VERSION = "2.20.0"
"""The newest released TensorFlow Serving. It must be named: the tag `latest` has lagged
behind, and KServe's default, 2.6.2 of 2021, lacks operations of current SavedModels,
such as `DisableCopyOnRead`.
"""
IMAGE = f"tensorflow/serving:{SERVER_VERSION}"
GENERATED = (
    "batching.config",
    "monitoring.config",
    "compose.yaml",
    "inferenceservice.yaml",
    "SERVING.md",
)
"""Files that each export writes again, unless the user has removed their first line."""
_MARK = "Written by pipeline at each export; delete this line to keep your own changes."
_CONTENT = '{"b64": content}'  # in a request that is a Python expression
MODEL_CARD = Path("assets.extra/MODEL_CARD.md")
_MAX_CLASSES = 10  # in the table of the classes with the lowest recall
# KServe derives names such as NAME-predictor-00001, which have at most 63 characters.
_MAX_KUBERNETES_NAME = 47


def model_card(
    config: Config,
    manifest: Mapping[str, Any],
    metrics: Mapping[str, Mapping[str, Any]],
    task: Task,
) -> str:
    """Returns the model card as Markdown.

    Mitchell et al., "Model Cards for Model Reporting", FAT* 2019. The card is for
    people; the manifest, here without digests of the files, is for programs.
    """
    splits = {name: numbers(part) for name, part in metrics.items()}
    rows: dict[str, None] = {}  # ordered, without duplicates
    for part in splits.values():
        rows |= dict.fromkeys(part)
    test_split = manifest["evaluated_split"]
    classes = metrics.get(test_split, {}).get("per_class", {})
    columns = list(next(iter(classes.values()), {}))
    measure = "recall" if "recall" in columns else "".join(columns[:1])
    columns.sort(key=lambda column: column != measure)
    tested = metrics.get(test_split)
    no_better_than = (
        evaluation_of(task.target).no_better_than(tested) if tested else None
    )
    trained_precision = manifest["trained_precision"].removeprefix("mixed_")
    return _render(
        "MODEL_CARD.md",
        **manifest,
        config=config,
        title=config.source.title,
        task_title=task.title,
        counts=manifest["trained"].get("examples", {}),
        splits=splits,
        rows=list(rows),
        same_precision=manifest["precision"] == trained_precision,
        other_splits=[name for name in metrics if name != test_split],
        class_count=len(classes),
        columns=columns,
        measure=measure,
        worst=sorted(classes.items(), key=lambda item: item[1][measure])[:_MAX_CLASSES],
        differences=differences(manifest["difference"]),
        warning=no_skill_warning(no_better_than),
        notes=task.target.prediction_notes(),
        limits=task.limitations(),
        config_json=json.dumps(config.as_json(), indent=2, ensure_ascii=False),
    )


def numbers(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Returns the scalar metrics of a split, nested ones as `calibrated.loss`."""
    scalars: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, int | float):
            scalars[prefix + name] = value
        elif isinstance(value, dict) and name != "per_class":
            scalars |= numbers(value, f"{prefix}{name}.")
    return scalars


def differences(values: Mapping[str, float]) -> str:
    """Describes the result of `savedmodel.difference`."""
    parts = ", ".join(f"{name} {value:.3g}" for name, value in values.items())
    return (
        "largest difference (of pixels, the mean; of classes and labels, how many"
        f" differ): {parts}"
    )


def write(
    parent: Path,
    signatures: Mapping[str, Any],
    batch_sizes: Sequence[int],
    notes: Sequence[str] = (),
) -> None:
    """Writes the files in a model's directory, unless a user has edited them.

    `notes` are those of `Target.prediction_notes`.

    `models.config` is written once, because it determines which versions are served. No
    file has a number as its name, because a server would treat it as a version.
    """
    name = parent.name
    if not (parent / repository.CONFIG).exists():
        files.write_text(parent / repository.CONFIG, repository.new_config(name))
    served = {key: _signature(fields) for key, fields in signatures.items()}
    file_input = file_predictions.file_input(served)
    example_files = None
    if file_predictions.signature_of_files_and_columns(served):
        example_files = "rows.csv"
    if file_input is not None:
        example_files = "FILES"
        if file_input[2]:
            example_files = "rows.csv" if len(file_input[2]) == 1 else "rows.npy"
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
        "version": SERVER_VERSION,
        "kubernetes_name": kubernetes_name(name),
        "batch_sizes": sorted(set(batch_sizes)),
        "address": f"http://localhost:8501/v1/models/{quote(name)}",
        "signatures": [_describe(key, signatures) for key in signatures],
        "takes_gaps": any(fields.get("optional") for fields in signatures.values()),
        "files": example_files,
        "notes": notes,
        "yaml": _to_yaml,
    }
    for file in GENERATED:
        path = parent / file
        if not path.exists() or _has_mark(path):
            files.write_text(path, _render(file, **values))


def kubernetes_name(name: str) -> str:
    """Returns the most similar name that KServe accepts for an InferenceService.

    It has lowercase ASCII letters, digits and hyphens, and begins with a letter.
    """
    ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    label = re.sub("[^a-z0-9]+", "-", ascii_name.lower()).strip("-")
    if not label[:1].isalpha():
        label = f"model-{label}"
    return label[:_MAX_KUBERNETES_NAME].strip("-")


def _has_mark(path: Path) -> bool:
    return _MARK in path.read_text(encoding="utf-8", errors="replace")


def _to_yaml(value: Any) -> str:
    return json.dumps(value).replace("$", "$$")  # `$` begins a variable


def _signature(fields: Mapping[str, Any]) -> Signature:
    """Converts a signature of the manifest, without its outputs."""
    inputs = {}
    for name, field in fields["inputs"].items():
        dtype = np.dtype(object if field["dtype"] == "string" else field["dtype"])
        inputs[name] = Field(dtype, tuple(field["shape"]))
    return Signature(inputs, {})


def _describe(name: str, signatures: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a signature for the template of `SERVING.md`."""
    signature = signatures[name]
    fields = signature["inputs"]
    # Text is sent as it is; other content of files, in base64.
    are_bytes = any(key.endswith("_bytes") for key in fields)
    files = signature.get("files", ()) if are_bytes else ()
    meaning = signature.get("meaning", "")
    values = {}
    for key, field in fields.items():
        if files and key.endswith("_bytes"):
            values[key] = _CONTENT
            continue
        number = "0.0" if "float" in field["dtype"] else "0"
        number = str(signature.get("defaults", {}).get(key, number))
        value = {"string": '"text"', "bool": "False"}.get(field["dtype"], number)
        if key in signature.get("example", {}):
            value = _python(signature["example"][key])
        for size in reversed(field["shape"][1:]):
            value = f"[{value}] * {size or 1}"
        values[key] = value
    instance = next(iter(values.values()))
    if files or len(values) > 1:
        pairs = ", ".join(f'"{key}": {value}' for key, value in values.items())
        instance = f"{{{pairs}}}"
    # The content of other bytes is unknown.
    has_example = bool(files) or not are_bytes
    return {
        "name": name,
        "inputs": _row(fields) + (f": {meaning}" if meaning else ""),
        "outputs": _row(signature["outputs"]),
        "file": _example_file(files),
        "request": f'{{"signature_name": "{name}", "instances": [{instance}]}}',
        "has_example": has_example,
    }


def _python(value: Any) -> str:
    """A value in Python, without the quotes that surround a command of a shell."""
    if isinstance(value, str):
        return json.dumps(value).replace("'", r"\u0027")
    return repr(value)


def _example_file(suffixes: Sequence[str]) -> str:
    """The name of a file that a signature takes; empty if it takes none."""
    if not suffixes:
        return ""
    return "picture.png" if ".png" in suffixes else f"example{suffixes[0]}"


def _row(fields: Mapping[str, Any]) -> str:
    parts = []
    for name, field in fields.items():
        sizes = ["any" if size is None else str(size) for size in field["shape"]]
        shape = ", ".join(["N", *sizes[1:]])
        parts.append(f"`{name}` {field['dtype']} [{shape}]")
    return "; ".join(parts)


def _render(template: str, **values: Any) -> str:
    """Renders `templates/NAME.j2` with these values."""
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
    """Formats a cell of a Markdown table; a class name may contain anything.

    None is NaN, which JSON does not have.
    """
    if value is None:
        return "nan"
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, int):
        return f"{value:,}"
    return " ".join(str(value).replace("|", "\\|").split())
