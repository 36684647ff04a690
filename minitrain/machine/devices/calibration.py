"""Calibrate: measure the machine at hand on ladders of sizes, and write a hardware config with what it reached.

Four ladders: square matrix multiplications, passes over memory, polynomials (much arithmetic on few bytes), and a
program that does next to nothing, whose time is the dispatch. A backend makes their kernels: NumPy, JAX or torch, each
on the device that it runs on. The best rate of a ladder, of calls ten times as long as the dispatch, becomes the
config's peak, and each rung a row of efficiency, from halfway to the rung below on. So a simulator that reads the
config predicts the rungs, and everything between them as the nearest one. What small sizes lose to caches and starts is
in the rows too.

A CPU of which this process may use one core (`taskset -c 0`) is timed by the processor's time of the process, so that
what else runs on the machine counts only as far as caches and memory are shared; anything else by the wall's clock.

A busy machine is slow for moments. So rungs are sampled in rounds, each round in another order and each sample between
two probes, small kernels that are limited by the same. A sample is the time of a call, or the mean of as many calls as
take a millisecond. A rung's time is the median of its ratio to its probes, times the median of all probes: a moment
that slows both changes little. Noise is the interquartile range over the median.

The config's key `measured` says how noisy each rung was. What was not measured is marked there as assumed: the memory
of the host, and the network, of which there is one of one rank. Left out: half precision, which few CPUs compute with.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import random
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import Any, Literal

from minitrain.errors import UsageError, require_count, require_installed, typed
from minitrain.files import StrPath, read_json, write_text
from minitrain.machine.config import is_shipped, parse, read_file
from minitrain.machine.devices.operations import is_number
from minitrain.operations.collectives import RING_ROWS

SCHEMA = 2
BACKENDS = ("jax", "numpy", "torch")
MATMUL_SIZES = (64, 90, 128, 181, 256, 362, 512, 724, 1024, 1448, 2048)
STREAM_BYTES = tuple(2**power for power in range(14, 29))
POLYNOMIAL_BYTES = tuple(2**power for power in range(16, 25, 2))
POLYNOMIAL_DEGREE = 64
PROBE_MATMUL, PROBE_STREAM_BYTES = 512, 2**24
_FLOAT_BYTES = 4
_BLOCK = 2048  # elements that stay in the first cache
_SHORT = 1024  # elements of an array that takes no time
_SHORTEST_SAMPLE_S = 1e-3
_ASSUMED_MEMORY_GIB = 8.0
_SMALLEST_SHARE = 1e-4
_LOWER_RUNGS, _CACHED_BYTES, _REPEATS = 0.6, 2**26, 10  # of what is measured in seconds
_MANY_DISPATCHES = 10  # of a call whose rate may be a ladder's best

Clock = Callable[[], float]
Kernel = Callable[[], object]
"""Runs something without arguments, and returns when it is done."""
Limit = Literal["compute", "memory"]
Progress = Callable[[int, int, str], None]
"""Called with how many measurements are done, how many there are, and what is measured next."""


class Backend(ABC):
    """What makes kernels: a library on one device. All arrays are of single precision.

    Attributes:
        name: of the library.
        device: what its maker calls the device.
        is_cpu: whether it is a CPU.
    """

    name: str
    device: str
    is_cpu: bool

    def clock(self, limit: Limit = "compute") -> Clock:  # noqa: ARG002 - NumPy looks at it
        """Return what kernels of a limit are timed by, s: of a CPU with one core, this process's processor time."""
        return time.process_time if self.is_cpu and num_cpus() == 1 else time.perf_counter

    @property
    def fuses(self) -> bool:
        """Whether arithmetic on an element that was read costs no traffic: operations are fused, or done in blocks."""
        return True

    @abstractmethod
    def ones(self, *shape: int) -> Any:
        """Return an array of ones."""

    @abstractmethod
    def compiled(self, function: Callable[..., Any], *arguments: Any) -> Kernel:
        """Return a function of arrays with its arguments, compiled where the library compiles, and waited for."""

    def matmul(self, size: int) -> Kernel:
        """Return a multiplication of two square matrices."""
        return self.compiled(lambda x, y: x @ y, self.ones(size, size), self.ones(size, size))

    def stream(self, num_bytes: int) -> Kernel:
        """Return a pass that reads half of some bytes and writes the other half."""
        return self.polynomial(num_bytes, 1)

    def polynomial(self, num_bytes: int, degree: int) -> Kernel:
        """Return the same traffic with 2 FLOPs an element for each degree."""
        return self.compiled(horner(degree), self.ones(_num_elements(num_bytes)) / 2)

    def nothing(self) -> Kernel:
        """Return a program that does next to nothing: it adds to a short array, since numbers may take another way."""
        return self.compiled(lambda x: x + 1, self.ones(_SHORT))


