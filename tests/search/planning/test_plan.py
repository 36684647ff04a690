"""Plans: against exhaustive search on small clusters, and what they say."""

from __future__ import annotations

import json
import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import HardwareConfigError, StrategyError, UsageError
from minitrain.search.planning.layouts import within_budget

KINDS = ("h100_80g_nvl8", "a100_80g", "v100_32g_nvl8", "l40s_48g_pcie8")
FAST = mt.Link(200e9, 5e-6)
PAIR = mt.Cluster({"h100_80g_nvl8": 2, "a100_80g": 2}, between_groups=FAST, name="pair")


def random_case(seed: int) -> tuple[mt.Cluster, dict[str, Any]]:
    chance = random.Random(seed)
    kinds = chance.sample(KINDS, 2)
    link = mt.Link(10 ** chance.uniform(9, 11.5), 1e-5)
    cluster = mt.Cluster({kind: chance.choice((1, 2)) for kind in kinds}, between_groups=link)
    return cluster, {"num_layers": chance.choice((3, 4, 5)), "global_batch_size": chance.choice((8, 12))}


def exhaustive(cluster: mt.Cluster, step: dict[str, Any]) -> float:
    """Return the fastest step of all shares of all choices of groups, one number of samples or layers a group."""
    names = [group.label for group in cluster.devices]
    parts = [cluster, *(cluster.part([name]) for name in names)]
    times: list[float] = []
    for part in parts:
        for strategy in ("ddp", "zero1", "zero3"):
            times += [run_time(part, step, strategy, mt.Shares(samples=samples)) for samples in samples_of(part, step)]
        for order in (part, part.part([group.label for group in part.devices][::-1])):
            times += pipeline_times(order, step)
    return min(times)


def samples_of(part: mt.Cluster, step: dict[str, Any]) -> list[list[int]]:
    counts, batch = [group.count for group in part.devices], step["global_batch_size"]
    each = product(range(1, batch + 1), repeat=len(counts))
    fitting = [per for per in each if sum(n * count for n, count in zip(per, counts, strict=True)) == batch]
    return [[n for n, count in zip(per, counts, strict=True) for _ in range(count)] for per in fitting]


def pipeline_times(part: mt.Cluster, step: dict[str, Any]) -> list[float]:
    times, num_layers = [], step["num_layers"]
    for width in (1, 2):
        if any(group.count % width for group in part.devices) or part.num_devices // width < 2:
            continue
        pp, even = part.num_devices // width, [step["global_batch_size"] // width] * width
        for layers in (each for each in product(range(1, num_layers), repeat=pp) if sum(each) == num_layers):
            times += [
                run_time(part, step, "pp_dp", mt.Shares(even, layers), pp=pp, microbatch_size=size)
                for size in (1, 2, 4)
                if step["global_batch_size"] % (width * size) == 0
            ]
    return times


def run_time(part: mt.Cluster, step: dict[str, Any], strategy: str, shares: mt.Shares, **options: Any) -> float:
    machine: dict[str, Any] = {"hardware": part, "world_size": part.num_devices, "shares": shares, "fold": True}
    return mt.simulate(strategy, **machine, **step, **options).step_time


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(5))
def test_a_plan_is_within_three_percent_of_exhaustive_search(seed: int) -> None:
    cluster, step = random_case(seed)
    found = mt.plan(None, cluster, **step)
    assert found.step_time <= 1.03 * exhaustive(cluster, step)
    assert found.simulate().step_time == found.step_time
    assert found.simulate(fold=False).step_time == found.step_time


def test_a_plan_divides_by_speed_and_beats_equal_shares() -> None:
    step: dict[str, Any] = {"num_layers": 4, "global_batch_size": 512}
    found = mt.plan(None, PAIR, strategies=["zero1"], **step)
    equal = mt.simulate("zero1", hardware=PAIR, **step)
    assert found.left_out == ()
    assert found.step_time < 0.75 * equal.step_time
    assert found.shares is not None
    assert mt.simulate(found.strategy, shares=found, hardware=PAIR, **step).step_time == found.step_time


def test_a_device_behind_a_slow_link_is_left_out() -> None:
    cluster = mt.Cluster({"h100_80g_nvl8": 2, "xeon_8480plus": 1}, between_groups=mt.Link(1e8, 1e-3))
    found = mt.plan(None, cluster, num_layers=4, global_batch_size=16)
    assert found.left_out == ("xeon_8480plus",)
    assert "left out: xeon_8480plus" in str(found)


