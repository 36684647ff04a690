"""Run files that nobody wrote by `Run.save`: each is refused with one error that names line and key, in no time."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import minitrain as mt
from minitrain.errors import UsageError
from minitrain.lib import Model
from minitrain.operations import Event
from minitrain.run.run_file import FIELDS

Lines = list[Any]
Change = Callable[[Lines], object]
MIB = 2**20


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The lines of a file with messages, sets of samples and journals."""
    path = tmp_path_factory.mktemp("whole") / "run.jsonl"
    sizes: dict[str, Any] = {"world_size": 2, "num_layers": 4, "global_batch_size": 8}
    mt.simulate("1f1b", memory_by_kind=True, **sizes).save(path)
    return path.read_text().splitlines()


def header(**values: Any) -> Change:
    """Return what changes the first line."""
    return lambda lines: lines[0].update(values)


def event(name: str, value: Any, typ: str = "forward") -> Change:
    """Return what changes a field of the first event of a type."""

    def change(lines: Lines) -> None:
        found = next(line for line in lines[1:] if line[0] == typ)
        defaults: list[Any] = [None] * 7 + ["compute", None, None, None, 0, None, None, None, False, None, []]
        place = FIELDS.index(name)
        found.extend(defaults[len(found) : place + 1])
        found[place] = value

    return change


def journal(**values: Any) -> Change:
    """Return what changes the last journal."""
    return lambda lines: lines[-1].update(values)


def nested(depth: int) -> Any:
    """Return lists in lists."""
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


DAMAGED: list[tuple[Change, str]] = [
    (header(world_size=10**9), r"line 1, world_size: expected a whole number in 1\.\.\d+, found 1000000000"),
    (header(world_size=3), r"line 1, peak_memory_per_rank: expected a value for each of 3 ranks .*, found 2"),
    (header(num_layers=10**9), "line 1, num_layers: expected .*, found 1000000000"),
    (header(global_batch_size=10**11), "line 1, global_batch_size: expected .*, found 100000000000"),
    (header(peak_memory_per_rank=[10**400, 1]), r"peak_memory_per_rank\[0\]: .*, found a huge number"),
    (header(peak_memory_per_rank=[1.0, 1.0]), r"line \d+, memory: expected a number in 0..1, the rank's peak, found "),
    (header(version=True), "the run file is of version true; this minitrain reads 1, 2 and 3"),
    (header(version=1.0), "the run file is of version 1.0"),
    (header(version=1), "line 37: expected journals in version 2 alone, found one"),
    (header(num_events=True), "line 1, num_events: expected a whole number in .*, found true"),
    (header(options={"a": {"b": [1]}}), "line 1, options.a: expected .*, found an object"),
    (header(options={"a": float("inf")}), "line 1, options.a: expected .*, found Infinity"),
    (header(options={"pp": 10**2000}), "line 1, options.pp: expected .*, found a huge number"),
    (header(peak_flop_per_s=0), "line 1, peak_flop_per_s: expected a number in 1e-100..1e100, or null, found 0"),
    (header(bytes_per_element=-2), "line 1, bytes_per_element: expected .*, found -2"),
    (header(strategy=7), "line 1, strategy: expected text, found 7"),
    (header(network="ring"), 'line 1, network: expected one of flat, hierarchical, measured, found "ring"'),
    (header(num_nodes=0), r"line 1, num_nodes: expected a whole number in 1\.\.\d+, found 0"),
    (header(fields=[["typ"], None]), r"line 1, fields\[0\]: expected text, found \[\"typ\"\]"),
    (header(fields=["typ"]), "line 1, fields: expected typ, layer, .*, found no layer, rank"),
    (header(fields=[*FIELDS, "typ"]), "line 1, fields: expected each name once"),
    (header(fields=[*FIELDS[:7], "colour", *FIELDS[7:]]), "expected values of the fields that this minitrain knows"),
    (header(oom={"rank": 9, "time": 0, "capacity_bytes": 1, "held_bytes": {}}), "oom.rank: expected .*, found 9"),
    (header(oom={"rank": 0, "time": 0, "capacity_bytes": 1}), "oom.held_bytes: expected an object, found nothing"),
    (
        header(held_outside={"rank": 0, "time": 0, "elements": 1, "elements_by_line": {"a:1": -1}}),
        r'held_outside.elements_by_line\["a:1"\]: expected .*, found -1',
    ),
    (
        event("group", [[0, 10**11]], "send"),
        r"group\[0\]: expected ascending ranges .* within 0..2, found \[0, 1000000",
    ),
    (event("samples", [[0, 10**11]]), r"samples\[0\]: expected .* within 0..8, found \[0, 100000000000\]"),
    (event("samples", [[4, 5], [0, 1]]), r"samples\[1\]: expected .* within 5..8, found \[0, 1\]"),
    (event("layer", "first"), 'layer: expected a whole number in -1..4, or null, found "first"'),
    (event("layer", 10**30), "layer: expected .*, found 1000000000000000000000000000000"),
    (event("memory", 10**400), "memory: expected .*, found a huge number"),
    (event("duration", -1.0), "duration: expected 0 or a time in 1e-100..1e200 s, found -1.0"),
    (event("duration", 5e-324), "duration: expected .*, found 5e-324"),
    (event("time", float("nan")), "time: expected .*, found NaN"),
    (event("time", 1e308), "time: expected .*, found 1e\\+308"),
    (event("time", True), "time: expected .*, found true"),
    (event("launched", 1.0), "launched: expected a number in 0.*, the event's time, or null, found 1.0"),
    (event("typ", "teleport"), 'typ: expected one of load_weights, .*, found "teleport"'),
    (event("stream", "send"), 'stream: expected "compute", found "send"'),
    (event("stream", None), 'stream: expected "compute", found null'),
    (event("rank", 0.0), "rank: expected a rank in 0..1, found 0.0"),
    (event("peer", True, "send"), "peer: expected another rank in 0..1, or null, found true"),
    (event("peer", 0, "send"), "peer: expected another rank in 0..1, or null, found 0"),
    (event("waited_for", 0), "waited_for: expected another rank in 0..1, or null, found 0"),
    (event("awaited", 0, "send"), r"awaited: expected a whole number in \d+..\d+, or null, found 0"),
    (event("awaited", 10**30, "send"), "awaited: expected .*, found 1000000000000000000000000000000"),
    (event("group", [], "send"), "group: expected a group of rank 0, found one without it"),
    (event("group", [[1, 2]], "send"), "group: expected a group of rank 0, found one without it"),
    (event("tag", {"a": 1}, "send"), "tag: expected text, a number or a list of them, found an object"),
    (event("tag", [1, {"a": 1}], "send"), "tag: expected text, a number or a list of them"),
    (event("tag", nested(900), "send"), "tag: expected text, a number or a list of them"),
    (event("recomputed", 1), "recomputed: expected true or false, found 1"),
    (event("algorithm", 1), "algorithm: expected text, or null, found 1"),
    (lambda lines: lines[1].extend([None] * 40), r"line 2: expected an event of at most 18 values, found \d+"),
    (lambda lines: lines.insert(1, 7), "line 2: expected an event .* or a journal .*, found 7"),
    (journal(kinds=["cheese"]), r'line 37, kinds\[0\]: expected one of weights, .*, found "cheese"'),
    (journal(rank=0), "line 37, rank: expected one journal a rank, found another one of rank 0"),
    (journal(changes=[[0, 0, -1e9]]), r"changes\[0\]: expected no more to leave than is held, found more"),
    (journal(changes=[[5, 0, 1], [4, 0, 1]]), r"changes\[1\]\[0\]: expected a whole number in 5..\d+, found 4"),
    (journal(changes=[[0, 0]]), r"changes\[0\]: expected \[place, kind, elements, tensor, layer\], found \[0, 0\]"),
    (journal(changes=[[0, 0, float("nan")]]), r"changes\[0\]\[2\]: expected a number in .*, found NaN"),
]


