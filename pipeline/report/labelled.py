"""Answers of a run or of an exported model to labelled data."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.config import data_path, objects, registry
from pipeline.config.sections import Train
from pipeline.contracts import Example, Source, Task
from pipeline.data import batching, split_names
from pipeline.data.example_store import OnTheFly, decoded_specs
from pipeline.data.splits import Split
from pipeline.evaluation import evaluate
from pipeline.report.results import Evaluation
from pipeline.serving import version_manifest
from pipeline.utils.errors import UsageError, suggest

Examples = tuple[Mapping[str, Split], Callable[[int], str]]
"""Decoded examples of each split; the name of an example by its id."""


def splits(data: Any, task: Task) -> Examples:
    """The examples of data for a task: anything that `fit` takes as `data`, or a path.

    Classes are matched by name. Raises UsageError if a class is unknown to the model, or if the
    data is of another kind.
    """
    names: Any = task.metadata.get("class_names")
    if isinstance(data, str | Path):
        found = data_path.source(Path(data), names or ())
        name = found.pop("name")
        if names and name == "arrays":
            found["class_names"] = tuple(names)
        source = registry.call("sources", name, found)
    else:
        options = {"class_names": getattr(data, "class_names", None) or names} if names else {}
        source = registry.call("sources", objects.name_of(data, "sources"), options)
    own = list(source.info.class_names or ()) if names else []
    wanted, image = task.metadata.get("image_dtype", "uint8"), source.info.fields.get("image")
    cast = image and (image.dtype.name, wanted) == ("float32", "uint8") and _are_pixels(source)
    for name in own:
        if name not in names:
            hint = suggest(name, names)
            raise UsageError(f"the data has a class {name!r}, unknown to the model; {hint}")
    numbers = np.array([names.index(name) for name in own])

    def decode(example: Example) -> Example:
        found = {"label": tf.gather(numbers, example["label"])} if own else {}
        if cast:
            found["image"] = tf.cast(example["image"], tf.uint8)
        return task.decode({**example, **found})

    matched: Any = SimpleNamespace(decode=decode)
    try:
        specs = decoded_specs(source, matched)
    except (LookupError, ValueError):
        taken = ", ".join(f"{x.name} {x.shape[1:]}" for x in tf.nest.flatten(task.inputs()))
        fields = [f"{n} {s.shape}".removesuffix(" ()") for n, s in source.info.fields.items()]
        has = ", ".join(sorted(field for field in fields if field != "id"))
        message = f"the data does not fit the model, which takes {taken}; the data has {has}"
        raise UsageError(message) from None
    if "image" in specs and specs["image"].dtype.name != wanted:
        given = f"the images are {specs['image'].dtype.name}; the model takes {wanted}"
        raise UsageError(f"{given}; scale, round and convert them, or give the path of their files")
    found = {}
    for split in source.info.splits:
        name = split if len(source.info.splits) > 1 else "data"
        columns = {name: v for name, v in source.columns(split).items() if name in specs}
        if own:
            labels = columns["label"]
            for at in np.flatnonzero((labels < 0) | (labels >= len(own))):
                where = source.location(int(columns["id"][at]))
                raise UsageError(
                    f"the label of {where} must be from 0 to {len(own) - 1}; got {labels[at]}"
                )
            columns["label"] = numbers[labels]
        task.check(columns, name, source.location)
        store = OnTheFly(source, matched, split, specs, columns)
        found[name] = Split(store, np.arange(len(columns["id"])))
    return found, source.location


def _are_pixels(source: Source) -> bool:
    """Whether images are whole numbers from 0 to 255; only 0 and 1 are probably scaled."""
    batches = (batch for split in source.info.splits for batch in source.examples(split).batch(256))
    images = (batch["image"].numpy() for batch in batches)
    highest = [x.max() if (x == x.clip(0, 255).round()).all() else np.nan for x in images]
    return bool(np.max(highest) > 1)


def evaluated(
    model: Any, task: Task, found: Examples, split: str | None, options: Train
) -> Evaluation:
    """The answers of a network to a split; `options` are those of its training."""
    splits, locate = found
    name = split or split_names.judged(splits) or "data"
    if name not in splits:
        raise UsageError(f"the data has no split {name!r}; {suggest(name, splits)}")
    answers = evaluate.answers(model, task, batching.evaluation(splits[name], options))
    metrics = evaluate.measured(model, task, answers)
    return Evaluation(name, task, metrics, answers, splits[name], locate)


def evaluated_export(version: Path, data: Any, split: str | None) -> Evaluation:
    """The answers of an exported version to a split of labelled data."""
    about = version_manifest.about(version)
    if "metadata" not in about:
        raise UsageError(f"{version} does not describe its task; evaluate its run")
    task = registry.call("tasks", about["task"], {}, about["metadata"])
    vars(task)["prepare"] = lambda batch: batch  # as the version does
    loaded = tf.saved_model.load(str(version))  # its variables live as long as this
    served = loaded.signatures["serving_default"]

    def network(inputs: tf.Tensor, training: bool) -> tf.Tensor:
        (name,) = served.structured_input_signature[1]
        answer = served(**{name: inputs})
        if "prediction" in answer:
            return answer["prediction"][:, None]
        # Logits up to a constant, on which neither the loss nor the calibration depends.
        logits = tf.math.log(tf.maximum(answer["probabilities"], 1e-38))
        return logits * getattr(task, "temperature", 1.0)

    vars(network)["step"] = None  # as of a model that is not trained
    return evaluated(network, task, splits(data, task), split, Train())
