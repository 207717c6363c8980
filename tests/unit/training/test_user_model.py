"""A user's network in a run: what its last layer shows, its outputs, its precision."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy_problem
from scipy import special

from pipeline.config import registry
from pipeline.config.sections import ModelConfig
from pipeline.data import batching, in_memory
from pipeline.runtime.dtype_policy import policy_scope
from pipeline.tasks.keras_model import TASK, USER
from pipeline.training import model_builder, user_metrics, user_model, user_optimizer
from pipeline.training.optim import weight_decay
from pipeline.utils.errors import UsageError

layers = keras.layers
SHAPE = (4, 4, 1)
VALUES = np.random.default_rng(1).uniform(0, 255, (6, *SHAPE)).astype(np.float32)


def user_task(classes, shape=SHAPE):
    metadata = {"raw": True, "user_model": True}
    task = toy_problem.task_of(shape, classes).with_metadata(metadata)
    return registry.call("tasks", "keras_model", {}, task)


def body():
    keras.utils.set_random_seed(0)
    inputs = keras.Input(SHAPE)
    features = layers.Flatten()(layers.Rescaling(1 / 255)(inputs))
    return inputs, layers.Dense(8, activation="relu")(features)


def functional(*ends):
    inputs, outputs = body()
    for end in ends:
        outputs = end(outputs)
    return keras.Model(inputs, outputs)


def dense(units=3, activation=None):
    return layers.Dense(units, activation=activation)


class Subclass(keras.Model):
    def __init__(self, units, end):
        super().__init__()
        self.flatten = layers.Flatten()
        self.dense = layers.Dense(units)
        self.end = end

    def call(self, inputs):
        return self.end(self.dense(self.flatten(inputs) / 255))


def average():
    inputs, features = body()
    members = [dense(3, "softmax")(features) for _ in range(2)]
    return keras.Model(inputs, layers.Average()(members))


LAST = {
    "softmax": [
        lambda: functional(dense(3, "softmax")),
        lambda: functional(dense(3, tf.nn.softmax)),
        lambda: functional(dense(), keras.ops.softmax),
        lambda: functional(dense(), keras.activations.softmax),
        lambda: functional(dense(), layers.Softmax()),
        lambda: functional(dense(), layers.Activation("softmax")),
        lambda: functional(dense(3, "softmax"), layers.Dropout(0.5)),
        lambda: functional(dense(3, "softmax"), layers.Reshape((3, 1))),
        lambda: keras.Sequential([keras.Input(SHAPE), functional(dense(3, "softmax"))]),
        lambda: functional(keras.Sequential([dense(), layers.Softmax()])),
    ],
    "sigmoid": [
        lambda: functional(dense(1, "sigmoid")),
        lambda: functional(dense(1, tf.sigmoid)),
        lambda: functional(dense(1), keras.ops.sigmoid),
    ],
    "linear": [lambda: functional(dense())],
    "log_softmax": [lambda: functional(dense(3, "log_softmax"))],
    "": [
        lambda: functional(),
        lambda: functional(dense(3, lambda x: keras.ops.softmax(x / 2))),
        lambda: functional(dense(), lambda x: 0.5 * x),
        average,
    ],
}


@pytest.mark.parametrize(
    ("activation", "build"),
    [(name, build) for name, builders in LAST.items() for build in builders],
)
def test_the_last_layer_tells_what_an_output_is(activation, build):
    (output,) = user_model.outputs_of(build())
    assert output.activation == activation


def test_a_model_without_inputs_tells_it_too():
    model = keras.Sequential([layers.Flatten(), dense(3, "softmax")])
    (output,) = user_model.outputs_of(model, (9, 4, 4))
    assert (output.shape, output.activation) == ((3,), "softmax")
    assert output.is_automatic and not model.built
    (output,) = user_model.outputs_of(keras.Sequential([dense(), layers.Dropout(0.5)]))
    assert (output.shape, output.activation) == (None, "linear")
    assert user_model.outputs_of(Subclass(3, lambda x: x)) == []


def connected(model, classes, from_logits=None):
    task = user_task(classes)
    inputs = task.input.inputs()
    copy = user_model.rebuild(model, SHAPE)
    outputs, user = user_model.connect(model, copy, inputs, task, from_logits)
    return keras.Model(inputs, outputs), user.note, user, task


HEADS = {
    "softmax": (lambda: functional(dense(3, "softmax")), 3, None, "probabilities"),
    "softmax, then dropout": (
        lambda: functional(dense(3, "softmax"), layers.Dropout(0.5)),
        3,
        False,
        "probabilities",
    ),
    "logits": (lambda: functional(dense()), 3, True, "logits"),
    "average": (average, 3, False, "probabilities"),
    "temperature": (
        lambda: functional(dense(3, lambda x: keras.ops.softmax(x / 2))),
        3,
        False,
        "probabilities",
    ),
    "scaled": (lambda: functional(dense(), lambda x: 0.5 * x), 3, True, "logits"),
    "subclassed": (lambda: Subclass(3, tf.nn.softmax), 3, False, "probabilities"),
    "sigmoid": (lambda: functional(dense(1, "sigmoid")), 2, None, "probabilities"),
    "one logit": (lambda: functional(dense(1)), 2, None, "logits"),
    "dictionary": (
        lambda: functional(dense(3, "softmax"), lambda x: {"prediction": x}),
        3,
        None,
        "probabilities",
    ),
}


@pytest.mark.parametrize("head", HEADS)
def test_predictions_follow_from_outputs_that_stay_as_they_are(head):
    build, classes, from_logits, kind = HEADS[head]
    own = build()
    expected = np.asarray(keras.tree.flatten(own(VALUES, training=False))[0])
    model, note, user, task = connected(own, classes, from_logits)
    outputs = model(VALUES, training=False)
    np.testing.assert_allclose(outputs[USER], expected, rtol=1e-5, atol=1e-6)
    assert outputs[TASK].shape == (6, classes) and note.startswith(f"it returns {kind}")
    shares = expected
    if kind == "logits":
        shares = special.softmax(expected, axis=1)
        if classes == 2:
            shares = special.expit(expected)
    prediction = task.target.predict(task.target_outputs(outputs), {})
    prediction = prediction["probabilities"].numpy()
    prediction = prediction[:, 1:] if classes == 2 else prediction
    np.testing.assert_allclose(prediction, shares, rtol=1e-4, atol=1e-5)
    plain = keras.tree.flatten(user.model(VALUES))[0]
    np.testing.assert_allclose(plain, expected, rtol=1e-5, atol=1e-6)


def test_logits_of_a_softmax_are_those_before_it():
    """Not the logarithms of probabilities, of which float32 keeps none below 1e-38."""
    own = functional(dense(3, "softmax"))
    own.layers[-1].set_weights([np.zeros((8, 3)), np.array([0.0, 200.0, 400.0])])
    logits = connected(own, 3)[0](VALUES)[TASK].numpy()
    np.testing.assert_allclose(logits - logits[:, :1], [[0, 200, 400]] * 6)


@pytest.mark.parametrize(
    ("build", "classes", "from_logits", "message"),
    [
        (
            lambda: functional(dense(4, "softmax")),
            3,
            None,
            r"shape \(None, 4\), .*3 classes",
        ),
        (lambda: functional(), 3, None, r"shape \(None, 8\), .* end it in Dense\(3\)"),
        (lambda: functional(dense(3, "sigmoid")), 3, False, "sigmoid of 3 values"),
        (lambda: functional(dense(1, "softmax")), 2, False, "softmax over one value"),
        (
            lambda: functional(dense(3, "softmax")),
            3,
            True,
            "from_logits=True, but the model returns probabilities",
        ),
        (
            lambda: functional(dense()),
            3,
            False,
            r"expects probabilities.*such as --train.loss sparse.* from_logits=True, or",
        ),
        (average, 3, None, "does not tell .*pass a loss that does"),
        (lambda: Subclass(3, lambda x: x), 3, None, "does not tell"),
    ],
)
def test_what_keras_would_compute_wrongly_is_one_line(
    build, classes, from_logits, message
):
    with pytest.raises(UsageError, match=message) as caught:
        connected(build(), classes, from_logits)
    assert "\n" not in str(caught.value)


class Forgetful(layers.Layer):
    """Its config leaves out an argument, so that a copy computes something else."""

    def __init__(self, factor=1.0, **options):
        super().__init__(**options)
        self.factor = factor

    def call(self, inputs):
        return inputs * self.factor

    def get_config(self):
        config = super().get_config()
        config.pop("factor", None)
        return config


class Rebuilt(Forgetful):
    @classmethod
    def from_config(cls, config):
        return cls(**config)


class Noise(layers.Layer):
    def call(self, inputs):
        return inputs + tf.random.normal(tf.shape(inputs))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda: Forgetful(1.0), None),
        (lambda: Rebuilt(3.0), "answers differently .*get_config"),
        (Noise, None),
    ],
)
def test_a_copy_that_returns_something_else_is_refused(layer, message):
    task = user_task(3, (8, 8, 1))
    inputs = keras.Input((8, 8))  # without the axis of gray images
    ends = [layer(), layers.Flatten(), dense(3, "softmax")]
    outputs = inputs
    for end in ends:
        outputs = end(outputs)
    own = keras.Model(inputs, outputs)
    copy = user_model.rebuild(own, (8, 8, 1))
    *_, user = user_model.connect(own, copy, task.input.inputs(), task, None)
    settings = toy_problem.settings_of()
    batches = batching.training(toy_problem.random_split(), settings.train, 0)
    if message is None:
        user_model.require_equal_outputs(user, task, batches)
        return
    with pytest.raises(UsageError, match=message):
        user_model.require_equal_outputs(user, task, batches)


def test_what_a_config_lacks_is_named_before_training():
    model = keras.Sequential([keras.Input((4,)), Forgetful(3.0, name="scaled")])
    with pytest.raises(UsageError, match="layer 'scaled' lacks factor; define get_c"):
        user_model.rebuild(model, (4,))


def test_what_a_network_was_compiled_with_is_not_rebuilt():
    """Keras would look for the user's functions by their names."""

    def own_loss(y_true, y_pred):
        return keras.ops.square(y_true - y_pred)

    own = functional(dense())
    own.compile("sgd", own_loss, metrics=[own_loss])
    copy = user_model.rebuild(own, SHAPE)
    assert own.compiled and not copy.compiled


