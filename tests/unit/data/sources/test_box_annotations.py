"""COCO, VOC and YOLO: the same boxes from all formats, and malformed annotations."""

import json
import os

import box_data
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from pycocotools import mask as coco_mask
from toy_problem import read

from pipeline.config import registry
from pipeline.data import detect, image_decoding
from pipeline.data.box_files import MAX_BOXES
from pipeline.utils.errors import UsageError

MADE = box_data.pictures(8, seed=3)
WRITE = {
    "coco": box_data.write_coco,
    "voc": box_data.write_voc,
    "yolo": box_data.write_yolo,
    "labelme": box_data.write_labelme,
}


def open_source(name, path):
    return registry.call("sources", name, {"path": path})


def boxes_of(example):
    is_box = example["box_labels"] >= 0
    boxes = example["boxes"][is_box].round(3).tolist()
    return sorted(zip(boxes, example["box_labels"][is_box].tolist(), strict=True))


@pytest.mark.parametrize("name", WRITE)
def test_all_formats_give_the_same_boxes(name, tmp_path):
    WRITE[name](tmp_path, MADE)
    assert detect.find_source(tmp_path) == {"name": name, "path": tmp_path}
    source = open_source(name, tmp_path)
    assert source.info.class_names == box_data.NAMES
    examples = {source.location(int(e["id"])): e for e in read(source)}
    assert len(examples) == len(MADE)
    assert not any(map(os.path.isabs, examples))
    assert any(not boxes for _, boxes, _ in MADE)
    most = max(len(boxes) for _, boxes, _ in MADE)
    for file, example in examples.items():
        number = int(file.rpartition("/")[2].partition(".")[0])
        _, boxes, labels = MADE[number]
        assert example["boxes"].shape == (most, 4)
        expected = [[float(side) for side in box] for box in boxes]
        assert boxes_of(example) == sorted(zip(expected, labels, strict=True))
        assert not example["box_ignored"].any()
    assert (
        f"8 images and {sum(len(b) for _, b, _ in MADE)} boxes in train"
        in (source.info.notes[-1])
    )


def test_a_polygon_of_yolo_is_the_box_around_it(tmp_path):
    box_data.write_yolo(tmp_path, MADE)
    file = next((tmp_path / "labels").rglob("*.txt"))
    file.write_text("1 0.25 0.5 0.5 0.125 0.75 0.25 0.5 0.875\n")
    source = open_source("yolo", tmp_path)
    (example,) = (
        example
        for example in read(source)
        if source.location(int(example["id"])).endswith(f"/{file.stem}.png")
    )
    height, width = MADE[int(file.stem)][0].shape[:2]
    box = [0.25 * width, 0.125 * height, 0.75 * width, 0.875 * height]
    assert boxes_of(example) == [(box, 1)]


def test_splits_are_files_lists_or_folders(tmp_path):
    coco = tmp_path / "coco"
    for number, split in enumerate(("train", "val")):
        made = box_data.pictures(3 + number, seed=number)
        name = f"annotations/instances_{split}2017.json"
        box_data.write_coco(coco, made, name, f"{split}2017")
        file = coco / name
        text = file.read_text().replace(f"{split}2017/", "")
        file.write_text(text)
    (coco / "annotations" / "captions_train2017.json").write_text('{"images": []}')
    assert open_source("coco", coco).info.splits == {"train": 3, "validation": 4}
    voc = tmp_path / "voc"
    lists = {"train": [0, 1, 2], "val": [3], "trainval": [0, 1, 2, 3], "test": [4, 5]}
    box_data.write_voc(voc, MADE, lists)
    source = open_source("voc", voc)
    assert source.info.splits == {"train": 3, "validation": 1, "test": 2}
    assert "2 XML files are in no list" in source.info.notes[0]
    yolo = tmp_path / "yolo"
    box_data.write_yolo(yolo, MADE[:5], "train")
    box_data.write_yolo(yolo, MADE[5:], "valid")
    (yolo / "data.yaml").write_text(
        "train: ../images/train\nval: ../images/valid  # here\n"
        "names:\n  0: cross\n  1: square\n  2: triangle\n"
    )
    assert open_source("yolo", yolo).info.splits == {"train": 5, "validation": 3}


