"""Tables and figures that several targets show in the report of a run."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.report.target_report import Panel
from pipeline.utils.calibration import reliability
from pipeline.utils.columns import Columns
from pipeline.utils.intervals import wilson

_CLASSES = 100  # rows of a table
_POINTS = 200  # of a curve
_FEW = 5  # predictions of a point below which no line leads to it
_ENOUGH = 100  # examples that tell whether probabilities can be trusted
_GOOD = 0.03  # calibration errors: small in any case,
_FAIR = 0.1  # or if the mean probability equals the accuracy


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
            columns["95% interval"] = _intervals([rows[name] for name in shown])
    text = f"The lowest {measure.replace('_', ' ')} first."
    if "95% interval" in columns:
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
    """Accuracy against confidence, before and after calibration.

    Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, section 2.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    axes.axline((0, 0), slope=1, color="gray", linewidth=0.8, linestyle="--")
    sentences = []
    parts = {"probability": "not calibrated"}
    if "uncalibrated" in columns:
        parts = {
            "uncalibrated": "before calibration",
            "probability": "after calibration",
        }
    for name, label in parts.items():
        diagram = reliability(columns[name], columns["correct"])
        filled = diagram.examples > 0
        many = diagram.examples >= _FEW  # a line would suggest a trend
        share = diagram.examples[filled] / diagram.examples.sum()
        points = axes.scatter(
            diagram.confidence[filled],
            diagram.accuracy[filled],
            s=8 + 200 * share,
            label=label,
        )
        axes.plot(
            diagram.confidence[many],
            diagram.accuracy[many],
            linewidth=1,
            color=points.get_facecolor()[0],
        )
        sentences.append(f"{diagram.error:.3f} {label}")
    axes.set(xlabel="mean predicted probability", ylabel="fraction correct")
    axes.set(xlim=(0, 1), ylim=(0, 1.02))
    axes.legend(loc="upper left")
    text = (
        f"{_trust(columns)} A point is a group of predictions with similar"
        " probabilities: on the dashed line, the fraction that is correct equals the"
        " probability; below it, the model is overconfident. Larger points contain more"
        " predictions; small ones are noisy. Calibration error:"
        f" {', '.join(sentences)}."
    )
    return Panel("Can the probabilities be trusted?", figure, text)


def _trust(columns: Mapping[str, np.ndarray]) -> str:
    """A sentence about the probabilities of the predictions as a whole."""
    probability, correct = columns["probability"], columns["correct"]
    count = len(correct)
    if count < _ENOUGH:
        return f"Too few examples to tell ({count}; {_ENOUGH} are needed)."
    mean = float(np.mean(probability, dtype=np.float64))
    accuracy = float(correct.mean())
    error = reliability(probability, correct).error
    means = f"the mean probability is {mean:.3f}, and {accuracy:.3f} are correct"
    low, high = wilson(np.array(correct.sum()), np.array(count))
    if error < _GOOD or (low <= mean <= high and error < _FAIR):
        return f"Mostly: {means}."
    if mean > high:
        return f"No, the model is overconfident by {mean - accuracy:.3f}: {means}."
    if mean < low:
        return f"No, the model is underconfident by {accuracy - mean:.3f}: {means}."
    return f"Only on average: {means}, but groups of predictions differ."


def coverage_curve(columns: Mapping[str, np.ndarray]) -> Panel:
    """Accuracy of the most probable predictions against their share of all examples.

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
    axes.set(xlabel="coverage: fraction answered by the model", ylabel="accuracy")
    axes.set(xlim=(0, 1), ylim=(min(accuracy[shown].min(), 0.9) - 0.02, 1.005))
    table = Columns(coverage=[], accuracy=[], threshold=[])
    for share in (0.5, 0.8, 0.9, 1.0):
        last = max(round(share * count) - 1, 0)
        table["coverage"].append(f"{share:.0%}")
        table["accuracy"].append(float(accuracy[last]))
        table["threshold"].append(float(columns["probability"][order[last]]))
    text = (
        "The model answers if its probability is at least the threshold; a human"
        " decides the other cases."
    )
    return Panel("Accuracy if uncertain cases go to a human", figure, text, table)