class Twice(keras.layers.Layer):
    """Has a layer inside that is not in its config."""

    def __init__(self, **options):
        super().__init__(**options)
        self.inner = keras.layers.Dense(4)

    def call(self, inputs):
        return self.inner(self.inner(inputs))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, inputs):
        return self.dense(inputs)


def own(policy):
    """Layers inside of layers, a Lambda, an int64 layer, and a head in float32."""
    with policy_scope(policy):
        inner = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(4)], name="inner"
        )
        return keras.Sequential(
            [
                keras.Input((4, 4)),
                keras.layers.TimeDistributed(keras.layers.Dense(4)),
                keras.layers.Bidirectional(keras.layers.GRU(2)),
                keras.layers.Lambda(lambda x: 2 * x),
                Twice(),
                inner,
                keras.layers.Dense(3, dtype="float32"),
            ]
        )


def policies(model):
    kinds = keras.Model | keras.layers.InputLayer
    layers = [x for x in model._flatten_layers() if not isinstance(x, kinds)]
    return [(type(layer).__name__, layer.dtype_policy.name) for layer in layers]


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float32", "mixed_float16"])
def test_all_layers_compute_in_the_precision_of_the_run(policy):
    """Except for those in float32; the predictions are those of the network with that
    policy.
    """
    model, expected = own("mixed_float16"), own(policy)
    expected.set_weights(model.get_weights())
    with policy_scope(policy):
        copy = user_model.rebuild(model, (4, 4))
    assert policies(copy) == policies(expected)
    assert {name for _, name in policies(copy)} == {policy, "float32"}
    values = np.random.default_rng(0).normal(size=(5, 4, 4)).astype("float32")
    np.testing.assert_array_equal(copy(values), expected(values))
    assert {name for _, name in policies(model)} == {"mixed_float16", "float32"}


