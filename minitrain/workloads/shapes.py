"""The tables that a unit of a transformer is made of: its weights, matrix multiplications and saved tensors.

Each row says its size for one token and how tensor parallelism cuts it; a method gives the part of one rank. What is
not cut by heads, columns or rows is the same on all ranks of the tensor-parallel group, and with sequence parallelism
it is divided along the sequence instead (Korthikanti et al. 2022, section 4.2.2). Left out: elementwise operations,
whose cost follows from what they read and write, and communication, which depends on the strategy.

How ranks divide the work on a transformer: parallel degrees, where a dimension can be cut, and one rank's work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

from minitrain.errors import UsageError, choice_fault, count_fault, is_number, refuse, shown
from minitrain.workloads.workload import Recompute, modules_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """Into how many parts ranks divide a unit, by axis.

    Args:
        tp: parts of the heads, the MLP's columns and rows, and the vocabulary.
        cp: parts of the sequence, for the whole network.
        ep: parts of the experts.
        sequence_parallel: whether what `tp` does not cut is divided along the sequence, by `tp`.

    Raises:
        UsageError: a degree is no integer of at least 1, or `sequence_parallel` is no bool; all faults at once.
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    sequence_parallel: bool = False

    def __post_init__(self) -> None:
        found = (count_fault(axis, getattr(self, axis), 1, f"{axis}=2") for axis in ("tp", "cp", "ep"))
        faults = [fault for fault in found if fault is not None]
        if not isinstance(self.sequence_parallel, bool):
            faults.append(
                f"sequence_parallel must be True or False, got {shown(self.sequence_parallel)}; use one of them"
            )
        if faults:
            raise refuse("Degrees", faults)

    @property
    def sequence(self) -> int:
        """Return the parts of the sequence between tensor-parallel operations, beside `cp`."""
        return self.tp if self.sequence_parallel else 1


WHOLE = Degrees()
"""One rank does everything."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The things that a dimension consists of (heads, columns, experts): it can be cut between two of them.

    Args:
        what: the things, as `Transformer` calls their number: "num_heads".
        count: how many there are.
        is_padded: whether empty ones are added until their number divides, as is usual for a vocabulary.
        is_copied: whether each part has all of them, as with the columns of an adapter.
    """

    what: str
    count: int
    is_padded: bool = False
    is_copied: bool = False

    def part(self, size: int, num_parts: int, axis: str = "tp") -> int:
        """Return the size of one of `num_parts` equal parts of a dimension.

        Args:
            size: the dimension's size, a multiple of `count`.
            num_parts: how many parts.
            axis: the degree's name, for the message.

        Raises:
            UsageError: the things do not divide by the parts.

        Example:
            >>> Cut("num_heads", 8).part(8 * 128, 4)
            256
        """
        if self.is_copied:
            return size
        rest = self.count % num_parts
        if rest and not self.is_padded:
            fitting = max(parts for parts in range(1, num_parts) if self.count % parts == 0)
            raise UsageError(
                f"{self.what} ({self.count}) must be a multiple of {axis} ({num_parts}); use {axis}={fitting}, "
                f"or a model with {self.what}={self.count - rest + num_parts}"
            )
        return size // self.count * -(-self.count // num_parts)


@dataclass(frozen=True, slots=True)
class Work:
    """What one rank does in a pass of a unit.

    Args:
        num_samples: sequences.
        seq_len: tokens of a sequence, over all ranks that divide it.
        degrees: how ranks divide the unit.
        pairs: the `minitrain.workloads.workload.Pairs` of a sequence, the mean over the samples, where their documents
            leave others than the causal mask does.
    """

    num_samples: int
    seq_len: int
    degrees: Degrees = WHOLE
    pairs: Any = None

    @property
    def num_queries(self) -> int:
        """Return the tokens of a sequence that are the rank's; a UsageError where `seq_len` does not divide."""
        return Cut("seq_len", self.seq_len).part(self.seq_len, self.degrees.cp, "cp")

    @property
    def num_tokens(self) -> int:
        """Return the tokens on which the rank computes its heads, columns and rows."""
        return self.num_samples * self.num_queries

    @property
    def num_tokens_between(self) -> int:
        """Return the tokens that the rank holds between tensor-parallel operations: fewer with sequence parallelism."""
        parts = self.degrees.cp * self.degrees.sequence
        return self.num_samples * Cut("seq_len", self.seq_len).part(self.seq_len, parts, "cp x tp")


