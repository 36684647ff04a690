"""Kernels as data: FLOPs and bytes by hand, and what a unit of a transformer lists."""

from dataclasses import replace

import pytest

import minitrain as mt
from minitrain.machine import load_config
from minitrain.machine.kernel_device import KernelDevice
from minitrain.workloads.architecture import Precision
from minitrain.workloads.casts import rowwise_passes
from minitrain.workloads.expert_layers import ExpertPass, kernels_around_experts, kernels_of_experts
from minitrain.workloads.kernels import (
    DTENSOR_LAUNCHES,
    FlashAttention,
    KernelList,
    Matmul,
    MemoryPass,
    backward_matmuls,
    forward_matmul,
)
from minitrain.workloads.shapes import WHOLE, Degrees, Gemm, Work
from minitrain.workloads.transformer_workload import TransformerWorkload
from minitrain.workloads.unit_kernels import (
    backward_kernels,
    forward_kernels,
    loss_kernels,
    repeated_kernels,
    update_kernels,
)
from minitrain.workloads.workload import PassMode, Style

GPT = mt.Transformer(
    num_layers=2, hidden_size=1024, num_heads=16, vocab_size=51200, seq_len=512, attention="unfused", dropout=0.1
)
LLAMA = mt.Transformer(
    num_layers=2,
    hidden_size=1024,
    num_heads=16,
    num_kv_heads=4,
    vocab_size=32000,
    seq_len=512,
    norm="rmsnorm",
    mlp="swiglu",
    ffn_hidden_size=2816,
)


def work(tp: int = 1, *, sequence_parallel: bool = False) -> Work:
    return Work(2, 512, Degrees(tp=tp, sequence_parallel=sequence_parallel))


def matmul_flop(kernels: KernelList) -> float:
    return sum(kernel.work_flop for kernel in kernels.kernels)


def traffic(kernels: KernelList, name: str) -> float:
    return sum(k.traffic_bytes for k in kernels.kernels if isinstance(k, MemoryPass) and k.name == name)


def test_a_matmul_counts_two_flop_a_product_and_each_matrix_once() -> None:
    kernel = Matmul(4, 6, 8, batch=3)
    assert (kernel.work_flop, kernel.traffic_bytes) == (2 * 3 * 4 * 6 * 8, 3 * 2 * (4 * 8 + 8 * 6 + 4 * 6))


def test_a_weight_gradient_in_single_precision_is_read_and_written() -> None:
    _, weight = backward_matmuls(Gemm("up", 4, 6, 8))
    assert (weight.kind, weight.m, weight.n, weight.k) == ("weight_gradient", 6, 8, 4)
    assert weight.traffic_bytes == 2 * (6 * 4 + 4 * 8) + 8 * 6 * 8


def test_the_backward_pass_of_a_matmul_has_twice_its_flop() -> None:
    gemm = Gemm("up", 40, 60, 80, 3)
    assert sum(k.work_flop for k in backward_matmuls(gemm)) == 2 * forward_matmul(gemm).work_flop


def test_scores_have_no_weight_gradient() -> None:
    kinds = {kernel.kind for kernel in backward_matmuls(Gemm("scores", 8, 8, 8, has_weight=False))}
    assert kinds == {"input_gradient"}


def test_flash_attention_backward_has_two_and_a_half_times_the_forward_flop() -> None:
    ahead = FlashAttention(1, 8, 8, num_heads=2, num_kv_heads=1, key_dim=4, value_dim=4, num_pairs=36)
    back = replace(ahead, is_backward=True)
    assert ahead.work_flop == 2 * 2 * 36 * 8
    assert back.work_flop == 2.5 * ahead.work_flop
    assert ahead.traffic_bytes == 2 * 8 * (8 * 2 + 8 * 1)


def test_blocks_of_attention_are_computed_whole_if_the_mask_leaves_any_of_their_pairs() -> None:
    causal = FlashAttention(1, 8, 8, num_heads=2, num_kv_heads=1, key_dim=4, value_dim=4, num_pairs=36)
    assert causal.flop_in_blocks(1) == causal.work_flop
    assert causal.flop_in_blocks(2) == causal.work_flop * 40 / 36  # 10 blocks of 4
    assert causal.flop_in_blocks(16) == causal.work_flop * 64 / 36
    narrow = replace(causal, window=2, num_pairs=15)
    assert narrow.flop_in_blocks(1) == narrow.work_flop
    assert narrow.flop_in_blocks(4) == narrow.work_flop * 48 / 15  # 3 blocks of 16


def test_blocks_that_the_mask_cuts_count_as_more() -> None:
    causal = FlashAttention(1, 8, 8, num_heads=2, num_kv_heads=1, key_dim=4, value_dim=4, num_pairs=36)
    assert causal.flop_in_blocks(2, masked=1.5) == causal.work_flop * (6 + 4 * 1.5) * 4 / 36
    assert causal.flop_in_blocks(16, masked=1.5) == causal.work_flop * 1.5 * 64 / 36  # one block, of 8
    narrow = replace(causal, window=4, num_pairs=26)
    assert narrow.flop_in_blocks(2, masked=1.5) == narrow.work_flop * (3 + 6 * 1.5) * 4 / 26  # the last and the first


