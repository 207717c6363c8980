"""Bad steps: skipped, counted, named; what follows them; the norms of gradients in the
log.
"""

import itertools

import non_finite_runs
import numpy as np
import pytest

from pipeline.config import registry

ENGINES = itertools.cycle(registry.names("engines"))


@pytest.mark.parametrize(
    ("kind", "engine"), [*zip(non_finite_runs.KINDS, ENGINES, strict=False)]
)
def test_a_fault_at_a_random_place(workplace, kind, engine):
    generator = np.random.default_rng([3, non_finite_runs.KINDS.index(kind)])
    with pytest.MonkeyPatch.context() as patch:
        assert (
            non_finite_runs.injected(patch, workplace / "run", kind, engine, generator)
            is None
        )
