"""Timings in interleaved rounds, and their medians, ranges and ratios."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from pipeline.utils import progress_bar

_ALIKE = (0.97, 1.03)  # for the ratio of two measurements of the same


class Failed(Exception):
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
        shown = [
            f"{v:,.{3 if abs(v) < 10 else 1 if abs(v) < 100 else 0}f}" for v in self
        ]
        return (
            f"{shown[0]} ({shown[1]} to {shown[2]})"
            if self.low != self.high
            else shown[0]
        )


def spread(values: Iterable[float]) -> Spread:
    """Median, minimum and maximum of some values."""
    known = list(values)
    return Spread(statistics.median(known), min(known), max(known))


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
        met = self.bound[0] <= self.ratio.median <= self.bound[1]
        return ("met" if met else "NOT met") if self.conclusive else "inconclusive"


def timed(call: Callable[[], float], seconds: float) -> Callable[[], Sample]:
    """A function that repeats a call, which returns its work, for at least some
    seconds.
    """

    def sample() -> Sample:
        work, wall, cpu = 0.0, time.perf_counter(), time.process_time()
        while not work or time.perf_counter() < wall + seconds:
            work += call()
        return Sample(work, time.perf_counter() - wall, time.process_time() - cpu)

    return sample


class Rounds:
    """Takes samples in rounds, in alternating order: A B, B A, ...; the first one is
    not counted.

    `control` is measured twice in each round. A contestant that raises `Failed` drops
    out.
    """

    def __init__(
        self,
        part: str,
        contestants: Mapping[str, Callable[[], Sample]],
        control: str,
        count: int,
    ) -> None:
        self._part, self._failed = part, dict[str, str]()
        self._again = f"{control} (repeated)"
        self._control = f"{control} / {self._again}"
        calls = {**contestants, self._again: contestants[control]}
        self._samples: dict[str, list[Sample]] = {name: [] for name in calls}
        for number in range(count + 1):
            progress_bar.stage("measuring", f"{part}, round {number} of {count}")
            for name in list(self._samples)[:: -1 if number % 2 else 1]:
                try:
                    sample = calls[name]()
                    self._samples[name] += [sample] if number else []
                except Failed as failed:
                    self._failed[name] = str(failed)
                    del self._samples[name]

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
        one, other = (self._samples[name] for name in pair.split(" / "))
        return spread(map(ratios[by], one, other))

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
        why = {n: w for n, w in self._failed.items() if n in (name, *pair.split(" / "))}
        if why:
            more = {
                "note": "; ".join(
                    w if n == name else f"{n}: {w}" for n, w in why.items()
                )
            }
        elif pair:
            shown = pair.replace(" / ", " - ") if by == "seconds" else pair
            more = {"compared": f"{by}: {shown}", "ratio": self.ratio(pair, by), **more}
        if name in why:
            return Line(self._part, name, **more)
        found = self._samples[name]
        value = spread(
            s.wall / s.work if unit == "s" else s.work / s.wall for s in found
        )
        cpu = statistics.median(s.cpu / s.work for s in found)
        if pair and self._again in self._samples:
            alike = self.ratio(self._control, "CPU" if by == "CPU" else "speed").median
            more["conclusive"] = _ALIKE[0] <= alike <= _ALIKE[1]
        return Line(self._part, name, value, unit, cpu, **more)

    def control(self, unit: str = "images/s") -> Line:
        """Whether two measurements of the same agree."""
        found = self.line(self._again, self._control, unit=unit, bound=_ALIKE)
        remedy = (
            ""
            if found.conclusive
            else "other programs were running, or --rounds is too small"
        )
        return dataclasses.replace(found, note=remedy)