@pytest.mark.parametrize("model", [GPT, LLAMA])
def test_units_list_the_flop_that_the_model_counts(model: mt.Transformer) -> None:
    causal = model.attention == "flash"
    for unit in model.units():
        listed = matmul_flop(forward_kernels(model, unit, work()))
        assert listed == 2 * unit.forward_flop(512, causal=causal)


def test_tensor_parallel_ranks_share_the_matrix_multiplications_of_a_layer() -> None:
    for unit in GPT.units()[1:3]:
        whole, part = (matmul_flop(forward_kernels(GPT, unit, work(tp))) for tp in (1, 4))
        assert part == whole / 4


def test_sequence_parallel_ranks_share_norms_and_dropout_too() -> None:
    unit = GPT.units()[2]
    for name in ("norm", "dropout and residual"):
        alone, shared = (
            traffic(forward_kernels(GPT, unit, work(4, sequence_parallel=flag)), name) for flag in (False, True)
        )
        assert shared == alone / 4


def test_passes_over_memory_have_the_bytes_of_their_tensors() -> None:
    tokens, unit = 2 * 512, GPT.units()[2]
    ahead, back = forward_kernels(GPT, unit, work()), backward_kernels(GPT, unit, work())
    assert traffic(ahead, "norm") == 4 * tokens * 1024
    assert traffic(ahead, "dropout and residual") == 7 * tokens * 1024
    assert traffic(back, "dropout and residual") == 5 * tokens * 1024
    assert traffic(ahead, "gelu") == 4 * tokens * 4096
    assert traffic(back, "gelu") == 8 * tokens * 4096
    llama = LLAMA.units()[2]
    assert traffic(forward_kernels(LLAMA, llama, work()), "swiglu") == 6 * tokens * 2816
    assert traffic(backward_kernels(LLAMA, llama, work()), "swiglu") == 10 * tokens * 2816


def test_selective_recomputation_repeats_unfused_cores_alone() -> None:
    unit = GPT.units()[1]
    core = repeated_kernels(GPT, unit, work(), "selective")
    assert matmul_flop(core) == 2 * unit.recomputed_flop(512, "selective")
    assert repeated_kernels(LLAMA, LLAMA.units()[1], work(), "selective") == KernelList()
    assert repeated_kernels(GPT, GPT.units()[2], work(), "selective") == KernelList()


def test_gates_that_are_apart_are_written_read_and_put_together_again() -> None:
    mlp, usual, apart = LLAMA.units()[2], Style(), Style(gates_apart=True)
    for kernels, tensors in ((forward_kernels, (3, 5)), (backward_kernels, (5, 13))):
        found = [kernels(LLAMA, mlp, work(), style) for style in (usual, apart)]
        assert [traffic(each, "swiglu") for each in found] == [2 * 1024 * 2816 * size for size in tensors]
        assert found[1].num_launches - found[0].num_launches == (1 if tensors == (3, 5) else 4)


def test_a_style_changes_what_its_name_says() -> None:
    unit, head = LLAMA.units()[1], LLAMA.units()[-1]
    flash = next(
        k
        for k in forward_kernels(LLAMA, unit, work(), Style(attention="flash3")).kernels
        if isinstance(k, FlashAttention)
    )
    assert (flash.generation, flash.num_heads, flash.num_kv_heads) == ("flash3", 16, 4)
    plain, fused = (loss_kernels(LLAMA, head, work(), Style(fused_loss=flag)) for flag in (False, True))
    assert traffic(plain, "loss") / traffic(fused, "loss") == 5.2  # 38 and 14 bytes an element over 10
    jitted = loss_kernels(LLAMA, head, work(), Style(fused_loss=True, jitted_loss=True))
    assert traffic(jitted, "loss") / traffic(fused, "loss") == 4.8  # 30 and 18
    eager = forward_kernels(LLAMA, unit, work(), Style(eager=2.0))
    assert traffic(eager, "norm") == 2 * traffic(forward_kernels(LLAMA, unit, work()), "norm")
    eights = [
        k for k in forward_kernels(LLAMA, unit, work(), Style(datatype="float8")).kernels if isinstance(k, Matmul)
    ]
    assert {(k.datatype, k.element_bytes) for k in eights} == {("float8", 1)}


