"""The models that come with minitrain, by name, each with its source.

`seq_len` is that of most of pre-training, which may be shorter than the context that a model is used with. Precision is
mixed, bf16 or fp16 beside single precision: 2 + 4 + 12 bytes a parameter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from minitrain.errors import UsageError, closest, shown
from minitrain.workloads.architecture import LatentAttention
from minitrain.workloads.shapes import RECOMPUTE, Recompute, Work
from minitrain.workloads.transformer import Transformer

_NARAYANAN = "Narayanan et al. (2021), arXiv:2104.04473, table 1"
_KORTHIKANTI = "Korthikanti et al. (2022), arXiv:2205.05198, table 3"
_LLAMA3 = "Grattafiori et al. (2024), arXiv:2407.21783, table 3"
_GPT2 = "Radford et al. (2019), table 2, as released: huggingface.co/openai-community/"


def models() -> dict[str, Transformer]:
    """Return the models that come with minitrain, by name.

    Example:
        >>> models()["llama3-8b"].num_parameters
        8030261248
    """
    return dict(_shipped())


def find_model(model: str | os.PathLike[str] | Transformer) -> Transformer:
    """Return a model by its name, from a Hugging Face config, or as it is.

    Args:
        model: a shipped name, the path of a config.json or of its folder, or a `Transformer`.

    Raises:
        UsageError: there is no such model, or the config cannot be read.
    """
    if isinstance(model, Transformer):
        return model
    if isinstance(model, str) and model in _shipped():
        return _shipped()[model]
    if isinstance(model, os.PathLike) or (isinstance(model, str) and _is_path(model)):
        return Transformer.from_hf(model)
    hint = f"{closest(model, _shipped())} ".lstrip()
    raise UsageError(
        f"there is no model {shown(model)}; {hint}shipped are {', '.join(_shipped())}; a path to a Hugging Face "
        "config.json or an mt.Transformer will do as well",
        model=model,
    )


def _is_path(text: str) -> bool:
    """Whether a text can only be meant as a path."""
    return text.endswith(".json") or os.sep in text


@lru_cache(maxsize=1)
def _shipped() -> MappingProxyType[str, Transformer]:
    """Make the models, once."""
    found = (
        *_tiny(),
        *_gpt2(),
        *_gpt3(),
        *_megatron(),
        *_llama2(),
        *_llama3(),
        *_mistral(),
        *_olmoe(),
        *_qwen(),
        *_deepseek(),
    )
    return MappingProxyType({model.name: model for model in found})


def _tiny() -> Iterator[Transformer]:
    """Yield models for proofs and tests, in the smallest sizes that eight ranks can divide.

    One has all that Llama 3 has, the other experts in both layers as DeepSeek-V3 has them, one of them shared.
    """
    source = "minitrain, for proofs and tests"
    yield _llama("tiny", 2, 64, 128, 8, 256, 32, source, num_kv_heads=4)
    experts = {"num_experts": 8, "experts_per_token": 2, "num_shared_experts": 1, "moe_ffn_hidden_size": 32}
    yield _llama("tiny-moe", 2, 64, 128, 8, 256, 32, source, num_kv_heads=4, **experts)


def _gpt2() -> Iterator[Transformer]:
    """Yield the four sizes of GPT-2."""
    sizes = {
        "gpt2": (12, 768, 12),
        "gpt2-medium": (24, 1024, 16),
        "gpt2-large": (36, 1280, 20),
        "gpt2-xl": (48, 1600, 25),
    }
    for name, size in sizes.items():
        yield _gpt(name, *size, 50257, 1024, f"{_GPT2}{name}")


def _gpt3() -> Iterator[Transformer]:
    """Yield the largest GPT-3, its sparse attention layers as dense ones."""
    source = "Brown et al. (2020), arXiv:2005.14165, table 2.1; its locally banded attention is taken as dense"
    yield _gpt("gpt3-175b", 96, 12288, 96, 50257, 2048, source)


def _megatron() -> Iterator[Transformer]:
    """Yield the GPTs of Megatron-LM's papers: layers, hidden size, heads."""
    sizes = {
        "1.7b": (24, 2304, 24, _NARAYANAN),
        "3.6b": (30, 3072, 32, _NARAYANAN),
        "7.5b": (36, 4096, 32, _NARAYANAN),
        "18b": (40, 6144, 48, _NARAYANAN),
        "22b": (48, 6144, 64, _KORTHIKANTI),
        "39b": (48, 8192, 64, _NARAYANAN),
        "76b": (60, 10240, 80, _NARAYANAN),
        "145b": (80, 12288, 96, _NARAYANAN),
        "175b": (96, 12288, 96, _KORTHIKANTI),
        "310b": (96, 16384, 128, _NARAYANAN),
        "530b": (105, 20480, 128, f"{_NARAYANAN}; {_KORTHIKANTI}"),
        "1t": (128, 25600, 160, f"{_NARAYANAN}; {_KORTHIKANTI}"),
    }
    for name, (num_layers, hidden_size, num_heads, source) in sizes.items():
        yield _gpt(f"megatron-{name}", num_layers, hidden_size, num_heads, 51200, 2048, source)


