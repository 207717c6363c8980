"""New processes: what they import, and settings of the user's account that belong to
other work.
"""

import configparser
import json
import subprocess
import sys

import fork_server
import pytest
from processes import REPOSITORY, run_module, run_python
from run_output import printed

import pipeline
from pipeline import __main__, doctor
from pipeline.runtime import environment_check
from pipeline.utils import output

_STARTED = """
import gc, os, sys
os.environ.pop("TF_CPP_MIN_LOG_LEVEL", None)
from pipeline.serving.client import Client
client = Client(sys.argv[1])
def answered():
    return client.predict(images=[[[[0] * 3] * 8] * 8])["class"].shape == (1,)
found = [answered()]
for address in ("grpc://127.0.0.1:1/m", "http://127.0.0.1:1/v1/models/m"):
    Client(address).close()
found.append("tensorflow" not in sys.modules)

from pipeline.config import command_line
from pipeline.runtime import environment
cpu = environment.cpu_info; real = cpu.onednn; cpu.onednn = lambda: found.append(True) or real()
full = lambda: gc.get_stats()[2]["collections"]
before = full()
environment.start(command_line.configure(["digits"]).runtime)
found.append(gc.isenabled() and full() - before <= 3)
found.append(gc.get_freeze_count() > 10**5)
model = [0]
model.append(model)
environment.import_tensorflow()
found.append(any(part is model for part in gc.get_objects()))
import keras, tensorflow as tf
print(keras.backend.backend(), keras.backend.floatx(), keras.backend.image_data_format())
example = tf.train.Example.FromString(tf.train.Example().SerializeToString())
found += [bool(tf.saved_model.load(sys.argv[1]).signatures), answered()]
print(*found)
"""


