"""Runs on clusters: each rank has its own device's prices and memory, and figures are told by kind of device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import minitrain as mt
from minitrain.cli import app
from minitrain.errors import OutOfMemoryError, StrategyError, UsageError
from minitrain.machine.device_groups import clock_share
from tests.folded_runs import require_every_rank

LINK = mt.Link(20e9, 1e-5)
SIZES: dict[str, Any] = {"num_layers": 8, "global_batch_size": 64}
COMPUTE = ("load_weights", "forward", "backward", "update")


def cluster(num_new: int = 4, num_old: int = 4, **old: Any) -> mt.Cluster:
    """Return some H100s and A100s behind a link."""
    groups = [mt.Devices("h100_80g_nvl8", num_new, name="new"), mt.Devices("a100_80g", num_old, name="old", **old)]
    return mt.Cluster(groups, between_groups=LINK)


@pytest.fixture(scope="module")
def equal() -> mt.Run:
    """Return data parallelism with equal shares on unlike devices."""
    return mt.simulate("ddp", hardware=cluster(), **SIZES)


@pytest.fixture(scope="module")
def uneven() -> mt.Run:
    """Return the same with more samples for the faster devices."""
    return mt.simulate("ddp", hardware=cluster(), num_layers=8, shares=[12] * 4 + [4] * 4)


@pytest.mark.parametrize("strategy", ["ddp", "zero3", "hsdp", "1f1b", "pp_dp"])
def test_a_cluster_of_one_kind_gives_the_logs_of_that_hardware(strategy: str) -> None:
    sizes: dict[str, Any] = {"num_layers": 16, "global_batch_size": 16}
    alone = mt.simulate(strategy, world_size=16, **sizes)
    run = mt.simulate(strategy, hardware=mt.Cluster([mt.Devices("h100_80g_nvl8", 16)]), **sizes)
    assert [list(log) for log in run.logs] == [list(log) for log in alone.logs]
    assert (run.mfu, run.peak_memory, run.energy_joules) == (alone.mfu, alone.peak_memory, alone.energy_joules)


def test_a_rank_computes_at_the_speed_of_its_own_device(equal: mt.Run) -> None:
    alone = {
        name: mt.simulate("ddp", hardware=kind, world_size=1, num_layers=8, global_batch_size=8)
        for name, kind in (("new", "h100_80g_nvl8"), ("old", "a100_80g"))
    }
    for rank, log in enumerate(equal.logs):
        passes = [event.duration for event in log if event.typ in COMPUTE]
        found = alone["new" if rank < 4 else "old"].logs[0]
        assert passes == [event.duration for event in found if event.typ in COMPUTE]


def test_a_run_has_a_rank_for_each_device_unless_it_says_otherwise(equal: mt.Run) -> None:
    assert equal.world_size == 8
    assert mt.simulate("ddp", hardware=cluster(), world_size=2, num_layers=2).device_of_rank == {0: "new", 1: "new"}
    placed = mt.simulate("ddp", hardware=cluster(), world_size=2, num_layers=2, placement=[1, 0])
    assert placed.device_of_rank == {0: "old", 1: "new"}


def test_equal_shares_show_what_they_waste_by_kind(equal: mt.Run, uneven: mt.Run) -> None:
    new, old = equal.by_device_kind
    assert new.idle_fraction > 0.2
    assert old.idle_fraction == 0
    assert list(new.waits_for_s or {}) == ["old"]
    assert (new.waits_for_s or {})["old"] == pytest.approx(new.idle_fraction * equal.step_time, rel=1e-9)
    assert uneven.step_time < equal.step_time
    assert uneven.by_device_kind[0].idle_fraction < 0.6 * new.idle_fraction
    assert (new.work_fraction, uneven.by_device_kind[0].work_fraction) == (0.5, 0.75)


def test_figures_by_kind_make_up_those_of_the_run(equal: mt.Run) -> None:
    kinds = equal.by_device_kind
    assert sum(kind.energy_joules or 0 for kind in kinds) == pytest.approx(equal.energy_joules)
    assert max(kind.peak_memory_bytes for kind in kinds) == equal.peak_memory_bytes
    bubble = sum(kind.idle_fraction * len(kind.kind.ranks) for kind in kinds) / equal.world_size
    assert bubble == pytest.approx(equal.bubble_fraction)
    assert "by_device_kind" not in mt.simulate("ddp", world_size=2, num_layers=2).summary()
    assert [each["device"] for each in equal.summary()["by_device_kind"]] == ["new", "old"]


def test_totals_alone_know_who_waits_and_not_for_whom(equal: mt.Run) -> None:
    run = mt.simulate("ddp", hardware=cluster(), log="summary", **SIZES)
    assert [kind.idle_fraction for kind in run.by_device_kind] == [kind.idle_fraction for kind in equal.by_device_kind]
    assert [kind.waits_for_s for kind in run.by_device_kind] == [None, None]


def test_each_kind_runs_out_of_its_own_memory() -> None:
    groups = [mt.Devices("h100_80g_nvl8", 1, name="new"), mt.Devices("t4", 1, name="small")]
    mixed: dict[str, Any] = {"hardware": mt.Cluster(groups, between_groups=LINK), "num_layers": 32}
    run = mt.simulate("ddp", **mixed, global_batch_size=256)
    assert [kind.is_out_of_memory for kind in run.by_device_kind] == [False, True]
    assert str(run.oom).startswith("out of memory on rank 1 (small) at")
    with pytest.raises(OutOfMemoryError, match=r"out of memory on rank 1 \(small\) .* of 16 GiB"):
        mt.simulate("ddp", **mixed, global_batch_size=256, strict_memory=True)
    assert mt.simulate("ddp", **mixed, shares=[240, 16]).oom is None


@pytest.mark.parametrize(
    ("strategy", "shares", "options"),
    [
        ("ddp", [3, 3, 3, 3, 1, 1, 1, 1], {}),
        ("zero3", [4, 4, 4, 4, 2, 2, 2, 2], {"microbatch_size": 2}),
        ("fsdp", [4, 4, 4, 4, 2, 2, 2, 2], {"microbatch_size": 2}),
        ("pp_dp", mt.Shares([7, 5, 3, 1], [3, 1]), {"pp": 2, "microbatch_size": 2}),
        ("1f1b", mt.Shares(layers=[2, 2, 2, 2, 1, 1, 1, 1]), {"global_batch_size": 8}),
        ("megatron", mt.Shares([7, 5, 3, 1], [3, 1]), {"pp": 2, "batch_messages": True}),
    ],
)
def test_strict_proofs_hold_on_unlike_devices_with_uneven_shares(
    strategy: str, shares: Any, options: dict[str, Any]
) -> None:
    num_layers = 12 if strategy == "1f1b" else 4
    batch: Any = (
        {} if "global_batch_size" in options else {"global_batch_size": sum(mt.Shares.of(shares).samples or ())}
    )
    proof = mt.prove(strategy, hardware=cluster(), num_layers=num_layers, shares=shares, **options, **batch)
    assert proof.largest < 1e-12


FOLDED: list[tuple[str, dict[str, Any], bool]] = [
    ("ddp", {"global_batch_size": 24}, True),
    ("ddp", {"shares": [4] * 8 + [1] * 16}, True),
    ("ddp", {"shares": [4] * 4 + [3] * 4 + [1] * 16}, True),
    ("ddp", {"shares": [4] * 7 + [3] * 1 + [1] * 16}, False),  # no equal blocks of ranks that are alike
    ("ddp_overlap", {"shares": [4] * 8 + [2] * 16}, True),
    ("zero2", {"shares": [4] * 8 + [2] * 16, "microbatch_size": 2}, True),
    ("zero3", {"shares": [4] * 8 + [2] * 16, "microbatch_size": 2}, True),
    ("hsdp", {"shares": [4] * 8 + [2] * 16, "microbatch_size": 2}, True),
    ("megatron", {"global_batch_size": 24, "pp": 3, "tp": 4, "num_layers": 9}, True),
    ("pp_dp", {"global_batch_size": 24, "pp": 2}, True),  # the strategy's own axis has both kinds
    ("fsdp", {"shares": [4] * 8 + [2] * 16, "microbatch_size": 2}, True),
    ("pp_dp", {"shares": mt.Shares([2] * 3 + [1] * 9), "pp": 2}, False),  # replicas that are unlike on one kind
]


@pytest.mark.few(2)
@pytest.mark.parametrize(("strategy", "parameters", "folds"), FOLDED)
def test_folding_by_kind_gives_the_figures_of_the_full_run(
    strategy: str, parameters: dict[str, Any], folds: bool
) -> None:
    given: dict[str, Any] = {"hardware": cluster(8, 16, per_node=4), "num_layers": 4} | parameters
    full, folded = mt.simulate(strategy, **given, fold=False), mt.simulate(strategy, **given, fold=True)
    assert folded.is_folded == folds
    assert folded.step_time == full.step_time
    assert folded.peak_memory_per_rank == full.peak_memory_per_rank
    assert folded.summary() == full.summary() == mt.simulate(strategy, **given).summary()
    require_every_rank(folded, full)


def test_uneven_shares_fold_on_devices_that_are_alike() -> None:
    given: dict[str, Any] = {"world_size": 8, "num_layers": 4, "shares": [3] * 4 + [1] * 4}
    full, folded = mt.simulate("ddp", **given, fold=False), mt.simulate("ddp", **given, fold=True)
    assert folded.is_folded
    assert (folded.step_time, folded.peak_memory_per_rank) == (full.step_time, full.peak_memory_per_rank)


async def by_its_model(model: mt.Model) -> mt.Model:
    """Train one layer, on the samples that the model says."""
    model.weights[0], state = model.load_weights(0)
    model.activations[0] = model.get_input_activation(model.samples_of_rank())
    model.activations[1] = model.forward(0, model.activations[0], model.weights[0])
    model.grad_activations[0] = model.loss(model.activations.pop(1))
    grad, _ = model.backward(0, model.activations[0], model.grad_activations[0], model.weights[0])
    model.weights[0], _ = model.update(0, await model.all_reduce(grad, 0), model.weights[0], state)
    model.set_final_weight(0, model.weights[0])
    return model


def test_a_strategy_that_asks_its_model_for_its_samples_folds() -> None:
    given: dict[str, Any] = {"world_size": 8, "num_layers": 1, "global_batch_size": 16}
    assert mt.simulate(by_its_model, **given, fold=True).num_ranks_a_class == 8
    folded = mt.simulate(by_its_model, **(given | {"shares": [3] * 4 + [1] * 4}), fold=True)
    assert folded.num_ranks_a_class == 4


def test_a_cap_slows_its_devices_and_draws_no_more() -> None:
    watts = 250
    capped = cluster(power_cap_watts=watts)
    run, free = (mt.simulate("ddp", hardware=each, **SIZES) for each in (capped, cluster()))
    share = clock_share(capped.group("old").system.sheet.power, watts, "old")
    slowed, usual = (next(event.duration for event in each.logs[7] if event.typ == "forward") for each in (run, free))
    assert slowed == pytest.approx(usual / share)
    new, old = run.by_device_kind
    assert (old.kind.limited_by, old.kind.watts, new.kind.limited_by) == ("power cap", watts, None)
    assert run.peak_watts is not None
    assert run.peak_watts <= (capped.peak_watts or 0) < (cluster().peak_watts or 0)
    assert (run.mfu or 0) < (free.mfu or 0)


def test_a_run_on_a_cluster_is_saved_and_read_with_its_devices(equal: mt.Run, tmp_path: Path) -> None:
    equal.save(tmp_path / "run.jsonl")
    loaded = mt.load_run(tmp_path / "run.jsonl")
    assert loaded.device_kinds == equal.device_kinds
    assert loaded.by_device_kind[0].waits_for_s == equal.by_device_kind[0].waits_for_s
    assert loaded.timeline.rank_names[4] == "4 old"
    text = (tmp_path / "run.jsonl").read_text().replace("[[4, 8]]", "[[3, 8]]")
    (tmp_path / "bad.jsonl").write_text(text)
    with pytest.raises(UsageError, match=r"device_kinds: expected ranges of ranks that hold each of 0\.\.7 once"):
        mt.load_run(tmp_path / "bad.jsonl")


def test_words_and_pictures_say_which_devices(equal: mt.Run, tmp_path: Path) -> None:
    assert "8 ranks, 8 layers, batch 64, cluster (4 x h100_80g_nvl8, 4 x a100_80g), step" in repr(equal)
    assert "rank 4 old, the last to come to all_reduce of layer 0" in equal.explain().gaps.reason(0)
    assert equal.figure().layout.yaxis.title.text == "rank and device"
    page = equal.write_html(tmp_path / "run.html", include_plotlyjs="directory").read_text()
    assert "ranks on new" in page
    assert "<th>device</th>" in page


def test_strategies_of_equal_shares_run_unchanged_on_clusters(equal: mt.Run) -> None:
    found = mt.compare(["ddp", "zero3", "1f1b"], hardware=cluster(), **SIZES)
    assert {run.strategy: run.step_time for run in found.succeeded}["ddp"] == equal.step_time
    with pytest.raises(StrategyError, match=r"global_batch_size \(60\) must be a multiple of world_size \(8\) for ddp"):
        mt.simulate("ddp", hardware=cluster(), global_batch_size=60)


@pytest.mark.usefixtures("in_this_process")
def test_a_file_may_stand_for_a_cluster(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("groups: [{kind: t4, count: 2}, {kind: a100_80g, count: 2}]\nbetween_groups: {bytes_per_s: 1e9}\n")
    run = mt.simulate("ddp", hardware=str(file), num_layers=2)
    assert (run.hardware, run.world_size, run.device_of_rank[3]) == ("mine", 4, "a100_80g")
    rows = mt.sweep("ddp", {"hardware": [str(file)]}, num_layers=2, world_size=4, global_batch_size=64).rows()
    assert [row["step_time_s"] for row in rows] == [run.step_time]


def test_the_command_line_shows_and_takes_clusters() -> None:
    shown = CliRunner().invoke(app, ["hw", "show", "two_generations"])
    assert "two_generations: 16 devices in 3 nodes, 8,800 W at most" in shown.stdout
    assert "between new and old: 2.8 GB/s a node, 30 us" in shown.stdout
    shares = ",".join(["3"] * 8 + ["1"] * 8)
    options = ["--hw", "two_generations", "--shares", shares, "--layers", "2", "--no-trace", "--json"]
    found = json.loads(CliRunner().invoke(app, ["run", "ddp", *options]).stdout)
    assert (found["world_size"], found["global_batch_size"]) == (16, 32)
    assert [each["work_fraction"] for each in found["by_device_kind"]] == [0.75, 0.25]
    wrong = CliRunner().invoke(app, ["run", "ddp", "--shares", "3,x"])
    assert "--shares takes the samples of each replica, as in --shares 12,4; got '3,x'" in wrong.stderr
