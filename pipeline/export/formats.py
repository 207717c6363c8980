"""Exports the network in other formats beside the SavedModel: Keras, LiteRT, ONNX.

`python -m pipeline.export.formats DIRECTORY` compares their predictions with the stored
ones, and prints the lines that `proof` documents.
"""

import io
import json
import logging
import sys
import warnings
import zipfile
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.export import proof, request_checks
from pipeline.serving import version_manifest
from pipeline.serving.signatures import strings
from pipeline.utils import files, progress_bar, temp_files
from pipeline.utils.console import say
from pipeline.utils.errors import UsageError, reason

if TYPE_CHECKING:  # `verify` knows the names of the files without TensorFlow
    import keras

    from pipeline.config.config import Config
    from pipeline.contracts import Task
    from pipeline.data.splits import Split
    from pipeline.training.train_step import SteppedModel

FILES = {"keras": "model.keras", "litert": "model.tflite", "onnx": "model.onnx"}
Predictions = Callable[..., Mapping[str, np.ndarray]]
"""Takes the inputs of `serving_default` by name; returns its outputs by name."""


def try_out(config: "Config", task: "Task", examples: "Split") -> None:
    """Exports the untrained network in every format, which takes seconds.

    Prints which files cannot be compared with the SavedModel. Raises UsageError, before
    training, for a format into which the network cannot be converted.
    """
    from pipeline.training import model_builder

    formats = config.export.formats
    progress_bar.stage("trying", ", ".join(FILES[name] for name in formats))
    from_logits = model_builder.takes_logits(task, config.train)
    network = model_builder.network(task, config.model, "float32", from_logits)
    inputs = task.input.signatures()[0].request(examples.take(np.arange(1)))
    for name, values in inputs.items():
        if isinstance(values, list):
            inputs[name] = strings(values)
    with temp_files.temporary() as folder:
        failed = write(folder, formats, network, task)
        for file in list_files(folder):
            try:
                predictions = _LOADERS[file](folder / file)
                # The inputs of the Keras file may be the prepared ones.
                if file != FILES["keras"]:
                    predictions(**inputs)
            except ImportError as error:
                say("note", f"{file} will not be compared: {reason(error)}")
            except Exception as error:  # interpreters raise many types
                failed[file] = reason(error)
    for name in formats:
        if why := failed.get(FILES[name]):
            raise UsageError(
                f"--export.formats {name}: {FILES[name]} cannot be made of this model: "
                f"{why}; remove {name}, or change the model"
            )


def write(
    directory: Path, formats: Collection[str], network: "SteppedModel", task: "Task"
) -> dict[str, str]:
    """Writes a network in these formats into the directory of a version.

    Each file answers like `serving_default`, without the labels. The network is in
    float32; the predictions are calibrated if the task is. Returns the files into which
    the network cannot be converted, and why.
    """
    import tensorflow as tf

    failed: dict[str, str] = {}
    default = task.input.signatures()[0]
    specs = list(default.specs.values())

    def numbers(*arguments: Any) -> dict[str, Any]:
        predictions = task.serve(network, default.read(*arguments)).items()
        return {name: value for name, value in predictions if value.dtype != tf.string}

    traced = tf.function(numbers, input_signature=specs, autograph=False)
    for name in sorted(set(formats)):
        path = directory / FILES[name]
        try:
            if name == "keras":
                write_keras(path, network.to_keras_model(is_nested=True), task.metadata)
            elif name == "litert":
                path.write_bytes(_litert_model(traced))
            else:
                path.write_bytes(_onnx_model(traced, specs))
        except OSError:
            raise
        except Exception as error:  # converters raise many types
            failed[path.name] = reason(error)
    return failed


def _litert_model(traced: Any) -> bytes:
    import tensorflow as tf

    concrete = traced.get_concrete_function()
    module = tf.Module()
    module.function = traced
    module.weights = list(concrete.variables)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], module)
    # The weights become constants.
    converter.experimental_enable_resource_variables = False
    return converter.convert()


