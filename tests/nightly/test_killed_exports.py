"""Whole exports by the command, killed at file operations and between them."""

import random
import time

import pytest

from pipeline.serving.savedmodel_session import Session
from pipeline.utils import files, temp_files
from tests.nightly.fault_injection import harness
from tests.nightly.fault_injection.harness import Fault

RUN = """digits --model.name tiny --data.limit 60 --train.epochs 1 --train.steps-per-call 4
    --runtime.precision float32 --export.no-enabled --log.no-progress --run-directory run"""
EXPORT = ("pipeline.export.__main__", ["run", "--export.keep", "3"])


@pytest.mark.long
def test_no_incomplete_version_is_visible_whenever_exports_are_killed(tmp_path):
    assert harness.run("pipeline.fit", RUN.split(), tmp_path).code == 0
    begin = time.monotonic()
    whole = harness.run(*EXPORT, tmp_path)
    seconds, events = time.monotonic() - begin, whole.count("export")
    assert whole.code == 0 and events > 20, whole.output
    model, chance, codes, seen = tmp_path / "saved_models/digits", random.Random(0), [], set()
    while len(codes) < 200 or codes.count(137) < 100:
        fault = None
        if codes.count(137) < 100:
            delay = chance.choice((0.0, chance.uniform(0, 0.03), chance.uniform(0, seconds)))
            fault = Fault("SIGKILL", "export", chance.randint(1, events), delay)
        result = harness.run(*EXPORT, tmp_path, fault)
        assert result.code in (0, 137) and "Traceback" not in result.output, result.output
        codes.append(result.code)
        for number, path in files.versions(model).items():
            if number not in seen:
                assert number > max(seen, default=0), "a number is used again"
                Session(path)
                seen.add(number)
    assert harness.run(*EXPORT, tmp_path).code == 0
    assert [path.name for path in model.iterdir() if temp_files.is_ours(path.name)] == []
    assert len(files.versions(model)) == 3 and len(seen) >= codes.count(0)
