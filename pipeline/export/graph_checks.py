"""Checks the signatures and operations of a graph for TensorFlow Serving.

`operation_checks.txt` lists every operation with a CPU kernel in the wheel of
TensorFlow 2.20.0, which TensorFlow Serving 2.20.0, the newest release, is built from:
in an environment with it, these are the `op` of the kernels for `CPU` or `DEFAULT` in
`tensorflow.python.framework.kernels.get_all_registered_kernels()`.
"""

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.serving.signatures import Field, signatures
from pipeline.utils.errors import Failure

# Types that REST cannot carry: half precision, and those that no client can send.
_UNSUPPORTED = (np.dtype(np.float16), np.dtype("V"))
_FILE = Path(__file__).with_name("operation_checks.txt")
# These can end the server's process or access files outside the version: a SavedModel
# is a program (https://github.com/tensorflow/tensorflow/blob/master/SECURITY.md).
_HARMFUL = re.compile(
    r"Abort|(Read|Write)File|MatchingFiles|CreateSummary(File|Db)Writer|(Eager)?PyFunc(Stateless)?"
    r"|(WholeFile|TextLine|TFRecord|FixedLengthRecord)Reader(V2)?"
    r"|(TextLine|TFRecord|FixedLengthRecord|Sql|Save|Load|Snapshot)Dataset(V2)?"
)
# The loader restores the weights with these; no other function may contain them.
_CHECKPOINTS = re.compile(r"Save(Slices|V2)?|MergeV2Checkpoints|Restore(Slice|V2)?")
_LOADER = re.compile(r"__inference__traced_(save|restore)_\d+")
_DEVICE = re.compile(r"device:([A-Za-z_]+)(?::(\d+|\*))?")


def check_signatures(definitions: Mapping[str, Any], golden: Mapping[str, Any]) -> str:
    """Checks names, types and shapes of all signatures against stored examples.

    Raises Failure if a server or client could not use a signature, or if the signature
    does not match the stored examples.
    """
    served = signatures(definitions)
    names = list(served)
    if "serving_default" not in served:
        raise Failure("the signature serving_default is missing")
    if names != sorted(golden):
        raise Failure(
            f"the signatures are {names}, stored predictions are of {sorted(golden)}"
        )
    for name, signature in served.items():
        for side in ("inputs", "outputs"):
            fields = getattr(signature, side)
            arrays = golden[name].get(side, {})
            if set(fields) != set(arrays):
                raise Failure(
                    f"{name}: {side} are {sorted(fields)}, stored are {sorted(arrays)}"
                )
            for key, field in fields.items():
                _check_field(f"{name}: {key}", field, arrays[key])
    return f"{len(names)} signatures: {', '.join(names)}"


def _check_field(title: str, field: Field, array: np.ndarray) -> None:
    if field.dtype in _UNSUPPORTED:
        raise Failure(f"{title} has a type that REST cannot carry")
    if not field.shape or field.shape[0] is not None:
        raise Failure(f"{title}: the first axis is not the batch: {field}")
    axes = zip(field.shape[1:], array.shape[1:], strict=False)
    fits = all(size in (None, stored) for size, stored in axes)
    fits = fits and len(field.shape) == array.ndim
    if field.dtype != array.dtype or not fits:
        raise Failure(
            f"{title} is {field}, stored is {Field(array.dtype, array.shape)}"
        )


@functools.cache
def server_operations() -> frozenset[str]:
    """Returns the names of the operations that TensorFlow Serving runs on a CPU."""
    names: list[str] = []
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            names += line.split()
    return frozenset(names)


def check_operations(graph: Any) -> str:
    """Checks that TensorFlow Serving can run a GraphDef; raises Failure if not.

    Every operation is in `server_operations` or a function of the graph; no function
    must be compiled by XLA, which servers disable; no operation is placed on a device
    other than the first CPU, because a server without the device refuses the model; no
    operation ends the process or accesses files.
    """
    functions = {function.signature.name for function in graph.library.function}
    nodes = list(graph.node)
    for function in graph.library.function:
        nodes += function.node_def
    names = {node.op for node in nodes} - functions
    if unknown := sorted(names - server_operations()):
        raise Failure(f"TensorFlow Serving 2.20 lacks operations: {', '.join(unknown)}")
    for node in nodes:
        for kind, number in _DEVICE.findall(node.device):
            if kind.upper() != "CPU" or number not in ("", "*", "0"):
                raise Failure(f"the operation {node.name} is placed on {node.device}")
    for function in graph.library.function:
        if "_XlaMustCompile" in function.attr and function.attr["_XlaMustCompile"].b:
            name = function.signature.name
            raise Failure(
                f"the function {name} must be compiled by XLA, which servers disable"
            )
    harmful = [node for node in nodes if _HARMFUL.fullmatch(node.op)]
    for node in nodes:
        stream = node.attr["output_stream"].s if node.op == "PrintV2" else b""
        if stream.startswith(b"file:"):
            harmful.append(node)
    for function in graph.library.function:
        if _LOADER.fullmatch(function.signature.name):
            continue
        for node in function.node_def:
            if _CHECKPOINTS.fullmatch(node.op):
                harmful.append(node)
    if harmful:
        name = harmful[0].name
        operation = harmful[0].op
        raise Failure(
            f"{name} is {operation}: it ends the server or accesses its files"
        )
    return (
        f"{len(names)} operations, all in TensorFlow Serving 2.20; no XLA, no fixed"
        " device"
    )
