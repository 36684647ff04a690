"""Prices of kernels: closed forms, properties, and rows of published measurements."""

import pickle
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitrain as mt
from minitrain.errors import HardwareConfigError, UsageError
from minitrain.machine import load_config, shipped_configs
from minitrain.machine.device import TERMS
from minitrain.machine.kernel_device import TILES, KernelDevice, rates_of
from minitrain.machine.platforms import find_platform
from minitrain.machine.predictor import make_predictor
from minitrain.machine.price import Account, Pricing, accounts_of
from minitrain.workloads.architecture import PRECISIONS
from minitrain.workloads.kernels import FlashAttention, KernelList, Matmul, MemoryPass, Operand
from minitrain.workloads.shapes import Work
from minitrain.workloads.transformer_workload import find_workload
from minitrain.workloads.unit_kernels import forward_kernels

A100, H100 = KernelDevice(load_config("a100_80g")), KernelDevice(load_config("h100_80g_nvl8"))
PRICED = [name for name in shipped_configs() if load_config(name).kernels is not None]
SIZES = st.integers(1, 2000).map(lambda size: 8 * size)
DEVICES = st.sampled_from([KernelDevice(load_config(name)) for name in PRICED])


def pcie_a100() -> KernelDevice:
    """The card that most rows were measured on: its best matmul is 252.9 TFLOP/s, that of the SXM card 271.2."""
    return KernelDevice(A100.system, A100.rates.scaled(252.9 / 271.2))


def causal(length: int, num_heads: int, **changes: Any) -> FlashAttention:
    sizes = {"num_samples": 1, "num_queries": length, "num_keys": length, "num_heads": num_heads}
    pairs = length * (length + 1) // 2
    return FlashAttention(
        **{**sizes, "num_kv_heads": 1, "key_dim": 128, "value_dim": 128, "num_pairs": pairs, **changes}
    )


def test_twenty_one_devices_say_what_their_kernels_reach() -> None:
    measured = {"a100", "b200", "gb200", "gh200", "h100", "h200", "l40s", "mi300x", "v100"}
    families = measured | {"b300", "gb300", "mi325x", "mi355x", "tpu", "trn2"}
    assert {name.split("_")[0] for name in PRICED} == families
    assert len(PRICED) == 21


def test_a_full_wave_takes_its_tiles_and_their_prologue() -> None:
    rates = A100.rates
    seconds = A100.kernel_seconds(Matmul(256 * 9, 128 * 12, 65536))
    tile = 2 * 256 * 128 * (65536 + rates.matmul["float16"].prologue)
    assert seconds == pytest.approx(1.75e-6 + tile / (rates.matmul["float16"].tflops * 1e12 / 108), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "measured"),
    [("gb200_nvl72", (2636.8, 2703.0, 2757.3, 2689.2)), ("gb300_nvl72", (3257.0, 3286.3, 3308.5, 3271.3))],
)
def test_blackwell_sustains_as_much_in_small_products_as_in_large_ones(name: str, measured: tuple[float, ...]) -> None:
    """Azure/AI-benchmarking-guide, cuBLAS in eight bits, 10,000 times before: TFLOP/s of 4096^3 to 32768^3."""
    device = KernelDevice(load_config(name))
    for size, tflops in zip((4096, 8192, 16384, 32768), measured, strict=True):
        seconds = device.kernel_seconds(Matmul(size, size, size, datatype="float8", element_bytes=1))
        within = 0.04 if size > 4096 else 0.1  # whose last wave is a fifth of all
        assert 2 * size**3 / seconds / 1e12 == pytest.approx(tflops, rel=within), size


def test_power_sustains_less_than_tiles_and_counts_no_waves() -> None:
    rate = replace(A100.rates.matmul["float16"], tflops=200.0, burst=400.0)
    limited = KernelDevice(A100.system, replace(A100.rates, matmul={"float16": rate}))
    full, one_more = Matmul(256 * 9, 128 * 12, 65536), Matmul(256 * 9 + 1, 128 * 12, 65536)
    start = A100.rates.matmul_start_s
    assert limited.kernel_seconds(full) == pytest.approx(start + full.work_flop / 200e12, rel=1e-12)
    assert limited.kernel_seconds(one_more) < 1.1 * limited.kernel_seconds(full)
    assert A100.kernel_seconds(one_more) > 1.2 * A100.kernel_seconds(full)
    small = Matmul(256, 128, 65536)
    assert limited.kernel_seconds(small) > start + small.work_flop / 200e12  # one tile: its unit is not quicker
    halved = limited.rates.scaled(0.5).matmul["float16"]
    assert (halved.tflops, halved.burst) == (100.0, 200.0)