def _onnx_model(traced: Any, specs: list[Any]) -> bytes:
    import onnx
    import tf2onnx

    def erfc(graph: Any, node: Any, name: str, arguments: Any) -> None:
        """Converts an operation of GELU that ONNX lacks: erfc(x) = 1 - erf(x)."""
        types = {"shapes": node.output_shapes, "dtypes": node.output_dtypes}
        graph.remove_node(node.name)
        unit = graph.make_const(f"{name}/one", np.array(1, np.float32)).output[0]
        erf = graph.make_node("Erf", node.input).output[0]
        graph.make_node("Sub", [unit, erf], outputs=node.output, name=name, **types)

    logging.getLogger("tf2onnx").setLevel(logging.CRITICAL)
    handlers: Any = {"Erfc": (erfc, [])}
    model, _ = tf2onnx.convert.from_function(traced, specs, custom_op_handlers=handlers)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def write_keras(path: Path, model: "keras.Model", metadata: Mapping[str, Any]) -> None:
    """Saves a model that Keras loads without this package.

    The metadata of the task is stored as `task` in the metadata of the file.
    """
    contents = io.BytesIO()
    with temp_files.temporary() as folder:
        model.save(folder / path.name)
        with (
            zipfile.ZipFile(folder / path.name) as saved,
            zipfile.ZipFile(contents, "w") as copy,
        ):
            for name in saved.namelist():
                content = saved.read(name)
                if name == "metadata.json":
                    fields = {**json.loads(content), "task": dict(metadata)}
                    content = json.dumps(fields).encode()
                copy.writestr(name, content)
    files.write_bytes(path, contents.getvalue())


def list_files(directory: Path) -> list[str]:
    """Returns the files of a version in other formats."""
    return [file for file in FILES.values() if (directory / file).is_file()]


def check_name(file: str) -> str:
    """Returns the name of the check of a file."""
    return f"predictions {file}"


def check(directory: Path, file: str) -> str:
    """Compares the predictions of a file with the stored ones.

    Raises Failure if they differ by more than the tolerance for the SavedModel.
    """
    golden = proof.read_golden(directory / proof.GOLDEN)["serving_default"]
    outputs = {}
    for name, values in golden["outputs"].items():
        if values.dtype != object:
            outputs[name] = values
    try:
        predictions = _LOADERS[file](directory / file)
    except ImportError as error:
        return f"not compared: {reason(error)}"
    if file == FILES["keras"]:
        name = "probabilities" if "probabilities" in outputs else "prediction"
        if name not in outputs:
            return "not compared: it returns outputs of the network, not predictions"
        outputs = {name: outputs[name]}
        predictions = _name_output(predictions, name, outputs[name])
    precision = str(version_manifest.read(directory).get("precision"))
    sides = {"inputs": golden["inputs"], "outputs": outputs}
    session: Any = SimpleNamespace(run=lambda signature, inputs: predictions(**inputs))
    # In 16 bits, the SavedModel rounds after each layer: `digits` differed by 1.1
    # tolerances.
    tolerances = 1 if precision == "float32" else 4
    return request_checks.check_predictions(
        session, "serving_default", sides, precision=precision, tolerances=tolerances
    )


def _keras(path: Path) -> Predictions:
    import keras

    try:
        model = keras.models.load_model(path, compile=False)
    except TypeError:
        raise ImportError(
            "it needs the definition of layers that are not Keras's own"
        ) from None
    except ValueError as error:
        if "safe_mode" not in str(error):
            raise
        raise ImportError(
            "Keras loads its Python lambdas only with safe_mode=False"
        ) from None

    def predict(**inputs: np.ndarray) -> dict[str, np.ndarray]:
        values = inputs if len(inputs) > 1 else next(iter(inputs.values()))
        return {"": np.asarray(model(values, training=False))}

    return predict


def _name_output(
    predictions: Predictions, name: str, stored: np.ndarray
) -> Predictions:
    """Gives the only output of a Keras model the name and shape of the stored one."""

    def reshape(**inputs: np.ndarray) -> dict[str, np.ndarray]:
        (values,) = predictions(**inputs).values()
        return {name: values.reshape(-1, *stored.shape[1:])}

    return reshape


def _litert(path: Path) -> Predictions:
    import tensorflow as tf

    # TensorFlow warns that a later release has no interpreter.
    with warnings.catch_warnings(action="ignore"):
        return tf.lite.Interpreter(str(path)).get_signature_runner()


def _onnx(path: Path) -> Predictions:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda **inputs: dict(zip(names, session.run(names, inputs), strict=True))


_LOADERS: dict[str, Callable[[Path], Predictions]]
_LOADERS = {FILES["keras"]: _keras, FILES["litert"]: _litert, FILES["onnx"]: _onnx}

if __name__ == "__main__":
    version = Path(sys.argv[1])
    proof.main(
        (check_name(file), partial(check, version, file))
        for file in list_files(version)
    )
