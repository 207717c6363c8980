"""Augmentations: per example, stateless, equal to a plain NumPy account of what they promise."""

import numpy as np
import pytest
import tensorflow as tf

from pipeline import geometry, pixels, seeds, shelf
from pipeline.errors import UsageError

OPERATIONS = {name: shelf.take("augment", name) for name in shelf.names("augment")}


def batch_of(count=64, shape=(9, 7, 3), dtype=np.uint8):
    """Random images, floats from 0 to 1, of examples 500, 501, ... in epoch 3; their seeds."""
    levels = np.random.default_rng(0).integers(1, 256, (count, *shape))
    images = (levels / (1 if dtype == np.uint8 else 255)).astype(dtype)
    ids = tf.range(500, 500 + count, dtype=tf.int64)
    epoch = tf.fill([count], tf.constant(3, tf.int64))
    own = seeds.of_examples(1, epoch, ids)
    batch = {"image": tf.constant(images), "label": tf.range(count) % 10, "id": ids, "epoch": epoch}
    return {**batch, "lasting_seed": seeds.fold(own, 99)}, own


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("name", OPERATIONS)
def test_conformance(name, dtype):
    """Shape, dtype and labels stay; an image is changed alike in any batch; most are changed."""
    if name == "rand_augment" and dtype == np.float32:
        pytest.skip("for 8-bit images only; refused otherwise, in test_rand_augment.py")
    operation = OPERATIONS[name]
    batch, own = batch_of(dtype=dtype)
    done = operation(batch, own)
    assert done["image"].dtype == batch["image"].dtype
    assert done["image"].shape == batch["image"].shape
    np.testing.assert_array_equal(done["label"], batch["label"])
    part = {key: value[20:30] for key, value in batch.items()}
    np.testing.assert_array_equal(operation(part, own[20:30])["image"], done["image"][20:30])
    # Of floats, a compiler may round the last bit otherwise; whole levels are computed exactly.
    tolerance = 0 if dtype == np.uint8 else 1e-6
    for compiled in (tf.function(operation), tf.function(operation, jit_compile=True)):
        image = compiled(batch, own)["image"]
        np.testing.assert_allclose(image, done["image"], rtol=0, atol=tolerance)
    changed = (done["image"].numpy() != batch["image"].numpy()).any(axis=(1, 2, 3)).mean()
    assert 0.3 < changed <= 1
    later = {**batch, "epoch": batch["epoch"] + 1}
    again = operation(later, seeds.fold(own, 1))
    assert (again["image"].numpy() != done["image"].numpy()).any(), "it ignores its seeds"


def test_flip_mirrors_half_of_the_images():
    batch, own = batch_of(1000)
    before, after = batch["image"].numpy(), OPERATIONS["flip"](batch, own)["image"].numpy()
    flipped = (after == before[:, :, ::-1]).all(axis=(1, 2, 3))
    kept = (after == before).all(axis=(1, 2, 3))
    assert (flipped ^ kept).all()
    assert 430 < flipped.sum() < 570


@pytest.mark.parametrize(("fill", "mode"), [("zero", "constant"), ("reflect", "reflect")])
def test_crop_is_a_window_of_the_padded_image(fill, mode):
    padding = 3
    batch, own = batch_of(400)
    after = OPERATIONS["crop"](batch, own, padding=padding, fill=fill)["image"].numpy()
    places = []
    for before, image in zip(batch["image"].numpy(), after, strict=True):
        padded = np.pad(before, ((padding, padding), (padding, padding), (0, 0)), mode)
        height, width, _ = before.shape
        found = [
            (i, j)
            for i in range(2 * padding + 1)
            for j in range(2 * padding + 1)
            if (padded[i : i + height, j : j + width] == image).all()
        ]
        assert len(found) == 1
        places += found
    # Each of the 49 places about 8 times; rows and columns are drawn independently.
    assert len(set(places)) == 49
    rows, columns = np.array(places).T
    assert abs(np.corrcoef(rows, columns)[0, 1]) < 0.2


