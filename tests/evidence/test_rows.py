"""Rows of tables: what they say, and what they lack."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.evidence.cases import Case, _exchanged, case_and_prediction, case_of, predict
from minitrain.evidence.layouts import balanced_layers, dispatcher_of, stage_layers, unit_stages
from minitrain.evidence.rows import LackingError, Row, framework_of, machine_of, read_rows
from minitrain.machine import load_config
from minitrain.machine.kernel_device import rates_of
from minitrain.machine.network import Network
from minitrain.machine.platforms import Platform, find_platform
from minitrain.machine.predictor import KernelPredictor
from minitrain.machine.price import Pricing
from minitrain.workloads.kernels import Matmul
from minitrain.workloads.mixers import LatentAttention
from minitrain.workloads.transformer_workload import find_workload

PUBLISHED = json.loads((Path(__file__).parents[1] / "workloads" / "hugging_face.json").read_text())["published"]
GEMMA = next(each["config"] for each in PUBLISHED if each["name"] == "gemma-3-27b")
USUAL = {
    "row_id": "x-1",
    "gpu": "A100-SXM-80GB",
    "n_gpus": "16",
    "gpus_per_node": "8",
    "framework": "Megatron-LM (SC21)",
    "model": "gpt-1B",
    "n_layers": "8",
    "hidden": "1024",
    "n_heads": "16",
    "vocab": "51200",
    "seq_len": "1024",
    "mlp": "gelu",
    "tp": "2",
    "sp": "0",
    "pp": "2",
    "vpp": "1",
    "dp": "4",
    "zero": "0",
    "mbs": "2",
    "n_micro": "6",
    "gbs": "48",
    "precision": "fp16 mixed",
    "recompute": "full (uniform)",
    "attention": "unfused",
    "step_time_s": "1.5",
}


def row(**changes: str) -> Row:
    """Return the usual row with changes; its batch follows from its microbatches."""
    batch = {"gbs": ""} if changes.keys() & {"dp", "mbs", "n_micro"} else {}
    return Row("x", {**USUAL, **batch, **changes}, 2)


def case(**changes: str) -> Case:
    return case_of(row(**changes))


def test_a_row_becomes_the_run_that_it_describes() -> None:
    found = case()
    assert (found.measured_s, found.strategy) == (1.5, "megatron")
    assert found.layout.global_batch_size == 48
    assert (found.model.num_layers, found.model.hidden_size, found.model.attention) == (8, 1024, "unfused")
    assert found.options["tp"] == found.options["pp"] == 2
    assert found.options["recompute"] == "full"
    assert found.options["layers_per_stage"] == [9, 9]
    assert found.system.name == "a100_80g"


LACKING = [
    ({"mbs": "not stated", "n_micro": ""}, "mbs is 'not stated'"),
    ({"n_layers": ""}, "n_layers is ''"),
    ({"gpu": "TPU v3"}, "no hardware config"),
    ({"step_time_s": ""}, "neither step_time_s"),
    ({"status": "crashed/OOM"}, "status is 'crashed/OOM'"),
    ({"recompute": "some of it"}, 'recompute has "some", which is not known'),
    ({"dp": "3"}, "is not n_gpus 16"),
    ({"mlp": "maxout"}, 'mlp has "maxout", which is not known'),
    ({"mlp": ""}, "mlp is ''"),
    ({"pp": "1", "dp": "8", "tp": "2", "cp": "2"}, "is not n_gpus"),
    ({"hidden": "1000"}, "sizes are no transformer's"),
]


SILENT = dict.fromkeys(("n_layers", "hidden", "n_heads", "vocab", "mlp"), "")


@pytest.mark.parametrize("name", ["Llama-3-8B", "qwen2.5-7b", "mixtral-8x7b", "deepseek-v2", "gpt-oss-20b", "config"])
def test_a_row_without_sizes_trains_the_model_that_it_names(name: str, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**GEMMA, "num_hidden_layers": 12}))
    shipped = mt.models() | {"config": mt.Transformer.from_hf(config)}
    expected = shipped["llama3-8b" if name == "Llama-3-8B" else name]
    found = case(model=name.replace("config", str(config)), **SILENT).model
    of_row = {each: getattr(found, each) for each in ("name", "precision", "attention", "dropout", "seq_len")}
    assert found.seq_len == 1024
    assert found.vocab_size - expected.vocab_size in range(256)
    assert found == replace(expected, vocab_size=found.vocab_size, **of_row)


def test_a_row_without_sizes_says_which_model_is_meant() -> None:
    with pytest.raises(LackingError, match=r'states no size, .* no model "lama3-8b"; did you mean "llama3-8b"'):
        case(model="lama3-8b", **SILENT)


@pytest.mark.parametrize(("changes", "reason"), LACKING, ids=str)
def test_a_row_that_lacks_something_says_what(changes: dict[str, str], reason: str) -> None:
    with pytest.raises(LackingError, match=reason.replace("(", r"\(")):
        case(**changes)


def test_what_a_row_does_not_say_is_the_frameworks_default_and_named() -> None:
    found = case(vpp="not stated", recompute="not stated")
    assert found.options["num_chunks"] == 1
    assert found.options["recompute"] == "none"
    said = [assumption.text for assumption in found.assumed]
    assert said[:3] == ["schedule not stated: 1f1b", "vpp not stated: 1", "recompute not stated: none"]
    assert "rate between nodes not stated: that of a100_80g" in said
    assert "dropout: 0.1, the default of Megatron-LM of 2020 and 2021" in said
    assert [text for text in said if text.startswith(("tp ", "framework", "attention "))] == []


def test_a_framework_that_says_nothing_of_recomputation_is_not_guessed() -> None:
    with pytest.raises(LackingError, match="recompute"):
        case(framework="MaxText (JAX)", recompute="not stated (MaxText remat policy)")


@pytest.mark.parametrize(
    ("text", "bandwidth", "nics"),
    [
        ("8x200Gb/s HDR IB per node", 25.0, 8),
        ("4x100Gb RoCE per node", 6.25, 4),
        ("4x Omni-Path links per node", 6.25, 4),
        ("RoCE 1600 Gb/s per node (200 Gb/s/GPU)", 25.0, 8),
        ("not stated", 25.0, None),
    ],
)
def test_the_network_between_nodes_is_the_rows(text: str, bandwidth: float, nics: int | None) -> None:
    tier = max(case(inter_node=text).system.networks, key=lambda each: each.size)
    assert (tier.bandwidth, tier.nics) == (bandwidth, nics)
    assert (
        tier.curves["all_gather"].half_bytes == 108e6 * bandwidth / 25
    )  # of 8 ranks, whose steps take as long to begin


def test_ranks_behind_a_switch_reach_what_all_of_them_reach() -> None:
    given: dict[str, str] = {"gpu": "V100-SXM3-32GB", "gpus_per_node": "16"}
    switched = case(**given, intra_node="NVSwitch").system.networks[0]
    assert switched.size == 16
    assert switched.curves["all_reduce"].bandwidth(2, 0) == switched.curves["all_reduce"].bandwidth(8, 0)
    usual = load_config("v100_32g_nvl8").networks[0].curves["all_reduce"]
    assert usual.bandwidth(2, 0) < usual.bandwidth(8, 0) / 2


def test_sharded_weights_are_fsdp_with_as_many_copies_as_groups_of_shards() -> None:
    given = {"framework": "llm-foundry/Composer FSDP1", "tp": "1", "pp": "1", "dp": "16"}
    found = case(**given, zero="3 (FSDP=8, replicated x2)")
    assert found.strategy == "fsdp"
    assert found.options["replicas"] == 2
    assert found.platform is not None
    assert found.platform.name == "eager-a100"


def test_ranks_of_a_sequence_take_a_share_of_its_tokens() -> None:
    given = {"framework": "NeMo", "gpu": "H100-SXM", "tp": "2", "sp": "1", "pp": "2", "attention": "TE"}
    layouts = ("4", "1"), ("2", "2")
    whole, shared = (predict(case(**given, dp=dp, cp=cp), ["launches"]) for dp, cp in layouts)
    assert 0.4 < shared.seconds / whole.seconds < 0.8  # half of the tokens, and its share of fixed costs
    assert shared.memory["allocated"] < whole.memory["allocated"]


@pytest.mark.parametrize(
    ("changes", "memory"),
    [
        ({"framework": "Megatron-DeepSpeed (BLOOM)", "zero": "0"}, "deepspeed"),
        ({"framework": "Megatron-DeepSpeed (BLOOM)", "zero": "1"}, "deepspeed zero"),
        (
            {"framework": "Megatron-DeepSpeed (BLOOM)", "precision": "bf16 with fp32 grad accumulation"},
            "deepspeed bf16",
        ),
        ({"framework": "InternEvo", "zero": "3", "pp": "1", "dp": "8"}, "internevo fsdp"),
        ({"framework": "Hugging Face (DDP)", "pp": "1", "tp": "1", "dp": "16"}, "trainer ddp"),
        ({"framework": "TRL", "zero": "fsdp", "pp": "1", "tp": "1", "dp": "16"}, "fsdp2 trainer"),
        ({"framework": "DeepSpeed (TRL, Liger kernel)", "zero": "3", "pp": "1", "tp": "1", "dp": "16"}, "liger"),
    ],
    ids=str,
)
def test_each_optimizer_of_a_framework_allocates_in_its_way(changes: dict[str, str], memory: str) -> None:
    platform = case(**changes).platform
    assert platform is not None
    assert platform.memory == memory


ALONE = {"n_gpus": "1", "tp": "1", "pp": "1", "dp": "1", "n_micro": "1", "step_time_s": ""}


@pytest.mark.parametrize(
    ("framework", "precision", "sizes"),
    [
        ("Hugging Face", "bf16", (2, 4, 12)),
        ("Hugging Face", "pure bf16", (2, 2, 4)),
        ("Hugging Face", "bf16, bf16 states, fp32 grads", (2, 4, 4)),
        ("Hugging Face", "bf16, AdamW 8-bit", (2, 4, 6)),
        ("Hugging Face", "pure bf16, 8-bit Adam", (2, 2, 2)),
        ("nanotron", "bf16, bf16 states", (2, 4, 4)),
        ("Megatron-Core", "bf16, bf16 moments", (2, 4, 6)),
    ],
)
def test_gradients_are_of_their_weights_type_where_states_are_halves(
    framework: str, precision: str, sizes: tuple[int, int, int]
) -> None:
    found = case(**ALONE, framework=framework, precision=precision, mem_gib="1").model.precision
    assert (found.parameter_bytes, found.gradient_bytes, found.optimizer_bytes) == sizes


@pytest.mark.parametrize(("kind", "unit"), [("MiB", 2**20), ("max_memory_allocated, GiB", 2**30), ("GB (1e9)", 10**9)])
def test_memory_is_read_in_its_unit(kind: str, unit: int) -> None:
    assert case(mem_gib="3", mem_kind=kind).measured_bytes == 3 * unit


def test_memory_is_counted_on_devices_whose_kernels_have_no_price() -> None:
    given = {**ALONE, "gpu": "A40-48GB", "framework": "Hugging Face", "mem_gib": "20"}
    found = case(**{**given, "step_time_s": "2"})
    assert found.measured_s is None
    assert "gpu: of its generation is rtx_3090, as which memory is counted; its time has no price" in [
        assumption.text for assumption in found.assumed
    ]
    assert predict(found, []).memory == predict(case(**{**given, "gpu": "RTX 3090"}), []).memory
    with pytest.raises(LackingError, match="no hardware config has prices"):
        case(**{**given, "mem_gib": "", "step_time_s": "2"})


@pytest.mark.parametrize(
    ("words", "losses"),
    [
        ("Megatron-Core", (False, False)),
        ("Megatron-Core, fused cross entropy", (True, False)),
        ("Megatron-Core, cross entropy loss fusion", (False, True)),  # its own, unless Transformer Engine's is named
        ("Megatron-Core, cross entropy fusion impl te", (True, False)),
        ("Megatron Bridge", (True, False)),
        ("Megatron Bridge, cross entropy loss fusion", (True, False)),
        ("Megatron Bridge, cross entropy fusion impl native", (True, True)),
        ("FSDP, eager, cross entropy loss fusion", (True, False)),
    ],
)
def test_a_row_says_that_its_loss_is_one_kernel_or_what_is_compiled(words: str, losses: tuple[bool, bool]) -> None:
    platform = case(framework=words).platform
    assert platform is not None
    assert (platform.fused_loss, platform.jitted_loss) == losses


def test_a_row_says_that_no_kernel_of_its_own_multiplies_activated_gates() -> None:
    usual, apart = (case(framework=f"Megatron Bridge{words}").platform for words in ("", ", no bias activation fusion"))
    assert (usual is not None and usual.gates_apart, apart is not None and apart.gates_apart) == (False, True)


def test_a_row_says_whose_stages_memory_it_has() -> None:
    given = {"framework": "Megatron-Core", "mem_gib": "20", "sp": "1", "attention": "flash"}
    found = [case(**given, mem_kind=f"allocated{words}") for words in (", first stage", ", last stage", "")]
    assert [each.of_stage for each in found] == ["first", "last", ""]
    first, last, fullest = (predict(each).memory["allocated"] for each in found)
    assert first != last
    assert max(first, last) == fullest


def test_groups_of_layers_are_computed_again_as_each_alone() -> None:
    each, two = (case(recompute=f"full, uniform, {words}") for words in ("1 layer", "2 layers"))
    assert each.options["recompute"] == two.options["recompute"] == "full"
    near = "recompute: layers recomputed in groups, as each alone"
    assert [near in [said.text for said in found.assumed] for found in (each, two)] == [False, True]


def test_deterministic_kernels_are_taken_as_others() -> None:
    found = case(framework="Megatron-Core, deterministic mode")
    assert "framework: deterministic kernels, as those that are not" in [each.text for each in found.assumed]


def test_a_row_may_state_the_sizes_of_latents() -> None:
    sizes = "q-lora-rank 1536, kv-lora-rank 512, qk-head-dim 128, qk-pos-emb-head-dim 64"
    given = {**EXPERTS, "sp": "1", "ep": "8", "model": "mine", "n_shared_experts": "1", "n_dense_layers": "1"}
    found = case(**given, attention=f"MLA ({sizes}, v-head-dim 96), te fused").model
    assert found.latent == LatentAttention(
        kv_rank=512, rope_head_dim=64, nope_head_dim=128, value_head_dim=96, query_rank=1536
    )
    assert (found.head_dim, found.num_kv_heads) == (192, found.num_heads)
    with pytest.raises(LackingError, match=r"shipped models alone .* or add v-head-dim 128"):
        case(**given, attention=f"MLA ({sizes})")
    with pytest.raises(LackingError, match=r"or add kv-lora-rank 512, qk-pos-emb-head-dim 64, qk-head-dim 128"):
        case(**given, attention="MLA")


@pytest.mark.parametrize(("release", "is_fused"), [("25.04", False), ("25.07", True), ("25.09", True), ("26.02", True)])
def test_releases_of_nemo_fuse_the_loss_since_july_2025(release: str, is_fused: bool) -> None:
    platform = case(framework=f"NeMo {release}", gpu="B200").platform
    assert platform is not None
    assert platform.fused_loss == is_fused


@pytest.mark.parametrize(("words", "is_fused"), [("torch.compile", True), ("torch.compile, eager loss", False)])
def test_an_eager_loss_is_not_one_kernel_beside_compiled_layers(words: str, is_fused: bool) -> None:
    given = {"gpu": "H100-SXM", "zero": "fsdp", "tp": "1", "pp": "1", "dp": "16"}
    platform = case(framework=f"torchtitan ({words})", **given).platform
    assert platform is not None
    assert platform.fused_loss == is_fused


def test_pytorch_dispatches_on_dtensors_where_it_divides_layers_and_compiles_none() -> None:
    def dispatches(framework: str, **changes: str) -> bool:
        given = {"gpu": "H100-SXM", "zero": "fsdp", "tp": "8", "pp": "1", "dp": "2"}
        platform = case(framework=framework, **{**given, **changes}).platform
        assert platform is not None
        return platform.dtensors

    assert dispatches("torchtitan (eager)")
    assert dispatches("PyTorch FSDP2, eager")
    assert not dispatches("torchtitan (torch.compile)")
    assert not dispatches("Megatron-Core r0.8.0")


@pytest.mark.parametrize(("name", "norm"), [("Qwen3-14B", "head"), ("olmo2-7b", "whole"), ("qwen2.5-7b", "none")])
def test_a_dense_familys_name_tells_the_norms_of_queries_and_keys(name: str, norm: str) -> None:
    found = case(model=name)
    assert found.model.qk_norm == norm
    assert any("norms of queries" in str(each) for each in found.assumed) == (norm != "none")


def test_what_graphs_have_captured_waits_for_no_host() -> None:
    given = {"gpu": "H100-SXM", "tp": "4", "sp": "1", "pp": "1", "attention": "TE", "mbs": "1"}
    names = ("Megatron Bridge", "Megatron Bridge, full-iteration CUDA graphs")
    dispatched, captured = (predict(case(**given, framework=name, dp="4")).seconds for name in names)
    assert captured < 0.8 * dispatched


def test_a_share_of_a_sequence_has_a_share_of_the_logits() -> None:
    given = {"framework": "NeMo", "gpu": "H100-SXM", "n_gpus": "8", "tp": "1", "pp": "1", "attention": "TE"}
    wide = {**given, "vocab": "256000", "hidden": "256", "n_heads": "4", "n_layers": "1", "recompute": "none"}
    half = predict(case(**wide, dp="8", seq_len="1024"))  # whose tokens are as many as those of a share
    shared = predict(case(**wide, dp="4", cp="2", seq_len="2048"))
    assert shared.memory["allocated"] == pytest.approx(half.memory["allocated"], rel=1e-2)


EXPERTS = {
    "mlp": "swiglu",
    "ffn": "2816",
    "n_experts": "8",
    "top_k": "2",
    "moe_ffn": "512",
    "framework": "NeMo",
    "pp": "1",
    "dp": "8",
}


def test_experts_are_divided_beside_parts_and_stages() -> None:
    found = case(**{**EXPERTS, "tp": "1", "dp": "16"}, ep="4", n_shared_experts="1", n_dense_layers="2")
    assert (found.strategy, found.options["ep"], found.layout.sequence_parallel) == ("megatron", 4, False)
    assert (found.model.num_shared_experts, found.model.moe_layers) == (1, tuple(range(2, 8)))
    divided = case(**{**EXPERTS, "pp": "2", "dp": "4"}, ep="4", sp="", zero="1")
    assert divided.layout.sequence_parallel  # as tokens would be sent twice without
    assert (divided.layout.etp, divided.options["ep"]) == (2, 8)  # experts are in as many parts as layers
    alone = case(**{**EXPERTS, "pp": "2", "dp": "4"}, sp="1", zero="1")
    assert predict(divided).memory["allocated"] < predict(alone).memory["allocated"]
    busy = case(**{**EXPERTS, "pp": "2", "dp": "4"}, ep="4", sp="", zero="1", imbalance="2")
    assert predict(busy).seconds > predict(divided).seconds
    many = {**EXPERTS, "sp": "1", "tp": "1", "zero": "1", "dp": "32", "n_gpus": "32", "gbs": "", "ep": "8"}
    assert predict(case(**many, imbalance="2")).seconds > predict(case(**many)).seconds
    with pytest.raises(LackingError, match="imbalance is 2: pp x ep is at most 256"):
        case(**many | dict.fromkeys(("dp", "n_gpus", "ep", "n_experts"), "512"), imbalance="2")
    bridge = case(**{**EXPERTS, "pp": "2", "dp": "4", "framework": "Megatron Bridge"}, ep="4", sp="", zero="1")
    assert bridge.layout.etp == 1


def test_the_parts_of_an_expert_gather_copies_in_their_node_that_came_once() -> None:
    found = case(**{**EXPERTS, "tp": "4", "dp": "4", "sp": "1"}, ep="4", etp="4")
    inner, outer = (
        each.bandwidth * each.efficiency for each in sorted(found.system.networks, key=lambda tier: tier.size)
    )
    leaves = 1 / 2  # of what each of 16 ranks sends, on two nodes
    assert 4 * _exchanged(found) * leaves / outer == pytest.approx(leaves / outer + 3 / inner)


@pytest.mark.parametrize(
    ("framework", "ep", "overlap", "paired"),
    [
        ("Megatron Bridge", "16", "none", True),
        ("Megatron Bridge", "16", "no ep overlap", False),
        ("Megatron Bridge", "8", "none", False),  # within a node
        ("NeMo", "16", "none", False),
        ("NeMo", "8", "ep overlap", True),
    ],
)
def test_passes_are_paired_where_tokens_leave_nodes_or_rows_say_so(
    framework: str, ep: str, overlap: str, paired: bool
) -> None:
    sizes = {**EXPERTS, "n_gpus": "64", "n_experts": "16", "tp": "1", "pp": "2", "vpp": "2", "dp": "32", "gbs": "64"}
    found = case(**{**sizes, "framework": framework, "ep": ep, "overlap": overlap, "n_micro": "", "mbs": "1"})
    assert found.options["schedule"] == ("combined_1f1b" if paired else "1f1b")
    assert getattr(found.platform, "persistent", None) == paired


def test_a_host_that_waits_for_tokens_launches_slower() -> None:
    small = {**EXPERTS, "gpu": "H100-SXM-80GB", "hidden": "256", "seq_len": "64", "tp": "1", "dp": "16"}
    small |= {"framework": "Megatron-Core, no CUDA graphs", "n_experts": "32"}
    mixture, dense = case(**small, ep="4"), case(**{**small, "n_experts": "", "top_k": "", "moe_ffn": ""})
    grace, launches = case(**{**small, "gpu": "GB200"}, ep="4"), []
    for found, wait in ((grace, 99.66e-6), (mixture, 33.4e-6), (dense, 33.4e-6)):
        run = mt.simulate(
            found.strategy, world_size=16, global_batch_size=48, hardware=found.system, workload=found.model,
            platform=found.platform, microbatch_size=2, **found.options,
        )  # fmt: skip
        spent = sum(event.duration for event in run.logs[0] if event.typ == "forward" and event.layer == 2)
        launches.append(round(spent / wait))
        assert spent / wait == pytest.approx(launches[-1], rel=1e-6)  # so small that launches are all of it
    assert launches[0] < launches[1]  # those of experts, which a loop makes


def test_a_shipped_models_name_tells_what_no_column_has() -> None:
    sizes = {"n_layers": "4", "hidden": "7168", "n_heads": "128", "vocab": "129280", "seq_len": "4096", "ffn": "18432"}
    experts = {**EXPERTS, "n_experts": "256", "top_k": "8", "moe_ffn": "2048", "head_dim": "128"}
    found = case(**{**experts, **sizes, "sp": "1", "ep": "8"}, model="DeepSeek-V3 (4 layers)", attention="MLA, flash")
    assert found.model.latent == mt.models()["deepseek-v3"].latent
    assert (found.model.num_shared_experts, found.model.moe_layers) == (1, (3,))
    assert "n_shared_experts not stated: 1, as deepseek-v3 has" in [each.text for each in found.assumed]
    assert case(**{**experts, **sizes, "sp": "1", "ep": "8"}, model="mine").model.latent is None


def test_windows_sinks_biases_and_clamps_are_those_of_the_named_model() -> None:
    sizes = {"n_layers": "4", "hidden": "2880", "n_heads": "64", "n_kv_heads": "8", "head_dim": "64", "ffn": "2880"}
    experts = {**EXPERTS, **sizes, "n_experts": "128", "top_k": "4", "moe_ffn": "2880", "sp": "1", "ep": "8"}
    found = case(**experts, model="GPT OSS 120B, 4 layers")
    assert (found.model.window, found.model.window_layers, found.model.gate_clamp) == (128, (0, 2), 7.0)
    assert all((found.model.sinks, found.model.qkv_bias, found.model.output_bias, found.model.mlp_bias))
    assert "windows, sinks, biases and clamped gates: those of gpt-oss-120b" in [each.text for each in found.assumed]
    assert not case(**{**experts, "mlp": "swiglu, no bias"}, model="GPT OSS 120B").model.mlp_bias
    assert not case(**experts, model="mine").model.sinks


def test_a_row_may_say_that_sharded_weights_are_waited_for() -> None:
    assert not case(zero="3", framework="NeMo", sp="1", overlap="no DP overlap").options["overlap_replicas"]


def test_fsdp_gathers_weights_once_a_step_beside_stages() -> None:
    found = case(zero="fsdp", framework="FSDP", sp="1")
    assert (found.strategy, found.options["zero"], found.options["overlap_replicas"]) == ("megatron", 1, False)
    assert "zero 3 beside stages or experts: weights are gathered once a step" in [each.text for each in found.assumed]


def test_norms_of_queries_and_keys_are_those_of_the_named_model() -> None:
    sizes = {"n_layers": "4", "hidden": "2048", "n_heads": "32", "n_kv_heads": "4", "head_dim": "128", "ffn": "6144"}
    experts = {**EXPERTS, **sizes, "n_experts": "128", "top_k": "8", "moe_ffn": "768", "sp": "1", "ep": "8"}
    found = case(**experts, model="Qwen3 30B-A3B")
    assert found.model.qk_norm == "head"
    assert "norms of queries and keys: those of qwen3-30b-a3b" in [each.text for each in found.assumed]
    assert case(**experts, model="mine").model.qk_norm == "none"


def test_parts_of_layers_have_a_head_of_keys_each_with_megatron() -> None:
    found = case(n_kv_heads="1", framework="Megatron-Core", sp="1")
    assert found.model.num_kv_heads == found.layout.tp == 2
    assert "heads of keys: 2, one a part; what gathers them is left out" in [each.text for each in found.assumed]
    assert case(n_kv_heads="1", framework="FSDP", sp="1").model.num_kv_heads == 1


def test_weights_are_sharded_beside_stages() -> None:
    found = case(zero="3", framework="NeMo", sp="1")
    assert (found.strategy, found.options["zero"], found.options["overlap_replicas"]) == ("megatron", 3, True)
    assert "zero 3 beside stages or experts: weights are gathered a layer ahead in each microbatch's passes" in [
        each.text for each in found.assumed
    ]
    assert case(zero="3 (within 2)", framework="NeMo", sp="1").options["shard_size"] == 2
    assert predict(found).memory["allocated"] < predict(case(zero="1", framework="NeMo", sp="1")).memory["allocated"]


def test_recomputing_some_layers_lies_between_none_and_all() -> None:
    none, some, every = (predict(case(recompute=words)) for words in ("none", "full, 1 layer a stage", "full"))
    assert some.seconds == pytest.approx(none.seconds + (every.seconds - none.seconds) / 4)
    assert none.memory["allocated"] > some.memory["allocated"] > every.memory["allocated"]


def test_activations_in_the_hosts_memory_leave_the_device() -> None:
    given = {"framework": "PyTorch FSDP", "tp": "1", "pp": "1", "dp": "16", "zero": "3", "recompute": "none"}
    kept, moved = (predict(case(**{**given, "recompute": f"none{words}"})) for words in ("", " + activation offload"))
    assert moved.memory["allocated"] < kept.memory["allocated"]


def test_some_layers_activations_may_leave_the_device() -> None:
    given = {"framework": "PyTorch FSDP", "tp": "1", "pp": "1", "dp": "16", "zero": "3", "recompute": "none"}
    words = ("", ", activation offload of 2 layers", " + activation offload")
    none, some, every = (predict(case(**{**given, "recompute": f"none{more}"})).memory["allocated"] for more in words)
    assert none > some > every


@pytest.mark.parametrize("framework", ["NeMo", "DeepSpeed"])
@pytest.mark.parametrize("given", [{"zero": "3"}, {"zero": "1"}], ids=str)
def test_the_hosts_step_takes_the_librarys_time_or_the_stated_one(framework: str, given: dict[str, str]) -> None:
    more = {"precision": "bf16 (fp32 main grads)", **given}
    sizes = {"framework": framework, "tp": "1", "pp": "1", "dp": "16", **more}
    there = sizes | {"zero": f"{given['zero']}, optimizer offload"}
    usual, by_host, stated = map(predict, (case(**sizes), case(**there), case(**there, update_s_per_billion="0.01")))
    assert by_host.memory["allocated"] < usual.memory["allocated"]
    assert by_host.seconds > stated.seconds
    billions = case(**sizes).model.num_parameters / 1e9
    seconds = {"NeMo": 1.476, "DeepSpeed": 0.257}[framework] - 0.01
    assert by_host.seconds - stated.seconds == pytest.approx(billions / 2 * seconds, rel=0.01)  # of two nodes


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("3, FSDP CPU offload", "parameters"),
        ("3 (offload_optimizer=cpu, offload_param=cpu)", "parameters"),
        ("3 (offload_optimizer=cpu)", "optimizer_step"),
        ("3", None),
        ("3, no offload", None),
        ("3, optimizer offload fraction 0", None),
    ],
)
def test_what_lies_on_the_host_is_read(words: str, option: str | None) -> None:
    found = case(framework="PyTorch FSDP", tp="1", pp="1", dp="16", zero=words)
    assert found.options["offload"] == option


@pytest.mark.parametrize(
    ("framework", "words", "fault"),
    [
        ("DeepSpeed", "3, optimizer offload fraction 0.5", "the host updates 0.5 of the parameters: with zero 2 or 3"),
        ("DeepSpeed", "3, optimizer offload fraction 50%", 'known; nearest is "optimizer offload fraction'),
        ("Megatron-LM 2021", "3, optimizer offload", "no price where each gather is waited for"),
    ],
)
def test_what_lies_on_the_host_and_has_no_price_is_refused(framework: str, words: str, fault: str) -> None:
    with pytest.raises(LackingError, match=fault):
        case(framework=framework, tp="1", pp="1", dp="16", zero=words)


def test_pieces_of_multiplications_hide_copies_and_cost_something() -> None:
    given = {"framework": "torchtitan (torch.compile)", "gpu": "H100-SXM-80GB", "tp": "4", "pp": "1", "dp": "4"}
    given |= {"zero": "3", "sp": "1", "recompute": "none"}
    none, pieces = (predict(case(**given, overlap=words)) for words in ("", "AsyncTP"))
    assert none.seconds > pieces.seconds > none.seconds - none.terms["communication"]


def test_devices_as_they_are_sold() -> None:
    given = {"framework": "NeMo", "tp": "1", "dp": "8", "sp": "0"}
    sold = [case(**given, gpu=f"H100-SXM-{words}").system for words in ("80GB 700W", "96GB HBM2e 500W", "80GB 500W")]
    assert [system.name for system in sold] == ["h100_80g_nvl8", "h100_96g_nvl8", "h100_80g_nvl8"]
    usual, memory, limited = (system.kernels for system in sold)
    assert usual is not None
    assert memory is not None
    assert limited is not None
    assert memory.GBps < limited.GBps == usual.GBps
    share = (400 / 600) ** (1 / 3)  # of what 500 and 700 W leave beside 100 W of an idle device
    of_rule, measured = (each.matmul["float16"].tflops for each in (limited, memory))
    assert of_rule == pytest.approx(share * usual.matmul["float16"].tflops, rel=0.002)
    assert measured == pytest.approx(585.2 * (8192 + memory.matmul["float16"].prologue) / 8192, rel=0.02)  # k = 8192
    for kernels in (memory, limited):
        found, bound = (each.attention_rate("flash2", is_backward=False).efficiency for each in (kernels, usual))
        assert found == pytest.approx(share * bound, rel=0.01)
    with pytest.raises(LackingError, match="90 W leave nothing to compute with"):
        case(**given, gpu="H100-SXM-80GB 90W")


def test_what_a_gradient_is_too_short_to_hide_stays_exposed() -> None:
    pricing, shapes = Pricing("kernels", platform=Platform(name="x", parts_overlap="gradients")), (768, 3584)
    given: dict[str, Any] = {"workload": find_workload("llama3-8b")}
    hiding = KernelPredictor(8, "h100_80g_nvl8", pricing, **given)
    size_bytes, ranks = 8192 * 4096 * 2, range(8)
    whole = KernelPredictor(8, "h100_80g_nvl8", Pricing("kernels"), **given).collective("all_gather", size_bytes, ranks)
    device: Any = hiding.device
    attention, mlp = (device.kernel_seconds(Matmul(8192, 4096, n)) for n in shapes)
    assert attention < whole.seconds < mlp * 0.85
    longer = (whole.seconds - attention + 0.15 * whole.seconds) / 2
    found = hiding.collective("all_gather", size_bytes, ranks).seconds
    assert found == pytest.approx(2 / 3 * whole.seconds + longer / 3, rel=1e-9)


@pytest.mark.parametrize(
    ("policy", "again"),
    [
        ("minimal", "layernorm+mlp_act+context"),
        ("minimal_with_context", "layernorm+mlp_act"),
        ("save_qkv_proj", "layernorm+mlp+mlp_act+context+out_proj"),
        ("custom (decoder_layer_input=offload, context=device)", "layernorm+mlp+mlp_act+qkv_proj+out_proj"),
        ("custom (qkv_proj=device, mlpwi_0=offload, mlpwi_1=offload)", "layernorm+mlp_act+context+out_proj"),
        ("custom (context=device, mlpwi_0=device)", "layernorm+mlp_act+qkv_proj+out_proj+mlp_up"),
        ("custom (decoder_layer_input=device, mlpwo=device)", "full"),
    ],
)
def test_what_a_policy_of_maxtext_keeps_says_what_is_computed_again(policy: str, again: str) -> None:
    assert case(framework="MaxText", zero="3", pp="1", dp="8", n_micro="1", recompute=policy).layout.recompute == again


def test_half_a_multiplication_is_not_kept() -> None:
    with pytest.raises(
        LackingError, match="keeps key_proj alone of a multiplication; name all of key_proj, query_proj"
    ):
        case(framework="MaxText", zero="3", pp="1", dp="8", n_micro="1", recompute="custom, key_proj=device")


def test_slices_of_tpus_are_their_own_tori() -> None:
    given = {"framework": "MaxText", "tp": "1", "pp": "1", "dp": "512", "n_gpus": "512", "zero": "3", "mbs": "1"}
    whole, half, two = (
        case(**given, n_micro="1", **changes).system.networks
        for changes in ({"gpu": "TPU v5p"}, {"gpu": "TPU v5e-128"}, {"gpu": "TPU v5e", "inter_node": "DCN, 2 slices"})
    )
    assert [tiers[0].size for tiers in (whole, half, two)] == [512, 128, 256]
    assert two[0].bandwidth == 2 * half[0].bandwidth == 200  # 128 chips of 256 are no closed torus
    (open_cube, _), (closed, _) = (
        case(**{**given, "dp": size, "n_gpus": size}, n_micro="1", gpu="TPU v5p").system.networks
        for size in ("8", "64")
    )
    assert (open_cube.bandwidth, open_cube.efficiency) == (closed.bandwidth / 3, 0.855)  # two of a chip's six links


@pytest.mark.parametrize("framework", ["torch_xla", "PyTorch FSDP", "Hugging Face", "JAX"])
def test_xla_compiles_whichever_library_asks_for_it(framework: str) -> None:
    given = {"tp": "1", "pp": "1", "zero": "3", "n_micro": "1", "gpu": "TPU v6e", "attention": "flash"}
    for size in ("1", "8"):
        found = case(**given, n_gpus=size, dp=size, framework=framework).platform
        assert found is not None
        assert found.by_xla


def test_maxtexts_capacity_sends_tokens_by_one_hot_matrices_where_weights_are_sharded() -> None:
    sizes = {"tp": "1", "sp": "0", "dp": "16", "ep": "1", "zero": "3", "n_micro": "1", "capacity_factor": "1.25"}
    given = {**EXPERTS, **sizes}
    found = case(**{**given, "framework": "MaxText", "gpu": "TPU v6e"}).platform
    assert found is not None
    assert (found.one_hot_capacity, found.pads_experts) == (1.25, True)
    few, many = (
        predict(case(**{**given, "framework": "MaxText", "gpu": "H100", "ep": "4", "capacity_factor": capacity}))
        for capacity in ("1.25", "2")
    )
    assert few.terms["backward"] < many.terms["backward"]
    assert few.terms["communication"] < many.terms["communication"]  # slots travel, taken or not
    with pytest.raises(LackingError, match="capacity_factor has a price with ep, in MaxText, or without zero 2 and 3"):
        predict(case(**{**given, "framework": "torchtitan"}))


def test_a_power_state_of_a_tpu_scales_what_its_clock_does() -> None:
    given = {"framework": "MaxText", "tp": "1", "pp": "1", "dp": "64", "n_gpus": "64", "zero": "3", "mbs": "1"}
    usual, quick = (rates_of(case(**given, n_micro="1", gpu=f"TPU v7x{words}").system) for words in ("", ", p state 7"))
    assert quick.matmul["float16"].tflops == pytest.approx(1.125 * usual.matmul["float16"].tflops)
    assert quick.GBps == usual.GBps


def test_how_tensor_parallelism_is_hidden_is_the_rows_or_the_frameworks() -> None:
    def found(**changes: str) -> tuple[str, float]:
        given = {"gpu": "H100-SXM", "sp": "1", "pp": "1", "framework": "NeMo", "tp": "4"}
        platform = case(**{**given, **changes}).platform
        assert platform is not None
        return platform.parts_overlap, platform.parts_exposed

    usual = find_platform("nemo-h100").parts_exposed
    assert found(overlap="TP overlap (ub)") == ("none", usual)
    assert found(overlap="no TP overlap, no p2p overlap") == ("gradients", 1.0)
    assert found(framework="Megatron-Core r0.8.0") == ("gradients", 1.0)
    assert found(framework="Megatron-Core r0.8.0", overlap="--tp-comm-overlap") == ("none", usual)
    assert found(tp="1", dp="16") == ("none", 1.0)
    in_bridge = {"framework": "Megatron Bridge", "gpu": "GB200", "gpus_per_node": "72"}
    assert found(**in_bridge, precision="MXFP8") == ("none", usual)
    assert found(**in_bridge, precision="NVFP4") == ("gradients", 1.0)


@pytest.mark.parametrize(
    ("framework", "gradient_bytes", "overlaps", "is_fused"),
    [
        ("NeMo 25.04", 2, True, False),
        ("Megatron Bridge", 2, True, True),
        ("Megatron-Core r0.8.0", 4, True, False),
        ("nanotron", 4, False, False),
    ],
)
def test_frameworks_of_nvidia_run_as_their_performance_scripts_say(
    framework: str, gradient_bytes: int, overlaps: bool, is_fused: bool
) -> None:
    given = {"framework": framework, "gpu": "H100-SXM", "precision": "bf16", "attention": "flash"}
    chunked, plain = case(**given, vpp="2"), case(**given)
    assert chunked.model.precision.gradient_bytes == gradient_bytes
    assert (chunked.options["overlap_messages"], plain.options["overlap_messages"]) == (overlaps, False)
    assert not case(**given, vpp="2", overlap="no p2p overlap").options["overlap_messages"]
    assert chunked.platform is None or chunked.platform.fused_loss == is_fused


@pytest.mark.parametrize(("platform", "is_apart"), [("nemo-h100", True), ("compiled-fsdp", False)])
def test_activation_functions_of_megatron_leave_casts_to_other_kernels(platform: str, is_apart: bool) -> None:
    pricing = Pricing("kernels", platform=find_platform(platform))
    predictor = KernelPredictor(8, load_config("h100_80g_nvl8"), pricing, workload=find_workload("llama3-8b"))
    assert predictor.style.casts_apart == is_apart


def test_replicas_of_megatron_pass_over_whole_gradients_where_they_are_not_sharded() -> None:
    def accesses(**changes: str) -> float:
        platform = case(**{"framework": "Megatron-Core r0.8.0", **changes}).platform
        assert platform is not None
        return platform.gradient_accesses

    assert accesses() == accesses(zero="1") == 4
    assert accesses(framework="Megatron-LM 2020") == 2
    alone, sharded = {"n_gpus": "4", "dp": "1"}, {"n_gpus": "8", "pp": "1", "zero": "3"}
    assert accesses(framework="NeMo") == accesses(framework="NeMo", **alone) == 1
    assert accesses(**sharded) == 0
    assert accesses(**alone) == accesses(framework="Megatron-LM 2020", **alone) == 2


@pytest.mark.parametrize(
    ("framework", "gpu", "platform"),
    [
        ("PyTorch FSDP2, torch.compile", "H100-SXM-80GB", "compiled-fsdp"),
        ("PyTorch FSDP2, eager", "H100-SXM-80GB", "eager-h100"),
        ("torchtitan (torch.compile)", "MI300X", "pytorch-compiled"),
        ("PyTorch FSDP2, torch.compile", "A100-SXM-80GB", "compiled-fsdp"),
        ("torchtitan", "H100-SXM-80GB", "eager-h100"),
        ("PyTorch FSDP1, eager (Hugging Face)", "A100-SXM-80GB", "hugging-face"),
        ("NeMo AutoModel", "H100-SXM-80GB", "eager-h100"),
        ("llama-recipes", "A100-SXM-80GB", "hugging-face"),
        ("torchtune", "H100-SXM-80GB", "eager-h100"),
        ("torchtune, compiled", "H100-SXM-80GB", "compiled-fsdp"),
        ("NeMo 25.04", "H100-SXM-80GB", "nemo-h100"),
        ("NeMo 25.04", "GB200", "nemo-blackwell"),
        ("Primus", "MI300X", "megatron-rocm"),
        ("Primus-Turbo", "MI355X", "components"),
        ("Megatron-Core r0.8.0", "A100-SXM-80GB", "megatron-a100"),
        ("NeMo Megatron 23.04", "A100-SXM-80GB", "megatron-a100"),
        ("Megatron-LM 2020", "A100-SXM-80GB", "megatron-2021"),
    ],
)
def test_frameworks_have_their_platforms_by_device_and_compilation(framework: str, gpu: str, platform: str) -> None:
    row = Row("x", {**USUAL, "framework": framework, "gpu": gpu}, 2)
    assert framework_of(row).platform_of(row).name == platform


@pytest.mark.parametrize("framework", ["Primus torchtitan", "torchtitan, torch.compile", "torchtitan, eager", "Primus"])
def test_torchtitan_moves_copies_of_tokens_apart_also_where_primus_runs_it(framework: str) -> None:
    found = case(framework=framework, gpu="MI300X").platform
    assert found is not None
    assert found.moves_apart == ("torchtitan" in framework)


@pytest.mark.parametrize(
    ("framework", "platform"), [("PyTorch, eager", "pytorch"), ("torchtitan, torch.compile", "pytorch-compiled")]
)
def test_one_device_hides_nothing_for_others(framework: str, platform: str) -> None:
    alone = {"framework": framework, "n_gpus": "1", "tp": "1", "pp": "1", "dp": "1"}
    sharded, whole = case(**alone, zero="fsdp"), case(**alone, zero="0")
    assert sharded.platform is not None
    assert whole.platform is not None
    assert (sharded.platform.name, whole.platform.name) == (platform, platform)
    assert (sharded.platform.copies_units, whole.platform.copies_units) == (1, 0)
    assert predict(sharded).seconds > 1.005 * predict(whole).seconds


@pytest.mark.parametrize(("framework", "ranks"), [("PyTorch FSDP2", 8), ("PyTorch FSDP1", 0), ("torchtitan", 8)])
def test_units_are_copied_under_fsdp2_where_no_clock_contains_it(framework: str, ranks: int) -> None:
    found = case(
        framework=f"{framework}, torch.compile", gpu="A100-SXM-80GB", zero="fsdp", dp="8", n_gpus="8", tp="1", pp="1"
    )
    fitted = case(framework=f"{framework}, eager", gpu="A100-SXM-80GB", zero="fsdp", dp="8", n_gpus="8", tp="1", pp="1")
    assert found.platform is not None
    assert fitted.platform is not None
    assert (found.platform.copies_units, fitted.platform.copies_units) == (ranks, 0)
    free = replace(found, system=replace(found.system, networks=tuple(map(_free, found.system.networks))))
    assert predict(free).seconds < predict(found).seconds


def test_what_replicas_hide_takes_multiprocessors_but_where_the_platform_was_fitted_with_it() -> None:
    given = {"framework": "Megatron-Core r0.8.0", "pp": "1", "dp": "8", "overlap": "DP overlap", "hidden": "4096"}
    hidden = case(**given)
    free = replace(hidden, system=replace(hidden.system, networks=tuple(map(_free, hidden.system.networks))))
    assert 1.001 < predict(hidden).seconds / predict(free).seconds < 1.15
    sharded = case(framework="llm-foundry/Composer FSDP1", tp="1", pp="1", dp="16", zero="3")
    free = replace(sharded, system=replace(sharded.system, networks=tuple(map(_free, sharded.system.networks))))
    assert predict(sharded).seconds == predict(free).seconds


def _free(tier: Network) -> Network:
    """Return a tier whose transfers take nothing from computing."""
    return replace(tier, processor_usage=0.0)


@pytest.mark.parametrize(
    ("num_ranks", "size_bytes", "ms"), [(8, 28.3e6, 0.625), (8, 25.2e6, 0.559), (16, 10.5e6, 0.472)]
)
def test_messages_between_stages_go_over_few_channels(num_ranks: int, size_bytes: float, ms: float) -> None:
    """The sizes of table e2, whose T_comm are 0.60 to 0.76, 0.53 to 0.58 and 0.38 ms."""
    pricing = Pricing("kernels", platform=replace(find_platform("megatron-a100"), batches_messages=True))
    prices = KernelPredictor(num_ranks, "a100_80g", pricing, workload=find_workload("gpt2"))
    assert prices.p2p("send", size_bytes, 0, 1).seconds * 1e3 == pytest.approx(ms, rel=1e-2)


def test_a_microbatch_that_nobody_published_is_the_quickest_that_fits() -> None:
    found, quickest = case_and_prediction(row(mbs="quickest", n_micro="", gbs="32"), None)
    others = [predict(case(mbs=size, n_micro="", gbs="32")).seconds for size in ("1", "2", "4", "8")]
    assert quickest.seconds == min(others)
    assert found.assumed[0].text.startswith("mbs not published: ")
    unsaid = case_and_prediction(row(mbs="not stated", n_micro="", gbs="32", dp=""), None)
    assert (unsaid[1], unsaid[0].assumed[0]) == (quickest, found.assumed[0])
    with pytest.raises(LackingError, match="nothing that could stand there"):
        case_and_prediction(row(mbs="quickest", n_micro="", gbs="32", hidden="65536", n_heads="64"), None)


def test_a_microbatch_follows_from_the_batch_and_their_number() -> None:
    assert case(mbs="", gbs="48").layout == case().layout


def test_what_jax_computes_again_is_the_quickest_that_fits() -> None:
    changes = {"framework": "MaxText", "recompute": "not stated", "attention": "flash"}
    found, prediction = case_and_prediction(row(**changes), None)
    assert found.assumed[0].text == "recompute not published: none, the quickest that fits"
    assert found.assumed[0].others == ("selective",)
    assert prediction == predict(case(**{**changes, "recompute": "none"}))


def test_heads_that_are_not_stated_are_those_of_the_named_model_or_have_about_128_elements() -> None:
    found = case(n_heads="", hidden="1152")
    assert found.model.num_heads == 8  # of 144 elements; 9 heads of 128 do not divide among 2 ranks
    assert any(each.text == "n_heads not stated: 8" for each in found.assumed)
    assert case(n_heads="", head_dim="64").model.num_heads == 16


@pytest.mark.parametrize(
    ("precision", "datatype", "gradient_bytes"),
    [("bf16", None, 4), ("fp8 hybrid", "float8", 4), ("bf16/fsdp_mp=PURE", None, 2), ("fp16", None, 4)],
)
def test_precisions_are_read(precision: str, datatype: str | None, gradient_bytes: int) -> None:
    found = case(precision=precision).model.precision
    assert (found.weight_datatype, found.gradient_bytes) == (datatype, gradient_bytes)


def test_squared_relu_keeps_its_input_and_its_square() -> None:
    assert [case(mlp=word).model.mlp for word in ("relu", "relu2", "squared relu")] == ["relu", "relu2", "relu2"]


def test_stages_have_whole_layers() -> None:
    assert stage_layers(10, 4) == (2, 3, 3, 2)  # embedding and head count as a layer each
    assert stage_layers(9, 4) == (3, 2, 2, 2)
    assert stage_layers(106, 12) == (8, *[9] * 10, 8)
    assert unit_stages(stage_layers(8, 4)) == [5, 4, 4, 5]
    assert balanced_layers([1.0] * 28 + [1.7], 4) == (8, 7, 8, 5)  # a stage ends with the layer that fills its share
    assert unit_stages(balanced_layers([1.0] * 6 + [4.5], 4)) == [7, 5, 1, 1]  # and the head may leave one empty


def test_a_table_that_is_none_says_so(tmp_path: Path) -> None:
    with pytest.raises(mt.UsageError, match="cannot read the table"):
        read_rows(tmp_path / "none.csv")
    for text, message in (
        (b"\xff\xfe\x00", "UTF-8"),
        (b"a,b\n1,2,3\n", "expected 2 cells in line 2, as columns, found 3"),
        (b"a,b,a\n1,2,3\n", "expected each column once, found a more than once"),
    ):
        (tmp_path / "odd.csv").write_bytes(text)
        with pytest.raises(mt.UsageError, match=message):
            read_rows(tmp_path / "odd.csv")


@pytest.mark.parametrize("text", ["", "row_id\n", "row_id,gpu\n1\n", "a,b\n1,2,\n"])
def test_odd_tables_are_read_as_rows_that_lack_everything(tmp_path: Path, text: str) -> None:
    file = tmp_path / "odd.csv"
    file.write_text(text)
    done = mt.validate(csv=file)
    assert done.rows == []
    assert all(skipped.reason for skipped in done.skipped)


def test_numbers_stand_alone_or_before_a_remark() -> None:
    found = row(n_micro="12.0", mbs="4 (each)", seq_len="1024 tokens", vpp="not stated")
    values: list[Any] = [found.count("n_micro"), found.count("mbs"), found.count("seq_len"), found.number("vpp")]
    assert values == [12, 4, 1024, None]
    found = row(n_gpus="1,024 GPUs", seq_len="8k", n_micro="GA=4", vpp="not stated => assumed 2", ffn="13,824")
    written = [found.number(name) for name in ("n_gpus", "seq_len", "n_micro", "vpp", "ffn")]
    assert written == [1024, 8192, 4, 2, 13824]
    for text in ("yaml 2048", "20,48", "3k", "two", "8x", "1..2"):
        with pytest.raises(LackingError, match=r"gbs is .*where a plain number"):
            row(gbs=text).number("gbs")


def test_the_width_of_an_mlp_may_be_one_of_the_width_between_layers(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text('hidden,ffn\n"4,096",4h\n1024,2.5x\n1024,4y\n')
    first, second, other = read_rows(tmp_path / "mine.csv")
    assert (first.count("ffn"), second.count("ffn")) == (16384, 2560)
    with pytest.raises(LackingError, match="ffn is '4y'"):
        other.count("ffn")


def test_a_rate_between_nodes_needs_what_has_it_where_there_are_several() -> None:
    several = {"gpu": "H100", "n_gpus": "16", "gpus_per_node": "8"}
    found = [machine_of(row(**several, inter_node=text)) for text in ("8x400Gb/s", "400 Gb/s IB per GPU", "8x50 GB/s")]
    assert found[0] == found[1] == found[2]
    assert machine_of(row(**{**several, "n_gpus": "8"}, inter_node="400 Gb/s")).name == found[0].name
    with pytest.raises(LackingError, match="does not say of what"):
        machine_of(row(**several, inter_node="400 Gb/s"))


def test_trays_of_a_rack_are_one_node_unless_the_row_says_otherwise() -> None:
    rack = {"gpu": "GB200", "n_gpus": "128", "gpus_per_node": "4", "inter_node": "400 Gb/s per GPU"}
    tray, whole = machine_of(row(**rack)), machine_of(row(**{**rack, "gpus_per_node": "72"}))
    assert [tier.size for tier in tray.networks] == [tier.size for tier in whole.networks]
    assert [tier.bandwidth for tier in tray.networks] == pytest.approx([tier.bandwidth for tier in whole.networks])
    assert machine_of(row(**rack, intra_node="NVL4")).networks[0].size == 4


def test_what_is_hidden_may_say_what_sends_tokens() -> None:
    assert dispatcher_of(row(overlap="DeepEP")) == dispatcher_of(row(dispatcher="deepep")) == {"dispatcher": "deepep"}
    with pytest.raises(LackingError, match="write one"):
        dispatcher_of(row(overlap="HybridEP", dispatcher="alltoall"))


def test_shards_of_2021_are_copied_one_by_one_while_computing_waits() -> None:
    """DeepSpeed's issue 1069: half a millisecond for one parameter of a few elements, among eight ranks."""
    found = case(framework="Megatron-LM (SC21)", zero="3", tp="1", sp="0", pp="1", dp="16", mbs="1", recompute="full")
    assert (found.strategy, found.platform and found.platform.shares_by_rank) == ("zero3", True)
    copied, base = (
        KernelPredictor(8, "a100_80g", Pricing("kernels", platform=platform), workload=find_workload("gpt2"))
        .collective("all_gather", 8 * 640, range(8))
        .seconds
        for platform in (found.platform, None)
    )
    assert copied - base == pytest.approx(2 * 8 * 13.48e-6)


