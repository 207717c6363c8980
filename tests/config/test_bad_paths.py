"""Paths that cannot be used end a command at once, with one line that names them."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import REPOSITORY, images_and_labels

from pipeline.config.command_line import configure

LONG = "x" * 300
DEEP = "/".join(["deep"] * 1000)
PICTURES = ("--source.name", "folder", "--source.path", "pictures")

# command, words, what the line must say
REFUSED = [
    ("fit", ("--run-directory", "file"), "--run-directory: file is a file; give a folder"),
    ("fit", ("--run-directory", "file/run"), "file is a file, so file/run cannot be made"),
    ("fit", ("--run-directory", "file/a/b/run"), "file is a file, so file/a/b/run cannot be made"),
    ("fit", ("--run-directory", "full"), "full holds 'notes.txt' but no run"),
    ("fit", ("--run-directory", "loop"), "loop"),
    ("fit", ("--run-directory", "loop/run"), "loop"),
    ("fit", ("--run-directory", "gone"), "gone is a link that leads nowhere"),
    ("fit", ("--run-directory", "gone/run"), "gone is a link that leads nowhere"),
    ("fit", ("--run-directory", "/proc/run"), "cannot write into /proc"),
    ("fit", ("--run-directory", "/proc/a/b"), "cannot write into /proc"),
    ("fit", ("--run-directory", "/sys/run"), "cannot write into /sys"),
    ("fit", ("--run-directory", "/dev/null"), "/dev/null is a file"),
    ("fit", ("--run-directory", LONG), "--run-directory: cannot use"),
    ("fit", ("--run-directory", DEEP), "--run-directory: cannot use"),
    ("fit", ("--run-directory", f"{LONG}/run"), "--run-directory: cannot use"),
    ("fit", ("--run-directory", "torn"), "torn/config.json is damaged"),
    ("fit", ("--run-directory", "empty config"), "empty config/config.json is damaged"),
    ("fit", ("--run-directory", "folder config"), "holds 'config.json' but no run"),
    ("fit", ("--run-directory", "locked"), "locked"),
    ("fit", ("--run-directory", "closed/run"), "closed"),
    ("fit", ("--export.directory", "file"), "--export.directory: file is a file"),
    ("fit", ("--export.directory", "file/models"), "file is a file, so file/models/digits cannot"),
    (
        "fit",
        ("--export.directory", "full"),
        "full is not a directory of models: it contains 'notes",
    ),
    ("fit", ("--export.directory", "models"), "models/digits contains 'notes.txt', which is not"),
    ("fit", ("--export.directory", "loop"), "loop"),
    ("fit", ("--export.directory", "gone"), "gone is a link that leads nowhere"),
    ("fit", ("--export.directory", "/proc/models"), "--export.directory: cannot write into /proc"),
    ("fit", ("--export.directory", LONG), "--export.directory: cannot use"),
    ("fit", ("--export.directory", "locked"), "locked"),
    ("fit", ("--export.directory", "blocked"), "blocked/digits is a file"),
    ("fit", ("--data.cache-directory", "file"), "--data.cache-directory: file is a file"),
    ("fit", ("--data.cache-directory", "file/cache"), "file is a file, so file/cache cannot be"),
    ("fit", ("--data.cache-directory", "loop"), "loop"),
    ("fit", ("--data.cache-directory", "gone"), "gone is a link that leads nowhere"),
    ("fit", ("--data.cache-directory", "/proc/cache"), "cannot write into /proc"),
    ("fit", ("--data.cache-directory", LONG), "--data.cache-directory: cannot use"),
    ("fit", ("--data.cache-directory", "locked"), "locked"),
    (
        "fit",
        (*PICTURES[:3], "nowhere"),
        "--source.path of folder must be an existing directory, received 'nowhere'",
    ),
    (
        "fit",
        (*PICTURES[:3], "loop"),
        "--source.path of folder must be an existing directory, received 'loop'",
    ),
    (
        "fit",
        (*PICTURES[:3], "gone"),
        "--source.path of folder must be an existing directory, received 'gone'",
    ),
    ("fit", (*PICTURES[:3], LONG), "must be an existing directory"),
    (
        "fit",
        (*PICTURES[:3], "file"),
        "--source.path of folder must be an existing directory, received 'file'",
    ),
    ("fit", (*PICTURES, "--run-directory", "pictures/run"), "pictures/run lies in pictures, the"),
    ("fit", (*PICTURES, "--run-directory", "to pictures/run"), "lies in pictures, the data"),
    ("fit", (*PICTURES, "--export.directory", "pictures"), "--export.directory: pictures lies in"),
    ("fit", (*PICTURES, "--export.directory", "loop"), "loop"),
    ("fit", (*PICTURES, "--data.cache-directory", "loop"), "loop"),
    (
        "fit",
        (*PICTURES, "--data.cache-directory", "pictures/c"),
        "--data.cache-directory: pictures",
    ),
    ("clean", (*PICTURES, "--clean.directory", "pictures"), "--clean.directory: pictures lies in"),
    ("fit", ("--clean.manifest", "nowhere.jsonl"), "--clean.manifest: nowhere.jsonl is not a file"),
    ("fit", ("--clean.manifest", "full"), "--clean.manifest: full is not a file"),
    ("fit", ("--clean.manifest", "loop"), "--clean.manifest: loop is not a file"),
    ("fit", ("--clean.manifest", LONG), "is not a file"),
    ("fit", ("--config", "nowhere.json"), "--config nowhere.json cannot be read: No such file"),
    ("fit", ("--config", "full"), "--config full cannot be read: Is a directory"),
    ("fit", ("--config", "loop"), "--config loop cannot be read: Too many levels"),
    ("fit", ("--config", LONG), "cannot be read: File name too long"),
    ("fit", ("--config", "file"), "--config file is no JSON file"),
    ("fit", ("--config", "binary"), "--config binary is no JSON file"),
    ("clean", ("--clean.directory", "file"), "file is a file"),
    ("fit", ("--export.directory=~/models",), "--export.directory: the ~ of ~/models is not expa"),
    ("fit", ("--run-directory", "~"), "--run-directory: the ~ of ~ is not expanded here; give the"),
    ("fit", ("--run-directory", "./~/run"), "whole path, such as one that begins with $HOME"),
    ("fit", ("--data.cache-directory", "~me/cache"), "--data.cache-directory: the ~ of ~me/cache"),
    ("fit", (*PICTURES[:3], "~/pictures"), "--source.path: the ~ of ~/pictures"),
    ("fit", ("--clean.manifest", "~/manifest.jsonl"), "--clean.manifest: the ~ of"),
    ("fit", ("--config=~/config.json",), "--config: the ~ of ~/config.json"),
    ("clean", ("--clean.directory", "~/cleaned"), "--clean.directory: the ~ of ~/cleaned"),
    ("clean", ("--clean.directory", "file/deeper"), "file is a file"),
    ("clean", ("--clean.directory", "loop"), "loop"),
    ("clean", ("--clean.directory", "/proc/cleaned"), "cannot write into /proc"),
    ("clean", ("--clean.directory", LONG), "--clean.directory: cannot use"),
]
# folder of the command, words, what the line must say
ELSEWHERE = [
    ("runs is a file", (), "runs is a file"),
    ("runs is a loop", (), "runs"),
    ("models are a file", (), "saved_models is a file"),
    ("locked", (), "--run-directory: cannot write into ."),
    ("cache is a file", ("--data.cache", "disk"), "--data.cache-directory: "),
]
ODD = [
    "with space",
    "ümläut",
    "名前",
    "quote's \"",
    "-dash",
    "a/./b/../c",
    "a~/~",
    "dots...",
    "%s{}$HOME",
    "=",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder in which every kind of bad path stands."""
    root = tmp_path_factory.mktemp("paths")
    os.chmod(root.parent, 0o755), os.chmod(root, 0o777)
    for name in ("full", "models/digits", "blocked", "torn", "empty config", "pictures/a"):
        (root / name).mkdir(parents=True)
    (root / "folder config/config.json").mkdir(parents=True)
    for name in ("file", "full/notes.txt", "models/digits/notes.txt", "blocked/digits"):
        (root / name).write_text("mine")
    (root / "torn/config.json").write_text('{"source": ')
    (root / "empty config/config.json").write_text("")
    (root / "binary").write_bytes(bytes(range(256)))
    for name, target in (("loop", "loop"), ("gone", "nowhere"), ("to pictures", "pictures")):
        (root / name).symlink_to(target)
    for name, inner in (("runs is a file", "runs"), ("models are a file", "saved_models")):
        (root / name).mkdir()
        (root / name / inner).write_text("mine")
    (root / "runs is a loop").mkdir()
    (root / "runs is a loop/runs").symlink_to("runs")
    (root / "cache is a file").mkdir()
    for name, mode in (("locked", 0o555), ("closed", 0)):
        (root / name).mkdir()
        (root / name).chmod(mode)
    images, labels = images_and_labels()
    np.savez(root / "mine.npz", images=images, labels=labels)
    return root


