"""The shipped strategies: every one trains completely, in any task order, and in the time and traffic of its paper."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, product
from math import ceil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitrain as mt
from minitrain import schedules
from minitrain.operations import Event, collectives
from minitrain.tensors import HIDDEN_SIZE, WeightGrad
from minitrain.tensors.placed import num_summed
from tests.small_transformers import MIXTRAL_LIKE

LoopFactories = Callable[[int], Callable[[], asyncio.AbstractEventLoop]]
Sizes = dict[str, Any]

PASSES = frozenset({"forward", "backward", "backward_input", "backward_weight"})
WEIGHT = HIDDEN_SIZE**2  # elements
DATA_PARALLEL = ["ddp", "ddp_overlap", "zero1", "zero2", "zero3", "zero3_prefetch", "hsdp", "fsdp"]
PIPELINES = ["gpipe", "1f1b", "zb_h1", "interleaved_1f1b"]
ON_A_MESH = ["pp_dp", "pp_zero1", "pp_zero3", "pp_hsdp"]
SCHEDULED = ["looped_bfs", "interleaved_zero_bubble", "zb_h2", "zbv", "dualpipe_v", "chimera"]
DIVIDED = ["megatron", "moe", "deepseek_like"]
IN_CONTEXT = ["ring_attention", "gathered_context", "packed_context_parallel"]
LOCAL = ["local_sgd", "diloco"]
DELAYED = ["pipedream_2bw", "powersgd_ddp"]
ALL = ["single", *DATA_PARALLEL, *LOCAL, *DELAYED, *PIPELINES, *ON_A_MESH, *SCHEDULED, *DIVIDED, *IN_CONTEXT]

EXAMPLES: dict[str, Sizes] = {
    "single": {"world_size": 1},
    "ddp_overlap": {"bucket_size": 3},
    "zero3_prefetch": {"lookahead": 2},
    "hsdp": {"shard_size": 2},
    "fsdp": {"replicas": 2},
    "pp_dp": {"pp": 2},
    "pp_hsdp": {"world_size": 8, "pp": 2, "shard_size": 2},
    "zbv": {"pp": 2, "zero": 1},
    "looped_bfs": {"pp": 2, "zero": 2},
    "zb_h2": {"pp": 2, "zero": 3},
    "moe": {"ep": 2, "zero": 1},  # the default layers have no experts: test_moe divides those of transformers
    "deepseek_like": {"pp": 2, "ep": 2, "zero": 1},
    "megatron": {"pp": 2, "num_chunks": 2},  # test_megatron divides layers, so that several ranks see a sample
    "ring_attention": {"cp": 1},  # test_context_parallelism cuts sequences
    "gathered_context": {"cp": 1},
    "packed_context_parallel": {"cp": 1},
}


def example(name: str) -> Sizes:
    """Return sizes on which a strategy shows all it does."""
    return {"world_size": 4, "num_layers": 8, "global_batch_size": 16, "microbatch_size": 1, **EXAMPLES.get(name, {})}


def units(**durations: float) -> mt.FixedPredictor:
    """Return durations by hand: every pass one unit."""
    return mt.FixedPredictor(**{"forward": 1, "backward": 2, "backward_input": 1, "backward_weight": 1, **durations})


# ---- complete, whatever the sizes ------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def every_sum_is_of_different_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail whenever a sample is added to a gradient twice: on a rank, or by a collective."""
    add, perform = WeightGrad.__add__, collectives.perform

    def checked_add(self: WeightGrad, other: WeightGrad) -> WeightGrad:
        assert self.samples.isdisjoint(other.samples), f"{self.samples & other.samples} twice in layer {self.layer}"
        return add(self, other)

    def checked_perform(op: str, values: Sequence[Any], *args: Any, **kwargs: Any) -> list[Any]:
        results = perform(op, values, *args, **kwargs)
        if op in ("all_reduce", "reduce_scatter"):
            for grads, total in zip(zip(*map(as_bucket, values), strict=True), as_bucket(results[0]), strict=True):
                if isinstance(total, WeightGrad) and len({getattr(grad, "parts", None) for grad in grads}) == 1:
                    assert sum(map(num_summed, grads)) == num_summed(total), f"{op}: {grads}"
        return results

    monkeypatch.setattr(WeightGrad, "__add__", checked_add)
    monkeypatch.setattr("minitrain.engine.dist.perform", checked_perform)


