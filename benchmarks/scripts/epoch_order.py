"""Orders an epoch of COUNT examples, and prints the time and the peak memory.

PYTHONPATH=. python benchmarks/scripts/epoch_order.py [COUNT = 100000000]
"""

import resource
import sys
import time

from pipeline.data.epoch_order import EpochOrder

CHUNK = 1 << 22  # as in training


def measure(count: int) -> None:
    order = EpochOrder(count, seed=0)
    start = time.monotonic()
    for first in range(0, count, CHUNK):
        order.positions(0, first, min(first + CHUNK, count))
    seconds = time.monotonic() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # GB on Linux
    print(f"{count:,} examples: {seconds:.1f} s, peak memory {peak:.2f} GB")


if __name__ == "__main__":
    measure(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000_000)
