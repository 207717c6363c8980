"""CPU time of a user's callbacks that listen per epoch.

    python benchmarks/scripts/callbacks.py [ROUNDS]

Each round trains `digits` (batch 32, 5 epochs, 10 steps per call) without, with, with
and without a CSVLogger and an own callback. Prints quartiles of what they add, and the
part in their methods.
"""

import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from time import process_time


def timed(
    callback: object,
    names: Sequence[str] = (),
    clock: Callable[[], float] = process_time,
) -> list[float]:
    """Replaces methods of a callback, by default all; the list gets the seconds of each
    call.
    """
    seconds: list[float] = []
    for name in names or [name for name in dir(callback) if name.startswith("on_")]:

        def call(
            *given: object, method: object = getattr(callback, name), **logs: object
        ) -> None:
            start = clock()
            method(*given, **logs)
            seconds.append(clock() - start)

        setattr(callback, name, call)
    return seconds


def main(rounds: int = 15) -> None:
    """Compares in one process, for both engines."""
    import keras

    from pipeline.config import command_line, registry
    from pipeline.data import batching, dataset
    from pipeline.runtime import environment
    from pipeline.training.model_builder import build
    from pipeline.training.own_keras.callback import from_object

    settings = command_line.recipe("digits").changed(
        train={"batch_size": 32, "epochs": 5}
    )
    machine, data = environment.start(settings.runtime), dataset.load(settings)
    batches = batching.training(data.splits["train"], settings.train, 0)
    model = build(data.task, settings, machine, batches)
    model.steps_per_execution, best = 10, []
    for engine in map(registry.load, ["engines"] * 2, ["model_fit", "gradient_tape"]):
        ratios, within = [], []
        for number in range(rounds + 1):  # the first one compiles
            cost = {False: 0.0, True: 0.0}
            for listening in (False, True, True, False):
                with (
                    tempfile.NamedTemporaryFile(suffix=".csv") as file,
                    machine.strategy.scope(),
                ):
                    own = keras.callbacks.LambdaCallback(
                        on_epoch_end=lambda *at: best.append(at)
                    )
                    found = list(
                        map(from_object, (keras.callbacks.CSVLogger(file.name), own))
                    )
                    spent, start = [timed(one) for one in found], process_time()
                    engine(model, batches, None, found * listening)
                    cost[listening] += (passed := process_time() - start)
                    within += [sum(map(sum, spent)) / passed] * (
                        number > 0 and listening
                    )
            ratios += [cost[True] / cost[False] - 1] * (number > 0)
        quartiles = " ".join(f"{q:+.2%}" for q in statistics.quantiles(ratios, n=4))
        step = f"{quartiles} of {cost[False] / (2 * batches.last_step) * 1000:.2f} ms"
        print(f"{engine.__name__}: {step}; {statistics.median(within):.2%}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