def as_bucket(value: Any) -> list[Any]:
    """Return a bucket, or one tensor as a bucket."""
    return value if isinstance(value, list) else [value]


def require_complete(run: mt.Run) -> None:
    """Require a whole training step of a run."""
    seen = Counter((e.typ, e.layer, sample) for e in run.events if e.typ in PASSES for sample in e.samples)
    assert set(seen.values()) <= {1}, f"a sample more than once: {[one for one in seen if seen[one] > 1]}"
    weights = [(layer, model.final_weights[layer]) for model in run.models for layer in model.final_weights]
    for layer in range(run.num_layers):
        copies = Counter((w.step, w.num_shards, shard) for at, w in weights if at == layer for shard in w.shards)
        assert {(step, of) for step, of, _ in copies} == {(1, max(of for _, of, _ in copies))}
        assert len(set(copies.values())) == 1, f"shards of layer {layer} are not on equally many ranks: {copies}"
    for model in run.models:
        assert [*model.activations, *model.grad_activations, *model.grad_weights, *model._in_flight] == []
        states = {key for key in model.opt_states if key.__class__ is int}
        momenta = {key[1] for key in model.opt_states if key.__class__ is tuple}  # of the outer optimizer
        assert set(model.weights) == states == set(model.final_weights)
        assert not momenta or momenta == states


def test_the_zoo_is_tested_whole() -> None:
    assert sorted(ALL) == sorted(mt.strategies())


@pytest.mark.few(8)
@pytest.mark.parametrize("name", ALL)
def test_the_example_trains_completely(name: str) -> None:
    require_complete(mt.simulate(name, hardware=units(), **example(name)))


@st.composite
def legal_sizes(draw: st.DrawFn) -> tuple[str, Sizes]:
    """Draw a strategy with sizes that it must take."""
    name = draw(st.sampled_from(ALL))
    pp, layers, per_rank = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    size: int | None = draw(st.integers(1, per_rank))
    options: Sizes = {}
    if name in DATA_PARALLEL or name in ("single", "moe"):
        world, num_layers, batch = 1 if name == "single" else pp + draw(st.integers(0, 4)), layers + 2, per_rank
        batch *= world
        if name in ("hsdp", "moe"):
            size_of = {"hsdp": "shard_size", "moe": "ep"}[name]
            options = {size_of: draw(st.sampled_from([d for d in range(1, world + 1) if world % d == 0]))}
        if name == "fsdp":
            copies = st.sampled_from([d for d in range(1, world + 1) if world % d == 0])
            options = {"replicas": draw(copies), "reshard_after_forward": draw(st.booleans())}
            options |= {"no_sync": draw(st.booleans())}
        options |= {"bucket_size": draw(st.integers(1, num_layers))} if name == "ddp_overlap" else {}
        options |= {"lookahead": draw(st.integers(1, num_layers))} if name == "zero3_prefetch" else {}
    elif name in LOCAL:
        each, dp = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        options, world, num_layers = {"local_steps": each, "replicas": pp}, pp * dp, layers
        batch = world * each * per_rank
    elif name in DELAYED:
        steps, each, size = draw(st.integers(1, 3)), draw(st.integers(1, 2)), 1
        options, world, num_layers, batch = {"num_steps": steps}, pp, pp * layers, pp * steps * each
    elif name in IN_CONTEXT:
        options, world, num_layers, batch = {"cp": 1}, pp, layers, pp * per_rank
    elif name in PIPELINES:
        chunks = draw(st.integers(1, 3)) if name == "interleaved_1f1b" else 1
        options = {"num_chunks": chunks} if name == "interleaved_1f1b" else {}
        world, num_layers, batch = pp, pp * chunks * layers, pp * per_rank
        size = 1 if name == "interleaved_1f1b" else size
    else:
        within = {"pp_hsdp": "shard_size", "deepseek_like": "ep"}.get(name)
        dp, shards = draw(st.integers(1, 3)), draw(st.integers(1, 2)) if within else 1
        options = {within: shards} if within else {}
        options |= {"zero": draw(st.integers(0, 3))} if name in SCHEDULED else {}
        pp *= 2 if name == "chimera" else 1
        options["pp"] = pp
        world, num_layers, batch = pp * dp * shards, pp * 2 * layers, 2 * pp * dp * shards * per_rank
        size = draw(st.sampled_from([1, per_rank])) if name in (*SCHEDULED, "deepseek_like") else size
    size = draw(st.sampled_from([None, size]))
    return name, {
        "world_size": world,
        "num_layers": num_layers,
        "global_batch_size": batch,
        "microbatch_size": size,
    } | options


