"""Folding that nobody has asked for: it changes how long a run takes, and nothing that anybody sees."""

from __future__ import annotations

import functools
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import minitrain as mt
from minitrain.cli import app
from minitrain.engine.model import Model
from minitrain.engine.observers import Observer
from minitrain.machine.price import RankPredictors
from minitrain.run.folding.expansion import FoldedRun
from minitrain.run.rank_tasks import RunProgress
from minitrain.search.sweeps.batches import run_batch
from tests.folded_runs import require_every_rank
from tests.small_transformers import LLAMA_LIKE

SIZES: dict[str, Any] = {"world_size": 8, "num_layers": 16, "global_batch_size": 16}
SHIPPED = [name for name in mt.strategies() if name != "single"]
PIPELINES = {
    "chimera",
    *("1f1b", "deepseek_like", "dualpipe_v", "gpipe", "interleaved_1f1b", "interleaved_zero_bubble", "looped_bfs"),
    "pipedream_2bw",
    *("zb_h1", "zb_h2", "zbv"),
}
CONTEXTS = {"gathered_context", "packed_context_parallel", "ring_attention"}


def outcome(strategy: Any, **parameters: Any) -> tuple[mt.Run | None, Any]:
    """Return a run and its summary, or nothing and the error with its notes."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            run = mt.simulate(strategy, **parameters)
        except mt.MinitrainError as error:
            return None, (type(error), str(error), getattr(error, "__notes__", ()))
    return run, run.summary()


def require_same(strategy: Any, **parameters: Any) -> mt.Run | None:
    """Require that a run is the same as where folding is forbidden, and return it; None where both fail alike."""
    run, told = outcome(strategy, **parameters)
    full, expected = outcome(strategy, **parameters, fold=False)
    assert told == expected
    assert type(full) is not FoldedRun
    if run is not None and full is not None:
        require_every_rank(run, full)
        assert run == full
    return run


@pytest.mark.few(6)
@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_strategies_fold_unasked_where_ranks_are_alike(name: str) -> None:
    run = require_same(name, **SIZES)
    assert run is not None
    assert run.is_folded == (name not in PIPELINES | CONTEXTS)
    assert not run.draws_classes


@settings(max_examples=15)
@given(
    name=st.sampled_from(SHIPPED),
    world_size=st.sampled_from([8, 12, 16]),
    layers=st.integers(1, 2),
    share=st.integers(1, 2),
    more=st.sampled_from([{}, {"microbatch_size": 1}, {"memory_by_kind": True}, {"network": "flat"}, {"check": False}]),
)
def test_sizes_do_not_matter(name: str, world_size: int, layers: int, share: int, more: dict[str, Any]) -> None:
    require_same(name, world_size=world_size, num_layers=layers * world_size, global_batch_size=share * 32, **more)


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("strategy", "more"),
    [
        ("megatron", {"tp": 2}),
        ("megatron", {"tp": 2, "pp": 2, "world_size": 16}),
        ("fsdp", {"workload": LLAMA_LIKE, "offload": "activations"}),
        ("zbv", {"pp": 2, "zero": 2}),
        ("pp_hsdp", {"pp": 2, "shard_size": 2, "world_size": 16}),
        ("ring_attention", {"cp": 2}),
        ("hsdp", {"shard_size": 6, "world_size": 48, "global_batch_size": 96}),
        ("ddp_overlap", {"contention": True}),
        ("megatron", {"pp": 2, "tp": 2, "schedule": "zb_h2", "world_size": 16, "contention": True}),
    ],
    ids=str,
)
def test_meshes_fold_unasked(strategy: str, more: dict[str, Any]) -> None:
    sizes = {name: value for name, value in SIZES.items() if name != "num_layers" or "workload" not in more}
    run = require_same(strategy, **{**sizes, **more})
    assert run is not None
    assert run.is_folded


def test_the_function_itself_folds_and_others_do_not() -> None:
    async def own(model: Model) -> Model:
        found: Model = await shipped(model)
        return found

    shipped: Any = mt.strategies()["ddp"]
    assert mt.simulate(shipped, **SIZES).is_folded
    for other in (own, functools.partial(shipped, microbatch_size=None)):
        assert not mt.simulate(other, **SIZES).is_folded
        assert mt.simulate(other, **SIZES, fold=True).is_folded


def test_few_ranks_are_simulated_one_by_one() -> None:
    assert not mt.simulate("ddp", **{**SIZES, "world_size": 4}).is_folded
    assert not mt.simulate("pp_dp", **SIZES, pp=4).is_folded  # two ranks a class
    assert mt.simulate("pp_dp", **SIZES, pp=2).is_folded


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "more",
    [
        {"strict": True},
        {"log": "summary"},
        {"numerics": "numpy"},
        {"slowdown": {3: 2.0}},
        {"contention": "exact"},
        {"observers": [Observer()]},
        {"hardware": RankPredictors([mt.FixedPredictor(forward=1 + rank) for rank in range(8)])},
    ],
    ids=lambda more: next(iter(more)),
)
def test_what_tells_ranks_apart_is_simulated_rank_by_rank(more: dict[str, Any]) -> None:
    run = mt.simulate("ddp", **SIZES, **more)
    assert not run.is_folded
    assert run.summary() == mt.simulate("ddp", **SIZES, **more, fold=False).summary()


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("strategy", "more"),
    [
        ("gpipe", {"num_layers": 30}),
        ("ddp", {"global_batch_size": 12}),
        ("zero1", {"global_batch_size": 4096, "num_layers": 32, "strict_memory": True}),
        ("pp_dp", {"pp": 3}),
        ("1f1b", {"p2p_buffer": 0}),
        ("pp_zero1", {"pp": 2, "p2p_buffer": 0}),
        ("moe", {"ep": 4, "imbalance": 2.0, "workload": "mixtral-8x7b", "seq_len": 64}),
    ],
    ids=str,
)
def test_what_goes_wrong_is_told_in_the_same_words(strategy: str, more: dict[str, Any]) -> None:
    sizes = {name: value for name, value in SIZES.items() if name != "num_layers" or "workload" not in more}
    parameters = {**sizes, **more}
    assert outcome(strategy, **parameters)[1] == outcome(strategy, **parameters, fold=False)[1]


def test_running_out_of_memory_is_told_of_the_same_rank_and_moment() -> None:
    run, full = (
        mt.simulate("pp_dp", pp=2, **{**SIZES, "global_batch_size": 2**14}, fold=fold) for fold in ("auto", False)
    )
    assert run.is_folded
    assert run.oom == full.oom
    assert run.oom is not None


@pytest.mark.parametrize("fold", [None, 1, 0, "yes", "Auto", [], object])
def test_any_other_way_to_fold_is_refused(fold: Any) -> None:
    with pytest.raises(mt.UsageError, match='fold must be True, False or "auto", got '):
        mt.simulate("ddp", **SIZES, fold=fold)


def test_an_attempt_in_vain_leaves_nothing_to_see(capfd: pytest.CaptureFixture[str]) -> None:
    watched: list[RunProgress] = []
    run = mt.simulate("1f1b", **SIZES, watch=watched.append)
    assert not run.is_folded
    assert len(watched) == 1
    assert watched[0].num_ranks == 8
    assert capfd.readouterr() == ("", "")


def test_whoever_watches_a_run_is_told_of_every_rank() -> None:
    watched: list[RunProgress] = []
    run = mt.simulate("pp_zero1", **SIZES, pp=2, watch=watched.append)
    assert run.is_folded
    assert [str(progress) for progress in watched] == [f"8 of 8 ranks done, {run.num_events:,} events so far"]


def test_a_search_ends_as_soon_as_too_few_ranks_are_left(attempts: list[int]) -> None:
    mt.simulate("1f1b", **SIZES)
    assert attempts == [1]


def test_pictures_of_many_events_have_a_row_for_each_class() -> None:
    run = mt.simulate("pp_dp", world_size=2048, num_layers=8, global_batch_size=4096, pp=2)
    assert run.drawn.num_ranks == 2
    assert run.drawn.rank_name(1) == "1024 (x 1024)"


def test_rows_of_a_sweep_are_the_same() -> None:
    batch = [(name, {**SIZES, "world_size": world_size}) for name in ("ddp", "1f1b", "pp_dp") for world_size in (8, 16)]
    rows, full = (
        run_batch([("", (name, {**sizes, "fold": fold})) for name, sizes in batch])[1] for fold in ("auto", False)
    )
    assert [{**row, "fold": False} for _, row in rows] == [row for _, row in full]


def test_the_command_line_says_and_writes_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = []
    for more in ([], ["--no-fold"]):
        result = CliRunner().invoke(app, ["run", "pp_dp", "--layers", "4", "--batch", "16", *more])
        files = {path.name: path.read_bytes() for path in Path("traces/pp_dp").iterdir()}
        told.append((result.stdout, files))
    assert told[0] == told[1]
    assert set(told[0][1]) == {"index.html", "trace.json", "run.jsonl"}
    command = ["compare", "ddp", "1f1b", "--json", "--no-trace", "--layers", "8"]
    shown = [CliRunner().invoke(app, [*command, *more]).stdout for more in ([], ["--no-fold"], ["--fold"])]
    assert json.loads(shown[0])
    assert shown[0] == shown[1] == shown[2]
