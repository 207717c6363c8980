"""Two replicas, as logical devices of the CPU, against one."""

import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy_problem
from on_two_replicas import on_two_replicas

from pipeline.config import command_line, registry
from pipeline.contracts import ReplicaPart
from pipeline.data import augmentation, batching, example_store
from pipeline.training import distributed
from pipeline.training.model_builder import build
from pipeline.training.resolve import resolve

BATCH = 16
CLIPPED = {"accumulate": 2, "global_clipnorm": 0.05, "weight_decay": 0.01, "l2": 0.001}


def settings_of(**changes):
    train = {"batch_size": BATCH, **changes.get("train", {})}
    return toy_problem.settings_of(**{**changes, "train": train})


def load_engine(name="gradient_tape"):
    return registry.load("engines", name)


def trained(
    machine,
    settings,
    steps=1,
    precision="float32",
    store=example_store.MemoryStore,
    xla=False,
):
    """(model, the distance that each weight moved) after some steps."""
    machine = toy_problem.machine(precision, machine.strategy, xla)
    settings = settings.changed(train={"steps": steps})
    split = toy_problem.random_split(BATCH * steps, store)
    batches = batching.training(split, settings.train, 0)
    model = build(toy_problem.TASK, settings, machine, batches)
    before = [v.numpy() for v in model.trainable_variables]
    model.steps_per_execution = 3
    with machine.strategy.scope():
        load_engine()(model, batches, None, [])
    pairs = zip(model.trainable_variables, before, strict=True)
    return model, [np.linalg.norm(v.numpy() - b) for v, b in pairs]


def largest_distance(one, two, settings, steps=1, floor=0.0, **options):
    """Largest distance of a weight after the same steps, as a share of the distance it
    moved; and of the moving statistics.

    The distance moved counts at least `floor` of that of all weights together: where
    the exact gradient is 0 (a bias before a normalization), only rounding is left.
    """
    first, moved = trained(one, settings, steps)
    second, _ = trained(two, settings, steps, **options)
    moved = np.maximum(moved, floor * np.linalg.norm(moved))
    pairs = zip(
        first.trainable_variables, second.trainable_variables, moved, strict=True
    )
    weights = max(float(np.linalg.norm(a.numpy() - b.numpy()) / m) for a, b, m in pairs)
    moving = [
        [v.numpy() for v in model.variables if "moving" in v.path]
        for model in (first, second)
    ]
    gaps = [float(np.abs(a - b).max()) for a, b in zip(*moving, strict=True)]
    return weights, max(gaps, default=0.0)


@on_two_replicas
def test_updates_are_those_of_one_device(one, two):
    """With clipping of each variable, accumulation, weight decay, L2, averages, and a copy of
    the examples on each device.
    """
    assert two.replicas == 2
    train = {**CLIPPED, "global_clipnorm": None, "clipnorm": 0.01, "ema": 0.9}
    stores = []

    def store(columns):
        stores.append(example_store.DeviceStore(columns))
        return stores[-1]

    settings = settings_of(train=train)
    distance, _ = largest_distance(one, two, settings, 8, floor=0.01, store=store)
    assert distance <= 1e-5
    copies = stores[0].device_cache.by_device
    assert len(copies) == 2
    for name, columns in copies.items():
        (device,) = {tensor.device for tensor in columns.values()}
        assert device.endswith(name)


@on_two_replicas
def test_compiled_updates_are_those_of_one_device(one, two):
    """The forward and backward pass of each replica, and its update, are programs."""
    settings = settings_of(train={**CLIPPED, "ema": 0.9})
    distance, _ = largest_distance(one, two, settings, 4, floor=0.01, xla=True)
    assert distance <= 1e-5


OPTIMIZERS = """
import keras

def several(rate):
    def choose(variable):
        kind = keras.optimizers.SGD if "conv" in variable.path else keras.optimizers.Adam
        return kind(rate)

    return keras.optimizers.MultiOptimizer(choose)
"""