@pytest.mark.parametrize(
    ("generation", "scaling", "per_token"),
    [
        ("cudnn_fp8", "current", (9 * 1536, 5 * 1024)),
        ("cudnn_fp8", "delayed", (7 * 1536 + 3 * 1024, 3 * 1024 + 5 * 1536)),
        ("cudnn_mxfp8", "mx", (4 * 1536, 4 * 1024)),
    ],
)
def test_attention_in_eight_bits_is_cast_as_its_recipe_says(
    generation: str, scaling: str, per_token: tuple[int, int]
) -> None:
    """A token has 1024 numbers of queries and of the result, and 256 of keys and of values."""
    model = replace(LLAMA, precision=Precision("fp8", weight_datatype="float8", scaling=scaling))
    unit, one, style = model.units()[1], Work(1, 512), Style(attention=generation)
    for of, num_bytes in zip((forward_kernels, backward_kernels), per_token, strict=True):
        kernels = of(model, unit, one, style)
        assert traffic(kernels, "attention cast") == 512 * num_bytes
        assert [k.rate_datatype for k in kernels.kernels if isinstance(k, FlashAttention)] == ["float8"]


def test_plain_pytorch_runs_each_operation_by_itself() -> None:
    tokens, apart = 2 * 512, Style(apart=True)
    attention, mlp, head = *LLAMA.units()[1:3], LLAMA.units()[-1]
    ahead, back = (list_of(LLAMA, mlp, work(), apart) for list_of in (forward_kernels, backward_kernels))
    assert traffic(ahead, "swiglu") == 10 * tokens * 2816  # SiLU, and a product
    assert traffic(back, "swiglu") == 18 * tokens * 2816
    assert traffic(back, "residual gradient") == 2 * 6 * tokens * 1024  # and the sum of those of gate and up
    assert (ahead.num_launches, back.num_launches) == (7, 13)
    ahead = forward_kernels(LLAMA, attention, work(), apart)
    assert ahead.num_launches == 15
    assert traffic(ahead, "copies of keys and values") == 13 * tokens * 1024
    logits = tokens * LLAMA.vocab_size
    assert traffic(loss_kernels(LLAMA, head, work(), apart), "loss") == 51 * logits
    assert update_kernels(1000, apart).traffic_bytes == 40_000
    pure = Precision(gradient_bytes=2, optimizer_bytes=4)
    assert update_kernels(1000, apart, precision=pure).traffic_bytes == 20_000


def test_transformers_run_each_operation_by_itself_in_single_precision() -> None:
    tokens, style = 2 * 512, Style(apart=True, hugging_face=True, attention="flash")
    plain = Style(apart=True, attention="flash")
    attention, head = LLAMA.units()[1], LLAMA.units()[-1]
    ahead, back = (list_of(LLAMA, attention, work(), style) for list_of in (forward_kernels, backward_kernels))
    assert (traffic(ahead, "norm"), traffic(back, "norm")) == (18 * 2 * tokens * 1024, 46 * 2 * tokens * 1024)
    assert ahead.num_launches == forward_kernels(LLAMA, attention, work(), plain).num_launches + 7 + 2
    flash = Style(apart=True, hugging_face=True, attention="flash2")
    assert traffic(ahead, "copies of keys and values")
    assert not traffic(forward_kernels(LLAMA, attention, work(), flash), "copies of keys and values")
    assert traffic(loss_kernels(LLAMA, head, work(), style), "loss") == 56 * tokens * LLAMA.vocab_size
    assert update_kernels(1000, style).traffic_bytes == 1000 * (6 * 12 + 5 * 4)


def test_deepspeed_copies_gradients_into_buckets_and_divides_them() -> None:
    unit = LLAMA.units()[2]
    for stage, accesses in ((2, 4), (3, 6)):
        style = Style(hooked=stage)
        found = traffic(backward_kernels(LLAMA, unit, work(), style), "bucket")
        assert found == 2 * accesses * unit.num_held_parameters(WHOLE)
        assert not traffic(forward_kernels(LLAMA, unit, work(), style), "bucket")


def test_deepspeeds_hooks_take_the_host_a_while_for_each_weight() -> None:
    unit = LLAMA.units()[2]
    for list_of, stage, more in ((forward_kernels, 3, 110), (backward_kernels, 3, 96), (backward_kernels, 2, 18)):
        found = list_of(LLAMA, unit, work(), Style(hooked=stage)).num_launches
        assert found == list_of(LLAMA, unit, work()).num_launches + more
    ahead = forward_kernels(LLAMA, unit, work(), Style(hooked=2))
    assert ahead.num_launches == forward_kernels(LLAMA, unit, work()).num_launches


def test_fsdp_casts_and_copies_what_it_gathers() -> None:
    unit, style, shared = LLAMA.units()[2], Style(copies_units=1), Style(copies_units=2)
    held = unit.num_held_parameters(WHOLE)
    assert traffic(forward_kernels(LLAMA, unit, work(), shared), "unit") == 7 * held
    assert traffic(forward_kernels(LLAMA, unit, work(), style), "unit") == 10 * held
    assert traffic(backward_kernels(LLAMA, unit, work(), style), "unit") == 24 * held
    assert not traffic(forward_kernels(LLAMA, unit, work()), "unit")


