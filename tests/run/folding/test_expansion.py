"""What a folded run says of every rank: made when somebody looks, and the same as in the run of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.run.folding.expansion import MOST_DRAWN, FoldedRun
from tests.folded_runs import require_identical
from tests.small_transformers import LLAMA_LIKE, MIXTRAL_LIKE

SIZES: dict[str, Any] = {"world_size": 8, "num_layers": 4, "global_batch_size": 16}


def pair(strategy: str, **parameters: Any) -> tuple[FoldedRun, mt.Run]:
    """Return a folded run and the full one."""
    folded = mt.simulate(strategy, **{**SIZES, **parameters}, fold=True)
    assert isinstance(folded, FoldedRun)
    return folded, mt.simulate(strategy, **{**SIZES, **parameters}, fold=False)


@pytest.fixture(scope="module")
def both() -> tuple[FoldedRun, mt.Run]:
    """Return stages of replicas whose stores are sharded: peers, groups, samples and shards differ between ranks."""
    return pair("pp_zero1", pp=2)


def made(run: FoldedRun) -> tuple[int, int]:
    """Return how many logs and models were made so far."""
    return len(run.logs._made), len(run.models._made)  # type: ignore[attr-defined]


def test_figures_and_the_page_of_classes_make_no_log(tmp_path: Path) -> None:
    run = pair("pp_zero1", pp=2)[0]
    run.summary(), run.by_type, run.peak_watts, run.device_memory, run.breakdown, run.num_events, run._repr_html_()
    run.write_html(tmp_path / "page.html", "directory")
    assert made(run) == (0, 0)


def test_only_the_ranks_that_are_looked_at_are_made() -> None:
    run = mt.simulate("zero3", fold=True, world_size=2**12, num_layers=1, global_batch_size=2**12)
    assert isinstance(run, FoldedRun)
    assert run.models[1_234].log is run.logs[1_234]
    assert run.logs[-1][0].rank == 2**12 - 1
    assert run.models[1_234].final_weights[0].shards == {1_234}
    assert [log[0].rank for log in run.logs[3:5]] == [3, 4]
    assert made(run) == (4, 1)


def test_a_run_equals_the_full_one_field_by_field(both: tuple[FoldedRun, mt.Run]) -> None:
    folded, full = both
    assert folded == full
    assert full == folded
    assert folded != mt.simulate("ddp", **SIZES, fold=False)
    assert folded.events == full.events
    assert repr(folded) == repr(full)
    with pytest.raises(TypeError, match="unhashable"):
        hash(folded)


def test_logs_are_a_sequence(both: tuple[FoldedRun, mt.Run]) -> None:
    logs, full = both[0].logs, list(both[1].logs)
    assert logs == full
    assert [*full[:1], *logs, *logs] == full[:1] + logs + logs[:]
    assert logs[::3] == full[::3]
    assert repr(logs) == repr(full)
    assert logs != full[1:]
    assert logs.__eq__(3) is NotImplemented
    with pytest.raises(IndexError, match="out of range"):
        logs[8]


EXPORTS: dict[str, Callable[[mt.Run, Path], object]] = {
    "saved": lambda run, path: run.save(path),
    "Chrome": lambda run, path: run.write_chrome_trace(path),
}


@pytest.mark.parametrize("export", EXPORTS.values(), ids=EXPORTS)
@pytest.mark.parametrize("memory_by_kind", [False, True])
def test_files_are_the_same_to_the_byte(
    export: Callable[[mt.Run, Path], object], memory_by_kind: bool, tmp_path: Path
) -> None:
    waits = {"overlap_messages": not memory_by_kind}  # journals of what is in flight need every rank
    runs = pair("pp_zero1", pp=2, memory_by_kind=memory_by_kind, **waits)
    for name, run in zip(("folded", "full"), runs, strict=True):
        export(run, tmp_path / name)
    assert (tmp_path / "folded").read_bytes() == (tmp_path / "full").read_bytes()


def test_the_explanation_is_that_of_every_rank(both: tuple[FoldedRun, mt.Run]) -> None:
    mine, theirs = (run.explain() for run in both)
    assert mine.data() == theirs.data()


def test_a_large_run_that_was_to_be_folded_is_explained_by_its_classes() -> None:
    run = mt.simulate("pp_dp", fold=True, world_size=2048, num_layers=8, global_batch_size=4096, pp=2)
    assert run.num_events > MOST_DRAWN
    explained = run.explain()
    assert explained.breakdown.computing.shape == (2,)
    assert explained.breakdown.bubble_fraction == pytest.approx(run.bubble_fraction)
    assert explained.timeline.rank_name(1) == "1024 (x 1024)"


def test_what_is_read_from_every_log_works_on_a_folded_run(both: tuple[FoldedRun, mt.Run]) -> None:
    mine, theirs = (mt.monte_carlo(run, mt.Noise(jitter=0.1), samples=3, seed=1).summary() for run in both)
    assert mine == theirs
    assert mt.sensitivity(both[0]).summary() == mt.sensitivity(both[1]).summary()
    folded, full = (mt.replay([run]).runs[0].step_time for run in both)
    assert folded == full


def test_a_run_with_other_logs_reads_its_figures_from_them(both: tuple[FoldedRun, mt.Run]) -> None:
    other = mt.simulate("ddp", **SIZES, fold=False)
    changed = replace(both[0], logs=other.logs, models=other.models)
    assert changed.num_events == other.num_events
    assert changed.step_time == other.step_time
    assert changed.bubble_fraction == other.bubble_fraction


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("strategy", "more"),
    [
        ("moe", {"workload": MIXTRAL_LIKE, "ep": 2, "zero": 1}),
        ("deepseek_like", {"workload": MIXTRAL_LIKE, "pp": 1, "ep": 4}),
        ("megatron", {"workload": LLAMA_LIKE, "tp": 2, "pp": 2, "sequence_parallel": True, "microbatch_size": 1}),
        ("ring_attention", {"workload": LLAMA_LIKE, "cp": 2, "microbatch_size": 1}),
        ("fsdp", {"workload": LLAMA_LIKE, "replicas": 2, "offload": "activations"}),
        ("hsdp", {"world_size": 48, "shard_size": 6, "global_batch_size": 96}),  # classes meet in collectives
        ("zero3_prefetch", {"memory_by_kind": True}),  # whose journals are those of the full run
        ("pp_dp", {"memory_by_kind": True, "pp": 2, "overlap_messages": False}),  # whose journals are those of classes
    ],
    ids=str,
)
def test_parts_experts_sequences_and_host_memory_are_each_rank_s_own(strategy: str, more: dict[str, Any]) -> None:
    sizes = {name: value for name, value in SIZES.items() if name != "num_layers" or "workload" not in more}
    require_identical(strategy, **{**sizes, **more})


def test_what_a_strategy_keeps_on_its_model_is_each_rank_s_own() -> None:
    async def noting(model: Any) -> Any:
        model.mine = model.rank * 2
        model.of_all = "same"
        return model

    run = mt.simulate(noting, fold=True, check=False, **SIZES)
    assert [model.mine for model in run.models] == list(range(0, 16, 2))  # type: ignore[attr-defined]
    assert run.models[3].of_all == "same"  # type: ignore[attr-defined]
