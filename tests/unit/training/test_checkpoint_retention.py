"""Which checkpoints are kept."""

import json

from pipeline.training.checkpoint_retention import Retention


def test_the_two_newest_checkpoints_and_their_best_ones_are_kept():
    retention = Retention()
    assert (retention.newest, retention.steps) == (0, set())
    for step, best_step in ((5, 5), (10, 5), (15, 15), (20, 15), (25, 15)):
        retention = retention.add(step, best_step)
    assert (retention.newest, retention.steps) == (25, {15, 20, 25})
    again = Retention(json.loads(json.dumps(retention.state)))
    assert again.steps == retention.steps


def test_the_best_of_the_older_checkpoint_is_kept_as_well():
    retention = Retention().add(5, 5).add(10, 5).add(15, 15)
    assert retention.steps == {5, 10, 15}


def test_a_step_that_is_saved_again_replaces_only_itself():
    retention = Retention().add(5, 0).add(10, 5).add(10, 10)
    assert retention.state == [(5, 0), (10, 10)]
