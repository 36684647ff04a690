"""The simulators' intermediate representation: a program as a list of operations, each with its FLOPs and bytes.

An operation is what a device runs as one kernel: a matrix multiplication, a convolution, or several elementwise
operations fused. Lists may be written by hand (`matmul`, `Operation`), or come from a JAX function
(`devices.jax_programs`) or a torch graph (`devices.torch_programs`).

How full an operation keeps the units of a device stands here too. Occupancy follows NVIDIA's occupancy calculator: a
multiprocessor holds as many blocks as its warps, blocks, registers and shared memory allow, whichever is least.
Registers are given to warps in units of 256, to four warps at a time, and from compute capability 8.0 each block has
1 KiB of shared memory reserved. Waves follow NVIDIA's "Matrix multiplication background" user's guide (2023): a result
is cut into tiles, and the last wave of them may leave units idle.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from numbers import Real
from typing import Any, Literal, get_args

from minitrain.errors import UsageError, require_count, typed
from minitrain.machine.device import UnitLimits

ELEMENT_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1,
    "complex64": 8, "complex128": 16, "tf32": 4,
}  # fmt: skip
"""Bytes of an element by datatype; tf32 is float32 that tensor cores multiply."""

_NARROW = {"float8": "float8", "float4": "float8", "int4": "int8", "int2": "int8", "uint4": "uint8", "uint2": "uint8"}

WARP_THREADS = 32
RESERVED_SMEM_BYTES = 1024
_MOST_THREADS, _MOST_REGISTERS = 1024, 255
_REGISTER_UNIT, _WARP_UNIT = 256, 4

Kind = Literal["matmul", "convolution", "other"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def known_datatype(name: str) -> str:
    """Return the datatype of `ELEMENT_BYTES` that a framework's one is priced as.

    Variants of float8 are one, what is narrower takes a byte, and keys of random numbers are pairs of uint32.

    Example:
        >>> known_datatype("float8_e4m3fn"), known_datatype("int4"), known_datatype("key<fry>")
        ('float8', 'int8', 'uint64')
    """
    if name in ELEMENT_BYTES:
        return name
    if name.startswith("key<"):
        return "uint64"
    return next((known for narrow, known in _NARROW.items() if name.startswith(narrow)), "float32")


def require_datatype(datatype: Any) -> None:
    """Raise a UsageError unless elements of a datatype have a size."""
    if not isinstance(datatype, str) or datatype not in ELEMENT_BYTES:
        raise UsageError(f"there is no datatype {datatype!r}; use one of {', '.join(ELEMENT_BYTES)}")


def is_number(value: Any) -> bool:
    """Return whether a value is a number >= 0 that is finite; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool) and 0 <= float(value) < float("inf")


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """How a GPU kernel is launched, for its occupancy.

    Args:
        threads: of a block.
        registers: of a thread.
        smem_bytes: shared memory of a block.
    """

    threads: int
    registers: int
    smem_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MatmulShape:
    """A batch of matrix multiplications (m x k) times (k x n).

    Args:
        m: rows of the result.
        n: columns of the result.
        k: the dimension that is summed over.
        batch: how many.

    Raises:
        UsageError: one of them is no whole number >= 0; a dimension of 0 leaves nothing to compute.
    """

    m: int
    n: int
    k: int
    batch: int = 1

    def __post_init__(self) -> None:
        """Refuse sizes that no array has."""
        for name in ("m", "n", "k", "batch"):
            require_count(f"{name} of a MatmulShape", getattr(self, name), 0)

    @property
    def flops(self) -> int:
        """Two floating-point operations for each multiplication and its addition."""
        return 2 * self.batch * self.m * self.n * self.k


