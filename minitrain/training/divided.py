"""What a rank computes and communicates of layers, sequences and experts that are divided among ranks.

The arithmetic is that of proofs (`minitrain.proof.layers`), on the CPU by NumPy, and each rank has just its part: its
heads, columns and rows, its positions, its experts and the tokens that come to them. Shards of weights, gradients and
states are those of `minitrain.training.contents`, so that a shard of n has 1/n of the bytes.

What a collective sums or gathers is what torch.distributed gets. gloo has no exchange whose sizes only the sender
knows. So copies of tokens go in two steps: counts by `all_to_all_single`, and then a message to each member.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import product
from typing import Any, final

import numpy as np
import torch
import torch.distributed as dist

from minitrain.engine.executors import Computed
from minitrain.errors import UsageError
from minitrain.operations.collectives import perform
from minitrain.operations.computations import COMPUTATIONS
from minitrain.proof import arrays
from minitrain.proof.attention_core import KeysValues, Tokens
from minitrain.proof.layers import TransformerLayers
from minitrain.proof.partial_gradients import Copies, PartGrad, PartialGrad
from minitrain.proof.units import Logits, Part, Statistics, held_by_all, places, taken
from minitrain.tensors import Activation, ActivationGrad, OptState, Tensor, placed
from minitrain.tensors.sequence_parts import WHOLE_SEQUENCE
from minitrain.training.contents import Flat, pieces_of
from minitrain.training.layers import Carried, cut_again, cut_as, take_step

ABSENT = -1
"""The count of copies of an origin that a rank has not."""


def part_of(weight: Any) -> Part:
    """Return which part of a layer a weight, its gradient or its optimizer state is."""
    if isinstance(weight, placed.ROUTER_PIECES):
        return Part(piece="router")
    if isinstance(weight, placed.EXPERT_PIECES):
        return Part(expert_index=min(weight.parts), num_expert_parts=weight.num_parts, piece="experts")
    return Part(min(weight.parts), weight.num_parts) if isinstance(weight, placed.WEIGHT_PARTS) else Part()


def key_of(weight: Any) -> int | str:
    """Return what a weight is called from step to step: its layer, and its part where it is one."""
    part = part_of(weight)
    if part.piece == "experts":
        return f"{weight.layer}experts{part.expert_index}of{part.num_expert_parts}"
    if part == Part():
        return int(weight.layer)
    return f"{weight.layer}{part.piece or f'part{part.index}of{part.count}'}"


class _Trained:
    """A problem of a proof whose tokens are those of a step."""

    def __init__(self, net: Any) -> None:
        self._net, self.step = net, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._net.problem, name)

    def inputs(self, global_batch_size: int) -> Any:
        """Return the tokens of the batch, samples x seq_len."""
        return self._net.tokens(range(global_batch_size), global_batch_size, self.step)[:, :-1].numpy()

    def targets(self, global_batch_size: int) -> Any:
        """Return the token that follows each of them."""
        return self._net.tokens(range(global_batch_size), global_batch_size, self.step)[:, 1:].numpy()


@final
class DividedArithmetic:
    """What one rank computes of a transformer that is divided; as `minitrain.training.layers.Arithmetic`.

    Args:
        net: what is trained: a transformer.
        global_batch_size: samples of a step.
    """

    def __init__(self, net: Any, global_batch_size: int) -> None:
        self.net, self.global_batch_size = net, global_batch_size
        self.problem = _Trained(net)
        self.begin(0, {})

    def begin(self, step: int, carried: Carried) -> None:
        """Begin a step."""
        self.step, self.carried, self.loss_value = step, carried, 0.0
        self.states: dict[int | str, Flat] = {}
        self.problem.step = step
        problem: Any = self.problem
        self.layers = TransformerLayers(problem)

    def __getattr__(self, op: str) -> Any:
        if op not in COMPUTATIONS or (not hasattr(TransformerLayers, op) and not hasattr(self.layers, op)):
            raise AttributeError(op)
        return partial(self._compute, getattr(self.layers, op))

    def _compute(self, compute: Callable[..., Any], done: Computed, *contents: Any) -> Any:
        """Compute on the arrays of this rank."""
        tensors = [value for value in done.given if isinstance(value, Tensor)]
        found = compute(done, *map(_for_layers, contents, tensors))
        return tuple(map(_of_layers, found)) if isinstance(found, tuple) else _of_layers(found)

    def load_weights(self, done: Computed) -> tuple[Flat, Flat]:
        """Return what a rank holds of a layer or of a part of it, and its optimizer state: those of the step before."""
        weight = done.made[0]
        shard, key = min(weight.shards), key_of(weight)
        if key in self.carried:
            return cut_again(*self.carried[key], shard, weight.num_shards)
        if self.carried:
            raise UsageError(
                f"the state that is carried on has no {key}, which rank {done.model._rank} loads; go on with the "
                "parts that the state is of",
                layer=weight.layer,
            )
        unit, net = self.problem.units[weight.layer], self.net
        values = torch.from_numpy(taken(self.problem.initial_weight(weight.layer), unit, part_of(weight)))
        found = Flat.whole(values.to(net.dtype)).shard(shard, weight.num_shards)
        moments = found.values.new_zeros(net.optimizer.num_moments, found.values.numel())
        return found, Flat(moments, found.pieces, found.size)

    load_router = load_experts = load_weights

    def loss(self, done: Computed, logits: Logits) -> Any:
        """Return the gradient of the logits; the value is added up by the rank with the first part of them."""
        if 0 in logits.pieces:
            num_tokens = self.global_batch_size * self.problem.seq_len
            self.loss_value += float(logits.statistics.losses().sum()) / num_tokens
        return self.layers.loss(done, logits)

    def update(self, done: Computed, grad: Flat | PartGrad, weight: Flat, state: Flat) -> tuple[Flat, Flat]:
        """Take the optimizer's step; the new numbers take the place of the old ones."""
        grad = settled(grad, weight.values.dtype)
        made = done.made[0]
        moments = cut_as(state, weight)
        take_step(self.net.optimizer, weight.values, cut_as(grad, weight), moments, self.step + made.step)
        self.states[key_of(made)] = after = Flat(moments, weight.pieces, weight.size)
        return weight, after

    def positions(self, sequence: Any) -> Any:
        """Return the positions of a part of the sequence."""
        found = self.layers.positions(sequence.shards, sequence.num_shards)
        pieces = np.split(found, sequence.num_pieces)
        return np.concatenate([pieces[piece] for piece in sorted(sequence.pieces)])

    def positions_of(self, symbol: Any) -> Any:
        """Return the positions of what a tensor is of."""
        return self.positions(getattr(symbol, "sequence", WHOLE_SEQUENCE))

    def room_for(self, symbol: Any) -> tuple[torch.Tensor, Callable[[torch.Tensor], Any]]:
        """Return room for what a tensor of another rank carries, and what makes its content of that."""
        net, model = self.net, self.net.problem.model
        if not isinstance(symbol, Activation | ActivationGrad):
            size = len(places(self.problem.units[symbol.layer], part_of(symbol)))
            pieces = pieces_of(symbol.shards, symbol.num_shards, size)
            held = sum(last - first for first, last in pieces)
            shape: tuple[int, ...] = (net.optimizer.num_moments, held) if isinstance(symbol, OptState) else (held,)
            return torch.empty(shape, dtype=net.dtype), lambda values: Flat(values, pieces, size)
        positions = self.positions_of(symbol)
        if not isinstance(symbol, placed.KeysValues | placed.KeysValuesGrad):
            shape = len(symbol.samples), len(positions), model.hidden_size
            return torch.empty(shape, dtype=net.dtype), lambda values: Tokens(values.numpy(), positions)
        if model.latent is None:
            heads, of_key, of_value = model.num_kv_heads, model.head_dim, model.head_dim
        else:
            heads, of_key, of_value = model.num_heads, model.latent.key_head_dim, model.latent.value_head_dim
        shape = len(symbol.samples), heads // symbol.num_parts, len(positions), of_key + of_value
        return torch.empty(shape, dtype=net.dtype), lambda values: _keys_values(values, of_key, positions)

    def packed(self, content: Any) -> torch.Tensor:
        """Return what a content is on its way."""
        if isinstance(content, Flat):
            return content.values.contiguous()
        if isinstance(content, KeysValues):
            return self.torch_of(np.concatenate([content.keys, content.values], axis=-1))
        return self.torch_of(content.values)

    def torch_of(self, values: Any) -> torch.Tensor:
        """Return numbers of the arithmetic as a tensor of its own."""
        return torch.tensor(np.ascontiguousarray(values), dtype=self.net.dtype)


