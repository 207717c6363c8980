"""What two replicas do, measured in a process of its own; prints one JSON object.

A failed collective spoils the process it happens in, and logical devices can be made only once.
"""

import dataclasses
import json
import sys

import keras
import numpy as np
import small
import tensorflow as tf

from pipeline.config import command_line, registry
from pipeline.data import batching, example_store
from pipeline.runtime import environment
from pipeline.training import distributed
from pipeline.training.model_builder import build

BATCH = 16


def settings_of(**changes):
    return small.settings_of(
        **{**changes, "train": {"batch_size": BATCH, **changes.get("train", {})}}
    )


def trained(machine, settings, steps, precision="float32", store=example_store.Memory):
    """(model, distance that it moved) after some steps of the tape engine."""
    machine = small.machine(precision, machine.strategy)
    settings = settings.changed(train={"steps": steps})
    batches = batching.training(small.random_split(16 * steps, store), settings.train, 0)
    model = build(small.TASK, settings, machine, batches)
    before = [v.numpy() for v in model.trainable_variables]
    model.steps_per_execution = 3
    with machine.strategy.scope():
        registry.load("engines", "gradient_tape")(model, batches, None, [])
    pairs = zip(model.trainable_variables, before, strict=True)
    moved = [np.linalg.norm(v.numpy() - b) for v, b in pairs]
    return model, moved


def apart(one, two, settings, steps, floor=0.0):
    """Largest distance of a tensor after the same steps, as a share of the way it moved.

    That way counts at least `floor` of the way of all weights together: where the exact gradient
    is 0 (a bias before a normalisation) only rounding is left.
    """
    first, moved = trained(one, settings, steps)
    second, _ = trained(two, settings, steps)
    moved = np.maximum(moved, floor * np.linalg.norm(moved))
    pairs = zip(first.trainable_variables, second.trainable_variables, moved, strict=True)
    return max(float(np.linalg.norm(a.numpy() - b.numpy()) / m) for a, b, m in pairs)


def statistics_apart(one, two, settings):
    states = []
    for machine in (one, two):
        model, _ = trained(machine, settings, 1)
        moving = [v.numpy() for v in model.variables if "moving" in v.path]
        states.append(np.concatenate(moving))
    return float(np.abs(states[0] - states[1]).max())


def sample_order(two):
    """Ids of each step: of the whole batch, and of the parts of both replicas after each other."""
    batches = batching.training(small.random_split(50), settings_of(train={"epochs": 3}).train, 0)
    whole = [ticket["id"].numpy().tolist() for ticket in batches.dataset]
    with two.strategy.scope():
        parts = iter(distributed.tickets(batches))
        local = two.strategy.experimental_local_results
        cut = [np.concatenate(local(next(parts)["id"])).tolist() for _ in whole]
    return whole == cut


def overflows(machine, rounds=100):
    """How often an overflow on one replica left all weights as they were, and halved the scale if
    the loss was finite."""
    settings = settings_of(model={"name": "convnet", "options": {"filters": 4, "blocks": 1}})
    model, _ = trained(machine, settings, 2, "mixed_float16")
    strategy, update = machine.strategy, model.step.update
    batches = batching.training(small.random_split(16 * 2), settings.train, 0)
    (ticket, *_) = batches.dataset
    halves = [{k: v[:8] for k, v in ticket.items()}, {k: v[8:] for k, v in ticket.items()}]
    generator = np.random.default_rng(1)
    step = tf.function(
        lambda tickets: strategy.run(model.step.train, args=(model, tickets)), autograph=False
    )

    def state():
        return [
            copy.numpy()
            for variable in [*model.variables, *model.optimizer.variables]
            if "float" in variable.dtype
            for copy in strategy.experimental_local_results(variable.value)
        ]

    def take(scales):
        with strategy.scope():
            step(
                strategy.experimental_distribute_values_from_function(
                    lambda context: {
                        **halves[context.replica_id_in_sync_group],
                        "weight": tf.fill([8], scales[context.replica_id_in_sync_group]),
                    }
                )
            )

    survived = recovered = 0
    for _ in range(rounds):
        update.scale.assign(2.0**15)
        before, skipped = state(), update.skipped
        scales = [1.0, 1.0]
        huge = float(generator.choice([1e30, np.inf, np.nan]))
        scales[generator.integers(2)] = huge
        take(scales)
        same = all(np.array_equal(a, b) for a, b in zip(before, state(), strict=True))
        scale = 2.0**14 if np.isfinite(huge) else 2.0**15
        survived += same and float(update.scale.numpy()) == scale and update.skipped == skipped + 1
        take([1.0, 1.0])
        finite = all(np.isfinite(value).all() for value in state())
        recovered += finite and any((a != b).any() for a, b in zip(before, state(), strict=True))
    return survived, recovered


def bad_steps(one, two):
    """After a step, two with a weight that is no number on the last replica, and a step: the bad
    steps, their row, and the examples in the loss, under one replica and under two."""
    told = []
    for machine in (one, two):
        batches = batching.training(small.random_split(16 * 4), settings_of().train, 0)

        def spoilt(ticket, number):
            last = tf.cast(tf.range(len(ticket["weight"])) == len(ticket["weight"]) - 1, tf.float32)
            middle = (number % 4 == 1) | (number % 4 == 2)
            weight = ticket["weight"] + tf.where(middle & (last > 0), np.nan, 0.0)
            return {**ticket, "weight": weight}

        def tickets(first, share, batches=batches, spoilt=spoilt):
            steps = tf.data.Dataset.range(first, batches.last_step)
            numbers = steps.flat_map(lambda n: tf.data.Dataset.from_tensors(n).repeat(share.count))
            return tf.data.Dataset.zip(batches.tickets(first, share), numbers).map(spoilt)

        model = build(small.TASK, settings_of(), machine, batches)
        model.steps_per_execution = 4
        batches = dataclasses.replace(batches, tickets=tickets)
        with machine.strategy.scope():
            history = registry.load("engines", "gradient_tape")(model, batches, None, [])
        bad = model.step.update.tally.pop_bad_steps()
        mean, largest, peaks = model.step.update.tally.norms()
        count = float(model.step.metrics[0].variables[1].numpy())
        told.append([bad.steps, bad.row, count, history["loss"][0], mean, largest, *peaks])
    return told


