"""Compares every way to take a training step with stock Keras, on your own machine."""

import dataclasses
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, Literal

from pipeline.config import cli_parser, command_line, help_text
from pipeline.utils import temp_files
from pipeline.utils.errors import UsageError, run_command, suggest

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
# float32 sums in another order: 16 steps of SGD with `tiny` on digits stay below 3e-6.
TOLERANCE = 1e-5
JUDGED = 16  # steps
_COLUMNS = (
    ("optimizer", 9),
    ("replicas", 8),
    ("precision", 14),
    ("accumulate", 10),
    ("clip", 4),
    ("engines, calls", 14),
    ("stock fit", 9),
    ("float32", 9),
    ("stock's", 9),
    ("", 0),
)
_LEGEND = """\
engines, calls  largest difference of any weight or optimizer variable between model_fit and
                gradient_tape, and between 1 and 8 steps in a call: must be 0
stock fit       distance to stock Keras's `fit` on one device in this precision, as a share of how
                far training moved a tensor, of the worst tensor: in float32 at most {}
float32         distance of all weights together to stock Keras's `fit` in float32: at most twice
stock's         that of stock Keras's own weights in this precision
-               not comparable: BatchNormalization sees another part of the batch
"""


@dataclasses.dataclass(frozen=True)
class Options:
    """Trains in every way for a few steps, and compares weights and optimizer state with those of
    stock Keras."""

    parity: str = command_line.DEFAULT_RECIPE
    """Train a few steps of this recipe in every way, and compare with stock Keras."""
    model: str | None = None
    """Another registered model, with its default options; `tiny` is the fastest."""
    replicas: tuple[int, ...] = (1, 2)
    """Numbers of replicas; on a CPU they are logical devices."""
    precisions: tuple[str, ...] = PRECISIONS
    """Some of float32, mixed_bfloat16, mixed_float16."""
    accumulate: tuple[int, ...] = (1, 4)
    """Numbers of micro-batches."""
    optimizers: tuple[Literal["sgd", "adam", "adamw", "nadam"], ...] = ("sgd",)
    """Optimizers; those other than sgd are compared with stock Keras, but not judged by it."""
    steps: int = 16
    """Steps to train; with more, differences from another order of sums grow and are not judged."""
    batch_size: int = 32
    """Examples in a step; each replica gets parts of the same size."""


def parity(options: Options) -> list[dict[str, Any]]:
    """All cases; a process for each number of replicas, and another one after each failure.

    Returns:
        What `pipeline.evaluation.parity.run` yields, or, of a case that failed,
        `{**case, "replicas": ..., "failed": reason}`.
    """
    _check(options)
    order: dict[str, Any] = {
        **{"recipe": options.parity, "batch_size": options.batch_size, "steps": options.steps}
    }
    if options.model:
        order["model"] = {"name": options.model}
    print(_line([name for name, _ in _COLUMNS]), flush=True)
    cases = [
        {"optimizer": optimizer, "precision": precision, "accumulate": accumulate, "clip": clip}
        for optimizer in options.optimizers
        for precision in options.precisions
        for accumulate in options.accumulate
        for clip in (False, True)
    ]
    results = []
    with temp_files.temporary() as folder:
        for replicas in options.replicas:
            order.update(replicas=replicas, folder=str(folder))
            left = list(cases)
            while left:
                for result in _child({**order, "cases": list(left)}):
                    result["judged"] = options.steps <= JUDGED and result["optimizer"] == "sgd"
                    results.append(result)
                    print(_row(result), flush=True)
                    del left[0]
    return results


