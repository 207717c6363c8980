"""Measures what two replicas do, in a separate process; prints one JSON object.

A failed collective spoils the process it happens in, and logical devices can be made
only once.
"""

import contextlib
import io
import json

import keras
import numpy as np
import tensorflow as tf
import toy_problem

from pipeline.config import command_line, registry
from pipeline.contracts import ReplicaPart
from pipeline.data import augmentation, batching, example_store
from pipeline.runtime import environment
from pipeline.training import distributed
from pipeline.training.model_builder import build
from pipeline.training.resolve import resolve

BATCH = 16


def settings_of(**changes):
    train = {"batch_size": BATCH, **changes.get("train", {})}
    return toy_problem.settings_of(**{**changes, "train": train})


def trained(
    machine, settings, steps=1, precision="float32", store=example_store.MemoryStore
):
    """(model, the distance that each weight moved) after some steps."""
    machine = toy_problem.machine(precision, machine.strategy)
    settings = settings.changed(train={"steps": steps})
    batches = batching.training(
        toy_problem.random_split(BATCH * steps, store), settings.train, 0
    )
    model = build(toy_problem.TASK, settings, machine, batches)
    before = [v.numpy() for v in model.trainable_variables]
    model.steps_per_execution = 3
    with machine.strategy.scope():
        registry.load("engines", "gradient_tape")(model, batches, None, [])
    pairs = zip(model.trainable_variables, before, strict=True)
    return model, [np.linalg.norm(v.numpy() - b) for v, b in pairs]


def apart(one, two, settings, steps=1, floor=0.0, store=example_store.MemoryStore):
    """Largest distance of a weight after the same steps, as a share of the distance it
    moved; and of the moving statistics.

    The distance moved counts at least `floor` of that of all weights together: where
    the exact gradient is 0 (a bias before a normalisation) only rounding is left.
    """
    first, moved = trained(one, settings, steps)
    second, _ = trained(two, settings, steps, store=store)
    moved = np.maximum(moved, floor * np.linalg.norm(moved))
    pairs = zip(
        first.trainable_variables, second.trainable_variables, moved, strict=True
    )
    weights = max(float(np.linalg.norm(a.numpy() - b.numpy()) / m) for a, b, m in pairs)
    moving = (
        [v.numpy() for v in m.variables if "moving" in v.path] for m in (first, second)
    )
    gaps = [float(np.abs(a - b).max()) for a, b in zip(*moving, strict=True)]
    return weights, max(gaps, default=0.0)


def sample_order(two):
    """Whether the parts of both replicas make the whole batch in each step."""
    batches = batching.training(
        toy_problem.random_split(50), settings_of(train={"epochs": 3}).train, 0
    )
    whole = [batch["id"].numpy().tolist() for batch in batches.dataset(0)]
    with two.strategy.scope():
        parts = iter(distributed.dataset(batches))
        ids = tf.function(lambda batch: batch["id"], autograph=False)
        local = two.strategy.experimental_local_results
        found = [local(two.strategy.run(ids, args=(next(parts),))) for _ in whole]
        return whole == [np.concatenate(both).tolist() for both in found]


def overflows(machine, rounds):
    """How often an overflow on one replica changed no variable but halved the scale if
    the loss was finite, and how often the next step was right.
    """
    settings = settings_of(
        model={"name": "residual", "options": {"widths": (4,), "blocks": 1}}
    )
    model, _ = trained(machine, settings, 2, "mixed_float16")
    strategy, update = machine.strategy, model.step.update
    batches = batching.training(toy_problem.random_split(BATCH), settings.train, 0)
    model.step.set_inputs(batches, None)
    halves = list(batches.dataset(0, ReplicaPart(0, 2, 2)))
    generator = np.random.default_rng(1)
    step = tf.function(
        lambda batch: strategy.run(model.step.train, args=(model, batch)),
        autograph=False,
    )

    def state():
        return [
            copy.numpy()
            for variable in [*model.variables, *model.optimizer.variables]
            if "float" in variable.dtype
            for copy in strategy.experimental_local_results(variable.value)
        ]

    def take(weights):
        def part(context):
            number = context.replica_id_in_sync_group
            return {**halves[number], "weight": tf.fill([8], weights[number])}

        with strategy.scope():
            step(strategy.experimental_distribute_values_from_function(part))

    survived = recovered = 0
    for _ in range(rounds):
        update.scale.assign(2.0**15)
        before, skipped = state(), update.skipped_steps
        weights = [1.0, 1.0]
        huge = float(generator.choice([1e30, np.inf, np.nan]))
        weights[generator.integers(2)] = huge
        take(weights)
        same = all(np.array_equal(a, b) for a, b in zip(before, state(), strict=True))
        scale = 2.0**14 if np.isfinite(huge) else 2.0**15
        survived += (
            same
            and float(update.scale.numpy()) == scale
            and update.skipped_steps == skipped + 1
        )
        take([1.0, 1.0])
        finite = all(np.isfinite(value).all() for value in state())
        recovered += finite and any(
            (a != b).any() for a, b in zip(before, state(), strict=True)
        )
    return survived, recovered