@pytest.mark.parametrize("num_devices", [1, 2, 8, 64, 1024])
def test_arithmetic_takes_as_long_as_on_the_slowest_of_normally_spread_devices(num_devices: int) -> None:
    drawn = np.random.default_rng(0).normal(1.0, 0.015, (4000, num_devices))
    rates = replace(A100.rates, spread=0.015)
    assert rates.slowest(num_devices) == pytest.approx(drawn.max(axis=1).mean(), abs=1e-3)
    large = Matmul(256 * 108, 128 * 108, 4096)
    slower, alone = KernelDevice(A100.system, rates, num_devices=num_devices), KernelDevice(A100.system, rates)
    longer = (slower.kernel_seconds(large) - rates.matmul_start_s) / (
        alone.kernel_seconds(large) - rates.matmul_start_s
    )
    assert longer == pytest.approx(rates.slowest(num_devices), rel=1e-9)
    copied = MemoryPass("norm", 10**9, 4)
    assert slower.kernel_seconds(copied) == alone.kernel_seconds(copied)
    assert pickle.loads(pickle.dumps(slower)).kernel_seconds(large) == slower.kernel_seconds(large)


def test_a_platform_contains_the_slowest_of_the_devices_that_it_was_fitted_to() -> None:
    given: Any = {"workload": "llama3-8b", "hardware": "a100_80g", "fold": True, "recompute": "full"}
    platform = replace(find_platform("eager-a100"), num_devices=64)

    def step(world_size: int, without: tuple[str, ...] = ()) -> float:
        sizes: dict[str, Any] = {"world_size": world_size, "global_batch_size": 4 * world_size}
        return mt.simulate("fsdp", platform=platform, without=without, **sizes, **given).step_time

    assert step(64) == pytest.approx(step(64, ("spread",)), rel=1e-12)
    assert 0.98 < step(8) / step(8, ("spread",)) < 0.99
    assert 1.01 < step(1024) / step(1024, ("spread",)) < 1.02


def test_waiting_for_the_slowest_device_is_a_part_of_a_price() -> None:
    workload = find_workload("llama3-8b", seq_len=4096)
    pricing = Pricing("kernels", "nemo-h100")
    predictor: Any = make_predictor("h100_80g_nvl8", 64, workload=workload, pricing=pricing)
    price = predictor.compute("forward", 1, 2)  # an MLP, most of which is arithmetic
    found: Account = accounts_of(predictor)[id(price)]()
    assert sum(part.seconds for part in found.parts) == pytest.approx(price.seconds)
    (waits,) = (part.seconds for part in found.parts if part.name == "pace of the slowest of 64 devices")
    matmul_s = sum(part.seconds for part in found.parts if part.name.startswith("matmul"))
    assert not any("waiting" in part.name for part in found.parts)  # a rank that waits is another thing
    assert waits == pytest.approx((predictor.device.rates.slowest(64) - 1) * matmul_s, rel=1e-2)
    alike = make_predictor("h100_80g_nvl8", 64, workload=workload, pricing=replace(pricing, without="spread"))
    price = alike.compute("forward", 1, 2)
    assert not any("slowest" in part.name for part in accounts_of(alike)[id(price)]().parts)


def test_one_tile_more_than_a_wave_costs_up_to_another_wave() -> None:
    rates = replace(A100.rates, splits=(1,))
    device = KernelDevice(A100.system, rates)
    one, more = (device.kernel_seconds(Matmul(256 * tiles, 128, 65536)) for tiles in (108, 109))
    assert 1.1 < more / one <= 2
    smooth = KernelDevice(A100.system, rates.without("waves"))
    one, more = (smooth.kernel_seconds(Matmul(256 * tiles, 128, 65536)) for tiles in (108, 109))
    assert more / one == pytest.approx(109 / 108, rel=1e-3)


