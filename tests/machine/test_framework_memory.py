"""What frameworks allocate beside the tensors of a strategy: `minitrain.machine.framework_memory`."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import UsageError
from minitrain.machine.framework_memory import HABITS, HeldWeight, Place, _cast_in_groups, _Update, fullest_moments
from minitrain.machine.platforms import Platform, find_platform, platform_of_framework
from minitrain.run.device_memory import DeviceMemory
from minitrain.workloads.transformer_workload import TransformerWorkload

HIDDEN, FFN, LAYERS, VOCABULARY, TOKENS = 1024, 4096, 2, 32000, 1024
MODEL = mt.Transformer(
    num_layers=LAYERS,
    hidden_size=HIDDEN,
    num_heads=8,
    ffn_hidden_size=FFN,
    vocab_size=VOCABULARY,
    seq_len=TOKENS,
    mlp="swiglu",
    norm="rmsnorm",
)
ELEMENTS = 10**11


def memory_of(platform: str | Platform, **changes: Any) -> DeviceMemory:
    """Return the memory of a run of Megatron on one device."""
    sizes = {"world_size": 1, "workload": MODEL, "global_batch_size": 2, "microbatch_size": 1, "fold": False}
    found = mt.simulate("megatron", platform=platform, **{**sizes, **changes}).device_memory
    assert found is not None
    return found


def test_megatron_core_holds_weights_totals_states_and_what_layers_keep() -> None:
    matrices = {"qkv": 3 * HIDDEN**2, "output": HIDDEN**2, "gate_up": 2 * FFN * HIDDEN, "down": FFN * HIDDEN}
    norms, table = HIDDEN * (2 * LAYERS + 1), VOCABULARY * HIDDEN
    parameters = LAYERS * sum(matrices.values()) + norms + 2 * table
    layer = 4 * 2 * HIDDEN + 4 * 2 * HIDDEN + 4 * 8 + 3 * 2 * FFN  # norms' inputs and outputs; q, k, v, out; lse; MLP
    head, logits = 2 * 2 * HIDDEN, 6 * VOCABULARY  # in single precision beside those in 16 bits
    fullest = 18 * parameters + TOKENS * (LAYERS * layer + head + logits)
    memory = memory_of("nemo-h100")
    assert memory.kept_bytes == 2 * sum(matrices.values())  # an array of each shape, kept by Transformer Engine
    found = memory.allocated_bytes - memory.kept_bytes - memory.rounding_bytes - memory.workspace_bytes
    assert found == pytest.approx(fullest, rel=1e-6)


def test_megatrons_own_layers_keep_the_activated_gate_and_what_flash_attention_returns() -> None:
    fused, local = (memory_of(replace(find_platform("nemo-h100"), memory=name)) for name in ("fused", "megatron local"))
    assert local.kept_bytes == 2 * LAYERS * TOKENS * (FFN + HIDDEN)
    assert local.allocated_bytes - fused.allocated_bytes == local.kept_bytes


def test_a_loss_in_one_kernel_keeps_logits_in_16_bits() -> None:
    plain, fused = (memory_of(replace(find_platform("nemo-h100"), fused_loss=flag)) for flag in (False, True))
    head_backward = 2 * (VOCABULARY * HIDDEN + HIDDEN) + 2 * TOKENS * HIDDEN  # an empty gradient, and the input's
    assert plain.allocated_bytes - fused.allocated_bytes == 4 * VOCABULARY * TOKENS - head_backward


def test_a_compiled_loss_of_megatrons_own_has_two_arrays_in_single_precision() -> None:
    plain, jitted = (memory_of(replace(find_platform("nemo-h100"), jitted_loss=flag)) for flag in (False, True))
    assert jitted.allocated_bytes - plain.allocated_bytes == 4 * VOCABULARY * TOKENS
    both = memory_of(replace(find_platform("nemo-h100"), jitted_loss=True, fused_loss=True))
    assert both.allocated_bytes == jitted.allocated_bytes


def test_gates_that_are_activated_apart_are_kept() -> None:
    plain, apart = (memory_of(replace(find_platform("nemo-h100"), gates_apart=flag)) for flag in (False, True))
    assert apart.kept_bytes - plain.kept_bytes == 2 * LAYERS * TOKENS * FFN


def stages_of(schedule: str, memory: str) -> mt.Run:
    """Return a run of two stages of FSDP, each of which two ranks share."""
    platform, small = replace(find_platform("compiled-fsdp"), memory=memory), replace(MODEL, vocab_size=1024)
    sizes: dict[str, Any] = {"world_size": 4, "workload": small, "global_batch_size": 16, "microbatch_size": 1}
    return mt.simulate("megatron", pp=2, zero=1, schedule=schedule, platform=platform, fold=False, **sizes)


@pytest.mark.parametrize("memory", ["fsdp2", "fsdp2 eager"])
def test_stages_of_fsdp2_hold_what_all_microbatches_in_flight_keep(memory: str) -> None:
    several, few = (stages_of(schedule, memory) for schedule in ("gpipe", "1f1b"))
    kept = several.peak_memory_bytes - few.peak_memory_bytes
    assert kept > 0
    assert several.allocated_bytes is not None
    assert few.allocated_bytes is not None
    assert several.allocated_bytes - few.allocated_bytes > 0.98 * kept  # the last rank may be the fullest of few


def test_fsdp2_gathers_weights_of_stages_once_and_sums_whole_gradients() -> None:
    run = stages_of("1f1b", "fsdp2")
    memory, shared = run.device_memory, 2
    assert memory is not None
    parameters = LAYERS // 2 * (4 * HIDDEN**2 + 3 * FFN * HIDDEN + 2 * HIDDEN) + 1024 * HIDDEN  # of a stage
    whole, shards = (2 + 4) * parameters, 12 * parameters / shared
    layer = 4 * 2 * HIDDEN + 4 * 2 * HIDDEN + 4 * 8 + 3 * 2 * FFN
    ends = 2 * 2 * HIDDEN  # what comes in, and what goes out
    assert memory.held_bytes == pytest.approx(whole + shards + 2 * TOKENS * (layer + ends), rel=1e-6)


def test_weights_that_replicas_gather_early_are_whole_all_the_time() -> None:
    memory = memory_of("nemo-h100", world_size=4, zero=1, overlap_replicas=True, global_batch_size=8)
    parameters = LAYERS * (4 * HIDDEN**2 + 3 * FFN * HIDDEN) + HIDDEN * (2 * LAYERS + 1) + 2 * VOCABULARY * HIDDEN
    lasting = memory.lasting_bytes - memory.kept_bytes
    assert lasting == pytest.approx((2 + 4 + 12 / 4) * parameters, rel=1e-6)


def test_one_microbatch_fills_the_totals_of_several() -> None:
    alone, several = (memory_of("nemo-h100", global_batch_size=size) for size in (1, 4))
    assert alone.allocated_bytes == several.allocated_bytes


def test_totals_are_there_from_the_first_forward_on() -> None:
    tied, chunks = replace(MODEL, tied_embeddings=True), {"world_size": 2, "pp": 2, "num_chunks": 2}
    cases: list[dict[str, Any]] = [
        {"workload": tied},
        {"world_size": 2, "cp": 2},
        {**chunks, "workload": replace(MODEL, num_layers=8, seq_len=8)},
    ]
    for changes in cases:
        sizes = (changes.get("pp", 1) * times for times in (1, 3))
        few, many = (memory_of("nemo-h100", **{**changes, "global_batch_size": size}) for size in sizes)
        assert few.allocated_bytes == pytest.approx(many.allocated_bytes, rel=0.002)  # a third are totals


def test_experts_temporaries_are_those_of_the_copies_that_a_rank_gets() -> None:
    counts: dict[str, Any] = {"num_experts": 8, "experts_per_token": 2, "moe_layers": (0, 1)}
    model = replace(MODEL, moe_ffn_hidden_size=FFN, vocab_size=512, **counts)
    sizes = {"world_size": 8, "ep": 8, "tp": 2, "sequence_parallel": True, "global_batch_size": 8}
    memory = memory_of("nemo-h100", workload=model, **sizes)
    assert memory.temporary_bytes == 2 * 2 * FFN * TOKENS  # the gradient of gate and up, of as many as it sends
    matrices = {4 * HIDDEN**2 // 2, 2 * FFN * HIDDEN, FFN * HIDDEN}  # those of an expert whole
    assert memory.kept_bytes == pytest.approx(2 * sum(matrices), rel=0.001)


def test_temporaries_are_those_of_a_shard_of_the_sequence() -> None:
    small = replace(MODEL, vocab_size=512)
    whole, shards = (memory_of("nemo-h100", workload=small, world_size=cp, cp=cp) for cp in (1, 4))
    assert whole.temporary_bytes == 4 * shards.temporary_bytes > 0


@pytest.mark.parametrize(
    ("layout", "measured_gib"),  # MooreThreads/SimuMax @1b8ca90, docs/b200/b200_release_v1.2_summary.md
    [
        ({"pp": 2, "layers_per_stage": [13, 13]}, 66.55),
        ({"tp": 2, "sequence_parallel": True}, 60.68),
        ({"tp": 8, "sequence_parallel": True}, 28.29),
    ],
    ids=str,
)
def test_measured_runs_of_megatron_core_allocate_as_much(layout: dict[str, Any], measured_gib: float) -> None:
    platform = replace(find_platform("nemo-h100"), fused_loss=True)
    model = replace(mt.models()["llama3-70b"], num_layers=12, seq_len=4096)
    changes = {"world_size": 8, "workload": model, "global_batch_size": 32 // layout.get("tp", 2), "zero": 1}
    found = memory_of(platform, hardware="b200_192g_nvl8", overlap_replicas=True, **{**changes, "fold": True, **layout})
    assert found.allocated_bytes / 2**30 == pytest.approx(measured_gib, rel=0.005)


@pytest.mark.parametrize(
    ("layout", "measured_bytes"),  # NVIDIA/Megatron-LM, golden_values_dev_dgx_h100.json in tests/functional_tests/
    [
        ({"zero": 1, "overlap_replicas": True}, 4702430208),  # gpt3_mcore_te_tp1_pp1_dist_optimizer_no_mmap_bin_files
        ({"recompute": "full"}, 2561334272),  # gpt3_mcore_te_tp1_pp1_resume_torch_dist_uniform_full_recompute
    ],
    ids=str,
)
def test_a_table_that_embedding_and_head_share_has_one_total(layout: dict[str, Any], measured_bytes: int) -> None:
    sizes: dict[str, Any] = {"num_layers": 12, "hidden_size": 512, "num_heads": 8, "vocab_size": 50304}
    model = mt.Transformer(**sizes, seq_len=1024, attention="unfused", dropout=0.1, tied_embeddings=True)
    step = {"world_size": 8, "workload": model, "global_batch_size": 32, "microbatch_size": 4}
    assert memory_of("nemo-h100", **step, **layout).allocated_bytes == pytest.approx(measured_bytes, rel=0.005)


@pytest.mark.parametrize(
    ("habits", "allocated", "reserved"),
    [
        ("deepspeed", 8, 8),  # casts, and all in one array
        ("deepspeed zero", 6, 6),  # flattened in 16 bits, and cast
        ("internevo zero", 10, 18),  # 4 for the norm, 2 + 4 flattened and cast, 8 of AdamW, without the gradients
        ("internevo fsdp", 12, 12),  # casts take what the norm's have left
        ("nanotron zero", 6, 6),  # of one rank alone: its shard, what is gathered of it, and the array of all
    ],
)
def test_an_update_takes_its_arrays_from_the_driver(habits: str, allocated: float, reserved: float) -> None:
    update, step = _Update([ELEMENTS // 100] * 100, 2), HABITS[habits].update
    assert step is not None
    step(update)
    assert update.taken == pytest.approx((allocated * ELEMENTS, reserved * ELEMENTS), rel=0.01)  # buckets are small


def test_nanotron_holds_what_autograd_keeps_and_two_copies_of_logits() -> None:
    layer = 4 * 2 * HIDDEN + 4 * 2 * HIDDEN + 4 * 8 + 4 * 2 * FFN  # the MLP's last 2 FFN are the activated gate's
    head, logits = 2 * 2 * HIDDEN, 8 * VOCABULARY
    parameters = LAYERS * (4 * HIDDEN**2 + 3 * FFN * HIDDEN) + HIDDEN * (2 * LAYERS + 1) + 2 * VOCABULARY * HIDDEN
    memory = memory_of("nanotron", workload=replace(MODEL, seq_len=4 * TOKENS))
    found = memory.allocated_bytes - memory.rounding_bytes - memory.workspace_bytes
    assert found == pytest.approx(18 * parameters + 4 * TOKENS * (LAYERS * layer + head + logits), rel=1e-6)
    assert memory.lasting_bytes == 18 * parameters  # and reserves no more than that
    few = memory_of("nanotron", workload=replace(MODEL, seq_len=8))  # all gradients outweigh its activations
    assert few.allocated_bytes - few.rounding_bytes - few.workspace_bytes == pytest.approx(20 * parameters, rel=2e-3)
    ddp = memory_of(replace(find_platform("nanotron"), memory="nanotron ddp"))
    assert ddp.kept_bytes == 2 * parameters  # its buckets


def test_nanotrons_stages_keep_an_activated_gate_of_each_microbatch() -> None:
    model = replace(MODEL, num_layers=8, vocab_size=512, seq_len=4 * TOKENS)  # so that the first stage is the fullest
    changes = {"world_size": 2, "pp": 2, "global_batch_size": 4, "workload": model}
    fused, plain = (
        memory_of(replace(find_platform("nanotron"), memory=name), **changes) for name in ("fused", "nanotron")
    )
    assert fused.rank == plain.rank == 0
    gates = 4 * 2 * 2 * FFN * 4 * TOKENS  # of two microbatches
    new = 2 * (3 * FFN * HIDDEN + HIDDEN)  # gradients of the last MLP and its norm
    assert plain.allocated_bytes - fused.allocated_bytes == gates + new


def test_parts_of_nanotron_keep_what_they_gather_and_what_collectives_read() -> None:
    memory = memory_of("nanotron", world_size=2, tp=2, sequence_parallel=True)
    whole = 2 * TOKENS * HIDDEN
    assert (memory.kept_bytes, memory.update_bytes) == (whole, 2 * LAYERS * whole)


def test_an_update_takes_what_backward_has_left() -> None:
    left = [2 * ELEMENTS] * 5 + [8 * ELEMENTS]
    update = _Update([ELEMENTS], 2, num_shards=4, left=left)
    HABITS["nanotron zero"].update(update)  # type: ignore[misc]  # it has one
    assert update.taken[1] == 0


def test_what_an_update_takes_comes_on_top_of_the_reserve() -> None:
    plain, flat = (memory_of(replace(find_platform("bloom"), memory=name)) for name in ("megatron", "deepspeed zero"))
    assert math.isclose(flat.reserved_bytes - plain.reserved_bytes, flat.update_bytes, rel_tol=0.01)


def test_only_known_habits_are_taken() -> None:
    with pytest.raises(UsageError, match="memory of platform mine must be '', 'megatron'"):
        Platform(name="mine", memory="megatorn")


def of_fsdp(memory: str, **changes: Any) -> DeviceMemory:
    """Return the memory of a run of torchtitan's FSDP in two shards."""
    sizes = {"world_size": 2, "workload": MODEL, "global_batch_size": 8, "fold": False}
    platform = replace(find_platform("compiled-fsdp"), memory=memory)
    found = mt.simulate("fsdp", platform=platform, **{**sizes, **changes}).device_memory
    assert found is not None
    return found


