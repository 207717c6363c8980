"""The verification of an export in a separate process, and its command."""

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from pipeline.export import proof
from pipeline.export.verification import verify
from pipeline.serving import repository, version_manifest
from pipeline.serving.repository import select_version
from pipeline.utils.errors import UsageError
from pipeline.verify import main


def test_an_intact_version_passes(full_version, capsys):
    assert main([str(full_version), "--json"]) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["passed"] and outcome["directory"] == str(full_version)
    checks = {check["name"]: check["detail"] for check in outcome["checks"]}
    assert checks["digests"] == "6 files match the manifest"
    assert checks["warm-up"].startswith("6 requests, ")
    assert checks["finished"] == "without importing Python TensorFlow"
    for signature in ("serving_default", "image_bytes"):
        assert checks[f"predictions {signature}"].startswith("batches of 1, 3, 64; ")
    for signature, kinds in {"serving_default": 10, "image_bytes": 7}.items():
        assert (
            checks[f"refuses {signature}"]
            == f"INVALID_ARGUMENT for {kinds} kinds of requests"
        )


def test_another_interpreter_runs_the_checks(pixel_version, workplace, monkeypatch):
    """It is found where the command is given, and does not see the packages of this
    one.
    """

    def program(name, text):
        Path(name).write_text(f"#!/bin/sh\n{text}\n")
        Path(name).chmod(0o755)

    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    seen = workplace / "seen"
    program("python", f'echo "[$PYTHONPATH]" > "{seen}"; exec {sys.executable} "$@"')
    assert main([str(pixel_version), "--python", "./python"]) == 0
    assert seen.read_text() == "[]\n"
    program("broken", "echo no such library >&2; exit 3")
    with pytest.raises(UsageError, match="broken.*no such library"):
        main([str(pixel_version), "--python", "./broken"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--python", "nowhere/python"], "'nowhere/python' is not a program"),
        (["--jso"], "did you mean '--json'?"),
    ],
)
def test_wrong_words_are_refused(pixel_version, words, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        main([str(pixel_version), *words])
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
    parent = re.escape(shlex.quote(str(version.parent)))
    with pytest.raises(UsageError, match=f"pipeline export {parent} --unpin"):
        select_version(version.parent)
    (version / proof.GOLDEN).unlink()
    (version / version_manifest.MANIFEST).unlink()
    with pytest.raises(UsageError, match="is not an export .*assets.extra/g"):
        verify(version)
