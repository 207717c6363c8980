"""The request of a command line or a call, which `resolve` turns into a config."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, Self

from pipeline.config.config import Config


@dataclasses.dataclass(frozen=True)
class Request:
    """A config as the user asked for it, and the options that the run is to choose."""

    config: Config
    planned: tuple[str, ...] = ()
    """Options that the run chooses for its data and its machine, such as
    `train.epochs`; `model` stands for the network and its options.
    """
    plan: Literal["photos", "epochs", "rows"] = "photos"
    """How they are chosen: all for photos, the epochs alone for few examples, or batch
    size and epochs for the rows of a table.
    """

    def changed(self, **changes: Any) -> Self:
        """A copy with options that the user set, which are then no longer planned.

        The arguments are the same as for `Config.changed`.
        """
        planned = tuple(name for name in self.planned if not _sets(changes, name))
        reasons = {
            option: reason
            for option, reason in self.config.reasons.items()
            if not _sets(changes, option)
        }
        if "train.batch_size" in planned:
            changes["train"] = self._with_batch_size(changes)
        config = self.config.changed(**changes)
        config = dataclasses.replace(config, reasons=reasons)
        return dataclasses.replace(self, config=config, planned=planned)

    def _with_batch_size(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """The changes of `train` with a batch size that divides into equal parts.

        Until the plan has chosen the batch size, a config needs one that is valid.
        """
        train = dict(changes.get("train", {}))
        accumulate = train.get("accumulate", self.config.train.accumulate)
        runtime = changes.get("runtime", {})
        if not isinstance(runtime, Mapping):
            runtime = {"replicas": runtime.replicas}
        replicas = runtime.get("replicas", self.config.runtime.replicas)
        parts = 1
        for count in (accumulate, replicas):
            if isinstance(count, int):  # anything else is `auto`, or reported later
                parts *= count
        size = self.config.train.batch_size
        train["batch_size"] = math.ceil(size / max(parts, 1)) * max(parts, 1)
        return train


def _sets(changes: Mapping[str, Any], name: str) -> bool:
    """Whether changes set an option, such as `train.epochs`; `model` stands for the
    network.
    """
    section, _, option = name.partition(".")
    values = changes.get(section)
    if not isinstance(values, Mapping):
        return values is not None
    if option:
        return option in values
    return bool(values.keys() - {"weights"})