@settings(max_examples=8 * settings().max_examples)
@given(case=legal_sizes())
def test_every_strategy_trains_completely_on_sizes_that_divide(case: tuple[str, Sizes]) -> None:
    name, sizes = case
    require_complete(mt.simulate(name, hardware=units(), **sizes))


@settings(max_examples=8 * settings().max_examples)
@given(
    name=st.sampled_from(ALL),
    world=st.integers(1, 9),
    layers=st.integers(1, 9),
    batch=st.integers(1, 24),
    size=st.none() | st.integers(-1, 6),
    data=st.data(),
)
def test_any_sizes_train_completely_or_are_refused_in_one_line(
    name: str, world: int, layers: int, batch: int, size: int | None, data: st.DataObject
) -> None:
    options: Sizes = {"cp": 1} if name in IN_CONTEXT else {}  # whole sequences, so that one rank sees a sample
    for option in ("bucket_size", "lookahead", "shard_size", "replicas", "num_chunks", "pp", "ep", "zero"):
        if option in mt.strategies()[name].__code__.co_varnames[: mt.strategies()[name].__code__.co_argcount]:
            options |= data.draw(st.sampled_from([{}, {option: data.draw(st.integers(-1, 5))}]))
    sizes: Sizes = {"world_size": world, "num_layers": layers, "global_batch_size": batch, "microbatch_size": size}
    try:
        run = mt.simulate(name, hardware=units(), **sizes, **options)
    except mt.StrategyError as error:
        refusal = str(error)
    else:
        require_complete(run)
        refusal = name
    assert name in refusal.replace("one_f_one_b", "1f1b")
    assert "\n" not in refusal


@pytest.mark.few(3)
@pytest.mark.parametrize("name", ALL)
def test_task_order_never_changes_the_log(name: str, shuffling: LoopFactories) -> None:
    logs = [mt.simulate(name, loop_factory=f, **example(name)).logs for f in (None, *map(shuffling, range(5)))]
    assert all(log == logs[0] for log in logs)


@settings(max_examples=2 * settings().max_examples)
@given(case=legal_sizes(), seed=st.integers(0, 2**32))
def test_task_order_never_changes_the_log_of_any_sizes(
    case: tuple[str, Sizes], seed: int, shuffling: LoopFactories
) -> None:
    name, sizes = case
    assert mt.simulate(name, **sizes).logs == mt.simulate(name, loop_factory=shuffling(seed), **sizes).logs


@pytest.mark.ci
def test_compare_takes_the_whole_zoo() -> None:
    comparison = mt.compare([name for name in ALL if name != "single"])
    assert [failure.error for failure in comparison.failed] == []


# ---- memory ----------------------------------------------------------------------------------------------------------

WITH_EXPERTS = replace(MIXTRAL_LIKE, num_layers=4)  # ten units: enough for eight stages


@pytest.mark.few(6)
@pytest.mark.parametrize("name", ALL)
def test_loading_holds_less_than_the_step_does(name: str) -> None:
    sizes = example(name)
    del sizes["num_layers"]
    run = mt.simulate(name, workload=WITH_EXPERTS, memory_by_kind=True, **sizes)
    for log, journal in zip(run.logs, run.memory_journals, strict=True):
        num_loads = sum(event.typ == "load_weights" for event in log)
        held = list(accumulate(change.elements for change in journal))
        most_of_loading = max(most for most, change in zip(held, journal, strict=True) if change.place <= num_loads)
        assert most_of_loading < max(held)


