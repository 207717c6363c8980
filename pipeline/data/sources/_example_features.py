"""Finds the features of a tf.Example that are the image, the label and the group."""

from collections.abc import Mapping

import tensorflow as tf

from pipeline.utils import image_formats
from pipeline.utils.errors import UsageError, suggest

# Common names of these features, the preferred name first.
_KNOWN = {
    "image": ("image/encoded", "image", "image_raw", "image_bytes", "encoded", "jpeg", "png"),
    "label": ("image/class/label", "label", "labels", "class", "class_id", "image/class/text"),
    "group": (),
}
Layout = Mapping[str, tuple[str, str]]
"""Maps fields (image, label, optionally group) to (feature, type of its value: int64 or bytes)."""


def detect(record: bytes, wanted: Mapping[str, str | None], where: str) -> Layout:
    """The layout of the first example, a serialized tf.Example.

    `wanted` maps image, label and group to the name of the feature; None: the first common name.
    Raises UsageError if a feature is missing.
    """
    content = _content(record, where)
    layout = {}
    for field, names in _KNOWN.items():
        name = wanted[field] or next((name for name in names if name in content), None)
        if name is not None:
            found = "int64" if content.get(name, ("", []))[0] == "int64" else "bytes"
            layout[field] = name, "bytes" if field == "image" else found
        elif field != "group":
            raise UsageError(
                f"{where}: unknown feature for the {field}; set it with --source.{field}; "
                f"choose from {', '.join(sorted(content)) or 'none'}"
            )
    require(layout, record, where)
    name, _ = layout["image"]
    if not image_formats.is_image(content[name][1][0]):
        raise UsageError(
            f"{where}: the feature {name!r} (--source.image) is not a {image_formats.NAMES} file; "
            "encode raw pixels with tf.io.encode_png"
        )
    return layout


def require(layout: Layout, record: bytes, where: str) -> None:
    """Raises UsageError unless a serialized tf.Example has this layout."""
    content = _content(record, where)
    for field, (name, expected) in layout.items():
        if name not in content:
            raise UsageError(
                f"{where} has no feature {name!r} (--source.{field}); {suggest(name, content)}"
            )
        kind, values = content[name]
        if kind != expected or len(values) != 1:
            raise UsageError(
                f"{where}: the feature {name!r} (--source.{field}) must be one value of "
                f"{expected}; got {len(values)} of {kind}"
            )


def parse(layout: Layout, records: tf.Tensor) -> dict[str, tf.Tensor]:
    """Parses serialized tf.Examples into fields of the same shape, () or (n,); groups are hashed.

    Raises tf.errors.InvalidArgumentError for an example with a different layout.
    """
    types = {"int64": tf.int64, "bytes": tf.string}
    spec = {name: tf.io.FixedLenFeature((), types[kind]) for name, kind in layout.values()}
    values = tf.io.parse_example(records, spec)
    found = {field: values[name] for field, (name, _) in layout.items()}
    if "group" in found and found["group"].dtype == tf.string:
        found["group"] = tf.strings.to_hash_bucket_fast(found["group"], 2**63 - 1)
    return found


def _content(record: bytes, where: str) -> dict[str, tuple[str, list]]:
    """Maps each feature to its type (int64, float or bytes) and its values."""
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
