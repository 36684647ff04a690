"""Hugging Face configs: what transformers itself counts, how fields are read, and what cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt

FOUND = json.loads((Path(__file__).parent / "hugging_face.json").read_text())
CONFIGS, PUBLISHED = FOUND["configs"], FOUND["published"]
LLAMA: dict[str, Any] = CONFIGS[0]["config"]

# As they were published, with all the keys that say nothing about shapes.
GPT2 = """{
  "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256,
  "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
  "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
  "resid_pdrop": 0.1, "summary_activation": null, "summary_first_dropout": 0.1, "summary_proj_to_labels": true,
  "summary_type": "cls_index", "summary_use_proj": true,
  "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}, "vocab_size": 50257
}"""
DEEPSEEK_V3 = """{
  "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}, "bos_token_id": 0, "eos_token_id": 1,
  "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168, "initializer_range": 0.02,
  "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type": "deepseek_v3",
  "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1,
  "norm_topk_prob": true, "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
  "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
  "qk_rope_head_dim": 64, "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3"},
  "rms_norm_eps": 1e-06, "rope_scaling": {"factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "type": "yarn"},
  "rope_theta": 10000,
  "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": false, "topk_group": 4,
  "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "transformers_version": "4.33.1", "use_cache": true,
  "v_head_dim": 128, "vocab_size": 129280
}"""


def keys_of(config: Any, **options: Any) -> tuple[str, ...]:
    """Return the keys that an error lists."""
    with pytest.raises(mt.UsageError, match=r"must|missing|not known") as caught:
        mt.Transformer.from_hf(config, **options)
    keys: tuple[str, ...] = caught.value.facts["keys"]
    return keys


@pytest.mark.parametrize("row", CONFIGS, ids=lambda row: f"{row['config']['model_type']}-{row['parameters']}")
def test_a_config_has_the_parameters_that_transformers_counts(row: dict[str, Any]) -> None:
    assert mt.Transformer.from_hf(row["config"]).num_parameters == row["parameters"]


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: str(row["name"]))
def test_current_models_have_the_parameters_that_they_were_published_with(row: dict[str, Any]) -> None:
    model = mt.Transformer.from_hf(row["config"])
    of_xielu = 2 * model.num_layers * ("xIELU, with two learned numbers a layer, as GELU" in model.taken_as)
    assert model.num_parameters == row["parameters"] - of_xielu
    if model.num_experts:  # cards count the tables of tokens or do not, and round
        active, tables = model.num_active_parameters / 1e9, 2e-9 * model.vocab_size * model.hidden_size
        rounded = 0.5 if row["active"] == int(row["active"]) else 0.05
        assert active - tables - rounded < row["active"] < active + rounded


def test_what_layers_of_current_models_have_is_read() -> None:
    read = {row["name"]: mt.Transformer.from_hf(row["config"]) for row in PUBLISHED}
    glm, minimax, olmo, ernie = (read[name] for name in ("GLM-4.5", "MiniMax-M2", "Olmo-3-32B", "ERNIE-4.5-21B-A3B"))
    assert (glm.qkv_bias, glm.output_bias, glm.qk_norm, glm.rope_share) == (True, False, "head", 0.5)
    assert (glm.moe_layers, glm.num_shared_experts, glm.router_bias) == (tuple(range(3, 92)), 1, True)
    assert (minimax.qk_norm, minimax.window, minimax.rope_theta) == ("whole", None, 5e6)
    config = next(row["config"] for row in PUBLISHED if row["name"] == "MiniMax-M2")
    assert mt.Transformer.from_hf({**config, "attn_type_list": [1] * 62}) == minimax
    for other in ([0, 1] * 31, [0] * 62):
        assert keys_of({**config, "attn_type_list": other}) == ("attn_type_list",)
    assert (olmo.norm_placement, olmo.window, olmo.window_layers[:4]) == ("post", 4096, (0, 1, 2, 4))
    assert (ernie.num_shared_experts, ernie.moe_layers[0], ernie.tied_embeddings) == (2, 1, True)
    assert (read["GLM-4-9B-0414"].norm_placement, read["Seed-OSS-36B"].dropout) == ("both", 0.1)
    gated = read["Qwen1.5-MoE-A2.7B"]
    assert (gated.num_shared_experts, gated.shared_gate) == (4, True)


def test_layers_with_experts_are_read_as_each_family_says() -> None:
    read = {row["name"]: row["config"] for row in PUBLISHED}
    found = mt.Transformer.from_hf({**read["ERNIE-4.5-21B-A3B"], "moe_layer_interval": 2, "moe_layer_end_index": 9})
    assert found.moe_layers == (1, 3, 5, 7, 9)
    kinds = ["dense"] * 2 + ["sparse"] * 90
    assert mt.Transformer.from_hf({**read["GLM-4.5"], "mlp_layer_types": kinds}).moe_layers == tuple(range(2, 92))
    listed = mt.Transformer.from_hf({**read["Hunyuan-A13B"], "moe_topk": [8] * 32, "num_shared_expert": [1] * 32})
    assert listed == mt.Transformer.from_hf(read["Hunyuan-A13B"])
    assert keys_of({**read["Hunyuan-A13B"], "moe_topk": [8, 4]}) == ("moe_topk",)
    assert keys_of({**read["Qwen1.5-MoE-A2.7B"], "shared_expert_intermediate_size": 2000}) == (
        "shared_expert_intermediate_size",
    )


def test_llama_4_sees_chunks_of_8192_tokens_in_three_of_four_layers() -> None:
    scout, maverick = (
        mt.Transformer.from_hf({"model_type": "llama4", "text_config": row["config"]}, seq_len=32768)
        for row in PUBLISHED
        if row["config"]["model_type"] == "llama4_text"
    )
    assert (scout.window, scout.chunked_windows, scout.window_layers[:4]) == (8192, True, (0, 1, 2, 4))
    assert (scout.moe_layers, maverick.moe_layers) == (tuple(range(48)), tuple(range(1, 48, 2)))
    assert (maverick.ffn_hidden_size, maverick.moe_ffn_hidden_size, maverick.num_shared_experts) == (16384, 8192, 1)
    assert scout.taken_as[-1] == "its vision tower"
    of_all, of_chunks = (4 * 40 * 128 * length**2 for length in (32768, 8192))  # scores and values, all pairs
    flop = [unit.core.flop(32768, causal=False) for unit in scout.units() if unit.core is not None]
    assert sum(flop) == 12 * of_all + 36 * 4 * of_chunks
    listed = PUBLISHED[0]["config"] | {"no_rope_layers": [0, 1] * 24}
    assert mt.Transformer.from_hf(listed).window_layers == tuple(range(1, 48, 2))


def test_the_language_model_is_taken_of_one_that_sees() -> None:
    inner = next(row["config"] for row in PUBLISHED if row["config"]["model_type"] == "mistral")
    seeing = mt.Transformer.from_hf({"model_type": "mistral3", "text_config": inner, "vision_config": {}})
    assert seeing.num_parameters == mt.Transformer.from_hf(inner).num_parameters
    assert seeing.taken_as == ("its vision tower",)
    unknown = {"model_type": "mistral3", "text_config": {**inner, "model_type": "mistral9"}}
    with pytest.raises(mt.UsageError, match=r'text_config\.model_type must be one .*got "mistral9"'):
        mt.Transformer.from_hf(unknown)


@pytest.mark.parametrize("name", ["gemma3n", "falcon_h1", "mamba2"])
def test_a_family_with_what_is_not_modelled_is_refused_by_that(name: str) -> None:
    with pytest.raises(mt.UsageError, match=rf'got "{name}"; it has .*, which are not modelled; mt.Transformer'):
        mt.Transformer.from_hf({"model_type": name})


def test_multi_token_prediction_is_read_of_published_configs() -> None:
    found = mt.Transformer.from_hf(json.loads(DEEPSEEK_V3))
    assert (found.prediction_layers, found.taken_as) == (1, ("rope_scaling yarn",))
    # NVIDIA counts 1,028 TFLOP/s for 3,955 tokens/s (Megatron Bridge 26.02), and 782 for 3,139 without (25.11).
    assert found.flop_per_token(4096, causal=True) == pytest.approx(1028e12 / 3955, rel=0.005)
    assert mt.models()["deepseek-v3"].flop_per_token(4096, causal=True) == pytest.approx(782e12 / 3139, rel=0.01)
    assert round(found.num_parameters / 1e9, 1) == 682.6  # 671.0, and a layer of 11.6


@pytest.mark.parametrize(("text", "name"), [(GPT2, "gpt2"), (DEEPSEEK_V3, "deepseek-v3")], ids=["gpt2", "deepseek-v3"])
def test_published_configs_are_the_shipped_models(text: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    shipped = mt.models()[name]
    kept = ("seq_len", "max_seq_len", "num_positions", "attention", "name", "taken_as", "prediction_layers")
    changes: dict[str, Any] = {key: getattr(shipped, key) for key in kept}
    for source in (path, str(path), tmp_path, json.loads(text)):
        assert mt.Transformer.from_hf(source, **changes, source=shipped.source) == shipped


def test_the_kinds_of_a_family_are_read() -> None:
    read = {row["config"]["model_type"]: mt.Transformer.from_hf(row["config"]) for row in reversed(CONFIGS)}
    assert {name: (model.mlp, model.norm, model.positions, model.tied_embeddings) for name, model in read.items()} == {
        "llama": ("swiglu", "rmsnorm", "rotary", False),
        "mistral": ("swiglu", "rmsnorm", "rotary", False),
        "qwen2": ("swiglu", "rmsnorm", "rotary", False),
        "mixtral": ("swiglu", "rmsnorm", "rotary", False),
        "gpt2": ("gelu", "layernorm", "learned", True),
        "gpt_neox": ("gelu", "layernorm", "rotary", False),
        "opt": ("relu", "layernorm", "learned", True),
        "deepseek_v2": ("swiglu", "rmsnorm", "rotary", False),
        "deepseek_v3": ("swiglu", "rmsnorm", "rotary", False),
        "qwen3": ("swiglu", "rmsnorm", "rotary", True),
        "qwen3_moe": ("swiglu", "rmsnorm", "rotary", False),
        "gemma2": ("geglu", "rmsnorm", "rotary", True),
        "gemma3_text": ("geglu", "rmsnorm", "rotary", True),
        "gpt_oss": ("swiglu", "rmsnorm", "rotary", False),
        "olmo2": ("swiglu", "rmsnorm", "rotary", False),
        "phi3": ("swiglu", "rmsnorm", "rotary", False),
        "granite": ("swiglu", "rmsnorm", "rotary", True),
        "nemotron": ("relu2", "layernorm", "rotary", False),
    }
    assert read["mistral"].window == 4096
    assert read["opt"].num_positions == read["opt"].seq_len + 2
    assert (read["gpt2"].dropout, read["opt"].dropout, read["opt"].attention_dropout) == (0.1, 0.1, 0.0)


def test_absent_keys_have_the_values_of_transformers() -> None:
    sizes = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    least = {key: LLAMA[key] for key in (*sizes, "max_position_embeddings")}
    name = {"name": "llama", "source": ""}
    assert mt.Transformer.from_hf(least, **name) == mt.Transformer.from_hf(LLAMA, **name)


def test_fields_can_be_set_instead_of_what_the_config_says() -> None:
    model = mt.Transformer.from_hf(LLAMA, seq_len=512, attention="unfused", precision="fp32", name="mine")
    assert (model.seq_len, model.attention, model.precision.name, model.name) == (512, "unfused", "fp32", "mine")


def test_a_model_is_called_as_its_config_says() -> None:
    assert mt.Transformer.from_hf({**LLAMA, "_name_or_path": "meta-llama/Llama-2-7b-hf"}).name == "Llama-2-7b-hf"


def test_one_error_lists_every_key_that_cannot_be_read() -> None:
    config = {
        **LLAMA,
        "hidden_act": "gelu",
        "attention_bias": "no",
        "rope": 1,
        "num_experts": 3,
        "is_encoder_decoder": True,
    }
    del config["hidden_size"]
    expected = ("is_encoder_decoder", "hidden_act", "hidden_size", "attention_bias", "rope", "num_experts")
    assert keys_of(config) == expected
    with pytest.raises(
        mt.UsageError, match=r"(?s)config has 6 faults:\n- is_enc.*\n- attention_bias must be true or false"
    ):
        mt.Transformer.from_hf(config)


def test_an_unknown_key_can_be_passed_over() -> None:
    config = {**LLAMA, "unsloth_version": "2024.9"}
    with pytest.raises(
        mt.UsageError, match=r"unsloth_version is not known for llama.*pass ignore=\('unsloth_version',\)"
    ):
        mt.Transformer.from_hf(config)
    assert mt.Transformer.from_hf(config, ignore=["unsloth_version"]).num_parameters == 6_738_415_616


def test_a_misspelt_key_is_told_with_the_one_that_is_meant() -> None:
    config = {key.replace("hidden_layers", "hiden_layers"): value for key, value in LLAMA.items()}
    said = (
        r"num_hidden_layers is missing.*\n- num_hiden_layers is not known for llama: did you mean num_hidden_layers\?"
    )
    with pytest.raises(mt.UsageError, match=said):
        mt.Transformer.from_hf(config)


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("qwen2", "use_sliding_window", "yes"),
        ("qwen2", "layer_types", ["full_attention", "chunked_attention"]),
        ("gemma2", "layer_types", ["full_attention"]),
        ("gemma2", "hidden_activation", "silu"),
        ("gemma3_text", "use_bidirectional_attention", True),
        ("gpt_oss", "rope_theta", -1),
        ("nemotron", "hidden_act", "silu"),
        ("qwen3_moe", "mlp_only_layers", [-1]),
        ("deepseek_v2", "topk_method", "noaux_tc"),
        ("gpt2", "embd_pdrop", 0.0),
        ("gpt2", "activation_function", "silu"),
        ("opt", "word_embed_proj_dim", 512),
        ("opt", "do_layer_norm_before", False),
        ("opt", "_remove_final_layer_norm", True),
        ("deepseek_v3", "topk_method", "greedy"),
        ("deepseek_v3", "attention_bias", True),
        ("deepseek_v3", "kv_lora_rank", None),
        ("mixtral", "num_local_experts", 0),
        ("gpt_neox", "hidden_dropout", 1.5),
        ("llama", "pruned_heads", {"0": [1]}),
    ],
)
def test_what_cannot_be_modelled_is_refused(family: str, key: str, value: Any) -> None:
    config = next(row["config"] for row in CONFIGS if row["config"]["model_type"] == family)
    assert keys_of({**config, key: value}) == (key,)


def misspelt(key: str) -> str:
    """Return a key without its second letter."""
    return key[:1] + key[2:]


@pytest.mark.parametrize(
    "row", [*CONFIGS, *PUBLISHED], ids=lambda row: f"{row['config']['model_type']}-{row['parameters']}"
)
def test_every_key_of_a_family_is_refused_where_it_is_misspelt(row: dict[str, Any]) -> None:
    config = row["config"]
    for key in config.keys() - {"model_type", "text_config"}:
        changed = {misspelt(other) if other == key else other: value for other, value in config.items()}
        assert misspelt(key) in keys_of(changed)


def test_scaled_positions_and_stored_weights_are_known_or_refused() -> None:
    with pytest.raises(mt.UsageError, match=r"rope_scaling.rop_type is not known; did you mean .*rope_type"):
        mt.Transformer.from_hf({**LLAMA, "rope_scaling": {"rop_type": "yarn", "factor": 4.0}})
    assert keys_of({**LLAMA, "quantization_config": {"quant_method": "bitsandbytes"}}) == ("quantization_config",)
    stored = {**LLAMA, "quantization_config": {"quant_method": "fp8"}}
    assert mt.Transformer.from_hf(stored) == mt.Transformer.from_hf(LLAMA)


def test_an_unknown_family_is_refused_with_the_known_ones() -> None:
    with pytest.raises(mt.UsageError, match=r'model_type must be one of llama, .*, got "lama"; did you mean "llama"'):
        mt.Transformer.from_hf({"model_type": "lama"})
    with pytest.raises(mt.UsageError, match=r'got "t5"; describe the model with mt.Transformer\(\.\.\.\)'):
        mt.Transformer.from_hf({"model_type": "t5"})
    assert keys_of({}) == ("model_type",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "can be read: expected JSON, found a mistake in line 1, column 2"),
        ("[1]", r"must hold a JSON object, got \[1\]"),
    ],
)
def test_a_file_that_is_no_config_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(mt.UsageError, match=message):
        mt.Transformer.from_hf(path)


def test_a_source_that_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        mt.UsageError, match=r"must be a config.json that can be read: .*No such file.*; check the path"
    ):
        mt.Transformer.from_hf(tmp_path / "nowhere.json")
    with pytest.raises(mt.UsageError, match="the config must be a path or a mapping, got 4"):
        mt.Transformer.from_hf(4)  # type: ignore[arg-type]


def test_a_config_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(mt.UsageError, match=r"num_heads \(32\) must be a multiple of num_kv_heads \(5\)"):
        mt.Transformer.from_hf({**LLAMA, "num_key_value_heads": 5})