class JaxBackend(Backend):
    """JAX on its default device, compiled."""

    name = "jax"

    def __init__(self) -> None:
        require_installed("jax", 'backend="jax"', "jax")
        import jax  # noqa: PLC0415 - JAX is heavy

        found = jax.devices()[0]
        self.is_cpu = found.platform == "cpu"
        self.device = cpu_name() if self.is_cpu else found.device_kind
        self._jax: Any = jax

    def ones(self, *shape: int) -> Any:
        """Return an array of ones."""
        return self._jax.numpy.ones(shape)

    def compiled(self, function: Callable[..., Any], *arguments: Any) -> Kernel:
        """Return the compiled function, waited for."""
        ready, wait = self._jax.jit(function).lower(*arguments).compile(), self._jax.block_until_ready
        return lambda: wait(ready(*arguments))


class NumpyBackend(Backend):
    """NumPy on the CPU: each operation is a pass over memory, so kernels write into arrays that are there."""

    name = "numpy"
    is_cpu = True

    def clock(self, limit: Limit = "compute") -> Clock:
        """Return the same; of passes over memory, which NumPy makes with one thread, the processor's time."""
        return time.process_time if limit == "memory" else super().clock(limit)

    def __init__(self) -> None:
        import numpy as np  # noqa: PLC0415

        self.device = cpu_name()
        self._library: Any = np

    def ones(self, *shape: int) -> Any:
        """Return an array of ones."""
        return self._library.ones(shape, dtype=self._library.float32)

    def compiled(self, function: Callable[..., Any], *arguments: Any) -> Kernel:
        """Return the function as it is."""
        return lambda: function(*arguments)

    def matmul(self, size: int) -> Kernel:
        """Return a multiplication of two square matrices."""
        x, y = self.ones(size, size), self.ones(size, size)
        return self.compiled(lambda: self._library.matmul(x, x, out=y))

    def stream(self, num_bytes: int) -> Kernel:
        """Return a scaling."""
        x, y = self.ones(_num_elements(num_bytes)), self.ones(_num_elements(num_bytes))
        return self.compiled(lambda: self._library.multiply(x, 2, out=y))

    def polynomial(self, num_bytes: int, degree: int) -> Kernel:
        """Return Horner's rule; on a CPU in blocks that stay in the first cache."""
        size = _num_elements(num_bytes)
        x, block_size = self.ones(size) / 2, _BLOCK if self.is_cpu else size

        def run() -> None:
            for begin in range(0, size, block_size):
                block = x[begin : begin + block_size]
                y = self._library.ones_like(block)
                for _ in range(degree):
                    y *= block
                    y += 1

        return self.compiled(run)


