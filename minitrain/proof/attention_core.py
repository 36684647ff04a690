"""Causal attention between some queries and some keys, whole or block by block, with its backward.

Queries know their positions, and so do keys. A query sees a key at its own position or before it, and with a window
only so many of them. So the same functions serve a whole sequence, a shard of queries against all keys that were
gathered, and a shard of queries against one shard of keys after the other, as in ring attention (Liu et al. 2023).

Blocks over different keys are merged by the log-sum-exp of their scores (Dao et al. 2022, "FlashAttention", section
3.1): with l = log(exp(l1) + exp(l2)), the merged output is exp(l1 - l) o1 + exp(l2 - l) o2. Backward of a block needs
the merged output and log-sum-exp, and nothing else of the other blocks (Dao 2023, algorithm 2).

Several heads of queries may share one head of keys and values; query head i uses head i // (heads / kv_heads). Left
out: dropout of probabilities, ALiBi.

What some tokens of some samples carry, and where in the sequence they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import autograd.numpy as anp  # type: ignore[import-untyped]  # NumPy's functions, whose operations are followed
import numpy as np
from autograd.tracer import getval  # type: ignore[import-untyped]
from numpy.typing import NDArray

from minitrain.errors import LawError
from minitrain.proof.arithmetic import Array
from minitrain.workloads.documents import order, starts

Positions = NDArray[np.int64]

ROTARY_BASE = 10000.0


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Where the tokens of some samples are whose sequences consist of documents.

    Positions are then places in the order of the sequence's shards, the same for all samples.

    Args:
        positions: samples x places: where in the sequence each token is.
        starts: samples x places: where its document begins.
    """

    positions: Positions
    starts: Positions

    @classmethod
    def of(cls, lengths: Sequence[tuple[int, ...]], num_shards: int, cut: str) -> Packing:
        """Return that of samples by the lengths of their documents, which `minitrain.workloads.documents` cuts."""
        orders = [order(each, num_shards, cut) for each in lengths]
        begins = [starts(each)[places] for each, places in zip(lengths, orders, strict=True)]
        return cls(np.stack(orders), np.stack(begins))

    def visible(self, queries: Positions, keys: Positions, window: int | None) -> NDArray[np.bool_]:
        """Return which keys each query sees: samples x 1 x 1 x queries x keys."""
        there, here = self.positions[:, None, keys], self.positions[:, queries, None]
        seen = (there <= here) & (there >= self.starts[:, queries, None])
        return (seen if window is None else seen & (here - there < window))[:, None, None]


@dataclass(frozen=True, slots=True, eq=False)
class KeysValues:
    """The keys and values of some positions of a sequence, or their gradients.

    Args:
        keys: samples x kv_heads x positions x key_dim.
        values: samples x kv_heads x positions x value_dim.
        positions: where in the sequence they are, in the order of the arrays.
    """

    keys: Array
    values: Array
    positions: Positions

    def add(self, other: KeysValues) -> KeysValues:
        """Return the sum of gradients of the same positions.

        Raises:
            LawError: the positions differ.
        """
        if not np.array_equal(self.positions, other.positions):
            raise LawError(
                "gradients of keys and values add where they are of the same positions; send them home first"
            )
        return KeysValues(self.keys + other.keys, self.values + other.values, self.positions)

    def combine(self, other: KeysValues) -> KeysValues:
        """Return the keys and values of the positions of both, in ascending order of positions."""
        positions = np.concatenate([self.positions, other.positions])
        order = np.argsort(positions, kind="stable")
        keys = np.concatenate([self.keys, other.keys], axis=2)[:, :, order]
        values = np.concatenate([self.values, other.values], axis=2)[:, :, order]
        return KeysValues(keys, values, positions[order])

    def at(self, positions: Positions) -> KeysValues:
        """Return those of some of the positions, in the order of these."""
        places = np.searchsorted(self.positions, positions, sorter=np.argsort(self.positions))
        found = np.argsort(self.positions)[places]
        return KeysValues(self.keys[:, :, found], self.values[:, :, found], self.positions[found])


@dataclass(frozen=True, slots=True, eq=False)
class Attended:
    """What some queries have got from the keys that they have met so far.

    Args:
        output: samples x heads x queries x value_dim: values weighted by the softmax over these keys.
        log_sum_exp: samples x heads x queries: of the scores; minus infinity where a query has seen no key.
    """

    output: Array
    log_sum_exp: Array

    def add(self, other: Attended) -> Attended:
        """Return what the same queries have got from the keys of both, which must be different ones."""
        total = np.logaddexp(self.log_sum_exp, other.log_sum_exp)
        mine, theirs = _share(self.log_sum_exp, total), _share(other.log_sum_exp, total)
        return Attended(mine * self.output + theirs * other.output, total)