def told(cases):
    process = subprocess.run(
        [sys.executable, str(REPOSITORY / "tests/support/bad_paths.py")],
        input=json.dumps(cases),
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    answer = json.loads(process.stdout)
    assert answer["heavy"] == [], "imported too early"
    return answer["results"]


@pytest.fixture(scope="module")
def refusals(place):
    """(words, what must be said, what was said and how long it took) of every bad case."""
    listed = [(str(place), *case) for case in REFUSED]
    listed += [(str(place / folder), "fit", *case) for folder, *case in ELSEWHERE]
    cases = [
        {
            "folder": folder,
            "command": command,
            "words": words,
            "nobody": "locked" in (*words, os.path.basename(folder)) or "closed/run" in words,
            "environment": {"XDG_CACHE_HOME": str(place / "file")},
        }
        for folder, command, words, _ in listed
    ]
    before = sorted(map(str, place.rglob("*")))
    results = told(cases)
    assert sorted(map(str, place.rglob("*"))) == before, "something was written"
    return [(case[2], case[3], result) for case, result in zip(listed, results, strict=True)]


def test_sixty_bad_paths_end_in_one_line_that_names_them(refusals):
    wrong = [
        (words, result)
        for words, message, result in refusals
        if result["kind"] != "exit 2"
        or message not in result["said"]
        or not result["said"].startswith("error: ")
        or "\n" in result["said"]
    ]
    assert not wrong and len(refusals) >= 60, json.dumps(wrong, indent=1)


def test_each_refusal_is_prompt(refusals):
    """In seconds of this process alone, whatever else the machine does."""
    assert max(result["seconds"] for *_, result in refusals) < 0.3


def test_odd_but_good_paths_are_taken(place):
    """Up to the import of TensorFlow, and nothing is written before it."""
    before = sorted(map(str, place.rglob("*")))
    cases = [
        {
            "folder": str(place),
            "command": "fit",
            "words": [f"--run-directory={name}", f"--export.directory={name} models", *more],
        }
        for name in ODD
        for more in ((), ("--source.name", "arrays", "--source.path", "mine.npz"))
    ]
    results = told(cases)
    assert {result["kind"] for result in results} == {"accepted"}, results
    assert sorted(map(str, place.rglob("*"))) == before


def test_a_path_with_a_zero_byte_in_a_config_file_is_refused(place, tmp_path):
    values = configure([]).as_json()
    for section, name in (("export", "directory"), ("data", "cache_directory")):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({**values, section: {**values[section], name: "a\0b"}}))
        (result,) = told(
            [{"folder": str(place), "command": "fit", "words": ["--config", str(path)]}]
        )
        assert result["kind"] == "exit 2" and "a path in UTF-8" in result["said"]