def bad_steps(one, two):
    """With one replica and with two: the bad steps, their row, the examples in the
    loss, norms. In two steps of four a weight on the last replica is NaN.
    """
    found = []
    for machine in (one, two):
        batches = batching.training(
            toy_problem.random_split(BATCH * 4), settings_of().train, 0
        )

        def spoil(batch, step):
            last = tf.range(batch["image"].shape[0], 0, -1) == 1
            bad = last & ((step == 1) | (step == 2))
            return {**batch, "weight": tf.where(bad, np.nan, 1.0)}

        model = build(toy_problem.TASK, settings_of(), machine, batches)
        model.steps_per_execution = 4
        batches = toy_problem.changed(batches, spoil)
        with machine.strategy.scope():
            history = registry.load("engines", "gradient_tape")(
                model, batches, None, []
            )
        steps, _, row = model.step.update.step_stats.pop_bad_steps()
        mean, largest, peaks = model.step.update.step_stats.norms()
        count = float(model.step.metrics[0].variables[1].numpy())
        found.append([steps, row, count, history["loss"][0], mean, largest, *peaks])
    return found


def metrics(one, two):
    """Histories of registered metrics with one replica and with two; 21 examples are
    validated in batches of 16.
    """
    top_k = "sparse_top_k_categorical_accuracy"
    added = {top_k: {"k": 2}, "macro_recall": {}}
    settings = settings_of(train={"metrics": added})
    found = []
    for machine, engine in ((one, "gradient_tape"), (two, "model_fit")):
        batches = batching.training(
            toy_problem.random_split(BATCH * 3), settings.train, 0
        )
        part = toy_problem.random_split(21)
        validation = batching.evaluation(part, settings.train, machine.replicas)
        model = build(toy_problem.TASK, settings, machine, batches)
        with machine.strategy.scope():
            found.append(
                registry.load("engines", engine)(model, batches, validation, [])
            )
    names = (top_k, "macro_recall", f"val_{top_k}", "val_macro_recall")
    return [[history[name] for name in names] for history in found]


def dropout(machine):
    """(masks of the replicas differ, a later step differs, the same step
    is the same).
    """
    model, _ = trained(machine, settings_of(model={"name": "sequential"}))
    layer = next(
        x for x in model._flatten_layers() if isinstance(x, keras.layers.Dropout)
    )
    strategy = machine.strategy

    def draw():
        model.step._seed_random_layers()
        return layer(tf.ones([64]), training=True)

    masks = tf.function(
        lambda: strategy.experimental_local_results(strategy.run(draw)), autograph=False
    )
    with strategy.scope():
        first, again = ([mask.numpy() for mask in masks()] for _ in range(2))
        model.step.update.steps.assign_add(1)
        later = [mask.numpy() for mask in masks()]
    same = all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    return bool((first[0] != first[1]).any()), bool((first[0] != later[0]).any()), same


def device_cache(one, two, settings):
    """With a store on the devices: (devices of each copy, distance after
    eight steps).
    """
    made = []

    def store(columns):
        made.append(example_store.DeviceStore(columns))
        return made[-1]

    distance, _ = apart(one, two, settings, 8, store=store)
    copies = {
        device: sorted({tensor.device for tensor in columns.values()})
        for device, columns in made[0].device_cache.by_device.items()
    }
    return copies, distance


def augmented(machine):
    """Whether the host and the step augment alike: losses and all variables after an
    epoch.
    """
    found = []
    for place in ("host", "device"):
        augment = {"crop": {"padding": 2}, "mixup": {}}
        settings = settings_of(data={"augment": augment, "augment_on": place})
        plain = batching.training(toy_problem.random_split(64), settings.train, 0)
        batches, _ = augmentation.apply_on_host(plain, settings.data, 0)
        model = build(
            toy_problem.TASK, settings, machine, plain, augment_in_step=batches is plain
        )
        with machine.strategy.scope():
            history = registry.load("engines", "gradient_tape")(
                model, batches, None, []
            )
        found.append([np.array(history["loss"]), *(v.numpy() for v in model.variables)])
    return all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


def prefetched():
    """Devices of batches that are prefetched to the second one, as if it had its own
    memory.
    """
    batches = tf.data.Dataset.range(5).map(lambda i: {"image": tf.fill([2, 3], i)})
    return [
        batch["image"].device
        for batch in distributed.prefetch_to_device(batches, "/cpu:1")
    ]


def planned(machine):
    """A setting that is chosen after the network was measured."""
    words = "photos --source scikit_learn --source.dataset digits --model.name tiny"
    request = command_line.request(words.split())
    with contextlib.redirect_stdout(io.StringIO()):
        config = resolve(request, machine)
    return config.data.image_size


def main():
    two = environment.start(
        command_line.recipe("digits").changed(runtime={"replicas": 2}).runtime
    )
    one = toy_problem.machine()
    clipped = {"accumulate": 2, "clip_norm": 0.05, "weight_decay": 0.01, "l2": 0.001}
    adaptive = {**clipped, "clip_norm": None, "clip_adaptive": 0.01, "ema": 0.9}
    muon = {**clipped, "optimizer": "muon", "optimizer_options": {}}
    batch_norm = settings_of(
        model={"name": "convnet", "options": {"filters": 4, "blocks": 1}},
        train={"synchronized_batch_norm": True},
    )
    found = {
        "replicas": two.replicas,
        "muon": apart(one, two, settings_of(train=muon))[0],
        "device_cache": device_cache(one, two, settings_of(train=adaptive)),
        "sample_order": sample_order(two),
        "overflows": overflows(two, 20),
        "bad_steps": bad_steps(one, two),
        "metrics": metrics(one, two),
        "dropout": dropout(two),
        "augmented": augmented(two),
        "synchronized": apart(one, two, batch_norm, floor=0.1),
        "prefetched": prefetched(),
        "planned": planned(two),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
