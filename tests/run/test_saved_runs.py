"""Runs saved and loaded: equal, deterministic, and clear where a file is none."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import UsageError
from minitrain.lib import Model
from minitrain.run.run_file import to_ranges


async def tagged(model: Model, depth: int = 1) -> Model:
    """Use tags, groups and overlap, which fill the optional fields."""
    mesh = model.mesh(pp=2, dp=2)
    weight = model.load_weights(0, mesh.coord("dp"), 2)[0]
    work = model.launch(model.all_gather(weight, 0, group=mesh.group("dp")))
    up, down = mesh.peer("pp", 1), mesh.peer("pp", -1)
    for tag in ("text", 7, ("F", 0, (1, 2))):
        if up is not None:
            await model.send(up, model.get_input_activation([0, 2, 3]), tag=tag)
        elif down is not None:
            await model.receive(down, tag=tag)
    model.load_weights(1)
    await work
    return model


SIZES: Any = {"world_size": 4, "num_layers": 2, "global_batch_size": 4, "check": False}


def test_typical_times_are_kept_and_judged(tmp_path: Path) -> None:
    run = mt.simulate("ddp", world_size=2, num_layers=2, global_batch_size=4)
    columns: Any = tuple([float(place + index) for index in range(run.num_events)] for place in range(3))
    file = tmp_path / "run.jsonl"
    replace(run, typical=columns).save(file)
    read = mt.load_run(file)
    assert read.typical == columns
    assert read.typical_timeline.end[1] == columns[0][1] + columns[1][1]
    columns = columns[0][1:], ["long", *columns[1][1:]], columns[2]
    replace(run, typical=columns).save(file)
    with pytest.raises(mt.UsageError, match="time: expected a list of") as found:
        mt.load_run(file)
    assert "line 1, typical.duration: expected a list of" in str(found.value)


def test_a_run_with_tags_groups_and_overlap_is_read_back_equal(tmp_path: Path) -> None:
    run = mt.simulate(tagged, **SIZES)
    run.save(tmp_path / "run.jsonl")
    read = mt.load_run(tmp_path / "run.jsonl")
    assert read == run
    assert [list(log) for log in read.logs] == [list(log) for log in run.logs]
    assert (read.step_time, read.mfu, read.span_bubble) == (run.step_time, run.mfu, run.span_bubble)
    assert read.summary() == run.summary()
    assert read.models == ()


def test_the_same_run_gives_the_same_bytes_again_and_after_reading(tmp_path: Path) -> None:
    first, second, third = (tmp_path / f"{name}.jsonl" for name in "abc")
    mt.simulate(tagged, **SIZES).save(first)
    mt.simulate(tagged, **SIZES).save(second)
    mt.load_run(first).save(third)
    assert first.read_bytes() == second.read_bytes() == third.read_bytes()


def test_a_set_that_events_share_is_written_out_once_and_shared_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a file of many ranks took time, and a run that is read memory, that grow with the square of the batch."""
    sets: list[Any] = []

    def counted(numbers: Any) -> list[list[int]]:
        sets.append(numbers)
        return to_ranges(numbers)

    run = mt.simulate("zero3", world_size=8, num_layers=4, global_batch_size=8)
    monkeypatch.setattr("minitrain.run.saved_runs.to_ranges", counted)
    run.save(tmp_path / "run.jsonl")
    whole = [event.samples for log in run.logs for event in log if len(event.samples) == 8]
    assert len(whole) == 8 * 4 * 2
    assert len(sets) == len({id(event.samples) for log in run.logs for event in log}) <= 8 + 4 + 1
    read = [event.samples for log in mt.load_run(tmp_path / "run.jsonl").logs for event in log]
    assert len(set(map(id, read))) == len(set(read)) == 8 + 1 + 1  # of each rank, of all, of none


@pytest.mark.parametrize("samples", ["null", "7", "[[0]]", "[[0,[1]]]", '"all"'])
def test_an_event_without_a_set_of_samples_is_damaged(tmp_path: Path, samples: str) -> None:
    file = tmp_path / "run.jsonl"
    mt.simulate("ddp", world_size=1, num_layers=1, global_batch_size=1).save(file)
    lines = file.read_text().splitlines()
    event = next(place for place, line in enumerate(lines) if line.startswith('["forward"'))
    assert "[[0,1]]" in lines[event]
    lines[event] = lines[event].replace("[[0,1]]", samples)
    file.write_text("\n".join(lines))
    with pytest.raises(UsageError, match="damaged"):
        mt.load_run(file)


async def hiding(model: Model) -> Model:
    """Hold a weight in a variable while an operation begins."""
    model.weights[0], _ = model.load_weights(0)
    spare = model.load_weights(1)
    model.forward(0, model.get_input_activation([0]), model.weights[0])
    del spare
    return model


def test_what_a_strict_run_held_outside_its_stores_is_read_back(tmp_path: Path) -> None:
    run = mt.simulate(hiding, strict=True, **SIZES)
    run.save(tmp_path / "run.jsonl")
    read = mt.load_run(tmp_path / "run.jsonl")
    assert run.held_outside is not None
    assert read.held_outside == run.held_outside
    assert read == run
    assert read.summary() == run.summary()


