"""`Noise`: what may make operations last longer or shorter than their price, as one value.

All noise is a factor on the durations of a run. Computing and communication have three kinds each:

- *jitter*: every operation has a factor of its own, lognormal with mean 1: exp(sigma z - sigma^2 / 2). On average an
  operation lasts as long as its price, so that all that is added to the mean step is waiting.
- *measured*: in the place of jitter, a factor drawn from measured durations.
- *stragglers* and `slowdown`: a rank whose computing is slow for a whole step, now and then or always; *slow links*
  are the same for communication.

A collective has one factor for all its members, and a message has one for both sides. Left out: noise that lasts for
several steps, and ranks that fail (see `minitrain.whatif.faults`).

`Histogram`: how a measured duration is spread around its median.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np

from minitrain.errors import UsageError
from minitrain.operations import EVENT_TYPES
from minitrain.run.analysis.timeline import Floats


@dataclass(frozen=True, slots=True)
class Histogram:
    """Measured durations of one operation that was repeated, in bins; a draw is uniform within its bin.

    What is drawn is the factor by which a duration differs from the median, so that the unit does not matter, and a
    measurement of one size is applied to all sizes.

    Args:
        edges: the bins' edges, ascending, in any unit of time, (num_bins + 1,).
        counts: how many durations each bin has, (num_bins,).

    Raises:
        UsageError: there is no bin, edges do not ascend from 0 or more, or no bin counts anything.
    """

    edges: tuple[float, ...]
    counts: tuple[float, ...]

    def __post_init__(self) -> None:
        edges, counts = tuple(self.edges), tuple(self.counts)
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "counts", counts)
        if not _is_histogram(edges, counts):
            raise UsageError(
                "a histogram needs n + 1 finite edges that ascend from 0 or more and n counts of 0 or more, not all "
                f"0; got edges {list(edges)!r:.80} and counts {list(counts)!r:.80}; `Histogram.of(durations)` makes "
                "one of measured durations"
            )

    @staticmethod
    def of(durations: Sequence[float], num_bins: int = 64) -> Histogram:
        """Return the histogram of measured durations, in bins of equal width.

        Args:
            durations: at least two that differ, in any unit of time.
            num_bins: how many bins.
        """
        measured = np.asarray(durations, dtype=float)
        is_usable = measured.ndim == 1 and len(np.unique(measured)) > 1 and bool(np.isfinite(measured).all())
        if not is_usable:
            raise UsageError(
                f"a histogram is made of at least two measured durations that differ, got {durations!r:.80}"
            )
        counts, edges = np.histogram(measured, bins=num_bins)
        return Histogram(tuple(edges.tolist()), tuple(counts.tolist()))

    def factors(self, uniform: Floats) -> Floats:
        """Return factors on a duration, with median 1, for numbers drawn uniformly from 0 to 1, of any shape."""
        shares = np.append(0.0, np.cumsum(self.counts)) / math.fsum(self.counts)
        median = float(np.interp(0.5, shares, self.edges))
        factors: Floats = np.interp(uniform, shares, self.edges) / median
        return factors


def _is_histogram(edges: tuple[float, ...], counts: tuple[float, ...]) -> bool:
    """Return whether these are the edges and counts of a histogram."""
    if len(counts) < 1 or len(edges) != len(counts) + 1 or not all(map(math.isfinite, (*edges, *counts))):
        return False
    ascend = edges[0] >= 0 and all(low < high for low, high in pairwise(edges))
    return ascend and min(counts) >= 0 and max(counts) > 0


COMPUTING, COMMUNICATION = "computing", "communication"
KINDS = (COMPUTING, COMMUNICATION, *EVENT_TYPES)
"""What noise may be given for: all computing, all communication, or one type of event."""


def _is_number(value: Any, least: float, most: float = math.inf) -> bool:
    """Return whether a value is a finite number in a range."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and least <= value <= most
        and math.isfinite(value)
    )