ADAPTER = ".lora_"
"""What the names of a matrix's adapters have behind its own: "query.lora_a" and "query.lora_b"."""


@dataclass(frozen=True, slots=True)
class WeightShape:
    """A weight of a unit.

    Args:
        name: its name within the unit, such as "query" or "norm.bias".
        shape: a matrix as (inputs, outputs); with the experts before them where there are any.
        cut: what `cut_dim` consists of, None where all tensor-parallel ranks hold the same.
        cut_dim: the dimension that tensor parallelism cuts.
        experts_per_token: experts that a token uses, where the first dimension is experts; 0 where it is not.
        is_norm: whether it belongs to a norm.
        is_shared: whether another unit counts it: the head's table where embeddings are tied.
        is_trained: whether it has a gradient and an optimizer state.
    """

    name: str
    shape: tuple[int, ...]
    cut: Cut | None = None
    cut_dim: int = 0
    experts_per_token: int = 0
    is_norm: bool = False
    is_shared: bool = False
    is_trained: bool = True

    @property
    def num_parameters(self) -> int:
        """Return the number of elements."""
        return prod(self.shape)

    @property
    def num_active_parameters(self) -> int:
        """Return the number of elements that one token uses."""
        return self.experts_per_token * prod(self.shape[1:]) if self.experts_per_token else self.num_parameters

    def part(self, degrees: Degrees = WHOLE) -> tuple[int, ...]:
        """Return the shape of one rank's part.

        Raises:
            UsageError: heads, columns or experts do not divide by their degree.
        """
        shape = list(self.shape)
        if self.cut is not None:
            shape[self.cut_dim] = self.cut.part(shape[self.cut_dim], degrees.tp)
        if self.experts_per_token:
            shape[0] = Cut("num_experts", shape[0]).part(shape[0], degrees.ep, "ep")
        return tuple(shape)


def num_factors(shape: tuple[int, ...]) -> int:
    """Return how many numbers Adafactor keeps of a weight's second moments: of rows and columns where they are fewer.

    >>> num_factors((768, 3072)), num_factors((8, 64, 32)), num_factors((768,))
    (3840, 768, 768)
    """
    return min(prod(shape), prod(shape[:-1]) + prod(shape[:-2]) * shape[-1]) if len(shape) > 1 else prod(shape)


def norm_weights(size: int, *, has_bias: bool) -> tuple[WeightShape, ...]:
    """Return the weights of a norm, which all tensor-parallel ranks hold."""
    names = ("norm.weight", "norm.bias") if has_bias else ("norm.weight",)
    return tuple(WeightShape(name, (size,), is_norm=True) for name in names)


@dataclass(frozen=True, slots=True)
class Gemm:
    """A batch of equal matrix multiplications: (m x k) times (k x n).

    Args:
        name: its name within the unit.
        m: rows of the left matrix and of the result.
        n: columns of the right matrix and of the result.
        k: columns of the left matrix, rows of the right one.
        batch: how many.
        has_weight: whether the right matrix is a weight; if so, one of the two GEMMs of backward makes its gradient.
        is_trained: whether that gradient is wanted.
    """

    name: str
    m: int
    n: int
    k: int
    batch: int = 1
    has_weight: bool = True
    is_trained: bool = True

    @property
    def flop(self) -> int:
        """Return the floating-point operations, two for a multiplication and its addition."""
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def is_of_experts(self) -> bool:
        """Return whether it is one multiplication for each expert, of the tokens that were sent to it."""
        return self.name.startswith("experts.")


