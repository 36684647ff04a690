"""The arithmetic of a training step: layers y = tanh(x) W, a quadratic loss, and the optimizers.

The tanh stands before the matrix, so that the gradient of the weight does not need the weight, as in
`Model.backward_weight`. Let x be the inputs of some samples, one row each, and g the gradient of the loss with respect
to y. Then the gradient of W is tanh(x)^T g, and that of x is (g W^T) (1 - tanh(x)^2).

Optimizers work element by element, so that a step on shards gives the shards of the step; Muon and Adafactor do not.

The elementary functions of a transformer's units: norms, activation functions, softmax; and how gradients go back
through any function (`gradients`). They take tokens along any leading dimensions and work on the last one. Left out:
dropout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, ClassVar, cast

import autograd.numpy as anp  # type: ignore[import-untyped]
import numpy as np
from autograd import make_vjp
from autograd.tracer import getval, isbox  # type: ignore[import-untyped]
from numpy.typing import NDArray

Array = NDArray[np.float64]


def forward(x: Array, weight: Array) -> Array:
    """Return a layer's output."""
    return cast("Array", np.tanh(x) @ weight)


def backward_input(x: Array, grad: Array, weight: Array) -> Array:
    """Return the gradient with respect to a layer's input."""
    return cast("Array", (grad @ weight.T) * (1 - np.tanh(x) ** 2))


def backward_weight(x: Array, grad: Array) -> Array:
    """Return the gradient with respect to a layer's weight, summed over the rows of x."""
    return np.tanh(x).T @ grad


def loss_gradient(output: Array, target: Array, global_batch_size: int) -> Array:
    """Return the gradient of the mean over the global batch of |output - target|^2 / 2, for some of its samples."""
    return (output - target) / global_batch_size


@dataclass(frozen=True, slots=True)
class Adam:
    """Adam (Kingma and Ba 2015, algorithm 1); its state is the two moments.

    Args:
        rate: step size.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        epsilon: keeps the denominator away from zero.
    """

    rate: float = 1e-2
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    num_moments: ClassVar[int] = 2

    def step(self, weight: Array, grad: Array, state: Array, count: int) -> tuple[Array, Array]:
        """Return weight and state after a step.

        Args:
            weight: of any shape.
            grad: gradient, of the same shape.
            state: the moments, one such shape each.
            count: which step it is, 1 for the first.
        """
        first = self.beta1 * state[0] + (1 - self.beta1) * grad
        second = self.beta2 * state[1] + (1 - self.beta2) * grad**2
        corrected = first / (1 - self.beta1**count), second / (1 - self.beta2**count)
        return weight - self.rate * corrected[0] / (np.sqrt(corrected[1]) + self.epsilon), np.stack([first, second])


@dataclass(frozen=True, slots=True)
class Momentum:
    """SGD with momentum (Polyak 1964, as PyTorch has it); its state is the velocity.

    Args:
        rate: step size.
        decay: of the velocity; 0 is plain SGD.
    """

    rate: float = 1e-1
    decay: float = 0.9

    num_moments: ClassVar[int] = 1

    def step(self, weight: Array, grad: Array, state: Array, count: int) -> tuple[Array, Array]:  # noqa: ARG002  (it matters to Adam)
        """Return weight and state after a step.

        Args:
            weight: of any shape.
            grad: gradient, of the same shape.
            state: the velocity, 1 x that shape.
            count: which step it is.
        """
        velocity = self.decay * state[0] + grad
        return weight - self.rate * velocity, np.stack([velocity])


