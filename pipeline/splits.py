"""Which examples are trained on, which are held out: splits that stay when examples are added."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from pipeline import seeds
from pipeline.stores import Store


@dataclasses.dataclass(frozen=True)
class Split:
    """Decoded examples of one split: some rows of a store that several splits may share."""

    store: Store
    rows: np.ndarray
    """int64, (examples,): which rows, in the order of the source."""

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> np.ndarray:
        """One field of all examples of the split, (examples, ...)."""
        if name in self.store.short:
            return self.store.short[name][self.rows]
        return self.store.take(self.rows)[name]

    def take(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """The examples at these positions of the split, column by column."""
        return self.store.take(self.rows[np.asarray(positions)])

    def first(self, count: int) -> "Split":
        """The first examples of it."""
        return Split(self.store, self.rows[:count])


def divide(train: Split, shares: Mapping[str, float], seed: int) -> dict[str, Split]:
    """Holds parts of `train` out, and what remains as `train`.

    Where an example goes depends on the seed, its class (where it has one) and its id alone, by
    comparing a hash with the shares: an example never moves when others are added or removed,
    and each class is divided on its own (shares are met up to the noise of a coin toss each).
    Examples with a `group` go where their group goes, whatever their class.
    """
    ids = train.column("id")
    labels = np.zeros_like(ids)
    if "group" in train.store.short:
        ids = train.column("group")
    elif "label" in train.store.short and train.store.short["label"].dtype.kind in "iu":
        labels = train.column("label").astype(np.int64)
    place = seeds.uniform(seeds.of_examples(seed, labels, ids)).numpy()
    # From the two ends, so that another share for validation moves no example into the test.
    validation = place < shares.get("validation", 0.0)
    test = place >= 1.0 - shares.get("test", 0.0)
    masks = {"validation": validation, "test": test, "train": ~(validation | test)}
    return {
        name: Split(train.store, train.rows[mask])
        for name, mask in masks.items()
        if name in shares or name == "train"
    }
