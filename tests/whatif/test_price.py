"""One execution for many machines has the figures of separate simulations, to the last float."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitrain as mt
from minitrain.machine.config import load_config
from minitrain.operations import LAUNCHED, MEMORY, PRICE, SAMPLES, STRIDE, TIME, TYP
from minitrain.run.analysis.retiming import retime
from minitrain.whatif.joint_figures import JointFigures
from tests.small_transformers import LLAMA_LIKE

_SIZES: dict[str, Any] = {"world_size": 8, "num_layers": 16, "global_batch_size": 16}
_MACHINES: dict[str, Any] = {
    "hardware": ["h100_80g_nvl8", "a100_80g", "h100_80g_nvl8", "h100_80g_nvl8"],
    "network": ["auto", "flat", "auto", "hierarchical"],
    "networks[0].size": [8, 8, 4, 2],
    "networks[0].bandwidth": [450.0, 300.0, 30.0, 900.0],
    "networks[1].latency": [2e-5, 1e-3, 1e-6, 0.0],
    "mem1.GiB": [80.0, 0.4, 0.2, 0.05],
    "mem1.MB_efficiency": [[[0, 0.7]], [[100, 0.9], [0, 0.2]], [[10, 0.5], [1, 0.3], [0, 0.1]], [[0, 1.0]]],
    "matrix.float16.tflops": [1000.0, 300.0, 10.0, 2000.0],
}
_ONE_RANK = {"single": {"world_size": 1}}


def require_equal_to_separate(priced: mt.Priced) -> None:
    """Require that one execution has made the figures and times of separate runs, which make them of their events."""
    assert [note for note in priced.notes if "part ways by their prices" not in note] == []
    summaries = priced.summary()
    for group in priced._groups:
        assert isinstance(group.figures, JointFigures)
        for place, machine in enumerate(group.places.tolist()):
            separate = priced[machine]
            wanted = separate.summary()
            assert summaries[machine] == wanted
            assert list(map(type, summaries[machine].values())) == list(map(type, wanted.values()))
            _require_equal_logs(group.figures, place, separate)


def _require_equal_logs(figures: JointFigures, place: int, separate: mt.Run) -> None:
    """Require that all events of one execution are those of a separate run on one machine."""
    recorded = figures._recorded
    times = retime(recorded.program, recorded.durations)[:, place]
    durations = dict(zip(map(id, recorded.prices), recorded.durations[:, place].tolist(), strict=True))
    ours, theirs = (run.class_logs for run in (recorded.run, separate))
    if len(ours) != len(theirs):  # a machine without stragglers may fold where all together do not
        theirs = separate.logs
    for moments, log, wanted in zip(recorded.program.ranks, ours, theirs, strict=True):
        rows, expected = log._rows, wanted._rows  # type: ignore[attr-defined]  # flat logs
        for column in (TYP, MEMORY, SAMPLES):
            assert rows[column::STRIDE] == expected[column::STRIDE]
        assert times[moments.begin].tolist() == expected[TIME::STRIDE]
        assert times[moments.submitted].tolist() == expected[LAUNCHED::STRIDE]
        prices = [(durations[id(price)], price.size_bytes) for price in rows[PRICE::STRIDE]]
        assert prices == [(price.seconds, price.size_bytes) for price in expected[PRICE::STRIDE]]


@pytest.mark.few(1)
@pytest.mark.parametrize("fold", [True, pytest.param(False, marks=pytest.mark.slow)])  # any machines are tried so
@pytest.mark.parametrize("strategy", sorted(mt.strategies()))
@pytest.mark.one_in(3)
def test_every_strategy_is_priced_as_by_separate_simulations(strategy: str, fold: bool) -> None:
    sizes = {**_SIZES, **_ONE_RANK.get(strategy, {})}
    require_equal_to_separate(mt.price(strategy, vary=_MACHINES, fold=fold, **sizes))


_NUMBERS = st.floats(0.05, 20.0)


@st.composite
def _machines(draw: st.DrawFn) -> Any:
    """Return a config whose tiers, capacities and rows differ from those of others."""
    base, factor = load_config(draw(st.sampled_from(["h100_80g_nvl8", "a100_80g"]))), _NUMBERS
    from minitrain.machine.config import varied_configs

    figures = {
        "networks[0].size": draw(st.sampled_from([2, 4, 8])),
        "networks[0].bandwidth": base.networks[0].bandwidth * draw(factor),
        "networks[1].bandwidth": base.networks[1].bandwidth * draw(factor),
        "networks[0].latency": draw(st.sampled_from([0.0, 1e-5, 1e-3])),
        "matrix.float16.tflops": base.matrix["float16"].tflops * draw(factor),
        "mem1.GBps": base.mem1.GBps * draw(factor),
        "mem2.GBps": base.mem2.GBps * draw(factor),
        "mem1.GiB": draw(st.sampled_from([0.05, 0.2, 80.0])),
        "mem1.MB_efficiency": draw(st.sampled_from([[[0, 0.7]], [[100, 0.9], [10, 0.4], [0, 0.2]]])),
    }
    for path, value in figures.items():
        (base,) = varied_configs([base], path, [value])
    return base


@given(
    strategy=st.sampled_from(
        ["ddp_overlap", "zero3_prefetch", "pp_zero1:pp=2", "hsdp:shard_size=2", "1f1b", "zb_h1", "megatron:tp=2"]
    ),
    machines=st.lists(_machines(), min_size=2, max_size=4),
    world_size=st.sampled_from([4, 8]),
    batches=st.integers(1, 3),
    fold=st.booleans(),
    straggler=st.floats(1.0, 3.0),
)
def test_any_machines_and_sizes_are_priced_as_by_separate_simulations(
    strategy: str, machines: list[Any], world_size: int, batches: int, fold: bool, straggler: float
) -> None:
    sizes: dict[str, Any] = {"world_size": world_size, "num_layers": 8, "global_batch_size": world_size * batches}
    slowed: dict[str, Any] = {"slowdown": [None, {1: straggler}, *[{0: 1.5}] * 2][: len(machines)]}
    require_equal_to_separate(mt.price(strategy, machines, vary={} if fold else slowed, fold=fold, **sizes))


@pytest.mark.few(1)
@pytest.mark.parametrize("fidelity", ["roofline", "kernels"])
@pytest.mark.parametrize("strategy", ["fsdp", "megatron:tp=2", "1f1b"])
def test_a_transformer_is_priced_as_by_separate_simulations(strategy: str, fidelity: str) -> None:
    sizes: dict[str, Any] = {"world_size": 4, "global_batch_size": 8, "workload": LLAMA_LIKE, "fidelity": fidelity}
    sizes |= {"contention": False}  # which moves events
    paths = {"networks[0].bandwidth": [600.0, 300.0, 3.0], "mem1.GBps": [2000.0, 1000.0, 2000.0]}
    priced = mt.price(strategy, ["h100_80g_nvl8", "a100_80g", "h100_80g_nvl8"], vary=paths, **sizes)
    require_equal_to_separate(priced)
    assert priced.tokens_per_second.tolist() == [run.tokens_per_second for run in priced]
    assert priced.hfu.tolist() == [run.hfu for run in priced]


@pytest.mark.parametrize(
    ("strategy", "sizes"),
    [("single", {"world_size": 1}), ("pp_dp:pp=3", {"world_size": 6}), ("ddp", {"world_size": 3})],
)
def test_communication_by_axis_is_that_of_any_number_of_ranks(strategy: str, sizes: dict[str, int]) -> None:
    more: dict[str, Any] = {**sizes, "global_batch_size": 6, "workload": LLAMA_LIKE}
    require_equal_to_separate(mt.price(strategy, ["h100_80g_nvl8", "a100_80g"], **more))


async def _offloading(model: mt.Model) -> mt.StrategyModel:
    """Train with what forward keeps on the host until backward."""
    weights, opt_states, activations, *_ = model.storage()
    weights[0], opt_states[0] = model.load_weights(0)
    activations["moved"] = model.get_input_activation(range(model.global_batch_size))
    work = model.launch(model.offload(activations.pop("moved")))
    model.host["moved"] = await work
    activations["moved"] = await model.fetch(model.host["moved"])
    for store, key in ((weights, 0), (opt_states, 0), (activations, "moved"), (model.host, "moved")):
        del store[key]
    trained: mt.StrategyModel = await mt.strategies()["ddp"](model)
    return trained


def test_moves_to_the_host_are_priced_by_its_link() -> None:
    links = {"mem2.GBps": [10.0, 100.0, 450.0], "mem2.GiB": [64.0, 512.0, 512.0]}
    require_equal_to_separate(mt.price(_offloading, vary=links, **{**_SIZES, "world_size": 2}))


def test_a_machine_whose_host_is_full_says_so() -> None:
    links = {"mem2.GiB": [64.0, 512.0, 1e-3]}
    with pytest.raises(mt.OutOfMemoryError, match="must hold all that is offloaded to it") as caught:
        mt.price(_offloading, vary=links, **{**_SIZES, "world_size": 2})
    assert "on machine 2 of 3" in " ".join(caught.value.__notes__)


def test_ranks_of_durations_by_hand_may_be_stragglers_on_some_machines() -> None:
    hand = [mt.FixedPredictor(forward=1, backward=seconds, all_reduce=0.5) for seconds in (1, 2, 3)]
    slowed = [{1: 2.0}, None, {0: 1.5, 1: 3.0}]
    require_equal_to_separate(mt.price("ddp", hand, vary={"slowdown": slowed}, **_SIZES))


def test_stages_that_prices_cut_otherwise_are_executed_apart() -> None:
    model = mt.Transformer(name="wide", num_layers=6, hidden_size=64, num_heads=4, vocab_size=50_000, seq_len=64)
    rows = [[[0, 1.0]], [[10_000, 1.0], [0, 1e-3]], [[0, 0.99]]]
    vary: dict[str, Any] = {"matrix.float16.gflops_efficiency": rows, "mem1.GBps": [1e5, 1e5, 1e5]}
    sizes: dict[str, Any] = {"world_size": 4, "global_batch_size": 4, "workload": model}
    priced = mt.price("1f1b", "h100_80g_nvl8", vary=vary, **sizes)
    assert priced.summary() == [run.summary() for run in priced]


def test_columns_are_those_of_the_runs() -> None:
    priced = mt.price("pp_zero1", vary=_MACHINES, pp=2, **_SIZES)
    runs = list(priced)
    assert len(priced) == len(runs) == 4
    figures = ("step_time", "mfu", "bubble_fraction", "exposed_comm_fraction", "energy_joules", "dollars")
    for name in (*figures, "span_bubble", "makespan_bubble", "peak_memory_bytes", "capacity_bytes", "num_events"):
        wanted = [getattr(run, name) for run in runs]
        np.testing.assert_array_equal(getattr(priced, name), np.array(wanted, dtype=float))
    assert priced.fits.tolist() == [run.oom is None for run in runs]
    assert priced.oom == [run.oom for run in runs]
    assert priced.computing_fraction.tolist() == [run.breakdown.computing_fraction for run in runs]
    assert np.isnan(priced.tokens_per_second).all()
    assert priced.fastest == int(np.where(priced.fits, priced.step_time, np.inf).argmin())


def test_tokens_that_experts_did_not_take_are_left_out_on_every_machine() -> None:
    model = mt.Transformer(
        num_layers=2,
        hidden_size=64,
        num_heads=4,
        vocab_size=128,
        seq_len=32,
        ffn_hidden_size=128,
        num_experts=4,
        experts_per_token=2,
    )
    sizes: dict[str, Any] = {"world_size": 4, "workload": model, "global_batch_size": 8}
    priced = mt.price("moe", ["h100_80g_nvl8", "a100_80g"], **sizes, ep=4, imbalance=3, capacity_factor=1.25)
    runs = list(priced)
    assert all(run.dropped_token_fraction for run in runs)
    assert priced.tokens_per_second.tolist() == [run.tokens_per_second for run in runs]
    assert priced.hfu.tolist() == [run.hfu for run in runs]


def test_clusters_and_platforms_are_simulated_beside_the_machines_that_are_priced_at_once() -> None:
    unlike = mt.Cluster([mt.Devices("h100_80g_nvl8", 4), mt.Devices("a100_80g", 4)], between_groups=mt.Link(12.5e9))
    priced = mt.price("zero3", ["h100_80g_nvl8", unlike, "a100_80g"], **_SIZES)
    assert priced.notes == ("1 of 3 machines were executed one by one: each is simulated by itself",)
    assert priced.summary() == [run.summary() for run in priced]


def test_predictors_are_priced_beside_configs_also_in_a_running_loop() -> None:
    hardware: list[Any] = ["h100_80g_nvl8", "a100_80g", mt.FixedPredictor(forward=1)]
    found = mt.price("zero3", hardware, **_SIZES)
    assert found.hardware == ["h100_80g_nvl8", "a100_80g", "FixedPredictor(forward=1)"]
    assert np.isnan(found.mfu[2])
    assert asyncio.run(_priced_in_a_loop(hardware)) == found.step_time.tolist()
    require_equal_to_separate(found)


@pytest.mark.parametrize("several", [["h100_80g_nvl8", "a100_80g"], ("a100_80g",)])
def test_price_alone_takes_several_machines(several: Any) -> None:
    with pytest.raises(mt.UsageError, match=r"hardware must be one machine, got a list; `mt.price` takes several"):
        mt.simulate("zero3", hardware=several, **_SIZES)
    (failed,) = mt.compare("zero3", hardware=several, **_SIZES).failed
    assert "hardware must be one machine" in str(failed.error)


async def _priced_in_a_loop(hardware: list[Any]) -> list[float]:
    """Return step times, with a run on demand, inside a running loop as in a notebook."""
    priced = mt.price("zero3", hardware, **_SIZES)
    assert priced[-1].step_time == priced.step_time[-1]
    found: list[float] = priced.step_time.tolist()
    return found


def test_a_grid_is_every_combination_the_last_name_fastest() -> None:
    priced = mt.price("ddp", grid={"networks.0.bandwidth": [100, 200], "mem1.GBps": [1000, 2000, 3000]}, **_SIZES)
    assert priced.varied["networks.0.bandwidth"] == [100, 100, 100, 200, 200, 200]
    assert priced.varied["mem1.GBps"] == [1000, 2000, 3000, 1000, 2000, 3000]
    assert list(priced.columns())[:3] == ["networks.0.bandwidth", "mem1.GBps", "step_time_s"]
    assert repr(priced).startswith("<Priced ddp on 6 machines: step ")
    assert len(repr(priced).splitlines()) == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "price needs several machines"),
        ({"hardware": []}, "price needs several machines"),
        ({"vary": {"network": ["flat"], "mem1.GBps": [1, 2]}}, "1 of network, 2 of mem1.GBps; use grid="),
        ({"vary": {"world_size": [2, 4]}}, r"world_size does not vary prices alone.*sweep takes all others"),
        ({"vary": {"mem1.GBs": [2, 4]}}, r"has no figure 'mem1.GBs' to vary.*such as mem1.GBps"),
        ({"vary": {"mem1.GBps": [2, -4]}}, "mem1.GBps: expected a number > 0, found -4"),
        ({"vary": {"network": "flat"}}, "network must have a list of values, one a machine, got 'flat'"),
        ({"vary": {"network": ["flat", "round"]}}, "network must be"),
        ({"hardware": ["a100_80g"], "grid": {"hardware": ["a100_80g"]}}, "hardware is varied twice"),
        ({"vary": {"slowdown": [{9: 2.0}, None]}}, "slowdown names rank 9"),
        ({"hardware": ["a100_80g", "b200"]}, "b200"),
    ],
)
def test_what_cannot_be_varied_is_said(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(mt.MinitrainError, match=message):
        mt.price("ddp", **arguments, **_SIZES)


def test_a_mistake_of_the_strategy_is_that_of_a_separate_simulation() -> None:
    with pytest.raises(mt.StrategyError, match="num_layers") as caught:
        mt.price("1f1b", ["h100_80g_nvl8", "a100_80g"], world_size=8, num_layers=9)
    assert "on machine 0 of 2" in " ".join(caught.value.__notes__)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "more",
    [
        {"strict": True},
        {"contention": True},
        {"strict_memory": True},
        {"memory_by_kind": True},
        {"faults": [mt.Fault(rank=1, at_s=1e-3)]},
    ],
    ids=lambda more: next(iter(more)),
)
def test_what_follows_one_machine_is_simulated_one_by_one(more: dict[str, Any]) -> None:
    sizes = {**_SIZES, **more}
    priced = mt.price("zero3", ["h100_80g_nvl8", "a100_80g"], **sizes)
    assert priced.notes == (
        f"2 of 2 machines were executed one by one: {next(iter(more))} follows one machine at a time",
    )
    assert priced.summary() == [run.summary() for run in priced]
    assert priced.step_time.tolist() == [run.step_time for run in priced]


@pytest.mark.few(1)
@pytest.mark.parametrize("fold", [True, False])
def test_contention_is_that_of_each_machine(fold: bool) -> None:
    sizes: dict[str, Any] = {"workload": "tiny", "world_size": 8, "global_batch_size": 16, "microbatch_size": 1}
    vary: dict[str, Any] = {
        "networks[0].processor_usage": [0.0, 0.1, 0.1, 0.3],
        "mem1.GBps": [900, 1200, 2400, 3600],
        "platform": ["xla", "xla", "eager-h100", "compiled-fsdp"],
    }
    priced = mt.price("fsdp", vary=vary, fold=fold, **sizes)
    require_equal_to_separate(priced)
    assert ["with contention" in run.priced_by for run in priced] == [True, True, False, True]


def test_no_more_machines_are_timed_at_once_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minitrain.whatif.joint_execution.MOST_AT_ONCE", 6)
    priced = mt.price("1f1b", vary={"mem1.GBps": list(range(100, 112))}, world_size=4, num_layers=8)
    assert sorted(len(group.places) for group in priced._groups) == [6, 6]
    require_equal_to_separate(priced)


_STAGED: dict[str, Any] = {"workload": LLAMA_LIKE, "world_size": 8, "global_batch_size": 16, "pp": 4}


def _bandwidths(*values: float) -> dict[str, Any]:
    return {"vary": {"mem1.GBps": values}}


def test_what_a_shipped_strategy_did_is_kept_between_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    first = mt.price("megatron", **_bandwidths(900, 30000), **_STAGED)
    monkeypatch.setattr("minitrain.whatif.joint_execution.record", None)  # whoever calls it is refused
    again = mt.price("megatron", **_bandwidths(30000, 900, 2000), **_STAGED)
    assert again.step_time[:2].tolist() == first.step_time[::-1].tolist()
    require_equal_to_separate(again)


@pytest.mark.parametrize(
    "other", [{"tp": 2}, {"global_batch_size": 32}, {"microbatch_size": 1}, {"slowdown": {1: 2.0}}]
)
def test_what_is_kept_stands_for_no_other_run(other: dict[str, Any]) -> None:
    mt.price("megatron", **_bandwidths(900, 2000), **_STAGED)
    require_equal_to_separate(mt.price("megatron", **_bandwidths(900, 2000), **_STAGED | other))


def test_a_strategy_of_ones_own_is_executed_in_every_call() -> None:
    executed = []

    async def mine(model: mt.Model) -> Any:
        executed.append(model.rank)
        return await mt.strategies()["ddp"](model)

    for count in (1, 2):
        mt.price(mine, **_bandwidths(900, 2000), world_size=2, num_layers=2, global_batch_size=2)
        assert len(executed) == 2 * count