@dataclass(frozen=True, slots=True)
class Muon:
    """Muon (Jordan et al. 2024, as PyTorch has it): matrices move by their orthogonalised momentum, the rest by Adam.

    M' = decay M + (1 - decay) G, and W' = W - rate sqrt(max(1, n / m)) O of (1 - decay) G + decay M' for W of m inputs
    and n outputs, where O is five steps of a Newton-Schulz iteration. The second row of a matrix' state is not used.

    Args:
        rate: step size of matrices.
        decay: of their momentum.
        adam: what moves the rest.
        matrices: the first element of each matrix, among all elements, and its shape.
    """

    rate: float = 2e-2
    decay: float = 0.95
    adam: Adam = field(default_factory=Adam)
    matrices: tuple[tuple[int, tuple[int, ...]], ...] = ()

    num_moments: ClassVar[int] = 2

    def step(self, weight: Array, grad: Array, state: Array, count: int) -> tuple[Array, Array]:
        """Return weight and state after a step; see `Adam.step`."""
        after, moments = weight.copy(), state.copy()

        def move_rest(here: slice) -> None:
            after[here], moments[:, here] = self.adam.step(weight[here], grad[here], state[:, here], count)

        self.move(after, grad, moments, move_rest)
        return after, moments

    def move(self, weight: Any, grad: Any, state: Any, move_rest: Callable[[slice], None]) -> None:
        """Take a step in place, of arrays of NumPy or of torch; what lies between matrices is left to a function."""
        last = 0
        for first, shape in (*self.matrices, (len(weight), (0, 0))):
            here = slice(first, first + prod(shape))
            if first > last:
                move_rest(slice(last, first))
            if shape[-1]:
                momentum, found = state[0, here], grad[here]
                momentum *= self.decay
                momentum += (1 - self.decay) * found
                ahead = (1 - self.decay) * found + self.decay * momentum
                rate, own = self.rate * max(1, shape[-1] / shape[-2]) ** 0.5, weight[here]
                own -= rate * orthogonalised(ahead.reshape(shape)).reshape(-1)
            last = here.stop


NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""The coefficients of Muon's iteration: singular values s become a s + b s^3 + c s^5, about 1 after five times."""


def orthogonalised(matrices: Any) -> Any:
    """Return matrices whose singular values are about 1, by five steps of Muon's iteration; of NumPy or of torch."""
    a, b, c = NEWTON_SCHULZ
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.swapaxes(-1, -2) if is_tall else matrices
    length = (x**2).sum((-1, -2), keepdims=True) ** 0.5
    x = x / (length + (length == 0))
    for _ in range(5):
        square = x @ x.swapaxes(-1, -2)
        x = a * x + (b * square + c * square @ square) @ x
    return x.swapaxes(-1, -2) if is_tall else x


@dataclass(frozen=True, slots=True)
class Adafactor:
    """Adafactor (Shazeer and Stern 2018, algorithms 4 to 6): of a matrix' second moments, sums of rows and of columns.

    R' = beta R + (1 - beta) sums of the rows of G^2 + epsilon, C' likewise of the columns, and V = R C / sum of R; of a
    vector, V' = beta V + (1 - beta) (G^2 + epsilon). With U = G / sqrt(V), W' = W - rate max(least, RMS of W) U /
    max(1, RMS of U), where beta = 1 - t^-0.8 and rate = min(rate, 1 / sqrt(t)) in step t. Without first moments. The
    state of a matrix is its R, C, and zeros.

    Args:
        rate: the largest relative step.
        decay: how beta comes near 1.
        epsilon: of squares.
        least: of the root mean square of a weight.
        weights: the first element of each weight, among all elements, and its shape; of more than two dimensions, the
            last two are of matrices.
    """

    rate: float = 1e-2
    decay: float = 0.8
    epsilon: float = 1e-30
    least: float = 1e-3
    weights: tuple[tuple[int, tuple[int, ...]], ...] = ()

    num_moments: ClassVar[int] = 1

    def step(self, weight: Array, grad: Array, state: Array, count: int) -> tuple[Array, Array]:
        """Return weight and state after a step; see `Adam.step`."""
        after, moments = weight.copy(), state.copy()
        self.move(after, grad, moments[0], count)
        return after, moments

    def move(self, weight: Any, grad: Any, state: Any, count: int) -> None:
        """Take a step in place, of arrays of NumPy or of torch; of a matrix, sums of rows and of columns are kept."""
        beta, rate = 1 - count**-self.decay, min(self.rate, count**-0.5)
        for first, shape in self.weights:
            here, start = slice(first, first + prod(shape)), first
            found, own, kept = grad[here].reshape(shape), weight[here], []
            second = found**2 + self.epsilon
            for each in (second.sum(-1), second.sum(-2)) if _is_factored(shape) else (second,):
                faded = state[start : start + prod(each.shape)]
                faded *= beta
                faded += (1 - beta) * each.reshape(-1)
                kept.append(faded.reshape(each.shape))
                start += prod(each.shape)
            second = kept[0]
            if len(kept) > 1:
                rows, columns = kept
                second = (rows / rows.sum(-1, keepdims=True))[..., None] * columns[..., None, :]
            moved = (found / second**0.5).reshape(-1)
            own -= rate * _rms(own).clip(min=self.least) / _rms(moved).clip(min=1.0) * moved


