"""A newer device trains every model by every strategy at least as fast as an older one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import minitrain as mt

NVIDIA = ("v100_32g_nvl8", "a100_40g", "a100_80g", "h100_80g_nvl8", "h200_141g_nvl8", "b200_192g_nvl8", "gb200_nvl72")
LLAMA = mt.Transformer(
    name="llama",
    num_layers=8,
    hidden_size=2048,
    num_heads=16,
    num_kv_heads=8,
    ffn_hidden_size=5632,
    mlp="swiglu",
    norm="rmsnorm",
    vocab_size=32000,
    seq_len=2048,
)
MOE = mt.Transformer(
    name="mixtral",
    num_layers=8,
    hidden_size=1024,
    num_heads=16,
    num_experts=8,
    experts_per_token=2,
    moe_ffn_hidden_size=3584,
    mlp="swiglu",
    vocab_size=32000,
    seq_len=1024,
)
LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    ("ddp", {}),
    ("ddp_overlap", {}),
    ("zero1", {}),
    ("zero3", {}),
    ("fsdp", {}),
    ("fsdp", {"offload": "activations"}),
    ("hsdp", {}),
    ("1f1b", {}),
    ("zb_h1", {}),
    ("megatron", {"tp": 4}),
    ("megatron", {"tp": 2, "pp": 2, "sequence_parallel": True}),
]


WITH_GRAPHS = {"platform": "Megatron-Core:captures=None"}
"""On Grace, whose hosts launch late, as recipes have it."""


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("world_size", "fidelity"),
    [
        (8, "roofline"),
        (16, "kernels"),
        pytest.param(8, "kernels", marks=pytest.mark.slow),
        pytest.param(16, "roofline", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    ("strategy", "options"), LAYOUTS, ids=[" ".join((name, *options)) for name, options in LAYOUTS]
)
def test_a_step_of_a_transformer_is_never_longer_on_a_newer_device(
    strategy: str, options: dict[str, Any], world_size: int, fidelity: str
) -> None:
    given: dict[str, Any] = {"world_size": world_size, "global_batch_size": 32, "workload": LLAMA, "fidelity": fidelity}
    given |= WITH_GRAPHS if (strategy, fidelity) == ("megatron", "kernels") else {}
    runs = [mt.simulate(strategy, hardware=name, **given, **options) for name in NVIDIA]
    for older, newer in pairwise(runs):
        assert newer.step_time <= older.step_time, (older.hardware, newer.hardware)
        assert (newer.tokens_per_second or 0) >= (older.tokens_per_second or 0) > 0
    assert all(0 < (run.mfu or 0) <= 1 for run in runs)


@pytest.mark.parametrize("fidelity", ["roofline", "kernels"])
def test_a_step_with_experts_is_never_longer_on_a_newer_device(fidelity: str) -> None:
    given: dict[str, Any] = {"world_size": 8, "global_batch_size": 16, "workload": MOE, "fidelity": fidelity, "ep": 8}
    given |= WITH_GRAPHS if fidelity == "kernels" else {}
    times = [mt.simulate("moe", hardware=name, **given).step_time for name in NVIDIA]
    assert times == sorted(times, reverse=True)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", [name for name in mt.strategies() if name not in {"moe", "deepseek_like"}])
def test_a_step_of_specified_layers_is_never_longer_on_a_newer_device(name: str) -> None:
    sizes: dict[str, Any] = {"world_size": 1 if name == "single" else 8, "num_layers": 16, "global_batch_size": 16}
    try:
        times = [mt.simulate(name, hardware=hardware, **sizes).step_time for hardware in NVIDIA]
    except mt.UsageError:
        pytest.skip("it trains transformers alone")
    assert times == sorted(times, reverse=True)
