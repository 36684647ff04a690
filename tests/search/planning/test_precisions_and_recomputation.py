"""What a plan chooses beside the layout: precision by what devices have, and recomputation where memory is short."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import UsageError
from minitrain.machine import load_config
from minitrain.machine.communication_buffers import ESTIMATED_BYTES
from minitrain.machine.measured_layers import LayerTime
from minitrain.run.device_memory import CONTEXT_BYTES
from minitrain.workloads.architecture import PRECISIONS, Precision

FAST = mt.Link(200e9, 5e-6)
TWO = mt.Cluster({"h100_80g_nvl8": 1, "v100_32g_nvl8": 1}, between_groups=FAST, name="two")
SMALL = mt.Transformer(num_layers=3, hidden_size=512, num_heads=8, vocab_size=4096, seq_len=2048, attention="unfused")
MEASURED = mt.MeasuredLayers((LayerTime(1, 1, 0, 4, 1e-3, 2e-3, 1e-4),))
REPLICAS = ("zero1", "fsdp")


def devices(kind: str, gibibytes: float) -> mt.Devices:
    """Return one device with so much memory for tensors, less than its config says."""
    system, workspace_mib = load_config(kind), 2 * 8.125 + 4  # of devices of an unknown family
    beside = (ESTIMATED_BYTES + CONTEXT_BYTES) / 2**30 + workspace_mib / 2**10
    return mt.Devices(replace(system, name=f"small_{kind}", mem1=replace(system.mem1, GiB=gibibytes + beside)), 1)


def tight(gibibytes: float) -> mt.Cluster:
    kinds = [devices(kind, gibibytes) for kind in ("h100_80g_nvl8", "a100_80g")]
    return mt.Cluster(kinds, between_groups=FAST, name="tight")


def divisions(num_replicas: int, batch: int) -> Iterator[mt.Shares]:
    """Yield all samples of replicas, in microbatches of all sizes."""
    for samples in product(range(1, batch + 1), repeat=num_replicas):
        if sum(samples) == batch:
            for sizes in product(*(range(1, count + 1) for count in samples)):
                yield mt.Shares(samples=samples, microbatch_sizes=sizes)


def best(cluster: mt.Cluster, models: dict[str, mt.Transformer], batch: int, how: list[dict[str, Any]]) -> float:
    """Return the fastest step that fits, of all divisions on all choices of devices that have the precision."""
    names = [group.label for group in cluster.devices]
    times = []
    for chosen, (precision, model) in product([names, *([name] for name in names)], models.items()):
        if precision == "bf16" and "v100_32g_nvl8" in chosen:
            continue
        part = cluster.part(chosen)
        for strategy, options, shares in product(REPLICAS, how, list(divisions(len(chosen), batch))):
            machine: dict[str, Any] = {"hardware": part, "shares": shares, "fold": True, "check": False}
            with suppress(UsageError):  # fsdp asks for as many microbatches of each replica
                run = mt.simulate(strategy, workload=model, global_batch_size=batch, **machine, **options)
                times += [run.step_time] if run.oom is None else []
    return min(times)


@pytest.mark.ci
@pytest.mark.parametrize("precisions", [("bf16", "fp16"), ("fp32", "bf16", "fp16")])
def test_no_precision_of_exhaustive_search_is_three_percent_faster(precisions: tuple[str, ...]) -> None:
    step: dict[str, Any] = {"global_batch_size": 4, "fidelity": "kernels"}
    found = mt.plan(SMALL, TWO, precisions=precisions, **step)
    models = {name: replace(SMALL, precision=PRECISIONS[name]) for name in precisions}
    assert found.step_time <= 1.03 * best(TWO, models, 4, [{"fidelity": "kernels"}])


@pytest.mark.ci
@pytest.mark.parametrize("gibibytes", [0.4, 0.8, 1.5])
def test_no_recomputation_of_exhaustive_search_is_three_percent_faster(gibibytes: float) -> None:
    cluster = tight(gibibytes)
    found = mt.plan(SMALL, cluster, global_batch_size=4, strategies=REPLICAS, fidelity="roofline")
    modes = [{"recompute": mode, "fidelity": "roofline"} for mode in ("none", "selective", "full")]
    assert found.step_time <= 1.03 * best(cluster, {"bf16": SMALL}, 4, modes)


def test_backward_computes_again_where_a_step_does_not_fit_otherwise() -> None:
    step: dict[str, Any] = {"global_batch_size": 4, "strategies": REPLICAS}
    found = mt.plan(SMALL, tight(0.32), **step)
    assert found.options["recompute"] == "selective"
    assert found.run.oom is None
    assert found.simulate().step_time == found.step_time
    assert "(recompute=selective)" in str(found)
    with pytest.raises(UsageError, match=r"layouts of tight runs within memory; .* out of memory on rank"):
        mt.plan(SMALL, tight(0.32), recompute="none", **step)


def test_backward_computes_again_where_that_is_faster() -> None:
    step: dict[str, Any] = {"global_batch_size": 8, "strategies": ["fsdp"]}
    found = mt.plan(SMALL, tight(1.0), **step)
    assert found.options["recompute"] == "selective"
    assert found.step_time < 0.95 * mt.plan(SMALL, tight(1.0), recompute="none", **step).step_time


def test_replicas_have_microbatches_of_their_own_size_where_memory_is_short() -> None:
    found = mt.plan(SMALL, tight(0.3), global_batch_size=4, strategies=["zero1"], leave_out=False)
    assert found.shares == mt.Shares(samples=[2, 2], microbatch_sizes=[1, 1])


def test_nothing_is_computed_again_where_memory_is_ample() -> None:
    found = mt.plan(SMALL, tight(8), global_batch_size=4)
    assert not any("recompute" in verdict.candidate.options for verdict in found.verdicts)


def test_pipelines_compute_again_where_their_stages_are_too_full() -> None:
    found = mt.plan(SMALL, tight(0.35), global_batch_size=4, strategies=["megatron"], leave_out=False)
    assert found.run.oom is None
    assert found.options["pp"] == 2
    assert found.options["recompute"] in ("selective", "full")


def test_a_device_that_lacks_bfloat16_takes_part_in_float16_alone() -> None:
    step: dict[str, Any] = {"global_batch_size": 16, "fidelity": "kernels", "strategies": ["fsdp"]}
    found = mt.plan(SMALL, TWO, precisions=["bf16"], **step)
    assert found.left_out == ("v100_32g_nvl8",)
    assert "left out: v100_32g_nvl8 (lacks bfloat16)" in str(found)
    both = mt.plan(SMALL, TWO, precisions=["bf16", "fp16"], **step)
    in_bfloat16 = {each.candidate.groups for each in both.verdicts if each.candidate.precision == "bf16"}
    in_float16 = {each.candidate.groups for each in both.verdicts if each.candidate.precision == "fp16"}
    assert in_bfloat16 == {("h100_80g_nvl8",)}  # and not in float16 too, which costs the same
    assert in_float16 == {("h100_80g_nvl8", "v100_32g_nvl8"), ("v100_32g_nvl8",)}


def test_a_plan_says_what_each_precision_is_to_each_device() -> None:
    step: dict[str, Any] = {"global_batch_size": 16, "fidelity": "kernels", "without": "spread", "strategies": ["fsdp"]}
    wide = replace(SMALL, hidden_size=4096)  # whose kernels take longer than their launches
    said = mt.plan(wide, TWO, precisions=["fp32", "bf16"], **step).explain()
    assert "a sample's time in each precision, beside bf16:" in said
    assert "  bf16: h100_80g_nvl8 x1, v100_32g_nvl8 lacks bfloat16" in said
    (ratio,) = re.findall(r"  fp32: h100_80g_nvl8 x([0-9.]+), v100_32g_nvl8 has it", said)
    assert float(ratio) > 2


def test_a_datatype_without_a_price_is_named_without_precisions_too() -> None:
    cluster = mt.Cluster({"xeon_8480plus": 1, "h100_80g_nvl8": 1}, between_groups=FAST, name="two")
    model = replace(SMALL, precision=PRECISIONS["fp32"])  # the roofline has a rate of it for one of them
    given: dict[str, Any] = {"global_batch_size": 4, "fidelity": "roofline"}
    assert "left out: h100_80g_nvl8 (lacks float32)" in str(mt.plan(model, cluster, **given))
    with pytest.raises(UsageError, match=r"no layout of two has a precision .*: h100_80g_nvl8 lacks float32; allow"):
        mt.plan(model, cluster, **given, leave_out=False)


def test_a_plan_in_a_precision_is_saved(tmp_path: Path) -> None:
    found = mt.plan(SMALL, TWO, global_batch_size=16, precisions=["fp16"])
    found.save(tmp_path / "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text())["precision"] == "fp16"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"precisions": "bf16"}, r'precisions must be .*, got "bf16"; write \["bf16"\]'),
        ({"precisions": []}, "precisions must be a list of at least one of"),
        ({"precisions": ["bf8"]}, "precisions: precision must be .*"),
        ({"precisions": ["bf16", "bf16"]}, "precisions must have names of their own, got bf16, bf16"),
        ({"precisions": ["bf16"], "workload": None}, "precisions are for transformers, .*; leave precisions out"),
        (
            {"precisions": [Precision("fp8", weight_datatype="float8")], "fidelity": "roofline"},
            'fp8 multiplies .*; leave fidelity="roofline" out',
        ),
        ({"precisions": ["bf16"], "prices": MEASURED}, "precisions cannot be chosen by measured layers, .*; leave"),
        ({"recompute": "everything"}, "recompute must be"),
    ],
)
def test_choices_that_cannot_be_are_refused(given: dict[str, Any], message: str) -> None:
    step: dict[str, Any] = {"workload": SMALL, "cluster": TWO, "global_batch_size": 4} | given
    with pytest.raises(UsageError, match=message):
        mt.plan(**step)
