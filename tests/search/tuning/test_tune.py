"""A search tries every configuration once, keeps all it has found, and says what it cannot do."""

from __future__ import annotations

import json
import math
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.machine import load_config
from minitrain.search.sweeps.own_processes import WorkerLostError
from minitrain.search.tuning.findings import described
from minitrain.search.tuning.problem import TuningProblem, axes_of, candidates
from minitrain.search.tuning.search import options_of
from minitrain.search.tuning.tune import Tuning
from tests.search.tuning.models import SMALL

_SPACE = {
    "tp": [1, 2, 3],
    "pp": [1, 2],
    "num_chunks": [1],
    "microbatch_size": [1, 64],
    "recompute": ["none"],
    "overlap_parts": [False],
    "sequence_parallel": [False],
    "offload": [None],
    "replicas": [1],
}
_GIVEN: dict[str, Any] = {"world_size": 4, "global_batch_size": 8, "space": _SPACE, "jobs": 1}
_MEGATRON: dict[str, Any] = {
    **_GIVEN,
    "strategies": "megatron",
    "space": {name: values for name, values in _SPACE.items() if name not in ("offload", "replicas")},
}


@pytest.fixture(scope="module")
def found() -> Tuning:
    return mt.tune(SMALL, **_GIVEN, prune="none")


def test_every_configuration_has_a_verdict_and_a_reason_where_it_has_no_figures(found: Tuning) -> None:
    assert sum(found.counts.values()) == len(found.rows) == len(found)
    assert found.counts["illegal"] > 0
    assert all((row["step_time_s"] is None) == (row["reason"] is not None) for row in found.rows)
    assert "world_size (4) must be a multiple of tp x pp (3)" in {row["reason"] for row in found.rows}


def test_the_best_row_is_what_simulate_says_of_it(found: Tuning) -> None:
    run = found.best.simulate()
    assert (found.best.step_time_s, found.best.mfu) == (run.step_time, run.mfu)
    assert found.best.peak_memory_bytes == run.peak_memory_bytes
    assert found.best.energy_joules == pytest.approx(run.energy_joules)
    assert found.best.dollars == run.dollars
    assert found.best.step_time_s == min(row["step_time_s"] for row in found.rows if row["step_time_s"])


def test_a_layout_that_fills_the_hosts_memory_is_illegal_and_ends_no_search() -> None:
    hardware = load_config("h100_80g_nvl8")
    small = replace(hardware, mem2=replace(hardware.mem2, GiB=0.001))
    space = {"offload": [None, "activations"], "tp": [1], "recompute": ["none"], "microbatch_size": [1]}
    found = mt.tune(SMALL, small, **{**_GIVEN, "space": space}, strategies="fsdp", prune="none")
    reasons = {row["offload"]: str(row["reason"]) for row in found.rows}
    assert "host must hold all that is offloaded to it" in reasons["activations"]
    assert found.best.options["offload"] is None


def test_nothing_beats_a_row_of_the_front(found: Tuning) -> None:
    names = ("step_time_s", "peak_memory_bytes", "dollars", "energy_joules")
    points = [[row[name] for name in names] for row in found.rows if row["status"] == "fits"]
    for row in found.front:
        mine = [row[name] for name in names]
        assert not any(all(a <= b for a, b in zip(point, mine, strict=True)) and point != mine for point in points)
    assert found.front[0]["step_time_s"] == found.best.step_time_s


def test_head_room_moves_configurations_out_of_memory() -> None:
    found = mt.tune(SMALL, **_MEGATRON, head_room=0.966)
    assert set(found.counts) >= {"fits", "out of memory"}
    assert all("a device must hold" in row["reason"] for row in found.rows if row["status"] == "out of memory")
    with pytest.raises(mt.UsageError, match=r"no configuration fits: .*the least memory is"):
        _ = mt.tune(SMALL, **_MEGATRON, head_room=0.99999).best