@pytest.mark.parametrize(
    ("changes", "dispatcher", "pads", "captures"),
    [
        ({}, "alltoall", False, False),
        ({"dispatcher": "flex (DeepEP)", "framework": "Megatron Bridge"}, "deepep", False, None),
        ({"dispatcher": "Hybrid-EP", "framework": "Megatron Bridge, partial CUDA graphs"}, "hybridep", False, True),
        ({"capacity_factor": "1", "framework": "Megatron Bridge, no CUDA graphs"}, "alltoall", True, False),
        ({"framework": "Megatron Bridge, full iteration CUDA graphs"}, "alltoall", False, "whole"),
    ],
)
def test_a_row_says_how_tokens_travel_and_what_graphs_replay(
    changes: dict[str, str], dispatcher: str, pads: bool, captures: bool | str | None
) -> None:
    found = case(**{**EXPERTS, "sp": "1", "ep": "8", "gpu": "GB200", "framework": "Megatron-Core", **changes}).platform
    assert found is not None
    assert (found.dispatcher, found.pads_experts, found.captures) == (dispatcher, pads, captures)
    assert found.hybridep_units == (32 if "Bridge" in changes.get("framework", "") else None)


def test_auto_models_mixtures_run_transformer_engine_and_gather_their_weights_once() -> None:
    changes = {"sp": "1", "tp": "1", "pp": "1", "ep": "8", "dp": "8", "n_gpus": "8", "zero": "fsdp", "mbs": "4"}
    changes["gpu"] = "H100-SXM-80GB"
    sharded = {**EXPERTS, **changes, "dispatcher": "hybridep"}
    plain, auto = (case(**{**sharded, "framework": name}) for name in ("PyTorch FSDP", "NeMo AutoModel"))
    assert plain.platform is not None
    assert auto.platform is not None
    assert (plain.platform.name, plain.options["zero"]) == ("eager-h100", 3)
    assert (auto.platform.name, auto.options["zero"], auto.platform.captures) == ("nemo-h100", 1, False)
    asked = case_of(row(**sharded), "nemo-h100").platform
    assert asked is not None
    assert asked.dispatcher == "hybridep"