def test_splitting_k_helps_where_tiles_are_few() -> None:
    narrow = Matmul(256, 256, 65536)
    assert A100.kernel_seconds(narrow) < 0.6 * KernelDevice(A100.system, A100.rates.without("split_k")).kernel_seconds(
        narrow
    )


def test_a_row_that_is_no_multiple_of_16_bytes_slows_a_matmul_but_the_number_of_tokens_does_not() -> None:
    plain = A100.kernel_seconds(Matmul(8192, 8192, 8192)) - 1.75e-6
    assert A100.kernel_seconds(Matmul(8191, 8192, 8192)) - 1.75e-6 == plain
    assert A100.kernel_seconds(Matmul(8192, 8191, 8192)) - 1.75e-6 == pytest.approx(plain / 0.685)
    assert A100.kernel_seconds(Matmul(8192, 8192, 8191, kind="weight_gradient")) < 1.05 * plain


def test_the_alignment_factor_is_the_measured_cliff() -> None:
    """Three matmuls of a SwiGLU MLP on H100 with 10922 and 10944 columns: 272.73 and 398.38 TFLOP/s (k1 0866, 0867)."""
    assert pytest.approx(272.73 / 398.38, abs=1e-3) == A100.rates.unaligned


def test_a_pass_over_memory_takes_its_bytes_at_the_achieved_bandwidth() -> None:
    assert A100.kernel_seconds(MemoryPass("copy", 10**6, 8)) == 1.5e-6 + 8e6 / 1737e9
    assert A100.kernel_seconds(MemoryPass("nothing", 0, 8)) == 0


def test_a_layer_is_never_faster_than_its_launches() -> None:
    tiny = KernelList((MemoryPass("norm", 1000, 4),), 16)
    assert A100.pass_seconds(tiny) == 16 * 2.62e-6
    assert KernelDevice(A100.system, launch_s=81e-6).pass_seconds(tiny) == 16 * 81e-6
    assert KernelDevice(A100.system, launch_s=0).pass_seconds(tiny) == A100.kernel_seconds(tiny.kernels[0])


def test_attention_takes_its_flop_and_the_tail_of_its_longest_block() -> None:
    kernel, rate = causal(4096, 32), A100.rates.attention_rate("flash2", is_backward=False)
    flop_per_s = 312e12 * rate.efficiency
    longest = 128 * 4096 * 2 * 256 / (flop_per_s / 108)
    expected = 5e-6 + kernel.work_flop / flop_per_s + rate.tail * longest
    assert A100.kernel_seconds(kernel) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("back", "measured_us"), [(False, 803), (True, 2358)])
def test_flash_attention_pads_heads(back: bool, measured_us: float) -> None:
    """8192 tokens and 16 heads of 80, measured on an H100 with PyTorch 2.11 (g1's): as much as heads of 96."""
    found, wider = (
        H100.kernel_seconds(FlashAttention(1, 8192, 8192, 16, 16, size, size, 8192 * 8193 / 2, is_backward=back))
        for size in (80, 96)
    )
    assert found == pytest.approx(wider, rel=1e-6)
    assert 0.75 < found * 1e6 / measured_us < 0.9  # their kernels reach less than those of 128


def test_dropout_in_attention_takes_six_integer_operations_a_pair() -> None:
    plain, dropped = (A100.kernel_seconds(causal(4096, 32, has_dropout=flag)) for flag in (False, True))
    assert dropped - plain == pytest.approx(6 * 32 * 4096 * 4097 / 2 / (19.5e12 / 4))


def test_single_precision_runs_on_the_vector_units_at_the_share_that_was_measured() -> None:
    system = load_config("a100_40g")
    device = KernelDevice(system, rates_of(system))
    layer = mt.Transformer(
        num_layers=1,
        hidden_size=7168,
        num_heads=56,
        vocab_size=1024,
        seq_len=2048,
        attention="unfused",
        dropout=0.1,
        precision=PRECISIONS["fp32"],
    )
    forward = sum(device.pass_seconds(forward_kernels(layer, unit, Work(1, 2048))) for unit in layer.units()[1:3])
    assert forward == pytest.approx(0.1451, rel=0.07)  # OPT-30B, one sample, table n1
    assert device.peak_flop_per_s("float32") == 19.5e12


