"""Validation: what is compared, and how the criteria judge it."""

import json
from dataclasses import replace
from operator import matmul as product
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

import minitrain as mt
from minitrain.errors import UsageError
from minitrain.machine.devices import DeviceSpec, matmul
from minitrain.machine.devices.calibration import Backend, Kernel, calibrate, horner, noise_of
from minitrain.machine.devices.jax_programs import program_of
from minitrain.machine.devices.validation import (
    Case,
    CaseResult,
    Criterion,
    ValidationReport,
    _bottlenecks,
    _errors,
    bert_base,
    cases_of,
    gpt2_small,
    resnet50,
    validate,
)

ROW = CaseResult("x", "compute", 1.0, 1.1, 0.01, 0.1)
TINY = [Case("small", jnp.matmul, ((32, 32), (32, 32))), Case("pass", horner(1), ((1024,),))]


class Nothing(Backend):
    """A backend whose kernels do nothing."""

    name, device, is_cpu = "nothing", "none", True

    def ones(self, *shape: int) -> float:
        return 1.0

    def compiled(self, function: Any, *arguments: Any) -> Kernel:
        return lambda: None


def test_all_rounds_sample_every_case_in_turn() -> None:
    seen: list[tuple[int, int]] = []
    report = validate(
        "xeon_8480plus", cases=TINY, num_rounds=3, progress=lambda done, total, name: seen.append((done, total))
    )
    assert seen == [(place, 6) for place in range(6)]
    assert [row.name for row in report.rows] == ["small", "pass"]
    assert all(row.measured_s > 0 and row.predicted_s > 0 for row in report.rows)
    assert report.as_json()["rows"][0]["name"] == "small"
    assert f"xeon_8480plus: {report.verdict}" in str(report)


def test_cases_of_one_s_own_stand_beside_the_others_and_a_simulator_will_do_for_a_device() -> None:
    simulator = mt.hw.make_simulator(DeviceSpec.from_device("xeon_8480plus"))
    own = [mt.hw.Case("mine", jnp.tanh, ((64,),))]
    report = mt.hw.validate(simulator, cases=TINY, own=own, num_rounds=1, backend=Nothing())
    assert (report.device, [row.name for row in report.rows]) == ("xeon_8480plus", ["small", "pass", "mine"])


def test_a_stopped_validation_reports_what_it_has_and_is_inconclusive() -> None:
    def stop(done: int, total: int, name: str) -> None:
        if done == 3:
            raise KeyboardInterrupt

    report = validate("xeon_8480plus", cases=TINY, num_rounds=3, progress=stop, backend=Nothing())
    assert (len(report.rows), report.is_complete, report.verdict) == (2, False, "inconclusive")
    assert "stopped before all rounds were made" in str(report)


@pytest.mark.parametrize(
    ("errors", "noise", "calibrated", "verdict"),
    [
        ([0.1, -0.2, 0.05], 0.01, 0.1, "pass"),
        ([0.2, -0.2, 0.05], 0.01, 0.0, "fail"),
        ([0.2, -0.2, 0.05], 0.2, 0.0, "inconclusive"),
        ([0.1, -0.1, 0.05], 0.2, 0.0, "inconclusive"),
        ([0.1], 0.01, 0.3, "inconclusive"),
        ([], 0.0, 0.0, "inconclusive"),
    ],
)
def test_errors_are_judged_by_their_median_unless_the_machine_or_the_calibration_was_noisy(
    errors: list[float], noise: float, calibrated: float, verdict: str
) -> None:
    rows = [replace(ROW, error=error, noise=noise) for error in errors]
    criterion = _errors(rows, "compute", calibrated)
    assert (criterion.verdict, criterion.limit) == (verdict, 0.15)
    assert ("calibrate when it is quiet" in criterion.reason) == (calibrated == 0.3)
    assert _errors(rows, "memory").value is None


