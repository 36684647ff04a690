"""Parameter counts: published ones, closed forms of the papers, and a listing of every tensor written here."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitrain as mt
from minitrain.workloads.shapes import Degrees

PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-8b": 8_030_261_248,
    "llama3.1-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "olmoe-1b-7b": 6_919_161_856,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_419_200,
}


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_published_parameter_counts_are_met_exactly(name: str, count: int) -> None:
    assert mt.models()[name].num_parameters == count


@pytest.mark.parametrize("name", [name for name in mt.models() if name.startswith("megatron-")])
def test_megatron_models_have_the_parameters_of_the_papers_formula(name: str) -> None:
    model = mt.models()[name]
    layers, hidden, vocabulary, length = model.num_layers, model.hidden_size, model.vocab_size, model.seq_len
    # Narayanan et al. (2021), equation 2, 12 l h^2 (1 + 13/12h + (V + s)/12lh), and the final norm that it leaves out
    formula = 12 * layers * hidden**2 + 13 * layers * hidden + (vocabulary + length) * hidden
    assert model.num_parameters == formula + 2 * hidden


@pytest.mark.parametrize(
    ("name", "billions"), {"1.7b": 1.7, "18b": 18.4, "145b": 145.6, "310b": 310.1, "1t": 1008}.items()
)
def test_megatron_models_are_as_large_as_the_papers_table_says(name: str, billions: float) -> None:
    assert mt.models()[f"megatron-{name}"].num_parameters == pytest.approx(
        billions * 1e9, rel=0.03 if billions < 2 else 3e-3
    )


def test_a_token_uses_two_of_mixtrals_eight_experts() -> None:
    one_expert = 3 * 4096 * 14336
    assert mt.models()["mixtral-8x7b"].num_active_parameters == 46_702_792_704 - 32 * 6 * one_expert == 12_879_925_248


def test_a_token_uses_37_of_deepseek_v3s_671_billion_parameters() -> None:
    model = mt.models()["deepseek-v3"]
    one_expert = 3 * 7168 * 2048
    assert model.num_active_parameters == 671_026_419_200 - 58 * 248 * one_expert
    assert model.num_active_parameters // 10**9 == 37


def test_all_parameters_of_a_dense_model_are_active() -> None:
    model = mt.models()["llama3-8b"]
    assert model.num_active_parameters == model.num_parameters


def test_tied_embeddings_count_once_and_are_held_twice() -> None:
    model = mt.models()["llama3.2-1b"]
    embedding, *_, head = model.units()
    table = 128256 * 2048
    assert embedding.num_parameters == table
    assert (head.num_parameters, head.num_held_parameters()) == (2048, 2048 + table)


def test_parameters_by_kind_add_up() -> None:
    for model in mt.models().values():
        assert sum(model.parameters_by_kind().values()) == model.num_parameters


# Elements of one layer on one rank, in the profiles that Sailor (github.com/eth-easl/sailor, llm_info.json) took of
# Megatron-DeepSpeed: hidden size, heads, tp, parameters.
MEGATRON_LAYERS = [
    (1024, 16, 1, 12_596_224),
    (1024, 16, 2, 6_301_184),
    (1024, 16, 4, 3_153_664),
    (1024, 16, 8, 1_579_904),
    (2560, 32, 1, 78_676_480),
    (2560, 32, 2, 39_345_920),
    (2560, 32, 4, 19_680_640),
    (7168, 56, 1, 616_655_872),
    (7168, 56, 2, 308_349_440),
    (7168, 56, 4, 154_196_224),
]


@pytest.mark.parametrize(("hidden", "heads", "tp", "count"), MEGATRON_LAYERS)
def test_a_part_of_a_layer_holds_what_megatrons_does(hidden: int, heads: int, tp: int, count: int) -> None:
    model = mt.Transformer(num_layers=1, hidden_size=hidden, num_heads=heads, vocab_size=50304, seq_len=2048)
    _, attention, mlp, _ = model.units()
    assert attention.num_held_parameters(Degrees(tp=tp)) + mlp.num_held_parameters(Degrees(tp=tp)) == count


def gpt_tensors(layers: int, hidden: int, ffn: int, vocabulary: int, positions: int) -> dict[str, tuple[int, ...]]:
    """List every tensor of a GPT-2 checkpoint by its name there."""
    shapes: dict[str, tuple[int, ...]] = {"wte": (vocabulary, hidden), "wpe": (positions, hidden)}
    for norm in ["ln_f", *(f"h.{i}.ln_{k}" for i in range(layers) for k in (1, 2))]:
        shapes |= {f"{norm}.weight": (hidden,), f"{norm}.bias": (hidden,)}
    linear = {"attn.c_attn": (hidden, 3 * hidden), "attn.c_proj": (hidden, hidden), "mlp.c_fc": (hidden, ffn)}
    for i in range(layers):
        for name, shape in {**linear, "mlp.c_proj": (ffn, hidden)}.items():
            shapes |= {f"h.{i}.{name}.weight": shape, f"h.{i}.{name}.bias": shape[1:]}
    return shapes


def llama_tensors(
    layers: int, hidden: int, ffn: int, vocabulary: int, heads: int, kv_heads: int, size: int, *, experts: int = 0
) -> dict[str, tuple[int, ...]]:
    """List every tensor of a Llama checkpoint, or with experts of a Mixtral one, by its name there."""
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens": (vocabulary, hidden), "lm_head": (vocabulary, hidden)}
    shapes["norm"] = (hidden,)
    for i in range(layers):
        shapes |= {f"{i}.input_layernorm": (hidden,), f"{i}.post_attention_layernorm": (hidden,)}
        shapes |= {f"{i}.q_proj": (heads * size, hidden), f"{i}.o_proj": (hidden, heads * size)}
        shapes |= {f"{i}.{name}": (kv_heads * size, hidden) for name in ("k_proj", "v_proj")}
        if experts:
            shapes[f"{i}.gate"] = (experts, hidden)
        for expert in range(experts or 1):
            shapes |= {f"{i}.{expert}.{name}": (ffn, hidden) for name in ("gate_proj", "up_proj")}
            shapes[f"{i}.{expert}.down_proj"] = (hidden, ffn)
    return shapes


def elements(shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(map(prod, shapes.values()))


COUNT = st.integers(1, 6)


@settings(max_examples=60, deadline=None)
@given(
    layers=COUNT,
    heads=COUNT,
    size=COUNT,
    ffn=st.integers(1, 50),
    vocabulary=st.integers(1, 99),
    length=st.integers(1, 40),
)
def test_a_gpt_has_the_tensors_of_its_checkpoint(
    layers: int, heads: int, size: int, ffn: int, vocabulary: int, length: int
) -> None:
    model = mt.Transformer(
        num_layers=layers, hidden_size=heads * size, num_heads=heads, ffn_hidden_size=ffn, vocab_size=vocabulary,
        seq_len=length,
    )  # fmt: skip
    assert model.num_parameters == elements(gpt_tensors(layers, heads * size, ffn, vocabulary, length))


@settings(max_examples=60, deadline=None)
@given(
    layers=COUNT,
    groups=COUNT,
    kv_heads=COUNT,
    size=COUNT,
    hidden=st.integers(1, 40),
    ffn=st.integers(1, 50),
    experts=st.integers(0, 5),
)
def test_a_llama_has_the_tensors_of_its_checkpoint(
    layers: int, groups: int, kv_heads: int, size: int, hidden: int, ffn: int, experts: int
) -> None:
    model = mt.Transformer(
        num_layers=layers, hidden_size=hidden, num_heads=groups * kv_heads, num_kv_heads=kv_heads, head_dim=size,
        ffn_hidden_size=ffn, vocab_size=77, seq_len=16, mlp="swiglu", norm="rmsnorm", num_experts=experts,
        experts_per_token=min(experts, 2),
    )  # fmt: skip
    shapes = llama_tensors(layers, hidden, ffn, 77, groups * kv_heads, kv_heads, size, experts=experts)
    assert model.num_parameters == elements(shapes)
    unused = max(experts - 2, 0)
    assert model.num_active_parameters == elements(shapes) - unused * layers * 3 * hidden * ffn


def test_the_weights_of_a_unit_have_the_shapes_of_the_checkpoint() -> None:
    _, attention, mlp, *_ = mt.models()["qwen2.5-7b"].units()
    assert {weight.name: weight.shape for weight in (*attention.weights, *mlp.weights[1:])} == {
        "norm.weight": (3584,),
        "query": (3584, 3584),
        "query.bias": (3584,),
        "key": (3584, 512),
        "key.bias": (512,),
        "value": (3584, 512),
        "value.bias": (512,),
        "output": (3584, 3584),
        "gate": (3584, 18944),
        "up": (3584, 18944),
        "down": (18944, 3584),
    }
