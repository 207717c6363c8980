"""Writes a SavedModel with all files of a version, verifies it, and publishes it."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pipeline.config.config import Config
from pipeline.contracts import Example, ServingInput, Task
from pipeline.data import batching, split_names
from pipeline.data.splits import Split
from pipeline.evaluation import evaluate
from pipeline.export import (
    formats,
    proof,
    request_checks,
    run_result,
    text_files,
    warmup,
)
from pipeline.export.verification import Check, Verification, begin, start, verify
from pipeline.layers.nested import all_layers
from pipeline.runtime import environment, run_directory
from pipeline.serving import repository, request_guards, version_manifest
from pipeline.training.model_builder import copy_network
from pipeline.training.train_step import SteppedModel
from pipeline.utils import files, temp_files
from pipeline.utils.errors import UsageError, reason

# Limits of the golden examples: their number, and the bytes of their decoded columns.
_GOLDEN_EXAMPLES = 64
_GOLDEN_BYTES = 4_000_000
# Largest difference of float32 predictions of the trained network and its copy, as a
# part of the largest prediction; rounding causes about 1e-6.
_COPY = 0.01

Endpoints = Mapping[str, tuple[Any, list[tf.TensorSpec]]]
"""Signature -> (function, specs of its arguments)."""


def export(
    model: SteppedModel,
    task: Task,
    config: Config,
    examples: Split,
    *,
    metrics: Mapping[str, Mapping[str, Any]],
    trained: Mapping[str, Any],
    digest: str | None = None,
) -> Verification:
    """Writes, verifies and publishes the next version of a model.

    The version becomes visible only if it passes its verification and is not worse than
    the served version by more than `--export.tolerance`. Returns the checks, and the
    directory of the version, which stays hidden if a check failed. If the export cannot
    be written, for example to a full disk, the only check is a failed one.

    Args:
        model: The trained network, in any precision.
        task: Its task, from `evaluate.apply_calibration` if predictions are calibrated.
        config: The options of the run.
        examples: Examples that the network was not trained on; the first ones are
            stored with their predictions.
        metrics: Split -> metrics of `Task.evaluate`, for model card and manifest.
        trained: How the model was trained, for model card and manifest.
        digest: Digest of the config of the run whose `model.keras`, in float32, is
            exported; None if the model was trained or restored by this process.
    """
    parent = run_directory.export_directory(config)
    directory = None
    try:
        directory = temp_files.folder(parent)
        with start(directory) as process:  # it loads its libraries meanwhile
            saved = functools.partial(begin, process)
            try:
                manifest = write(
                    directory,
                    model,
                    task,
                    config,
                    examples,
                    saved,
                    metrics=metrics,
                    trained=trained,
                    digest=digest,
                )
                outcome = verify(directory, process=process)
            finally:
                process.kill()  # after an error, it may still be sending requests
        outcome = _without_failed_formats(outcome, manifest)
        if not outcome.passed:
            return outcome
        ready = functools.partial(
            text_files.write,
            parent,
            manifest["signatures"],
            manifest["options"]["batch_sizes"],
            task.target.prediction_notes(),
        )
        metric = task.target.selection_metric
        published = repository.publish(directory, parent, config.export, metric, ready)
    except BaseException as error:
        if directory:
            temp_files.remove(directory)
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            why = f"{parent} cannot be written: {error.strerror or error}"
        elif isinstance(error, UsageError):
            why = str(error)
        else:
            raise
        return Verification(parent, (Check(run_result.NOT_EXPORTED, False, why),))
    checks = outcome.checks
    if published.quality is not None:
        checks = (*checks, Check("quality", not published.refused, published.quality))
    return Verification(published.directory, checks, outcome.left_out)


def _without_failed_formats(
    outcome: Verification, manifest: dict[str, Any]
) -> Verification:
    """Deletes files in other formats whose predictions differ, and their checks."""
    failed = outcome.failed_formats
    left_out = {**manifest["left_out"], **failed}
    for file in failed:
        (outcome.directory / file).unlink()
    if failed:
        manifest["left_out"] = left_out
        version_manifest.write(outcome.directory, manifest)
    names = [formats.check_name(file) for file in failed]
    checks = (check for check in outcome.checks if check.name not in names)
    return Verification(outcome.directory, tuple(checks), left_out)


def write(
    directory: Path,
    model: SteppedModel,
    task: Task,
    config: Config,
    examples: Split,
    saved: Callable[[], None] = lambda: None,
    *,
    metrics: Mapping[str, Mapping[str, Any]],
    trained: Mapping[str, Any],
    digest: str | None = None,
) -> dict[str, Any]:
    """Writes all files of a version to an empty directory; arguments as for `export`.

    Calls `saved` after the SavedModel and the warm-up requests are written; returns the
    manifest without digests.
    """
    precision = config.export.precision
    # The weights are float32 in every precision.
    policy = precision if precision == "float32" else f"mixed_{precision}"
    exported = model if digest else copy_network(model, task, config.model, policy)
    endpoints = _save(directory, exported, task)
    requests = make_requests(task, golden_examples(examples))
    name = run_directory.export_directory(config).name
    warmup.write(directory / warmup.FILE, name, requests, config.export.batch_sizes)
    saved()
    left_out: dict[str, str] = {}
    if config.export.formats:
        plain = (
            exported
            if policy == "float32"
            else copy_network(exported, task, config.model)
        )
        left_out = formats.write(directory, config.export.formats, plain, task)
    golden = {}
    for signature, inputs in requests.items():
        outputs = _predictions(endpoints[signature], inputs)
        golden[signature] = {"inputs": inputs, "outputs": outputs}
    proof.write_golden(directory / proof.GOLDEN, golden)
    test_split = split_names.evaluation_split(metrics)
    if test_split and exported.dtype_policy.name != model.dtype_policy.name:
        # The exported network is evaluated, because 16 bits may cost more than a digit.
        batches = batching.evaluation(examples, config.train)
        evaluation = evaluate.evaluate(exported, task, batches)
        metrics = {**metrics, test_split: evaluation.metrics}
    manifest = {
        "name": name,
        "recipe": config.recipe,
        "config_digest": digest or config.digest(),
        "task": config.task.name,
        "source_fingerprint": _fingerprint(examples),
        "source_options": _plain(config.source.options),
        "metadata": dict(task.metadata),
        "versions": environment.versions(),
        "parameters": model.count_params(),
        "precision": precision,
        "trained_precision": model.dtype_policy.name,
        "temperature": task.metadata.get("temperature"),
        "class_names": task.metadata.get("class_names"),
        "feature_names": task.metadata.get("feature_names"),
        "signatures": _describe_signatures(task, endpoints),
        "options": run_result.options(config.export),
        "left_out": left_out,  # files in other formats, and why
        "trained": dict(trained),
        "evaluated_split": test_split or None,
        "metrics": text_files.numbers(metrics.get(test_split, {})),
        "compared": len(next(iter(requests["serving_default"].values()))),
        "difference": difference(model, exported, task, golden["serving_default"]),
    }
    card = text_files.model_card(config, manifest, metrics, task)
    files.write_text(directory / text_files.MODEL_CARD, card)
    version_manifest.write(directory, manifest)
    return manifest


def _save(directory: Path, exported: SteppedModel, task: Task) -> Endpoints:
    """Writes the SavedModel of a network; equal programs and weights give equal files.

    `keras.export.ExportArchive` (Keras 3.15.1) lists the variables in the order of a
    set, which depends on their addresses and differs from process to process.
    """
    # One graph of the network, shared by all signatures.
    network = tf.function(
        lambda x, training: exported(x, training=training), autograph=False
    )
    endpoints = {}
    functions = {}
    variables = {}
    handles: dict[int, None] = {}  # ordered, without duplicates
    for serving_input in task.input.signatures():
        name = serving_input.name
        specs = list(serving_input.specs.values())
        function = serving_function(task, network, serving_input)
        traced = tf.function(_reject_nan(function), specs, autograph=False)
        endpoints[name] = traced, specs
        functions[name] = traced.get_concrete_function(*specs)
        variables.update({id(v.handle): v for v in functions[name].variables})
        handles |= dict.fromkeys(map(id, functions[name].captured_inputs))
    module = tf.Module()
    module.weights = [variables[key] for key in handles if key in variables]
    module.tables = _lookup_tables(exported)
    try:
        tf.saved_model.save(module, str(directory), signatures=functions)
    except tf.errors.OpError as error:  # for example a full disk
        raise UsageError(
            f"{directory.parent} cannot be written: {reason(error)}"
        ) from None
    return endpoints


def _plain(options: Mapping[str, Any]) -> dict[str, str]:
    """The options of a source that are words, such as the names of columns."""
    words = options.items()
    return {key: value for key, value in words if isinstance(value, str)}


def _fingerprint(examples: Split) -> str | None:
    """The fingerprint of the source of examples; None if it is not available."""
    raw = examples.raw_split
    return None if raw is None else raw.source.fingerprint()


def _lookup_tables(model: keras.Model) -> list[Any]:
    """The tables of layers such as `keras.layers.IntegerLookup`, in their order."""
    tables = []
    for layer in all_layers(model):
        table = getattr(layer, "lookup_table", None)
        if table is not None:
            tables.append(table)
    return tables


def serving_function(
    task: Task, model: Callable[..., Any], serving_input: ServingInput
) -> Callable[..., Example]:
    """The function of a signature: from arguments of a request to predictions."""

    def function(*arguments: tf.Tensor) -> Example:
        return task.serve(model, serving_input.read(*arguments))

    return function


def make_requests(
    task: Task, examples: Mapping[str, np.ndarray]
) -> dict[str, dict[str, Any]]:
    """Signature -> its arguments by name, for decoded examples."""
    requests = {}
    for serving_input in task.input.signatures():
        requests[serving_input.name] = serving_input.request(examples)
    return requests


def _reject_nan(function: Callable[..., dict]) -> Callable[..., dict]:
    """Makes a function reject a request if a number in its prediction is not finite."""

    def predictions(*arguments: tf.Tensor) -> dict[str, tf.Tensor]:
        prediction = {}
        for name, value in function(*arguments).items():
            prediction[name] = tf.convert_to_tensor(value)
            if prediction[name].dtype.is_floating:
                prediction[name] = request_guards.finite(prediction[name], name)
        return prediction

    return predictions


def golden_examples(examples: Split) -> dict[str, np.ndarray]:
    """Returns the columns of the first examples."""
    size = sum(column[:1].nbytes for column in examples.take(np.arange(1)).values())
    count = min(len(examples), _GOLDEN_EXAMPLES, max(3, _GOLDEN_BYTES // size))
    return examples.take(np.arange(count))


def difference(
    model: SteppedModel,
    exported: SteppedModel,
    task: Task,
    golden: Mapping[str, Mapping[str, Any]],
) -> dict[str, float]:
    """Compares the stored predictions with the trained model.

    Returns the largest difference for each output; of pixels, the mean difference; for
    other integers and strings, the number of predictions that differ. Raises UsageError
    if both networks compute in float32 and the exported network is not a copy of the
    trained network.
    """
    default = task.input.signatures()[0]
    function = serving_function(task, model, default)
    specs = list(default.specs.values())
    trained = _predictions(
        (tf.function(function, specs, autograph=False), specs), golden["inputs"]
    )
    differences: dict[str, float] = {}
    are_float32 = exported.dtype_policy.name == model.dtype_policy.name == "float32"
    for name, stored in golden["outputs"].items():
        if request_checks.are_pixels(stored):
            pixels = stored.astype(np.float64)
            largest = float(np.abs(pixels - trained[name]).mean())
        elif stored.dtype.kind == "f":
            largest = float(np.abs(stored - trained[name]).max())
        else:
            differences[name] = int((stored != trained[name]).sum())
            continue
        is_copy = largest <= _COPY * np.abs(stored).max()  # False if NaN
        if are_float32 and not is_copy:
            raise UsageError(
                f"the copy of the network to export is not the trained one: {name}"
                f" differs by {largest:.2g}; a layer has values that are not weights"
                " nor in its config"
            )
        differences[name] = largest
    return differences


@contextlib.contextmanager
def _on_cpu() -> Iterator[None]:
    """Computes on the CPU in full float32, as the process of the checks does.

    GPUs since Ampere multiply float32 with 10 bits of precision (TF32): on an H200,
    probabilities of `digits` differed by 6e-4.
    """
    was_enabled = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        with tf.device("/CPU:0"):
            yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(was_enabled)


def _predictions(
    endpoint: tuple[Any, list[tf.TensorSpec]], inputs: Mapping[str, Any]
) -> dict:
    function, specs = endpoint
    # Not `function` itself: after five exports in a process, TensorFlow would warn of
    # retracing.
    traced = function.get_concrete_function(*specs)
    arguments = [tf.constant(inputs[spec.name], spec.dtype) for spec in specs]
    try:
        with _on_cpu():
            outputs = traced(*arguments)
    except tf.errors.InvalidArgumentError as error:
        raise UsageError(
            f"the model does not answer its own examples: {reason(error)}"
        ) from None
    return {name: value.numpy() for name, value in outputs.items()}


def _describe_signatures(task: Task, endpoints: Endpoints) -> dict[str, dict[str, Any]]:
    """Signature -> its inputs and outputs, and what files and arguments mean."""
    signatures = {}
    for serving_input in task.input.signatures():
        signatures[serving_input.name] = {
            **_describe(*endpoints[serving_input.name]),
            "files": list(serving_input.files),
            "meaning": serving_input.meaning,
            "defaults": dict(serving_input.defaults),
            "example": dict(serving_input.example),
            "optional": list(serving_input.optional),
            "counts_up": list(serving_input.counts_up),
            "names": {key: list(words) for key, words in serving_input.names.items()},
        }
    return signatures


def _describe(function: Any, specs: list[tf.TensorSpec]) -> dict[str, dict[str, Any]]:
    """Returns dtype and shape of each input and output; None for any length."""
    outputs = function.get_concrete_function(*specs).structured_outputs
    return {
        "inputs": {spec.name: _dtype_and_shape(spec) for spec in specs},
        "outputs": {name: _dtype_and_shape(spec) for name, spec in outputs.items()},
    }


def _dtype_and_shape(spec: tf.TensorSpec) -> dict[str, Any]:
    return {"dtype": spec.dtype.name, "shape": spec.shape.as_list()}