def _share(part: Array, total: Array) -> Array:
    """Return the share of a log-sum-exp in a total one, as a column; 0 where there is nothing yet."""
    anything = np.isfinite(part)
    return np.where(anything, np.exp(np.where(anything, part - np.where(anything, total, 0), 0)), 0)[..., None]


def positions_of_shard(seq_len: int, shard: int, num_shards: int) -> Positions:
    """Return the positions of one of `num_shards` equal shards of a sequence.

    Raises:
        LawError: the sequence cannot be cut so.

    >>> positions_of_shard(8, 1, 2)
    array([4, 5, 6, 7])
    """
    if seq_len % num_shards:
        raise LawError(
            f"seq_len ({seq_len}) must be a multiple of {num_shards} to be cut into {num_shards} shards; use "
            f"seq_len={seq_len - seq_len % num_shards or num_shards}"
        )
    found: Positions = np.arange(seq_len).reshape(num_shards, -1)[shard]
    return found


def visible(queries: Positions, keys: Positions, window: int | None = None) -> NDArray[np.bool_]:
    """Return which of some keys each of some queries sees: queries x keys."""
    distance = queries[:, None] - keys[None, :]
    seen = distance >= 0
    return seen if window is None else seen & (distance < window)


def attend(
    queries: Array, positions: Positions, memory: KeysValues, window: int | None = None, packing: Packing | None = None
) -> Attended:
    """Return what queries get from some keys and values.

    Args:
        queries: samples x heads x queries x key_dim; scores are divided by the root of key_dim.
        positions: those of the queries.
        memory: keys and values, of the same or of other positions.
        window: keys that a query sees at most; None for all.
        packing: where positions are, if sequences consist of documents.
    """
    scores = _scores(queries, positions, memory, window, packing)
    highest = getval(scores).max(axis=-1, keepdims=True)
    highest = np.where(np.isfinite(highest), highest, 0)
    weights = anp.exp(scores - highest)
    total = weights.sum(axis=-1, keepdims=True)
    output = weights @ memory.values[:, :, None] / anp.where(total > 0, total, 1)
    with np.errstate(divide="ignore"):  # the logarithm of nothing is minus infinity
        log_sum_exp = np.log(getval(total)) + highest
    return Attended(_all_heads(output), _all_heads(log_sum_exp)[..., 0])


def attend_backward(
    queries: Array,
    positions: Positions,
    memory: KeysValues,
    attended: Attended,
    grad: Array,
    window: int | None = None,
    packing: Packing | None = None,
) -> tuple[Array, KeysValues]:
    """Take the gradient of what queries got back to them and to some of the keys and values that they met.

    Args:
        queries: as `attend` was given them.
        positions: as `attend` was given them.
        memory: some of the keys and values that the queries met.
        attended: what the queries got from all keys together, these and others.
        grad: the gradient of its output.
        window: as `attend` was given it.
        packing: as `attend` was given it.

    Returns:
        The gradient of the queries as far as it comes from these keys, and that of the keys and values as far as it
        comes from these queries. Over all blocks, both add up.
    """
    shape = _grouped(queries, memory.keys.shape[1]).shape[:3]
    log_sum_exp = attended.log_sum_exp.reshape(*shape, -1, 1)
    scores = _scores(queries, positions, memory, window, packing)
    weights = np.exp(scores - np.where(np.isfinite(log_sum_exp), log_sum_exp, np.inf))
    grad_output = grad.reshape(*shape, *grad.shape[2:])
    grad_values = (weights.swapaxes(-1, -2) @ grad_output).sum(axis=2)
    mean = (grad * attended.output).sum(axis=-1).reshape(*shape, -1, 1)
    grad_scores = weights * (grad_output @ memory.values[:, :, None].swapaxes(-1, -2) - mean) * _scale(queries)
    grad_queries = _all_heads(grad_scores @ memory.keys[:, :, None])
    grad_keys = (grad_scores.swapaxes(-1, -2) @ _grouped(queries, shape[1])).sum(axis=2)
    return grad_queries, KeysValues(grad_keys, grad_values, memory.positions)


