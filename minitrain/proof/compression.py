"""The numbers of compressed gradients: what a worker sends, keeps, and makes of what all have sent.

Elements are those of a layer that train and that the rank holds, in their order, as one vector; PowerSGD sees its
matrices. `minitrain.proof.compression` has the same once more, from the papers' equations.

What compressed gradients of all workers come to on one device, from the papers' equations.

Vogels et al. 2019, "PowerSGD", algorithm 1 (compression) and 2 (error feedback); Stich et al. 2018, algorithm 1
(Mem-SGD, top-k); codes by the tables of their formats. It shares nothing with `minitrain.proof.compression` but the
random factors that iteration begins with: it has tables, singular values and local messages where that has rounding,
Gram-Schmidt and sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import Any

import numpy as np

from minitrain.engine.observers import Computed
from minitrain.proof.arithmetic import Array
from minitrain.proof.problem import Flat, Problem, TransformerProblem, at_home, held, placed
from minitrain.tensors.compressed import CODES, Compressor, PowerSGD, Quantised, Shapes, TopK


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """What workers have sent: a piece from each, or sums.

    Args:
        pieces: codes and scales, or places and elements, of each worker; or one list of factors, which are summed.
    """

    pieces: tuple[Any, ...]

    def combine(self, other: Message) -> Message:
        """Return the messages of both."""
        return Message(self.pieces + other.pieces)

    def add(self, other: Message) -> Message:
        """Return the sums of factors."""
        (mine,), (theirs,) = self.pieces, other.pieces
        return Message(([one + another for one, another in zip(mine, theirs, strict=True)],))


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """What a worker keeps.

    Args:
        error: what its messages have lacked so far; between messages, what is to be sent.
        seconds: the second factors of the last step, by matrix.
        firsts: the first factors of this step, orthonormal, and the sums of what is sent whole.
    """

    error: Array
    seconds: list[Array]
    firsts: tuple[list[Array], list[Array]] = ((), ())  # type: ignore[assignment]


class Compressing:
    """The operations of a rank that compresses gradients; to be extended by its layers."""

    problem: Problem | TransformerProblem

    def load_compression(self, done: Computed, weight: Flat) -> Memory:
        """Return no error, and random factors."""
        here, shapes = self._here(done.layer, at_home(weight.values))
        how = done.made.how
        if not isinstance(how, PowerSGD):
            return Memory(np.zeros(int(here.sum())), [])
        seconds = [how.first_factor(done.layer, place, shape) for place, shape in enumerate(shapes) if how.takes(shape)]
        return Memory(np.zeros(int(here.sum())), seconds)

    def compress(self, done: Computed, grad: Flat, memory: Memory) -> tuple[Message, Memory]:
        """Return the first message of a gradient with the error so far."""
        values = at_home(grad.values)
        here, shapes = self._here(done.layer, values)
        how, given = done.made[0].how, values[here] + memory.error
        if isinstance(how, PowerSGD):
            seconds = iter(memory.seconds)
            sent = [m @ next(seconds) if how.takes(m.shape) else m for m in matrices(given, shapes)]
            return Message((sent,)), replace(memory, error=given)
        piece = encoded(how, given)
        lacks = given - decoded(how, piece, given.size) if how.feedback else memory.error
        return Message((piece,)), replace(memory, error=lacks)

    def second_factor(self, done: Computed, sums: Message, memory: Memory) -> tuple[Message, Memory]:
        """Return what a worker's matrices give with the first factors of all, made orthonormal."""
        how, (found,) = done.made[0].how, sums.pieces
        _, shapes = self._here(done.layer)
        firsts = [orthonormal(each) for each, shape in zip(found, shapes, strict=True) if how.takes(shape)]
        whole = [each for each, shape in zip(found, shapes, strict=True) if not how.takes(shape)]
        own = [m for m in matrices(memory.error, shapes) if how.takes(m.shape)]
        seconds = [m.swapaxes(-1, -2) @ first for m, first in zip(own, firsts, strict=True)]
        return Message((seconds,)), replace(memory, firsts=(firsts, whole))

    def decompress(self, done: Computed, sent: Message, memory: Memory) -> tuple[Flat, Memory]:
        """Return the sum that messages stand for, and a worker's error for the next step."""
        grad, how = done.made[0], done.made[1].how
        here, shapes = self._here(done.layer)
        if not isinstance(how, PowerSGD):
            here = here & held(grad.shards, grad.num_shards, here.size)
            found = sum(decoded(how, piece, int(here.sum())) for piece in sent.pieces)
            return self._gradient(here, found, grad), memory
        seconds, (firsts, whole) = sent.pieces[0], memory.firsts
        factors, rest, workers = iter(zip(firsts, seconds, strict=True)), iter(whole), done.model._semantics.workers
        made, lacks = [], []
        for own in matrices(memory.error, shapes):
            if how.takes(own.shape):
                first, second = next(factors)
                made.append((first @ second.swapaxes(-1, -2)).ravel())
                lacks.append(own.ravel() - made[-1] / workers)
            else:
                made.append(next(rest).ravel())
                lacks.append(np.zeros(own.size))
        memory = Memory(np.concatenate([memory.error[:0], *lacks]), list(seconds))
        return self._gradient(here, np.concatenate([memory.error[:0], *made]), grad), memory

    def _gradient(self, here: Any, found: Any, grad: Any) -> Flat:
        """Return elements where they are in a layer: zero where nothing trains, NaN where nothing is held."""
        values = np.full(here.size, 0.0 if grad.is_complete() else np.nan)
        values[here] = found
        return Flat(placed(values, self.problem))

    def _here(self, layer: int, values: Array | None = None) -> tuple[Any, Shapes]:
        """Return which elements of a layer train and are held, and the shapes of its weights."""
        mask, shapes = self.problem.trained(layer)
        return (mask if values is None else mask & ~np.isnan(values)), shapes


