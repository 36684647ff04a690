"""Calibrate: measure the machine at hand on ladders of sizes, and write a hardware config with what it reached.

Four ladders: square matrix multiplications, passes over memory, polynomials (much arithmetic on few bytes), and a
program that does next to nothing, whose time is the dispatch. The best rate of a ladder becomes the config's peak, and
each rung a row of efficiency, from halfway to the rung below on. So a simulator that reads the config predicts the
rungs, and everything between them as the nearest one. What small sizes lose to caches and starts is in the rows too.

A busy machine is slow for moments. So rungs are sampled in rounds, each round in another order and each sample between
two probes, small kernels that are limited by the same. A rung's time is the median of its ratio to its probes, times
the median of all probes: a moment that slows both changes little.

The config's key `measured` says how noisy each rung was. What was not measured is marked there as assumed: the memory
of the host, and the network, of which there is one of one rank. Left out: half precision, which few CPUs compute with.
"""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import Any, final

from minitrain.devices.backends import Backend, Kernel, find_backend, num_cpus
from minitrain.devices.measuring import Measured, Notebook, calls_a_sample, sample_between
from minitrain.errors import UsageError, require_count
from minitrain.hardware import config_files as files

SCHEMA = 2
MATMUL_SIZES = (64, 90, 128, 181, 256, 362, 512, 724, 1024, 1448, 2048)
STREAM_BYTES = tuple(2**power for power in range(14, 29))
POLYNOMIAL_BYTES = tuple(2**power for power in range(14, 25, 2))
POLYNOMIAL_DEGREE = 64
PROBE_MATMUL, PROBE_STREAM_BYTES = 512, 2**24
_ASSUMED_MEMORY_GIB = 8.0
_SMALLEST_SHARE = 1e-4

Progress = Callable[[int, int, str], None]
"""Called with how many measurements are done, how many there are, and what is measured next."""


@final
@dataclass(frozen=True, slots=True)
class Rung:
    """One measurement of a ladder.

    Args:
        name: of the measurement.
        flops: of a call.
        bytes: read and written by a call.
        make: makes the kernel.
    """

    name: str
    flops: float
    bytes: float
    make: Callable[[Backend], Kernel]

    @property
    def probe(self) -> str:
        """Which probe stands beside it."""
        return probe_name(self.name)


def rungs(largest: float = 1.0) -> list[Rung]:
    """Return all measurements, the quickest first in each ladder.

    Args:
        largest: share of the ladders to climb, in (0, 1]; less is quicker.
    """

    def part(sizes: Sequence[int]) -> Sequence[int]:
        return sizes[: max(2, round(len(sizes) * largest))]

    found = [Rung("nothing", 0, 0, lambda backend: backend.nothing())]
    found += [_matmul(size) for size in part(MATMUL_SIZES)]
    found += [_stream(size) for size in part(STREAM_BYTES)]
    return found + [_polynomial(size) for size in part(POLYNOMIAL_BYTES)]


def _matmul(size: int) -> Rung:
    return Rung(f"matmul {size}", 2 * size**3, 12 * size**2, lambda backend: backend.matmul(size))


def _stream(num_bytes: int) -> Rung:
    return Rung(f"stream {num_bytes}", num_bytes / 8, num_bytes, lambda backend: backend.stream(num_bytes))


def _polynomial(num_bytes: int) -> Rung:
    degree = POLYNOMIAL_DEGREE
    flops = 2 * degree * num_bytes / 8
    return Rung(f"polynomial {num_bytes}", flops, num_bytes, lambda backend: backend.polynomial(num_bytes, degree))


def calibrate(
    backend: str | Backend = "jax",
    *,
    notes: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    num_samples: int = 7,
    largest: float = 1.0,
) -> dict[str, Any]:
    """Measure the machine at hand and return a hardware config.

    Args:
        backend: "jax", "numpy", "torch", or one of your own.
        notes: a file that keeps each measurement as it is made; one that is there already is gone on with.
        progress: called before each measurement.
        num_samples: of each kernel.
        largest: share of the ladders to climb, in (0, 1]; less is quicker.

    Returns:
        The config as data, as `load_config` takes it.

    Raises:
        UsageError: there is no such backend, a parameter is outside its rule, or the notes are of something else.
    """
    require_count("num_samples", num_samples)
    if isinstance(largest, bool) or not isinstance(largest, int | float) or not 0 < largest <= 1:
        raise UsageError(f"largest is a share of the ladders in (0, 1], got {largest!r}", largest=largest)
    found = find_backend(backend) if isinstance(backend, str | None) else backend
    ladder = rungs(largest)
    about = {"schema": SCHEMA, "backend": found.name, "device": found.device, "rungs": [rung.name for rung in ladder]}
    notebook = Notebook(None if notes is None else Path(notes), about)
    _sample_rounds(found, ladder, notebook, num_samples, progress)
    return config_of(found, ladder, {rung.name: _steadied(rung, notebook) for rung in ladder})


def _sample_rounds(
    backend: Backend, ladder: Sequence[Rung], notebook: Notebook, num_samples: int, progress: Progress | None
) -> None:
    """Sample every rung in each round, between probes, each round in another order; go on where the notes end."""
    kernels = {rung.name: rung.make(backend) for rung in ladder}
    probes = {rung.probe: probe_of(backend, rung.probe) for rung in ladder}
    calls = {name: calls_a_sample(kernel) for name, kernel in (kernels | probes).items()}
    order, todo = random.Random(0), list(ladder)
    for round_ in range(num_samples):
        order.shuffle(todo)
        for place, rung in enumerate(todo):
            before = notebook.get(rung.name, [])
            if len(before) > round_:
                continue
            if progress is not None:
                progress(round_ * len(todo) + place, num_samples * len(todo), rung.name)
            probe = probes[rung.probe], calls[rung.probe]
            taken = sample_between(kernels[rung.name], calls[rung.name], *probe)
            notebook.note(rung.name, [*before, list(taken)])