@pytest.mark.parametrize(
    "names",
    [
        "['a, b', \"it's\",\n        c]  # three",
        "[\n  'a, b',\n  \"it's\",\n  c,\n]",
        "\n  ['a, b', \"it's\", c]",
        "\n- 'a, b'\n- it's\n- c",
        "{0: 'a, b', 1: it's, 2: c}",
    ],
)
def test_names_of_yolo_in_every_form(names, tmp_path):
    box_data.write_yolo(tmp_path, MADE[:3], names=names)
    with (tmp_path / "data.yaml").open("a") as file:
        file.write("download: |\n  names = [\n  - x\n  train: other\n")
    assert open_source("yolo", tmp_path).info.class_names == ("a, b", "it's", "c")


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("before", [True, False])
def test_boxes_of_a_turned_photo(before, orientation, tmp_path):
    """Annotations of the stored picture, or of the upright one, by their size."""
    upright = np.zeros((60, 90, 3), np.uint8)
    upright[10:30, 20:70] = 255
    turns = {
        **{1: lambda x: x, 2: lambda x: x[:, ::-1], 3: lambda x: x[::-1, ::-1]},
        **{4: lambda x: x[::-1], 5: lambda x: x.swapaxes(0, 1)},
        **{6: lambda x: np.rot90(x), 7: lambda x: x.swapaxes(0, 1)[::-1, ::-1]},
        **{8: lambda x: np.rot90(x, 3)},
    }
    stored = np.ascontiguousarray(turns[orientation](upright))
    exif = Image.Exif()
    exif[274] = orientation
    box_data.save(tmp_path / "JPEGImages/a.jpg", stored, exif=exif, quality=95)
    seen = stored if before and orientation >= 5 else upright
    rows, columns = np.nonzero(seen[..., 0])
    box = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    (tmp_path / "Annotations").mkdir()
    text = box_data.voc_text(seen.shape[:2], [box], [0])
    (tmp_path / "Annotations/a.xml").write_text(text)
    (example,) = read(open_source("voc", tmp_path))
    assert boxes_of(example) == [([20, 10, 70, 30], 0)]
    pixels = image_decoding.pixels(tf.constant(example["image"]), 1).numpy()[..., 0]
    assert pixels.shape == (60, 90)
    assert pixels[11:29, 21:69].min() > 200 and pixels.sum() < 255 * 20 * 50 * 1.1


def test_malformed_boxes_are_counted_and_named(tmp_path):
    pixels = np.zeros((60, 90, 3), np.uint8)
    boxes = [
        *([-20, 5, 30, 40], [10, 10, 10, 30], [100, 10, 120, 30]),
        *([50, 40, 20, 10], [0, 0, 90, 61], ["nan", 0, 9, 9]),
    ]
    box_data.write_voc(tmp_path, [(pixels, boxes, [0] * 6)])
    source = open_source("voc", tmp_path)
    (example,) = read(source)
    assert [box for box, _ in boxes_of(example)] == [
        *([0, 0, 90, 60], [0, 5, 30, 40], [20, 10, 50, 40])
    ]
    notes = "\n".join(source.info.notes)
    for text in (
        "1 boxes reach out of their picture; clipped, such as in",
        "2 boxes have no area in their picture; left out, such as in",
        "1 boxes have swapped corners; corrected",
        "1 boxes are not numbers; left out",
    ):
        assert text in notes
    assert "Annotations/0.xml" in notes


def test_missing_images_and_images_of_another_size_are_left_out(tmp_path):
    box_data.write_coco(tmp_path, MADE)
    (tmp_path / "images/3.png").unlink()
    box_data.save(tmp_path / "images/4.png", MADE[4][0][:50])
    (tmp_path / "images/5.png").write_bytes(b"garbage")
    source = open_source("coco", tmp_path)
    assert source.info.splits == {"train": 5}
    notes = "\n".join(source.info.notes)
    assert "1 annotated images do not exist beside the annotations, in images" in notes
    assert "elsewhere below the directory; left out, such as in images/3.png" in notes
    assert "4.png (128x50, not 128x96 pixels)" in notes
    assert "1 images cannot be read; left out, such as in images/5.png" in notes


def test_an_image_in_two_splits_is_named(tmp_path):
    box_data.write_yolo(tmp_path, MADE[:3])
    with (tmp_path / "data.yaml").open("a") as file:
        file.write("val: images/train\n")
    message = "images/train/0.png is in train and in validation; remove"
    with pytest.raises(UsageError, match=message):
        open_source("yolo", tmp_path)


