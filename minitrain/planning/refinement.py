"""Moving shares as long as a simulation says that it helps, since finishing times are estimates that ignore links.

One move takes as many samples from each replica of a group and gives them to those of another, or moves layers from one
stage to another. All such moves of a size are simulated, and the best is taken if it helps. Moves begin large and get
smaller; the search ends when the smallest does not help, or after forty moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from minitrain.planning.candidates import Candidate
from minitrain.planning.result import Verdict
from minitrain.rank.shares import Shares

Judge = Callable[[Candidate], Verdict]
_MOST_MOVES = 40


def refined(candidate: Candidate, step_time: float, judge: Judge) -> Verdict | None:
    """Return a better candidate with other shares, or None if no move helps.

    Args:
        candidate: the layout to begin with.
        step_time: its simulated step time, s.
        judge: simulates a candidate.
    """
    if candidate.shares is None:
        return None
    best: Verdict | None = None
    fastest, current, left = step_time, candidate, _MOST_MOVES
    size = max(_largest(candidate) // 8, 1)
    while size and left > 0:
        found = None
        for moved in _moves(current, size):
            verdict = judge(moved)
            left -= 1
            if verdict.fitting_s < fastest:
                found, fastest = verdict, verdict.fitting_s
        if found is None:
            size //= 2
        else:
            best, current = found, found.candidate
    return best


def _largest(candidate: Candidate) -> int:
    """Return the largest share."""
    shares = candidate.shares
    assert shares is not None  # nothing is moved without
    return max(shares.layers or shares.samples or [1])


def _moves(candidate: Candidate, size: int) -> Iterator[Candidate]:
    """Yield the candidate with some shares moved from one group of equal owners to another."""
    shares = candidate.shares
    assert shares is not None  # as above
    if shares.layers:
        for counts in _moved(list(shares.layers), [[place] for place in range(len(shares.layers))], size):
            yield replace(candidate, shares=Shares(layers=counts, samples=shares.samples))
    elif shares.samples:
        for counts in _moved(list(shares.samples), _owners(candidate), size):
            yield _with_samples(candidate, counts)


def _owners(candidate: Candidate) -> list[list[int]]:
    """Return the replicas of each group of devices."""
    assert candidate.shares is not None  # as above
    assert candidate.shares.samples is not None
    width = candidate.world_size // len(candidate.shares.samples)
    groups, start = [], 0
    for group in candidate.cluster.devices:
        count = group.count // width
        groups.append(list(range(start, start + count)))
        start += count
    return [group for group in groups if group]


def _moved(counts: list[int], owners: Sequence[Sequence[int]], size: int) -> Iterator[list[int]]:
    """Yield counts with so many of each owner of one group given to the owners of another, evenly."""
    for giver in owners:
        for taker in owners:
            if giver is taker or min(counts[place] for place in giver) <= size:
                continue
            changed = list(counts)
            for place in giver:
                changed[place] -= size
            whole, rest = divmod(size * len(giver), len(taker))
            for number, place in enumerate(sorted(taker, key=counts.__getitem__)):  # those with least get the rest
                changed[place] += whole + (number < rest)
            yield changed


def _with_samples(candidate: Candidate, counts: Sequence[int]) -> Candidate:
    """Return the candidate with other samples, in as many microbatches as before, or as large ones."""
    old = candidate.shares
    assert old is not None  # as above
    assert old.samples is not None
    sizes = None
    if old.microbatch_sizes is not None:
        given = list(zip(old.samples, old.microbatch_sizes, strict=True))
        number, *others = sorted({-(-count // size) for count, size in given}, reverse=True)
        if others:  # each replica has microbatches of its own size
            sizes = [min(size, count) for count, (_, size) in zip(counts, given, strict=True)]
        elif min(counts) < number:
            return candidate
        else:
            sizes = [-(-count // number) for count in counts]
    options = dict(candidate.options)
    if "microbatch_size" in options:
        options["microbatch_size"] = max(sizes or counts)
    return replace(candidate, shares=Shares(samples=counts, microbatch_sizes=sizes), options=options)