def test_the_noise_of_a_config_is_the_median_of_its_measurements(tmp_path: Path) -> None:
    config = {"measured": {"rungs": {"a": {"noise": 0.1}, "b": {"noise": 0.5}, "c": {"noise": 0.3}}}}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(config))
    assert [noise_of(each) for each in (config, path, str(path), "a100_80g", None)] == [0.3, 0.3, 0.3, 0.0, 0.0]


def polynomials(times: dict[int, list[float]], bound: str, noise: float = 0.0) -> Criterion:
    cases = [Case(f"p{degree}", horner(degree), ((8,),), degree, "p") for degree in times]
    rows = [replace(ROW, name=f"p{degree}", bottleneck=bound, noise=noise) for degree in times]
    return _bottlenecks(cases, rows, {f"p{degree}": [(took, 1.0) for took in each] for degree, each in times.items()})


def test_the_true_bottleneck_is_what_twice_the_arithmetic_costs() -> None:
    assert polynomials({1: [1.0], 2: [2.0], 4: [4.0]}, "compute").verdict == "pass"
    assert polynomials({1: [1.0], 2: [1.1], 4: [1.2]}, "memory").verdict == "pass"
    assert polynomials({1: [1.0], 2: [1.1], 4: [2.2]}, "memory") == Criterion(
        "bottleneck named rightly", 0.5, 0.9, "fail", "1 of 2, more than 90% asked, noise 0.0%"
    )
    assert polynomials({1: [1.0], 2: [1.1], 4: [2.2]}, "memory", noise=0.3).verdict == "inconclusive"
    assert polynomials({1: [1.0], 3: [1.1]}, "memory").verdict == "inconclusive"


def test_bottlenecks_are_compared_within_each_round() -> None:
    drifting = {1: [1.0, 2.0, 9.0], 2: [1.1, 2.2, 9.9]}  # medians of all rounds would say the same
    assert polynomials(drifting, "memory").value == 1
    spiky = {1: [1.0, 1.0, 5.0, 5.0, 1.0], 2: [1.1, 5.0, 5.5, 5.5, 1.1]}  # and of these another thing
    assert polynomials(spiky, "memory").value == 1


def test_a_limit_that_other_rounds_might_have_met_is_open_and_more_rounds_decide() -> None:
    few = [replace(ROW, error=0.14, noise=0.5, errors=(0.05, 0.3, 0.14, 0.13, 0.25))]
    assert _errors(few, "compute").verdict == "inconclusive"
    many = [replace(ROW, error=0.1, noise=0.5, errors=(0.08, 0.09, 0.1, 0.11, 0.12, 0.3, 0.02) * 9)]
    criterion = _errors(many, "compute")
    assert (criterion.verdict, "by resampling rounds" in criterion.reason) == ("pass", True)
    assert _errors([replace(ROW, error=0.4, noise=0.5, errors=(0.3, 0.5, 0.4) * 9)], "compute").verdict == "fail"


class Scripted(Backend):
    """A backend whose kernels take what they are told, by a clock of its own: twice as long from the start on."""

    name, device, is_cpu = "scripted", "none", True

    def __init__(self, seconds: dict[str, float]) -> None:
        self.now, self.seconds = 0.0, seconds

    def clock(self, limit: Any = "compute") -> Any:
        return lambda: self.now

    def ones(self, *shape: int) -> float:
        return 1.0

    def compiled(self, function: Any, *arguments: Any) -> Kernel:
        seconds = self.seconds.get(function.__name__, self.seconds["probe"])

        def run() -> None:
            self.now += seconds

        return run


def test_a_machine_that_is_slower_than_it_was_calibrated_changes_no_error() -> None:
    simulator = mt.hw.make_simulator("xeon_8480plus")
    probe = simulator.predict(matmul(512, 512, 512))
    expected = simulator.predict(matmul(2048, 2048, 2048))
    for slower in (1.0, 3.0):
        backend = Scripted({"probe": probe * slower, "matmul": 1.1 * expected * slower})
        report = validate(simulator, cases=[Case("one", product, ((2048, 2048), (2048, 2048)))], backend=backend)
        assert report.rows[0].error == pytest.approx(1 / 1.1 - 1)
        assert report.rows[0].measured_s == pytest.approx(1.1 * expected * slower)


