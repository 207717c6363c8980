"""Parts of presets of KerasHub: backbones, and what prepares their inputs."""

import types
from typing import Any

from pipeline.utils.errors import UsageError, reason


def load(part: str, option: str, preset: str, **options: Any) -> Any:
    """Loads a part of a preset, such as `models.Backbone`.

    Args:
        part: A class of KerasHub with `from_preset`, by its module and name.
        option: What the user has written, for error messages.
        preset: A directory written by `save_to_preset`, or a name that KerasHub
            downloads (keras.io/keras_hub/presets).
        **options: Further arguments of `from_preset`.

    Raises:
        UsageError: KerasHub is not installed, or the part cannot be loaded.
    """
    module, name = part.split(".")
    kind = getattr(getattr(_keras_hub(option), module), name)
    try:
        return kind.from_preset(preset, **options)
    except UnicodeDecodeError:
        raise UsageError(f"{option} cannot be loaded: it is not UTF-8") from None
    # What a file of a preset contains decides which exception Keras raises.
    except Exception as error:
        problem = reason(error)
        if "Unknown preset identifier" in problem:
            problem = "there is no such directory, and KerasHub has no such preset"
        raise UsageError(f"{option} cannot be loaded: {problem}") from None


def word_piece_tokenizer(option: str, preset: str) -> Any:
    """The tokenizer of a preset, such as of BERT, DistilBERT or ELECTRA.

    Arguments and errors are those of `load`. Also raises UsageError for a tokenizer
    without word pieces, or without the special pieces of BERT.
    """
    tokenizer = load("models.Tokenizer", option, preset)
    kind = _keras_hub(option).tokenizers.WordPieceTokenizer
    special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]"}
    if not isinstance(tokenizer, kind) or special.difference(tokenizer.vocabulary):
        raise UsageError(
            f"{option}: {type(tokenizer).__name__} does not use word pieces with"
            f" {', '.join(sorted(special))}; choose a preset of BERT, DistilBERT or"
            " ELECTRA"
        )
    return tokenizer


def _keras_hub(option: str) -> types.ModuleType:
    try:
        import keras_hub
    except ImportError as error:
        raise UsageError(
            f"{option} cannot import keras_hub ({reason(error)}): pip install keras-hub"
        ) from None
    return keras_hub
