"""The checks behind `verify`, run in a separate process that does not import Python TensorFlow.

Needs NumPy, protobuf, google-crc32c, tensorflow-serving-api and the libraries of any TensorFlow
wheel, such as the one that the released server is built from.

Prints one JSON object per line: {"check": name} when a check starts, {"check": name, "now": what}
before a request that could end the process, and {"check": name, "passed": ..., "detail": ...}. If a
request does end the process, the last line names it.
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
    bad_requests,
    golden_answers,
    operation_checks,
    signature_checks,
    warmup,
)
from pipeline.export.bad_requests import Announce, Check
from pipeline.serving import version_manifest
from pipeline.serving.savedmodel_session import Session, runtime_version, saved_graph
from pipeline.serving.signatures import strings
from pipeline.utils import npz

GOLDEN = version_manifest.GOLDEN
STOPS = ("digests", "operations", "loads", "golden", "contract")
"""If one of these checks fails, the others are skipped."""
_MOST_GOLDEN = 2**32  # bytes after decompression: three of the largest images as floats


def write_golden(path: Path, golden: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Stores signature -> {inputs, outputs} -> name -> array, or list of bytes."""
    flat: dict[str, Any] = {}
    for signature, sides in golden.items():
        for side, arrays in sides.items():
            for name, values in arrays.items():
                array = np.asarray(values, object if isinstance(values, list) else None)
                if array.dtype == object:  # NumPy strips zero bytes at the end of a string
                    array = np.array([text + b"." for text in array.flat]).reshape(array.shape)
                flat[f"{signature}/{side}/{name}"] = array
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **flat)


def read_golden(path: Path) -> dict[str, dict[str, dict[str, np.ndarray]]]:
    """The content of a file of `write_golden`; strings as arrays of bytes objects."""
    golden: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    for key, array in npz.read(path, _MOST_GOLDEN).items():
        signature, side, name = key.split("/")
        if array.dtype.kind == "S":
            array = strings([text[:-1] for text in array.flat]).reshape(array.shape)
        golden.setdefault(signature, {}).setdefault(side, {})[name] = array
    return golden


def checks(directory: Path, fuzz: int = 0) -> Iterator[tuple[str, Check]]:
    """(name, check) of all checks of a version, in order.

    Run each before requesting the next, and stop after a failure of one in `STOPS`.
    """
    manifest: dict[str, Any] = {}
    golden: dict[str, golden_answers.Golden] = {}
    sessions: list[Session] = []

    def digests(announce: Announce) -> str:
        manifest.update(version_manifest.read(directory))
        return version_manifest.check(directory, manifest)

    def operations(announce: Announce) -> str:
        return operation_checks.check(saved_graph(directory).graph_def)

    def load(announce: Announce) -> str:
        start = time.monotonic()
        sessions.append(Session(directory))
        return f"TensorFlow {runtime_version()}, {1000 * (time.monotonic() - start):.0f} ms"

    def read(announce: Announce) -> str:
        golden.update(read_golden(directory / GOLDEN))
        return f"stored answers of {', '.join(golden)}"

    yield "digests", digests
    yield "operations", operations  # before anything in the graph is run
    yield "loads", load
    yield "golden", read
    (session,) = sessions
    yield "contract", _silent(partial(signature_checks.check, session.signatures, golden))
    yield "warm-up", partial(warmup.check, session, directory)
    precision = str(manifest.get("precision"))
    for signature, sides in golden.items():
        compare = partial(golden_answers.check, session, signature, sides, precision=precision)
        yield f"answers {signature}", _silent(compare)
        yield from bad_requests.checks(session, signature, sides["inputs"], fuzz)
        yield f"still answers {signature}", _silent(partial(compare, sizes=(3,)))


def _silent(check: Callable[[], str]) -> Check:
    """A check that sends only valid requests, without announcing them."""
    return lambda announce: check()


def main(arguments: list[str], out: TextIO) -> int:
    """`python -m pipeline.export.proof DIRECTORY FUZZ`: writes the lines; 1 if a check failed."""

    def write(check: str, **line: Any) -> None:
        print(json.dumps({"check": check, **line}), file=out, flush=True)

    def announce(check: str, what: str) -> None:
        write(check, now=what)

    directory, fuzz = arguments
    passed = True
    for name, check in checks(Path(directory), int(fuzz)):
        write(name)
        try:
            write(name, passed=True, detail=check(partial(announce, name)))
        except Exception as error:  # a damaged file can raise anything
            detail = str(error).partition("\n")[0]  # TensorFlow lists nodes on the next lines
            write(name, passed=False, detail=detail or type(error).__name__)
            passed = False
            if name in STOPS:
                return 1
    python_tensorflow = getattr(sys.modules.get("tensorflow"), "__file__", None)
    write("finished", passed=not python_tensorflow, detail="without importing Python TensorFlow")
    return 0 if passed and not python_tensorflow else 1


if __name__ == "__main__":
    # What the model prints to stdout must not be read as a result.
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.exit(main(sys.argv[1:], results))
