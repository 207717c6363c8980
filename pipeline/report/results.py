"""How a model answered a split: tables on the console, pictures and a
table as files.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from pipeline.config import data_path, objects, registry
from pipeline.config.sections import Train
from pipeline.contracts import Example, Source, Task
from pipeline.data import batching, decoder_warnings, in_memory, split_names
from pipeline.data.example_store import OnTheFly, decoded_specs
from pipeline.data.splits import Split
from pipeline.evaluation import evaluate
from pipeline.report.run import Columns
from pipeline.serving import version_manifest
from pipeline.utils import console, files, tf_paths
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError, plain, reason, suggest

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True, repr=False)
class Evaluation:
    """The answers to all examples of a split, and their metrics."""

    split: str
    task: Task
    metrics: dict[str, Any]
    answers: Mapping[str, np.ndarray]
    """From `evaluate.answers`, in the order of the examples; calibrated, if the task
    is.
    """
    examples: Split
    locate: Callable[[int], str]
    """Returns the name of an example by its id."""

    @functools.cached_property
    def predictions(self) -> Columns:
        """A row for each example: its file (without the home directory), truth,
        prediction.
        """
        answers, names = (
            self.answers,
            np.array(self.task.metadata.get("class_names", ())),
        )
        left_out = ("id", "outputs")
        columns = {
            n: v for n, v in answers.items() if v.size == len(v) and n not in left_out
        }
        if {"probabilities", "class"} <= answers.keys():
            truth, sure = answers["truth"], answers["probabilities"]
            columns = {
                "truth": names[truth],
                "prediction": names[answers["class"]],
                "probability": sure.max(axis=1),
                "probability_of_truth": sure[np.arange(len(truth)), truth],
                "correct": truth == answers["class"],
            }
        found = files.collapse_home([self.locate(id) for id in answers["id"].tolist()])
        return Columns(
            file=found, **{n: v.ravel().tolist() for n, v in columns.items()}
        )

    @functools.cached_property
    def worst(self) -> tuple[np.ndarray, str]:
        """Positions of the wrong predictions, the most confident first; if none is
        plainly wrong, of all by their loss. And a sentence about them.
        """
        count = f"{len(self.answers['id']):,} {self.split} predictions".replace(
            " data ", " "
        )
        if "correct" not in self.predictions:
            return (
                np.argsort(-self.answers["loss"], kind="stable"),
                f"the worst of {count}",
            )
        wrong = np.flatnonzero(~np.array(self.predictions["correct"]))
        sure = np.array(self.predictions["probability"])[wrong]
        text = (
            f"{len(wrong):,} of {count} are wrong"
            if len(wrong)
            else f"all {count} are right"
        )
        return wrong[np.argsort(-sure, kind="stable")], text

    def mistakes(self) -> "Figure":
        """A figure of the worst answers."""
        from pipeline.report import pictures

        return pictures.mistakes(self)

    @property
    def text(self) -> str:
        """A table of the classes, the worst first, and sentences about it and the
        mistakes.
        """
        order, sentence = self.worst
        if len(order) and "correct" in self.predictions:
            worst = {
                name: values[order[0]] for name, values in self.predictions.items()
            }
            about = "{file}, {prediction} {probability:.3f} instead of {truth}".format(
                **worst
            )
            sentence += f"; the most confident: {about}"
        elif len(order):
            row = zip(self.predictions, self.predictions.rows()[order[0]], strict=True)
            sentence += f"; first {', '.join(map(' '.join, list(row)[:4]))}"
        sentence = sentence.replace("\n", "\\n")
        lines = [*notes(self.metrics, self.split), f"{'mistakes':10} {sentence}"]
        return "\n".join([class_table(self.metrics), *lines]).lstrip("\n")

    def __repr__(self) -> str:
        count, calibrated = len(self.answers["id"]), self.metrics.get("calibrated")
        text = (
            f"{self.split:10} {console.numbers(self.metrics)}  ({count:,} examples)\n"
        )
        if calibrated:
            text += f"calibrated {console.numbers(calibrated)}  (as predicted)\n"
        return text + self.text


def class_table(metrics: Mapping[str, Any], most: int = 15) -> str:
    """A row for each class that has examples, that of the lowest F1 first; empty for
    other tasks.

    The last column is the class that is predicted most often instead, and how often.
    """
    names, rows = list(metrics.get("per_class", ())), []
    for at, (name, scores) in enumerate(metrics.get("per_class", {}).items()):
        wrong = [n * (i != at) for i, n in enumerate(metrics["confusion_matrix"][at])]
        count = max(wrong)
        other = f"{names[wrong.index(count)][:30]} ({count:,})" if count else ""
        numbers = [f"{scores[key]:.3f}" for key in ("f1", "precision", "recall")]
        if scores["examples"]:
            rows += [[name[:30], f"{scores['examples']:,}", *numbers, other]]
    rows = sorted(rows, key=lambda row: row[2])
    if not rows:
        return ""
    header = [
        "class",
        "examples",
        "f1",
        "precision",
        "recall",
        "most often confused with",
    ]
    more = (
        f"\n... and {len(rows) - most:,} more, which are better"
        if len(rows) > most
        else ""
    )
    return console.table(rows[:most], header, right=range(1, 5)) + more


def notes(metrics: Mapping[str, Any], split: str) -> Iterator[str]:
    """Lines about an accuracy that says little: of one class, or of few examples."""
    sizes = {
        scores["examples"]: name
        for name, scores in metrics.get("per_class", {}).items()
    }
    if not sizes:
        return
    accuracy, count = metrics["accuracy"], metrics["examples"]
    if accuracy <= (share := max(sizes) / count) < 1:
        yield (
            f"{'note':10} no better than always predicting {sizes[max(sizes)]!r}"
            f" ({share:.3f})"
        )
    if count < 50:
        error = max(2 * math.sqrt(accuracy * (1 - accuracy) / count), 1 / count)
        few = f"only {count} {split} examples".replace(" data ", " ")
        yield f"{'note':10} {few}: the accuracy is uncertain by +-{error:.2f}"


def show(
    found: Evaluation, folder: Path, history: Mapping[str, list[float]] | None = None
) -> list[str]:
    """Prints the text; writes `predictions.csv` and pictures into a directory; returns
    their names.

    Never fails, because the model is still to be exported: a note says what cannot be
    written. Without a history, there are no curves, and the metrics are printed, too.
    """
    written = []
    with _noted("predictions.csv"):
        print(plain(repr(found) if history is None else found.text), flush=True)
        files.write_bytes(folder / "predictions.csv", found.predictions.csv())
        written.append("predictions.csv")
    with _noted("pictures"):
        from pipeline.report import pictures  # fails if matplotlib is badly configured

        for name, draw in pictures.drawings(found, history):
            with _noted(name):
                files.write_bytes(folder / name, pictures.png(draw()))
                written.append(name)
    return written


@contextlib.contextmanager
def _noted(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # such as a task of the user's own, or a full disk
        say("note", f"{what} could not be written: {reason(error)}")


Examples = tuple[Mapping[str, Split], Callable[[int], str]]
"""Decoded examples of each split; the name of an example by its id."""


def splits(data: Any, task: Task) -> Examples:
    """The examples of data for a task: anything that `fit` takes as `data`, or a path.

    Classes are matched by name. Raises UsageError if a class is unknown to the model,
    or if the data is of another kind.
    """
    names: Any = task.metadata.get("class_names")
    if isinstance(data, str | Path):
        found = data_path.source(Path(data), names or ())
        name = found.pop("name")
        if names and name == "arrays":
            found["class_names"] = tuple(names)
        source = registry.call("sources", name, found)
    else:
        name = objects.name_of(data, "sources")
        takes_names = "class_names" in registry.find("sources", name).options
        options = {}
        if names and takes_names and in_memory.find_class_names(data) is None:
            options["class_names"] = names
        source = registry.call("sources", name, options)
    own = list(source.info.class_names or ()) if names else []
    wanted, image = (
        task.metadata.get("image_dtype", "uint8"),
        source.info.fields.get("image"),
    )
    cast = (
        image
        and (image.dtype.name, wanted) == ("float32", "uint8")
        and _are_pixels(source)
    )
    for name in own:
        if name not in names:
            hint = suggest(name, names)
            raise UsageError(
                f"the data has a class {name!r}, unknown to the model; {hint}"
            )
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
        taken = ", ".join(
            f"{x.name} {x.shape[1:]}" for x in tf.nest.flatten(task.inputs())
        )
        fields = [
            f"{n} {s.shape}".removesuffix(" ()") for n, s in source.info.fields.items()
        ]
        has = ", ".join(sorted(field for field in fields if field != "id"))
        message = (
            f"the data does not fit the model, which takes {taken}; the data has {has}"
        )
        raise UsageError(message) from None
    if "image" in specs and specs["image"].dtype.name != wanted:
        given = f"the images are {specs['image'].dtype.name}; the model takes {wanted}"
        raise UsageError(
            f"{given}; scale, round and convert them, or give the path of their files"
        )
    found = {}
    for split in source.info.splits:
        name = split if len(source.info.splits) > 1 else "data"
        columns = {
            name: v for name, v in source.columns(split).items() if name in specs
        }
        if own:
            labels = columns["label"]
            for at in np.flatnonzero((labels < 0) | (labels >= len(own))):
                where = source.location(int(columns["id"][at]))
                raise UsageError(
                    f"the label of {where} must be from 0 to {len(own) - 1}; got"
                    f" {labels[at]}"
                )
            columns["label"] = numbers[labels]
        task.check(columns, name, source.location)
        store = OnTheFly(source, matched, split, specs, columns, "remove it")
        found[name] = Split(store, np.arange(len(columns["id"])))
    return found, source.location


def _are_pixels(source: Source) -> bool:
    """Whether images are whole numbers from 0 to 255; only 0 and 1 are
    probably scaled.
    """
    batches = (
        batch
        for split in source.info.splits
        for batch in source.examples(split).batch(256)
    )
    images = (batch["image"].numpy() for batch in batches)
    highest = [
        x.max() if (x == x.clip(0, 255).round()).all() else np.nan for x in images
    ]
    return bool(np.max(highest) > 1)


def evaluated(
    model: Any, task: Task, found: Examples, split: str | None, options: Train
) -> Evaluation:
    """The answers of a network to a split; `options` are those of its training."""
    splits, locate = found
    name = split or split_names.evaluation_split(splits) or "data"
    if name not in splits:
        raise UsageError(f"the data has no split {name!r}; {suggest(name, splits)}")
    store = splits[name].store
    with decoder_warnings.collect() as warned:
        answers = evaluate.answers(
            model, task, batching.evaluation(splits[name], options)
        )
    for note in warned.notes(store, locate) if isinstance(store, OnTheFly) else ():
        say(note.name, note)
    metrics = evaluate.measured(model, task, answers)
    return Evaluation(name, task, metrics, answers, splits[name], locate)


def evaluated_export(version: Path, data: Any, split: str | None) -> Evaluation:
    """The answers of an exported version to a split of labelled data."""
    about = version_manifest.about(version)
    if "metadata" not in about:
        raise UsageError(f"{version} does not describe its task; evaluate its run")
    task = registry.call("tasks", about["task"], {}, about["metadata"])
    vars(task)["prepare"] = lambda batch: batch  # as the version does
    with tf_paths.literal(version) as path:
        loaded = tf.saved_model.load(path)  # its variables live as long as this
    served = loaded.signatures["serving_default"]

    def network(inputs: tf.Tensor, training: bool) -> tf.Tensor:
        (name,) = served.structured_input_signature[1]
        answer = served(**{name: inputs})
        if "prediction" in answer:
            return answer["prediction"][:, None]
        # Logits up to a constant, on which neither the loss nor the calibration
        # depends.
        logits = tf.math.log(tf.maximum(answer["probabilities"], 1e-38))
        return logits * getattr(task, "temperature", 1.0)

    vars(network)["step"] = None  # as of a model that is not trained
    return evaluated(network, task, splits(data, task), split, Train())
