"""What operations cost: the issue's exact figures, the specification's formulas, and durations by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitrain as mt
from minitrain.errors import HardwareConfigError, TensorTypeError, UsageError
from minitrain.lib import Activation, ActivationGrad, Model, OptState, RuntimePredictor, Weight, WeightGrad
from minitrain.machine import load_config
from minitrain.machine.predictor import KernelPredictor
from minitrain.machine.price import Pricing
from minitrain.workloads.transformer_workload import find_workload

H, BLOCK = 4096, 1024
WEIGHT, STATE = Weight(0, 2, 0), OptState(0, 2, 0)
GRAD, ACT = WeightGrad(0, 2, frozenset([0]), 8), Activation(0, 2, frozenset(range(6)), 8)


def test_the_h100_meets_the_exact_figures() -> None:
    predictor = RuntimePredictor(8)
    assert predictor.compute_flops_time(2e11) == 0.0002105263157894737
    assert predictor.compute_mem_time(5e7) == 2.170138888888889e-05
    assert predictor.get_collective_time("all_reduce", ACT) == 0.00020358326153846153
    assert predictor.get_collective_time("all_gather", ACT) == 0.00018207401025641026
    assert RuntimePredictor(16).get_send_recv_time(ACT) == 0.0011384810666666668
    assert predictor.get_comm_bytes(ACT) == 50331648


def test_the_file_that_the_specification_names_is_not_the_h100_of_runs() -> None:
    assert RuntimePredictor(8, "h100_80g_nvl8.json").system is load_config("specified_h100_80g_nvl8")
    assert RuntimePredictor(8, "h100_80g_nvl8").system is load_config("h100_80g_nvl8")
    run = mt.simulate("ddp", world_size=2, num_layers=1, global_batch_size=2, hardware="h100_80g_nvl8.json")
    assert run.hardware == "h100_80g_nvl8"


@pytest.mark.parametrize(
    ("tensor", "size_bytes"),
    [
        (WEIGHT, 2 * H * H),
        (WEIGHT.shard(0, 8), 2 * H * H),
        (GRAD.shard(1, 2), 2 * H * H),
        (STATE, 2 * H * H),
        (STATE.shard(0, 3), 2 * (H * H // 3)),
        (ACT, 6 * 2 * H * BLOCK),
        (ActivationGrad(0, 2, frozenset(), 8), 0),
    ],
)
def test_messages_have_the_specified_size(tensor: Any, size_bytes: int) -> None:
    assert RuntimePredictor(8).get_comm_bytes(tensor) == size_bytes


@pytest.mark.parametrize("value", [3, None, "text", [WEIGHT]])
def test_anything_but_a_tensor_has_no_size_on_the_wire(value: Any) -> None:
    predictor = RuntimePredictor(8)
    for ask in (
        lambda: predictor.get_comm_bytes(value),
        lambda: predictor.get_send_recv_time(value),
        lambda: predictor.get_collective_time("all_reduce", value),
    ):
        with pytest.raises(TensorTypeError, match=r"only a Weight, .* can be communicated, got"):
            ask()


@given(st.integers(1, 10**16), st.integers(1, 10**12))
def test_processing_takes_as_long_as_the_slower_of_compute_and_memory(work_flop: int, size_bytes: int) -> None:
    for name in ("h100_80g_nvl8", "h200_141g_nvl8"):  # one says no_overlap, the other roofline
        predictor = RuntimePredictor(8, name)
        slower = max(predictor.compute_flops_time(work_flop), predictor.compute_mem_time(size_bytes))
        assert predictor.get_processing_time(work_flop, size_bytes) == slower


@given(st.integers(1, 64))
def test_a_pass_multiplies_the_batch_by_one_matrix(batch: int) -> None:
    predictor = RuntimePredictor(8)
    expected = predictor.get_processing_time(2 * H * H * batch * BLOCK, 2 * (H * H + 2 * batch * BLOCK * H))
    assert predictor.get_forward_backward_time(batch) == expected


@given(st.integers(1, 64), st.integers(1, 64))
def test_update_and_load_work_on_the_shards_that_are_held(held: int, num_shards: int) -> None:
    held = min(held, num_shards)
    predictor = RuntimePredictor(8)
    h2 = H * held // num_shards
    update = predictor.get_processing_time(H * h2, 2 * 3 * H * h2)
    assert predictor.get_update_step_time(held, num_shards) == update
    size_bytes = 2 * (H * H * held // num_shards)
    assert predictor.get_weight_load_time(held, num_shards) == size_bytes / predictor.mem_pcie.throughput(size_bytes)


def test_nothing_takes_no_time() -> None:
    predictor = RuntimePredictor(8)
    assert predictor.compute_flops_time(0) == predictor.compute_mem_time(0) == 0
    assert predictor.get_update_step_time(1, 8192) == predictor.get_weight_load_time(1, 10**9) == 0
    assert RuntimePredictor(1).get_collective_time("all_reduce", GRAD) == 0


@pytest.mark.parametrize("world_size", [1, 8])
def test_what_is_no_collective_has_no_time(world_size: int) -> None:
    with pytest.raises(UsageError, match="a network prices the operations it knows, not 'allreduce'; use one of p2p, "):
        RuntimePredictor(world_size).get_collective_time("allreduce", GRAD)


def test_the_network_is_the_smallest_tier_that_spans_the_run() -> None:
    assert [RuntimePredictor(n).network.size for n in (1, 2, 8, 9, 65536)] == [8, 8, 8, 65536, 65536]
    with pytest.raises(UsageError, match="whose largest spans 65536 ranks; use at most 65536"):
        RuntimePredictor(65537)


def test_a_config_can_be_named_with_or_without_json_or_given_loaded() -> None:
    config = load_config("a100_80g")
    predictors = [RuntimePredictor(8, name) for name in ("a100_80g", "a100_80g.json", config)]
    assert len({predictor.get_forward_backward_time(8) for predictor in predictors}) == 1
    with pytest.raises(HardwareConfigError, match="nowhere"):
        RuntimePredictor(8, "nowhere.json")
    with pytest.raises(UsageError, match="world_size must be an integer of at least 1, got 0"):
        RuntimePredictor(0)


def test_a_slowed_predictor_slows_compute_and_nothing_else() -> None:
    for predictor in (
        RuntimePredictor(8),
        mt.FixedPredictor(forward=2, update=3, load_weights=5, send=7, all_gather=9),
    ):
        slow = predictor.slowed(2).slowed(1.5)
        assert slow.compute("forward", 4).seconds == 3 * predictor.compute("forward", 4).seconds
        assert slow.update(1, 2).seconds == 3 * predictor.update(1, 2).seconds
        assert slow.load(1, 2) == predictor.load(1, 2)
        assert slow.p2p("send", 100, 0, 1) == predictor.p2p("send", 100, 0, 1)
        assert slow.collective("all_gather", 100, range(8)) == predictor.collective("all_gather", 100, range(8))
        assert predictor.compute("loss", 4).seconds == slow.compute("loss", 4).seconds == 0


def test_fixed_durations_are_per_call_and_recv_is_as_send() -> None:
    fixed = mt.FixedPredictor(forward=1, backward=2, backward_input=0.5, send=3, all_reduce=4)
    assert [fixed.compute(typ, 9).seconds for typ in ("forward", "backward", "backward_input")] == [1, 2, 0.5]
    assert [fixed.p2p(typ, 10, 0, 1).seconds for typ in ("send", "recv")] == [3, 3]
    assert [fixed.collective("all_reduce", 10, range(n)).seconds for n in (1, 2)] == [0, 4]
    assert (fixed.update(1, 1).seconds, fixed.load(1, 1).seconds) == (0, 0)
    assert mt.FixedPredictor(send=3, recv=1).p2p("recv", 10, 0, 1).seconds == 1
    assert (fixed.peak_flop_per_s, fixed.capacity_bytes) == (None, None)


@pytest.mark.parametrize(
    ("durations", "message"),
    [
        ({"foward": 1}, "there is no event type 'foward'; use load_weights, forward"),
        ({"forward": -1}, "the duration of forward must be a number of at least 0, got -1"),
        ({"forward": float("nan")}, "must be a number of at least 0, got nan"),
        ({"forward": float("inf")}, "must be a number of at least 0, got inf"),
        ({"forward": "1"}, "must be a number of at least 0, got '1'"),
        ({"forward": True}, "must be a number of at least 0, got True"),
    ],
)
def test_a_duration_by_hand_must_be_one(durations: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mt.FixedPredictor(**durations)


def test_a_model_takes_a_predictor_of_ones_own() -> None:
    model = Model(runtime_predictor=mt.FixedPredictor(load_weights=2.5))
    model.load_weights(0)
    assert model.time == 2.5


def test_a_processor_loads_weights_from_its_own_memory() -> None:
    system, size_bytes = load_config("xeon_8480plus"), 2 * H * H
    found = RuntimePredictor(1, system).load(1, 1, 0, 1).seconds
    assert found == size_bytes / system.mem1.throughput(size_bytes)
    step: dict[str, Any] = {"world_size": 1, "num_layers": 1}
    on_several = mt.price("single", [system, "h100_80g_nvl8"], **step)
    assert on_several[0].step_time == mt.simulate("single", hardware=system, **step).step_time


@pytest.mark.parametrize(("hardware", "num_cores"), [("tpu_v7x", 2), ("tpu_v5p", 1)])
def test_each_core_that_frameworks_count_as_a_device_gathers_weights(hardware: str, num_cores: int) -> None:
    predictor = KernelPredictor(4, hardware, Pricing("kernels", "xla"), workload=find_workload("llama3-8b"))
    assert predictor.style.num_gathered == num_cores


def test_asynchronous_parts_cut_the_sums_of_forward_alone() -> None:
    def seconds(overlap: str) -> float:
        pricing = Pricing("kernels", platform=f"compiled-fsdp:parts_overlap={overlap}")
        predictor = KernelPredictor(8, "h100_80g_nvl8", pricing, workload=find_workload("llama3-8b"))
        return predictor.collective("reduce_scatter", 2.0 * 16 * 8192 * 4096, range(8)).seconds

    assert seconds("none") > seconds("pieces") > seconds("none") / 2


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter"])
def test_gathers_that_xla_takes_apart_are_beside_multiplications(op: str) -> None:
    def seconds(overlap: str) -> float:
        pricing = Pricing("kernels", platform=f"xla:parts_overlap={overlap}")
        predictor = KernelPredictor(8, "tpu_v5p", pricing, workload=find_workload("gpt3-175b"))
        return predictor.collective(op, 2.0 * 32 * 2048 * 12288, range(8)).seconds

    assert (seconds("gathers") < seconds("none") / 2) == (op == "all_gather")
    assert seconds("windows") < seconds("none") / 2


def test_small_layers_of_old_megatron_wait_for_launches_that_python_makes_long() -> None:
    def seconds(platform: str) -> float:
        small = find_workload("gpt2", seq_len=128)
        predictor = KernelPredictor(1, "a100_80g", Pricing("kernels", platform), workload=small)
        return predictor.compute("forward", 1, 1).seconds

    quick = seconds("megatron-2021:launch_factor=1")
    assert seconds("megatron-2021") == pytest.approx(2.5 * quick)
    assert seconds("megatron-2021:launch_s=0.0") < quick


@pytest.mark.parametrize(("typ", "usual", "longer"), [("forward", 15, 3), ("backward", 29, 7)])
@pytest.mark.parametrize(("hardware", "pytorchs"), [("h100_80g_nvl8", 13.48e-6), ("gh200_96g_nvl4", 33.17e-6)])
def test_small_layers_wait_for_modules_of_transformer_engine(
    typ: str, usual: int, longer: int, hardware: str, pytorchs: float
) -> None:
    """On x86 each launch takes 33.4 us; on Grace attention's two matrices 90.53, all else what PyTorch's takes."""

    def seconds(platform: str) -> float:
        small = find_workload("gpt2", seq_len=128)
        predictor = KernelPredictor(1, hardware, Pricing("kernels", platform), workload=small)
        return predictor.compute(typ, 1, 1).seconds

    quick = seconds("nemo-h100:memory=fused")
    assert quick == pytest.approx(usual * pytorchs)
    slow = usual * 33.4e-6 if hardware.startswith("h100") else (usual + longer) * pytorchs
    assert seconds("nemo-h100") == pytest.approx(slow)
    assert seconds("nemo-h100:captures=True") == seconds("nemo-h100:memory=fused,captures=True")