@pytest.mark.parametrize(
    ("framework", "imbalance", "in_turn"),
    [("NeMo AutoModel", "", True), ("NeMo AutoModel", "1", False), ("Megatron-Core", "", False)],
)
def test_auto_models_benchmarks_take_experts_in_turn(framework: str, imbalance: str, in_turn: bool) -> None:
    found = case(**{**EXPERTS, "sp": "1", "ep": "8", "framework": framework, "imbalance": imbalance})
    assert found.platform is not None
    assert found.platform.in_turn is in_turn
    assert ("experts in turn" in " ".join(each.text for each in found.assumed)) is in_turn


def test_a_dispatcher_that_is_not_stated_is_assumed_where_tokens_travel() -> None:
    said = "dispatcher not stated: alltoall"
    assert said in [each.text for each in case(**EXPERTS, sp="1", ep="8").assumed]
    for changes in ({"ep": "1"}, {"ep": "8", "dispatcher": "alltoall"}):
        assert said not in [each.text for each in case(**EXPERTS, sp="1", **changes).assumed]


def test_a_dispatcher_that_is_not_priced_is_refused() -> None:
    for word, why in (("flex", "which library it calls"), ("tutel", "no price"), ("deepepp", "deepep")):
        with pytest.raises(LackingError, match=f"dispatcher .*{why}"):
            case(**EXPERTS, dispatcher=word)


