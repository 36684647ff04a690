"""What real processes train: dense layers, on a text's bytes or on the numbers of a proof.

The specified workload says what a layer costs and nothing of what it computes. Here it is trained as dense layers
y = tanh(x) W: a language model of bytes, whose input is the last `CONTEXT` bytes, each by a fixed random code, and
whose output holds the logits of the next byte (Bengio et al. 2003, with codes that are not trained). A line of it per
sample; the first step's loss is about log 256 = 5.55 nats a byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from minitrain.errors import UsageError
from minitrain.files import read_bytes
from minitrain.proof.arithmetic import Adam, Averaged, Momentum, Optimizer
from minitrain.proof.problem import Problem
from minitrain.proof.units import Part
from minitrain.tensors.index_sets import SequencePart
from minitrain.training.contents import Positions, Rows, on_device
from minitrain.training.layers import Datatypes, Layer, wide

CONTEXT = 16
"""Bytes that the language model sees."""

SINGLE, DOUBLE = (Datatypes(each, each, each) for each in (torch.float32, torch.float64))
NUM_BYTES = 256
CPU = torch.device("cpu")


def read_text(data: Any = None) -> bytes:
    """Return the bytes to learn: the shipped strategies' own source, a file's, or those of an iterable of texts.

    Raises:
        UsageError: there is no such file, or too little in it.
    """
    if data is None:
        sources = sorted(files("minitrain.strategies").iterdir(), key=lambda each: each.name)
        text = b"".join(each.read_bytes() for each in sources if each.name.endswith(".py"))
    elif isinstance(data, str | Path):
        try:
            text = read_bytes(data, "file to learn from", 4 * 2**30)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"data must be a file that can be read, or an iterable of texts; {data}: {error}"
            ) from None
    else:
        text = b"".join(piece.encode() if isinstance(piece, str) else bytes(piece) for piece in data)
    if len(text) < 4 * CONTEXT:
        raise UsageError(f"data must have at least {4 * CONTEXT} bytes to learn from, got {len(text)}")
    return text


class Compiled:
    """What torch has compiled, each once however many layers are alike."""

    def __init__(self) -> None:
        from torch._dynamo import config as tracing  # noqa: PLC0415  (takes seconds)
        from torch._functorch import config as graphs  # noqa: PLC0415
        from torch._inductor import config as kernels  # noqa: PLC0415

        tracing.recompile_limit = 256  # one function makes all layers
        graphs.donated_buffer = False  # a split backward goes through a graph twice
        kernels.compile_threads = 1  # no processes beside the ranks
        self._known: dict[Any, Callable[..., Any]] = {}

    def get(self, key: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function as it was compiled for a key, or else compile it."""
        if key not in self._known:
            self._known[key] = torch.compile(function, dynamic=False)
        return self._known[key]


class Dense:
    """Layers y = tanh(x) W of one width."""

    def __init__(
        self,
        num_layers: int,
        width: int,
        optimizer: Optimizer | Averaged,
        dtypes: Datatypes,
        device: torch.device,
        *,
        compiles: bool = False,
    ) -> None:
        self.width = width
        layer = Compiled().get("layer", self._layer) if compiles else self._layer
        self.layers: Sequence[Layer] = [layer] * num_layers
        self.optimizer = optimizer
        self.optimizer_of = lambda _: optimizer
        self.dtypes = dtypes
        self.device = device

    def _layer(self, weight: torch.Tensor, x: torch.Tensor, _: Positions) -> torch.Tensor:
        return torch.tanh(x) @ weight.view(self.width, self.width)

    def size(self, layer: int, part: Part) -> int:  # noqa: ARG002  (all are alike, and whole)
        """Return the number of elements of a layer's weight."""
        return self.width**2

    def num_frozen(self, layer: int, part: Part) -> int:  # noqa: ARG002
        """Return 0: all is trained."""
        return 0

    def has_backward(self, layer: int) -> bool:  # noqa: ARG002
        """Return True, likewise."""
        return True

    def positions(self, sequence: SequencePart) -> Positions:
        """Return nothing: a sample is one row."""

    def where(self, symbol: Any, positions: Positions) -> Positions:  # noqa: ARG002  (nothing, likewise)
        """Return nothing, likewise."""
        return positions

    def shape(self, layer: int, num_samples: int, positions: Positions) -> tuple[int, ...]:  # noqa: ARG002
        """Return the shape of a layer's input."""
        return num_samples, self.width


