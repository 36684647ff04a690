"""Bounds of physics, for what the commands print by default: every shipped config, several models and strategies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import minitrain as mt
from minitrain.machine import load_config
from minitrain.machine.config import shipped_names
from minitrain.operations import Event
from minitrain.run.facts import MOST_MFU, remark_on
from minitrain.view.tables import comparison_notes

DENSE = mt.Transformer(
    num_layers=2, hidden_size=4096, num_heads=32, vocab_size=32000, seq_len=4096, mlp="swiglu", ffn_hidden_size=11008
)
GPT = mt.Transformer(num_layers=2, hidden_size=2048, num_heads=16, vocab_size=51200, seq_len=2048, attention="unfused")
SPARSE = mt.Transformer(
    num_layers=2,
    hidden_size=2048,
    num_heads=16,
    vocab_size=32000,
    seq_len=2048,
    mlp="swiglu",
    ffn_hidden_size=5632,
    num_experts=8,
    experts_per_token=2,
)
LAYOUTS = ("ddp", "fsdp", "zero3", "megatron:tp=2", "megatron:pp=2,microbatch_size=1", "1f1b")


def runs(hardware: str) -> Iterator[mt.Run]:
    """Yield runs by default prices; a datatype for which a device has no rate is none of ours."""
    num_ranks = min(4, max(tier.size for tier in load_config(hardware).networks))
    given: dict[str, Any] = {"world_size": num_ranks, "global_batch_size": 8, "hardware": hardware, "fold": False}
    yield from mt.compare(LAYOUTS, workload=DENSE, **given).succeeded
    yield from mt.compare(LAYOUTS, workload=GPT, **given).succeeded
    yield from mt.compare(("moe", "fsdp"), workload=SPARSE, **given).succeeded


@pytest.mark.few(1)
@pytest.mark.parametrize("hardware", shipped_names())
def test_no_default_figure_is_beyond_what_the_device_can_do(hardware: str) -> None:
    fastest = 1e9 * max(tier.bandwidth for tier in load_config(hardware).networks)
    for run in runs(hardware):
        assert run.mfu is not None, run
        assert run.mfu < 1, run
        assert bool(run.notes) is (run.mfu > MOST_MFU), run
        for event in run.events:
            assert rate(event, run) <= fastest * (1 + 1e-9), (run, event)
            assert event.typ != "forward" or flop_per_s(run, event) <= (run.peak_flop_per_s or 0), (run, event)


def rate(event: Event, run: mt.Run) -> float:
    """Return the bytes a second that a message or a measured collective brings a rank; 0 of other operations.

    What tiers without curves say of collectives is the specification's.
    """
    num_ranks = run.world_size if event.group is None else len(event.group)
    shares = {"send": 1.0, "recv": 1.0}
    if run.network == "measured":
        shares |= dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter"), (num_ranks - 1) / num_ranks)
    return event.size_bytes * shares.get(event.typ, 0.0) / event.duration if event.duration else 0.0


def flop_per_s(run: mt.Run, event: Event) -> float:
    """Return the rate of a forward pass of a whole layer; 0 where ranks share the layer, or it took no time."""
    if event.layer is None or not event.duration or ":tp" in run.strategy or run.strategy == "moe":
        return 0.0
    workload = run.models[0].runtime_predictor.workload
    return float(workload.compute_cost("forward", len(event.samples), event.layer).work_flop / event.duration)


def test_an_mfu_that_is_too_good_is_remarked_wherever_the_run_is_shown() -> None:
    assert remark_on(0.6) == remark_on(None) == ""
    run = mt.simulate("fsdp", workload="llama3-8b", world_size=8, global_batch_size=64, fidelity="roofline")
    assert run.mfu is not None
    assert run.mfu > MOST_MFU
    assert "more than any published step reaches" in remark_on(run.mfu)
    assert "beyond the device's peak" in remark_on(1.03)
    assert list(run.notes) == [remark_on(run.mfu)]
    comparison = mt.compare("fsdp", workload="llama3-8b", global_batch_size=64, fidelity="roofline")
    assert remark_on(run.mfu) in comparison_notes(comparison)