def test_fsdp_gathers_a_divided_layer_once_and_of_its_experts_a_part() -> None:
    """Experts in 4 parts have 8 / 4 ranks that share them: a shard's cast counts a half there, an eighth elsewhere."""
    model, style = replace(LLAMA, num_experts=8, experts_per_token=2, moe_layers=(0, 1)), Style(copies_units=8)
    unit = model.units()[2]
    experts = sum(weight.num_parameters for weight in unit.weights if weight.experts_per_token)
    others = unit.num_held_parameters(WHOLE) - experts
    around = {
        typ: traffic(kernels_around_experts(model, unit, typ, work(), "none", style), "unit")
        for typ in ("route", "combine", "backward_combine", "backward_route")
    }
    of_part = {
        typ: traffic(kernels_of_experts(model, unit, typ, 1024, 4, "none", style), "unit")
        for typ in ("forward", "backward")
    }
    sums = 2 + model.precision.gradient_bytes * (1 + 2 / 8), 2 + model.precision.gradient_bytes * (1 + 2 / 2)
    assert around == {
        "route": (4 + 6 / 8) * others,
        "combine": 0,
        "backward_combine": 0,
        "backward_route": (4 + 6 / 8 + sums[0]) * others,
    }
    assert of_part == {"forward": (4 + 6 / 2) * experts / 4, "backward": (4 + 6 / 2 + sums[1]) * experts / 4}


def test_what_backward_computes_again_finds_its_weights_gathered() -> None:
    workload, style = TransformerWorkload(LLAMA), Style(copies_units=8)
    once, again = (workload.pass_kernels("backward", 1, 2, PassMode(how), style) for how in ("none", "full"))
    assert traffic(once, "unit") == traffic(again, "unit") > 0
    assert len(again.kernels) > len(once.kernels)


def test_dtensor_copies_whole_activations_around_collectives_along_the_sequence() -> None:
    unit, style, element = LLAMA.units()[2], Style(copies_parts=True), LLAMA.precision.activation_bytes
    divided = work(2, sequence_parallel=True)
    tensor = work().num_tokens * LLAMA.hidden_size * element
    ahead, back = (list_of(LLAMA, unit, divided, style) for list_of in (forward_kernels, backward_kernels))
    assert (traffic(ahead, "parts"), traffic(back, "parts")) == (4 * tensor, 6 * tensor)
    assert ahead.num_launches == forward_kernels(LLAMA, unit, divided).num_launches + 2
    assert not traffic(forward_kernels(LLAMA, unit, work(), style), "parts")
    assert not traffic(forward_kernels(LLAMA, unit, divided), "parts")


def test_collectives_in_pieces_leave_the_copies_of_gradients() -> None:
    unit, style = LLAMA.units()[2], Style(copies_parts=True, parts_overlap="pieces")
    for num_samples, copies in ((1, 1), (2, 3)):
        divided = Work(num_samples, 512, Degrees(tp=2, sequence_parallel=True))
        tensor = divided.num_tokens * LLAMA.hidden_size * LLAMA.precision.activation_bytes
        assert not traffic(forward_kernels(LLAMA, unit, divided, style), "parts")
        assert traffic(backward_kernels(LLAMA, unit, divided, style), "parts") == 2 * copies * tensor


def test_the_host_dispatches_operations_on_dtensors_one_by_one() -> None:
    style = Style(dtensors=True)
    for unit, matrices in zip(LLAMA.units()[1:3], (4, 3), strict=True):
        for kernels_of, operations in ((forward_kernels, 4), (backward_kernels, 9)):
            whole, divided = (kernels_of(LLAMA, unit, each, style).num_launches for each in (work(), work(2)))
            usual = kernels_of(LLAMA, unit, work(2)).num_launches
            assert whole == kernels_of(LLAMA, unit, work()).num_launches
            assert divided - usual == round(DTENSOR_LAUNCHES * operations * matrices)
        norm = forward_kernels(LLAMA, unit, work(2, sequence_parallel=True), style).num_launches
        assert norm > forward_kernels(LLAMA, unit, work(2), style).num_launches


def test_an_optimizer_by_parameter_takes_eight_operations_of_each() -> None:
    workload, precision = TransformerWorkload(LLAMA), LLAMA.precision
    whole, divided = (workload.update_kernels(1, 1, 2, parts, Style(by_parameter=True)) for parts in (1, 2))
    num_weights, num_matrices = len(LLAMA.units()[2].weights), 3
    assert whole.num_launches == divided.num_launches == 8 * num_weights
    kept = precision.optimizer_bytes + 5 * precision.gradient_bytes / 6
    assert whole.traffic_bytes == pytest.approx(6 * kept * LLAMA.units()[2].num_held_parameters(WHOLE))
    dispatched = round(8 * (num_weights - num_matrices + DTENSOR_LAUNCHES * num_matrices))
    style = Style(by_parameter=True, dtensors=True)
    assert workload.update_kernels(1, 1, 2, 2, style).num_launches == dispatched
    assert workload.update_kernels(1, 1, 2, 1, style).num_launches == 8 * num_weights
    slow = Style(by_parameter=True, launch_factor=2)
    assert workload.update_kernels(1, 1, 2, 1, slow).num_launches == 4 * num_weights
    sharded = Style(by_parameter=True, copies_units=8)
    assert workload.update_kernels(1, 8, 2, 1, sharded).num_launches == round(8 * DTENSOR_LAUNCHES * num_weights)
    assert workload.update_kernels(1, 8, 2, 1, Style()).num_launches == 1


