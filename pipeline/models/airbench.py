"""A small network that learns CIFAR-10 fast: whitened patches, identity kernels, no
residuals.
"""

from typing import Annotated, Any

import keras
import numpy as np

from pipeline.config.registry import register
from pipeline.layers.batch_normalization import FusedBatchNormalization
from pipeline.layers.convolution import image_size, pool


@register
def airbench(
    x: keras.KerasTensor,
    *,
    width: Annotated[int, (1, None)] = 64,
    momentum: Annotated[float, (0, 1)] = 0.6,
    test_time_augmentation: bool = False,
) -> keras.KerasTensor:
    """A small network that learns CIFAR-10 fast: whitened patches, identity kernels, no
    residuals.

    Takes (batch, height, width, channels), returns (batch, 4 * `width`).

    Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU", arXiv 2404.00498, section
    3 and its code. A fixed convolution whitens 2x2 patches. Three blocks of two 3x3
    convolutions follow, both with batch normalization and GELU, the first one also with
    max-pooling; all are initialized as the identity. Global max-pooling ends the
    network.

    The paper divides the logits by 9. The head belongs to the task, so its inputs are
    divided instead; the head's bias, which the paper does not have, is not divided.

    `Whitening.adapt` must get training images before the first step; otherwise the
    first layer stays random.

    Args:
        x: Images.
        width: Channels of the first block; the others have four times as many. 64 is
            the paper's network for 94% accuracy (1.97 million parameters).
        momentum: Weight of the old value in an update of the moving mean and variance,
            as in Keras and the paper. It is low because training is short and the
            statistics change fast.
        test_time_augmentation: Average the logits of six views, except in training
            (section 3.5): the image, two shifts by one pixel, and their mirror images.
            Takes six times as long.
    """
    image_size(x)  # refuses other inputs than images
    x = Views(name="views")(x) if test_time_augmentation else x
    x = Whitening(name="whitening")(x)
    x = keras.layers.Activation("gelu", name="whitening_gelu")(x)
    for block, filters in enumerate((width, 4 * width, 4 * width), 1):
        for half in (1, 2):
            x = keras.layers.Conv2D(
                filters,
                3,
                padding="same",
                use_bias=False,
                kernel_initializer=Identity(),
                name=f"block{block}_convolution{half}",
            )(x)
            if half == 1:
                x = pool(x)
            # Keras adds 1e-3 to a variance; the paper's 1e-12 would multiply the
            # rounding errors in a constant channel by 10**6.
            x = FusedBatchNormalization(
                momentum=momentum,
                scale=False,
                epsilon=1e-5,
                name=f"block{block}_normalization{half}",
            )(x)
            x = keras.layers.Activation("gelu", name=f"block{block}_gelu{half}")(x)
    x = keras.layers.GlobalMaxPooling2D(name="largest")(x)
    x = keras.layers.Rescaling(1 / 9, name="ninth")(x)
    # The head is linear: the mean of its inputs gives the mean of the logits.
    return MeanOfViews(name="mean_of_views")(x) if test_time_augmentation else x


@keras.saving.register_keras_serializable("pipeline")
class Views(keras.layers.Layer):
    """Six views of each image in inference: (batch, ...) becomes (6 * batch, ...)."""

    def call(self, images: Any, training: bool | None = None) -> Any:
        """Returns the images, their shifts, and the mirror images of all."""
        if training:
            return images
        height, width = images.shape[1:3]
        wide = keras.ops.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="reflect")
        views = [images]
        for start in (0, 2):
            views.append(wide[:, start : start + height, start : start + width])
        views += [keras.ops.flip(view, 2) for view in views]
        return keras.ops.concatenate(views)


@keras.saving.register_keras_serializable("pipeline")
class MeanOfViews(keras.layers.Layer):
    """The mean of the `Views` of each image; views without a shift count twice."""

    def call(self, features: Any, training: bool | None = None) -> Any:
        """Averages (6 * batch, channels) to (batch, channels), except in training."""
        if training:
            return features
        views = keras.ops.reshape(features, (2, 3, -1, features.shape[-1]))
        weights = keras.ops.cast([[[0.25]], [[0.125]], [[0.125]]], features.dtype)
        return keras.ops.sum(views * weights, axis=(0, 1))


