"""Words of tables: each is read as what it means, or refused with row, column, what is known and the nearest word."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import minitrain as mt
from minitrain.cli import app
from minitrain.evidence.cases import Case, case_and_prediction, case_of, predict
from minitrain.evidence.columns import columns, described, read_number, read_words, template
from minitrain.evidence.errors_by_table import TABLES, rows_of
from minitrain.evidence.rows import LackingError, Row, read_rows, require_known
from minitrain.machine import load_config
from minitrain.machine.platforms import Platform
from tests.evidence.test_rows import USUAL, case, row

H100 = {"gpu": "H100-SXM-80GB", "framework": "Megatron-Core", "n_gpus": "8", "dp": "2", "n_micro": "2", "gbs": "8"}
FSDP = {"framework": "PyTorch FSDP", "tp": "1", "pp": "1", "dp": "16", "n_micro": "1", "gbs": "32"}


def texts(found: Case) -> list[str]:
    return [assumption.text for assumption in found.assumed]


def unread_of(each: Row) -> tuple[str, ...] | str:
    """Return what is not read of a row, or why it is refused."""
    try:
        return require_known(each)
    except LackingError as error:
        return str(error)


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as out:
        writer = csv.DictWriter(out, list(dict.fromkeys(name for each in rows for name in each)))
        writer.writeheader()
        writer.writerows(rows)
    return path


GPUS = {"a100": "A100-SXM-80GB", "h100": "H100-SXM-80GB", "h200": "H200"}

READ: list[tuple[str, str, dict[str, Any]]] = [
    ("precision", "bf16 (fp32 main grads)", {"datatype": "bf16", "gradient_bytes": 4}),
    ("precision", "BF16-mixed, bf16 grads", {"datatype": "bf16", "gradient_bytes": 2}),
    ("precision", "float8", {"weights": "float8"}),
    ("precision", "bf16 + FP8 hybrid", {"datatype": "bf16", "weights": "float8"}),
    ("precision", "bf16 + qwix fp8", {"datatype": "bf16", "weights": "float8", "scaling": "current"}),
    ("precision", "bf16 + fp8 full fixed", {"datatype": "bf16", "weights": "float8"}),
    ("gpu", "TPU7x-128, p state 7", {"config": "tpu_v7x", "closes": 64, "cores": 128, "clock": 1.125}),
    ("zero", "ZeRO-3", {"zero": 3}),
    ("zero", "zero_stage 2", {"zero": 2}),
    ("zero", "hsdp", {"fsdp": True, "hybrid": True}),
    ("zero", "HSDP (within 8 ranks, replicated x2)", {"fsdp": True, "hybrid": True, "shard_size": 8, "copies": 2}),
    ("sp", "1 if tp>1", {"sp": True}),
    ("sp", "on", {"sp": True}),
    ("attention", "TE fused/flash", {"attention": "flash", "kernel": "cudnn"}),
    ("attention", "TE flash", {"attention": "flash", "kernel": "cudnn"}),
    ("attention", "FA3", {"attention": "flash", "kernel": "flash3"}),
    ("attention", "TE FP8 attention", {"attention": "flash", "kernel": "cudnn", "core": "cudnn_fp8"}),
    ("attention", "te, fp8_dot_product_attention=True", {"attention": "flash", "kernel": "cudnn", "core": "cudnn_fp8"}),
    ("precision", "fp8 current scaling, fp8 dpa", {"weights": "float8", "scaling": "current", "core": "cudnn_fp8"}),
    ("attention", "FlashAttention-2", {"attention": "flash", "kernel": "flash2"}),
    ("attention", "unfused (no flash); fused softmax kernel", {"attention": "unfused"}),
    ("attention", "not stated (Megatron of 2021) => unfused", {"attention": "unfused"}),
    ("attention", "not stated in the paper, of early days => unfused", {"attention": "unfused"}),
    ("recompute", "selective (per-op)", {"recompute": "selective", "per_op": True}),
    ("recompute", "selective op but attention", {"recompute": "selective", "per_op": True, "modules": ("context",)}),
    ("recompute", "layernorm + moe_act", {"modules": ("layernorm", "moe_act")}),
    (
        "attention",
        "flash, fused backward, blocks of 2048",
        {"attention": "flash", "kernel": "splash_fused", "block": 2048},
    ),
    ("recompute", "save_out_proj", {"keeps": ("out_proj",)}),
    (
        "recompute",
        "custom (mlpwi=device, context=offload)",
        {"keeps": ("mlpwi", "context"), "offloads": ("activations",)},
    ),
    ("recompute", "full (block, 4 of 16 layers)", {"recompute": "full", "recomputed": 4, "recomputed_of": 16}),
    ("precision", "bf16 + MXFP8", {"datatype": "bf16", "weights": "float8", "scaling": "mx"}),
    ("precision", "FP8 (current scaling)", {"weights": "float8", "scaling": "current"}),
    ("recompute", "none + activation offload", {"recompute": "none", "offloads": ("activations",)}),
    ("gpu", "TPU v5p-128", {"config": "tpu_v5p", "closes": 64, "cores": 128}),
    ("schedule", "ZB-H1", {"schedule": "zb_h1"}),
    ("schedule", "interleaved-1f1b", {"schedule": "interleaved"}),
    ("inter_node", "8x400Gb/s NDR IB per node", {"nics": 8, "gbps": 400}),
    ("inter_node", "8x400 Gb/s InfiniBand", {"nics": 8, "gbps": 400}),
    (
        "attention",
        "FlexAttention",
        {
            "attention": "flash",
            "kernel": "flash2",
            "near": ("FlexAttention, as FlashAttention-2 (of whose rates its authors count 90 % and 85 %)",),
        },
    ),
    ("inter_node", "400 Gb/s per GPU", {"gpu_gbps": 400}),
    ("inter_node", "AWS p5 (32x100Gb/s EFA)", {"machine": "p5.48xlarge", "nics": 32, "gbps": 100, "network": "efa"}),
    ("inter_node", "a3-megagpu-8g", {"machine": "a3-megagpu-8g"}),
    ("inter_node", "Standard_ND96isr_H100_v5", {"machine": "nd96isr_h100_v5"}),
    (
        "inter_node",
        "4x200Gb/s Slingshot 11",
        {"nics": 4, "gbps": 200, "near": ("Slingshot, as InfiniBand of its rate",)},
    ),
    ("inter_node", "8x200Gb/s RoCE, OCI", {"nics": 8, "gbps": 200}),
    ("inter_node", "400 Gb/s IB per GPU", {"rate": 400}),
    ("inter_node", "InfiniBand 8x50 GB/s", {"nics": 8, "rate_gbyte": 50}),
    ("gpu", "DGX H100", {"config": "h100_80g_nvl8"}),
    ("precision", "BF16 params, fp32 reduce", {"datatype": "bf16", "gradient_bytes": 4}),
    ("precision", "float8 linear, bf16 elsewhere", {"datatype": "bf16", "weights": "float8"}),
    ("recompute", "norms and moe_act modules", {"modules": ("layernorm", "moe_act")}),
    ("recompute", "remat_policy=full", {"recompute": "full"}),
    ("schedule", "ZB-1p (same memory limit as 1F1B)", {"schedule": "zb_1p"}),
    ("gpu", "H100-SXM-96GB HBM2e 500W", {"config": "h100_80g_nvl8", "power_w": 500, "memory": "HBM2e"}),
    ("mem_kind", "nvidia-smi, GB (1e9)", {"kind": "device", "unit": 1e9}),
]


@pytest.mark.parametrize(("column", "text", "facts"), READ)
def test_words_are_read_as_what_they_mean(column: str, text: str, facts: dict[str, Any]) -> None:
    found = dict(read_words(column, text).facts)
    assert {name: found[name] for name in facts} == facts
    assert found.keys() <= {*facts, "others", "usual_memory", "usual_nvlink", "memory_gb", "rate_of"}


@pytest.mark.parametrize(
    ("words", "machine"),
    [
        ("p4d.24xlarge", "p4de.24xlarge"),
        ("4x100Gb/s EFA", "p4de.24xlarge"),
        ("32x100Gb/s EFA", "p5e.48xlarge"),
        ("16x200Gb/s EFA", "p5en.48xlarge"),
        ("8x200Gb/s TCPXO", "a3-megagpu-8g"),
        ("a3-ultragpu-8g", "a3-ultragpu-8g"),
    ],
)
def test_words_for_clouds_networks_price_as_their_machines(words: str, machine: str) -> None:
    config = load_config(machine)
    outer = case(gpu=GPUS[config.name[:4]], inter_node=words).system.networks[-1]
    known = config.networks[-1]
    said = ("latency_across", "ring_step", "nics", "bandwidth", "curves")
    assert [getattr(outer, name) for name in said] == [getattr(known, name) for name in said]


def test_what_is_read_decides_what_is_simulated() -> None:
    assert case(schedule="interleaved 1F1B, VP=2", vpp="").layout == case(schedule="interleaved", vpp="2").layout
    assert case(mbs="2 per GPU", tp="1", pp="1", dp="16", gbs="192").layout.microbatch_size == 2
    assert case(precision="bf16 (fp32 main grads)").model.precision.name == "bf16"
    assert case(precision="float8").model.precision.weight_datatype == "float8"
    assert (case(**FSDP, zero="ZeRO-3").strategy, case(**FSDP, zero="hsdp").options["replicas"]) == ("fsdp", 2)
    assert case(sp="1 if tp>1").layout.sequence_parallel
    assert not case(sp="1 if tp>1", tp="1", dp="8", n_micro="3").layout.sequence_parallel
    assert case(attention="not stated (paper of 2021) => unfused").model.attention == "unfused"
    for text, kernel in (("TE fused/flash", "cudnn"), ("TE flash", "cudnn"), ("FA3", "flash3"), ("fa2", "flash2")):
        platform = case(**H100, attention=text).platform
        assert platform is not None
        assert platform.attention == kernel


TPU = {"gpu": "TPU v6e-256", "n_gpus": "256", "gpus_per_node": "", "inter_node": "", "framework": "MaxText"}
TPU |= dict.fromkeys(("tp", "pp", "dp", "vpp", "sp", "schedule", "overlap", "n_micro", "gbs"), "")
TPU |= {"zero": "ici_fsdp_parallelism=256", "mbs": "4", "precision": "bf16", "recompute": "full", "attention": "splash"}


@pytest.mark.parametrize(
    ("said", "same"),
    [
        ({"mbs": "per_device_batch_size 4"}, {}),
        ({"mbs": "per_device_batch_size=4", "tp": "2", "zero": "FSDP"}, {"mbs": "8", "tp": "2", "zero": "FSDP"}),
        ({"mbs": "", "gbs": "1024"}, {"n_micro": "1"}),
        ({"n_micro": "GA 16"}, {"n_micro": "16"}),
        ({"n_micro": "gradient_accumulation_steps=16", "gbs": "global_batch_size 16384"}, {"n_micro": "16"}),
        ({"zero": "ici_fsdp_parallelism=-1, dcn_data_parallelism=1"}, {}),
        ({"zero": "ici_fsdp_parallelism=64, ici_fsdp_transpose_parallelism=4"}, {}),
        ({"zero": "dcn_data_parallelism=2, ici_fsdp_parallelism=128"}, {"zero": "FSDP=128, replicated x2"}),
        ({"zero": "ici_fsdp_parallelism=64, ici_tensor_parallelism=4"}, {"zero": "FSDP=64", "tp": "4"}),
        ({"zero": "mesh_dim='4,64,1'"}, {"zero": "FSDP=64, replicated x4"}),
        ({"zero": "sharding_axis_dims (1, -1, 1, 1)"}, {}),
        ({"recompute": "gradient checkpointing"}, {}),
        ({"recompute": "custom remat"}, {}),
        ({"recompute": "save_only_these_names: q_proj, k_proj, v_proj"}, {"recompute": "save_qkv_proj"}),
        ({"recompute": "offloaded: decoder_layer_input"}, {"recompute": "custom (decoder_layer_input=offload)"}),
        ({"attention": "dot_product"}, {"attention": "unfused"}),
        ({"precision": "p=f32,c=bfloat16"}, {}),
        ({"framework": "JAX (Flax)", "dispatcher": "megablox (dropless)"}, {}),
    ],
    ids=str,
)
def test_words_of_jax_users_are_read_as_minitrains_own(
    said: dict[str, str], same: dict[str, str], tmp_path: Path
) -> None:
    given = {key: value for key, value in USUAL.items() if key not in ("microbatch", "row_id")}
    file = write(tmp_path / "mine.csv", [given | TPU | said, given | TPU | {"n_micro": "1"} | same])
    read, plain = (case_of(each).bare() for each in read_rows(file))
    assert read == plain


def test_what_jax_users_leave_open_is_said() -> None:
    found = texts(case(**(TPU | {"mbs": "", "gbs": "1024", "recompute": "remat"})))
    assert "mbs not stated: all samples of a replica at once" in found
    assert "recompute says no more than 'remat': full" in found
    assert "neither gbs nor n_micro stated: one microbatch" in texts(case(**TPU))


def test_what_maxtext_counts_on_tpu7x_are_cores(tmp_path: Path) -> None:
    given = USUAL | TPU | {"gpu": "TPU7x-256", "n_gpus": "128"}
    said = {"zero": "ici_fsdp_parallelism=256", "mbs": "per_device_batch_size=4"}
    file = write(tmp_path / "mine.csv", [given | said, given | {"zero": "FSDP=128", "mbs": "8"}])
    read, plain = (case_of(each).bare() for each in read_rows(file))
    assert read == plain


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"mbs": "GA=4"}, "mbs is 'GA=4', where a plain number"),
        ({"tp": "pp=4"}, "tp is 'pp=4', where a plain number"),
        ({"recompute": "q_proj, o_proj"}, "does not say what becomes of it"),
        ({"gpu": "TPU v3-8"}, "no hardware config has prices"),
        ({"framework": "NeuronX Distributed"}, "nothing is known of how it runs"),
        ({"zero": "sharding_axis_dims (2, 8, 4, 4)"}, "which is not known"),
        ({"mbs": "", "gbs": "1024", "framework": "PyTorch FSDP", "attention": "dott"}, 'attention has "dott"'),
    ],
    ids=str,
)
def test_words_that_say_something_else_are_refused_by_their_own_name(said: dict[str, str], why: str) -> None:
    with pytest.raises(LackingError, match=re.escape(why)):
        case_and_prediction(row(**(TPU | said)), None)


def test_attention_in_eight_bits_follows_the_recipe_of_multiplications() -> None:
    for precision, attention, kernel in (
        ("fp8", "te fp8 attention", "cudnn_fp8"),
        ("nvfp4, fp8 dpa", "te", "cudnn_fp8"),
        ("mxfp8", "te fp8 attention", "cudnn_mxfp8"),
    ):
        platform = case(**{**H100, "gpu": "B200"}, precision=precision, attention=attention).platform
        assert platform is not None
        assert platform.attention == kernel


def test_smaller_nodes_have_their_own_interfaces() -> None:
    inner, outer = case(gpus_per_node="4", inter_node="4x200Gb/s").system.networks
    assert (inner.size, outer.bandwidth) == (4, 25.0)


def test_what_is_said_of_the_mlp_decides() -> None:
    assert (case().model.positions, case(mlp="gelu, rotary").model.positions) == ("learned", "rotary")
    gated = {"mlp": "swiglu, with biases", "ffn": "4096"}
    assert case(**gated).model.num_parameters > case(**{**gated, "mlp": "swiglu"}).model.num_parameters
    hidden = case(mlp="gelu", overlap="none", framework="NeMo")
    assert not hidden.options["overlap_replicas"]


def test_two_times_that_disagree_are_told() -> None:
    assert case(tokens_per_s_per_gpu="99999").unread == (
        "tokens_per_s_per_gpu makes 0.03072 s of a step, unlike step_time_s: not read",
    )
    assert case(tokens_per_s_per_gpu="2048").unread == ()


def test_a_platform_of_ones_choice_keeps_the_rows_attention_kernel() -> None:
    chosen = case_of(row(**H100, attention="FA3"), "components").platform
    assert chosen is not None
    assert (chosen.name, chosen.attention) == ("components", "flash3")
    mine = Platform(name="mine", attention="cudnn")
    kernels = [case_of(row(**H100, attention=text), mine).platform for text in ("FA3", "flash")]
    assert [kernel and kernel.attention for kernel in kernels] == ["flash3", "cudnn"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gpu": "H100-SXM-80GB 500W", **{k: v for k, v in H100.items() if k != "gpu"}}, "gpu of 500 W"),
        ({"gpu": "GB300", **{k: v for k, v in H100.items() if k != "gpu"}}, "gpu: kernels of GB300, as those of GB200"),
        ({"n_params": "9e9"}, "n_params is 9e9, but its sizes make 0.1"),
        ({"gpu": "A100-SXM-64GB"}, "gpu of 64 GB: priced as a100_80g, which has 80"),
        ({"gpu": "A100-SXM-80GB HBM3"}, "gpu with HBM3"),
        ({"gpu": "A100-SXM-80GB 300W"}, "gpu of 300 W"),
        ({"intra_node": "NVLink2"}, "intra_node has NVLink 2"),
        ({"intra_node": "900 GB/s"}, "intra_node has links of 900.0 GB/s"),
        ({"intra_node": "NVL72"}, "intra_node has a domain of 72"),
        ({"zero": "sharding"}, "zero not stated: 0"),
        ({"attention": "kernel"}, "attention not stated: unfused"),
        ({"precision": "bf16, fp8 primary weights"}, "precision: weights kept in FP8"),
        ({"framework": "torchtitan (compile not stated)"}, "torch.compile not stated: off"),
        ({"framework": "Composer, torch.compile"}, "torch.compile: priced as MosaicML Composer without it"),
        ({"mem_gib": "20", "mem_kind": "allocated, GB"}, "mem_kind says GB"),
        ({"attention": "TE fused"}, "attention by cudnn: a100_80g has no figures of it"),
        ({"framework": ""}, "framework not stated: components alone"),
        ({"precision": ""}, "precision not stated: bf16"),
        ({"attention": "not stated"}, "attention not stated: unfused"),
        ({"zero": ""}, "zero not stated: 0"),
        ({"sp": ""}, "sp not stated: off"),
        ({"assumed": "gbs of the yaml"}, "gbs of the yaml"),
        ({**FSDP, "zero": "3, optimizer offload"}, "update_s_per_billion not stated: 1.476 (published are 0.1 to 16)"),
        ({**FSDP, "zero": "hsdp"}, "ranks of a group of shards not stated: 8"),
    ],
    ids=str,
)
def test_what_is_assumed_is_listed(changes: dict[str, str], said: str) -> None:
    assert any(text.startswith(said) for text in texts(case(**changes)))
    assert not any(text.startswith(said) for text in texts(case()))


REFUSED = [
    ({"precision": "MXFP4"}, "it has no price here"),
    ({"precision": "bf16 + MXFP8 experts"}, "experts alone in eight bits have no price here"),
    ({"recompute": "full + CPU offload"}, "does not say of what; write activation offload"),
    ({"zero": "1, param offload"}, "parameters lie in the host's memory, which is priced with zero 2 or 3"),
    ({**FSDP, "zero": "3 + NVMe offload"}, "states on a drive have no price"),
    ({**FSDP, "zero": "3 + optimizer offload of 1.5"}, "share in the host's memory is 1.5; 1 is all of it"),
    ({**FSDP, "zero": "3 + optimizer offload", "recompute": "none + activation offload"}, "each is priced alone"),
    ({**FSDP, "recompute": "none, activation offload of 99 layers"}, "activations of 99 layers are offloaded, of"),
    ({"recompute": "full + activation offload"}, "priced with zero 2 or 3 and without stages"),
    ({"recompute": "selective (per-op)"}, "single operations are priced with torchtitan alone"),
    ({"recompute": "full (block)"}, "does not say of how many layers"),
    ({"recompute": "full, 9 layers a stage"}, "but a stage has 4 layers"),
    ({"attention": "MLA"}, "known of shipped models alone"),
    ({"precision": "fp8", "attention": "fp8 dpa"}, "attention by cudnn_fp8: a100_80g has no figures of it"),
    ({**H100, "precision": "mxfp8", "attention": "fp8 dpa"}, "by cudnn_mxfp8: h100_80g_nvl8 has no figures of it"),
    ({**H100, "precision": "bf16", "attention": "fp8 dpa"}, "needs multiplications in eight or four bits; write fp8"),
    ({"gpu": "TPU v4-12"}, "no whole slices"),
    ({"gpu": "TPU v4-16"}, "a slice of 8 chips of two cores, but n_gpus is 16; count chips"),
    ({"framework": "Megatorn-LM (SC21)"}, 'framework has "megatorn"'),
    ({"precision": "bf16 and fp32"}, "says both bf16 and fp32"),
    ({"gpu": "A100-SXM or H100-SXM"}, "says both a100_80g and h100_80g_nvl8"),
    ({"gpu": "A100-PCIe-80GB"}, "no hardware config has prices"),
    ({"intra_node": "PCIe Gen4"}, "joins devices by other links"),
    ({"inter_node": "3200 Gb/s"}, "does not say of what"),
    ({"inter_node": "100GbE"}, "does not say of what"),
    ({"inter_node": "p5.48xlarge"}, "which has h100_80g_nvl8, not a100_80g"),
    ({**FSDP, "zero": "3 (within 5)"}, "do not divide the 16 replicas"),
    ({"schedule": "zero bubble"}, "which one is not said"),
    ({"precision": "fp32 grads"}, "one of bf16, fp16, fp32 and fp8 is needed"),
    ({"n_micro": "six"}, "n_micro is 'six', where a plain number, or such with microbatches or ga"),
    ({"schedule": "interleaved, vpp 3", "vpp": "2"}, "one number of stages"),
    ({"mbs": "2 (per GPU)"}, "write those of a replica"),
    ({"seq_len": "130k"}, "k is 1024 of a power of 2 alone"),
    ({"precision": "bf16, LoRA"}, "adapters and frozen weights are not read"),
    ({"recompute": "full except attention"}, 'has "except"'),
    ({"inter_node": "400 Gb/s IB"}, "does not say of what"),
    ({"vpp": "two"}, "vpp is 'two'"),
    ({"gbs": "1000"}, "gbs is '1000', but mbs x n_micro x dp is 2 x 6 x 4"),
    ({"gpu_mem_gb": "40"}, "gpu is 'A100-SXM-80GB', but gpu_mem_gb is '40'"),
    ({"top_k": "2"}, "top_k is '2', which has experts, but n_experts says none"),
    ({"mlp": "gelu, experts"}, "which has experts, but n_experts says none"),
    ({"precision": "fp32 + fp8"}, "FP8 beside single precision has no price"),
    ({"recompute": "full, core_attn"}, "modules beside all or none"),
    ({"inter_node": "0x200Gb/s"}, "must be above 0"),
    ({"mem_gib": "20 GiB", "mem_kind": "allocated, GB (1e9)"}, "name one unit"),
    ({"gpu": "L40S", "intra_node": "NVLink"}, "joins devices by other links"),
    ({"framework": "launcher v2"}, "which names none of"),
    ({"n_experts": "eight"}, "n_experts is 'eight'"),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSED, ids=str)
def test_words_that_cannot_be_priced_are_refused(changes: dict[str, str], reason: str) -> None:
    with pytest.raises(LackingError, match=reason):
        case(**changes)


UNKNOWN = {
    "gpu": "H10O,A1000-SXM,B2O0,HH200,V1OO,Geforze,Quadro,mainframe",
    "framework": "Megatorn-LM,Megatron-Coer,NeMoo,torchtitna,nanotorn,DeepSpede,lm-foundri,intervnevo,Jaxx,MaxTxt,Foo",
    "precision": "bf61,b16,bfloat,fp18,flaot8,pf8,fp32 main gards,bf16 mixde,mxpf8,brain,bf16 (fp32 gards),posit",
    "zero": "4,ZeRO-5,zeor-3,hsdb,fsdb,fdsp2,distributed optimiser,dist otp,shard gard op,all,ZeRO++",
    "recompute": "fulll,selctive,nnone,uniformly so,selective-ish,layernrom,moe_axt,mla_up_prj,half,auto",
    "attention": "flsh,flahs2,unfusde,FA5,cuDN,TTE,softmaxx,falsh-attn 2,fused-ish,sparse,linear-ish",
    "schedule": "1f2b,gpie,gpipe2,interleavd,zb-h3,zb-h7,dualpip,dualpipe-w,zvb,zero-buble-h1,pipedreem,random",
    "dispatcher": "al2all,deapep,hybirdep,tutell,flexx,broadcast",
    "sp": "maybe,tru,yess,onn,2,0.5",
    "tied_emb": "Flase,tide,maybe,half,Treu",
    "mlp": "swigul,gellu,reglu,maxout,swish,relu3",
    "overlap": "no DB overlap,tp-com-overlap,userbufers,p2p overlpa,overlap-grad-reduc",
    "inter_node": "8y400Gb/s,infinibnad,8xHDR2oo,InfinyBand",
    "intra_node": "NVSwich,NVLinkz,PCIee",
    "mem_kind": "alocated,resreved,nvidia-sim",
}
NO_NUMBERS = {
    "gpu_mem_gb": "80 GX,eighty,0,-80",
    "n_gpus": "16 gpsu,sixteen,0,15.5",
    "gpus_per_node": "8 per nod,eight,0",
    "n_layers": "8 lyers,eight,7.5",
    "hidden": "1k,1024h,-1024",
    "ffn": "4y,none given yet,0",
    "n_heads": "16 haeds,sixteen,0",
    "n_kv_heads": "MQA,half,0",
    "head_dim": "64d,0.5",
    "vocab": "fifty,51200 wrods,0",
    "seq_len": "3k,1024 tokns,1024 token,2 048",
    "n_experts": "eigth,-1,0.5",
    "top_k": "two,-2,1.5",
    "moe_ffn": "1k,-1",
    "n_shared_experts": "one,-1",
    "n_dense_layers": "three,0.5",
    "mtp_layers": "one,-1",
    "imbalance": "balanced,0",
    "capacity_factor": "dropless,-1",
    "n_params": "8X,0",
    "tp": "two,2x,0,0.5",
    "pp": "tow,2 stages,-2",
    "vpp": "twice,1.5,0",
    "cp": "noen,one,0",
    "ep": "of,0,1.5",
    "etp": "as tp,0",
    "dp": "fuor,4 replcias,0",
    "mbs": "quikest,fastest,1.5,0",
    "n_micro": "six,6.5,0",
    "gbs": "48 smaples,48k,0,1e999",
    "step_time_s": "1500 msec,1.5 sceonds,0,-1,nan,1e999",
    "tokens_per_s_per_gpu": "7.4k,7400 tk/s,0",
    "update_s_per_billion": "0.2 ms,quick,0,-1",
    "host_us": "30 ms,thirty,0,-1",
    "mem_gib": "20 GX,20 KiB,twenty,0,-3",
}
LISTED = {**UNKNOWN, **NO_NUMBERS}
CELLS = [(column, text) for column, listed in LISTED.items() for text in listed.split(",")]


def test_there_are_a_hundred_words_that_nobody_knows_over_all_columns_that_are_read() -> None:
    assert len(CELLS) >= 190
    assert LISTED.keys() == {name for name, column in columns().items() if column.kind != "text"}


@pytest.mark.few(48)
@pytest.mark.parametrize(("column", "text"), CELLS)
def test_a_word_that_is_not_known_is_reported_with_the_nearest(column: str, text: str, tmp_path: Path) -> None:
    done = mt.validate(csv=write(tmp_path / "mine.csv", [{**USUAL, column: text}]))
    assert done.rows == []
    (skipped,) = done.skipped
    assert (skipped.row_id, skipped.line) == ("x-1", 2)
    if column in NO_NUMBERS:
        assert f"line 2: {column} is {text!r}, where a " in skipped.reason
        told = [*columns()[column].units, columns()[column].instead] if "plain" in skipped.reason else ["number"]
        assert all(word in skipped.reason for word in told)
        return
    assert f"line 2: {column} has " in skipped.reason
    assert "is not known; nearest is" in skipped.reason
    assert any(known in skipped.reason for known in columns()[column].known)


def test_columns_of_text_move_nothing() -> None:
    for name in (name for name, column in columns().items() if column.kind == "text" and name != "status"):
        changed = case(**{name: "something else"})
        assert (changed.layout, changed.system, changed.platform) == (case().layout, case().system, case().platform)
        assert changed.options == case().options
    assert case(status="measured (forced balance)").unread == ('status has "forced balance": not read',)
    assert case(status="ok, forced balance").unread == ('status has "forced balance": not read',)
    for status in ("oK?", "ok; SUSPECT", "ok, not verified", "measured (estimated from a plot)", "okay"):
        with pytest.raises(LackingError, match="status is"):
            case(status=status)


def test_a_rounded_vocabulary_is_read_and_said() -> None:
    for text, words in (("32k", 32000), ("~50k", 50000), ("not stated (~50k)", 50000)):
        found = case(vocab=text)
        assert 0 <= found.model.vocab_size - words < 128 * found.layout.tp
        assert f"vocab is {text!r}: {words}" in texts(found)
    assert not any("vocab" in text for text in texts(case()))


def test_few_bits_are_compiled_by_torchtitan_where_nothing_is_said() -> None:
    said = "torch.compile not stated: on, as FP8 needs it"
    sizes = {**FSDP, "gpu": "H100-SXM-80GB"}
    found = case(**{**sizes, "framework": "torchtitan", "precision": "float8"})
    assert said in texts(found)
    assert found.platform is not None
    assert found.platform.name == "compiled-fsdp"
    for framework, precision in (("torchtitan", "bf16"), ("torchtitan, eager", "float8")):
        other = case(**{**sizes, "framework": framework, "precision": precision})
        assert said not in texts(other)
        assert other.platform is not None
        assert other.platform.name == "eager-h100"


def test_parameters_of_any_wording_are_a_remark_behind_their_number() -> None:
    assert read_number("n_params", "671B-A37B") == (671e9, "-A37B")


def test_shared_experts_beside_the_others_are_read(tmp_path: Path) -> None:
    for text in ("8 routed + 1 shared", "8 (+1 shared expert)", "8+1 shared"):
        (read,) = read_rows(write(tmp_path / "mine.csv", [{**USUAL, "n_experts": text}]))
        assert (read.text("n_experts"), read.text("n_shared_experts")) == ("8", "1")


def test_microbatches_that_are_not_said_are_one_for_tokens_a_second_alone() -> None:
    silent = {"gbs": "", "n_micro": "", "pp": "1", "dp": "", "vpp": ""}
    found = case(**silent, step_time_s="", tokens_per_s_per_gpu="1000")
    assert found.layout.num_microbatches == 1
    assert "neither gbs nor n_micro stated: one microbatch" in texts(found)
    for changes in ({"step_time_s": "1"}, {"step_time_s": "", "mem_gib": "20"}):
        with pytest.raises(LackingError, match="neither gbs nor n_micro is stated"):
            case(**{**silent, "tokens_per_s_per_gpu": "", **changes})


@pytest.mark.parametrize("name", [name for name, column in columns().items() if column.kind != "text"])
def test_a_misspelt_column_of_any_name_refuses_its_rows(name: str) -> None:
    misspelt = name[:1] + name[2:] if len(name) > 3 else name + name[-1]
    values = {other: value for other, value in USUAL.items() if other != name}
    with pytest.raises(LackingError, match=f'no column "{misspelt}"; nearest is "{name}"'):
        case_of(Row("x", {**values, misspelt: "1"}, 2))


def test_prose_behind_what_is_known_is_reported_and_not_read(tmp_path: Path) -> None:
    changes = {"precision": "bf16 (marketing says 989)", "overlap": "DP overlap, quantum tunnelling", "tflops": "400"}
    done = mt.validate(csv=write(tmp_path / "mine.csv", [{**USUAL, **changes}]))
    (found,) = done.rows
    assert found["unread"] == [
        'column "tflops" is not known: not read',
        'precision has "marketing says 989", which is not known: not read',
        'overlap has "quantum tunnelling", which is not known: not read',
    ]
    result = CliRunner().invoke(app, ["validate", "--table", str(tmp_path / "mine.csv"), "--jobs", "1"])
    assert "Words that were not read" in result.output
    assert "tunnelling" in result.output


CLUSTERED = {
    "fwd_ms": {"gpu": "A100", "hidden": "1024", "n_heads": "16", "seq_len": "512", "mbs": "1", "bwd_ms": "1"},
    "zero_stage": {"n_params": "1e9", "dp": "4", "mem_gb": "3"},
}


def test_tables_of_other_columns_are_read_or_refused_too(tmp_path: Path) -> None:
    layers, states = {"fwd_ms": "1", **CLUSTERED["fwd_ms"]}, {"zero_stage": "1", **CLUSTERED["zero_stage"]}
    refused = {
        "recompute": ("selctive", 'recompute has "selctive"'),
        "sp": ("onn", 'sp has "onn"'),
        "hiden_": ("1024", 'no column "hiden_"; nearest is "hidden"'),
    }
    for name, (cell, reason) in refused.items():
        values = {key: value for key, value in layers.items() if key[:3] != name[:3]}
        (skipped,) = mt.validate(csv=write(tmp_path / "mine.csv", [{**values, name: cell}])).skipped
        assert reason in skipped.reason
    (found,) = mt.validate(csv=write(tmp_path / "mine.csv", [{**states, "colour": "red"}])).rows
    assert found["unread"] == ['column "colour" is not known: not read']


def test_all_faults_of_a_row_are_told_at_once() -> None:
    with pytest.raises(LackingError, match=r"vpp is 'two'.*bf61.*flsh"):
        case(precision="bf61", attention="flsh", vpp="two")


@pytest.mark.parametrize("name", [name for name in TABLES if name not in ("c2", "e2", "h1", "n4")])
def test_every_word_of_the_packages_tables_is_known(name: str) -> None:
    lacking = {"m4": "pp is '8 or 16"}
    for each in rows_of([name]):
        found = unread_of(each)
        assert found == () or lacking[name] in str(found)


def test_every_column_has_an_example_that_it_reads() -> None:
    for name, column in columns().items():
        if column.kind == "words":
            assert read_words(name, column.example).facts
        elif column.kind in ("count", "number"):
            assert read_number(name, column.example)[0]
        assert column.about


def test_a_template_is_a_table_that_can_be_simulated(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    result = CliRunner().invoke(app, ["validate", "--template", str(file)])
    assert (result.exit_code, result.output.splitlines()[-1].split()[:1]) == (0, ["wrote"])
    listed = dict(line.split(": ", 1) for line in described().splitlines())
    assert list(listed) == list(columns())
    assert all(word.replace("#", "N") in listed[name] for name, column in columns().items() for word in column.known)
    assert file.read_text() == template()
    (example,) = csv.DictReader(io.StringIO(template()))
    assert list(example) == list(columns())
    found = case_of(Row("mine", example, 2))
    assert (found.layout.world_size, found.model.num_layers) == (64, 32)
    assert predict(found).seconds > 0
    unwritable = CliRunner().invoke(app, ["validate", "--template", str(tmp_path)])
    assert unwritable.exit_code == 2
    assert "--template must be a file" in unwritable.output


def test_json_has_the_skipped_rows_with_their_reasons(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.csv", [USUAL, {**USUAL, "row_id": "x-2", "precision": "bf61"}])
    found = json.loads(CliRunner().invoke(app, ["validate", "--table", str(file), "--json", "--jobs", "1"]).stdout)
    assert [each["row_id"] for each in found] == ["x-1", "x-2"]
    assert "skipped" not in found[0]
    assert (found[1]["line"], found[1]["table"]) == (3, "mine")
    assert 'precision has "bf61"' in found[1]["skipped"]
    printed = CliRunner().invoke(app, ["validate", "--table", str(file), "--jobs", "1"]).output
    assert "mine, 1 (x-2)" in " ".join(printed.split())


SURE = {
    **USUAL,
    "n_kv_heads": "16",
    "ffn": "4096",
    "head_dim": "64",
    "tied_emb": "True",
    "cp": "1",
    "ep": "1",
    "precision": "fp16, fp32 grads",
    "inter_node": "2x200Gb/s",
    "overlap": "no DP overlap",
    "schedule": "1f1b",
}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"gpus_per_node": ""}, "gpus_per_node not stated: 8; '4' would change the time by +"),
        ({"recompute": ""}, "recompute not stated: none; 'full' would change the time by +"),
        ({"attention": ""}, "attention not stated: unfused; 'flash' would change the time by -"),
        ({"assumed": "vocabulary guessed"}, "vocabulary guessed: how far that moves the time is not known"),
        ({"attention": "unfused (as marketed)"}, 'attention has "as marketed", which is not known'),
    ],
    ids=str,
)
def test_strict_refuses_rows_that_hang_on_an_assumption(
    changes: Mapping[str, str], reason: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "mine.csv", [{**SURE, **changes}])
    assert len(mt.validate(csv=file).rows) == 1
    done = mt.validate(csv=file, strict=True)
    if not reason:
        assert len(done.rows) == 1
        return
    assert done.rows == []
    assert f"strict: {reason}" in done.skipped[0].reason
    result = CliRunner().invoke(app, ["validate", "--table", str(file), "--strict"])
    assert result.exit_code == 1


def test_times_of_layers_have_the_terms_of_the_page(tmp_path: Path) -> None:
    layers = {"fwd_ms": "1", **CLUSTERED["fwd_ms"], "tp": "2"}
    done = mt.validate(csv=write(tmp_path / "mine.csv", [layers]))
    for found in done.rows:
        assert sum(found["terms"].values()) == pytest.approx(found["predicted_s"])
        assert min(found["terms"].values()) > 0
    assert done.write_html(tmp_path / "page.html").read_text("utf-8").count('class="bar"') == 2
