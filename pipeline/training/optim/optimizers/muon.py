"""Muon: orthogonalized momentum."""

import functools
import math
from collections.abc import Callable
from typing import Annotated, Any

import keras
import tensorflow as tf
from keras.optimizers.schedules import LearningRateSchedule

from pipeline.config.registry import register

# Adam's constants for variables other than hidden matrices, as in the reference
# implementation.
_BETA_1 = 0.9
_BETA_2 = 0.95
_EPSILON = 1e-8
# An iteration is a x + b x^3 + c x^5 on each singular value: steep at 0, about 1 after
# five iterations.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5


@register
def muon(
    learning_rate: LearningRateSchedule,
    *,
    momentum: Annotated[float, (0, 0.9999)] = 0.95,
    nesterov: bool = True,
    adam_factor: Annotated[float, (0, 10)] = 1.0,
) -> keras.optimizers.Optimizer:
    """Orthogonal steps for hidden matrices and convolutions, Adam for the rest; Adam's
    rates.

    Jordan et al. 2024, with the step size of Liu et al. 2025, so that rates and weight
    decays for AdamW can be used.

    Args:
        momentum: Weight of the old direction in the new one.
        nesterov: Whether to use Nesterov momentum.
        adam_factor: Adam's learning rate divided by the rate of the orthogonal steps.
            Small convolutional networks learn fastest with a rate of 0.02 and a factor
            of 0.1.
    """
    return Muon(
        learning_rate, momentum=momentum, nesterov=nesterov, adam_factor=adam_factor
    )


@functools.cache
def _traced(function: Callable, *specs: tf.TensorSpec) -> Callable:
    """A graph for all variables of one shape; one for each takes a second to trace."""
    return tf.function(function, specs, autograph=False)


def _adam(
    gradient: tf.Tensor, mean: tf.Tensor, square: tf.Tensor, count: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The new moments, and the step of the `count`-th update."""
    mean += (gradient - mean) * (1 - _BETA_1)
    square += (tf.square(gradient) - square) * (1 - _BETA_2)
    # In float32: in bfloat16, _BETA_2 is 1.
    rest_1 = tf.cast(1 - tf.pow(_BETA_1, count), gradient.dtype)
    rest_2 = tf.cast(1 - tf.pow(_BETA_2, count), gradient.dtype)
    scale = tf.sqrt(square / rest_2) + _EPSILON
    return mean, square, mean / rest_1 / scale


def _orthogonalize(matrix: tf.Tensor) -> tf.Tensor:
    """Moves the singular values of a matrix (rows, columns) near 1; float32.

    Uses five Newton-Schulz steps, only matrix products, instead of a singular value
    decomposition. Values above 0.002 of the Frobenius norm end up between 0.68 and
    1.21; zeros stay zeros.
    """
    a, b, c = _COEFFICIENTS
    rows, columns = matrix.shape
    tall = rows > columns
    x = tf.transpose(matrix) if tall else matrix  # so that `gram` has the smaller side
    x = x / (tf.sqrt(tf.reduce_sum(tf.square(x))) + 1e-7)
    for _ in range(_ITERATIONS):
        gram = tf.matmul(x, tf.transpose(x))
        x = a * x + tf.matmul(b * gram + c * tf.matmul(gram, gram), x)
    return tf.transpose(x) if tall else x


@keras.saving.register_keras_serializable("pipeline")
class Muon(keras.optimizers.Optimizer):
    """Orthogonalized momentum for each hidden matrix; Adam for all other variables.

    Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024,
    https://kellerjordan.github.io/posts/muon/. `keras.optimizers.Muon` orthogonalizes
    only variables with two axes and uses Adam for the kernels of convolutions, which
    are nearly all weights of a convolutional network. Here a kernel (height, width, in,
    out) is the matrix (height * width * in, out).

    As the reference recommends, Adam updates biases, normalization, embeddings, and the
    first and last matrix in the order given to `build`: the input layer and the head
    (only the last of several). It also updates kernels with a single column (depthwise
    convolutions) and variables with three axes (in attention, where the shape does not
    show which axes belong together).

    A step is scaled by 0.2 * sqrt(longer side), as in Liu et al., "Muon is scalable for
    LLM training", 2025, section 2.2: it then has the root mean square of an Adam step,
    so that one learning rate and one weight decay work for both kinds of variables.

    The arguments are those of `muon`, and those of every Keras optimizer, such as
    `weight_decay`.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        momentum: float = 0.95,
        nesterov: bool = True,
        adam_factor: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, **options)
        self.momentum = momentum
        self.nesterov = nesterov
        self.adam_factor = adam_factor

    def build(self, variables: list[keras.Variable]) -> None:
        """Creates a momentum for each variable, and a second moment for Adam's."""
        if self.built:
            return
        super().build(variables)
        matrices = [variable for variable in variables if _is_matrix(variable.shape)]
        hidden = {id(v) for v in matrices[1:-1] if "embedding" not in v.path}
        self._momentums = self.add_optimizer_variables(variables, "momentum")
        velocities = []
        for variable in variables:
            velocity = None
            if id(variable) not in hidden:
                velocity = self.add_variable_from_reference(variable, "velocity")
            velocities.append(velocity)
        self._velocities = velocities

    def update_step(
        self,
        gradient: tf.Tensor,
        variable: Any,
        learning_rate: tf.Tensor,
    ) -> None:
        """Updates one variable and its state; called by Keras on each replica."""
        index = self._get_variable_index(variable)
        momentum = self._momentums[index]
        velocity = self._velocities[index]
        gradient = tf.cast(gradient, variable.dtype)
        rate = tf.cast(learning_rate, variable.dtype)
        if velocity is None:
            step = self._orthogonal_step(gradient, momentum)
        else:
            step = self._adam_step(gradient, momentum, velocity) * self.adam_factor
        self.assign_sub(variable, rate * step)

    def _orthogonal_step(
        self, gradient: tf.Tensor, momentum: keras.Variable
    ) -> tf.Tensor:
        old = momentum.value
        new = old + (gradient - old) * (1 - self.momentum)
        momentum.assign(new)
        direction = new
        if self.nesterov:
            direction = gradient + (new - gradient) * self.momentum
        matrix = tf.reshape(direction, (-1, gradient.shape[-1]))
        scale = 0.2 * math.sqrt(max(matrix.shape))
        spec = tf.TensorSpec(matrix.shape, tf.float32)
        update = _traced(_orthogonalize, spec)(tf.cast(matrix, tf.float32)) * scale
        return tf.cast(tf.reshape(update, gradient.shape), gradient.dtype)

    def _adam_step(
        self, gradient: tf.Tensor, momentum: keras.Variable, velocity: keras.Variable
    ) -> tf.Tensor:
        spec = tf.TensorSpec(gradient.shape, gradient.dtype)
        count = tf.cast(self.iterations.value + 1, tf.float32)
        adam = _traced(_adam, spec, spec, spec, tf.TensorSpec((), tf.float32))
        mean, square, step = adam(gradient, momentum.value, velocity.value, count)
        momentum.assign(mean)
        velocity.assign(square)
        return step

    def get_config(self) -> dict[str, Any]:
        """The arguments for `from_config`, without the state."""
        return {
            **super().get_config(),
            "momentum": self.momentum,
            "nesterov": self.nesterov,
            "adam_factor": self.adam_factor,
        }


def _is_matrix(shape: tuple[int, ...]) -> bool:
    """Whether a variable has several directions to orthogonalize."""
    if len(shape) not in (2, 4):
        return False
    return min(math.prod(shape[:-1]), shape[-1]) > 1
