"""The request of a command line or a call, which `resolve` turns into a config."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from pipeline.config.config import Config


@dataclasses.dataclass(frozen=True)
class Request:
    """A config as the user asked for it, and the options that the run is to choose."""

    config: Config
    planned: tuple[str, ...] = ()
    """Options that the run chooses for its data and its machine, such as
    `train.epochs`; `model` stands for the network and its options.
    """

    def changed(self, **changes: Any) -> Self:
        """A copy with options that the user set, which are then no longer planned.

        The arguments are the same as for `Config.changed`.
        """
        config = self.config.changed(**changes)
        reasons = {
            option: reason
            for option, reason in config.reasons.items()
            if not _sets(changes, option)
        }
        config = dataclasses.replace(config, reasons=reasons)
        planned = tuple(name for name in self.planned if not _sets(changes, name))
        return dataclasses.replace(self, config=config, planned=planned)


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
