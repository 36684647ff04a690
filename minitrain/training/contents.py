"""What tensors carry in a real process: torch tensors of just the elements that the rank holds.

Shard i of n of a layer's weight is the elements from i * size // n to (i + 1) * size // n of its flat array, as in
proofs. A shard that is cut off is a copy, so that the whole can be freed.

Compressed gradients (`Compressing`) have what workers send, keep and make of them, as `minitrain.proof.compression` has
it, in torch: the bytes that prices count, and no more. Codes go as bytes, those of 4 bits two to a byte, with scales in
single precision; places as 32-bit integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch

from minitrain.engine.observers import Computed
from minitrain.errors import LawError
from minitrain.proof.compression import matrices, orthonormal
from minitrain.proof.partial_gradients import OfOrigins, Origin
from minitrain.proof.units import Part, made_here
from minitrain.tensors import placed
from minitrain.tensors.compressed import CODES, Compressor, PowerSGD, Quantised, Shapes, TopK

Interval = tuple[int, int]
Positions = Any
"""Where in the sequence tokens are, a tensor in ascending order; None where there is no sequence."""


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


def are_same(one: Positions, other: Positions) -> bool:
    """Return whether positions are the same."""
    return one is other or (one is not None and other is not None and torch.equal(one, other))


def on_device(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return values of the host on a device; a GPU gets them when it comes to it, and the host does not wait."""
    if device.type == "cpu" or values.device == device:
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def _in_order(values: torch.Tensor, one: Positions, other: Positions, dim: int) -> tuple[torch.Tensor, Positions]:
    """Return what is given for some positions and then for others, in ascending order of positions, and these."""
    positions, order = torch.cat([one, other]).sort()
    return values.index_select(dim, on_device(order, values.device)), positions


@dataclass(slots=True, eq=False)
class Rows:
    """The numbers of an activation or its gradient, for a sequence or some positions of it, whole or a part's share.

    Args:
        values: samples in ascending order x positions, if there are any x size.
        positions: of the tokens.
        kept: what the layer that took it as an input has kept for its backward; see `minitrain.training.layers`.
    """

    values: torch.Tensor
    positions: Positions = None
    kept: Any = None

    def add(self, other: Rows) -> Rows:
        """Return the sum, of the same tokens.

        Raises:
            LawError: they are other ones.
        """
        if not are_same(self.positions, other.positions):
            raise LawError(
                "what adds must be of the same tokens; one side was cut along the sequence, and not the other"
            )
        return Rows(self.values + other.values, self.positions)

    def shard(self, shard: int, num_shards: int) -> Rows:
        """Return one of `num_shards` equal pieces along the sequence."""
        size = self.values.shape[1] // num_shards
        here = slice(shard * size, (shard + 1) * size)
        return Rows(self.values[:, here].contiguous(), self.positions[here])

    def combine(self, other: Rows) -> Rows:
        """Return the tokens of both, in the order of their positions."""
        return Rows(*_in_order(torch.cat([self.values, other.values], 1), self.positions, other.positions, 1))

    def at(self, positions: Positions) -> Rows:
        """Return the tokens at some positions, all of which must be here."""
        if are_same(positions, self.positions):
            return self
        places = on_device(torch.searchsorted(self.positions, positions), self.values.device)
        return Rows(self.values[:, places], positions)

    def has(self, positions: Positions) -> bool:
        """Return whether all of some positions are here."""
        return are_same(positions, self.positions) or bool(torch.isin(positions, self.positions).all())

    def spread(self, positions: Positions) -> torch.Tensor:
        """Return the values for more positions than these, with zeros for the others."""
        if are_same(positions, self.positions):
            return self.values
        found = self.values.new_zeros(self.values.shape[0], len(positions), self.values.shape[2])
        found[:, on_device(torch.searchsorted(positions, self.positions), found.device)] = self.values
        return found

    def packed(self) -> torch.Tensor:
        """Return what is sent."""
        return self.values.contiguous()

    def unpacked(self, values: torch.Tensor) -> Rows:
        """Return what came for the same tokens."""
        return Rows(values, self.positions)