@pytest.mark.few(24)
@pytest.mark.parametrize(("change", "message"), DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_value_is_named_by_line_and_key(
    tmp_path: Path, whole: list[str], change: Change, message: str
) -> None:
    lines = [json.loads(line) for line in whole]
    change(lines)
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UsageError, match=message):
        mt.load_run(path)


TEXTS: list[tuple[Callable[[str], bytes], str]] = [
    (lambda text: text[:-20].encode(), "line 37: expected JSON, .*; the file ends in the middle of the line"),
    (
        lambda text: text.replace('"world_size": 2', '"world_size": 2, "world_size": 3', 1).encode(),
        "line 1, world_size: expected each key once, found it more than once; remove one",
    ),
    (
        lambda text: text.replace('"kinds":', '"kinds":[],"kinds":', 1).encode(),
        "line 36, kinds: expected each key once",
    ),
    (lambda text: text.encode("utf-16"), "line 1: expected UTF-8 text, found byte 0xff"),
    (lambda text: text.replace("1f1b", "\xe9", 1).encode("latin-1"), "line 1: expected UTF-8 text, found byte 0xe9"),
    (lambda text: text.replace("\n", "\x00\n").encode(), "is damaged: line 1: expected JSON"),
    (lambda text: text.replace("\n", "\n\n").encode(), "line 2: expected JSON"),
    (lambda text: text.encode() + b"[" * 100_000 + b"\n", "line 38: expected a few levels of nesting, found too many"),
    (
        lambda text: text.replace('"options": {}', f'"options": {{"pp": {"9" * 5000}}}', 1).encode(),
        "line 1: expected numbers that a computer can hold, found one of thousands of digits",
    ),
]


@pytest.mark.parametrize(("change", "message"), TEXTS, ids=range(len(TEXTS)))
def test_a_damaged_text_is_named_by_line(
    tmp_path: Path, whole: list[str], change: Callable[[str], bytes], message: str
) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(change("\n".join(whole) + "\n"))
    with pytest.raises(UsageError, match=message):
        mt.load_run(path)


