"""One function of each registry, as a user would write it, outside the package or inside."""

from collections.abc import Callable
from pathlib import Path

SOURCES = {
    "sources": '''
import numpy as np
import tensorflow as tf
from typing import Annotated
from pipeline import contracts


def stripes(*, count: Annotated[int, (100, None)] = 240) -> contracts.Source:
    """Images with horizontal or vertical stripes.

    Args:
        count: Number of images.
    """
    return _Stripes(count)


class _Stripes(contracts.Source):
    def __init__(self, count):
        noise = np.random.default_rng(0).integers(0, 100, (count, 8, 8, 1))
        labels = np.arange(count) % 2
        stripes = np.where(np.arange(8) % 2, 155, 0)
        images = noise + np.where(
            labels[:, None, None, None] == 1, stripes[:, None], stripes[:, None, None]
        )
        self._fields = {"id": np.arange(count), "image": images.astype(np.uint8), "label": labels}
        specs = {k: tf.TensorSpec(v.shape[1:], v.dtype) for k, v in self._fields.items()}
        names = ("horizontal", "vertical")
        self.info = contracts.Info(splits={"train": count}, fields=specs, class_names=names)

    def examples(self, split):
        return tf.data.Dataset.from_tensor_slices(self._fields)
''',
    "augment": '''
import tensorflow as tf
from typing import Annotated
from pipeline.data import seeds as draw


def darken(batch, seeds, *, levels: Annotated[int, (1, 255)] = 3):
    """Subtracts a random number of levels from each image.

    Args:
        batch: Holds `image`.
        seeds: One per example.
        levels: The largest number.
    """
    amount = tf.cast(draw.integers(seeds, levels + 1), tf.int32)[:, None, None, None]
    image = tf.maximum(tf.cast(batch["image"], tf.int32) - amount, 0)
    return {**batch, "image": tf.cast(image, batch["image"].dtype)}
''',
    "tasks": '''
import numpy as np
from pipeline.contracts import Info
from pipeline.config import registry

ImageClassification = type(
    registry.load("tasks", "image_classification")(
        {"class_names": ["a", "b"], "image_shape": [1, 1, 1]}
    )
)


def ranked(info, *, unit: str = "rank"):
    """Image classification with classes in an order.

    Args:
        info: What the source describes, or the metadata of a run.
        unit: Prefix of the metric.
    """
    metadata = info
    if isinstance(info, Info):
        metadata = registry.load("tasks", "image_classification")(info).metadata
    return _Ranked({**metadata, "unit": unit})


class _Ranked(ImageClassification):
    def evaluate(self, answers):
        distance = np.abs(answers["class"] - answers["truth"])
        name = self.metadata["unit"] + "_error"
        return {**super().evaluate(answers), name: float(distance.mean())}
''',
    "models": '''
import keras
from typing import Annotated


def dense(x, *, width: Annotated[int, (1, 1024)] = 16):
    """One hidden layer.

    Args:
        x: Images.
        width: Units of the hidden layer.
    """
    return keras.layers.Dense(width, activation="relu")(keras.layers.Flatten()(x))
''',
    "engines": '''
from pipeline.config import registry


def counting(model, train, validation, callbacks):
    """The loop of `gradient_tape`; counts the steps in a file."""
    history = registry.load("engines", "gradient_tape")(model, train, validation, callbacks)
    with open("engine.txt", "w") as file:
        file.write(str(int(model.optimizer.iterations)))
    return history
''',
    "callbacks": '''
import keras
from typing import Annotated


def diary(context, *, every: Annotated[int, (1, None)] = 1):
    """Writes the loss of epochs to `diary.txt` in the run directory.

    Args:
        context: The run.
        every: Epochs from one line to the next.
    """
    return _Diary(context.run.path / "diary.txt", every)


class _Diary(keras.callbacks.Callback):
    def __init__(self, path, every):
        super().__init__()
        self._path, self._every = path, every

    def on_epoch_end(self, epoch, logs=None):
        if epoch % self._every == 0:
            with open(self._path, "a") as file:
                file.write(f"{epoch} {logs['loss']} {logs['share_right']}\\n")
''',
    "losses": '''
import tensorflow as tf
from typing import Annotated


def brier(metadata, *, power: Annotated[float, (1, 4)] = 2.0):
    """Distance of the probabilities from the label.

    Args:
        metadata: Of a classification task: `class_names`.
        power: Exponent of the distance.
    """
    classes = len(metadata["class_names"])

    def loss(y, outputs):
        away = tf.abs(tf.nn.softmax(outputs) - tf.one_hot(y, classes))
        return tf.reduce_sum(away ** power, axis=-1)

    return loss
''',
    "metrics": '''
import keras


def right(metadata, *, prefix: str = "part"):
    """Share of the examples that are answered right.

    Args:
        metadata: Of the task.
        prefix: Beginning of its name.
    """
    return keras.metrics.SparseCategoricalAccuracy(name=f"{prefix}_right")
''',
    "optimizers": '''
import keras
from typing import Annotated


def rms(learning_rate, *, rho: Annotated[float, (0, 1)] = 0.9):
    """Divides the gradient by a moving average of its size.

    Args:
        learning_rate: The schedule.
        rho: Decay of that average.
    """
    return keras.optimizers.RMSprop(learning_rate, rho=rho)
''',
    "schedules": '''
import keras
from typing import Annotated


def halving(learning_rate, steps, *, times: Annotated[int, (1, 20)] = 2):
    """Halves the rate at regular intervals.

    Args:
        learning_rate: The highest rate.
        steps: Of the run.
        times: How often.
    """
    return keras.optimizers.schedules.ExponentialDecay(
        learning_rate, decay_steps=max(1, steps // (times + 1)), decay_rate=0.5, staircase=True
    )
''',
    "recipes": '''
from pipeline import Config, Data, Model, Source, Task, Train


def stripes_quick() -> Config:
    """Stripes with everything of our own."""
    return Config(
        recipe="stripes_quick",
        source=Source(name="{sources}", options={{"count": 260}}),
        task=Task(name="{tasks}", options={{"unit": "grade"}}),
        data=Data(augment={{"{augment}": {{"levels": 5}}}}),
        model=Model(name="{models}", options={{"width": 24}}),
        train=Train(
            epochs=3,
            batch_size=16,
            learning_rate=0.01,
            engine="{engines}",
            callbacks={{"{callbacks}": {{"every": 2}}}},
            loss="{losses}",
            loss_options={{"power": 1.5}},
            metrics={{"{metrics}": {{"prefix": "share"}}}},
            optimizer="{optimizers}",
            optimizer_options={{"rho": 0.8}},
            schedule="{schedules}",
            schedule_options={{"times": 1}},
        ),
    )
''',
}
# Registry -> (name of its function, an option of it).
NAMES = {
    "sources": ("stripes", "count"),
    "augment": ("darken", "levels"),
    "tasks": ("ranked", "unit"),
    "models": ("dense", "width"),
    "engines": ("counting", None),
    "callbacks": ("diary", "every"),
    "losses": ("brier", "power"),
    "metrics": ("right", "prefix"),
    "optimizers": ("rms", "rho"),
    "schedules": ("halving", "times"),
    "recipes": ("stripes_quick", None),
}


def write(place: Callable[[str], Path], called: Callable[[str, str], str]) -> None:
    """Writes one file for each registry.

    Args:
        place: Registry -> where its file goes.
        called: (registry, function) -> what an option calls it.
    """
    names = {kind: called(kind, name) for kind, (name, _) in NAMES.items()}
    for kind, text in SOURCES.items():
        text = text.format(**names) if kind == "recipes" else text
        place(kind).write_text(f'"""One of the user\'s own."""\n{text}', encoding="utf-8")