def test_crop_without_padding_changes_nothing():
    batch, own = batch_of()
    np.testing.assert_array_equal(
        OPERATIONS["crop"](batch, own, padding=0)["image"], batch["image"]
    )


def test_flip_up_down_is_drawn_on_its_own():
    batch, own = batch_of(1000)
    before = batch["image"].numpy()
    after = OPERATIONS["flip"](batch, own, up_down=True)["image"].numpy()
    ways = [before, before[:, ::-1], before[:, :, ::-1], before[:, ::-1, ::-1]]
    counts = [(after == way).all(axis=(1, 2, 3)).sum() for way in ways]
    assert sum(counts) == 1000 and min(counts) > 200


def test_alternating_flip_shows_both_sides_in_two_epochs():
    batch, own = batch_of(1000)
    before, flip = batch["image"].numpy(), OPERATIONS["alternating_flip"]
    sides = []
    for epoch in range(4):
        epochs = tf.fill([1000], tf.constant(epoch, tf.int64))
        after = flip({**batch, "epoch": epochs}, seeds.fold(own, epoch))["image"].numpy()
        side = (after == before[:, :, ::-1]).all(axis=(1, 2, 3))
        np.testing.assert_array_equal(after[~side], before[~side])
        sides.append(side)
    np.testing.assert_array_equal(sides[0], ~sides[1])
    np.testing.assert_array_equal(sides[0], sides[2])
    np.testing.assert_array_equal(sides[1], sides[3])
    assert 430 < sides[0].sum() < 570


@pytest.mark.parametrize("fill", ["zero", "mean", "noise"])
def test_erase_covers_one_rectangle_of_the_asked_size(fill):
    batch, own = batch_of(600, (40, 30, 3))
    batch["image"] = batch["image"] // 2 * 2 + 1  # odd, so that 0 is never a pixel
    options = {"probability": 0.75, "area": (0.1, 0.3), "ratio": (0.5, 2.0), "fill": fill}
    after = OPERATIONS["erase"](batch, own, **options)["image"].numpy()
    shares, ratios, noise = [], [], []
    for old, new in zip(batch["image"].numpy(), after, strict=True):
        changed = (old != new).any(axis=-1)
        if not changed.any():
            continue
        rows, columns = np.flatnonzero(changed.any(axis=1)), np.flatnonzero(changed.any(axis=0))
        box = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        inside = new[box]
        assert (new == old)[~changed].all()
        if fill == "zero":
            assert (inside == 0).all()
        elif fill == "mean":
            assert (inside == np.round(old.mean(axis=(0, 1)))).all()
        else:
            noise.append(inside.ravel())
        shares.append(inside[..., 0].size / changed.size)
        ratios.append(inside.shape[0] / inside.shape[1])
    assert 0.70 < len(shares) / 600 < 0.80
    assert 0.08 < min(shares) < 0.12 and 0.28 < max(shares) < 0.32
    assert abs(np.mean(shares) - 0.2) < 0.01, "areas are not uniform"
    assert 0.4 < min(ratios) < 0.55 and 1.8 < max(ratios) < 2.3
    assert abs(np.median(ratios) - 1) < 0.1, "height and width are not alike"
    if fill == "noise":
        counts = np.bincount(np.concatenate(noise), minlength=256)
        assert counts.min() > 0.8 * counts.mean() and counts.max() < 1.2 * counts.mean()