def test_newer_attention_kernels_are_faster_and_small_heads_slower() -> None:
    seconds = [H100.kernel_seconds(causal(8192, 32, generation=name)) for name in ("flash1", "flash2", "flash3")]
    assert seconds == sorted(seconds, reverse=True)
    small, large = (
        H100.kernel_seconds(causal(8192, heads, key_dim=dim, value_dim=dim)) for heads, dim in ((64, 64), (32, 128))
    )
    assert small > large


@pytest.mark.parametrize(
    ("device", "generation", "measured_ms"),
    [("gb300_nvl72", "cudnn_fp8", (0.759, 3.087)), ("gb300_nvl72", "cudnn_mxfp8", (0.856, 3.917))],
)
def test_attention_in_eight_bits_takes_about_what_cudnn_published(
    device: str, generation: str, measured_ms: tuple[float, float]
) -> None:
    """NVIDIA/cudnn-frontend @60e572b, llama3.1/gb300: two samples of 8192, 64 heads over 8."""
    config = load_config(device)
    for is_backward, ms in enumerate(measured_ms):
        kernel = FlashAttention(2, 8192, 8192, 64, 8, 128, 128, 8192 * 8193 / 2, bool(is_backward), generation)
        assert KernelDevice(config).kernel_seconds(kernel) == pytest.approx(ms * 1e-3, rel=0.13)


def test_float8_is_less_than_twice_as_fast() -> None:
    half, eight = (
        H100.kernel_seconds(Matmul(4096, 4096, 7168, datatype=datatype, element_bytes=size))
        for datatype, size in (("float16", 2), ("float8", 1))
    )
    assert 1.5 < half / eight < 2


@pytest.mark.parametrize(
    ("kernel", "measured_us", "within"),
    [
        # MooreThreads/SimuMax @4dcaae5 configs/system/a100_pcie.json: k1 0052, 0056, 0055, 0061, 0063, 0051, 0049
        (Matmul(4096, 24576, 1536), 1421.76, 0.01),
        (Matmul(4096, 5120, 576), 130.85, 0.03),
        (Matmul(4096, 576, 5120), 155.87, 0.05),
        (Matmul(4096, 5120, 16384), 2939.55, 0.02),
        (Matmul(5120, 16384, 4096, kind="weight_gradient", result_bytes=8), 3063.2, 0.01),
        (Matmul(1536, 5120, 4096, kind="weight_gradient", result_bytes=8), 330.67, 0.12),
        (Matmul(4096, 1536, 5120), 262.15, 0.18),  # nearly two waves, at a higher clock than full ones on this card
        (causal(4096, 64), 1484.44, 0.05),  # k2 0009, forward
        (causal(4096, 64, is_backward=True), 4382.9, 0.08),  # k2 0021, backward
    ],
)
def test_rows_measured_on_a_pcie_a100_are_met(kernel: Matmul, measured_us: float, within: float) -> None:
    assert pcie_a100().kernel_seconds(kernel) == pytest.approx(measured_us * 1e-6, rel=within)


def test_float8_rows_measured_on_h800_are_met_with_nothing_fitted_on_them() -> None:
    """deepseek-ai/DeepGEMM @a6d97a1, README: 4096 x 7168 x 16384 in 708.45 us, and 4096 x 4096 x 7168 in 184.45 us."""
    for n, k, measured_us in ((7168, 16384, 708.45), (4096, 7168, 184.45)):
        kernel = Matmul(4096, n, k, datatype="float8", element_bytes=1)
        assert H100.kernel_seconds(kernel) == pytest.approx(measured_us * 1e-6, rel=0.1)


@given(DEVICES, SIZES, SIZES, SIZES, st.integers(1, 40), st.sampled_from("mnkb"))
def test_more_work_never_takes_less_time(device: KernelDevice, m: int, n: int, k: int, batch: int, grown: str) -> None:
    sizes = {"m": m, "n": n, "k": k, "b": batch}
    less = Matmul(sizes["m"], sizes["n"], sizes["k"], sizes["b"])
    sizes[grown] += 8
    more = Matmul(sizes["m"], sizes["n"], sizes["k"], sizes["b"])
    assert device.kernel_seconds(less) <= device.kernel_seconds(more)


