"""Files of digits that a run can be evaluated on."""

import numpy as np
from PIL import Image


def write(run, folder):
    """Writes the digits 7, 3 and 0 of the test split into folders named like them, and
    returns the accuracy of the run on them.
    """
    split = run.splits["test"]
    examples = split.take(np.isin(split.column("label"), (0, 3, 7)).nonzero()[0])
    for id, label, image in zip(
        *(examples[n] for n in ("id", "label", "image")), strict=True
    ):
        path = folder / str(label) / f"{id}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(path)
    right = run.predict(images=examples["image"])["class"] == examples["label"]
    return right.mean()
