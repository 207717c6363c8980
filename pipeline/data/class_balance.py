"""How often each class occurs among the training examples, and weights against it."""

from collections.abc import Mapping

from pipeline.contracts import Decision
from pipeline.utils.console import for_caller, pluralize
from pipeline.utils.errors import UsageError

_IMBALANCE = 20
"""From this ratio of the most to the least frequent class on, a note says so."""
_LISTED = 10  # weights in a line


def class_weights(
    requested: str | Mapping[str, float], counts: Mapping[str, int] | None, task: str
) -> Mapping[str, float]:
    """The weights of `train.class_weight`, with `balanced` as numbers.

    These are examples / (classes * examples of the class), as in scikit-learn. Classes
    without examples do not count, and get no weight.

    Args:
        requested: Weights of classes, or `balanced`.
        counts: The training examples of each class, from `Task.class_counts`.
        task: The title of the task, for messages.

    Raises:
        UsageError: The weights should be balanced, but an example does not have one
            class.
    """
    if not isinstance(requested, str):
        return requested
    if counts is None:
        what, separator, _ = task.partition(" from ")
        is_named = f"the model predicts {what.removesuffix('s')}s"
        reason = is_named if separator else f"the task is {task}"
        raise UsageError(
            "--train.class-weight: balanced weights need one class per example, but"
            f" {reason}; remove it"
        )
    present = {name: count for name, count in counts.items() if count}
    total = sum(present.values())
    return {name: total / (len(present) * count) for name, count in present.items()}


def weights_decision(
    weights: Mapping[str, float], counts: Mapping[str, int]
) -> Decision:
    """The line about balanced weights: all of them, or the lowest and the highest."""
    names = list(weights)
    if len(names) > _LISTED:
        names = [min(weights, key=weights.__getitem__)]
        names += [max(weights, key=weights.__getitem__)]
    separator = ", " if len(names) == len(weights) else " to "
    value = separator.join(f"{name} {weights[name]:.4g}" for name in names)
    formula = (
        f"{sum(counts.values()):,} training examples / ({len(weights):,} classes *"
        " examples of the class)"
    )
    if len(weights) < len(counts):
        formula += "; classes without examples do not count"
    return Decision("balanced", f"class weights {value}", formula)


def imbalance_notes(counts: Mapping[str, int]) -> list[Decision]:
    """A note if the classes with examples are very unequal in size."""
    present = {name: count for name, count in counts.items() if count}
    most = max(present, key=present.__getitem__)
    least = min(present, key=present.__getitem__)
    if present[most] < _IMBALANCE * present[least]:
        return []
    ratio = present[most] / present[least]
    note = (
        f"unbalanced classes: {most!r} has {pluralize(present[most], 'example')} in"
        f" train, {least!r} {present[least]:,}, a ratio of {ratio:,.0f} : 1"
    )
    remedy = for_caller("--train.class-weight balanced", 'class_weight="balanced"')
    return [Decision("note", note, f"{remedy} gives them equal weight in the loss")]
