"""A device: how long work takes on it, what it holds, what its kernels reach, its data sheet, how often it fails.

**`Device`** is the interface to predictors. `RooflineDevice` is the specified model: an operation takes as long as the
slower of its arithmetic at the processor's throughput and its traffic at the memory's (Williams, Waterman and
Patterson, "Roofline", CACM 52(4), 2009). A throughput is a peak times an efficiency that depends on the size of the
operation, since small operations reach less of a peak than large ones. The efficiency is a step function, as the config
format writes it: rows `(lower bound, efficiency)` in strictly descending order of bounds, the last bound 0. An
operation gets the efficiency of the first row whose bound it reaches, without interpolation. Left out: what kernels
cost to launch, overlap of one operation with the next, clocks, power, caches, the latency of memory, the difference
between reads and writes, and the shape of a matrix multiplication. What they cost belongs in the efficiency rows.

**`KernelRates`** is what one device reaches in kernels: the `kernels` key of a hardware config. The rates are measured,
not the data sheet's: those of a matrix multiplication that fills the device, of a copy that is larger than all caches,
of attention kernels by generation. `minitrain.machine.kernel_device` says how they make seconds. `docs/accuracy.md`
says what each was fitted on, and `hw_configs/SOURCES.md` gives the source of every figure.

**`DataSheet`** is what is said of a device beside rates and memories: class, caches, limits, clocks, power, price,
links. All of it is optional in a hardware config, and SI inside: bytes, seconds, hertz, watts. What a config does not
say is None or empty, never a guess. Device simulators, the solver, and the energy and cost of a run read it. Prices of
runs read little: the class (a CPU's host memory is its own), `num_units` where a config has no key `kernels`, and the
power under a cap.

**Failures** (`mtbf_hours_of`): the mean time between failures (MTBF) of a device, by family, from published fleets. A
failure is anything that stops the job: the device, its memory, its host, or its network, counted for each device.

| family | published | MTBF of a device |
|---|---|---|
| h100 | 419 unexpected interruptions in 54 days of 16,384 devices (Llama 3, 2024, table 5) | 50,677 h |
| a100 | 6.50 failures in 1,000 days of a node of 8 devices (Kokolis et al. 2024, RSC-1) | 29,538 h |

The second cluster of the same authors (RSC-2) saw 2.34, a third of it: expect a factor of three from site to site. For
other devices nothing is published that could be used here, and nothing is assumed: give their MTBF.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Protocol, TypeVar, final

from minitrain.errors import HardwareConfigError, UsageError, require_number, shown
from minitrain.machine.columns import larger, least, whole
from minitrain.machine.config_format import (
    FEATURE,
    FLAG,
    NON_NEGATIVE,
    POSITIVE,
    SECONDS,
    SHARE,
    SHARES,
    TEXT,
    UNITS,
    USAGE,
    WHOLE,
    Entries,
    Key,
    ListOf,
    ReadOnly,
    Record,
    UnexpectedError,
    one_of,
    some,
)

if TYPE_CHECKING:
    from minitrain.workloads.workload import Cost

Rows = tuple[tuple[float, float], ...]
Unit = Literal["matrix", "vector"]

_DATATYPES = "an object of datatypes"


def efficiency_at(rows: Rows, amount: float, unit: float) -> float:
    """Return the efficiency of an operation of the given size.

    Args:
        rows: `(lower bound, efficiency)`, bounds in multiples of `unit`, strictly descending, the last one 0.
        amount: size of the operation, in FLOP or bytes, at least 0.
        unit: what the bounds count (1e9 FLOP or 1e6 bytes).

    Returns:
        A share of the peak, in (0, 1].

    Raises:
        UsageError: the amount is negative or not a number.
    """
    for bound, efficiency in rows:
        if amount >= bound * unit:
            return efficiency
    raise UsageError(f"the size of an operation must be a number >= 0, not {amount}; check the FLOP or bytes given")


@dataclass(frozen=True, slots=True)
class Rate:
    """The speed of one unit for one datatype.

    Args:
        tflops: peak, in 1e12 FLOP/s.
        gflops_efficiency: rows `(lower bound in 1e9 FLOP, share of the peak)`, bounds strictly descending
            to 0.
    """

    tflops: Annotated[float, POSITIVE, "TFLOP/s"]
    gflops_efficiency: Annotated[Rows, SHARES, "[GFLOP, share]"]

    @property
    def peak_flop_per_s(self) -> float:
        """Return the peak in FLOP/s."""
        return self.tflops * 1e12

    def throughput(self, flops: float) -> float:
        """Return the speed, in FLOP/s, that an operation of `flops` FLOP reaches."""
        return self.peak_flop_per_s * efficiency_at(self.gflops_efficiency, flops, 1e9)


@dataclass(frozen=True, slots=True)
class Processor(ReadOnly):
    """The two compute units of one device.

    Args:
        matrix: rate by datatype of the unit that multiplies matrices.
        vector: rate by datatype of the unit for everything else.
    """

    matrix: Annotated[
        Mapping[str, Rate], Entries(Record(Rate), _DATATYPES, some("an object with at least one datatype"))
    ] = field(hash=False)
    vector: Annotated[Mapping[str, Rate], Entries(Record(Rate), _DATATYPES)] = field(hash=False)

    def throughput(self, datatype: str, flops: float, *, unit: Unit = "matrix") -> float:
        """Return the speed an operation reaches.

        Args:
            datatype: key of the config's entry, such as "float16".
            flops: size of the operation, in FLOP.
            unit: "matrix" or "vector".

        Returns:
            FLOP/s: peak times the efficiency of the first row whose bound the operation reaches.

        Raises:
            HardwareConfigError: the config has no entry for this datatype.
            UsageError: `flops` is negative or not a number.
        """
        return self.rate(datatype, unit).throughput(flops)

    def peak(self, datatype: str, *, unit: Unit = "matrix") -> float:
        """Return the peak in FLOP/s of a datatype (what MFU divides by); errors as for `throughput`."""
        return self.rate(datatype, unit).peak_flop_per_s

    def rate(self, datatype: str, unit: Unit = "matrix") -> Rate:
        """Return the entry of a datatype; errors as for `throughput`."""
        rates = self.vector if unit == "vector" else self.matrix
        try:
            return rates[datatype]
        except KeyError:
            known = ", ".join(rates) or "nothing"
            raise HardwareConfigError(
                f"the config must give a rate for each datatype used: {unit}.{datatype} is missing "
                f"(it has {known}); add {unit}.{datatype} with tflops and gflops_efficiency",
                datatype=datatype,
                unit=unit,
            ) from None


@dataclass(frozen=True, slots=True)
class Memory:
    """One memory of a device; the fields are the config's keys.

    Args:
        GiB: capacity, in 2^30 bytes.
        GBps: peak bandwidth, in 1e9 bytes/s.
        MB_efficiency: rows `(lower bound in 1e6 bytes, share of the peak)`, bounds strictly descending to 0.
        usable_GiB: what the driver leaves to a process, in 2^30 bytes; all of it if None.
        update_s_per_billion: of a host, how long its processors, shared by all ranks of a node, take for Adam's step on
            1e9 parameters in mixed precision, s; that of the platform's library if None.
    """

    GiB: Annotated[float, POSITIVE, "GiB"]
    GBps: Annotated[float, POSITIVE, "GB/s"]
    MB_efficiency: Annotated[Rows, SHARES, "[MB, share]"]
    usable_GiB: Annotated[float | None, POSITIVE, "GiB"] = None
    update_s_per_billion: Annotated[float | None, POSITIVE, "s"] = None

    @property
    def capacity_bytes(self) -> int:
        """Return the capacity in bytes."""
        return whole(self.GiB * 2**30)  # type: ignore[no-any-return]  # a number

    @property
    def usable_bytes(self) -> int:
        """Return what the driver leaves to a process, in bytes: no more than there is, where a test makes it less."""
        usable = self.GiB if self.usable_GiB is None else least([self.usable_GiB, self.GiB])
        return whole(usable * 2**30)  # type: ignore[no-any-return]  # a number

    def throughput(self, size_bytes: float) -> float:
        """Return the speed an operation reaches.

        Args:
            size_bytes: bytes read and written by the operation.

        Returns:
            Bytes/s: peak times the efficiency of the first row whose bound the operation reaches.

        Raises:
            UsageError: `size_bytes` is negative or not a number.
        """
        return self.GBps * 1e9 * efficiency_at(self.MB_efficiency, size_bytes, 1e6)


class Device(Protocol):
    """The device that a rank runs on, as a predictor sees it."""

    @property
    def capacity_bytes(self) -> float:
        """The main memory."""

    def peak_flop_per_s(self, datatype: str) -> float:
        """Return the peak rate for a datatype, FLOP/s."""

    def seconds(self, cost: Cost, datatype: str) -> float:
        """Return how long an operation of a cost takes, s, of which the operation pays `cost.share`."""

    def load_seconds(self, size_bytes: float) -> float:
        """Return how long it takes to load weights from the host, s."""


@dataclass(frozen=True, slots=True)
class RooflineDevice:
    """A processor with its own memory, beside a host.

    Args:
        processor: matrix and vector units.
        memory: the device's own memory (HBM).
        host_memory: the host's, from which weights are loaded.
    """

    processor: Processor
    memory: Memory
    host_memory: Memory

    @property
    def capacity_bytes(self) -> float:
        """The device's own memory."""
        return self.memory.capacity_bytes

    @property
    def usable_bytes(self) -> float:
        """What the driver leaves of it to a process."""
        return self.memory.usable_bytes

    @property
    def host_capacity_bytes(self) -> float:
        """The host's memory."""
        return self.host_memory.capacity_bytes

    def peak_flop_per_s(self, datatype: str) -> float:
        """Return the matrix unit's peak rate, FLOP/s."""
        return self.processor.peak(datatype)

    def seconds(self, cost: Cost, datatype: str) -> float:
        """Return the slower of arithmetic and memory traffic, s."""
        arithmetic = self.arithmetic_seconds(cost.work_flop, datatype)
        return larger(arithmetic, self.traffic_seconds(cost.traffic_bytes))  # type: ignore[no-any-return]  # a number

    def arithmetic_seconds(self, work_flop: float, datatype: str) -> float:
        """Return the time of pure computation, s."""
        return work_flop / self.processor.throughput(datatype, work_flop) if work_flop else 0.0

    def traffic_seconds(self, size_bytes: float) -> float:
        """Return the time of reading and writing the device's memory, s."""
        return size_bytes / self.memory.throughput(size_bytes) if size_bytes else 0.0

    def load_seconds(self, size_bytes: float) -> float:
        """Return the time of reading the host's memory, s."""
        return size_bytes / self.host_memory.throughput(size_bytes) if size_bytes else 0.0


