"""Finds near duplicates among images, by comparing thumbnails.

Near duplicates are the same image re-encoded, resized, mirrored, or shifted by about a
pixel. There are three filters, from coarse to fine:

1. All pairs of 4x4 color thumbnails are compared, unchanged and mirrored, by blocked
   matrix products. The part of the difference that a small shift explains is removed
   (the tangent distance of Simard, Le Cun and Denker, NIPS 1992); otherwise, a shift of
   one pixel changes 32x32 images by up to 16 levels, and thousands of unrelated images
   are closer. Brightness and top-minus-bottom do not change when an image is mirrored,
   and differ by at most as much as the images, so only pairs that are close in both are
   compared.
2. For the remaining pairs, the same difference of 8x8 thumbnails must be small, and not
   larger than the distance to the surroundings, the fourth nearest of a sample of all
   images.
3. The 32x32 thumbnails are compared, one of them shifted by the integer shift found by
   filter 2.

A duplicate must be much closer than the surroundings, as in the ratio test of Lowe
(IJCV 2004): trousers in a catalog and X-rays of one device are all similar without
being copies. If the surroundings are as close as another encoding of the same image (a
gauge filmed by a fixed camera), copies cannot be distinguished from other images, and
none are found.

Distances are root mean squares over pixels and channels, in levels from 0 to 255. The
limits were determined on CIFAR-10 and Fashion-MNIST (`benchmarks/scripts/clean.py`).
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
from threadpoolctl import threadpool_limits

SIDE = 32
"""Height and width of a thumbnail, in pixels."""
_COARSE, _FINE = 4, 8
# JPEG of quality 75, resizing to 3/4 and back, and a diagonal shift by one pixel stay
# below these for 99% of the images of CIFAR-10; the second limit is a fraction of the
# image's own contrast.
_COARSE_LIMIT, _COARSE_SHARE = 4.0, 0.6
_FINE_LIMIT, _FINE_SHARE = 10.0, 0.3
_BLURRED_LIMIT, _BLURRED_SHARE = 6.0, 0.2
_PIXEL_LIMIT, _PIXEL_SHARE = 16.0, 0.4
# The surroundings: the distance to the fourth nearest in a sample of this size. The
# distance of duplicates must be less than a fraction of it. With a sample of 256, pairs
# of Fashion-MNIST with different labels would pass.
_NEXT, _SAMPLE, _SHARE = 4, 1024, 0.4
# JPEG of quality 75 changes a low-contrast image by 1 or 2 levels.
_CROWDED = 2.0
# A shift by one pixel changes brightness a little: pairs further apart than this are
# not compared.
_REACH = _COARSE_LIMIT + 1.5
_ROWS, _COLUMNS, _PAIRS = 256, 4096, 4096


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Pairs of near duplicates: the positions of two images, `second` larger than
    `first`.

    `distance` is that of the best matching thumbnails, in levels from 0 to 255.
    """

    first: np.ndarray  # int64 (pairs,)
    second: np.ndarray  # int64 (pairs,)
    distance: np.ndarray  # float32 (pairs,)
    crowded: (
        np.ndarray
    )  # whether other images are as close as copies would be, bool (images,)


# With such small products, threads wait for each other: 24 s of CPU time instead of 6.
@threadpool_limits.wrap(limits=1, user_api="blas")
def near(thumbnails: np.ndarray) -> Pairs:
    """All pairs of near duplicates among thumbnails, uint8 (images, 32, 32, 3).

    Needs about 1.6 kB of memory per image, besides the thumbnails. The time grows with
    the square of their number, but only one percent of all pairs is compared.
    """
    none = np.zeros(0, np.int64)
    found = [(none, none, np.zeros(0, np.float32))]
    if len(thumbnails) < 2:
        return Pairs(
            none, none, np.zeros(0, np.float32), np.zeros(len(thumbnails), bool)
        )
    coarse, fine = (
        _Descriptors(thumbnails, _COARSE),
        _Descriptors(thumbnails, _FINE, np.float16),
    )
    around = _surroundings(fine)
    crowded = around < _CROWDED
    around[crowded] = -1  # nothing is that near
    for i, j, mirrored in _candidates(coarse, around):
        for start in range(0, len(i), _PAIRS):
            first, second = i[start : start + _PAIRS], j[start : start + _PAIRS]
            limit = np.minimum(around[first], around[second])
            pair, moved = _filter(fine, first, second, mirrored, limit)
            first, second, limit = first[pair], second[pair], limit[pair]
            if not len(first):
                continue
            distance, kept = _compare(
                thumbnails[first], thumbnails[second], mirrored, moved
            )
            kept &= distance <= _SHARE * limit
            found.append((first[kept], second[kept], distance[kept]))
    first, second, distance = map(np.concatenate, zip(*found, strict=True))
    # A pair may match as it is and mirrored: the smaller distance counts.
    low, high = np.minimum(first, second), np.maximum(first, second)
    order = np.lexsort((distance, high, low))
    low, high, distance = low[order], high[order], distance[order]
    new = np.diff(low, prepend=-1).astype(bool) | np.diff(high, prepend=-1).astype(bool)
    return Pairs(low[new], high[new], distance[new], crowded)


