"""Small transformers to compute with, of all that a model may have."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

import minitrain as mt
from minitrain.workloads.mixers import LatentAttention

SIZES: dict[str, Any] = {"num_layers": 2, "hidden_size": 16, "num_heads": 4, "vocab_size": 21, "seq_len": 8}
LLAMA: dict[str, Any] = {"mlp": "swiglu", "norm": "rmsnorm", "num_kv_heads": 2, "ffn_hidden_size": 24}
EXPERTS: dict[str, Any] = {"num_experts": 4, "experts_per_token": 2, "moe_ffn_hidden_size": 12}

LLAMA_LIKE = mt.Transformer(name="llama-like", **SIZES, **LLAMA)
GPT_LIKE = mt.Transformer(name="gpt-like", **SIZES, tied_embeddings=False)
RELU_LIKE = mt.Transformer(name="relu-like", **SIZES, mlp="relu", positions="none", tied_embeddings=False, window=3)
QWEN_LIKE = mt.Transformer(name="qwen-like", **SIZES, **LLAMA, qkv_bias=True, window=5)
MIXTRAL_LIKE = mt.Transformer(name="mixtral-like", **SIZES, **LLAMA, **EXPERTS)
DEEPSEEK_LIKE = mt.Transformer(
    name="deepseek-like",
    **SIZES,
    **EXPERTS,
    mlp="swiglu",
    norm="rmsnorm",
    ffn_hidden_size=24,
    num_shared_experts=2,
    moe_layers=[1],
    router_bias=True,
    latent=LatentAttention(query_rank=7, kv_rank=6, rope_head_dim=2, nope_head_dim=3, value_head_dim=5),
)
SWITCH_LIKE = mt.Transformer(
    name="switch-like",
    **SIZES,
    num_experts=4,
    experts_per_token=1,
    num_shared_experts=1,
    moe_ffn_hidden_size=12,
    tied_embeddings=False,
)
DEEPSEEK_V2_LITE_LIKE = mt.Transformer(
    name="deepseek-v2-lite-like",
    **SIZES,
    mlp="swiglu",
    norm="rmsnorm",
    ffn_hidden_size=24,
    latent=LatentAttention(kv_rank=6, rope_head_dim=2, nope_head_dim=3, value_head_dim=5),
)

MODELS = (
    LLAMA_LIKE,
    GPT_LIKE,
    RELU_LIKE,
    QWEN_LIKE,
    MIXTRAL_LIKE,
    DEEPSEEK_LIKE,
    DEEPSEEK_V2_LITE_LIKE,
    SWITCH_LIKE,
)


@st.composite
def transformers(draw: st.DrawFn, num_parts: int) -> mt.Transformer:
    """Return transformers whose heads and columns divide into parts; the vocabulary need not."""
    kv_heads = num_parts * draw(st.integers(1, 2))
    fields: dict[str, Any] = {}
    if draw(st.booleans()):
        count = draw(st.integers(1, 4))
        fields = {
            "num_experts": count,
            "experts_per_token": draw(st.integers(1, count)),
            "moe_ffn_hidden_size": num_parts * draw(st.integers(1, 3)),
            "num_shared_experts": draw(st.integers(0, 2)),
            "router_bias": draw(st.booleans()),
            "moe_layers": draw(st.sampled_from([[0], [1], [0, 1]])),
        }
    if draw(st.integers(0, 3)) == 0:
        names = "kv_rank", "nope_head_dim", "value_head_dim"
        sizes = {name: draw(st.integers(1, 4)) for name in names}
        query_rank = draw(st.none() | st.integers(1, 4))
        fields["latent"] = LatentAttention(**sizes, rope_head_dim=2, query_rank=query_rank)
    else:
        fields["num_kv_heads"], fields["head_dim"] = kv_heads, 2 * draw(st.integers(1, 2))
    return mt.Transformer(
        num_layers=2,
        hidden_size=draw(st.integers(2, 9)),
        ffn_hidden_size=num_parts * draw(st.integers(1, 4)),
        num_heads=kv_heads * draw(st.integers(1, 3)),
        vocab_size=draw(st.integers(2, 17)),
        seq_len=draw(st.integers(1, 6)),
        mlp=draw(st.sampled_from(["gelu", "relu", "swiglu"])),
        norm=draw(st.sampled_from(["layernorm", "rmsnorm"])),
        positions=draw(st.sampled_from(["learned", "rotary", "none"])),
        bias=draw(st.booleans()),
        window=draw(st.none() | st.integers(1, 5)),
        tied_embeddings=False,
        **fields,
    )