def _rms(values: Any) -> Any:
    """Return the root mean square of some numbers."""
    return (values**2).mean() ** 0.5


def _is_factored(shape: tuple[int, ...]) -> bool:
    """Return whether Adafactor keeps sums of rows and columns, which must be fewer than the elements."""
    return len(shape) > 1 and shape[-2] * shape[-1] > shape[-2] + shape[-1]


Optimizer = Adam | Momentum | Muon | Adafactor
"""What takes a step."""


@dataclass(frozen=True, slots=True)
class Averaged:
    """An optimizer, and the exponential moving average of the weights: its state's last row, which begins with them.

    a' = decay a + (1 - decay) w', of the weights w' after each step.

    Args:
        of: the optimizer.
        decay: of the average.
    """

    of: Optimizer
    decay: float

    @property
    def num_moments(self) -> int:
        """How many numbers its state has of each element."""
        return self.of.num_moments + 1

    def step(self, weight: Array, grad: Array, state: Array, count: int) -> tuple[Array, Array]:
        """Return weight and state after a step; see `Adam.step`."""
        after, moments = self.of.step(weight, grad, state[:-1], count)
        return after, np.stack([*moments, self.decay * state[-1] + (1 - self.decay) * after])


EPSILON = 1e-5
"""What norms add to variance and mean square."""

_GELU = math.sqrt(2 / math.pi), 0.044715
"""The constants of the tanh form (Hendrycks and Gimpel 2016, section 2), which GPT-2 and Megatron-LM use."""


def normalised(x: Any, kind: str) -> Any:
    """Return tokens without their scale, and for "layernorm" without their mean (Ba et al. 2016; Zhang 2019)."""
    centred = x - x.mean(axis=-1, keepdims=True) if kind == "layernorm" else x
    return centred / anp.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPSILON)


def activated(inputs: Sequence[Any], kind: str) -> Any:
    """Return an activation function of one input, or "swiglu" of a gate and another (Shazeer 2020)."""
    if kind == "swiglu":
        gate, up = inputs
        return gate * (1 + anp.tanh(gate / 2)) / 2 * up
    (x,) = inputs
    if kind == "relu":
        return anp.where(x > 0, x, 0)
    return x * (1 + anp.tanh(_GELU[0] * (x + _GELU[1] * x**3))) / 2


def softmax(x: Any) -> Any:
    """Return probabilities."""
    weights = anp.exp(x - getval(x).max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def gradients(function: Callable[..., Any], given: Sequence[Any], *grads: Any) -> list[Any]:
    """Return the gradients of what a function was given, by autograd.

    Args:
        function: written with `autograd.numpy` where its arguments are real.
        given: its arguments; those that are not real have no gradients.
        grads: the gradient of each of its results.
    """
    real = [place for place, each in enumerate(given) if each.dtype.kind == "f"]

    def inner_product(values: Any) -> Any:
        own = dict(zip(real, (values[number] for number in range(len(real))), strict=True))
        made = function(*(own.get(place, each) for place, each in enumerate(given)))
        results = made if isinstance(made, tuple) else (made,)
        found = sum((result * grad).sum() for result, grad in zip(results, grads, strict=True))
        return found if isbox(found) else 0.0 * values[0].sum()  # where nothing depends on what is given

    back, _ = make_vjp(inner_product)(tuple(given[place] for place in real))
    found = dict(zip(real, back(1.0), strict=True))
    return [found.get(place, np.zeros(each.shape)) for place, each in enumerate(given)]
