"""The model card: what an exported version is, how good it is, what it is not for, how it was made.

After Mitchell et al., "Model Cards for Model Reporting", FAT* 2019; written for people, while the
manifest beside it is for programs.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config.config import Config
from pipeline.utils import files

FILE = Path("assets.extra/MODEL_CARD.md")
_MOST_CLASSES = 10  # that are shown of the worst


def text(
    config: Config,
    about: Mapping[str, Any],
    metrics: Mapping[str, Mapping[str, Any]],
    limits: Sequence[str],
    digests: Mapping[str, Mapping[str, Any]],
) -> str:
    """The card as Markdown.

    Args:
        config: Of the run.
        about: What the manifest says, but for its files.
        metrics: Split -> what `Task.evaluate` said of it.
        limits: Sentences of the task.
        digests: File -> `sha256` and `size` in bytes, of the model itself.
    """
    sections = {
        about["name"]: _what(config, about),
        "Data": _data(config, about),
        "Metrics": _metrics(about, metrics),
        "Classes": _classes(metrics),
        "Answers": _answers(about),
        "Limits": "".join(f"- {sentence}\n" for sentence in limits),
        "How it was made": _made(config, about),
        "Files": _table(
            ("file", "bytes", "sha256"),
            [(name, f"{f['size']:,}", f["sha256"]) for name, f in digests.items()],
        ),
        "How it is called": "`SERVING.md`, in the folder of the model's versions, starts a server "
        "and calls every signature.\n",
    }
    marks = ["#", *["##"] * len(sections)]
    return "\n".join(
        f"{mark} {name}\n\n{content}"
        for mark, (name, content) in zip(marks, sections.items(), strict=False)
        if content
    )


def _what(config: Config, about: Mapping[str, Any]) -> str:
    task = config.task.name.rpartition(".")[2].replace("_", " ")
    return (
        f"A network for {task}: `{config.model.name}`, "
        f"{about['parameters']:,} parameters. Made by the package `pipeline` "
        f"{about['versions']['pipeline']} with the recipe `{about['recipe']}`.\n"
    )


def _data(config: Config, about: Mapping[str, Any]) -> str:
    examples = about["trained"].get("examples", {})
    counts = ", ".join(f"{name} {count:,}" for name, count in examples.items())
    lines = f"{files.collapse_home(config.source.title)}. Examples: {counts or 'not counted'}.\n"
    if "test" in examples:
        lines += "The test split was seen neither in training nor when weights were chosen.\n"
    if config.clean.enabled or config.clean.manifest:
        count = about["trained"].get("left_out", 0)
        what = f"{count:,} unfit ones were left out; the run's manifest names them"
        lines += f"{what if count else 'None had to be left out'}.\n"
    return lines


def _metrics(about: Mapping[str, Any], metrics: Mapping[str, Mapping[str, Any]]) -> str:
    """A column for each split, a row for each number."""
    if not metrics:
        return ""
    flat = {name: numbers(part) for name, part in metrics.items()}
    rows = dict.fromkeys(name for part in flat.values() for name in part)
    table = _table(
        ("metric", *flat),
        [(name, *(_number(part.get(name)) for part in flat.values())) for name in rows],
    )
    notes = []
    if others := [name for name in metrics if name != about["judged"] and not _as_trained(about)]:
        notes.append(
            f"Of the {about['judged']} split as this version computes, in {about['precision']}; of "
            f"{', '.join(others)} as the network was trained, in {about['trained_precision']}."
        )
    if any(name.startswith("calibrated.") for name in rows):
        notes.append("`calibrated` are those of the probabilities that are answered.")
    if "calibration_error" in rows:
        notes.append(
            "The calibration error is the mean distance between the probability of an answer and "
            "how often answers of such a probability are right."
        )
    return "\n".join([table, *notes]) + "\n" * bool(notes)


def numbers(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers among the metrics of a split, nested ones as `calibrated.loss`, no lists."""
    found: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, int | float):
            found[prefix + name] = value
        elif isinstance(value, dict) and name != "per_class":
            found |= numbers(value, f"{prefix}{name}.")
    return found


def apart(difference: Mapping[str, float]) -> str:
    """What `export.difference` found, in words."""
    numbers = [f"{n} by {v:.2g}" for n, v in difference.items() if isinstance(v, float)]
    others = [f"{v} of {n}" for n, v in difference.items() if not isinstance(v, float)]
    parts = ["at most " + ", ".join(numbers)] * bool(numbers) + [", ".join(others)] * bool(others)
    return "; ".join(parts)


def _as_trained(about: Mapping[str, Any]) -> bool:
    return about["precision"] == about["trained_precision"].removeprefix("mixed_")


def _classes(metrics: Mapping[str, Mapping[str, Any]]) -> str:
    """Those that are found least often, in the test or what there is instead."""
    splits = ("test", "validation", "train")
    name = next((n for n in splits if "per_class" in metrics.get(n, {})), None)
    if name is None:
        return ""
    found = sorted(metrics[name]["per_class"].items(), key=lambda item: item[1]["recall"])
    first = "Lowest recall first"
    if len(found) > _MOST_CLASSES:
        first = f"The {_MOST_CLASSES} of {len(found)} with the lowest recall"
    rows = [
        (label, *(_number(row[key]) for key in ("recall", "precision", "f1", "examples")))
        for label, row in found[:_MOST_CLASSES]
    ]
    table = _table(("class", "recall", "precision", "f1", "examples"), rows)
    return f"{first}, split {name}.\n\n{table}"


def _answers(about: Mapping[str, Any]) -> str:
    lines = f"Layers compute in {about['precision']}, answers are float32"
    lines += f"; the model was trained in {about['trained_precision']}.\n"
    lines += (
        f"On {about['compared']} examples the answers differ from the trained model's: "
        f"{apart(about['difference'])}.\n"
    )
    if about["temperature"] is not None:
        lines += (
            f"The logits are divided by the temperature {about['temperature']:.4g}, fitted on the "
            "validation split.\n"
        )
    return lines


def _made(config: Config, about: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    trained, end = about["trained"], ""
    if trained:
        end = f"Trained for {trained['steps']:,} steps of {trained['of']:,}"
        end += ". " if trained["complete"] else ", before the run was at its end. "
    return (
        f"{end}{versions}.\n\nWith this as `config.json`, `python -m pipeline.fit --config "
        f"config.json` trains such a run to its end (digest {about['config_digest']}):\n\n"
        f"```json\n{json.dumps(config.as_json(), indent=2, ensure_ascii=False)}\n```\n"
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(text: str) -> str:
    """Without what would end the cell: names of classes may be anything."""
    return " ".join(text.replace("|", "\\|").split())


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
