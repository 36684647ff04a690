"""A run as activities: what is drawn once in a sample of noise.

An *activity* is an operation of one rank, or a whole collective, since its members begin and end together. Thousands of
samples are timed at once by `minitrain.run.analysis.retiming`, to the last float. Loading stays as it was recorded, and
is no part of the step.

Draws of noise: how long every activity of a run lasts in each sample.

Every sample has a generator of its own, seeded by the seed and by the sample's number. So a sample is the same whatever
others are drawn, and can be drawn again alone. Within a sample, jitter is drawn first, then stragglers, then links.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minitrain.errors import UsageError
from minitrain.operations import COMPUTING
from minitrain.run.analysis.dependencies import collectives, make_graph, messages
from minitrain.run.analysis.retiming import Program, make_program, retime
from minitrain.run.analysis.timeline import NONE, Bools, Floats, Ints, Timeline
from minitrain.whatif.noise.noise import Histogram, Noise, SlowLink


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

    Raises:
        UsageError: operations wait for one another in a circle, which no real log has.
    """
    members, places = collectives(timeline)
    event, of_event = np.unique(_shared(timeline, members, places), return_inverse=True)
    program = make_program(make_graph(timeline), of_event)
    return Activities(
        timeline,
        event,
        _draws(timeline, members, places)[event],
        timeline.duration[event],
        of_event,
        np.bincount(of_event, minlength=len(event)) > 1,
        program,
        program.latest(program.end.tolist()),
    )


def _shared(timeline: Timeline, members: Ints, places: Ints) -> Ints:
    """Return the event that stands for each one's activity: of the members of a collective, the first.

    Members of a measured log may last differently. Then each is an activity of its own.
    """
    shared = np.arange(timeline.num_events)
    first = np.repeat(members[places[:-1]], np.diff(places))
    if np.array_equal(timeline.duration[first], timeline.duration[members]):
        shared[members] = first
    return shared


def _draws(timeline: Timeline, members: Ints, places: Ints) -> Ints:
    """Return the index of the random factor that each event is drawn with, (num_events,)."""
    found = np.arange(timeline.num_events)
    found[members] = np.repeat(members[places[:-1]], np.diff(places))
    sends, receives = messages(timeline)
    found[receives] = sends
    return np.unique(found, return_inverse=True)[1].astype(np.int64)


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
        return np.flatnonzero(self._activities.timeline.of_types(COMPUTING)[self._event])

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
        carried = ~self._computes & ~line.on_stream("offload")[self._event] & ~line.on_stream("fetch")[self._event]
        draws = np.intersect1d(np.flatnonzero(carried), self._in_tier(link))
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
