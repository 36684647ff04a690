"""Measure how long kernels take, with how much noise, and lose nothing when stopped.

A sample is the time of a call, or the mean of as many calls as take a millisecond. What is kept of several samples are
their median and their interquartile range: means follow the worst moments of a busy machine.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from minitrain.errors import UsageError
from minitrain.files import write_text

Clock = Callable[[], float]
Kernel = Callable[[], object]
_SHORTEST_SAMPLE_S = 1e-3
_FEWEST_FOR_QUARTILES = 2


@final
@dataclass(frozen=True, slots=True)
class Measured:
    """Samples of one kernel.

    Args:
        samples_s: time of a call, s, in the order measured.
    """

    samples_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The median, s."""
        return statistics.median(self.samples_s)

    @property
    def noise(self) -> float:
        """The interquartile range over the median."""
        return relative_iqr(self.samples_s)


def relative_iqr(values: Sequence[float]) -> float:
    """Return the interquartile range of some values over their median; 0 for a single one.

    >>> relative_iqr([1.0, 2.0, 3.0, 4.0, 5.0])
    0.6666666666666666
    """
    if len(values) < _FEWEST_FOR_QUARTILES:
        return 0.0
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / median if median else 0.0


def calls_a_sample(kernel: Kernel, clock: Clock = time.perf_counter) -> int:
    """Return how many calls make a sample long enough, after one call that warms up."""
    kernel()
    start = clock()
    kernel()
    took = clock() - start
    return max(1, int(_SHORTEST_SAMPLE_S / took)) if took > 0 else 1000


def sample(kernel: Kernel, calls: int, clock: Clock = time.perf_counter) -> float:
    """Return the mean time of some calls, s."""
    start = clock()
    for _ in range(calls):
        kernel()
    return (clock() - start) / calls


def sample_between(
    kernel: Kernel, calls: int, probe: Kernel, probe_calls: int, clock: Clock = time.perf_counter
) -> tuple[float, float]:
    """Return the mean time of some calls, and that of a probe before and after them, s."""
    before = sample(probe, probe_calls, clock)
    taken = sample(kernel, calls, clock)
    return taken, (before + sample(probe, probe_calls, clock)) / 2


@final
class Notebook(Mapping[str, Any]):
    """Measurements by name, written down as each is made, so that stopping loses none.

    Args:
        path: where to; None to keep them in memory alone.
        about: what was measured, and must be the same when it goes on.

    Raises:
        UsageError: the file is of something else, or damaged.
    """

    def __init__(self, path: Path | None, about: Mapping[str, Any]) -> None:
        self.path = path
        self._about = dict(about)
        self._values: dict[str, Any] = {}
        if path is not None and path.exists():
            self._values = self._read(path)

    def _read(self, path: Path) -> dict[str, Any]:
        """Return what was measured before."""
        try:
            found = json.loads(path.read_text("utf-8"))
            about, values = found["about"], found["measured"]
        except (OSError, ValueError, KeyError, TypeError):
            raise UsageError(f"{path} is damaged or holds no measurements; remove it to begin again") from None
        if about != self._about or not isinstance(values, dict):
            raise UsageError(f"{path} holds measurements of {about}, not of {self._about}; remove it to begin again")
        return values

    def note(self, name: str, value: Any) -> None:
        """Keep a measurement, in the file too."""
        self._values[name] = value
        if self.path is not None:
            write_text(self.path, [json.dumps({"about": self._about, "measured": self._values}, indent=1), "\n"])

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)