def test_every_device_takes_part_if_none_may_be_left_out() -> None:
    cluster = mt.Cluster({"h100_80g_nvl8": 2, "xeon_8480plus": 1}, between_groups=mt.Link(1e8, 1e-3))
    found = mt.plan(None, cluster, num_layers=4, global_batch_size=16, strategies=["zero1"], leave_out=False)
    assert found.left_out == ()
    assert {group for verdict in found.verdicts for group in verdict.candidate.groups} == set(KINDS[:1]) | {
        "xeon_8480plus"
    }


def test_a_strategy_that_does_not_exist_is_named_before_anything_is_simulated() -> None:
    with pytest.raises(StrategyError, match="there is no strategy 'nonsense'; use one of"):
        mt.plan(None, PAIR, num_layers=2, global_batch_size=8, strategies=["zero1", "nonsense"])


def test_uneven_shares_of_a_plan_train_what_one_device_does() -> None:
    uneven = mt.Cluster({"a100_80g": 2, "v100_32g_nvl8": 2}, between_groups=FAST)
    found = mt.plan(None, uneven, num_layers=2, global_batch_size=64, strategies=["zero1"])
    assert found.shares is not None
    assert len(set(found.shares.samples or ())) > 1
    assert "as one device does" in str(mt.prove(found.strategy, **found.arguments()))


@pytest.mark.ci
def test_memory_bounds_a_plan() -> None:
    small = mt.Cluster({"rtx_2080ti": 2, "a100_80g": 2}, between_groups=FAST, name="small")
    found = mt.plan("llama3.2-3b", small, seq_len=2048, global_batch_size=8, strategies=["fsdp", "megatron"])
    assert found.run.oom is None
    assert any("out of memory" in verdict.reason for verdict in found.verdicts)


def test_a_budget_of_power_goes_where_a_watt_buys_most() -> None:
    budget = 0.6 * (PAIR.peak_watts or 0)
    capped = within_budget(PAIR, budget)
    assert capped is not None
    assert capped.peak_watts == pytest.approx(budget, rel=1e-6)
    even = PAIR.within_power(budget)
    rates = {group.label: group.system.processor.peak("float16") for group in PAIR.devices}
    speed, usual = (sum(rates[each.label] * each.clock_share for each in one.devices) for one in (capped, even))
    assert speed >= usual
    found = mt.plan(None, PAIR, num_layers=4, global_batch_size=64, power_budget_watts=budget)
    assert (found.cluster.peak_watts or 0) <= budget * (1 + 1e-9)
    assert "capped" in str(found) or found.left_out


def test_a_plan_is_saved_drawn_and_said(tmp_path: Path) -> None:
    found = mt.plan(None, PAIR, num_layers=4, global_batch_size=16)
    found.save(tmp_path / "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text()) == {"format": "minitrain-plan", **found.summary()}
    assert "zero1" in found.write_html(tmp_path / "plan.html", "directory").read_text() or found.strategy != "zero1"
    assert "considered:" in found.explain()
    assert found.strategy in found._repr_html_()
    assert found.summary()["step_time_s"] == found.step_time


@pytest.mark.parametrize(
    ("cluster", "given", "message"),
    [
        ("h100_80g_nvl8", {}, r"plan is for a cluster of devices, .* for equal devices there is mt\.tune"),
        ("two_generation", {}, r'did you mean "two_generations"\?'),
        (PAIR, {"workload": "llama3-8"}, r'there is no model "llama3-8"; did you mean "llama3-8b"\?'),
        (PAIR, {"global_batch_size": 0}, "global_batch_size"),
        (PAIR, {"global_batch_size": 10**30}, "global_batch_size must be at most 16777216, got 1000"),
        (PAIR, {"strategies": "zero1"}, r'strategies must be .*, got "zero1"; write \["zero1"\]'),
        (PAIR, {"strategies": []}, "strategies must be a list of at least one strategy"),
        (PAIR, {"strategies": ["zero1"], "global_batch_size": 1}, "no layout of pair divides a batch of 1 samples"),
        (PAIR, {"power_budget_watts": 10.0}, "no layout of pair"),
        (PAIR, {"power_budget_watts": -1}, "power_budget_watts must be a number above 0, got -1"),
        (
            mt.Cluster({"rtx_2080ti": 1, "t4": 1}, between_groups=FAST, name="pair"),
            {"strategies": ["ddp"], "num_layers": 200, "global_batch_size": 4},
            r"none of \d+ layouts of pair runs within memory; the first: ddp on .*: out of memory on rank 0",
        ),
    ],
)
def test_plans_that_cannot_be_are_refused(cluster: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises((UsageError, HardwareConfigError), match=message):
        mt.plan(cluster=cluster, **({"workload": None, "num_layers": 2, "global_batch_size": 8} | given))