@given(DEVICES, SIZES, SIZES, SIZES, st.integers(1, 40))
def test_no_matmul_beats_the_rates_that_were_achieved(device: KernelDevice, m: int, n: int, k: int, batch: int) -> None:
    kernel, rates = Matmul(m, n, k, batch), device.rates
    seconds, rate = device.kernel_seconds(kernel), rates.matmul["float16"]
    assert kernel.work_flop / seconds < rate.tflops * 1e12
    assert kernel.traffic_bytes / seconds < rates.GBps * 1e9
    tiles = min(ceil(m / rows) * ceil(n / columns) * rows * columns for rows, columns in TILES)
    assert seconds > 2 * tiles * batch * k / ((rate.burst or rate.tflops) * 1e12)


@pytest.mark.parametrize(("hardware", "kernel"), [("h100_80g_nvl8", "cudnn"), ("a100_80g", "flash2")])
def test_transformer_engine_takes_cudnn_where_it_has_figures(hardware: str, kernel: str) -> None:
    rates = rates_of(load_config(hardware))
    assert find_platform("nemo-h100").attention_of(rates) == kernel
    assert find_platform("nemo-h100:attention=flash3").attention_of(rates) == "flash3"  # as asked, or refused by name


@given(DEVICES, st.integers(1, 64), st.integers(1, 64), st.booleans())
def test_longer_attention_never_takes_less_time(device: KernelDevice, blocks: int, heads: int, back: bool) -> None:
    generation = next(iter(device.rates.attention))
    less, more = (
        device.kernel_seconds(causal(128 * size, heads, generation=generation, is_backward=back))
        for size in (blocks, blocks + 1)
    )
    assert less <= more


@given(st.sampled_from(TERMS), SIZES, SIZES, SIZES)
def test_a_term_left_out_never_makes_a_forward_matmul_slower_but_for_the_split(
    term: str, m: int, n: int, k: int
) -> None:
    kernel, bare = Matmul(m, n, k), KernelDevice(A100.system, A100.rates.without(term))
    full = A100.kernel_seconds(kernel)
    assert bare.kernel_seconds(kernel) >= full if term == "split_k" else bare.kernel_seconds(kernel) <= full


def test_what_a_device_does_not_have_is_named_with_what_it_has() -> None:
    with pytest.raises(HardwareConfigError, match=r"kernels\.matmul\.float4 is missing \(it has float16\)"):
        A100.kernel_seconds(Matmul(8, 8, 8, datatype="float4"))
    with pytest.raises(HardwareConfigError, match=r"kernels\.attention\.flash3 is missing \(it has flash1, flash2\)"):
        A100.kernel_seconds(causal(128, 1, generation="flash3"))
    with pytest.raises(
        HardwareConfigError,
        match=r't4 has no key kernels; use fidelity="roofline", or one of a100_40g, .*, v100_32g_nvl8',
    ):
        KernelDevice(load_config("t4"))
    with pytest.raises(UsageError, match="a kernel's price has no term 'luck'; use waves, prologue"):
        A100.rates.without("luck")


def test_a_device_is_the_same_after_pickle_and_prices_the_same() -> None:
    device = KernelDevice(A100.system, launch_s=1e-5)
    copy = pickle.loads(pickle.dumps(device))
    assert (copy.rates, copy.launch_s) == (device.rates, 1e-5)
    assert copy.kernel_seconds(Matmul(512, 512, 512)) == device.kernel_seconds(Matmul(512, 512, 512))


def test_capacity_peak_and_loads_are_those_of_the_config() -> None:
    assert A100.capacity_bytes == 80 * 2**30
    assert A100.peak_flop_per_s("float16") == 312e12
    assert A100.load_seconds(0) == 0
    assert A100.load_seconds(1e9) == 1e9 / (32e9 * 0.87)