def test_crowds_and_difficult_boxes_need_not_be_found(tmp_path):
    file = box_data.write_coco(tmp_path, MADE, iscrowd=1)
    with pytest.raises(UsageError, match="all boxes for training are of crowds"):
        open_source("coco", tmp_path)
    content = json.loads(file.read_text())
    content["annotations"][0]["iscrowd"] = 0
    file.write_text(json.dumps(content))
    examples = read(open_source("coco", tmp_path))
    found = sum(int((example["box_labels"] >= 0).sum()) for example in examples)
    ignored = sum(int(example["box_ignored"].sum()) for example in examples)
    assert (found, ignored) == (len(content["annotations"]), found - 1)


ONE = np.zeros((60, 90, 3), np.uint8)
LINE = "0 0.5 0.5 0.2 0.2\n"
CORNERS = [36.0, 24.0, 54.0, 36.0]


def write_text(path, text=LINE, encoding="utf-8"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding)


def cvat(root):
    for number in range(2):
        box_data.save(root / f"obj_train_data/{number}.jpg", ONE)
        write_text(root / f"obj_train_data/{number}.txt")
    names = "train = data/train.txt\nnames = data/obj.names\nbackup = backup/\n"
    write_text(root / "obj.data", f"classes = 1\n{names}")
    write_text(root / "obj.names", "cat\n")
    lines = [f"data/obj_train_data/{number}.jpg\n" for number in range(2)]
    write_text(root / "train.txt", "".join([*lines, lines[0], "\n"]))


def label_img(root):
    for number in range(2):
        box_data.save(root / f"{number}.jpg", ONE)
        write_text(root / f"{number}.txt")
    write_text(root / "classes.txt", "cat\n")


def label_studio(root):
    for number in range(2):
        box_data.save(root / f"images/{number}.jpg", ONE)
        write_text(root / f"labels/{number}.txt")
    write_text(root / "classes.txt", "cat\n")


def windows_list(root):
    for number in range(2):
        box_data.save(root / f"train/images/{number}.jpg", ONE)
        write_text(root / f"train/labels/{number}.txt")
    write_text(root / "data.yaml", "train: list.txt\nnames: [cat]\n")
    write_text(root / "list.txt", "train\\images\\0.jpg\ntrain\\images\\1.JPG\n")


def voc_2012(root):
    """With masks of the same names; one XML file is named otherwise than its image."""
    for number in range(2):
        for folder in ("JPEGImages", "SegmentationClass", "SegmentationObject"):
            suffix = "jpg" if folder == "JPEGImages" else "png"
            box_data.save(root / f"{folder}/{number}.{suffix}", ONE)
        content = box_data.voc_text((60, 90), [CORNERS], [0]).replace("cross", "cat")
        name = f"<filename>{number}.jpg</filename>"
        content = content.replace("<annotation>", f"<annotation>{name}", 1)
        file = root / f"Annotations/{'other' if number else 0}.xml"
        head = '<?xml version="1.0" encoding="iso-8859-1"?><!-- é -->'
        write_text(file, head + content, "iso-8859-1")


def voc_of_other_roots(root):
    for number, (head, end) in enumerate(
        (
            ("<doc>", "</doc>"),
            ("<annotations><annotation>", "</annotation></annotations>"),
        )
    ):
        box_data.save(root / f"{number}.jpg", ONE)
        content = box_data.voc_text((60, 90), [CORNERS], [0]).replace("cross", "cat")
        content = content.removeprefix("<annotation>").removesuffix("</annotation>")
        write_text(root / f"{number}.xml", head + content + end)