@dataclass(slots=True, eq=False)
class KeysValues:
    """The keys and values of some positions of a sequence, or their gradients.

    Args:
        keys: samples x kv_heads x positions x key_dim.
        values: samples x kv_heads x positions x value_dim.
        positions: of both.
    """

    keys: torch.Tensor
    values: torch.Tensor
    positions: Positions

    def add(self, other: KeysValues) -> KeysValues:
        """Return the sum of gradients of the same positions.

        Raises:
            LawError: the positions differ.
        """
        if not are_same(self.positions, other.positions):
            raise LawError(
                "gradients of keys and values add where they are of the same positions; send them home first"
            )
        return KeysValues(self.keys + other.keys, self.values + other.values, self.positions)

    def combine(self, other: KeysValues) -> KeysValues:
        """Return the keys and values of the positions of both, in ascending order of positions."""
        both = torch.cat([self.packed(), other.packed()], 2)
        return self._of(*_in_order(both, self.positions, other.positions, 2))

    def at(self, positions: Positions) -> KeysValues:
        """Return those of some of the positions."""
        if are_same(positions, self.positions):
            return self
        places = on_device(torch.searchsorted(self.positions, positions), self.keys.device)
        return KeysValues(self.keys[:, :, places], self.values[:, :, places], positions)

    def packed(self) -> torch.Tensor:
        """Return what is sent: keys and values as one tensor."""
        return torch.cat([self.keys, self.values], -1)

    def unpacked(self, values: torch.Tensor) -> KeysValues:
        """Return what came for the same positions."""
        return self._of(values, self.positions)

    def _of(self, values: torch.Tensor, positions: Positions) -> KeysValues:
        """Return keys and values that are one tensor."""
        keys, own = values.split([self.keys.shape[-1], self.values.shape[-1]], -1)
        return KeysValues(keys, own, positions)


@dataclass(slots=True, eq=False)
class Flat:
    """The numbers of a weight, its gradient or its optimizer state: the elements of some shards, and nothing else.

    Args:
        values: the elements that are held along the last axis, in ascending order.
        pieces: which elements of the whole they are: disjoint intervals in ascending order.
        regions: what is cut into shards, each by itself: all elements; or those of a weight that are frozen and those
            that are trained, of which gradients and states have the latter.
        awaited: of a gradient of a part, where the rest of it will come from; see `minitrain.training.divided`.
    """

    values: torch.Tensor
    pieces: Sequence[Interval]
    regions: Sequence[Interval]
    awaited: tuple[Any, ...] = ()

    @classmethod
    def whole(cls, values: torch.Tensor, regions: Sequence[Interval] | None = None) -> Flat:
        """Return all elements of some regions; of a layer, if none are given."""
        regions = [(0, values.shape[-1])] if regions is None else regions
        return cls(values, merged(regions), regions)

    @property
    def size(self) -> int:
        """Elements of the regions."""
        return sum(last - first for first, last in self.regions)

    def with_values(self, values: torch.Tensor) -> Flat:
        """Return other numbers for the same elements."""
        return Flat(values, self.pieces, self.regions)

    def add(self, other: Flat) -> Flat:
        """Return the sum."""
        return Flat(self.values + other.values, self.pieces, self.regions, self.awaited + other.awaited)

    def settled(self) -> Flat:
        """Return this gradient with all that it has awaited.

        Raises:
            LawError: the gradient of the layer's input was not summed over the parts.
        """
        for border in self.awaited:
            border.add_common(self.values)
        self.awaited = ()
        return self

    def shard(self, shard: int, num_shards: int) -> Flat:
        """Return the elements of one of `num_shards` shards."""
        pieces = pieces_of([shard], num_shards, self.regions)
        found = self.settled().at(pieces)
        is_all = found.shape == self.values.shape
        return Flat(found if is_all or len(pieces) > 1 else found.clone(), pieces, self.regions)

    def at(self, pieces: Sequence[Interval]) -> torch.Tensor:
        """Return the elements of some intervals, all of which must be held, without copying those of one."""
        if list(pieces) == list(self.pieces):
            return self.values
        found = [self.shard_at(piece) for piece in pieces]
        return found[0] if len(found) == 1 else torch.cat([self.values[..., :0], *found], -1)

    def shard_at(self, piece: Interval) -> torch.Tensor:
        """Return the elements of an interval, which must be held, without copying.

        Raises:
            ValueError: they are not held.
        """
        (start, end), at = piece, 0
        for first, last in self.pieces:
            if first <= start and end <= last:
                return self.values[..., at + start - first : at + end - first]
            at += last - first
        held = f"which are {list(self.pieces)} of {self.regions[-1][1]}"
        raise ValueError(f"elements {start} to {end} are not held here, {held}")

    def combine(self, other: Flat) -> Flat:
        """Return the elements of both."""
        return put_together([self.settled(), other.settled()])

    def packed(self) -> torch.Tensor:
        """Return what is sent."""
        return self.settled().values.contiguous()