def test_color_jitter_is_pillows_enhancement():
    from PIL import Image, ImageEnhance

    batch, own = batch_of(200)
    kinds = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    factors = [seeds.between(own, 0.3, 1.7, draw).numpy() for draw in range(3)]
    options = {"brightness": 0.7, "contrast": 0.7, "saturation": 0.7}
    after = OPERATIONS["color_jitter"](batch, own, **options)["image"].numpy().astype(int)
    for i, image in enumerate(batch["image"].numpy()):
        picture = Image.fromarray(image)
        for kind, factor in zip(kinds, factors, strict=True):
            picture = kind(picture).enhance(float(factor[i]))
        # Pillow cuts where we round, three times, and the last two may widen it.
        assert np.abs(np.asarray(picture).astype(int) - after[i]).max() <= 5
    for number, (name, kind) in enumerate(zip(options, kinds, strict=True)):
        one = {**dict.fromkeys(options, 0.0), name: 0.7}
        after = OPERATIONS["color_jitter"](batch, own, **one)["image"].numpy().astype(int)
        for i, image in enumerate(batch["image"].numpy()):
            exact = np.asarray(kind(Image.fromarray(image)).enhance(float(factors[number][i])))
            assert np.abs(exact.astype(int) - after[i]).max() <= 1, name


def test_boxes_move_with_the_picture():
    """A painted rectangle is where the box says, and a box whose centre left is masked."""
    count, size, padding = 300, 32, 12
    generator = np.random.default_rng(1)
    top, left = generator.integers(0, 24, (2, count))
    high, wide = generator.integers(4, 9, (2, count))
    images = np.zeros((count, size, size, 1), np.uint8)
    for i in range(count):
        images[i, top[i] : top[i] + high[i], left[i] : left[i] + wide[i]] = 255
    corners = np.stack([top, left, top + high, left + wide], axis=-1) / size
    batch, own = batch_of(count)
    batch |= {
        "image": tf.constant(images),
        "boxes": tf.constant(corners[:, None], tf.float32),
        "box_mask": tf.ones([count, 1]),
    }
    for name, options in {
        "flip": {"up_down": True},
        "alternating_flip": {},
        "crop": {"padding": padding},
        "random_resized_crop": {"scale": (0.3, 0.9)},
        "affine": {"rotation": 0, "translation": 0.3, "scale": (0.8, 1.5)},
    }.items():
        done = {k: v.numpy() for k, v in OPERATIONS[name](batch, own, **options).items()}
        assert done["boxes"].dtype == np.float32
        kept = done["box_mask"][:, 0] > 0
        assert kept.all() if "flip" in name else 0.4 < kept.mean() < 0.95
        exact = "flip" in name or name == "crop"
        for image, box, here in zip(done["image"], done["boxes"], kept, strict=True):
            found = np.argwhere(image[..., 0] > 0)
            if here:
                painted = [*found.min(axis=0), *(found.max(axis=0) + 1)]
                # Bilinear edges reach a pixel and a half of the enlarged picture.
                np.testing.assert_allclose(box[0] * size, painted, atol=1e-4 if exact else 2)


def test_a_turned_box_stands_around_its_turned_picture():
    batch, own = batch_of(100)
    images = np.zeros((100, 64, 64, 1), np.uint8)
    images[:, 24:34, 20:44] = 255
    batch["image"] = tf.constant(images)
    batch["boxes"] = tf.constant([[[24, 20, 34, 44]]] * 100, tf.float32) / 64
    done = OPERATIONS["affine"](batch, own, rotation=90.0, shear=20.0)
    sides = []
    for image, box in zip(done["image"].numpy(), done["boxes"].numpy(), strict=True):
        found = np.argwhere(image[..., 0] > 100)
        np.testing.assert_allclose(box[0, :2] * 64, found.min(axis=0), atol=1.5)
        np.testing.assert_allclose(box[0, 2:] * 64, found.max(axis=0) + 1, atol=1.5)
        sides.append((box[0, 2] - box[0, 0]) * 64)
    assert min(sides) < 13 and max(sides) > 24, "nothing was turned"


