"""The update rule: unscale, sum over replicas, check, clip, apply, average.

Keras 3.15 clips before it sums over replicas, lets only replica 0 decide whether a
gradient is finite, and cannot accumulate gradients under a strategy. Here, every
decision is based on the sum, which is the same on every replica, so that the weights do
not depend on the number of replicas.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from pipeline.config import config
from pipeline.training.optim.gradient_clipping import clip_gradients
from pipeline.training.optim.learning_rate import AdjustableRate
from pipeline.training.optim.step_stats import StepStats, counter
from pipeline.utils.errors import UsageError

# Micikevicius et al., "Mixed precision training", ICLR 2018, section 3.2, with the
# usual values of later implementations: start at 2**15, halve when the gradient
# overflows although the loss is finite, double after 2,000 good steps.
FIRST_SCALE = 2.0**15
GROWTH_STEPS = 2000


class UpdateRule:
    """Updates the weights from the gradients of all replicas if they are finite.

    Args:
        optimizer: Any unbuilt Keras optimizer; it gets summed and clipped gradients.
        variables: All weights that are trained at any time.
        statistics: Weights that a forward pass changes (moving averages of
            BatchNormalization). They are averaged over the replicas, and restored if
            the update is skipped.
        options: `clip_*` and `ema` are used.
        scaled: Whether the loss is scaled dynamically, as float16 requires.
        rate: The optimizer's learning rate; its variables are part of the state.
        metrics: Their variables are restored if a loss is not finite.
        factors: id of a variable -> factor of its learning rate, if it has one.
        branchless: Whether to compute both outcomes of a step and to select one,
            instead of `tf.cond`.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        variables: Sequence[keras.Variable],
        statistics: Sequence[keras.Variable],
        options: config.TrainConfig,
        scaled: bool,
        rate: AdjustableRate,
        metrics: Sequence[keras.metrics.Metric] = (),
        factors: Mapping[int, float] = {},
        branchless: bool = False,
    ) -> None:
        _require_plain_optimizer(optimizer)
        # Otherwise it would create its variables inside the first trace, and `fit`
        # would draw an extra batch to build it.
        optimizer.build(variables)
        _require_known_variables(optimizer)
        for part in (optimizer, *getattr(optimizer, "_inner_optimizers", ())):
            _restrict_to_replica(part)
        self._optimizer = optimizer
        self._statistics = list(statistics)
        self.scaled = scaled
        """Whether the loss is scaled."""
        self._growth_steps = GROWTH_STEPS
        self._options = options
        self._ema_decay = options.ema
        self._factors = factors
        self.steps = counter("steps", 0, "int64")
        """Number of attempted updates: `optimizer.iterations` and the skipped ones."""
        self.scale = counter("loss_scale", FIRST_SCALE if scaled else 1.0, "float32")
        self._good_steps = counter("good_steps", 0, "int64")
        self.rate = rate
        self.factor = rate.factor
        """See `AdjustableRate`."""
        self.pace = rate.pace
        """See `AdjustableRate`."""
        self._branchless = branchless
        self.step_stats = StepStats(variables)
        self.metric_variables = [v for metric in metrics for v in metric.variables]
        """Variables of the metrics, which are restored if a loss is not finite."""
        self.weights = list(variables)
        """All weights that are trained at any time, in the order of their norms."""
        self._averages: dict[int, keras.Variable] = {}
        if self._ema_decay is not None:
            for index, variable in enumerate(variables):
                name = f"average_{index}"
                average = keras.Variable(variable.numpy(), trainable=False, name=name)
                self._averages[id(variable)] = average

    @property
    def variables(self) -> list[keras.Variable]:
        """The state to save in a checkpoint."""
        counters = [self.steps, self.scale, self._good_steps, self.factor, self.pace]
        counters.append(self.rate.assigned)
        return [*counters, *self.step_stats.variables, *self._averages.values()]

    @property
    def skipped_steps(self) -> int:
        """Number of updates skipped because a gradient was not finite."""
        return int(self.steps.numpy()) - int(self._optimizer.iterations.numpy())

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """Returns the loss to differentiate."""
        return loss * self.scale.value if self.scaled else loss

    def unscale(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the gradients of the unscaled loss."""
        if not self.scaled:
            return gradients
        inverse = 1.0 / self.scale.value  # exact, because the scale is a power of two
        return [gradient * inverse for gradient in gradients]

    def snapshot(self) -> list[tf.Tensor]:
        """Copies statistics and metrics before the forward pass, for `apply`."""
        return [
            tf.identity(v.value) for v in (*self._statistics, *self.metric_variables)
        ]

    def apply(
        self,
        gradients: list[tf.Tensor],
        loss: tf.Tensor,
        variables: Sequence[keras.Variable],
        before: list[tf.Tensor],
        jit_compile: bool = False,
    ) -> None:
        """Ends a step; called in replica context.

        Args:
            gradients: This replica's part of the gradient of the mean loss over the
                global batch.
            loss: This replica's part of that mean loss, float32, not scaled.
            variables: The weights that the gradients belong to, in the same order.
            before: What `snapshot` returned.
            jit_compile: Whether to compile the update as an XLA program of its own.
        """
        statistics = [tf.identity(variable.value) for variable in self._statistics]
        context = tf.distribute.get_replica_context()
        if context.num_replicas_in_sync > 1:
            old_statistics = before[: len(statistics)]
            gradients, statistics, loss = _all_reduce(
                context, gradients, old_statistics, statistics, loss
            )
        update = functools.partial(self._update, variables)
        if jit_compile:
            update = tf.function(update, jit_compile=True, autograph=False)
        if not tf.distribute.has_strategy():
            update(gradients, statistics, loss, before)
            return

        def update_replicas(strategy: tf.distribute.Strategy, *values: Any) -> None:
            """Calls `update` for each replica, with its variables and values."""
            with _without_merge_call(strategy):
                strategy.extended.update(
                    self.steps.value,
                    lambda _, *of_replica: update(*of_replica),
                    args=values,
                    group=False,
                )

        context.merge_call(update_replicas, args=(gradients, statistics, loss, before))

    def _update(
        self,
        variables: Sequence[keras.Variable],
        gradients: list[tf.Tensor],
        statistics: list[tf.Tensor],
        loss: tf.Tensor,
        before: list[tf.Tensor],
    ) -> None:
        """Updates the variables of one replica.

        Gradients, statistics and loss are those of all replicas, so that all of them do
        the same.
        """
        old_statistics = before[: len(statistics)]
        old_metrics = before[len(statistics) :]
        # Half the squared norm of each gradient. Their sum gives the global norm.
        half_squares = tf.stack(
            [tf.cast(tf.nn.l2_loss(gradient), tf.float32) for gradient in gradients]
        )
        norm = tf.sqrt(2.0 * tf.reduce_sum(half_squares))
        is_forward_finite = tf.reduce_all(
            [tf.reduce_all(tf.math.is_finite(value)) for value in (loss, *statistics)]
        )
        is_finite = is_forward_finite & tf.math.is_finite(norm)

        def take_step() -> None:
            if tf.distribute.has_strategy():
                _assign(self._statistics, statistics)
            clipped = clip_gradients(self._options, gradients, norm)
            self._apply_optimizer(clipped, variables)
            self._update_averages(variables)
            self.step_stats.record_good_step(norm, half_squares, variables)

        def skip_step() -> None:
            _assign(self._statistics, old_statistics)
            is_loss_finite = tf.math.is_finite(loss)
            for variable, value in zip(self.metric_variables, old_metrics, strict=True):
                variable.assign(tf.where(is_loss_finite, variable.value, value))
            # Not a bad step if only the loss scale is too large, and can be halved.
            is_bad = ~is_forward_finite | (self.scale.value <= 1.0)
            self.step_stats.record_bad_step(self.steps.value, is_bad)

        if self._branchless:
            self._select(is_finite, take_step, skip_step)
        else:
            tf.cond(is_finite, take_step, skip_step)
        self._count(is_finite, overflowed=is_forward_finite & ~is_finite)

    def _select(
        self,
        condition: tf.Tensor,
        take_step: Callable[[], None],
        skip_step: Callable[[], None],
    ) -> None:
        """Does what `tf.cond` would do, without a branch.

        `tf.cond` would copy the condition to the host in each step. In an XLA program,
        the assignments in between are not written to the variables.
        """
        state = [*self.weights, *self._optimizer.variables, *self.variables]
        state += [*self._statistics, *self.metric_variables]
        before = [tf.identity(variable.value) for variable in state]
        take_step()
        taken = [tf.identity(variable.value) for variable in state]
        _assign(state, before)
        skip_step()
        for variable, value in zip(state, taken, strict=True):
            variable.assign(tf.where(condition, value, variable.value))

    def _apply_optimizer(
        self, gradients: list[tf.Tensor], variables: Sequence[keras.Variable]
    ) -> None:
        scaled = [variable for variable in variables if id(variable) in self._factors]
        old_values = [tf.identity(variable.value) for variable in scaled]
        self._optimizer.apply(gradients, variables)
        for variable, old in zip(scaled, old_values, strict=True):
            variable.assign(old + self._factors[id(variable)] * (variable.value - old))

    def _update_averages(self, variables: Sequence[keras.Variable]) -> None:
        """Moves the averages towards the weights after the update.

        The momentum is at most (n - 1) / (n + 8) in the n-th update: the average lags
        by at most a ninth of the steps so far, and forgets the first weights however
        short the run is. It is the warm-up of `tf.train.ExponentialMovingAverage`.
        """
        if self._ema_decay is None:
            return
        update = tf.cast(self._optimizer.iterations.value, tf.float32)
        share = 1.0 - tf.minimum(self._ema_decay, (update - 1.0) / (update + 8.0))
        for variable in variables:
            average = self._averages[id(variable)].value
            average.assign_add(share * (variable.value - average))

    def _count(self, is_finite: tf.Tensor, overflowed: tf.Tensor) -> None:
        """Counts the step; adapts the loss scale if the forward pass was finite."""
        self.steps.value.assign_add(1)
        if not self.scaled:
            return
        good = self._good_steps.value + tf.cast(is_finite, tf.int64)
        good = tf.where(overflowed, tf.zeros_like(good), good)
        grow = good >= self._growth_steps
        scale = self.scale.value * tf.where(grow, 2.0, tf.where(overflowed, 0.5, 1.0))
        self._good_steps.value.assign(tf.where(grow, tf.zeros_like(good), good))
        # float16 overflows at 65504 = 2**16; a scale beyond 2**32 helps no gradient.
        self.scale.value.assign(tf.clip_by_value(scale, 1.0, 2.0**32))

    def swap_ema(self) -> None:
        """Swaps the weights with their averages, if there are any, between steps."""
        if not self._averages:
            return
        for variable in self.weights:
            average = self._averages[id(variable)]
            trained = variable.numpy()
            variable.assign(average.numpy())
            average.assign(trained)


def _restrict_to_replica(optimizer: keras.optimizers.Optimizer) -> None:
    """Makes an optimizer update one replica, with gradients that are already summed.

    By default, it switches to cross-replica context and updates every replica, which a
    compiled function cannot do. This overrides private methods of Keras 3.15.
    """

    def decay_weights(variables: Sequence[keras.Variable]) -> None:
        if optimizer.weight_decay is None:
            return
        learning_rate = optimizer.learning_rate  # traces the schedule
        for variable in variables:
            if optimizer._use_weight_decay(variable):
                value = variable.value
                rate = tf.cast(learning_rate, value.dtype)
                decay = tf.cast(optimizer.weight_decay, value.dtype)
                value.assign_sub(value * decay * rate)

    def update(_: Any, grads_and_vars: Any, learning_rate: tf.Tensor) -> None:
        for gradient, variable in grads_and_vars:
            optimizer.update_step(gradient, variable, learning_rate)

    optimizer._all_reduce_sum_gradients = lambda grads_and_vars: grads_and_vars
    optimizer._distributed_tf_update_step = update
    of_keras = keras.optimizers.Optimizer._apply_weight_decay
    if type(optimizer)._apply_weight_decay is of_keras:  # Muon has another
        optimizer._apply_weight_decay = decay_weights


@contextlib.contextmanager
def _without_merge_call(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Makes `maybe_merge_call` call its function directly, for the current replica."""
    strategy.extended._use_merge_call = lambda: False
    try:
        yield
    finally:
        del strategy.extended._use_merge_call


def _require_plain_optimizer(optimizer: keras.optimizers.Optimizer) -> None:
    """Raises UsageError for options that Keras applies before replicas are summed."""
    if optimizer.built:
        raise UsageError(
            "--train.optimizer: it already belongs to a model; return a new one"
        )
    scales_loss = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if scales_loss or optimizer.loss_scale_factor:
        raise UsageError(
            "--train.optimizer: loss scaling is built in; remove LossScaleOptimizer and"
            " loss_scale_factor"
        )
    flags = {"gradient_accumulation_steps": "accumulate", "use_ema": "ema"}
    for name, flag in flags.items():
        if getattr(optimizer, name, None):
            raise UsageError(f"--train.optimizer: remove {name} and use --train.{flag}")


def _require_known_variables(optimizer: keras.optimizers.Optimizer) -> None:
    """Raises UsageError for state that would be in no checkpoint."""
    for name, value in vars(optimizer).items():
        if name.startswith("_self_"):  # TensorFlow's own references
            continue
        if any(isinstance(part, tf.Variable) for part in tf.nest.flatten(value)):
            raise UsageError(
                f"--train.optimizer: {name} is a tf.Variable, which Keras does not"
                " track; create it with add_variable in the optimizer's build"
            )


def _assign(variables: Sequence[keras.Variable], values: list[tf.Tensor]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _all_reduce(
    context: Any,
    gradients: list,
    old_statistics: list,
    statistics: list,
    loss: tf.Tensor,
) -> tuple[list[tf.Tensor], list[tf.Tensor], tf.Tensor]:
    """Sums gradients and loss over the replicas, and averages the statistics."""
    replicas = context.num_replicas_in_sync
    # Changes, not values: statistics that do not change, such as of frozen layers, must
    # not drift.
    changes = [
        (new - old) / replicas
        for new, old in zip(statistics, old_statistics, strict=True)
    ]
    # A single call, because each call synchronizes the replicas.
    sums = context.all_reduce("sum", [*gradients, *changes, loss])
    count = len(gradients)
    statistics = [
        old + change for old, change in zip(old_statistics, sums[count:-1], strict=True)
    ]
    return sums[:count], statistics, sums[-1]