class DenseBytes(Dense):
    """A language model of bytes.

    Args:
        num_layers: dense layers.
        text: what is learnt.
        width: of the layers, at least 256, the logits of a byte.
        seed: of the initial weights, and of the places in the text.
        optimizer: takes the step.
        dtypes: of its numbers.
        device: where they are.
        compiles: whether torch compiles the layers.
    """

    def __init__(
        self,
        num_layers: int,
        text: bytes,
        width: int = NUM_BYTES,
        seed: int = 0,
        optimizer: Adam | Momentum | None = None,
        dtypes: Datatypes = SINGLE,
        device: torch.device = CPU,
        *,
        compiles: bool = False,
    ) -> None:
        if width < NUM_BYTES or width % CONTEXT:
            raise UsageError(f"width must be a multiple of {CONTEXT} of at least {NUM_BYTES}, got {width}")
        super().__init__(num_layers, width, optimizer or Adam(rate=2e-3), dtypes, device, compiles=compiles)
        self._seed = seed
        self._text = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        codes = torch.randn(NUM_BYTES, width // CONTEXT, generator=self._generator(-1), dtype=torch.float64)
        self._codes = codes.to(device, dtypes.compute)
        self._drawn: tuple[tuple[int, int], torch.Tensor] | None = None

    def _generator(self, which: int) -> torch.Generator:
        return torch.Generator().manual_seed((self._seed << 32) + which + 1)

    def initial_weight(self, layer: int, part: Part) -> torch.Tensor:  # noqa: ARG002  (layers are whole)
        """Return normal random numbers at a scale where tanh does not saturate."""
        numbers = torch.randn(self.width**2, generator=self._generator(layer), dtype=torch.float64)
        scaled: torch.Tensor = numbers / (self.width / 2) ** 0.5
        return scaled

    def _places(self, global_batch_size: int, step: int) -> torch.Tensor:
        """Return where in the text each sample of a step begins."""
        asked = global_batch_size, step
        if self._drawn is None or self._drawn[0] != asked:
            last = len(self._text) - CONTEXT
            places = torch.randint(0, last, (global_batch_size,), generator=self._generator((1 << 20) + step))
            self._drawn = asked, places
        return self._drawn[1]

    def inputs(self, samples: Sequence[int], positions: Positions, global_batch_size: int, step: int) -> torch.Tensor:  # noqa: ARG002  (a sample is one row)
        """Return the codes of the bytes before the next one."""
        places = self._places(global_batch_size, step)[list(samples)]
        seen = on_device(self._text[places[:, None] + torch.arange(CONTEXT)], self.device)
        return self._codes[seen].reshape(len(places), -1)

    def loss(self, output: Rows, samples: Sequence[int], global_batch_size: int, step: int) -> torch.Tensor:
        """Return the cross-entropy with the next byte, nats, divided by the samples of the batch."""
        places = self._places(global_batch_size, step)[list(samples)]
        wanted = on_device(self._text[places + CONTEXT], self.device)
        total = torch.nn.functional.cross_entropy(wide(output.values[:, :NUM_BYTES]), wanted, reduction="sum")
        return total / global_batch_size


class DenseProof(Dense):
    """The dense layers of a proof, with its numbers: mean over the batch of half the squared distance to a target.

    Args:
        num_layers: dense layers.
        problem: data, initial weights and optimizer.
        dtypes: of its numbers.
        device: where they are.
        compiles: whether torch compiles the layers.
    """

    def __init__(
        self,
        num_layers: int,
        problem: Problem,
        dtypes: Datatypes = DOUBLE,
        device: torch.device = CPU,
        *,
        compiles: bool = False,
    ) -> None:
        super().__init__(num_layers, problem.width, problem.optimizer, dtypes, device, compiles=compiles)
        self._problem = problem

    def initial_weight(self, layer: int, part: Part) -> torch.Tensor:  # noqa: ARG002  (layers are whole)
        """Return the proof's initial weight."""
        return torch.tensor(self._problem.initial_weight(layer)).view(-1)

    def inputs(self, samples: Sequence[int], positions: Positions, global_batch_size: int, step: int) -> torch.Tensor:  # noqa: ARG002  (every step has them)
        """Return the proof's inputs."""
        return torch.tensor(
            self._problem.inputs(global_batch_size)[list(samples)], dtype=self.dtypes.compute, device=self.device
        )

    def loss(
        self,
        output: Rows,
        samples: Sequence[int],
        global_batch_size: int,
        step: int,  # noqa: ARG002
    ) -> torch.Tensor:
        """Return these samples' share of the mean of half the squared distance to the targets."""
        found = wide(output.values)
        targets = self._problem.targets(global_batch_size)[list(samples)]
        distances = found - torch.tensor(targets, dtype=found.dtype, device=self.device)
        return (distances**2).sum() / 2 / global_batch_size
