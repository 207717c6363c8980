"""Checks that a model only uses operations that are available in the released server.

`operation_checks.txt` lists every operation with a CPU kernel in the wheel of TensorFlow 2.20.0,
which TensorFlow Serving 2.20.0, the newest release, is built from: in an environment with it, these
are the `op` of the kernels for `CPU` or `DEFAULT` in
`tensorflow.python.framework.kernels.get_all_registered_kernels()`.
"""

import functools
import re
from pathlib import Path
from typing import Any

from pipeline.utils.errors import Failure

_FILE = Path(__file__).with_suffix(".txt")
# These can end the server's process or access files outside the version: a SavedModel is a program
# (https://github.com/tensorflow/tensorflow/blob/master/SECURITY.md).
_HARMFUL = re.compile(
    r"Abort|(Read|Write)File|MatchingFiles|CreateSummary(File|Db)Writer|(Eager)?PyFunc(Stateless)?"
    r"|(WholeFile|TextLine|TFRecord|FixedLengthRecord)Reader(V2)?"
    r"|(TextLine|TFRecord|FixedLengthRecord|Sql|Save|Load|Snapshot)Dataset(V2)?"
)
# The loader restores the weights with these; no other function may contain them.
_CHECKPOINTS = re.compile(r"Save(Slices|V2)?|MergeV2Checkpoints|Restore(Slice|V2)?")
_LOADER = re.compile(r"__inference__traced_(save|restore)_\d+")
_DEVICE = re.compile(r"device:([A-Za-z_]+)(?::(\d+|\*))?")


@functools.cache
def released() -> frozenset[str]:
    """Names of the operations that the released server runs on a CPU."""
    lines = _FILE.read_text(encoding="utf-8").splitlines()
    return frozenset(name for line in lines if not line.startswith("#") for name in line.split())


def check(graph: Any) -> str:
    """Checks that the released server can run a GraphDef; raises Failure if not.

    Every operation is in `released` or a function of the graph; no function must be compiled by
    XLA, which servers disable; nothing is placed on a device other than the first CPU, without
    which a server refuses the model; nothing ends the process or accesses files.
    """
    functions = {function.signature.name for function in graph.library.function}
    nodes = [*graph.node, *(n for function in graph.library.function for n in function.node_def)]
    names = {node.op for node in nodes} - functions
    if unknown := sorted(names - released()):
        raise Failure(f"TensorFlow Serving 2.20 lacks operations: {', '.join(unknown)}")
    for node in nodes:
        for kind, number in _DEVICE.findall(node.device):
            if kind.upper() != "CPU" or number not in ("", "*", "0"):
                raise Failure(f"the operation {node.name} is placed on {node.device}")
    for function in graph.library.function:
        if "_XlaMustCompile" in function.attr and function.attr["_XlaMustCompile"].b:
            name = function.signature.name
            raise Failure(f"the function {name} must be compiled by XLA, which servers disable")
    harmful = [node for node in nodes if _HARMFUL.fullmatch(node.op)]
    prints = (node for node in nodes if node.op == "PrintV2")
    harmful += [node for node in prints if node.attr["output_stream"].s.startswith(b"file:")]
    for function in graph.library.function:
        if not _LOADER.fullmatch(function.signature.name):
            harmful += [node for node in function.node_def if _CHECKPOINTS.fullmatch(node.op)]
    for node in harmful:
        raise Failure(f"{node.name} is {node.op}: it ends the server or accesses its files")
    return f"{len(names)} operations, all in TensorFlow Serving 2.20; no XLA, no fixed device"
