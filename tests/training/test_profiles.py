"""`mt.read_profiles`: real traces of torch's profiler, on gloo, become measured runs; what is not matched is told."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import minitrain as mt
from minitrain.cli import app
from minitrain.errors import UsageError
from minitrain.training.profiles import Match

FOLDER = Path(__file__).parent / "profiles"
"""Written by `write_profiles.py`: 2 ranks on gloo, 4 layers, DDP with a bucket a layer, and FSDP2."""


def predicted(strategy: str, **other: Any) -> mt.Run:
    return mt.simulate(strategy, **{"world_size": 2, "num_layers": 4, "global_batch_size": 64, **other})


def traces(kind: str) -> list[Path]:
    return [FOLDER / f"{kind}-rank{rank}.json.gz" for rank in (0, 1)]


def content(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()))


def changed(path: Path, folder: Path, change: Any) -> Path:
    """Write a trace with some of it changed."""
    data = content(path)
    change(data)
    target = folder / path.name.removesuffix(".gz")
    target.write_text(json.dumps(data))
    return target


@pytest.mark.few(1)
@pytest.mark.parametrize(("strategy", "kind"), [("ddp_overlap", "ddp"), ("zero3", "fsdp"), ("zero3_prefetch", "fsdp")])
def test_all_passes_updates_and_collectives_of_real_traces_are_matched(strategy: str, kind: str) -> None:
    run = predicted(strategy)
    found = mt.read_profiles(run, traces(kind))
    matches = {each.typ: each for each in found.matches}
    assert matches.pop("loss").matched == 0
    counts = {typ: sum(event.typ == typ for log in run.logs for event in log) for typ in matches}
    assert matches == {typ: Match(typ, count, count, count) for typ, count in counts.items()}
    assert {"forward", "backward", "update"} < set(matches)


@pytest.mark.parametrize(("strategy", "kind"), [("ddp_overlap", "ddp"), ("zero3_prefetch", "fsdp")])
def test_the_gap_between_prediction_and_profile_is_attributed_whole(strategy: str, kind: str) -> None:
    run = predicted(strategy)
    gap = mt.diff(run, mt.read_profiles(run, traces(kind)).run)
    assert gap.is_same_program
    assert sum(part.seconds for part in gap.attribution) == pytest.approx(gap.seconds, rel=1e-9)


def test_the_durations_are_those_of_the_trace() -> None:
    path = traces("ddp")[0]
    events = content(path)["traceEvents"]
    marks = sorted((e for e in events if e.get("name", "").startswith("ProfilerStep#")), key=lambda e: e["ts"])
    step = marks[1]
    works = [e for e in events if e.get("name") == "gloo:all_reduce" and 0 <= e["ts"] - step["ts"] <= step["dur"]]
    run = mt.read_profiles(predicted("ddp_overlap"), traces("ddp"), step=1).run
    reduced = [event for event in run.logs[0] if event.typ == "all_reduce"]
    assert len(reduced) == len(works) == 4
    ends = sorted(e["ts"] + e["dur"] for e in works)
    assert [event.end - reduced[0].end for event in reduced] == pytest.approx(
        [(e - ends[0]) * 1e-6 for e in ends], abs=1e-8
    )
    within = [e for e in events if e.get("name") == "layer 2" and 0 <= e["ts"] - step["ts"] <= step["dur"]]
    forward = next(event for event in run.logs[0] if (event.typ, event.layer) == ("forward", 2))
    assert 0.5 * within[0]["dur"] * 1e-6 < forward.duration <= within[0]["dur"] * 1e-6


def test_all_members_begin_a_collective_together_and_leave_within_the_error_of_clocks() -> None:
    run = mt.read_profiles(predicted("zero3"), traces("fsdp")).run
    for events in zip(*run.logs, strict=True):
        if events[0].typ in ("all_gather", "reduce_scatter"):
            assert events[0].time == events[1].time
            assert [event.waited_for for event in events].count(None) >= 1


DELAY_US = 20_000


def stretched(name: str, number: int) -> Any:
    """Return a change: in the middle of the n-th operation of a name in the second step, time stands still for a while.

    What goes on at that moment takes so much longer, and what comes later comes so much later.
    """

    def change(data: Any) -> None:
        events = [event for event in data["traceEvents"] if "dur" in event]
        begin = sorted(event["ts"] for event in events if event["name"].startswith("ProfilerStep#"))[1]
        found = sorted((e for e in events if e["name"] == name and e["ts"] >= begin), key=lambda event: event["ts"])
        moment = found[number]["ts"] + found[number]["dur"] / 2
        for event in data["traceEvents"]:
            if event["ts"] > moment:
                event["ts"] += DELAY_US
            elif event["ts"] + event.get("dur", 0) > moment:
                event["dur"] += DELAY_US

    return change


@pytest.mark.few(1)
@pytest.mark.parametrize("layer", range(4))
def test_a_slower_operation_in_a_trace_is_named(layer: int, tmp_path: Path) -> None:
    """Rank 1 takes longer for the forward of a layer, and rank 0 waits for it in the next gather."""
    run, paths = predicted("zero3"), traces("fsdp")
    changes = stretched("gloo:all_gather", layer + 1), stretched("aten::mm", layer)
    delayed = [changed(path, tmp_path, change) for path, change in zip(paths, changes, strict=True)]
    usual, later = (mt.read_profiles(run, each, step=1).run for each in (paths, delayed))
    gap = mt.diff(usual, later)
    assert gap.seconds == pytest.approx(DELAY_US * 1e-6, rel=0.05)
    assert gap.explanation is not None
    assert "forward" in gap.explanation.what
    assert (gap.explanation.layers, gap.explanation.ranks) == ((layer,), (1,))


def test_buckets_of_several_layers_share_the_time_of_their_collective(tmp_path: Path) -> None:
    """Of four reductions a step, the first two become one of twice the size."""

    def joined(data: Any) -> None:
        events = data["traceEvents"]
        for name in ("c10d::allreduce_", "gloo:all_reduce"):
            found = sorted((e for e in events if e.get("name") == name), key=lambda e: e["ts"])
            for first, second in zip(found[::4], found[1::4], strict=True):
                first["dur"] = second["ts"] + second["dur"] - first["ts"]
                if "Input Dims" in first["args"]:
                    first["args"]["Input Dims"][0][0][0] *= 2
                events.remove(second)

    paths = [changed(path, tmp_path, joined) for path in traces("ddp")]
    found = mt.read_profiles(predicted("ddp_overlap"), paths)
    assert next(each for each in found.matches if each.typ == "all_reduce") == Match("all_reduce", 8, 6, 8)
    assert "8 matched of 8 predicted and 6 traced" in str(found)


def test_traces_of_another_strategy_and_ranks_without_collectives_are_told(tmp_path: Path) -> None:
    found = mt.read_profiles(predicted("ddp"), traces("fsdp"))
    assert "the traces have reduce_scatter and all_gather where all_reduce was predicted" in found.words[-1]

    def without_collectives(data: Any) -> None:
        names = ("gloo:", "c10d::")
        data["traceEvents"] = [e for e in data["traceEvents"] if not str(e.get("name")).startswith(names)]

    first, second = traces("fsdp")
    found = mt.read_profiles(predicted("fsdp"), [changed(first, tmp_path, without_collectives), second])
    assert "reduce_scatter: 4 matched of 8 predicted and 4 traced, none in the trace of rank 0" in found.words


def test_what_a_program_does_beside_is_told() -> None:
    found = mt.read_profiles(predicted("fsdp"), traces("fsdp"))  # which keeps the last layer's weights for backward
    assert next(each for each in found.matches if each.typ == "all_gather") == Match("all_gather", 14, 16, 14)
    assert "all_gather: 14 matched of 14 predicted and 16 traced" in found.words
    assert any(line.startswith("loss: 2 predicted, none found") for line in found.words)
    assert any("the ranges of FSDP" in line for line in found.words)


def test_another_strategy_is_matched_where_it_does_the_same() -> None:
    found = mt.read_profiles(predicted("zero3"), traces("ddp"))
    matches = {each.typ: each for each in found.matches}
    assert matches["forward"].matched == 8
    assert (matches["all_gather"].traced, matches["all_gather"].matched) == (0, 0)
    assert (matches["all_reduce"].predicted, matches["all_reduce"].traced) == (0, 8)


def test_one_rank_speaks_for_those_that_do_the_same() -> None:
    found = mt.read_profiles(predicted("ddp_overlap"), traces("ddp")[1:])
    assert "ranks without a trace take the times of one that did the same: 0" in found.words
    own = [[(event.typ, event.time, event.duration) for event in log] for log in found.run.logs]
    assert own[0] == own[1]


def test_kernels_of_nccl_are_matched_by_size_group_and_order(tmp_path: Path) -> None:
    """The arguments that torch gives to NCCL's kernels, put on the times of gloo: two groups of a mesh would differ."""

    def as_nccl(data: Any) -> None:
        events = data["traceEvents"]
        for event in [e for e in events if e.get("name") == "gloo:all_reduce"]:
            event |= {
                "cat": "kernel",
                "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            }
            said = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 65536, "Out msg nelems": 65536}
            event["args"] = {**said, "Group size": 2, "Process Group Ranks": "[0, 1]"}
        events[:] = [e for e in events if not e.get("name", "").startswith("c10d::")]
        for number, event in enumerate([e for e in events if e.get("name", "") in ("aten::mm", "aten::lerp_")]):
            event["args"]["correlation"] = number + 1
            launch = {**event, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 1}
            kernel = {**event, "cat": "kernel", "name": "gemm", "tid": 7, "pid": 0}
            events += [launch, kernel]

    paths = [changed(path, tmp_path, as_nccl) for path in traces("ddp")]
    matches = {each.typ: each for each in mt.read_profiles(predicted("ddp_overlap"), paths).matches}
    assert matches["all_reduce"] == Match("all_reduce", 8, 8, 8)
    assert matches["forward"].matched == matches["backward"].matched == 8


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data["traceEvents"].clear(), "has no range|does not say what its layers are"),
        (lambda data: data["distributedInfo"].update(world_size=8), "a trace of 8 ranks, and the run has 2"),
        (lambda data: data["distributedInfo"].update(rank=0), "give one trace a rank"),
        (
            lambda data: data.update(
                traceEvents=[e for e in data["traceEvents"] if not e["name"].startswith(("ProfilerStep", "Optimizer"))]
            ),
            "has no whole step",
        ),
        (lambda data: next(e for e in data["traceEvents"] if "dur" in e).update(dur=-5), r"dur \(at least 0\)"),
        (
            lambda data: [e.update(ts=1e15 - e["ts"]) for e in data["traceEvents"] if "ts" in e],
            "runs backwards: its steps come in the order",
        ),
        (lambda data: data.update(distributedInfo={"rank": "first"}), "its distributedInfo must have a rank"),
        (lambda data: data.update(distributedInfo={"pg_config": 7}), "its distributedInfo must have a rank"),
        (lambda data: data["traceEvents"][9].update(ts="soon"), "event 9 must have numbers as ts and dur"),
    ],
    ids=["empty", "other world", "same rank", "no steps", "backwards", "all backwards", "rank", "groups", "no time"],
)
def test_a_trace_that_cannot_be_used_says_why(change: Any, says: str, tmp_path: Path) -> None:
    paths = traces("ddp")
    with pytest.raises(UsageError, match=says):
        mt.read_profiles(predicted("ddp_overlap"), [paths[0], changed(paths[1], tmp_path, change)])


