"""Checks the environment; with --parity, compares training with stock Keras."""

import dataclasses
import itertools
import typing
from typing import TYPE_CHECKING, Annotated, Literal

from pipeline.config import cli_parser, command_line, help_text
from pipeline.utils import console
from pipeline.utils.errors import UsageError, run_command

if TYPE_CHECKING:  # imports TensorFlow
    from pipeline.evaluation.parity import Result

PROGRAM = "pipeline doctor"
_LEGEND = """\
engines    largest difference of any weight or optimizer variable between model_fit and
           gradient_tape, and between 1 and 8 steps per call; must be 0
stock fit  distance to Keras's own `fit` on one device in the same precision, for the
           worst tensor, relative to how far training moved it; in float32 at most
           {tolerance}; - if BatchNormalization sees a different part of the batch"""
_Count = Annotated[int, (1, None)]
_Precision = Literal["float32", "mixed_bfloat16", "mixed_float16"]
_VALUES = "1 to 100 values"


@dataclasses.dataclass(frozen=True)
class DoctorOptions:
    """Checks Python, packages, GPUs, CPU, memory and disk. With --parity, instead
    trains for a few steps in every supported way, and compares weights and optimizer
    state with stock Keras.
    """

    parity: str = command_line.DEFAULT_RECIPE
    """Train the network of this recipe on its data in every supported way, with SGD,
    and compare with stock Keras. The training options of the recipe are not used.
    """
    model: str | None = None
    """Replace the recipe's model by this registered model, with its default options;
    `tiny` is the fastest. None: the recipe's model.
    """
    replicas: Annotated[tuple[_Count, ...], _VALUES] = (1, 2)
    """Numbers of replicas; on a CPU, replicas are logical devices."""
    precisions: Annotated[tuple[_Precision, ...], _VALUES] = typing.get_args(_Precision)
    """Precision policies."""
    accumulate: Annotated[tuple[_Count, ...], _VALUES] = (1, 4)
    """Numbers of micro-batches."""
    steps: Annotated[int, (1, 16)] = 16
    """Number of training steps; after more than 16, rounding errors would add up."""
    batch_size: _Count = 32
    """Examples per step, divided equally among the replicas."""


def check_environment() -> int:
    """Prints the result of all checks.

    Returns 1 if a required component is missing or broken.
    """
    from pipeline.runtime import environment_check

    findings = list(environment_check.check())
    rows = [(f.status, f.name, f.value, f.remedy) for f in findings]
    print(console.table(rows, ["status", "check", "found", "remedy"]))
    errors = sum(finding.status == "error" for finding in findings)
    if errors:
        print(f"{errors} of {len(findings)} checks failed")
        return 1
    print("the environment is usable")
    return 0


def parity(options: DoctorOptions) -> int:
    """Trains all cases and prints a table; returns 1 if a difference is too large."""
    recipe = command_line.recipe(options.parity)
    if options.model:
        recipe = recipe.changed(model={"name": options.model})
    for replicas, accumulate in itertools.product(options.replicas, options.accumulate):
        if options.batch_size % (replicas * accumulate):
            raise UsageError(
                f"--batch-size {options.batch_size} cannot be divided equally among"
                f" {replicas} replicas and {accumulate} micro-batches"
            )
    from pipeline.runtime import environment

    largest = recipe.changed(
        runtime={"precision": "float32", "replicas": max(options.replicas)}
    )
    environment.start(largest.runtime)  # imports TensorFlow
    from pipeline.evaluation import parity

    combinations = itertools.product(
        options.replicas, options.precisions, options.accumulate, (False, True)
    )
    cases = [parity.Case(*values) for values in combinations]
    results = []
    for result in parity.run(recipe, cases, options.steps, options.batch_size):
        results.append(result)
        verdict = "passed" if result.passed else f"FAILED {result.error}"
        console.say("case", f"{len(results)} of {len(cases)}: {verdict}")
    headers = [field.name for field in dataclasses.fields(parity.Case)]
    headers += ["engines", "stock fit", ""]
    rows = [_row(result) for result in results]
    print(console.table(rows, headers, right=range(len(headers) - 1)))
    print(_LEGEND.format(tolerance=parity.TOLERANCE))
    passed = sum(result.passed for result in results)
    print(f"{passed} of {len(results)} cases passed")
    return 0 if passed == len(results) else 1


def _row(result: "Result") -> list[object]:
    case = result.case
    stock = "-" if result.stock is None else f"{result.stock:.1e}"
    return [
        case.replicas,
        case.precision,
        case.accumulate,
        "on" if case.clip else "off",
        f"{result.engines:.1e}",
        stock,
        "" if result.passed else "FAILED",
    ]


def main(arguments: list[str]) -> int:
    """`pipeline doctor [--parity [RECIPE]]`; returns 1 if a check fails."""
    words = [part for word in arguments for part in word.split("=", 1)]
    if "--help" in words or "-h" in words:
        purpose = " ".join((DoctorOptions.__doc__ or "").split())
        print(help_text.page(PROGRAM, purpose, DoctorOptions()))
        return 0
    if not words:
        return check_environment()
    if "--parity" not in words:
        raise UsageError(f"{words[0]!r} is only valid with --parity [RECIPE]")
    after = words.index("--parity") + 1
    if after == len(words) or words[after].startswith("--"):
        words.insert(after, command_line.DEFAULT_RECIPE)
    return parity(DoctorOptions(**cli_parser.changes(words, DoctorOptions)))


if __name__ == "__main__":
    run_command(main)
