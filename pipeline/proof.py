"""The checks behind `verify`, run in a process of their own that has no Python TensorFlow.

Prints one JSON object a line: {"check": name} when a check starts, then {"check": name,
"passed": ..., "detail": ...}. If a request ends the process, the last line tells which one.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import archives
from pipeline.session import INVALID_ARGUMENT, ServerError, Session, as_strings

GOLDEN = Path("assets.extra/golden.npz")
_MOST_GOLDEN = 2**32  # bytes, unpacked: three of the largest images as floats
# Float32 sums in another order (other batch size, another CPU) differ by about 1e-6 of their size;
# the largest stored answer stands for it, because a small one may be a difference of large terms.
TOLERANCE = 1e-5
BATCH_SIZES = (1, 3)
# TensorFlow types that the REST interface can carry: float, double, (u)int8 to 64, string, bool.
_REST_TYPES = {1, 2, 3, 4, 5, 6, 7, 9, 10, 17, 22, 23}


class Failure(Exception):
    """A check found something wrong."""


def write_golden(path: Path, golden: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Stores signature -> {inputs, outputs} -> name -> array; strings are lists of bytes."""
    flat: dict[str, np.ndarray] = {}
    for signature, sides in golden.items():
        for side, arrays in sides.items():
            for name, values in arrays.items():
                key = f"{signature}/{side}/{name}"
                if isinstance(values, np.ndarray) and values.dtype.kind != "O":
                    flat[key] = values
                else:
                    texts = np.asarray(values, object)  # one or two axes, which the lengths keep
                    lengths = np.array([len(text) for text in texts.flat], np.int64)
                    flat[f"{key}/lengths"] = lengths.reshape(texts.shape)
                    flat[f"{key}/bytes"] = np.frombuffer(b"".join(texts.flat), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **flat)


def read_golden(path: Path) -> dict[str, dict[str, dict[str, np.ndarray]]]:
    """What `write_golden` stored; strings come as arrays of bytes objects."""
    golden: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    file = archives.read(path, _MOST_GOLDEN)
    for key, values in file.items():
        signature, side, name, *part = key.split("/")
        arrays = golden.setdefault(signature, {}).setdefault(side, {})
        if not part:
            arrays[name] = values
        elif part == ["lengths"]:
            ends = np.cumsum(values)
            raw = file[key.removesuffix("lengths") + "bytes"].tobytes()
            starts = [0, *ends[:-1]]
            texts = as_strings([raw[a:b] for a, b in zip(starts, ends, strict=True)])
            arrays[name] = texts.reshape(values.shape)
    return golden


def _whole(golden: Any) -> Any:
    """Stored answers that can prove something: each signature asked, each output compared."""
    for signature, sides in golden.items():
        if set(sides) != {"inputs", "outputs"}:
            raise Failure(f"{signature} has no stored inputs and outputs")
        arrays = [values for side in sides.values() for values in side.values()]
        lengths = {len(values) for values in arrays if values.ndim}
        if len(lengths) != 1 or not lengths.pop():
            raise Failure(f"the stored examples of {signature} differ in number, or there are none")
    if not golden:
        raise Failure("there are no stored answers")
    return golden


def checks(directory: Path) -> Iterator[tuple[str, Callable[[], str]]]:
    """(name, check); a check returns a detail or raises Failure or ServerError."""
    golden: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    opened: list[Session] = []

    def read() -> str:
        golden.update(_whole(read_golden(directory / GOLDEN)))
        return f"answers stored for {', '.join(golden)}"

    def load() -> str:
        start = time.monotonic()
        opened.append(Session(directory))
        return f"{1000 * (time.monotonic() - start):.0f} ms"

    yield "loads", load
    yield "golden", read
    session = opened[0]
    yield "contract", lambda: _contract(session, golden)
    for signature, sides in golden.items():
        yield f"answers {signature}", lambda s=signature, g=sides: _answers(session, s, g)
        for name, bad in _bad_requests(session.signatures[signature], sides["inputs"]):
            yield (
                f"refuses {signature}: {name}",
                lambda s=signature, b=bad: _refuses(session, s, b),
            )
        yield f"still answers {signature}", lambda s=signature, g=sides: _answers(session, s, g)


