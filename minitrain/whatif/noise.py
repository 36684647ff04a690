"""`Noise`: what may make operations last longer or shorter than their price, as one value; and draws of it for a run.

All noise is a factor on the durations of a run. Computing and communication have three kinds each:

- *jitter*: every operation has a factor of its own, lognormal with mean 1: exp(sigma z - sigma^2 / 2). On average an
  operation lasts as long as its price, so that all that is added to the mean step is waiting.
- *measured*: in the place of jitter, a factor drawn from measured durations. A `Histogram` has how they are spread
  around their median.
- *stragglers* and `slowdown`: a rank whose computing is slow for a whole step, now and then or always; *slow links*
  are the same for communication.

A collective has one factor for all its members, and a message has one for both sides. Left out: noise that lasts for
several steps, and ranks that fail (see `minitrain.whatif.disturbed_run`).

`Activities` are what has a draw of its own in a sample: an operation of one rank, or a whole collective, since its
members begin and end together. Thousands of samples are timed at once by `minitrain.run.analysis.retiming`, to the last
float. Loading stays as it was recorded, and is no part of the step.

`Draws` say how long every activity lasts in each sample. A sample has a generator of its own, seeded by the seed and by
the sample's number. So a sample is the same whatever others are drawn, and can be drawn again alone. Within a
sample, jitter is drawn first, then stragglers, then links.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from minitrain.errors import UsageError, is_count, is_number, typed
from minitrain.machine.config_format import ReadOnly
from minitrain.operations import COMM, EVENT_TYPES, HOST_MOVES
from minitrain.operations import COMPUTING as OF_COMPUTING
from minitrain.run.analysis.retiming import Program, first_events, make_graph, make_program, retime
from minitrain.run.analysis.timeline import NONE, Bools, Floats, Ints, Timeline


@typed
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
PERCENTILES = (50, 90, 99)
KINDS = (COMPUTING, COMMUNICATION, *EVENT_TYPES)
"""What noise may be given for: all computing, all communication, or one type of event."""


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
        if self.tier is not None and not is_count(self.tier):
            yield f"tier must be the size of a network tier, an integer of at least 1, got {self.tier!r}"


def _is_pair(value: Any) -> bool:
    is_two = isinstance(value, Sequence) and len(value) == 2
    return is_two and all(is_count(rank, 0) for rank in value) and value[0] != value[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise(ReadOnly):
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
        object.__setattr__(self, "jitter", dict(kinds))
        object.__setattr__(self, "slow_links", tuple(self.slow_links))
        object.__setattr__(self, "straggler", self.straggler and tuple(self.straggler))
        ReadOnly.__post_init__(self)

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
    if not is_number(probability, 1.0):
        yield f"{whose}probability must be a number from 0 to 1, got {probability!r}"
    if not (is_number(factor) and factor):
        yield f"{whose}factor must be a number above 0, got {factor!r}"


def _faults_of_jitter(jitter: Any) -> Iterator[str]:
    if not isinstance(jitter, Mapping):
        jitter = {"": jitter}
    yield from _unknown_kinds("jitter", [kind for kind in jitter if kind != ""])
    for kind, sigma in jitter.items():
        if not is_number(sigma):
            yield f"jitter{f' of {kind}' if kind else ''} must be a sigma of at least 0, such as 0.05, got {sigma!r}"


def _faults_of_slowdown(slowdown: Any) -> Iterator[str]:
    if not isinstance(slowdown, Mapping):
        yield f"slowdown must be factors by rank, such as {{0: 1.5}}, got {slowdown!r:.60}"
        return
    for rank, factor in slowdown.items():
        if not is_count(rank, 0) or not (is_number(factor) and factor):
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


@dataclass(frozen=True, slots=True, eq=False)
class Activities:
    """The activities of a run and what they wait for.

    Args:
        timeline: the recorded run.
        event: an event of each activity; of a collective, its lowest rank's, (num_activities,), like the next two.
        draw: index of its random factor; both sides of a message, and all members of a collective, share one.
        duration: how long it lasted in the record, s.
        of_event: the activity of each event, (num_events,).
        is_shared: whether an activity is a whole collective, (num_activities,).
        program: the moments, whose durations are those of the activities.
        last: the value of the step's end.
    """

    timeline: Timeline
    event: Ints
    draw: Ints
    duration: Floats
    of_event: Ints
    is_shared: Bools
    program: Program
    last: int

    @property
    def loading(self) -> Bools:
        """Whether an activity is a rank's loading, before the step, (num_activities,)."""
        return self.timeline.loading[self.event]

    @property
    def num_activities(self) -> int:
        """How many activities there are."""
        return len(self.event)

    @property
    def num_numbers(self) -> int:
        """How many numbers a sample takes: durations and moments."""
        return len(self.program.code) + self.num_activities

    def step_times(self, durations: Floats) -> Floats:
        """Return the step time of each sample, s, (num_samples,).

        Args:
            durations: how long activities last, s, (num_activities, num_samples).
        """
        steps: Floats = retime(self.program, durations, np.array([self.last]))[0] - self.timeline.begin
        return steps


