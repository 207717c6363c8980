"""Which features of a tf.Example hold the image, the label and the group."""

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from pipeline.utils.errors import UsageError, suggest

# What writers of such files call them, most wanted first.
_KNOWN = {
    "image": ("image/encoded", "image", "image_raw", "image_bytes", "encoded", "jpeg", "png"),
    "label": ("image/class/label", "label", "labels", "class", "class_id", "image/class/text"),
    "group": (),
}
_STARTS = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM", b"RIFF")


class Feature(NamedTuple):
    """One value in each example."""

    name: str
    whole: bool
    """Whether it is an int64; else it is bytes."""


Layout = Mapping[str, Feature]
"""Field (image, label, perhaps group) -> its feature."""


def detect(record: bytes, wanted: Mapping[str, str | None], where: str) -> Layout:
    """The layout that the first example has.

    Args:
        record: A serialized tf.Example.
        wanted: image, label, group -> name of the feature; None: the first known name that is
            there.
        where: The example, for a message.

    Raises:
        UsageError: There is no such feature, or it is not one value of a fitting kind.
    """
    content = _content(record, where)
    layout = {}
    for field, names in _KNOWN.items():
        name = wanted[field] or next((name for name in names if name in content), None)
        if name is None and field != "group":
            raise UsageError(
                f"{where}: which feature is the {field}? Name it with --source.{field}; "
                f"there are: {', '.join(sorted(content)) or 'none'}"
            )
        if name is not None:
            whole = field != "image" and name in content and content[name][0] == "int64"
            layout[field] = Feature(name, whole)
    require(layout, record, where)
    image = content[layout["image"].name][1][0]
    if not image.startswith(_STARTS):
        raise UsageError(
            f"{where}: the feature {layout['image'].name!r} (--source.image) is no JPEG, PNG, GIF, "
            "BMP or WebP file; raw pixels are not read, write them with tf.io.encode_png"
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
        wanted = "int64" if feature.whole else "bytes"
        if kind != wanted or len(values) != 1:
            raise UsageError(
                f"{where}: the feature {feature.name!r} (--source.{field}) must be one value of "
                f"{wanted}, received {len(values)} of {kind}"
            )


def parse(layout: Layout, records: tf.Tensor) -> dict[str, tf.Tensor]:
    """Serialized tf.Examples to their fields, int64 or string, of the same shape, () or (n,).

    Raises tf.errors.InvalidArgumentError for an example of another layout.
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
    except Exception:  # google.protobuf's DecodeError, of a package that is no dependency of ours
        features = {}
    kinds = {name: value.WhichOneof("kind") for name, value in features.items()}
    if not any(kinds.values()):
        raise UsageError(f"{where} is no tf.Example")
    return {
        name: (kind.removesuffix("_list"), list(getattr(features[name], kind).value))
        for name, kind in kinds.items()
        if kind
    }
