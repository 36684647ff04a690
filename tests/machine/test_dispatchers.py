"""How tokens travel to experts: once to each node and rank, at published rates."""

from collections import Counter
from dataclasses import replace
from itertools import combinations
from math import comb
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitrain as mt
from minitrain.errors import UsageError
from minitrain.machine import load_config
from minitrain.machine.dispatchers import DISPATCHERS, kernels_of
from minitrain.machine.network import Split
from minitrain.machine.platforms import find_platform
from minitrain.machine.predictor import KernelPredictor
from minitrain.machine.price import Pricing
from minitrain.machine.topology import GroupShape
from minitrain.workloads.architecture import PRECISIONS
from minitrain.workloads.expert_layers import kernels_around_experts, kernels_of_experts, num_touched, shared_copies
from minitrain.workloads.kernels import KernelList, Matmul, MemoryPass
from minitrain.workloads.shapes import Work
from minitrain.workloads.transformer_workload import TransformerWorkload
from minitrain.workloads.unit_kernels import backward_kernels, forward_kernels
from minitrain.workloads.workload import Style

DEEPSEEK = mt.models()["deepseek-v3"]
LAYER = next(unit for unit in DEEPSEEK.units() if unit.kind == "moe")
SIZES: dict[str, Any] = {"world_size": 16, "workload": "mixtral-8x7b", "global_batch_size": 64, "microbatch_size": 1}