@dataclass(frozen=True, slots=True)
class Projection:
    """A matrix multiplication of every token with a weight.

    Args:
        name: its name within the unit.
        k: inputs.
        n: outputs.
        cut: what `cut_dim` consists of, None where all tensor-parallel ranks do the same.
        cut_dim: "n" where each rank has some columns (outputs), "k" where it has some rows (inputs).
        num_experts: experts with a matrix each; 0 where there is one for all tokens.
        experts_per_token: of these, how many a token is sent to.
        is_trained: whether some of its weights have a gradient.
    """

    name: str
    k: int
    n: int
    cut: Cut | None = None
    cut_dim: Literal["k", "n"] = "n"
    num_experts: int = 0
    experts_per_token: int = 0
    is_trained: bool = True

    @property
    def of(self) -> str:
        """Return the matrix, where it is one of its adapters; else its own name."""
        return self.name.partition(ADAPTER)[0]

    @property
    def flop_per_token(self) -> int:
        """Return the floating-point operations of one token, forward."""
        return 2 * self.k * self.n * (self.experts_per_token or 1)

    def gemm(self, work: Work) -> Gemm:
        """Return one rank's multiplication, forward.

        Experts are used equally often, and a rank is sent as many tokens as it sends; tokens that do not divide by the
        experts are rounded up.

        Raises:
            UsageError: heads, columns, experts or the sequence do not divide by their degree.
        """
        sizes = {"k": self.k, "n": self.n}
        num_tokens = work.num_tokens_between
        if self.cut is not None:
            num_tokens = work.num_tokens
            sizes[self.cut_dim] = self.cut.part(sizes[self.cut_dim], work.degrees.tp)
        if not self.num_experts:
            return Gemm(self.name, num_tokens, sizes["n"], sizes["k"], is_trained=self.is_trained)
        ep = work.degrees.ep
        held = Cut("num_experts", self.num_experts).part(self.num_experts, ep, "ep")
        copies = -(-num_tokens * self.experts_per_token * ep // self.num_experts)
        return Gemm(self.name, copies, sizes["n"], sizes["k"], held, is_trained=self.is_trained)


@dataclass(frozen=True, slots=True)
class AttentionCore:
    """The attention core, between queries, keys and values: scores, softmax, dropout, and the sum of values.

    Args:
        num_heads: heads.
        key_dim: size of a head's query and key.
        value_dim: size of a head's value.
        is_flash: whether scores are never stored (FlashAttention, Dao et al. 2022).
        window: keys that a query sees at most; None for all.
        is_chunked: whether windows lie side by side, and a query sees what comes before it in its own.
        index_heads: heads of an indexer, which scores all keys for a query to choose those of its window; 0 for none.
        index_dim: size of a query and key of the indexer.
    """

    num_heads: int
    key_dim: int
    value_dim: int
    is_flash: bool
    window: int | None = None
    is_chunked: bool = False
    index_heads: int = 0
    index_dim: int = 0

    def index_flop(self, seq_len: int, *, causal: bool, chosen: bool = False) -> int:
        """Return the floating-point operations of one sequence's indexer, forward: of all keys, or of those chosen."""
        seen = self if chosen else replace(self, window=None)
        return 2 * self.index_heads * self.index_dim * seen.num_pairs(seq_len, causal=causal)

    def num_chunks(self, seq_len: int) -> int:
        """Return into how many sequences its windows cut one."""
        return -(-seq_len // self.window) if self.is_chunked and self.window else 1

    def gemms(self, work: Work) -> tuple[Gemm, Gemm]:
        """Return one rank's scores and sums of values, forward: every query of the rank with every key.

        Raises:
            UsageError: heads or the sequence do not divide by their degree.
        """
        batch = work.num_samples * Cut("num_heads", self.num_heads).part(self.num_heads, work.degrees.tp)
        return (
            Gemm("scores", work.num_queries, work.seq_len, self.key_dim, batch, has_weight=False),
            Gemm("values", work.num_queries, self.value_dim, work.seq_len, batch, has_weight=False),
        )

    def num_pairs(self, seq_len: int, *, causal: bool) -> int:
        """Return how many pairs of a query and a key a sequence has.

        Args:
            seq_len: tokens of the sequence.
            causal: whether only pairs are counted whose key is not later than the query; else all keys of the window.

        Example:
            >>> AttentionCore(8, 64, 64, True).num_pairs(4, causal=True)
            10
        """
        if self.is_chunked and self.window and seq_len > self.window:
            whole, rest = divmod(seq_len, self.window)
            return sum(
                count * replace(self, window=None).num_pairs(size, causal=causal)
                for count, size in ((whole, self.window), (1, rest))
            )
        reach = min(seq_len, self.window or seq_len)
        return seq_len * reach if not causal else reach * (reach + 1) // 2 + (seq_len - reach) * reach

    def num_pairs_of(self, work: Work) -> float:
        """Return the pairs of a rank's queries with the keys that the mask leaves, for one sequence."""
        if work.pairs is not None:
            return float(work.pairs.total)
        return self.num_pairs(work.seq_len, causal=True) * work.num_queries // work.seq_len

    def flop(self, seq_len: int, *, causal: bool) -> int:
        """Return the floating-point operations of one sequence, forward."""
        attended = 2 * self.num_heads * (self.key_dim + self.value_dim) * self.num_pairs(seq_len, causal=causal)
        return attended + self.index_flop(seq_len, causal=causal)


@dataclass(frozen=True, slots=True)
class LinearCore:
    """The recurrence of a linear attention, computed in chunks.

    Without a delta rule, queries and keys meet once for all heads that share them; with one, for each head. Within a
    chunk keys also meet keys, and the inverse of that is multiplied by keys and by values; what the state has for a key
    is subtracted.

    Args:
        num_heads: heads, each with a state.
        num_key_heads: heads of queries and keys.
        key_dim: size of a head's query and key.
        value_dim: size of a head's value.
        chunk: tokens that are computed together.
        has_delta: whether there is a delta rule.

    Source: Dao and Gu (2024), "Transformers are SSMs", section 6; Yang et al. (2024), section 3.2.
    """

    num_heads: int
    num_key_heads: int
    key_dim: int
    value_dim: int
    chunk: int
    has_delta: bool

    def _products(self, size: int) -> Iterator[tuple[str, int, int, int, int, bool]]:
        """Yield the products of some tokens: name, m, n, k, for how many heads, and whether a triangle of it counts."""
        key, value, heads = self.key_dim, self.value_dim, self.num_heads
        if self.has_delta:
            yield "keys of a chunk", size, size, key, heads, True
            yield "keys apart", size, key, size, heads, True
            yield "values apart", size, value, size, heads, True
            yield "in state", size, value, key, heads, False
        yield "scores of a chunk", size, size, key, heads if self.has_delta else self.num_key_heads, True
        yield "states", key, value, size, heads, False
        yield "values of a chunk", size, value, size, heads, True
        yield "of state", size, value, key, heads, False

    def gemms(self, work: Work) -> tuple[Gemm, ...]:
        """Return one rank's products, forward.

        Raises:
            UsageError: heads of keys do not divide by their degree.
        """
        size = min(self.chunk, work.num_queries)
        chunks, cut = work.num_samples * -(-work.num_queries // size), Cut("num_key_heads", self.num_key_heads)
        return tuple(
            Gemm(name, m, n, k, chunks * cut.part(heads, work.degrees.tp), has_weight=False)
            for name, m, n, k, heads, _ in self._products(size)
        )

    def flop(self, seq_len: int, *, causal: bool) -> int:
        """Return the floating-point operations of one sequence, forward; with `causal` a chunk's triangles alone."""
        size = min(self.chunk, seq_len)
        of_token = sum(
            m * n * k * heads * (size + 1 if causal and is_triangle else 2 * size)
            for _, m, n, k, heads, is_triangle in self._products(size)
        )
        return seq_len * of_token // size**2

    def products(self, work: Work, *, is_backward: bool) -> Iterator[tuple[Gemm, bool]]:
        """Yield one rank's products in a pass, and whether each is one of backward, which makes states again.

        Source: `chunk_gated_delta_rule_bwd` of flash-linear-attention; `_mamba_chunk_scan_combined_bwd` of mamba.
        """
        for gemm in self.gemms(work):
            yield gemm, is_backward
            if is_backward and gemm.name not in ("values of a chunk", "of state"):
                yield gemm, False

    def passes(self, work: Work, *, is_backward: bool) -> Iterator[tuple[str, int, int]]:
        """Yield what one rank's passes around it work on: name, elements, and tensors that are read and written."""
        values = self.num_heads * self.value_dim
        mixed = values + 2 * self.num_key_heads * self.key_dim
        yield "convolution", work.num_tokens * mixed // work.degrees.tp, 4 if is_backward else 2
        yield "gated norm", work.num_tokens * values // work.degrees.tp, 5 if is_backward else 3

    def num_state_bytes(self, work: Work) -> float:
        """Return the bytes that one rank reads and writes of states, in single precision, at each chunk's end."""
        states = next(gemm for gemm in self.gemms(work) if gemm.name == "states")
        return 2 * 4 * states.m * states.n * states.batch


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """What forward keeps for backward.

    Args:
        name: what it is.
        size: elements of a token; of a token and key where `is_per_key`.
        element_bytes: bytes of an element.
        cut: what the elements consist of, None where they lie between tensor-parallel operations.
        made_again_in: the modules whose recomputation makes it again, so that it is not kept (see `MODULES`).
        is_always_kept: whether it is kept where backward computes the whole layer again, too.
        is_per_key: whether there are `size` elements for every key of the sequence.
        needed_for: the matrices for whose gradients alone it is kept; none where backward needs it in any case.
    """

    name: str
    size: int
    element_bytes: int
    cut: Cut | None = None
    made_again_in: tuple[str, ...] = ()
    is_always_kept: bool = False
    is_per_key: bool = False
    needed_for: tuple[str, ...] = ()

    def is_kept(self, recompute: Recompute) -> bool:
        """Return whether it is kept if backward computes so much again."""
        if recompute == "full":
            return self.is_always_kept
        return modules_of(recompute).isdisjoint(self.made_again_in)

    @property
    def has_gradient(self) -> bool:
        """Return whether backward makes a gradient of it: not of masks and statistics; the loss has the logits'."""
        return not self.name.endswith("mask") and self.name not in ("log-sum-exp", "logits")

    def num_bytes(self, work: Work) -> int:
        """Return one rank's bytes.

        Raises:
            UsageError: heads, columns or the sequence do not divide by their degree.
        """
        if self.cut is not None:
            elements = work.num_tokens * self.cut.part(self.size, work.degrees.tp)
        else:
            elements = work.num_tokens_between * self.size
        return elements * self.element_bytes * (work.seq_len if self.is_per_key else 1)


ADAPTED = ("query", "key", "value", "query_up", "kv_up", "output", "gate", "up", "down")
"""The matrices that can have adapters: those of attention and dense MLPs that tensor parallelism divides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """Low-rank adapters: each target W becomes W + alpha / rank A B, and A and B alone are trained (Hu et al. 2021).

    Modelled: adapters that are not merged, so that a pass multiplies by W, by A and by B. Left out: their dropout.

    Args:
        rank: columns of A and rows of B.
        alpha: what the product is scaled by, times the rank; twice the rank if None.
        targets: which matrices of attention and dense MLPs have adapters, by the names of `ADAPTED`; all of them if
            None (Dettmers et al. 2023, section 4). Experts, router, embedding and head have none.

    Raises:
        UsageError: a field is not what it must be; all faults at once.
    """

    rank: int = 16
    alpha: float | None = None
    targets: Sequence[str] | None = None

    def __post_init__(self) -> None:
        faults = [count_fault("rank", self.rank, 1, "rank=16")]
        if self.alpha is not None and not (is_number(self.alpha) and self.alpha > 0):
            faults.append(f"alpha must be a positive number, got {shown(self.alpha)}; write alpha=1.0")
        targets = ADAPTED if self.targets is None else self.targets
        if isinstance(targets, str) or not isinstance(targets, Sequence) or not targets:
            faults.append(
                f'targets must be a sequence of names, got {shown(targets)}; write targets=("query", "value")'
            )
        else:
            object.__setattr__(self, "targets", tuple(targets))
            faults += [choice_fault("targets", name, ADAPTED) for name in targets]
        found = [fault for fault in faults if fault is not None]
        if found:
            raise refuse("the adapters", found)

    @property
    def scale(self) -> float:
        """Return what the product of the adapters is multiplied by."""
        return 2.0 if self.alpha is None else self.alpha / self.rank
