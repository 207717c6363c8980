"""Supervised learning: an input joined with a target, and the most usual pairs."""

import ast
import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from pipeline.config import registry
from pipeline.config.registry import register
from pipeline.contracts import Info, Metadata, Task
from pipeline.tasks.pair import Supervised, create_input, create_target
from pipeline.utils.errors import UsageError

_ROW_FIELDS = ("numbers", "strings")  # of the columns of a table


@register
def supervised(
    info: Info | Metadata, parts: Mapping[str, Any] | None = None, /
) -> Task:
    """An input and a target: those of --task.input and --task.target, or those that
    the fields of the source suit.

    Args:
        info: The source's description, or the metadata of a run.
        parts: `input`, such as `image` or `features`, with `input_options`; and
            `target`, such as `classes` or `number`, with `target_options`. Each may be
            missing.

    Raises:
        UsageError: No input or no target suits the source.
    """
    parts = parts or {}
    input = parts.get("input")
    target = parts.get("target")
    if not isinstance(info, Info):
        names = {"input": str(input)} if input and "inputs" not in info else {}
        if target:
            names["target"] = str(target)
        metadata = {**names, **info}
        return Supervised(
            metadata, create_input(metadata, input), create_target(metadata, target)
        )
    options = parts.get("input_options", {})
    input_metadata = _input_metadata(info, input, options)
    options = {**options, **parts.get("target_options", {})}
    name = _choose("targets", target, info.fields)
    accepted = _accepted("targets", name, options)
    target_metadata = registry.call("targets", name, accepted, info).metadata
    if common := input_metadata.keys() & target_metadata.keys():
        raise UsageError(f"input and target both have the metadata {common.pop()!r}")
    metadata = {**input_metadata, "target": str(name), **target_metadata}
    return Supervised(
        metadata, create_input(metadata, input), create_target(metadata, target)
    )


@register
def image_classification(
    info: Info | Metadata,
    *,
    image_size: tuple[int, int] | None = None,
    raw: bool = False,
) -> Task:
    """One label per image: the input `image` and the target `classes`.

    Args:
        info: The source's description, or the metadata of a run.
        image_size: Height and width to resize images to; None: the size they all have.
        raw: Give the model pixels as they are. Otherwise whole numbers are scaled to
            [0, 1]; floats are never scaled.

    Raises:
        UsageError: A field is missing or has another type, or `image_size` is None
            although images differ in size.
    """
    options: dict[str, Any] = {"raw": raw}
    if image_size is not None:
        options["image_size"] = image_size
    parts = {"input": "image", "input_options": options, "target": "classes"}
    return supervised(info, parts)


@register
def regression(info: Info | Metadata, *, raw: bool = False) -> Task:
    """Numbers from numbers: the input `features` and the target `number`, not scaled.

    Args:
        info: The source's description, or the metadata of a run.
        raw: Give the model features as they are, instead of with mean 0 and deviation
            1.

    Raises:
        UsageError: A field is missing or has another type or shape.
    """
    options = {"raw": raw}
    parts = {
        "input": "features",
        "input_options": options,
        "target": "number",
        "target_options": {"scaled": False},
    }
    return supervised(info, parts)


# How a source interprets x and y for these tasks.
image_classification.kinds = ("image", "classes")  # type: ignore[attr-defined]
regression.kinds = ("features", "number")  # type: ignore[attr-defined]


def _input_metadata(
    info: Info, name: str | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The metadata of the input for a source; of each part if there are several."""
    parts: dict[str, dict[str, tf.TensorSpec]] = {}
    for field, spec in info.fields.items():
        part, separator, kind = field.rpartition("/")
        if separator:
            parts.setdefault(part, {})[kind] = spec
    if not parts and info.columns and info.input_name:
        fields = {f: s for f, s in info.fields.items() if f not in _ROW_FIELDS}
        part_info = dataclasses.replace(info, fields=fields, columns=None)
        metadata = _metadata_of_part(part_info, name, options)
        raw = bool(options.get("raw"))
        columns = registry.call("inputs", "table", {"raw": raw}, info).metadata
        metadata = {**metadata, **columns, "input_name": info.input_name}
        create_input(metadata, name).signatures()  # raises UsageError for equal names
        return metadata
    if not parts:
        return _metadata_of_part(info, name, options)
    inputs = {}
    for part, fields in parts.items():
        part_info = dataclasses.replace(info, fields=fields, feature_names=None)
        inputs[part] = _metadata_of_part(part_info, name, options)
    return {"inputs": inputs, "raw": bool(options.get("raw"))}


def _metadata_of_part(
    info: Info, name: str | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    name = _choose("inputs", name, info.fields)
    accepted = _accepted("inputs", name, options)
    if "image_size" in options and "image_size" not in accepted:
        raise UsageError(f"--data.image-size: the input {name} has no size; remove it")
    metadata = registry.call("inputs", name, accepted, info).metadata
    return {"input": str(name), **metadata}


def _choose(kind: str, name: str | None, fields: Mapping[str, tf.TensorSpec]) -> str:
    """The name of the input or target that these fields suit, unless it is given."""
    if name is not None:
        return name
    noun = registry.REGISTRIES[kind][1]
    fields_by_name = {}
    for candidate in registry.names(kind):
        default = registry.find(kind, candidate).options["field"].default
        fields_by_name[candidate] = ast.literal_eval(default or "None")
    matches = [key for key, field in fields_by_name.items() if field in fields]
    if len(matches) == 1:
        return matches[0]
    listing = ", ".join(field for field in fields if field != "id")
    if not matches:
        choices = ", ".join(f"{field} ({key})" for key, field in fields_by_name.items())
        raise UsageError(
            f"the source has the fields {listing or 'id'}, of which none is a known"
            f" {noun}: {choices}; set --task.{noun} and --task.{noun}-options"
            " field=NAME"
        )
    names = " or ".join(matches)
    raise UsageError(
        f"the source has the fields {listing}, of which several could be the {noun};"
        f" set --task.{noun} {names}"
    )


def _accepted(kind: str, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that the input or target has."""
    function_options = registry.find(kind, name).options
    return {key: value for key, value in options.items() if key in function_options}
