"""The proof of an export: what passes, and what each sabotage is caught by."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY, run_module

from pipeline.export import operation_checks, proof
from pipeline.export.verification import verify
from pipeline.serving import models_config, repository, version_manifest
from pipeline.serving.repository import chosen
from pipeline.utils import files
from pipeline.utils.errors import UsageError
from pipeline.verify import instructions, main


def test_a_whole_version_passes(whole):
    outcome = verify(whole, fuzzed=300)
    assert outcome.passed, str(outcome)
    checks = {check.name: check.detail for check in outcome.checks}
    assert checks["digests"] == "6 files match the manifest"
    assert checks["warm-up"].startswith(
        "batches of serving_default 1 8; image_bytes 1 8; classify 1 8"
    )
    for signature in ("serving_default", "image_bytes", "classify"):
        assert checks[f"answers {signature}"].startswith("batches of 1, 3, 64; ")
        assert checks[f"empty batch {signature}"] == "INVALID_ARGUMENT"
    for signature in ("image_bytes", "classify"):
        assert checks[f"refuses {signature}: hostile files"] == "INVALID_ARGUMENT, 22 kinds"
        answered = int(checks[f"survives {signature}: fuzzed bytes"].split()[0])
        assert 0 < answered < 300, "what is fuzzed is all broken, or not at all"
    assert checks["refuses classify: wrong examples"] == "INVALID_ARGUMENT, 6 kinds"


@pytest.mark.long
def test_ten_thousand_fuzzed_strings_do_no_harm(whole):
    outcome = verify(whole, fuzzed=10_000)
    assert outcome.passed, str(outcome)
    checks = {check.name: check.detail for check in outcome.checks}
    for signature in ("image_bytes", "classify"):
        words = checks[f"survives {signature}: fuzzed bytes"].split()
        assert int(words[0]) + int(words[2]) == 10_000


def test_a_folder_with_any_bytes_in_its_name_is_as_good(version, tmp_path):
    place = tmp_path / os.fsdecode(b"\xff")
    shutil.move(version.parent, place)
    result = run_module("pipeline.verify", version.name, "--fuzz", "0", cwd=place)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_program_that_is_no_python_is_told(version, tmp_path):
    words = (version, "--python", shutil.which("echo"))
    result = run_module("pipeline.verify", *words, cwd=tmp_path)
    assert result.returncode == 2 and "the proof did not run: it said '-m" in result.stderr
    assert "--python" in result.stderr and result.stdout == ""


@pytest.mark.parametrize("name", ["9223372036854775807", "٣", "1" * 40])
def test_versions_that_no_server_reads_are_no_versions(version, name):
    other = version.with_name(name)
    shutil.copytree(version, other)
    assert chosen(version.parent) == version
    assert set(files.versions(version.parent)) == {3}


def test_the_proof_runs_without_python_tensorflow(swift):
    (last,) = (check for check in verify(swift, fuzzed=0).checks if check.name == "finished")
    assert last.passed and "no Python TensorFlow" in last.detail


def test_the_proof_imports_numpy_and_protobuf_alone(whole):
    """It also runs with the libraries of another TensorFlow, beside which nothing is installed."""
    script = f"""if True:
        import io, json, sys
        begin = set(sys.modules)
        from pipeline.export import proof
        code = proof.main([{str(whole)!r}, "2"], io.StringIO())
        print(json.dumps([code, sorted(set(sys.modules) - begin)]))
    """
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    code, found = json.loads(ran.stdout.splitlines()[-1])
    assert code == 0
    others = [n for n in found if n.partition(".")[0] not in sys.stdlib_module_names]
    messages = re.compile(r"tensorflow\.(core|tsl)(\..*)?")  # generated protobuf classes
    others = [n for n in others if not messages.fullmatch(n)]
    assert {n.partition(".")[0] for n in others} == {"numpy", "google", "pipeline"}
    ours = {n for n in others if n.count(".") == 2 and n.startswith("pipeline.")}
    packages = {"export", "serving", "utils", "runtime"}
    assert {n.split(".")[1] for n in ours} == packages, "nothing of training, data, or config"


def test_the_command_prints_a_table_and_a_verdict(swift, tmp_path):
    result = run_module("pipeline.verify", swift, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    said = "passed all 19 checks: the SavedModel answers as the trained model does\n"
    assert result.stdout.endswith(said)
    assert "refuses serving_default: axis 2 empty" in result.stdout
    as_json = run_module("pipeline.verify", swift.parent, "--json", "--fuzz", "0", cwd=tmp_path)
    values = json.loads(as_json.stdout)
    assert values["passed"] and values["directory"] == str(swift)
    assert {"name", "passed", "detail"} == set(values["checks"][0])


def test_the_commands_for_another_runtime_are_printed_and_not_run(version, tmp_path):
    result = run_module("pipeline.verify", version, "--runtime-version", "2.20", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "python3 -m venv serving-2.20",
        "serving-2.20/bin/pip install numpy protobuf",
        "serving-2.20/bin/pip install --no-deps tensorflow-cpu==2.20.0",
        f"python -m pipeline.verify {version} --python serving-2.20/bin/python",
    ]
    assert not list(tmp_path.glob("serving*"))


def test_another_interpreter_runs_the_proof(swift, tmp_path, monkeypatch):
    """It is looked for where the command is given, and does not see this one's packages."""

    def program(name, text):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)

    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    program("python", f'echo "[$PYTHONPATH]" > {tmp_path}/seen; exec {sys.executable} "$@"')
    command = ("pipeline.verify", swift, "--python", "./python", "--fuzz", "0")
    result = run_module(*command, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (tmp_path / "seen").read_text() == "[]\n"
    program("broken", "echo no such library >&2; exit 3")
    for name, script, said in (
        ("broken", "echo no such library >&2; exit 3", "exit code 3.: no such library"),
        ("strange", "printf '\\377' >&2; exit 3", "exit code 3"),
        ("lists", """echo '{"check": [1], "passed": 1}'""", "it said '{"),
        ("short", """echo '{"check": "a", "passed": true}'""", "it said '{"),
        ("nothing", "exit 0", "ended the process"),
    ):
        program(name, script)
        with pytest.raises(UsageError, match=f"{name} does not run the proof: .*{said}.* numpy"):
            verify(swift, python=tmp_path / name)


def test_an_interpreter_that_does_not_start_is_named(swift, tmp_path, monkeypatch):
    (tmp_path / "python").write_text("#!/nowhere/python\n")
    (tmp_path / "python").chmod(0o755)
    said = f"cannot be started with {tmp_path}/python: No such file"
    with pytest.raises(UsageError, match=said):
        verify(swift, python=tmp_path / "python")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(UsageError, match=said) as caught:
        verify(swift)
    assert "--python" not in str(caught.value) and "None" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--runtime-version", "newest"], "--runtime-version must be a version, such as 2.20"),
        (["--fuzz", "-1"], "--fuzz must be at least 0"),
        (["--python", "nowhere/python"], "nowhere/python is no program"),
        (["--fuz", "1"], "did you mean '--fuzz'?"),
        (["second"], "takes one folder"),
    ],
)
def test_what_the_command_cannot_do_it_says(swift, words, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        main([str(swift), *words])


@pytest.mark.long
def test_the_same_proof_passes_on_the_runtime_of_the_released_server(whole, tmp_path):
    """Needs PyPI and 1.2 GB of disk; the commands are those that the user is told."""
    lines = instructions(whole, "2.20").splitlines()
    for line in lines[:-1]:
        made = subprocess.run(shlex.split(line), cwd=tmp_path, capture_output=True, text=True)
        if "pip install" in line and made.returncode and "No matching" in made.stderr:
            pytest.skip(f"PyPI is not to be reached: {made.stderr.strip().splitlines()[-1]}")
        assert made.returncode == 0, made.stderr
    python = tmp_path / "serving-2.20/bin/python"
    outcome = verify(whole, python=python)
    assert outcome.passed, str(outcome)
    assert "TensorFlow 2.20.0" in next(c.detail for c in outcome.checks if c.name == "loads")
    listed = subprocess.run(
        [python, "-m", "pipeline.export.operation_checks"],
        **{"cwd": REPOSITORY, "capture_output": True, "text": True, "check": True},
    )
    assert listed.stdout == Path(operation_checks.__file__).with_suffix(".txt").read_text()


def test_a_version_that_is_no_number_is_never_served(version, tmp_path):
    version = version.rename(version.with_name("three"))
    result = run_module("pipeline.verify", version, cwd=tmp_path)
    assert result.returncode == 1 and "'three' is no version number" in result.stdout


def test_leading_zeros_are_the_same_number(version):
    version = version.rename(version.with_name("007"))
    assert chosen(version.parent) == version


def test_of_a_model_the_version_is_taken_that_is_served(version, tmp_path, monkeypatch):
    shutil.copytree(version, version.with_name("12"))
    assert chosen(version.parent).name == "12"
    models_config.pin(version.parent, 3)
    assert chosen(version.parent) == version and chosen(version.with_name("12")).name == "12"
    models_config.pin(version.parent, 4)
    remedy = rf"pins version 4, which does not exist, .*\.export {version.parent} --unpin serves"
    with pytest.raises(UsageError, match=remedy):
        chosen(version.parent)
    monkeypatch.chdir(version.parent)
    with pytest.raises(UsageError, match=r"pipeline\.export \./\. --unpin serves"):
        chosen(Path())
    for wrong in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UsageError, match="saved_models/digits/1"):
            chosen(wrong)
    (version / proof.GOLDEN).unlink()
    (version / version_manifest.MANIFEST).unlink()
    with pytest.raises(UsageError, match=r"no export of this package: it has no assets.extra/gol"):
        verify(version)


def test_the_folder_one_is_in_has_its_number(version):
    result = run_module("pipeline.verify", ".", cwd=version)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_version_that_was_held_back_is_said_to_be(version):
    version = version.rename(version.with_name(repository.REFUSED))
    result = run_module("pipeline.verify", version, cwd=version.parent)
    assert result.returncode == 1 and "held back by --export.tolerance" in result.stdout
