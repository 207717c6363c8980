"""The hand-off: a float32 SavedModel with named signatures, verified, then published."""

import importlib

from pipeline.errors import run_command

if __name__ == "__main__":  # the command, which stands above this stage and before TensorFlow
    run_command(importlib.import_module("pipeline.export_command").main)

import keras
import numpy as np
import tensorflow as tf

from pipeline import proof, publish, run_directory, scratch
from pipeline.build import SteppedModel, float32_twin
from pipeline.config import Config
from pipeline.contracts import Task
from pipeline.splits import Split
from pipeline.verify import Check, Verification, verify

# Golden examples: at most so many, and at most so many bytes of decoded columns.
_GOLDEN_EXAMPLES = 64
_GOLDEN_BYTES = 4_000_000


def export(model: SteppedModel, task: Task, config: Config, examples: Split) -> Verification:
    """Writes the next version of the model; it becomes visible only if its verification passes, and
    if it is not worse than the version that is served by more than `--export.tolerance`.

    Args:
        model: Trained, in any precision.
        task: Gives the signatures.
        config: Sections model and export, and the recipe's name.
        examples: Real examples the model was not trained on; some are stored with their answers.

    Returns:
        What was verified, and where the version lies. If a check failed, the folder keeps its
        hidden name, which no server reads; so does one that is worse, with a check that says so.
    """
    parent = run_directory.export_directory(config)
    twin = float32_twin(model, task, config.model)
    endpoints = task.serve(twin)
    folder = scratch.folder(parent)
    try:
        # No `archive.track(twin)`: endpoints bring their variables along, and tracking would write
        # every weight a second time (Keras 3.15.1).
        archive = keras.export.ExportArchive()
        for name, (function, specs) in endpoints.items():
            archive.add_endpoint(name, function, input_signature=specs)
        archive.write_out(str(folder), verbose=False)
        proof.write_golden(folder / proof.GOLDEN, golden(task, endpoints, examples))
        outcome = verify(folder)
        if not outcome.passed:
            return outcome
        published = publish.publish(folder, parent, config.export, task.compared_by)
    except BaseException:
        scratch.remove(folder)
        raise
    for note in published.notes:
        print(note, flush=True)
    checks = outcome.checks
    if published.quality is not None:
        checks = (*checks, Check("quality", not published.refused, published.quality))
    return Verification(published.directory, checks)


def golden(task: Task, endpoints: dict, examples: Split) -> dict[str, dict[str, dict]]:
    """Signature -> {inputs, outputs} for the first examples, answered by the model in Python."""
    each = sum(column[:1].nbytes for column in examples.take(np.arange(1)).values())
    count = min(len(examples), _GOLDEN_EXAMPLES, max(3, _GOLDEN_BYTES // each))
    requests = task.requests(examples.take(np.arange(count)))
    golden = {}
    for name, inputs in requests.items():
        function, specs = endpoints[name]
        outputs = function(*(tf.constant(inputs[spec.name]) for spec in specs))
        golden[name] = {
            "inputs": inputs,
            "outputs": {key: value.numpy() for key, value in outputs.items()},
        }
    return golden
