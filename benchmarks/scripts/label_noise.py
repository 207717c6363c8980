"""Measures how many of the labels listed as probably wrong really are wrong.

    python benchmarks/scripts/label_noise.py [SEED ...]

17 % of 12,000 images of CIFAR-10 (TensorFlow Datasets, `$TFDS_DATA_DIR`) get a wrong
label, drawn from the confusions of a weak model: logistic regression on 8 x 8 pixels.
The list of `pipeline clean --label-noise`, with 3 folds and a small network,
is compared with cleanlab's own filters on the same out-of-fold probabilities.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

COUNT, SHARE, FOLDS = 12_000, 0.17, 3
FILTERS = ("prune_by_noise_rate", "prune_by_class", "both", "confident_learning")
NAMES = [
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
]


def pictures():
    """Returns (images, labels, confusion matrix of the weak model with a zero
    diagonal).
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import confusion_matrix
    from sklearn.model_selection import cross_val_predict

    from pipeline.config import registry

    some = registry.load("sources", "tfds")(dataset="cifar10").examples("train")
    (columns,) = some.take(COUNT).map(decoded).batch(COUNT).as_numpy_iterator()
    images, labels = columns["image"], columns["label"]
    few = images.reshape(COUNT, 8, 4, 8, 4, 3).mean((2, 4)).reshape(COUNT, -1) / 255
    weak = LogisticRegression(max_iter=2000)
    confusions = confusion_matrix(labels, cross_val_predict(weak, few, labels, cv=2))
    np.fill_diagonal(confusions, 0)
    return images, labels, confusions


def decoded(example):
    """Decodes the image of an example, if it is encoded."""
    from pipeline.data import image_decoding

    image = example["image"]
    return {
        **example,
        "image": image_decoding.pixels(image, 3) if image.dtype == "string" else image,
    }


def noisy(truth, confusions, seed):
    """Returns labels with a fraction of `SHARE` wrong, in proportion to
    the confusions.
    """
    generator, labels = np.random.default_rng(seed), truth.copy()
    counts = np.round(confusions / confusions.sum() * SHARE * COUNT).astype(int)
    for one, row in enumerate(counts):
        chosen = generator.permutation(np.flatnonzero(truth == one))[: row.sum()]
        labels[chosen] = np.repeat(np.arange(len(row)), row)[: len(chosen)]
    return labels


def figures(name, wrong, order, listed):
    """Prints a table row: size, precision, recall, precision of the first
    100 and 500.
    """
    first = wrong[order]
    print(
        f"| {name} | {listed.sum():,} | {wrong[listed].mean():.2f} | "
        f"{wrong[listed].sum() / wrong.sum():.2f} | {first[:100].mean():.2f} | "
        f"{first[:500].mean():.2f} |"
    )


def measure(images, truth, confusions, seed):
    """Prints the table of one seed."""
    from cleanlab.filter import find_label_issues

    from pipeline.config import registry
    from pipeline.config.config import (
        Config,
        DataConfig,
        LogConfig,
        ModelConfig,
        SourceConfig,
        TrainConfig,
    )
    from pipeline.evaluation import label_noise
    from pipeline.fit import fit

    labels = noisy(truth, confusions, seed)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "noisy.npz")
        np.savez(path, images=images, labels=labels, class_names=NAMES)
        config = Config(
            source=SourceConfig(name="arrays", options={"path": path}),
            data=DataConfig(augment={"flip": {}, "crop": {"padding": 4}}),
            model=ModelConfig(name="convnet", options={"blocks": 3, "filters": 32}),
            train=TrainConfig(
                epochs=10,
                batch_size=64,
                optimizer="adam",
                learning_rate=0.002,
                schedule="cosine",
            ),
            log=LogConfig(progress=False, tensorboard=False),
        )
        source = registry.load("sources", "arrays")(path=path)
        start = time.monotonic()
        out = label_noise.out_of_fold(
            config, source, [], FOLDS, Path(directory), fit=fit
        )
        seconds = time.monotonic() - start
    label_noise.suspicious(out, NAMES)
    given, probabilities = out["truth"].astype(np.int64), out["probabilities"]
    wrong = given != truth[out["id"]]
    print(
        f"seed {seed}: {wrong.mean():.3f} of {COUNT:,} labels are wrong,"
        f" {seconds:.0f} s"
    )
    print("| list | labels | precision | recall | first 100 | first 500 |")
    print("|---|---|---|---|---|---|")
    figures("this package", wrong, *label_noise.rank(given, probabilities))
    for name in FILTERS:
        listed = find_label_issues(given, probabilities, filter_by=name, n_jobs=1)
        own = probabilities[np.arange(COUNT), given]
        figures(f"cleanlab's {name}", wrong, np.lexsort((own, ~listed)), listed)


if __name__ == "__main__":
    images, truth, confusions = pictures()
    for seed in map(int, sys.argv[1:] or ["0", "1"]):
        measure(images, truth, confusions, seed)
