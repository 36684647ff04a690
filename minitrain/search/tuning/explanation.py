"""Why the best layout wins: where its time goes, what others lose, what limits it, and what would change that.

- `explain` simulates the best layouts once more, and compares them.
- `turns` prices the same layouts on machines with other prices: which price would have to change for another to win.
- `write_tuning_page` makes one HTML page: all configurations, the front, and any layout at a click. Of the best it has
  where their time goes, what fills the memory, and what each place of the pipeline does. `minitrain.search.page` writes
  it.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minitrain.errors import MinitrainError
from minitrain.machine.config import SystemConfig, load_config
from minitrain.machine.device import Processor, Rate
from minitrain.run.analysis.labels import GIB, duration
from minitrain.run.figures import TABLES
from minitrain.run.result import Run
from minitrain.search.page import MOST_EVENTS, Configurations, numbers_of, option_text, write_page
from minitrain.search.tuning.findings import Choice, Findings, described
from minitrain.search.tuning.problem import Candidate, TuningProblem
from minitrain.search.tuning.search import (
    FITS,
    OUT_OF_MEMORY,
    Figures,
    Row,
    distinct,
    memory_of,
    options_of,
    price_pipelines,
    simulate_each,
    value_of,
)
from minitrain.view.run_folder import picture_of

Change = Callable[[SystemConfig, float], SystemConfig]


@dataclass(frozen=True, slots=True)
class TurningPoint:
    """A price that, changed enough, lets another layout win.

    Args:
        price: what is changed, in words.
        factor: by what it is multiplied.
        winner: place of the layout that wins then, among those that were given.
        step_time_s: its step time then, s.
        before_s: the step time of the layout that wins now, with the changed price, s.
    """

    price: str
    factor: float
    winner: int
    step_time_s: float
    before_s: float


def knobs(system: SystemConfig) -> Mapping[str, Change]:
    """Return the changes of single prices that are tried on a machine, by name."""
    found: dict[str, Change] = {
        "arithmetic rate": _rates,
        "memory bandwidth": _memory,
        "bandwidth to the host": lambda config, factor: replace(
            config, mem2=replace(config.mem2, GBps=config.mem2.GBps * factor)
        ),
    }
    for place, tier in enumerate(system.networks):
        found[f"bandwidth of the tier of {tier.size:,}"] = _of_tier(place)
    return found


def _of_tier(place: int) -> Change:
    """Return what changes the bandwidth of a tier, also that of its curves."""

    def change(config: SystemConfig, factor: float) -> SystemConfig:
        tier = config.networks[place]
        curves = {
            op: replace(
                curve,
                bandwidths=None
                if curve.bandwidths is None
                else tuple((low, rate * factor) for low, rate in curve.bandwidths),
            )
            for op, curve in tier.curves.items()
        }
        changed = replace(tier, bandwidth=tier.bandwidth * factor, curves=curves)
        return replace(config, networks=(*config.networks[:place], changed, *config.networks[place + 1 :]))

    return change


def _memory(config: SystemConfig, factor: float) -> SystemConfig:
    """Change the bandwidth of the memory, also that which a copy was measured to reach."""
    kernels = config.kernels and replace(config.kernels, GBps=config.kernels.GBps * factor)
    return replace(config, mem1=replace(config.mem1, GBps=config.mem1.GBps * factor), kernels=kernels)


def _rates(config: SystemConfig, factor: float) -> SystemConfig:
    """Change the rates of both compute units, also those measured; attention's are shares of them."""

    def scaled(rates: Mapping[str, Rate]) -> dict[str, Rate]:
        return {name: replace(rate, tflops=rate.tflops * factor) for name, rate in rates.items()}

    processor = config.processor
    kernels = config.kernels and config.kernels.scaled(factor, attention=1 / factor)
    return replace(config, processor=Processor(scaled(processor.matrix), scaled(processor.vector)), kernels=kernels)


def turns(contenders: Sequence[Candidate], factors: Sequence[float]) -> list[TurningPoint]:
    """Return the least changes of single prices by which the first of some layouts is beaten by another of them.

    Args:
        contenders: layouts of one problem, the winner first.
        factors: by what each price is multiplied and divided, ascending. A price that changes nothing at the last one
            is not tried at the others.
    """
    system = load_config(contenders[0].problem.hardware)

    def turn(name: str, change: Change, factor: float) -> TurningPoint | None:
        """Return which layout beats the winner when a price is multiplied by a factor; None where none does."""
        times = times_on(contenders, change(system, factor))
        best = min(range(len(times)), key=lambda place: (times[place], place))
        return TurningPoint(name, factor, best, times[best], times[0]) if times[best] < times[0] else None

    found = []
    for name, change in knobs(system).items():
        for direction in (1, -1):
            if turn(name, change, factors[-1] ** direction) is not None:
                found.append(next(filter(None, (turn(name, change, factor**direction) for factor in factors))))
    return sorted(found, key=lambda one: max(one.factor, 1 / one.factor))