def _steadied(rung: Rung, notebook: Notebook) -> Measured:
    """Return a rung's times as they would be at the machine's median speed, by the probes beside them."""
    usual = statistics.median(
        probe for name, pairs in notebook.items() for _, probe in pairs if probe_name(name) == rung.probe
    )
    return Measured(tuple(taken / probe * usual for taken, probe in notebook[rung.name]))


def probe_name(rung: str) -> str:
    """Return which probe stands beside a rung: a small kernel that is limited by the same."""
    return "probe of compute" if rung.startswith(("matmul", "polynomial")) else "probe of memory"


def probe_of(backend: Backend, name: str) -> Kernel:
    """Return a probe."""
    return backend.matmul(PROBE_MATMUL) if name == "probe of compute" else backend.stream(PROBE_STREAM_BYTES)


def config_of(backend: Backend, ladder: Sequence[Rung], measured: Mapping[str, Measured]) -> dict[str, Any]:
    """Return the hardware config that measurements make."""
    dispatch = measured["nothing"].median_s
    matmul = _rates(ladder, measured, "matmul", dispatch, by_bytes=False)
    polynomial = _rates(ladder, measured, "polynomial", dispatch, by_bytes=False)
    stream = _rates(ladder, measured, "stream", dispatch, by_bytes=True)
    gigabytes = _memory_gib()
    capacity = gigabytes if gigabytes and backend.is_cpu else _ASSUMED_MEMORY_GIB
    memory = {"GiB": capacity, "GBps": stream[0] / 1e9, "MB_efficiency": _scaled(stream[1], 1e6)}
    single = {"float32": {"tflops": matmul[0] / 1e12, "gflops_efficiency": _scaled(matmul[1], 1e9)}}
    vector = {"float32": {"tflops": polynomial[0] / 1e12, "gflops_efficiency": _scaled(polynomial[1], 1e9)}}
    ops = {"p2p": [1.0, None], "reduce_scatter": [1.0, -1], "all_gather": [1.0, -1], "all_reduce": [2.0, -1]}
    tier = {"bandwidth": stream[0] / 1e9, "efficiency": 1.0, "size": 1, "latency": 0.0, "ops": ops}
    return {
        "name": f"{backend.name}_{'cpu' if backend.is_cpu else 'gpu'}",
        "matrix": single,
        "vector": vector,
        "mem1": memory,
        "mem2": memory,
        "processing_mode": "roofline",
        "networks": [tier | {"must_be_filled": False, "processor_usage": 0.0}],
        "class": "cpu" if backend.is_cpu else "asic",
        "units": num_cpus() if backend.is_cpu else 1,
        "dispatch_s": dispatch,
        "measured": {
            "backend": backend.name,
            "device": backend.device,
            "assumed": ["mem2", "networks", *([] if capacity == gigabytes else ["mem1.GiB"])],
            "rungs": {name: {"median_s": each.median_s, "noise": each.noise} for name, each in measured.items()},
        },
    }


def _rates(
    ladder: Sequence[Rung], measured: Mapping[str, Measured], kind: str, dispatch_s: float, *, by_bytes: bool
) -> tuple[float, list[list[float]]]:
    """Return the best rate of a ladder, and the share of it that each rung reached, from the largest rung down.

    A rung's row begins halfway, in ratio, to the rung below it, and the last row at 0.
    """
    points = []
    for rung in ladder:
        if rung.name.startswith(f"{kind} ") and rung.name in measured:
            took = measured[rung.name].median_s
            work = rung.bytes if by_bytes else rung.flops
            points.append((work, work / max(took - dispatch_s, took / 10)))  # a dispatch is added to every prediction
    best = max(rate for _, rate in points)
    bounds = [0.0, *(sqrt(low * high) for (low, _), (high, _) in pairwise(points))]
    shares = [max(rate / best, _SMALLEST_SHARE) for _, rate in points]
    return best, [[bound, share] for bound, share in zip(reversed(bounds), reversed(shares), strict=True)]


def _scaled(rows: list[list[float]], unit: float) -> list[list[float]]:
    return [[bound / unit, share] for bound, share in rows]


def _memory_gib() -> float | None:
    """Return the memory of this machine in GiB, or None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (AttributeError, OSError, ValueError):
        return None


def noise_of(config: Any) -> float:
    """Return the median noise of a calibrated config's measurements; 0 for any other config.

    Args:
        config: its data, or the path of its file.

    Raises:
        HardwareConfigError: the file cannot be read.
    """
    if isinstance(config, str | os.PathLike) and not files.is_shipped(config):
        path = os.fspath(config)
        config = files.parse(files.read_file(str(path)), str(path))
    found = [noise for _, noise in noisiest(config)] if isinstance(config, Mapping) else []
    return statistics.median(found) if found else 0.0


def noisiest(config: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the measurements of a calibrated config by falling noise."""
    measured = config.get("measured")
    found = measured.get("rungs") if isinstance(measured, Mapping) else None
    pairs = found.items() if isinstance(found, Mapping) else ()
    noises = [(name, each["noise"]) for name, each in pairs if isinstance(each, Mapping) and "noise" in each]
    yield from sorted(noises, key=lambda pair: -pair[1])
