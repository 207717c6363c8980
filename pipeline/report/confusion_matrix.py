"""The picture of a confusion matrix, or of its largest entries."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def draw(metrics: Mapping[str, Any], class_names: Sequence[str]) -> Any:
    """Draws the confusion matrix in `metrics` with true classes as rows, or the most
    frequent mistakes of many classes as bars.
    """
    if "confusion_matrix" not in metrics:
        return _draw_mistakes(metrics)
    from matplotlib.figure import Figure

    counts = np.asarray(metrics["confusion_matrix"])
    side = 3 + 0.45 * len(counts)
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    axes = figure.subplots()
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for (i, j), count in np.ndenumerate(counts):
        if count:
            color = "white" if shares[i, j] > 0.5 else "black"
            axes.text(j, i, count, color=color, ha="center", va="center", fontsize=8)
    ticks = range(len(counts))
    names = [class_names[label][:24] for label in ticks]
    # A class name may contain dollar signs.
    font: dict[str, Any] = {"fontsize": 9, "parse_math": False}
    axes.set_xticks(ticks, names, rotation=90, **font)
    axes.set_yticks(ticks, names, **font)
    title = f"accuracy {metrics['accuracy']:.3f}\nshade: fraction of the row"
    axes.set(xlabel="predicted", ylabel="true", title=title)
    return figure


def _draw_mistakes(metrics: Mapping[str, Any]) -> Any:
    from matplotlib.figure import Figure

    mistakes = metrics["confusions"]
    figure = Figure(figsize=(8, 1.5 + 0.25 * len(mistakes)), layout="constrained")
    axes = figure.subplots()
    axes.barh(range(len(mistakes)), [count for _, _, count in mistakes])
    names = [f"{true[:24]} as {predicted[:24]}" for true, predicted, _ in mistakes]
    axes.set_yticks(range(len(mistakes)), names, fontsize=8, parse_math=False)
    axes.invert_yaxis()
    title = f"accuracy {metrics['accuracy']:.3f}\nthe most frequent mistakes"
    axes.set(xlabel="examples", title=title)
    return figure
