"""Every registered function: help texts and checks of options read all of this from its
source.
"""

import ast
from typing import Any

import pytest

from pipeline.config import command_line, registry, type_hints

# Registry -> the positional parameters of its functions; of a task, the first one alone
# is required, whatever its name.
PARAMETERS = {
    "recipes": [],
    "sources": [],
    "tasks": None,
    "inputs": ["info"],
    "targets": ["info"],
    "augment": ["batch", "seeds"],
    "models": ["x"],
    "engines": ["model", "train", "validation", "callbacks"],
    "callbacks": ["context"],
    "losses": ["metadata"],
    "metrics": ["metadata"],
    "optimizers": ["learning_rate"],
    "schedules": ["learning_rate", "steps"],
}


@pytest.mark.parametrize("kind", registry.REGISTRIES)
def test_described(kind):
    for name in registry.names(kind):
        sibling = registry.find(kind, name)
        assert sibling.summary.endswith("."), (
            "the docstring must begin with a one-line sentence"
        )
        arguments = sibling.node.args
        names = [argument.arg for argument in arguments.posonlyargs + arguments.args]
        if sibling.takes_metadata:
            names.remove("metadata")
        takes_data = kind == "recipes" and name in command_line.OWN_DATA
        expected = ["data"] if takes_data else PARAMETERS[kind]
        if kind == "tasks":
            assert sibling.required_arguments == 1, name
        else:
            assert names == expected, name
        assert not sibling.node.args.vararg and not sibling.node.args.kwarg
        for option, about in sibling.options.items():
            assert about.hint is not Any, (
                f"{name}: {option} has no type that can be checked"
            )
            assert about.meaning, (
                f"{name}: {option} is not described in the section Args"
            )
            if about.default is not None:
                default = ast.literal_eval(about.default)
                assert type_hints.fits(about.hint, default), (
                    f"{name}: {option}={default!r}"
                )
