"""Finds near duplicates among images, by comparing thumbnails.

Near duplicates are the same image re-encoded, resized, mirrored, or shifted by about a
pixel. Three filters, from coarse to fine, find them:

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

from collections.abc import Iterator

import numpy as np
from threadpoolctl import threadpool_limits

from pipeline.contracts import Pairs

SIDE = 32
"""Height and width of a thumbnail, in pixels."""
_COARSE_CELLS = 4
_FINE_CELLS = 8
# JPEG of quality 75, resizing to 3/4 and back, and a diagonal shift by one pixel stay
# below these limits for 99% of the images of CIFAR-10. The relative limits are
# fractions of the image's contrast, the coarse one of the distance to its surroundings.
_COARSE_LIMIT = 4.0
_COARSE_RELATIVE = 0.6
_FINE_LIMIT = 10.0
_FINE_RELATIVE = 0.3
_BLURRED_LIMIT = 6.0
_BLURRED_RELATIVE = 0.2
_PIXEL_LIMIT = 16.0
_PIXEL_RELATIVE = 0.4
# The surroundings of an image: its distance to the fourth nearest image of a sample.
# The distance of duplicates must be less than a fraction of it. With a sample of 256,
# pairs of Fashion-MNIST with different labels would pass.
_NEIGHBOR = 4
_SAMPLE = 1024
_SURROUNDINGS_RELATIVE = 0.4
# JPEG of quality 75 changes a low-contrast image by 1 or 2 levels.
_CROWDED = 2.0
# A shift by one pixel changes brightness a little: pairs further apart than this are
# not compared.
_REACH = _COARSE_LIMIT + 1.5
# Sizes of the blocks that are computed at once.
_ROWS = 256
_COLUMNS = 4096
_PAIRS = 4096


# With such small products, threads wait for each other: 24 s of CPU time instead of 6.
@threadpool_limits.wrap(limits=1, user_api="blas")
def find(thumbnails: np.ndarray) -> Pairs:
    """Finds all near duplicates among thumbnails, uint8 (images, 32, 32, 3).

    `distance` is between the best matching thumbnails, in levels from 0 to 255.
    Needs about 1.6 kB of memory per image, besides the thumbnails. The time grows with
    the square of their number, but only one percent of all pairs is compared.
    """
    no_rows = np.zeros(0, np.int64)
    no_distances = np.zeros(0, np.float32)
    if len(thumbnails) < 2:
        return Pairs(no_rows, no_rows, no_distances, np.zeros(len(thumbnails), bool))
    coarse = _Descriptors(thumbnails, _COARSE_CELLS)
    fine = _Descriptors(thumbnails, _FINE_CELLS, np.float16)
    surroundings = _surroundings(fine)
    crowded = surroundings < _CROWDED
    surroundings[crowded] = -1  # less than any distance
    matches = [(no_rows, no_rows, no_distances)]
    for i, j, is_mirrored in _candidates(coarse, surroundings):
        for start in range(0, len(i), _PAIRS):
            first = i[start : start + _PAIRS]
            second = j[start : start + _PAIRS]
            limit = np.minimum(surroundings[first], surroundings[second])
            kept, shift = _filter(fine, first, second, is_mirrored, limit)
            first = first[kept]
            second = second[kept]
            if not len(first):
                continue
            distance, is_close = _compare(
                thumbnails[first], thumbnails[second], is_mirrored, shift
            )
            is_close &= distance <= _SURROUNDINGS_RELATIVE * limit[kept]
            matches.append((first[is_close], second[is_close], distance[is_close]))
    first, second, distance = map(np.concatenate, zip(*matches, strict=True))
    low = np.minimum(first, second)
    high = np.maximum(first, second)
    order = np.lexsort((distance, high, low))
    low = low[order]
    high = high[order]
    # A pair may match as it is and mirrored: the smaller distance comes first.
    is_new = (np.diff(low, prepend=-1) != 0) | (np.diff(high, prepend=-1) != 0)
    return Pairs(low[is_new], high[is_new], distance[order][is_new], crowded)


def _surroundings(fine: "_Descriptors") -> np.ndarray:
    """The distance of each image to the fourth nearest image of a sample.

    Infinite if there are too few images.
    """
    count = len(fine.values)
    if count <= _NEIGHBOR:
        return np.full(count, np.inf, np.float32)
    sample = np.random.default_rng(0).permutation(count)[:_SAMPLE]
    column = np.full(count, -1)
    column[sample] = np.arange(len(sample))
    table = _Table(fine, sample)
    nearest = np.empty(count, np.float32)
    for start in range(0, count, _PAIRS):
        part = slice(start, start + _PAIRS)
        distance = table.distances(_rows(fine.values[part]))
        # An image of the sample is no neighbor of itself.
        in_sample = np.flatnonzero(column[part] >= 0)
        distance[in_sample, column[part][in_sample]] = np.inf
        nearest[part] = np.partition(distance, _NEIGHBOR - 1, axis=1)[:, _NEIGHBOR - 1]
    return np.sqrt(np.maximum(nearest, 0))


class _Descriptors:
    """Thumbnails of `cells` x `cells` pixels and their derivatives.

    Values are scaled so that a sum of squares over a thumbnail is a mean square.
    """

    def __init__(
        self, thumbnails: np.ndarray, cells: int, dtype: type = np.float32
    ) -> None:
        self.cells = cells
        self.numbers = cells * cells * 3
        shape = (len(thumbnails), self.numbers)
        self.values: np.ndarray = np.empty(shape, dtype)
        self.right: np.ndarray = np.empty(shape, dtype)
        self.down: np.ndarray = np.empty(shape, dtype)
        self.steps = np.empty((len(thumbnails), 3), np.float32)
        for start in range(0, len(thumbnails), _PAIRS):
            part = slice(start, start + _PAIRS)
            self._describe(np.asarray(thumbnails[part]), part)
        # The standard deviation around the mean color.
        grid = self.values.reshape(-1, cells * cells, 3)
        variance = grid.var(axis=1, dtype=np.float32).sum(axis=1)
        self.contrast = np.sqrt(variance * cells**2)

    def _describe(self, pictures: np.ndarray, part: slice) -> None:
        padded = np.pad(pictures, ((0, 0), (1, 1), (1, 1), (0, 0)), "edge")
        right = self._means(padded[:, 1:-1, 2:]) - self._means(padded[:, 1:-1, :-2])
        right /= 2
        down = self._means(padded[:, 2:, 1:-1]) - self._means(padded[:, :-2, 1:-1])
        down /= 2
        # Orthonormal, so that a shift explains the sum of two squares.
        width = np.linalg.norm(right, axis=1) + 1e-3
        right /= width[:, None]
        slant = (right * down).sum(axis=1)
        down -= slant[:, None] * right
        height = np.linalg.norm(down, axis=1) + 1e-3
        self.values[part] = self._means(pictures)
        self.right[part] = right
        self.down[part] = down / height[:, None]
        self.steps[part] = np.stack([width, slant, height], axis=1)

    def _means(self, pictures: np.ndarray) -> np.ndarray:
        size = SIDE // self.cells
        sums = _sum_neighbors(_sum_neighbors(pictures, 1, size), 2, size)
        scale = self.cells**2 / SIDE**2 * self.numbers**-0.5
        return sums.reshape(len(pictures), -1) * np.float32(scale)

    def mirror(self, values: np.ndarray) -> np.ndarray:
        grid = values.reshape(-1, self.cells, self.cells, 3)
        return np.ascontiguousarray(grid[:, :, ::-1]).reshape(len(values), -1)


def _sum_neighbors(pictures: np.ndarray, axis: int, count: int) -> np.ndarray:
    """Sums of `count` neighbors along an axis.

    NumPy's sum over an inner axis is 20 times slower.
    """
    parts = [slice(None)] * axis
    total = pictures[(*parts, slice(0, None, count))]
    total = total.astype(np.promote_types(total.dtype, np.uint16))
    for offset in range(1, count):
        total += pictures[(*parts, slice(offset, None, count))]
    return total


def _candidates(
    coarse: _Descriptors, surroundings: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, bool]]:
    """Yields pairs that pass the first filter, and whether one image is mirrored.

    A pair occurs at most once unchanged and once mirrored.
    """
    count, numbers = coarse.values.shape
    signs = np.where(np.arange(numbers) < numbers // 2, 1, -1).astype(np.float32)
    brightness = coarse.values.sum(axis=1) * numbers**-0.5
    top_minus_bottom = coarse.values @ signs * np.float32(numbers**-0.5)
    bucket = np.floor(brightness / _REACH).astype(np.int64)
    order = np.lexsort((top_minus_bottom, bucket))
    bucket = bucket[order]
    top_minus_bottom = top_minus_bottom[order]
    starts = np.searchsorted(bucket, np.arange(bucket[-1] + 3) if count else [])
    limit = np.minimum(_COARSE_RELATIVE * surroundings, _COARSE_LIMIT)[order]
    limit *= np.abs(limit)  # a square that keeps its sign: nothing is below -1
    table = _Table(coarse, order)
    values = coarse.values[order]
    plain_rows = _rows(values)
    mirrored_rows = _rows(coarse.mirror(values))
    # Images are compared with images of the same and of the next bucket.
    for number in range(len(starts) - 2):
        begin, end, beyond = starts[number : number + 3]
        for top in range(begin, end, _ROWS):
            rows = slice(top, min(top + _ROWS, end))
            low = top_minus_bottom[rows.start] - _REACH
            high = top_minus_bottom[rows.stop - 1] + _REACH
            last = np.searchsorted(top_minus_bottom[begin:end], high, "right")
            following = np.searchsorted(top_minus_bottom[end:beyond], (low, high))
            for left, right in ((top, begin + last), end + following):
                for start in range(left, right, _COLUMNS):
                    columns = slice(start, min(start + _COLUMNS, right))
                    for is_mirrored in (False, True):
                        images = mirrored_rows if is_mirrored else plain_rows
                        distance = table.distances(images[rows], columns)
                        i, j = np.nonzero(distance <= limit[rows, None])
                        is_kept = distance[i, j] <= limit[columns][j]
                        i += top
                        j += start
                        is_kept &= i < j
                        yield order[i[is_kept]], order[j[is_kept]], is_mirrored


class _Table:
    """Descriptors arranged so that products with `_rows` are squared distances."""

    def __init__(self, descriptors: _Descriptors, positions: np.ndarray) -> None:
        values = descriptors.values[positions].astype(np.float32)
        square = (values * values).sum(axis=1, keepdims=True)
        ones = np.ones_like(square)
        self._columns = np.concatenate([values, square, ones], axis=1)
        # The part that a shift explains: (row - column) . tangent
        self._tangents = []
        for tangents in (descriptors.right, descriptors.down):
            tangent = tangents[positions].astype(np.float32)
            offset = (values * tangent).sum(axis=1, keepdims=True)
            parts = [tangent / -2, -offset, np.zeros_like(ones)]
            self._tangents.append(np.concatenate(parts, axis=1))

    def distances(self, rows: np.ndarray, columns: slice = slice(None)) -> np.ndarray:
        """Squared distances without the part that a shift explains, (rows, columns)."""
        distance = rows @ self._columns[columns].T
        for tangent in self._tangents:
            projection = rows @ tangent[columns].T
            projection *= projection
            distance -= projection
        return distance


def _rows(values: np.ndarray) -> np.ndarray:
    values = values.astype(np.float32)
    square = (values * values).sum(axis=1, keepdims=True)
    return np.concatenate([-2 * values, np.ones_like(square), square], axis=1)


def _filter(
    fine: _Descriptors,
    first: np.ndarray,
    second: np.ndarray,
    is_mirrored: bool,
    limit: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the pairs that pass the second filter, and their shifts.

    Shifts are (down, right) in pixels, int64 (2, pairs).
    """
    values = fine.values[first].astype(np.float32)
    if is_mirrored:
        values = fine.mirror(values)
    difference = values - fine.values[second]
    along = (difference * fine.right[second]).sum(axis=1)
    across = (difference * fine.down[second]).sum(axis=1)
    squares = (difference**2).sum(axis=1) - along**2 - across**2
    distance = np.sqrt(np.maximum(squares, 0))
    contrast = np.minimum(fine.contrast[first], fine.contrast[second])
    limit = np.minimum(limit, _FINE_LIMIT)
    kept = np.flatnonzero(distance <= np.minimum(limit, _FINE_RELATIVE * contrast))
    # From the orthonormal tangents back to pixels.
    width, slant, height = fine.steps[second[kept]].T
    down = across[kept] / height
    right = (along[kept] - slant * down) / width
    return kept, np.clip(np.rint([down, right]), -1, 1).astype(np.int64)


