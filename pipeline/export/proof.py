"""The checks behind `verify`, run in a separate process that does not import Python
TensorFlow.

Needs NumPy, protobuf, google-crc32c, tensorflow-serving-api and the libraries of any
TensorFlow wheel, such as the one that the released server is built from.

Prints one JSON object per line: {"check": name} when a check starts, and then {"check":
name, "passed": ..., "detail": ...}. If a check ends the process, the last line names
it.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from pipeline.export import graph_checks, request_checks, warmup
from pipeline.export.request_checks import Check
from pipeline.serving import version_manifest
from pipeline.serving.savedmodel_session import Session, runtime_version, saved_graph
from pipeline.serving.signatures import strings
from pipeline.utils import npz
from pipeline.utils.errors import Failure

GOLDEN = version_manifest.GOLDEN
STOPS = ("digests", "operations", "loads", "golden", "contract")
"""If one of these checks fails, the others are skipped."""
_LOADED = ("saved_model.pb", "variables/*", str(warmup.FILE))
_MAX_GOLDEN = 2**32  # bytes after decompression: three of the largest images as floats


def write_golden(
    path: Path, golden: Mapping[str, Mapping[str, Mapping[str, Any]]]
) -> None:
    """Stores signature -> {inputs, outputs} -> name -> array, or list of bytes."""
    flat: dict[str, Any] = {}
    for signature, sides in golden.items():
        for side, arrays in sides.items():
            for name, values in arrays.items():
                array = np.asarray(values, object if isinstance(values, list) else None)
                if array.dtype == object:
                    # NumPy strips zero bytes at the end of a string.
                    texts = np.array([text + b"." for text in array.flat])
                    array = texts.reshape(array.shape)
                flat[f"{signature}/{side}/{name}"] = array
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **flat)


def read_golden(path: Path) -> dict[str, dict[str, dict[str, np.ndarray]]]:
    """Reads a file of `write_golden`; strings become arrays of bytes objects."""
    golden: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    for key, array in npz.read(path, _MAX_GOLDEN).items():
        signature, side, name = key.split("/")
        if array.dtype.kind == "S":
            array = strings([text[:-1] for text in array.flat]).reshape(array.shape)
        golden.setdefault(signature, {}).setdefault(side, {})[name] = array
    return golden


def checks(
    directory: Path, wait: Callable[[], object] | None = None
) -> Iterator[tuple[str, Check]]:
    """Yields the name and function of all checks of a version, in order.

    Run each check before requesting the next, and stop if a check in `STOPS` fails.
    `wait`, if given, blocks until the predictions and the manifest are written; the
    slow checks run before it.
    """
    manifest: dict[str, Any] = {}
    golden: dict[str, request_checks.Golden] = {}
    sessions: list[Session] = []
    loaded = version_manifest.entries(directory, _LOADED if wait else ())

    def digests() -> str:
        if wait:
            wait()
        manifest.update(version_manifest.read(directory))
        if not loaded.items() <= manifest["files"].items():
            raise Failure("the SavedModel was changed after it was loaded")
        return version_manifest.check(directory, manifest)

    def load() -> str:
        start = time.monotonic()
        sessions.append(Session(directory))
        milliseconds = 1000 * (time.monotonic() - start)
        return f"TensorFlow {runtime_version()}, {milliseconds:.0f} ms"

    def read() -> str:
        golden.update(read_golden(directory / GOLDEN))
        return f"stored predictions of {', '.join(golden)}"

    if not wait:
        yield "digests", digests
    # Before anything in the graph is run.
    graph = lambda: saved_graph(directory).graph_def  # noqa: E731
    yield "operations", lambda: graph_checks.check_operations(graph())
    yield "loads", load
    (session,) = sessions
    yield "warm-up", partial(warmup.check, session, directory)
    if wait:
        yield "digests", digests
    yield "golden", read
    yield "contract", partial(graph_checks.check_signatures, session.signatures, golden)
    precision = str(manifest.get("precision"))
    for signature, sides in golden.items():
        compare = partial(
            request_checks.check_predictions,
            session,
            signature,
            sides,
            precision=precision,
        )
        yield f"predictions {signature}", compare
        described = manifest.get("signatures", {}).get(signature, {})
        yield from request_checks.refusal_checks(
            session, signature, sides["inputs"], described.get("optional", ())
        )
        yield f"still answers {signature}", partial(compare, sizes=(3,))
    yield "finished", _finish


def _finish() -> str:
    if getattr(sys.modules.get("tensorflow"), "__file__", None):
        raise Failure("Python TensorFlow was imported")
    return "without importing Python TensorFlow"


def run(checks: Iterable[tuple[str, Check]], out: TextIO) -> int:
    """Runs checks and writes the lines; returns 1 if a check failed."""
    code = 0
    for name, check in checks:
        print(json.dumps({"check": name}), file=out, flush=True)
        try:
            detail = check()
            passed = True
        except Exception as error:  # a damaged file can raise anything
            # After the first line, TensorFlow lists nodes.
            detail = str(error).partition("\n")[0] or type(error).__name__
            passed = False
            code = 1
        line = {"check": name, "passed": passed, "detail": detail}
        print(json.dumps(line), file=out, flush=True)
        if name in STOPS and not passed:
            break
    return code


def main(checks: Iterable[tuple[str, Check]]) -> None:
    """Runs checks, prints the lines, and ends the process."""
    # What the model prints to stdout must not be read as a result.
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    os._exit(run(checks, results))  # unloading the libraries would take 0.1 s


if __name__ == "__main__":
    # Loads the libraries, perhaps while the SavedModel is still written.
    runtime_version()
    wait = sys.stdin.read if sys.stdin.readline() else None
    main(checks(Path(sys.argv[1]), wait))