def _check(options: Options) -> None:
    recipe = command_line.recipe(options.parity)
    for name in ("replicas", "precisions", "accumulate", "optimizers"):
        if not getattr(options, name):
            raise UsageError(f"--{name} needs at least one value")
    for name in ("steps", "batch_size"):
        if getattr(options, name) < 1:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} must be at least 1, received {getattr(options, name)}")
    for precision in options.precisions:
        if precision not in PRECISIONS:
            raise UsageError(f"--precisions {precision}: {suggest(precision, PRECISIONS)}")
    if options.model:
        recipe.changed(model={"name": options.model})
    for replicas, accumulate in itertools.product(options.replicas, options.accumulate):
        if min(replicas, accumulate) < 1:
            raise UsageError("--replicas and --accumulate must be at least 1")
        if options.batch_size % (replicas * accumulate):
            raise UsageError(
                f"--batch-size {options.batch_size} cannot be cut into equal parts for {replicas} "
                f"replicas and {accumulate} micro-batches"
            )


def _child(order: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Results of one process, the last of which may be a failure."""
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "pipeline.evaluation.parity", json.dumps(order)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            # A file in the current folder, such as another pipeline.py, must not come first there.
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "PYTHONSAFEPATH": "1",
                "TF_CPP_MIN_LOG_LEVEL": "2",
            },
        ) as process,
    ):
        cases = iter(order["cases"])
        for line in process.stdout:
            if line.startswith("{"):
                next(cases)
                yield json.loads(line)
        code = process.wait()
        errors.seek(0)
        said = errors.read().strip().splitlines() or ["nothing was said"]
    if code == UsageError.exit_code:
        raise UsageError(said[-1].removeprefix("error: "))
    if (case := next(cases, None)) is not None:
        reason = f"the process ended with {code}: {said[-1][:200]}"
        yield {**case, "replicas": order["replicas"], "failed": reason}


def passed(result: dict[str, Any]) -> bool:
    """Whether a case is as equal as it must be."""
    if "failed" in result or result["apart"] != 0:
        return False
    if "exact" not in result or not result["judged"]:
        return True
    if result["precision"] == "float32":
        return result["stock"] <= TOLERANCE
    return result["exact"] <= 2 * result["stock_exact"] + TOLERANCE


def _row(result: dict[str, Any]) -> str:
    def number(value: float | None) -> str:
        return "-" if value is None else "0" if value == 0 else f"{value:.1e}"

    cells = [result[name] for name in ("optimizer", "replicas", "precision", "accumulate")]
    cells.append("on" if result["clip"] else "off")
    if "failed" in result:
        return _line([*cells, f"FAILED {result['failed']}"])
    cells += [number(result.get(name)) for name in ("apart", "stock", "exact", "stock_exact")]
    return _line([*cells, "" if passed(result) else "FAILED"])


def _line(cells: list[Any]) -> str:
    widths = [width for _, width in _COLUMNS]
    return "  ".join(f"{cell!s:>{w}}" for cell, w in zip(cells, widths, strict=False)).rstrip()


def main(arguments: list[str]) -> int:
    """`python -m pipeline.doctor --parity [RECIPE]`; 1 if a case is not as equal as it must be."""
    arguments = [part for word in arguments for part in word.split("=", 1)]
    if "--parity" not in arguments and arguments not in ([], ["--help"], ["-h"]):
        raise UsageError(f"{arguments[0]!r} does not say what to compare; give --parity [RECIPE]")
    arguments = arguments or ["--help"]
    at = arguments.index("--parity") if "--parity" in arguments else None
    if at is not None and (at + 1 == len(arguments) or arguments[at + 1].startswith("--")):
        arguments = [*arguments[: at + 1], command_line.DEFAULT_RECIPE, *arguments[at + 1 :]]
    if "--help" in arguments or "-h" in arguments:
        about = " ".join((Options.__doc__ or "").split())
        print(help_text.page("python -m pipeline.doctor", about, Options()))
        return 0
    options = Options(**cli_parser.changes(arguments, Options))
    results = parity(options)
    wrong = [result for result in results if not passed(result)]
    print(_LEGEND.format(TOLERANCE), end="")
    print(f"{len(results) - len(wrong)} of {len(results)} cases are as equal as they must be")
    return 1 if wrong else 0


if __name__ == "__main__":
    run_command(main)
