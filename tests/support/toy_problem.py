"""A small classification problem that several test files train on."""

import dataclasses

import numpy as np
import tensorflow as tf

from pipeline.config import command_line, config, registry
from pipeline.contracts import WHOLE_BATCH, Batches
from pipeline.data import batching, example_store, splits
from pipeline.runtime import environment
from pipeline.training.model_builder import build, network

SIDE, CLASSES = 8, 3
TASK = registry.load("tasks", "image_classification")(
    {"class_names": ["a", "b", "c"], "image_shape": [SIDE, SIDE, 1]}
)


def random(shape, seed):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def task_of(shape, classes=10):
    """Classification of images of a shape."""
    names = [f"class {i}" for i in range(classes)]
    metadata = {"class_names": names, "image_shape": list(shape)}
    return registry.load("tasks", "image_classification")(metadata)


def machine(precision="float32", strategy=None, xla=False):
    """One device, or those of a strategy."""
    return environment.Machine(
        precision, xla, strategy or tf.distribute.get_strategy(), ()
    )


def random_split(count=32, store=example_store.MemoryStore):
    """Random images and labels, kept by a store of columns."""
    generator = np.random.default_rng(0)
    columns = {
        "id": tf.range(count, dtype=tf.int64),
        "image": tf.constant(
            generator.integers(0, 256, (count, SIDE, SIDE, 1), np.uint8)
        ),
        "label": tf.constant(generator.integers(0, CLASSES, count)),
    }
    return splits.Split(store(columns), np.arange(count))


def changed(batches, change):
    """The same batches; `change` maps (batch, number of its step) to another batch."""

    class Changed(type(batches)):
        def dataset(self, first_step, part=WHOLE_BATCH):
            steps = tf.data.Dataset.range(first_step, self.last_step)
            steps = steps.flat_map(
                lambda step: tf.data.Dataset.from_tensors(step).repeat(part.count)
            )
            dataset = super().dataset(first_step, part)
            return tf.data.Dataset.zip(dataset, steps).map(change)

    fields = dataclasses.fields(batches)
    return Changed(**{field.name: getattr(batches, field.name) for field in fields})


class Steps(Batches):
    """Numbers of steps without data."""

    def dataset(self, first_step, part=WHOLE_BATCH):
        raise NotImplementedError

    def rows(self, step):
        raise NotImplementedError

    def raise_if_undecodable(self, first, last):
        pass


def settings_of(**changes):
    """`tiny`, plain SGD with momentum 0.9 at a constant rate of 0.1, batch 8, no
    augmentation.
    """
    train = {"batch_size": 8, "epochs": 1, "learning_rate": 0.1, "schedule": "constant"}
    values = {
        "data": {"augment": {}},
        "model": {"name": "tiny"},
        "train": {**train, "optimizer": "sgd", "optimizer_options": {"momentum": 0.9}},
    }
    for section, options in changes.items():
        values[section] = {**values.get(section, {}), **options}
    return command_line.recipe("digits").changed(**values)


def read(source, split="train"):
    """All examples of a split, as NumPy arrays."""
    return list(source.examples(split).as_numpy_iterator())


def loaded(source, task=TASK, excluded=(), groups=None, **data):
    """Splits and decisions of a source of the test's own."""
    settings = command_line.recipe("digits").changed(data=data)
    included = splits.included(splits.limit_examples(source, settings.data), excluded)
    parts, decisions = splits.divide(included, settings.data, groups)
    loaded, more = batching.load(included, parts, task, settings, excluded)
    return loaded, [*more, *decisions]


def built(name, shape, classes=10, /, **options):
    """A registered model for images of a shape."""
    return network(
        task_of(shape, classes),
        config.ModelConfig(name=name, options=options),
        "float32",
    )


def ready(settings, split, precision="float32"):
    """A built model and its training batches."""
    batches = batching.training(split, settings.train, settings.runtime.seed)
    model = build(TASK, settings, machine(precision), batches)
    model.step.set_inputs(batches, batching.evaluation(split, settings.train))
    return model, batches


def two_epochs(**train):
    """Two epochs of batches of 8."""
    settings = settings_of(train={"epochs": 2, **train})
    return batching.training(random_split(), settings.train, seed=4)
