"""Flow matching against diffusion: samples of digits after the same training.

    python -m benchmarks.scripts.diffusion FOLDER [SEED ...]

FOLDER gets the runs: `judge`, a run of `digits`, and `flow-SEED` and `diffusion-SEED`,
runs of `digits_generation`. A run that exists there is not trained again.

Both use the same network, data, seeds, number of steps, guidance and sampler, the
midpoint rule with 16 evaluations of the network. Flow matching is that of the package.
Diffusion has the cosine schedule in continuous time, with uniform times, and the
network predicts v: Salimans and Ho, "Progressive distillation for fast sampling of
diffusion models", ICLR 2022. Its sampler follows the same angle from noise to image.

Prints a line of JSON for each run, with the metrics of 1,000 samples and the test
images, and for each method their means.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from pipeline.contracts import Example, Info, Metadata, Task
from pipeline.data import seeds as random
from pipeline.fit import fit
from pipeline.report.run import Run
from pipeline.tasks.generation import Generation, generation

SEEDS = (0, 1, 2)
SAMPLES = 1000
STEPS = 8  # of the sampler, with two evaluations each
METRICS = ("accuracy", "frechet_distance", "precision", "recall", "nearer_than_real")
TASKS = {"flow": "generation", "diffusion": f"{__package__}.diffusion.diffusion"}


def diffusion(
    info: Info | Metadata,
    *,
    steps: int | None = None,
    judge: Path | None = None,
) -> Task:
    """Like the task `generation`, with diffusion instead of flow matching."""
    if not isinstance(info, Info):
        return Diffusion(info)
    return Diffusion(generation(info, steps=steps, judge=judge).metadata)


class Diffusion(Generation):
    """At time 0, an image is noise, and at time 1 the example; in between, a quarter of
    a circle leads from one to the other.
    """

    def target(self, batch: Example, seeds: tf.Tensor) -> tuple[Any, Any, tf.Tensor]:
        time = random.uniform(seeds, 2001)
        noise = random.normal(seeds, self.image_shape, 2002)
        is_hidden = random.uniform(seeds, 2003) < self.metadata["drop_label"]
        label = tf.cast(batch["label"], tf.int32)
        label = tf.where(is_hidden, len(self.class_names), label)
        alpha, sigma = _shares(time)
        images = batch["image"]
        inputs = {
            "image": alpha * images + sigma * noise,
            "time": time,
            "class": label,
        }
        return inputs, alpha * noise - sigma * images, batch["weight"]

    def answer(self, outputs: Any, batch: Example) -> Example:
        prepared = self.prepare({**batch, "weight": batch["label"]})
        inputs, _, _ = self.target(prepared, batch["id"])
        alpha, sigma = _shares(inputs["time"])
        denoised = alpha * inputs["image"] - sigma * tf.cast(outputs, tf.float32)
        return {"time": inputs["time"], "denoised": self._pixels(denoised)}

    def sample(self, model: Any, *arguments: Any, **options: Any) -> tf.Tensor:
        # v is the derivative of the image by the angle, which falls by half of pi.
        def velocity(inputs: Any, training: bool) -> tf.Tensor:
            return -math.pi / 2 * model(inputs, training=training)

        return super().sample(velocity, *arguments, **options)


def _shares(time: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The shares of image and noise at a time (batch,), (batch, 1, 1, 1)."""
    angle = (1 - time[:, None, None, None]) * (math.pi / 2)
    return tf.cos(angle), tf.sin(angle)


def trained(folder: Path, recipe: str, **sections: Any) -> Run:
    """The run in a folder, which is trained if it does not exist."""
    if (folder / "result.json").is_file():
        return Run.load(folder)
    return fit(recipe, run_directory=folder, export={"enabled": False}, **sections)


def main(words: list[str]) -> None:
    """Trains the judge and both methods with each seed, and measures their samples."""
    folder = Path(words[0]).resolve()
    judge = trained(folder / "judge", "digits")
    rows: dict[str, list[dict[str, float]]] = {method: [] for method in TASKS}
    for seed in map(int, words[1:] or SEEDS):
        for method, task in TASKS.items():
            run = trained(
                folder / f"{method}-{seed}",
                "digits_generation",
                task={
                    "name": task,
                    "options": {"judge": judge.directory, "steps": STEPS},
                },
                train={"evaluate_every": 40},
                runtime={"seed": seed, "precision": "mixed_bfloat16"},
            )
            run.task = run.task.with_metadata({"samples": SAMPLES})
            metrics = run.evaluate(split="test").metrics
            row = {name: round(metrics[name], 4) for name in METRICS}
            rows[method].append(row)
            print(json.dumps({"method": method, "seed": seed, **row}), flush=True)
    for method, results in rows.items():
        means = {}
        for name in METRICS:
            means[name] = round(float(np.mean([row[name] for row in results])), 4)
        print(json.dumps({"method": method, "mean": means}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