def make_activities(timeline: Timeline) -> Activities:
    """Return the activities of a run.

    Members of a collective in a measured log may last differently. Then each is an activity of its own.

    Raises:
        UsageError: operations wait for one another in a circle, which no real log has.
    """
    first, alone = first_events(timeline), np.arange(timeline.num_events)
    shared = np.where(timeline.on_stream(COMM), first, alone)
    are_alike = np.array_equal(timeline.duration[shared], timeline.duration)
    event, of_event = np.unique(shared if are_alike else alone, return_inverse=True)
    program = make_program(make_graph(timeline), of_event)
    return Activities(
        timeline,
        event,
        np.unique(first, return_inverse=True)[1].astype(np.int64)[event],
        timeline.duration[event],
        of_event,
        np.bincount(of_event, minlength=len(event)) > 1,
        program,
        program.latest(program.end.tolist()),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Chance:
    """Ranks or links that may be slow for a whole sample.

    Args:
        first: its first uniform number of a sample.
        probability: that one of its parts is slow.
        factor: by which the activities that it carries last longer.
        of_set: which parts each set of ranks uses, 1 or 0, (num_sets, num_parts).
        draws: the draws that it changes, (num_changed,).
        sets: the set of each of them, (num_changed,).
    """

    first: int
    probability: float
    factor: float
    of_set: Floats
    draws: Ints
    sets: Ints

    def factors(self, uniform: Floats) -> Floats:
        """Return the factor of each draw that it changes, (num_samples, num_changed)."""
        slow = uniform[:, self.first : self.first + self.of_set.shape[1]] < self.probability
        hit = slow.astype(float) @ self.of_set.T > 0
        factors: Floats = np.where(hit, self.factor, 1.0)[:, self.sets]
        return factors


class Draws:
    """What is drawn for a run.

    Args:
        activities: the run.
        noise: what disturbs it.
        seed: of all samples.
        tiers: processors of the tier that carries each event, or None where the run does not say it.
    """

    def __init__(self, activities: Activities, noise: Noise, seed: int, tiers: Ints | None = None) -> None:
        line = activities.timeline
        self._activities, self._seed = activities, seed
        self.num_draws = int(activities.draw.max(initial=-1)) + 1
        event = np.zeros(self.num_draws, np.int64)
        event[activities.draw[::-1]] = activities.event[::-1]  # of a message, its first side
        self._event, self._tiers = event, None if tiers is None else tiers[event]
        self._computes = line.computes[event]
        self._loading = np.flatnonzero(activities.loading)
        self._num_uniform = 0
        self._sigma, self._histograms = self._by_type(noise)
        self._chances = [*self._stragglers(noise), *(self._slow(link) for link in noise.slow_links)]
        self._always = np.ones(self.num_draws)
        factors = np.array([noise.slowdown.get(rank, 1.0) for rank in range(line.num_ranks)])
        self._always[self._slowed] = factors[line.rank[event[self._slowed]]]
        self._uniform_of = [(self._take(len(draws)), draws, one) for draws, one in self._histograms]

    @property
    def _slowed(self) -> Ints:
        """The draws that a slow rank changes."""
        return np.flatnonzero(self._activities.timeline.of_types(OF_COMPUTING)[self._event])

    def durations(self, samples: Ints) -> Floats:
        """Return how long each activity lasts in some samples, s, (num_activities, num_samples)."""
        factors = np.ascontiguousarray(self._factors(samples).T)
        durations: Floats = self._activities.duration[:, None] * factors[self._activities.draw]
        durations[self._loading] = self._activities.duration[self._loading, None]
        return durations

    def _factors(self, samples: Ints) -> Floats:
        """Return the factors of some samples, (num_samples, num_draws)."""
        normal = np.empty((len(samples), self.num_draws if self._sigma.any() else 0))
        uniform = np.empty((len(samples), self._num_uniform))
        for row, sample in enumerate(samples.tolist()):
            generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self._seed, sample])))
            generator.standard_normal(out=normal[row])
            generator.random(out=uniform[row])
        if normal.shape[1]:
            normal *= self._sigma
            normal -= self._sigma**2 / 2
            factors = np.exp(normal, out=normal)
            factors *= self._always
        else:
            factors = np.repeat(self._always[None], len(samples), axis=0)
        for chance in self._chances:
            factors[:, chance.draws] *= chance.factors(uniform)
        for first, draws, histogram in self._uniform_of:
            factors[:, draws] *= histogram.factors(uniform[:, first : first + len(draws)])
        return factors

    def _take(self, count: int) -> int:
        """Reserve some uniform numbers of every sample, and return the place of the first."""
        self._num_uniform += count
        return self._num_uniform - count

    def _by_type(self, noise: Noise) -> tuple[Floats, list[tuple[Ints, Histogram]]]:
        """Return the sigma of each draw, and the draws of each histogram."""
        line = self._activities.timeline
        typ, sigma = line.typ[self._event], np.zeros(self.num_draws)
        found = []
        for code, name in enumerate(line.typs):
            for computes in (True, False):
                draws = np.flatnonzero((typ == code) & (self._computes == computes))
                histogram = noise.histogram(name, computes)
                if histogram is None:
                    sigma[draws] = noise.sigma(name, computes)
                elif len(draws):
                    found.append((draws, histogram))
        return sigma, found

    def _stragglers(self, noise: Noise) -> list[_Chance]:
        """Return the chance that ranks compute slowly."""
        if noise.straggler is None:
            return []
        line, (probability, factor) = self._activities.timeline, noise.straggler
        of_rank, slowed = np.eye(line.num_ranks), self._slowed
        first = self._take(line.num_ranks)
        return [_Chance(first, probability, factor, of_rank, slowed, line.rank[self._event[slowed]])]

    def _slow(self, link: SlowLink) -> _Chance:
        """Return the chance that links are slow."""
        line = self._activities.timeline
        carried = ~self._computes & ~line.of_types(HOST_MOVES)[self._event]
        in_tier = self._in_tier(link)
        draws = in_tier[carried[in_tier]]
        users, sets = self._users(draws)
        if link.pair is not None:
            users = (users[:, link.pair[0]] & users[:, link.pair[1]])[:, None]
        return _Chance(self._take(users.shape[1]), link.probability, link.factor, users.astype(float), draws, sets)

    def _in_tier(self, link: SlowLink) -> Ints:
        """Return the draws that the tier of a link carries."""
        if link.tier is None:
            return np.arange(self.num_draws)
        if self._tiers is None:
            raise UsageError(
                f"tier={link.tier} needs a run that tells which network tier carried what, and one read from a file "
                "does not; simulate it again, or give pair="
            )
        found = np.flatnonzero(self._tiers == link.tier)
        if not len(found):
            known = ", ".join(str(size) for size in np.unique(self._tiers[self._tiers > 0]).tolist())
            raise UsageError(
                f"tier={link.tier} must be the size of a network tier that the run uses; it uses "
                f"{known or 'none, since nothing is sent'}"
            )
        return found

    def _users(self, draws: Ints) -> tuple[Bools, Ints]:
        """Return the sets of ranks that communicate, (num_sets, num_ranks), and the set of each draw."""
        line, event = self._activities.timeline, self._event[draws]
        keys = np.stack(
            [line.group[event], np.where(line.peer[event] == NONE, NONE, line.rank[event]), line.peer[event]]
        )
        rows, sets = np.unique(keys, axis=1, return_inverse=True)
        users = np.zeros((rows.shape[1], line.num_ranks), dtype=bool)
        for place, (group, rank, peer) in enumerate(rows.T.tolist()):
            users[place, _ranks_of(line.groups[group], rank, peer, line.num_ranks)] = True
        return users, sets.reshape(-1)


def _ranks_of(group: Sequence[int] | None, rank: int, peer: int, num_ranks: int) -> list[int]:
    """Return the ranks that take part in a message or a collective."""
    if peer != NONE:
        return [rank, peer]
    return list(range(num_ranks)) if group is None else list(group)