def _contract(session: Session, golden: Mapping[str, Any]) -> str:
    """Signatures as TensorFlow Serving wants them, and a graph that its binary can run."""
    if "serving_default" not in session.signatures:
        raise Failure("there is no signature serving_default")
    ours = {name for name in session.signatures if not name.startswith("__")}
    for signature in sorted(ours ^ set(golden)):
        raise Failure(f"the signature {signature} has no stored answers, or they no signature")
    for signature in golden:
        definition = session.signatures[signature]
        for name, tensor in [*definition.inputs.items(), *definition.outputs.items()]:
            shape = [axis.size for axis in tensor.tensor_shape.dim]
            if tensor.dtype not in _REST_TYPES:
                raise Failure(f"{signature}: {name} has a type that REST cannot carry")
            if tensor.tensor_shape.unknown_rank or not shape or shape[0] != -1:
                raise Failure(f"{signature}: the first axis of {name} is not the batch: {shape}")
    graph = session.meta_graph.graph_def
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    pinned = [node.name for node in nodes if "GPU" in node.device.upper()]
    if pinned:
        raise Failure(f"the operation {pinned[0]} is pinned to a GPU")
    compiled = [f.signature.name for f in graph.library.function if "_XlaMustCompile" in f.attr]
    if compiled:
        raise Failure(f"the function {compiled[0]} must be compiled by XLA: servers have it off")
    return f"{len(golden)} signatures, {len({node.op for node in nodes})} kinds of operations"


def _answers(session: Session, signature: str, golden: Mapping[str, Any]) -> str:
    """The stored requests get the stored answers, in batches of several sizes."""
    count = len(next(iter(golden["inputs"].values())))
    sizes = sorted({min(size, count) for size in (*BATCH_SIZES, count)})
    worst = 0.0
    for size in sizes:
        inputs = {name: values[:size] for name, values in golden["inputs"].items()}
        outputs = session.run(signature, inputs)
        if set(outputs) != set(golden["outputs"]):
            raise Failure(f"outputs are {sorted(outputs)}, not {sorted(golden['outputs'])}")
        for name, wanted in golden["outputs"].items():
            got, wanted = outputs[name], wanted[:size]
            if got.shape != wanted.shape:
                raise Failure(f"{name}: shape {got.shape}, not {wanted.shape}")
            if got.dtype.kind == "f":
                # Written so that NaN fails: every comparison with it is false.
                difference = np.abs(got - wanted)
                largest = np.abs(golden["outputs"][name]).max(initial=0.0)
                if not (difference <= TOLERANCE * largest).all():
                    raise Failure(f"{name}: differs by {difference.max():.2g} in a batch of {size}")
                worst = max(worst, float(difference.max(initial=0.0)))
            elif (got != wanted).any():
                raise Failure(f"{name}: {got[got != wanted][0]!r} instead of another answer")
    return f"batches of {', '.join(map(str, sizes))}; largest difference {worst:.1g}"


def _refuses(session: Session, signature: str, inputs: Mapping[str, Any]) -> str:
    try:
        outputs = session.run(signature, inputs)
    except ServerError as error:
        if error.code != INVALID_ARGUMENT:
            raise Failure(f"status {error.code} instead of INVALID_ARGUMENT: {error}") from None
        return "INVALID_ARGUMENT"
    sizes = {name: value.shape for name, value in outputs.items()}
    raise Failure(f"it was answered with {sizes}")


def _bad_requests(
    definition: Any, inputs: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Wrong forms of the first input, the others as they should be."""
    (name, good), *_ = inputs.items()
    good = good[:2]
    others = {key: values[:2] for key, values in inputs.items() if key != name}
    bad: dict[str, Any] = {
        "no batch axis": good[0] if good.dtype.kind != "O" else np.asarray(good[0], object),
        "one axis too many": good[None],
    }
    if good.dtype.kind == "O":
        broken = [b"", b"no image", good[0][: len(good[0]) // 2]]
        for label, text in zip(("empty bytes", "other bytes", "half a file"), broken, strict=True):
            bad[label] = as_strings([good[0], text])
    else:
        for axis in range(1, good.ndim):
            bad[f"axis {axis} too long"] = np.concatenate([good, good], axis=axis)
        bad["another type"] = good.astype(np.float64)
    for label, value in bad.items():
        yield label, {name: value, **others}


def main(directory: str) -> None:
    """Runs all checks of an exported version and prints their lines."""

    def say(**line: Any) -> None:
        print(json.dumps(line), flush=True)

    for name, check in checks(Path(directory)):
        say(check=name)
        try:
            say(check=name, passed=True, detail=check())
        except Exception as error:  # damaged files raise anything
            say(check=name, passed=False, detail=str(error) or type(error).__name__)
            if name in ("loads", "golden"):
                return  # nothing else can be asked of it
    python_tensorflow = getattr(sys.modules.get("tensorflow"), "__file__", None)
    say(
        check="finished", passed=not python_tensorflow, detail="no Python TensorFlow in the process"
    )


if __name__ == "__main__":
    main(sys.argv[1])
