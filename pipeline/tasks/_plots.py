"""Plots of the tasks: figures of the metrics, and examples with their answers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.utils.html_pages import pixels


def classified_image(
    axes: Any,
    example: Mapping[str, Any],
    answer: Mapping[str, Any],
    class_names: Sequence[str],
) -> None:
    """Draws an image with the answer as its title: green if right, red if wrong."""
    image = pixels(np.asarray(example["image"]))
    axes.imshow(image, cmap="gray" if image.ndim == 2 else None, vmin=0, vmax=255)
    predicted = int(answer["class"])
    true = int(example["label"])
    probability = float(np.max(answer["probabilities"]))
    title = f"{class_names[predicted][:22]} {probability:.2f}"
    color = "green"
    if predicted != true:
        title += f"\ntrue: {class_names[true][:22]}"
        color = "red"
    axes.set_title(title, color=color, fontsize=9, parse_math=False)
    axes.set(xticks=[], yticks=[])


def predictions(metrics: Mapping[str, Any]) -> Any:
    """Draws predicted against true values, with the line of equality."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 5), layout="constrained")
    axes = figure.subplots()
    pairs = metrics["pairs"]
    axes.scatter(pairs["true"], pairs["predicted"], s=12, alpha=0.6)
    start = pairs["true"][0]
    axes.axline((start, start), slope=1, color="black", linewidth=0.8)
    title = f"root mean squared error {metrics['rmse']:.4g}"
    axes.set(xlabel="true", ylabel="predicted", title=title)
    return figure


def features(
    axes: Any, values: np.ndarray, names: Sequence[str], predicted: float, true: float
) -> None:
    """Draws the features of an example as bars, with the prediction as the title."""
    axes.barh(range(len(values)), values)
    ticks = range(0, len(values), -(-len(values) // 20))
    labels = [names[tick][:12] for tick in ticks]
    axes.set_yticks(ticks, labels, parse_math=False, fontsize=7)
    axes.invert_yaxis()
    axes.set_title(f"{float(predicted):.4g}, true {float(true):.4g}", fontsize=9)
