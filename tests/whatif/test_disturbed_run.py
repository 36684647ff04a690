"""Steps in which devices die: what is finished, what is lost, and what bringing the job back takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitrain as mt
from minitrain.errors import UsageError
from minitrain.run.analysis.retiming import collectives, make_graph, messages, retimed_events
from minitrain.run.analysis.timeline import as_timeline
from minitrain.run.result import Run
from minitrain.whatif.disturbed_run import DisturbedRun, finished_part

SIZES: dict[str, Any] = {"world_size": 4, "num_layers": 4, "global_batch_size": 16}
QUICK = mt.Recovery(detection_s=1.0, restart_s=2.0, repair_s=8.0, spares=1)


def plain(name: str, **more: Any) -> Run:
    return mt.simulate(name, **(SIZES | more))


def disturbed(name: str, faults: Any, recovery: mt.Recovery = QUICK, **more: Any) -> DisturbedRun:
    run = mt.simulate(name, **(SIZES | more), faults=faults, recovery=recovery)
    assert isinstance(run, DisturbedRun)
    return run


def test_a_spare_costs_detection_restart_reload_and_the_work_that_was_lost() -> None:
    whole = plain("zero3")
    run = disturbed("zero3", [mt.Fault(rank=2, at_s=0.5 * whole.step_time)])
    (interruption,) = run.interruptions
    assert interruption.by_cause["lost work"] == 0.5 * whole.step_time
    assert (interruption.detection_s, interruption.restart_s, interruption.repair_s) == (1.0, 2.0, 0.0)
    assert run.step_time == pytest.approx(1.5 * whole.step_time + 3.0 + interruption.reload_s, rel=1e-12)
    assert sum(run.lost_by_cause.values()) == pytest.approx(run.step_time - whole.step_time, rel=1e-9)


def test_without_a_spare_a_fixed_size_waits_for_the_repair() -> None:
    run = disturbed("ddp", [mt.Fault(0, 0.0)], mt.Recovery(detection_s=0, restart_s=0, repair_s=8.0))
    assert run.lost_by_cause["repair"] == 8.0
    assert run.interruptions[0].num_ranks == 4


def test_an_elastic_job_goes_on_with_nearly_equal_shares_of_the_batch() -> None:
    run = disturbed("ddp", [mt.Fault(1, 0.0)], mt.Recovery(detection_s=0, restart_s=0, elastic=True, replan_s=0.5))
    samples = [{sample for event in log if event.typ == "forward" for sample in event.samples} for log in run.logs]
    assert [len(of_rank) for of_rank in samples] == [6, 0, 5, 5]
    assert set.union(*samples) == set(range(16))
    assert run.lost_by_cause["replanning"] == 0.5
    assert run.lost_by_cause["fewer ranks"] > 0


def test_an_elastic_job_of_pipelines_gives_up_a_whole_one() -> None:
    run = disturbed("pp_dp", [mt.Fault(3, 0.0)], mt.Recovery(detection_s=0, elastic=True), pp=2)
    assert run.interruptions[0].num_ranks == 2
    assert [len(log) > 0 for log in run.logs] == [True, True, False, False]


def test_a_strategy_for_one_size_alone_says_that_it_cannot_go_on() -> None:
    async def four(model: mt.Model) -> mt.StrategyModel:
        if model.world_size != 4:
            raise UsageError("four ranks, please")
        return await mt.strategies()["ddp"](model)

    with pytest.raises(UsageError, match=r"four runs with no smaller number of ranks than 4, .* use a strategy that"):
        disturbed(four, [mt.Fault(0, 0.0)], mt.Recovery(elastic=True))  # type: ignore[arg-type]


def test_a_fault_during_a_recovery_begins_the_recovery_anew() -> None:
    whole = plain("zero3")
    at_s = 0.5 * whole.step_time
    run = disturbed("zero3", [mt.Fault(0, at_s), mt.Fault(1, at_s + 1.5)], mt.Recovery(1.0, 2.0, spares=2))
    first, second = run.interruptions
    assert first.recovery_s == pytest.approx(1.5, rel=1e-12)
    assert (first.detection_s, first.reload_s) == (1.0, 0.0)
    assert first.restart_s == pytest.approx(0.5)
    assert second.lost_work_s == 0.0
    assert run.step_time == pytest.approx(at_s + 1.5 + second.recovery_s + whole.step_time, rel=1e-12)


def test_finished_steps_since_the_checkpoint_are_done_again() -> None:
    base, more = (
        disturbed("ddp", [mt.Fault(0, 0.0)], mt.Recovery(spares=1, since_checkpoint_s=seconds))
        for seconds in (0.0, 7.0)
    )
    assert more.step_time - base.step_time == pytest.approx(7.0)
    assert more.lost_by_cause["repeated steps"] == 7.0


def test_faults_behind_the_step_and_of_devices_that_have_left_change_nothing() -> None:
    late, gone = mt.Fault(1, 1e9), mt.Fault(1, 0.0)
    run = disturbed("ddp", [late])
    assert run.step_time == run.undisturbed_step_time == plain("ddp").step_time
    assert run.without_effect == (late,)
    run = disturbed("ddp", [gone, mt.Fault(1, 1e-6), late], mt.Recovery(elastic=True))
    assert len(run.without_effect) == 2


@settings(max_examples=25)
@given(
    name=st.sampled_from(["ddp", "zero3", "ddp_overlap", "1f1b", "gpipe", "hsdp", "zero3_prefetch"]),
    dead=st.integers(0, 3),
    share=st.floats(0.0, 0.999),
    detection_s=st.sampled_from([0.0, 1e-4, 1.0]),
)
def test_what_is_finished_follows_the_dependencies(name: str, dead: int, share: float, detection_s: float) -> None:
    run = plain(name)
    at_s = share * run.step_time
    logs = finished_part(run, dead, at_s, detection_s)
    assert all(event.end <= at_s for event in logs[dead])
    for rank, log in enumerate(logs):
        before = [event.end for event in run.logs[rank] if event.end <= at_s and event.typ != "send"]
        assert before == [event.end for event in log if event.end <= at_s and event.typ != "send"]  # the past stays
        assert all(event.end <= at_s + detection_s for event in log)
    line = as_timeline(logs)
    assert set(np.diff(collectives(line)[1]).tolist()) <= set(np.diff(collectives(run.timeline)[1]).tolist())
    sends, receives = messages(line)
    assert len(sends) == line.on_stream("send").sum() == line.on_stream("recv").sum() == len(receives)


def test_ranks_that_do_not_need_the_dead_one_go_on_until_they_are_stopped() -> None:
    run = plain("ddp")
    at_s = 0.3 * run.step_time
    logs = finished_part(run, 0, at_s, detection_s=1.0)
    assert len(logs[0]) < len(logs[1])
    assert {event.typ for event in logs[1]} == {
        "load_weights",
        "forward",
        "loss",
        "backward",
    }  # the first all_reduce hangs
    assert len(finished_part(run, 0, at_s, detection_s=0.0)[1]) == len(logs[0])


def test_the_run_is_a_run_that_is_drawn_saved_explained_and_compared(tmp_path: Any) -> None:
    whole = plain("1f1b")
    run = disturbed("1f1b", [mt.Fault(2, 0.4 * whole.step_time)])
    kept = [len(log) for log in finished_part(whole, 2, 0.4 * whole.step_time, 1.0)]
    assert [len(log) for log in run.logs] == [part + len(log) for part, log in zip(kept, whole.logs, strict=True)]
    explained = run.explain()
    assert min(explained.what_ifs.values()) > 3.0  # nothing that is free makes devices live
    reasons = {explained.gaps.reason(gap) for gap in range(len(explained.gaps))}
    assert f"the recovery: {run.interruptions[0]}" in reasons
    page = run.write_html(tmp_path / "run.html", include_plotlyjs="directory").read_text()
    assert "rank 2 died at" in page
    run.save(tmp_path / "run.jsonl")
    loaded = mt.load_run(tmp_path / "run.jsonl")
    assert "simulate the run to see what" in loaded.write_html(tmp_path / "loaded.html").read_text()
    assert loaded.step_time == run.step_time
    assert loaded.explain().data() == {**explained.data(), "closed_form": loaded.explain().data()["closed_form"]}
    assert run.summary()["lost_by_cause_s"]["detection"] == 1.0
    assert run.peak_memory == whole.peak_memory


def test_every_operation_of_its_attempts_has_an_account() -> None:
    run = mt.simulate("zero3", num_layers=4, faults=[mt.Fault(rank=5, at_s=0.001)], recovery=mt.Recovery(elastic=True))
    assert isinstance(run, DisturbedRun)
    assert [len(attempt.models) for attempt in run.attempts] == [8, 7]
    line, known = run.timeline, run.accounts_of_prices()
    lasting = [(line.prices[code], seconds) for code, seconds in zip(line.price, line.duration, strict=True) if seconds]
    assert all(known[id(price)]().whole.seconds == seconds for price, seconds in lasting)


def test_a_disturbed_step_replays_its_own_times() -> None:
    at_s = 0.5 * plain("zero3").step_time
    run = disturbed("zero3", [mt.Fault(2, at_s), mt.Fault(1, at_s + 0.5)], mt.Recovery(1.0, 2.0, spares=2))
    line = run.timeline
    np.testing.assert_allclose(retimed_events(make_graph(line), line.duration)[1], line.time, rtol=1e-12)
    assert max(run.explain().what_ifs.values()) < run.step_time
    assert [cause for cause, seconds in run.lost_by_cause.items() if cause == "fewer ranks" and seconds] == []


def test_a_wait_that_two_faults_make_names_both() -> None:
    at_s = 0.5 * plain("zero3").step_time
    run = disturbed("zero3", [mt.Fault(2, at_s), mt.Fault(1, at_s + 0.5)], mt.Recovery(1.0, 2.0, spares=2))
    gaps = run.explain().gaps
    first, second = run.interruptions
    assert gaps.reason(int(np.argmax(gaps.duration))) == f"the recovery: {first}; then {second}"
    assert "lost in all: lost work" in run.notes[-1]


def test_drawn_faults_come_at_the_rate_of_their_devices() -> None:
    rate = mt.FaultRate({"old": 1.0, "new": 4.0}, seed=3)
    drawn = rate.draw(["old"] * 2000 + ["new"] * 2000, 3600.0 / 2)
    old = sum(fault.rank < 2000 for fault in drawn)
    assert old == pytest.approx(2000 * (1 - np.exp(-0.5)), rel=0.06)
    assert len(drawn) - old == pytest.approx(2000 * (1 - np.exp(-0.125)), rel=0.12)
    assert drawn == rate.draw(["old"] * 2000 + ["new"] * 2000, 3600.0 / 2)


def test_a_rate_disturbs_a_step_like_the_faults_that_it_draws() -> None:
    rate = mt.FaultRate(1e-6, seed=1)
    drawn = rate.draw(["h100_80g_nvl8"] * 4, plain("ddp").step_time)
    assert drawn
    assert disturbed("ddp", rate).step_time == disturbed("ddp", drawn).step_time


def test_on_a_cluster_the_dead_device_leaves_and_the_others_keep_their_own() -> None:
    cluster = mt.Cluster({"h100_80g_nvl8": 2, "a100_80g": 2}, between_groups=mt.Link(12.5e9, 2e-5))
    whole = plain("ddp", hardware=cluster)
    run = disturbed("ddp", [mt.Fault(3, 0.0)], mt.Recovery(detection_s=0, elastic=True), hardware=cluster)
    left: dict[str, Any] = {"world_size": 3, "placement": [0, 0, 1], "shares": mt.Shares(samples=[6, 5, 5])}
    smaller = plain("ddp", hardware=cluster, **left)
    assert run.undisturbed_step_time == whole.step_time
    assert run.step_time == pytest.approx(run.interruptions[0].recovery_s + smaller.last_clock, rel=1e-9)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"faults": [mt.Fault(9, 0.0)]}, r"a fault names rank 9, but ranks are 0\.\.3"),
        ({"faults": [(1, 0.0)]}, r"faults must be a list of mt\.Fault, such as \[mt\.Fault\(rank=5, at_s=0\.02\)\]"),
        ({"recovery": mt.Recovery()}, "recovery is for runs with faults, and none are given"),
        ({"faults": [mt.Fault(0, 0.0)], "recovery": 3}, r"recovery must be a mt\.Recovery"),
        ({"faults": [mt.Fault(0, 0.0)], "strict": True}, "faults does not go with strict"),
        ({"faults": [mt.Fault(0, 0.0)], "log": "summary"}, 'log="summary" does not go with faults'),
    ],
)
def test_faults_that_make_no_sense_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plain("ddp", **given)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mt.Fault(-1, 0.0), "rank must be"),
        (lambda: mt.Fault(0, -1.0), "at_s of a fault must be a number of seconds from 0 on, got -1"),
        (lambda: mt.Recovery(restart_s=float("nan")), "restart_s must be a number of seconds from 0 on"),
        (lambda: mt.Recovery(storage_bytes_per_s=0), "storage_bytes_per_s must be a positive number of bytes a second"),
        (lambda: mt.FaultRate({"h100": 0}), "mtbf_hours of h100 must be a positive number of hours, got 0"),
        (lambda: mt.FaultRate().draw(["mi300x"], 1.0), r"no mean time between failures is known of 'mi300x'.* give it"),
    ],
)
def test_values_outside_their_rule_are_refused(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_chains_of_launched_operations_keep_what_they_were_given() -> None:
    """Each rank scatters, sums and gathers a gradient in one chain, behind loads of which some are lost."""

    async def chained(model: mt.Model) -> mt.Model:
        mesh = model.mesh(outer=2, inner=2)
        weights, opt_states, activations, act_grads, _ = model.storage()
        for k in range(4):
            weights[k], opt_states[k] = model.load_weights(k)
        activations[0] = model.get_input_activation(range(4 * model.rank, 4 * model.rank + 4))
        for k in range(4):
            activations[k + 1] = model.forward(k, activations[k], weights[k])
        act_grads["here"] = model.loss(activations.pop(4))
        works: dict[int, Any] = {}
        for k in reversed(range(4)):
            grad, act_grads["here"] = model.backward(k, activations[k], act_grads["here"], weights[k])
            del activations[k]
            shard = model.launch(model.reduce_scatter(grad, k, group=mesh.group("inner")))
            total = model.launch(model.all_reduce(shard, k, group=mesh.group("outer")))
            works[k] = model.launch(model.all_gather(total, k, group=mesh.group("inner")))
        for k in range(4):
            weights[k], opt_states[k] = model.update(k, await works[k], weights[k], opt_states[k])
            model.set_final_weight(k, weights[k])
        return model

    whole = plain(chained)  # type: ignore[arg-type]  # a function instead of a name
    run = disturbed(chained, [mt.Fault(2, 0.9 * whole.step_time)])  # type: ignore[arg-type]  # likewise
    assert sum(event.stream == "comm" for event in run.events) > 48  # some were finished before the fault
    order = {"reduce_scatter": (), "all_reduce": ("reduce_scatter",), "all_gather": ("all_reduce",)}
    for log in run.logs:
        given_to = [(event, tuple(log[place] for place in event.after)) for event in log if event.stream == "comm"]
        assert len(given_to) >= 12
        for event, made in given_to:
            assert tuple(one.typ for one in made) == order[event.typ]
            assert all(one.layer == event.layer and one.end <= event.time for one in made)