@pytest.mark.parametrize("mode", ["zero", "edge", "reflect"])
@pytest.mark.parametrize("interpolation", ["bilinear", "nearest"])
def test_transform_is_that_of_scipy(mode, interpolation):
    from scipy import ndimage

    batch, _ = batch_of(12)
    generator = np.random.default_rng(2)
    matrix = np.tile(np.eye(2, 3), (12, 1, 1)) + generator.normal(0, 0.4, (12, 2, 3))
    matrix[:, :, 2] *= 5
    done = geometry.transform(batch["image"], tf.constant(matrix), interpolation, mode).numpy()
    modes = {"zero": "grid-constant", "edge": "nearest", "reflect": "mirror"}
    middle = (np.array([9, 7]) - 1) / 2
    for i, image in enumerate(batch["image"].numpy().astype(float)):
        offset = middle + matrix[i, :, 2] - matrix[i, :, :2] @ middle
        for channel in range(3):
            wanted = ndimage.affine_transform(
                image[..., channel],
                matrix[i, :, :2],
                offset,
                order=int(interpolation == "bilinear"),
                mode=modes[mode],
            )
            # Weights are rounded to 2**-8: half a level each way, and the level itself.
            assert np.abs(wanted - done[i, ..., channel]).max() <= 1.6


@pytest.mark.parametrize("fill", ["zero", "edge", "reflect"])
@pytest.mark.parametrize("interpolation", ["bilinear", "nearest"])
def test_places_far_outside_are_those_of_scipy(fill, interpolation):
    """A hundred times smaller, 1024 pixels reach 51,200 to each side: 2**31.6 of 2**-16 pixels."""
    from scipy import ndimage

    image = np.random.default_rng(4).integers(1, 256, (1, 1024), np.uint8)
    matrix = tf.constant([[[1.0, 0, 0], [0, 100, 0]]], tf.float64)
    done = geometry.transform(tf.constant(image[None, :, :, None]), matrix, interpolation, fill)
    modes = {"zero": "grid-constant", "edge": "nearest", "reflect": "mirror"}
    places = np.stack([np.zeros(1024), (np.arange(1024) - 511.5) * 100 + 511.5])
    order = int(interpolation == "bilinear")
    wanted = ndimage.map_coordinates(image.astype(float), places, order=order, mode=modes[fill])
    # In the middle between two pixels both are the nearest.
    close = np.abs(wanted - done[0, 0, :, 0].numpy()) <= 1
    assert close.all() if order else ((places[1] % 1 == 0.5) | close).all()


@pytest.mark.parametrize("name", ["affine", "random_resized_crop", "mixup", "color_jitter"])
def test_floats_have_no_range_and_are_not_clipped(name):
    """Twice the image, less than 0 and more than 1, gives twice the result."""
    batch, own = batch_of(dtype=np.float32)
    images = batch["image"] * 8 - 4
    options = {"fill": "edge"} if name == "affine" else {}
    once, twice = (
        OPERATIONS[name]({**batch, "image": images * factor}, own, **options)["image"].numpy()
        for factor in (1, 2)
    )
    assert once.min() < -1 and once.max() > 1
    np.testing.assert_array_equal(twice, once * 2)


def test_an_inverse_undoes_its_map():
    generator = np.random.default_rng(3)
    matrix = generator.normal(0, 1, (20, 2, 3))
    inverse = geometry.inverse(tf.constant(matrix)).numpy()
    for there, back in zip(matrix, inverse, strict=True):
        both = np.vstack([back, [0, 0, 1]]) @ np.vstack([there, [0, 0, 1]])
        np.testing.assert_allclose(both, np.eye(3), atol=1e-9)


