"""Recipes for images: each function returns the config of a complete experiment;
`photos` chooses missing settings from the data.
"""

from typing import Any

from pipeline.config.config import Config
from pipeline.config.registry import register
from pipeline.config.request import Request
from pipeline.config.sections import (
    DataConfig,
    ModelConfig,
    RuntimeConfig,
    SourceConfig,
    TrainConfig,
)

_MOMENTUM: dict[str, Any] = {"momentum": 0.9}  # of SGD, the default


@register
def digits() -> Config:
    """8x8 handwritten digits of scikit-learn; needs no download."""
    return Config(
        recipe="digits",
        source=SourceConfig(name="scikit_learn", options={"dataset": "digits"}),
        data=DataConfig(augment={"crop": {"padding": 1}}),
        model=ModelConfig(name="convnet", options={"blocks": 3}),
        train=TrainConfig(
            epochs=40, optimizer="adam", learning_rate=0.002, schedule="cosine"
        ),
    )


@register
def digits_tiny() -> Config:
    """The tiny network on digits, with two replicas."""
    return Config(
        recipe="digits_tiny",
        source=SourceConfig(name="scikit_learn", options={"dataset": "digits"}),
        model=ModelConfig(name="tiny"),
        train=TrainConfig(
            epochs=30,
            learning_rate=0.05,
            schedule="cosine",
            optimizer_options=_MOMENTUM,
        ),
        runtime=RuntimeConfig(replicas=2),
    )


@register
def cifar10_convnet() -> Config:
    """CIFAR-10 with two convolutions, SGD 0.001 and momentum 0.9, 10 epochs."""
    return Config(
        recipe="cifar10_convnet",
        source=SourceConfig(name="tfds", options={"dataset": "cifar10"}),
        data=DataConfig(validation=0.02),
        model=ModelConfig(name="convnet"),
        train=TrainConfig(epochs=10, learning_rate=0.001, optimizer_options=_MOMENTUM),
    )


@register
def cifar10_sequential() -> Config:
    """CIFAR-10 with a keras.Sequential network and Adam, 10 epochs."""
    return Config(
        recipe="cifar10_sequential",
        source=SourceConfig(name="tfds", options={"dataset": "cifar10"}),
        data=DataConfig(validation=0.02),
        model=ModelConfig(name="sequential"),
        train=TrainConfig(epochs=10, optimizer="adam", learning_rate=0.001),
    )


@register
def cifar10_airbench() -> Config:
    """CIFAR-10 to 94%: a whitened network without residuals, Muon and test-time
    augmentation.
    """
    options = {"momentum": 0.85, "adam_factor": 0.1}
    return Config(
        recipe="cifar10_airbench",
        source=SourceConfig(name="tfds", options={"dataset": "cifar10"}),
        data=DataConfig(
            validation=0,  # nothing is selected with it
            augment={"alternating_flip": {}, "crop": {"padding": 2, "fill": "reflect"}},
        ),
        model=ModelConfig(
            name="airbench", options={"momentum": 0.9, "test_time_augmentation": True}
        ),
        train=TrainConfig(
            epochs=12,
            batch_size=500,
            optimizer="muon",
            optimizer_options=options,
            learning_rate=0.02,
            weight_decay=0.5,
            schedule="linear",
            schedule_options={"warmup": 0.05},
            label_smoothing=0.2,
        ),
    )


@register
def cifar10_resnet18() -> Config:
    """CIFAR-10 with ResNet-18 and SGD for 200 epochs, for a GPU."""
    return Config(
        recipe="cifar10_resnet18",
        source=SourceConfig(name="tfds", options={"dataset": "cifar10"}),
        data=DataConfig(
            validation=0.02,
            augment={
                "alternating_flip": {},
                "crop": {"padding": 4, "fill": "reflect"},
                "erase": {},
            },
        ),
        model=ModelConfig(name="resnet", options={"depth": 18}),
        train=TrainConfig(
            epochs=200,
            batch_size=512,
            learning_rate=0.2,
            optimizer_options={**_MOMENTUM, "nesterov": True},
            l2=2.5e-4,
            label_smoothing=0.1,
            schedule="cosine",
            schedule_options={"warmup": 0.05},
        ),
    )


@register
def fashion_mnist_lenet() -> Config:
    """Fashion-MNIST with LeNet-5, SGD 0.01 and momentum 0.9, micro-batches, clipping,
    10 epochs.
    """
    return Config(
        recipe="fashion_mnist_lenet",
        source=SourceConfig(name="tfds", options={"dataset": "fashion_mnist"}),
        data=DataConfig(validation=0.02),
        model=ModelConfig(name="lenet"),
        train=TrainConfig(
            epochs=10,
            accumulate=2,
            global_clipnorm=1.0,
            learning_rate=0.01,
            optimizer_options=_MOMENTUM,
        ),
    )


@register
def photos(data: SourceConfig, *, field: str = "image") -> Request:
    """Your own images, by their path: settings are chosen for them and for this
    machine.

    Args:
        data: Where the examples come from.
        field: The raw field of the examples that the recipe is for.
    """
    config = Config(
        recipe="photos",
        source=data,
        model=ModelConfig(name="residual"),
        train=TrainConfig(
            optimizer="muon",
            weight_decay=0.1,
            schedule="cosine",
            schedule_options={"warmup": 0.05},
        ),
    )
    return Request(
        config,
        planned=(
            "runtime.precision",
            "data.test",
            "data.image_size",
            "data.augment",
            "model",
            "train.batch_size",
            "train.epochs",
            "train.learning_rate",
            "train.ema",
            "train.label_smoothing",
            "train.freeze",
            "train.freeze_epochs",
            "train.layer_rates",
        ),
    )