def coco_of_texts(root):
    """Ids as texts, a polygon without a box, and an image that is listed twice."""
    images, annotations = [], []
    for number in range(3):
        if number < 2:
            box_data.save(root / f"images/train/{number}.jpg", ONE)
        images.append({"id": number, "file_name": f"{number % 2}.JPG"})
        polygon = [[36, 24, 54, 24, 54, 36, 36, 36]]
        ids = {"id": number, "image_id": str(number), "category_id": "7"}
        annotations.append({**ids, "segmentation": polygon})
    categories = [{"id": 7, "name": "cat"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    write_text(root / "annotations/train.json", json.dumps(content))


def table_of_boxes(root, head="filename,width,height,class,xmin,ymin,xmax,ymax"):
    rows = [head]
    for number in range(2):
        box_data.save(root / f"images/{number}.jpg", ONE)
        rows.append(f"{number}.jpg,90,60,cat,36,24,54,36")
    write_text(root / "labels.csv", "\n".join(rows))


def fractions_of_open_images(root):
    for number in range(2):
        box_data.save(root / f"{number}.jpg", ONE)
    rows = [f"{number},cat,0.4,0.6,0.4,0.6" for number in range(2)]
    head = "ImageID,LabelName,XMin,XMax,YMin,YMax"
    write_text(root / "boxes.csv", "\n".join([head, *rows]))


def keypoints_of_yolo(root):
    write_text(root / "data.yaml", "train: images\nnames: [cat]\nkpt_shape: [2, 2]\n")
    for number in range(2):
        box_data.save(root / f"images/{number}.jpg", ONE)
        write_text(root / f"labels/{number}.txt", f"{LINE.strip()} 0.1 0.2 0.9 0.9\n")


def keypoints_without_their_number(root):
    write_text(root / "data.yaml", "train: images\nnames: [cat]\n")
    for number in range(2):
        box_data.save(root / f"images/{number}.jpg", ONE)
        write_text(root / f"labels/{number}.txt", f"{LINE.strip()} 0.45 0.55 2 0 0 0\n")


def names_of_label_img_in_labels(root):
    write_text(root / "labels/train/classes.txt", "cat\n")
    write_text(root / "labels/classes.txt", "cat\n")
    for number in range(2):
        box_data.save(root / f"images/train/{number}.jpg", ONE)
        write_text(root / f"labels/train/{number}.txt", LINE)


def polygons_of_labelme(root):
    for number in range(2):
        box_data.save(root / f"{number}.jpg", ONE)
        polygon = {"label": "cat", "points": [[36, 30], [54, 24], [40, 36]]}
        content = {"shapes": [polygon], "imagePath": f"{number}.jpg"}
        write_text(root / f"annotations/{number}.json", json.dumps(content))


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        (table_of_boxes, "box_table"),
        (fractions_of_open_images, "box_table"),
        (keypoints_of_yolo, "yolo"),
        (keypoints_without_their_number, "yolo"),
        (names_of_label_img_in_labels, "yolo"),
        (polygons_of_labelme, "labelme"),
        (cvat, "yolo"),
        (label_img, "yolo"),
        (label_studio, "yolo"),
        (windows_list, "yolo"),
        (voc_2012, "voc"),
        (voc_of_other_roots, "voc"),
        (coco_of_texts, "coco"),
    ],
)
def test_layouts_of_other_programs(tmp_path, layout, name):
    """Two images with one equal box each, whatever names them, and how often."""
    layout(tmp_path)
    found = detect.find_source(tmp_path)
    assert found["name"] == name
    source = open_source(name, found["path"])
    assert source.info.class_names == ("cat",)
    examples = read(source)
    places = [source.location(int(example["id"])) for example in examples]
    assert sorted(place.rpartition("/")[2] for place in places) == ["0.jpg", "1.jpg"]
    assert not any("Segmentation" in place for place in places)
    for example in examples:
        ((box, label),) = boxes_of(example)
        np.testing.assert_allclose(box, CORNERS, atol=1e-3)
        assert label == 0


def test_a_polygon_with_corners_at_the_border_is_no_box_with_keypoints(tmp_path):
    write_text(tmp_path / "data.yaml", "train: images\nnames: [cat]\n")
    box_data.save(tmp_path / "images/0.jpg", ONE)
    write_text(tmp_path / "labels/0.txt", "0 0.3 0 0.3 0.4 0 0.4 0 0 0.3 0\n")
    (example,) = read(open_source("yolo", tmp_path))
    ((box, _),) = boxes_of(example)
    np.testing.assert_allclose(box, [0, 0, 27, 24], atol=1e-3)


def test_yolo_without_names_of_classes_calls_them_by_their_numbers(tmp_path):
    for split, label in (("train", 0), ("val", 2)):
        box_data.save(tmp_path / f"{split}/images/0.jpg", ONE)
        line = LINE.replace("0", str(label), 1)
        write_text(tmp_path / f"{split}/labels/0.txt", line)
    source = open_source("yolo", detect.find_source(tmp_path)["path"])
    assert source.info.class_names == ("0", "1", "2")
    assert source.info.splits == {"train": 1, "validation": 1}
    assert "called by their numbers; write classes.txt" in source.info.notes[0]