def _compare(
    first: np.ndarray, second: np.ndarray, is_mirrored: bool, shift: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Distances between images, and whether they are near duplicates.

    `second` is shifted by (down, right) pixels.
    """
    if is_mirrored:
        first = first[:, :, ::-1]
    inside = np.arange(1, SIDE - 1)
    images = np.arange(len(first))[:, None, None]
    rows = inside[:, None] + shift[0][:, None, None]
    columns = inside + shift[1][:, None, None]
    first = first[:, 1:-1, 1:-1].astype(np.float32)
    difference = first - second[images, rows, columns]
    contrast = _variance(first)
    # Encoding and resizing change single pixels: means of 2x2 are compared, then of
    # 5x5.
    smooth = difference[:, 1:, 1:] + difference[:, :-1, 1:]
    smooth += difference[:, 1:, :-1] + difference[:, :-1, :-1]
    pixels = _mean_square(smooth) / 16
    sums = _sum_neighbors(_sum_neighbors(difference, 1, 5), 2, 5)
    blurred = _mean_square(sums) / 625
    is_close = pixels <= np.minimum(_PIXEL_LIMIT**2, _PIXEL_RELATIVE**2 * contrast)
    is_close &= blurred <= np.minimum(
        _BLURRED_LIMIT**2, _BLURRED_RELATIVE**2 * contrast
    )
    return np.sqrt(pixels), is_close


def _mean_square(pictures: np.ndarray) -> np.ndarray:
    flat = pictures.reshape(len(pictures), -1)
    return np.einsum("ij,ij->i", flat, flat) / flat.shape[1]


def _variance(pictures: np.ndarray) -> np.ndarray:
    """The variance around the mean color, float32 (images,)."""
    flat = pictures.reshape(len(pictures), -1, 3)
    mean = np.einsum("ijc->ic", flat) / flat.shape[1]
    return _mean_square(pictures) - (mean**2).mean(axis=1)
