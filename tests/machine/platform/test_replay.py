"""Runs timed again on shared links: alone the same floats, together the values of the closed forms."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import UsageError
from minitrain.lib import Model
from minitrain.machine.config import load_config
from minitrain.machine.platform import VirtualHardwarePlatform
from minitrain.machine.platform.links import ClusterLinks
from minitrain.run.result import Run
from minitrain.view.layout import LaneUse, means

HOST = ("offload", "fetch")
SIZE_BYTES = 33_554_432  # a weight's gradient of the specified layer
PRICE = 0.0007656540444444445
OPTIONS: dict[str, dict[str, Any]] = {"single": {"world_size": 1}}
TWO_STAGES_A_RANK = {"deepseek_like", "dualpipe_v", "interleaved_1f1b", "interleaved_zero_bubble", "looped_bfs", "zbv"}


def moments(run: Run) -> list[tuple[Any, ...]]:
    return [(e.time, e.duration, e.launched, e.waited_for) for log in run.logs for e in log]


def simulated(name: str, world_size: int, contention: bool | str) -> Run:
    num_layers = world_size * (2 if name in TWO_STAGES_A_RANK else 1)
    sizes = {"world_size": world_size, "num_layers": num_layers, "global_batch_size": 2 * world_size}
    return mt.simulate(name, **{**sizes, **OPTIONS.get(name, {})}, contention=contention)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", sorted(set(mt.strategies())))
def test_without_shared_links_all_moments_are_the_same_floats(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make = ClusterLinks.__init__

    def with_wide_links(self: ClusterLinks, *args: Any, **named: Any) -> None:
        make(self, *args, **named)
        for lane in self.routes.lanes:
            lane.bytes_per_s *= 1e6

    monkeypatch.setattr(ClusterLinks, "__init__", with_wide_links)
    assert moments(simulated(name, 16, "exact")) == moments(simulated(name, 16, contention=True))


@pytest.mark.parametrize("name", ["ddp", "zero1", "zero3", "gpipe"])
def test_strategies_whose_transfers_never_meet_keep_their_clocks(name: str) -> None:
    run = simulated(name, 8, contention=False)
    assert moments(mt.replay(run, processor_share=False).runs[0]) == moments(run)


async def pairs(model: Model, second_waits: bool = False) -> Model:
    """Reduce a gradient in the pairs (0, 2) and (1, 3), which sit on two nodes."""
    weight, _ = model.load_weights(0)
    model.weights[0] = weight
    model.activations[0] = model.get_input_activation([model.rank // 2])
    out = model.forward(0, model.activations[0], weight)
    model.grad_activations[0] = model.loss(out)
    model.grad_weights[0], _ = model.backward(0, model.activations[0], model.grad_activations[0], weight)
    if second_waits and model.rank % 2:
        model.forward(0, model.activations[0], weight)
    pair = model.group([0, 2] if model.rank % 2 == 0 else [1, 3])
    model.grad_weights[0] = await model.all_reduce(model.grad_weights[0], 0, group=pair)
    return model


def two_nodes() -> dict[str, Any]:
    """Return the config of H100 nodes, with nodes that need not be full."""
    data: dict[str, Any] = json.loads(Path("hw_configs/specified_h100_80g_nvl8.json").read_text())
    data["networks"][0]["must_be_filled"] = False
    return data


def on_two_nodes(strategy: Any, num_layers: int, global_batch_size: int, **options: Any) -> Run:
    options |= {"network": "hierarchical", "placement": [0, 0, 1, 1], "hardware": two_nodes()}
    return mt.simulate(strategy, world_size=4, num_layers=num_layers, global_batch_size=global_batch_size, **options)


def reduced(nics: int) -> list[tuple[float, float]]:
    run = on_two_nodes(pairs, 1, 2, check=False)
    links = ClusterLinks(load_config(two_nodes()), 4, placement=[0, 0, 1, 1], nics=nics)
    found = mt.replay(run, links).runs[0]
    starts = [log[-1].time for log in found.logs]
    return [(log[-1].time - min(starts), log[-1].end - min(starts)) for log in found.logs]


def test_two_reductions_share_one_interface_and_not_two() -> None:
    assert reduced(2)[0][1] == pytest.approx(PRICE, rel=1e-12)
    for _, end in reduced(1):
        assert end == pytest.approx(0.001511308088888889, rel=1e-12)


@pytest.mark.parametrize("value", [1, "yes", "Exact", None, 2.0])
def test_contention_takes_no_other_true_value(value: Any) -> None:
    with pytest.raises(UsageError, match='"exact" lets transfers share links'):
        mt.simulate("ddp", world_size=2, num_layers=2, global_batch_size=2, contention=value)


def test_two_jobs_on_one_interface_lose_time_to_each_other() -> None:
    runs = [on_two_nodes("zero3", 4, 4) for _ in range(2)]
    links = ClusterLinks(load_config(two_nodes()), 8, placement=[0, 0, 0, 0, 1, 1, 1, 1], nics=1)
    found = mt.replay(runs, links, placement=[[0, 1, 4, 5], [2, 3, 6, 7]])
    for alone, together in zip(found.alone, found.together, strict=True):
        assert together > 1.2 * alone
    assert "zero3: all_gather of layer" in str(next(iter(found.runs[0].links.delays.values())))
    assert max(found.utilization.values()) <= 1 + 1e-9
    assert "together" in str(found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"placement": [[0, 0]]}, "each processor once"),
        ({"placement": [[0]]}, "must list the processors of each run, 2"),
        ({"nics": 0}, "nics"),
        ({"oversubscription": 0.0}, "oversubscription must be a positive number, got 0"),
        ({"oversubscription": math.inf}, "oversubscription must be a positive number, got inf"),
    ],
)
def test_what_cannot_be_replayed_is_refused(change: dict[str, Any], message: str) -> None:
    run = mt.simulate("ddp", world_size=2, num_layers=2, global_batch_size=2)
    with pytest.raises(UsageError, match=message):
        mt.replay(run, **change)


def test_a_run_without_events_cannot_be_replayed() -> None:
    with pytest.raises(UsageError, match="replay needs every event of every rank"):
        mt.replay(mt.simulate("ddp", world_size=8, num_layers=2, global_batch_size=8, log="summary"))


def test_the_page_shows_what_links_carried_and_what_was_delayed(tmp_path: Path) -> None:
    run = mt.simulate("zbv", world_size=8, num_layers=16, global_batch_size=16, contention="exact")
    page = run.write_html(tmp_path / "run.html").read_text()
    assert "Delayed by sharing: " in page
    assert "gpu3-node0.switch: gpu3 to node0.switch" in page
    reason = str(next(iter(run.links.delays.values())))
    assert reason.startswith("shared gpu")
    assert reason in page
    alone = mt.simulate("zbv", world_size=8, num_layers=16, global_batch_size=16)
    assert "Delayed by sharing" not in alone.write_html(tmp_path / "alone.html").read_text()


def test_strips_are_means_of_what_was_carried() -> None:
    lane = LaneUse("wire", 10.0, [(0.0, 10.0), (1.0, 0.0), (2.0, 5.0)])
    assert means(lane, 4.0, 4).tolist() == [1.0, 0.0, 0.5, 0.5]
    assert means(lane, 4.0, 2).tolist() == [0.5, 0.5]


def test_a_copy_to_the_host_and_a_collective_share_pcie() -> None:
    """Offloading activations while weights come over the interface: both pass the processor's PCIe port."""
    data = two_nodes()
    data["mem2"]["GBps"] = 50  # PCIe Gen5, about what one interface of 400 Gb/s carries
    parameters: dict[str, Any] = {"workload": "gpt2", "world_size": 16, "global_batch_size": 64, "hardware": data}
    run = mt.simulate("fsdp", **parameters, offload="activations", recompute="full")
    found = mt.replay(run, ClusterLinks(load_config(data), 16)).runs[0]
    reasons = {str(reason) for (rank, place), reason in found.links.delays.items() if run.logs[rank][place].typ in HOST}
    assert any("pcie" in reason and "all_gather" in reason for reason in reasons), reasons
    assert found.step_time > run.step_time


def test_a_platform_is_hardware_whose_links_a_run_shares() -> None:
    device = {"peak_tflops": {"fp16": 312}, "memory_capacity_bytes": 80e9, "memory_gbps": 2000, "processing_units": 108}
    names = [f"gpu{place}" for place in range(4)]
    line = {"topology": "star", "name": "switch", "endpoints": names, "bandwidth_bps": 2.4e12, "latency_s": 1e-5}
    profile = {"compute_devices": [{"device_id": name, **device} for name in names], "network_links": [line]}
    platform = VirtualHardwarePlatform().initialize(profile)
    run = mt.simulate("ddp", world_size=4, num_layers=4, global_batch_size=8, hardware=platform)
    assert run.hardware == "platform"
    assert run.links.utilization["gpu0-switch: gpu0 to switch"] > 0
    with pytest.raises(UsageError, match="the platform has 4 devices"):
        mt.simulate("ddp", world_size=8, num_layers=4, global_batch_size=8, hardware=platform)
    with pytest.raises(UsageError, match="contention"):
        mt.simulate("ddp", world_size=4, num_layers=4, global_batch_size=8, hardware=platform, fold=True)