@keras.saving.register_keras_serializable("pipeline")
class Identity(keras.initializers.Initializer):
    """Initializes a filter of a convolution per input channel as the identity.

    Filter i has a single 1, in its center for channel i; filters beyond the number of
    channels are uniform with variance 1 / (3 * fan-in), PyTorch's default, as in the
    paper's code.
    """

    def __call__(self, shape: tuple[int, ...], dtype: Any = None) -> Any:
        """Returns a kernel of shape (height, width, channels, filters)."""
        draw = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")
        height, width, channels, filters = shape
        count = min(channels, filters)
        identity = np.zeros((height, width, channels, count), np.float32)
        identity[height // 2, width // 2] = np.eye(channels, count)
        random = draw(shape, dtype=dtype)[..., count:]
        return keras.ops.concatenate(
            [keras.ops.cast(identity, random.dtype), random], axis=-1
        )


@keras.saving.register_keras_serializable("pipeline")
class Whitening(keras.layers.Layer):
    """Turns 2x2 patches into uncorrelated numbers of variance 1, and their negatives.

    Takes (batch, height, width, channels), returns (batch, height - 1, width - 1, 8 *
    channels); images with a side of one pixel are zero-padded. The kernel is never
    trained: until `adapt` sets it, it is a random orthogonal one. The bias is trained
    unless `trainable` is False; the paper freezes it after three epochs.
    """

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Creates kernel (2, 2, channels, 8 * channels) and bias (8 * channels,)."""
        _, height, width, channels = input_shape
        self._padding = "valid" if min(height, width) >= 2 else "same"
        self.kernel = self.add_weight(
            shape=(2, 2, channels, 8 * channels),
            initializer=keras.initializers.Orthogonal(seed=0),
            trainable=False,
            name="kernel",
        )
        self.bias = self.add_weight(
            shape=(8 * channels,), initializer="zeros", name="bias"
        )

    def call(self, images: Any) -> Any:
        """Applies the convolution."""
        return keras.ops.conv(images, self.kernel, padding=self._padding) + self.bias

    def adapt(self, images: np.ndarray) -> None:
        """Sets kernel and bias from the statistics of images.

        The kernel consists of the eigenvectors of the patches' covariance, largest
        eigenvalue first, each divided by the square root of its eigenvalue, and then
        their negatives, so that an activation such as ReLU loses no information. The
        paper subtracts the mean of the pixels first; here the initial bias makes the
        mean of every output 0.

        Args:
            images: float (images, height, width, channels), as the layer will get them.
                The paper uses the first 5,000 of CIFAR-10.
        """
        if not self.built:
            self.build(images.shape)
        size = 4 * images.shape[-1]
        # So many that their patches fit in memory.
        batch_size = max(1, 10**6 // (images.shape[1] * images.shape[2]))
        count = 0
        total = np.zeros(size)
        products = np.zeros((size, size))
        for start in range(0, len(images), batch_size):
            patches = keras.ops.image.extract_patches(
                images[start : start + batch_size],
                size=2,
                strides=1,
                padding=self._padding,
            )
            patches = keras.ops.convert_to_numpy(patches).reshape(-1, size)
            patches = patches.astype(np.float64)
            count += len(patches)
            total += patches.sum(axis=0)
            products += patches.T @ patches
        mean = total / count
        variances, directions = np.linalg.eigh(products / count - np.outer(mean, mean))
        # The paper's 5e-4 is for pixels of variance 1. The constant is for blank
        # images.
        epsilon = 5e-4 * variances.mean() + 1e-9
        half = (directions / np.sqrt(np.maximum(variances, 0) + epsilon))[:, ::-1]
        kernel = np.concatenate([half, -half], axis=1)
        self.kernel.assign(kernel.reshape(self.kernel.shape))
        self.bias.assign(-mean @ kernel)