def test_a_file_that_knows_nothing_of_strictness_is_read(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    run = mt.simulate(hiding, strict=True, **SIZES)
    run.save(file)
    header, *events = file.read_text().splitlines()
    known = json.loads(header)
    assert known.pop("held_outside")
    file.write_text("\n".join([json.dumps(known), *events]) + "\n")
    assert mt.load_run(file).held_outside is None
    mt.simulate(hiding, **SIZES).save(file)
    assert "held_outside" not in json.loads(file.read_text().splitlines()[0])


@pytest.mark.parametrize("outside", [3, {"rank": 0}, [1]])
def test_damaged_words_of_strictness_are_refused(tmp_path: Path, outside: Any) -> None:
    file = tmp_path / "run.jsonl"
    mt.simulate(hiding, strict=True, **SIZES).save(file)
    header, *events = file.read_text().splitlines()
    file.write_text("\n".join([json.dumps({**json.loads(header), "held_outside": outside}), *events]) + "\n")
    with pytest.raises(UsageError, match="is not a minitrain-run file, or it is damaged"):
        mt.load_run(file)


def test_out_of_memory_options_and_no_device_are_read_back(tmp_path: Path) -> None:
    over = mt.simulate("ddp", world_size=2, num_layers=32, global_batch_size=512, hardware="l40s_48g_pcie8")
    hand = mt.simulate("ddp", **{**SIZES, "check": True}, hardware=mt.FixedPredictor(forward=1), microbatch_size=1)
    for run in (over, hand):
        run.save(tmp_path / "run.jsonl")
        assert mt.load_run(tmp_path / "run.jsonl") == run
    assert over.oom is not None
    assert mt.load_run(tmp_path / "run.jsonl").options == {"microbatch_size": 1}


@pytest.mark.parametrize(
    ("numbers", "ranges"),
    [([], []), ([3], [[3, 4]]), ([5, 1, 2, 3], [[1, 4], [5, 6]]), (range(100), [[0, 100]])],
)
def test_sets_of_numbers_are_written_as_ranges(numbers: Any, ranges: list[list[int]]) -> None:
    assert to_ranges(numbers) == ranges


@pytest.fixture
def lines(tmp_path: Path) -> list[str]:
    mt.simulate("ddp", world_size=2, num_layers=1, global_batch_size=2).save(tmp_path / "run.jsonl")
    return (tmp_path / "run.jsonl").read_text().splitlines()


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        (0, lambda header: {**header, "format": "other"}, "is not a minitrain-run file"),
        (0, lambda header: {**header, "version": 99}, "the run file is of version 99; this minitrain reads"),
        (0, lambda header: {k: v for k, v in header.items() if k not in ("oom", "hardware")}, "lacks hardware, oom"),
        (0, lambda header: [], "is not a minitrain-run file, or it is damaged"),
        (0, lambda header: {**header, "world_size": "two"}, "or it is damaged"),
        (0, lambda header: {**header, "oom": {"rank": 0}}, "or it is damaged"),
        (0, lambda header: {**header, "oom": 3}, "or it is damaged"),
        (0, lambda header: {**header, "fields": [*header["fields"], "extra"]}, None),
        (1, lambda event: event[:3], "or it is damaged"),
        (1, lambda event: 7, "or it is damaged"),
        (1, lambda event: {"rank": 0}, "or it is damaged"),
        (1, lambda event: [*event[:2], 99, *event[3:]], "or it is damaged"),
        (1, lambda event: [*event[:2], -1, *event[3:]], "or it is damaged"),
        (1, lambda event: [*event[:6], [[0]], *event[7:]], "or it is damaged"),
    ],
)
def test_a_damaged_file_says_so(tmp_path: Path, lines: list[str], place: int, change: Any, message: str | None) -> None:
    path = tmp_path / "damaged.jsonl"
    changed = [*lines[:place], json.dumps(change(json.loads(lines[place]))), *lines[place + 1 :]]
    path.write_text("\n".join(changed) + "\n")
    if message is None:
        assert mt.load_run(path).world_size == 2
        return
    with pytest.raises(UsageError, match=message):
        mt.load_run(path)


@pytest.mark.parametrize(
    "content", [b"", b"not json", b"\xff\xfe\x00", b"{}", b'{"format": "minitrain-run"', b"[" * 99999]
)
def test_another_file_is_no_run(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="is not a minitrain-run file, or it is damaged"):
        mt.load_run(path)


def test_a_file_that_is_not_there_or_a_folder_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.jsonl", tmp_path):
        with pytest.raises(UsageError, match=r"the run file .* cannot be read"):
            mt.load_run(path)


def test_a_tag_that_json_cannot_hold_is_written_in_words(tmp_path: Path) -> None:
    async def program(model: Model) -> Model:
        tag = frozenset([1])
        await (
            model.send(1, model.get_input_activation([0]), tag=tag) if model.rank == 0 else model.receive(0, tag=tag)
        )
        return model

    run = mt.simulate(program, world_size=2, num_layers=1, global_batch_size=2, check=False)
    run.save(tmp_path / "run.jsonl")
    assert [event.tag for event in mt.load_run(tmp_path / "run.jsonl").events] == ["frozenset({1})"] * 2


@pytest.mark.parametrize(
    ("strategy", "parameters"),
    [
        ("1f1b", {}),
        ("zero3", {"world_size": 16, "global_batch_size": 32, "fold": True}),
        ("ddp", {"steps": 3}),
        ("ddp", {"memory_by_kind": True}),
        ("ddp", {"strict": True}),
        ("ddp", {"faults": [mt.Fault(rank=1, at_s=1e-3)], "recovery": mt.Recovery(spares=1)}),
        ("megatron", {"workload": "tiny", "tp": 2}),
    ],
)
def test_a_run_comes_whole_from_another_process(strategy: str, parameters: dict[str, Any]) -> None:
    run = mt.simulate(strategy, **({"world_size": 4, "global_batch_size": 8} | parameters))
    for other in (pickle.loads(pickle.dumps(run)), copy.deepcopy(run), copy.copy(run)):
        assert other == run
        assert other.summary() == run.summary()
        assert repr(other) == repr(run)
        assert other._repr_html_()
    assert copy.copy(run).prepared is run.prepared