_Entry = TypeVar("_Entry")

TERMS = ("waves", "prologue", "split_k", "alignment", "weight_gradient", "tails", "starts", "launches", "spread")
"""The terms of the model that an ablation may leave out."""


@dataclass(frozen=True, slots=True)
class MatmulRate:
    """How fast matrices of one datatype are multiplied.

    Args:
        tflops: rate of a kernel whose tiles fill the device again and again, in 1e12 FLOP/s.
        prologue: steps along k that a tile pays beside its own, for filling its pipeline and writing its result.
        burst: where power limits the clock, `tflops` is what power sustains, and this the rate of tiles at the clock
            that a device has with power to spare, in 1e12 FLOP/s; 0 where tiles have `tflops`.
    """

    tflops: Annotated[float, POSITIVE, "TFLOP/s"]
    prologue: Annotated[float, NON_NEGATIVE, "steps along k"]
    burst: Annotated[float, NON_NEGATIVE, "TFLOP/s"] = 0.0

    def scaled(self, factor: float) -> MatmulRate:
        """Return the same kernels at another clock."""
        return replace(self, tflops=self.tflops * factor, burst=self.burst * factor)


@dataclass(frozen=True, slots=True)
class AttentionRate:
    """How fast one generation of attention kernels is on a device, forward or backward.

    Args:
        efficiency: share of the datatype's dense peak, where the device is full.
        tail: share of the longest block's time for which the device is not full at the end.
        head_efficiency: rows `(lower bound of the head size, factor)`, bounds strictly descending to 0.
        block: queries, and keys, of a block that is computed whole if the mask leaves any of its pairs, where the
            efficiency counts all of these; 1 where it counts what the mask leaves.
        masked: time of such a block of which the mask leaves a part, over that of one which it leaves whole.
        window_block: that of sliding windows; 0 where kernels compute all pairs that causality leaves.
        step_s: time of the kernel's loop for each such block beside its arithmetic, over all that work on blocks at
            once; backward in two kernels has each block twice.
        row_s: time of writing what backward needs of a head's query.
    """

    efficiency: Annotated[float, SHARE]
    tail: Annotated[float, NON_NEGATIVE]
    head_efficiency: Annotated[Rows, SHARES, "[head size, share]"]
    block: Annotated[int, WHOLE] = 1
    masked: Annotated[float, POSITIVE] = 1.0
    window_block: Annotated[float, NON_NEGATIVE] = 1
    step_s: Annotated[float, NON_NEGATIVE] = 0.0
    row_s: Annotated[float, NON_NEGATIVE] = 0.0

    def share(self, head_dim: int) -> float:
        """Return the share of the peak for a head size."""
        return self.efficiency * efficiency_at(self.head_efficiency, head_dim, 1)

    def scaled(self, factor: float, block: int | None = None) -> AttentionRate:
        """Return the same kernels at another clock, with other blocks where they compute blocks whole."""
        blocks = block if block and self.block > 1 else self.block
        return replace(self, efficiency=self.efficiency * factor, block=blocks)


