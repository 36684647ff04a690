"""The solver against the specification's values, to the last float, and what it refuses."""

import warnings
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import numpy as np
import pint
import pytest

import minitrain as mt
from minitrain.errors import UsageError
from minitrain.machine import Processor, load_config, shipped_configs
from minitrain.machine.devices import A100_SPEC
from minitrain.machine.solver.constants import BYTES_FP16, BYTES_FP32, BYTES_INT8, Q_, ureg
from minitrain.machine.solver.engine import Engine, PerformanceProfile, PrecisionFallbackWarning
from minitrain.machine.solver.formulas import calc_bottleneck
from minitrain.machine.solver.models import MODELS, ModelSpec
from minitrain.machine.solver.systems import SYSTEMS, Hardware, SystemArchetype

CASES = [
    ("ResNet50", "A100", 1, "fp16", 0.041282051282051285, "Compute", 0.016512820512820516, True),
    ("ResNet50", "A100", 256, "fp16", 6.743205128205129, "Compute", 2.697282051282052, True),
    ("ResNet50", "A100", 32, "fp32", 13.471410256410259, "Compute", 5.388564102564104, True),
    ("BERT", "H100", 8, "int8", 0.18786760990399193, "Compute", 0.13150732693279435, True),
    ("BERT", "H100", 8, "fp32", 0.3659150657229525, "Compute", 0.2561405460060668, True),
    ("GPT2", "V100", 1, "int8", 1.686666666666667, "Memory", 0.5060000000000001, True),
    ("Llama2-70B", "H100", 1, "fp16", 41.8010447761194, "Memory", 29.26073134328358, False),
    ("Llama2-70B", "H100", 512, "int8", 72.45062657908035, "Compute", 50.71543860535624, True),
    ("MobileNetV2", "JetsonOrinNX", 1, "fp16", 0.2686274509803922, "Memory", 0.006715686274509805, True),
    ("MobileNetV2", "Phone", 1, "int8", 1.035, "Memory", 0, True),
    ("Anomaly", "ESP32", 1, "int8", 10.4, "Compute", 0.01248, True),
    ("GPT3", "A100", 64, "fp16", 171.6677709661599, "Memory", 68.66710838646397, False),
]
FALLS_BACK = {("H100", "fp32"), ("V100", "int8"), ("Phone", "int8"), ("ESP32", "int8")}


def solved(model: str, system: str, batch_size: int, precision: str) -> PerformanceProfile:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        profile = Engine.solve(MODELS[model], SYSTEMS[system], batch_size, precision)
    kinds = [warning.category for warning in caught]
    assert kinds == ([PrecisionFallbackWarning] if (system, precision) in FALLS_BACK else [])
    return profile


def test_a_profile_s_parts_fit_together() -> None:
    profile = solved("GPT2", "A100", 4, "fp16")
    longest = max(profile.latency_compute, profile.latency_memory)
    assert profile.latency == longest + profile.latency_overhead
    assert (profile.throughput * profile.latency).to_base_units().magnitude == pytest.approx(4)
    assert profile.memory_footprint == 3e9 * ureg.byte
    assert profile.arithmetic_intensity == 4 * ureg.flop / ureg.byte
    assert profile.peak_flops_actual == 156 * ureg.teraflop / ureg.second
    assert profile.peak_bw_actual == SYSTEMS["A100"].hardware.memory_bw


def test_a_profile_is_a_frozen_value_and_solve_has_the_specified_defaults() -> None:
    times = ["latency", "latency_compute", "latency_memory", "latency_overhead", "throughput"]
    rest = ["bottleneck", "arithmetic_intensity", "energy", "memory_footprint", "peak_flops_actual", "peak_bw_actual"]
    names = [each.name for each in fields(PerformanceProfile)]
    assert names[:12] == [*times, *rest, "feasible"]
    profile = Engine.solve(MODELS["BERT"], SYSTEMS["V100"])
    assert profile == Engine.solve(MODELS["BERT"], SYSTEMS["V100"], 1, "fp16", 0.5)
    with pytest.raises(FrozenInstanceError):
        profile.feasible = False  # type: ignore[misc]  # that is the point


