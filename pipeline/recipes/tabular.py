"""Recipes for tables: each function returns the config of a complete experiment;
`tables`, one for your own table, and `data`, one for other data of your own.
"""

from pipeline.config.config import Config
from pipeline.config.registry import register
from pipeline.config.request import Request
from pipeline.config.sections import (
    DataConfig,
    ModelConfig,
    SourceConfig,
    TaskConfig,
    TrainConfig,
)


@register
def regression_linear() -> Config:
    """Diabetes progression from 10 measurements by linear least squares; needs no
    download.

    With standardized features, the Hessian of the squared error has condition number
    458, for which momentum (Polyak 1964) converges fastest near rate 0.44 and momentum
    0.83. With either engine, 150 steps reach the closed-form solution
    (benchmarks/README.md).
    """
    return Config(
        recipe="regression_linear",
        task=TaskConfig(name="regression"),
        source=SourceConfig(name="scikit_learn", options={"dataset": "diabetes"}),
        data=DataConfig(validation=0),  # nothing is selected with it
        model=ModelConfig(name="linear"),
        train=TrainConfig(
            epochs=150,
            # the whole training split: a gradient without noise converges
            batch_size=343,
            optimizer_options={"momentum": 0.85},
            learning_rate=0.4,
        ),
    )


@register
def tables(data: SourceConfig, *, field: str = "numbers") -> Request:
    """Your own table with columns of any kind, by its path: a residual network.

    Args:
        data: Where the examples come from.
        field: The raw field of the examples that the recipe is for.
    """
    config = Config(
        recipe="tables",
        source=data,
        model=ModelConfig(name="tabular"),
        train=TrainConfig(
            epochs=40,
            batch_size=256,
            optimizer="adamw",
            weight_decay=0.01,
            learning_rate=0.002,
            schedule="cosine",
        ),
    )
    return Request(config, planned=("train.batch_size", "train.epochs"), plan="rows")


@register
def data(data: SourceConfig) -> Config:
    """Your own data other than images, by their path: two dense layers with Adam."""
    return Config(
        recipe="data",
        source=data,
        model=ModelConfig(name="mlp"),
        train=TrainConfig(
            epochs=100, patience=10, optimizer="adam", learning_rate=0.01
        ),
    )
