"""The fields of a transformer; `transformer` has what follows from them.

Modelled: a decoder that predicts the next token. Every transformer layer is attention and then an MLP (or experts),
each with a norm and beside a residual connection; embeddings come before, a norm and the language-model head after.
Left out: encoders, cross attention, layers whose sizes differ, multi-token prediction, factors on hidden states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from minitrain.workloads.architecture_rules import GATED, completed
from minitrain.workloads.field_faults import refuse
from minitrain.workloads.latent_attention import LatentAttention
from minitrain.workloads.precision import PRECISIONS, Precision

# Fields that follow from others where they are not given: None until then, and never afterwards.
_FOLLOWS: int = None  # type: ignore[assignment]  # filled in by __post_init__
_FOLLOWS_FLAG: bool = None  # type: ignore[assignment]  # the same
_FOLLOWS_TEXT: str = None  # type: ignore[assignment]  # the same
_FOLLOWS_SHARE: float = None  # type: ignore[assignment]  # the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The fields of a `Transformer`; made as one, never by itself.

    What is not given follows from what is. In particular a model with `norm="layernorm"` is one like GPT-2 (biases,
    learned positions, tied embeddings), and one with `norm="rmsnorm"` is one like Llama (none of these).

    Args:
        num_layers: transformer layers.
        hidden_size: size of a token's activation between layers.
        num_heads: attention heads.
        vocab_size: rows of the embedding table.
        seq_len: tokens of a sample in training.
        ffn_hidden_size: hidden size of a dense MLP. Follows as 4 x hidden_size, but for "swiglu", where models differ.
        num_kv_heads: heads of keys and values (grouped-query attention). Follows as num_heads.
        head_dim: size of a head. Follows as hidden_size / num_heads.
        mlp: "gelu", "relu" or "relu2" (its square), two matrices with that function between them; or "swiglu" or
            "geglu", three.
        norm: "layernorm" or "rmsnorm".
        norm_placement: "pre", before attention and MLP; "post", behind them and before the sum (OLMo 2); or "both"
            (Gemma 2 and 3).
        norm_epsilon: what norms add to the variance.
        qk_norm: "head" for a norm of each head's query and key (Qwen 3, Gemma 3), "whole" for one of all heads
            together (OLMo 2), or "none".
        positions: "learned", a table that is added to the embedding; "rotary"; or "none" (ALiBi, say, which has no
            parameters). Follows from `norm`.
        num_positions: rows of the table of learned positions. Follows as seq_len.
        rope_theta: base of rotary positions.
        rope_share: share of a head that is rotated.
        rope_scaling: factor by which its low frequencies are stretched as Llama 3.1 does (`low_freq_factor` 1,
            `high_freq_factor` 4, beyond 8,192 tokens); 1 for none. It costs nothing.
        bias: whether projections, MLP and layernorms have biases. Follows from `norm`. An rmsnorm and the head never
            do.
        qkv_bias: whether queries, keys and values have them. Follows as bias.
        output_bias: whether the attention's output projection has one. Follows as bias.
        mlp_bias: whether the MLP and the experts have them. Follows as bias.
        tied_embeddings: whether the head uses the embedding's table. Follows from `norm`.
        dropout: probability of dropout after embedding, attention and MLP; True is 0.1. What counts is whether it is 0.
        attention_dropout: probability of dropout of attention's probabilities. Follows as dropout.
        attention: "flash", which stores no scores, or "unfused", which stores them.
        window: keys that a query sees at most (sliding-window attention); None for all.
        window_layers: the transformer layers whose attention has the window, from 0. Follows as all if there is one.
        sinks: whether each head has a logit of its own in the softmax, which takes attention from all keys (gpt-oss).
        score_cap: soft cap of attention's scores, cap x tanh(score / cap) (Gemma 2); None for none.
        logit_cap: the same for the logits of the head.
        latent: the sizes of multi-head latent attention; None for the usual projections.
        num_experts: routed experts of an MoE layer; 0 for a dense model.
        experts_per_token: routed experts that a token is sent to.
        num_shared_experts: experts that every token is sent to.
        moe_ffn_hidden_size: hidden size of one expert. Follows as ffn_hidden_size.
        moe_layers: the transformer layers that have experts, from 0. Follows as all if there are experts.
        router_bias: whether the router has a bias for each expert (DeepSeek-V3's, which balances the load).
        precision: a `Precision`, or "bf16" (mixed), "fp16" (mixed) or "fp32".
        max_seq_len: the longest sequence that its source allows, where `seq_len` is shorter; None if not known.
        taken_as: what its source says that costs the same as what these fields say, and is not the same.
        name: what tables call the model.
        source: where its figures come from.

    Raises:
        UsageError: fields contradict each other or their rules; all faults at once.
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    vocab_size: int
    seq_len: int
    ffn_hidden_size: int = _FOLLOWS
    num_kv_heads: int = _FOLLOWS
    head_dim: int = _FOLLOWS
    mlp: str = "gelu"
    norm: str = "layernorm"
    norm_placement: str = "pre"
    norm_epsilon: float = 1e-5
    qk_norm: str = "none"
    positions: str = _FOLLOWS_TEXT
    num_positions: int = _FOLLOWS
    rope_theta: float = 10000.0
    rope_share: float = 1.0
    rope_scaling: float = 1.0
    bias: bool = _FOLLOWS_FLAG
    qkv_bias: bool = _FOLLOWS_FLAG
    output_bias: bool = _FOLLOWS_FLAG
    mlp_bias: bool = _FOLLOWS_FLAG
    tied_embeddings: bool = _FOLLOWS_FLAG
    dropout: float = 0.0
    attention_dropout: float = _FOLLOWS_SHARE
    attention: str = "flash"
    window: int | None = None
    window_layers: Sequence[int] = None  # type: ignore[assignment]  # as those above; a tuple afterwards
    sinks: bool = False
    score_cap: float | None = None
    logit_cap: float | None = None
    latent: LatentAttention | None = None
    num_experts: int = 0
    experts_per_token: int = 0
    num_shared_experts: int = 0
    moe_ffn_hidden_size: int = _FOLLOWS
    moe_layers: Sequence[int] = None  # type: ignore[assignment]  # as those above; a tuple afterwards
    router_bias: bool = False
    precision: Precision = PRECISIONS["bf16"]
    max_seq_len: int | None = None
    taken_as: Sequence[str] = ()
    name: str = "custom"
    source: str = ""

    def __post_init__(self) -> None:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        complete, faults = completed(given)
        if faults:
            raise refuse(f"the transformer {self.name!r}", faults)
        for name, value in complete.items():
            object.__setattr__(self, name, value)

    @property
    def kind(self) -> str:
        """Return the kind of model by which validated runs are told apart."""
        if self.moe_layers:
            return "mixture of experts"
        return "Llama-like" if self.is_gated else "GPT-like"

    @property
    def is_gated(self) -> bool:
        """Return whether MLPs have a third matrix, a gate."""
        return self.mlp in GATED

    @property
    def norm_bias(self) -> bool:
        """Return whether norms have a bias beside their weight."""
        return self.norm == "layernorm" and self.bias
