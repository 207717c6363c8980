"""`pipeline` and `python -m pipeline`: the commands are listed, found and run."""

import configparser

import pytest
from processes import REPOSITORY, run_module, run_python

import pipeline
from pipeline import __main__


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
