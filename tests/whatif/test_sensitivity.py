"""What each kind of operation is worth: equal to simulations with other prices, and to the critical path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.run.analysis.retiming import critical_path, make_graph
from tests.small_transformers import LLAMA_LIKE

_PRICES = {"forward": 2.0, "backward": 4.0, "send": 1.0, "all_gather": 3.0, "reduce_scatter": 3.0, "update": 0.5}
_SIZES: Any = {"world_size": 4, "num_layers": 8, "global_batch_size": 16}


def _priced(name: str, **prices: float) -> mt.Run:
    """Return a run with durations by hand."""
    return mt.simulate(name, **_SIZES, hardware=mt.FixedPredictor(**{**_PRICES, **prices}))


@pytest.mark.few(4)
@pytest.mark.parametrize("name", ["zero3", "zero3_prefetch", "1f1b", "ddp"])
@pytest.mark.parametrize("kind", ["forward", "backward", "update"])
def test_a_kind_that_is_slower_or_quicker_gives_the_step_of_a_simulation_with_that_price(name: str, kind: str) -> None:
    found = {one.kind: one for one in mt.sensitivity(_priced(name), 0.25).swings}[kind]
    assert found.slower_s == _priced(name, **{kind: _PRICES[kind] * 1.25}).step_time
    assert found.quicker_s == _priced(name, **{kind: _PRICES[kind] * 0.75}).step_time


@pytest.mark.parametrize("name", ["zero3", "zero3_prefetch", "1f1b", "pp_dp:pp=2"])
def test_the_derivative_is_the_time_on_the_critical_path(name: str) -> None:
    run = mt.simulate(name, **_SIZES)
    found = {one.kind: one.derivative_s for one in mt.sensitivity(run).swings}
    path = critical_path(make_graph(run.timeline))
    assert found["computing"] + found["communication"] == pytest.approx(run.step_time, rel=1e-12)
    assert found["computing"] == pytest.approx(path.seconds()["computing"], rel=1e-9)


def test_a_small_change_moves_the_step_by_the_derivative() -> None:
    run = mt.simulate("zero3", **_SIZES)
    for one in mt.sensitivity(run, 1e-4).swings:
        assert one.slower_s - run.step_time == pytest.approx(1e-4 * one.derivative_s, rel=1e-6, abs=1e-15)


def test_the_widest_span_comes_first_and_on_top_of_the_chart() -> None:
    found = mt.sensitivity(mt.simulate("zero3", **_SIZES))
    spans = [one.span_s for one in found.swings]
    assert spans == sorted(spans, reverse=True)
    assert all(one.quicker_s <= found.step_time <= one.slower_s for one in found.swings)
    chart = found.figure()
    assert list(chart.data[0].y) == [one.kind for one in found.swings]
    assert chart.layout.yaxis.autorange == "reversed"


def test_it_is_told_in_words_json_and_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    found = mt.sensitivity(mt.simulate("1f1b", **_SIZES))
    assert json.loads(json.dumps(found.summary()))["kinds"][0]["kind"] == found.swings[0].kind
    assert str(found).startswith("1f1b: step ")
    assert "of the critical path" in str(found)
    monkeypatch.setattr("minitrain.whatif.monte_carlo.data_frame", list)
    assert found.to_pandas()[0]["slower_s"] == found.swings[0].slower_s


@pytest.mark.parametrize("change", [0, 1, -0.1, float("nan"), True, "0.1"])
def test_a_change_is_a_share(change: Any) -> None:
    with pytest.raises(mt.UsageError, match="change must be a share above 0 and below 1"):
        mt.sensitivity(mt.simulate("zero3", **_SIZES), change)


def test_a_run_without_events_is_refused() -> None:
    with pytest.raises(mt.UsageError, match="sensitivity needs every event of every rank"):
        mt.sensitivity(mt.simulate("zero3", **_SIZES, log="summary"))


_GRAPH_FREE: Any = {"world_size": 16, "num_layers": 4, "global_batch_size": 16}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["zero3_prefetch", "pp_zero1:pp=2", "1f1b"])
def test_a_price_gives_the_steps_of_simulations_with_that_price(name: str) -> None:
    sizes = {**_GRAPH_FREE, "world_size": 4 if name == "1f1b" else 16}
    found = mt.sensitivity(mt.simulate(name, **sizes), 0.25)
    assert [one.span_s for one in found.prices] == sorted((one.span_s for one in found.prices), reverse=True)
    for one in found.prices:
        values = [
            one.value * 0.75,
            one.value * (1.25 if not one.path.endswith("efficiency") else min(1.25, 1 / one.value)),
        ]
        steps = mt.price(name, "h100_80g_nvl8", vary={one.path: values}, **sizes).step_time.tolist()
        assert [one.lower_s, one.higher_s] == pytest.approx(steps, rel=1e-15)


def test_the_derivative_of_a_latency_is_how_often_the_critical_path_pays_it() -> None:
    found = mt.sensitivity(mt.simulate("ddp", world_size=8, num_layers=4, global_batch_size=8))
    by_path = {one.path: one for one in found.prices}
    assert by_path["networks[0].latency"].derivative == pytest.approx(4, rel=1e-6)  # an all_reduce a layer
    assert by_path["networks[0].bandwidth"].derivative < 0 < by_path["networks[0].latency"].derivative
    assert not any(path.startswith(("kernels", "networks[1]")) for path in by_path)
    chart = found.figure("prices")
    assert list(chart.data[0].y) == list(by_path)
    assert [each.name for each in chart.data] == ["10% lower", "10% higher"]
    assert "networks[0].bandwidth" in str(found)
    assert json.loads(json.dumps(found.summary()))["prices"][0]["path"] == found.prices[0].path


def test_durations_by_hand_and_platforms_have_prices_too() -> None:
    by_hand = mt.sensitivity(mt.simulate("ddp", **_SIZES, hardware=mt.FixedPredictor(forward=1, backward=2)))
    assert {one.path: one.derivative for one in by_hand.prices} == pytest.approx({"forward": 8.0, "backward": 8.0})
    kernels = mt.sensitivity(
        mt.simulate(
            "ddp", world_size=2, num_layers=2, global_batch_size=2, fidelity="kernels", platform="megatron-2021"
        )
    )
    assert {"platform.clock", "kernels.matmul.float16.tflops"} <= {one.path for one in kernels.prices}


def test_prices_of_fsdp_are_varied_with_the_contention_of_its_run() -> None:
    given: dict[str, Any] = {"workload": "tiny", "world_size": 8, "global_batch_size": 8, "platform": "compiled-fsdp"}
    found = mt.sensitivity(mt.simulate("fsdp", **given), change=0.1)
    (rate,) = [one for one in found.prices if one.path == "kernels.matmul.float16.tflops"]
    varied = mt.price("fsdp", vary={rate.path: [rate.value, rate.value * 1.1]}, **given)
    assert varied.step_time.tolist() == [found.step_time, rate.higher_s]


def test_a_run_that_cannot_be_priced_again_has_no_prices(tmp_path: Path) -> None:
    run = mt.simulate("ddp", **_SIZES)
    run.save(tmp_path / "run.jsonl")
    assert mt.sensitivity(mt.load_run(tmp_path / "run.jsonl")).prices == ()
    assert mt.sensitivity(mt.simulate("ddp", **_SIZES, contention=True)).prices == ()
    assert mt.sensitivity(mt.simulate("ddp", **_SIZES, faults=[mt.Fault(rank=1, at_s=1e-3)])).prices == ()
    with pytest.raises(mt.UsageError, match='of must be "kinds" or "prices"'):
        mt.sensitivity(run).figure("colours")


def test_prices_that_cut_stages_otherwise_give_the_steps_of_simulations() -> None:
    sizes: dict[str, Any] = {"world_size": 2, "global_batch_size": 4, "workload": LLAMA_LIKE}
    found = mt.sensitivity(mt.simulate("1f1b", **sizes), 0.9)
    for one in [one for one in found.prices if not one.path.startswith("platform.")][:3]:
        values = [one.value * 0.1, min(one.value * 1.9, 1.0 if one.path.endswith("efficiency") else one.value * 1.9)]
        steps = mt.price("1f1b", "h100_80g_nvl8", vary={one.path: values}, **sizes).step_time.tolist()
        assert [one.lower_s, one.higher_s] == pytest.approx(steps, rel=1e-15)
