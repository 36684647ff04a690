"""Steps that are put together from pieces are those of whole simulations, to the last float; rings to rounding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import minitrain as mt
from minitrain.operations import LAYER, NOTE, STREAM, STRIDE, TYP
from minitrain.search.tuning import layouts as layout_orders
from minitrain.search.tuning.layouts import BACKWARD, FORWARD, LAUNCHED, MESSAGES, WAIT, order_of
from minitrain.search.tuning.pieces import PassKey, Pieces
from minitrain.search.tuning.problem import TuningProblem, axes_of, candidates
from minitrain.search.tuning.search import Figures, Limit, price_pipelines
from tests.search.tuning.models import SMALL, layouts, problem

_ALL = {
    "overlap_messages": [False, True],
    "batch_messages": [False, True],
    "scatter_gather": [False, True],
    "num_chunks": [1, 2, 3],
    "microbatch_size": [1, 2],
}


def simulated(of: TuningProblem, options: Any) -> mt.Run:
    return mt.simulate("megatron", **{**of.parameters, **options, "fold": True, "check": False})


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("seed", "fidelity", "world_size"), [(1, "roofline", 16), (2, "kernels", 16), (3, "roofline", 32)]
)
def test_step_time_and_memory_are_those_of_a_separate_simulation_to_the_last_float(
    seed: int, fidelity: str, world_size: int
) -> None:
    of = problem(world_size, 48 if world_size == 16 else 32, fidelity=fidelity)
    chosen = list(layouts(of, seed, 6, **_ALL))
    found = price_pipelines(of.by("megatron"), [one.pipeline for one in chosen if one.pipeline is not None])
    for one, figures in zip(chosen, found, strict=True):
        assert one.pipeline is not None
        run = simulated(of, one.options)
        assert figures.step_time_s == run.step_time, one.options
        assert figures.peak_memory_bytes == run.peak_memory_bytes, one.options
        assert figures.needed_memory_bytes == run.needed_memory_bytes, one.options
        busy = float((run.breakdown.computing + run.breakdown.exposed).sum())
        assert figures.busy_s == pytest.approx(busy, rel=0.01 if one.pipeline.messages != "plain" else 1e-9)


def test_layouts_on_racks_that_are_not_full_are_put_together_from_pieces() -> None:
    of = TuningProblem(SMALL, "gb200_nvl72", 512, 512, {}).by("megatron")
    space: dict[str, list[Any]] = {"tp": [8], "pp": [4], "num_chunks": [2], "recompute": ["none"]}
    all_found = candidates("megatron", of.machine, axes_of("megatron", of.machine, space), 1)
    found = [one for one in all_found if one.illegal is None]
    assert all(one.pipeline is not None for one in found)
    one = found[-1]
    assert one.pipeline is not None
    assert price_pipelines(of, [one.pipeline])[0].step_time_s == simulated(of, one.options).step_time


@pytest.mark.few(1)
@pytest.mark.parametrize("of_ring", [{"tp": [2], "cp": [2]}, {"tp": [1], "cp": [4]}, {"tp": [8], "cp": [2]}], ids=str)
def test_rings_within_a_node_or_between_nodes_are_put_together_from_pieces(of_ring: dict[str, list[int]]) -> None:
    of = TuningProblem(replace(SMALL, seq_len=512), "h100_80g_nvl8", 64, 32, {}).by("megatron")
    space: dict[str, Any] = {
        **of_ring,
        "pp": [2],
        "num_chunks": [2],
        "recompute": ["none", "full"],
        "overlap_parts": [True],
    }
    all_found = candidates("megatron", of.machine, axes_of("megatron", of.machine, space), 1)
    for one in [one for one in all_found if one.illegal is None and one.options.get("overlap_replicas")]:
        assert one.pipeline is not None
        (figures,), run = price_pipelines(of, [one.pipeline]), simulated(of, one.options)
        assert figures.step_time_s == pytest.approx(run.step_time, rel=1e-12)
        assert figures.peak_memory_bytes == pytest.approx(run.peak_memory_bytes, rel=0.005)
        assert figures.needed_memory_bytes == pytest.approx(run.needed_memory_bytes, rel=0.005)


@pytest.mark.ci
@pytest.mark.parametrize("seq_len", [1024, 32768])
def test_longer_rings_take_further_steps_like_the_last(seq_len: int) -> None:
    of = TuningProblem(replace(SMALL, seq_len=seq_len), "h100_80g_nvl8", 16, 4, {}).by("megatron")
    space: dict[str, Any] = {"tp": [1], "cp": [8], "pp": [2], "num_chunks": [1], "recompute": ["full"]}
    all_found = candidates("megatron", of.machine, axes_of("megatron", of.machine, space), 1)
    for one in [one for one in all_found if one.illegal is None and one.options.get("overlap_replicas")]:
        assert one.pipeline is not None
        (figures,), run = price_pipelines(of, [one.pipeline]), simulated(of, one.options)
        assert figures.step_time_s == pytest.approx(run.step_time, rel=1e-12)
        assert figures.needed_memory_bytes == pytest.approx(run.needed_memory_bytes, rel=0.02)


def test_layers_are_put_into_stages_on_tpus_only_where_asked() -> None:
    of = TuningProblem(SMALL, "tpu_v5p", 16, 16, {}).by("megatron")

    def stages(space: dict[str, Any]) -> set[int]:
        return {
            one.options["pp"] for one in candidates("megatron", of.machine, axes_of("megatron", of.machine, space), 1)
        }

    assert stages({}) == {1}
    assert stages({"pp": [1, 2]}) == {1, 2}


def test_long_sequences_are_divided_among_ranks() -> None:
    of = TuningProblem(replace(SMALL, seq_len=32768), "h100_80g_nvl8", 16, 4, {}).by("megatron")
    found = list(candidates("megatron", of.machine, axes_of("megatron", of.machine, {}), 1))
    assert {one.options.get("cp", 1) for one in found} == {1, 2, 4, 8}
    assert {one.options["microbatch_size"] for one in found if "cp" in one.options} == {1}
    of = TuningProblem(SMALL, "h100_80g_nvl8", 16, 4, {}).by("megatron")
    assert not any(
        "cp" in one.options for one in candidates("megatron", of.machine, axes_of("megatron", of.machine, {}), 1)
    )


def test_pieces_do_not_depend_on_which_stages_were_executed_before() -> None:
    machine = TuningProblem("llama3-8b", "h100_80g_nvl8", 8, 8, {}).machine
    last, key = machine.num_layers, PassKey(2, 4, sequence_parallel=False, recompute="full")
    fresh, used = Pieces(machine.workload, machine.predictor), Pieces(machine.workload, machine.predictor)
    for length in (3, 1):
        used.stage(key, range(last - length, last))
    assert used.stage(key, range(last - 5, last)) == fresh.stage(key, range(last - 5, last))


@pytest.mark.ci
def test_a_layout_has_the_same_figures_alone_and_among_others() -> None:
    of = problem(16, 32)
    chosen = [one.pipeline for one in layouts(of, 4, 20) if one.pipeline is not None]
    together = price_pipelines(of, chosen)
    assert together == [price_pipelines(of, [one])[0] for one in chosen]


def test_a_model_whose_layers_differ_is_executed_whole() -> None:
    short = mt.Transformer(num_layers=3, hidden_size=64, num_heads=4, vocab_size=256, seq_len=32)
    of = TuningProblem(short, "a100_80g", 8, 16, {}).by("megatron")
    found = list(candidates("megatron", of.machine, axes_of("megatron", of.machine, {"tp": [2], "pp": [2]}), 1))
    layout = next(one for one in found if one.pipeline is not None and one.options["recompute"] == "full")
    assert layout.pipeline is not None
    (figures,) = price_pipelines(of, [layout.pipeline])
    assert figures.step_time_s == simulated(of, layout.options).step_time
    assert not of.machine.pieces.is_short


@pytest.mark.parametrize("pp", [1, 2])
def test_a_table_counts_once_where_one_stage_has_embedding_and_head(pp: int) -> None:
    tied = replace(SMALL, vocab_size=50_000, tied_embeddings=True)
    of = TuningProblem(tied, "h100_80g_nvl8", 8, 16, {}).by("megatron")
    space: dict[str, Any] = {"tp": [1], "pp": [pp], "num_chunks": [1], "microbatch_size": [1], "recompute": ["none"]}
    layout = next(
        one
        for one in candidates("megatron", of.machine, axes_of("megatron", of.machine, space), 1)
        if one.pipeline is not None and one.options["zero"] == 1 and not one.options["overlap_replicas"]
    )
    assert layout.pipeline is not None
    (figures,), run = price_pipelines(of, [layout.pipeline]), simulated(of, layout.options)
    assert figures.step_time_s == pytest.approx(run.step_time, rel=1e-12)
    assert figures.peak_memory_bytes == run.peak_memory_bytes


def test_layers_that_a_division_does_not_fit_are_illegal_with_the_rule() -> None:
    odd = mt.Transformer(num_layers=8, hidden_size=96, num_heads=6, vocab_size=512, seq_len=64)
    of = TuningProblem(odd, "h100_80g_nvl8", 8, 8, {})
    found = list(candidates("megatron", of.machine, axes_of("megatron", of.machine, {"tp": [4]}), 1))
    layout = next(one.pipeline for one in found if one.pipeline is not None)
    (figures,) = price_pipelines(of, [layout])
    assert figures.is_rule
    assert figures.error is not None
    assert figures.error.startswith("num_heads (6) must be a multiple of tp (4)")


def test_within_a_limit_the_best_layout_is_priced_and_some_others_are_not() -> None:
    of = problem(16, 32)
    chosen = [one.pipeline for one in layouts(of, 5, 60) if one.pipeline is not None]
    every = price_pipelines(of, chosen)
    within = price_pipelines(of, chosen, Limit(float("inf"), float("inf")))
    assert best(within) == best(every)
    assert any(one.is_pruned for one in within)


def best(found: list[Figures]) -> float:
    return min(one.step_time_s for one in found if one.step_time_s is not None)


def test_each_rank_passes_its_stages_once_for_every_microbatch() -> None:
    order = order_of(4, 2, 8, "hidden")
    for place, asked in enumerate(order.asked):
        passed = [number for code, number, _ in asked if code == FORWARD]
        assert sorted(passed) == sorted([place, place + 4] * 8)
    assert len(order.turns()) == sum(map(len, order.asked))


@pytest.mark.parametrize("messages", MESSAGES)
@pytest.mark.parametrize(("pp", "num_chunks", "num_microbatches"), [(1, 1, 9), (4, 1, 40), (3, 2, 33), (2, 5, 24)])
def test_an_order_of_few_microbatches_repeated_is_that_of_all(
    pp: int, num_chunks: int, num_microbatches: int, messages: str
) -> None:
    sizes = pp, num_chunks, num_microbatches
    assert layout_orders._shortened(*sizes) is not None
    assert order_of(*sizes, messages) == layout_orders._executed(*sizes, messages)


@pytest.mark.parametrize("messages", MESSAGES)
@pytest.mark.parametrize(("pp", "num_chunks", "num_microbatches"), [(1, 1, 3), (4, 1, 6), (3, 2, 6), (2, 3, 4)])
def test_ranks_ask_for_what_a_simulated_pipeline_does_in_its_order(
    pp: int, num_chunks: int, num_microbatches: int, messages: str
) -> None:
    order = order_of(pp, num_chunks, num_microbatches, messages)
    given: dict[str, Any] = {"pp": pp, "num_chunks": num_chunks, "microbatch_size": 1, **MESSAGES[messages]}
    given |= {"world_size": pp, "num_layers": pp * num_chunks, "global_batch_size": num_microbatches}
    run = mt.simulate("megatron", **given, fold=False)
    for place, (asked, model) in enumerate(zip(order.asked, run.models, strict=True)):
        rows: Any = model._log._rows
        notes, streams, types = rows[NOTE::STRIDE], rows[STREAM::STRIDE], rows[TYP::STRIDE]
        done = [at for at, typ in enumerate(types) if typ in ("forward", "backward", "send", "recv")]
        wanted = [one for one in asked if one[0] != WAIT]
        assert len(done) == len(wanted)
        for at, (code, what, microbatch) in zip(done, wanted, strict=True):
            if code <= BACKWARD:
                assert (types[at], rows[LAYER::STRIDE][at]) == (("forward", "backward")[code], what)
                continue
            kind = order.messages[what]
            peer, typ = (kind.dest, "send") if kind.source == place else (kind.source, "recv")
            assert (types[at], streams[at].peer) == (typ, peer)
            assert notes[at].tag == (kind.direction, kind.stage, microbatch)
            assert notes[at].overlaps == (code >= LAUNCHED)


def test_small_is_short() -> None:
    assert problem(8, 8).machine.pieces.is_short
    assert SMALL.num_layers == 8
