"""Tables and figures that several targets show in the report of a run."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.contracts import Panel
from pipeline.utils.calibration import reliability
from pipeline.utils.columns import Columns
from pipeline.utils.intervals import wilson

_CLASSES = 100  # rows of a table
_POINTS = 200  # of a curve


def class_table(scores: Mapping[str, Mapping[str, Any]], measure: str) -> Panel:
    """The scores of each class, the lowest `measure` first.

    If they count the `examples` of a class, its recall gets a confidence interval, and
    classes without examples are left out.
    """
    rows = {}
    for name, score in scores.items():
        if score.get("examples", 1):
            rows[name] = score
    names = sorted(rows, key=lambda name: rows[name][measure])
    shown = names[:_CLASSES]
    columns: dict[str, list[Any]] = {"class": shown}
    keys = list(rows[names[0]]) if names else []
    keys.sort(key=lambda key: (key != measure, key != "examples"))
    for key in keys:
        columns[key.replace("_", " ")] = [rows[name][key] for name in shown]
        if key == "recall" and "examples" in keys:
            columns["95 % interval"] = _intervals([rows[name] for name in shown])
    text = f"The lowest {measure.replace('_', ' ')} first."
    if "95 % interval" in columns:
        text += " Its confidence interval is wide where there are few examples."
    if len(names) > len(shown):
        text += f" {len(names) - len(shown):,} more classes are better than these."
    if missing := len(scores) - len(names):
        text += f" Classes without examples in this split: {missing:,}."
    return Panel("Classes", Columns(columns), text)


def _intervals(scores: Sequence[Mapping[str, Any]]) -> list[str]:
    """The confidence interval of each recall."""
    sizes = np.array([score["examples"] for score in scores])
    recalls = np.array([score["recall"] for score in scores])
    low, high = wilson(recalls * sizes, sizes)
    return [f"{a:.3f} to {b:.3f}" for a, b in zip(low, high, strict=True)]


def confused_pairs(pairs: Sequence[tuple[str, str, int]], limit: int = 15) -> Panel:
    """The most frequent mistakes, (true, predicted, examples)."""
    table = Columns(
        true=[true for true, _, _ in pairs[:limit]],
        predicted=[predicted for _, predicted, _ in pairs[:limit]],
        examples=[count for _, _, count in pairs[:limit]],
    )
    return Panel("Most confused classes", table)


def reliability_diagram(columns: Mapping[str, np.ndarray]) -> Panel:
    """Accuracy against confidence, as answered and without calibration.

    Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, section 2.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    axes.axline((0, 0), slope=1, color="gray", linewidth=0.8, linestyle="--")
    sentences = []
    parts = {"uncalibrated": "without calibration", "probability": "as answered"}
    for name, label in parts.items():
        if name not in columns:
            continue
        diagram = reliability(columns[name], columns["correct"])
        filled = diagram.examples > 0
        confidence, accuracy = diagram.confidence[filled], diagram.accuracy[filled]
        share = diagram.examples[filled] / diagram.examples.sum()
        (line,) = axes.plot(confidence, accuracy, linewidth=1, label=label)
        axes.scatter(confidence, accuracy, s=8 + 200 * share, color=line.get_color())
        sentences.append(f"{diagram.error:.4f} {label}")
    axes.set(xlabel="mean probability of the answers", ylabel="share that is right")
    axes.set(xlim=(0, 1), ylim=(0, 1.02))
    axes.legend(loc="upper left")
    text = (
        "A point is a group of answers with similar probabilities: on the dashed line,"
        " as many of them are right as their probability says; below it, the model is"
        " too sure. Larger points are more answers; small ones are uncertain."
        f" Calibration error: {', '.join(sentences)}."
    )
    return Panel("Can the probabilities be trusted?", figure, text)


def coverage_curve(columns: Mapping[str, np.ndarray]) -> Panel:
    """Accuracy of the most probable answers against their share of all examples.

    El-Yaniv and Wiener, "On the foundations of noise-free selective classification",
    JMLR 2010.
    """
    from matplotlib.figure import Figure

    order = np.argsort(-columns["probability"], kind="stable")
    count = len(order)
    accuracy = np.cumsum(columns["correct"][order]) / np.arange(1, count + 1)
    shown = np.unique(np.linspace(0, count - 1, _POINTS).astype(int))
    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot((shown + 1) / count, accuracy[shown])
    axes.set(xlabel="share of the examples that is answered", ylabel="accuracy")
    axes.set(xlim=(0, 1), ylim=(min(accuracy[shown].min(), 0.9) - 0.02, 1.005))
    sentences = []
    for share in (0.5, 0.8, 0.9):
        last = max(round(share * count) - 1, 0)
        threshold = columns["probability"][order[last]]
        sentences.append(
            f"{share:.0%} of the examples: {accuracy[last]:.1%} right, with"
            f" probabilities of {threshold:.3f} or more"
        )
    text = (
        "If only the most probable answers are used and the others are left to a"
        f" person. {'; '.join(sentences)}."
    )
    return Panel("Accuracy of the most probable answers", figure, text)