def test_all_faults_are_told_at_once_and_no_more_than_anybody_reads(tmp_path: Path, whole: list[str]) -> None:
    lines = [json.loads(line) for line in whole]
    for line in lines[1:30]:
        line[4] = -1.0
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UsageError, match=r"is damaged: 29 faults; write it with run.save\(\)") as refused:
        mt.load_run(path)
    assert str(refused.value).splitlines()[-1] == "... and 21 more"
    assert refused.value.path == str(path)
    assert refused.value.faults[0] == "line 2, duration: expected 0 or a time in 1e-100..1e200 s, found -1.0"


@pytest.mark.parametrize("text", [json.dumps({"a": list(range(99))}, indent=2), "rank,start,end\n" * 99])
def test_of_a_file_that_is_none_the_first_line_says_so(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    message = r"damaged: line 1: expected JSON, found .*; write it with run.save\(\)$"
    with pytest.raises(UsageError, match=message) as refused:
        mt.load_run(path)
    assert len(refused.value.faults) == 1


@pytest.mark.parametrize("change", [lambda text: text.replace("\n", "\r\n"), lambda text: "\ufeff" + text])
def test_other_ends_of_lines_and_a_byte_order_mark_are_read(
    tmp_path: Path, whole: list[str], change: Callable[[str], str]
) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(change("\n".join(whole) + "\n").encode())
    assert mt.load_run(path).num_events == 34


def test_fields_may_stand_in_another_order(tmp_path: Path, whole: list[str]) -> None:
    first, *others = [json.loads(line) for line in whole]
    path, turned = tmp_path / "run.jsonl", tmp_path / "turned.jsonl"
    path.write_text("\n".join(whole) + "\n")
    defaults: list[Any] = [None] * 7 + ["compute", None, None, None, 0, None, None, None, False, None, []]
    events = [(line + defaults[len(line) :])[::-1] if isinstance(line, list) else line for line in others]
    first["fields"] = first["fields"][::-1]
    turned.write_text("".join(json.dumps(line) + "\n" for line in [first, *events]))
    assert mt.load_run(turned) == mt.load_run(path)


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """Require that no more than some bytes are held at once."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] <= size
    finally:
        tracemalloc.stop()


def test_many_large_sets_are_refused_before_they_are_made(tmp_path: Path, whole: list[str]) -> None:
    first = {**json.loads(whole[0]), "version": 1, "global_batch_size": 2**23, "num_events": 500}
    sets = [["forward", 0, 0, 0.0, 0.0, 0.0, [[start, 2**23]]] for start in range(500)]
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in [first, *sets]))
    with at_most(MIB), pytest.raises(UsageError, match="line 2, samples: expected sets that fit the file's size"):
        mt.load_run(path)


def test_a_file_that_unpacks_to_far_more_is_refused(tmp_path: Path, whole: list[str]) -> None:
    path = tmp_path / "run.jsonl.gz"
    with gzip.open(path, "wb") as file:
        for _ in range(64):
            file.write(b" " * MIB)
    with at_most(160 * MIB), pytest.raises(UsageError, match=r"line 1: expected at most \d+ characters in a file of"):
        mt.load_run(path)
    packed = gzip.compress("\n".join(whole).encode())
    for damaged in (packed[:-9], packed + b"more", packed[:60] + packed):
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match="cannot be read: "):
            mt.load_run(path)


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("fifo", "zero"):
        with pytest.raises(UsageError, match="expected a regular file, found a device, pipe or socket; save it first"):
            mt.load_run(tmp_path / name)
    for name in ("loop", "nul\x00", "."):
        with pytest.raises(UsageError, match=r"the run file .* cannot be read: "):
            mt.load_run(tmp_path / name)
    with pytest.raises(UsageError, match="a run file's path must be text or a path, got int"):
        mt.load_run(7)  # type: ignore[arg-type]


def test_a_type_that_a_strategy_logs_itself_is_read_back(tmp_path: Path) -> None:
    async def logs(model: Model) -> Model:
        model.log_event("checkpoint", 99)
        model.log_event("send", 0)
        return model

    run = mt.simulate(logs, world_size=2, num_layers=1, global_batch_size=2, check=False)
    run.save(tmp_path / "run.jsonl")
    read = mt.load_run(tmp_path / "run.jsonl")
    assert read == run
    assert read.events[0] == Event("checkpoint", 99, 0, 0.0, 0.0, 0.0, frozenset(), launched=0.0)


def test_operations_that_wait_in_a_circle_end_in_an_error(tmp_path: Path, whole: list[str]) -> None:
    def message(typ: str, rank: int, time: float) -> list[Any]:
        return [typ, 0, rank, time, 1e-5, 0.0, [[0, 1]], typ, None, 1 - rank, None, 8, time]

    first = {**json.loads(whole[0]), "version": 1, "num_events": 4}
    events = [message(typ, rank, time) for rank in (0, 1) for typ, time in (("recv", 1e-5), ("send", 2e-5))]
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in [first, *events]))
    run = mt.load_run(path)
    for look in (lambda: run.explain().data(), lambda: run.write_html(tmp_path / "page.html")):
        with pytest.raises(UsageError, match="the log is damaged: some of its operations wait for one another in a"):
            look()