def test_eight_bits_are_cast_and_transposed() -> None:
    attention, mlp = LLAMA.units()[1:3]
    eight, tokens, hidden = Style(datatype="float8"), 1024, 1024
    assert traffic(forward_kernels(LLAMA, attention, work(), eight), "cast") == 4 * tokens * hidden
    back = backward_kernels(LLAMA, attention, work(), eight)
    assert traffic(back, "transposition") == 2 * tokens * 2 * hidden  # the input, and the gradient of the output
    assert traffic(back, "cast") == 4 * tokens * (hidden + 2 * 256)  # of queries, keys and values
    assert (
        traffic(backward_kernels(LLAMA, mlp, work(), eight), "transposition") == 2 * tokens * 2 * hidden
    )  # of gate and up at once
    assert not traffic(backward_kernels(LLAMA, mlp, work()), "transposition")


def test_eight_bits_are_written_once_where_matrix_units_take_either_order() -> None:
    attention = LLAMA.units()[1]
    blackwell = Style(datatype="float8", transposes=False)
    assert traffic(forward_kernels(LLAMA, attention, work(), blackwell), "cast") == 3 * 1024 * 1024
    assert not traffic(backward_kernels(LLAMA, attention, work(), blackwell), "transposition")


@pytest.mark.parametrize(("scaling", "more"), [("delayed", 4), ("current", 2), ("mx", 4), ("nvfp4", 4)])
def test_what_another_library_activates_is_cast_by_itself(scaling: str, more: int) -> None:
    mlp = LLAMA.units()[2]
    model = replace(LLAMA, precision=replace(LLAMA.precision, weight_datatype="float8", scaling=scaling))
    down = next(gemm for gemm in mlp.gemms(work()) if gemm.name.endswith("down"))
    apart, within = (
        traffic(forward_kernels(model, mlp, work(), Style(casts_apart=is_apart)), "scaling")
        for is_apart in (True, False)
    )
    assert apart - within == more * down.m * down.k


def test_tokens_with_a_factor_of_each_row_are_cast_after_they_are_gathered() -> None:
    model = replace(LLAMA, precision=replace(LLAMA.precision, weight_datatype="float8", scaling="rowwise"))
    mlp, tokens = model.units()[2], work().num_tokens
    apart, along = (
        traffic(forward_kernels(model, mlp, work(tp=4, sequence_parallel=is_along)), "scaling")
        for is_along in (False, True)
    )
    assert along - apart == 2 * tokens * model.hidden_size  # the norm no longer finds the largest elements of rows


def test_backward_scales_products_of_eight_bits_with_a_factor_of_each_row() -> None:
    gemm = Gemm("output", m=1024, n=512, k=256)
    ahead, back = (
        sum(each.traffic_bytes for each in rowwise_passes(gemm, 1.0, is_backward=is_backward, is_alone=True))
        for is_backward in (False, True)
    )
    inputs, outputs, weights = 1024 * 256, 1024 * 512, 512 * 256
    assert ahead == 5 * inputs
    assert back == 10 * outputs + (5 + 4) * inputs + 4 * weights


def test_weights_with_a_factor_of_each_row_are_cast_in_each_pass() -> None:
    mlp = LLAMA.units()[2]
    down = next(gemm for gemm in mlp.gemms(work()) if gemm.name.endswith("down"))
    up = next(gemm for gemm in mlp.gemms(work()) if not gemm.name.endswith("down"))
    for kernels_of in (forward_kernels, backward_kernels):
        rowwise, current = (
            kernels_of(
                replace(LLAMA, precision=replace(LLAMA.precision, weight_datatype="float8", scaling=name)), mlp, work()
            )
            for name in ("rowwise", "current")
        )
        sizes = [k.num_elements for k in rowwise.kernels if isinstance(k, MemoryPass) and k.name == "scaling"]
        for gemm in (up, down):
            assert gemm.n * gemm.k in sizes
        assert traffic(rowwise, "scaling") > traffic(current, "scaling")
        assert not traffic(rowwise, "transposition")


