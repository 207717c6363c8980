"""Images: pixels, or the bytes of image files."""

from collections.abc import Mapping
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from pipeline.config.registry import register
from pipeline.contracts import (
    Example,
    Info,
    Input,
    Metadata,
    Request,
    ServingInput,
    Similarity,
    Source,
    TrainingExamples,
)
from pipeline.data import image_decoding, image_resizing
from pipeline.data.cleaning import near_duplicates
from pipeline.data.pixel_scaling import pixel_scale, scale_pixels
from pipeline.serving import request_guards
from pipeline.utils import image_formats
from pipeline.utils.errors import UsageError
from pipeline.utils.tf_data import ensure_shape, without_autograph

_DTYPES = (tf.uint8, tf.uint16, tf.float32, tf.string)


@register
def image(
    info: Info | Metadata,
    *,
    field: str = "image",
    suffixes: tuple[str, ...] = (
        ".jpg",
        ".jpeg",
        ".png",
        ".gif",
        ".bmp",
        ".webp",
        ".tif",
        ".tiff",
    ),
    image_size: tuple[int, int] | None = None,
    resize: Literal["stretch", "letterbox"] = "stretch",
    raw: bool = False,
) -> Input:
    """Images of any size: pixels of uint8, uint16 or float32, or files, which are
    decoded to uint8.

    Args:
        info: The source's description, or the metadata of a run.
        field: The field of the source.
        suffixes: The files of a directory that are images.
        image_size: Height and width to resize images to; None: the size they all have.
        resize: How images of another aspect ratio get this size: `stretch`, or
            `letterbox`, which keeps their aspect ratio and fills the rest with black.
        raw: Give the model pixels as they are. Otherwise whole numbers are scaled to
            [0, 1]; floats are never scaled.

    Raises:
        UsageError: The field is missing or has another type, or `image_size` is None
            although images differ in size.
    """
    if not isinstance(info, Info):
        return ImageInput(info)
    spec = info.field(field)
    if spec.dtype not in _DTYPES:
        raise UsageError(
            f"{field}: images must be uint8, uint16, float32 or encoded files; got"
            f" {spec.dtype.name}"
        )
    shape = tuple(spec.shape)
    if spec.dtype == tf.string:
        shape = info.exact_image_shape(channels_only=image_size is not None)
    if len(shape) != 3:
        raise UsageError(
            f"{field}: images must have the shape (height, width, channels); got"
            f" {spec.shape}"
        )
    *size, channels = shape
    if image_size is not None:
        size = list(image_size)
    if None in size:
        raise UsageError(
            "the images have different sizes; set --data.image-size HEIGHT WIDTH"
        )
    metadata: dict[str, Any] = {"image_shape": [*size, channels or 3]}
    if info.image_bits != 16:
        metadata["image_bits"] = info.image_bits
    if spec.dtype in (tf.uint16, tf.float32):
        metadata["image_dtype"] = spec.dtype.name
    if field != "image":
        metadata["input_field"] = field
    if resize == "letterbox":
        metadata["letterbox"] = True
    if raw:
        metadata["raw"] = True
    return ImageInput(metadata)