class TorchBackend(NumpyBackend):
    """torch, eagerly, on a GPU if there is one, which is waited for; results are new arrays, as in programs."""

    name = "torch"
    fuses = False

    def __init__(self) -> None:
        import torch  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 - an extra

        self._library = torch
        self.is_cpu = not torch.cuda.is_available()
        self.device = cpu_name() if self.is_cpu else str(torch.cuda.get_device_name())

    def ones(self, *shape: int) -> Any:
        """Return an array of ones."""
        return self._library.ones(shape, device="cpu" if self.is_cpu else "cuda")

    def clock(self, limit: Limit = "compute") -> Clock:
        """Return the same for all kernels, which torch computes with all threads."""
        return Backend.clock(self, limit)

    def matmul(self, size: int) -> Kernel:
        """Return a multiplication of two square matrices."""
        return Backend.matmul(self, size)

    def stream(self, num_bytes: int) -> Kernel:
        """Return a scaling."""
        return self.compiled(lambda x: x * 2, self.ones(_num_elements(num_bytes)))

    def compiled(self, function: Callable[..., Any], *arguments: Any) -> Kernel:
        """Return the function, waited for."""
        if self.is_cpu:
            return lambda: function(*arguments)
        return lambda: (function(*arguments), self._library.cuda.synchronize())


