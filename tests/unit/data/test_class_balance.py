"""Balanced class weights, and the note about classes of very different sizes."""

import numpy as np
import pytest
from sklearn.utils.class_weight import compute_class_weight

from pipeline.config import python_call
from pipeline.data import class_balance
from pipeline.utils.errors import UsageError

COUNTS = {"cat": 90, "dog": 9, "eel": 0, "fox": 3}


def test_balanced_weights_are_those_of_scikit_learn():
    weights = class_balance.class_weights("balanced", COUNTS, "classes from image")
    labels = np.repeat([*COUNTS], [*COUNTS.values()])
    expected = compute_class_weight("balanced", classes=np.unique(labels), y=labels)
    assert [*weights] == ["cat", "dog", "fox"]
    assert [*weights.values()] == pytest.approx(expected)
    line = str(class_balance.weights_decision(weights, COUNTS))
    assert line == (
        "class weights cat 0.3778, dog 3.778, fox 11.33 (102 training examples / (3"
        " classes * examples of the class); classes without examples do not count)"
    )
    many = {f"class {n}": n + 1 for n in range(30)}
    weights = class_balance.class_weights("balanced", many, "")
    line = str(class_balance.weights_decision(weights, many))
    assert line.startswith("class weights class 29 0.5167 to class 0 15.5 (465 trai")
    given = {"cat": 2.0}
    assert class_balance.class_weights(given, None, "") is given


def test_only_one_class_per_example_can_be_balanced():
    for task, reason in (
        ("number from features", "the model predicts numbers; remove it"),
        ("labels from image", "the model predicts labels"),
        ("your own loss of price", "the task is your own loss of price"),
    ):
        with pytest.raises(UsageError, match=f"one class per example, but {reason}"):
            class_balance.class_weights("balanced", None, task)


def test_a_note_names_very_unequal_classes_and_the_remedy():
    (note,) = class_balance.imbalance_notes(COUNTS)
    assert str(note) == (
        "unbalanced classes: 'cat' has 90 examples in train, 'fox' 3, a ratio of 30 : 1"
        " (--train.class-weight balanced gives them equal weight in the loss)"
    )
    with python_call.errors_in_python():
        (note,) = class_balance.imbalance_notes(COUNTS)
    assert note.reason.startswith('class_weight="balanced" gives')
    assert not class_balance.imbalance_notes({"cat": 59, "dog": 3, "eel": 0})