def test_factors_of_blocks_have_rates_of_their_own() -> None:
    mlp = LLAMA.units()[2]
    for scaling, datatype in (("current", "float8"), ("mx", "mxfloat8")):
        model = replace(LLAMA, precision=replace(LLAMA.precision, weight_datatype="float8", scaling=scaling))
        kernels = forward_kernels(model, mlp, work()).kernels + backward_kernels(model, mlp, work()).kernels
        assert {k.datatype for k in kernels if isinstance(k, Matmul)} == {datatype}
    for name, is_slower in (("b300_288g_nvl8", True), ("h100_80g_nvl8", False)):
        device = KernelDevice(load_config(name))
        whole, blocks = (
            device.kernel_seconds(Matmul(8192, 8192, 8192, datatype=of, element_bytes=1))
            for of in ("float8", "mxfloat8")
        )
        assert (blocks > whole) == is_slower


def test_separate_gradient_accumulation_moves_ten_bytes_a_weight() -> None:
    unit = GPT.units()[2]
    back = backward_kernels(GPT, unit, work(), Style(separate_gradients=True))
    assert traffic(back, "gradient accumulation") == 10 * 2 * 1024 * 4096


def test_adam_moves_46_bytes_a_parameter() -> None:
    assert update_kernels(1000).traffic_bytes == 46_000


def test_whole_gradients_are_passed_over_however_many_replicas_share_the_update() -> None:
    workload, style = TransformerWorkload(GPT), Style(gradient_accesses=4)
    alone, shared = (workload.update_kernels(1, shards, 2, 1, style) for shards in (1, 8))
    num_parameters = GPT.units()[2].num_held_parameters(WHOLE)
    assert traffic(alone, "gradients") == traffic(shared, "gradients") == 4 * 4 * num_parameters
    assert traffic(alone, "adam") == 8 * traffic(shared, "adam")
    assert not traffic(workload.update_kernels(1, 8, 2, 1, Style()), "gradients")


@pytest.mark.parametrize(("scaling", "casts"), [("delayed", 0), ("mx", 1), ("current", 3)])
def test_each_expert_is_launched_for_each_matrix_and_cast(scaling: str, casts: int) -> None:
    """DeepSeek-V3 on 16 ranks has 16 experts a rank, with a matrix for gate and up, and one down."""
    model = mt.models()["deepseek-v3"]
    precision = replace(model.precision, weight_datatype="float8", scaling=scaling)
    workload = TransformerWorkload(replace(model, precision=precision))
    layer = next(iter(workload.experts.layers))
    around = {"forward": 5, "backward": 4}
    for typ, multiplications in (("forward", 1), ("backward", 2)):
        mode = ExpertPass(num_parts=16, num_copies=8 * 4096)
        found = workload.pass_kernels(typ, 1, layer, mode, Style())
        assert found.num_launches == around[typ] + 2 * 16 * (multiplications + casts)
        captured = workload.pass_kernels(typ, 1, layer, mode, replace(Style(), captures=True))
        assert captured.num_launches == found.num_launches


def test_a_graph_has_both_halves_of_backward_in_a_launch() -> None:
    workload, whole = TransformerWorkload(mt.models()["deepseek-v3"]), Style(captures="whole", captures_experts=True)
    layer, mode = next(iter(workload.experts.layers)), ExpertPass(num_parts=16, num_copies=8 * 4096)
    halves = [workload.pass_kernels(f"backward_{half}", 1, layer, mode, whole) for half in ("input", "weight")]
    assert [half.num_launches for half in halves] == [0, 1]


def test_small_kernels_of_a_graph_take_what_the_smallest_take() -> None:
    attention = LLAMA.units()[1]
    listed, graph = (forward_kernels(LLAMA, attention, work(), Style(captures=each)) for each in (False, True))
    assert (graph.num_launches, graph.num_in_graph, listed.num_in_graph) == (1, listed.num_launches, 0)
    device = KernelDevice(load_config("gb200_nvl72"), launch_s=0.0)
    small = (listed.num_launches - len(listed.kernels)) * 1.26e-6
    assert small > 0
    assert device.pass_seconds(graph) == pytest.approx(device.pass_seconds(listed) + small)
    endless = device.endless("launches")
    assert endless.pass_seconds(graph) == pytest.approx(endless.pass_seconds(listed))


def test_a_graph_has_kernels_of_each_expert_where_all_have_as_many_rows() -> None:
    """Of 16 experts two matrices are multiplied, and cast by three kernels; else one kernel multiplies all."""
    model = mt.models()["deepseek-v3"]
    precision = replace(model.precision, weight_datatype="float8", scaling="current")
    workload = TransformerWorkload(replace(model, precision=precision))
    layer, mode = next(iter(workload.experts.layers)), ExpertPass(num_parts=16, num_copies=8 * 4096)
    graph = Style(captures="whole", captures_experts=True)
    padded, ragged = (
        workload.pass_kernels("forward", 1, layer, mode, replace(graph, pads_experts=each)) for each in (True, False)
    )
    assert padded.num_in_graph - ragged.num_in_graph == 2 * 16 * (1 + 3)
    assert padded.num_launches == ragged.num_launches == 1


