"""What a rank computes of layers, sequences and experts that are divided among ranks, by torch and autograd.

A layer of which a rank has a part goes forward in two steps, its *border* and its *inside* (see
`minitrain.training.transformer`), and each keeps what its backward needs. Backward takes the gradient of the output to
the border. What it has there is its share of a sum over the parts; the sum goes through the rank's own border, which
gives the gradients of norm, router and biases. So the gradient of a part's weights awaits these, and can be used only
once the sum was made.

Where the rank had gathered its input from shards of the sequence, these gradients cover its own shard alone. What is
kept belongs to that shard then, which stands for the input when memory is counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from minitrain.engine.observers import Computed
from minitrain.engine.placed_passes import mode_of
from minitrain.proof.partial_gradients import PartialGrad, no_first_half, not_summed, require_capacity
from minitrain.proof.units import WHOLE, Part
from minitrain.tensors import Weight
from minitrain.training.contents import Attended, Copies, Flat, KeysValues, Logits, Positions, Rows, are_same, part_of
from minitrain.training.layers import Arithmetic, Carried, Kept, wide
from minitrain.training.transformer import (
    TransformerNet,
    attend,
    attend_backward,
    fed_to_experts,
    joined,
    projected,
    routed,
    rows_here,
)


@dataclass(slots=True, eq=False)
class Border:
    """The border that a rank's backward of a part has reached, and what is needed on its other side.

    Args:
        name: of the layer.
        kept: what it has kept for backward; None once the sum has crossed, as the next two.
        weight: of the part.
        grad: of the output.
        own: the positions that gradients of what all parts hold are to cover.
        places: which elements of the weight all parts hold.
        common: the gradients of these, once the sum has crossed.
    """

    name: str
    kept: Kept | None
    weight: torch.Tensor | None
    grad: Rows | None
    own: Positions
    places: torch.Tensor
    common: torch.Tensor | None = None

    def cross(self, total: Rows) -> Rows:
        """Take the sum over all parts back to the layer's input, for the tokens that it is of."""
        of_weight, of_input = self._through(total, 0, 1)
        if total.has(self.own):
            if not are_same(self.own, total.positions):
                (of_weight,) = self._through(total.at(self.own), 0)
            nothing = total.values.new_zeros(len(self.places))  # a border without weights, or with frozen ones
            self.common = nothing if of_weight is None else of_weight[self.places]
        assert self.grad is not None  # it crosses once
        positions, self.kept, self.weight, self.grad = self.grad.positions, None, None, None
        return Rows(of_input, positions).at(total.positions) if of_input is not None else Rows(_NOTHING, positions)

    def _through(self, total: Rows, *wanted: int) -> list[Any]:
        """Return gradients of weight and input, as far as they come from some tokens."""
        assert self.grad is not None  # as above
        assert self.kept is not None
        added = self.grad.at(total.positions).spread(self.grad.positions)
        return self.kept.backward(self.weight, [total.spread(self.grad.positions), added], *wanted)

    def add_common(self, values: torch.Tensor) -> None:
        """Add the gradients of what all parts hold to those of the part.

        Raises:
            LawError: the sum has not crossed.
        """
        if self.common is None:
            raise not_summed(self.name)
        values[self.places] += self.common


_NOTHING = torch.zeros(())  # the gradient of tokens' numbers


@dataclass(slots=True, eq=False)
class _Part:
    """What a part of a layer keeps.

    Args:
        border: of its border.
        inside: of its inside.
        halfway: the border that `backward_input` has reached, for `backward_weight`, and the gradient of the output.
    """

    border: Kept
    inside: Kept
    halfway: tuple[Border, Rows] | None = None


@dataclass(slots=True, eq=False)
class _Attention:
    """What an attention keeps that is taken in steps.

    Args:
        border: of its border.
        projecting: of queries, keys and values.
        queries: samples x heads x positions x size.
        rest: what is added once to the sum over parts, until that is done.
        is_kept: whether backward will go on from this, and not take all steps again before.
        joining: of the output projection.
        attended: what the queries got from all keys.
        grad: of the output, once it is known.
        of_weight: the gradient of the output projection, likewise.
    """

    border: Kept
    projecting: Kept
    queries: torch.Tensor
    rest: torch.Tensor | None
    is_kept: bool
    joining: Kept | None = None
    attended: Attended | None = None
    grad: Rows | None = None
    of_weight: torch.Tensor | None = None


