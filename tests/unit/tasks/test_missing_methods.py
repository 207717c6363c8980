"""A class of a user that lacks methods."""

import pytest

from pipeline import contracts
from pipeline.utils.errors import UsageError


class Depth(contracts.Target):
    def decode(self, example, geometry):
        return {}

    def y(self, batch):
        return batch["depth"]

    def head(self, features, mask=None):
        return features

    def loss(self):
        return lambda y, outputs: abs(y - outputs)


class Angles(contracts.Input):
    def decode(self, example):
        return {}, None


def test_a_target_is_told_which_methods_it_lacks_and_what_they_return():
    with pytest.raises(UsageError) as caught:
        Depth({})
    assert str(caught.value) == (
        "the class Depth lacks predict (Turns outputs into the predictions for a"
        " client, tensors (batch, ...))"
    )


def test_an_input_too():
    with pytest.raises(UsageError, match="Angles lacks inputs .*; prepare .*; signat"):
        Angles({})


def test_a_target_has_few_methods_to_write():
    """And an input, and a task none."""
    assert contracts.Target.__abstractmethods__ == {
        *("decode", "y", "head", "loss", "predict"),
    }
    assert contracts.Input.__abstractmethods__ == {
        *("decode", "prepare", "inputs", "network_inputs", "signatures"),
    }
    assert not getattr(contracts.Task, "__abstractmethods__", ())
