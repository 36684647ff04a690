"""Gradients that are sent in fewer bytes than they have: how, and the tensors of it.

| compressor | a message has | bound of a worker's error |
|---|---|---|
| `Quantised` | a code for each element, a scale in single precision for each block | half a step of a block's scale |
| `TopK` | the largest elements and their places | what is not sent is no larger than what is |
| `PowerSGD` | two factors, one after the other, that are summed; what is no large matrix, whole | none: it converges |

With *feedback* a worker adds what a message lacks to the gradient of its next step. A message is a tensor that knows
its samples, as gradients do, so that the laws of sums hold for it; it is no gradient, which alone an optimizer takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Any, ClassVar, Literal

from minitrain.errors import UsageError, require_count
from minitrain.tensors.kinds import OptState, Sharded, WeightGrad

Shapes = Sequence[tuple[int, ...]]
"""The weights of a layer that train: matrices, batches of matrices (of experts), and vectors."""

CODES = {"int8": (8, 127.0), "fp8": (8, 448.0), "int4": (4, 7.0)}
"""Bits of a code, and the largest number that a block's scale stands for; fp8 is E4M3 (Micikevicius et al. 2022)."""

SCALE_BYTES, PLACE_BYTES = 4, 4


@dataclass(frozen=True, slots=True)
class Quantised:
    """Codes of few bits; each block of elements has a scale, by which its largest element is the largest code.

    Args:
        codes: "int8", "fp8" (E4M3) or "int4".
        block: elements that share a scale, counted from the first that a rank compresses.
        feedback: whether a worker adds what its message lacks to its next gradient.
    """

    codes: Literal["int8", "fp8", "int4"] = "int8"
    block: int = 64
    feedback: bool = False

    phases: ClassVar[int] = 1
    sums: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.codes not in CODES:
            raise UsageError(f"codes must be {', '.join(CODES)}, got {self.codes!r:.80}")
        require_count("block", self.block)

    def __str__(self) -> str:
        return f"{self.codes}:{self.block}{'+feedback' * self.feedback}"

    def message_bytes(self, shapes: Shapes, share: float, element_bytes: int, phase: int = 0) -> int:  # noqa: ARG002
        """Return the bytes of one worker's message for a share of a layer."""
        count = _elements(shapes, share)
        return ceil(count * CODES[self.codes][0] / 8) + SCALE_BYTES * ceil(count / self.block)

    def factor_bytes(self, shapes: Shapes, element_bytes: int) -> int:  # noqa: ARG002
        """Return 0: it keeps nothing but the error."""
        return 0

    def element_passes(self, op: str) -> int:
        """Return how often the elements are read or written: twice to find scales and to code, and for the error."""
        return 2 + 2 * self.feedback if op == "compress" else 1


@dataclass(frozen=True, slots=True)
class TopK:
    """The elements of a layer that are largest by magnitude (Stich et al. 2018; Lin et al. 2018).

    Args:
        share: of the elements that are sent, above 0 and at most 1.
    """

    share: float = 0.01

    feedback: ClassVar[bool] = True
    phases: ClassVar[int] = 1
    sums: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if isinstance(self.share, bool) or not isinstance(self.share, int | float) or not 0 < self.share <= 1:
            raise UsageError(f"the share of elements that are sent must be above 0 and at most 1, got {self.share!r}")

    def __str__(self) -> str:
        return f"topk:{self.share:g}"

    def kept(self, count: int) -> int:
        """Return how many of some elements are sent."""
        return ceil(self.share * count)

    def message_bytes(self, shapes: Shapes, share: float, element_bytes: int, phase: int = 0) -> int:  # noqa: ARG002
        """Return the bytes of one worker's message for a share of a layer."""
        return self.kept(_elements(shapes, share)) * (element_bytes + PLACE_BYTES)

    def factor_bytes(self, shapes: Shapes, element_bytes: int) -> int:  # noqa: ARG002
        """Return 0: it keeps nothing but the error."""
        return 0

    def element_passes(self, op: str) -> int:
        """Return how often the elements are read or written: four times to select by radix, and for sum and error."""
        return 8 if op == "compress" else 1


