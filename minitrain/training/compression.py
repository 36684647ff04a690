"""What workers send, keep and make of compressed gradients on real processes: the bytes that prices count, no more.

As `minitrain.proof.compression` has it, in torch. Codes go as bytes, those of 4 bits two to a byte, with scales in
single precision; places as 32-bit integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, final

import torch

from minitrain.engine.observers import Computed
from minitrain.tensors.compressed import CODES, Compressor, PowerSGD, Quantised, Shapes, TopK
from minitrain.training.contents import Flat


@final
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


@final
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


@final
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
                memory.firsts.append(orthonormal(found))
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


def matrices(values: torch.Tensor, shapes: Shapes) -> Iterator[torch.Tensor]:
    """Yield the weights of a layer in their shapes, without copying."""
    start = 0
    for shape in shapes:
        yield values[start : start + prod(shape)].view(shape)
        start += prod(shape)


def orthonormal(columns: torch.Tensor) -> torch.Tensor:
    """Return orthonormal columns that span the same, by the Gram-Schmidt procedure; 0 for those that add nothing."""
    found = torch.zeros_like(columns)
    least = 100 * torch.finfo(columns.dtype).eps
    for k in range(columns.shape[-1]):
        rest = column = columns[..., k : k + 1]
        for _ in range(2):  # what rounding has left of the columns before goes with the second time
            rest = rest - found @ (found.mT @ rest)
        length, whole = (each.norm(dim=-2, keepdim=True) for each in (rest, column))
        found[..., k : k + 1] = torch.where(length > least * whole, rest / length, torch.zeros_like(rest))
    return found


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