def metrics(one, two):
    """The history of the registry's metrics in training and validation, by either engine, under one
    replica and under two; validated are 21 examples in batches of 16."""
    added = {"top_k_accuracy": {"k": 2}, "macro_recall": {}}
    settings = settings_of(train={"metrics": added, "epochs": 2})
    found = []
    for machine, engine in ((one, "model_fit"), (two, "model_fit"), (two, "gradient_tape")):
        batches = batching.training(small.random_split(16 * 3), settings.train, 0)
        part = small.random_split(21)
        validation = batching.evaluation(part, settings.train, machine.replicas)
        model = build(small.TASK, settings, machine, batches)
        with machine.strategy.scope():
            found.append(registry.load("engines", engine)(model, batches, validation, []))
    names = ("top_2_accuracy", "macro_recall", "val_top_2_accuracy", "val_macro_recall")
    return [[history[name] for name in names] for history in found]


def growth(machine):
    """The loss scale after 8 good steps, where it doubles after 3."""
    settings = settings_of()
    model, _ = trained(machine, settings, 1, "mixed_float16")
    update = model.step.update
    update._growth_steps = 3
    model.step.compiled.clear()
    batches = batching.training(small.random_split(16 * 8), settings.train, 0)
    with machine.strategy.scope():
        model.step.set_inputs(batches, None)
        calls, tickets = (
            distributed.Calls(model, "train", batches),
            iter(distributed.tickets(batches)),
        )
        while calls.position < batches.last_step:
            calls(tickets)
    return float(update.scale.numpy())


def dropout(machine):
    """(masks of the replicas differ, a later step differs, the same step is the same)."""
    settings = settings_of(model={"name": "sequential"})
    model, _ = trained(machine, settings, 1)
    layer = next(x for x in model._flatten_layers() if isinstance(x, keras.layers.Dropout))
    strategy = machine.strategy

    @tf.function(autograph=False)
    def masks():
        def own():
            model.step._reseed()
            return layer(tf.ones([64]), training=True)

        return strategy.experimental_local_results(strategy.run(own))

    with strategy.scope():
        first = [mask.numpy() for mask in masks()]
        again = [mask.numpy() for mask in masks()]
        model.step.update.steps.assign_add(1)
        later = [mask.numpy() for mask in masks()]
    return (
        bool((first[0] != first[1]).any()),
        bool((first[0] != later[0]).any()),
        all(np.array_equal(a, b) for a, b in zip(first, again, strict=True)),
    )


def resident(machine):
    """Of a store on the devices: (devices that hold a copy, whether the weights are the same)."""
    made = []

    def store(columns):
        made.append(example_store.Device(columns))
        return made[-1]

    first, _ = trained(machine, settings_of(), 4)
    second, _ = trained(machine, settings_of(), 4, store=store)
    pairs = zip(first.variables, second.variables, strict=True)
    copies = {
        device: sorted({tensor.device for tensor in columns.values()})
        for device, columns in made[0]._copies.items()
    }
    return copies, all(np.array_equal(a.numpy(), b.numpy()) for a, b in pairs)


def augmented(machine):
    """Whether host and step augment to the same weights: by numbers of micro-batches."""
    same = {}
    for accumulate in (1, 2):
        there, here = (small.trained_where(p, machine, accumulate) for p in ("host", "device"))
        pairs = zip(there[1], here[1], strict=True)
        same[accumulate] = there[0] == here[0] and all(np.array_equal(a, b) for a, b in pairs)
    return same


def main():
    two = environment.start(command_line.recipe("digits").changed(runtime={"replicas": 2}).runtime)
    one = small.machine()
    clipped = {"accumulate": 2, "clip_norm": 0.05, "weight_decay": 0.01, "l2": 0.001}
    batch_norm = settings_of(
        model={"name": "convnet", "options": {"filters": 4, "blocks": 1}},
        train={"synchronized_batch_norm": True},
    )
    print(
        json.dumps(
            {
                "replicas": two.replicas,
                "one_update": {
                    name: apart(one, two, settings_of(train={**clipped, **change}), 1)
                    for name, change in {
                        "sgd": {},
                        "adamw": {"optimizer": "adamw", "optimizer_options": {}},
                        "adaptive": {"clip_norm": None, "clip_adaptive": 0.01},
                        "ema": {"ema": 0.9},
                    }.items()
                },
                "eight_steps": apart(one, two, settings_of(train=clipped), 8),
                "sample_order": sample_order(two),
                "overflows": overflows(two),
                "bad_steps": bad_steps(one, two),
                "metrics": metrics(one, two),
                "growth": growth(two),
                "dropout": dropout(two),
                "resident": resident(two),
                "augmented": augmented(two),
                "synchronized": apart(one, two, batch_norm, 1, floor=0.1),
                "statistics": statistics_apart(one, two, batch_norm),
            }
        )
    )


if __name__ == "__main__":
    sys.exit(main())
