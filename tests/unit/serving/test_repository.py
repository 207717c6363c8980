"""The version repository: numbers, the quality gate, pruning, and publishers that are
killed.
"""

import shlex
import shutil

import pytest

from pipeline.config.sections import ExportConfig
from pipeline.serving import local, repository, version_manifest
from pipeline.utils import temp_files
from pipeline.utils.errors import UsageError

ACCURACY, LOSS = ("accuracy", 1), ("loss", -1)


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "digits"
    folder.mkdir()
    return folder


def finished(model, accuracy=None, split="test", by="accuracy", **manifest):
    """A directory that looks like a verified export."""
    folder = temp_files.folder(model)
    (folder / "assets.extra").mkdir()
    for name in ("saved_model.pb", "assets.extra/golden.npz"):
        (folder / name).write_text("content")
    version_manifest.write(
        folder, {"evaluated_split": split, "metrics": {by: accuracy}, **manifest}
    )
    return folder


def published(
    model, accuracy=None, metric=ACCURACY, tolerance=None, keep=None, **manifest
):
    folder = finished(model, accuracy, by=metric[0], **manifest)
    return repository.publish(
        folder, model, ExportConfig(tolerance=tolerance, keep=keep), metric
    )


def numbers(model):
    return sorted(repository.versions(model))


def test_a_number_is_never_used_twice(model):
    assert [published(model).directory.name for _ in range(3)] == ["1", "2", "3"]
    shutil.rmtree(model / "3")
    assert published(model).directory.name == "4"
    (model / "9").mkdir()
    assert published(model).directory.name == "10"
    (model / ".published").unlink()
    version = published(model).directory
    assert version.name == "11" and version.stat().st_mode & 0o777 == 0o755, (
        "servers can read it"
    )
    (model / ".published").write_text(str(2**63 - 2))
    with pytest.raises(UsageError, match="no version number left"):
        published(model)


@pytest.mark.parametrize("text", ["", "1e5"])
def test_a_damaged_record_is_ignored(model, text):
    published(model)
    (model / ".published").write_text(text)
    assert published(model).directory.name == "2"
    assert (model / ".published").read_text() == "2\n"


def test_keep_deletes_the_oldest_exports_only(model, tmp_path, capsys):
    for _ in range(5):
        published(model)
    assert capsys.readouterr().out == ""
    (model / "6").mkdir()
    (model / "6/saved_model.pb").write_text("of another program")
    shutil.copytree(model / "1", tmp_path / "elsewhere")
    shutil.rmtree(model / "1")
    (model / "1").symlink_to(tmp_path / "elsewhere")
    repository.pin(model, 2)
    outcome = published(model, keep=2)
    assert outcome.directory.name == "7"
    assert numbers(model) == [1, 2, 5, 6, 7]
    assert capsys.readouterr().out.splitlines() == [
        f"pinned     to 2: pipeline export {shlex.quote(str(model))} --unpin serves 7",
        "deleted    version 3, 4 (--export.keep 2)",
    ]
    assert (tmp_path / "elsewhere/saved_model.pb").read_text() == "content"
    assert [p.name for p in model.iterdir() if temp_files.is_ours(p.name)] == []
    repository.pin(model, None)
    published(model, keep=1)
    assert capsys.readouterr().out == "deleted    version 2, 5, 7 (--export.keep 1)\n"
    assert numbers(model) == [1, 6, 8]


def test_the_pinned_version_is_live_or_else_the_newest(model):
    assert repository.live(model) is None
    for _ in range(3):
        published(model)
    assert repository.live(model) == model / "3"
    repository.pin(model, 1)
    assert repository.live(model) == model / "1"
    shutil.rmtree(model / "1")
    assert repository.live(model) is None, "a server loads nothing"
    with pytest.raises(UsageError, match="version 1.*--unpin"):
        local.Local(model)


@pytest.mark.parametrize(
    ("metric", "old", "new", "tolerance", "good"),
    [
        (ACCURACY, 0.98, 0.97, 0.01, True),
        (ACCURACY, 0.98, 0.9699, 0.01, False),
        (ACCURACY, 0.98, 0.9799, 0.0, False),
        (ACCURACY, 0.98, None, 1.0, False),
        (ACCURACY, None, 0.1, 0.0, True),
        (LOSS, 0.5, 0.6, 0.05, False),
        (LOSS, 0.5, 0.4, 0.0, True),
    ],
)
def test_the_gate(model, metric, old, new, tolerance, good):
    published(model, old, metric)
    outcome = published(model, new, metric, tolerance=tolerance)
    assert outcome.refused == (not good)
    assert numbers(model) == ([1, 2] if good else [1])
    assert metric[0] in outcome.quality
    assert outcome.directory == model / ("2" if good else repository.REFUSED)


def test_the_gate_compares_with_the_served_version_on_the_same_split_and_classes(model):
    published(model, 0.5, class_names=["cat", "dog"])
    published(model, 0.9)
    assert published(model, 0.6, tolerance=0.1).refused
    repository.pin(model, 1)
    assert published(model, 0.6, tolerance=0.1).directory.name == "3"
    assert published(model, 1.0, split="validation", tolerance=0.1).refused
    outcome = published(model, 0.6, class_names=["dog", "cat"], tolerance=0.1)
    assert (
        outcome.quality == "its classes differ from those of version 1, which is served"
    )
