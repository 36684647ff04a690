"""How configs of models with layernorm and two matrices in their MLP are read: GPT-2, GPT-NeoX, OPT and Nemotron."""

from __future__ import annotations

from minitrain.workloads.config_reader import ConfigReader
from minitrain.workloads.hugging_face_fields import GELUS, Fields, attention_bias, heads, rotary, usual


def _like_gpt(config: ConfigReader, activation_key: str, activation: str, epsilon_key: str, *, tied: bool) -> Fields:
    """Read a model with two matrices in its MLP, layernorm and biases."""
    function = config.only(activation_key, activation, *GELUS, "relu")
    return {
        "mlp": "relu" if function == "relu" else "gelu",
        "norm": "layernorm",
        "norm_epsilon": config.positive(epsilon_key, 1e-5),
        "bias": True,
        "tied_embeddings": config.flag("tie_word_embeddings", default=tied),
    }


def nemotron(config: ConfigReader) -> Fields:
    """Read Nemotron 4 and Minitron: layernorm, and the square of ReLU."""
    config.only("hidden_act", "relu2", "relu2")
    return {
        **usual(config),
        **rotary(config),
        **heads(config),
        **attention_bias(config),
        "rope_share": config.positive("partial_rotary_factor", 0.5),
        "ffn_hidden_size": config.count("intermediate_size"),
        "mlp": "relu2",
        "norm": "layernorm",
        "norm_epsilon": config.positive("norm_eps", 1e-5),
        "bias": True,  # of the norms
        "mlp_bias": config.flag("mlp_bias", default=False),
        "tied_embeddings": config.flag("tie_word_embeddings", default=False),
        "attention_dropout": config.probability("attention_dropout", 0.0),
    }


def gpt2(config: ConfigReader) -> Fields:
    """Read GPT-2."""
    config.pass_over(
        "n_ctx", "reorder_and_upcast_attn", "scale_attn_by_inverse_layer_idx", "scale_attn_weights",
        "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    )  # fmt: skip
    dropout = config.probability("resid_pdrop", 0.1)
    config.only("embd_pdrop", dropout, dropout)
    positions = config.count("n_positions")
    return {
        **_like_gpt(config, "activation_function", "gelu_new", "layer_norm_epsilon", tied=True),
        "num_layers": config.count("n_layer"),
        "hidden_size": config.count("n_embd"),
        "num_heads": config.count("n_head"),
        "vocab_size": config.count("vocab_size"),
        "seq_len": positions,
        "num_positions": positions,
        "ffn_hidden_size": config.optional_count("n_inner"),
        "positions": "learned",
        "dropout": dropout,
        "attention_dropout": config.probability("attn_pdrop", 0.1),
    }


def gpt_neox(config: ConfigReader) -> Fields:
    """Read GPT-NeoX and Pythia."""
    positions = rotary(config, config.positive("rotary_emb_base", 10000.0), "rotary_pct")
    is_parallel = config.flag("use_parallel_residual", default=True)
    return {
        **_like_gpt(config, "hidden_act", "gelu", "layer_norm_eps", tied=False),
        **usual(config),
        **positions,
        **attention_bias(config, default=True),
        "rope_share": config.positive("rotary_pct", 0.25),
        "ffn_hidden_size": config.count("intermediate_size"),
        "dropout": config.probability("hidden_dropout", 0.0),
        "attention_dropout": config.probability("attention_dropout", 0.0),
        "taken_as": (*positions["taken_as"], *(["parallel residual connections"] if is_parallel else [])),
    }


def opt(config: ConfigReader) -> Fields:
    """Read OPT, whose table of positions has two rows more than there are positions."""
    for key in ("do_layer_norm_before", "enable_bias", "layer_norm_elementwise_affine"):
        config.only(key, True, True)
    config.only("_remove_final_layer_norm", False, False)
    config.pass_over("activation_dropout", "layerdrop")
    fields = usual(config)
    config.only("word_embed_proj_dim", fields["hidden_size"], fields["hidden_size"])
    return {
        **_like_gpt(config, "activation_function", "relu", "layer_norm_eps", tied=True),
        **fields,
        "num_positions": fields["seq_len"] and fields["seq_len"] + 2,
        "ffn_hidden_size": config.count("ffn_dim"),
        "positions": "learned",
        "dropout": config.probability("dropout", 0.1),
        "attention_dropout": config.probability("attention_dropout", 0.0),
    }