def matrices(values: Any, shapes: Shapes) -> Iterator[Any]:
    """Yield the weights of a layer in their shapes, without copying; of NumPy or of torch."""
    start = 0
    for shape in shapes:
        yield values[start : start + prod(shape)].reshape(shape)
        start += prod(shape)


def orthonormal(columns: Any, least: float = 1e-10) -> Any:
    """Return orthonormal columns that span the same, by the Gram-Schmidt procedure, of NumPy or of torch.

    Args:
        columns: of one or more matrices.
        least: what a column adds, of its length; those that add less become 0.
    """
    found = 0 * columns
    for k in range(columns.shape[-1]):
        rest = column = columns[..., k : k + 1]
        for _ in range(2):  # what rounding has left of the columns before goes with the second time
            rest = rest - found @ (found.swapaxes(-1, -2) @ rest)
        length, whole = ((each**2).sum(-2, keepdims=True) ** 0.5 for each in (rest, column))
        is_new = length > least * whole
        found[..., k : k + 1] = is_new * rest / (length + (length == 0))
    return found


def encoded(how: Compressor, values: Array) -> tuple[Any, Array]:
    """Return what is sent of some elements: places and elements, or codes and scales."""
    if isinstance(how, TopK):
        places = np.sort(np.argsort(-np.abs(values), kind="stable")[: how.kept(values.size)])
        return places, values[places]
    assert isinstance(how, Quantised)
    blocks = np.pad(values, (0, -values.size % how.block)).reshape(-1, how.block)
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    scales = np.where(largest > 0, largest, 1) / CODES[how.codes][1]
    codes = e4m3(blocks / scales) if how.codes == "fp8" else np.rint(blocks / scales)
    return codes.ravel()[: values.size], scales.ravel()


def decoded(how: Compressor, piece: tuple[Any, Array], size: int) -> Array:
    """Return the elements that a message stands for."""
    first, second = piece
    if isinstance(how, TopK):
        values = np.zeros(size)
        values[first] = second
        return values
    assert isinstance(how, Quantised)
    return np.asarray(first * np.repeat(second, how.block)[:size])


def e4m3(values: Array) -> Array:
    """Return the nearest numbers of FP8 with 4 bits of exponent and 3 of mantissa (Micikevicius et al. 2022).

    >>> e4m3(np.array([0.3, 17.0, -448.0, 0.001])).tolist()
    [0.3125, 16.0, -448.0, 0.001953125]
    """
    exponents = np.maximum(np.frexp(values)[1] - 1, -6)
    steps = np.ldexp(1.0, exponents - 3)
    return np.asarray(np.clip(np.rint(values / steps) * steps, -448, 448))