class AttentionRates(NamedTuple):
    """How fast one generation of attention kernels is on a device."""

    forward: Annotated[AttentionRate, Record(AttentionRate)]
    backward: Annotated[AttentionRate, Record(AttentionRate)]

    def scaled(self, factor: float, block: int | None = None) -> AttentionRates:
        """Return the same kernels at another clock, with other blocks where they compute blocks whole."""
        return AttentionRates(self.forward.scaled(factor, block), self.backward.scaled(factor, block))


@final
@dataclass(frozen=True, slots=True)
class KernelRates(ReadOnly):
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
        grouped: factor on the rate of experts' multiplications, which one kernel does with groups of unlike rows.
        grouped_rows: rows of a block of such a kernel, where a block in which groups end is computed for each of them;
            0 where each group has tiles of its own.
        grouped_masked: factor on the rate of such a kernel where a width is no multiple of 128, the lanes of a TPU's
            registers: it masks what its blocks have more.
        grouped_block: width of a block of such a kernel, which is computed whole where a width ends in it; 0 where
            blocks are tuned to each width.
        grouped_cores: cores of a device, among which such a kernel divides its blocks of columns.
        weight_gradient: factor on the time of a weight gradient, whose operands are both transposed.
        matmul_start_s: what a matrix multiplication costs beside its work, s.
        memory_start_s: the same for a pass over memory, s.
        attention_start_s: the same for attention, forward and backward, s.
        attention_block: queries that one unit of attention works on.
        spread: standard deviation of the time of arithmetic among devices of this kind, as a share of it: under a limit
            of power, chips of one kind have unlike clocks.
    """

    num_units: Annotated[int, UNITS, Key("units")]
    GBps: Annotated[float, POSITIVE, "GB/s"]
    launch_s: Annotated[float, SECONDS, Key("launch"), "s"]
    graph_launch_s: Annotated[float, SECONDS, Key("graph_launch"), "s"]
    matmul: Annotated[
        Mapping[str, MatmulRate], Entries(Record(MatmulRate), _DATATYPES, some("an object with at least one datatype"))
    ] = field(hash=False)
    attention: Annotated[Mapping[str, AttentionRates], Entries(Record(AttentionRates), "an object of generations")] = (
        field(hash=False)
    )
    tile_efficiency: Rows = ((32768.0, 1.0), (16384.0, 0.838), (0.0, 0.692))
    matmul_bandwidth: float = 0.96
    splits: tuple[int, ...] = (1, 2, 4)
    unaligned: float = 0.685
    grouped: Annotated[float, SHARE] = 1.0
    grouped_rows: Annotated[float, NON_NEGATIVE] = 0.0
    grouped_masked: Annotated[float, SHARE] = 1.0
    grouped_block: Annotated[float, NON_NEGATIVE] = 0.0
    grouped_cores: Annotated[int, UNITS] = 1
    weight_gradient: float = 1.03
    matmul_start_s: float = 1.75e-6
    memory_start_s: float = 1.5e-6
    attention_start_s: tuple[float, float] = (5e-6, 10e-6)
    attention_block: int = 128
    spread: Annotated[float, USAGE] = 0.0

    def __post_init__(self) -> None:
        attention = {key: AttentionRates(*rates) for key, rates in self.attention.items()}
        object.__setattr__(self, "attention", attention)
        ReadOnly.__post_init__(self)

    def matmul_rate(self, datatype: str) -> MatmulRate:
        """Return the rates of a datatype; those of its own for one with factors of blocks ("mx") without figures.

        Raises:
            HardwareConfigError: the config has none for it.
        """
        datatype = datatype if datatype in self.matmul else datatype.removeprefix("mx")
        return _known(self.matmul, datatype, "kernels.matmul", "a rate for each datatype used")

    def attention_rate(self, generation: str, *, is_backward: bool) -> AttentionRate:
        """Return the rates of a generation of attention kernels.

        Raises:
            HardwareConfigError: the config has none for it.
        """
        return _known(self.attention, generation, "kernels.attention", "each generation of kernels used")[is_backward]

    @property
    def usual_attention(self) -> str:
        """Return the generation that is meant where nobody says: "flash2" or "cudnn", the first that the config has.

        Blackwell's configs have "cudnn" first, since FlashAttention-2 has no kernels of its own for it.
        """
        usual = (name for name in self.attention if name in ("flash2", "cudnn"))
        return next(usual, next(iter(self.attention), "flash2"))

    def scaled(self, factor: float, attention: float = 1.0, block: int | None = None) -> KernelRates:
        """Return the same device at another clock: arithmetic `factor` times as fast, the memory as it is.

        Args:
            factor: of all arithmetic.
            attention: of attention's kernels beside that.
            block: queries, and keys, of their blocks, where they compute blocks whole; the config's if None.
        """
        matmul = {key: rate.scaled(factor) for key, rate in self.matmul.items()}
        flash = {key: rates.scaled(factor * attention, block) for key, rates in self.attention.items()}
        return replace(self, matmul=matmul, attention=flash)

    def slowest(self, num_devices: float) -> float:
        """Return how long arithmetic takes on the slowest of some devices, over that on one of average speed: expected.

        The largest of n normal deviates is expected to be the inverse of their distribution at (n - 3/8) / (n + 1/4),
        within 0.03 (Blom, 1958).
        """
        most = max(num_devices, 1)
        return 1 + self.spread * NormalDist().inv_cdf((most - 0.375) / (most + 0.25))

    def without(self, *terms: str) -> KernelRates:
        """Return the rates with some terms of the model left out, for an ablation.

        Args:
            terms: of `TERMS`. Without "waves" tiles spread evenly; without "launches" and "starts" kernels begin at
                once; without "spread" devices are alike.

        Raises:
            UsageError: there is no such term.
        """
        rates = self
        for term in terms:
            if term not in TERMS:
                raise UsageError(f"a kernel's price has no term {term!r}; use {', '.join(TERMS)}")
            rates = replace(rates, **_NEUTRAL[term](rates))
        return rates


_NEUTRAL: Mapping[str, Any] = {
    "waves": lambda _: {"num_units": 1},
    "prologue": lambda rates: {"matmul": {k: replace(rate, prologue=0.0) for k, rate in rates.matmul.items()}},
    "split_k": lambda _: {"splits": (1,)},
    "alignment": lambda _: {"unaligned": 1.0},
    "weight_gradient": lambda _: {"weight_gradient": 1.0},
    "tails": lambda rates: {
        "attention": {
            k: AttentionRates(*(replace(one, tail=0.0) for one in both)) for k, both in rates.attention.items()
        }
    },
    "starts": lambda _: {"matmul_start_s": 0.0, "memory_start_s": 0.0, "attention_start_s": (0.0, 0.0)},
    "launches": lambda _: {"launch_s": 0.0, "graph_launch_s": 0.0},
    "spread": lambda _: {"spread": 0.0},
}


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


CLASSES = ("gpu", "tpu", "cpu", "asic", "mcu")
"""What kinds of device there are; an asic is any other accelerator, an mcu a microcontroller."""

Feature = bool | float | str | tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Cache:
    """One level of a device's caches.

    Args:
        level: 1 for the one nearest to the units.
        size_bytes: of one unit's cache, or of the whole device's.
        scope: "unit" where each unit has its own, "device" where all share it.
        bytes_per_s: what it delivers, to one unit or to all; None if unknown.
    """

    level: Annotated[int, WHOLE]
    size_bytes: Annotated[int, WHOLE, Key("bytes"), "B"]
    scope: Annotated[Literal["unit", "device"], one_of("unit", "device")]
    bytes_per_s: Annotated[float | None, POSITIVE, "B/s"] = None


def _by_level(caches: Sequence[Cache]) -> None:
    """Require that each level comes once, from the units outwards."""
    levels = [cache.level for cache in caches]
    if levels != sorted(set(levels)):
        raise UnexpectedError("caches by rising level, each level once", f"levels {', '.join(map(str, levels))}")


@dataclass(frozen=True, slots=True)
class UnitLimits:
    """What one unit of a GPU (a multiprocessor) can hold at a time.

    Args:
        warps: groups of 32 threads.
        blocks: thread blocks.
        registers: of 32 bits.
        smem_bytes: shared memory.
    """

    warps: Annotated[int, WHOLE]
    blocks: Annotated[int, WHOLE]
    registers: Annotated[int, WHOLE, "of 32 bits"]
    smem_bytes: Annotated[int, WHOLE, "B"]


@dataclass(frozen=True, slots=True)
class Storage:
    """What takes checkpoints (the key `storage`). All ranks write at the same time, and share it evenly.

    Args:
        GBps: what it takes from all nodes together, 1e9 bytes/s: 2 TB/s (Llama 3, 2024, section 3.3.1).
        node_GBps: what one node writes, 1e9 bytes/s: a port of 200 Gb/s; assumed.
    """

    GBps: Annotated[float, POSITIVE, "GB/s"] = 2000.0
    node_GBps: Annotated[float, POSITIVE, "GB/s"] = 25.0

    def seconds(self, size_bytes: Any, num_ranks: int, ranks_a_node: int) -> Any:
        """Return how long a rank writes some bytes, as all ranks write, s.

        >>> Storage(GBps=100, node_GBps=25).seconds(1e9, num_ranks=16, ranks_a_node=8)
        0.32
        """
        return size_bytes * larger(num_ranks / (self.GBps * 1e9), ranks_a_node / (self.node_GBps * 1e9))


STORAGE = Storage()
"""The storage of configs that say nothing of it."""


@dataclass(frozen=True, slots=True)
class Power:
    """What a device draws, W: the device's own share, not that of its server.

    Args:
        tdp_W: at most, by its rating.
        idle_W: when it has nothing to do; None if unknown.
    """

    tdp_W: Annotated[float, POSITIVE, "W"]
    idle_W: Annotated[float | None, NON_NEGATIVE, "W"] = None


def _idles_below(power: Power) -> None:
    """Require that a device draws no more when it has nothing to do."""
    if (power.idle_W or 0) > power.tdp_W:
        raise UnexpectedError(f"no more than power.tdp_W ({power.tdp_W:g})", f"{power.idle_W:g}", "idle_W")


def _counts_are_numbers(features: Mapping[str, Any]) -> None:
    """Require numbers of the features that prices reckon with."""
    for name in ("compute_capability", "devices"):
        value = features.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise UnexpectedError("a number > 0", shown(value), name)


@dataclass(frozen=True, slots=True)
class SheetLink:
    """A connection between two named places.

    Args:
        link_id: its name.
        source_id: where it begins.
        dest_id: where it ends.
        bytes_per_s: one way.
        latency_s: of a message, s.
        bidirectional: whether it carries the same the other way.
    """

    link_id: Annotated[str, TEXT]
    source_id: Annotated[str, TEXT]
    dest_id: Annotated[str, TEXT]
    bytes_per_s: Annotated[float, POSITIVE, "B/s"]
    latency_s: Annotated[float, SECONDS, "s"] = 0.0
    bidirectional: Annotated[bool, FLAG] = True


@dataclass(frozen=True, slots=True)
class DataSheet(ReadOnly):
    """The optional keys of a hardware config.

    Args:
        device_class: "gpu", "tpu", "cpu", "asic" or "mcu" (the key `class`).
        vendor: who makes it.
        num_units: multiprocessors, cores or matrix units (the key `units`).
        clock_Hz: what the peak rates are stated at.
        caches: from the units outwards.
        limits: of one unit.
        dispatch_s: what a framework adds to each operation it issues, s.
        power: of the device.
        price_usd_per_hour: for renting one device.
        features: by name: whether there are tensor cores, how wide vectors are.
        links: connections, for a platform that shares them.
    """

    device_class: Annotated[str | None, one_of(*CLASSES), Key("class")] = None
    vendor: Annotated[str | None, TEXT] = None
    num_units: Annotated[int | None, WHOLE, Key("units")] = None
    clock_Hz: Annotated[float | None, POSITIVE, "Hz"] = None
    caches: Annotated[tuple[Cache, ...], ListOf(Record(Cache), "a list of caches", _by_level)] = ()
    limits: Annotated[UnitLimits | None, Record(UnitLimits)] = None
    dispatch_s: Annotated[float | None, SECONDS, "s"] = None
    power: Annotated[Power | None, Record(Power, "an object with tdp_W and idle_W", _idles_below)] = None
    price_usd_per_hour: Annotated[float | None, NON_NEGATIVE, "USD/h"] = None
    features: Annotated[
        Mapping[str, Feature], Entries(FEATURE, "an object of features by name", _counts_are_numbers)
    ] = field(default_factory=dict, hash=False)
    links: Annotated[tuple[SheetLink, ...], ListOf(Record(SheetLink), "a list of links")] = ()

    def cache_bytes(self, level: int) -> int:
        """Return the size of a level's cache (of one unit, if each has its own), or 0 where there is none."""
        return next((cache.size_bytes for cache in self.caches if cache.level == level), 0)


