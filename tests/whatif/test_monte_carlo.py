"""Step times under noise: those of simulations where noise says the same, fixed by the seed, and who makes the tail."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitrain as mt
from minitrain.run.analysis.retiming import critical_path, make_graph, retime, retimed_events
from minitrain.run.analysis.timeline import Floats
from minitrain.whatif.monte_carlo import PathFinder
from minitrain.whatif.noise import Activities, Draws, make_activities

_SIZES: Any = {"world_size": 8, "num_layers": 16, "global_batch_size": 64}
_NAMES = sorted(set(mt.strategies()) - {"single"})
"""All but the one of one rank, for which see `test_one_rank_alone_is_as_slow_as_simulated`."""

_JITTER = mt.Noise(jitter=0.1)


def small(name: str = "zero3", **more: Any) -> mt.Run:
    """Return a run of four ranks."""
    return mt.simulate(name, **{"world_size": 4, "num_layers": 8, "global_batch_size": 16, **more})


def factors_of(activities: Activities, noise: mt.Noise, samples: int) -> Floats:
    """Return what noise multiplies each activity's duration with, also where that is 0, (num_activities, samples)."""
    lasting = replace(activities, duration=np.ones(activities.num_activities))
    return Draws(lasting, noise, 1).durations(np.arange(samples))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.one_in(4)
def test_a_slow_rank_makes_the_step_of_a_simulation_with_that_slowdown(name: str) -> None:
    run, slowdown = mt.simulate(name, **_SIZES), {3: 1.7, 5: 2.9}
    found = mt.monte_carlo(run, mt.Noise(slowdown=slowdown), samples=2)
    assert found.step_times.tolist() == [mt.simulate(name, **_SIZES, slowdown=slowdown).step_time] * 2
    assert found.recorded_s == run.step_time


def test_one_rank_alone_is_as_slow_as_simulated() -> None:
    sizes: Any = {**_SIZES, "world_size": 1}
    found = mt.monte_carlo(mt.simulate("single", **sizes), mt.Noise(slowdown={0: 1.7}), samples=1)
    assert found.step_times.tolist() == [mt.simulate("single", **sizes, slowdown={0: 1.7}).step_time]


@pytest.mark.few(2)
@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.one_in(4)
def test_the_graph_of_activities_gives_the_clocks_of_the_run(name: str) -> None:
    run = mt.simulate(name, **_SIZES)
    activities = make_activities(run.timeline)
    program = activities.program
    moments = retime(program, activities.duration[:, None])[:, 0]
    np.testing.assert_array_equal(moments[program.begin], run.timeline.time)
    np.testing.assert_array_equal(moments[program.submitted], run.timeline.launched)
    assert mt.monte_carlo(run, mt.Noise(), samples=3).step_times.tolist() == [run.step_time] * 3


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["zero3_prefetch", "pp_zero1", "zbv"])
def test_a_sample_is_the_run_timed_again_and_its_path_is_as_long_as_the_step(name: str) -> None:
    activities = make_activities(mt.simulate(name, **_SIZES).timeline)
    durations = Draws(activities, mt.Noise(jitter=0.2, straggler=(0.2, 3.0)), 5).durations(np.arange(6))
    steps, path = activities.step_times(durations), PathFinder(activities).path(durations)
    graph = make_graph(activities.timeline)
    for sample in range(6):
        lasts = durations[activities.of_event, sample]
        submitted, times = retimed_events(graph, lasts)
        assert (times + lasts).max() - activities.timeline.begin == steps[sample]
        line = replace(activities.timeline, time=times, end=times + lasts, duration=lasts)
        line = replace(line, launched=submitted)
        known = critical_path(make_graph(line))
        assert path.seconds[path.sample == sample].sum() == pytest.approx(steps[sample], rel=1e-12)
        counted = set(activities.of_event[known.event[known.counts & (lasts[known.event] > 0)]].tolist())
        assert set(path.activity[path.sample == sample].tolist()) == counted


