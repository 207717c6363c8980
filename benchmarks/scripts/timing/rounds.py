"""Timings in interleaved rounds, and their medians, ranges and ratios."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from pipeline.utils import progress_bar

_ALIKE = (0.97, 1.03)  # for the ratio of two measurements of the same


class MeasurementError(Exception):
    """Something cannot be measured; the message says why in one line."""


class Sample(NamedTuple):
    """Work (images, GFLOP, GB, or 1 for a process), and the wall and CPU seconds that
    it took.
    """

    work: float
    wall: float
    cpu: float


class Spread(NamedTuple):
    """Median, minimum and maximum."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        texts = [_shorten(value) for value in self]
        if self.low == self.high:
            return texts[0]
        return f"{texts[0]} ({texts[1]} to {texts[2]})"


def _shorten(value: float) -> str:
    """A number with about four digits."""
    if abs(value) < 10:
        return f"{value:.3f}"
    if abs(value) < 100:
        return f"{value:.1f}"
    return f"{value:,.0f}"


def spread(values: Iterable[float]) -> Spread:
    """Median, minimum and maximum of some values."""
    numbers = list(values)
    return Spread(statistics.median(numbers), min(numbers), max(numbers))


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of the table: a value, and a ratio whose median should be
    within a bound.
    """

    part: str
    name: str
    value: Spread | None = None
    unit: str = ""
    cpu: float | None = None
    """CPU seconds per work."""
    compared: str = ""
    """What `ratio` is."""
    ratio: Spread | None = None
    bound: tuple[float, float] | None = None
    note: str = ""
    conclusive: bool = True
    """Whether two measurements of the same agree."""

    @property
    def verdict(self) -> str:
        """Whether the ratio is within its bound."""
        if self.bound is None or self.ratio is None:
            return ""
        if not self.conclusive:
            return "inconclusive"
        is_met = self.bound[0] <= self.ratio.median <= self.bound[1]
        return "met" if is_met else "NOT met"


def repeat(call: Callable[[], float], seconds: float) -> Callable[[], Sample]:
    """A function that repeats a call, which returns its work, for at least some
    seconds.
    """

    def sample() -> Sample:
        work = 0.0
        wall = time.perf_counter()
        cpu = time.process_time()
        while not work or time.perf_counter() < wall + seconds:
            work += call()
        return Sample(work, time.perf_counter() - wall, time.process_time() - cpu)

    return sample


class Rounds:
    """Takes samples in rounds, in alternating order: A B, B A, ...; the first round is
    not counted.

    `control` is measured twice in each round. A contestant that raises
    `MeasurementError` drops out.
    """

    def __init__(
        self,
        part: str,
        contestants: Mapping[str, Callable[[], Sample]],
        control: str,
        count: int,
    ) -> None:
        self._part = part
        self._failures: dict[str, str] = {}
        self._again = f"{control} (repeated)"
        self._control = f"{control} / {self._again}"
        calls = {**contestants, self._again: contestants[control]}
        self._samples: dict[str, list[Sample]] = {name: [] for name in calls}
        for number in range(count + 1):
            progress_bar.stage("measuring", f"{part}, round {number} of {count}")
            names = list(self._samples)
            if number % 2:
                names.reverse()
            for name in names:
                try:
                    sample = calls[name]()
                except MeasurementError as error:
                    self._failures[name] = str(error)
                    del self._samples[name]
                    continue
                if number:
                    self._samples[name].append(sample)

    def ratio(self, pair: str, by: str = "speed") -> Spread:
        """`A / B` in each round: speeds, times or CPU times per work, or `A - B` in
        seconds.
        """
        ratios: dict[str, Callable[[Sample, Sample], float]] = {
            "speed": lambda a, b: a.work / a.wall / (b.work / b.wall),
            "time": lambda a, b: a.wall / a.work / (b.wall / b.work),
            "CPU": lambda a, b: a.cpu / a.work / (b.cpu / b.work),
            "seconds": lambda a, b: a.wall - b.wall,
        }
        first, second = (self._samples[name] for name in pair.split(" / "))
        return spread(map(ratios[by], first, second))

    def line(
        self,
        name: str,
        pair: str = "",
        by: str = "speed",
        unit: str = "images/s",
        **more: Any,
    ) -> Line:
        """The line of a contestant: its speed, or its time if the unit is `s`, and a
        ratio.
        """
        names = (name, *pair.split(" / "))
        failures = {n: why for n, why in self._failures.items() if n in names}
        if failures:
            notes = [
                why if failed == name else f"{failed}: {why}"
                for failed, why in failures.items()
            ]
            more = {"note": "; ".join(notes)}
        elif pair:
            shown = pair.replace(" / ", " - ") if by == "seconds" else pair
            more = {"compared": f"{by}: {shown}", "ratio": self.ratio(pair, by), **more}
        if name in failures:
            return Line(self._part, name, **more)
        samples = self._samples[name]
        if unit == "s":
            value = spread(s.wall / s.work for s in samples)
        else:
            value = spread(s.work / s.wall for s in samples)
        cpu = statistics.median(s.cpu / s.work for s in samples)
        if pair and self._again in self._samples:
            alike = self.ratio(self._control, "CPU" if by == "CPU" else "speed").median
            more["conclusive"] = _ALIKE[0] <= alike <= _ALIKE[1]
        return Line(self._part, name, value, unit, cpu, **more)

    def control(self, unit: str = "images/s") -> Line:
        """Whether two measurements of the same agree."""
        line = self.line(self._again, self._control, unit=unit, bound=_ALIKE)
        if line.conclusive:
            return dataclasses.replace(line, note="")
        remedy = "other programs were running, or --rounds is too small"
        return dataclasses.replace(line, note=remedy)
