"""The global random states of Python and NumPy, which belong to the caller of `fit`."""

import contextlib
import random
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def preserve() -> Iterator[None]:
    """Restores the states at the end, so that what follows draws other numbers.

    A run seeds both: networks that are built after it would all start from the same
    weights, because Keras draws the seeds of its initializers from Python's state.
    """
    state = random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy else None
    try:
        yield
    finally:
        random.setstate(state)
        if numpy := sys.modules.get("numpy"):
            if numpy_state is None:
                numpy.random.seed()
            else:
                numpy.random.set_state(numpy_state)
