"""Plots of the tasks: figures of the metrics, and examples with their answers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.utils.html_pages import pixels


def confusion_matrix(metrics: Mapping[str, Any], class_names: Sequence[str]) -> Any:
    """A matplotlib figure of the confusion matrix in `metrics`, with true classes as
    rows.
    """
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
                axes.text(
                    j, i, count, ha="center", va="center", color=color, fontsize=8
                )
    some = range(0, len(counts), -(-len(counts) // 100))
    names = [class_names[at][:24] for at in some]
    # A class name may contain dollar signs.
    font: dict[str, Any] = {"fontsize": 9 if few else 7, "parse_math": False}
    axes.set_xticks(some, names, rotation=90, **font)
    axes.set_yticks(some, names, **font)
    title = f"accuracy {metrics['accuracy']:.4f}\nshade: share of the row"
    axes.set(xlabel="predicted", ylabel="true", title=title)
    return figure


def classified_image(
    axes: Any,
    example: Mapping[str, Any],
    answer: Mapping[str, Any],
    class_names: Sequence[str],
) -> None:
    """Draws an image with the answer as its title: green if right; red, and the truth,
    if wrong.
    """
    image = pixels(np.asarray(example["image"]))
    axes.imshow(image, cmap="gray" if image.ndim == 2 else None, vmin=0, vmax=255)
    answered, true = int(answer["class"]), int(example["label"])
    title = f"{class_names[answered][:22]} {float(np.max(answer['probabilities'])):.2f}"
    if answered != true:
        title += f"\ntrue: {class_names[true][:22]}"
    color = "green" if answered == true else "red"
    axes.set_title(title, color=color, fontsize=9, parse_math=False)
    axes.set(xticks=[], yticks=[])


def predictions(metrics: Mapping[str, Any]) -> Any:
    """A matplotlib figure of predicted against true values, with the line
    of equality.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 5), layout="constrained")
    axes = figure.subplots()
    pairs = metrics["pairs"]
    axes.scatter(pairs["true"], pairs["predicted"], s=12, alpha=0.6)
    axes.axline((pairs["true"][0],) * 2, slope=1, color="black", linewidth=0.8)
    title = f"root mean squared error {metrics['rmse']:.4g}"
    axes.set(xlabel="true", ylabel="predicted", title=title)
    return figure


def features(
    axes: Any, values: np.ndarray, names: Sequence[str], predicted: float, true: float
) -> None:
    """Draws the features of an example as bars, with the prediction as the title."""
    axes.barh(range(len(values)), values)
    some = range(0, len(values), -(-len(values) // 20))
    axes.set_yticks(some, [names[at][:12] for at in some], parse_math=False, fontsize=7)
    axes.invert_yaxis()
    axes.set_title(f"{float(predicted):.4g}, true {float(true):.4g}", fontsize=9)