def times_on(contenders: Sequence[Candidate], system: SystemConfig) -> list[float]:
    """Return the step times of layouts on another machine, s; infinity for what cannot run there."""
    before = contenders[0].problem
    problem = replace(before, hardware=system)
    try:
        times = [_figures(problem, one).step_time_s for one in contenders]
    except MinitrainError:
        return [float("inf")] * len(contenders)
    return [float("inf") if seconds is None else seconds for seconds in times]


def _figures(problem: TuningProblem, candidate: Candidate) -> Figures:
    """Return the figures of one layout."""
    if candidate.pipeline is not None:
        return price_pipelines(problem, [candidate.pipeline])[0]
    return simulate_each(problem, [(candidate.strategy, dict(candidate.options))])[0]


_DEGREES = ("strategy", "tp", "pp", "num_chunks", "microbatch_size", "ep", "cp", "replicas", "hardware", "world_size")
_MOST_CONTENDERS = 6  # each is priced on some fifty other machines


@dataclass(frozen=True, slots=True)
class Spending:
    """Where the step time of a layout goes, on average over its ranks, s.

    Args:
        choice: the layout.
        step_time_s: s.
        computing_s: computing, communication beside it included.
        exposed_s: communicating with no compute beside it, by axis of the mesh.
        waiting_s: neither.
        memory_bytes: of the fullest rank by kind.
    """

    choice: Choice
    step_time_s: float
    computing_s: float
    exposed_s: Mapping[str, float]
    waiting_s: float
    memory_bytes: Mapping[str, float]

    @classmethod
    def of(cls, choice: Choice) -> Spending:
        """Simulate a layout, and see where its time goes."""
        return cls.of_run(choice, choice.simulate(check=False))

    @classmethod
    def of_run(cls, choice: Choice, run: Run) -> Spending:
        """See where the time of a layout goes, from its run."""
        parts = run.breakdown
        return cls(
            choice,
            run.step_time,
            float(parts.computing.mean()),
            _exposed(run, float(parts.exposed.mean())),
            float(parts.waiting.mean()),
            dict(run.memory_by_kind or {}),
        )

    def parts(self) -> dict[str, float]:
        """Return the parts of the step time by name, s."""
        exposed = {f"exposed {axis}": seconds for axis, seconds in self.exposed_s.items()}
        return {"computing": self.computing_s, **exposed, "waiting": self.waiting_s}


def _exposed(run: Run, total_s: float) -> dict[str, float]:
    """Return the exposed communication by axis, s; what several do at once is shared among them in proportion."""
    found = {axis: total.exposed_s for axis, total in run.communication_by_axis.items() if total.exposed_s}
    known = sum(found.values())
    return {axis: seconds * total_s / known for axis, seconds in found.items()}


