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
from pipeline.serving import repository, version_manifest
from pipeline.serving.repository import select_version
from pipeline.utils.errors import UsageError
from pipeline.verify import main


def test_an_intact_version_passes(whole, capsys):
    assert main([str(whole), "--json"]) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["passed"] and outcome["directory"] == str(whole)
    checks = {check["name"]: check["detail"] for check in outcome["checks"]}
    assert checks["digests"] == "6 files match the manifest"
    assert checks["warm-up"].startswith("6 requests, ")
    assert checks["finished"] == "without importing Python TensorFlow"
    for signature in ("serving_default", "image_bytes"):
        assert checks[f"answers {signature}"].startswith("batches of 1, 3, 64; ")
    for signature, kinds in {"serving_default": 10, "image_bytes": 7}.items():
        assert (
            checks[f"refuses {signature}"]
            == f"INVALID_ARGUMENT for {kinds} kinds of requests"
        )


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


def test_another_interpreter_runs_the_checks(swift, workplace, monkeypatch):
    """It is found where the command is given, and does not see the packages of this
    one.
    """

    def program(name, text):
        Path(name).write_text(f"#!/bin/sh\n{text}\n")
        Path(name).chmod(0o755)

    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    seen = workplace / "seen"
    program("python", f'echo "[$PYTHONPATH]" > {seen}; exec {sys.executable} "$@"')
    assert main([str(swift), "--python", "./python"]) == 0
    assert seen.read_text() == "[]\n"
    program("broken", "echo no such library >&2; exit 3")
    with pytest.raises(
        UsageError, match="broken does not run the checks: .*no such library"
    ):
        main([str(swift), "--python", "./broken"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--python", "nowhere/python"], "'nowhere/python' is not a program"),
        (["--jso"], "did you mean '--json'?"),
    ],
)
def test_wrong_words_are_refused(swift, words, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        main([str(swift), *words])
    with pytest.raises(UsageError, match="needs a directory first"):
        main(words[:1] if words[0].startswith("-") else [])


def test_the_served_version_of_a_model_is_verified(version):
    shutil.copytree(version, version.with_name("12"))
    shutil.copytree(
        version, version.with_name("9223372036854775807")
    )  # which no server reads
    assert select_version(version.parent).name == "12"
    repository.pin(version.parent, 3)
    assert (
        select_version(version.parent) == version
        and select_version(version.with_name("12")).name == "12"
    )
    repository.pin(version.parent, 4)
    with pytest.raises(UsageError, match=rf"pipeline export {version.parent} --unpin"):
        select_version(version.parent)
    (version / proof.GOLDEN).unlink()
    (version / version_manifest.MANIFEST).unlink()
    with pytest.raises(
        UsageError, match=r"is not an export of pipeline: it has no assets.extra/g"
    ):
        verify(version)