def _keys_values(values: torch.Tensor, of_key: int, positions: Any) -> KeysValues:
    """Return keys and values that came as one tensor."""
    found = values.numpy()
    return KeysValues(found[..., :of_key], found[..., of_key:], positions)


def _for_layers(content: Any, symbol: Any) -> Any:
    """Return a content as proofs have it."""
    return arrays.Flat(content.values.numpy(), part_of(symbol)) if isinstance(content, Flat) else content


def _of_layers(content: Any) -> Any:
    """Return what proofs have made as it is here; gradients of parts are not finished before they are used."""
    return Flat.whole(torch.from_numpy(content.values)) if isinstance(content, arrays.Flat) else content


def settled(grad: Flat | PartGrad, dtype: torch.dtype) -> Flat:
    """Return the gradient of a weight, which must be known by now."""
    found = Flat.whole(torch.tensor(grad.values)) if isinstance(grad, PartGrad) else grad
    return Flat(found.values.to(dtype), found.pieces, found.size)


@final
class DividedCollective:
    """A collective under way of what is divided; as `minitrain.training.wire.Started`.

    Args:
        arithmetic: that of the rank.
        group: that of torch.distributed.
        ranks: its members.
        index: the place of this rank among them.
        works: takes those of torch.distributed.
    """

    def __init__(
        self, arithmetic: DividedArithmetic, group: Any, ranks: Sequence[int], index: int, works: list[Any]
    ) -> None:
        self._arithmetic, self._group, self._ranks, self._index = arithmetic, group, ranks, index
        self.works = works

    def takes(self, op: str, value: Any) -> bool:
        """Return whether a tensor is of what is divided; shards of weights go as those of whole layers do."""
        content = value._content
        if isinstance(content, PartGrad):
            content = value._content = settled(content, self._arithmetic.net.dtype)
        return not isinstance(content, Flat) or op == "all_reduce"

    def all_reduce(self, value: Any, brought: Sequence[Any]) -> Callable[[], Any]:
        """Sum: of logits, what the loss needs of them; of gradients of several parts, what all of them hold."""
        content = value._content
        if isinstance(content, Logits):
            return self._statistics(content)
        if isinstance(content, Flat):
            return self._sum_of_weights(value, content, brought)
        total = self._arithmetic.torch_of((content.inner if isinstance(content, PartialGrad) else content).values)
        self.works.append(dist.all_reduce(total, group=self._group, async_op=True))
        return lambda: _summed(content, total.numpy(), brought)

    def _sum_of_weights(self, value: Any, content: Flat, brought: Sequence[Any]) -> Callable[[], Any]:
        values = content.values
        if len({part_of(each) for each in brought}) == 1:
            self.works.append(dist.all_reduce(values, group=self._group, async_op=True))
            return lambda: content
        unit = self._arithmetic.problem.units[value.layer]
        here = torch.tensor(held_by_all(unit, part_of(value)))
        common = values[here]
        self.works.append(dist.all_reduce(common, group=self._group, async_op=True))

        def end() -> Flat:
            values[here] = common
            return content

        return end

    def _statistics(self, logits: Logits) -> Callable[[], Any]:
        """Gather what the loss needs of the logits of each, since the sum of exponentials is no sum for torch."""
        found = logits.statistics
        mine = self._arithmetic.torch_of(np.stack([found.highest, found.total, found.target]))
        all_of_them = [torch.empty_like(mine) for _ in self._ranks]
        self.works.append(dist.all_gather(all_of_them, mine, group=self._group, async_op=True))
        return lambda: replace(
            logits, statistics=reduce(Statistics.merge, (Statistics(*each.numpy()) for each in all_of_them))
        )

    def reduce_scatter(self, value: Any, brought: Sequence[Any]) -> Callable[[], Any]:
        """Sum, and get one piece along the sequence."""
        content, arithmetic = value._content, self._arithmetic
        if isinstance(content, KeysValues):
            results = perform("reduce_scatter", list(brought), self._ranks, None, whole=False)
            cut: list[Any] = [content.at(arithmetic.positions_of(result)) for result in results]
            pieces = [arithmetic.packed(piece) for piece in cut]
        else:
            inner = content.inner if isinstance(content, PartialGrad) else content
            cut = [inner.shard(place, len(self._ranks)) for place in range(len(self._ranks))]
            pieces = [arithmetic.torch_of(piece.values) for piece in cut]
        mine = torch.empty_like(pieces[self._index])
        self.works.append(dist.reduce_scatter(mine, pieces, group=self._group, async_op=True))
        own = cut[self._index]
        if isinstance(content, KeysValues):
            return lambda: _keys_values(mine, content.keys.shape[-1], own.positions)
        cut_off = replace(content, inner=own) if isinstance(content, PartialGrad) else own
        return lambda: _summed(cut_off, mine.numpy(), brought)

    def all_gather(self, value: Any, brought: Sequence[Any]) -> Callable[[], Any]:
        """Put pieces along the sequence together."""
        rooms = [self._arithmetic.room_for(each) for each in brought]
        mine = self._arithmetic.packed(value._content)
        self.works.append(dist.all_gather([room for room, _ in rooms], mine, group=self._group, async_op=True))

        def end() -> Any:
            found = [make(room) for room, make in rooms]
            return reduce(type(found[0]).combine, found)

        return end

    def exchange_copies(
        self, value: Any, brought: Sequence[Any], tag: int, keep: Callable[[Any, Any], None]
    ) -> Callable[[], Copies]:
        """Send copies of tokens to the members that they are for, and get those of the others.

        Args:
            value: what this rank brings.
            brought: what all bring.
            tag: of the messages.
            keep: takes a message that was sent, and its tensor, until it has left.
        """
        content: Copies = value._content
        results = perform("all_to_all", list(brought), self._ranks, None, whole=False)
        counts, rows = [], []
        for result in results:
            sent = [content.rows.get(origin, {}).get(expert) for origin, expert in self._places(value, result)]
            counts += [ABSENT if each is None else len(each) for each in sent]
            rows.append(self._joined([each for each in sent if each is not None]))
        mine = results[self._index]
        coming = [list(self._places(each, mine)) for each in brought]
        counted = torch.empty(sum(map(len, coming)), dtype=torch.int64)
        sizes = [len(each) for each in coming], [len(list(self._places(value, result))) for result in results]
        given = torch.tensor(counts, dtype=torch.int64)
        self.works.append(dist.all_to_all_single(counted, given, *sizes, group=self._group, async_op=True))
        for place, (rank, values) in enumerate(zip(self._ranks, rows, strict=True)):
            if place != self._index and values.numel():
                keep(dist.isend(values, rank, tag=tag), values)

        def end() -> Copies:
            found, waited = [], list[Any]()
            for place, numbers in enumerate(counted.split(sizes[0])):
                here = [
                    (*where, count)
                    for where, count in zip(coming[place], numbers.tolist(), strict=True)
                    if count != ABSENT
                ]
                shape = sum(count for *_, count in here), content_size
                values = rows[place] if place == self._index else rows[place].new_empty(shape)
                if place != self._index and values.numel():
                    waited.append(dist.irecv(values, self._ranks[place], tag=tag))
                found.append((here, values))
            for work in waited:
                work.wait()
            return reduce(Copies.add, [_copies_of(*each) for each in found])

        content_size = self._arithmetic.net.problem.model.hidden_size
        return end

    def _joined(self, rows: Sequence[Any]) -> torch.Tensor:
        """Return rows one after the other."""
        size = self._arithmetic.net.problem.model.hidden_size
        return self._arithmetic.torch_of(np.concatenate([np.zeros((0, size)), *rows]))

    def _places(self, sender: Any, result: Any) -> Any:
        """Return for which origins and experts one member may send copies to another, as both know."""
        experts = self._arithmetic.layers._experts.experts_of
        both = sorted(sender.samples & result.samples)
        shards = sorted(sender.sequence.shards & result.sequence.shards)
        pieces = sorted(sender.sequence.pieces & result.sequence.pieces)
        of_both = sorted({*experts(sender.parts, sender.num_parts)} & {*experts(result.parts, result.num_parts)})
        return product(product(both, shards, pieces), of_both)


def _copies_of(here: Sequence[tuple[Any, int, int]], values: torch.Tensor) -> Copies:
    """Return copies from the counts by origin and expert, and their rows."""
    found: dict[Any, dict[int, Any]] = {}
    pieces = values.split([count for *_, count in here]) if here else ()
    for (origin, expert, _), piece in zip(here, pieces, strict=True):
        found.setdefault(origin, {})[expert] = piece.numpy()
    return Copies(found)


def _summed(content: Any, total: Any, brought: Sequence[Any]) -> Any:
    """Return a content with the numbers of a sum over ranks: a gradient goes through the rank's own norm then."""
    if not isinstance(content, PartialGrad):
        return content.with_values(total)
    parts = frozenset().union(*(each.parts for each in brought))
    return replace(content, inner=content.inner.with_values(total), parts=parts).finished()