@dataclass(frozen=True, slots=True)
class TuningExplanation:
    """Why a layout wins; `print` it.

    Args:
        objective: what was wanted.
        verdicts: how many configurations there were of each kind.
        winner: where the time of the best one goes.
        losers: where that of the next ones goes, which differ from it in their degrees.
        capacity_bytes: the device's memory; None where there is none.
        most_bytes: what of it may be used.
        too_large: the best layout that would be quicker, and does not fit; None where there is none.
        turns: prices that, changed by so much, let another layout win.
        contenders: what won then, by place.
        factors: by what prices were multiplied and divided.
    """

    objective: str
    verdicts: str
    winner: Spending
    losers: tuple[Spending, ...]
    capacity_bytes: float | None
    most_bytes: float
    too_large: Choice | None
    turns: tuple[TurningPoint, ...]
    contenders: tuple[Choice, ...]
    factors: tuple[float, ...]

    def summary(self) -> dict[str, Any]:
        """Return all of it, ready for JSON."""
        return {
            "objective": self.objective,
            "winner": _plain(self.winner),
            "losers": [_plain(one) for one in self.losers],
            "too_large": None if self.too_large is None else self.too_large.row,
            "turns": [
                {
                    "price": one.price,
                    "factor": one.factor,
                    "winner": str(self.contenders[one.winner]),
                    "step_time_s": one.step_time_s,
                    "before_s": one.before_s,
                }
                for one in self.turns
            ],
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield self.verdicts
        yield f"best: {self.winner.choice}: {duration(self.winner.step_time_s)}"
        step_time_s = self.winner.step_time_s
        yield "  " + ", ".join(f"{name} {seconds / step_time_s:.1%}" for name, seconds in self.winner.parts().items())
        yield from self._lines_of_memory()
        for loser in self.losers:
            yield f"next: {loser.choice}: {duration(loser.step_time_s)}, {self._lost(loser)}"
        for turn in self.turns:
            yield (
                f"with {turn.price} x {turn.factor:.3g}, {self.contenders[turn.winner]} would win: "
                f"{duration(turn.step_time_s)} against {duration(turn.before_s)}"
            )
        if not self.turns:
            yield f"no single price, changed up to {self.factors[-1]:g}-fold, lets one of the next layouts win"

    def _lines_of_memory(self) -> Iterator[str]:
        row, kinds = self.winner.choice.row, self.winner.memory_bytes
        needed, held = memory_of(row) or 0.0, row["peak_memory_bytes"]
        words = ", ".join(f"{kind} {size / GIB:.1f}" for kind, size in kinds.items() if size > GIB / 10)
        most = "" if self.capacity_bytes is None else f" of {self.most_bytes / GIB:.1f}"
        tensors = "" if needed == held else f", {held / GIB:.1f} of it tensors"
        yield f"  memory {needed / GIB:.1f}{most} GiB{tensors}" + (f": {words}" if words else "")
        if self.too_large is None:
            yield "  memory does not bind: nothing that does not fit is quicker"
        else:
            row = self.too_large.row
            yield (
                f"  memory binds: {self.too_large} would take {duration(row['step_time_s'])}, and needs "
                f"{(memory_of(row) or 0.0) / GIB:.1f} GiB"
            )

    def _lost(self, loser: Spending) -> str:
        """Return what a layout loses against the winner, by part of the step time, the largest first."""
        mine, others = self.winner.parts(), loser.parts()
        changes = {name: others.get(name, 0.0) - mine.get(name, 0.0) for name in dict.fromkeys([*mine, *others])}
        named = sorted(changes.items(), key=lambda change: -abs(change[1]))
        total = loser.step_time_s - self.winner.step_time_s
        words = [f"{name} {'+' if by > 0 else '-'}{duration(abs(by))}" for name, by in named if abs(by) > 1e-9]
        return f"+{duration(total)}: {', '.join(words[:4])}"


def _plain(one: Spending) -> dict[str, Any]:
    """Return where the time of a layout goes, ready for JSON."""
    parts = {f"{name.replace(' ', '_')}_s": seconds for name, seconds in one.parts().items()}
    return {**one.choice.row, **parts, "memory_by_kind_bytes": dict(one.memory_bytes)}


def explain(tuning: Findings, runners_up: int, factors: Sequence[float]) -> TuningExplanation:
    """Return why the best layout of a search wins.

    Args:
        tuning: the search.
        runners_up: how many others are compared with it.
        factors: by what each price is multiplied and divided to see who wins then, ascending.
    """
    best = tuning.best
    others = _different(tuning.ranked, runners_up)
    chosen = (best, *map(tuning.choice, others))
    machine = best.candidate.problem.machine
    same = [one for one in chosen if one.candidate.problem == best.candidate.problem]
    contenders = _contenders(tuning, same)
    return TuningExplanation(
        objective=tuning.objective,
        verdicts=tuning.verdicts(),
        winner=Spending.of(best),
        losers=tuple(Spending.of(one) for one in chosen[1:]),
        capacity_bytes=machine.capacity_bytes,
        most_bytes=tuning.most_bytes(machine),
        too_large=_too_large(tuning, best),
        turns=tuple(turns([one.candidate for one in contenders], factors)) if machine.composes else (),
        contenders=tuple(contenders),
        factors=tuple(factors),
    )


def _different(rows: Sequence[Row], count: int) -> list[Row]:
    """Return the next rows that differ from the best one, and from one another, in their degrees."""
    seen, found = {_degrees(rows[0])}, list[Row]()
    for row in rows:
        if len(found) < count and _degrees(row) not in seen:
            seen.add(_degrees(row))
            found.append(row)
    return found


def _degrees(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in _DEGREES)


def _contenders(tuning: Findings, chosen: Sequence[Choice]) -> list[Choice]:
    """Return the layouts that are priced again: those chosen, and the best of each strategy and division of layers."""
    places: dict[Any, Choice] = {}
    for one in chosen:
        places.setdefault(id(one.row), one)
    seen = {(one.row["strategy"], one.row.get("tp"), one.row.get("pp")) for one in chosen}
    for row in tuning.ranked:
        key = row["strategy"], row.get("tp"), row.get("pp")
        if key not in seen and len(places) < _MOST_CONTENDERS:
            seen.add(key)
            choice = tuning.choice(row)
            if choice.candidate.problem == chosen[0].candidate.problem:
                places[id(row)] = choice
    return [one for one in places.values() if one.candidate.pipeline is not None or one is chosen[0]]


def _too_large(tuning: Findings, best: Choice) -> Choice | None:
    """Return the best configuration that does not fit, if it would be better than the best one that does."""
    found = [row for row in tuning.rows if row["status"] == OUT_OF_MEMORY and row["step_time_s"] is not None]
    if not found:
        return None
    row = min(found, key=lambda row: value_of(row, tuning.objective))
    is_better = value_of(row, tuning.objective) < value_of(best.row, tuning.objective)
    return tuning.choice(row) if is_better else None


_NAMED = 200  # layouts that are named
_LISTED = 50  # of these, in the table at a time
_AXES = ("step s", "GiB", "MFU %")


def write_tuning_page(path: Path, tuning: Findings, pictures: int, progress: Callable[[int, int], None]) -> Path:
    """Write the page and return its path.

    Args:
        path: where to.
        tuning: the search.
        pictures: how many of the best are simulated once more.
        progress: called with how many of them are drawn, and of how many.
    """
    said = [tuning.verdicts(), *tuning.others(distinct(tuning.ranked)[:_NAMED])]
    caption = "All configurations with figures: the strongest blue is the quickest, grey does not fit"
    why = f"<details><summary>What was not priced, and why</summary><ul>{''.join(_reasons(tuning))}</ul></details>\n"
    drawn, count = list[dict[str, Any]](), min(pictures, len(distinct(tuning.ranked)))
    for one in tuning.of_best(_drawn, count):
        drawn.append(one)
        progress(len(drawn), count)
    return write_page(path, _title(tuning), _configurations(tuning, drawn), said, caption, why)


def _title(tuning: Findings) -> str:
    """Return what was searched."""
    row = tuning.rows[0] if tuning.rows else None
    if row is None:
        return "no configurations"
    problem = tuning.choice(row).candidate.problem
    name = getattr(problem.machine.workload, "name", "layers")
    return f"{name} on {row['world_size']:,} x {row['hardware']}, batch {row['global_batch_size']:,}"


def _reasons(tuning: Findings) -> Iterator[str]:
    """Yield how many configurations have each reason, the most frequent first."""
    found = Counter(
        (row["status"], _general(row["reason"])) for row in tuning.rows if row["reason"] and row["step_time_s"] is None
    )
    for (status, reason), count in found.most_common(20):
        yield f"<li>{count:,} {html.escape(status)}: {html.escape(reason)}</li>"


def _general(reason: str) -> str:
    """Return a reason without its numbers, so that equal ones count together."""
    return " ".join("..." if any(sign.isdigit() for sign in word) else word for word in reason.split())


def _configurations(tuning: Findings, drawn: Sequence[dict[str, Any]]) -> Configurations:
    """Return what the page shows of the search."""
    rows = [row for row in tuning.rows if row["step_time_s"] is not None]
    order = {id(row): place for place, row in enumerate(rows)}
    best = distinct(tuning.ranked)[:_NAMED]
    figures, options = numbers_of(rows, TABLES["page of a search"]), _varied(rows)
    return Configurations(
        options=options,
        figures=figures,
        fits=[row["status"] == FITS for row in rows],
        pace="step s",
        named=[order[id(row)] for row in best],
        names=[f"{row['strategy']} {described(options_of(row))}" for row in best],
        commands=[tuning.choice(row).command for row in best],
        columns=["layout", *figures],
        axes=[*options, *(name for name in _AXES if name in figures)],
        x="GiB",
        listed=_LISTED,
        front=sorted(order[id(row)] for row in tuning.front),
        drawn=dict(enumerate(drawn)),
    )


def _varied(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return the options and parameters that are not the same in all rows, of each row."""
    names = dict.fromkeys(name for row in rows for name in ("strategy", "hardware", "world_size", *options_of(row)))
    texts = {name: [option_text(row.get(name)) for row in rows] for name in names}
    return {name: found for name, found in texts.items() if len(set(found)) > 1}


def _drawn(choice: Choice) -> dict[str, Any]:
    """Return where the time of a layout goes, and what its ranks do."""
    run = choice.simulate(check=False)
    spending = Spending.of_run(choice, run)
    return {
        "parts": {name: round(seconds, 9) for name, seconds in spending.parts().items()},
        "memory": {kind: round(size / GIB, 4) for kind, size in spending.memory_bytes.items() if size},
        "picture": picture_of(run) if sum(map(len, run.class_logs)) <= MOST_EVENTS else None,
    }