def with_shape(input_shape):
    return keras.Sequential([keras.Input(input_shape), keras.layers.Flatten()])


def whole_model(x):
    return keras.Sequential([keras.layers.Flatten()])


@pytest.mark.parametrize("function", [with_shape, whole_model])
def test_a_whole_model_needs_a_function_of_shape_and_classes(function):
    options = ModelConfig(name=function)
    with pytest.raises(
        UsageError, match=r"write a function \(input_shape, cl"
    ) as caught:
        model_builder.network(toy_problem.TASK, options, "float32")
    assert "\n" not in str(caught.value) and function.__name__ in str(caught.value)


def test_a_layer_in_another_precision_is_refused():
    layers = [keras.Input((4,)), keras.layers.Dense(3, dtype="float16", name="half")]
    model = keras.Sequential([*layers, keras.layers.Dense(3, dtype="mixed_bfloat16")])
    with policy_scope("mixed_bfloat16"):
        with pytest.raises(UsageError, match="half.*float16"):
            user_model.rebuild(model, (4,))
        subclassed = Subclassed()
        assert user_model.rebuild(subclassed, (4,)) is subclassed
        # An object, which cannot be built again in float32 for the export.
        with pytest.raises(UsageError, match="mixed_bfloat16.*float32"):
            user_model.from_object(subclassed, (4,), 3)