# ---- overlap ---------------------------------------------------------------------------------------------------------


def totals(run: mt.Run) -> Counter[str]:
    """Return the seconds that rank 0 spends on each type of event."""
    seconds: Counter[str] = Counter()
    for event in run.logs[0]:
        seconds[event.typ] += event.duration  # type: ignore[assignment]  # a counter of seconds
    return seconds


def events_of(run: mt.Run, typ: str) -> list[Event]:
    """Return rank 0's events of one type."""
    return [event for event in run.logs[0] if event.typ == typ]


@pytest.mark.few(4)
@pytest.mark.parametrize("lookahead", [1, 2, 4])
@pytest.mark.parametrize(
    ("world_size", "per_rank", "microbatch_size"), [(8, 8, None), (8, 64, 8), (8, 32, None), (2, 16, 16)]
)
def test_zero3_prefetch_hides_communication_under_enough_work(
    world_size: int, per_rank: int, microbatch_size: int | None, lookahead: int
) -> None:
    sizes: Sizes = {
        "world_size": world_size,
        "global_batch_size": world_size * per_rank,
        "microbatch_size": microbatch_size,
    }
    run = mt.simulate("zero3_prefetch", lookahead=lookahead, **sizes)
    seconds = totals(run)
    compute, communication = seconds["forward"] + seconds["backward"], seconds["all_gather"] + seconds["reduce_scatter"]
    ends = events_of(run, "all_gather")[0].duration + events_of(run, "reduce_scatter")[-1].duration
    bound = seconds["update"] + max(compute, communication) + ends
    assert run.step_time == pytest.approx(bound, rel=0.02)
    assert run.exposed_comm_fraction == pytest.approx(ends / run.step_time, rel=1e-6)
    assert run.exposed_comm_fraction < mt.simulate("zero3", **sizes).exposed_comm_fraction / 10


@pytest.mark.parametrize("lookahead", [1, 2, 4])
@pytest.mark.parametrize("microbatch_size", [None, 4, 8])
def test_zero3_prefetch_holds_the_layers_gathered_ahead_and_no_more(
    lookahead: int, microbatch_size: int | None
) -> None:
    sizes: Sizes = {"world_size": 8, "num_layers": 12, "global_batch_size": 256, "microbatch_size": microbatch_size}
    peak = mt.simulate("zero3_prefetch", lookahead=lookahead, **sizes).peak_memory
    assert peak == mt.simulate("zero3", **sizes).peak_memory + lookahead * WEIGHT


def test_zero3_prefetch_moves_what_zero3_moves() -> None:
    sizes: Sizes = {"world_size": 4, "num_layers": 6, "global_batch_size": 16, "microbatch_size": 2}
    runs = [mt.simulate(name, **sizes) for name in ("zero3", "zero3_prefetch")]
    for typ in ("all_gather", "reduce_scatter"):
        plain, ahead = [[(e.layer, e.size_bytes) for e in events_of(run, typ)] for run in runs]
        assert ahead == plain


def test_zero3_prefetch_is_bound_by_its_network_where_there_is_little_work() -> None:
    run = mt.simulate("zero3_prefetch", world_size=8, num_layers=32, global_batch_size=8)
    communication = [e for e in run.logs[0] if e.stream == "comm"]
    assert communication[-1].end - communication[0].time == pytest.approx(sum(e.duration for e in communication))


def test_ddp_overlap_pays_for_the_last_bucket_alone() -> None:
    for num_layers, bucket in product((1, 4, 7), (1, 2, 3)):
        sizes: Sizes = {"world_size": 4, "num_layers": num_layers, "global_batch_size": 8, "microbatch_size": 1}
        if bucket <= num_layers:
            run = mt.simulate("ddp_overlap", hardware=units(all_reduce=2), bucket_size=bucket, **sizes)
            assert run.step_time == 2 * 3 * num_layers + 2
            assert len(events_of(run, "all_reduce")) == ceil(num_layers / bucket)
        plain = mt.simulate("ddp", hardware=units(all_reduce=2), **sizes)
        assert plain.step_time == 2 * 3 * num_layers + 2 * num_layers