@pytest.mark.long
@on_two_replicas
def test_updates_of_each_of_several_optimizers_are_those_of_one_device(one, two):
    Path("optimizers_of_layers.py").write_text(OPTIMIZERS)
    sys.path.insert(0, ".")
    for optimizer in ("optimizers_of_layers.several", "nadam", "adamw"):
        train = {"optimizer": optimizer, "optimizer_options": {}}
        settings = settings_of(train={**train, "learning_rate": 0.01})
        for xla in (False, True):
            distance, _ = largest_distance(one, two, settings, 4, floor=0.01, xla=xla)
            assert distance <= 1e-4, (optimizer, xla)


@pytest.mark.long
@on_two_replicas
def test_synchronized_batch_normalization_and_muon_are_those_of_one_device(one, two):
    """Without the synchronization, the distances are 5e-2 and 7e-4 or more. Muon's
    matrix products magnify rounding.
    """
    batch_norm = settings_of(
        model={"name": "convnet", "options": {"filters": 4, "blocks": 1}},
        train={"synchronized_batch_norm": True},
    )
    weights, statistics = largest_distance(one, two, batch_norm, 4, floor=0.1)
    assert weights <= 1e-4 and statistics <= 1e-5
    muon = settings_of(train={**CLIPPED, "optimizer": "muon", "optimizer_options": {}})
    assert largest_distance(one, two, muon)[0] <= 5e-5


@on_two_replicas
def test_replicas_get_the_same_examples_in_the_same_order(one, two):
    train = settings_of(train={"epochs": 3}).train
    batches = batching.training(toy_problem.random_split(50), train, 0)
    whole = [batch["id"].numpy().tolist() for batch in batches.dataset(0)]
    ids = tf.function(lambda batch: batch["id"], autograph=False)
    with two.strategy.scope():
        parts = iter(distributed.dataset(batches))
        for expected in whole:
            found = two.strategy.run(ids, args=(next(parts),))
            halves = two.strategy.experimental_local_results(found)
            assert np.concatenate(halves).tolist() == expected


@on_two_replicas
def test_batches_are_prefetched_to_the_device_that_computes(one, two):
    batches = tf.data.Dataset.range(5).map(lambda i: {"image": tf.fill([2, 3], i)})
    prefetched = list(distributed.prefetch_to_device(batches, "/cpu:1"))
    assert len(prefetched) == 5
    assert all(batch["image"].device.endswith("CPU:1") for batch in prefetched)


@pytest.mark.long
@on_two_replicas
def test_host_and_step_augment_alike(one, two):
    results = []
    for place in ("host", "device"):
        augment = {"crop": {"padding": 2}, "mixup": {}}
        settings = settings_of(data={"augment": augment, "augment_on": place})
        seed = settings.runtime.seed
        plain = batching.training(toy_problem.random_split(64), settings.train, seed)
        batches, _ = augmentation.apply_on_host(plain, settings.data, seed)
        in_step = batches is plain
        model = build(toy_problem.TASK, settings, two, plain, augment_in_step=in_step)
        with two.strategy.scope():
            history = load_engine()(model, batches, None, [])
        results.append([history["loss"], *(v.numpy() for v in model.variables)])
    for host, step in zip(*results, strict=True):
        np.testing.assert_array_equal(host, step)


