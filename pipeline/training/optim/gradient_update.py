"""The update rule: unscale, sum over replicas, check for finiteness, clip, apply,
average.

Keras 3.15 clips before it sums over replicas, lets only replica 0 decide whether a
gradient is finite, and cannot accumulate gradients under a strategy. Here every
decision is based on the sum, which is the same on every replica, so that the weights do
not depend on the number of replicas.
"""

from collections.abc import Mapping, Sequence
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


class Update:
    """Updates the weights from the gradients of all replicas, unless one of them is not
    finite.

    Args:
        optimizer: Any unbuilt Keras optimizer; it gets gradients that are summed and
            clipped.
        variables: All weights that are trained at any time.
        statistics: Weights that a forward pass changes (moving averages of
            BatchNormalization). They are averaged over the replicas, and restored if
            the update is skipped.
        options: `clip_*` and `ema` are used.
        scaled: Whether the loss is scaled dynamically, as float16 requires.
        rate: The optimizer's learning rate; its variables are saved with the other
            state.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        variables: Sequence[keras.Variable],
        statistics: Sequence[keras.Variable],
        options: config.TrainConfig,
        scaled: bool,
        rate: AdjustableRate,
    ) -> None:
        _refuse_own_rules(optimizer)
        # Otherwise it would create its variables inside the first trace, and `fit`
        # would draw an extra batch to build it.
        optimizer.build(variables)
        # A private hook of Keras; the sum has already been taken when it is called.
        optimizer._all_reduce_sum_gradients = lambda grads_and_vars: grads_and_vars
        self._optimizer = optimizer
        self._statistics = list(statistics)
        self.scaled = scaled
        """Whether the loss is scaled."""
        self._growth_steps = GROWTH_STEPS
        self._options, self._decay = options, options.ema
        self.factors: Mapping[int, float] = {}
        """id of a variable -> factor of its learning rate, for those that have one."""
        self.steps = counter("steps", 0, "int64")
        """Number of attempted updates: `optimizer.iterations` plus the skipped ones."""
        self.scale = counter("loss_scale", FIRST_SCALE if scaled else 1.0, "float32")
        self._good = counter("good_steps", 0, "int64")
        self.rate = rate
        self.factor, self.pace = rate.factor, rate.pace
        """See `AdjustableRate`."""
        self.step_stats = StepStats(variables)
        self.measures: Sequence[keras.Variable] = ()
        """Variables of the running metrics, also restored if a loss is not finite."""
        self.weights = list(variables)
        """All weights that are trained at any time, in the order of their norms."""
        self._averages = {
            id(variable): keras.Variable(
                variable.numpy(), trainable=False, name=f"average_{n}"
            )
            for n, variable in enumerate(variables if self._decay is not None else ())
        }

    @property
    def variables(self) -> list[keras.Variable]:
        """The state to save in a checkpoint."""
        counters = [self.steps, self.scale, self._good, self.factor, self.pace]
        counters.append(self.rate.assigned)
        return [*counters, *self.step_stats.variables, *self._averages.values()]

    @property
    def skipped(self) -> int:
        """Number of updates that were skipped because a gradient was not finite."""
        return int(self.steps.numpy()) - int(self._optimizer.iterations.numpy())

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """The loss to differentiate."""
        return loss * self.scale.value if self.scaled else loss

    def unscale(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """Gradients of the unscaled loss; exact, because the scale is a
        power of two.
        """
        if not self.scaled:
            return gradients
        inverse = 1.0 / self.scale.value
        return [gradient * inverse for gradient in gradients]

    def remember(self) -> list[tf.Tensor]:
        """Copies statistics and metrics before the forward pass, for `apply`."""
        return [tf.identity(v.value) for v in (*self._statistics, *self.measures)]

    def apply(
        self,
        gradients: list[tf.Tensor],
        loss: tf.Tensor,
        variables: Sequence[keras.Variable],
        before: list[tf.Tensor],
    ) -> None:
        """Ends a step; called in replica context.

        Args:
            gradients: This replica's part of the gradient of the mean loss over the
                global batch.
            loss: This replica's part of that mean, float32, not scaled.
            variables: The weights that the gradients belong to, in the same order.
            before: What `remember` returned.
        """
        context = tf.distribute.get_replica_context()
        now = [tf.identity(v.value) for v in self._statistics]
        before, measured = before[: len(now)], before[len(now) :]
        if (replicas := context.num_replicas_in_sync) > 1:
            gradients, now, loss = _summed(context, gradients, before, now, loss)
        # Half the squared norm of each gradient; from their sum, the norm of all.
        halves = tf.stack(
            [tf.cast(tf.nn.l2_loss(gradient), tf.float32) for gradient in gradients]
        )
        norm = tf.sqrt(2.0 * tf.reduce_sum(halves))
        # The same on every replica, because everything is computed from the sum.
        sound = tf.reduce_all(
            [tf.reduce_all(tf.math.is_finite(value)) for value in (loss, *now)]
        )
        finite = sound & tf.math.is_finite(norm)

        def accept(gradients: list, now: list, norm: tf.Tensor) -> None:
            if replicas > 1:
                _assign(self._statistics, now)
            gradients = clip_gradients(self._options, gradients, norm, variables)
            is_first = tf.equal(self._optimizer.iterations.value, 0)
            self._step(gradients, variables)
            self._average(variables, is_first)

        def reject(before: list, measured: list, loss: tf.Tensor) -> None:
            _assign(self._statistics, before)
            for measure, value in zip(self.measures, measured, strict=True):
                measure.assign(tf.where(tf.math.is_finite(loss), measure.value, value))

        def decide(
            strategy: tf.distribute.Strategy, judged: Any, new: Any, old: Any
        ) -> None:
            # A branch can contain updates of mirrored variables only in cross-replica
            # context.
            local = strategy.experimental_local_results
            finite, sound, norm, halves = (local(value)[0] for value in judged)
            run = strategy.extended.call_for_each_replica

            def good() -> None:
                run(accept, args=new)
                self.step_stats.good(norm, halves, variables)

            def bad() -> None:
                run(reject, args=old)
                # Not a bad step if only the loss scale is too large and can still be
                # halved.
                self.step_stats.bad(
                    self.steps.value, ~sound | (self.scale.value <= 1.0)
                )

            tf.cond(finite, good, bad)
            self._count(finite, overflowed=sound & ~finite)

        judged, new = (finite, sound, norm, halves), (gradients, now, norm)
        context.merge_call(decide, args=(judged, new, (before, measured, loss)))

    def _step(
        self, gradients: list[tf.Tensor], variables: Sequence[keras.Variable]
    ) -> None:
        scaled = [variable for variable in variables if id(variable) in self.factors]
        before = [tf.identity(variable.value) for variable in scaled]
        self._optimizer.apply(gradients, variables)
        for variable, old in zip(scaled, before, strict=True):
            variable.assign(old + self.factors[id(variable)] * (variable.value - old))

    def _average(self, variables: Sequence[keras.Variable], first: tf.Tensor) -> None:
        if self._decay is None:
            return
        share = tf.where(first, 1.0, 1.0 - self._decay)
        for variable in variables:
            average = self._averages[id(variable)].value
            average.assign_add(share * (variable.value - average))

    def _count(self, finite: tf.Tensor, overflowed: tf.Tensor) -> None:
        """Counts the step and adapts the loss scale, unless the forward pass was not
        finite.
        """
        self.steps.value.assign_add(1)
        if not self.scaled:
            return
        good = self._good.value + tf.cast(finite, tf.int64)
        good = tf.where(overflowed, tf.zeros_like(good), good)
        grow = good >= self._growth_steps
        scale = self.scale.value * tf.where(grow, 2.0, tf.where(overflowed, 0.5, 1.0))
        self._good.value.assign(tf.where(grow, tf.zeros_like(good), good))
        # float16 overflows at 65504 = 2**16; a scale beyond 2**32 helps no gradient.
        self.scale.value.assign(tf.clip_by_value(scale, 1.0, 2.0**32))

    def swap_ema(self) -> None:
        """Swaps the weights with their averages, if there are any. Called between
        steps.
        """
        for variable in self.weights if self._averages else ():
            average, trained = self._averages[id(variable)], variable.numpy()
            variable.assign(average.numpy())
            average.assign(trained)


def _refuse_own_rules(optimizer: keras.optimizers.Optimizer) -> None:
    """Raises UsageError for options that Keras applies before summing gradients over
    replicas.
    """
    if optimizer.built:
        raise UsageError(
            "--train.optimizer: it already belongs to a model; return a new one"
        )
    if (
        isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        or optimizer.loss_scale_factor
    ):
        raise UsageError(
            "--train.optimizer: loss scaling is built in; remove LossScaleOptimizer and"
            " loss_scale_factor"
        )
    for name, flag in {
        "gradient_accumulation_steps": "accumulate",
        "use_ema": "ema",
    }.items():
        if getattr(optimizer, name, None):
            raise UsageError(f"--train.optimizer: remove {name} and use --train.{flag}")


def _assign(variables: Sequence[keras.Variable], values: list[tf.Tensor]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _summed(
    context: Any, gradients: list, before: list, now: list, loss: tf.Tensor
) -> tuple[list[tf.Tensor], list[tf.Tensor], tf.Tensor]:
    """Gradients and loss summed over the replicas, and the mean of the statistics
    `now`.
    """
    replicas = context.num_replicas_in_sync
    # Changes, not values: statistics that do not change, such as frozen ones, must not
    # drift.
    changes = [(new - old) / replicas for new, old in zip(now, before, strict=True)]
    # One call for all: each one synchronizes the replicas.
    summed = context.all_reduce("sum", [*gradients, *changes, loss])
    gradients, changes = summed[: len(gradients)], summed[len(gradients) : -1]
    now = [old + change for old, change in zip(before, changes, strict=True)]
    return gradients, now, summed[-1]
