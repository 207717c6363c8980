"""The network of a version in other file formats beside its SavedModel: Keras, LiteRT, ONNX.

`python -m pipeline.export.formats DIRECTORY` compares their answers with the golden answers, and
prints the lines that `proof` documents.
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
from pipeline.utils import files, temp_files
from pipeline.utils.errors import UsageError, reason

if TYPE_CHECKING:  # `verify` knows the names of the files without TensorFlow
    import keras

    from pipeline.contracts import Task
    from pipeline.training.train_step import SteppedModel

FILES = {"keras": "model.keras", "litert": "model.tflite", "onnx": "model.onnx"}
Answers = Callable[..., Mapping[str, np.ndarray]]
"""Takes the inputs of `serving_default` by name; returns name -> values of the answers."""


def write(directory: Path, formats: Collection[str], network: "SteppedModel", task: "Task") -> None:
    """Writes the files of these formats; each answers as `serving_default`, without the labels.

    The directory is that of a version. The network is in float32, the task calibrated if the
    answers are to be. Raises UsageError if the network cannot be converted.
    """
    import tensorflow as tf

    from pipeline.models._fused_batch_norm import with_stock_layers

    function, specs = task.serve(network)["serving_default"]

    def numbers(*arguments: Any) -> dict[str, Any]:
        return {k: v for k, v in function(*arguments).items() if v.dtype != tf.string}

    traced = tf.function(numbers, input_signature=specs, autograph=False)
    for name in sorted(set(formats)):
        path = directory / FILES[name]
        try:
            if name == "keras":
                plain = with_stock_layers(task.standalone(network, "none"))
                write_keras(path, plain, task.metadata)
            elif name == "litert":
                path.write_bytes(_litert_model(traced))
            else:
                path.write_bytes(_onnx_model(traced, specs))
        except OSError:
            raise
        except Exception as error:  # converters raise many types
            raise UsageError(
                f"--export.formats {name}: {path.name} cannot be made: {reason(error)}"
            ) from error


def _litert_model(traced: Any) -> bytes:
    import tensorflow as tf

    concrete, module = traced.get_concrete_function(), tf.Module()
    module.function, module.weights = traced, list(concrete.variables)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], module)
    converter.experimental_enable_resource_variables = False  # the weights become constants
    return converter.convert()


def _onnx_model(traced: Any, specs: list[Any]) -> bytes:
    import onnx
    import tf2onnx

    def erfc(graph: Any, node: Any, name: str, arguments: Any) -> None:
        """GELU has this operation, which ONNX has not: 1 - erf(x)."""
        about = {"shapes": node.output_shapes, "dtypes": node.output_dtypes}
        graph.remove_node(node.name)
        one = graph.make_const(f"{name}/one", np.array(1, np.float32)).output[0]
        erf = graph.make_node("Erf", node.input).output[0]
        graph.make_node("Sub", [one, erf], outputs=node.output, name=name, **about)

    logging.getLogger("tf2onnx").setLevel(logging.CRITICAL)
    handlers: Any = {"Erfc": (erfc, [])}
    model, _ = tf2onnx.convert.from_function(traced, specs, custom_op_handlers=handlers)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def write_keras(path: Path, model: "keras.Model", metadata: Mapping[str, Any]) -> None:
    """Saves a model that Keras loads without this package; `metadata` as `task` in its metadata."""
    contents = io.BytesIO()
    with temp_files.temporary() as folder:
        model.save(folder / path.name)
        with zipfile.ZipFile(folder / path.name) as saved, zipfile.ZipFile(contents, "w") as copy:
            for name in saved.namelist():
                content = saved.read(name)
                if name == "metadata.json":
                    content = json.dumps({**json.loads(content), "task": dict(metadata)}).encode()
                copy.writestr(name, content)
    files.write_bytes(path, contents.getvalue())


def present(directory: Path) -> list[str]:
    """The names of the files that a version has in other formats."""
    return [file for file in FILES.values() if (directory / file).is_file()]


def check(directory: Path, file: str) -> str:
    """Compares the numbers that a file answers with the golden answers.

    Raises Failure if they differ by more than an answer of the SavedModel may.
    """
    golden = proof.read_golden(directory / proof.GOLDEN)["serving_default"]
    outputs = {name: v for name, v in golden["outputs"].items() if v.dtype != object}
    if file == FILES["keras"]:
        outputs = {n: v for n, v in outputs.items() if n in ("probabilities", "prediction")}
        if not outputs:
            return "not compared: it returns the outputs of the network, not the answers"
    try:
        answers = _LOADERS[file](directory / file, outputs)
    except ImportError as error:
        return f"not compared: {reason(error)}"
    precision = str(version_manifest.read(directory).get("precision"))
    sides = {"inputs": golden["inputs"], "outputs": outputs}
    session: Any = SimpleNamespace(run=lambda signature, inputs: answers(**inputs))
    # In 16 bits, the SavedModel rounds after each layer: `digits` differed by 1.1 tolerances.
    tolerances = 1 if precision == "float32" else 4
    return request_checks.check_answers(
        session, "serving_default", sides, precision=precision, tolerances=tolerances
    )


def _keras(path: Path, outputs: Mapping[str, np.ndarray]) -> Answers:
    import keras

    try:
        model = keras.models.load_model(path, compile=False)
    except TypeError:
        raise ImportError("it needs the definition of layers that are not Keras's own") from None
    ((name, stored),) = outputs.items()

    def answers(**inputs: np.ndarray) -> dict[str, np.ndarray]:
        found = np.asarray(model(*inputs.values(), training=False))
        return {name: found.reshape(-1, *stored.shape[1:])}

    return answers


def _litert(path: Path, outputs: Mapping[str, np.ndarray]) -> Answers:
    import tensorflow as tf

    with warnings.catch_warnings(action="ignore"):  # that a later TensorFlow has no interpreter
        return tf.lite.Interpreter(str(path)).get_signature_runner()


def _onnx(path: Path, outputs: Mapping[str, np.ndarray]) -> Answers:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda **inputs: dict(zip(names, session.run(names, inputs), strict=True))


_LOADERS = {FILES["keras"]: _keras, FILES["litert"]: _litert, FILES["onnx"]: _onnx}

if __name__ == "__main__":
    version = Path(sys.argv[1])
    proof.main((f"answers {file}", partial(check, version, file)) for file in present(version))
