"""Texts in a run and in its export: several labels, numbers, and beside other inputs."""

import numpy as np
import pytest

from pipeline.fit import fit
from pipeline.serving.client import Client

COUNT = 120
OPTIONS = {
    "epochs": 3,
    "batch_size": 16,
    "model": {"name": "bag", "buckets": 1024},
    "runtime": {"precision": "float32"},
    "log": {"tensorboard": False, "bar": False},
}
EMOJI = "\U0001f600" * 20
ODD = ["good film", "", EMOJI, b"\xff\xfe\0bad", "x " * 500_000]


def texts(count=COUNT):
    generator = np.random.default_rng(0)
    words = np.array(["good", "bad", "film", "plot", "the", "<b>", "\u00e9"])
    return [" ".join(row) for row in generator.choice(words, (count, 8))]


def write_table(path, column, values):
    rows = "".join(
        f"{text},{value}\n" for text, value in zip(texts(), values, strict=True)
    )
    path.write_text(f"text,{column}\n{rows}")


def topics():
    """`film|plot`, for the words that a text has."""
    return ["|".join({"film", "plot"}.intersection(text.split())) for text in texts()]


def stars():
    return [2.5 + text.count("good") - text.count("bad") for text in texts()]


@pytest.mark.parametrize(
    ("column", "values", "prediction"),
    [("labels", topics, "probabilities"), ("score", stars, "prediction")],
)
def test_several_labels_and_numbers_of_texts(workplace, column, values, prediction):
    write_table(workplace / "a.csv", column, values())
    run = fit("a.csv", **OPTIONS)
    assert run.result["verification"]["passed"]
    with Client(run.export) as client:
        predictions = client.predict(text=ODD)[prediction]
    assert len(predictions) == len(ODD) and np.isfinite(predictions).all()
    np.testing.assert_allclose(
        run.predict(text=ODD)[prediction], predictions, rtol=1e-4
    )


def test_a_text_beside_numbers(workplace):
    titles = texts()
    numbers = np.random.default_rng(1).normal(size=(COUNT, 3)).astype(np.float32)
    labels = np.array(["no", "yes"])[[int("good" in title) for title in titles]]
    x = {"numbers": numbers, "title": titles}
    run = fit("texts", source=(x, labels), **OPTIONS)
    assert run.result["verification"]["passed"]
    with Client(run.export) as client:
        predictions = client.predict(title=ODD, numbers=numbers[: len(ODD)])
    assert set(predictions["label"]) <= {"no", "yes"}
    report = (run.directory / "report.html").read_text(encoding="utf-8")
    assert "&lt;" in report and "<b>" not in report