def test_ddp_overlap_hides_the_last_sum_under_the_updates_of_the_other_layers() -> None:
    for num_layers, all_reduce in product((1, 4, 8), (1, 2)):
        sizes: Sizes = {"world_size": 2, "num_layers": num_layers, "global_batch_size": 2}
        run = mt.simulate("ddp_overlap", hardware=units(all_reduce=all_reduce, update=0.5), **sizes)
        assert run.step_time == 3 * num_layers + max(all_reduce, 0.5 * (num_layers - 1)) + 0.5


def test_ddp_overlap_moves_what_ddp_moves_in_the_memory_of_ddp() -> None:
    for bucket in (1, 2, 5):
        runs = [mt.simulate("ddp", num_layers=5), mt.simulate("ddp_overlap", num_layers=5, bucket_size=bucket)]
        moved = [sum(e.size_bytes for e in run.events) for run in runs]
        assert moved[0] == moved[1]
        assert runs[1].peak_memory == runs[0].peak_memory
        assert runs[1].step_time < runs[0].step_time


# ---- meshes ----------------------------------------------------------------------------------------------------------


def test_hsdp_gathers_inside_its_shards_and_sums_across() -> None:
    run = mt.simulate("hsdp", world_size=8, num_layers=3, global_batch_size=16, microbatch_size=1, shard_size=4)
    for rank, log in enumerate(run.logs):
        node, place = divmod(rank, 4)
        groups = Counter((e.typ, e.group) for e in log if e.stream == "comm")
        inside, across = tuple(range(4 * node, 4 * node + 4)), (place, place + 4)
        # Two microbatches, two gathers and one reduction a layer each; then one sum a layer.
        assert groups == {("all_gather", inside): 12, ("reduce_scatter", inside): 6, ("all_reduce", across): 3}
        assert {e.size_bytes for e in log if e.group == inside} == {2 * WEIGHT}
        assert {e.size_bytes for e in log if e.group == across} == {2 * WEIGHT / 4}  # the shard alone


def test_hsdp_of_one_group_takes_the_time_of_zero3() -> None:
    sizes: Sizes = {"world_size": 4, "num_layers": 4, "global_batch_size": 16}
    hsdp, zero3 = mt.simulate("hsdp", shard_size=4, **sizes), mt.simulate("zero3", **sizes)
    assert hsdp.step_time == zero3.step_time
    assert hsdp.peak_memory == zero3.peak_memory


def test_hsdp_keeps_weights_inside_the_node_and_so_beats_zero3_across_nodes() -> None:
    sizes: Sizes = {"world_size": 16, "num_layers": 8, "global_batch_size": 64, "network": "hierarchical"}
    hsdp, zero3 = (mt.simulate(name, **sizes) for name in ("hsdp", "zero3"))
    assert hsdp.step_time < zero3.step_time
    assert hsdp.peak_memory > zero3.peak_memory