def test_boxes_of_coco_as_fractions_are_read_as_such(tmp_path):
    file = box_data.write_coco(tmp_path, MADE[:4], bbox=[0.25, 0.5, 0.5, 0.25])
    source = open_source("coco", tmp_path)
    height, width = MADE[0][0].shape[:2]
    box = [0.25 * width, 0.5 * height, 0.75 * width, 0.75 * height]
    boxes = {tuple(box) for e in read(source) for box, _ in boxes_of(e)}
    assert boxes == {tuple(box)}
    assert "boxes are fractions of width and height" in source.info.notes[0]
    assert file.is_file()


@pytest.mark.parametrize("is_compressed", [False, True])
def test_the_box_around_a_mask_of_coco_is_that_of_pycocotools(tmp_path, is_compressed):
    height, width = MADE[0][0].shape[:2]
    generator = np.random.default_rng(0)
    expected = []
    file = box_data.write_coco(tmp_path, [(MADE[0][0], [[0, 0, 1, 1]] * 5, [0] * 5)])
    content = json.loads(file.read_text())
    for annotation in content["annotations"]:
        mask = np.zeros((height, width), np.uint8)
        top, left = generator.integers(0, (height - 30, width - 30))
        inside = generator.integers(0, 2, (20, 25))
        mask[top : top + 20, left : left + 25] = inside
        runs = coco_mask.encode(np.asfortranarray(mask))
        x, y, w, h = coco_mask.toBbox(runs).tolist()
        expected.append(([x, y, x + w, y + h], 0))
        runs = {"size": [height, width], "counts": runs["counts"].decode()}
        if not is_compressed:
            changes = np.flatnonzero(np.diff(mask.T.ravel(), prepend=0)).tolist()
            runs["counts"] = np.diff([0, *changes, mask.size]).tolist()
        del annotation["bbox"]
        annotation["segmentation"] = runs
    file.write_text(json.dumps(content))
    (example,) = read(open_source("coco", tmp_path))
    assert boxes_of(example) == sorted(expected)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("class", "kind", "no column of the class of the box, such as label"),
        ("filename", "where", "no column of the file of the image, such as path"),
        ("36,24", "x,24", "row 2: 'x' in the column 'xmin' is not a number"),
        ("cat", "", "row 2: the box has no class; fill it in"),
        ("24,54", ",54", "row 2: a side of the box is missing; fill it in"),
        ("width", "split", "row 2: the column 'split' must be train, validation"),
    ],
)
def test_a_table_of_boxes_that_lacks_something_is_refused(tmp_path, old, new, message):
    table_of_boxes(tmp_path)
    file = tmp_path / "labels.csv"
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(UsageError, match=message):
        open_source("box_table", file)


def test_images_of_one_name_are_those_of_their_split(tmp_path):
    for split in ("train", "val"):
        made = box_data.pictures(3, seed=1)
        file = f"annotations/{split}.json"
        file = box_data.write_coco(tmp_path, made, file, "images")
        file.write_text(file.read_text().replace("images/", ""))
        for number, (pixels, _, _) in enumerate(made):
            box_data.save(tmp_path / f"images/{split}/{number}.png", pixels)
            (tmp_path / f"images/{number}.png").unlink()
    source = open_source("coco", tmp_path)
    for split, folder in {"train": "train", "validation": "val"}.items():
        ids = [int(e["id"]) for e in read(source, split)]
        assert [source.location(i) for i in ids] == [
            f"images/{folder}/{number}.png" for number in range(3)
        ]


def test_of_very_many_boxes_the_largest_are_kept(tmp_path):
    pixels = np.zeros((60, 90, 3), np.uint8)
    boxes = [[0, 0, 1, 1]] * (MAX_BOXES + 500) + [[0, 0, 50, 50]]
    box_data.write_coco(tmp_path, [(pixels, boxes, [0] * len(boxes))])
    source = open_source("coco", tmp_path)
    (example,) = read(source)
    assert example["boxes"].shape == (MAX_BOXES, 4)
    assert example["boxes"].max() == 50
    assert (
        "1 images have more than 1,000 boxes; the largest are" in (source.info.notes[0])
    )


def test_bad_annotations_are_one_line(tmp_path):
    pixels = np.zeros((60, 90, 3), np.uint8)
    for number, (write, name, message) in enumerate(BAD):
        root = tmp_path / str(number)
        box_data.write_yolo(root, [(pixels, [[1, 2, 30, 40]], [0])])
        box_data.write_voc(root, [(pixels, [[1, 2, 30, 40]], [0])])
        box_data.write_coco(root, [(pixels, [[1, 2, 30, 40]], [0])])
        write(root)
        with pytest.raises(UsageError, match=message) as caught:
            open_source(name, root)
        assert "\n" not in str(caught.value), name