def _num_elements(num_bytes: int) -> int:
    """Return how many numbers half of some bytes are."""
    return max(1, num_bytes // 2 // _FLOAT_BYTES)


def horner(degree: int) -> Callable[[Any], Any]:
    """Return a polynomial of some degree: 2 FLOPs an element for each."""

    def polynomial(x: Any) -> Any:
        y = x
        for _ in range(degree):
            y = y * x + 1
        return y

    return polynomial


def find_backend(name: str | None) -> Backend:
    """Return a backend by its name.

    Args:
        name: "jax", "numpy" or "torch".

    Raises:
        UsageError: there is no such backend, or its library is not installed.
    """
    made: dict[str, Callable[[], Backend]] = {"jax": JaxBackend, "numpy": NumpyBackend, "torch": TorchBackend}
    if name is None or name not in made:
        raise UsageError(f"backend must be one of {', '.join(BACKENDS)}, got {name!r}")
    if importlib.util.find_spec(name) is None:
        raise UsageError(f"backend {name!r} needs {name}, which is not installed; use another one, or install it")
    return made[name]()


def cpu_name() -> str:
    """Return what the operating system calls the processor."""
    return platform.processor() or platform.machine() or "a CPU"


def num_cpus() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def clock_name(backend: Backend) -> str:
    """Return what a backend's kernels are timed by, in words."""
    return "wall" if backend.clock() is time.perf_counter else "processor time of one core"


@dataclass(frozen=True, slots=True)
class Measured:
    """Samples of one kernel; their median and interquartile range, as means follow the worst moments of a machine.

    Args:
        samples_s: time of a call, s, in the order measured.
    """

    samples_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The median, s."""
        return statistics.median(self.samples_s)

    @property
    def least_s(self) -> float:
        """The least, s."""
        return min(self.samples_s)

    @property
    def noise(self) -> float:
        """The interquartile range over the median."""
        return relative_iqr(self.samples_s)


def relative_iqr(values: Sequence[float]) -> float:
    """Return the interquartile range of some values over their median; 0 for a single one.

    >>> relative_iqr([1.0, 2.0, 3.0, 4.0, 5.0])
    0.6666666666666666
    """
    if len(values) == 1:
        return 0.0
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / median if median else 0.0


def calls_a_sample(kernel: Kernel, clock: Clock) -> int:
    """Return how many calls make a sample long enough, after one call that warms up."""
    kernel()
    took = sample(kernel, 1, clock)
    return max(1, int(_SHORTEST_SAMPLE_S / took)) if took > 0 else 1000


def sample(kernel: Kernel, calls: int, clock: Clock) -> float:
    """Return the mean time of some calls, s."""
    start = clock()
    for _ in range(calls):
        kernel()
    return (clock() - start) / calls


def sample_between(kernel: Kernel, calls: int, probe: Kernel, probe_calls: int, clock: Clock) -> tuple[float, float]:
    """Return the mean time of some calls, and that of a probe before and after them, s."""
    before = sample(probe, probe_calls, clock)
    taken = sample(kernel, calls, clock)
    return taken, (before + sample(probe, probe_calls, clock)) / 2


class Notebook:
    """Measurements by name, written down as each is made, so that stopping loses none.

    Args:
        path: where to; None to keep them in memory alone.
        about: what was measured, and must be the same when it goes on.

    Attributes:
        values: what was measured until now.

    Raises:
        UsageError: the file is of something else, or damaged.
    """

    def __init__(self, path: Path | None = None, about: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self._about = dict(about or {})
        self.values: dict[str, Any] = {}
        if path is not None and path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        """Go on where a file ends."""
        try:
            found = read_json(path)
            about, self.values = found["about"], dict(found["measured"])
        except (OSError, ValueError, KeyError, TypeError):
            raise UsageError(f"{path} is damaged or holds no measurements; remove it to begin again") from None
        if about != self._about:
            raise UsageError(f"{path} holds measurements of {about}, not of {self._about}; remove it to begin again")

    def note(self, name: str, value: Any) -> None:
        """Keep a measurement, in the file too."""
        self.values[name] = value
        if self.path is not None:
            write_text(self.path, [json.dumps({"about": self._about, "measured": self.values}, indent=1), "\n"])


def sample_rounds(
    backend: Backend,
    kernels: Mapping[str, tuple[Kernel, Limit]],
    notebook: Notebook,
    num_rounds: int,
    progress: Progress | None,
) -> None:
    """Sample kernels in rounds, each round in another order and each sample between two of a probe.

    Args:
        backend: makes the probes: small kernels, one limited by compute and one by memory.
        kernels: by name, each with what limits it.
        notebook: gets the samples by name: pairs of a kernel's time and its probe's, s. Where it has some, they count.
        num_rounds: samples of each kernel.
        progress: called before each sample.
    """
    probes: dict[Limit, Kernel] = {
        "compute": backend.matmul(PROBE_MATMUL),
        "memory": backend.stream(PROBE_STREAM_BYTES),
    }
    probe_calls = {limit: calls_a_sample(probe, backend.clock(limit)) for limit, probe in probes.items()}
    calls = {name: calls_a_sample(kernel, backend.clock(limit)) for name, (kernel, limit) in kernels.items()}
    order, names = random.Random(0), list(kernels)
    for round_ in range(num_rounds):
        order.shuffle(names)
        for place, name in enumerate(names):
            before = notebook.values.get(name, [])
            if len(before) > round_:
                continue
            if progress is not None:
                progress(round_ * len(names) + place, num_rounds * len(names), name)
            kernel, limit = kernels[name]
            taken = sample_between(kernel, calls[name], probes[limit], probe_calls[limit], backend.clock(limit))
            notebook.note(name, [*before, list(taken)])


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


def rungs(largest: float = 1.0) -> list[Rung]:
    """Return all measurements, the quickest first in each ladder.

    Args:
        largest: share of the ladders to climb, in (0, 1]; less is quicker.
    """

    def part(sizes: Sequence[int]) -> Sequence[int]:
        return sizes[: max(2, round(len(sizes) * largest))]

    degree = POLYNOMIAL_DEGREE
    return [
        Rung("nothing", 0, 0, methodcaller("nothing")),
        *(Rung(f"matmul {n}", 2 * n**3, 12 * n**2, methodcaller("matmul", n)) for n in part(MATMUL_SIZES)),
        *(Rung(f"stream {n}", n / 8, n, methodcaller("stream", n)) for n in part(STREAM_BYTES)),
        *(
            Rung(f"polynomial {n}", 2 * degree * n / 8, n, methodcaller("polynomial", n, degree))
            for n in part(POLYNOMIAL_BYTES)
        ),
    ]


def limit_of(rung: str) -> Limit:
    """Return what limits a rung, by its name."""
    return "compute" if rung.startswith(("matmul", "polynomial")) else "memory"


@typed
def calibrate(
    backend: str | Backend = "jax",
    *,
    notes: StrPath | None = None,
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
    if not is_number(largest) or not 0 < largest <= 1:
        raise UsageError(f"largest is a share of the ladders in (0, 1], got {largest!r}")
    found = find_backend(backend) if isinstance(backend, str | None) else backend
    ladder = [rung for rung in rungs(largest) if found.fuses or not rung.name.startswith("polynomial ")]
    about = {
        "schema": SCHEMA,
        "backend": found.name,
        "device": found.device,
        "clock": clock_name(found),
        "rungs": [rung.name for rung in ladder],
    }
    notebook = Notebook(None if notes is None else Path(notes), about)
    kernels = {rung.name: (rung.make(found), limit_of(rung.name)) for rung in ladder}
    sample_rounds(found, kernels, notebook, num_samples, progress)
    return config_of(found, ladder, {rung.name: steadied(rung.name, notebook.values) for rung in ladder})


def steadied(name: str, samples: Mapping[str, Sequence[tuple[float, float]]]) -> Measured:
    """Return a rung's times as they would be at the machine's median speed, by the probes beside them."""
    alike = [pairs for other, pairs in samples.items() if limit_of(other) == limit_of(name)]
    usual = statistics.median(probe for pairs in alike for _, probe in pairs)
    return Measured(tuple(taken / probe * usual for taken, probe in samples[name]))


def _told(measured: Measured) -> dict[str, float]:
    """Return what a config says of a rung."""
    return {"median_s": measured.median_s, "least_s": measured.least_s, "noise": measured.noise}


Points = list[tuple[float, float]]
"""Work or traffic and seconds of the rungs of one ladder, from the smallest up."""


def _points(ladder: Sequence[Rung], took: Mapping[str, float], kind: str, amount: str) -> Points:
    """Return how much the rungs of one kind do, in FLOPs or bytes, and how long they took, s."""
    names = [rung for rung in ladder if rung.name.startswith(f"{kind} ") and rung.name in took]
    return [(getattr(rung, amount), took[rung.name]) for rung in names]


def _rates(points: Points, dispatch: float, unit: float, *, by_last: bool = False) -> tuple[float, list[list[float]]]:
    """Return the best rate of a ladder, and the share of it that each rung reached, from the largest rung down.

    A rung's row begins halfway, in ratio, to the rung below it, and the last row at 0. Predictions have a dispatch of
    their own. A call that is hardly longer is all dispatch, and noise: its rate is not the best.

    Args:
        points: of the ladder.
        dispatch: s.
        unit: of the rows' bounds.
        by_last: whether the largest rung's rate counts as the best.
    """
    rates = [(work, work / max(took - dispatch, took / 10), took) for work, took in points]
    certain = [rate for _, rate, took in rates if took >= _MANY_DISPATCHES * dispatch and not by_last]
    best = max(certain or [rates[-1][1]])
    bounds = [0.0, *(sqrt(low * high) for (low, *_), (high, *_) in pairwise(rates))]
    rows = [
        [bound / unit, min(max(rate / best, _SMALLEST_SHARE), 1.0)]
        for bound, (_, rate, _) in zip(bounds, rates, strict=True)
    ]
    return best, rows[::-1]


def config_of(
    backend: Backend,
    ladder: Sequence[Rung],
    measured: Mapping[str, Measured],
    time_of: Callable[[Measured], float] = attrgetter("median_s"),
    *,
    is_beyond_caches: bool = False,
) -> dict[str, Any]:
    """Return the hardware config that measurements make.

    Args:
        backend: what was measured.
        ladder: the rungs.
        measured: their samples.
        time_of: what counts of a rung's samples, s.
        is_beyond_caches: whether the largest pass over memory is one that no cache holds, whose rate is the memory's;
            the quickest is otherwise.
    """
    took = {rung.name: time_of(measured[rung.name]) for rung in ladder if rung.name in measured}
    dispatch = took["nothing"]
    matmul, matmul_rows = _rates(_points(ladder, took, "matmul", "flops"), dispatch, 1e9)
    streams = _points(ladder, took, "stream", "bytes")
    stream, stream_rows = _rates(streams, dispatch, 1e6, by_last=is_beyond_caches)
    polynomial, polynomial_rows = (
        _rates(_points(ladder, took, "polynomial", "flops"), dispatch, 1e9)
        if backend.fuses
        else (_rates(_points(ladder, took, "stream", "flops"), dispatch, 1e9)[0], [[0.0, 1.0]])
    )
    gigabytes = _memory_gib()
    capacity = gigabytes if gigabytes and backend.is_cpu else _ASSUMED_MEMORY_GIB
    described = {"GiB": capacity, "GBps": stream / 1e9, "MB_efficiency": stream_rows}
    ops = {name: list(row) for name, row in RING_ROWS.items()}
    tier = {"bandwidth": stream / 1e9, "efficiency": 1.0, "size": 1, "latency": 0.0, "ops": ops}
    return {
        "name": f"{backend.name}_{'cpu' if backend.is_cpu else 'gpu'}",
        "matrix": {"float32": {"tflops": matmul / 1e12, "gflops_efficiency": matmul_rows}},
        "vector": {"float32": {"tflops": polynomial / 1e12, "gflops_efficiency": polynomial_rows}},
        "mem1": described,
        "mem2": described,
        "processing_mode": "roofline",
        "networks": [tier | {"must_be_filled": False, "processor_usage": 0.0}],
        "class": "cpu" if backend.is_cpu else "asic",
        "units": num_cpus() if backend.is_cpu else 1,
        "dispatch_s": dispatch,
        "measured": {
            "backend": backend.name,
            "device": backend.device,
            "clock": clock_name(backend),
            "assumed": ["mem2", "networks", *([] if capacity == gigabytes else ["mem1.GiB"])],
            "rungs": {name: _told(each) for name, each in measured.items()},
        },
    }


def measure_rates(backend: Backend, memory_bytes: int) -> dict[str, Any]:
    """Return a hardware config of what a device reaches at best, and its memory with arrays that no cache holds.

    The least of ten samples counts, since what else runs on a machine only slows a kernel down (as McCalpin's STREAM
    counts: "Memory bandwidth and machine balance in current high performance computers", 1995).

    Args:
        backend: makes the kernels.
        memory_bytes: what a pass over memory reads and writes.

    Returns:
        The config as data; its key `measured` has the spread of each rung's samples as `noise`.
    """
    streams = [
        Rung(f"stream {size}", size / 8, size, methodcaller("stream", size)) for size in (_CACHED_BYTES, memory_bytes)
    ]
    ladder = [rung for rung in (*rungs(_LOWER_RUNGS), *streams) if rung.bytes < memory_bytes or rung is streams[-1]]
    kernels = [(rung.make(backend), backend.clock(limit_of(rung.name))) for rung in ladder]
    calls = [calls_a_sample(*each) for each in kernels]
    rounds = [
        [sample(kernel, count, clock) for (kernel, clock), count in zip(kernels, calls, strict=True)]
        for _ in range(_REPEATS)
    ]
    measured = {rung.name: Measured(samples) for rung, samples in zip(ladder, zip(*rounds, strict=True), strict=True)}
    return config_of(backend, ladder, measured, attrgetter("least_s"), is_beyond_caches=True)


def _memory_gib() -> float | None:
    """Return the memory of this machine in GiB, or None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (AttributeError, OSError, ValueError):
        return None


def measured_of(config: Any) -> Mapping[str, Any]:
    """Return what a calibrated config says of its measurements; nothing of any other config.

    Args:
        config: its data, or the path of its file.

    Raises:
        HardwareConfigError: the file cannot be read.
    """
    if isinstance(config, str | os.PathLike) and not is_shipped(config):
        path = os.fspath(config)
        config = parse(read_file(str(path)), str(path))
    found = config.get("measured") if isinstance(config, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def noise_of(config: Any) -> float:
    """Return the median noise of the measurements that `measured_of` finds; 0 where there are none."""
    found = [noise for _, noise in noisiest({"measured": measured_of(config)})]
    return statistics.median(found) if found else 0.0


def noisiest(config: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the measurements of a calibrated config by falling noise."""
    measured = config.get("measured")
    found = measured.get("rungs") if isinstance(measured, Mapping) else None
    pairs = found.items() if isinstance(found, Mapping) else ()
    noises = [(name, each["noise"]) for name, each in pairs if isinstance(each, Mapping) and "noise" in each]
    yield from sorted(noises, key=lambda pair: -pair[1])
