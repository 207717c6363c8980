"""Compares the recipe `texts` with a linear model of tf-idf.

    python benchmarks/scripts/texts.py sst2 DIRECTORY FOLDER [--test] [--OPTION VALUE ...]
    python benchmarks/scripts/texts.py ag_news DIRECTORY FOLDER [--test] [...]
    python benchmarks/scripts/texts.py table FILE FOLDER [--test] [...]

DIRECTORY of SST-2 has train.tsv, dev.tsv and test.tsv (sentence, tab, 0 or 1); that of
AG News has test.csv.gz (class, title, description). FILE is a CSV file with the columns
text and label. A hash of the text divides AG News and FILE into 80% for training, 10%
for validation and 10% for testing. FOLDER gets a table and the runs. The options, after
the others, are those of `pipeline fit`, to compare settings. Trains with three seeds.
Prints accuracy and CPU seconds on the validation split; with --test, on the test split,
which is for settings that have been chosen.

The baseline: counts of words and of pairs of words, sublinear tf-idf, logistic
regression, whose C is the best of five on the validation split.
"""

import contextlib
import csv
import gzip
import hashlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

SEEDS = (0, 1, 2)
STRENGTHS = (0.3, 1, 3, 10, 30)  # C
Rows = list[tuple[str, str]]


def sst2(directory: Path) -> dict[str, Rows]:
    """Split -> (text, label)."""
    splits: dict[str, Rows] = {}
    names = {"train": "train", "validation": "dev", "test": "test"}
    for split, name in names.items():
        lines = (directory / f"{name}.tsv").read_text().splitlines()
        pairs = [line.rsplit("\t", 1) for line in lines]
        splits[split] = [(text, label) for text, label in pairs]
    return splits


def ag_news(directory: Path) -> dict[str, Rows]:
    """Split -> (text, label)."""
    with gzip.open(directory / "test.csv.gz", "rt", encoding="utf-8") as file:
        rows = [(f"{title} {text}", label) for label, title, text in csv.reader(file)]
    return split_by_hash(rows)


def table(path: Path) -> dict[str, Rows]:
    """Split -> (text, label)."""
    with path.open(newline="", encoding="utf-8") as file:
        return split_by_hash(
            (row["text"], row["label"]) for row in csv.DictReader(file)
        )


def split_by_hash(rows: Iterable[tuple[str, str]]) -> dict[str, Rows]:
    """80% of the rows for training, 10% for validation, 10% for testing."""
    splits: dict[str, Rows] = {"train": [], "validation": [], "test": []}
    for text, label in rows:
        tenth = int(hashlib.sha256(text.encode()).hexdigest(), 16) % 10
        split = {8: "validation", 9: "test"}.get(tenth, "train")
        splits[split].append((text, label))
    return splits


def write(splits: dict[str, Rows], path: Path) -> None:
    """Writes a table with the columns text, label and split."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label", "split"])
        for split, rows in splits.items():
            writer.writerows([*row, split] for row in rows)


def baseline(splits: dict[str, Rows], part: str) -> str:
    """Trains and tests tf-idf with logistic regression; returns a row."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    start = time.process_time()
    vectorizer = TfidfVectorizer(
        ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\w+|[^\w\s]"
    )
    texts, labels = zip(*splits["train"], strict=True)
    features = vectorizer.fit_transform(texts)
    models = {}
    for strength in STRENGTHS:
        model = LogisticRegression(C=strength, max_iter=1000).fit(features, labels)
        texts, truth = zip(*splits["validation"], strict=True)
        models[strength] = model, model.score(vectorizer.transform(texts), truth)
    strength = max(models, key=lambda value: models[value][1])
    texts, truth = zip(*splits[part], strict=True)
    accuracy = models[strength][0].score(vectorizer.transform(texts), truth)
    seconds = time.process_time() - start
    return f"tf-idf, logistic regression, C {strength}: {accuracy:.4f}, {seconds:.0f} s"


def train(path: Path, folder: Path, seed: int, options: list[str]) -> None:
    command = [sys.executable, "-m", "pipeline", "fit", str(path)]
    command += ["--run-directory", str(folder), "--runtime.seed", str(seed)]
    command += ["--no-export", *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def main(arguments: list[str]) -> None:
    name, directory, root, *options = arguments
    part = "validation"
    with contextlib.suppress(ValueError):
        options.remove("--test")
        part = "test"
    folder = Path(root)
    folder.mkdir(parents=True, exist_ok=True)
    read = {"sst2": sst2, "ag_news": ag_news, "table": table}[name]
    splits = read(Path(directory))
    if part != "test":
        del splits["test"]
        options += ["--data.test", "0"]
    path = folder / f"{name}-{part}.csv"
    write(splits, path)
    sizes = ", ".join(f"{split} {len(rows):,}" for split, rows in splits.items())
    print(f"{name}: {sizes}; accuracy on {part}, CPU seconds")
    print(baseline(splits, part), flush=True)
    accuracies = []
    for seed in SEEDS:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run = folder / f"{name}-{part}-{os.getpid()}-{seed}"
        train(path, run, seed, options)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        result = json.loads((run / "result.json").read_text())
        accuracies.append(result[part]["accuracy"])
        print(f"texts, seed {seed}: {accuracies[-1]:.4f}, {seconds:.0f} s", flush=True)
    mean, spread = np.mean(accuracies), np.std(accuracies, ddof=1)
    print(f"texts, mean of {len(SEEDS)} seeds: {mean:.4f} +- {spread:.4f}")


if __name__ == "__main__":
    main(sys.argv[1:])
