"""The trained model as a value: a transformer, its parameters, FLOPs and units, which weights train; shipped models.

    import minitrain as mt

    model = mt.Transformer(num_layers=24, hidden_size=2304, num_heads=24, vocab_size=51200, seq_len=2048)
    model.num_parameters, model.flop_per_token(recompute="full")

`architecture` says what its fields are, and `unit` what its units are. Sources: Narayanan et al. (2021), "Efficient
large-scale language model training on GPU clusters using Megatron-LM", for FLOPs and parameters; Korthikanti et al.
(2022), "Reducing activation recomputation in large transformer models", for memory.

**Which weights train** (`with_trained`): all, those of the last layers, or low-rank adapters beside frozen matrices.
What is frozen has no gradient, no optimizer state and no multiplication for its gradient, and what was kept for that
alone is not kept. A unit below all that is trained has no backward.

**Adapters** (Hu et al. 2021, "LoRA: Low-rank adaptation of large language models"). Each adapted matrix, k inputs by n
outputs, has two more: A of k x rank, and B of rank x n. Tensor parallelism cuts them as it cuts the matrix: where that
is cut by columns, B is, and every part has A; where it is cut by rows, A is, and every part has B. What every part has,
each takes all tokens through, so that a part's gradient of it is one share of a sum over the parts. Megatron-Bridge
exchanges the rank's activations in every pass instead, and has no such sum.

**Shipped models** (`models`) have names and sources. Their `seq_len` is that of most of pre-training, which may be
shorter than the context that a model is used with. Precision is mixed, bf16 or fp16 beside single precision: 2 + 4 + 12
bytes a parameter.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, final

from minitrain.errors import UsageError, closest, count_fault, refuse, shown
from minitrain.workloads.architecture import Architecture, LatentAttention, Lora
from minitrain.workloads.shapes import ADAPTER, RECOMPUTE, Cut, Projection, Recompute, SavedTensor, WeightShape, Work
from minitrain.workloads.unit import Unit, attention_unit, embedding_unit, head_unit, mlp_unit, moe_unit, predicting


def with_trained(model: Architecture, units: Iterable[Unit]) -> tuple[Unit, ...]:
    """Return a model's units with the weights that it trains marked, and adapters beside its matrices."""
    found, trains = list[Unit](), False
    for unit in units:
        marked = _marked(model, unit) if model.lora or model.frozen_layers else unit
        trains = trains or any(weight.is_trained for weight in marked.weights)
        found.append(marked if trains else replace(marked, saved=(), has_backward=False))
    return tuple(found)


def _marked(model: Architecture, unit: Unit) -> Unit:
    """Return a unit with its trained weights marked."""
    first = unit.kind == "embedding" or (unit.layer is not None and unit.layer < model.frozen_layers)
    if first or model.lora is not None:
        adapted = () if first or model.lora is None else tuple(_adapted(unit, model.lora))
        unit = _frozen(unit, adapted)
        return unit if model.lora is None else _with_adapters(model, model.lora, unit, adapted)
    tied = any(weight.is_shared for weight in unit.weights)  # to the embedding, which is frozen
    return _with_frozen_table(unit) if tied else unit


def _adapted(unit: Unit, lora: Lora) -> Iterator[WeightShape]:
    """Yield the matrices of a unit that have adapters."""
    for weight in unit.weights:
        if weight.name in (lora.targets or ()) and len(weight.shape) == 2 and unit.kind in ("attention", "mlp"):
            yield weight


def _frozen(unit: Unit, adapted: tuple[WeightShape, ...]) -> Unit:
    """Return a unit of which nothing is trained, without what is kept for its weights; adapters need their inputs."""
    kept_for = {weight.name for weight in adapted}
    return replace(
        unit,
        weights=tuple(replace(weight, is_trained=False) for weight in unit.weights),
        projections=tuple(replace(projection, is_trained=False) for projection in unit.projections),
        saved=tuple(each for each in unit.saved if not each.needed_for or kept_for.intersection(each.needed_for)),
    )


def _with_frozen_table(head: Unit) -> Unit:
    """Return a head whose norm is trained, and whose table is that of a frozen embedding."""
    return replace(
        head,
        weights=tuple(replace(weight, is_trained=not weight.is_shared) for weight in head.weights),
        projections=tuple(replace(projection, is_trained=False) for projection in head.projections),
        saved=tuple(each for each in head.saved if "tokens" not in each.needed_for),
    )