def test_the_last_tile_of_an_expert_is_half_full_in_the_mean() -> None:
    """Sixteen experts of 512 tokens in the mean take 72 tiles of 128 rows, as those of pytorch/ao #2490 do."""
    tokens = (272, 560, 912, 544, 480, 288, 1104, 192, 192, 256, 256, 304, 1072, 1328, 112, 320)
    assert sum(tokens) == 16 * 512
    assert sum(-(-each // 128) for each in tokens) == 72 == 16 * (512 / 128 + 0.5)
    device = KernelDevice(load_config("h100_80g_nvl8"))
    equal = Matmul(512, 8192, 5120, 16)
    rest = device.rates.matmul_start_s
    unequal = device.kernel_seconds(replace(equal, is_grouped=True)) - rest
    assert unequal == pytest.approx((device.kernel_seconds(equal) - rest) * 72 / 64, rel=0.03)


def test_experts_multiply_at_their_share_of_the_rate_where_a_device_gives_one() -> None:
    tpu = KernelDevice(load_config("tpu_v5p"))
    one = Matmul(8192, 8192, 8192, 8, "weight_gradient")
    rest = tpu.rates.matmul_start_s
    grouped = tpu.kernel_seconds(replace(one, is_grouped=True)) - rest
    assert grouped == pytest.approx((tpu.kernel_seconds(one) - rest) / 0.8 * (1 + 512 / 8192), rel=1e-12)
    assert A100.rates.grouped == 1


@pytest.mark.parametrize("name", ["tpu_v4", "tpu_v5e", "tpu_v5p", "tpu_v6e", "tpu_v7x"])
def test_single_precision_runs_on_the_matrix_units_of_tpus(name: str) -> None:
    """XLA rounds operands to bf16 by default: a product takes no longer than three of bf16, as on no vector unit."""
    tpu = KernelDevice(load_config(name))
    narrow = Matmul(8192, 8192, 8192)
    wide = replace(narrow, datatype="float32", element_bytes=4)
    assert 1 <= tpu.kernel_seconds(wide) / tpu.kernel_seconds(narrow) < 3
    core = FlashAttention(8, 4096, 4096, 16, 16, 128, 128, 4096 * 4097 // 2, generation="splash")
    single = replace(core, datatype="float32", element_bytes=4)
    assert 1 <= tpu.kernel_seconds(single) / tpu.kernel_seconds(core) < 2


def test_a_block_in_which_groups_end_is_computed_for_each() -> None:
    """Megablox' kernel on jax's `make_group_metadata`: as many blocks as rows fill, and one more for each group."""
    tpu = KernelDevice(load_config("tpu_v5p"))
    rest, tokens = tpu.rates.matmul_start_s, [300, 700, 1000, 2000, 4000, 50, 6000, 2334]
    ends = [sum(tokens[: i + 1]) for i in range(len(tokens))]
    visits = sum(-(-end // 512) - (end - of) // 512 for end, of in zip(ends, tokens, strict=True))
    rows = sum(tokens) // len(tokens)
    assert (sum(tokens), visits) == (32 * 512, 32 + len(tokens) - 1)
    few, many = (
        tpu.kernel_seconds(Matmul(each, 8192, 8192, 32 * 512 // each, is_grouped=True)) - rest for each in (rows, 8192)
    )
    assert few / many == pytest.approx((1 + 512 / rows) / (1 + 512 / 8192), rel=1e-12)
    assert few / many == pytest.approx((visits + 1) / (32 + 2), rel=1e-12)


MASKED = {
    "tpu_v7x": {"forward": 15.058, "input_gradient": 15.571, "weight_gradient": 16.919},
    "tpu_v6e": {"input_gradient": 19.673, "weight_gradient": 20.340},
}
"""Milliseconds of 128 experts of 2880 x 2880 and 327,680 tokens on a core, as tokamax's `data/autotuning` has them."""


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, kinds in MASKED.items() for kind in kinds])
def test_experts_of_no_whole_lanes_take_as_long_as_measured(name: str, kind: Operand) -> None:
    device, cores = KernelDevice(load_config(name)), 1 + (name == "tpu_v7x")
    tokens = cores * 327680 // 128
    shape = (2880, 2880, tokens) if kind == "weight_gradient" else (tokens, 2880, 2880)
    experts = Matmul(*shape, 128, kind, is_grouped=True)
    assert device.kernel_seconds(experts) == pytest.approx(MASKED[name][kind] / 1e3, rel=0.05)
    whole = KernelDevice(device.system, replace(device.rates, grouped_masked=1.0))
    assert whole.kernel_seconds(experts) < 0.65 * device.kernel_seconds(experts)
    assert whole.kernel_seconds(replace(experts, is_grouped=False)) == device.kernel_seconds(
        replace(experts, is_grouped=False)
    )


@pytest.mark.parametrize(
    ("name", "kind", "columns", "others", "longer"),
    [
        ("tpu_v5p", "forward", 2048, 1024, 1),
        ("tpu_v5p", "forward", 1408, 2048, 2048 / 1408),
        ("tpu_v5p", "forward", 352, 2048, 2),
        ("tpu_v5e", "forward", 352, 2048, 1),
        ("tpu_v5p", "input_gradient", 7168, 2048, 8 / 7),
        ("tpu_v5p", "weight_gradient", 1408, 1536, 2048 / 1408 * 2048 / 1536),
        ("tpu_v6e", "forward", 1408, 2048, 1),
    ],
)
def test_blocks_of_experts_are_computed_whole_and_divided_among_cores(
    name: str, kind: Operand, columns: int, others: int, longer: float
) -> None:
    device, rows = KernelDevice(load_config(name)), 8192
    shape = (columns, others, rows) if kind == "weight_gradient" else (rows, columns, others)
    experts = Matmul(*shape, 8, kind, is_grouped=True)
    fitting = KernelDevice(device.system, replace(device.rates, grouped_block=0.0))
    seconds, least = (each.kernel_seconds(experts) - device.rates.matmul_start_s for each in (device, fitting))
    assert seconds / least == pytest.approx(longer, rel=1e-12)


def test_larger_blocks_of_attention_have_more_work_where_they_are_computed_whole() -> None:
    flash, block = FlashAttention(2, 4096, 4096, 32, 8, 128, 128, 4096 * 4097 // 2, generation="splash"), 4096
    assert flash.flop_in_blocks(block) / flash.flop_in_blocks(512) == pytest.approx(64 / 36, rel=1e-12)
    assert (flash.num_blocks(block), flash.num_blocks(512)) == pytest.approx((64, 64 * 36), rel=1e-12)
    assert rates_of(A100.system).scaled(1.0, block=block).attention == rates_of(A100.system).attention


STEPS = {
    ("tpu_v5p", 1024, 32, 4096, 32, 8, 128): 21.9,
    ("tpu_v5p", 1024, 4, 4096, 32, 32, 64): 2.642,
    ("tpu_v5p", 1024, 8, 2048, 32, 32, 64): 1.80,
    ("tpu_v5p", 512, 32, 512, 32, 32, 64): 1.074,
    ("tpu_v5p", 512, 1, 8192, 8, 8, 128): 0.778,
    ("tpu_v6e", 2048, 1, 16384, 16, 16, 128): 4.303,
    ("tpu_v6e", 2048, 1, 16384, 32, 32, 64): 8.05,
    ("tpu_v6e", 1024, 8, 2048, 32, 32, 64): 2.326,
}
"""Device, block, samples, tokens, heads, heads of keys, their size: milliseconds of causal attention, forward with what
backward needs, as tokamax's `data/autotuning` has them; 0.778 as Levanter measured it, which writes nothing for
backward."""


@pytest.mark.parametrize("shape", STEPS, ids=str)
def test_each_block_of_attention_on_tpus_takes_a_step_too(shape: tuple[str, int, int, int, int, int, int]) -> None:
    name, block, samples, tokens, heads, kv_heads, size = shape
    device = KernelDevice(system := load_config(name), rates_of(system).scaled(1.0, block=block))
    pairs = tokens * (tokens + 1) // 2
    flash = FlashAttention(samples, tokens, tokens, heads, kv_heads, size, size, pairs, generation="splash")
    assert device.kernel_seconds(flash) * 1e3 == pytest.approx(STEPS[shape], rel=0.12)


SPLASH = {
    (4, 4096, 16, 16, 128): (1.636, None),
    (4, 4096, 8, 8, 256): (1.029, None),
    (2, 8192, 32, 32, 64): (4.546, None),
    (32, 4096, 32, 8, 128): (None, 46.08),
    (1, 16384, 16, 16, 128): (None, 8.247),
    (2, 8192, 8, 8, 256): (None, 2.858),
    (1, 16384, 32, 32, 64): (None, 16.183),
}
"""Samples, tokens, heads, heads of keys, their size: milliseconds of causal attention on a core of TPU7x, forward with
what backward needs, and backward, as tokamax's `data/autotuning` has them for blocks of 2048 x 2048."""


@pytest.mark.parametrize("shape", SPLASH, ids=str)
def test_attention_on_tpu7x_takes_as_long_as_measured(shape: tuple[int, int, int, int, int]) -> None:
    system = load_config("tpu_v7x")
    device = KernelDevice(system, rates_of(system).scaled(1.0, block=2048))
    samples, tokens, heads, kv_heads, size = shape
    pairs = tokens * (tokens + 1) // 2
    flash = FlashAttention(2 * samples, tokens, tokens, heads, kv_heads, size, size, pairs, generation="splash_fused")
    for is_backward, measured_ms in enumerate(SPLASH[shape]):
        if measured_ms is not None:
            kernel = replace(flash, is_backward=bool(is_backward))
            assert device.kernel_seconds(kernel) * 1e3 == pytest.approx(measured_ms, rel=0.08)


def test_a_backward_kernel_of_five_products_is_quicker_than_two_of_seven() -> None:
    tpu = KernelDevice(load_config("tpu_v7x"))
    apart = FlashAttention(2, 4096, 4096, 32, 8, 128, 128, 4096 * 4097 // 2, is_backward=True, generation="splash")
    fused = replace(apart, generation="splash_fused")
    assert tpu.kernel_seconds(apart) / tpu.kernel_seconds(fused) == pytest.approx(7 / 5, rel=0.01)


WINDOWS = {
    ("gb200_nvl72", "cudnn", 32768, 64, 1024): (1.711, 4.099),
    ("gb200_nvl72", "cudnn", 4096, 64, 1024): (0.209, 0.487),
    ("gb200_nvl72", "cudnn", 4096, 128, 128): (0.207, 0.458),
    ("gb200_nvl72", "cudnn_fp8", 32768, 128, 128): (1.509, 91.732),
    ("gb200_nvl72", "cudnn_mxfp8", 4096, 128, 128): (0.201, 2.070),
    ("gb300_nvl72", "cudnn", 4096, 128, 128): (0.194, 0.441),
    ("gb300_nvl72", "cudnn_fp8", 4096, 128, 128): (0.166, 1.486),
    ("gb300_nvl72", "cudnn_mxfp8", 32768, 128, 128): (1.347, 94.887),
}
"""Milliseconds of cuDNN's attention of two sequences and heads of 64, by length, heads and window, forward and backward
(`benchmark/sdpa_benchmark_training/results` of github.com/NVIDIA/cudnn-frontend @20dc1089, e99b0d0b, afa9f7c0)."""


@pytest.mark.parametrize("case", WINDOWS)
def test_windows_take_their_blocks_and_none_are_seen_backward_in_eight_bits(
    case: tuple[str, str, int, int, int],
) -> None:
    name, generation, length, heads, window = case
    system = load_config(name)
    device, pairs = KernelDevice(system, rates_of(system)), window * (window + 1) // 2 + (length - window) * window
    for is_backward, measured_ms in enumerate(WINDOWS[case]):
        sizes = (2, length, length, heads, heads, 64, 64)
        seen = FlashAttention(*sizes, pairs, bool(is_backward), generation, window=window)
        assert 0.8 < device.kernel_seconds(seen) * 1e3 / measured_ms < 1.1
        whole = FlashAttention(*sizes, length * (length + 1) // 2, bool(is_backward), generation)
        is_dense = bool(is_backward) and generation != "cudnn"
        assert (device.kernel_seconds(whole) == pytest.approx(device.kernel_seconds(seen))) is is_dense


def test_flash2_has_no_kernels_of_its_own_for_blackwell_which_runs_cudnn_where_nobody_says() -> None:
    """A forward of 8 sequences and 16 heads: 361.6 TFLOP/s (github.com/meta-pytorch/tritonbench, pull request 171)."""
    device = KernelDevice(load_config("b200_192g_nvl8"))
    kernel = FlashAttention(8, 8192, 8192, 16, 16, 128, 128, 8192**2, generation=device.rates.usual_attention)
    assert kernel.generation == "cudnn"
    seconds = device.kernel_seconds(replace(kernel, generation="flash2"))
    assert seconds == pytest.approx(kernel.work_flop / 361.6e12, rel=0.1)
    assert seconds > 2 * device.kernel_seconds(kernel)
