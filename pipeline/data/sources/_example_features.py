"""Which features of a tf.Example are the image, the label and the group."""

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from pipeline.utils import image_formats
from pipeline.utils.errors import UsageError, suggest

# Common names of these features, the preferred one first.
_KNOWN = {
    "image": ("image/encoded", "image", "image_raw", "image_bytes", "encoded", "jpeg", "png"),
    "label": ("image/class/label", "label", "labels", "class", "class_id", "image/class/text"),
    "group": (),
}


class Feature(NamedTuple):
    """A feature with one value in each example."""

    name: str
    whole: bool
    """Whether it is an int64; else it is bytes."""


Layout = Mapping[str, Feature]
"""Field (image, label, perhaps group) -> its feature."""


def detect(record: bytes, wanted: Mapping[str, str | None], where: str) -> Layout:
    """The layout of the first example, a serialized tf.Example; UsageError if it has none.

    `wanted` maps image, label and group to the name of the feature; None: the first known name.
    """
    content = _content(record, where)
    layout = {}
    for field, names in _KNOWN.items():
        name = wanted[field] or next((name for name in names if name in content), None)
        if name is None and field != "group":
            raise UsageError(
                f"{where}: unknown feature for the {field}; name it with --source.{field}; "
                f"choose from {', '.join(sorted(content)) or 'none'}"
            )
        if name is not None:
            whole = field != "image" and name in content and content[name][0] == "int64"
            layout[field] = Feature(name, whole)
    require(layout, record, where)
    image = content[layout["image"].name][1][0]
    if not image_formats.is_image(image):
        raise UsageError(
            f"{where}: the feature {layout['image'].name!r} (--source.image) is not a "
            f"{image_formats.NAMES} file; encode raw pixels with tf.io.encode_png"
        )
    return layout


def require(layout: Layout, record: bytes, where: str) -> None:
    """Raises UsageError unless a serialized tf.Example has this layout."""
    content = _content(record, where)
    for field, feature in layout.items():
        if feature.name not in content:
            raise UsageError(
                f"{where} has no feature {feature.name!r} (--source.{field}); "
                f"{suggest(feature.name, content)}"
            )
        kind, values = content[feature.name]
        expected = "int64" if feature.whole else "bytes"
        if kind != expected or len(values) != 1:
            raise UsageError(
                f"{where}: the feature {feature.name!r} (--source.{field}) must be one value of "
                f"{expected}; got {len(values)} of {kind}"
            )


def parse(layout: Layout, records: tf.Tensor) -> dict[str, tf.Tensor]:
    """Serialized tf.Examples to their fields, int64 or string, of the same shape, () or (n,).

    Raises tf.errors.InvalidArgumentError for an example with another layout.
    """
    spec = {
        feature.name: tf.io.FixedLenFeature((), tf.int64 if feature.whole else tf.string)
        for feature in layout.values()
    }
    found = tf.io.parse_example(records, spec)
    return {field: found[feature.name] for field, feature in layout.items()}


def _content(record: bytes, where: str) -> dict[str, tuple[str, list]]:
    """Feature -> (int64, float or bytes, its values)."""
    try:
        features = tf.train.Example.FromString(record).features.feature
    except Exception:  # DecodeError of google.protobuf, which is not a direct dependency
        features = {}
    kinds = {name: value.WhichOneof("kind") for name, value in features.items()}
    if not any(kinds.values()):
        raise UsageError(f"{where} is not a tf.Example")
    return {
        name: (kind.removesuffix("_list"), list(getattr(features[name], kind).value))
        for name, kind in kinds.items()
        if kind
    }
