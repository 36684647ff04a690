"""What prices are made of: sums of kernels, and bounds that a roofline by hand says too."""

from __future__ import annotations

from typing import Any

import pytest

import minitrain as mt
from minitrain.machine import load_config
from minitrain.machine.predictor import make_predictor
from minitrain.machine.price import Account, Price, Pricing, accounts_of
from minitrain.workloads.transformer_workload import find_workload

_CONFIG = load_config("h100_80g_nvl8")
_KERNELS = Pricing("kernels")


def _account(predictor: Any, price: Price) -> Account:
    found: Account = accounts_of(predictor)[id(price)]()
    return found


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_kernels_of_a_pass_add_up_to_its_price_and_work(factor: float) -> None:
    workload = find_workload("llama3-8b", seq_len=4096)
    predictor: Any = make_predictor("h100_80g_nvl8", 8, workload=workload, pricing=_KERNELS).slowed(factor)
    price = predictor.compute("backward", 1, 1)  # an attention
    found = _account(predictor, price)
    assert sum(part.seconds for part in found.parts) == pytest.approx(price.seconds)
    assert found.whole.work_flop == sum(part.work_flop for part in found.parts)
    assert found.whole.bound == "compute"
    bounds = {part.name.split()[0]: part.bound for part in found.parts}
    assert (bounds["matmul"], bounds["flash2"]) == ("compute", "compute")
    assert {bounds[name] for name in bounds.keys() - {"matmul", "flash2"}} == {"memory"}


def test_what_is_too_small_for_its_launches_is_bound_by_them() -> None:
    workload = find_workload("gpt2", seq_len=16)
    predictor: Any = make_predictor("h100_80g_nvl8", 8, workload=workload, pricing=_KERNELS)
    assert _account(predictor, predictor.compute("forward", 1, 1)).whole.bound == "launches"


def test_a_cost_is_bound_by_the_slower_side_of_the_roofline() -> None:
    predictor: Any = make_predictor("h100_80g_nvl8", 8)
    for price, bound in ((predictor.compute("forward", 4096), "compute"), (predictor.update(1, 1), "memory")):
        whole = _account(predictor, price).whole
        arithmetic = whole.work_flop / _CONFIG.processor.throughput(predictor.workload.datatype, whole.work_flop)
        traffic = whole.traffic_bytes / _CONFIG.mem_hbm.throughput(whole.traffic_bytes)
        assert whole.seconds == pytest.approx(max(arithmetic, traffic))
        assert whole.endless == pytest.approx({"compute": traffic, "memory": arithmetic})
        assert whole.bound == bound


@pytest.mark.parametrize(("size_bytes", "bound"), [(64, "latency"), (2**30, "bandwidth")])
def test_a_ring_is_bound_by_latency_or_by_bandwidth(size_bytes: float, bound: str) -> None:
    predictor: Any = make_predictor("h100_80g_nvl8", 8, network="flat")
    price = predictor.collective("all_gather", size_bytes, range(8))
    whole = _account(predictor, price).whole
    latency_s = min(_CONFIG.networks, key=lambda tier: tier.size).latency
    assert whole.endless == pytest.approx({"bandwidth": latency_s, "latency": price.seconds - latency_s})
    assert whole.bound == bound


@pytest.mark.parametrize(("gathers_narrow", "narrower"), [(False, 1), (True, 2)])
def test_a_rate_on_the_wire_is_of_all_that_goes_over_it_whatever_computing_hides(
    gathers_narrow: bool, narrower: int
) -> None:
    precision = "fp8" if gathers_narrow else "bf16"
    workload: Any = find_workload("llama3-8b", seq_len=8192, precision=precision)
    assert workload.model.precision.gathers_narrow == gathers_narrow
    predictor: Any = make_predictor("h100_80g_nvl8", 8, workload=workload, pricing=Pricing("kernels", "nemo-h100"))
    price = predictor.collective("all_gather", 2**30, range(4))
    found = _account(predictor, price)
    assert found.wire_bytes == 2**30 * 3 / 4 / narrower
    assert price.seconds < found.wire_s / 2
    wires = min(_CONFIG.networks, key=lambda tier: tier.size).bandwidth * 1e9
    assert 0.7 * wires < found.wire_bytes / found.wire_s < wires
    message = _account(predictor, predictor.p2p("send", 2**20, 0, 1))
    assert message.wire_bytes == 2**20


def test_prices_of_unlike_devices_and_of_their_network_have_accounts() -> None:
    run = mt.simulate(
        "ddp", world_size=16, num_layers=2, global_batch_size=16, hardware=mt.Cluster.load("two_generations")
    )
    explained = [accounts_of(model._runtime_predictor) for model in run.models]
    line = run.timeline
    rules = {
        line.typs[line.typ[event]]: explained[line.rank[event]].get(id(line.prices[line.price[event]]))
        for event in range(line.num_events)
        if line.duration[event] > 0
    }
    assert {name for name, account in rules.items() if account is None} <= {"all_reduce"}  # between the groups
    fixed = mt.simulate("ddp", world_size=2, num_layers=2, hardware=mt.FixedPredictor(forward=1))
    assert (fixed.accounts_of_prices(), fixed.why_unexplained) == ({}, "given by hand")