def _is_rank(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


@dataclass(frozen=True, slots=True)
class SlowLink:
    """Links that are slow for a whole step, now and then.

    By default, each rank has a link of its own into the network. A message is slow if that of either side is, and a
    collective if that of any member is. With `pair`, it is the link between two ranks: their messages are slow, and
    the collectives in which both take part.

    Args:
        probability: that a link is slow in a step, 0 to 1.
        factor: by which communication over it takes longer, above 0.
        pair: two ranks, or None.
        tier: only what is carried by the network tier that spans so many processors; None for all tiers.

    Raises:
        UsageError: something is outside its rule; the message has all faults.
    """

    probability: float
    factor: float
    pair: tuple[int, int] | None = None
    tier: int | None = None

    def __post_init__(self) -> None:
        _require_none("a slow link", list(self._faults()))
        if self.pair is not None:
            object.__setattr__(self, "pair", tuple(self.pair))

    def _faults(self) -> Iterator[str]:
        yield from _faults_of_chance("", self.probability, self.factor)
        if self.pair is not None and not _is_pair(self.pair):
            yield f"pair must be two different ranks, got {self.pair!r}"
        if self.tier is not None and not (_is_rank(self.tier) and self.tier):
            yield f"tier must be the size of a network tier, an integer of at least 1, got {self.tier!r}"


def _is_pair(value: Any) -> bool:
    is_two = isinstance(value, Sequence) and len(value) == 2
    return is_two and all(_is_rank(rank) for rank in value) and value[0] != value[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What disturbs a step; nothing by default.

    Args:
        jitter: sigma of the lognormal factor of every operation, such as 0.05; or by kind, where a type of event
            (`{"all_gather": 0.2}`) goes before "computing" and "communication".
        straggler: probability that a rank computes slowly in a step, and by what factor, such as (0.01, 2.0).
        slowdown: factor by which computing takes longer, by rank, in every sample: that of `simulate`.
        slow_links: links that are slow in some samples.
        measured: measured durations by kind, in the place of jitter.

    Raises:
        UsageError: something is outside its rule; the message has all faults.
    """

    jitter: float | Mapping[str, float] = 0.0
    straggler: tuple[float, float] | None = None
    slowdown: Mapping[int, float] = field(default_factory=dict)
    slow_links: Sequence[SlowLink] = ()
    measured: Mapping[str, Histogram] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require_none("the noise", list(self._faults()))
        kinds = (
            self.jitter if isinstance(self.jitter, Mapping) else dict.fromkeys((COMPUTING, COMMUNICATION), self.jitter)
        )
        object.__setattr__(self, "jitter", MappingProxyType(dict(kinds)))
        object.__setattr__(self, "slowdown", MappingProxyType(dict(self.slowdown)))
        object.__setattr__(self, "measured", MappingProxyType(dict(self.measured)))
        object.__setattr__(self, "slow_links", tuple(self.slow_links))
        object.__setattr__(self, "straggler", self.straggler and tuple(self.straggler))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy by the constructor's arguments (a mapping proxy cannot be pickled)."""
        return _noise, ({one.name: _plain(getattr(self, one.name)) for one in fields(self)},)

    def sigma(self, typ: str, computes: bool) -> float:
        """Return the sigma of the jitter of a type of event."""
        return float(_of_kind(self.jitter, typ, computes) or 0.0)

    def histogram(self, typ: str, computes: bool) -> Histogram | None:
        """Return the measured durations of a type of event, or None."""
        found: Histogram | None = _of_kind(self.measured, typ, computes)
        return found

    def __str__(self) -> str:
        return ", ".join(self._words()) or "none"

    def _words(self) -> Iterator[str]:
        """Yield each kind of noise in words; "x 2" is a factor on durations."""
        sigmas = dict(self.jitter)  # type: ignore[arg-type]  # a mapping since `__post_init__`
        if set(sigmas) == {COMPUTING, COMMUNICATION} and len(set(sigmas.values())) == 1:
            sigmas = {"everything": sigmas[COMPUTING]}
        yield from (f"jitter {sigma:g} on {kind}" for kind, sigma in sigmas.items() if sigma)
        yield from (f"{kind} as measured" for kind in self.measured)
        if self.straggler is not None:
            yield f"computing of a rank x {self.straggler[1]:g} with probability {self.straggler[0]:g}"
        yield from (f"computing of rank {rank} x {factor:g}" for rank, factor in self.slowdown.items())
        yield from (f"{_link(one)} x {one.factor:g} with probability {one.probability:g}" for one in self.slow_links)

    def _faults(self) -> Iterator[str]:
        """Yield what is outside its rule."""
        yield from _faults_of_jitter(self.jitter)
        if self.straggler is not None:
            if isinstance(self.straggler, Sequence) and len(self.straggler) == 2:
                yield from _faults_of_chance("straggler's ", *self.straggler)
            else:
                yield f"straggler must be a probability and a factor, such as (0.01, 2.0), got {self.straggler!r}"
        yield from _faults_of_slowdown(self.slowdown)
        if not isinstance(self.slow_links, Sequence) or not all(isinstance(one, SlowLink) for one in self.slow_links):
            yield f"slow_links must be a list of `mt.SlowLink`, got {self.slow_links!r:.60}"
        yield from _faults_of_measured(self.measured)


def _noise(given: Mapping[str, Any]) -> Noise:
    return Noise(**given)


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def _of_kind(given: Any, typ: str, computes: bool) -> Any:
    """Return what is given for a type of event, or else for all computing or communication; None if nothing is."""
    return given.get(typ, given.get(COMPUTING if computes else COMMUNICATION))


def _link(link: SlowLink) -> str:
    """Return in words which links are meant."""
    tier = "" if link.tier is None else f" in the tier of {link.tier}"
    return f"a link{tier}" if link.pair is None else f"link {link.pair[0]}-{link.pair[1]}{tier}"


def _require_none(what: str, faults: Sequence[str]) -> None:
    """Raise one UsageError with all faults, if there are any."""
    if faults:
        count = "a fault" if len(faults) == 1 else f"{len(faults)} faults"
        raise UsageError(f"{what} has {count}: {'; '.join(faults)}")


def _faults_of_chance(whose: str, probability: Any, factor: Any) -> Iterator[str]:
    if not _is_number(probability, 0.0, 1.0):
        yield f"{whose}probability must be a number from 0 to 1, got {probability!r}"
    if not (_is_number(factor, 0.0) and factor):
        yield f"{whose}factor must be a number above 0, got {factor!r}"


def _faults_of_jitter(jitter: Any) -> Iterator[str]:
    if not isinstance(jitter, Mapping):
        jitter = {"": jitter}
    yield from _unknown_kinds("jitter", [kind for kind in jitter if kind != ""])
    for kind, sigma in jitter.items():
        if not _is_number(sigma, 0.0):
            yield f"jitter{f' of {kind}' if kind else ''} must be a sigma of at least 0, such as 0.05, got {sigma!r}"


def _faults_of_slowdown(slowdown: Any) -> Iterator[str]:
    if not isinstance(slowdown, Mapping):
        yield f"slowdown must be factors by rank, such as {{0: 1.5}}, got {slowdown!r:.60}"
        return
    for rank, factor in slowdown.items():
        if not _is_rank(rank) or not (_is_number(factor, 0.0) and factor):
            yield f"slowdown must be factors above 0 by rank, got {factor!r} for {rank!r}"


def _faults_of_measured(measured: Any) -> Iterator[str]:
    if not isinstance(measured, Mapping) or not all(isinstance(one, Histogram) for one in measured.values()):
        yield f"measured must be a `mt.Histogram` by kind, got {measured!r:.60}"
        return
    yield from _unknown_kinds("measured", list(measured))


def _unknown_kinds(name: str, kinds: Sequence[Any]) -> Iterator[str]:
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        yield f"{name} is by kind, and {unknown[0]!r} is none; use one of {', '.join(KINDS)}"
