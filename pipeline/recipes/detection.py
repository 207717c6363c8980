"""Recipes for boxes in images: `boxes`, the one for your own data."""

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
def boxes(
    data: SourceConfig, *, field: str = "image", target: str = "boxes"
) -> Request:
    """Your own images with boxes, by their path: a small residual network with a
    pyramid of features, from scratch.

    Args:
        field: The raw field of the examples that the recipe is for.
        target: The raw field to predict that the recipe is for.
    """
    config = Config(
        recipe="boxes",
        source=data,
        task=TaskConfig(input="image", input_options={"resize": "letterbox"}),
        data=DataConfig(
            image_size=(320, 320),
            augment={
                "flip": {},
                "random_resized_crop": {"scale": (0.25, 1.0), "probability": 0.8},
                "color_jitter": {},
            },
        ),
        model=ModelConfig(name="detector"),
        train=TrainConfig(
            epochs=100,
            batch_size=16,
            optimizer="adamw",
            learning_rate=0.002,
            weight_decay=0.05,
            schedule="cosine",
            schedule_options={"warmup": 0.05},
            global_clipnorm=10.0,
            ema=0.998,
            evaluate_every=10,
        ),
    )
    return Request(
        config, planned=("train.batch_size", "train.epochs", "train.ema"), plan="epochs"
    )
