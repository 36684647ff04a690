"""Machines whose kernels are priced go by one execution, and by one list of kernels a pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitrain as mt
from minitrain.machine.columns import columns_of
from minitrain.machine.config import SystemConfig, load_config, varied_configs
from minitrain.machine.measured_layers import LayerTime
from minitrain.machine.predictor import KernelPredictor, LayerPredictor
from minitrain.machine.price import Pricing
from minitrain.whatif.joint_figures import JointFigures
from minitrain.workloads.transformer_workload import find_workload
from minitrain.workloads.workload import Cost
from tests.small_transformers import LLAMA_LIKE
from tests.whatif.test_price import require_equal_to_separate

_SIZES: dict[str, Any] = {"world_size": 4, "global_batch_size": 8, "workload": LLAMA_LIKE, "fidelity": "kernels"}
_FIGURES: dict[str, Any] = {
    "networks[0].bandwidth": st.floats(10, 900),
    "networks[0].curves.all_reduce.efficiency": st.floats(0.2, 1.0),
    "networks[1].latency": st.sampled_from([0.0, 1e-6, 1e-3]),
    "mem1.GiB": st.sampled_from([0.01, 80.0]),
    "mem2.GBps": st.floats(1, 100),
    "kernels.GBps": st.floats(100, 8000),
    "kernels.units": st.integers(1, 200),
    "kernels.launch": st.sampled_from([0.0, 2e-6, 1e-4]),
    "kernels.matmul.float16.tflops": st.floats(1, 2000),
    "kernels.matmul.float16.prologue": st.integers(0, 500),
    "kernels.matmul.float16.burst": st.sampled_from([0, 900, 3000]),
    "kernels.attention.flash2.forward.efficiency": st.floats(0.1, 1.0),
    "kernels.attention.flash2.backward.tail": st.sampled_from([0.0, 0.2, 1.0]),
    "vector.float32.tflops": st.floats(1, 100),
}


def priced_parts(priced: mt.Priced) -> list[Any]:
    """Return what has priced each part of the machines of each execution."""
    executed = [group.figures for group in priced._groups if isinstance(group.figures, JointFigures)]
    return [fleet.predictor for figures in executed for fleet, _ in figures._parts]


@st.composite
def _machines(draw: st.DrawFn) -> list[SystemConfig]:
    """Return machines of one kind that differ in some figures."""
    systems = [load_config(draw(st.sampled_from(["h100_80g_nvl8", "a100_80g"])))] * draw(st.integers(2, 4))
    for path in draw(st.lists(st.sampled_from(sorted(_FIGURES)), min_size=1, max_size=6, unique=True)):
        systems = varied_configs(systems, path, [draw(_FIGURES[path]) for _ in systems])
    return systems


@settings(max_examples=12)
@given(
    strategy=st.sampled_from(["ddp", "zero3_prefetch", "fsdp", "megatron:tp=2", "hsdp:shard_size=2", "moe"]),
    machines=_machines(),
    world_size=st.sampled_from([4, 8]),
    batches=st.integers(1, 2),
    fold=st.booleans(),
    more=st.sampled_from([{}, {"platform": "megatron-2021"}, {"without": ("waves", "tails")}, {"network": "flat"}]),
    straggler=st.sampled_from([None, {1: 1.5}]),
)
def test_any_kernels_and_sizes_are_priced_as_by_separate_simulations(
    strategy: str,
    machines: list[SystemConfig],
    world_size: int,
    batches: int,
    fold: bool,
    more: dict[str, Any],
    straggler: Any,
) -> None:
    sizes = {**_SIZES, "world_size": world_size, "global_batch_size": world_size * batches}
    slowed = {"slowdown": [straggler, *[None] * (len(machines) - 1)]}
    priced = mt.price(strategy, machines, vary={} if fold else slowed, fold=fold, **{**sizes, **more})
    require_equal_to_separate(priced)
    assert {type(predictor) for predictor in priced_parts(priced)} == {KernelPredictor}


@settings(max_examples=8)
@given(
    strategy=st.sampled_from(["zero3", "fsdp", "megatron:tp=2", "1f1b"]),
    machines=_machines(),
    batches=st.integers(1, 2),
    fold=st.booleans(),
    fidelity=st.sampled_from(["roofline", "kernels"]),
    includes_transfers=st.booleans(),
    straggler=st.sampled_from([None, {1: 1.5}]),
)
def test_measured_layers_are_priced_as_by_separate_simulations(
    strategy: str,
    machines: list[SystemConfig],
    batches: int,
    fold: bool,
    fidelity: str,
    includes_transfers: bool,
    straggler: Any,
) -> None:
    times = [LayerTime(size, tp, 0, 3, 1e-3 * size / tp, 2e-3 * size, 1e-4) for size in (1, 2, 4, 8) for tp in (1, 2)]
    sizes = {**_SIZES, "global_batch_size": 4 * batches, "fidelity": fidelity}
    prices = mt.MeasuredLayers(tuple(times), includes_transfers=includes_transfers)
    slowed = {"slowdown": [straggler, *[None] * (len(machines) - 1)]}
    priced = mt.price(strategy, machines, vary={} if fold else slowed, fold=fold, prices=prices, **sizes)
    require_equal_to_separate(priced)
    assert {type(predictor) for predictor in priced_parts(priced)} == {LayerPredictor}


def test_machines_of_several_kinds_are_a_fleet_each() -> None:
    hardware = ["h100_80g_nvl8", "a100_80g", "a100_40g", "h100_80g_nvl8", "a100_80g"]
    priced = mt.price(
        "fsdp", hardware, vary={"network": ["auto", "auto", "auto", "flat", "auto"]}, contention=False, **_SIZES
    )
    require_equal_to_separate(priced)
    fleets = [fleet for group in priced._groups for fleet, _ in group.figures._parts]
    assert max(map(len, fleets)) > 1


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["platform", "without", "fidelity"])
def test_how_kernels_are_priced_may_vary_too(name: str) -> None:
    values: dict[str, Any] = {
        "platform": [None, "megatron-2021", None],
        "without": [(), ("launches",), ()],
        "fidelity": ["kernels", "roofline", "kernels"],
    }
    vary = {name: values[name], "kernels.GBps": [2000.0, 2000.0, 1000.0]}
    sizes = {key: value for key, value in _SIZES.items() if key != name}
    require_equal_to_separate(mt.price("megatron:tp=2", "h100_80g_nvl8", vary=vary, **sizes))


def test_a_fleet_answers_what_each_of_its_machines_does() -> None:
    base = load_config("h100_80g_nvl8")
    base = replace(base, mem2=replace(base.mem2, update_s_per_billion=1.0))
    systems = varied_configs([base] * 2, "mem2.GBps", [10.0, 50.0])
    systems = varied_configs(systems, "mem2.update_s_per_billion", [0.2, 1.5])
    for path, values in (("kernels.GBps", [2e3, 1e3]), ("networks[0].curves.all_reduce.half_MB", [1.0, 2.0])):
        systems = varied_configs(systems, path, values)
    each = [KernelPredictor(8, one, Pricing("kernels"), workload=find_workload(LLAMA_LIKE)) for one in systems]
    fleet = KernelPredictor(8, columns_of([one.system for one in each]), Pricing("kernels"), workload=each[0].workload)
    asked: list[Callable[[Any], Any]] = [
        lambda one: one.compute("forward", 2, 1).seconds,
        lambda one: one.host_transfer("offload", 2**20).seconds,
        lambda one: one.host_transfer("update_on_host", 2**20).seconds,
        lambda one: one.collective("all_reduce", 2**20, range(8)).seconds,
        lambda one: one.device.seconds(Cost(1e12, 1e9), "float16"),
        lambda one: one.peak_flop_per_s,
        lambda one: one.host_capacity_bytes,
    ]
    for ask in asked:
        for factor in (1.0, 1.5):
            answers = [ask(one.slowed(factor)) for one in each]
            assert np.broadcast_to(ask(fleet.slowed(factor)), 2).tolist() == answers
    assert fleet.num_nodes == each[0].num_nodes == 1