@settings(max_examples=20, deadline=None)
@given(
    factor=st.floats(0.2, 8.0), name=st.sampled_from(["ddp", "1f1b", "pp_dp", "hsdp"]), ranks=st.sampled_from([4, 8])
)
def test_stragglers_that_always_come_slow_every_rank_down(factor: float, name: str, ranks: int) -> None:
    sizes: Any = {"world_size": ranks, "num_layers": 8, "global_batch_size": 16}
    found = mt.monte_carlo(mt.simulate(name, **sizes), mt.Noise(straggler=(1.0, factor)), samples=2)
    slow = mt.simulate(name, **sizes, slowdown=dict.fromkeys(range(ranks), factor))
    assert found.step_times.tolist() == [slow.step_time] * 2


def test_the_same_seed_gives_the_same_samples_however_many_are_drawn() -> None:
    run = small()
    few, many = (mt.monte_carlo(run, _JITTER, samples=number, seed=7) for number in (5, 40))
    assert few.step_times.tolist() == many.step_times[:5].tolist()
    assert few.summary() == mt.monte_carlo(run, _JITTER, samples=5, seed=7).summary()
    assert few.step_times.tolist() != mt.monte_carlo(run, _JITTER, samples=5, seed=8).step_times.tolist()


def test_samples_do_not_depend_on_how_many_are_timed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run = small("1f1b", microbatch_size=1)
    whole = mt.monte_carlo(run, _JITTER, samples=50)
    monkeypatch.setattr("minitrain.whatif.monte_carlo._NUMBERS_AT_ONCE", 1)
    monkeypatch.setattr("minitrain.whatif.monte_carlo._LEAST_AT_ONCE", 1)
    single = mt.monte_carlo(run, _JITTER, samples=50)
    assert single.step_times.tolist() == whole.step_times.tolist()
    for one, other in zip(single.tail.ranks, whole.tail.ranks, strict=True):
        assert (one.name, one.share) == (other.name, other.share)
        assert one.seconds == pytest.approx(other.seconds, rel=1e-12)


def test_a_run_that_was_saved_gives_the_same_samples(tmp_path: Any) -> None:
    run = small("hsdp", shard_size=2)
    run.save(tmp_path / "run.jsonl")
    read = mt.monte_carlo(mt.load_run(tmp_path / "run.jsonl"), _JITTER, samples=20)
    assert read.summary() == mt.monte_carlo(run, _JITTER, samples=20).summary()


def test_jitter_keeps_the_mean_of_every_operation_and_is_one_for_a_collective_and_a_message() -> None:
    activities = make_activities(small("pp_dp", pp=2, microbatch_size=1).timeline)
    factors = factors_of(activities, mt.Noise(jitter=0.3), 4000)
    assert np.all(factors[activities.loading] == 1)
    drawn = factors[~activities.loading]
    assert np.all(np.abs(drawn.mean(axis=1) - 1) < 6 * 0.31 / math.sqrt(4000))
    assert np.log(drawn).std() == pytest.approx(0.3, rel=0.01)
    line, of_event = activities.timeline, activities.of_event
    sends, receives = (np.flatnonzero(line.on_stream(kind)) for kind in ("send", "recv"))
    assert len(sends)
    assert sorted(factors[of_event[sends], 0].tolist()) == sorted(factors[of_event[receives], 0].tolist())
    reduces = np.flatnonzero(line.of_types(["all_reduce"]))
    assert len(np.unique(of_event[reduces])) == len(reduces) / 2


def test_a_type_of_event_goes_before_its_kind() -> None:
    activities = make_activities(small().timeline)
    noise = mt.Noise(jitter={"communication": 0.0, "computing": 0.2, "forward": 0.0})
    changed = np.ptp(Draws(activities, noise, 0).durations(np.arange(3)), axis=1) > 0
    names = {activities.timeline.typs[code] for code in activities.timeline.typ[activities.event[changed]].tolist()}
    assert names == {"backward", "update"}


