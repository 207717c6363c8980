"""Recipes for sound: each function returns the config of a complete experiment;
`recordings` and `transcripts`, those for your own data.
"""

from pipeline.config.config import Config
from pipeline.config.registry import register
from pipeline.config.request import Request
from pipeline.config.sections import DataConfig, ModelConfig, SourceConfig, TrainConfig


@register
def recordings(data: SourceConfig, *, field: str = "audio") -> Request:
    """Your own recordings of words or other sounds, by their path: a small
    convolutional network with SpecAugment.

    Args:
        field: The raw field of the examples that the recipe is for.
    """
    config = Config(
        recipe="recordings",
        source=data,
        data=DataConfig(
            augment={"time_shift": {}, "speed": {}, "noise": {}, "spec_augment": {}}
        ),
        model=ModelConfig(name="audio_cnn"),
        train=TrainConfig(
            epochs=40,
            optimizer="adam",
            learning_rate=0.004,
            schedule="cosine",
            schedule_options={"warmup": 0.05},
            label_smoothing=0.1,
        ),
    )
    return Request(config, planned=("train.batch_size", "train.epochs"), plan="epochs")


@register
def transcripts(
    data: SourceConfig, *, field: str = "audio", target: str = "transcript"
) -> Request:
    """Your own recordings with transcripts, by the path of a table: a convolutional and
    recurrent network with CTC.

    Args:
        field: The raw field of the examples that the recipe is for.
        target: The raw field to predict that the recipe is for.
    """
    config = Config(
        recipe="transcripts",
        source=data,
        # Longer intervals would cover whole words.
        data=DataConfig(augment={"speed": {}, "spec_augment": {"times": 0.03}}),
        model=ModelConfig(name="conv_recurrent"),
        train=TrainConfig(
            epochs=20,
            optimizer="adam",
            learning_rate=0.004,
            global_clipnorm=5.0,
            schedule="cosine",
            schedule_options={"warmup": 0.05},
        ),
    )
    return Request(config, planned=("train.batch_size", "train.epochs"), plan="epochs")