@dataclass(frozen=True, slots=True)
class PowerSGD:
    """Two factors of few columns, by power iteration that begins where the last step ended (Vogels et al. 2019).

    A matrix of n x m is sent as factors where these have fewer elements: rank x (n + m) < n m. All else is sent whole.

    Args:
        rank: columns of a factor.
    """

    rank: int = 4

    feedback: ClassVar[bool] = True
    phases: ClassVar[int] = 2
    sums: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_count("rank", self.rank)

    def __str__(self) -> str:
        return f"powersgd:{self.rank}"

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Return whether a weight is sent as factors."""
        return len(shape) > 1 and self.rank * sum(shape[-2:]) < prod(shape[-2:])

    def first_factor(self, layer: int, place: int, shape: tuple[int, ...]) -> Any:
        """Return what power iteration begins with for a matrix: normal random numbers, the same for all workers.

        Args:
            layer: which layer.
            place: which of its weights.
            shape: of that weight, batch x n x m; the factor is batch x m x rank.
        """
        from numpy.random import default_rng  # noqa: PLC0415  (only where there are numbers)

        return default_rng([layer, place]).standard_normal((*shape[:-2], shape[-1], self.rank))

    def columns(self, shapes: Shapes, side: int) -> int:
        """Return the elements of all first factors (side -2) or second ones (-1)."""
        return sum(self.rank * prod(shape[:-2]) * shape[side] for shape in shapes if self.takes(shape))

    def message_bytes(self, shapes: Shapes, share: float, element_bytes: int, phase: int = 0) -> int:  # noqa: ARG002
        """Return the bytes of one message: the first factors and what is no matrix, or the second factors."""
        whole = sum(prod(shape) for shape in shapes if not self.takes(shape))
        return element_bytes * (self.columns(shapes, -1) if phase else self.columns(shapes, -2) + whole)

    def factor_bytes(self, shapes: Shapes, element_bytes: int) -> int:
        """Return the bytes of both factors, which a rank keeps, as PyTorch does."""
        return element_bytes * (self.columns(shapes, -1) + self.columns(shapes, -2))

    def element_passes(self, op: str) -> int:
        """Return how often the elements are read or written beside multiplications: for sums and errors, three each."""
        return 0 if op == "second_factor" else 3


Compressor = Quantised | TopK | PowerSGD


def compressor_of(word: Any) -> Compressor | None:
    """Return the compressor of a word: "fp8:128", "int4:32+feedback", "topk:0.01", "powersgd:4"; None of "none".

    Raises:
        UsageError: there is none such.

    >>> compressor_of("int4:32+feedback"), compressor_of("topk:0.1"), compressor_of("none")
    (Quantised(codes='int4', block=32, feedback=True), TopK(share=0.1), None)
    """
    if word is None or word == "none" or isinstance(word, Compressor):
        return None if word == "none" else word
    name, _, number = str(word).removesuffix("+feedback").partition(":")
    feedback = str(word).endswith("+feedback")
    try:
        if name == "topk" and not feedback:
            return TopK(*([float(number)] if number else []))
        sizes = [int(number)] if number else []
        if name == "powersgd" and not feedback:
            return PowerSGD(*sizes)
        if name in CODES:
            return Quantised(name, (sizes or [64])[0], feedback)  # type: ignore[arg-type]  # one of the literals
    except ValueError:
        pass
    raise UsageError(
        f'no compression is called {word!r:.80}; use "powersgd:4" (rank), "topk:0.01" (share), "int8", "fp8" or "int4" '
        '("int4:32" in blocks of 32, "int4:32+feedback" with the error fed back), or "none"'
    )


def _elements(shapes: Shapes, share: float) -> int:
    """Return the elements of a share of a layer."""
    return ceil(sum(map(prod, shapes)) * share)


@dataclass(slots=True)
class CompressedGrad(Sharded["CompressedGrad"]):
    """Messages in which gradients of one layer are sent: those of some workers, or the sum of theirs.

    Args:
        layer, layers, samples, total_samples, shards, num_shards: as of the gradients.
        how: the compressor.
        phase: 0, or 1 of the second factors.
        members: how many messages it holds.
    """

    layer: int
    layers: int
    samples: frozenset[int]
    total_samples: int
    shards: frozenset[int]
    num_shards: int
    how: Compressor
    phase: int = 0
    members: int = 1

    _combines_as = "compressed gradients"


@dataclass(slots=True)
class ApproximateGrad(WeightGrad):
    """What comes of compressed gradients: no exact gradient, and only for updates that are declared to take it."""


@dataclass(slots=True)
class CompressionState(OptState):
    """What a worker keeps to compress a layer's gradients: the error so far, and the factors to begin with.

    Args:
        layer, layers, shards, num_shards: as of the gradients.
        step: how many of them it has compressed.
        how: the compressor.
        phase: how many messages of the next one it has made; the error's place then holds what is to be sent.
        samples: the samples of that one; none before its first message.
    """

    how: Compressor = PowerSGD()
    phase: int = 0
    samples: frozenset[int] = frozenset()


COMPRESSED_KINDS: tuple[type[Any], ...] = (CompressedGrad, ApproximateGrad, CompressionState)
"""The kinds of tensor of compression."""
