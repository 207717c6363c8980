"""What happens to a gradient: unscaled, summed over replicas, judged, clipped, applied, averaged.

Stock Keras 3.15 clips before it sums over replicas, lets replica 0 alone judge whether a gradient
is finite, and cannot accumulate under a strategy. Here every decision is made on the sum, which
is the same number on every replica, so that the weights do not depend on how many there are.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from pipeline.config import config
from pipeline.training.optim.learning_rate import Adjusted
from pipeline.training.optim.step_stats import Tally, counter
from pipeline.utils.errors import UsageError

# Micikevicius et al., "Mixed precision training", ICLR 2018, section 3.2 and the numbers of its
# later implementations: start at 2**15, halve when the gradient overflows though the loss is
# finite, double after 2000 good steps.
FIRST_SCALE = 2.0**15
GROWTH_STEPS = 2000


class Update:
    """One update of the weights from the gradients of all replicas, or none if one overflowed.

    Args:
        optimizer: Any Keras optimizer, not yet built; it sees gradients that are summed and
            clipped.
        variables: All weights that are ever trained.
        statistics: Weights that a forward pass changes (moving averages of BatchNormalization).
            They are averaged over the replicas and taken back where the update is skipped.
        options: `clip_*` and `ema` are used.
        scaled: Whether the loss is scaled dynamically, as float16 needs.
        rate: The optimizer's learning rate; its variables are kept with the other state.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        variables: Sequence[keras.Variable],
        statistics: Sequence[keras.Variable],
        options: config.Train,
        scaled: bool,
        rate: Adjusted,
    ) -> None:
        _refuse_own_rules(optimizer)
        # Unbuilt, it would make its variables inside the first trace, and `fit` would draw a batch
        # of its own to build it with.
        optimizer.build(variables)
        # The one private hook of Keras that is replaced: the sum has been taken when it is called.
        optimizer._all_reduce_sum_gradients = lambda grads_and_vars: grads_and_vars
        self._optimizer = optimizer
        self._statistics = list(statistics)
        self.scaled = scaled
        """Whether the loss is scaled."""
        self._growth_steps = GROWTH_STEPS
        self._decay = options.ema
        self._clip = None
        for name, function in _CLIPPINGS.items():
            if (limit := getattr(options, name)) is not None:
                self._clip = functools.partial(function, limit=limit)
        self.steps = counter("steps", 0, "int64")
        """Updates tried: those of `optimizer.iterations` and the skipped ones."""
        self.scale = counter("loss_scale", FIRST_SCALE if scaled else 1.0, "float32")
        self._good = counter("good_steps", 0, "int64")
        self.factor, self.pace = rate.factor, rate.pace
        """Of the learning rate: 1, or less after the run was rolled back."""
        self.tally = Tally(variables)
        self.measures: Sequence[keras.Variable] = ()
        """Of the running metrics, taken back too where a loss is not finite."""
        self._variables = list(variables)
        self._averages = {}
        if self._decay is not None:
            self._averages = {
                id(variable): keras.Variable(
                    variable.numpy(), trainable=False, name=f"average_{number}"
                )
                for number, variable in enumerate(variables)
            }

    @property
    def weights(self) -> list[keras.Variable]:
        """All that are ever trained, in the order of `tally.norms`."""
        return self._variables

    @property
    def variables(self) -> list[keras.Variable]:
        """Its state, for a checkpoint."""
        counters = [
            self.steps,
            self.scale,
            self._good,
            self.factor,
            self.pace,
            *self.tally.variables,
        ]
        return [*counters, *self._averages.values()]

    @property
    def skipped(self) -> int:
        """Updates that were left out because a gradient was not finite."""
        return int(self.steps.numpy()) - int(self._optimizer.iterations.numpy())

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """What the gradient is to be taken of."""
        return loss * self.scale.value if self.scaled else loss

    def unscale(self, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        """Gradients of the loss itself; exact, since the scale is a power of two."""
        if not self.scaled:
            return gradients
        inverse = 1.0 / self.scale.value
        return [gradient * inverse for gradient in gradients]

    def remember(self) -> list[tf.Tensor]:
        """Statistics and metrics as they are now; taken before the forward pass, for `apply`."""
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
            gradients: This replica's part of the gradient of the mean over the global batch.
            loss: This replica's part of that mean, float32, not scaled.
            variables: The weights of the gradients, in the same order.
            before: What `remember` gave before the forward pass.
        """
        context = tf.distribute.get_replica_context()
        now = [tf.identity(v.value) for v in self._statistics]
        before, measured = before[: len(now)], before[len(now) :]
        if (replicas := context.num_replicas_in_sync) > 1:
            gradients, now, loss = _summed(context, gradients, before, now, loss)
        norm, halves = _norm(gradients)
        # The same on every replica, as all of it comes from the sum.
        sound = tf.math.is_finite(loss) & _all_finite(now)
        finite = sound & tf.math.is_finite(norm)

        def accept(gradients: list, now: list, norm: tf.Tensor) -> None:
            if replicas > 1:
                _assign(self._statistics, now)
            if self._clip:
                gradients = self._clip(gradients, norm, variables=[v.value for v in variables])
            is_first = tf.equal(self._optimizer.iterations.value, 0)
            self._optimizer.apply(gradients, variables)
            self._average(variables, is_first)

        def reject(before: list, measured: list, loss: tf.Tensor) -> None:
            _assign(self._statistics, before)
            for measure, value in zip(self.measures, measured, strict=True):
                measure.assign(tf.where(tf.math.is_finite(loss), measure.value, value))

        def decide(strategy: tf.distribute.Strategy, judged: Any, new: Any, old: Any) -> None:
            # Only here, where all replicas meet, may a branch hold an update of their variables.
            finite, sound, norm, halves = (
                strategy.experimental_local_results(value)[0] for value in judged
            )
            run = strategy.extended.call_for_each_replica

            def good() -> None:
                run(accept, args=new)
                self.tally.good(norm, halves, variables)

            def bad() -> None:
                run(reject, args=old)
                # A scale that may still fall explains a gradient that is not finite.
                self.tally.bad(self.steps.value, ~sound | (self.scale.value <= 1.0))

            tf.cond(finite, good, bad)
            self._count(finite, overflowed=sound & ~finite)

        judged = (finite, sound, norm, halves)
        context.merge_call(decide, args=(judged, (gradients, now, norm), (before, measured, loss)))

    def _average(self, variables: Sequence[keras.Variable], first: tf.Tensor) -> None:
        if self._decay is None:
            return
        share = tf.where(first, 1.0, 1.0 - self._decay)
        for variable in variables:
            average = self._averages[id(variable)].value
            average.assign_add(share * (variable.value - average))

    def _count(self, finite: tf.Tensor, overflowed: tf.Tensor) -> None:
        """Neither is true where the forward pass was not finite: no loss scale helps there."""
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
        """Swaps the weights and their averages; nothing without `ema`. Called between steps."""
        for variable in self._variables:
            average = self._averages.get(id(variable))
            if average is not None:
                held = variable.numpy()
                variable.assign(average.numpy())
                average.assign(held)


def _refuse_own_rules(optimizer: keras.optimizers.Optimizer) -> None:
    """Rules that Keras applies before the gradients are summed over the replicas."""
    if optimizer.built:
        raise UsageError(
            "--train.optimizer: it has trained another model; make a new one each time"
        )
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise UsageError("--train.optimizer: loss scaling is built in; give the optimizer inside")
    if getattr(optimizer, "loss_scale_factor", None):
        raise UsageError(
            "--train.optimizer: loss scaling is built in; leave loss_scale_factor away"
        )
    for name, flag in {"gradient_accumulation_steps": "accumulate", "use_ema": "ema"}.items():
        if getattr(optimizer, name, None):
            raise UsageError(f"--train.optimizer: leave {name} away and use --train.{flag}")


def _all_finite(tensors: list[tf.Tensor]) -> tf.Tensor:
    finite = tf.constant(True)
    for tensor in tensors:
        finite &= tf.reduce_all(tf.math.is_finite(tensor))
    return finite


def _norm(gradients: list[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """The joint norm, as `tf.linalg.global_norm` takes it; half the squares of each and of all."""
    halves = tf.stack([tf.cast(tf.nn.l2_loss(gradient), tf.float32) for gradient in gradients])
    whole = tf.reduce_sum(halves)
    return tf.sqrt(whole * 2.0), tf.concat([halves, [whole]], axis=0)


def _assign(variables: Sequence[keras.Variable], values: list[tf.Tensor]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _summed(
    context: Any, gradients: list, before: list, now: list, loss: tf.Tensor
) -> tuple[list[tf.Tensor], list[tf.Tensor], tf.Tensor]:
    """Gradients and loss summed over the replicas, and the mean of the statistics `now`."""
    replicas = context.num_replicas_in_sync
    # Changes, not values: what stays as it is, such as frozen weights, must not drift.
    changes = [(new - old) / replicas for new, old in zip(now, before, strict=True)]
    summed = _all_reduced(context, [*gradients, *changes, loss])
    gradients, changes = summed[: len(gradients)], summed[len(gradients) : -1]
    now = [old + change for old, change in zip(before, changes, strict=True)]
    return gradients, now, summed[-1]


def _all_reduced(context: Any, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """Sums over the replicas, all in one collective: each costs a meeting of all replicas."""
    summed: list[Any] = [None] * len(tensors)
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):  # as a rule float32 alone
        numbers = [n for n, tensor in enumerate(tensors) if tensor.dtype == dtype]
        vector = tf.concat([tf.reshape(tensors[n], [-1]) for n in numbers], axis=0)
        vector = context.all_reduce("sum", vector)
        parts = tf.split(vector, [tensors[n].shape.num_elements() for n in numbers])
        for number, part in zip(numbers, parts, strict=True):
            summed[number] = tf.reshape(part, tensors[number].shape)
    return summed


def by_global_norm(
    gradients: list[tf.Tensor], norm: tf.Tensor, limit: float, variables: list[tf.Tensor]
) -> list[tf.Tensor]:
    """All scaled by one factor, so that their joint norm is at most `limit`.

    Pascanu, Mikolov, Bengio, "On the difficulty of training recurrent neural networks", 2013,
    algorithm 1. `norm` is the joint norm of `gradients`; `variables` are not looked at.
    """
    factor = tf.minimum(1.0, limit / tf.maximum(norm, 1e-30))
    return [gradient * factor for gradient in gradients]


def by_norm(
    gradients: list[tf.Tensor], norm: tf.Tensor, limit: float, variables: list[tf.Tensor]
) -> list[tf.Tensor]:
    """Each scaled on its own, so that its norm is at most `limit`."""
    return [tf.clip_by_norm(gradient, limit) for gradient in gradients]


def by_value(
    gradients: list[tf.Tensor], norm: tf.Tensor, limit: float, variables: list[tf.Tensor]
) -> list[tf.Tensor]:
    """Each number cut to -`limit` ... `limit`."""
    return [tf.clip_by_value(gradient, -limit, limit) for gradient in gradients]


def adaptively(
    gradients: list[tf.Tensor], norm: tf.Tensor, limit: float, variables: list[tf.Tensor]
) -> list[tf.Tensor]:
    """Each unit's gradient scaled to at most `limit` times the norm of the unit's own weights.

    Brock, De, Smith, Simonyan, "High-performance large-scale image recognition without
    normalization", 2021, equation 3, with the paper's floor of 0.001 for the norm of the weights.
    A unit is one output channel: all axes but the last; a bias or scale is a unit per number.
    """
    clipped = []
    for gradient, variable in zip(gradients, variables, strict=True):
        axes = list(range(len(gradient.shape) - 1))
        length, bound = (
            tf.sqrt(tf.reduce_sum(tf.square(tensor), axis=axes, keepdims=True))
            for tensor in (gradient, tf.convert_to_tensor(variable))
        )
        bound = limit * tf.maximum(bound, 1e-3)
        clipped.append(gradient * tf.minimum(1.0, bound / tf.maximum(length, 1e-30)))
    return clipped


# By the name of the option in `config.Train`.
_CLIPPINGS: dict[str, Callable] = {
    "clip_norm": by_global_norm,
    "clip_variable_norm": by_norm,
    "clip_value": by_value,
    "clip_adaptive": adaptively,
}