def test_a_row_says_which_attention_kernel_ran_in_which_blocks_and_how_words_are_embedded() -> None:
    given = {"framework": "MaxText", "zero": "3", "pp": "1", "dp": "8", "n_micro": "1", "recompute": "full"}
    tpu = case(**given, gpu="TPU v6e", attention="flash, fused backward, blocks of 2048").platform
    assert tpu is not None
    assert (tpu.attention, tpu.attention_block) == ("splash_fused", 2048)
    usual = case(**given, gpu="TPU v6e", attention="flash").platform
    assert usual is not None
    assert (usual.attention, usual.attention_block, usual.one_hot_embedding) == (None, None, False)
    multiplied = case(**{**given, "framework": "MaxText, iota embed"}, gpu="TPU v6e", attention="flash").platform
    assert multiplied is not None
    assert multiplied.one_hot_embedding


def test_a_row_says_that_gradients_are_added_up_by_kernels_of_their_own() -> None:
    fused, apart = (case(framework=words) for words in ("Primus", "Primus, no gradient accumulation fusion"))
    assert predict(fused).terms["forward"] == predict(apart).terms["forward"]
    assert predict(fused).terms["backward"] < predict(apart).terms["backward"]


def test_a_row_says_which_layers_have_a_window() -> None:
    model = case(attention="flash, window of 1024 in 2 of 3 layers", n_layers="8").model
    assert (model.window, model.window_layers) == (1024, (0, 1, 3, 4, 6, 7))
    assert case(attention="flash, sliding window 512", n_layers="2").model.window_layers == (0, 1)
    with pytest.raises(LackingError, match="a window in at most all layers of a group"):
        case(attention="flash, window 512 in 4 of 3 layers")


def test_a_layer_of_multi_token_prediction_is_in_the_last_stage() -> None:
    experts = {**EXPERTS, "sp": "1", "n_layers": "8", "pp": "2", "dp": "4", "n_micro": "6"}
    plain, further = (case(**experts, mtp_layers=count) for count in ("0", "1"))
    assert further.model.prediction_layers == 1
    assert (plain.options["layers_per_stage"], further.options["layers_per_stage"]) == ([9, 9], [9, 11])
    assert predict(plain).seconds < predict(further).seconds