def text(name, content):
    def write(root):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)

    return write


def json_of(**changes):
    def write(root):
        file = root / "annotations.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return write


LINES = "labels/train/0.txt"
BAD = [
    (text(LINES, "3 0.5 0.5 0.1 0.1"), "yolo", "class 3 .* not from 0 to 2.* first cl"),
    (text(LINES, "0 0.5 0.5"), "yolo", "0.txt: line 1 must be a class and four"),
    (
        text(LINES, "cross 0.5 0.5 1 1"),
        "yolo",
        "0.txt: line 1 must be a class and four",
    ),
    (text(LINES, "0 45 30 9 9"), "yolo", "line 1 .* fractions of the image's width"),
    (text(LINES, "inf 0.5 0.5 1 1"), "yolo", "0.txt: line 1 must be a class and four"),
    (
        text(LINES, ""),
        "yolo",
        "no image has boxes; those of .*train/0.png are expected in .*labels/train/0",
    ),
    (text(LINES, "0 1.5 1.5 0.1 0.1"), "yolo", "has no boxes for training: .* no area"),
    (text("data.yaml", "train: images\nnc: 3"), "yolo", "must have the names"),
    (text("data.yaml", "names: [a\ntrain: b"), "yolo", "not in the format of YAML: "),
    (
        text("data.yaml", "nc: 3\nnames: [a]"),
        "yolo",
        "`nc` is 3, but `names` has 1 name",
    ),
    (
        text("data.yaml", "names:\n  1: a\n  2: b"),
        "yolo",
        "`names` must number the classes 0, 1, .*; got 1, 2",
    ),
    (text("data.yaml", "names: [a, b, a]"), "yolo", "distinct, .*; 'a' is there 2"),
    (text("data.yaml", "train: other\nnames: [a]"), "yolo", "other does not exist"),
    (
        text("Annotations/0.xml", '<!DOCTYPE a [<!ENTITY b "c">]><annotation/>'),
        "voc",
        "has no XML|must not define a document type",
    ),
    (text("Annotations/0.xml", "<annotation><object>"), "voc", "not in the format of"),
    (
        text("ImageSets/Main/train.txt", "1"),
        "voc",
        "no boxes: .* 1 XML files are in no",
    ),
    (
        text("Annotations/0.xml", "<annotation><object/></annotation>"),
        "voc",
        "an object has no bndbox",
    ),
    (text("Annotations/0.xml", "<annotation></annotation>"), "voc", "has no boxes"),
    (json_of(annotations=[]), "coco", "has no boxes"),
    (json_of(images=[]), "coco", "annotation 0 has the image 0, which is not listed"),
    (json_of(categories=[]), "coco", "has the category 10, which is not listed"),
    (json_of(annotations=[{"image_id": 0}]), "coco", "not in the format of COCO: KeyE"),
    (json_of(categories=[{"id": 10}]), "coco", "not in the format of COCO: KeyError"),
    (
        json_of(categories=[{"id": 10, "name": ""}]),
        "coco",
        "names of the categories must be distinct",
    ),
    (json_of(images=[{"id": 0, "file_name": "a"}] * 2), "coco", "two images have the"),
    (
        json_of(annotations=[{"id": 7, "image_id": 0, "category_id": 10, "bbox": []}]),
        "coco",
        r"annotation 7 needs a bbox of four numbers, .*; got \[\]",
    ),
    (text("annotations.json", '{"images": ['), "coco", "cannot be read"),
]


def test_an_entity_bomb_is_refused(tmp_path):
    box_data.write_voc(tmp_path, MADE[:2])
    bomb = '<!DOCTYPE a [<!ENTITY b "c">]><annotation>&b;</annotation>'
    (tmp_path / "Annotations/1.xml").write_text(bomb)
    with pytest.raises(UsageError, match="1.xml: annotations must not define"):
        open_source("voc", tmp_path)


def test_two_formats_in_one_folder_are_refused(tmp_path):
    box_data.write_voc(tmp_path, MADE[:2])
    box_data.write_yolo(tmp_path, MADE[:2])
    with pytest.raises(UsageError, match="voc .*yolo .*choose"):
        detect.find_source(tmp_path)
