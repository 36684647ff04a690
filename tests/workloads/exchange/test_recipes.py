"""Recipes of other tools: what is written can be read again, and what cannot be said or modelled is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.run.strategy_loading import documented_options, load_strategy
from minitrain.workloads.architecture import Precision
from minitrain.workloads.exchange.megatron_core import evaluated
from minitrain.workloads.exchange.megatron_lm import OPTIONS, words_of
from minitrain.workloads.exchange.reading import TOOLS, require_words
from minitrain.workloads.exchange.recipe import known_words

SCRIPT = Path(__file__).parent / "pretrain_llama3_8b.sh"
LLAMA = mt.models()["llama3-8b"]
# The models that a tool has words for; all others it refuses: a norm over all queries together, clamped gates, and
# windows side by side.
_WITHOUT_WORDS = ("olmoe-1b-7b", "gpt-oss-20b", "gpt-oss-120b", "llama4-scout", "llama4-maverick")
_MEGATRON = [name for name in mt.models() if name not in _WITHOUT_WORDS]
CAN_SAY = {
    "megatron-lm": _MEGATRON,
    "megatron-bridge": _MEGATRON,
    "torchtitan": ["llama3.1-8b", "llama3.1-70b", "llama3.1-405b", "deepseek-v3"],
}
PAIRS = [(tool, name) for tool, names in CAN_SAY.items() for name in names]
TOML = """
[job]
dump_folder = "./outputs"
[model]
name = "llama3"
flavor = "70B"
converters = ["float8"]
[optimizer]
name = "AdamW"
lr = 1.5e-4
[training]
local_batch_size = 8
seq_len = 8192
max_norm = 1.0
steps = 1000
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
pipeline_parallel_degree = 1
[activation_checkpoint]
mode = "full"
[compile]
enable = true
"""
LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    ("megatron", {"microbatch_size": 1}),
    ("megatron", {"microbatch_size": 2, "tp": 8, "pp": 4, "sequence_parallel": True, "recompute": "full"}),
    ("megatron", {"microbatch_size": 1, "tp": 2, "pp": 4, "num_chunks": 2, "overlap_messages": True}),
    ("fsdp", {"microbatch_size": 2, "recompute": "full"}),
    ("fsdp", {"microbatch_size": 2, "reshard_after_forward": False}),
]


def anonymous(model: mt.Transformer | None) -> mt.Transformer:
    """Return a model without the name and the source that no tool writes."""
    assert model is not None
    return replace(model, name="", source="")


def as_told(strategy: str, options: dict[str, Any], tool: str) -> dict[str, Any]:
    """Return options as a tool can say them: torchtitan divides the sequence with layers, and its replicas overlap."""
    if tool != "torchtitan":
        return options
    more = {"sequence_parallel": True} if options.get("tp", 1) > 1 else {}
    more |= {"overlap_replicas": True} if strategy == "megatron" else {}
    return {name: value for name, value in options.items() if name != "overlap_messages"} | more


@pytest.mark.few(32)
@pytest.mark.parametrize(("tool", "name"), PAIRS)
def test_what_is_written_is_read_as_the_same_model(tool: str, name: str) -> None:
    model = mt.models()[name]
    recipe = mt.Recipe("megatron", as_told("megatron", {"microbatch_size": 1}, tool), model, 64, 128)
    again = mt.read_recipe(mt.write_recipe(recipe, tool))
    assert anonymous(again.model) == anonymous(model)
    assert (again.strategy, again.options, again.global_batch_size) == ("megatron", recipe.options, 128)


@pytest.mark.parametrize("tool", ["megatron-lm", "megatron-bridge", "torchtitan"])
@pytest.mark.parametrize(("strategy", "options"), LAYOUTS)
def test_what_is_written_is_read_as_the_same_layout(tool: str, strategy: str, options: dict[str, Any]) -> None:
    options = as_told(strategy, options, tool)
    again = mt.read_recipe(mt.write_recipe(mt.Recipe(strategy, options, LLAMA, 64, 256), tool))
    assert (again.strategy, again.options) == (strategy, options)
    assert again.global_batch_size == 256
    assert again.world_size == (64 if tool == "torchtitan" else None)


@pytest.mark.parametrize("tool", ["megatron-lm", "megatron-bridge"])
@pytest.mark.parametrize("recompute", ["layernorm+mlp", "core_attn+layernorm", "mla_up_proj+moe+shared_experts"])
def test_modules_that_are_computed_again_have_megatrons_words(tool: str, recompute: str) -> None:
    options = {"microbatch_size": 1, "pp": 4, "recompute": recompute}
    words = mt.write_recipe(mt.Recipe("megatron", options, LLAMA, 64, 256), tool)
    assert mt.read_recipe(words).options == options
    with pytest.raises(mt.UsageError, match=r"recompute=layernorm\+mlp"):
        mt.write_recipe(mt.Recipe("megatron", {**options, "recompute": "layernorm+mlp"}, LLAMA, 64, 256), "torchtitan")


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("megatron", {"microbatch_size": 1}),
        ("megatron", {"microbatch_size": 4, "zero": 1}),
        ("zero2", {"microbatch_size": 1}),
        ("fsdp", {"microbatch_size": 1, "replicas": 2}),
        ("fsdp", {"microbatch_size": 2, "offload": "activations"}),
        ("fsdp", {"microbatch_size": 2, "offload": "optimizer_step"}),
        ("fsdp", {"microbatch_size": 2, "offload": "parameters"}),
        ("megatron", {"microbatch_size": 2, "zero": 2, "optimizer_offload_fraction": 1}),
    ],
)
def test_deepspeed_says_the_layout_and_leaves_the_model_to_the_program(strategy: str, options: dict[str, Any]) -> None:
    again = mt.read_recipe(mt.write_recipe(mt.Recipe(strategy, options, LLAMA, 16, 64), "deepspeed"))
    assert (again.strategy, again.options, again.world_size, again.global_batch_size) == (strategy, options, 16, 64)
    with pytest.raises(mt.UsageError, match=r"deepspeed do not say the workload; give --model"):
        again.keywords()


@pytest.mark.parametrize("tool", ["megatron-lm", "megatron-bridge"])
@pytest.mark.parametrize("overlap", [{}, {"overlap_cpu_optimizer_d2h_h2d": True}])
def test_the_hosts_share_of_the_optimizer_is_written_and_read(tool: str, overlap: dict[str, bool]) -> None:
    options = {"microbatch_size": 1, "zero": 1, "optimizer_offload_fraction": 0.5, **overlap}
    written = mt.write_recipe(mt.Recipe("megatron", options, LLAMA, 64, 256), tool)
    assert "use_precision_aware_optimizer" in written.replace("-", "_")  # without it Megatron does not start
    assert mt.read_recipe(written).options == options
    assert mt.read_recipe("--optimizer-cpu-offload --use-precision-aware-optimizer").options == {
        "optimizer_offload_fraction": 1.0
    }


@pytest.mark.parametrize(
    ("tool", "strategy", "options", "fault"),
    [
        ("megatron-lm", "megatron", {"optimizer_offload_fraction": 0.5}, "an optimizer on the host without zero=1"),
        ("megatron-lm", "fsdp", {"offload": "parameters", "offloaded_layers": 3}, "offload of parameters"),
        ("deepspeed", "megatron", {"optimizer_offload_fraction": 1}, "an optimizer on the host without zero=1 or 2"),
        ("deepspeed", "fsdp", {"offload": "activations", "offloaded_layers": 3}, "offloaded_layers=3"),
    ],
)
def test_what_a_tool_refuses_to_keep_on_the_host_is_not_written(
    tool: str, strategy: str, options: dict[str, Any], fault: str
) -> None:
    with pytest.raises(mt.UsageError, match=f"no words for {fault}"):
        mt.write_recipe(mt.Recipe(strategy, {"microbatch_size": 1, **options}, LLAMA, 8, 16), tool)


@pytest.mark.parametrize("tool", ["megatron-lm", "megatron-bridge"])
def test_layers_whose_activations_are_offloaded_are_written_and_read(tool: str) -> None:
    options = {"microbatch_size": 2, "offload": "activations", "offloaded_layers": 5}
    assert mt.read_recipe(mt.write_recipe(mt.Recipe("fsdp", options, LLAMA, 8, 16), tool)).options == options


def test_torchtitans_weights_on_the_host_are_written_and_read() -> None:
    options = {"microbatch_size": 2, "offload": "parameters"}
    assert mt.read_recipe(mt.write_recipe(mt.Recipe("fsdp", options, LLAMA, 8, 16), "torchtitan")).options == options


@pytest.mark.parametrize("stage", [2, 3])
def test_accelerates_file_is_read(stage: int) -> None:
    text = f"distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config: {{zero_stage: {stage}, OFFLOADS}}"
    plain = mt.read_recipe(text.replace(", OFFLOADS", ", offload_optimizer_device: none"))
    assert (plain.strategy, plain.options, plain.world_size) == ({2: "zero2", 3: "fsdp"}[stage], {}, 8)
    there = mt.read_recipe(text.replace("OFFLOADS", "offload_optimizer_device: cpu"))
    assert (
        there.options
        == {
            2: {"zero": 2, "optimizer_offload_fraction": 1},
            3: {"offload": "optimizer_step"},
        }[stage]
    )


@pytest.mark.parametrize("tool", ["megatron-lm", "megatron-bridge"])
def test_experts_and_shards_of_a_sequence_are_written_and_read(tool: str) -> None:
    options = {"microbatch_size": 1, "tp": 2, "cp": 2, "ep": 8, "cp_comm_type": "all_gather", "capacity_factor": 1.25}
    written = mt.write_recipe(mt.Recipe("megatron", options, mt.models()["mixtral-8x7b"], 64, 256), tool)
    again = mt.read_recipe(written)
    assert (again.options, again.notes) == (options, ())


def test_experts_that_are_divided_as_other_layers_are_read_whole_with_a_note() -> None:
    recipe = mt.read_recipe("--tensor-model-parallel-size 2 --expert-model-parallel-size 4")
    assert recipe.notes == ("experts are taken whole on their ranks, not divided by tensor parallelism",)


@pytest.mark.parametrize(
    "changes",
    [
        {"window": 128, "window_layers": range(0, 32, 2), "sinks": True},
        {"window": 4096}, {"qk_norm": "head", "head_dim": 64}, {"qkv_bias": True}, {"rope_share": 0.5},
        {"mlp": "relu2", "norm": "layernorm", "bias": True, "qkv_bias": False, "output_bias": False, "mlp_bias": False},
        {"dropout": 0.2, "attention_dropout": 0.0, "attention": "unfused"},
        {"precision": "fp16"}, {"precision": "fp32"}, {"rope_scaling": 8.0}, {"rope_scaling": 32.0},
        {"precision": Precision("fp8", weight_datatype="float8")},
        {"num_experts": 64, "experts_per_token": 6, "num_shared_experts": 2, "moe_ffn_hidden_size": 1408,
         "moe_layers": range(1, 32)},
    ],
)  # fmt: skip
@pytest.mark.parametrize("tool", ["megatron-lm", "megatron-bridge"])
def test_every_part_of_a_model_is_written_and_read(tool: str, changes: dict[str, Any]) -> None:
    model = replace(LLAMA, **changes)
    written = mt.write_recipe(mt.Recipe("megatron", {"microbatch_size": 1}, model, 8, 8), tool)
    assert anonymous(mt.read_recipe(written).model) == anonymous(model)


def test_positions_that_llama_3_1_scales_are_written_and_read(tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False, "rope_scaling": {
            "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = mt.Transformer.from_hf(tmp_path)
    recipe = mt.Recipe("megatron", {"microbatch_size": 1}, model, 8, 8)
    written = mt.write_recipe(recipe, "megatron-lm")
    assert "--use-rope-scaling" in written
    assert "--rope-scaling-factor 8.0" in written
    assert "rope_scaling: true" in mt.write_recipe(recipe, "megatron-bridge")
    read = mt.read_recipe(written).model
    assert read is not None
    assert (read.name, read.rope_scaling) == ("llama3.1-8b", 8.0)
    (tmp_path / "config.json").write_text(
        json.dumps(config).replace('"low_freq_factor": 1.0', '"low_freq_factor": 2.0')
    )
    with pytest.raises(mt.UsageError, match="it has no words for rope_scaling llama3"):
        require_words(mt.Transformer.from_hf(tmp_path), "megatron-lm")


def test_a_flavor_that_scales_positions_says_so_of_a_model_that_does_not() -> None:
    options = {"microbatch_size": 1}
    remark = "# this flavor scales rotary positions by 8; this model has 1"
    assert remark in mt.write_recipe(mt.Recipe("fsdp", options, LLAMA, 8, 8), "torchtitan")
    assert remark not in mt.write_recipe(mt.Recipe("fsdp", options, mt.models()["llama3.1-8b"], 8, 8), "torchtitan")


@pytest.mark.parametrize(
    ("changes", "tool", "what"),
    [
        ({"norm_placement": "both"}, "megatron-lm", "norm_placement='both'"),
        ({"mlp": "geglu"}, "megatron-bridge", "mlp='geglu'"),
        ({"score_cap": 50.0, "logit_cap": 30.0}, "megatron-lm", "score_cap; logit_cap"),
        ({"qk_norm": "whole"}, "megatron-lm", "qk_norm='whole'"),
        ({"output_bias": True}, "megatron-lm", "biases of some projections"),
        (
            {"taken_as": ("clamped SwiGLU",)},
            "megatron-lm",
            r"clamped SwiGLU; dataclasses.replace\(model, taken_as=\(\)\)",
        ),
        ({"num_kv_heads": 4}, "torchtitan", "sizes that are no flavor of its own"),
        ({"precision": "fp16"}, "torchtitan", "precision 'fp16'"),
    ],
)
def test_a_model_without_words_is_refused_before_a_layout_is_known(
    changes: dict[str, Any], tool: str, what: str
) -> None:
    model = replace(LLAMA, **changes)
    with pytest.raises(mt.UsageError, match=f"{tool} cannot be told to train llama3-8b: it has no words for {what}"):
        require_words(model, tool)
    with pytest.raises(mt.UsageError, match=what):
        mt.write_recipe(mt.Recipe("megatron", {"microbatch_size": 1}, model, 8, 8), tool)


@pytest.mark.parametrize(
    ("tool", "strategy", "options", "what"),
    [
        ("megatron-lm", "zero3", {}, "the strategy zero3"),
        ("megatron-bridge", "fsdp", {"replicas": 2}, "replicas of shards"),
        ("megatron-lm", "megatron", {"tp": 2, "overlap_parts": True}, "overlap_parts=True"),
        ("megatron-lm", "megatron", {"num_chunks": 2, "overlap_messages": False}, "batch_messages=False"),
        ("deepspeed", "megatron", {"overlap_replicas": True}, "overlap_replicas=True"),
        ("torchtitan", "megatron", {"zero": 1}, "zero=1; overlap_replicas=False"),
        ("torchtitan", "fsdp", {"tp": 2, "offload": "optimizer"}, "offload=optimizer; sequence_parallel=False"),
        ("deepspeed", "fsdp", {"reshard_after_forward": False}, "no words for reshard_after_forward=False"),
        ("megatron-lm", "megatron", {"zero": 3, "shard_size": 8}, "zero=3; shard_size=8"),
        ("torchtitan", "megatron", {"cp": 2}, "cp of more than 1"),
        ("torchtitan", "megatron", {"pp": 7, "num_chunks": 2}, "14 stages of 32 layers"),
        ("deepspeed", "megatron", {"tp": 2}, "tp of more than 1; use megatron-lm"),
        ("nemo", "megatron", {}, f"a recipe can be written for {', '.join(TOOLS)}"),
    ],
)
def test_a_layout_without_words_is_refused(tool: str, strategy: str, options: dict[str, Any], what: str) -> None:
    with pytest.raises(mt.UsageError, match=what):
        mt.write_recipe(mt.Recipe(strategy, {"microbatch_size": 1, **options}, LLAMA, 56, 56), tool)


_ON_OFF = (
    *("overlap_parts", "overlap_replicas", "overlap_messages", "batch_messages", "sequence_parallel", "scatter_gather"),
    *("overlap_experts", "reshard_after_forward", "overlap_cpu_optimizer_d2h_h2d", "no_sync"),
)
VALUES: dict[str, Sequence[Any]] = {
    **dict.fromkeys(("tp", "pp", "num_chunks", "cp", "ep", "replicas", "shard_size"), (2,)),
    **dict.fromkeys(_ON_OFF, (True, False)),
    "zero": (1, 2, 3), "optimizer_offload_fraction": (0.5, 1), "layers_per_stage": ([1, 1],), "offloaded_layers": (1,),
    "recompute": ("selective", "full", "op", "layernorm+mlp"), "schedule": ("gpipe", "zb_h1", "combined_1f1b"),
    "offload": ("activations", "optimizer", "optimizer_step", "parameters"), "cp_comm_type": ("all_gather",),
    "pass_costs": ((1, 1, 1, 0.1, 0.5),), "capacity_factor": (1.25,),
}  # fmt: skip
BASES: list[tuple[str, dict[str, Any]]] = [
    ("fsdp", {}), ("fsdp", {"replicas": 2}), ("fsdp", {"offload": "activations"}), ("zero2", {}), ("megatron", {}),
    ("megatron", {"tp": 2, "pp": 2}), ("megatron", {"tp": 2, "sequence_parallel": True, "overlap_replicas": True}),
    ("megatron", {"cp": 2}), ("megatron", {"zero": 1}), ("megatron", {"pp": 2, "num_chunks": 2}),
    ("megatron", {"pp": 2, "num_chunks": 2, "overlap_messages": False, "batch_messages": True}),
    ("megatron", {"zero": 1, "optimizer_offload_fraction": 1, "overlap_replicas": True}),
]  # fmt: skip
_STEP_TIMES: dict[str, float] = {}


def step_time(recipe: mt.Recipe) -> float:
    """Simulate a layout once: tools write many alike, and most are read as they were, with defaults left out."""
    keywords = recipe.keywords(workload="tiny", world_size=8, global_batch_size=32, check=False)
    defaults = {option.name: option.default for option in documented_options(load_strategy(recipe.strategy)[1])}
    layout = repr(sorted({**defaults, **keywords}.items()))
    if layout not in _STEP_TIMES:
        _STEP_TIMES[layout] = mt.simulate(**keywords).step_time
    return _STEP_TIMES[layout]


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(("strategy", "base"), BASES)
def test_what_is_written_takes_as_long_when_it_is_read(tool: str, strategy: str, base: dict[str, Any]) -> None:
    model = mt.models()["tiny"] if tool.startswith("megatron") else None
    left_out = {"microbatch_size", "imbalance", "sum_tied", *(["recompute"] if tool == "deepspeed" else [])}
    left_out |= {"overlap_messages", "batch_messages"} if "num_chunks" not in base else set()  # there is no choice
    names = {option.name for option in documented_options(load_strategy(strategy)[1])} - left_out
    for name, value in [(each, value) for each in names for value in VALUES[each]]:
        recipe = mt.Recipe(strategy, {"microbatch_size": 1, **base, name: value}, model, 8, 32)
        try:
            again = mt.read_recipe(mt.write_recipe(recipe, tool))
            taken = step_time(recipe)
        except mt.MinitrainError:  # refused, or no layout of the strategy
            continue
        if again.strategy == strategy:  # else it is a stage of ZeRO with a strategy of its own
            assert step_time(again) == taken, (name, value)


def test_a_launch_script_is_read_with_its_variables_and_arrays() -> None:
    recipe = mt.read_recipe(SCRIPT)
    assert recipe.model == LLAMA
    assert (recipe.strategy, recipe.world_size, recipe.global_batch_size) == ("megatron", 32, 128)
    assert recipe.options == {
        "microbatch_size": 1, "tp": 2, "pp": 2, "zero": 1, "sequence_parallel": True, "overlap_replicas": True,
        "recompute": "selective",
    }  # fmt: skip
    run = mt.simulate(**recipe.keywords(world_size=8, global_batch_size=8))
    assert (run.world_size, run.trained_model and run.trained_model.name) == (8, "llama3-8b")


def test_deepseek_v3_is_read_as_megatron_writes_it() -> None:
    text = """
    --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 --seq-length 4096
    --max-position-embeddings 4096 --vocab-size 129280 --normalization RMSNorm --norm-epsilon 1e-6 --swiglu
    --disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope --hidden-dropout 0
    --attention-dropout 0 --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128
    --qk-pos-emb-head-dim 64 --v-head-dim 128 --qk-layernorm --num-experts 256 --moe-router-topk 8
    --moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048 --moe-layer-freq "([0]*3+[1]*58)"
    --moe-router-enable-expert-bias --moe-router-score-function sigmoid --moe-router-num-groups 8
    --moe-router-group-topk 4 --bf16 --micro-batch-size 1 --global-batch-size 8192 --tensor-model-parallel-size 2
    --num-layers-per-virtual-pipeline-stage 61
    """
    recipe = mt.read_recipe(text)
    assert recipe.model == mt.models()["deepseek-v3"]
    assert recipe.options == {"tp": 2, "microbatch_size": 1}


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        (
            "--num-layers 2 --hidden-sizes 8",
            ["--hidden-sizes is not known; did you mean", "num_attention_heads is missing"],
        ),
        ("--num-layers $LAYERS", [r"--num-layers must have a value, got \$LAYERS; the script must set it"]),
        ("--num-layers two", ["--num-layers must be a count, got 'two'"]),
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 4",
            ["must be uniform, of one layer"],
        ),
        ("--recompute-modules moe_act norms", ["recompute_modules must be some of core_attn, .*, got norms"]),
        ("--num-layers 2 --normalization Mine", ["normalization must be LayerNorm or RMSNorm"]),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim", ["must be optim_grads_params"]),
        ("--context-parallel-size 2 --cp-comm-type a2a", ["cp_comm_type must be p2p or all_gather"]),
        ("--use-torch-fsdp2 --pipeline-model-parallel-size 2", ["beside FSDP is not modelled"]),
        ("--tensor-model-parallel-size 2 --tensor-model-parallel-size 4", ["given twice with different values"]),
    ],
)
def test_words_that_are_not_known_are_refused(text: str, faults: list[str]) -> None:
    for fault in faults:
        with pytest.raises(mt.UsageError, match=fault):
            mt.read_recipe(text)


SMALL = (
    "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --vocab-size 1000 --seq-length 128 "
    "--micro-batch-size 1 --global-batch-size 8"
)


@pytest.mark.few(32)
@pytest.mark.parametrize("flag", sorted({option.flag for option in OPTIONS} | known_words("Megatron-LM")))
def test_a_misspelt_option_is_refused(flag: str) -> None:
    misspelt = flag[:3] + flag[4:]
    with pytest.raises(mt.UsageError, match=f"{misspelt} is not known"):
        mt.read_recipe(f"{SMALL} {misspelt} 1")


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("--fp8-format e4m4", "fp8 must be one of e4m3, hybrid, got 'e4m4'"),
        ("--fp8-recipe mxfp9", "--fp8-recipe must be one of delayed"),
        ("--optimizer sgd", "--optimizer must be one of adam"),
        ("--recompute-granularity ful", "recompute_granularity must be one of full, selective"),
        ("--recompute-method blok", "recompute_method must be one of uniform, block"),
        ("--cp-comm-type ring", "cp_comm_type must be one of p2p"),
        ("--data-parallel-sharding-strategy all", "data_parallel_sharding_strategy must be one of"),
        ("--moe-token-dispatcher-type a2a", "moe_token_dispatcher_type must be one of"),
        ("--moe-router-score-function relu", "moe_router_score_function must be one of"),
        ("--moe-router-load-balancing-type loss", "--moe-router-load-balancing-type must be one of"),
        ("--moe-expert-capacity-factor -1", "moe_expert_capacity_factor must be above 0"),
        ("--transformer-impl te", "--transformer-impl must be one of local"),
        ("--sequence-parallel false", "--sequence-parallel stands alone, got 'false'"),
        ("--pipeline-model-parallel-size 0", "--pipeline-model-parallel-size must be at least 1"),
        ("--tensor-model-parallel-size 2 4", "--tensor-model-parallel-size must have one value, got 2 4"),
        ("--bf16 --fp16", "bf16 and fp16 exclude each other"),
        ("--swiglu --squared-relu", "gated_linear_unit and squared_relu exclude each other"),
        ("--no-position-embedding", "--no-position-embedding is not modelled"),
    ],
)
def test_values_that_megatron_does_not_know_are_refused(words: str, fault: str) -> None:
    with pytest.raises(mt.UsageError, match=fault):
        mt.read_recipe(f"{SMALL} {words}")


def test_what_is_read_as_something_near_is_noted() -> None:
    text = "--bf16 --fp8-format e4m3 --fp8-recipe mxfp8 --first-last-layers-bf16 --rampup-batch-size 2 2 8"
    assert mt.read_recipe(f"{SMALL} {text}").notes == (
        "the first and the last layers are in FP8 as the others",
        "the batch is that after --rampup-batch-size",
        "FP8 by blocks is priced as FP8 by tensors",
    )
    experts = "--num-experts 8 --expert-model-parallel-size 2 --moe-token-dispatcher-type flex"
    assert mt.read_recipe(f"{SMALL} {experts}").notes == (
        "tokens travel to experts by all_to_all, not by the dispatcher flex; --platform megatron:dispatcher=deepep, "
        "hybridep or allgather prices others",
    )
    rotary = mt.read_recipe(f"{SMALL} --use-rotary-position-embeddings").model
    assert rotary is not None
    assert rotary.positions == "rotary"


def test_words_without_bearing_can_be_passed_over() -> None:
    assert (
        mt.read_recipe("--micro-batch-size 2 --my-own-flag 3", ignore=["--my_own_flag"]).options["microbatch_size"] == 2
    )
    assert mt.read_recipe("[parallelism]\nmine = 1\n", ignore=["parallelism.mine"]).strategy == "fsdp"


def test_torchtitans_own_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "llama3_70b.toml"
    path.write_text(TOML)
    recipe = mt.read_recipe(path)
    assert recipe.strategy == "fsdp"
    assert recipe.options == {"microbatch_size": 8, "tp": 8, "sequence_parallel": True, "recompute": "full"}
    assert recipe.model is not None
    assert recipe.model.precision.weight_datatype == "float8"
    with pytest.raises(mt.UsageError, match="torchtitan do not say the world_size; give --world-size"):
        recipe.keywords()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[parallelism]\nmine = 1", "parallelism.mine is not known"),
        ("[training]\n[mine]\nx = 1", r"\[mine\] is not known"),
        ('[training]\n[model]\nname = "llama4"\nflavor = "17Bx16E"', "model llama4 17Bx16E is not known"),
        ("[parallelism]\ncontext_parallel_degree = 2", "context_parallel_degree is not modelled"),
        ("[parallelism]\npipeline_parallel_degree = 2\ndata_parallel_shard_degree = 4", "stages are sharded"),
        ('{"train_batch_size": "auto"}', 'put in what "auto" stands for'),
        ('{"train_batch_size": 8, "mine": 1, "zero_optimization": {"stage": 4, "x": 1}}', "mine is not known"),
        (
            '{"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}',
            "offload_param without offload_optim",
        ),
        ('{"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}', "drives are not modelled"),
        ("[training]\nenable_cpu_offload = true\n[parallelism]\ndata_parallel_shard_degree = 1", "sharded alone"),
        ('{"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}}', "must be all on the cpu"),
        ('{"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.3}}}', "all on the cpu"),
        ('{"zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}}', "needs stage 1, 2 or 3"),
        ('{"zero_optimization": {"stage": 2, "offload_optimizer": "cpu"}}', "must be objects such as"),
        (
            '{"activation_checkpointing": {"cpu_checkpointing": true},'
            ' "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}',
            "stage must be 3, without offload_optimizer, beside cpu_checkpointing",
        ),
        ("--cpu-offloading-num-layers 3", "cpu_offloading_num_layers without FSDP is not modelled"),
        ("--use-torch-fsdp2 --optimizer-cpu-offload", "optimizer_cpu_offload beside FSDP is not modelled"),
        ("distributed_type: FSDP\nfsdp_config: {}", "distributed_type must be DEEPSPEED, got FSDP"),
        ("distributed_type: DEEPSPEED\ndeepspeed_config: {mine: 1}", "deepspeed_config.mine is not known"),
        ("distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json}", "give ds.json itself"),
        ("model:\n  mine: 3\ntrain:\n  micro_batch_size: 1", "model.mine is not known"),
        ("model.tensor_model_parallel_size=2\ntrainer.x=1", "trainer is not known"),
        ("model:\n  activation_func: torch.nn.functional.relu\n", "activation_func must be silu, gelu or squared_relu"),
        ("model:\n  num_layers: 2\nmixed_precision: nvfp4", "mixed_precision must be"),
        ("hello\nworld", "must hold Megatron-LM's options"),
    ],
)
def test_what_is_not_known_or_modelled_is_refused(text: str, fault: str) -> None:
    with pytest.raises(mt.UsageError, match=fault):
        mt.read_recipe(text + "\n")


def test_overrides_of_megatron_bridge_say_the_layout_alone() -> None:
    recipe = mt.read_recipe(
        "model.tensor_model_parallel_size=4 model.sequence_parallel=true \\\n train.micro_batch_size=1\n"
    )
    assert (recipe.model, recipe.options) == (None, {"tp": 4, "microbatch_size": 1, "sequence_parallel": True})


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(mt.UsageError, match=r"^'\S+none.sh' must be a file that can be read"):
        mt.read_recipe(tmp_path / "none.sh")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A=3\n--x ${A} --y=$B --z ${C:-7}", {"--x": ["3"], "--y": ["$B"], "--z": ["7"]}),
        ('A="--x 1 --y 2"\nrun.py $A --on', {"--x": ["1"], "--y": ["2"], "--on": []}),
        ("A=(--x 1)\nA+=(--y 2)\nrun ${A[@]}", {"--x": ["1"], "--y": ["2"]}),
        ("A=(--list '([1]*2)')\nrun ${A[*]} # --no", {"--list": ["([1]*2)"]}),
        ("N=4\n--x $((N * (2 + 1)))", {"--x": ["12"]}),
    ],
)
def test_words_of_a_shell_are_put_in(text: str, expected: dict[str, list[str]]) -> None:
    assert words_of(text).options == expected


def test_an_open_quote_is_refused() -> None:
    with pytest.raises(mt.UsageError, match="close the quote"):
        words_of('--x "1')


def test_only_lists_and_integers_are_evaluated() -> None:
    assert (evaluated("2"), evaluated("127,0"), evaluated([1, 0])) == (2, [127, 0], [1, 0])
    for text in ("open('x')", "[1]*'a'", "a", "[1"):
        with pytest.raises(ValueError, match="must be an integer, or a list"):
            evaluated(text)


def test_a_recipe_that_is_json_can_be_changed(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(
        json.dumps({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}})
    )
    keywords = mt.read_recipe(path).keywords(workload="tiny", world_size=4)
    assert mt.simulate(**keywords).strategy == "fsdp"