def _llama2() -> Iterator[Transformer]:
    """Yield the sizes of Llama 2."""
    source = "Touvron et al. (2023), arXiv:2307.09288, table 1, and huggingface.co/meta-llama/Llama-2-"
    yield _llama("llama2-7b", 32, 4096, 11008, 32, 32000, 4096, f"{source}7b-hf")
    yield _llama("llama2-13b", 40, 5120, 13824, 40, 32000, 4096, f"{source}13b-hf")
    yield _llama("llama2-70b", 80, 8192, 28672, 64, 32000, 4096, f"{source}70b-hf", num_kv_heads=8)


def _llama3() -> Iterator[Transformer]:
    """Yield the sizes of Llama 3, 3.1 and 3.2."""
    usual: dict[str, Any] = {"num_kv_heads": 8, "rope_theta": 500000.0}
    released: dict[str, Any] = {**usual, "rope_scaling": 8.0}
    for version, fields in (("llama3", usual), ("llama3.1", released)):
        yield _llama(f"{version}-8b", 32, 4096, 14336, 32, 128256, 8192, _LLAMA3, **fields)
        yield _llama(f"{version}-70b", 80, 8192, 28672, 64, 128256, 8192, _LLAMA3, **fields)
    yield _llama("llama3.1-405b", 126, 16384, 53248, 128, 128256, 8192, _LLAMA3, **released)
    source, tied = "huggingface.co/meta-llama/Llama-3.2-", {**usual, "tied_embeddings": True, "rope_scaling": 32.0}
    yield _llama("llama3.2-1b", 16, 2048, 8192, 32, 128256, 8192, f"{source}1B", **tied)
    yield _llama("llama3.2-3b", 28, 3072, 8192, 24, 128256, 8192, f"{source}3B", **tied)


def _mistral() -> Iterator[Transformer]:
    """Yield Mistral 7B, with its window, and the two Mixtrals."""
    source = "Jiang et al. (2023), arXiv:2310.06825, table 1"
    yield _llama("mistral-7b", 32, 4096, 14336, 32, 32000, 8192, source, num_kv_heads=8, window=4096)
    experts: dict[str, Any] = {"num_kv_heads": 8, "num_experts": 8, "experts_per_token": 2, "rope_theta": 1000000.0}
    source = "Jiang et al. (2024), arXiv:2401.04088, table 1"
    yield _llama("mixtral-8x7b", 32, 4096, 14336, 32, 32000, 32768, source, **experts)
    source = "huggingface.co/mistralai/Mixtral-8x22B-v0.1"
    yield _llama("mixtral-8x22b", 56, 6144, 16384, 48, 32000, 65536, source, **experts)