def test_a_precision_without_a_rate_of_its_own_has_the_general_peak() -> None:
    rates: Any = {"peak_flops": Q_(10, "teraflop/s"), "memory_bw": Q_(1, "terabyte/s"), "memory_capacity": Q_(1, "GiB")}
    model = ModelSpec("own", Q_(1e6, "count"))
    for more, precision, rate in (
        ({}, "fp32", 10),
        ({}, "int8", 10),
        ({"int8_flops": Q_(30, "teraflop/s")}, "int8", 30),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrecisionFallbackWarning)
            found = Engine.solve(model, SystemArchetype("own", Hardware("own", **rates, **more)), 1, precision, 1.0)
        assert found.peak_flops_actual == Q_(rate, "teraflop/s")


def test_energy_is_0_where_no_power_is_given() -> None:
    assert solved("MobileNetV2", "Phone", 4, "fp16").energy == 0 * ureg.joule
    assert solved("MobileNetV2", "JetsonOrinNX", 4, "fp16").energy > 0 * ureg.joule


def test_flop_of_an_inference_are_given_or_two_a_parameter_and_energy_is_power_by_latency() -> None:
    system, found = SYSTEMS["JetsonOrinNX"], []
    for given in (Q_(9, "gigaflop"), None):
        profile = Engine.solve(ModelSpec("own", Q_(3e9, "count"), given), system, 7, "fp16", efficiency=0.25)
        found.append(profile.latency_compute.to("s").magnitude)
        assert profile.energy.to("joule").magnitude == pytest.approx(25 * profile.latency.to("s").magnitude)
    rate = system.hardware.peak_flops.to("flop/s").magnitude * 0.25
    assert found == pytest.approx([7 * 9e9 / rate, 7 * 2 * 3e9 / rate])


def test_flops_bytes_and_counts_do_not_mix() -> None:
    for left, right in ((ureg.flop, ureg.byte), (ureg.byte, ureg.count), (ureg.count, ureg.flop)):
        with pytest.raises(pint.DimensionalityError):
            1 * left + 1 * right
    with pytest.raises(pint.DimensionalityError):
        calc_bottleneck(1 * ureg.byte, 1 * ureg.byte, Q_(1, "flop/s"), Q_(1, "byte/s"))


def test_calc_bottleneck_names_the_slower_one() -> None:
    assert [size.magnitude for size in (BYTES_FP32, BYTES_FP16, BYTES_INT8)] == [4, 2, 1]
    found = calc_bottleneck(Q_(2, "teraflop"), Q_(1, "gigabyte"), Q_(1, "teraflop/s"), Q_(1, "gigabyte/s"))
    assert found == {"compute_ms": 2000.0, "memory_ms": 1000.0, "bottleneck": "Compute", "intensity": 2000.0}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"precision": "half"}, "precision must be a datatype such as \"fp16\", .* got 'half'"),
        ({"precision": 16}, 'precision must be a datatype such as "fp16", .* got 16'),
        ({"precision": "fp64"}, "A100 states no peak rate for fp64; use one of fp16, fp32, int8, or state it in"),
        ({"precision": "int4"}, "A100 states no peak rate for int4; use one of"),
        ({"num_devices": 0}, "num_devices must be a whole number >= 1, got 0"),
        ({"batch_size": 0}, "batch_size must be a whole number >= 1, got 0"),
        ({"batch_size": 1.5}, "batch_size must be a whole number >= 1, got 1.5"),
        ({"batch_size": True}, "batch_size must be a whole number >= 1, got True"),
        ({"efficiency": 0}, r"efficiency is a share of the peak in \(0, 1\], got 0"),
        ({"efficiency": 1.01}, r"efficiency is a share of the peak in \(0, 1\], got 1.01"),
        ({"efficiency": float("nan")}, r"efficiency is a share of the peak in \(0, 1\], got nan"),
        ({"efficiency": "x"}, r"efficiency is a share of the peak in \(0, 1\], got 'x'"),
    ],
)
def test_parameters_outside_their_rules_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Engine.solve(MODELS["BERT"], SYSTEMS["A100"], **parameters)