@dataclass(slots=True, eq=False)
class _Routed:
    """What a router keeps of some samples, until they have gone back.

    Args:
        routing: of the router piece.
        shares: what each expert's output is multiplied by, samples x tokens x experts.
        rest: what is added to the sum of the experts' outputs.
        taken: samples x tokens x experts: which experts take a token.
        of_shares: the gradient of the shares, once it is known.
    """

    routing: Kept
    shares: torch.Tensor
    rest: torch.Tensor
    taken: torch.Tensor
    of_shares: torch.Tensor | None = None

    def where(self, expert: int) -> Any:
        """Return which tokens an expert takes: index it by samples and tokens."""
        return self.taken[..., expert]


class DividedArithmetic(Arithmetic):
    """What one rank computes of a transformer, whole or divided.

    Args:
        net: what is trained.
        global_batch_size: samples of a step.
    """

    def __init__(self, net: TransformerNet, global_batch_size: int) -> None:
        super().__init__(net, global_batch_size)
        self.net: TransformerNet = net

    def begin(self, step: int, carried: Carried) -> None:
        """Begin a step."""
        super().begin(step, carried)
        self._num_dropped = 0

    load_router = load_experts = Arithmetic.load_weights
    get_input_shard = Arithmetic.get_input_activation

    def forward(self, done: Computed, x: Any, weight: Flat) -> Any:
        """Return what a layer, or a part of it, makes of its input."""
        if not isinstance(x, Copies) and not _is_divided(done):
            return super().forward(done, x, weight)
        found, _ = self._forward(done, x, weight)
        if mode_of(done.named.get("recompute") or done.model._recompute).recompute == "full":
            _keeper(done, x).kept = None
        return found

    def _forward(self, done: Computed, x: Any, weight: Flat) -> tuple[Any, Any]:
        if isinstance(x, Copies):
            return self._experts_forward(done, x, weight)
        if not _is_divided(done):
            return super()._forward(done, x, weight)
        layer, part, positions = done.layer, _part(done), x.positions
        kept, where = _Part(self._keep(done), self._keep(done)), self.net.where(done.inp, positions)
        inner, rest = kept.border.forward(self.net.border(layer, part, where), weight.values, x.values)
        made = kept.inside.forward(self.net.inside(layer, part, where), weight.values, inner)
        _keeper(done, x).kept = kept
        if self.net.units[layer].kind == "head":
            return self._logits(done, part, Rows(made, positions)), kept
        return Rows(made + rest if part.index == 0 and rest is not None else made, positions), kept

    def _logits(self, done: Computed, part: Part, made: Rows) -> Any:
        """Return what a part of the head has made, with its share of the statistics."""
        if part.count == 1:
            return made
        where = self.net.where(done.inp, made.positions)
        targets = self.net.targets(sorted(done.inp.samples), where, self.global_batch_size, self.step)
        values, num_rows = wide(made.values), made.values.shape[-1]
        seen = values.masked_fill(~self._exists(part.index, num_rows), -torch.inf)
        highest = seen.amax(-1).clamp(min=torch.finfo(values.dtype).min)
        row, is_here = rows_here(targets, part.index, num_rows)
        target = torch.where(is_here, values.gather(-1, row[..., None])[..., 0], 0)
        statistics = torch.stack([highest, (seen - highest[..., None]).exp().sum(-1), target])
        return Logits({part.index: made.values}, part.count, made.positions, targets, statistics)

    def _exists(self, part: int, num_rows: int) -> torch.Tensor:
        """Return which rows of a part of the vocabulary are no padding."""
        rows = part * num_rows + torch.arange(num_rows, device=self.net.device)
        return rows < self.net.problem.model.vocab_size

    def loss(self, done: Computed, output: Any) -> Any:
        """Return the gradient of the logits; the value is added up by the rank with the first part of them."""
        if not isinstance(output, Logits):
            return super().loss(done, output)
        num_tokens = self.global_batch_size * self.net.problem.seq_len
        highest, total, target = output.statistics
        if 0 in output.pieces:
            self.loss_value += (highest + total.log() - target).sum().double() / num_tokens
        found = {}
        for part, logits in output.pieces.items():
            grad = (wide(logits) - highest[..., None]).exp_() / total[..., None]
            row, is_here = rows_here(output.targets, part, logits.shape[-1])
            grad.scatter_add_(-1, row[..., None], -is_here[..., None].to(grad.dtype))
            grad.masked_fill_(~self._exists(part, logits.shape[-1]), 0.0)
            found[part] = grad.div_(num_tokens).to(logits.dtype)
        return replace(output, pieces=found)

    def backward(self, done: Computed, x: Any, grad: Any, weight: Flat) -> tuple[Flat, Any]:
        """Return the gradients of the weights and of the input, or a part's share of it."""
        if isinstance(x, Copies):
            return self._experts_backward(done, x, grad, weight)
        if not _is_divided(done):
            return super().backward(done, x, grad, weight)
        kept, rows = self._kept(done, x, weight), _of_part(done, grad)
        of_weight, of_inner = kept.inside.backward(weight.values, [rows.values], 0, 1)
        border = self._border(done, x, weight, kept.border, rows)
        _keeper(done, x).kept = None
        return self._of_border(done, border, of_weight, of_inner)

    def backward_input(self, done: Computed, x: Any, grad: Any, weight: Flat) -> Any:
        """Return the gradient of the input, or a part's share of it."""
        if isinstance(x, Copies):
            (found,) = self._kept(done, x, weight).backward(weight.values, [grad.joined()[0]], 1)
            return x.split_alike(found)
        if not _is_divided(done):
            return super().backward_input(done, x, grad, weight)
        kept, rows = self._kept(done, x, weight), _of_part(done, grad)
        (of_inner,) = kept.inside.backward(weight.values, [rows.values], 1)
        border = self._border(done, x, weight, kept.border, rows)
        kept.halfway = border, rows
        return _input_grad(done, border, of_inner)

    def backward_weight(self, done: Computed, x: Any, grad: Any, weight: Flat | None = None) -> Flat:
        """Return the gradient of the weights, of which a part's awaits the sum of what `backward_input` made.

        Raises:
            LawError: there was no `backward_input`.
        """
        values = None if weight is None else weight.values
        if isinstance(x, Copies):
            return self._gradient(done, self._kept(done, x, weight).backward(values, [grad.joined()[0]], 0)[0])
        if not _is_divided(done):
            return super().backward_weight(done, x, grad, weight)
        kept = self._kept(done, x, weight)
        if kept.halfway is None:
            raise no_first_half(str(done.layer))
        border, rows = kept.halfway
        (of_weight,) = kept.inside.backward(values, [rows.values], 0)
        return _awaiting(border, self._gradient(done, of_weight))

    def _keep(self, done: Computed) -> Kept:
        """Return what will keep for a part's backward."""
        return Kept(self.net.num_frozen(done.layer, _part(done)))

    def _kept(self, done: Computed, x: Any, weight: Flat | None) -> Any:
        return _keeper(done, x).kept or super()._kept(done, x, weight)

    def _border(self, done: Computed, x: Rows, weight: Flat, kept: Kept, grad: Rows) -> Border:
        places = self.net.held_by_all(done.layer, _part(done))
        return Border(self.net.units[done.layer].name, kept, weight.values, grad, _keeper(done, x).positions, places)

    def _of_border(self, done: Computed, border: Border, of_weight: Any, of_inner: Any) -> tuple[Flat, Any]:
        """Return the gradients of weights and input that a backward has once it has reached the border."""
        found = _input_grad(done, border, of_inner)
        return _awaiting(border, self._gradient(done, of_weight)), found

    def keys_values(self, done: Computed, x: Rows, weight: Flat) -> KeysValues:
        """Return the keys and values of an attention that is taken in steps; its queries stay here."""
        layer, part, where = done.layer, _part(done), self.net.where(done.inp, x.positions)
        border, projecting = self._keep(done), self._keep(done)
        inner, rest = border.forward(self.net.border(layer, part, where), weight.values, x.values)
        made = projecting.forward(self.net.taking(projected, layer, part, where), weight.values, inner)
        mode = mode_of(done.named.get("recompute") or done.model._recompute)
        _keeper(done, x).kept = _Attention(border, projecting, made[0], rest, mode.recompute != "full")
        return KeysValues(made[1], made[2], x.positions)

    def attend(self, done: Computed, x: Rows, memory: KeysValues) -> Attended:
        """Return what the queries get from some keys and values."""
        where, window = self.net.where(done.inp, x.positions), self.net.problem.model.window
        return attend(_keeper(done, x).kept.queries, where, memory, window)

    def project(self, done: Computed, x: Rows, weight: Flat, attended: Attended) -> Rows:
        """Return the attention's output, or a part's share of it."""
        keeper, part = _keeper(done, x), _part(done)
        found = keeper.kept
        found.joining, found.attended = self._keep(done), attended
        made = found.joining.forward(self.net.taking(joined, done.layer, part), weight.values, attended.output)
        if part.index == 0:
            made = made + found.rest
        found.rest = None
        if not found.is_kept:
            keeper.kept = None
        return Rows(made, x.positions)

    def backward_project(self, done: Computed, x: Rows, grad: Rows, weight: Flat) -> Rows:
        """Return the gradient of what the queries got."""
        found = _keeper(done, x).kept
        found.grad = grad
        found.of_weight, of_attended = found.joining.backward(weight.values, [grad.values], 0, 1)
        return Rows(of_attended)

    def backward_attend(self, done: Computed, x: Rows, grad: Rows, memory: KeysValues) -> tuple[Rows, KeysValues]:
        """Return the gradients of the queries and of some keys and values."""
        found, window = _keeper(done, x).kept, self.net.problem.model.window
        where = self.net.where(done.inp, x.positions)
        of_queries, of_memory = attend_backward(found.queries, where, memory, found.attended, grad.values, window)
        return Rows(of_queries), of_memory

    def backward_keys_values(
        self, done: Computed, x: Rows, weight: Flat, grad_queries: Rows, grad_memory: KeysValues
    ) -> tuple[Flat, Any]:
        """Return the gradients of weights and input of an attention that is taken in steps."""
        found = _taken(_keeper(done, x))
        grads = [grad_queries.values, grad_memory.keys, grad_memory.values]
        of_weight, of_inner = found.projecting.backward(weight.values, grads, 0, 1)
        border = self._border(done, x, weight, found.border, found.grad)
        found_of = [each for each in (of_weight, found.of_weight) if each is not None]
        return self._of_border(done, border, sum(found_of[1:], found_of[0]) if found_of else None, of_inner)

    def _experts_forward(self, done: Computed, copies: Copies, weight: Flat) -> tuple[Copies, Kept]:
        rows, counts = copies.joined()
        copies.kept = kept = self._keep(done)
        made = kept.forward(
            self.net.taking(partial(fed_to_experts, counts=counts), done.layer, _part(done)), weight.values, rows
        )
        return copies.split_alike(made), kept

    def _experts_backward(self, done: Computed, copies: Copies, grad: Copies, weight: Flat) -> tuple[Flat, Copies]:
        kept = self._kept(done, copies, weight)
        of_weight, of_rows = kept.backward(weight.values, [grad.joined()[0]], 0, 1)
        copies.kept = None
        return self._gradient(done, of_weight), copies.split_alike(of_rows)

    def route(self, done: Computed, x: Rows, weight: Flat) -> Copies:
        """Return the copies of tokens that the router makes, and tell the model how many it drops.

        Raises:
            UsageError: the strategy's capacity of experts is not that of what is trained.
        """
        rule, kept = self.net.rule, self._keep(done)
        require_capacity(done, rule.capacity_factor)
        tokens, shares, rest, taken = kept.forward(
            self.net.taking(routed, done.layer, _part(done)), weight.values, x.values
        )
        _keeper(done, x).kept = _Routed(kept, shares, rest, taken)
        self._num_dropped += taken[..., 0].numel() * rule.per_token - int(taken.sum())
        done.model._dropped_copies = self._num_dropped
        return Copies.routed(done, tokens, taken, rule.num_experts)

    def combine(self, done: Computed, x: Rows, outputs: Copies, _weight: Any) -> Rows:
        """Return the weighted sum of what the experts made, with shared experts and residual."""
        routed = _keeper(done, x).kept
        total = routed.rest.clone()
        for expert, rows in _by_expert(outputs):
            here = routed.where(expert)
            total[here] += routed.shares[..., expert][here][:, None] * rows
        return Rows(total, x.positions)

    def backward_combine(self, done: Computed, x: Rows, outputs: Copies, grad: Rows) -> Copies:
        """Return the gradients of what the experts made, and keep that of the shares."""
        routed, of_rows = _keeper(done, x).kept, []
        routed.of_shares = torch.zeros_like(routed.shares)
        for expert, rows in _by_expert(outputs):
            here = routed.where(expert)
            of_tokens = grad.values[here]
            of_rows.append(routed.shares[..., expert][here][:, None] * of_tokens)
            routed.of_shares[..., expert][here] = (rows * of_tokens).sum(-1)
        return outputs.split_alike(torch.cat(of_rows))

    def backward_route(self, done: Computed, x: Rows, grad: Rows, of_copies: Copies, weight: Flat) -> tuple[Flat, Rows]:
        """Return the gradients of the router piece and of the layer's input."""
        routed = _taken(_keeper(done, x))
        of_tokens = torch.zeros_like(grad.values)
        for expert, rows in _by_expert(of_copies):
            of_tokens[routed.where(expert)] += rows
        grads = [of_tokens, routed.of_shares, grad.values, None]
        of_weight, of_input = routed.routing.backward(weight.values, grads, 0, 1)
        return self._gradient(done, of_weight), Rows(of_input, grad.positions)