def _olmoe() -> Iterator[Transformer]:
    """Yield OLMoE, whose experts are small enough for few devices to train."""
    source = "Muennighoff et al. (2024), arXiv:2409.02060, table 10, and huggingface.co/allenai/OLMoE-1B-7B-0924"
    experts: dict[str, Any] = {"num_experts": 64, "experts_per_token": 8, "qk_norm": "whole"}
    yield _llama("olmoe-1b-7b", 16, 2048, 1024, 16, 50304, 4096, source, **experts)


def _qwen() -> Iterator[Transformer]:
    """Yield Qwen 2.5, which has biases for queries, keys and values alone."""
    source = "Qwen team (2024), arXiv:2412.15115, and huggingface.co/Qwen/Qwen2.5-7B"
    fields: dict[str, Any] = {"num_kv_heads": 4, "qkv_bias": True, "rope_theta": 1000000.0, "norm_epsilon": 1e-6}
    yield _llama("qwen2.5-7b", 28, 3584, 18944, 28, 152064, 4096, source, **fields)


def _deepseek() -> Iterator[Transformer]:
    """Yield DeepSeek-V3 without its module for multi-token prediction."""
    latent = LatentAttention(query_rank=1536, kv_rank=512, rope_head_dim=64, nope_head_dim=128, value_head_dim=128)
    source = "DeepSeek-AI (2024), arXiv:2412.19437, section 4.2, without its multi-token prediction"
    experts = {"num_experts": 256, "experts_per_token": 8, "num_shared_experts": 1, "moe_ffn_hidden_size": 2048}
    yield _llama(
        "deepseek-v3", 61, 7168, 18432, 128, 129280, 4096, source,
        latent=latent, moe_layers=range(3, 61), router_bias=True, norm_epsilon=1e-6, **experts,
    )  # fmt: skip


def _gpt(
    name: str, num_layers: int, hidden_size: int, num_heads: int, vocab_size: int, seq_len: int, source: str
) -> Transformer:
    """Make a model like GPT-2, trained with dropout and unfused attention, as the papers did."""
    return Transformer(
        name=name,
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        vocab_size=vocab_size,
        seq_len=seq_len,
        source=source,
        dropout=0.1,
        attention="unfused",
    )


def _llama(
    name: str,
    num_layers: int,
    hidden_size: int,
    ffn_hidden_size: int,
    num_heads: int,
    vocab_size: int,
    seq_len: int,
    source: str,
    **fields: Any,
) -> Transformer:
    """Make a model like Llama: SwiGLU, rmsnorm, rotary positions, no biases."""
    return Transformer(
        name=name,
        num_layers=num_layers,
        hidden_size=hidden_size,
        ffn_hidden_size=ffn_hidden_size,
        num_heads=num_heads,
        vocab_size=vocab_size,
        seq_len=seq_len,
        source=source,
        mlp="swiglu",
        norm="rmsnorm",
        **fields,
    )


def summary(model: Transformer) -> dict[str, Any]:
    """Return a model's fields and what follows from them.

    Returns:
        name, source, fields (as `Transformer` takes them), num_parameters, num_active_parameters, parameters_by_kind,
        flop_per_token (of a step, all pairs of attention) and saved_bytes_per_token, the last two by recomputation.
    """
    fields = asdict(model)
    return {
        "name": fields.pop("name"),
        "source": fields.pop("source"),
        "fields": fields,
        "num_parameters": model.num_parameters,
        "num_active_parameters": model.num_active_parameters,
        "parameters_by_kind": model.parameters_by_kind(),
        "flop_per_token": {mode: model.flop_per_token(recompute=mode) for mode in RECOMPUTE},
        "saved_bytes_per_token": {mode: saved_bytes_per_token(model, mode) for mode in RECOMPUTE},
    }


def saved_bytes_per_token(model: Transformer, recompute: Recompute) -> float:
    """Return the bytes that the whole model keeps for backward for each token, on one device."""
    sample = Work(num_samples=1, seq_len=model.seq_len)
    return sum(unit.saved_bytes(sample, recompute) for unit in model.units()) / model.seq_len