def test_the_rank_that_is_always_slow_carries_the_tail() -> None:
    tail = mt.monte_carlo(small(), mt.Noise(jitter=0.02, slowdown={2: 3.0}), samples=200).tail
    assert len(tail.samples) == 20
    assert (tail.ranks[0].name, tail.ranks[0].share) == ("rank 2", 1.0)
    assert tail.types[0].name in ("forward", "backward")
    assert all(one.added_s < tail.ranks[0].added_s / 10 for one in tail.ranks[1:])


def test_the_worst_decile_is_the_slowest_and_its_paths_are_its_mean_step() -> None:
    found = mt.monte_carlo(small(), _JITTER, samples=95)
    slowest = np.sort(found.step_times)[::-1][:10]
    assert found.step_times[found.tail.samples].tolist() == slowest.tolist()
    for carriers in (found.tail.types, found.tail.operations):
        assert sum(one.seconds for one in carriers) == pytest.approx(slowest.mean(), rel=1e-12)


def test_only_messages_and_collectives_that_use_a_slow_link_are_slow() -> None:
    activities = make_activities(small("pp_dp", pp=2, microbatch_size=1).timeline)
    line = activities.timeline

    def slow(link: mt.SlowLink) -> set[str]:
        factors = factors_of(activities, mt.Noise(slow_links=[link]), 2)
        events = activities.event[(factors == 3.0).all(axis=1)]
        return {f"{line.typs[line.typ[event]]} {line.rank[event]}" for event in events.tolist()}

    messages = slow(mt.SlowLink(1.0, 3.0, pair=(0, 1)))
    reduced = slow(mt.SlowLink(1.0, 3.0, pair=(2, 0)))
    assert (messages | reduced) <= slow(mt.SlowLink(1.0, 3.0))
    assert {frozenset(one.split()[0] for one in found) for found in (messages, reduced)} == {
        frozenset({"send", "recv"}),
        frozenset({"all_reduce"}),
    }
    assert slow(mt.SlowLink(0.0, 3.0)) == set()


def test_a_tier_of_the_network_can_be_slow_alone() -> None:
    run = mt.simulate("hsdp", world_size=16, num_layers=4, global_batch_size=16, shard_size=8)
    sizes = sorted({price.tier_size for log in run.logs for price in log._rows[3::10] if price.tier_size})  # type: ignore[attr-defined]  # the engine's own logs
    assert len(sizes) == 2
    inner, outer = (
        mt.monte_carlo(run, mt.Noise(slow_links=[mt.SlowLink(1.0, 2.0, tier=one)]), samples=1) for one in sizes
    )
    assert {one.name for one in inner.tail.types if one.added_s > 0} == {"all_gather", "reduce_scatter"}
    assert {one.name for one in outer.tail.types if one.added_s > 0} == {"all_reduce"}
    with pytest.raises(mt.UsageError, match=rf"tier=3 must be the size of a network tier .*{sizes[0]}, {sizes[1]}"):
        mt.monte_carlo(run, mt.Noise(slow_links=[mt.SlowLink(1.0, 2.0, tier=3)]))


def test_a_run_from_a_file_does_not_know_its_tiers(tmp_path: Any) -> None:
    small().save(tmp_path / "run.jsonl")
    noise = mt.Noise(slow_links=[mt.SlowLink(0.1, 2.0, tier=8)])
    with pytest.raises(mt.UsageError, match="read from a file does not; simulate it again, or give pair="):
        mt.monte_carlo(mt.load_run(tmp_path / "run.jsonl"), noise)