def test_a_report_fails_if_any_criterion_does() -> None:
    def report(*verdicts: Any) -> str:
        return ValidationReport("x", (), tuple(Criterion("c", 0, 0, verdict, "") for verdict in verdicts)).verdict

    assert report("pass", "pass") == "pass"
    assert report("pass", "inconclusive") == "inconclusive"
    assert report("inconclusive", "fail") == "fail"


def test_phases_are_synthetic_and_networks() -> None:
    synthetic, networks = cases_of("synthetic"), cases_of("models")
    assert [case.name for case in networks] == ["resnet50", "bert_base", "gpt2_small"]
    assert len(cases_of("all")) == len(synthetic) + 3
    with pytest.raises(UsageError, match="phase must be one of synthetic, models, all, got 'both'"):
        cases_of("both")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("network", "gflop", "parameters"),
    [
        (resnet50(), 2 * 4.1, 25.5e6),  # He et al. count multiplications
        (bert_base(), 2 * 85e6 * 128 / 1e9, 110e6),
        (gpt2_small(), 2 * 124e6 * 128 / 1e9, 124e6),
    ],
)
def test_networks_do_the_work_of_those_that_they_are_like(network: Any, gflop: float, parameters: float) -> None:
    import jax

    weights, inputs = network.shapes
    program = program_of(network.function, weights, inputs)
    assert program.flops / 1e9 == pytest.approx(gflop, rel=0.06)
    sizes = jax.tree.leaves(weights, is_leaf=lambda leaf: isinstance(leaf, tuple))
    assert sum(int(jnp.prod(jnp.array(size))) for size in sizes) == pytest.approx(parameters, rel=0.04)


@pytest.mark.slow
@pytest.mark.torch
def test_torch_s_networks_are_those_of_their_papers() -> None:
    pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    from minitrain.machine.devices.torch_programs import exported, program_of_export

    cases = cases_of("models", "torch")
    assert [case.name for case in cases] == ["resnet50", "bert_base", "gpt2_small"]
    modules: list[Any] = [case.function for case in cases]
    sizes = [sum(weight.numel() for weight in module.parameters()) for module in modules]
    assert sizes == [25_557_032, 109_482_240, 124_439_808]
    program = program_of_export(exported(cases[0].function, torch.zeros(1, 3, 224, 224)))
    assert program.flops == pytest.approx(2 * 4.1e9, rel=0.01)  # He et al. count multiplications


def test_torch_has_cases_of_its_own_whose_bytes_are_nearly_the_same() -> None:
    cases = cases_of("synthetic", "torch")
    thin = [case for case in cases if case.degree]
    assert {case.family for case in thin} == {"square 1024", "square 2048", "square 4096"}
    for one in thin:
        same = [program_of(product, *each.shapes).bytes for each in thin if each.family == one.family]
        assert max(same) < 1.13 * min(same)


def test_a_config_measured_with_torch_is_compared_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    config = calibrate("torch", largest=0.3, num_samples=1)
    monkeypatch.delattr("minitrain.machine.devices.validation.JaxBackend")
    assert not any(name.startswith("polynomial") for name in config["measured"]["rungs"])
    cases = [Case("product", product, ((64, 64), (64, 64))), Case("pass", horner(1), ((2**16,),))]
    report = validate(config, cases=cases, num_rounds=1)
    assert [row.name for row in report.rows] == ["product", "pass"]
    assert all(row.measured_s > 0 for row in report.rows)


def test_validations_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="num_rounds must be an integer of at least 1, got 0"):
        validate("xeon_8480plus", cases=TINY, num_rounds=0, backend=Nothing())
    with pytest.raises(UsageError, match="each case needs a name of its own, got "):
        validate("xeon_8480plus", cases=[*TINY, TINY[0]], num_rounds=1, backend=Nothing())