@typed
@dataclass(frozen=True, slots=True)
class Operation:
    """What a device runs as one kernel.

    Args:
        name: what it does.
        flops: floating-point operations, two for a multiplication and its addition.
        bytes: read from and written to memory.
        datatype: of its operands.
        kind: "matmul" and "convolution" run on matrix units, "other" on vector units.
        count: how often it runs, one time after the other.
        shape: of a matrix multiplication, also of the one that a convolution amounts to.
        launch: how it is launched; full occupancy is taken if None.
        working_set_bytes: what it touches; the same as `bytes` if None.
        collective: what several devices do together, and how many, as ("all_reduce", 8); `bytes` are then those of the
            whole tensor, which the network moves.

    Raises:
        UsageError: a figure has no price, or the datatype or the kind is unknown.
    """

    name: str
    flops: float
    bytes: float
    datatype: str = "float32"
    kind: Kind = "other"
    count: int = 1
    shape: MatmulShape | None = None
    launch: KernelLaunch | None = None
    working_set_bytes: float | None = None
    collective: tuple[str, int] | None = None

    def __post_init__(self) -> None:
        """Refuse what has no price."""
        for name in ("flops", "bytes", "working_set"):
            if not is_number(getattr(self, name)):
                raise UsageError(
                    f"{name} of operation {self.name!r} must be a number >= 0, got {getattr(self, name)!r}"
                )
        require_count("count", self.count)
        if self.kind not in KINDS:
            known = ", ".join(f'"{kind}"' for kind in KINDS)
            raise UsageError(f"kind of operation {self.name!r} must be one of {known}, got {self.kind!r}")
        require_datatype(self.datatype)

    @property
    def working_set(self) -> float:
        """The bytes it touches."""
        return self.bytes if self.working_set_bytes is None else self.working_set_bytes

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of its operands."""
        return ELEMENT_BYTES[self.datatype]


@dataclass(frozen=True, slots=True)
class Analysis:
    """A program as the specification's simulator sees it.

    Args:
        flops: of all operations.
        bytes: of all operations.
        working_set_bytes: of the operation that touches the most.
    """

    flops: float
    bytes: float
    working_set_bytes: float


@typed
@dataclass(frozen=True, slots=True)
class Program:
    """Operations that run one after the other.

    Args:
        operations: in order.
        unknown_loops: loops whose number of trips is not known before they run; their bodies count once.
        on_host: callbacks and transfers to the host, which are not counted.
    """

    operations: tuple[Operation, ...]
    unknown_loops: tuple[str, ...] = ()
    on_host: tuple[str, ...] = ()

    @property
    def flops(self) -> float:
        """Floating-point operations of all, counting repetitions."""
        return sum(operation.flops * operation.count for operation in self.operations)

    @property
    def bytes(self) -> float:
        """Bytes read and written by all, counting repetitions."""
        return sum(operation.bytes * operation.count for operation in self.operations)

    @property
    def num_kernels(self) -> int:
        """How many kernels run, counting repetitions."""
        return sum(operation.count for operation in self.operations)

    def analysis(self) -> Analysis:
        """Return the program as three numbers."""
        largest = max((operation.working_set for operation in self.operations), default=0)
        return Analysis(self.flops, self.bytes, largest)


def matmul(M: int, K: int, N: int, datatype: str = "float32", batch: int = 1) -> Operation:  # noqa: N803 - as specified
    """Return a matrix multiplication (M x K) times (K x N), whose operands and result move once.

    Example:
        >>> matmul(1024, 1024, 1024).flops, matmul(1024, 1024, 1024).bytes
        (2147483648, 12582912)
    """
    for name, size in (("M", M), ("K", K), ("N", N), ("batch", batch)):
        require_count(name, size)
    require_datatype(datatype)
    shape = MatmulShape(M, N, K, batch)
    name = f"matmul {M}x{K}x{N}" if batch == 1 else f"matmul {batch}x({M}x{K}x{N})"
    moved = ELEMENT_BYTES[datatype] * batch * (M * K + K * N + M * N)
    return Operation(name, shape.flops, moved, datatype, "matmul", shape=shape)


def occupancy(launch: KernelLaunch, limits: UnitLimits, reserved_smem_bytes: int = RESERVED_SMEM_BYTES) -> float:
    """Return the share of a multiprocessor's warps that can be resident.

    Args:
        launch: threads of a block, registers of a thread, shared memory of a block.
        limits: of one multiprocessor.
        reserved_smem_bytes: shared memory that each block costs beside its own.

    Returns:
        A share in (0, 1].

    Raises:
        UsageError: no block fits, or the launch is outside what a GPU takes.

    Example:
        >>> occupancy(KernelLaunch(256, 64), UnitLimits(64, 32, 65536, 167936))
        0.5
    """
    _require(launch)
    warps = ceil(launch.threads / WARP_THREADS)
    of_a_warp = ceil(launch.registers * WARP_THREADS / _REGISTER_UNIT) * _REGISTER_UNIT
    with_registers = limits.registers // _WARP_UNIT // of_a_warp * _WARP_UNIT if of_a_warp else limits.registers
    smem_bytes = launch.smem_bytes + reserved_smem_bytes
    by_limit = {
        "warps": limits.warps // warps,
        "blocks": limits.blocks,
        "registers": with_registers // warps,
        "shared memory": limits.smem_bytes // smem_bytes if smem_bytes else limits.smem_bytes,
    }
    blocks = min(by_limit.values())
    if blocks == 0:
        short = ", ".join(name for name, found in by_limit.items() if not found)
        raise UsageError(
            f"no block of {launch.threads} threads, {launch.registers} registers a thread and {launch.smem_bytes} "
            f"bytes of shared memory fits on a unit ({short}); use smaller blocks"
        )
    return blocks * warps / limits.warps


def _require(launch: KernelLaunch) -> None:
    """Raise a UsageError unless a GPU could take a launch."""
    if not all(isinstance(value, int) for value in (launch.threads, launch.registers, launch.smem_bytes)):
        raise UsageError(f"threads, registers and smem_bytes of a launch must be whole numbers, got {launch}")
    if not 1 <= launch.threads <= _MOST_THREADS:
        raise UsageError(f"a block has 1 to {_MOST_THREADS} threads, got {launch.threads}")
    if not 0 <= launch.registers <= _MOST_REGISTERS:
        raise UsageError(f"a thread has at most {_MOST_REGISTERS} registers, got {launch.registers}")
    if launch.smem_bytes < 0:
        raise UsageError(f"shared memory must be a number of bytes >= 0, got {launch.smem_bytes}")


def wave_efficiency(m: int, n: int, num_units: int, tile: tuple[int, int] = (128, 128), batch: int = 1) -> float:
    """Return the share of the units' time that makes elements of the result.

    Args:
        m: rows of the result.
        n: columns of the result.
        num_units: multiprocessors, each of which works on one tile at a time.
        tile: rows and columns of a tile.
        batch: how many results.

    Returns:
        Elements of the result over those that the waves could have made, in (0, 1].

    Raises:
        UsageError: a size or the number of units is no whole number >= 1.

    Example:
        >>> wave_efficiency(4096, 4096, 108)
        0.9481481481481482
    """
    for name, value in (("m", m), ("n", n), ("num_units", num_units), ("batch", batch)):
        require_count(name, value)
    num_tiles = batch * ceil(m / tile[0]) * ceil(n / tile[1])
    num_waves = ceil(num_tiles / num_units)
    return batch * m * n / (num_waves * num_units * tile[0] * tile[1])


def systolic_efficiency(shape: MatmulShape, array: tuple[int, int], num_arrays: int) -> float:
    """Return the share of their peak that systolic arrays reach, with filling and draining.

    One operand stays in the array (rows of k, columns of n) while the m rows of the other stream through it, one a
    cycle. The stream hides the loading of the next block if it is long enough. At the beginning and at
    the end the array takes as many cycles as it has rows and columns to fill and drain. Either operand may stay; the
    better choice is taken.

    Args:
        shape: what is multiplied.
        array: rows and columns of one array.
        num_arrays: how many share the blocks.

    Returns:
        A share in (0, 1].
    """
    rows, columns = array

    def cycles(m: int, n: int) -> float:  # rows that stream may be split between arrays where there are few blocks
        num_blocks = shape.batch * ceil(shape.k / rows) * ceil(n / columns)
        pieces = max(1, num_arrays // num_blocks)
        stream = max(ceil(m / pieces), rows)  # a block takes as many cycles to load as the array has rows
        return ceil(num_blocks * pieces / num_arrays) * stream + rows + columns

    peak_cycles = shape.batch * shape.m * shape.n * shape.k / (rows * columns * num_arrays)
    return peak_cycles / min(cycles(shape.m, shape.n), cycles(shape.n, shape.m))


def vector_efficiency(shape: MatmulShape, num_cores: int, lanes: int) -> float:
    """Return the share of their peak that cores with vector units reach.

    Cores share the vectors of the result, and some dimension fills the vectors, whichever does so best: what is left
    over idles.

    Args:
        shape: what is multiplied.
        num_cores: how many share the work.
        lanes: elements of a vector.

    Returns:
        A share in (0, 1].
    """
    by_lane = max(size / (ceil(size / lanes) * lanes) for size in (shape.m, shape.n, shape.k))
    vectors = ceil(shape.batch * shape.m * shape.n / lanes)
    return by_lane * vectors / (ceil(vectors / num_cores) * num_cores)
