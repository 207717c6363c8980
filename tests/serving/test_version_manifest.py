"""The files of a version compared with its manifest."""

import exports
import pytest

from pipeline.serving import version_manifest
from pipeline.utils.errors import Failure


@pytest.fixture
def version(tmp_path):
    (tmp_path / "assets.extra").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(name.encode())
    exports.write_manifest(tmp_path)
    return tmp_path


def check(version):
    return version_manifest.check(version, version_manifest.read(version))


def test_all_files_that_differ_are_named(version):
    assert check(version) == "3 files match the manifest"
    (version / "a").write_bytes(b"x")
    (version / "c").write_bytes(b"longer")
    (version / "d").write_bytes(b"")
    (version / "b").unlink()
    with pytest.raises(Failure) as caught:
        check(version)
    assert str(caught.value).split("; ") == [
        "d is not in the manifest",
        "a has changed",
        "b is missing",
        "c has changed",
    ]


def test_links_are_refused(version):
    (version / "b").rename(version / "d")
    (version / "b").symlink_to("d")
    with pytest.raises(Failure, match="b is not a regular file"):
        check(version)


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"files": 1}', "{"])
def test_what_is_not_a_manifest_is_refused(version, text):
    path = version / version_manifest.MANIFEST
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(Failure, match=r"manifest.json (is missing|cannot be read)"):
        check(version)
    assert version_manifest.about(version) == {}