def put_together(contents: Iterable[Flat]) -> Flat:
    """Return the elements of several, which have none in common."""
    cut = []
    for content in contents:
        sizes = [last - first for first, last in content.pieces]
        cut += list(zip(content.pieces, content.values.split(sizes, -1) if sizes else (), strict=True))
    cut.sort(key=lambda piece: piece[0])
    values = torch.cat([content.values[..., :0], *(values for _, values in cut)], -1)
    return Flat(values, merged(piece for piece, _ in cut), content.regions)


def bounds(shard: int, num_shards: int, size: int) -> Interval:
    """Return which of `size` elements a shard has.

    >>> bounds(1, 3, 8)
    (2, 5)
    """
    return shard * size // num_shards, (shard + 1) * size // num_shards


def pieces_of(shards: Iterable[int], num_shards: int, regions: Iterable[Interval]) -> list[Interval]:
    """Return which elements some shards have, of regions that are each cut by themselves.

    >>> pieces_of({0, 1, 3}, 4, [(0, 8)]), pieces_of({1}, 2, [(0, 6), (6, 8)])
    ([(0, 4), (6, 8)], [(3, 6), (7, 8)])
    """
    ordered = sorted(shards)
    return merged(
        (start + first, start + last)
        for start, end in regions
        for first, last in (bounds(shard, num_shards, end - start) for shard in ordered)
    )


def merged(pieces: Iterable[Interval]) -> list[Interval]:
    """Return ascending intervals, those that touch as one, and none that is empty."""
    found: list[Interval] = []
    for start, end in pieces:
        if start == end:
            continue
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], end
        else:
            found.append((start, end))
    return found


@dataclass(slots=True, eq=False)
class Attended:
    """What some queries have got from the keys that they have met so far.

    Args:
        output: samples x heads x queries x value_dim: values weighted by the softmax over these keys.
        log_sum_exp: samples x heads x queries: of the scores; minus infinity where a query has seen no key.
    """

    output: torch.Tensor
    log_sum_exp: torch.Tensor

    def add(self, other: Attended) -> Attended:
        """Return what the same queries have got from the keys of both, which must be different ones.

        Source: Dao et al. 2022, "FlashAttention", section 3.1: l = log(exp(l1) + exp(l2)), and the output is
        exp(l1 - l) o1 + exp(l2 - l) o2.
        """
        total = torch.logaddexp(self.log_sum_exp, other.log_sum_exp)
        mine, theirs = ((each.log_sum_exp - total).exp().nan_to_num(0.0)[..., None] for each in (self, other))
        return Attended((mine * self.output + theirs * other.output).to(self.output.dtype), total)


@dataclass(slots=True, eq=False)
class Logits:
    """The logits that a rank has made of some rows of the vocabulary, and what it knows of all; or their gradient.

    Args:
        pieces: by part of the vocabulary, samples x positions x rows of the part.
        num_parts: parts of the vocabulary.
        positions: of the tokens.
        targets: the next tokens, samples x positions.
        statistics: 3 x samples x positions: of the logits that were added up the highest, the sum of exponentials of
            all minus the highest, and that of the target, 0 where none has it. What parts exchange (Shoeybi et al.
            2019, section 3).
    """

    pieces: Mapping[int, torch.Tensor]
    num_parts: int
    positions: Positions
    targets: torch.Tensor
    statistics: torch.Tensor

    def add(self, other: Logits) -> Logits:
        """Return the logits of both, with the statistics of all."""
        merged = merge_statistics(self.statistics, other.statistics)
        return replace(self, pieces={**self.pieces, **other.pieces}, statistics=merged)

    def of_part(self, part: int, num_parts: int) -> Rows:
        """Return the gradient of one part's logits.

        Raises:
            LawError: these logits were made by another rank.
        """
        return Rows(made_here(self, part, num_parts), self.positions)