def test_gradients_of_probabilities_read_what_an_expert_made_again() -> None:
    """Megatron-Core weighs what the activation function makes; a graph's fused kernels add the products up as well."""
    model = mt.models()["qwen3-30b-a3b"]
    precision = replace(model.precision, weight_datatype="float8", scaling="mx")
    workload = TransformerWorkload(replace(model, precision=precision))
    layer, mode = next(iter(workload.experts.layers)), ExpertPass(num_parts=8, num_copies=8 * 4096)
    apart = Style(casts_apart=True)
    read = {
        (typ, style): traffic(workload.pass_kernels(typ, 1, layer, mode, style), "gradient of probabilities")
        for typ in ("forward", "backward", "backward_input", "backward_weight")
        for style in (apart, Style(), replace(apart, captures="whole", captures_experts=True))
    }
    found = {key: size for key, size in read.items() if size}
    assert found == dict.fromkeys((("backward", apart), ("backward_input", apart)), 3 * 2 * 768 * 8 * 4096)


def test_maxtext_repeats_sorts_and_weights_copies_of_tokens_and_rounds_weights_where_they_are_multiplied() -> None:
    tokens, hidden, xla = 2 * 512, 1024, Style(by_xla=True)
    model = replace(LLAMA, num_experts=8, experts_per_token=4, moe_layers=(0, 1))
    mlp = next(unit for unit in model.units() if unit.kind == "moe")
    for kernels_of, tensors in ((forward_kernels, 12 * 4 + 2), (backward_kernels, 14 * 4 + 3)):
        assert traffic(kernels_of(model, mlp, work(), xla), "permutation") == 2 * tensors * tokens * hidden
    experts = [k.n for k in forward_kernels(model, mlp, work(), xla).kernels if isinstance(k, Matmul) and k.is_grouped]
    assert experts == [2816, 2816, hidden]
    scores = 2 * 16 * 512 * 512
    attention = GPT.units()[1]
    for kernels_of, tensors, fewer in ((forward_kernels, 4, 2), (backward_kernels, 5, 3)):
        assert traffic(kernels_of(GPT, attention, work(), xla), "softmax") == 2 * tensors * scores
        assert traffic(kernels_of(GPT, attention, work()), "softmax") == 2 * fewer * scores
    assert traffic(loss_kernels(GPT, GPT.units()[-1], work(), xla), "loss") == (8 + 6) * tokens * GPT.vocab_size
    down = next(gemm for gemm in LLAMA.units()[2].gemms(work()) if gemm.name.endswith("down"))
    for scaling, num_bytes in (("delayed", 3), ("current", 5)):
        eight = replace(LLAMA, precision=replace(LLAMA.precision, weight_datatype="float8", scaling=scaling))
        for num_cores in (1, 2):
            kernels = forward_kernels(eight, LLAMA.units()[2], work(), replace(xla, num_gathered=num_cores)).kernels
            assert MemoryPass("scaling", down.n * down.k, num_cores * num_bytes) in kernels
        narrow = replace(model, precision=eight.precision)
        rounded = MemoryPass("scaling", 8 * down.n * down.k, num_bytes)
        assert (rounded in forward_kernels(narrow, mlp, work(), xla).kernels) == (scaling == "current")


def test_torchtitan_compiles_what_multiplies_and_nothing_that_moves_copies_of_tokens() -> None:
    tokens, hidden, titan = 2 * 512, 1024, Style(moves_apart=True)
    deepep = replace(titan, dispatcher="deepep")
    model = replace(LLAMA, num_experts=8, experts_per_token=4, moe_layers=(0, 1))
    mlp = next(unit for unit in model.units() if unit.kind == "moe")
    for kernels_of, tensors, weighted in ((forward_kernels, 22, 10), (backward_kernels, 40, 18)):
        found = kernels_of(model, mlp, work(), titan)
        assert traffic(found, "permutation") == 2 * tensors * 4 * tokens * hidden
        assert traffic(found, "norm") == traffic(kernels_of(model, mlp, work()), "norm")
        assert traffic(kernels_of(model, mlp, work(), deepep), "permutation") == 2 * weighted * 4 * tokens * hidden
        assert found.num_launches < kernels_of(model, mlp, work()).num_launches
    for style, before, sorted_again in ((titan, 22, False), (deepep, 10, True)):
        route, combine = (kernels_around_experts(model, mlp, t, work(), "none", style) for t in ("route", "combine"))
        assert traffic(route, "permutation") == 2 * before * 4 * tokens * hidden
        assert traffic(combine, "permutation") == traffic(combine, "unpermutation") == 0
        experts = kernels_of_experts(model, mlp, "forward", 4 * tokens, 2, "none", style)
        assert (traffic(experts, "chunks") > 0) == sorted_again


