"""Gaps between runs are attributed: the parts add up, and what was slowed down is named."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import minitrain as mt
from minitrain.cli import app
from minitrain.run.analysis import moments
from minitrain.run.analysis.moments import Case, Moments
from minitrain.run.analysis.retiming import first_events, make_graph
from minitrain.run.analysis.timeline import Floats, Timeline
from minitrain.whatif import diff as room

SIZES: dict[str, Any] = {"world_size": 4, "num_layers": 8, "global_batch_size": 16, "fold": False}
NAMES = ("ddp", "zero3", "zero3_prefetch", "1f1b", "fsdp")
Change = Callable[[Floats], Floats]
Injected = tuple[Change, Callable[[Any], bool]]


@pytest.fixture(scope="module")
def runs() -> dict[str, mt.Run]:
    return {name: mt.simulate(name, **SIZES) for name in NAMES}


def again(run: mt.Run, change: Change = np.copy, noise: float = 0.0, seed: int = 0) -> mt.Run:
    """Return a run with other durations and with noise, also before operations, timed by what they wait for."""
    line, rng = run.step_timeline, np.random.default_rng(seed)
    program, count = Moments(make_graph(line)), line.num_events
    case = program.case(line)
    alike = first_events(line)  # members of a collective last alike
    durations = change((case.durations * np.exp(rng.normal(0, noise, count)))[alike])
    lags = case.lags.copy()
    lags[count : 2 * count] += np.abs(rng.normal(0, 1e-5 * noise, count))
    times = program.times(durations[:, None], lags[:, None])[:, 0].tolist()
    logs = [
        [
            replace(
                run.logs[rank][at - first], time=times[at], duration=float(durations[at]), launched=times[count + at]
            )
            for at in range(first, int(line.starts[rank + 1]))
        ]
        for rank, first in enumerate(line.starts.tolist()[:-1])
    ]
    return replace(run, logs=logs, models=(), prepared=None)


def adds_up(gap: mt.Gap) -> bool:
    return sum(part.seconds for part in gap.attribution) == pytest.approx(gap.seconds, abs=1e-9 * gap.after.step_time)


def on_the_path(run: mt.Run, *, computes: bool | None = None) -> list[int]:
    """Return the operations that set the step time of a run, and last."""
    line = run.step_timeline
    program = Moments(make_graph(line))
    lasts = (line.duration > 0) & ~line.loading & (True if computes is None else line.computes == computes)
    return [event for event in program.longest_path(program.case(line)).events.tolist() if lasts[event]]


def one_operation(run: mt.Run, rng: Any) -> Injected:
    """Return what delays one operation, all members of a collective alike, and whether an explanation names it."""
    line, event, step = run.step_timeline, int(rng.choice(on_the_path(run))), run.step_time
    chosen = first_events(line) == first_events(line)[event]
    ranks, place = tuple(np.unique(line.rank[chosen]).tolist()), f"event {event - line.starts[line.rank[event]]} there"

    def is_named(found: Any) -> bool:
        is_one = found.form == "operation" and (found.ranks, found.layers) == (ranks, (line.layer[event],))
        return is_one and (len(ranks) > 1 or place in found.what)

    return lambda durations: durations + 0.3 * step * chosen, is_named


def one_rank(run: mt.Run, rng: Any) -> Injected:
    rank, line = int(rng.integers(4)), run.step_timeline
    chosen = (line.rank == rank) & line.computes
    return lambda durations: durations * (1 + 0.6 * chosen), lambda found: (found.form, *found.ranks) == ("rank", rank)


def one_kernel(run: mt.Run, rng: Any) -> Injected:
    line = run.step_timeline
    typ = line.typ[int(rng.choice(on_the_path(run, computes=True)))]
    chosen, name = line.typ == typ, f"{line.typs[typ]} on all ranks"
    return lambda durations: durations * (1 + 0.7 * chosen), lambda found: found.what == name


def one_link(run: mt.Run, rng: Any) -> Injected:
    """Return what slows a group or two peers; where they only ever do one thing, that is a name for the same."""
    line = run.step_timeline
    ends = [link_of(line, event) for event in range(line.num_events)]
    slow = ends[int(rng.choice(on_the_path(run, computes=False)))]
    chosen = np.array([each == slow for each in ends])
    ranks = tuple(np.unique(line.rank[chosen]).tolist())
    return (
        lambda durations: durations * (1 + 3 * chosen),
        lambda found: found.form in ("link", "kind", "all") and found.ranks == ranks,
    )


def link_of(line: Timeline, event: int) -> Any:
    """Return between whom an operation is."""
    stream = line.streams[line.stream[event]]
    if line.peer[event] >= 0:
        return frozenset({int(line.rank[event]), int(line.peer[event])})
    return ("group", stream.group) if stream.kind == "comm" else event


@pytest.mark.ci
@pytest.mark.parametrize("inject", [one_operation, one_rank, one_kernel, one_link])
def test_what_was_slowed_down_is_named_in_19_of_20_trials(inject: Any, runs: dict[str, mt.Run]) -> None:
    missed = []
    for seed in range(20):
        run, rng = runs[NAMES[seed % len(NAMES)]], np.random.default_rng(seed)
        change, is_named = inject(run, rng)
        gap = mt.diff(again(run, noise=0.02, seed=seed), again(run, change, noise=0.02, seed=seed + 100))
        assert adds_up(gap)
        if gap.explanation is None or not is_named(gap.explanation):
            missed.append((run.strategy, gap.explanation))
    assert len(missed) <= 1, missed


def test_what_disturbs_one_operation_or_another_is_chance(runs: dict[str, mt.Run]) -> None:
    """In each of nine steps, three operations last long; in B, one of rank 2 does always."""
    run, rng = runs["ddp"], np.random.default_rng(0)
    line = run.step_timeline
    event = int(np.flatnonzero(line.computes & ~line.loading & (line.rank == 2))[3])

    def steps(more: Floats) -> mt.Run:
        def disturbed(durations: Floats) -> Floats:
            often = rng.choice(np.flatnonzero(line.computes & ~line.loading), 3)
            return durations + more + run.step_time * np.isin(np.arange(line.num_events), often)

        taken = [again(run, disturbed) for _ in range(9)]
        median = sorted(taken, key=lambda each: each.step_time)[4]
        program = Moments(make_graph(line))
        columns = program.typical([each.step_timeline for each in taken])
        return replace(median, typical=tuple(column.tolist() for column in columns))

    nothing = np.zeros(line.num_events)
    gap = mt.diff(steps(nothing), steps(0.2 * run.step_time * (np.arange(line.num_events) == event)))
    assert adds_up(gap)
    assert gap.lines[0].step_time == pytest.approx(run.step_time)
    assert gap.lines[1].step_time == pytest.approx(1.2 * run.step_time)
    assert {part.cause for part in gap.attribution} <= {room.SKEW, room.CHANCE}
    assert gap.explanation is not None
    assert (gap.explanation.form, gap.explanation.ranks) == ("operation", (2,))
    chance = sum(part.seconds for part in gap.attribution if part.cause == room.CHANCE)
    assert gap.seconds - chance == pytest.approx(0.2 * run.step_time)
    assert ("Apart from chance, mostly: one " in str(gap)) == (abs(chance) > 0.5 * abs(gap.seconds))


def test_what_is_slower_and_hidden_belongs_to_what_explains_a_gap() -> None:
    """Computing hides every reduce_scatter but the last; they come as much later as each all_gather does."""
    run = mt.simulate("fsdp", **{**SIZES, "world_size": 2})
    line = run.step_timeline
    moved = ~line.computes & ~line.loading
    gap = mt.diff(run, again(run, lambda durations: durations + 0.9 * line.duration[line.computes].max() * moved))
    assert gap.explanation is not None
    assert gap.explanation.count == moved.sum()
    only = moved & line.of_types(["all_gather"])
    gap = mt.diff(run, again(run, lambda durations: durations + 3 * line.duration[line.computes].max() * only))
    assert gap.explanation is not None
    assert gap.explanation.what == "all_gather on all ranks"


def test_parts_are_those_of_many_small_steps_from_one_run_to_the_other(runs: dict[str, mt.Run]) -> None:
    for seed, name in enumerate(("zero3", "1f1b")):
        a, b = (again(runs[name], noise=0.3, seed=seed + more) for more in (0, 50))
        line = a.step_timeline
        program = Moments(make_graph(line))
        first, second = program.case(line), program.case(b.step_timeline)
        way = moments.Way(program, first, second)
        way.walk()
        shares, steps = np.zeros(line.num_events), 300
        for place in range(steps):
            at = (place + 0.5) / steps
            between = [x + at * (y - x) for x, y in zip(first, second, strict=True)]
            path = program.longest_path(Case(*between))
            shares[path.events] += (second.durations - first.durations)[path.events] / steps
        np.testing.assert_allclose(way.of_events, shares, atol=1e-2 * np.abs(second.durations - first.durations).max())


def test_with_few_paths_the_parts_still_add_up(runs: dict[str, mt.Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "MOST_PATHS", 2)
    assert adds_up(mt.diff(again(runs["1f1b"], noise=0.5, seed=1), again(runs["1f1b"], noise=0.5, seed=2)))


def test_a_run_beside_itself_has_no_gap(runs: dict[str, mt.Run]) -> None:
    gap = mt.diff(runs["zero3"], runs["zero3"])
    assert (gap.seconds, gap.attribution, gap.explanation) == (0.0, [], None)
    assert gap.is_same_program


def test_the_way_back_has_the_same_parts_with_the_other_sign(runs: dict[str, mt.Run]) -> None:
    a, b = again(runs["zero3"], noise=0.1, seed=1), again(runs["zero3"], noise=0.1, seed=2)
    there, back = mt.diff(a, b), mt.diff(b, a)
    assert there.seconds == -back.seconds
    np.testing.assert_allclose(there.share_by_event, -back.share_by_event, atol=1e-12)


def test_of_two_ranks_the_slower_one_is_skewed() -> None:
    run = mt.simulate("ddp", **{**SIZES, "world_size": 2})
    line = run.step_timeline
    gap = mt.diff(run, again(run, lambda durations: durations * (1 + 0.5 * (line.rank == 1) * line.computes)))
    assert {part.cause for part in gap.attribution} == {room.SKEW}


def test_two_machines_differ_by_latency_and_bandwidth() -> None:
    sizes = {name: SIZES[name] for name in ("world_size", "global_batch_size", "fold")} | {"platform": "components"}
    a, b = (mt.simulate("zero3", workload="tiny", hardware=name, **sizes) for name in ("h100_80g_nvl8", "a100_80g"))
    gap = mt.diff(a, b)
    assert adds_up(gap)
    causes = {part.cause for part in gap.attribution}
    assert {room.LATENCY, room.BANDWIDTH, room.COMPUTING} <= causes
    assert not any(part.cause in (room.HOST, room.LATE) for part in gap.attribution)


def test_time_between_operations_belongs_to_the_host(runs: dict[str, mt.Run]) -> None:
    a = runs["ddp"]
    line = a.step_timeline
    program, count = Moments(make_graph(line)), line.num_events
    case = program.case(line)
    lags = case.lags.copy()
    lags[count : 2 * count][(line.rank == 2) & line.computes & ~line.loading] += 1e-4
    times = program.times(case.durations[:, None], lags[:, None])[:, 0].tolist()
    logs = [
        [
            replace(event, time=times[at], launched=times[count + at])
            for at, event in enumerate(log, int(line.starts[rank]))
        ]
        for rank, log in enumerate(a.logs)
    ]
    gap = mt.diff(a, replace(a, logs=logs, models=(), prepared=None))
    assert adds_up(gap)
    assert {part.cause for part in gap.attribution} == {room.HOST}
    assert all(part.ranks == (2,) for part in gap.attribution)


def test_collectives_that_were_begun_beside_one_another_count_one_after_the_other(runs: dict[str, mt.Run]) -> None:
    """As on gloo: each is begun when it is submitted, and they end together."""
    a = runs["zero3_prefetch"]

    def ends(event: Any) -> float:
        return float(event.time + event.duration)

    def begins(event: Any) -> float:
        return float(event.launched)

    begun = [[replace(each, time=begins(each), duration=ends(each) - begins(each)) for each in log] for log in a.logs]
    gap = mt.diff(a, replace(a, logs=begun, models=(), prepared=None))
    assert gap.seconds == pytest.approx(0, abs=1e-15)
    assert sum(abs(part.seconds) for part in gap.attribution) < 1e-9 * a.step_time


def test_runs_of_different_programs_are_compared_by_what_sets_their_steps(runs: dict[str, mt.Run]) -> None:
    gap = mt.diff(runs["zero3"], runs["zero3_prefetch"])
    assert adds_up(gap)
    assert not gap.is_same_program
    assert "programs differ" in str(gap)
    assert repr(gap) == f"<Gap: {gap.words[0]}>"
    assert gap.conditions == {"strategy": ("zero3", "zero3_prefetch")}
    more = mt.diff(runs["ddp"], runs["zero3"])
    assert adds_up(more)
    assert any(line.startswith("Of B alone:") and "all_gather" in line for line in more.without_partner)


def test_saved_runs_are_read_and_the_command_prints_words_table_and_page(
    runs: dict[str, mt.Run], tmp_path: Path
) -> None:
    first, second, page = tmp_path / "before.jsonl", tmp_path / "after.jsonl", tmp_path / "page.html"
    runs["ddp"].save(first)
    line = runs["ddp"].step_timeline
    again(runs["ddp"], lambda durations: durations * (1 + (line.rank == 1) * line.computes)).save(second)
    printed = CliRunner().invoke(app, ["diff", str(first), str(second), "--html", str(page)])
    assert printed.exit_code == 0
    assert "Mostly: all computing of rank 1." in printed.stdout
    assert max(map(len, printed.stdout.splitlines())) <= 120
    assert "all computing of rank 1" in page.read_text(encoding="utf-8")
    found = json.loads(CliRunner().invoke(app, ["diff", str(first), str(second), "--json"]).stdout)
    assert sum(part["seconds"] for part in found["attribution"]) == pytest.approx(found["gap_s"])
    assert found["explanation"]["ranks"] == [1]


def test_a_gap_is_a_data_frame_too(runs: dict[str, mt.Run]) -> None:
    pandas = pytest.importorskip("pandas")
    frame = mt.diff(runs["ddp"], again(runs["ddp"], noise=0.1)).to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert {"cause", "operation", "seconds"} <= set(frame.columns)


def test_totals_cannot_be_compared(runs: dict[str, mt.Run]) -> None:
    totals = mt.simulate("ddp", log="summary", **{**SIZES, "fold": "auto"})
    with pytest.raises(mt.UsageError, match='B kept totals and no events; simulate it with log="full"'):
        mt.diff(runs["ddp"], totals)


@pytest.mark.browser
def test_the_page_joins_both_runs_and_leads_from_a_part_to_its_operation(
    runs: dict[str, mt.Run], tmp_path: Path, open_page: Callable[..., Any]
) -> None:
    line, page = runs["ddp"].step_timeline, tmp_path / "gap.html"
    slower = again(runs["ddp"], lambda durations: durations * (1 + (line.rank == 1) * line.computes))
    mt.diff(runs["ddp"], slower, names=("before", "after")).write_html(page)
    shown = open_page(page, "light", 900)
    shown.wait_for_selector("body[data-ready=yes]", timeout=30_000)

    shown.evaluate("timeline.showPath(true)")  # which the other timeline is told
    for place in range(2):
        picture = shown.evaluate(f"timelines[{place}].svg()")
        assert picture.count('stroke="#d1242f"') == 12
        tags = re.findall(r'x="(\S+)" y="(\S+)" fill="#ffffff"[^>]* font-weight="600">(\d+)<', picture)
        assert tags[0][2] == "1"
        assert all(abs(float(a[0]) - float(b[0])) >= 12 for a, b in combinations(tags, 2) if a[1] == b[1])
        assert 'stroke="#d6006c"' in picture
    shown.set_viewport_size({"width": 690, "height": 800})
    shown.wait_for_function("timelines[0].svg().includes(': compute')")  # a line above the row
    shown.evaluate(f"timeline.zoomTo({line.begin + 0.8 * line.step_time}, {line.begin + slower.step_time})")
    picture = shown.evaluate("timelines[0].svg()")
    texts = dict(re.findall(r'y="(\S+)" fill="[^>]*>([^<]*: compute|ends [^<]*)<', picture))
    ends, label = sorted(texts, key=texts.__getitem__)
    assert float(ends) - float(label) > 12
    shown.evaluate("timeline.zoomTo(0, 1)")
    sections = shown.locator(".mt-runs section")
    shown.get_by_role("button", name="after", exact=True).click()
    assert [sections.nth(place).is_visible() for place in range(2)] == [False, True]
    shown.get_by_role("button", name="all", exact=True).first.click()
    assert sections.first.is_visible()
    whole = shown.evaluate("timelines.map(one => one.svg())")
    shown.locator("a", has_text="skew between ranks").first.click()
    shown.wait_for_function("whole => timelines.every((one, place) => one.svg() !== whole[place])", arg=whole)


@pytest.mark.ci
def test_a_narrow_table_breaks_no_name_and_lists_no_rounding(runs: dict[str, mt.Run]) -> None:
    slower = again(runs["zero3"], noise=0.05)
    gap = mt.diff(runs["zero3"], slower)
    console = Console(width=80, file=io.StringIO())
    console.print(gap.table())
    text = console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    for part in gap.attribution[:12]:
        assert part.operation in text
    assert all(abs(part.seconds) > 1e-12 * abs(gap.attribution[0].seconds) for part in gap.attribution)
    assert not mt.diff(slower, slower).attribution
