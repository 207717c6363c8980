"""Another default of `--runtime.seed` for all runs that tests start, which shows that no
test depends on one seed: TESTS_SEED=2 python -m pytest
"""

import os

from pipeline.config.sections import RuntimeConfig


def apply() -> None:
    """Changes the default in this process, and in those that it forks later."""
    seed = int(os.environ.get("TESTS_SEED", "0"))
    RuntimeConfig.__init__.__kwdefaults__["seed"] = seed
    RuntimeConfig.__dataclass_fields__["seed"].default = seed
    RuntimeConfig.seed = seed