def test_affine_moves_by_the_amounts_asked_for():
    """The map is found again from a picture whose pixels say where they were."""
    count, size = 400, 33
    places = np.stack(np.mgrid[:size, :size], axis=-1).astype(np.float32) / size
    batch, own = batch_of(count)
    batch["image"] = tf.constant(np.tile(places, (count, 1, 1, 1)))
    middle = np.s_[:, 12:21, 12:21]
    from_middle = (places[12:21, 12:21].reshape(-1, 2) * size) - size // 2
    known = np.column_stack([from_middle, np.ones(81)])

    def maps(**options):
        options = {"rotation": 0.0, "fill": "edge", **options}
        image = OPERATIONS["affine"](batch, own, **options)["image"].numpy()
        seen = image[middle].reshape(count, 81, 2) * size - size // 2
        found = np.array([np.linalg.lstsq(known, s, rcond=None)[0].T for s in seen])
        return np.array(geometry.inverse(tf.constant(found, tf.float64)))

    still = maps()
    np.testing.assert_allclose(still, np.tile(np.eye(2, 3), (count, 1, 1)), atol=0.01)
    turned = maps(rotation=30.0)
    angles = np.degrees(np.arctan2(turned[:, 1, 0], turned[:, 1, 1]))
    assert angles.min() < -28 and angles.max() > 28 and np.abs(angles).max() < 30.5
    assert abs(angles.std() - 30 / 3**0.5) < 1.5
    moved = maps(translation=0.1)[:, :, 2] / size
    assert 0.09 < np.abs(moved).max() < 0.102
    assert abs(np.corrcoef(moved.T)[0, 1]) < 0.15
    sizes = maps(scale=(0.7, 1.2))
    np.testing.assert_allclose(sizes[:, 0, 0], sizes[:, 1, 1], atol=0.02)
    assert 0.68 < sizes[:, 0, 0].min() < 0.72 and 1.18 < sizes[:, 0, 0].max() < 1.22
    slanted = maps(shear=30.0)
    np.testing.assert_allclose(slanted[:, 0, :2], [[1, 0]] * count, atol=0.02)
    assert 0.55 < np.abs(slanted[:, 1, 0]).max() < 0.59


def test_random_resized_crop_is_a_resized_window():
    batch, own = batch_of(16, (24, 20, 3))
    done = OPERATIONS["random_resized_crop"](batch, own, scale=(0.1, 0.6))["image"].numpy()
    places = np.stack(np.mgrid[:24, :20], axis=-1).astype(np.float32)
    located = {**batch, "image": tf.constant(np.tile(places, (16, 1, 1, 1)) / 24)}
    where = OPERATIONS["random_resized_crop"](located, own, scale=(0.1, 0.6))["image"].numpy()
    shares = []
    for image, result, place in zip(batch["image"], done, where * 24, strict=True):
        # Border pixels are repeated, so the first and the last place are the window's own.
        first, last = (np.rint(p).astype(int) for p in (place[0, 0], place[-1, -1]))
        window = image[first[0] : last[0] + 1, first[1] : last[1] + 1]
        wanted = tf.image.resize(window, (24, 20)).numpy()
        assert np.abs(wanted - result).max() <= 1.6
        shares.append(window.shape[0] * window.shape[1] / 480)
    assert 0.08 < min(shares) < 0.25 and 0.4 < max(shares) < 0.65
    kept = OPERATIONS["random_resized_crop"](batch, own, probability=0.0)["image"]
    np.testing.assert_array_equal(kept, batch["image"])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("erase", {"area": (0.3, 0.1)}, "erase area must be two numbers"),
        ("random_resized_crop", {"scale": (0.5, 1.5)}, "scale must be .* from 1e-06 to 1"),
        ("affine", {"scale": (1.0,)}, "scale must be two numbers"),
    ],
)
def test_ranges_that_are_none_are_refused(name, options, message):
    with pytest.raises(UsageError, match=message):
        OPERATIONS[name](*batch_of(), **options)


@pytest.mark.parametrize("name", OPERATIONS)
def test_examples_without_images_are_refused(name):
    _, own = batch_of()
    with pytest.raises(UsageError, match=f"{name} changes images, and these examples have none"):
        OPERATIONS[name]({"features": tf.zeros([64, 3])}, own)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.float32])
def test_a_rectangle_is_put_in_for_any_dtype(dtype):
    generator = np.random.default_rng(6)
    inner, outer = generator.integers(0, 2**7, (2, 5, 6, 7, 3)).astype(dtype) * 200
    rows, columns = generator.random((5, 6)) < 0.5, generator.random((5, 7)) < 0.5
    mask = rows[:, :, None, None] & columns[:, None, :, None]
    done = pixels.in_rectangle(rows, columns, tf.constant(inner), tf.constant(outer))
    assert done.dtype == dtype
    np.testing.assert_array_equal(done, np.where(mask, inner, outer))