def test_measured_durations_are_drawn_around_their_median() -> None:
    activities = make_activities(small().timeline)
    histogram = mt.Histogram.of([2.0, 3.0, 4.0, 5.0, 40.0], num_bins=19)
    noise = mt.Noise(jitter=0.5, measured={"all_gather": histogram})
    durations = factors_of(activities, noise, 2000)
    gathers = durations[activities.timeline.of_types(["all_gather"])[activities.event]]
    assert np.median(gathers) == pytest.approx(1.0, rel=0.02)
    assert gathers.min() >= 2 / 4.5  # the shortest over the middle of the median's bin
    assert gathers.min() < 0.5
    assert np.mean(gathers > 8) == pytest.approx(0.2, abs=0.02)


def test_more_noise_never_shortens_the_mean_step_of_ranks_that_wait_for_one_another() -> None:
    run = small("ddp")
    means = [mt.monte_carlo(run, mt.Noise(jitter=sigma), samples=300).mean for sigma in (0.0, 0.05, 0.1, 0.2)]
    assert means == sorted(means)
    assert means[0] == pytest.approx(run.step_time, rel=1e-12)


def test_a_run_without_every_event_is_refused() -> None:
    with pytest.raises(mt.UsageError, match="monte_carlo needs every event of every rank"):
        mt.monte_carlo(small(log="summary"), _JITTER)


def test_noise_for_ranks_that_the_run_lacks_is_refused() -> None:
    noise = mt.Noise(slowdown={4: 2.0}, slow_links=[mt.SlowLink(0.1, 2.0, pair=(0, 9))])
    with pytest.raises(
        mt.UsageError, match="slowdown names rank 4, the pair of a slow link names rank 9; use ranks 0 to 3"
    ):
        mt.monte_carlo(small(), noise)
    with pytest.raises(mt.UsageError, match=r"noise must be of type Noise, got 0.05"):
        mt.monte_carlo(small(), 0.05)  # type: ignore[arg-type]
    with pytest.raises(mt.UsageError, match="samples must be an integer of at least 1"):
        mt.monte_carlo(small(), _JITTER, samples=0)


def test_one_sample_of_a_run_without_noise_is_described_and_drawn(tmp_path: Any) -> None:
    found = mt.monte_carlo(small(), mt.Noise(), samples=1)
    assert "noise: none" in str(found)
    assert (found.std, found.p50, found.p99) == (0.0, found.recorded_s, found.recorded_s)
    assert found.write_html(tmp_path / "page.html").stat().st_size > 10_000


def test_a_distribution_is_shown_in_words_json_html_and_pictures(tmp_path: Any) -> None:
    found = mt.monte_carlo(small("1f1b", microbatch_size=1, memory_by_kind=True), _JITTER, samples=300)
    data = json.loads(json.dumps(found.summary(), allow_nan=False))
    assert sum(data["histogram"]["counts"]) == 300
    assert data["p50_s"] <= data["p90_s"] <= data["p99_s"] <= data["most_s"]
    assert f"P99 {found.p99 * 1e3:.4g} ms" in str(found)
    assert "<svg" in found._repr_html_()
    samples, *marks = found.figure().data
    assert (samples.fill, [len(mark.x) for mark in marks]) == ("tozeroy", [2] * 4)
    assert max(samples.y) * found.num_samples == pytest.approx(100 * max(found.histogram()[1]))
    page = found.write_html(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Ranks on the critical paths of the slowest 30 samples" in page
    assert "Step time of 1f1b under noise, 300 samples" in page


def test_the_page_has_the_timeline_of_the_run_below_the_distribution(tmp_path: Any) -> None:
    found = mt.monte_carlo(small(), _JITTER, samples=50)
    page = found.write_html(tmp_path / "page.html", include_plotlyjs="directory").read_text(encoding="utf-8")
    assert 0 < page.index("id='figure'") < page.index('id="timeline"')


def test_samples_become_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minitrain.whatif.monte_carlo.data_frame", dict)
    table = mt.monte_carlo(small(), _JITTER, samples=3).to_pandas()
    assert table["sample"] == [0, 1, 2]
    assert len(table["step_time_s"]) == 3
