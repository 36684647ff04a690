"""What one device reaches in kernels: the `kernels` key of a hardware config, as values.

The rates are measured, not the data sheet's: those of a matrix multiplication that fills the device, of a copy that is
larger than all caches, of attention kernels by generation. `hardware.kernel_device` says how they make seconds.
`docs/accuracy.md` says what each was fitted on, and `hw_configs/SOURCES.md` gives the source of every figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar, final

from minitrain.errors import HardwareConfigError, UsageError
from minitrain.hardware.device import Rows, efficiency_at

_Entry = TypeVar("_Entry")

TERMS = ("waves", "prologue", "split_k", "alignment", "weight_gradient", "tails", "starts", "launches")
"""The terms of the model that an ablation may leave out."""


@final
@dataclass(frozen=True, slots=True)
class MatmulRate:
    """How fast matrices of one datatype are multiplied.

    Args:
        tflops: rate of a kernel whose tiles fill the device again and again, in 1e12 FLOP/s.
        prologue: steps along k that a tile pays beside its own, for filling its pipeline and writing its result.
    """

    tflops: float
    prologue: float


@final
@dataclass(frozen=True, slots=True)
class AttentionRate:
    """How fast one generation of attention kernels is on a device, forward or backward.

    Args:
        efficiency: share of the datatype's dense peak, where the device is full.
        tail: share of the longest block's time for which the device is not full at the end.
        head_efficiency: rows `(lower bound of the head size, factor)`, bounds strictly descending to 0.
    """

    efficiency: float
    tail: float
    head_efficiency: Rows

    def share(self, head_dim: int) -> float:
        """Return the share of the peak for a head size."""
        return self.efficiency * efficiency_at(self.head_efficiency, head_dim, 1)

    def scaled(self, factor: float) -> AttentionRate:
        """Return the same kernels at another clock."""
        return replace(self, efficiency=self.efficiency * factor)


@final
@dataclass(frozen=True, slots=True)
class KernelRates:
    """What a device reaches in kernels.

    Args:
        num_units: multiprocessors, each of which works on one tile at a time.
        GBps: achieved by a copy, read and written together, in 1e9 bytes/s.
        launch_s: time between two launches of small kernels, s: nothing runs faster than it is launched.
        graph_launch_s: the same within a captured graph, s.
        matmul: rates by datatype.
        attention: rates by generation, each as (forward, backward).
        tile_efficiency: rows `(lower bound of a tile's elements, share of the rate)`, bounds descending to 0.
        matmul_bandwidth: share of `GBps` that a matrix multiplication reaches.
        splits: ways to cut k between units, whose partial sums are then added up.
        unaligned: factor on the rate where a row in memory is no multiple of 16 bytes.
        weight_gradient: factor on the time of a weight gradient, whose operands are both transposed.
        matmul_start_s: what a matrix multiplication costs beside its work, s.
        memory_start_s: the same for a pass over memory, s.
        attention_start_s: the same for attention, forward and backward, s.
        attention_block: queries that one unit of attention works on.
    """

    num_units: int
    GBps: float
    launch_s: float
    graph_launch_s: float
    matmul: Mapping[str, MatmulRate] = field(hash=False)
    attention: Mapping[str, tuple[AttentionRate, AttentionRate]] = field(hash=False)
    tile_efficiency: Rows = ((32768.0, 1.0), (16384.0, 0.838), (0.0, 0.692))
    matmul_bandwidth: float = 0.96
    splits: tuple[int, ...] = (1, 2, 4)
    unaligned: float = 0.685
    weight_gradient: float = 1.03
    matmul_start_s: float = 1.75e-6
    memory_start_s: float = 1.5e-6
    attention_start_s: tuple[float, float] = (5e-6, 10e-6)
    attention_block: int = 128

    def __post_init__(self) -> None:
        """Keep read-only copies, so that a frozen value cannot be changed through its mappings."""
        object.__setattr__(self, "matmul", MappingProxyType(dict(self.matmul)))
        object.__setattr__(self, "attention", MappingProxyType(dict(self.attention)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy by the constructor's arguments (a mapping proxy cannot be pickled)."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return _rebuilt, (values | {"matmul": dict(self.matmul), "attention": dict(self.attention)},)

    def matmul_rate(self, datatype: str) -> MatmulRate:
        """Return the rates of a datatype.

        Raises:
            HardwareConfigError: the config has none for it.
        """
        return _known(self.matmul, datatype, "kernels.matmul", "a rate for each datatype used")

    def attention_rate(self, generation: str, *, is_backward: bool) -> AttentionRate:
        """Return the rates of a generation of attention kernels.

        Raises:
            HardwareConfigError: the config has none for it.
        """
        return _known(self.attention, generation, "kernels.attention", "each generation of kernels used")[is_backward]

    @property
    def usual_attention(self) -> str:
        """Return the generation that is meant where nobody says: "flash2", or the first that the config has."""
        return "flash2" if "flash2" in self.attention else next(iter(self.attention), "flash2")

    def scaled(self, factor: float, attention: float = 1.0) -> KernelRates:
        """Return the same device at another clock: arithmetic `factor` times as fast, the memory as it is.

        Args:
            factor: of all arithmetic.
            attention: of attention's kernels beside that.
        """
        matmul = {key: replace(rate, tflops=rate.tflops * factor) for key, rate in self.matmul.items()}
        both = factor * attention
        flash = {key: (ahead.scaled(both), back.scaled(both)) for key, (ahead, back) in self.attention.items()}
        return replace(self, matmul=matmul, attention=flash)

    def without(self, *terms: str) -> KernelRates:
        """Return the rates with some terms of the model left out, for an ablation.

        Args:
            terms: of `TERMS`. Without "waves" tiles spread evenly; without "launches" and "starts" kernels begin at
                once.

        Raises:
            UsageError: there is no such term.
        """
        rates = self
        for term in terms:
            if term not in TERMS:
                raise UsageError(f"a kernel's price has no term {term!r}; use {', '.join(TERMS)}", term=term)
            rates = replace(rates, **_NEUTRAL[term](rates))
        return rates


_NEUTRAL: Mapping[str, Any] = MappingProxyType(
    {
        "waves": lambda _: {"num_units": 1},
        "prologue": lambda rates: {"matmul": {k: replace(rate, prologue=0.0) for k, rate in rates.matmul.items()}},
        "split_k": lambda _: {"splits": (1,)},
        "alignment": lambda _: {"unaligned": 1.0},
        "weight_gradient": lambda _: {"weight_gradient": 1.0},
        "tails": lambda rates: {
            "attention": {k: (replace(a, tail=0.0), replace(b, tail=0.0)) for k, (a, b) in rates.attention.items()}
        },
        "starts": lambda _: {"matmul_start_s": 0.0, "memory_start_s": 0.0, "attention_start_s": (0.0, 0.0)},
        "launches": lambda _: {"launch_s": 0.0, "graph_launch_s": 0.0},
    }
)


def _rebuilt(values: Mapping[str, Any]) -> KernelRates:
    """Make the value again when it is unpickled."""
    return KernelRates(**values)


def _known(table: Mapping[str, _Entry], key: str, path: str, rule: str) -> _Entry:
    """Return an entry, or say which there are."""
    try:
        return table[key]
    except KeyError:
        known = ", ".join(table) or "nothing"
        raise HardwareConfigError(
            f"the config must give {rule}: {path}.{key} is missing (it has {known}); use one of these, or add it",
            key=key,
        ) from None