class Shared(layers.Layer):
    """Uses the kernel of another layer."""

    def __init__(self, dense, **options):
        super().__init__(**options)
        self.dense = dense

    def call(self, inputs):
        return keras.ops.matmul(inputs, keras.ops.transpose(self.dense.kernel))

    def get_config(self):
        dense = keras.saving.serialize_keras_object(self.dense)
        return {**super().get_config(), "dense": dense}

    @classmethod
    def from_config(cls, config):
        config["dense"] = keras.saving.deserialize_keras_object(config["dense"])
        return cls(**config)


def test_layers_that_share_weights_are_refused_if_a_copy_does_not():
    first = layers.Dense(3, use_bias=False)
    model = keras.Sequential([keras.Input((4,)), first, Shared(first)])
    with pytest.raises(UsageError, match="1 weights, and 2 if .* share their weights"):
        user_model.rebuild(model, (4,))


@pytest.mark.parametrize("name", ["train_step", "compute_loss", "compute_metrics"])
def test_a_method_of_the_object_is_refused_like_one_of_its_class(name):
    model = functional(dense(3, "softmax"))
    setattr(model, name, lambda *arguments: None)
    with pytest.raises(UsageError, match=f"overrides {name}, which is not called"):
        user_model.rebuild(model, (8, 8, 1))


def test_a_network_is_built_for_arrays_as_keras_builds_it():
    """Square arrays without channels have got an axis."""
    model = keras.Sequential([layers.Dense(16), layers.Flatten(), layers.Dense(1)])
    for gray_axis, size in ((True, 8), (False, 1)):
        copy = user_model.rebuild(model, (8, 8, 1), gray_axis)
        assert copy.layers[0].kernel.shape == (size, 16)
    images = keras.Sequential([layers.Conv2D(4, 3), layers.Flatten(), layers.Dense(1)])
    for gray_axis in (True, False):
        kernel = user_model.rebuild(images, (8, 8, 1), gray_axis).layers[0].kernel
        assert kernel.shape == (3, 3, 1, 4)


def test_arrays_without_channels_are_known():
    for x, expected in ((np.zeros((9, 8, 8)), True), (np.zeros((9, 8, 8, 1)), False)):
        assert in_memory.from_object((x, np.arange(9) % 3)).info.gray_axis == expected


class Boosted(keras.optimizers.SGD):
    def __init__(self, boost=1.0, **options):
        super().__init__(**options)
        self.boost = boost


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (lambda: Boosted(boost=10.0), "Boosted cannot be rebuilt: .* lacks boost"),
        (
            lambda: keras.optimizers.Adam(gradient_accumulation_steps=4),
            "multiply batch_size by 4",
        ),
        (
            lambda: keras.optimizers.Adam(use_ema=True, ema_overwrite_frequency=2),
            "ema_overwrite_frequency=2; remove it",
        ),
    ],
)
def test_an_optimizer_that_a_run_cannot_copy_is_refused(optimizer, message):
    with pytest.raises(UsageError, match=message):
        user_optimizer.from_object(optimizer(), 0.1)


def test_variables_are_excluded_from_weight_decay_by_name():
    dense = layers.Dense(3)
    dense.build((None, 4))
    optimizer = keras.optimizers.AdamW()
    optimizer.exclude_from_weight_decay(var_list=[dense.bias])
    with pytest.raises(UsageError, match="exclude them by name: .*var_names"):
        user_optimizer.from_object(optimizer, 0.1)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    copy = user_optimizer.from_object(optimizer, 0.1)
    assert copy._use_weight_decay(dense.kernel)
    assert not copy._use_weight_decay(dense.bias)
    copy.exclude_from_weight_decay(var_names=["kernel"])
    weight_decay.exempt_vectors(copy, [dense.kernel, dense.bias])
    assert not copy._use_weight_decay(dense.kernel)
    assert not copy._use_weight_decay(dense.bias)


class Within(keras.metrics.Mean):
    """Keras never needs its config."""

    def __init__(self, tolerance=0.1, name="within", **options):
        super().__init__(name=name, **options)
        self._tolerance = tolerance

    def update_state(self, y_true, y_pred, sample_weight=None):
        difference = keras.ops.cast(y_true, "float32") - y_pred[:, 0]
        is_near = keras.ops.abs(difference) < self._tolerance
        super().update_state(is_near, sample_weight)


def test_a_metric_without_a_config_is_used_itself():
    task = user_task(3, (8, 8, 1))
    metric = user_metrics.create(Within(2.0), task, (3,))
    shares = tf.constant([[0.2, 0.3, 0.5]])
    metric.update_state(tf.constant([[1.0, 0.0, 0.0]]), {USER: shares, TASK: shares})
    assert float(metric.result()) == 1.0
