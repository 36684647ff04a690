"""Which network prices a run: flat within one tier, hierarchical beyond it, and said wherever a run is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.cli import main
from minitrain.machine import FlatTopology, HierarchicalTopology, load_config
from minitrain.machine.config import SPECIFIED
from minitrain.machine.predictor import RuntimePredictor
from minitrain.machine.topology import NETWORKS, make_topology, nodes_in_rank_order
from minitrain.run.parameters import DEFAULTS
from minitrain.run.simulation import FailedRun
from minitrain.view.run_folder import conditions, title_of, view_of

TIERS = load_config("h100_80g_nvl8").networks
NODE: dict[str, Any] = {"world_size": 8, "num_layers": 8, "global_batch_size": 64}
NODES: dict[str, Any] = {"world_size": 64, "num_layers": 32, "global_batch_size": 512}
SERVERS = ["a100_80g", "b200_192g_nvl8", "h100_80g_nvl8", "h200_141g_nvl8", "mi300x_192g_8"]


def events(run: mt.Run) -> list[Any]:
    return [list(log) for log in run.logs]


@pytest.mark.parametrize(("world_size", "kind"), [(1, "flat"), (8, "flat"), (9, "hierarchical"), (64, "hierarchical")])
def test_the_default_is_flat_within_a_tier_and_hierarchical_beyond(world_size: int, kind: str) -> None:
    assert DEFAULTS["network"] == "auto"
    sizes: dict[str, Any] = {"world_size": world_size, "num_layers": 2, "global_batch_size": world_size}
    run, same = mt.simulate("zero3", **sizes), mt.simulate("zero3", network="auto", **sizes)
    assert run.network == same.network == kind
    assert events(run) == events(same)
    if world_size % 8 == 0 or kind == "flat":
        assert events(run) == events(mt.simulate("zero3", network=kind, **sizes))


def test_the_predictor_of_the_specification_stays_flat() -> None:
    assert isinstance(RuntimePredictor(64).topology, FlatTopology)
    assert isinstance(RuntimePredictor(64, network="auto").topology, HierarchicalTopology)
    assert isinstance(RuntimePredictor(8, network="auto").topology, FlatTopology)


def test_a_placement_is_hierarchical() -> None:
    topology = make_topology(TIERS, 4, "auto", [0, 0, 1, 1])
    assert isinstance(topology, HierarchicalTopology)
    assert topology.num_nodes == 2
    run = mt.simulate("ddp", placement=[0, 0, 1, 1], world_size=4, num_layers=2, global_batch_size=4)
    assert (run.network, run.num_nodes) == ("hierarchical", 2)


def test_auto_takes_any_number_of_ranks_and_hierarchical_those_that_fill_nodes() -> None:
    sizes: dict[str, Any] = {"world_size": 12, "num_layers": 2, "global_batch_size": 12}
    assert mt.simulate("ddp", **sizes).network == "hierarchical"
    with pytest.raises(mt.UsageError, match="world_size is 12; use 16 ranks"):
        mt.simulate("ddp", network="hierarchical", **sizes)


def throughput(name: str, world_size: int, hardware: str, fidelity: str) -> float:
    run = mt.simulate(
        name,
        workload="llama3-8b",
        seq_len=4096,
        world_size=world_size,
        global_batch_size=world_size,
        hardware=hardware,
        fidelity=fidelity,
        fold=True,
    )
    return 1 / run.step_time


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["fsdp", "zero3", "ddp"])
@pytest.mark.parametrize("fidelity", ["roofline", "kernels"])
def test_ranks_of_racks_go_on_at_their_pace_around_full_racks(name: str, fidelity: str) -> None:
    sizes = [288, *range(500, 581, 20), 503, 504, 512, 575, 576, 577]
    found = [throughput(name, size, "gb200_nvl72", fidelity) for size in sizes]
    assert min(found[1:]) > 0.95 * max(found[1:])
    assert min(found) > 0.85 * max(found)  # a ring of twice as many ranks has twice as many steps
    in_a_rack = [throughput(name, size, "gb200_nvl72", fidelity) for size in (64, 65, 68, 71, 72)]
    assert min(in_a_rack) > 0.99 * max(in_a_rack)
    beyond = [throughput(name, size, "gb200_nvl72", fidelity) for size in (73, 74, 77, 80)]
    assert min(beyond) > 0.95 * max(found[1:])


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["fsdp", "zero3"])
@pytest.mark.parametrize("fidelity", ["roofline", "kernels"])
def test_servers_lose_no_more_than_the_ports_of_the_emptiest(name: str, fidelity: str) -> None:
    full = throughput(name, 64, "h100_80g_nvl8", fidelity)
    for size in range(60, 71):
        share = nodes_in_rank_order(size, 8).least / 8
        assert 1.02 * full > throughput(name, size, "h100_80g_nvl8", fidelity) > 0.98 * full * share


@pytest.mark.parametrize("hardware", SERVERS)
@pytest.mark.parametrize("name", ["hsdp", "pp_hsdp"])
def test_hybrid_sharding_works_on_servers_that_must_be_filled(name: str, hardware: str) -> None:
    options: dict[str, Any] = {"hsdp": {"shard_size": 4}, "pp_hsdp": {"pp": 2, "shard_size": 4}}[name]
    sizes: dict[str, Any] = {"world_size": 32, "num_layers": 8, "global_batch_size": 64, "hardware": hardware}
    assert mt.simulate(name, network="hierarchical", **sizes, **options).network == "hierarchical"


@pytest.mark.ci
def test_hybrid_sharding_is_last_on_a_flat_network_and_quicker_than_zero3_over_nodes() -> None:
    sharded = ["zero1", "zero2", "zero3", "hsdp"]

    def ranking(**network: Any) -> list[str]:
        compared = mt.compare(sharded, log="summary", hardware=SPECIFIED, **NODES, **network)
        return [run.strategy for run in compared.succeeded]

    assert ranking(network="flat")[-1] == "hsdp"
    assert ranking().index("hsdp") < ranking().index("zero3")
    ddp, hsdp = (mt.simulate(name, hardware=SPECIFIED, log="summary", **NODES) for name in ("ddp", "hsdp"))
    assert ddp.step_time < hsdp.step_time  # it has less to exchange


def test_a_run_within_a_tier_says_nothing_of_networks() -> None:
    for network in NETWORKS:
        run = mt.simulate("ddp", network=network, **NODE)
        assert conditions(run) == "8 ranks, 8 layers, batch 64, h100_80g_nvl8"


@pytest.mark.parametrize(("network", "shown"), [("auto", "hierarchical"), ("flat", "flat")])
def test_a_run_beyond_a_tier_says_which_network_it_had(network: str, shown: str, tmp_path: Path) -> None:
    comparison = mt.compare(["ddp"], network=network, **NODES)
    (run,) = comparison.succeeded
    said = f"64 ranks, 32 layers, batch 512, h100_80g_nvl8, {shown} network"
    assert title_of(comparison) == conditions(run) == said
    assert view_of(run).title == f"ddp: {said}"
    assert comparison.summary()[0]["network"] == shown
    assert said in run.write_html(tmp_path / "page.html", include_plotlyjs="directory").read_text(encoding="utf-8")


def test_a_run_file_says_which_network_where_that_is_a_question(tmp_path: Path) -> None:
    for parameters, said in (
        ({**NODE}, {}),
        ({**NODE, "world_size": 16}, {"network": "hierarchical", "num_nodes": 2}),
        ({**NODE, "world_size": 16, "network": "flat"}, {"network": "flat", "num_nodes": 2}),
    ):
        run = mt.simulate("ddp", **parameters)
        run.save(tmp_path / "run.jsonl")
        header = json.loads((tmp_path / "run.jsonl").read_text().partition("\n")[0])
        assert {name: header[name] for name in ("network", "num_nodes") if name in header} == said
        read = mt.load_run(tmp_path / "run.jsonl")
        assert (read.network, read.num_nodes) == (run.network, run.num_nodes)
        assert conditions(read) == conditions(run)


def test_durations_by_hand_are_flat() -> None:
    run = mt.simulate("ddp", hardware=mt.FixedPredictor(forward=1), **NODES)
    assert (run.network, run.num_nodes) == ("flat", 1)


def test_a_failed_run_names_the_network_that_it_was_to_have() -> None:
    async def fails(model: mt.Model) -> mt.Model:
        raise KeyError

    for parameters, network in (
        ({}, "auto"),
        ({"network": "flat"}, "flat"),
        ({"hardware": RuntimePredictor(64, network="hierarchical")}, "hierarchical"),
    ):
        (failed,) = mt.compare([fails], **NODES, **parameters).failed
        assert isinstance(failed, FailedRun)
        assert failed.summary()["network"] == network


@pytest.mark.usefixtures("in_this_process")
def test_rows_of_a_sweep_name_their_network_and_are_not_those_of_another_default(tmp_path: Path) -> None:
    results, grid = tmp_path / "rows.jsonl", {"world_size": [8, 16]}
    sizes: dict[str, Any] = {"num_layers": 2, "global_batch_size": 16, "fold": True}
    rows = mt.sweep("zero3", grid, results=results, **sizes).rows()
    assert [row["network"] for row in rows] == ["flat", "hierarchical"]
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert all(json.loads(line["key"])[1]["network"] == "auto" for line in lines)
    flat = mt.sweep("zero3", grid, results=results, network="flat", **sizes).rows()
    assert [row["network"] for row in flat] == ["flat", "flat"]
    assert flat[0]["step_time_s"] == rows[0]["step_time_s"]
    assert flat[1]["step_time_s"] > rows[1]["step_time_s"]


def test_proofs_and_the_command_line_have_the_same_default(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mt.prove("zero3", world_size=9, num_layers=2, global_batch_size=9).run.network == "hierarchical"
    command = ["minitrain", "compare", "ddp", "--world-size", "16", "--layers", "2", "--no-trace"]
    for more, shown in (([], "hierarchical"), (["--network", "flat"], "flat")):
        monkeypatch.setattr("sys.argv", [*command, *more])
        with pytest.raises(SystemExit):
            main()
        assert f"h100_80g_nvl8, {shown} network" in capsys.readouterr().out
