"""The picture of a confusion matrix."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def draw(metrics: Mapping[str, Any], class_names: Sequence[str]) -> Any:
    """Draws the confusion matrix in `metrics`, with true classes as rows."""
    from matplotlib.figure import Figure

    counts = np.asarray(metrics["confusion_matrix"])
    side = min(3 + 0.45 * len(counts), 20)
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    axes = figure.subplots()
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    few = len(counts) <= 30
    if few:  # more numbers would be unreadable
        for (i, j), count in np.ndenumerate(counts):
            if count:
                color = "white" if shares[i, j] > 0.5 else "black"
                style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8}
                axes.text(j, i, count, color=color, **style)
    ticks = range(0, len(counts), -(-len(counts) // 100))
    names = [class_names[label][:24] for label in ticks]
    # A class name may contain dollar signs.
    font: dict[str, Any] = {"fontsize": 9 if few else 7, "parse_math": False}
    axes.set_xticks(ticks, names, rotation=90, **font)
    axes.set_yticks(ticks, names, **font)
    title = f"accuracy {metrics['accuracy']:.4f}\nshade: share of the row"
    axes.set(xlabel="predicted", ylabel="true", title=title)
    return figure
