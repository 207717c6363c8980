"""What was asked of a command, before the plan of a recipe has completed it."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from pipeline.config.config import Config


@dataclasses.dataclass(frozen=True)
class Request:
    """A config as it was asked for; `resolve` turns it into the config of a run."""

    config: Config
    planned: tuple[str, ...] = ()
    """Options that the run chooses for its data and its machine, such as
    `train.epochs`; `model` stands for the network and its options.
    """

    def changed(self, **changes: Any) -> Self:
        """A copy with options that the user set, which are then no longer planned; the
        arguments are those of `Config.changed`.
        """
        config = self.config.changed(**changes)
        reasons = {
            option: reason
            for option, reason in config.reasons.items()
            if not _sets(changes, option)
        }
        return dataclasses.replace(
            self,
            config=dataclasses.replace(config, reasons=reasons),
            planned=tuple(name for name in self.planned if not _sets(changes, name)),
        )


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