def test_a_search_goes_on_from_its_file(tmp_path: Path, found: Tuning) -> None:
    file = tmp_path / "rows.jsonl"
    first = mt.tune(SMALL, **_GIVEN, prune="none", results=file)
    lines = file.read_text().splitlines()
    file.write_text("\n".join(lines[: len(lines) // 2]) + "\n")
    again = mt.tune(SMALL, **_GIVEN, prune="none", results=file)
    assert again.rows == first.rows == found.rows
    assert len(file.read_text().splitlines()) == len(lines)
    assert json.loads(lines[0])["status"] == "fits"


def test_rows_of_a_file_are_judged_by_the_search_that_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    mt.tune(SMALL, **_GIVEN, prune="best", results=file)
    strict: dict[str, Any] = {**_GIVEN, "prune": "none", "head_room": 0.9886}
    again = mt.tune(SMALL, **strict, results=file)
    assert again.rows == mt.tune(SMALL, **strict).rows
    assert again.counts["out of memory"] > 0
    num_lines = len(file.read_text().splitlines())
    assert mt.tune(SMALL, **strict, results=file).rows == again.rows
    assert len(file.read_text().splitlines()) == num_lines


def test_an_interrupted_search_keeps_what_it_has_found(tmp_path: Path) -> None:
    calls = []

    def interrupt(num_done: int, total: int, best: Any) -> None:
        calls.append((num_done, total, best))
        if len(calls) == 2:
            raise KeyboardInterrupt

    found = mt.tune(SMALL, **_GIVEN, prune="none", results=tmp_path / "rows.jsonl", progress=interrupt)
    assert found.was_interrupted
    assert 0 < len(found.rows) < calls[0][1]
    assert "were not looked at: a better one may be among them" in repr(found)
    assert found.best.step_time_s == calls[-1][2]["step_time_s"]


def test_after_its_time_a_search_begins_nothing() -> None:
    found = mt.tune(SMALL, **_GIVEN, budget_s=0)
    assert found.was_interrupted
    assert set(found.counts) == {"illegal"}


def test_any_executor_gives_the_same_rows(found: Tuning) -> None:
    given = {name: value for name, value in _GIVEN.items() if name != "jobs"}
    with ThreadPoolExecutor(1) as threads:
        assert mt.tune(SMALL, **given, prune="none", executor=threads).rows == found.rows


class Losing(Executor):
    """Workers that are lost with every layout of four parts of the model."""

    def submit(self, function: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if any(layout.pp * layout.passes.tp == 4 for layout in function.args[1]):
            future.set_exception(WorkerLostError("every worker was lost"))
        else:
            future.set_result(function(*arguments))
        return future


def test_layouts_that_end_their_workers_are_failed_rows_and_the_others_are_priced() -> None:
    given = {name: value for name, value in _MEGATRON.items() if name != "jobs"}
    rows = mt.tune(SMALL, **given, executor=Losing()).rows
    expected = mt.tune(SMALL, **_MEGATRON).rows
    lost = [row for row in rows if row["status"] == "failed"]
    assert {(row["tp"], row["pp"], row["reason"]) for row in lost} == {(2, 2, "WorkerLostError: every worker was lost")}
    assert [row for row in rows if row not in lost] == [
        row for row in expected if row["status"] == "illegal" or row["tp"] * row["pp"] != 4
    ]


async def own(model: mt.Model, microbatch_size: int = 1, fails: bool = False) -> mt.StrategyModel:
    """Train like ddp, or fail."""
    if fails:
        raise ZeroDivisionError("it was asked to")
    return await mt.strategies()["ddp"](model, microbatch_size)


def test_a_strategy_of_ones_own_is_searched_with_its_options() -> None:
    space: dict[str, Any] = {"fails": [False, True], "microbatch_size": [1, 2]}
    found = mt.tune(None, world_size=4, global_batch_size=8, strategies=[own], space=space, jobs=1, num_layers=4)
    assert found.counts == {"fits": 2, "failed": 2}
    assert {row["reason"] for row in found.rows if row["status"] == "failed"} == {"ZeroDivisionError: it was asked to"}
    assert found.best.options["fails"] is False


def test_another_option_is_an_axis_and_where_it_changes_nothing_steps_are_still_put_together() -> None:
    space: dict[str, Any] = {"optimizer_offload_fraction": [0, 0.5], "tp": [1, 2], "pp": [1, 2]}
    machine = TuningProblem("tiny", "a100_80g", 4, 8, {}).machine
    found = list(candidates("megatron", machine, axes_of("megatron", machine, space), 1))
    legal = [each for each in found if each.illegal is None and "schedule" not in each.options]
    assert {each.options["optimizer_offload_fraction"] for each in legal} == {0, 0.5}
    for each in legal:
        assert (each.pipeline is not None) is (each.options["optimizer_offload_fraction"] == 0)


def test_several_machines_are_compared_by_money() -> None:
    found = mt.tune(
        SMALL, ["h100_80g_nvl8", "a100_80g"], **{**_MEGATRON, "world_size": [2, 4]}, objective="tokens_per_dollar"
    )
    assert {(row["hardware"], row["world_size"]) for row in found.ranked} == {
        (hardware, size) for hardware in ("h100_80g_nvl8", "a100_80g") for size in (2, 4)
    }
    rates = [row["tokens_per_dollar"] for row in found.ranked]
    assert rates == sorted(rates, reverse=True)


def test_optuna_finds_the_best_of_a_small_space(found: Tuning) -> None:
    pytest.importorskip("optuna", reason="optuna is not installed")
    sampled = mt.tune(SMALL, **_GIVEN, prune="none", sampler="optuna", num_samples=30)
    assert len(sampled.rows) <= len(found.rows)
    assert sampled.best.step_time_s <= found.ranked[3]["step_time_s"]


def test_experts_and_plain_layers_have_strategies_of_their_own() -> None:
    experts = mt.tune("tiny-moe", world_size=4, global_batch_size=8, space={"microbatch_size": [1]}, budget_s=0)
    plain = mt.tune(None, world_size=2, global_batch_size=4, num_layers=2, jobs=1)
    assert {row["strategy"] for row in plain.rows} == {"ddp", "zero1", "zero2", "zero3", "pp_zero1", "1f1b"}
    assert plain.best.tokens_per_second is None
    assert experts.was_interrupted


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"objective": "speed"}, "objective must be one of step_time"),
        ({"budget_s": math.inf}, "budget_s must be a number of seconds from 0 on, got inf"),
        ({"head_room": 1}, "head_room must be a share of at least 0 and below 1"),
        ({"min_microbatches": 0}, "min_microbatches must be"),
        ({"prune": "all"}, "prune must be one of auto, none, front, best"),
        ({"sampler": "random"}, "sampler must be one of exhaustive, optuna"),
        ({"space": {"tpp": [1]}}, "tpp is no option of any strategy that is searched"),
        ({"space": {"tp": 8}}, "space must have a list of at least one value for tp"),
        ({"space": {"tp": ["a"]}}, "space must have whole numbers of at least 1 for tp, got 'a'"),
        ({"space": {"microbatch_size": [0]}}, "whole numbers of at least 1 for microbatch_size, got 0"),
        ({"strategies": []}, "at least one strategy"),
        ({"tp": 8}, "tp is no parameter of `simulate`"),
        ({"fold": True}, "fold is not for a search"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_priced(given: dict[str, Any], message: str) -> None:
    with pytest.raises(mt.UsageError, match=message):
        mt.tune(SMALL, **{**_GIVEN, **given})


def test_options_are_described_by_what_is_on(found: Tuning) -> None:
    row = next(row for row in found.ranked if row["strategy"] == "megatron" and row["pp"] == 2)
    assert described(options_of(row)).startswith(f"tp {row['tp']}, pp 2, chunks 1, microbatch 1")


def test_a_result_shows_itself(found: Tuning) -> None:
    assert '<table class="rows">' in found._repr_html_()
    assert repr(found).startswith("<Tuning: ")
    with pytest.raises(AttributeError, match="a choice has no speed"):
        _ = found.best.speed


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, found: Tuning) -> str:
    return found.write_html(tmp_path_factory.mktemp("page") / "tune.html", pictures=2).read_text()


def test_the_page_holds_every_priced_configuration_and_draws_the_best(pages: str, found: Tuning) -> None:
    text = pages.split('<script id="data" type="application/json">')[1].partition("</script>")[0]
    data = json.loads(text)
    assert len(data["fits"]) == sum(row["step_time_s"] is not None for row in found.rows)
    assert len(data["drawn"]) == 2
    assert sum(data["drawn"]["0"]["parts"].values()) == pytest.approx(found.best.step_time_s, rel=1e-4)
    drawn = data["drawn"]["0"]["picture"]["data"]
    assert drawn["step_s"] - drawn["begin_s"] == pytest.approx(found.best.step_time_s, rel=1e-4)
    assert "must be a multiple of tp x pp" in pages


def test_workers_draw_the_same_page_and_how_far_they_are_is_said(tmp_path: Path) -> None:
    news = []
    given = {**_GIVEN, "space": {"pp": [1, 2], "tp": [1], "microbatch_size": [1]}, "strategies": "megatron"}
    with ThreadPoolExecutor(2) as executor:
        found = mt.tune(SMALL, **given, executor=executor)
        page = found.write_html(tmp_path / "a.html", 3, lambda *drawn: news.append(drawn)).read_text()
    assert news == [(1, 3), (2, 3), (3, 3)]
    assert page == mt.tune(SMALL, **given).write_html(tmp_path / "b.html", 3).read_text()


def test_the_page_says_of_a_strategy_without_layouts_on_it_what_became_of_them(tmp_path: Path) -> None:
    space = {"pp": [5], "tp": [1], "microbatch_size": [1]}
    found = mt.tune(SMALL, **{**_GIVEN, "space": space}, strategies=["fsdp", "megatron"])
    assert {row["strategy"] for row in found.ranked} == {"fsdp"}
    page = found.write_html(tmp_path / "tune.html", pictures=0).read_text()
    assert f"<p>megatron, {found.counts['illegal']} configurations: {found.counts['illegal']} illegal.</p>" in page


def test_several_precisions_are_searched_and_the_words_are_of_the_best_one() -> None:
    space: dict[str, Any] = {"tp": [1], "pp": [1, 2], "num_chunks": [1], "microbatch_size": [1], "recompute": ["none"]}
    found = mt.tune("gpt2", world_size=4, global_batch_size=8, strategies="megatron", space=space, jobs=1,
                    precision=["bf16", "fp8"])  # fmt: skip
    assert {row["precision"] for row in found.rows} == {"bf16", "fp8"}
    assert found.best.precision == "fp8"
    assert found.best.simulate().step_time == found.best.step_time_s
    assert "--fp8-format hybrid" in found.best.words("megatron-lm")
    assert "the best in fp8 (MFU by the peak of float16)" in found.priced_by()


def test_a_step_of_fsdp_has_contention_as_its_simulation_has() -> None:
    found = mt.tune("tiny", world_size=8, global_batch_size=16, strategies="fsdp", platform="compiled-fsdp", jobs=1)
    options = found.best.candidate.options
    off = mt.tune("tiny", world_size=8, global_batch_size=16, strategies="fsdp", platform="compiled-fsdp", jobs=1,
                  contention=False, space={name: [value] for name, value in options.items()})  # fmt: skip
    assert found.best.simulate().step_time == found.best.step_time_s > off.best.step_time_s
    assert found.priced_by()[0] == "fsdp is priced by kernels, platform compiled-fsdp, with contention"
    assert off.priced_by()[0] == "fsdp is priced by kernels, platform compiled-fsdp, without contention"


def test_tokens_that_experts_drop_are_not_trained_on() -> None:
    sizes_of_model: dict[str, Any] = {
        "num_layers": 2,
        "hidden_size": 64,
        "num_heads": 4,
        "vocab_size": 128,
        "seq_len": 32,
    }
    model = mt.Transformer(**sizes_of_model, ffn_hidden_size=128, num_experts=4, experts_per_token=2)
    sizes: dict[str, Any] = {"world_size": 4, "global_batch_size": 8, "hardware": "h100_80g_nvl8"}
    space: dict[str, Any] = {"ep": [4], "microbatch_size": [2], "capacity_factor": [0.5]}
    (row,) = mt.tune(model, **sizes, strategies=["moe"], space=space, jobs=1).rows
    run = mt.simulate("moe", workload=model, **sizes, ep=4, microbatch_size=2, capacity_factor=0.5)
    assert run.dropped_token_fraction == 0.5
    assert (row["tokens_per_second"], row["mfu"]) == (run.tokens_per_second, run.mfu)
