"""`Distribution`: the step time of a run under noise, and what makes its tail, as figures and in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from minitrain.analysis.labels import duration
from minitrain.analysis.timeline import Floats, Ints
from minitrain.noise.noise import Noise
from minitrain.noise.tail import Carrier, Tail
from minitrain.run.result import Run

PERCENTILES = (50, 90, 99)
_MOST_LINES = 3


@dataclass(frozen=True, eq=False)
class Distribution:
    """The step time of a run under noise.

    Args:
        run: the recorded run.
        noise: what disturbed it.
        seed: what the samples were drawn with.
        step_times: of each sample, s, (num_samples,).
        recorded_s: the step time without noise, s.
        tail: the ranks and operations on the critical paths of the slowest tenth of the samples.
    """

    run: Run
    noise: Noise
    seed: int
    step_times: Floats = field(repr=False)
    recorded_s: float
    tail: Tail = field(repr=False)

    @property
    def num_samples(self) -> int:
        """How many samples were drawn."""
        return len(self.step_times)

    @cached_property
    def mean(self) -> float:
        """The mean step time, s."""
        return float(self.step_times.mean())

    @cached_property
    def std(self) -> float:
        """The standard deviation of the step time, s."""
        return float(self.step_times.std())

    def percentile(self, percent: float) -> float:
        """Return the step time that so many percent of the samples do not exceed, s."""
        return float(np.percentile(self.step_times, percent))

    @property
    def p50(self) -> float:
        """The median step time, s."""
        return self.percentile(50)

    @property
    def p90(self) -> float:
        """The step time that nine of ten samples do not exceed, s."""
        return self.percentile(90)

    @property
    def p99(self) -> float:
        """The step time that 99 of 100 samples do not exceed, s."""
        return self.percentile(99)

    def histogram(self, num_bins: int = 60) -> tuple[Floats, Ints]:
        """Return the edges of bins of equal width, s, (num_bins + 1,), and how many samples each has, (num_bins,)."""
        counts, edges = np.histogram(self.step_times, bins=num_bins)
        return edges, counts

    def summary(self) -> dict[str, Any]:
        """Return all figures but those of single samples, ready for JSON: times in s."""
        edges, counts = self.histogram()
        return {
            "strategy": self.run.strategy,
            "world_size": self.run.world_size,
            "noise": str(self.noise),
            "samples": self.num_samples,
            "seed": self.seed,
            "recorded_step_time_s": self.recorded_s,
            "mean_s": self.mean,
            "std_s": self.std,
            **{f"p{percent}_s": self.percentile(percent) for percent in PERCENTILES},
            "least_s": float(self.step_times.min()),
            "most_s": float(self.step_times.max()),
            "histogram": {"edges_s": edges.tolist(), "counts": counts.tolist()},
            "tail": {
                "samples": len(self.tail.samples),
                "ranks": [_row(one) for one in self.tail.ranks],
                "types": [_row(one) for one in self.tail.types],
                "operations": [_row(one) for one in self.tail.operations],
            },
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        """Yield what a person wants to know first."""
        yield f"{self.run.strategy}: {self.num_samples:,} samples, seed {self.seed}; noise: {self.noise}"
        percentiles = ", ".join(f"P{one} {self._beside(self.percentile(one))}" for one in PERCENTILES)
        yield f"step {duration(self.recorded_s)} recorded; under noise {percentiles}, mean {self._beside(self.mean)}"
        yield f"the slowest {len(self.tail.samples):,} samples, by what adds most to their critical paths:"
        for carriers in (self.tail.ranks, self.tail.types, self.tail.operations):
            for one in carriers[:_MOST_LINES]:
                yield f"  {one.name}: on {one.share:.0%} of the paths, for {duration(one.seconds)}, {_added(one)}"

    def _beside(self, seconds: float) -> str:
        """Return a step time, and how it compares with the recorded one."""
        more = f" ({seconds / self.recorded_s - 1:+.1%})" if self.recorded_s else ""
        return f"{duration(seconds)}{more}"


def _row(one: Carrier) -> dict[str, Any]:
    return {"name": one.name, "share": one.share, "seconds_s": one.seconds, "added_s": one.added_s}


def _added(one: Carrier) -> str:
    """Return in words how much longer than recorded it is on the path."""
    return f"{duration(abs(one.added_s))} {'more' if one.added_s >= 0 else 'less'} than recorded"