def arithmetic_of(net: Any, global_batch_size: int) -> Arithmetic:
    """Return what one rank computes; layers that are no transformer's are whole."""
    kind = DividedArithmetic if isinstance(net, TransformerNet) else Arithmetic
    return kind(net, global_batch_size)


def _by_expert(copies: Copies) -> Iterable[tuple[int, torch.Tensor]]:
    """Return the copies for each expert, in order of the samples."""
    rows, counts = copies.joined()
    return zip(copies.experts, rows.split(counts), strict=True)


def _part(done: Computed) -> Part:
    """Return which part of a layer an operation is given the weight of."""
    return next((part_of(value) for value in done.given if isinstance(value, Weight)), WHOLE)


def _taken(keeper: Any) -> Any:
    """Return what is kept, for the last time."""
    kept, keeper.kept = keeper.kept, None
    return kept


def _keeper(done: Computed, x: Any) -> Any:
    """Return what keeps for an input: the shard of the sequence that it was gathered from, or itself."""
    shard = getattr(getattr(done.inp, "_passage", None), "gathered_from", None)
    return x if shard is None else shard._content


def _is_divided(done: Computed) -> bool:
    """Return whether a layer is a part, or its input was gathered from shards of the sequence."""
    return _part(done) != WHOLE or getattr(getattr(done.inp, "_passage", None), "gathered_from", None) is not None


def _of_part(done: Computed, grad: Any) -> Rows:
    """Return the gradient of what a part has made."""
    part = _part(done)
    return grad.of_part(part.index, part.count) if isinstance(grad, Logits) else grad


def _awaiting(border: Border, of_weight: Flat) -> Flat:
    """Return the gradient of a part's weight, which awaits that of what all parts hold if it is not there yet."""
    found = replace(of_weight, awaited=(border,))
    return found if border.common is None else found.settled()


def _input_grad(done: Computed, border: Border, of_inner: Any) -> Any:
    """Return the gradient of the input, or a part's share of it; the embedding has nothing to sum."""
    part, grad = _part(done), border.grad
    assert grad is not None  # it has not crossed
    if of_inner is None:
        return border.cross(grad)
    share: Any = Rows(of_inner, grad.positions)
    crossed: Any = (border,)
    return PartialGrad(share, frozenset([part.index]), part.count, crossed).finished()