def test_one_hot_matrices_send_tokens_to_experts_of_equal_rows() -> None:
    """A sequence of 512 has 4 x 1.25 x 512 slots: two products forward, and three gradients, none of the mask."""
    model = replace(LLAMA, num_experts=8, experts_per_token=4, moe_layers=(0, 1))
    mlp = next(unit for unit in model.units() if unit.kind == "moe")
    sent, slots = 2 * 2 * 512 * 2560 * 1024, 2560
    for kernels_of, num_sent, passes in ((forward_kernels, 2, 1), (backward_kernels, 3, 2)):
        usual, one_hot = (kernels_of(model, mlp, work(), Style(by_xla=True, one_hot_capacity=c)) for c in (0.0, 1.25))
        experts = sum(k.work_flop for k in usual.kernels if isinstance(k, Matmul) and k.is_grouped)
        assert experts == passes * 2 * 2 * 512 * 4 * 1024 * 3 * 2816
        assert matmul_flop(one_hot) == matmul_flop(usual) + experts / 4 + num_sent * sent
        products = [k for k in one_hot.kernels if isinstance(k, Matmul)]
        assert not any(k.is_grouped for k in products)
        rows = {k.k if k.kind == "weight_gradient" else k.m for k in products if k.batch == 8}
        assert rows == {2 * slots // 8}
        assert traffic(usual, "permutation") > 0 == traffic(one_hot, "permutation")


def test_one_hot_matrices_send_tokens_beside_experts_of_other_ranks() -> None:
    """The products before experts, and after them, are those of a whole layer; a rank's experts multiply all slots."""
    model = replace(LLAMA, num_experts=8, experts_per_token=4, moe_layers=(0, 1))
    mlp = next(unit for unit in model.units() if unit.kind == "moe")
    style, sorts = (Style(by_xla=True, one_hot_capacity=capacity) for capacity in (1.25, 0.0))
    sent = 2 * 2 * 512 * 2560 * 1024
    for typ, products in (("route", 1), ("combine", 1), ("backward_combine", 2), ("backward_route", 1)):
        one_hot, usual = (kernels_around_experts(model, mlp, typ, work(), "none", how) for how in (style, sorts))
        assert matmul_flop(one_hot) == matmul_flop(usual) + products * sent
        assert traffic(one_hot, "permutation") == 0
    copies = 4 * 2 * 512
    for typ in ("forward", "backward"):
        slots, more, usual = (
            kernels_of_experts(model, mlp, typ, num, 4, "none", how)
            for num, how in ((copies, style), (copies * 5 // 4, sorts), (copies, sorts))
        )
        assert matmul_flop(slots) == matmul_flop(more) == 1.25 * matmul_flop(usual)
        assert not any(k.is_grouped for k in slots.kernels if isinstance(k, Matmul))


def test_megatron_rotates_queries_and_keys_of_latents_by_a_kernel_each() -> None:
    """Queries' 64 rotary columns in place; keys and values read (128 each), keys of both parts and values written."""
    model = mt.models()["deepseek-v3"]
    unit = next(each for each in model.units() if each.kind == "attention")
    rotated, usual = (
        sum(
            k.traffic_bytes
            for k in forward_kernels(model, unit, work(), style).kernels
            if k.title == "rotary embedding"
        )
        for style in (Style(casts_apart=True), Style())
    )
    assert rotated == pytest.approx(2 * 2 * 512 * 128 * (2 * 64 + 2 * 128 + 192 + 128))
    assert usual == 2 * 2 * 512 * 128 * 2 * 4 * 192


def test_checkpoints_of_single_operations_repeat_every_second_product_and_all_passes() -> None:
    """torchtitan keeps the results of query, value, gate and down; keys, output and up are multiplied again."""
    again = [repeated_kernels(LLAMA, unit, work(), "op") for unit in LLAMA.units() if unit.layer == 0]
    hidden, keys, columns, tokens = 1024, 256, 2816, 2 * 512
    flop = sum(k.work_flop for kernels in again for k in kernels.kernels if isinstance(k, Matmul))
    assert flop == 2 * tokens * hidden * (keys + hidden + columns)
    passes = [k.name for kernels in again for k in kernels.kernels if isinstance(k, MemoryPass)]
    assert passes == ["norm", "rotary embedding", "residual", "norm", "swiglu"]
    assert [unit.recomputed_flop(512, "op") for unit in GPT.units() if unit.layer == 0][1] == 0


def test_one_hot_rows_are_multiplied_by_the_table_forward_and_for_its_gradient() -> None:
    embedding, style = GPT.units()[0], Style(one_hot_embedding=True)
    for kernels, num in ((forward_kernels, 1), (backward_kernels, 1)):
        assert matmul_flop(kernels(GPT, embedding, work())) == 0
        found = matmul_flop(kernels(GPT, embedding, work(), style))
        assert found == num * 2 * work().num_tokens * GPT.hidden_size * GPT.vocab_size
