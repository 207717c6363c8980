"""The model card of an exported version: its purpose, quality, limits and training.

Mitchell et al., "Model Cards for Model Reporting", FAT* 2019. The card is for people; the manifest
is for programs.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config.config import Config
from pipeline.export import _templates
from pipeline.utils import files

FILE = Path("assets.extra/MODEL_CARD.md")
_MOST_CLASSES = 10  # in the table of the classes with the lowest recall


def text(
    config: Config,
    about: Mapping[str, Any],
    metrics: Mapping[str, Mapping[str, Any]],
    limits: Sequence[str],
) -> str:
    """The card as Markdown; `about` is the manifest without the digests of files."""
    splits = {name: numbers(part) for name, part in metrics.items()}
    classes = metrics.get(about["judged"], {}).get("per_class", {}).items()
    return _templates.render(
        "MODEL_CARD.md",
        **about,
        config=config,
        title=files.collapse_home(config.source.title),
        task_name=config.task.name.rpartition(".")[2].replace("_", " "),
        counts=about["trained"].get("examples", {}),
        splits=splits,
        rows=list(dict.fromkeys(name for part in splits.values() for name in part)),
        same_precision=about["precision"] == about["trained_precision"].removeprefix("mixed_"),
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