def rotate(heads: Any, positions: Positions) -> Any:
    """Return queries or keys with rotary positions (Su et al. 2021, equation 34, halves as in GPT-NeoX and Llama).

    Args:
        heads: ... x positions x head_dim, which must be even.
        positions: where in the sequence they are; of each sample by itself, samples x positions.
    """
    half = heads.shape[-1] // 2
    where = positions[:, None] if positions.ndim == 2 and heads.ndim == 4 else positions
    angles = where[..., None] * ROTARY_BASE ** (-np.arange(half) / half)
    cosine, sine = np.cos(angles), np.sin(angles)
    first, second = heads[..., :half], heads[..., half:]
    return anp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def split_heads(tokens: Any, size: int) -> Any:
    """Return samples x tokens x (heads x size) as samples x heads x tokens x size."""
    return tokens.reshape((*tokens.shape[:2], -1, size)).swapaxes(1, 2)


def join_heads(heads: Any) -> Any:
    """Return samples x heads x tokens x size as samples x tokens x (heads x size)."""
    return heads.swapaxes(1, 2).reshape((heads.shape[0], heads.shape[2], -1))


def _scores(queries: Any, positions: Positions, memory: KeysValues, window: int | None, packing: Packing | None) -> Any:
    """Return samples x kv_heads x group x queries x keys; minus infinity where a query does not see a key."""
    grouped = _grouped(queries, memory.keys.shape[1])
    scores = grouped @ memory.keys[:, :, None].swapaxes(-1, -2) * _scale(queries)
    seen = (visible if packing is None else packing.visible)(positions, memory.positions, window)
    return anp.where(seen, scores, -np.inf)


def _scale(queries: Any) -> float:
    """Return what scores are multiplied by."""
    return float(queries.shape[-1] ** -0.5)


def _grouped(queries: Any, num_kv_heads: int) -> Any:
    """Return queries with the heads that share keys and values in a dimension of their own."""
    return queries.reshape((queries.shape[0], num_kv_heads, -1, *queries.shape[2:]))


def _all_heads(grouped: Any) -> Any:
    """Return what is grouped by heads of keys and values with all heads in one dimension."""
    return grouped.reshape((grouped.shape[0], -1, *grouped.shape[3:]))


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """The numbers of an activation or its gradient, for a sequence or some shards of it, whole or a part's share.

    Args:
        values: samples in ascending order x positions x size; the model's input has no last dimension.
        positions: where in the sequence the tokens are.
        packing: where these are, if sequences consist of documents.
    """

    values: Array
    positions: Positions
    packing: Packing | None = None

    @property
    def where(self) -> Positions:
        """Return where in the sequence the tokens are: of each sample by itself, where they consist of documents."""
        return self.positions if self.packing is None else self.packing.positions[:, self.positions]

    def with_values(self, values: Array) -> Tokens:
        """Return other numbers of the same tokens."""
        return replace(self, values=values)

    def add(self, other: Tokens) -> Tokens:
        """Return the sum, of the same tokens.

        Raises:
            LawError: they are other ones.
        """
        if not np.array_equal(self.positions, other.positions):
            raise LawError(
                "what adds must be of the same tokens; one side was cut along the sequence, and not the other"
            )
        return self.with_values(self.values + other.values)

    def shard(self, shard: int, num_shards: int) -> Tokens:
        """Return one of `num_shards` equal pieces along the sequence.

        Raises:
            LawError: the tokens do not divide.
        """
        size, rest = divmod(len(self.positions), num_shards)
        if rest:
            raise LawError(
                f"{len(self.positions)} tokens of a sequence cannot be cut into {num_shards} equal shards; use a "
                f"seq_len that is a multiple of {num_shards}"
            )
        return self._pick(np.arange(shard * size, (shard + 1) * size))

    def combine(self, other: Tokens) -> Tokens:
        """Return the tokens of both, in the order of their positions."""
        values = np.concatenate([self.values, other.values], axis=1)
        positions = np.concatenate([self.positions, other.positions])
        return Tokens(values, positions, self.packing)._pick(np.argsort(positions, kind="stable"))

    def at(self, positions: Positions) -> Tokens:
        """Return the tokens at some positions, all of which must be here."""
        if np.array_equal(positions, self.positions):
            return self
        order = np.argsort(self.positions)
        return self._pick(order[np.searchsorted(self.positions, positions, sorter=order)])

    def spread(self, positions: Positions) -> Array:
        """Return the values for more positions than these, with zeros for the others."""
        if np.array_equal(positions, self.positions):
            return self.values
        found = np.zeros((len(self.values), len(positions), *self.values.shape[2:]))
        order = np.argsort(positions)
        found[:, order[np.searchsorted(positions, self.positions, sorter=order)]] = self.values
        return found

    def has(self, positions: Positions) -> bool:
        """Return whether all of some positions are here."""
        return np.array_equal(positions, self.positions) or bool(np.isin(positions, self.positions).all())

    def _pick(self, places: Positions) -> Tokens:
        return Tokens(self.values[:, places], self.positions[places], self.packing)