@pytest.fixture(scope="module")
def started(pixel_version, tmp_path_factory):
    """The two lines of a process that asks a model, imports TensorFlow and asks again,
    with another backend and other types of Keras in the user's account.
    """
    folder = tmp_path_factory.mktemp("keras")
    values = {
        "backend": "jax",
        "floatx": "float64",
        "image_data_format": "channels_first",
    }
    (folder / "keras.json").write_text(json.dumps(values))
    other = {"KERAS_HOME": str(folder), "KERAS_BACKEND": "torch"}
    done = run_python("-c", _STARTED, pixel_version, cwd=folder, env=other, fresh=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Reading SavedModel" not in done.stderr, "TensorFlow's log"
    return done.stdout.splitlines()


def test_another_backend_and_other_types_of_keras_are_not_taken(started):
    """None may change a result."""
    assert started[0].split() == ["tensorflow", "float32", "channels_last"]


def test_a_client_does_not_import_tensorflow_which_can_be_imported_afterwards(started):
    """Quickly: without the full garbage collections that Python would make meanwhile
    (6), and later.
    """
    assert started[1].split() == ["True"] * 9


def test_this_environment_is_usable(tmp_path, capsys, monkeypatch):
    real = subprocess.run

    def forked(command, **options):
        if command[:3] != [sys.executable, "-P", "-c"]:
            return real(command, **options)
        return fork_server.run(*command[2:], cwd=tmp_path, env=options["env"])

    monkeypatch.setattr(environment_check.subprocess, "run", forked)
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    assert doctor.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["status", "check", "found", "remedy"]
    assert (
        "import tensorflow" in "".join(lines)
        and lines[-1] == "the environment is usable"
    )


@pytest.fixture
def script(workplace):
    """Runs the console script as an installation makes it, in the working directory."""
    config = configparser.ConfigParser()
    config.read(REPOSITORY / "setup.cfg")
    name, _, entry = (
        config["options.entry_points"]["console_scripts"].strip().partition(" = ")
    )
    module, _, function = entry.partition(":")
    path = workplace / "bin" / name
    path.parent.mkdir()
    path.write_text(
        f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n"
    )
    return lambda *words: run_python(path, *words, cwd=workplace, fresh=True)


def test_every_command_is_listed_with_one_line(script, workplace):
    listed = script("--help")
    assert listed.returncode == 0 and listed.stdout == script().stdout
    known = __main__.commands()
    assert {"fit", "export", "predict", "verify"} <= set(known)
    for name, summary in known.items():
        assert f"  {name:{max(map(len, known))}}  {summary}\n" in listed.stdout
        assert summary.endswith(".") and len(summary) < 90
    assert run_module("pipeline", cwd=workplace, fresh=True).stdout == listed.stdout
    assert script("--version").stdout == f"pipeline {pipeline.__version__}\n"


def test_a_wrong_command_gets_the_nearest_one(script, workplace):
    done = script("exprot", "runs/digits-1")
    assert done.returncode == 2 and not done.stdout
    assert done.stderr == "error: unknown command 'exprot'; did you mean 'export'?\n"
    assert script("--nonsense").returncode == 2
    module = run_module("pipeline", "fit", "--epochs", "0", cwd=workplace, fresh=True)
    assert module.returncode == 2 and module.stderr.startswith(
        "error: --epochs must be a whole"
    )
    assert module.stderr == script("fit", "--epochs", "0").stderr


@pytest.mark.parametrize("name", __main__.commands())
def test_each_command_runs_and_shows_its_help(script, workplace, name):
    done = script(name, "--help")
    assert done.returncode == 0 and done.stdout.lower().startswith("usage:"), (
        done.stderr
    )
    same = run_module(f"pipeline.{name}", "--help", cwd=workplace, fresh=True)
    assert done.stdout == same.stdout


def test_the_first_line_comes_before_tensorflow_is_imported(workplace):
    code = (
        "import sys; sys.modules['tensorflow'] = None; from pipeline import fit;"
        " fit.main"
    )
    done = run_python(
        "-c", f"{code}(['--train.steps', '60'])", cwd=workplace, fresh=True
    )
    said = (
        "digits: convnet on digits, 40 epochs, at most 60 steps; importing TensorFlow"
    )
    assert (
        done.stdout == f"starting   {said}\n"
        and "import of tensorflow halted" in done.stderr
    )


def test_a_function_in_the_working_directory_is_found_and_a_stray_file_shadows_nothing(
    script, workplace
):
    (workplace / "pipeline.py").write_text("raise SystemExit('the stray file')")
    (workplace / "json.py").write_text("raise SystemExit('another stray file')")
    (workplace / "mine").mkdir()
    (workplace / "mine/model.py").write_text(
        "def network(x, *, width=3):\n    return x\n"
    )
    done = script(
        "fit", "digits", "--model.name", "mine.model.network", "--model.options", "w=1"
    )
    assert done.returncode == 2
    assert "mine.model.network has no option 'w'; choose from width" in done.stderr
    shadowed = run_module("pipeline.fit", "--help", cwd=workplace, fresh=True)
    assert "the stray file" in shadowed.stderr, "as README says"


_HEAVY = ("tensorflow", "keras", "numpy", "pipeline.config", "pipeline.fit")


_PROGRAM = f"""
import pipeline, sys
dir(pipeline)
print([name for name in {_HEAVY!r} if name in sys.modules])
pipeline.Config, pipeline.SourceConfig
print([name for name in {_HEAVY[:3]!r} if name in sys.modules])
"""


def test_importing_imports_nothing_else(tmp_path):
    alone, with_config = run_python(
        "-c", _PROGRAM, cwd=tmp_path, fresh=True
    ).stdout.splitlines()
    assert alone == with_config == "[]", "a Config needs neither TensorFlow nor NumPy"


def test_neither_help_nor_an_error_imports_tensorflow_or_numpy():
    program = """
import sys
from pipeline.export.__main__ import main as export
from pipeline.fit import main
from pipeline.utils.errors import UsageError
for words in (["--help"], ["--help", "models"], ["digits", "--help"], ["nothing"],
              ["digits", "--help", "train"], ["--momentum", "1"], ["--resume", "nothing"],
              ["--run-directory", "/dev/null"], ["--train.epochs", "0"], ["--pin", "7"]):
    for command in (main, export):
        try:
            command(words)
        except (SystemExit, UsageError):
            pass
heavy = {"tensorflow", "keras", "numpy", "sklearn", "matplotlib", "tensorflow_datasets", "rich"}
sys.exit(", ".join(heavy & set(sys.modules)) or 0)
"""
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr[-500:]


def test_only_a_plan_needs_tensorflow(workplace):
    code = """
import sys
from types import SimpleNamespace
from pipeline.config import command_line
from pipeline.training.resolve import resolve
machine = SimpleNamespace(is_chief=True, cluster=None)
config = resolve(command_line.request(["digits"]), machine)
assert config == command_line.recipe("digits") and "tensorflow" not in sys.modules
"""
    process = run_python("-c", code, cwd=workplace, fresh=True)
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("flag", ["--log.json", "--json"])
def test_an_error_is_an_object(tmp_path, flag):
    words = ["digits", "--epochs", "none", flag]
    process = run_module("pipeline.fit", *words, cwd=tmp_path, fresh=True)
    (error,) = map(json.loads, process.stdout.splitlines())
    assert error["event"] == "error" and "--epochs" in error["text"]
    assert process.returncode == error["code"] == 2 and process.stderr == ""


def test_quiet_prints_the_result_alone(capsys):
    assert printed("quiet", capsys) == ("test       accuracy 1\n", "")
    assert output.mode() == "text"