@given(st.integers(0, 6), st.integers(1, 8))
def test_a_token_touches_as_many_parts_as_it_can(log_parts: int, chosen: int) -> None:
    parts = 2**log_parts
    touched = num_touched(parts, 64, chosen)
    assert max(1, min(parts, chosen) * 0.5) <= touched <= min(parts, chosen)
    assert num_touched(64, 64, chosen) == pytest.approx(chosen)
    assert num_touched(1, 64, chosen) == 1
    assert num_touched(2, 64, chosen) == pytest.approx(2 * (1 - comb(32, chosen) / comb(64, chosen)))


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
@pytest.mark.parametrize("groups", [(1, 1), (2, 1), (4, 2), (4, 3), (4, 4)])
def test_a_token_touches_parts_of_its_groups_alone(parts: int, groups: tuple[int, int]) -> None:
    """All choices of groups, and of three of eight experts in these, one by one."""
    (number, chosen), experts = groups, range(8)
    if chosen * 8 // number < 3:
        return
    choices = [
        len({expert * parts // 8 for expert in of_token})
        for of_groups in combinations(range(number), chosen)
        for of_token in combinations([each for each in experts if each * number // 8 in of_groups], 3)
    ]
    assert num_touched(parts, 8, 3, groups) == pytest.approx(sum(choices) / len(choices))


def test_groups_that_no_parts_have_are_left_out() -> None:
    assert num_touched(3, 24, 2, (8, 4)) == num_touched(3, 24, 2)


@given(st.integers(0, 6), st.integers(1, 8))
def test_experts_taken_in_turn_lie_as_close_as_they_can(log_parts: int, chosen: int) -> None:
    parts = 2**log_parts
    touched = num_touched(parts, 64, chosen, in_turn=True)
    assert -(-chosen * parts // 64) <= touched <= (chosen - 1) * parts / 64 + 1
    assert touched <= num_touched(parts, 64, chosen) + 1e-9
    # AutoModel's 384 experts on 32 ranks: of three tokens, each of 8, one has those of two ranks
    assert num_touched(32, 384, 8, in_turn=True) == pytest.approx(4 / 3)


# Published: 4096 tokens of 7168 elements in 16 bits, of eight experts each, random among eight a rank; GB/s of what is
# received, what stays included (docs/README_Hybrid-EP.md of github.com/deepseek-ai/DeepEP, time of kernels alone).
@pytest.mark.parametrize(
    ("hardware", "ranks", "nodes", "published"),
    [
        ("gb200_nvl72", 8, 1, 750.15),
        ("gb200_nvl72", 16, 1, 661.93),
        ("gb200_nvl72", 32, 1, 629.79),
        ("gb200_nvl72", 36, 1, 612.85),
        ("b200_192g_nvl8", 8, 1, 734.95),
        ("h100_80g_nvl8", 32, 4, 57.69),
        ("h100_80g_nvl8", 64, 8, 49.97),
    ],
)
def test_hybrid_eps_published_dispatch_is_met_within_a_tenth(
    hardware: str, ranks: int, nodes: int, published: float
) -> None:
    model = replace(DEEPSEEK, num_experts=8 * ranks, expert_groups=1, groups_per_token=1)
    inner, *_, outer = sorted(load_config(hardware).networks, key=lambda tier: tier.size)
    kernels = kernels_of("hybridep", hardware)
    assert kernels is not None
    shape = GroupShape(inner if nodes == 1 else outer, Split.of([ranks // nodes] * nodes))
    seconds = kernels.seconds(model, 4096 * 8 * 7168 * 2, shape, inner)
    touched = num_touched(ranks if nodes == 1 else nodes, 8 * ranks, 8)
    assert 4096 * 7168 * 2 * touched / seconds / 1e9 == pytest.approx(published, rel=0.1)


# Published: the same on 8 H100, means of dispatch and combine by so many multiprocessors, and DeepEP's on GB200, whose
# links were not waited for (docs/deepep_vs_hybridep_benchmark.md of github.com/NVIDIA-NeMo/Automodel; section 2.2.1 of
# docs/discussions/deepseek-v3-gb200-optimization of github.com/NVIDIA/Megatron-LM).
@pytest.mark.parametrize(
    ("library", "hardware", "hidden", "units", "dispatched", "combined"),
    [
        ("hybridep", "h100_80g_nvl8", 7168, 8, 360, 344),
        ("hybridep", "h100_80g_nvl8", 7168, 16, 362, 357),
        ("hybridep", "h100_80g_nvl8", 2048, 24, 325, 304),
        ("deepep", "h100_80g_nvl8", 7168, 16, 322, 284),
        ("deepep", "h100_80g_nvl8", 2048, 24, 302, 287),
        ("deepep", "gb200_nvl72", 7168, 24, 494, 420),
    ],
)
def test_libraries_take_as_long_as_published_for_few_units_and_short_tokens(
    library: str, hardware: str, hidden: int, units: int, dispatched: float, combined: float
) -> None:
    model = replace(DEEPSEEK, num_experts=64, hidden_size=hidden, expert_groups=1, groups_per_token=1)
    inner = min(load_config(hardware).networks, key=lambda tier: tier.size)
    kernels = kernels_of(library, hardware)
    assert kernels is not None
    within = kernels.within if hardware.startswith("h100") else ((72, 1.0),)
    kernels = replace(kernels, num_units=units, within=within)
    seconds = kernels.seconds(model, 4096 * 8 * hidden * 2, GroupShape(inner, Split.of([8])), inner)
    published = 4096 * hidden * 2 * num_touched(8, 64, 8) * (1 / dispatched + 1 / combined) / 2e9
    assert seconds == pytest.approx(published, rel=0.12)


@pytest.mark.parametrize(("dispatcher", "published"), [("hybridep", (72.1, 49.3)), ("deepep", (58.9, 59.1))])
def test_interfaces_bring_short_tokens_more_slowly(dispatcher: str, published: tuple[float, float]) -> None:
    """16 H100 in 2 nodes; what stays in a node counts, as in docs/deepep_vs_hybridep_benchmark.md of AutoModel."""
    hardware = load_config("h100_80g_nvl8")
    inner, outer = sorted(hardware.networks, key=lambda tier: tier.size)
    kernels, model = kernels_of(dispatcher, hardware.name), replace(DEEPSEEK, hidden_size=2048, groups_per_token=8)
    assert kernels is not None
    seconds = kernels.seconds(model, 4096 * 8 * 2048 * 2, GroupShape(outer, Split.of([8, 8])), inner)
    sent_bytes = 4096 * 2048 * 2 * num_touched(2, 256, 8)
    rates = [2 / sum(1 / each for each in published), sent_bytes / seconds * 1e-9]
    assert rates[1] == pytest.approx(rates[0], rel=0.15)


def test_tokens_sent_to_few_ranks_take_less_time_and_memory() -> None:
    times = [step_time(f"nemo-h100:dispatcher=deepep,in_turn={value}", ep=16) for value in (False, True)]
    assert times[1] < times[0]
    chunks = [
        kernel.traffic_bytes
        for in_turn in (False, True)
        for kernel in experts_kernels(Style(dispatcher="deepep", in_turn=in_turn)).kernels
        if getattr(kernel, "name", "") == "chunks"
    ]
    assert chunks[1] / chunks[0] == pytest.approx(1 / num_touched(32, 256, 8, (8, 4)))


def test_deep_ep_sends_tokens_once_to_each_rank_on_a_flat_network_too() -> None:
    given = SIZES | {"world_size": 8, "ep": 8, "hardware": "mi300x_192g_8", "workload": "qwen3-30b-a3b"}
    copies, once = (
        mt.simulate("megatron", **given, platform=f"components:dispatcher={name}") for name in ("alltoall", "deepep")
    )
    sent = [sum(event.duration for event in run.logs[0] if event.typ == "all_to_all") for run in (copies, once)]
    assert sent[1] < sent[0]


def test_a_platform_may_give_hybrid_ep_more_units_than_usual() -> None:
    units = [
        getattr(
            find_platform(f"nemo-h100:dispatcher={name},hybridep_units=32").dispatcher_kernels("b200"), "num_units", 0
        )
        for name in DISPATCHERS
    ]
    assert units == [0, 0, 24, 32]


def test_between_nodes_tokens_that_travel_once_are_quicker_than_copies() -> None:
    times = {name: step_time(f"nemo-h100:dispatcher={name}", ep=16) for name in DISPATCHERS}
    assert times["deepep"] < times["alltoall"] < times["allgather"]


def step_time(platform: str, hardware: str = "h100_80g_nvl8", **options: Any) -> float:
    sizes = {**SIZES, "workload": TransformerWorkload(replace(mt.models()["mixtral-8x7b"], num_experts=16))}
    return mt.simulate("megatron", platform=platform, hardware=hardware, fold=True, **sizes, **options).step_time


def test_padded_experts_are_launched_without_waiting() -> None:
    given = (f"nemo-h100:pads_experts={value},captures=False" for value in (False, True))
    waits, padded = (step_time(platform, "gb200_nvl72", ep=8) for platform in given)
    assert padded < waits


def test_a_graph_of_a_whole_step_has_experts_too() -> None:
    parts, whole = (step_time(f"nemo-h100:captures={value}", ep=8) for value in ("True", "whole"))
    assert whole < parts


def test_tokens_of_experts_are_padded_in_eight_bits_but_by_hybrid_ep() -> None:
    narrow = replace(DEEPSEEK, precision=replace(DEEPSEEK.precision, weight_datatype="float8", scaling="current"))
    padded = [
        [kernel.traffic_bytes for kernel in kernels.kernels if getattr(kernel, "name", "") == "padding"]
        for model, name in ((narrow, "alltoall"), (narrow, "deepep"), (narrow, "hybridep"), (DEEPSEEK, "alltoall"))
        for style in [Style(casts_apart=True, dispatcher=name)]
        for kernels in [kernels_of_experts(model, LAYER, "forward", 4096 * 8, 32, "none", style)]
    ]
    assert padded == [[4 * 2 * 4096 * 8 * 7168], [4 * 2 * 4096 * 8 * 7168], [], []]


def test_megatron_multiplies_a_router_in_sixteen_bits() -> None:
    narrow = replace(DEEPSEEK, precision=replace(DEEPSEEK.precision, weight_datatype="float8"))
    routers = [
        [kernel.datatype for kernel in kernels.kernels if isinstance(kernel, Matmul)]
        for style in (Style(casts_apart=True), Style())
        for kernels in [kernels_around_experts(narrow, LAYER, "route", Work(1, 4096), "none", style)]
    ]
    assert routers == [["float16"], ["float8"]]


def experts_kernels(style: Style) -> KernelList:
    return kernels_of_experts(DEEPSEEK, LAYER, "forward", 4096 * 8, 32, "none", style)


def test_libraries_that_send_once_sort_no_chunks_and_count_by_fewer_kernels() -> None:
    usual, once = (experts_kernels(Style(dispatcher=name)) for name in ("alltoall", "deepep"))
    (of_usual,), (of_once,) = (
        [k for k in each.kernels if getattr(k, "name", "") == "chunks"] for each in (usual, once)
    )
    assert of_once.traffic_bytes / of_usual.traffic_bytes == pytest.approx(2 * shared_copies(DEEPSEEK, 32) / 4)
    assert usual.num_launches - once.num_launches == 4
    routes = [
        kernels_around_experts(DEEPSEEK, LAYER, "route", Work(1, 4096), "none", Style(dispatcher=name))
        for name in ("alltoall", "deepep")
    ]
    assert routes[0].num_launches - routes[1].num_launches == 10


@pytest.mark.parametrize(("name", "launches"), [("deepseek-v3", 72 - 31), ("qwen3-30b-a3b", 17 - 3)])
def test_a_router_that_nothing_fuses_is_launched_by_more_kernels(name: str, launches: int) -> None:
    model = mt.models()[name]
    unit = next(unit for unit in model.units() if unit.kind == "moe")
    apart, fused = Style(fused_router=False), Style()
    for typ, more in {"route": launches, "combine": 0, "backward_route": 0}.items():
        of_both = [kernels_around_experts(model, unit, typ, Work(1, 4096), "none", style) for style in (apart, fused)]
        assert of_both[0].num_launches - of_both[1].num_launches == more
        assert of_both[0].kernels == of_both[1].kernels
    experts = [kernels_of_experts(model, unit, "forward", 4096, 8, "none", style) for style in (apart, fused)]
    assert experts[0].num_launches == experts[1].num_launches
    whole = [forward_kernels(model, unit, Work(1, 4096), style).num_launches for style in (apart, fused)]
    assert whole[0] - whole[1] == launches
    graph = kernels_around_experts(model, unit, "route", Work(1, 4096), "none", replace(apart, captures="router"))
    assert graph.num_launches == 1


def test_megatron_rotates_by_operations_of_their_own_where_a_kernel_does_not_scale() -> None:
    found = mt.models()["gpt-oss-20b"]
    unit = next(unit for unit in found.units() if unit.kind == "attention")
    scaled, plain = (
        [
            (
                kernels.num_launches,
                next(k.traffic_bytes for k in kernels.kernels if getattr(k, "name", "") == "rotary embedding"),
            )
            for list_of in (forward_kernels, backward_kernels)
            for kernels in [list_of(model, unit, Work(1, 4096), Style(casts_apart=True))]
            if isinstance(kernels, KernelList)
        ]
        for model in (found, replace(found, rope_factor=1))
    )
    assert [(a[0] - b[0], a[1] / b[1]) for a, b in zip(scaled, plain, strict=True)] == [(22, 3), (12, 3.5)]
    assert forward_kernels(found, unit, Work(1, 4096)) == forward_kernels(
        replace(found, rope_factor=1), unit, Work(1, 4096)
    )


def test_tensor_parallelism_hides_nothing_of_what_brings_tokens_to_experts() -> None:
    """Experts lie on the neighbouring ranks of a node, whose other collectives run in pieces."""
    workload = TransformerWorkload(mt.models()["mixtral-8x7b"])
    of_parts, of_all = (
        KernelPredictor(8, "h100_80g_nvl8", Pricing("kernels", platform=platform), workload=workload)
        for platform in ("nemo-h100", "nemo-h100:parts_exposed=1.0")
    )
    for op, share in {"all_to_all": 1.0, "all_gather": 0.42, "reduce_scatter": 0.42}.items():
        seconds = [each.collective(op, 1e8, range(8)).seconds for each in (of_parts, of_all)]
        assert seconds[0] == pytest.approx(share * seconds[1])


def test_graphs_have_experts_too_where_their_tokens_are_padded() -> None:
    plain, captured = (experts_kernels(Style(captures=True, captures_experts=value)) for value in (False, True))
    assert captured.num_launches == 1 < plain.num_launches


def test_graphs_of_whole_steps_have_what_lies_between_experts_multiplications_in_these() -> None:
    """Activation function, sums for probabilities, one cast; of gpt-oss clamps, the last bias but for its gradient."""
    for name in ("deepseek-v3", "gpt-oss-120b"):
        model = replace(mt.models()[name], precision=replace(PRECISIONS["fp8"], scaling="mx"))
        unit = next(unit for unit in model.units() if unit.kind == "moe")
        for typ in ("forward", "backward", "backward_input"):
            apart, fused = (
                kernels_of_experts(model, unit, typ, 4096 * 8, 32, "none", style).kernels
                for usual in [Style(casts_apart=True, captures=True, captures_experts=True, dispatcher="hybridep")]
                for style in (usual, replace(usual, captures="whole"))
            )
            gone = Counter(k.name for k in apart if isinstance(k, MemoryPass))
            gone -= Counter(k.name for k in fused if isinstance(k, MemoryPass))
            bias = {"expert bias": 1} if model.mlp_bias else {}
            is_removed = bias if typ == "forward" else {"gradient of probabilities": 1}
            assert gone == {"swiglu": 1, "scaling": 1, **is_removed}
            assert [k for k in apart if isinstance(k, Matmul)] == [k for k in fused if isinstance(k, Matmul)]


def test_the_last_bias_is_added_in_single_precision_where_probabilities_have_it() -> None:
    model = mt.models()["gpt-oss-120b"]
    unit = next(unit for unit in model.units() if unit.kind == "moe")
    for typ, tensors in (("forward", (6, 14)), ("backward", (8, 20))):
        found = [
            kernel.traffic_bytes
            for name in ("alltoall", "hybridep")
            for kernel in kernels_of_experts(model, unit, typ, 4096 * 4, 8, "none", Style(dispatcher=name)).kernels
            if getattr(kernel, "name", "") == "expert bias"
        ]
        assert found == pytest.approx([each * 2 * 4096 * 4 * model.hidden_size for each in tensors])


def test_graphs_of_routers_leave_attention_to_the_host() -> None:
    attention = next(unit for unit in DEEPSEEK.units() if unit.kind == "attention")
    for captures, of_attention, of_route in ((False, 10, 26), ("router", 10, 1), (True, 1, 1)):
        style = Style(captures=captures)
        assert forward_kernels(DEEPSEEK, attention, Work(1, 4096), style).num_launches == of_attention
        assert kernels_around_experts(DEEPSEEK, LAYER, "route", Work(1, 4096), "none", style).num_launches == of_route


def test_a_platform_is_changed_behind_a_colon() -> None:
    changed = find_platform("nemo-h100:dispatcher=hybridep,captures=True,clock=0.8")
    assert (changed.dispatcher, changed.captures, changed.clock, changed.eager) == ("hybridep", True, 0.8, 1.15)
    assert find_platform("megatron:launch_s=1e-5", "a100_80g").name == "megatron-a100"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("dispatch=deepep", "nemo-h100 has no 'dispatch'; it has eager"),
        ("dispatcher=flex", "dispatcher of platform nemo-h100 must be 'alltoall', .*, got 'flex'"),
        ("clock=fast", "clock of platform nemo-h100 must be a number > 0, got 'fast'"),
    ],
)
def test_a_change_that_no_platform_can_have_is_refused(changes: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_platform(f"nemo-h100:{changes}")
