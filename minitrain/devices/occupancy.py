"""How full a GPU is: occupancy of its multiprocessors, and how evenly tiles fill it (waves).

Occupancy follows NVIDIA's occupancy calculator: a multiprocessor holds as many blocks as its warps, blocks, registers
and shared memory allow, whichever is least. Registers are given to warps in units of 256, to four warps at a time, and
from compute capability 8.0 each block has 1 KiB of shared memory reserved.

Waves follow NVIDIA's "Matrix multiplication background" user's guide (2023): a result is cut into tiles, and the last
wave of them may leave units idle.
"""

from __future__ import annotations

from math import ceil

from minitrain.devices.operations import KernelLaunch, MatmulShape
from minitrain.errors import UsageError, require_count
from minitrain.hardware.data_sheet import UnitLimits

WARP_THREADS = 32
_MOST_THREADS = 1024
_MOST_REGISTERS = 255
_REGISTER_UNIT = 256
_WARP_UNIT = 4
RESERVED_SMEM_BYTES = 1024


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
    by_limit = {
        "warps": limits.warps // warps,
        "blocks": limits.blocks,
        "registers": _warps_by_registers(launch.registers, limits.registers) // warps,
        "shared memory": _blocks_by_smem(launch.smem_bytes, limits.smem_bytes, reserved_smem_bytes),
    }
    blocks = min(by_limit.values())
    if blocks == 0:
        short = ", ".join(name for name, found in by_limit.items() if not found)
        raise UsageError(
            f"no block of {launch.threads} threads, {launch.registers} registers a thread and {launch.smem_bytes} "
            f"bytes of shared memory fits on a unit ({short}); use smaller blocks",
            launch=launch,
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


def _warps_by_registers(registers: int, available: int) -> int:
    """Return how many warps have registers; they are given to four warps at a time."""
    if registers == 0:
        return available
    of_a_warp = ceil(registers * WARP_THREADS / _REGISTER_UNIT) * _REGISTER_UNIT
    return available // _WARP_UNIT // of_a_warp * _WARP_UNIT


def _blocks_by_smem(smem_bytes: int, available: int, reserved: int) -> int:
    each = smem_bytes + reserved
    return available // each if each else available


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
    best = min(_systolic_cycles(shape, m, n, array, num_arrays) for m, n in ((shape.m, shape.n), (shape.n, shape.m)))
    peak_cycles = shape.batch * shape.m * shape.n * shape.k / (array[0] * array[1] * num_arrays)
    return peak_cycles / best


def _systolic_cycles(shape: MatmulShape, m: int, n: int, array: tuple[int, int], num_arrays: int) -> float:
    """Return the cycles with `m` rows streaming; they may be split between arrays where there are few blocks."""
    rows, columns = array
    num_blocks = shape.batch * ceil(shape.k / rows) * ceil(n / columns)
    pieces = max(1, num_arrays // num_blocks)
    stream = max(ceil(m / pieces), rows)  # a block takes as many cycles to load as the array has rows
    return ceil(num_blocks * pieces / num_arrays) * stream + rows + columns


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