def test_fsdp2_holds_states_and_whole_weights_of_two_units_at_the_loss() -> None:
    block, table = 4 * HIDDEN**2 + 3 * FFN * HIDDEN + 2 * HIDDEN, VOCABULARY * HIDDEN
    parameters = LAYERS * block + 2 * table + HIDDEN
    layer = 4 * 2 * HIDDEN + 4 * 2 * HIDDEN + 4 * 8 + 3 * 2 * FFN
    tokens, gathered = 4 * TOKENS, 2 * (table + HIDDEN) + 2 * block  # the head, and the last layer for its backward
    held = 12 * parameters / 2 + gathered + tokens * (LAYERS * layer + 2 * 2 * HIDDEN)
    for memory, logit_bytes in (("fsdp2", 4), ("fsdp2 eager loss", 12)):
        found = of_fsdp(memory)
        allocated = found.allocated_bytes - found.rounding_bytes - found.workspace_bytes
        assert allocated == pytest.approx(held + logit_bytes * VOCABULARY * tokens, rel=1e-6)
        free = 2 * VOCABULARY * tokens if logit_bytes > 4 else 0
        pools = 4 * parameters / 2 + 1.5 * 2 * (table + HIDDEN)  # sums of gradients; what is gathered, and the shard
        assert found.reserved_bytes - found.allocated_bytes == pytest.approx(pools + free, abs=2**21)


