"""Pictures of shapes with boxes, and the files of COCO, VOC and YOLO for them."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

NAMES = ("cross", "square", "triangle")


def picture(generator, size=(96, 128), most=4, least=16, largest=48):
    """uint8 pixels of shapes on noise; their boxes and their classes."""
    height, width = size
    pixels = generator.integers(0, 80, (height, width, 3)).astype(np.uint8)
    boxes, labels = [], []
    rows, columns = np.mgrid[:height, :width] + 0.5
    for _ in range(generator.integers(0, most + 1)):
        side = generator.integers(least, largest)
        left = generator.integers(0, width - side)
        top = generator.integers(0, height - side)
        box = [left, top, left + side, top + side]
        if any(_overlap(box, other) > 0 for other in boxes):
            continue
        label = int(generator.integers(len(NAMES)))
        x, y = (columns - left) / side, (rows - top) / side
        inside = (x > 0) & (x < 1) & (y > 0) & (y < 1)
        if label == 0:
            inside &= (np.abs(x - 0.5) < 0.17) | (np.abs(y - 0.5) < 0.17)
        elif label == 2:
            inside &= np.abs(x - 0.5) < y / 2
        pixels[inside] = generator.integers(120, 256, 3)
        boxes.append([int(side) for side in box])
        labels.append(label)
    return pixels, boxes, labels


def _overlap(one, other):
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(width, 0) * max(height, 0)


def pictures(count, seed=0, **options):
    generator = np.random.default_rng(seed)
    return [picture(generator, **options) for _ in range(count)]


def save(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)


def write_coco(root, made, name="annotations.json", folder="images", **changes):
    """A JSON file; `changes` replace the keys of all annotations."""
    images, annotations = [], []
    for number, (pixels, boxes, labels) in enumerate(made):
        save(root / folder / f"{number}.png", pixels)
        height, width = pixels.shape[:2]
        file = f"{folder}/{number}.png"
        entry = {"id": number, "file_name": file, "height": height, "width": width}
        images.append(entry)
        for box, label in zip(boxes, labels, strict=True):
            left, top, right, bottom = box
            annotation = {
                **{"id": len(annotations), "image_id": number, "iscrowd": 0},
                **{"category_id": 10 * (label + 1)},
                "bbox": [left, top, right - left, bottom - top],
            }
            annotations.append({**annotation, **changes})
    categories = [{"id": 10 * (n + 1), "name": name} for n, name in enumerate(NAMES)]
    categories.append({"id": 5, "name": "nothing"})
    content = {"images": images, "annotations": annotations, "categories": categories}
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(json.dumps(content))
    return Path(root, name)


def voc_text(size, boxes, labels, difficult=0):
    height, width = size
    objects = []
    for box, label in zip(boxes, labels, strict=True):
        sides = zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
        corners = "".join(f"<{side}>{value}</{side}>" for side, value in sides)
        objects.append(
            f"<object><name>{NAMES[label]}</name><difficult>{difficult}</difficult>"
            f"<bndbox>{corners}</bndbox></object>"
        )
    return (
        "<annotation><size>"
        f"<width>{width}</width><height>{height}</height><depth>3</depth></size>"
        f"{''.join(objects)}</annotation>"
    )


def write_voc(root, made, lists=None):
    """`Annotations` and `JPEGImages`; `lists` are the numbers of the pictures of each
    file in `ImageSets/Main`."""
    (root / "Annotations").mkdir(parents=True, exist_ok=True)
    for number, (pixels, boxes, labels) in enumerate(made):
        save(root / "JPEGImages" / f"{number}.png", pixels)
        text = voc_text(pixels.shape[:2], boxes, labels)
        (root / "Annotations" / f"{number}.xml").write_text(text)
    for name, numbers in (lists or {}).items():
        file = root / "ImageSets" / "Main" / f"{name}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(map(str, numbers)))


def write_labelme(root, made):
    """A JSON file beside each picture, and a point, which is no box."""
    for number, (pixels, boxes, labels) in enumerate(made):
        save(root / f"{number}.png", pixels)
        shapes = [{"label": "spot", "points": [[3, 4]], "shape_type": "point"}]
        for (left, top, right, bottom), label in zip(boxes, labels, strict=True):
            points = [[right, bottom], [left, top]]
            shape = {"points": points, "group_id": None, "shape_type": "rectangle"}
            shapes.append({"label": NAMES[label], **shape})
        height, width = pixels.shape[:2]
        content = {
            **{"version": "5.4.1", "flags": {}, "shapes": shapes},
            **{"imagePath": f"..\\photos\\{number}.png", "imageData": None},
            **{"imageHeight": height, "imageWidth": width},
        }
        (root / f"{number}.json").write_text(json.dumps(content, indent=2))


def write_yolo(root, made, split="train", names="[cross, 'square', triangle]"):
    """`images/SPLIT`, `labels/SPLIT` and `data.yaml`; without a text for pictures
    without boxes."""
    for number, (pixels, boxes, labels) in enumerate(made):
        save(root / "images" / split / f"{number}.png", pixels)
        height, width = pixels.shape[:2]
        lines = []
        for (left, top, right, bottom), label in zip(boxes, labels, strict=True):
            center = (left + right) / 2 / width, (top + bottom) / 2 / height
            size = (right - left) / width, (bottom - top) / height
            lines.append(" ".join(map(str, (label, *center, *size))))
        if lines:
            file = root / "labels" / split / f"{number}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("\n".join(lines))
    (root / "data.yaml").write_text(f"{split}: images/{split}\nnc: 3\nnames: {names}\n")
