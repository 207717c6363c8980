"""The order of the examples in each epoch of training: a new permutation."""

import threading
import zlib

import numpy as np

BLOCK = 1 << 24
"""Number of examples in a block. With more than `MAX_COUNT` examples, the blocks are
shuffled, and then the examples within each block, so that memory stays below 1 GB.
"""
MAX_COUNT = 1 << 26
"""The largest number of examples that are shuffled at once."""
_CHECKSUM_LENGTH = 1 << 22  # positions covered by `checksum`


class EpochOrder:
    """Permutations of `count` examples, which depend on the seed and the epoch alone.

    A permutation sorts the numbers that the counter-based generator Philox draws for
    its key (seed, epoch). NumPy promises that the stream of a bit generator stays the
    same in all versions; it does not for `Generator.permutation` (NEP 19).
    """

    def __init__(self, count: int, seed: int) -> None:
        self._count = count
        self._seed = seed % (1 << 64)
        self._block = BLOCK if count > MAX_COUNT else count
        self._lock = threading.Lock()
        self._permutations: dict[tuple[int, int], np.ndarray] = {}

    @property
    def is_blockwise(self) -> bool:
        """Whether the examples are shuffled in blocks instead of all at once."""
        return self._block < self._count

    def positions(self, epoch: int, first: int, last: int) -> np.ndarray:
        """The examples at the positions `first` to `last` - 1 of an epoch, int64."""
        if not self.is_blockwise:
            order = self._permutation(epoch, 0, self._count)
            return order[first:last].astype(np.int64)
        parts = []
        start = 0
        blocks = -(-self._count // self._block)
        for block in self._permutation(epoch, 0, blocks).tolist():
            offset = block * self._block
            size = min(self._block, self._count - offset)
            if start < last and first < start + size:
                order = self._permutation(epoch, 1 + block, size)
                part = order[max(first - start, 0) : last - start]
                parts.append(offset + part.astype(np.int64))
            start += size
        return np.concatenate(parts)

    def checksum(self, epoch: int) -> int:
        """CRC-32 of the first positions of an epoch, at most 4 million."""
        positions = self.positions(epoch, 0, min(self._count, _CHECKSUM_LENGTH))
        return zlib.crc32(positions.astype("<i8").tobytes())

    def _permutation(self, epoch: int, stream: int, size: int) -> np.ndarray:
        """The permutation drawn from a stream of the generator, uint32 (size,).

        Stream 0 orders the blocks, or all examples; stream 1 + b orders the block b.
        The last two permutations are cached.
        """
        with self._lock:
            if (epoch, stream) not in self._permutations:
                key = np.array([self._seed, epoch], np.uint64)
                generator = np.random.Philox(key=key, counter=[0, 0, 0, stream])
                draws = generator.random_raw(size).astype(np.uint32)
                order = np.argsort(draws, kind="stable").astype(np.uint32)
                while len(self._permutations) > 1:
                    del self._permutations[next(iter(self._permutations))]
                self._permutations[epoch, stream] = order
            return self._permutations[epoch, stream]