def test_cross_entropy_of_logits_in_16_bits_takes_8_bytes_of_each_of_all_parts_where_they_are_gathered() -> None:
    tokens, sizes = 4 * TOKENS, {"world_size": 4, "tp": 2, "recompute": "full"}
    own, all_parts = (of_fsdp(each, **sizes) for each in ("fsdp2 bf16 loss", "fsdp2 gathered logits"))
    assert own.temporary_bytes == 8 * VOCABULARY * tokens / 2
    assert all_parts.temporary_bytes == 8 * VOCABULARY * tokens
    assert own.held_bytes == all_parts.held_bytes


def test_parts_of_fsdp2_gather_the_input_of_the_head() -> None:
    sizes = {"world_size": 4, "tp": 2, "recompute": "full"}
    whole, parts = (of_fsdp("fsdp2 eager loss", sequence_parallel=flag, **sizes) for flag in (False, True))
    tokens = 4 * TOKENS
    assert whole.temporary_bytes == parts.temporary_bytes == 16 * VOCABULARY * tokens / 2
    shards = (2 * 2 + 2 * LAYERS) * HIDDEN * tokens / 2  # of the head's two inputs, and of those of layers
    assert whole.held_bytes - parts.held_bytes == pytest.approx(shards - 2 * HIDDEN * tokens, rel=1e-6)


