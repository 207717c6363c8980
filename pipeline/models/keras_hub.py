"""An image backbone of KerasHub with pretrained weights, by preset."""

import keras

from pipeline.layers.convolution import to_rgb
from pipeline.utils.errors import UsageError, reason


def keras_hub(x: keras.KerasTensor, *, preset: str) -> keras.KerasTensor:
    """An image backbone of KerasHub with pretrained weights, by preset.

    Takes (batch, height, width, 1 or 3), returns a vector per image: the mean of the
    backbone's last feature maps or tokens. Gray is repeated as red, green and blue;
    images are resized and scaled as by the preset's image converter. The backbone is
    one layer named `backbone`.

    Args:
        x: Images in [0, 1].
        preset: A directory written by `save_to_preset`, or a name that KerasHub
            downloads, such as `resnet_50_imagenet` (keras.io/keras_hub/presets).

    Raises:
        UsageError: KerasHub is not installed; the preset cannot be loaded, lacks an
            image converter, or is no image backbone; the images have neither 1 nor 3
            channels.
    """
    try:
        import keras_hub
    except ImportError as error:
        raise UsageError(
            f"--model.name keras_hub cannot import it ({reason(error)}): pip install"
            " keras-hub"
        ) from None
    option = f"--model.options preset={preset}"
    x = to_rgb(x, option)
    try:
        policy = keras.config.dtype_policy()
        network = keras_hub.models.Backbone.from_preset(preset, dtype=policy)
        convert = keras_hub.layers.ImageConverter.from_preset(preset, dtype="float32")
    except (OSError, ValueError, LookupError) as error:
        raise UsageError(f"{option} cannot be loaded: {reason(error)}") from None
    features = network.output
    takes_image = isinstance(network.input, keras.KerasTensor)
    if not takes_image or not hasattr(features, "shape"):
        raise UsageError(
            f"{option}: {type(network).__name__} does not turn one image into features"
        )
    axes = tuple(range(1, len(features.shape) - 1))
    features = keras.ops.mean(features, axes)
    # Keras's layers, so that loading the model does not need KerasHub for them.
    if convert.image_size is not None:
        x = convert.resizing(x)
    scale = convert.scale or 1.0
    offset = convert.offset or 0.0
    x = keras.layers.Rescaling(255.0, dtype="float32", name="pixels")(x)
    x = keras.layers.Rescaling(scale, offset, dtype="float32", name="scaled")(x)
    return keras.Model(network.input, features, name="backbone")(x)
