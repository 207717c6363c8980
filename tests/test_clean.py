"""Cleaning as a user meets it: what is found, what is done about it, what a run makes of it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from conftest import REPOSITORY
from PIL import Image

from pipeline import clean, cleaning, command_line, findings, manifest, scan, shelf, stream
from pipeline.array_source import ArraySource
from pipeline.errors import UsageError
from pipeline.fit import fit

HTML = b"<!doctype html><html><body>404 Not Found</body></html>"
SHORT = {"epochs": 1, "batch_size": 8}
SHAPE = {"image_shape": [24, 20, 3]}


def noise(seed, size=(24, 20)):
    """A smooth random picture, (height, width, 3)."""
    generator = np.random.default_rng(seed)
    coarse = Image.fromarray(generator.integers(0, 256, (5, 5, 3), np.uint8))
    return np.asarray(coarse.resize(size[::-1], Image.Resampling.BICUBIC))


def save(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)
    return path


def png_header(height, width):
    """A PNG that announces so many pixels."""
    sides = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + sides + b"\x08\x02\0\0\0" + bytes(4)


def damaged(folder, whole, count):
    """`count` files of all kinds that cannot be decoded, by turns; `whole` is a good JPEG."""
    generator = np.random.default_rng(1)
    kinds = {
        "empty.jpg": lambda: b"",
        "page.jpg": lambda: HTML,
        "byte.png": lambda: b"\x89",
        "cut.jpg": lambda: whole[: len(whole) // 2],
        "head.jpg": lambda: whole[:20],
        "random.png": lambda: generator.bytes(500),
        "bomb.png": lambda: png_header(60_000, 60_000),
    }
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(count):
        name = list(kinds)[number % len(kinds)]
        paths.append(folder / f"{number}-{name}")
        paths[-1].write_bytes(kinds[name]())
    return paths


@pytest.fixture
def folder(tmp_path):
    """40 good pictures of two classes in data/."""
    for number in range(40):
        save(tmp_path / f"data/{'ab'[number % 2]}/{number:02}.png", noise(number))
    return tmp_path / "data"


def config(folder, **options):
    source = {"name": "folder", "path": folder}
    return command_line.recipe("digits").changed(source=source, clean=options)


def find(source, **options):
    """(file, reason, action, file of the other) of all that is found."""
    scanned = scan.scan(source)
    entries = findings.find(source, scanned, **options)
    return [(e["file"], e["reason"], e["action"], e.get("of_file")) for e in entries]


def found_in(folder, **options):
    return find(shelf.take("sources", "folder")(path=folder), **options)


def test_a_clean_folder_has_no_findings(folder):
    assert found_in(folder) == []


def test_every_damaged_file_is_named_with_its_reason(folder, capfd):
    whole = save(folder / "a/good.jpg", noise(99)).read_bytes()
    paths = damaged(folder / "b", whole, 21)
    found = found_in(folder)
    named = {file: reason for file, reason, action, _ in found if action == "drop"}
    assert len(found) == 21 and set(named) == {f"b/{path.name}" for path in paths}
    for file, reason in named.items():
        assert reason == ("bomb" if "bomb" in file else "undecodable"), file
    said = capfd.readouterr().err
    assert not any(word in said for word in ("JPEG", "rendezvous", "assertion")), said


def test_why_a_file_is_damaged_is_told_without_tensorflows_words(folder):
    (folder / "b/page.jpg").write_bytes(HTML)
    (folder / "b/bomb.png").write_bytes(png_header(60_000, 60_000))
    source = shelf.take("sources", "folder")(path=folder)
    bomb, page = findings.find(source, scan.scan(source))
    assert page["detail"] == "the file is no JPEG, PNG, GIF, BMP or WebP image"
    assert bomb["detail"].endswith("of 89478485: height 60000 width 60000")


def test_files_that_cannot_be_read_are_listed(folder, workplace, capsys):
    (folder / "a/gone.png").symlink_to(folder / "nothing")
    (folder / "b/circle.jpg").symlink_to("circle.jpg")
    entries = {e[0]: e[1:3] for e in found_in(folder)}
    assert entries == dict.fromkeys(["a/gone.png", "b/circle.jpg"], ("undecodable", "drop"))
    words = ("digits", "--source.name", "folder", "--source.path", folder)
    code, shown = run(*words, capsys=capsys)
    assert code == 0 and "undecodable         2  drop    a/gone.png (" in shown
    note = (
        f"{folder}: 2 files cannot be read, such as a/gone.png: No such file or directory; --clea"
    )
    assert note in shown
    settings = config(folder).changed(train=SHORT, model={"name": "tiny", "options": {}})
    with pytest.raises(UsageError, match=r"a/gone.png cannot be decoded: .*--clean.enabled finds"):
        fit(settings)
    source = shelf.take("sources", "folder")(path=folder)
    task = shelf.take("tasks", "image_classification")({"class_names": ["a", "b"]} | SHAPE)
    dropped = cleaning.clean(source, config(folder, enabled=True)).dropped
    parts, _ = stream.load(source, task, settings, dropped, {})
    assert sum(map(len, parts.values())) == 40


def test_unfit_pictures_are_found_by_their_pixels(folder):
    grey = np.full((24, 20, 3), 7, np.uint8)
    Image.fromarray(grey).save(folder / "a/blank.jpg")
    save(folder / "a/dot.png", noise(50, (5, 5)))
    save(folder / "b/banner.png", noise(51, (10, 90)))
    assert found_in(folder) == [
        ("a/blank.jpg", "blank", "drop", None),
        ("a/dot.png", "tiny", "drop", None),
        ("b/banner.png", "extreme aspect", "keep", None),
    ]


def test_small_pictures_are_not_tiny_where_all_are_small():
    images = np.stack([noise(n, (6, 6)) for n in range(20)])
    assert find(ArraySource({"image": images, "label": np.arange(20) % 2})) == []


def test_labels_out_of_range():
    labels = np.arange(20) % 3
    labels[5], labels[6] = -1, 3
    images = np.stack([noise(n) for n in range(20)])
    source = ArraySource({"image": images, "label": labels}, class_names=("a", "b", "c"))
    entries = findings.find(source, scan.scan(source))
    assert [(e["id"], e["reason"], e["action"]) for e in entries] == [
        (5, "label out of range", "drop"),
        (6, "label out of range", "drop"),
    ]
    assert entries[1]["detail"] == "label 3 of classes 0 ... 2"


def test_the_same_pixels_again_and_under_two_labels(folder):
    save(folder / "a/again.bmp", noise(0))  # another format, the same pixels
    save(folder / "b/other.png", noise(2))  # a/02.png under another label
    save(folder / "a/other.bmp", noise(2))
    assert found_in(folder) == [
        ("a/02.png", "two labels", "drop", "b/other.png"),
        ("a/again.bmp", "duplicate", "drop", "a/00.png"),
        ("a/other.bmp", "two labels", "drop", "b/other.png"),
        ("b/other.png", "two labels", "drop", "a/02.png"),
    ]


def test_pixels_of_another_shape_are_not_the_same():
    flat = np.arange(48, dtype=np.uint8)
    images = [flat.reshape(2, 8, 3), flat.reshape(4, 4, 3)]
    digests = [
        scan.scan(ArraySource({"image": image[None], "label": np.zeros(1, int)})).digest
        for image in images
    ]
    assert (digests[0] != digests[1]).any()


def split_folders(root):
    for number in range(24):
        split = ("train", "train", "val", "test")[number // 6]
        save(root / f"{split}/{'ab'[number % 2]}/{number:02}.png", noise(number))
    return root


def test_leakage_is_about_the_copy_that_is_not_held_out(tmp_path):
    root = split_folders(tmp_path / "data")
    save(root / "train/a/tested.png", noise(18))
    save(root / "train/b/valid.png", noise(12))  # under another label, too
    save(root / "val/a/tested.png", noise(20)[:, ::-1])  # mirrored
    source = shelf.take("sources", "folder")(path=root)
    entries = findings.find(source, scan.scan(source))
    assert [(e["file"], e["reason"], e["action"], e["of_file"]) for e in entries] == [
        ("train/a/tested.png", "leakage", "stop", "test/a/18.png"),
        ("train/b/valid.png", "leakage", "stop", "val/a/12.png"),
        ("val/a/tested.png", "near leakage", "stop", "test/a/20.png"),
    ]
    assert entries[1]["detail"] == "under another label"
    assert found_in(root, near=False) == [
        (e["file"], e["reason"], e["action"], e["of_file"]) for e in entries[:2]
    ]


def test_near_duplicates_are_kept_and_tied_together(folder):
    save(folder / "a/mirror.png", noise(0)[:, ::-1])
    Image.fromarray(noise(0)).save(folder / "b/encoded.jpg", quality=95)
    source = shelf.take("sources", "folder")(path=folder)
    entries = findings.find(source, scan.scan(source))
    assert {e["action"] for e in entries} == {"keep"} and len(entries) == 2
    assert sorted(e["reason"] for e in entries) == [
        "near duplicate",
        "near duplicate, two labels",
    ]
    names = ("a/00.png", "a/mirror.png", "b/encoded.jpg")
    scanned = scan.scan(source)
    ids = {source.location(int(id)): int(id) for id in scanned.id}
    (group,) = set(manifest.groups(entries).values())
    assert group == min(ids[name] for name in names)
    assert set(manifest.groups(entries)) == {ids[name] for name in names}


def test_groups_hang_together_over_any_number_of_links():
    def tied(*pairs):
        return manifest.groups(
            [{"id": a, "of": b, "reason": "", "action": "keep"} for a, b in pairs]
        )

    assert tied((9, 8), (3, 4), (8, 3), (20, 21)) == {9: 3, 8: 3, 4: 3, 3: 3, 20: 20, 21: 20}
    chain = tied(*((n, n + 1) for n in range(5000)))
    assert set(chain.values()) == {0} and len(chain) == 5001


def test_rare_and_missing_classes_are_told():
    labels = np.array([0] * 44 + [1] * 4)
    images = np.stack([noise(n) for n in range(48)])
    source = ArraySource({"image": images, "label": labels}, class_names=("many", "few", "none"))
    scanned = scan.scan(source)
    lines = findings.notes(source, scanned, findings.find(source, scanned))
    assert lines == [
        "train has no examples of none",
        "train has 44 examples of many but 4 of few; --train.class-weight can even that out",
    ]


class InOrder(ArraySource):
    """Encoded images that can only be read one after the other."""

    def __init__(self, images):
        super().__init__({"image": np.array(images, object), "label": np.arange(len(images)) % 2})
        self.info.fields["image"] = tf.TensorSpec((), tf.string)

    def examples(self, split):
        columns = {**self._columns, "image": tf.constant(list(self._columns["image"]))}
        return tf.data.Dataset.from_tensor_slices(columns)


def test_a_source_without_a_reader_is_cleaned_too():
    images = [tf.io.encode_png(noise(n)).numpy() for n in range(20)]
    images[3], images[11] = HTML, images[3][:100]
    source = InOrder(images)
    scanned = scan.scan(source)
    found = [(e["id"], e["reason"]) for e in findings.find(source, scanned)]
    assert found == [(3, "undecodable"), (11, "undecodable")]
    assert set(scan.pictures(source, scanned, np.arange(20), 16)) == set(range(20)) - {3, 11}


def test_regression_is_refused():
    source = shelf.take("sources", "scikit_learn")(dataset="diabetes")
    with pytest.raises(UsageError, match="only images .* this source has id .int64., features"):
        scan.scan(source)


def test_a_run_with_damaged_files_completes_and_names_them(folder, workplace):
    whole = save(folder / "a/good.jpg", noise(99)).read_bytes()
    paths = damaged(folder / "b", whole, 14)
    changes = {
        "source": {"name": "folder", "path": folder},
        "data": {"augment": {}, "image_size": (8, 8)},
        "model": {"name": "tiny"},
        "train": SHORT,
        "export": {"enabled": False},
        "log": {"tensorboard": False},
        "run_directory": "run",
    }
    with pytest.raises(UsageError, match=r"b/.* cannot be decoded: .*--clean\.enabled finds"):
        fit("digits", **changes)
    first = fit("digits", clean={"enabled": True}, **changes)
    entries = manifest.read(Path("run/manifest.jsonl"))
    assert {e["file"] for e in entries} == {f"b/{path.name}" for path in paths}
    assert sum(len(split) for split in first.splits.values()) == 41
    decisions = json.loads(Path("run/decisions.json").read_text())
    left_out = next(d for d in decisions if d["name"] == "left out")
    assert left_out["value"] == "12 undecodable, 2 bomb"
    assert Path("run/gallery.html").read_text().count("<article>") == 14
    # A resumed run keeps what it began with, whatever the folder holds by now.
    Path("run/manifest.jsonl").write_text(
        "".join(json.dumps({**entry, "reason": "mine"}) + "\n" for entry in entries)
    )
    again = cleaning.clean(None, first.config)
    assert set(again.dropped.values()) == {"mine"} and again.found is None


def test_leakage_stops_a_run_until_it_is_decided(tmp_path, workplace):
    root = split_folders(tmp_path / "data")
    save(root / "train/a/tested.png", noise(18))
    source = shelf.take("sources", "folder")(path=root)
    id = next(i for i in scan.scan(source).id if source.location(int(i)) == "train/a/tested.png")
    told = r"leakage: train's train/a/tested.png is also test's .*--clean.drop-leakage leaves"
    with pytest.raises(UsageError, match=told):
        fit(config(root, enabled=True))
    assert not Path("runs").exists() and not Path("saved_models").exists()
    manifest.write(tmp_path / "m", findings.find(source, scan.scan(source)))
    obeyed = config(root, manifest=tmp_path / "m", drop_leakage=True)
    assert cleaning.clean(source, obeyed).dropped == {int(id): "leakage"}
    assert cleaning.clean(source, config(root, enabled=True, allow_leakage=True)).dropped == {}


def run(*words, capsys):
    code = clean.main([str(word) for word in words])
    return code, capsys.readouterr().out


def test_the_command_writes_a_manifest_that_fit_obeys(folder, workplace, capsys):
    (folder / "a/page.jpg").write_bytes(HTML)
    save(folder / "b/again.png", noise(1))
    before = sorted(folder.rglob("*"))
    words = ("digits", "--source.name", "folder", "--source.path", folder)
    code, shown = run(*words, capsys=capsys)
    assert code == 0
    lines = shown.splitlines()
    assert lines[0].startswith(f"cleaning   {folder}: 42 examples in")
    assert lines[1].split() == ["reason", "examples", "action", "such", "as"]
    assert lines[2].startswith("undecodable         1  drop    a/page.jpg (the file is no JPEG")
    assert lines[3] == "duplicate           1  drop    b/again.png = b/01.png"
    assert lines[4] == "manifest   cleaned/digits-1/manifest.jsonl"
    assert lines[5] == "gallery    cleaned/digits-1/gallery.html"
    assert lines[6] == (
        f"next       python -m pipeline.fit digits --source.name folder --source.path {folder} "
        "--clean.manifest cleaned/digits-1/manifest.jsonl"
    )
    written = manifest.read(Path("cleaned/digits-1/manifest.jsonl"))
    assert sorted(folder.rglob("*")) == before
    obeyed = config(folder, manifest=Path("cleaned/digits-1/manifest.jsonl"))
    assert set(cleaning.clean(shelf.take("sources", "folder")(path=folder), obeyed).dropped) == {
        entry["id"] for entry in written
    }


def test_the_command_ends_with_1_where_a_run_would_stop(tmp_path, workplace, capsys):
    root = split_folders(tmp_path / "data")
    save(root / "train/a/tested.png", noise(18))
    words = ("digits", "--source.name", "folder", "--source.path", root)
    code, shown = run(*words, capsys=capsys)
    assert code == 1 and shown.splitlines()[-1].startswith("STOPS      leakage: train's train/a/te")
    (entry,) = manifest.read(Path("cleaned/digits-1/manifest.jsonl"))
    assert entry["action"] == "stop" and entry["of_split"] == "test"
    with pytest.raises(UsageError, match="leakage"):
        cleaning.clean(
            shelf.take("sources", "folder")(path=root),
            config(root, manifest=Path("cleaned/digits-1/manifest.jsonl")),
        )
    with pytest.raises(UsageError, match="digits-1 holds a manifest, which may have been edited"):
        clean.main([*map(str, words), "--clean.directory", "cleaned/digits-1"])


def test_nothing_is_written_among_the_data(folder):
    with pytest.raises(UsageError, match="lies in .*, the data"):
        words = ["--source.name", "folder", "--source.path", str(folder)]
        clean.main([*words, "--clean.directory", str(folder / "new")])
    assert not (folder / "new").exists()


def test_neither_help_nor_an_error_imports_tensorflow_or_numpy():
    program = """
import sys
from pipeline.clean import main
from pipeline.errors import UsageError
for words in (["--help"], ["digits", "--help"], ["nothing"], ["--clean.directory", "/dev/null"]):
    try:
        main(words)
    except (SystemExit, UsageError):
        pass
heavy = {"tensorflow", "keras", "numpy", "scipy", "sklearn", "matplotlib", "PIL"}
sys.exit(", ".join(heavy & set(sys.modules)) or 0)
"""
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr[-500:]
    assert "python -m pipeline.clean RECIPE --help" in result.stdout