def _with_adapters(model: Architecture, lora: Lora, unit: Unit, adapted: tuple[WeightShape, ...]) -> Unit:
    """Return a unit with adapters beside some of its matrices."""
    module = "self_attn" if unit.kind == "attention" else "mlp"
    weights, projections, saved = list(unit.weights), list(unit.projections), list(unit.saved)
    for weight in adapted:
        (k, n), cut, by_rows = weight.shape, weight.cut, weight.cut_dim == 0
        copied, a, b = Cut("rank", lora.rank, is_copied=True), f"{weight.name}{ADAPTER}a", f"{weight.name}{ADAPTER}b"
        weights.append(WeightShape(a, (k, lora.rank), cut if by_rows else None, 0))
        weights.append(WeightShape(b, (lora.rank, n), None if by_rows else cut, 1))
        projections.append(Projection(a, k, lora.rank, cut if by_rows else copied, "k" if by_rows else "n"))
        projections.append(Projection(b, lora.rank, n, copied if by_rows else cut, "k" if by_rows else "n"))
        between = SavedTensor(f"{b} input", lora.rank, model.precision.activation_bytes, copied, (module,))
        saved.append(between)
    return replace(
        unit, weights=tuple(weights), projections=tuple(projections), saved=tuple(saved), adapter_scale=lora.scale
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer(Architecture):
    """A transformer that predicts the next token; its fields are those of `Architecture`.

    Example:
        >>> gpt2 = Transformer(num_layers=12, hidden_size=768, num_heads=12, vocab_size=50257, seq_len=1024)
        >>> gpt2.num_parameters
        124439808
        >>> [unit.name for unit in gpt2.units()][:4]
        ['embedding', 'attention 0', 'mlp 0', 'attention 1']
    """

    @classmethod
    def from_hf(
        cls, config: str | os.PathLike[str] | Mapping[str, Any], /, *, ignore: Sequence[str] = (), **changes: Any
    ) -> Transformer:
        """Read a config of Hugging Face's transformers.

        The families are llama, mistral, mixtral, qwen2, qwen3, qwen3_moe, gemma2, gemma3, gpt_oss, olmo2, phi3,
        granite, nemotron, deepseek_v2, deepseek_v3, gpt2, gpt_neox and opt. Without `seq_len`, samples have 8,192
        tokens, or as many as the model takes if these are less.

        Args:
            config: the path of a config.json or of the folder that holds it, or the config itself as a mapping.
            ignore: keys that the caller knows to have no bearing on shapes, beside those that minitrain knows.
            changes: fields to set instead of what the config says, such as `seq_len`, `precision` or `attention`.

        Raises:
            UsageError: the file cannot be read, or the config says what cannot be modelled; all keys at once.
        """
        from minitrain.workloads.hugging_face import fields_of  # noqa: PLC0415 - only where a config is read

        return cls(**{**fields_of(config, ignore), **changes})

    def units(self) -> tuple[Unit, ...]:
        """Return what the engine calls layers: embedding, attention 0, mlp 0 (or moe 0), ..., head."""
        return _units(self)

    @property
    def num_parameters(self) -> int:
        """Return the parameters, those of all experts included; tied embeddings count once."""
        return sum(unit.num_parameters for unit in self.units())

    @property
    def num_trained_parameters(self) -> int:
        """Return the parameters that have a gradient."""
        weights = (weight for unit in self.units() for weight in unit.weights)
        return sum(weight.num_parameters for weight in weights if weight.is_trained and not weight.is_shared)

    @property
    def num_active_parameters(self) -> int:
        """Return the parameters that one token uses: all but those of the experts that it is not sent to.

        The embedding's table counts whole, as in the figures that models are published with.
        """
        return sum(unit.num_active_parameters for unit in self.units())

    def parameters_by_kind(self) -> dict[str, int]:
        """Return the parameters of embedding, attention, mlp, moe and head without their norms, and of all norms."""
        found: dict[str, int] = {}
        for unit in self.units():
            found[unit.kind] = found.get(unit.kind, 0) + unit.num_parameters - unit.num_norm_parameters
        found["norms"] = sum(unit.num_norm_parameters for unit in self.units())
        return found

    def flop_per_token(
        self, seq_len: int | None = None, *, recompute: Recompute = "none", causal: bool = False
    ) -> float:
        """Return the floating-point operations of a training step for each of its tokens.

        Counted are the matrix multiplications of forward, twice as many of backward (once as many for weights that are
        not trained, none below all that is), and what backward repeats. For a
        GPT this gives a step's 96 B s L h^2 (1 + s/6h + V/16Lh) with "full", and 72 B s L h^2 (1 + s/6h + V/12Lh) with
        "none", the FLOPs that MFU is about. What flash attention repeats within its backward is not counted.

        Args:
            seq_len: tokens of a sample; the model's own if None.
            recompute: what backward computes again; "full" leaves out embedding and head.
            causal: whether attention counts only pairs that the causal mask leaves, s (s + 1) / 2 of s^2. The
                papers count all pairs (of the window, where there is one).

        Returns:
            FLOPs, an int where they are whole.

        Raises:
            UsageError: `seq_len` is no integer of at least 1, or there is no such `recompute`.

        Source:
            Narayanan et al. (2021), equation 3 and its appendix; experts as those that a token is sent to.
        """
        length = self.seq_len if seq_len is None else seq_len
        fault = count_fault("seq_len", length, 1, "seq_len=2048")
        if fault:
            raise refuse("the sequence", [fault])
        sample = sum(
            unit.training_flop(length, causal=causal) + unit.recomputed_flop(length, recompute, causal=causal)
            for unit in self.units()
        )
        whole, rest = divmod(sample, length)
        return sample / length if rest else whole


@lru_cache(maxsize=64)
def _units(model: Architecture) -> tuple[Unit, ...]:
    """Make the units of a model, once; equal layers share their tables."""
    experts, windows = frozenset(model.moe_layers), frozenset(model.window_layers)
    attention = {has: attention_unit(model, first) for has, first in _first_of_each(model, windows).items()}
    dense = mlp_unit(model, 0) if len(experts) < model.num_layers else None
    sparse = moe_unit(model, 0) if experts else None
    layers: list[Unit] = []
    for layer in range(model.num_layers):
        after = sparse if layer in experts else dense
        assert after is not None  # made above, where any layer has it
        layers += replace(attention[layer in windows], layer=layer), replace(after, layer=layer)
    of_last = predicting(model, layers[-2]), layers[-1]
    for layer in range(model.num_layers, model.num_layers + model.prediction_layers):
        layers += (replace(unit, layer=layer) for unit in of_last)
    return with_trained(model, (embedding_unit(model), *layers, head_unit(model)))


def _first_of_each(model: Architecture, windows: frozenset[int]) -> dict[bool, int]:
    """Return the first layer with a window and the first without, as far as there are such."""
    return {layer in windows: layer for layer in reversed(range(model.num_layers))}


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
        *_gpt_oss(),
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
    """Yield Qwen 2.5, which has biases for queries, keys and values alone, and Qwen 3, which has norms of heads."""
    source = "Qwen team (2024), arXiv:2412.15115, and huggingface.co/Qwen/Qwen2.5-7B"
    usual: dict[str, Any] = {"num_kv_heads": 4, "rope_theta": 1000000.0, "norm_epsilon": 1e-6}
    yield _llama("qwen2.5-7b", 28, 3584, 18944, 28, 152064, 4096, source, qkv_bias=True, **usual)
    source = "Qwen team (2025), arXiv:2505.09388, table 2, and huggingface.co/Qwen"
    usual |= {"head_dim": 128, "qk_norm": "head", "num_experts": 128, "experts_per_token": 8}
    sizes = (("qwen3-30b-a3b", 48, 2048, 6144, 32, 768), ("qwen3-235b-a22b", 94, 4096, 12288, 64, 1536))
    for name, num_layers, hidden, ffn, num_heads, width in sizes:
        yield _llama(
            name, num_layers, hidden, ffn, num_heads, 151936, 4096, source, moe_ffn_hidden_size=width, **usual
        )  # fmt: skip


def _deepseek() -> Iterator[Transformer]:
    """Yield DeepSeek-V2, and DeepSeek-V3 without its module for multi-token prediction."""
    latent = LatentAttention(query_rank=1536, kv_rank=512, rope_head_dim=64, nope_head_dim=128, value_head_dim=128)
    experts = {"num_experts": 160, "experts_per_token": 6, "num_shared_experts": 2, "moe_ffn_hidden_size": 1536}
    yield _llama(
        "deepseek-v2", 60, 5120, 12288, 128, 102400, 4096, "DeepSeek-AI (2024), arXiv:2405.04434, section 3.1.2",
        latent=latent, moe_layers=range(1, 60), norm_epsilon=1e-6, **experts,
    )  # fmt: skip
    source = "DeepSeek-AI (2024), arXiv:2412.19437, section 4.2, without its multi-token prediction"
    experts = {"num_experts": 256, "experts_per_token": 8, "num_shared_experts": 1, "moe_ffn_hidden_size": 2048}
    yield _llama(
        "deepseek-v3", 61, 7168, 18432, 128, 129280, 4096, source,
        latent=latent, moe_layers=range(3, 61), router_bias=True, norm_epsilon=1e-6, **experts,
    )  # fmt: skip


def _gpt_oss() -> Iterator[Transformer]:
    """Yield gpt-oss, of which every other layer has a window."""
    source = "OpenAI (2025), arXiv:2508.10925, table 1, and huggingface.co/openai"
    for name, num_layers, num_experts in (("gpt-oss-20b", 24, 32), ("gpt-oss-120b", 36, 128)):
        yield _llama(
            name, num_layers, 2880, 2880, 64, 201088, 8192, source, max_seq_len=131072, num_kv_heads=8, head_dim=64,
            qkv_bias=True, output_bias=True, mlp_bias=True, window=128, window_layers=range(0, num_layers, 2),
            sinks=True, gate_clamp=7.0, num_experts=num_experts, experts_per_token=4, router_bias=True,
            rope_theta=150000.0,
            taken_as=("rope_scaling yarn", "clamped SwiGLU", "a bias of the router's product"),
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
