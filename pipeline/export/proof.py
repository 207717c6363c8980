"""The checks behind `verify`, run in a process of their own that has no Python TensorFlow.

Needs NumPy, protobuf and the libraries of any TensorFlow wheel: that of the released server, too.

Prints JSON objects, one a line: {"check": name} when a check starts, {"check": name, "now": what}
before a request that could end the process, and {"check": name, "passed": ..., "detail": ...}. If a
request does end it, the last line tells which one.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from pipeline.export import (
    _warmup_reader,
    bad_requests,
    golden_answers,
    operation_checks,
    signature_checks,
)
from pipeline.serving import version_manifest
from pipeline.serving.savedmodel_session import Session, as_strings, runtime_version, saved_graph
from pipeline.utils import npz
from pipeline.utils.errors import Failure

GOLDEN = version_manifest.GOLDEN
STOPS = ("digests", "operations", "loads", "golden")
"""If one of them fails, the rest is skipped."""
_MOST_GOLDEN = 2**32  # bytes, unpacked: three of the largest images as floats

Check = Callable[[bad_requests.Now], str]
"""Told where to say what it is about to do; returns a detail, or raises what is wrong."""


def write_golden(path: Path, golden: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Stores signature -> {inputs, outputs} -> name -> array, or list of bytes."""
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
    file = npz.read(path, _MOST_GOLDEN)
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


def checks(directory: Path, fuzzed: int = bad_requests.FUZZED) -> Iterator[tuple[str, Check]]:
    """(name, check) of all that is proved of a version, in the order of what a server does."""
    golden: dict[str, golden_answers.Golden] = {}
    manifests: list[dict[str, Any]] = []
    opened: list[Session] = []

    def whole(now: bad_requests.Now) -> str:
        manifests.append(version_manifest.read(directory))
        return version_manifest.check(directory, manifests[0])

    def harmless(now: bad_requests.Now) -> str:
        version_manifest.require_files(directory)
        meta_graph = saved_graph(directory)
        signatures = meta_graph.signature_def.values()
        answers = [tensor.name for each in signatures for tensor in each.outputs.values()]
        return operation_checks.check(meta_graph.graph_def, answers)

    def load(now: bad_requests.Now) -> str:
        start = time.monotonic()
        opened.append(Session(directory))
        return f"TensorFlow {runtime_version()}, {1000 * (time.monotonic() - start):.0f} ms"

    def read(now: bad_requests.Now) -> str:
        golden.update(_whole(read_golden(directory / GOLDEN)))
        return f"answers stored for {', '.join(golden)}"

    yield "digests", whole
    yield "operations", harmless  # before anything of it is run
    yield "loads", load
    yield "golden", read
    session = opened[0]
    yield "contract", lambda now: _contract(session, golden)
    yield "warm-up", lambda now: _warmup_reader.check(session, directory, now)
    precision = _precision(manifests[0])
    for signature, sides in golden.items():
        ask = partial(golden_answers.check, session, signature, sides, precision=precision)
        yield f"answers {signature}", lambda now, ask=ask: ask()
        yield from bad_requests.checks(session, signature, sides["inputs"], fuzzed)
        yield f"still answers {signature}", lambda now, ask=ask: ask(sizes=(3,))


def _contract(session: Session, golden: Mapping[str, golden_answers.Golden]) -> str:
    found = signature_checks.check(session.signatures, golden)
    signature_checks.check_examples(session.signatures, golden)
    return found


def _precision(manifest: Mapping[str, Any]) -> str:
    """Of the network's arithmetic, as the manifest says; float32 where it says nothing."""
    said = manifest.get("precision")
    return said if isinstance(said, str) and said in golden_answers.TOLERANCES else "float32"


def main(arguments: list[str], out: TextIO) -> int:
    """`python -m pipeline.export.proof DIRECTORY [FUZZED]`: writes the lines; 1 if one failed."""

    def say(check: str, **line: Any) -> None:
        print(json.dumps({"check": check, **line}), file=out, flush=True)

    directory, *fuzzed = arguments
    good = True
    for name, check in checks(Path(directory), *map(int, fuzzed)):
        say(name)
        try:
            say(name, passed=True, detail=check(lambda what, name=name: say(name, now=what)))
        except Exception as error:  # damaged files raise anything
            said = str(error).partition("\n")[0]  # behind that, TensorFlow's nodes
            say(name, passed=False, detail=said or type(error).__name__)
            good = False
            if name in STOPS:
                return 1  # the model must not be run, or cannot be
    python_tensorflow = getattr(sys.modules.get("tensorflow"), "__file__", None)
    say("finished", passed=not python_tensorflow, detail="no Python TensorFlow in the process")
    return 0 if good and not python_tensorflow else 1


if __name__ == "__main__":
    # What a model prints itself must not pass for a result of the proof.
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.exit(main(sys.argv[1:], results))