TERA, GIGA, CAPACITY = Q_(1, "teraflop/s"), Q_(1, "gigabyte/s"), Q_(1, "GiB")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ModelSpec("x", 1e9),
            r'parameters of model x must be a quantity > 0 in count .* such as Q_\(1, "count"',
        ),
        (lambda: ModelSpec("x", Q_(-1, "count")), "parameters of model x must be a quantity > 0 in count"),
        (lambda: ModelSpec("x", Q_(float("nan"), "count")), "parameters of model x must be a quantity > 0"),
        (
            lambda: ModelSpec("x", pint.UnitRegistry().Quantity(1, "meter")),
            "parameters of model x is in meter, a unit of another registry that .* does not have; convert it first",
        ),
        (lambda: ModelSpec("x", Q_(1, "count"), num_layers=0), "num_layers of model x"),
        (lambda: Hardware("x", TERA, GIGA, CAPACITY, rates={"bf16": GIGA}), r"rates\['bf16'\] of hardware x must be"),
        (lambda: ModelSpec("x", Q_(1, "count"), Q_(0, "flop")), "inference_flops of model x must be a quantity > 0"),
        (lambda: Hardware("x", GIGA, TERA, CAPACITY), "peak_flops of hardware x must be a quantity > 0 in flop/s"),
        (lambda: Hardware("x", TERA, None, CAPACITY), "memory_bw of hardware x must be a quantity > 0 .* got None"),
        (lambda: Hardware("x", TERA, GIGA, CAPACITY, tdp=400), "tdp of hardware x must be a quantity > 0 in watt"),
        (lambda: Hardware("x", TERA, GIGA, CAPACITY, dispatch_tax=Q_(-1, "us")), "dispatch_tax .* quantity >= 0 in s"),
        (lambda: SystemArchetype("x", SYSTEMS["A100"].hardware, 5), "ram of system x must be a quantity > 0 in byte"),
        (lambda: SystemArchetype("x", "A100"), "a SystemArchetype is made of a Hardware, got 'A100'"),  # type: ignore[arg-type]  # that is the point
        (lambda: Engine.solve("BERT", SYSTEMS["A100"]), "takes a ModelSpec, got 'BERT'; mt.solve takes names too"),  # type: ignore[arg-type]  # that is the point
        (lambda: Engine.solve(MODELS["BERT"], "A100"), "takes a SystemArchetype, got 'A100'"),  # type: ignore[arg-type]  # that is the point
    ],
)
def test_figures_without_their_units_or_impossible_are_refused_at_once(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_quantities_of_another_registry_are_converted() -> None:
    theirs: Any = pint.UnitRegistry()
    theirs.define("flop = [operation]")
    rate, bandwidth = theirs.Quantity(312, "teraflop / second"), theirs.Quantity(2039, "GB/s")
    a100 = Hardware("A100", rate, bandwidth, theirs.Quantity(80, "GiB"), tdp=theirs.Quantity(0.4, "kW"))
    system = SystemArchetype("A100", replace(a100, dispatch_tax=theirs.Quantity(15, "us")))
    model = ModelSpec("x", theirs.Quantity(25_600_000, "count"), theirs.Quantity(4.1, "gigaflop"))
    found = Engine.solve(model, system, 256)
    assert found.latency.to("ms").magnitude == pytest.approx(6.743205128205129)
    assert found.energy.to("J").magnitude == pytest.approx(2.697282051282052)
    assert calc_bottleneck(1 * ureg.teraflop, theirs.Quantity(8, "gigabit"), rate, bandwidth)["intensity"] == 1000


def test_bits_hertz_and_days_are_units() -> None:
    assert Q_(10, "Gbit/s").to("GB/s").magnitude == pytest.approx(1.25)
    assert (Q_(2, "GHz") * Q_(3, "flop")).to("Gflop/s").magnitude == pytest.approx(6)
    assert Q_(1, "day").to("s").magnitude == 86_400


@pytest.mark.parametrize(
    ("precision", "size", "rate"), [("bfloat16", 2, 989.4), ("fp8", 1, 1978.9), ("float32", 4, 66.9)]
)
def test_every_datatype_of_a_config_is_a_precision(precision: str, size: int, rate: float) -> None:
    found = mt.solve("llama3-8b", "h100_80g_nvl8", precision=precision, efficiency=1.0)
    assert found.peak_flops_actual.to("Tflop/s").magnitude == rate
    assert found.memory_footprint == size * mt.models()["llama3-8b"].num_parameters * ureg.byte
    with pytest.warns(PrecisionFallbackWarning, match="t4 states no peak rate for bf16; that for fp16 is used"):
        assert mt.solve("BERT", "t4", precision="bf16").peak_flops_actual.to("Tflop/s").magnitude == 32.5
    own = Hardware("own", TERA, GIGA, CAPACITY, rates={"int4": 4 * TERA})
    nibbles = mt.solve("BERT", own, precision="int4")
    assert (nibbles.peak_flops_actual, nibbles.memory_footprint) == (2 * TERA, 55e6 * ureg.byte)


def test_the_jetson_has_one_rate() -> None:
    twin, config = SYSTEMS["JetsonOrinNX"].hardware, Hardware.from_device(load_config("jetson_orin_nx"))
    assert (twin.peak_flops, twin.int8_flops) == (config.peak_flops, config.int8_flops)


def test_devices_share_weights_and_arithmetic_and_all_reduce_activations() -> None:
    one, four = (mt.solve("llama3-8b", "h100_80g_nvl8", batch_size=8, num_devices=num) for num in (1, 4))
    assert (one.latency_communication, four.memory_footprint) == (0 * ureg.s, one.memory_footprint / 4)
    assert four.latency_compute.magnitude == pytest.approx(one.latency_compute.magnitude / 4)
    network = load_config("h100_80g_nvl8").network(4)
    between = 2 * 32 * network.time("all_reduce", 8 * 4096 * 2, 4)
    assert four.latency_communication.to("s").magnitude == between
    parts = max(four.latency_compute, four.latency_memory) + four.latency_overhead + four.latency_communication
    assert four.latency.to("s").magnitude == pytest.approx(parts.to("s").magnitude)
    assert four.energy.magnitude == pytest.approx(4 * 700 * four.latency.to("s").magnitude)
    assert mt.solve("Llama2-70B", "H100", num_devices=2).latency_communication is None


def test_our_own_names_and_objects_are_taken() -> None:
    by_name = mt.solve("llama3-8b", "h100_80g_nvl8", batch_size=8)
    model = mt.models()["llama3-8b"]
    assert by_name == mt.solve(model, load_config("h100_80g_nvl8"), batch_size=np.int64(8))  # type: ignore[arg-type]  # whole numbers of NumPy will do
    assert by_name.memory_footprint == 2 * model.num_parameters * ureg.byte
    assert by_name.bottleneck == "Memory"
    assert by_name.latency_memory.magnitude == pytest.approx(2 * model.num_parameters / 3350e9 * 1e3)


def test_experts_that_rest_are_read_and_do_no_work() -> None:
    model = mt.models()["mixtral-8x7b"]
    spec = ModelSpec.from_transformer(model)
    assert spec.flops.magnitude == 2 * model.num_active_parameters < 2 * model.num_parameters


@pytest.mark.parametrize("name", shipped_configs())
def test_a_view_on_a_config_loses_nothing(name: str) -> None:
    system = load_config(name)
    assert SystemArchetype.from_device(system).to_device() is system
    assert Hardware.from_device(Hardware.from_device(system).to_device()) == Hardware.from_device(system)


def test_the_specifications_numbers_stay_apart() -> None:
    bandwidths = [A100_SPEC.bandwidth, SYSTEMS["A100"].hardware.memory_bw.to("GB/s").magnitude]
    assert [*bandwidths, load_config("a100_80g").mem1.GBps] == [1935, 2039, 2039]
    assert SYSTEMS["A100"].ram.to("byte").magnitude == 80 * 2**30


def test_a_preset_is_no_view() -> None:
    with pytest.raises(UsageError, match="only a view on a hardware config can become one again; A100 has its own"):
        SYSTEMS["A100"].to_device()


def test_a_config_without_half_precision_is_refused() -> None:
    system = replace(load_config("a100_80g"), processor=Processor({}, {}))
    with pytest.raises(UsageError, match="a peak in half precision, but config a100_80g has no matrix"):
        Hardware.from_device(system)
