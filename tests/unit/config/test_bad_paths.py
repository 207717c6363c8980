"""Paths that cannot be used are refused at once, in one line that names them, and left
alone.
"""

import os

import pytest

from pipeline import clean
from pipeline.config.command_line import configure
from pipeline.training import preflight
from pipeline.utils.errors import UsageError

IMAGES = "--source.name folder --source.path"
# Words -> a part of the message.
REFUSED = {
    "--run-directory file": "--run-directory: file is not a directory",
    "--run-directory full": "full contains 'notes.txt' but no run",
    "--run-directory loop/run": "loop",
    "--run-directory /proc/run": "cannot write into /proc",
    "--run-directory /dev/null": "/dev/null is not a directory",
    "--run-directory torn": "torn/config.json is damaged",
    "--run-directory locked/run": "locked: Permission denied",
    "--export.directory file": "--export.directory: file is not a directory",
    "--export.directory blocked": "blocked/digits is not a directory",
    "--data.cache-directory ~me/cache": "the ~ of ~me/cache is not expanded here",
    f"{IMAGES} nowhere": "--source.path .*existing directory",
    f"{IMAGES} ~/images": "--source.path of folder: the ~ of ~/images",
    f"{IMAGES} images --run-directory images/run": "images/run is inside .* images",
    "--clean.manifest full": "--clean.manifest .*existing file .*'full'",
    "--config nowhere.json": "--config nowhere.json cannot be read",
    "--config binary": "--config binary is not a JSON file",
    "clean --clean.directory file/deeper": "--clean.directory: file is not a directory",
    f"clean {IMAGES} images --clean.directory images": "images is inside the data",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with every kind of bad path."""
    root = tmp_path_factory.mktemp("paths")
    os.chmod(root.parent, 0o755), os.chmod(root, 0o777)
    for name in ("full", "models/digits", "blocked", "torn", "images/a"):
        (root / name).mkdir(parents=True)
    for name in ("file", "full/notes.txt", "models/digits/notes.txt", "blocked/digits"):
        (root / name).write_text("mine")
    (root / "torn/config.json").write_text('{"source": ')
    (root / "binary").write_bytes(bytes(range(256)))
    for name, target in (("loop", "loop"), ("gone", "nowhere"), ("link", "images")):
        (root / name).symlink_to(target)
    for name, mode in (("locked", 0o555), ("closed", 0)):
        (root / name).mkdir()
        (root / name).chmod(mode)
    return root


@pytest.fixture
def here(place, monkeypatch):
    """`place` as the current directory."""
    monkeypatch.chdir(place)
    before = sorted(map(str, place.rglob("*")))
    yield
    assert sorted(map(str, place.rglob("*"))) == before, "something was written"


@pytest.mark.parametrize(
    "words", REFUSED, ids=lambda words: words[:60].replace("/", "|")
)
def test_a_path_that_cannot_be_used_is_refused(here, words, request):
    command, *rest = words.split(" ")
    if (
        "Permission denied" in REFUSED[words] and os.geteuid() == 0
    ):  # root may write anywhere
        request.addfinalizer(lambda: os.seteuid(0))
        os.seteuid(65534)
    with pytest.raises(UsageError, match=REFUSED[words]) as caught:
        if command == "clean":
            clean._check(clean._configure(rest)[0])
        else:
            preflight.check(configure(words.split(" ")))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["with space", "名前", "-dash", "%s{}$HOME"])
def test_unusual_paths_are_accepted(here, name):
    preflight.check(
        configure([f"--run-directory={name}", f"--export.directory={name} models"])
    )