@on_two_replicas
def test_an_overflow_on_any_replica_skips_the_step_on_all(one, two):
    """Weights, moving statistics and optimizer state of all copies are kept; the loss
    scale is halved if the loss is finite.
    """
    options = {"widths": (4,), "blocks": 1}
    settings = settings_of(model={"name": "residual", "options": options})
    model, _ = trained(two, settings, 2, "mixed_float16")
    strategy = two.strategy
    update = model.step.update
    batches = batching.training(toy_problem.random_split(BATCH), settings.train, 0)
    model.step.set_inputs(batches, None)
    halves = list(batches.dataset(0, ReplicaPart(0, 2, 2)))
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

    for huge in (1e30, np.inf, np.nan):
        for weights in ([huge, 1.0], [1.0, huge]):
            update.scale.assign(2.0**15)
            before, skipped = state(), update.skipped_steps
            take(weights)
            for one_copy, other in zip(before, state(), strict=True):
                np.testing.assert_array_equal(one_copy, other)
            scale = 2.0**14 if np.isfinite(huge) else 2.0**15
            assert float(update.scale.numpy()) == scale
            assert update.skipped_steps == skipped + 1
            take([1.0, 1.0])
            after = state()
            assert all(np.isfinite(value).all() for value in after)
            assert any((a != b).any() for a, b in zip(before, after, strict=True))


@pytest.mark.long
@on_two_replicas
def test_statistics_of_bad_steps_do_not_depend_on_the_replicas(one, two):
    """In two steps of four, a weight on the last replica is NaN."""

    def spoil(batch, step):
        last = tf.range(batch["image"].shape[0], 0, -1) == 1
        bad = last & ((step == 1) | (step == 2))
        return {**batch, "weight": tf.where(bad, np.nan, 1.0)}

    norms = []
    for machine in (one, two):
        split = toy_problem.random_split(BATCH * 4)
        batches = batching.training(split, settings_of().train, 0)
        model = build(toy_problem.TASK, settings_of(), machine, batches)
        model.steps_per_execution = 4
        batches = toy_problem.changed(batches, spoil)
        with machine.strategy.scope():
            history = load_engine()(model, batches, None, [])
        stats = model.step.update.step_stats
        steps, _, in_a_row = stats.pop_bad_steps()
        assert list(steps) == [1, 2] and in_a_row == 2
        examples = float(model.step.metrics[0].variables[1].numpy())
        assert examples == 2 * BATCH, "those of bad steps do not count"
        mean, largest, peaks = stats.norms()
        norms.append([history["loss"][0], mean, largest, *peaks])
    assert np.isfinite(norms).all()
    np.testing.assert_allclose(*norms, rtol=1e-4)


@on_two_replicas
def test_metrics_do_not_depend_on_the_replicas(one, two):
    """Top-k accuracy, and macro recall, which is not a mean of parts; 21 examples are
    validated in batches of 16.
    """
    top_k = "sparse_top_k_categorical_accuracy"
    settings = settings_of(train={"metrics": {top_k: {"k": 2}, "macro_recall": {}}})
    results = []
    for machine, engine in ((one, "gradient_tape"), (two, "model_fit")):
        split = toy_problem.random_split(BATCH * 3)
        batches = batching.training(split, settings.train, 0)
        held_out = toy_problem.random_split(21)
        validation = batching.evaluation(held_out, settings.train, machine.replicas)
        model = build(toy_problem.TASK, settings, machine, batches)
        with machine.strategy.scope():
            history = load_engine(engine)(model, batches, validation, [])
        names = (top_k, "macro_recall", f"val_{top_k}", "val_macro_recall")
        results.append([history[name] for name in names])
    np.testing.assert_allclose(*results, rtol=1e-6)
    assert np.min(results) > 0 and np.max(results) < 1


@on_two_replicas
def test_replicas_draw_different_dropout_masks(one, two):
    """The same ones when a step is repeated, and others in the next step."""
    model, _ = trained(two, settings_of(model={"name": "sequential"}))
    layers = model._flatten_layers()
    layer = next(x for x in layers if isinstance(x, keras.layers.Dropout))
    strategy = two.strategy

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
    np.testing.assert_array_equal(first, again)
    assert (first[0] != first[1]).any() and (first[0] != later[0]).any()


@pytest.mark.long
@on_two_replicas
def test_a_setting_is_chosen_after_the_network_was_measured(one, two):
    words = "photos --source scikit_learn --source.dataset digits --model.name tiny"
    config = resolve(command_line.request(words.split()), two)
    assert config.data.image_size