@pytest.mark.parametrize("microbatch_size", [1, 2, 4])
def test_what_zero1_replicas_of_a_pipeline_exchange_does_not_grow_with_microbatches(microbatch_size: int) -> None:
    sizes: Sizes = {"world_size": 4, "num_layers": 6, "global_batch_size": 16, "microbatch_size": microbatch_size}
    run = mt.simulate("pp_zero1", pp=2, **sizes)
    for rank, log in enumerate(run.logs):
        group = (rank // 2 * 2, rank // 2 * 2 + 1)
        counts = Counter((e.typ, e.group) for e in log if e.stream == "comm")
        assert counts == {("reduce_scatter", group): 3, ("all_gather", group): 3}
        assert {e.size_bytes for e in log if e.stream == "comm"} == {2 * WEIGHT}


@pytest.mark.parametrize("microbatch_size", [1, 2, 4])
def test_what_zero3_replicas_of_a_pipeline_exchange_grows_with_microbatches(microbatch_size: int) -> None:
    sizes: Sizes = {"world_size": 4, "num_layers": 6, "global_batch_size": 16, "microbatch_size": microbatch_size}
    run = mt.simulate("pp_zero3", pp=2, **sizes)
    num_microbatches = 8 // microbatch_size
    for log in run.logs:
        counts = Counter(e.typ for e in log if e.stream == "comm")
        assert counts == {"reduce_scatter": 3 * num_microbatches, "all_gather": 2 * 3 * num_microbatches}


def test_replicas_of_a_pipeline_add_one_sum_a_layer_to_1f1b() -> None:
    for pp, dp, m, layers in product((1, 2, 3), (1, 2), (3, 4, 6), (1, 2)):
        run = mt.simulate(
            "pp_dp",
            world_size=pp * dp,
            num_layers=pp * layers,
            global_batch_size=pp * dp * m,
            microbatch_size=pp,
            hardware=units(all_reduce=5),
            pp=pp,
        )
        assert run.step_time == layers * (3 * (m + pp - 1) + (5 if dp > 1 else 0))


def test_three_axes_exchange_on_each_what_it_is_for() -> None:
    run = mt.simulate("pp_hsdp", world_size=8, num_layers=4, global_batch_size=8, microbatch_size=2, pp=2, shard_size=2)
    log = run.logs[0]
    assert Counter((e.typ, e.group, e.peer) for e in log if e.stream != "compute") == {
        ("all_gather", (0, 1), None): 2 * 2,
        ("reduce_scatter", (0, 1), None): 2,
        ("all_reduce", (0, 2), None): 2,
        ("send", None, 4): 1,
        ("recv", None, 4): 1,
    }


def test_sharding_a_pipelines_replicas_more_holds_less() -> None:
    sizes: Sizes = {"world_size": 8, "num_layers": 32, "global_batch_size": 64}
    peaks = [mt.simulate(name, **sizes).peak_memory for name in ("pp_dp", "pp_zero1", "pp_zero3")]
    assert peaks == sorted(peaks, reverse=True)


# ---- pipelines -------------------------------------------------------------------------------------------------------


def passes(run: mt.Run) -> list[list[tuple[Any, ...]]]:
    """Return what each rank computes, and when."""
    return [[(e.typ, e.layer, e.samples, e.time) for e in log if e.stream == "compute"] for log in run.logs]


@pytest.mark.few(1)
@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_the_loops_run_the_schedules_of_their_names(p: int) -> None:
    for k, v in product((1, 2, 3), (1, 2, 3)):
        m = p * k
        sizes: Sizes = {"world_size": p, "num_layers": p * v * 2, "global_batch_size": m, "hardware": units()}
        cases: list[tuple[str, schedules.Schedule, Sizes]] = [
            ("gpipe", schedules.gpipe(p, m), {}),
            ("1f1b", schedules.one_f_one_b(p, m), {}),
            ("zb_h1", schedules.zb_h1(p, m), {}),
            ("interleaved_1f1b", schedules.interleaved_1f1b(p, m, v), {"num_chunks": v}),
        ]
        for name, schedule, options in cases:
            loop = mt.simulate(name, microbatch_size=1, **options, **sizes)
            assert passes(loop) == passes(mt.simulate(mt.from_schedule(schedule), **sizes))


@pytest.mark.parametrize(
    ("p", "m", "step_times"),
    [(4, 8, {"gpipe": 33, "1f1b": 33, "zb_h1": 27}), (8, 32, {"gpipe": 117, "1f1b": 117, "zb_h1": 103})],
)
def test_pipelines_take_the_published_time(p: int, m: int, step_times: dict[str, float]) -> None:
    sizes: Sizes = {"world_size": p, "num_layers": p, "global_batch_size": m, "microbatch_size": 1}
    assert {name: mt.simulate(name, hardware=units(), **sizes).step_time for name in step_times} == step_times


@pytest.mark.parametrize(("p", "m", "v", "step_time"), [(4, 8, 2, 28.5), (4, 8, 4, 26.25), (8, 32, 2, 106.5)])
def test_interleaving_divides_the_bubble(p: int, m: int, v: int, step_time: float) -> None:
    run = mt.simulate(
        "interleaved_1f1b",
        world_size=p,
        num_layers=p * v,
        global_batch_size=m,
        microbatch_size=1,
        hardware=units(forward=1 / v, backward=2 / v),
        num_chunks=v,
    )
    assert run.step_time == step_time


@pytest.mark.parametrize("name", SCHEDULED)
def test_shipped_schedules_take_replicas_of_any_zero_stage(name: str) -> None:
    for zero in range(4):
        run = mt.simulate(name, world_size=4, num_layers=8, global_batch_size=32, pp=2, zero=zero, hardware=units())
        require_complete(run)
        assert any(e.group == (0, 1) for e in run.logs[0])


@pytest.mark.parametrize("num_chunks", [1, 2])
def test_replicas_of_an_interleaved_pipeline_add_one_sum_a_layer(num_chunks: int) -> None:
    sizes: dict[str, Any] = {"num_layers": 8, "num_chunks": num_chunks, "hardware": units()}
    alone = mt.simulate("interleaved_1f1b", world_size=4, global_batch_size=8, **sizes)
    both = mt.simulate("interleaved_1f1b", world_size=8, global_batch_size=16, pp=4, **sizes)
    require_complete(both)
    assert both.step_time == alone.step_time
    for rank, log in enumerate(both.logs):
        kept = [(event.typ, event.layer) for event in log if event.typ != "all_reduce"]
        assert kept == [(event.typ, event.layer) for event in alone.logs[rank // 2]]
        assert len(log) - len(kept) == 2
    folded = mt.simulate("interleaved_1f1b", world_size=8, global_batch_size=16, pp=4, fold=True, **sizes)
    assert folded.summary() == both.summary()


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("ddp_overlap", {"bucket_size": 9}, r"bucket_size must be an integer of 1\.\.8 for ddp_overlap, got 9"),
        ("zero3_prefetch", {"lookahead": 0}, r"lookahead must be an integer of 1\.\.8 for zero3_prefetch, got 0"),
        ("hsdp", {"shard_size": 3}, r"world_size \(4\) must be a multiple of shard_size \(3\) for hsdp; use 3 or 6"),
        ("interleaved_1f1b", {"num_chunks": 3}, r"num_layers \(8\) .* num_chunks \(12\) for interleaved_1f1b; use 12"),
        ("interleaved_1f1b", {"microbatch_size": 8}, r"num_microbatches \(2\) must be a multiple of world_size \(4\)"),
        ("interleaved_1f1b", {"pp": 3}, r"world_size \(4\) must be a multiple of pp \(3\) for interleaved_1f1b; use 3"),
        ("interleaved_1f1b", {"pp": 2, "microbatch_size": 8}, r"num_microbatches \(1\) must be a multiple of pp \(2\)"),
        ("zb_h1", {"num_layers": 6}, r"num_layers \(6\) must be a multiple of world_size \(4\) for zb_h1; use 4 or 8"),
        ("pp_dp", {"pp": 3}, r"world_size \(4\) must be a multiple of pp \(3\) for pp_dp; use 3 or 6"),
        ("pp_zero1", {"num_layers": 7}, r"num_layers \(7\) must be a multiple of pp \(2\) for pp_zero1; use 6 or 8"),
        ("pp_zero3", {"global_batch_size": 6}, r"global_batch_size \(6\) must be a multiple of world_size \(4\)"),
        ("pp_hsdp", {"shard_size": 3}, r"world_size \(8\) must be a multiple of pp x shard_size \(6\) for pp_hsdp"),
        ("dualpipe_v", {"microbatch_size": 4}, r"num_microbatches \(4\) must be at least the number of stages \(8\)"),
        ("zbv", {"pp": 3}, r"world_size \(4\) must be a multiple of pp \(3\) for zbv; use 3 or 6"),
        ("zb_h2", {"zero": 5}, "zero must be a ZeRO stage, 0 to 3, for zb_h2, got 5"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(name: str, change: Sizes, message: str) -> None:
    with pytest.raises(mt.StrategyError, match=message):
        mt.simulate(name, **{**example(name), **change})
