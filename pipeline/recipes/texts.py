"""Recipes for texts: each function returns the config of a complete experiment;
`texts`, one for your own data.
"""

from pipeline.config.config import Config
from pipeline.config.sections import (
    ModelConfig,
    SourceConfig,
    TrainConfig,
)


def texts(data: SourceConfig, *, field: str = "text") -> Config:
    """Your own texts, by their path: a bag of n-grams with Adam."""
    return Config(
        recipe="texts",
        source=data,
        model=ModelConfig(name="bag"),
        train=TrainConfig(
            epochs=20,
            patience=4,
            optimizer="adam",
            learning_rate=0.01,
            schedule="cosine",
        ),
    )