def merge_statistics(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the statistics of the logits of both; see `Logits`."""
    highest = torch.maximum(one[0], other[0])
    total = one[1] * (one[0] - highest).exp() + other[1] * (other[0] - highest).exp()
    return torch.stack([highest, total, one[2] + other[2]])


@dataclass(slots=True, eq=False)
class Copies(OfOrigins):
    """Copies of tokens in torch's tensors.

    Args:
        kept: what the experts have kept for their backward.
    """

    kept: Any = None

    @property
    def experts(self) -> list[int]:
        """For which experts they are."""
        return sorted(next(iter(self.rows.values())))

    def joined(self) -> tuple[torch.Tensor, list[int]]:
        """Return all copies, expert by expert and within these in order of the samples, and how many each has."""
        by_expert = [[rows[expert] for rows in self.rows.values()] for expert in self.experts]
        return torch.cat([each for rows in by_expert for each in rows]), [sum(map(len, rows)) for rows in by_expert]

    def split_alike(self, values: torch.Tensor) -> Copies:
        """Return other rows for the same copies, as `joined` gives them."""
        places = [(origin, expert) for expert in self.experts for origin in self.rows]
        pieces = values.split([len(self.rows[origin][expert]) for origin, expert in places])
        found: dict[Origin, dict[int, torch.Tensor]] = {origin: {} for origin in self.rows}
        for (origin, expert), piece in zip(places, pieces, strict=True):
            found[origin][expert] = piece
        return Copies(found)


def moved(value: Any, move: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a copy of a content whose tensors were moved; what is kept for backward moves too.

    Positions stay, as indices: whoever communicates compares them.
    """
    if isinstance(value, torch.Tensor):
        return move(value)
    if isinstance(value, Mapping):
        return {key: moved(each, move) for key, each in value.items()}
    if hasattr(value, "move"):
        value.move(move)
        return value
    if not is_dataclass(value) or isinstance(value, type):
        return value
    names = [each.name for each in fields(value) if each.name != "positions"]
    return replace(value, **{name: moved(getattr(value, name), move) for name in names})


@dataclass(slots=True, eq=False)
class Factors:
    """What is summed over workers: a factor of each matrix, and what is sent whole.

    Args:
        tensors: in the order of the weights.
    """

    tensors: list[torch.Tensor]

    def packed(self) -> torch.Tensor:
        """Return what is sent, as one vector."""
        return torch.cat([each.reshape(-1) for each in self.tensors]) if self.tensors else torch.empty(0)

    def unpacked(self, values: torch.Tensor) -> Factors:
        """Return the sums."""
        pieces = values.split([each.numel() for each in self.tensors]) if self.tensors else ()
        return Factors([piece.view_as(like) for piece, like in zip(pieces, self.tensors, strict=True)])


@dataclass(slots=True, eq=False)
class Messages:
    """What workers have sent, side by side.

    Args:
        pieces: the bytes of each.
    """

    pieces: list[torch.Tensor]

    def packed(self) -> torch.Tensor:
        """Return the bytes of this worker's."""
        return torch.cat(self.pieces)

    def combine(self, other: Messages) -> Messages:
        """Return the messages of both."""
        return Messages(self.pieces + other.pieces)


@dataclass(slots=True, eq=False)
class Memory:
    """What a worker keeps: see `minitrain.proof.compression.Memory`.

    Args:
        error: what its messages have lacked so far; between messages, what is to be sent.
        seconds: the second factors of the last step.
        firsts: the first factors of this step, orthonormal.
        whole: the sums of what is sent whole.
    """

    error: torch.Tensor
    seconds: list[torch.Tensor]
    firsts: list[torch.Tensor]
    whole: list[torch.Tensor]


class Compressing:
    """The operations of a rank that compresses gradients; to be extended by what it computes.

    Attributes:
        memories: by layer, of the last step.
        shapes: of the weights that train, by layer.
    """

    memories: dict[int, Memory]
    shapes: dict[int, Shapes]

    def load_compression(self, done: Computed, weight: Flat) -> Memory:
        """Return what the step before has left; at first no error, and random factors."""
        self.shapes[done.layer] = shapes = done.model._runtime_predictor.workload.matrices(done.layer)
        found = self.memories.get(done.layer)
        if found is not None:
            return found
        state, net = done.made, self.net  # type: ignore[attr-defined]  # of who extends this
        own = self._trained(state, weight).values  # type: ignore[attr-defined]  # likewise
        error = torch.zeros(own.numel() if state.how.feedback else 0, dtype=net.dtypes.gradients, device=own.device)
        if not isinstance(state.how, PowerSGD):
            return Memory(error, [], [], [])
        numbers = [
            torch.from_numpy(state.how.first_factor(done.layer, place, shape)).to(error)
            for place, shape in enumerate(shapes)
            if state.how.takes(shape)
        ]
        return Memory(error, numbers, [], [])

    def compress(self, done: Computed, grad: Flat, memory: Memory) -> tuple[Factors | Messages, Memory]:
        """Return the first message of a gradient with the error so far."""
        how, given = done.made[0].how, grad.packed()
        if how.feedback:
            given = memory.error.add_(given)
        if isinstance(how, PowerSGD):
            seconds = iter(memory.seconds)
            found = matrices(given, self.shapes[done.layer])
            return Factors([m @ next(seconds) if how.takes(m.shape) else m.clone() for m in found]), memory
        message = encoded(how, given)
        if how.feedback:
            memory.error.sub_(decoded(how, message, given))
        return Messages([message]), memory

    def second_factor(self, done: Computed, sums: Factors, memory: Memory) -> tuple[Factors, Memory]:
        """Return what a worker's matrices give with the first factors of all, made orthonormal."""
        how, shapes, seconds = done.made[0].how, self.shapes[done.layer], []
        memory.firsts, memory.whole = [], []
        for own, found in zip(matrices(memory.error, shapes), sums.tensors, strict=True):
            if how.takes(tuple(own.shape)):
                memory.firsts.append(orthonormal(found, 100 * torch.finfo(found.dtype).eps))
                seconds.append(own.mT @ memory.firsts[-1])
            else:
                memory.whole.append(found)
        return Factors(seconds), memory

    def decompress(self, done: Computed, sent: Any, memory: Memory) -> tuple[Flat, Memory]:
        """Return the sum that messages stand for, and a worker's error for the next step."""
        how, net = done.made[1].how, self.net  # type: ignore[attr-defined]  # as above
        grad = self._gradient_at(done)  # type: ignore[attr-defined]  # likewise
        self.memories[done.layer] = memory
        if not isinstance(how, PowerSGD):
            for piece in sent.pieces:
                grad.values.add_(decoded(how, piece, grad.values))
            return grad, memory
        whole, factors = iter(memory.whole), iter(zip(memory.firsts, sent.tensors, strict=True))
        shapes, workers = self.shapes[done.layer], done.model._semantics.workers
        for own, made in zip(matrices(memory.error, shapes), matrices(grad.values, shapes), strict=True):
            if how.takes(tuple(own.shape)):
                first, second = next(factors)
                torch.matmul(first, second.mT, out=made)
                own.sub_(made, alpha=1 / workers)
            else:
                made.copy_(next(whole))
                own.zero_()
        memory.seconds, memory.firsts, memory.whole = sent.tensors, [], []
        assert grad.values.dtype == net.dtypes.gradients
        return grad, memory


def encoded(how: Compressor, values: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a message."""
    if isinstance(how, TopK):
        places = values.abs().topk(how.kept(values.numel())).indices.sort().values
        return torch.cat([_bytes(places.to(torch.int32)), _bytes(values[places])])
    assert isinstance(how, Quantised)
    blocks = torch.nn.functional.pad(values, (0, -values.numel() % how.block)).view(-1, how.block)
    largest = blocks.abs().amax(1, keepdim=True)
    scales = (torch.where(largest > 0, largest, torch.ones_like(largest)) / CODES[how.codes][1]).float()
    scaled = (blocks / scales).view(-1)[: values.numel()].clamp(-CODES[how.codes][1], CODES[how.codes][1])
    is_float = how.codes == "fp8"
    codes = _bytes(scaled.to(torch.float8_e4m3fn) if is_float else scaled.round().to(torch.int8))
    if how.codes == "int4":
        low, high = torch.nn.functional.pad(codes & 15, (0, codes.numel() % 2)).view(-1, 2).unbind(1)
        codes = low | high << 4
    return torch.cat([codes, _bytes(scales.view(-1))])


def decoded(how: Compressor, message: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return the elements that a message stands for."""
    count = like.numel()
    if isinstance(how, TopK):
        places, kept = message[: 4 * how.kept(count)], message[4 * how.kept(count) :]
        return torch.zeros_like(like).index_put_((_as(places, torch.int32).long(),), _as(kept, like.dtype))
    assert isinstance(how, Quantised)
    num_codes = -(-count * CODES[how.codes][0] // 8)
    codes, scales = message[:num_codes], _as(message[num_codes:], torch.float32)
    if how.codes == "fp8":
        numbers = codes.view(torch.float8_e4m3fn).to(like.dtype)
    elif how.codes == "int8":
        numbers = codes.view(torch.int8).to(like.dtype)
    else:
        pairs = torch.stack([codes & 15, codes >> 4], 1).view(-1)[:count].to(like.dtype)
        numbers = torch.where(pairs > 7, pairs - 16, pairs)
    return numbers * scales.to(like.dtype).repeat_interleave(how.block)[:count]


def _bytes(values: torch.Tensor) -> torch.Tensor:
    """Return the bytes of numbers."""
    return values.contiguous().view(torch.uint8)


def _as(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return numbers of a datatype from their bytes, which may lie anywhere."""
    return values.clone().view(dtype)