@pytest.mark.parametrize(
    ("sizes", "batch", "recompute", "allocated_gib", "reserved_gib"),  # one H100, PyTorch 2.11, eager, of November 2026
    [
        ((16, 2048, 8192, 32, 8, 128256, 4096), 2, "none", 41.12, 49.92),
        ((24, 2048, 5504, 16, 16, 32000, 2048), 4, "none", 32.36, 39.30),
        ((28, 3072, 8192, 24, 8, 32000, 4096), 1, "none", 47.73, 60.24),
        ((28, 3072, 8192, 24, 8, 32000, 4096), 2, "full", 46.04, 51.20),
        ((8, 4096, 14336, 32, 8, 128256, 8192), 1, "op", 48.04, 62.97),
    ],
    ids=str,
)
def test_measured_runs_of_eager_fsdp2_allocate_and_reserve_as_much(
    sizes: tuple[int, ...], batch: int, recompute: str, allocated_gib: float, reserved_gib: float
) -> None:
    layers, hidden, ffn, heads, grouped, vocabulary, tokens = sizes
    model = replace(MODEL, num_layers=layers, hidden_size=hidden, ffn_hidden_size=ffn, num_heads=heads)
    model = replace(model, num_kv_heads=grouped, head_dim=hidden // heads, vocab_size=vocabulary, seq_len=tokens)
    changes = {"world_size": 1, "global_batch_size": batch, "workload": model, "recompute": recompute}
    found = of_fsdp("fsdp2 eager", check=False, **changes)
    assert found.allocated_bytes / 2**30 == pytest.approx(allocated_gib, rel=0.01)
    assert found.reserved_bytes / 2**30 == pytest.approx(reserved_gib, rel=0.04)


@pytest.mark.parametrize("name", ["Hugging Face's models", "DeepSpeed with Hugging Face's models", "torchtune"])
def test_norms_that_cast_keep_their_input_in_single_precision_unless_computed_again(name: str) -> None:
    def kept(recompute: str, **changes: Any) -> float:
        framework = platform_of_framework(name, "h100")
        platforms = framework, replace(framework, memory="eager")
        model = replace(MODEL, **changes)
        sizes: dict[str, Any] = {"workload": model, "global_batch_size": 1, "world_size": 1, "recompute": recompute}
        runs = (mt.simulate("single", platform=each, **sizes) for each in platforms)
        casts, plain = (run.device_memory.kept_bytes for run in runs if run.device_memory is not None)
        return casts - plain

    assert kept("none") == 4 * HIDDEN * TOKENS * (2 * LAYERS + 1)
    assert kept("full") == 4 * HIDDEN * TOKENS  # the last norm's
    assert kept("none", norm="layernorm") == 0  # which is one kernel


def test_torchtitan_allocates_as_fsdp2_where_gradients_are_shards() -> None:
    titan, shards, plain = (of_fsdp(memory, world_size=1).allocated_bytes for memory in ("torchtitan", "fsdp2", ""))
    assert titan == shards < plain


def test_a_loss_in_chunks_has_logits_and_their_gradients_in_16_bits() -> None:
    whole, chunks = (of_fsdp(memory, world_size=1) for memory in ("", "loss in chunks"))
    assert 0 < whole.allocated_bytes - chunks.allocated_bytes <= 8 * VOCABULARY * 8 * TOKENS


def test_stages_of_deepspeed_keep_what_they_have_sent() -> None:
    model = replace(MODEL, num_layers=8, vocab_size=512, seq_len=4 * TOKENS)  # so that the first stage is the fullest
    platform = replace(find_platform("bloom"), memory="deepspeed zero")
    found = memory_of(platform, world_size=2, pp=2, global_batch_size=4, workload=model)
    assert (found.rank, found.kept_bytes) == (0, 2 * 2 * HIDDEN * 4 * TOKENS)  # of two microbatches


def test_eager_experts_keep_their_inputs_in_single_precision_and_activated_gates() -> None:
    model = replace(MODEL, num_experts=8, experts_per_token=2, moe_ffn_hidden_size=512, moe_layers=(0, 1))
    model, platform = replace(model, num_kv_heads=4), replace(find_platform("compiled-fsdp"), memory="eager")
    found = mt.simulate("single", platform=platform, workload=model, global_batch_size=1, world_size=1).device_memory
    assert found is not None
    heads = 2 * 2 * HIDDEN / 2  # keys and values of eight heads instead of four
    assert found.kept_bytes == LAYERS * TOKENS * (heads + 2 * (4 * HIDDEN + 2 * 512))


def test_lists_of_adamw_have_the_roots_of_all_second_moments_in_the_update() -> None:
    halves = replace(MODEL, precision=mt.Precision(gradient_bytes=2, optimizer_bytes=4))
    for model, moment in ((MODEL, 4), (halves, 2)):
        plain, lists = (
            memory_of(replace(find_platform("hugging-face"), memory=name), workload=model, microbatch_size=1)
            for name in ("eager norms", "trainer")
        )
        in_update = (model.precision.bytes_per_parameter + moment) * model.num_parameters
        found = max(plain.allocated_bytes, in_update + lists.rounding_bytes + lists.workspace_bytes + lists.kept_bytes)
        assert lists.allocated_bytes == pytest.approx(found, rel=0.01)


def test_replicas_of_pytorch_have_gradients_in_buckets_too() -> None:
    platform = replace(find_platform("hugging-face"), memory="eager norms")
    alone, copied = (memory_of(platform, world_size=size, zero=0) for size in (1, 2))
    assert copied.kept_bytes - alone.kept_bytes == pytest.approx(4 * MODEL.num_parameters)


def test_ligers_loss_has_logits_of_some_tokens_and_gradients_of_head_and_input() -> None:
    workload = TransformerWorkload(replace(MODEL, vocab_size=100 * HIDDEN))
    head = len(workload.units) - 1
    weights = [HeldWeight(head, 2 * 100 * HIDDEN**2, 0, 0)]
    logits, at_loss = 4 * TOKENS * 100 * HIDDEN, 10**10
    place = Place(workload, weights, 1, 4, logits, at_loss, at_loss, at_loss, 0, at_update_bytes=1)
    chunk = 64  # at least 4 * 1024 / 100 tokens, a power of 2
    found = fullest_moments(replace(place, peak_bytes=0), "trainer liger")
    assert found.held_bytes == at_loss - 4 * logits
    assert found.temporary_bytes == 2 * (chunk * 100 * HIDDEN + 4 * TOKENS * HIDDEN + 100 * HIDDEN * HIDDEN)


def test_deepspeeds_third_stage_casts_gradients_in_groups() -> None:
    bucket, group = 5e8, 1e9
    for elements in (10**8, 4 * 10**9):
        update = _Update([elements], 2)
        _cast_in_groups(update)
        assert update.taken[0] == pytest.approx(2 * bucket + 6 * min(elements, group), rel=1e-3)