@dataclass(slots=True, eq=False)
class Exchange:
    """The messages of all workers for one layer, step after step.

    Args:
        how: the compressor.
        layer: which layer.
        shapes: of its weights that train.
        errors: of each worker; empty before the first step.
        factors: the last second factors, by weight and matrix.
    """

    how: Compressor
    layer: int
    shapes: Shapes
    errors: list[Array] = field(default_factory=list)
    factors: dict[tuple[int, ...], Array] = field(default_factory=dict)

    def of(self, grads: Sequence[Array]) -> Array:
        """Return what the sum of some workers' gradients comes to, and remember errors and factors."""
        errors = self.errors or [np.zeros_like(grad) for grad in grads]
        if not self.how.feedback:
            errors = [np.zeros_like(grad) for grad in grads]
        wanted = [grad + error for grad, error in zip(grads, errors, strict=True)]  # algorithm 2, line 7
        if isinstance(self.how, PowerSGD):
            total, own = self._by_factors(wanted)
        else:
            own = [self._by_itself(each) for each in wanted]
            total = np.sum(own, axis=0)
        self.errors = [each - sent for each, sent in zip(wanted, own, strict=True)]  # line 9
        return total

    def _by_itself(self, values: Array) -> Array:
        """Return what one worker's message stands for."""
        if isinstance(self.how, TopK):
            least = np.sort(np.abs(values))[values.size - self.how.kept(values.size)]
            return np.where(np.abs(values) >= least, values, 0)
        assert isinstance(self.how, Quantised)
        codes, (_, most) = _table(self.how.codes), CODES[self.how.codes]
        made = np.zeros_like(values)
        for first in range(0, values.size, self.how.block):
            block = values[first : first + self.how.block]
            scale = max(abs(block)) / most
            if scale:
                nearest = np.argmin(np.abs(codes - block[:, None] / scale), axis=1)
                made[first : first + self.how.block] = scale * codes[nearest]
        return made

    def _by_factors(self, wanted: Sequence[Array]) -> tuple[Array, list[Array]]:
        """Return the sum of all workers' messages, and what each one's own stands for; matrix by matrix."""
        how, total, own, start = self.how, np.zeros_like(wanted[0]), [np.zeros_like(each) for each in wanted], 0
        assert isinstance(how, PowerSGD)
        for place, shape in enumerate(self.shapes):
            for index in product(*map(range, shape[:-2])) if how.takes(shape) else [None]:
                size = prod(shape) if index is None else prod(shape[-2:])
                here = slice(start, start + size)
                start += size
                if index is None:
                    total[here] = np.sum([each[here] for each in wanted], axis=0)
                    for each, sent in zip(wanted, own, strict=True):
                        sent[here] = each[here]
                    continue
                matrices = [each[here].reshape(shape[-2:]) for each in wanted]
                before = self.factors.get((place, *index))
                begins = how.first_factor(self.layer, place, shape)[index] if before is None else before
                first = _basis(np.sum(matrices, axis=0) @ begins)  # algorithm 1, lines 3 to 5
                seconds = [m.T @ first for m in matrices]
                self.factors[place, *index] = np.sum(seconds, axis=0)  # lines 6 and 7
                total[here] = (first @ self.factors[place, *index].T).ravel()  # line 11
                for second, sent in zip(seconds, own, strict=True):
                    sent[here] = (first @ second.T).ravel()
        return total, own


def _basis(columns: Array) -> Array:
    """Return an orthonormal basis of what columns span."""
    vectors, lengths, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(vectors * (lengths > 1e-10 * lengths[0]))


def _table(codes: str) -> Array:
    """Return all numbers of a format in ascending order."""
    if codes != "fp8":
        most = int(CODES[codes][1])
        return np.arange(-most, most + 1, dtype=np.float64)
    small = [mantissa / 8 * 2.0**-6 for mantissa in range(8)]
    normal = [(1 + mantissa / 8) * 2.0**exponent for exponent in range(-6, 9) for mantissa in range(8)]
    positive = [each for each in small + normal if each <= CODES[codes][1]]
    return np.array(sorted({*positive, *(-each for each in positive)}))
