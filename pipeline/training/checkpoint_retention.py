"""Checkpoint retention: keeps the two newest checkpoints and the best."""

from collections.abc import Iterable


class Retention:
    """The checkpoints to keep.

    Each of the two newest checkpoints keeps the one that was the best when it was
    saved: if the newest is damaged, a run is resumed from the one before, which needs
    the best checkpoint of that time.

    Args:
        state: `Retention.state` of an earlier process.
    """

    def __init__(self, state: Iterable[tuple[int, int]] = ()) -> None:
        self._best_steps = dict(state)

    def add(self, step: int, best_step: int) -> "Retention":
        """Returns a copy to which the checkpoint of a step is added."""
        earlier = [pair for pair in self.state if pair[0] != step]
        return Retention([*earlier[-1:], (step, best_step)])

    @property
    def state(self) -> list[tuple[int, int]]:
        """(step, the best step at that time) of the two newest, as plain JSON."""
        return list(self._best_steps.items())

    @property
    def newest(self) -> int:
        """The step of the newest checkpoint; 0 if there is none."""
        return max(self._best_steps, default=0)

    @property
    def steps(self) -> set[int]:
        """The steps whose checkpoints are kept."""
        return {*self._best_steps, *self._best_steps.values()}
