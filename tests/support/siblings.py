"""What the conformance tests of all registries share."""

import ast
from typing import Any

from pipeline.config import registry, type_hints

# Options without a default whose type does not say which values are possible.
NEEDED = {"application": {"name": "MobileNetV2"}}


def options_of(kind: str, name: str) -> dict[str, Any]:
    """Values for the required options: from `NEEDED`, otherwise the first that a Literal allows."""
    required = {o: a for o, a in registry.find(kind, name).options.items() if a.default is None}
    given = NEEDED.get(name, {})
    return {
        option: given.get(option) or about.hint.__args__[0] for option, about in required.items()
    }


def load(kind: str, name: str) -> Any:
    """The function of a name with the options that it needs."""
    return registry.bind(kind, name, options_of(kind, name))


def require_described(kind: str, name: str, *parameters: str) -> None:
    """Help texts and checks of options read all of this from the source."""
    sibling = registry.find(kind, name)
    assert sibling.summary.endswith("."), "the docstring must begin with one sentence on a line"
    assert [argument.arg for argument in sibling.node.args.args] == list(parameters)
    assert not sibling.node.args.vararg and not sibling.node.args.kwarg
    for option, about in sibling.options.items():
        assert about.hint is not Any, f"{option} has no type that can be checked"
        assert about.meaning, f"{option} is not described in the section Args"
        if about.default is not None:
            default = ast.literal_eval(about.default)
            assert type_hints.fits(about.hint, default), f"{option}: its default is not allowed"
        assert f"{option}: " in registry.describe(kind)