class ImageInput(Input):
    """Decoded examples have `image`, (height, width, channels), uint8 unless the
    source has pixels of another dtype.
    """

    decodes_batches = True
    not_decoded = frozenset({"image_range"})

    def __init__(self, metadata: Metadata) -> None:
        super().__init__(metadata)
        self.image_shape = tuple(metadata["image_shape"])
        self.dtype = tf.as_dtype(metadata.get("image_dtype", "uint8"))
        self.field = metadata.get("input_field", "image")
        self.letterbox = bool(metadata.get("letterbox"))
        self._casts = False
        """Whether float pixels are whole numbers, which are converted."""
        self._takes_files = self.dtype == tf.uint8 and self.image_shape[2] in (1, 3)

    @property
    def _scale(self) -> float:
        return 1.0 if self.metadata.get("raw") else pixel_scale(self.dtype)

    def learn(self, examples: TrainingExamples) -> Metadata:
        """Learns the range of float pixels, which a server enforces."""
        if not self.dtype.is_floating:
            return {}
        low, high = np.inf, -np.inf
        for batch in examples.batches():
            images = batch[self.field]
            low = min(low, float(images.min()))
            high = max(high, float(images.max()))
        return {"image_range": [low, high]}

    @without_autograph
    def decode(self, example: Example) -> tuple[Example, tf.Tensor]:
        """Decodes and resizes an image to `image_shape`, in training as in serving."""
        image = example[self.field]
        height, width, channels = self.image_shape
        if image.dtype == tf.string:
            bits = self.metadata.get("image_bits", 16)
            image, original = image_decoding.resized(
                image, height, width, channels, bits, self.letterbox
            )
        else:
            if self._casts:
                image = tf.cast(image, self.dtype)
            original = tf.cast(tf.shape(image)[-3:-1], tf.float32)
            if image.shape.rank == 4 and image.shape[1:] != self.image_shape:
                image = self._fit_all(image)
            elif image.shape.rank == 3 and image.shape != self.image_shape:
                image = image_resizing.fit(image, height, width, self.letterbox)
        image = ensure_shape(image, self.image_shape)
        geometry = self.geometry(original)
        if image.shape.rank == 4:
            geometry = tf.repeat(geometry[None], tf.shape(image)[0], axis=0)
        return {"image": image}, geometry

    def _fit_all(self, images: tf.Tensor) -> tf.Tensor:
        height, width, _ = self.image_shape
        return tf.map_fn(
            lambda image: image_resizing.fit(image, height, width, self.letterbox),
            images,
        )

    def geometry(self, original: tf.Tensor) -> tf.Tensor:
        """As `decode` returns it, for height and width of an original, float32 (2,)."""
        size = inner = tf.constant(self.image_shape[:2], tf.float32)
        if self.letterbox:
            inner = tf.cast(
                image_resizing.inner_size(original, *self.image_shape[:2]), tf.float32
            )
        offset = tf.floor((size - inner) / 2)
        return tf.concat([inner / original, offset, original], axis=0)

    def match(self, source: Source) -> "ImageInput":
        """Also takes whole numbers from 0 to 255 as floats for uint8."""
        fields = source.info.fields
        field = self.field if self.field in fields else "image"
        matched = ImageInput({**self.metadata, "input_field": field})
        spec = fields.get(field)
        if spec is None or spec.dtype in (self.dtype, tf.string):
            return matched
        if (spec.dtype, self.dtype) == (tf.float32, tf.uint8):
            matched._casts = _are_pixels(source, field)
        if not matched._casts:
            raise UsageError(
                f"the images are {spec.dtype.name}; the model takes {self.dtype.name};"
                " scale, round and convert them, or give the path of their files"
            )
        return matched

    def prepare(self, batch: Example) -> Example:
        """Converts pixels to float32; scales whole numbers to [0, 1], unless raw."""
        return {**batch, "image": scale_pixels(batch["image"], self._scale)}

    def inputs(self) -> keras.KerasTensor:
        return keras.Input(self.image_shape, dtype="float32", name="image")

    def network_inputs(self, batch: Example) -> tf.Tensor:
        return batch["image"]

    def signatures(self) -> list[ServingInput]:
        """`serving_default` takes pixels, `image_bytes` encoded files."""
        images = tf.TensorSpec((None, *self.image_shape), self.dtype, name="images")
        default = ServingInput(
            "serving_default",
            {"images": images},
            self._read_pixels,
            lambda columns: {"images": columns["image"]},
        )
        if not self._takes_files:
            return [default]
        contents = tf.TensorSpec((None,), tf.string, name="image_bytes")
        files = ServingInput(
            "image_bytes",
            {"image_bytes": contents},
            self._read_files,
            _encoded_images,
            files=image_formats.SUFFIXES,
            meaning="each a JPEG, PNG, GIF, BMP or WebP file",
        )
        return [default, files]

    def _read_pixels(self, images: tf.Tensor) -> Example:
        images = request_guards.batch(images, (None, *self.image_shape))
        if "image_range" in self.metadata:
            limits = self.metadata["image_range"]
            images = request_guards.within(images, limits, "images")
        size = tf.constant(self.image_shape[:2], tf.float32)
        geometry = tf.repeat(self.geometry(size)[None], tf.shape(images)[0], axis=0)
        return {"image": images, "geometry": geometry}

    def _read_files(self, image_bytes: tf.Tensor) -> Example:
        specs = (
            tf.TensorSpec(self.image_shape, tf.uint8),
            tf.TensorSpec((6,), tf.float32),
        )

        def decode(content: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            fields, geometry = self.decode({self.field: content})
            return fields["image"], geometry

        files = request_guards.files(image_bytes)
        images, geometry = tf.map_fn(decode, files, fn_output_signature=specs)
        return {**self._read_pixels(images), "geometry": geometry}

    def standalone(self) -> tuple[keras.KerasTensor, keras.KerasTensor]:
        inputs = self.inputs()
        rescale = keras.layers.Rescaling(self._scale, dtype="float32", name="pixels")
        return inputs, rescale(inputs)

    def similarity(self, info: Info) -> Similarity | None:
        """Thumbnails of uint8 pixels or encoded images."""
        spec = info.fields.get(self.field)
        if spec is None or spec.dtype not in (tf.uint8, tf.string):
            return None
        shape = (near_duplicates.SIDE, near_duplicates.SIDE, 3)
        return Similarity(
            sketch=lambda example: _thumbnail(example[self.field]),
            spec=tf.TensorSpec(shape, tf.uint8),
            find=near_duplicates.find,
        )

    def limitations(self) -> list[str]:
        height, width, _ = self.image_shape
        how = "without preserving their aspect ratio"
        if self.letterbox:
            how = "and keep their aspect ratio; the rest is black"
        return [
            f"Images of other sizes are resized to {height} x {width} pixels {how}.",
            (
                "The metrics hold for images like those in the test split; images from"
                " other cameras, places and times have not been tested."
            ),
        ]


def _are_pixels(source: Source, field: str) -> bool:
    """Whether images are whole numbers from 0 to 255.

    If all are 0 or 1, they have probably been scaled.
    """
    highest = 0.0
    for split in source.info.splits:
        for batch in source.examples(split).batch(256):
            images = batch[field].numpy()
            if not (images == images.clip(0, 255).round()).all():
                return False
            highest = max(highest, float(images.max()))
    return highest > 1


def _thumbnail(image: tf.Tensor) -> tf.Tensor:
    """RGB (32, 32, 3): gray is repeated, transparency and aspect ratio are dropped."""
    side = near_duplicates.SIDE
    channels = [0, 1, 2] if image.shape[-1] in (3, 4) else [0, 0, 0]
    rgb = tf.gather(image, channels, axis=-1)
    thumbnail = image_resizing.resize(rgb, side, side)
    return tf.ensure_shape(thumbnail, (side, side, 3))


def _encoded_images(columns: Mapping[str, np.ndarray]) -> Request:
    return {"image_bytes": request_guards.encode_images(columns["image"])}
