"""Every command and every flag that README.md names is run here, on small data."""

import contextlib
import io
import json
import re
import shlex

import numpy as np
import pytest
from processes import REPOSITORY, run_python
from served_models import png
from sklearn.datasets import load_digits

FIRST = (
    "-m pipeline fit --model.name tiny --train.epochs 3 --train.learning-rate 0.01 "
    "--runtime.seed 2 --train.steps 20"
)
SHORT = (
    "-m pipeline fit digits --epochs 20 --lr 0.001 --seed 1 --model tiny --steps 1"
    " --no-export --run-directory short"
)
PHOTOS = (
    "-m pipeline fit digits --source.path photos --image-size 128 --export.name photos "
    "--model tiny --batch-size 8 --steps 1 --no-export"
)
PATH = (
    "-m pipeline fit photos --model tiny --image-size 16 --epochs 1 --dry-run"
    " --no-export"
)
TABLE = "-m pipeline fit digits.csv --target digit --epochs 1 --dry-run"
# A command of the README -> the words of Python that are run for it -> a part of the
# output. What would train for minutes takes a few steps; PATH and its like are small
# generated files.
CASES = {
    "pipeline fit": {FIRST: "export     saved_models/digits/1, verified"},
    "pipeline": {"-m pipeline": "predict"},
    "pipeline COMMAND": {"-m pipeline verify --help": "usage: "},
    "python -m pipeline.COMMAND": {"-m pipeline.verify --help": "usage: "},
    "pipeline fit RECIPE": {SHORT: "short/"},
    "pipeline fit PATH": {PATH: "photos", TABLE: "tables"},
    "pipeline fit --help": {"-m pipeline fit --help": "regression_linear"},
    "pipeline fit digits --help": {"-m pipeline fit digits --help": "--help train"},
    "pipeline fit digits --help train": {
        "-m pipeline fit digits --help train": "--train.global-clipnorm",
        "-m pipeline fit digits --help model": "--model.name",
        "-m pipeline fit digits --help epochs": "--train.epochs",
    },
    "pipeline fit --help models": {
        "-m pipeline fit --help models": "lenet",
        "-m pipeline fit --help sources": "tfrecord",
        "-m pipeline fit --help augment": "cutmix",
    },
    "pipeline fit digits --epochs 20 --lr 0.001 --seed 1": {SHORT: "short/"},
    "pipeline fit digits --dry-run": {
        "-m pipeline fit digits --dry-run --model tiny": "verified"
    },
    "pipeline fit --resume runs/digits-1": {
        "-m pipeline fit --resume runs/digits-1": "nothing was trained"
    },
    "pipeline fit digits --source.path photos --image-size 128 --export.name photos": {
        PHOTOS: "runs/photos-1"
    },
    "pipeline inspect RECIPE": {"-m pipeline inspect digits --limit 100": "digits"},
    "pipeline clean RECIPE": {"-m pipeline clean digits --limit 100": "digits"},
    "pipeline evaluate MODEL [DATA]": {
        "-m pipeline evaluate runs/digits-1 photos": "accuracy"
    },
    "pipeline compare RUN RUN": {"-m pipeline compare runs/digits-1 short": "accuracy"},
    "pipeline sweep RECIPE --over ...": {
        "-m pipeline sweep digits --over train.epochs=1,2 --trials 2 --limit 300": (
            "best       trial"
        )
    },
    "pipeline predict MODEL FILES": {
        "-m pipeline predict saved_models/digits photos/3 photos/4": "photos/4/4.png"
    },
    "pipeline verify DIRECTORY": {
        "-m pipeline verify saved_models/digits/1": "passed all"
    },
    "pipeline export RUN": {
        "-m pipeline export runs/digits-1": "saved_models/digits/2"
    },
    "pipeline doctor": {"-m pipeline doctor": "the environment is usable"},
}
NOT_RUN = {
    "python3 -m venv .venv": "it needs the network",
    "pip install -q -e .": "it needs the network",
    "pip install -q -e '.[test]'": "it needs the network",
    "python -m pytest": "it runs this test",
    "python -m sphinx -W -b html docs build/docs": "test_docs.py builds the site",
}


def readme():
    return (REPOSITORY / "README.md").read_text(encoding="utf-8")


def commands(text):
    """The commands in the code blocks of a shell, and those in the text."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    parts = [part for line in lines for part in line.split("#")[0].split("&&")]
    parts += re.findall(r"`(pipeline|(?:pipeline|python -m) [^`]+)`", text)
    return {
        " ".join(part.split()).replace(".venv/bin/", "")
        for part in parts
        if part.strip()
    }


def flags(text):
    return set(re.findall(r"(?<![\w-])--[a-z][a-z.-]*[a-z]", text))


def test_every_command_and_flag_of_the_readme_has_a_case():
    """A command that is added there needs a case here."""
    assert commands(readme()) == CASES.keys() | NOT_RUN.keys()
    words = " ".join(words for cases in CASES.values() for words in cases)
    assert flags(readme()) <= flags(words)


def test_a_command_without_a_case_is_noticed():
    text = readme() + "\n```sh\npipeline fit digits \\\n  --no-such-flag   # new\n```\n"
    assert commands(text) - commands(readme()) == {"pipeline fit digits --no-such-flag"}
    text = (
        readme() + "\n`pipeline contrast\nRUN RUN` compares with --another.new-flag.\n"
    )
    assert commands(text) - commands(readme()) == {"pipeline contrast RUN RUN"}
    assert flags(text) - flags(readme()) == {"--another.new-flag"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs words in a directory with photos and the first run; each words only
    once.
    """
    folder = tmp_path_factory.mktemp("readme")
    images, labels = load_digits(return_X_y=True)
    for number in range(40):
        path = folder / "photos" / str(labels[number]) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png((images[number].reshape(8, 8) * 15).astype(np.uint8)))
    pairs = zip(images, labels, strict=True)
    rows = [f"{image.sum()},{image.max()},{label}" for image, label in pairs]
    (folder / "digits.csv").write_text("\n".join(["sum,max,digit", *rows]))
    results = {}

    def run(words):
        if words not in results:
            results[words] = run_python(*shlex.split(words), cwd=folder)
        return folder, results[words]

    run(FIRST)
    return run


@pytest.mark.parametrize("command", CASES)
def test_the_command_works(run, command):
    if "compare" in command:
        run(SHORT)
    for words, output in CASES[command].items():
        _, done = run(words)
        assert done.returncode == 0, (
            f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        )
        assert output in done.stdout, f"{words}\n{done.stdout[-2000:]}"
        assert "Traceback" not in done.stderr


def test_the_short_options_of_the_readme_are_those_it_says(run):
    folder, _ = run(SHORT)
    config = json.loads((folder / "short" / "config.json").read_text())
    train = config["train"]
    assert (train["epochs"], train["learning_rate"], config["runtime"]["seed"]) == (
        20,
        0.001,
        1,
    )


def test_the_first_example_of_the_readme_works(workplace):
    example, _ = re.findall(
        r"^```python\n(.*?)^```$", readme(), re.DOTALL | re.MULTILINE
    )  # the other: test_own_keras_docs.py
    assert len(example.strip().splitlines()) <= 11
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(example, {})
    *_, direct, served = (
        line for line in output.getvalue().splitlines() if line.strip()
    )
    assert "Run('runs/digits-1')" in output.getvalue() and direct == served
