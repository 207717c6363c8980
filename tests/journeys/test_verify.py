"""The verification of an export in a separate process, and its command."""

import json
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import reference_exports
from processes import REPOSITORY

from pipeline.export import proof
from pipeline.export.verification import begin, start, verify
from pipeline.serving import version_manifest
from pipeline.verify import main


def test_the_process_imports_numpy_protobuf_and_crc32c_only(whole):
    """It also runs with the libraries of another TensorFlow, without other packages."""
    script = f"""if True:
        import io, json, sys
        begin = set(sys.modules)
        from pathlib import Path
        from pipeline.export import proof
        code = proof.run(proof.checks(Path({str(whole)!r})), io.StringIO())
        print(json.dumps([code, sorted(set(sys.modules) - begin)]))
    """
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    code, found = json.loads(ran.stdout.splitlines()[-1])
    assert code == 0
    others = [n for n in found if n.partition(".")[0] not in sys.stdlib_module_names]
    messages = re.compile(r"tensorflow(_serving|\.core|\.tsl|\.compiler)(\..*)?")
    others = [n for n in others if not messages.fullmatch(n)]
    assert {n.partition(".")[0] for n in others} == {
        "numpy",
        "google",
        "google_crc32c",
        "pipeline",
    }
    modules = {n for n in others if n.count(".") == 2 and n.startswith("pipeline.")}
    packages = {"export", "serving", "utils", "runtime"}
    assert {n.split(".")[1] for n in modules} == packages, (
        "no training, data, or config"
    )


@pytest.mark.parametrize(
    "changed", ["saved_model.pb", "variables/variables.index", None]
)
def test_the_slow_checks_run_while_other_files_are_still_written(
    swift, tmp_path, changed
):
    """What they have loaded must be what the manifest describes."""
    version, later = tmp_path / "1", [proof.GOLDEN, version_manifest.MANIFEST]
    shutil.copytree(
        swift, version, ignore=shutil.ignore_patterns(*(Path(f).name for f in later))
    )
    process = start(version)
    begin(process)
    guard = threading.Timer(
        60, process.kill
    )  # otherwise, a broken `begin` would block forever
    guard.start()
    early = [json.loads(process.stdout.readline())["check"] for _ in range(6)]
    assert early[::2] == early[1::2] == ["operations", "loads", "warm-up"]
    guard.cancel()
    for file in later:
        shutil.copy(swift / file, version / file)
    if changed:
        (version / changed).write_bytes(b"")
        reference_exports.write_manifest(version)
    outcome = verify(version, process=process)
    failed = {check.name: check.detail for check in outcome.checks if not check.passed}
    wanted = (
        {"digests": "the SavedModel was changed after it was loaded"} if changed else {}
    )
    assert failed == wanted


def test_the_command_prints_a_table_and_a_verdict(swift, version, capsys):
    assert main([str(swift)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^passed  refuses serving_default +INVALID", shown, re.MULTILINE)
    passed = (
        "passed all 10 checks: the SavedModel gives the same answers as the trained"
        " model\n"
    )
    assert shown.endswith(passed)
    (version / "variables/variables.index").write_bytes(b"")
    assert main([str(version)]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("FAILED  digests  variables/variables.index has changed")
    assert shown.endswith("must not be served; the other checks were skipped\n")
