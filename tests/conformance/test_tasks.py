"""Every task: which sources it takes, and that its metadata make it again."""

import json

import numpy as np
import pytest
from registered_functions import options_of

from pipeline.config import registry
from pipeline.contracts import Task
from pipeline.data.in_memory import from_object
from pipeline.utils.errors import UsageError

TASKS = registry.names("tasks")


def infos():
    """Of images, of features, and of arrays as they are."""
    for dataset in ("digits", "diabetes"):
        yield registry.call("sources", "scikit_learn", {"dataset": dataset}).info
    yield from_object((np.zeros((9, 4)), np.zeros((9, 4))), target="arrays").info


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_made_again_from_its_metadata(name):
    """For each kind of data that suits it; others are refused in a line."""
    made = 0
    for info in infos():
        try:
            task = registry.call("tasks", name, options_of("tasks", name), info)
        except UsageError as error:
            assert "\n" not in str(error)
            continue
        metadata = json.loads(json.dumps(dict(task.metadata)))
        again = registry.call("tasks", name, {}, metadata)
        assert isinstance(again, Task) and dict(again.metadata) == metadata
        assert again.with_metadata({"temperature": 2.0}).metadata["temperature"] == 2.0
        assert again.input.signatures()[0].name == "serving_default"
        made += 1
    assert made


@pytest.mark.parametrize(("name", "dataset"), [("regression", "digits")])
def test_a_source_of_another_kind_is_refused(name, dataset):
    info = registry.call("sources", "scikit_learn", {"dataset": dataset}).info
    with pytest.raises(UsageError, match="the source has no field 'features'"):
        registry.call("tasks", name, {}, info)
