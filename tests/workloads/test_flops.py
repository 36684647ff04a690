"""FLOPs: the papers' closed forms, exactly, and the sum over the multiplications that units list."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitrain as mt
from minitrain.workloads.shapes import Degrees, Work

COUNT = st.integers(1, 8)


def gpt(
    layers: int = 2, heads: int = 4, size: int = 8, vocabulary: int = 96, length: int = 16, **fields: object
) -> mt.Transformer:
    return mt.Transformer(
        num_layers=layers, hidden_size=heads * size, num_heads=heads, vocab_size=vocabulary, seq_len=length,
        **fields,  # type: ignore[arg-type]  # whatever a test sets
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(layers=COUNT, heads=COUNT, size=COUNT, vocabulary=st.integers(1, 500), length=st.integers(1, 300), batch=COUNT)
def test_a_step_with_full_recomputation_costs_what_narayanan_says(
    layers: int, heads: int, size: int, vocabulary: int, length: int, batch: int
) -> None:
    model, hidden = gpt(layers, heads, size, vocabulary, length), heads * size
    small = 1 + Fraction(length, 6 * hidden) + Fraction(vocabulary, 16 * layers * hidden)
    formula = 96 * batch * length * layers * hidden**2 * small
    assert batch * length * model.flop_per_token(recompute="full") == formula


@settings(max_examples=60, deadline=None)
@given(layers=COUNT, heads=COUNT, size=COUNT, vocabulary=st.integers(1, 500), length=st.integers(1, 300))
def test_a_step_without_recomputation_costs_a_quarter_less_a_layer(
    layers: int, heads: int, size: int, vocabulary: int, length: int
) -> None:
    model, hidden = gpt(layers, heads, size, vocabulary, length), heads * size
    small = 1 + Fraction(length, 6 * hidden) + Fraction(vocabulary, 12 * layers * hidden)
    assert model.flop_per_token() == 72 * layers * hidden**2 * small


@pytest.mark.parametrize(("attention", "repeated"), [("unfused", 1), ("flash", 0)])
def test_selective_recomputation_repeats_the_core_of_unfused_attention_alone(attention: str, repeated: int) -> None:
    model = gpt(attention=attention)
    core = 4 * model.seq_len * model.hidden_size * model.num_layers
    assert model.flop_per_token(recompute="selective") - model.flop_per_token() == repeated * core


def test_causal_attention_counts_the_pairs_that_the_mask_leaves() -> None:
    model = gpt(layers=1)
    all_pairs, left = (sum(1 for q in range(16) for k in range(16) if k <= q or not causal) for causal in (False, True))
    pair = 3 * 2 * 2 * model.hidden_size
    assert (all_pairs - left) * pair == 16 * (model.flop_per_token() - model.flop_per_token(causal=True))


@given(length=st.integers(1, 40), window=st.integers(1, 50))
def test_a_window_counts_the_pairs_within_it(length: int, window: int) -> None:
    core = gpt(length=length, window=window).units()[1].core
    assert core is not None
    pairs = [(q, k) for q in range(length) for k in range(length) if 0 <= q - k < window]
    assert core.num_pairs(length, causal=True) == len(pairs)
    assert core.num_pairs(length, causal=False) == length * min(window, length)


def test_the_length_of_samples_can_be_asked_for() -> None:
    model = gpt()
    longer = gpt(length=64)
    assert model.flop_per_token(64) == longer.flop_per_token() > model.flop_per_token()


@pytest.mark.parametrize("name", ["gpt2", "llama3-8b", "mixtral-8x7b", "qwen2.5-7b", "deepseek-v3", "tiny"])
def test_the_multiplications_of_the_units_add_up_to_the_flops(name: str) -> None:
    model = mt.models()[name]
    sample = Work(num_samples=2, seq_len=model.seq_len)
    forward = sum(gemm.flop for unit in model.units() for gemm in unit.gemms(sample))
    assert 3 * forward == 2 * model.seq_len * model.flop_per_token()


@pytest.mark.parametrize(
    "degrees",
    [Degrees(tp=2), Degrees(tp=4, sequence_parallel=True), Degrees(cp=8), Degrees(tp=2, cp=2, sequence_parallel=True)],
    ids=str,
)
@pytest.mark.parametrize("name", ["megatron-22b", "llama3-8b"])
def test_the_ranks_of_a_group_do_the_work_together(name: str, degrees: Degrees) -> None:
    model = mt.models()[name]
    whole, part = (Work(2, model.seq_len, share) for share in (Degrees(), degrees))
    for unit in model.units()[:3]:
        divided = sum(gemm.flop for gemm in unit.gemms(part))
        assert divided * degrees.tp * degrees.cp == sum(gemm.flop for gemm in unit.gemms(whole))


def test_experts_get_equal_shares_of_all_ranks_tokens() -> None:
    moe = mt.models()["deepseek-v3"].units()[8]
    gemms = {gemm.name: gemm for gemm in moe.gemms(Work(4, 4096, Degrees(ep=64)))}
    routed = gemms["experts.gate_up"]
    assert moe.name == "moe 3"
    assert (routed.batch, routed.m, routed.n, routed.k) == (256 // 64, 4 * 4096 * 8 * 64 // 256, 2 * 2048, 7168)


def test_tokens_of_an_expert_are_rounded_up() -> None:
    _, _, moe, *_ = mt.models()["mixtral-8x7b"].units()
    assert {gemm.m for gemm in moe.gemms(Work(1, 5)) if gemm.name.startswith("experts")} == {2}


def test_the_attention_lists_its_multiplications() -> None:
    _, attention, *_ = mt.models()["llama3-8b"].units()
    gemms = attention.gemms(Work(3, 8192, Degrees(tp=4, cp=2)))
    assert [(gemm.name, gemm.batch, gemm.m, gemm.n, gemm.k) for gemm in gemms] == [
        ("qkv", 1, 3 * 4096, (32 + 2 * 8) * 128 // 4, 4096),
        ("output", 1, 3 * 4096, 4096, 4096 // 4),
        ("scores", 3 * 8, 4096, 8192, 128),
        ("values", 3 * 8, 4096, 128, 8192),
    ]
    assert [gemm.has_weight for gemm in gemms] == [True, True, False, False]


def test_an_unknown_recomputation_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(
        mt.UsageError,
        match=r'recompute must be "none" or "selective" or "full", got "selektive".*"selective"',
    ):
        gpt().flop_per_token(recompute="selektive")
    with pytest.raises(mt.UsageError, match="seq_len must be an integer of at least 1, got 0"):
        gpt().flop_per_token(0)
