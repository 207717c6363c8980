"""What a task is called in the terminal and in the model card."""

import pytest
from input_target_pairs import examples_of, task_of
from ordinal_target import ordinal

from pipeline.config import objects
from pipeline.data.array_source import ArraySource
from pipeline.evaluation import label_noise
from pipeline.tasks.supervised import supervised
from pipeline.utils.errors import UsageError


def test_pairs_of_registered_names():
    columns, names = examples_of("image", "classes", 6)
    source = ArraySource(columns, class_names=names)
    task = task_of(source.info, "image", "classes")
    assert task.title == "classes from image"
    assert supervised(task.metadata).title == "classes from image"
    target = objects.name_of(ordinal, "targets")
    parts = {"input": "image", "input_options": {"field": "x"}, "target": target}
    parts["target_options"] = {"field": "y"}
    assert supervised(source.info, parts).title == "ordinal from image"


def test_several_inputs_are_named_with_their_kinds():
    images, names = examples_of("image", "labels", 6)
    table, _ = examples_of("features", "labels", 6)
    columns = {
        "left/image": images["x"],
        "right/image": images["x"],
        "table/features": table["x"],
        "labels": images["y"],
    }
    task = supervised(ArraySource(columns, class_names=names).info)
    expected = "labels from left (image), right (image) and table (features)"
    assert task.title == expected == supervised(task.metadata).title


@pytest.mark.parametrize("target", ["classes", "labels", "number", "mask"])
def test_label_noise_takes_one_class_for_each_example(target):
    columns, names = examples_of("image", target, 6)
    task = task_of(ArraySource(columns, class_names=names).info, "image", target)
    if target == "classes":
        label_noise.require_classes(task)
        return
    message = f"one class for each example.*{target} from image"
    with pytest.raises(UsageError, match=message):
        label_noise.require_classes(task)
