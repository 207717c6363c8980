"""A version's files against its manifest."""

import os

import exports
import pytest

from pipeline.serving import version_manifest
from pipeline.utils.errors import Failure


@pytest.mark.parametrize("harm", ["changed", "longer", "gone", "more", "link"])
def test_files_that_are_not_those_written_are_named(tmp_path, harm):
    (tmp_path / "assets.extra").mkdir()
    for name in ("saved_model.pb", "a", "b"):
        (tmp_path / name).write_bytes(name.encode())
    exports.write_manifest(tmp_path)
    assert (
        version_manifest.check(tmp_path, version_manifest.read(tmp_path))
        == "3 files are what was written"
    )
    path = tmp_path / "b"
    if harm == "gone":
        path.unlink()
    elif harm == "link":
        path.rename(tmp_path / "c")
        path.symlink_to("nowhere")
    else:
        path = tmp_path / "c" if harm == "more" else path
        path.write_bytes({"changed": b"c", "longer": b"bb", "more": b""}[harm])
    with pytest.raises(Failure, match=f"{'c' if harm == 'more' else 'b'} is "):
        version_manifest.check(tmp_path, version_manifest.read(tmp_path))


def test_all_files_that_differ_are_named(tmp_path):
    (tmp_path / "assets.extra").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(name.encode())
    exports.write_manifest(tmp_path)
    for name in ("a", "d"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "b").unlink()
    with pytest.raises(Failure) as caught:
        version_manifest.check(tmp_path, version_manifest.read(tmp_path))
    assert str(caught.value).split("; ") == [
        "d is not in the manifest: it was added afterwards",
        "a is not what was written: another size or sha256",
        "b is missing",
    ]


def test_what_has_another_size_is_not_read(tmp_path, monkeypatch):
    """A file of 2 TB with holes takes hours to read."""
    (tmp_path / "assets.extra").mkdir()
    (tmp_path / "a").write_bytes(b"a")
    exports.write_manifest(tmp_path)
    os.truncate(tmp_path / "a", 2**40)
    monkeypatch.setattr(version_manifest.hashlib, "file_digest", None)
    with pytest.raises(Failure, match="a is not what was written: another size"):
        version_manifest.check(tmp_path, version_manifest.read(tmp_path))


def test_a_version_without_a_manifest_is_not_proved(tmp_path):
    with pytest.raises(Failure, match="manifest.json is missing: nothing tells"):
        version_manifest.read(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": 1}', '{"files": {"a": 1}}', "{"])
def test_what_is_no_manifest_is_refused(tmp_path, text):
    (tmp_path / "assets.extra").mkdir()
    (tmp_path / version_manifest.MANIFEST).write_text(text)
    with pytest.raises(Failure, match="manifest.json"):
        version_manifest.read(tmp_path)
