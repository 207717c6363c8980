"""Which operations the released server has, and whether a model needs others.

`operation_checks.txt` holds every operation with a kernel for the CPU in the wheel of TensorFlow
2.20.0, which TensorFlow Serving 2.20.0, the newest release, is built from. In an environment with
that wheel it is written again by

    python -m pipeline.export.operation_checks > pipeline/export/operation_checks.txt
"""

import functools
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pipeline.serving import savedmodel_session
from pipeline.utils import wire
from pipeline.utils.errors import Failure

_FILE = Path(__file__).with_suffix(".txt")
# They end the server's process, or touch files beside those of the version: a SavedModel is a
# program (https://github.com/tensorflow/tensorflow/blob/master/SECURITY.md).
_HARMFUL = re.compile(
    r"Abort|(Read|Write)File|MatchingFiles|CreateSummary(File|Db)Writer|(Eager)?PyFunc(Stateless)?"
    r"|(WholeFile|TextLine|TFRecord|FixedLengthRecord)Reader(V2)?"
    r"|(TextLine|TFRecord|FixedLengthRecord|Sql|Save|Load|Snapshot)Dataset(V2)?"
)
# A loader restores the weights by some of these; no answer needs them.
_CHECKPOINTS = re.compile(r"Save(Slices|V2)?|MergeV2Checkpoints|Restore(Slice|V2)?")
_DEVICE = re.compile(r"device:([A-Za-z_]+)(?::(\d+|\*))?")


@functools.cache
def released() -> frozenset[str]:
    """Names of the operations that the released server runs on a CPU."""
    lines = _FILE.read_text(encoding="utf-8").splitlines()
    return frozenset(name for line in lines if not line.startswith("#") for name in line.split())


def check(graph: Any, answers: Iterable[str] = ()) -> str:
    """What a GraphDef needs of its server; raises Failure if that is more than a server has.

    Args:
        graph: Is only read.
        answers: Names of the tensors that signatures answer with.

    Every operation is among `released`, or a function of the graph itself; no function must be
    compiled by XLA, which servers have switched off; nothing is pinned to a device but the first
    CPU, for a server without that device refuses the model. Nothing ends the process or touches
    files.
    """
    functions = {function.signature.name for function in graph.library.function}
    nodes = list(_nodes(graph))
    names = {node.op for node in nodes} - functions
    if unknown := sorted(names - released()):
        raise Failure(
            f"TensorFlow Serving 2.20 has no operation {unknown[0]!r}"
            + (f", nor {len(unknown) - 1} others" if len(unknown) > 1 else "")
        )
    for node in nodes:
        for kind, number in _DEVICE.findall(node.device):
            if kind.upper() != "CPU" or number not in ("", "*", "0"):
                raise Failure(f"the operation {node.name} is pinned to {node.device}")
    for function in graph.library.function:
        if "_XlaMustCompile" in function.attr and function.attr["_XlaMustCompile"].b:
            raise Failure(
                f"the function {function.signature.name} must be compiled by XLA: servers have it "
                "off"
            )
    prints = (node for node in nodes if node.op == "PrintV2")
    found = [node for node in nodes if _HARMFUL.fullmatch(node.op)]
    found += [node for node in prints if node.attr["output_stream"].s.startswith(b"file:")]
    found += [node for node in _reached(graph, answers) if _CHECKPOINTS.fullmatch(node.op)]
    for node in found:
        raise Failure(f"{node.name} is {node.op}: it ends the server or touches its files")
    return f"{len(names)} kinds, all in TensorFlow Serving 2.20; no XLA, no device"


def _reached(graph: Any, answers: Iterable[str]) -> Iterator[Any]:
    """The nodes that the answers need, and all in the functions that these call."""
    known = {node.name: [node] for node in graph.node}
    inside = {function.signature.name: function.node_def for function in graph.library.function}
    rest = [(known, name.partition(":")[0]) for name in answers]
    seen: set[tuple[bool, str]] = set()
    while rest:
        where, name = rest.pop()
        if name not in where or (where is known, name) in seen:
            continue
        seen.add((where is known, name))
        for node in where[name]:
            yield node
            if where is known:
                rest += [(known, i.removeprefix("^").partition(":")[0]) for i in node.input]
            values = node.attr.values()
            rest += [(inside, f.name) for v in values for f in (v.func, *v.list.func)]


def _nodes(graph: Any) -> Iterator[Any]:
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def installed() -> set[str]:
    """Names of the operations that the installed TensorFlow runs on a CPU."""
    found = set()
    for kernel in wire.read(savedmodel_session.registered_kernels())[1]:
        fields = wire.read(kernel)  # KernelDef: 1 is `op`, 2 `device_type`
        if fields[2][0] in (b"CPU", b"DEFAULT"):  # the second one is for any device
            found.add(fields[1][0].decode())
    return found


if __name__ == "__main__":
    print(
        "# Operations with a kernel for the CPU in "
        f"TensorFlow {savedmodel_session.runtime_version()}."
    )
    print("# Written by pipeline/export/operation_checks.py.")
    print(textwrap.fill(" ".join(sorted(installed())), 100, break_on_hyphens=False))