def test_a_trace_of_another_model_or_step_says_why(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a trace of 4 layers, found by marks, and the run has 8; simulate"):
        mt.read_profiles(predicted("ddp_overlap", num_layers=8), traces("ddp"))
    with pytest.raises(UsageError, match="3 whole steps, 0 to 2; there is no step 7"):
        mt.read_profiles(predicted("ddp_overlap"), traces("ddp"), step=7)
    with pytest.raises(UsageError, match="there are no traces"):
        mt.read_profiles(predicted("ddp_overlap"), [])
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(traces("ddp")[0].read_bytes()[:4000])
    with pytest.raises(UsageError, match="cannot be read"):
        mt.read_profiles(predicted("ddp_overlap"), [cut])
    with pytest.raises(UsageError, match="rank 0 does what no rank with a trace does"):
        mt.read_profiles(predicted("gpipe"), traces("ddp")[1:])


def test_traces_hold_nothing_of_the_machine() -> None:
    for path in FOLDER.glob("*.json.gz"):
        data = content(path)
        assert set(data) == {"schemaVersion", "distributedInfo", "traceEvents"}
        assert "/" not in gzip.decompress(path.read_bytes()).decode().replace("\\/", "/")


def test_the_command_writes_a_run_that_diff_takes(tmp_path: Path) -> None:
    planned, measured = tmp_path / "planned.jsonl", tmp_path / "measured.jsonl"
    predicted("ddp_overlap").save(planned)
    done = CliRunner().invoke(
        app, ["trace", "profiles", str(planned), *map(str, traces("ddp")), "--out", str(measured)]
    )
    assert done.exit_code == 0, done.output
    assert "all_reduce: all 8 matched" in done.output
    assert mt.load_run(measured).priced_by == "measured"
    compared = CliRunner().invoke(app, ["diff", str(planned), str(measured), "--json"])
    assert compared.exit_code == 0, compared.output
    gap = json.loads(compared.output)
    assert sum(part["seconds"] for part in gap["attribution"]) == pytest.approx(gap["gap_s"], rel=1e-9)