def _surroundings(fine: "_Descriptors") -> np.ndarray:
    """The distance of each image to the fourth nearest of a sample; infinite if there
    is none.
    """
    count = len(fine.values)
    if count <= _NEXT:
        return np.full(count, np.inf, np.float32)
    sample = np.random.default_rng(0).permutation(count)[:_SAMPLE]
    place = np.full(count, -1)
    place[sample] = np.arange(len(sample))
    table = _Table(fine, sample)
    around = np.empty(count, np.float32)
    for start in range(0, count, _PAIRS):
        part = slice(start, start + _PAIRS)
        distance = table.distances(_rows(fine.values[part]))
        itself = np.flatnonzero(place[part] >= 0)
        distance[itself, place[part][itself]] = np.inf
        around[part] = np.partition(distance, _NEXT - 1, axis=1)[:, _NEXT - 1]
    return np.sqrt(np.maximum(around, 0))


class _Descriptors:
    """Thumbnails of `cells` x `cells` and their derivatives; sums of squares are mean
    squares.
    """

    def __init__(
        self, thumbnails: np.ndarray, cells: int, dtype: type = np.float32
    ) -> None:
        self.cells, self.numbers = cells, cells * cells * 3
        shape = (len(thumbnails), self.numbers)
        self.values: np.ndarray = np.empty(shape, dtype)
        self.right: np.ndarray = np.empty(shape, dtype)
        self.down: np.ndarray = np.empty(shape, dtype)
        self.steps = np.empty((len(thumbnails), 3), np.float32)
        for start in range(0, len(thumbnails), _PAIRS):
            part = slice(start, start + _PAIRS)
            self._describe(np.asarray(thumbnails[part]), part)
        # Standard deviation around the mean color, as the contrast.
        grid = self.values.reshape(-1, cells * cells, 3)
        self.contrast = np.sqrt(
            grid.var(axis=1, dtype=np.float32).sum(axis=1) * cells**2
        )

    def _describe(self, pictures: np.ndarray, part: slice) -> None:
        padded = np.pad(pictures, ((0, 0), (1, 1), (1, 1), (0, 0)), "edge")
        values = self._means(pictures)
        right = (
            self._means(padded[:, 1:-1, 2:]) - self._means(padded[:, 1:-1, :-2])
        ) / 2
        down = (
            self._means(padded[:, 2:, 1:-1]) - self._means(padded[:, :-2, 1:-1])
        ) / 2
        # Orthonormal, so that a shift explains the sum of two squares.
        width = np.linalg.norm(right, axis=1) + 1e-3
        right /= width[:, None]
        slant = (right * down).sum(axis=1)
        down -= slant[:, None] * right
        height = np.linalg.norm(down, axis=1) + 1e-3
        self.values[part], self.right[part], self.down[part] = (
            values,
            right,
            down / height[:, None],
        )
        self.steps[part] = np.stack([width, slant, height], axis=1)

    def _means(self, pictures: np.ndarray) -> np.ndarray:
        sums = _cells(_cells(pictures, 1, SIDE // self.cells), 2, SIDE // self.cells)
        scale = self.cells**2 / SIDE**2 * self.numbers**-0.5
        return sums.reshape(len(pictures), -1) * np.float32(scale)

    def mirrored(self, values: np.ndarray) -> np.ndarray:
        grid = values.reshape(-1, self.cells, self.cells, 3)
        return np.ascontiguousarray(grid[:, :, ::-1]).reshape(len(values), -1)


def _cells(pictures: np.ndarray, axis: int, each: int) -> np.ndarray:
    """Sums of `each` neighbors along an axis; NumPy's sum over an inner axis is 20
    times slower.
    """
    parts = [slice(None)] * axis
    total = pictures[(*parts, slice(0, None, each))]
    total = total.astype(np.promote_types(total.dtype, np.uint16))
    for offset in range(1, each):
        total += pictures[(*parts, slice(offset, None, each))]
    return total


def _candidates(
    coarse: _Descriptors, around: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, bool]]:
    """Pairs that pass the first filter, at most once as they are and once mirrored."""
    count, numbers = coarse.values.shape
    below = np.where(np.arange(numbers) < numbers // 2, 1, -1).astype(np.float32)
    brightness = coarse.values.sum(axis=1) * numbers**-0.5
    upper = coarse.values @ below * np.float32(numbers**-0.5)
    bucket = np.floor(brightness / _REACH).astype(np.int64)
    order = np.lexsort((upper, bucket))
    upper, bucket = upper[order], bucket[order]
    starts = np.searchsorted(bucket, np.arange(bucket[-1] + 3) if count else [])
    limit = np.minimum(_COARSE_SHARE * around, _COARSE_LIMIT)[order]
    limit *= np.abs(limit)  # keeps its sign: nothing is below a negative one
    table, values = _Table(coarse, order), coarse.values[order]
    lefts = (_rows(values), _rows(coarse.mirrored(values)))
    for number in range(len(starts) - 2):
        begin, end, beyond = starts[number : number + 3]
        for top in range(begin, end, _ROWS):
            rows = slice(top, min(top + _ROWS, end))
            low, high = upper[rows.start] - _REACH, upper[rows.stop - 1] + _REACH
            same = (top, begin + np.searchsorted(upper[begin:end], high, "right"))
            next_ = end + np.searchsorted(upper[end:beyond], (low, high))
            for left, right in (same, next_):
                for at in range(left, right, _COLUMNS):
                    columns = slice(at, min(at + _COLUMNS, right))
                    for mirrored in (False, True):
                        distance = table.distances(lefts[mirrored][rows], columns)
                        i, j = np.nonzero(distance <= limit[rows, None])
                        kept = distance[i, j] <= limit[columns][j]
                        i, j = i + top, j + at
                        kept &= i < j
                        yield order[i[kept]], order[j[kept]], mirrored


class _Table:
    """Some of the descriptors, arranged so that a product with `_rows` of others is a
    distance.
    """

    def __init__(self, descriptors: _Descriptors, some: np.ndarray) -> None:
        values, *tangents = (
            array[some].astype(np.float32)
            for array in (descriptors.values, descriptors.right, descriptors.down)
        )
        square = (values * values).sum(axis=1, keepdims=True)
        one = np.ones_like(square)
        self._columns = np.concatenate([values, square, one], axis=1)
        # The part that a shift explains: (row - column) . tangent
        self._tangents = []
        for tangent in tangents:
            own = (values * tangent).sum(axis=1, keepdims=True)
            self._tangents.append(
                np.concatenate([tangent / -2, -own, np.zeros_like(one)], axis=1)
            )

    def distances(self, rows: np.ndarray, columns: slice = slice(None)) -> np.ndarray:
        """Squared distances, except for the part that a shift explains, (rows,
        columns).
        """
        distance = rows @ self._columns[columns].T
        for tangent in self._tangents:
            along = rows @ tangent[columns].T
            along *= along
            distance -= along
        return distance


def _rows(values: np.ndarray) -> np.ndarray:
    values = values.astype(np.float32)
    square = (values * values).sum(axis=1, keepdims=True)
    return np.concatenate([-2 * values, np.ones_like(square), square], axis=1)


def _filter(
    fine: _Descriptors,
    first: np.ndarray,
    second: np.ndarray,
    mirrored: bool,
    limit: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the pairs that pass the second filter, and their shift (down,
    right).
    """
    values = fine.values[first].astype(np.float32)
    difference = (fine.mirrored(values) if mirrored else values) - fine.values[second]
    along = (difference * fine.right[second]).sum(axis=1)
    across = (difference * fine.down[second]).sum(axis=1)
    left = np.sqrt(np.maximum((difference**2).sum(axis=1) - along**2 - across**2, 0))
    contrast = np.minimum(fine.contrast[first], fine.contrast[second])
    limit = np.minimum(limit, _FINE_LIMIT)
    kept = np.flatnonzero(left <= np.minimum(limit, _FINE_SHARE * contrast))
    # From the orthonormal tangents back to pixels.
    width, slant, height = fine.steps[second[kept]].T
    down = across[kept] / height
    right = (along[kept] - slant * down) / width
    return kept, np.clip(np.rint([down, right]), -1, 1).astype(np.int64)


def _compare(
    one: np.ndarray, other: np.ndarray, mirrored: bool, moved: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Distances of images, `other` shifted by (down, right) pixels; whether they are
    small.
    """
    one = one[:, :, ::-1] if mirrored else one
    inside = np.arange(1, SIDE - 1)
    at = np.arange(len(one))[:, None, None]
    rows = inside[:, None] + moved[0][:, None, None]
    columns = inside + moved[1][:, None, None]
    one = one[:, 1:-1, 1:-1].astype(np.float32)
    difference = one - other[at, rows, columns]
    contrast = _variance(one)
    # Encoding and resizing change single pixels: means of 2x2 are compared, then of
    # 5x5.
    smooth = difference[:, 1:, 1:] + difference[:, :-1, 1:]
    smooth += difference[:, 1:, :-1] + difference[:, :-1, :-1]
    pixels = _mean_square(smooth) / 16
    blurred = _mean_square(_cells(_cells(difference, 1, 5), 2, 5)) / 625
    kept = pixels <= np.minimum(_PIXEL_LIMIT**2, _PIXEL_SHARE**2 * contrast)
    kept &= blurred <= np.minimum(_BLURRED_LIMIT**2, _BLURRED_SHARE**2 * contrast)
    return np.sqrt(pixels), kept


def _mean_square(pictures: np.ndarray) -> np.ndarray:
    flat = pictures.reshape(len(pictures), -1)
    return np.einsum("ij,ij->i", flat, flat) / flat.shape[1]


def _variance(pictures: np.ndarray) -> np.ndarray:
    """Mean square around the mean color, float32 (images,)."""
    flat = pictures.reshape(len(pictures), -1, 3)
    mean = np.einsum("ijc->ic", flat) / flat.shape[1]
    return _mean_square(pictures) - (mean**2).mean(axis=1)
