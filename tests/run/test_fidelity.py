"""Runs whose operations are priced by their kernels: `simulate(..., fidelity="kernels")`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import HardwareConfigError, UsageError
from minitrain.machine import load_config
from minitrain.machine.given_durations import FixedPredictor
from minitrain.machine.kernel_device import KernelDevice
from minitrain.machine.measured_topology import MeasuredTopology
from minitrain.machine.price import Pricing
from minitrain.view.run_folder import conditions
from minitrain.workloads.architecture import PRECISIONS
from minitrain.workloads.matmul import MATMUL_LAYER
from minitrain.workloads.shapes import Degrees, Work
from minitrain.workloads.transformer import find_model
from minitrain.workloads.unit_kernels import (
    DEFAULT_STYLE,
    backward_kernels,
    forward_kernels,
    loss_kernels,
    repeated_kernels,
)
from minitrain.workloads.workload import USUAL

SMALL = mt.Transformer(
    num_layers=4, hidden_size=1024, num_heads=16, vocab_size=51200, seq_len=512, attention="unfused", dropout=0.1
)
GPT_22B: dict[str, Any] = {
    "world_size": 8,
    "workload": "megatron-22b",
    "global_batch_size": 4,
    "microbatch_size": 4,
    "tp": 8,
    "hardware": "a100_80g",
    "platform": "components",
}


def simulated(strategy: str = "ddp", **changes: Any) -> mt.Run:
    """Return a small run priced by kernels, without what a framework adds."""
    sizes = {"world_size": 4, "workload": SMALL, "global_batch_size": 8, "hardware": "a100_80g"}
    return mt.simulate(strategy, **{**sizes, "platform": "components", **changes})


def durations(run: mt.Run, typ: str) -> dict[int, float]:
    """Return the last duration of an operation by layer, on rank 0."""
    return {event.layer: event.duration for event in run.logs[0] if event.typ == typ and event.layer is not None}


def test_an_operation_takes_as_long_as_its_kernels() -> None:
    run, device = simulated(), KernelDevice(load_config("a100_80g"))
    work, units = Work(2, 512), SMALL.units()
    ahead, back, loss = (durations(run, typ) for typ in ("forward", "backward", "loss"))
    for layer, unit in enumerate(units):
        assert ahead[layer] == device.pass_seconds(forward_kernels(SMALL, unit, work))
        assert back[layer] == device.pass_seconds(backward_kernels(SMALL, unit, work))
    assert loss == {len(units): device.pass_seconds(loss_kernels(SMALL, units[-1], work))}


@pytest.mark.parametrize(
    ("recompute", "again"),
    [("selective", partial(repeated_kernels, recompute="selective")), ("full", forward_kernels)],
)
def test_what_backward_computes_again_is_part_of_its_price(recompute: str, again: Any) -> None:
    device, unit, work = KernelDevice(load_config("a100_80g")), SMALL.units()[1], Work(2, 512)
    expected = device.pass_seconds(backward_kernels(SMALL, unit, work) + again(SMALL, unit, work))
    assert durations(simulated(recompute=recompute), "backward")[1] == expected


def test_the_halves_of_a_split_backward_have_all_kernels_of_a_whole_one() -> None:
    run, device = simulated("zb_h1", microbatch_size=2), KernelDevice(load_config("a100_80g"))
    first, second = (durations(run, typ) for typ in ("backward_input", "backward_weight"))
    whole = backward_kernels(SMALL, SMALL.units()[1], Work(2, 512))
    assert first[1] + second[1] == pytest.approx(device.busy_seconds(whole.kernels), rel=1e-12)


def test_parts_of_a_layer_have_kernels_of_their_own() -> None:
    run, device = mt.simulate("megatron", **GPT_22B, fidelity="kernels"), KernelDevice(load_config("a100_80g"))
    model = mt.models()["megatron-22b"]
    kernels = forward_kernels(model, model.units()[2], Work(4, 2048, Degrees(tp=8)))
    assert durations(run, "forward")[2] == device.pass_seconds(kernels)


def test_transfers_are_priced_by_curves_where_the_config_has_them() -> None:
    run = simulated()
    measured = MeasuredTopology(load_config("a100_80g").networks, 4)
    event = next(event for event in run.logs[0] if event.typ == "all_reduce" and event.layer == 1)
    size_bytes = 4 * SMALL.units()[1].num_held_parameters()
    assert event.duration == measured.collective("all_reduce", size_bytes, range(4)).seconds
    assert run.network == "measured"
    assert simulated(network="flat").network == "flat"
    assert simulated(without="curves").network == "flat"


@pytest.mark.few(4)
@pytest.mark.parametrize("strategy", ["ddp", "zero3", "1f1b", "megatron:tp=2,pp=2", "pp_dp:pp=2"])
@pytest.mark.parametrize("hardware", ["a100_80g", "gh200_96g_nvl4"])
def test_folding_gives_the_same_floats(strategy: str, hardware: str) -> None:
    sizes: dict[str, Any] = {"world_size": 8, "global_batch_size": 16, "microbatch_size": 1, "hardware": hardware}
    full, folded = (simulated(strategy, **sizes, fold=fold) for fold in (False, True))
    assert (folded.step_time, folded.peak_memory, folded.mfu) == (full.step_time, full.peak_memory, full.mfu)


LAYER_OF_22B = [  # forward and backward, ms: Korthikanti et al. (2022), table 4
    (False, "none", 7.7, 11.9),
    (True, "none", 7.2, 11.8),
    (False, "full", 7.7, 19.5),
    (False, "selective", 7.7, 13.2),
    (True, "selective", 7.2, 13.1),
]


def forward_and_backward_s(num_layers: int, **options: Any) -> tuple[float, float]:
    """Return how long forward and backward of some layers of GPT 22B take, ends included."""
    model = replace(mt.models()["megatron-22b"], num_layers=num_layers)
    run = mt.simulate("megatron", **{**GPT_22B, "workload": model}, fidelity="kernels", **options)
    loss, update = (next(event.time for event in run.logs[0] if event.typ == typ) for typ in ("loss", "update"))
    return loss, update - loss


def test_a_layer_takes_what_was_measured() -> None:
    errors = []
    for sequence_parallel, recompute, *measured_ms in LAYER_OF_22B:
        options = {"sequence_parallel": sequence_parallel, "recompute": recompute}
        few, more = (forward_and_backward_s(n, **options, overlap_parts=True, contention=True) for n in (2, 4))
        predicted_ms = [(long - short) / 2 * 1e3 for short, long in zip(few, more, strict=True)]
        pairs = [*zip(predicted_ms, measured_ms, strict=True), (sum(predicted_ms), sum(measured_ms))]
        errors += [abs(predicted / measured - 1) for predicted, measured in pairs]
    assert max(errors) < 0.05
    assert sum(errors) / len(errors) < 0.02


def test_the_default_without_a_model_is_the_roofline() -> None:
    assert mt.simulate("ddp", world_size=2).events == mt.simulate("ddp", world_size=2, fidelity="roofline").events


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("strategy", "hardware", "priced_by"),
    [
        ("fsdp", "h100_80g_nvl8", "kernels, platform compiled-fsdp, with contention"),
        ("1f1b", "b200_192g_nvl8", "kernels, platform compiled-fsdp-b200"),
        ("megatron", "h100_80g_nvl8", "kernels, platform nemo-h100"),
        ("megatron", "a100_80g", "kernels, platform megatron-a100"),
        ("fsdp", "tpu_v5p", "kernels, platform xla, with contention"),
        ("ddp", "phone", "roofline (phone has no figures of kernels)"),
    ],
)
def test_a_transformer_is_priced_by_kernels_as_the_framework_of_the_strategy_runs_them(
    strategy: str, hardware: str, priced_by: str
) -> None:
    (row,) = mt.sweep(strategy, {"world_size": [4]}, jobs=1, **given_to_all(hardware)).rows()
    run = mt.simulate(strategy, world_size=4, **given_to_all(hardware))
    assert run.priced_by == priced_by
    assert priced_by in repr(run)
    assert row["step_time_s"] == run.step_time
    several = {**given_to_all([hardware] * 2), "world_size": 4}
    assert mt.price(strategy, **several).step_time.tolist() == [run.step_time] * 2


def given_to_all(hardware: Any) -> dict[str, Any]:
    """Return what a transformer is trained with."""
    return {"workload": SMALL, "global_batch_size": 8, "hardware": hardware}


async def mine(model: mt.Model) -> mt.StrategyModel:
    """Train as `single` does."""
    return await mt.strategies()["single"](model)


def test_a_strategy_of_ones_own_may_stand_for_a_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    one = {**given_to_all("h100_80g_nvl8"), "world_size": 1}
    assert mt.simulate(mine, **one).priced_by == "kernels, platform components"
    monkeypatch.setattr(mine, "framework", "megatron", raising=False)
    assert mt.simulate(mine, **one).priced_by == "kernels, platform nemo-h100"


def test_shards_of_a_node_are_copied_among_its_ranks() -> None:
    given = {**given_to_all("mi300x_192g_8"), "global_batch_size": 16, "platform": "torchtitan without torch.compile"}
    of_node, told, of_four = (
        mt.simulate("hsdp", world_size=16, options=options, **given).step_time
        for options in ({}, {"shard_size": 8}, {"shard_size": 4})
    )
    assert of_node == told
    assert of_node != of_four


def test_a_cluster_is_priced_alike_where_a_device_has_no_figures_of_kernels() -> None:
    cluster = mt.Cluster({"h100_80g_nvl8": 1, "phone": 1}, between_groups=mt.Link(1e9))
    run = mt.simulate("ddp", workload=SMALL, global_batch_size=2, hardware=cluster)
    assert run.priced_by == "roofline (phone has no figures of kernels)"


def test_the_default_layers_are_matrix_multiplications() -> None:
    run = mt.simulate("ddp", world_size=2, num_layers=2, global_batch_size=2, fidelity="kernels")
    device = KernelDevice(load_config("h100_80g_nvl8"))
    kernels = MATMUL_LAYER.pass_kernels("forward", 1, 0, USUAL, DEFAULT_STYLE)
    assert kernels.work_flop == MATMUL_LAYER.compute_cost("forward", 1, 0).work_flop
    assert durations(run, "forward")[0] == device.pass_seconds(kernels)


def test_a_device_that_nobody_measured_is_estimated_from_its_data_sheet() -> None:
    large = mt.Transformer(num_layers=1, hidden_size=4096, num_heads=32, vocab_size=51200, seq_len=2048)
    run = simulated(hardware="rtx_3090", workload=large, world_size=1)
    peak = load_config("rtx_3090").processor.peak("float16")
    assert 0.5 < 8 * large.units()[2].forward_flop(2048) / durations(run, "forward")[2] / peak < 0.78
    with pytest.raises(HardwareConfigError, match="config phone has no key kernels, and no key units"):
        simulated(hardware="phone", workload=None, fidelity="kernels")


def test_each_term_can_be_left_out() -> None:
    whole = simulated(recompute="full").step_time
    for term in ("waves", "elementwise", "loss", "update", "transfers", "starts"):
        assert simulated(recompute="full", without=[term]).step_time < whole, term
    assert simulated(without="transfers").exposed_comm_fraction == 0


def test_a_platform_changes_the_price_by_its_numbers() -> None:
    fast = simulated().step_time
    slow = mt.Platform(name="slow", clock=0.5)
    assert fast < simulated(platform=slow).step_time < 2 * fast
    host = simulated(platform=mt.Platform(name="host", launch_s=1e-3))
    assert durations(host, "forward")[1] == (8 + 7) * 1e-3
    assert simulated(platform="megatron-2021").step_time > fast
    assert simulated(platform="components").step_time == fast


def test_every_shipped_platform_says_what_it_was_fitted_on_in_at_most_six_numbers() -> None:
    for name, platform in mt.platforms().items():
        assert (platform.name, bool(platform.about), bool(platform.fitted_on)) == (name, True, True)
        published = {
            "memory",
            "host_update_s",
            "num_devices",
            "attention",
        }  # by code, papers, and the runs of the fit: not fitted
        assert len(platform.numbers().keys() - published) <= 6
    assert mt.platforms()["components"].numbers() == {}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"fidelity": "kernel"}, 'fidelity must be "roofline" or "kernels", got \'kernel\''),
        ({"fidelity": "kernels", "without": ["wave"]}, "a price has no term 'wave'; use waves, "),
        ({"platform": "nanotron"}, 'platform is for prices of kernels; give fidelity="kernels" too or train a transf'),
        ({"without": "waves"}, 'without is for prices of kernels; give fidelity="kernels" too or train a transformer'),
        ({"fidelity": "roofline", "without": "waves"}, 'without is for prices of kernels; give fidelity="kernels" too'),
        ({"fidelity": "kernels", "platform": "nano"}, r"a framework \(.*Megatron-Core, .*\), one of components, "),
        ({"fidelity": "kernels", "hardware": FixedPredictor(forward=1)}, "is a predictor with prices of its own"),
    ],
)
def test_what_cannot_be_priced_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        mt.simulate("ddp", **given)


def test_a_workload_without_kernels_is_refused() -> None:
    class Opaque:
        compute_cost = None

    with pytest.raises(UsageError, match='fidelity="kernels" needs a workload that lists its kernels'):
        mt.simulate("ddp", workload=Opaque(), fidelity="kernels")


@pytest.mark.parametrize(
    "numbers",
    [
        {"clock": 0},
        {"eager": True},
        {"launch_s": -1e-6},
        {"clock": float("nan")},
        {"gradient_accesses": -1},
        {"one_hot_capacity": -1},
        {"fitted_error": float("inf")},
    ],
)
def test_a_platform_refuses_numbers_that_mean_nothing(numbers: dict[str, Any]) -> None:
    (name,) = numbers
    with pytest.raises(UsageError, match=f"{name} of platform odd must be a number"):
        mt.Platform(name="odd", **numbers)


def test_equal_layers_share_one_price() -> None:
    predictor = simulated().models[0]._runtime_predictor
    assert predictor.compute("forward", 2, 1) is predictor.compute("forward", 2, 7)
    assert predictor.compute("forward", 2, 1) is not predictor.compute("forward", 2, 2)


def test_a_sweep_and_a_comparison_take_the_fidelity() -> None:
    sizes: dict[str, Any] = {"workload": SMALL, "global_batch_size": 8, "hardware": "a100_80g", "fidelity": "kernels"}
    alone = simulated(platform=None).step_time
    assert mt.compare("ddp", world_size=4, **sizes).succeeded[0].step_time == alone
    (row,) = mt.sweep("ddp", {"world_size": [4]}, jobs=1, **sizes).rows()
    assert (row["step_time_s"], row["fidelity"]) == (alone, "kernels")


def test_strict_runs_can_be_priced_by_kernels() -> None:
    assert simulated(strict=True).step_time == simulated().step_time


def test_pricing_reads_the_same_from_text_and_list() -> None:
    assert Pricing("kernels", without="waves") == Pricing("kernels", without=["waves"])


def test_a_run_says_how_it_was_priced(tmp_path: Path) -> None:
    run = simulated(platform="megatron-2021", without=["waves"])
    assert run.priced_by == "kernels, platform megatron-2021, without waves"
    assert repr(run).count("a100_80g, priced by kernels, platform megatron-2021") == 1
    run.save(tmp_path / "run.jsonl")
    assert mt.load_run(tmp_path / "run.jsonl").priced_by == run.priced_by
    roofline = simulated(fidelity="roofline", platform=None)
    assert roofline.priced_by == "roofline"
    assert "a100_80g, priced by roofline" in repr(roofline)
    assert "priced" not in repr(mt.simulate("ddp", world_size=2))


def test_a_precision_is_that_of_a_transformer_with_it() -> None:
    sizes: dict[str, Any] = {"world_size": 4, "global_batch_size": 8, "seq_len": 2048, "platform": "components"}
    named = mt.simulate("ddp", workload="tiny", precision="fp8", **sizes)
    built = mt.simulate("ddp", workload=replace(find_model("tiny"), precision=PRECISIONS["fp8"]), **sizes)
    assert named.step_time == built.step_time != mt.simulate("ddp", workload="tiny", **sizes).step_time
    assert named.trained_model is not None
    assert conditions(named).startswith(
        "4 ranks, tiny of 2 layers (6 units), 2048 tokens a sample, fp8 (MFU by the peak of "
    )


def test_eight_bits_are_counted_by_the_peak_of_sixteen() -> None:
    runs = [mt.simulate("single", world_size=1, workload="tiny", precision=name) for name in ("bf16", "fp8")]
    flop = [run.mfu * run.step_time for run in runs if run.mfu is not None]
    assert flop[0] == pytest.approx(flop[1], rel=1e-12)


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"precision": "fp8"}, r"precision \('fp8'\) is for transformers, and no workload is given"),
        ({"precision": "fp8", "workload": "dense"}, "precision is for transformers"),
        ({"precision": "fp9", "workload": "tiny"}, 'precision must be "bf16", "fp16", "fp32", "fp8"'),
        ({"precision": "fp8", "workload": "tiny", "fidelity": "roofline"}, 'weights in float8; use fidelity="kernels"'),
    ],
)
def test_a_precision_that_would_change_nothing_is_refused(given: dict[str, Any], rule: str) -> None:
    with pytest.raises(UsageError, match=rule):
        mt.simulate("ddp", **given)
