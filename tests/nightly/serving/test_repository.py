"""The version repository: numbers, the quality gate, pruning, and publishers that are
killed.
"""

import multiprocessing
import random
import signal

import killed_publisher
import numpy as np
import pytest

from pipeline.export.proof import read_golden
from pipeline.serving import repository, version_manifest
from pipeline.serving.savedmodel_session import Session
from pipeline.utils import temp_files


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "digits"
    folder.mkdir()
    return folder


def numbers(model):
    return sorted(repository.versions(model))


def answers_as_exported(version):
    session = Session(version)
    for signature, sides in read_golden(version / version_manifest.GOLDEN).items():
        predictions = session.run(signature, sides["inputs"])
        for name, wanted in sides["outputs"].items():
            if wanted.dtype.kind == "f":
                np.testing.assert_allclose(predictions[name], wanted, atol=1e-5)
            else:
                np.testing.assert_array_equal(predictions[name], wanted)


@pytest.mark.parametrize("kills", [24, pytest.param(1000, marks=pytest.mark.long)])
def test_no_incomplete_version_is_visible_whenever_publishers_are_killed(
    model, pixel_version, kills
):
    """What a kill leaves at some file operation is what a server sees at
    that moment.
    """
    context = multiprocessing.get_context("forkserver")
    chance, seen, killed = random.Random(0), {}, 0
    while killed < kills:
        at = chance.randrange(1, 110)  # two versions take 104 operations
        process = context.Process(
            target=killed_publisher.publish, args=(pixel_version, model, at)
        )
        process.start()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
        killed += process.exitcode != 0
        for number, path in sorted(repository.versions(model).items()):
            inode = path.stat().st_ino
            if number not in seen:
                assert number > max(seen, default=0), "a number is used again"
                answers_as_exported(path)
            assert seen.setdefault(number, inode) == inode, "its content has changed"
    process = context.Process(
        target=killed_publisher.publish, args=(pixel_version, model, 0)
    )
    process.start()
    process.join()
    assert process.exitcode == 0
    assert [
        path.name for path in model.iterdir() if temp_files.is_ours(path.name)
    ] == []
    assert len(numbers(model)) == 3 and len(seen) > kills / 2
