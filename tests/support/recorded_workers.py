"""Two workers of a small run whose events are recorded, to stop it at one of them."""

import json
import time

from worker_processes import Workers

# 12 steps in an epoch, in calls of 4; all kinds of state, as in the fault injection.
_TEXT = """digits --model.name tests.nightly.fault_injection.reference.subject --data.limit 280
    --train.batch-size 16 --train.epochs 2 --train.steps-per-execution 4 --train.checkpoint-steps 4
    --train.ema 0.9 --train.patience 2 --train.engine gradient_tape --data.augment
    --log.no-progress --export.no-enabled --run-directory run"""
WORDS = _TEXT.split()


class Recorded(Workers):
    """Both workers of the tested run, whose events are recorded."""

    def __init__(self, cwd, folder, faults=(None, None), words=WORDS):
        self._records = [folder / f"{number}.events" for number in (0, 1)]
        both = []
        for record, fault in zip(self._records, faults, strict=True):
            record.touch()
            order = json.dumps([str(record), fault])
            recorder = "tests.nightly.fault_injection.recorder"
            both.append(["-m", recorder, order, "pipeline.fit", *words])
        super().__init__(both[0], cwd, other=both[1])

    def times(self, index, name):
        """When a worker had the events of a name, or of a stage."""
        return [
            float(seconds)
            for event, seconds, detail in self._lines(index)
            if name in (event, detail)
        ]

    def last(self):
        """When any of them had its last event."""
        return max(float(line[1]) for index in (0, 1) for line in self._lines(index))

    def _lines(self, index):
        lines = self._records[index].read_text().splitlines(keepends=True)
        return [line[:-1].split("\t") for line in lines if line.endswith("\n")]


def train(folder, faults=(None, None), words=WORDS):
    """Runs both workers to their end: (exit code, output, errors) of each, and seconds
    to stop.
    """
    with Recorded(folder, folder, faults, words) as workers:
        ends = [workers.output(number) for number in (0, 1)]
        end = time.monotonic()
    calls = [time for index in (0, 1) for time in workers.times(index, "computed")]
    return ends, end - max(calls, default=end)