NO_DATA_SHEET = DataSheet()
"""What a config without any of the optional keys says."""


MTBF_HOURS: Mapping[str, float] = MappingProxyType({"h100": 54 * 24 * 16_384 / 419, "a100": 1000 * 24 * 8 / 6.50})
"""Mean time between failures of one device, hours, by family (the name of its hardware config up to the first "_")."""


def mtbf_hours_of(device: str, given: float | Mapping[str, float] | None = None) -> float:
    """Return the mean time between failures of a device, hours.

    Args:
        device: the name of its hardware config, "h100_80g_nvl8", or of its group in a cluster.
        given: hours of every device, or of some by config, group or family; published ones if None.

    Raises:
        UsageError: none is given or published for this device.

    >>> round(mtbf_hours_of("h100_80g_nvl8"))
    50677
    >>> mtbf_hours_of("l40s_48g", {"l40s": 20_000})
    20000.0
    """
    if given is not None and not isinstance(given, Mapping):
        return float(given)
    family = device.partition("_")[0]
    known = (table.get(name) for table in (given or {}, MTBF_HOURS) for name in (device, family))
    hours = next((each for each in known if each is not None), None)
    if hours is None:
        raise UsageError(
            f"no mean time between failures is known of {device!r}, only of {', '.join(sorted(MTBF_HOURS))}; give it, "
            f'as in mtbf_hours={{"{family}": 40_000}}'
        )
    return float(hours)


def require_devices(given: float | Mapping[str, float] | None, devices: Iterable[str]) -> None:
    """Require that each name that a time between failures is given for is that of a device of the run.

    Args:
        given: hours of every device, or of some by config, group or family.
        devices: the hardware config or the group of each rank's device.

    Raises:
        UsageError: a name is that of no device, so that its hours would change nothing.
    """
    known = dict.fromkeys(name for device in dict.fromkeys(devices) for name in (device, device.partition("_")[0]))
    for name in given if isinstance(given, Mapping) else ():
        if name not in known:
            raise UsageError(f"mtbf_hours names {name!r}, which no device of the run is; use one of {', '.join(known)}")


def require_mtbf(given: float | Mapping[str, float] | None) -> None:
    """Require that all mean times between failures are positive numbers of hours.

    Raises:
        UsageError: one is not.
    """
    hours = given if isinstance(given, Mapping) else {} if given is None else {"every device": given}
    for name, each in hours.items():
        require_number(f"mtbf_hours of {name}", each, " of hours")
