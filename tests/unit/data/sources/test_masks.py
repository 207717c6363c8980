"""Images and masks in folders, as data sets and labelling tools lay them out."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipeline.data import detect, mask_files, names
from pipeline.data.sources.masks import masks
from pipeline.utils.errors import UsageError

MASK = np.zeros((4, 6), np.uint8)
MASK[1:3, 2:5] = 1


@pytest.fixture
def write(tmp_path):
    """Writes gray images, whose pixels tell their name, and masks, which have it in the
    top left pixel.
    """

    def write(files, size=(4, 6)):
        for name in files.split():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name.endswith(".txt"):
                path.write_text("a\n")
                continue
            is_mask = names.MASK_SUFFIX.search(path.stem) or any(
                word in str(path.relative_to(tmp_path))
                for word in ("ask", "Seg", "ann")
            )
            values = MASK.copy() if is_mask else np.zeros(size, np.uint8)
            values[0, 0] = ord(path.stem[0].lower())
            Image.fromarray(values).save(path)
        return tmp_path

    return write


def pairs(source):
    """Split -> the images; each must have the mask of its own name."""
    found = {}
    for split in source.info.splits:
        found[split] = []
        for example in source.examples(split).as_numpy_iterator():
            image, mask = (
                np.asarray(Image.open(io.BytesIO(example[field])))
                for field in ("image", "mask")
            )
            name = source.location(int(example["id"]))
            assert image[0, 0] == mask[0, 0] == ord(Path(name).stem[0].lower())
            np.testing.assert_array_equal(mask[1:], MASK[1:])
            assert not image[1:].any()
            found[split].append(name)
    return found


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ("images/a.png images/b.png masks/a.png masks/b.png", {"train": ["images/a.png", "images/b.png"]}),
        ("Images/A.PNG Masks/a.png", {"train": ["Images/A.PNG"]}),
        ("images/a.png annotations/trimaps/a.png", {"train": ["images/a.png"]}),
        ("train/a.png train_masks/a_mask.gif", {"train": ["train/a.png"]}),
        ("x/a.png x/a_mask.png x/b.png x/b-mask.png", {"train": ["x/a.png", "x/b.png"]}),
        ("a.png a_segmentation.png", {"train": ["a.png"]}),
        (
            "train/images/a.png train/masks/a.png val/images/a.png val/masks/a.png",
            {"train": ["train/images/a.png"], "validation": ["val/images/a.png"]},
        ),
        (
            "images/train/a.png images/test/b.png masks/train/a.png masks/test/b.png",
            {"train": ["images/train/a.png"], "test": ["images/test/b.png"]},
        ),
        (
            "JPEGImages/a.png JPEGImages/b.png SegmentationClass/a.png"
            " SegmentationClass/b.png ImageSets/Segmentation/train.txt",
            {"train": ["JPEGImages/a.png"]},
        ),
    ],
)  # fmt: skip
def test_images_and_masks_are_found(write, files, expected):
    root = write(files)
    found = detect.detect(root)
    assert found.source["name"] == "masks"
    source = masks(path=found.source["path"])
    prefix = f"{found.source['path'].relative_to(root)}/".removeprefix("./")
    assert {
        split: [prefix + name for name in names]
        for split, names in pairs(source).items()
    } == expected


def test_class_folders_are_no_masks(write):
    root = write("mask/1.png mask/2.png no_mask/3.png no_mask/4.png")
    assert detect.detect(root).source["name"] == "folder"


def test_what_is_alone_is_named(write):
    root = write("images/a.png images/b.png masks/a.png masks/c.png")
    source = masks(path=root)
    assert source.info.splits == {"train": 1}
    assert source.info.notes == (
        f"{root}: 1 image without a mask of the same name, such as images/b.png; left"
        " out",
        f"{root}: 1 mask without an image of the same name, such as masks/c.png; left"
        " out",
    )


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ("images/a.png masks/b.png", "no images with masks: .*1 image without"),
        ("images/a.png masks/a.png masks/a.gif", "a.gif and .*a.png are two masks"),
        ("test/images/a.png test/masks/a.png", "no images with masks for training"),
    ],
)
def test_files_that_do_not_fit_are_refused(write, files, message):
    with pytest.raises(UsageError, match=message):
        masks(path=write(files))


def test_masks_of_another_size_name_both_files(write):
    root = write("images/a.png masks/a.png", size=(8, 12))
    with pytest.raises(
        UsageError, match=r"masks/a.png has 6x4 .* image \S*images/a.png 12x8;"
    ):
        masks(path=root)


PALETTE = [0, 0, 0, 128, 0, 0]


def palette(bits=8):
    image = Image.fromarray(MASK, "P")
    image.putpalette(PALETTE + [0] * 762 if bits == 8 else PALETTE)
    return image


@pytest.mark.parametrize(
    ("image", "suffix", "options", "expected"),
    [
        (palette(), ".png", {}, MASK),  # the indices
        (palette(1), ".png", {"bits": 1}, MASK),
        (Image.fromarray(MASK), ".tif", {}, MASK),
        (Image.fromarray(MASK), ".bmp", {}, MASK),
        (Image.fromarray(MASK * 97), ".gif", {}, MASK * 97),  # with other indices
        (Image.fromarray(MASK.astype(np.uint16)), ".png", {}, MASK),
        (Image.fromarray(MASK * 255).convert("1"), ".png", {}, MASK * 255),
        (Image.fromarray(np.kron(MASK, np.ones((16, 16), np.uint8)) * 255), ".jpg",
         {"quality": 30}, np.kron(MASK, np.ones((16, 16), np.uint8)) * 255),
        (Image.fromarray(np.stack([MASK] * 3, -1)), ".png", {},
         np.stack([MASK] * 3, -1)),
    ],
)  # fmt: skip
def test_files_of_any_format_have_the_same_values(
    tmp_path, image, suffix, options, expected
):
    file = tmp_path / f"mask{suffix}"
    image.save(file, **options)
    (tmp_path / "plain.png").write_bytes(mask_files.to_png(file.read_bytes()))
    np.testing.assert_array_equal(Image.open(tmp_path / "plain.png"), expected)


def test_what_is_no_mask_is_damaged(tmp_path):
    Image.fromarray(np.full((4, 6), 300, np.uint16)).save(tmp_path / "deep.png")
    for content in (b"text", (tmp_path / "deep.png").read_bytes()):
        assert mask_files.to_png(content) == mask_files.DAMAGED


def test_a_table_of_colors_names_the_classes(write):
    root = write("images/a.png masks/a.png")
    palette().save(root / "masks/a.png")
    (root / "labelmap.txt").write_text(
        "# label:color_rgb:parts:actions\nsky:0,0,0::\ncat:128,0,0::\nroad:0,0,1::\n"
    )
    source = masks(path=root)
    assert source.info.class_names == ("sky", "cat", "road")
    assert source.info.class_values == (0, 1 << 24 | 0x800000, 1 << 24 | 1)
    (example,) = source.examples("train").as_numpy_iterator()
    (root / "found.png").write_bytes(example["mask"])
    assert Image.open(root / "found.png").getpixel((2, 1)) == (128, 0, 0)


def test_the_masks_of_voc_have_names(write):
    source = masks(path=write("JPEGImages/a.png SegmentationClass/a.png"))
    assert source.info.class_names[:2] == ("background", "aeroplane")
    assert len(source.info.class_names) == 21


def test_predicted_masks_have_the_colors_of_voc():
    picture = mask_files.picture([[0, 1, 15]])
    assert picture.mode == "P" and picture.tobytes() == bytes([0, 1, 15])
    colors = [picture.convert("RGB").getpixel((column, 0)) for column in range(3)]
    assert colors == [(0, 0, 0), (128, 0, 0), (192, 128, 128)]


def test_palettes_that_differ_are_read_by_their_colors(write):
    root = write("images/a.png images/b.png masks/a.png masks/b.png")
    for name, values, colors in (
        ("a", MASK, [0, 0, 0, 0, 0, 255]),
        ("b", 1 - MASK, [0, 0, 255, 0, 0, 0]),
    ):
        image = Image.fromarray(values, "P")
        image.putpalette(colors + [0] * 762)
        image.save(root / f"masks/{name}.png")
    source = masks(path=root)
    expected = np.stack([0 * MASK, 0 * MASK, 255 * MASK], -1)
    for example in source.examples("train").as_numpy_iterator():
        found = Image.open(io.BytesIO(example["mask"]))
        np.testing.assert_array_equal(found, expected)


def test_a_jpeg_of_several_classes_is_refused():
    for values in (
        np.kron(np.array([[0, 100, 200]], np.uint8), np.ones((16, 16), np.uint8)),
        np.kron(np.array([[[255, 0, 0]]], np.uint8), np.ones((16, 16, 1), np.uint8)),
    ):
        file = io.BytesIO()
        Image.fromarray(values).save(file, "JPEG", quality=90)
        assert mask_files.to_png(file.getvalue()) == mask_files.DAMAGED


@pytest.mark.parametrize(
    "files",
    [
        "images/rose/1.png images/tulip/2.png labels/labels.txt",
        "gas/1.png gas_mask/2.png helmet/3.png",
        "images/1.png labels/2.png buttons/3.png",
    ],
)
def test_folders_without_equal_names_are_classes(write, files):
    assert detect.detect(write(files)).source["name"] == "folder"


def test_a_table_of_files_wins_over_folders_of_masks(write):
    root = write("images/a.png images/b.png masks/a.png masks/b.png")
    rows = ["image,mask,split", "a.png,masks/a.png,train", "b.png,masks/b.png,test"]
    (root / "meta.csv").write_text("\n".join(rows))
    assert detect.detect(root).source == {"name": "table", "path": root / "meta.csv"}


def test_images_of_a_group_stay_together(write):
    root = write("images/p1_a.png images/p1_b.png images/p2_a.png images/p2_b.png")
    write("masks/p1_a.png masks/p1_b.png masks/p2_a.png masks/p2_b.png")
    source = masks(path=root, group=r"/(p\d)_")
    groups = source.columns("train")["group"].tolist()
    assert groups[0] == groups[1] != groups[2] == groups[3]
    assert source.group_names() == {"p1": groups[0], "p2": groups[2]}
