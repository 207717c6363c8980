"""Loads registered functions with the options that they require."""

from typing import Any

from pipeline.config import registry

# Required options whose type does not say which values are possible.
NEEDED = {"application": {"name": "MobileNetV2"}}
# Without the one that needs files: models/test_keras_hub.py.
TEXT_MODELS = ["bag", "recurrent", "text_cnn", "text_transformer"]
SOUND_MODELS = ["audio_cnn", "conv_recurrent"]
MODELS = [
    name
    for name in registry.names("models")
    if name not in ("keras_hub", *TEXT_MODELS, *SOUND_MODELS)
]


def options_of(kind: str, name: str) -> dict[str, Any]:
    """Values for the required options: from `NEEDED`, else the first one
    of a Literal.
    """
    required = {
        o: a for o, a in registry.find(kind, name).options.items() if a.default is None
    }
    given = NEEDED.get(name, {})
    return {
        option: given.get(option) or about.hint.__args__[0]
        for option, about in required.items()
    }


def load(kind: str, name: str) -> Any:
    """A registered function, bound to the options that it requires."""
    return registry.bind(kind, name, options_of(kind, name))
