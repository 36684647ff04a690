"""The simulators' intermediate representation: a program as a list of operations, each with its FLOPs and bytes.

An operation is what a device runs as one kernel: a matrix multiplication, a convolution, or several elementwise
operations fused. Lists may be written by hand (`matmul`, `Operation`), or come from a JAX function
(`devices.jax_programs`) or a torch graph (`devices.torch_programs`).
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, final

from minitrain.errors import UsageError, require_count

ELEMENT_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1,
    "complex64": 8, "complex128": 16,
}  # fmt: skip
"""Bytes of an element by datatype."""

_NARROW = {"float8": "float8", "float4": "float8", "int4": "int8", "int2": "int8", "uint4": "uint8", "uint2": "uint8"}

Kind = Literal["matmul", "convolution", "other"]
KINDS: tuple[Kind, ...] = ("matmul", "convolution", "other")


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


@final
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


@final
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


@final
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

    def __post_init__(self) -> None:
        """Refuse what has no price."""
        for name in ("flops", "bytes", "working_set"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < float("inf"):
                raise UsageError(f"{name} of operation {self.name!r} must be a number >= 0, got {value!r}")
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


@final
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


@final
@dataclass(frozen=True, slots=True)
class Program:
    """Operations that run one after the other.

    Args:
        operations: in order.
        unknown_loops: loops whose number of trips is not known before they run; their bodies count once.
    """

    operations: tuple[Operation, ...]
    unknown_loops: tuple[str, ...] = ()

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


def require_datatype(datatype: Any) -> None:
    """Raise a UsageError unless elements of a datatype have a size."""
    if not isinstance(datatype, str) or datatype not in ELEMENT_BYTES:
        raise UsageError(f"there is no datatype {datatype!r}; use one of {', '.join(ELEMENT_BYTES)}", datatype=datatype)


def matmul(M: int, K: int, N: int, datatype: str = "float32", batch: int = 1) -> Operation:  # noqa: N803 - as specified
    """Return a matrix multiplication (M x K) times (K x N), whose operands and result move once.

    Example:
        >>> matmul(1024, 1024, 1024).flops, matmul(1024, 1024, 1024).bytes
        (2147483648, 12582912)
    """
    for name, size in (("M", M), ("K", K), ("N", N), ("batch", batch)):
        require_count(name, size)
    require_datatype(datatype)
    size = ELEMENT_BYTES[datatype]
    return Operation(
        name=f"matmul {M}x{K}x{N}" if batch == 1 else f"matmul {batch}x({M}x{K}x{N})",
        flops=2 * batch * M * N * K,
        bytes=size * batch * (M * K + K * N + M * N),
        datatype=datatype,
        kind="matmul",
        shape=MatmulShape(M, N, K, batch),
    )
