"""The timeline on a canvas: its data against the log it was made from, and what it shows and does in a browser."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minitrain as mt
from minitrain.operations import RECV, SEND, Event
from minitrain.run.analysis.explanation import Explanation
from minitrain.run.analysis.timeline import as_timeline
from minitrain.view.bars import make_bars
from minitrain.view.layout import View
from minitrain.view.page import write_html
from minitrain.view.run_folder import view_of
from minitrain.view.timeline import timeline_data

_SAID = "law", "price", "FLOP", "memory traffic", "bound by", "began when it did", "flash2 attention", "compute"
_UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}
_SIZES: Any = {"world_size": 8, "num_layers": 8, "global_batch_size": 64}


def _data(run: Any) -> dict[str, Any]:
    view = view_of(run)
    explained = Explanation(run.drawn, view.bytes_per_element, view.step_end, journals=run.drawn_journals)
    bars = make_bars(run.drawn, view.step_end, explained.gaps)
    return timeline_data(bars, view, explained, run.drawn_journals)


def _columns(data: dict[str, Any]) -> dict[str, list[int]]:
    """Decode the columns, byte by byte, as the script does."""
    raw, place = zlib.decompress(base64.b64decode(data["blob"])), 0
    columns: dict[str, list[int]] = {}
    for name, size, length, sums in data["head"]:
        values: list[int] = []
        for one in range(length):
            number = bytes(raw[place + byte * length + one] for byte in range(size))
            values.append(int.from_bytes(number, "little", signed=True) + (values[-1] if sums and one else 0))
        columns[name] = values
        place += size * length
    assert place == len(raw)
    return columns


def _ranks(row: dict[str, Any]) -> list[int]:
    return [first + place * by for first, many, by in row["members"] for place in range(many)]


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("fsdp", {}),
        ("1f1b", {"microbatch_size": 8}),
        ("zero3_prefetch", {"memory_by_kind": True}),
        ("megatron", {"tp": 2, "pp": 2, "microbatch_size": 4, "fold": True}),
    ],
)
def test_every_operation_of_every_rank_is_a_bar_of_its_row_and_nothing_else_is(
    strategy: str, options: dict[str, Any]
) -> None:
    run: Any = mt.simulate(strategy, **_SIZES, **options)
    data = _data(run)
    columns, unit, waiting = _columns(data), data["unit"], len(data["kinds"]) - 1
    assert sorted(rank for row in data["rows"] for rank in _ranks(row)) == list(range(8))
    assert unit <= 1e-9 * run.step_end if run.step_end else unit > 0
    drawn: dict[int, list[tuple[str, int, int, int]]] = {}
    for place, row in enumerate(columns["row"]):
        if columns["kind"][place] != waiting:
            kind = data["kinds"][columns["kind"][place]]["name"].replace("forward again", "forward")
            bar = kind, columns["start"][place], columns["length"][place], columns["layer"][place]
            drawn.setdefault(row, []).append(bar)
    begin = run.timeline.time.min() - run.step_timeline.time.min()
    for place, row in enumerate(data["rows"]):
        bars = sorted(drawn[place])
        for rank in _ranks(row):
            logged = [
                (
                    event.typ,
                    round((event.time - begin) / unit),
                    round((event.time - begin + event.duration) / unit) - round((event.time - begin) / unit),
                    -1 if event.layer is None else event.layer,
                )
                for event in run.logs[rank]
                if event.duration > 0
            ]
            assert len(bars) == len(logged)
            for mine, theirs in zip(bars, sorted(logged), strict=True):
                assert mine[0] == theirs[0]
                assert mine[3] == theirs[3]
                assert abs(mine[1] - theirs[1]) <= 1
                assert abs(mine[2] - theirs[2]) <= 1


def test_ranks_that_do_the_same_are_one_row_and_others_are_not() -> None:
    rows = _data(mt.simulate("fsdp", **_SIZES))["rows"]
    assert [(row["name"], row["count"]) for row in rows] == [("ranks 0-7 alike", 8)]
    assert [row["count"] for row in _data(mt.simulate("1f1b", **_SIZES, microbatch_size=8))["rows"]] == [1] * 8


def test_the_lane_of_a_collective_of_all_ranks_is_the_axis_that_has_them_all() -> None:
    assert _data(mt.simulate("fsdp", **_SIZES))["lanes"] == ["compute", "dp"]
    assert _data(mt.simulate("ddp_overlap", **_SIZES))["lanes"] == ["compute", "communication"]  # which has no mesh


def test_classes_of_a_folded_run_are_named_by_their_place_in_the_mesh() -> None:
    run = mt.simulate("megatron", **_SIZES, tp=2, pp=2, microbatch_size=4, fold=True)
    data = _data(run)
    rows = data["rows"]
    assert [row["name"] for row in rows] == ["pp 0: 4 ranks alike", "pp 1: 4 ranks alike"]
    reduces = [(kind["axis"], kind["pattern"]) for kind in data["kinds"] if kind["name"] == "all_reduce"]
    assert reduces == [("tp", ""), ("dp", "-")]  # those of neighbours look as usual
    classes = np.array(run.ranks_of_rows)
    assert sorted(classes.reshape(-1).tolist()) == list(range(8))
    assert [_ranks(row) for row in rows] == classes.tolist()


def test_the_memory_of_a_row_by_kind_is_that_of_its_rank() -> None:
    run = mt.simulate("zero3_prefetch", **_SIZES, memory_by_kind=True)
    data = _data(run)
    columns = _columns(data)
    held: dict[int, list[int]] = {}
    for row, kind, kib in zip(columns["memory_row"], columns["memory_kind"], columns["memory_kib"], strict=True):
        if row == data["peak_row"]:
            held.setdefault(kind, []).append(kib)
    (journal,) = [run.memory_journals[rank] for rank in _ranks(data["rows"][data["peak_row"]])[:1]]
    after = [sum(one.elements for one in journal if one.place <= place) for place in {one.place for one in journal}]
    assert max(map(sum, zip(*held.values(), strict=True))) * 1024 == pytest.approx(max(after) * run.bytes_per_element)
    assert {"weights", "activations", "gradients"} <= set(data["memory_kinds"])


def test_the_list_of_rows_has_the_peak_of_the_run_also_where_it_lasts_no_time() -> None:
    sizes: dict[str, Any] = {"world_size": 4, "num_layers": 8, "global_batch_size": 8, "microbatch_size": 1}
    run = mt.simulate("1f1b", **sizes, memory_by_kind=True)
    data = _data(run)
    assert data["rows"][data["peak_row"]]["peak_bytes"] == run.peak_memory_bytes


@pytest.mark.parametrize("contention", [False, True])
def test_every_operation_says_what_its_own_price_is_made_of(contention: bool) -> None:
    sizes: Any = {"world_size": 8, "workload": "gpt2", "seq_len": 256, "global_batch_size": 8}
    run = mt.simulate("fsdp", contention=contention, **sizes)
    data = _data(run)
    slowed = 0
    columns = _columns(data)
    waiting = len(data["kinds"]) - 1
    for kind, length, place in zip(columns["kind"], columns["length"], columns["account"], strict=True):
        if kind == waiting:
            assert place == -1
            continue
        facts = dict(data["accounts"][place]["facts"])
        number, unit = facts["price"].partition(":")[0].split()
        alone, took = data["accounts"][place]["seconds"], length * data["unit"]
        assert float(number) * _UNITS[unit] == pytest.approx(alone, rel=1e-3)
        assert took > alone * (1 - 1e-3)
        slowed += took > alone * (1 + 1e-3)
        shares = [share for _, share, _, _ in data["accounts"][place]["parts"]]
        assert sum(shares) == pytest.approx(1 if "kernel" in facts["price"] else 0)
        assert data["kinds"][kind]["law"].endswith(".")
        assert facts["bound by"]
        assert ("on the wire" in facts) == ("among" in facts["price"])
    assert (slowed > 0) == contention
    assert len(data["accounts"]) < 60  # those of one price are one, however long it was made to last


def test_a_round_of_steps_has_a_border_before_each_but_the_first() -> None:
    run = mt.simulate("powersgd_ddp", world_size=4, num_layers=2, global_batch_size=64, num_steps=4)
    data = _data(run)
    assert len(data["steps_s"]) == 3
    assert data["steps_s"] == sorted(data["steps_s"])
    assert 0 < data["steps_s"][0] < data["steps_s"][-1] < data["step_s"]


def test_the_critical_path_spans_the_step() -> None:
    run = mt.simulate("1f1b", **_SIZES, microbatch_size=8)
    data = _data(run)
    columns = _columns(data)
    assert max(columns["path_end"]) * data["unit"] == pytest.approx(run.step_end or run.timeline.last_end)
    assert columns["path_start"] == sorted(columns["path_start"])


def test_an_empty_log_has_rows_without_bars(tmp_path: Path) -> None:
    assert "mountTimeline" in write_html(tmp_path / "page.html", [[], []]).read_text()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = mt.simulate("1f1b", world_size=8, num_layers=32, global_batch_size=256, microbatch_size=4)
    return run.write_html(tmp_path_factory.mktemp("timeline") / "page.html")


@pytest.fixture
def opened(open_page: Callable[..., Any], page_file: Path) -> Callable[..., Any]:
    def open_drawn(scheme: str = "light", width: int = 1300) -> Any:
        page = open_page(page_file, scheme, width)
        page.wait_for_selector("body[data-ready=yes]", timeout=30_000)
        return page

    return open_drawn


_COLORS = """() => {
  const canvas = document.querySelector('.mt-timeline canvas'), pen = canvas.getContext('2d');
  timeline.draw();
  const data = new Uint32Array(pen.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
  const hex = color => [0, 8, 16].map(by => (color >> by & 255).toString(16).padStart(2, '0')).join('');
  return [...new Set(data)].map(color => '#' + hex(color));
}"""


@pytest.mark.few(1)
@pytest.mark.browser
@pytest.mark.parametrize(("scheme", "back"), [("light", "#ffffff"), ("dark", "#0d1117")])
@pytest.mark.parametrize("width", [500, 1300])
def test_the_colours_of_operations_are_on_the_canvas(
    opened: Callable[..., Any], scheme: str, back: str, width: int
) -> None:
    page = opened(scheme, width)
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert {back, "#56b4e9", "#e69f00"} <= set(page.evaluate(_COLORS))


_LANE = """name => {
  const canvas = document.querySelector('.mt-timeline canvas'), [x, y] = timeline.placeOf(name, 0).map(Math.round);
  const {data} = canvas.getContext('2d').getImageData(x, y - 13, canvas.width - x - 8, 26), counts = {};
  for (let i = 0; i < data.length; i += 4) {
    const color = data.subarray(i, i + 3);
    counts[color] = (counts[color] || 0) + 4 / data.length;
  }
  return counts;
}"""


@pytest.mark.browser
def test_where_bars_are_too_many_the_area_of_a_colour_is_its_time(opened: Callable[..., Any], page_file: Path) -> None:
    run = mt.simulate("1f1b", world_size=8, num_layers=32, global_batch_size=256, microbatch_size=4)
    shares = [
        sum(event.duration for event in run.logs[5] if event.typ == typ) / run.step_time
        for typ in ("forward", "backward")
    ]
    areas = opened(width=500).evaluate(_LANE, "rank 5")
    assert [areas["86,180,233"], areas["230,159,0"]] == pytest.approx(shares, abs=0.02)


@pytest.mark.browser
def test_a_chosen_bar_says_what_it_is_and_why_a_wait_is(opened: Callable[..., Any]) -> None:
    page = opened()
    page.evaluate("timeline.select(timeline.bars.kind.findIndex(k => k === Math.max(...timeline.bars.kind)))")
    said = page.locator(".told:visible").inner_text()
    assert "waiting" in said
    assert "for rank 1's send of layer" in said
    assert page.evaluate("timeline.svg()").count('stroke="#d6006c" stroke-width="2"') == 3  # a frame, and an arrow
    page.evaluate("timeline.select(timeline.bars.number.indexOf(3))")
    said = page.locator(".told:visible").inner_text()
    assert "forward layer" in said
    assert "microbatch" in said


@pytest.mark.browser
def test_keys_zoom_search_and_show_the_critical_path_and_help(opened: Callable[..., Any]) -> None:
    page = opened()
    before = page.evaluate("timeline.svg()")
    assert 'stroke="#d6006c"' not in before
    page.locator(".mt-timeline canvas").focus()
    page.keyboard.press("c")
    assert 'stroke="#d6006c"' in page.evaluate("timeline.svg()")
    page.keyboard.press("c")
    for _ in range(16):
        page.keyboard.press("w")
    near = page.evaluate("timeline.svg()")
    assert "mb" in near
    assert near != before
    page.keyboard.press("0")
    assert page.evaluate("timeline.svg()") == before
    for keys, seen in (
        ("w", (0.15, 0.85)),
        ("d", (0.255, 0.955)),
        ("a", (0.15, 0.85)),
        ("s", (0, 1)),
        (".,.f", None),  # the second operation of the first row, and its neighbours
    ):
        for key in keys:
            page.keyboard.press(key)
        shown = page.evaluate("timeline.shown().map(t => t / timeline.bars.end.reduce((a, b) => Math.max(a, b)))")
        assert shown == pytest.approx(seen, abs=1e-3) if seen else 0 <= shown[0] < shown[1] < 0.2
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    assert page.get_by_text("zoom in, out").is_visible()
    page.keyboard.press("/")
    page.keyboard.type("layer 7 mb 3")
    found = page.evaluate("timeline.bars.layer.filter((l, i) => l === 7 && timeline.bars.number[i] === 3).length")
    assert found > 0
    assert page.locator(".found").inner_text() == f"{found} found"


@pytest.mark.browser
def test_what_is_seen_is_printed_on_one_page_of_its_size_with_its_legend(opened: Callable[..., Any]) -> None:
    page = opened("dark", 900)
    page.context.add_init_script("window.print = () => { parent.printed = document.documentElement.outerHTML; }")
    page.reload()
    page.get_by_role("button", name="PDF").click()
    page.wait_for_function("window.printed")
    sheet = page.context.new_page()
    sheet.set_content(page.evaluate("printed"))
    assert all(sheet.get_by_text(name, exact=True).first.is_visible() for name in ("forward", "waiting"))
    width, high = sheet.evaluate(
        "['width', 'height'].map(side => Number(document.querySelector('svg').getAttribute(side)))"
    )
    printed = sheet.pdf(prefer_css_page_size=True)
    assert re.findall(rb"/Count (\d+)", printed) == [b"1"]
    box = [float(side) for side in re.findall(rb"/MediaBox \[0 0 (\S+) (\S+)\]", printed)[0]]
    assert box == pytest.approx([0.75 * width, 0.75 * high], abs=2)  # points of px


@pytest.mark.browser
def test_the_table_says_how_long_each_row_does_what(opened: Callable[..., Any]) -> None:
    page = opened()
    page.get_by_text("As a table").click()
    rows = page.locator(".mt-timeline details tbody tr")
    assert rows.first.inner_text().startswith("rank 0")
    assert page.locator(".mt-timeline details td", has_text="backward").count() == 8


@pytest.mark.browser
def test_a_transformer_is_looked_into_down_to_its_kernels(open_page: Callable[..., Any], tmp_path: Path) -> None:
    sizes: Any = {"world_size": 8, "workload": "llama3-8b", "seq_len": 4096, "global_batch_size": 8}
    run = mt.simulate("fsdp", **sizes, memory_by_kind=True)
    page = open_page(run.write_html(tmp_path / "page.html"))
    page.wait_for_selector("body[data-ready=yes]")
    assert ">backward<" in page.evaluate("timeline.svg()")  # what is too narrow for labels of its own has one together
    page.evaluate("timeline.search('forward attention 4')")
    page.get_by_role("searchbox").press("Enter")  # chooses it, and zooms to it
    said = page.locator(".told:visible").inner_text()
    assert [fact for fact in _SAID if fact not in said] == []
    page.locator(".mt-timeline canvas").focus()
    for _ in range(4):
        page.keyboard.press("w")
    plain = page.evaluate("timeline.svg()")
    assert ">flash2 attention" in plain
    page.keyboard.press("p")
    assert page.evaluate("timeline.svg()").count("<pattern") > plain.count("<pattern")
    box = page.locator(".mt-timeline canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 40)
    assert "optimizer" in page.locator(".tip:visible").inner_text()  # what is in memory then
    page.keyboard.press("0")
    touch = page.context.new_cdp_session(page)
    for kind, x in (("touchStart", 20), ("touchMove", 60), ("touchMove", 100), ("touchEnd", None)):  # two fingers part
        middle, high = box["x"] + box["width"] / 2, box["y"] + 60
        fingers = [] if x is None else [{"x": middle + way * x, "y": high, "id": way + 1} for way in (-1, 1)]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": fingers})
    assert 0 < page.evaluate("timeline.shown()[0]") < page.evaluate("timeline.shown()[1]") < run.step_time * 0.6


@pytest.mark.ci
def test_sizes_that_nothing_has_are_drawn_as_the_largest() -> None:
    logs = [
        [Event("send", 0, 0, 0.0, 1.0, 1e30, stream=SEND, peer=1, size_bytes=1e90)],
        [Event("recv", 0, 1, 0.0, 1.0, 1.0, stream=RECV, peer=0, size_bytes=8.0)],
    ]
    line = as_timeline(logs)
    explained = Explanation(line, 2, 1.0)
    columns = _columns(timeline_data(make_bars(line, 1.0, explained.gaps), View(), explained))
    assert (max(columns["bytes"]), max(columns["memory_kib"])) == (2**62, 2**62)
