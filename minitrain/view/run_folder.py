"""The files of a run: its page, its Chrome trace and its event log, in a folder of its own.

The words beside a picture (its title and facts, the rows of the table on a comparison's page) are made here from the
run. The table that `compare` prints is in `tables`. The other modules of this room draw what they are given.

Some ranks of a large run, whose pictures and Chrome trace stay small: of ranks that do the same, one.

Of all ranks (or classes of ranks that do the same) those are shown that are spread evenly, the first and the last among
them, as many as have `MOST_WRITTEN` events together. What they did with other ranks is there, without an arrow to them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from minitrain.errors import text_of
from minitrain.files import StrPath, TemporaryFolder
from minitrain.run.analysis.labels import GIB, duration, size
from minitrain.run.analysis.timeline import Timeline, as_timeline
from minitrain.run.figures import TABLES, FiguresOf
from minitrain.run.result import Run
from minitrain.run.saved_runs import save_run
from minitrain.tensors.index_sets import grouped, ranges
from minitrain.view.exports import write_chrome_trace
from minitrain.view.layout import OUT_OF_MEMORY, Delay, LaneUse, Links, View
from minitrain.view.page import run_picture, write_compare_html, write_html

if TYPE_CHECKING:
    from minitrain.operations import Event
    from minitrain.run.facts import TrainedModel
    from minitrain.run.ranks_once import Repeated
    from minitrain.run.simulation import Comparison


PAGE, CHROME_TRACE, RUN_FILE = "index.html", "trace.json", "run.jsonl"
COMPARISON_PAGE = "compare.html"
MESSAGES: Mapping[str | None, str] = {"hidden": "hidden behind compute", "waited for": "waited for"}
"""How a run's messages are received, in words."""

_LONGEST_NAME = 60  # characters; a file system takes 255 bytes


def view_of(run: Run) -> View:
    """Return the words and units for a picture of a run."""
    size = run.num_ranks_a_class if run.draws_classes else 1
    step, *figures = _figures(run)
    facts = [
        step,
        *([] if run.tokens_per_second is None else [f"{run.tokens_per_second:,.0f} tokens/s"]),
        *figures,
        *_facts_of_transformer(run),
        *[str(steps) for steps in (run.steps, run.round) if steps is not None],
        *run.notes,
        *([] if size == 1 else [f"a row for each {size} ranks that do the same, called by the lowest"]),
    ]
    memory = run.capacity_bytes, run.bytes_per_element
    rows = run.ranks_of_rows if run.draws_classes else ()
    return View(
        f"{run.strategy}: {conditions(run)}",
        facts,
        run.step_end,
        *memory,
        _links_of(run),
        meshes=run.meshes,
        ranks_of_rows=rows,
        accounts=run.accounts_of_prices(),
        unexplained=run.why_unexplained,
        steps=run.round.borders[1:-1] if run.round is not None and run.loads_alike else (),
    )


def picture_of(run: Run) -> dict[str, Any]:
    """Return a run as other pages than its own show it, a row for each class of ranks: for `page.timeline_section`."""
    return run_picture("", run.step_timeline_of_classes, replace(view_of(run), ranks_of_rows=run.ranks_of_rows))


def _figures(run: Run) -> list[str]:
    """Return the figures that every run has, in words, the step time first."""
    row = FiguresOf(run)
    loading = f" after loading for {duration(run.load_time)}" if run.load_time else ""
    return [
        f"step {duration(run.step_time)}{loading}",
        *(f"{shown.title} {shown.words(row)}" for shown in TABLES["page"] if shown.number(row) is not None),
        f"peak {_memory(run)}",
    ]


def _links_of(run: Run) -> Links | None:
    """Return what is shown of the links of a run whose transfers shared them."""
    if run.links is None:
        return None
    lanes = [LaneUse(lane.name, lane.bytes_per_s, lane.steps) for lane in run.links.lanes]
    ranks: dict[tuple[str, float, float, str], list[int]] = {}
    for (rank, place), shared in run.links.delays.items():
        event = run.logs[rank][place]
        ranks.setdefault((_what(event), event.time, shared.extra_s, str(shared)), []).append(rank)
    delays = [
        Delay(f"{what}, rank{'s' if len(which) > 1 else ''} {ranges(which)}", extra_s, reason)
        for (what, _, extra_s, reason), which in ranks.items()
    ]
    return Links(lanes, delays, run.last_clock)


def _what(event: Event) -> str:
    return event.typ if event.layer is None else f"{event.typ} of layer {event.layer}"


def _facts_of_transformer(run: Run) -> list[str]:
    """Return what is said of a transformer alone."""
    if run.trained_model is None:
        return []
    hfu = "" if run.hfu is None else f"HFU {run.hfu:.1%}"
    held, moved = memory_text(run), communication_text(run)
    dropped = f"{run.dropped_token_fraction:.1%} of tokens dropped" if run.dropped_token_fraction else ""
    facts = (hfu, dropped, f"at the peak: {held}" if held else "", f"communication: {moved}" if moved else "")
    return [fact for fact in (*facts, f"how sure: {run.sureness}") if fact]


def peak_text(run: Run) -> str:
    """Return what tensors take at most, what the device must hold for it, and what there is, in words."""
    capacity = "" if run.capacity_bytes is None else f" of {run.capacity_bytes / GIB:.4g}"
    tensors = f"{run.peak_memory_bytes / GIB:.2f}"
    if run.needed_memory_bytes is None:
        return f"{tensors}{capacity} GiB" if capacity else size(run.peak_memory_bytes, ".2f")
    return f"{run.needed_memory_bytes / GIB:.2f}{capacity} GiB ({tensors} of tensors)"


def memory_text(run: Run) -> str:
    """Return what the peak memory consists of, in words; nothing where stores did not count kinds."""
    held = run.memory_by_kind or {}
    return ", ".join(f"{kind} {size(size_bytes)}" for kind, size_bytes in held.items() if size_bytes)


def communication_text(run: Run) -> str:
    """Return what a rank communicates along each axis, on average, in words."""
    return ", ".join(
        f"{axis} {duration(total.seconds)} ({size(total.size_bytes)}, {duration(total.exposed_s)} exposed)"
        for axis, total in run.communication_by_axis.items()
    )


def conditions(run: Run) -> str:
    """Return in words the sizes and the hardware of a run."""
    devices = ", ".join(f"{len(kind.ranks)} x {kind.hardware}" for kind in run.device_kinds)
    hardware = f"{run.hardware} ({devices})" if devices else run.hardware
    return f"{sizes(run)}, {hardware}{network_and_prices(run)}"


def sizes(run: Run) -> str:
    """Return in words what a run trains, and on how many ranks."""
    ranks = f"{run.world_size} rank{'s' if run.world_size > 1 else ''}"
    layers = f"{run.num_layers} layer{'s' if run.num_layers > 1 else ''}"
    if run.trained_model is not None:
        model, longest = run.trained_model, run.trained_model.max_seq_len
        at_most = "" if longest is None else f" (its config allows {longest})"
        layers = f"{model.name} of {_layers_of(model)}, {model.seq_len} tokens a sample{at_most}"
        layers += model.unusual_text
    steps = "" if run.steps is None else f", {run.steps.num_steps:,} steps"
    return f"{ranks}, {layers}, batch {run.global_batch_size}{steps}"


def _layers_of(model: TrainedModel) -> str:
    """Return how many layers a transformer has, and of how many units, which num_layers counts."""
    numbers = {name.rpartition(" ")[2] for name in model.layer_names if " " in name}
    return f"{len(numbers)} layer{'s' if len(numbers) > 1 else ''} ({len(model.layer_names)} units)"


def network_and_prices(run: Run) -> str:
    """Return in words the network of a run where it has several tiers, and what priced its operations, after commas."""
    is_one_network = run.num_nodes == 1 or run.device_kinds  # in one tier all are the same; a cluster has its own
    network = "" if is_one_network else f", {run.network} network"
    is_specified = run.priced_by == "roofline" and run.trained_model is None
    priced = "" if is_specified else f", priced by {run.priced_by}"
    return f"{network}{priced}"


def _memory(run: Run) -> str:
    """Return a run's peak memory, and whether it is more than the device has."""
    return peak_text(run) if run.oom is None else f"{peak_text(run)} {OUT_OF_MEMORY}"


def table_rows(comparison: Comparison) -> list[Mapping[str, str]]:
    """Return the table above a comparison: a row a strategy, fastest first, failed ones last."""
    empty = dict.fromkeys(["peak memory", *(column.title for column in TABLES["page"])], "")
    failed = ({"strategy": each.strategy, "step time": f"failed: {text_of(each.error)}"} for each in comparison.failed)
    return [*map(_row, comparison.succeeded), *({**row, **empty} for row in failed)]


def _row(run: Run) -> Mapping[str, str]:
    row = FiguresOf(run)
    shown = TABLES["page" if run.trained_model is None else "page of transformers"]
    texts = (
        {}
        if run.trained_model is None
        else {"peak by kind": memory_text(run), "communication": communication_text(run)}
    )
    return {
        "strategy": run.strategy,
        "step time": duration(run.step_time),
        "peak memory": _memory(run),
        **{column.title: column.words(row) for column in shown},
        **texts,  # long cells stand behind all figures
    }


def notes_of_all(comparison: Comparison) -> list[str]:
    """Return what to know of all runs: how their messages are received, and what their layers count as."""
    names = grouped((run.messages, run.strategy) for run in comparison.succeeded)
    found = [f"messages {text}: {', '.join(names[how])}" for how, text in MESSAGES.items() if how in names]
    return [*(["; ".join(found)] if found else []), *dict.fromkeys(chain(*(run.notes for run in comparison.succeeded)))]


def draw_comparison(comparison: Comparison) -> Any:
    """Return a Plotly figure of the runs that succeeded, fastest first."""
    from minitrain.view.gantt import compare_figure  # noqa: PLC0415

    runs = comparison.succeeded
    return compare_figure(
        {run.strategy: run.drawn for run in runs}, {run.strategy: _captioned(run) for run in runs}, title_of(comparison)
    )


def _captioned(run: Run) -> View:
    """Return the words for a run's panel in a comparison: few enough for a narrow window; the table has the others."""
    return replace(view_of(run), facts=_figures(run))


def title_of(comparison: Comparison) -> str:
    """Return in words the sizes and the hardware that all runs of a comparison share."""
    runs = comparison.succeeded
    if not runs:
        return "no strategy came to its end"
    priced = grouped((run.priced_by, run.strategy) for run in runs)
    if len(priced) == 1:
        return conditions(runs[0])
    each = "; ".join(f"{', '.join(names)} by {words}" for words, names in priced.items())
    return conditions(replace(runs[0], priced_by=f"what each strategy stands for ({each})"))


def write_comparison_page(comparison: Comparison, path: StrPath, links: Mapping[str, str] | None = None) -> Path:
    """Write a page of all runs; names with a link lead to the run's own page."""
    runs = comparison.succeeded
    return write_compare_html(
        Path(path),
        {run.strategy: run.drawn for run in runs},
        {run.strategy: _captioned(run) for run in runs},
        title=title_of(comparison),
        table=table_rows(comparison),
        notes=notes_of_all(comparison),
        links=links,
    )


def folder_name(name: str) -> str:
    """Return a strategy's name as the name of a folder.

    >>> folder_name("1f1b (2)")
    '1f1b-2'
    """
    return re.sub(r"[^\w.+-]+", "-", name).strip("-.")[:_LONGEST_NAME] or "run"


def write_run(
    run: Run, parent: StrPath, name: str | None = None, *, page_alone: bool = False, all_ranks: bool = True
) -> Path:
    """Write a run's page, Chrome trace and log into a folder named after its strategy.

    The files are complete before the first of them is moved to its place.

    Args:
        run: the run.
        parent: the folder to make that folder in; it is made if it does not exist.
        name: of the folder, if not after the strategy.
        page_alone: write the page only, into a folder of its own: "ddp-folded".
        all_ranks: write every rank, however large the run is; otherwise page and Chrome trace of a large run show some
            ranks (see `minitrain.view.run_folder`), and its log has ranks that did the same once; there is none where
            even those have more events than `MOST_LOGGED`.

    Returns:
        The run's folder.

    Raises:
        OSError: something cannot be written.
    """
    parent = Path(parent)
    parent.mkdir(parents=True, exist_ok=True)
    target = parent / f"{name or folder_name(run.strategy)}{'-folded' if page_alone else ''}"
    excerpt = repeated = None
    if not all_ranks and not page_alone:
        excerpt = excerpt_of(run)
        repeated = run.repeated_ranks(MOST_LOGGED) if excerpt else None
    has_no_log = excerpt is not None and repeated is None
    files = (PAGE,) if page_alone else (PAGE, CHROME_TRACE) if has_no_log else (PAGE, CHROME_TRACE, RUN_FILE)
    with TemporaryFolder(f".{target.name}.", parent) as made:
        if excerpt is not None:
            excerpt.write(Path(made, PAGE), Path(made, CHROME_TRACE), view_of(run))
        else:
            run.write_html(Path(made, PAGE))
            if CHROME_TRACE in files:
                run.write_chrome_trace(Path(made, CHROME_TRACE))
        if RUN_FILE in files:
            _write_log(run, Path(made, RUN_FILE), repeated)
        target.mkdir(exist_ok=True)
        for file in (PAGE, CHROME_TRACE, RUN_FILE):
            if file in files:
                Path(made, file).replace(target / file)
            elif excerpt is not None:  # of an earlier run
                Path(target, file).unlink(missing_ok=True)
    return target


def _write_log(run: Run, path: Path, repeated: Sequence[Repeated] | None) -> None:
    """Write a run's log, without the events of ranks that repeat others."""
    if repeated:
        save_run(run, path, repeated)
    else:
        run.save(path)


def _unused(name: str, taken: Collection[str]) -> str:
    """Return a name that is not taken yet."""
    numbered = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return next(found for found in numbered if found not in taken)


def write_comparison(
    comparison: Comparison, parent: StrPath, *, pages_alone: bool = False, all_ranks: bool = True
) -> Sequence[Path]:
    """Write every run that succeeded, and a page that compares them and links to theirs.

    Args:
        comparison: the runs.
        parent: the folder to write to; it is made if it does not exist.
        pages_alone: write no other files of the runs.
        all_ranks: as for `write_run`.

    Returns:
        The comparison's page, and the runs' folders.
    """
    names: dict[str, str] = {}  # folders by strategy: names that differ may be called alike
    for run in comparison.succeeded:
        names[run.strategy] = _unused(folder_name(run.strategy), names.values())
    folders = {
        run.strategy: write_run(run, parent, names[run.strategy], page_alone=pages_alone, all_ranks=all_ranks)
        for run in comparison.succeeded
    }
    if not folders:
        return []
    links = {name: f"{folder.name}/{PAGE}" for name, folder in folders.items()}
    page = Path(parent, COMPARISON_PAGE)
    return [write_comparison_page(comparison, page, links), *folders.values()]


MOST_WRITTEN = 50_000
"""The most events of a run of which every rank is written by default: some 25 MB of files, in a few seconds."""
MOST_LOGGED = 150_000
"""The most events of a log by default, where ranks that did the same are written once: some 15 MB, in two seconds."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """What is shown of a large run.

    Args:
        timeline: the events of the chosen ranks, a row each.
        ranks: which these are.
        places: the place of each among the logs of classes.
        note: what is shown and what is not, in words.
    """

    timeline: Timeline
    ranks: Sequence[int]
    places: Sequence[int]
    note: str

    def write(self, page: Path, chrome_trace: Path, view: View) -> None:
        """Write a page and a Chrome trace.

        Args:
            page: where the page goes.
            chrome_trace: where the trace goes.
            view: words and units of the run.
        """
        rows = [view.ranks_of_rows[place] for place in self.places] if view.ranks_of_rows else [[r] for r in self.ranks]
        drawn = replace(view, facts=[*view.facts, self.note], ranks_of_rows=rows)
        write_html(page, self.timeline, drawn)
        write_chrome_trace(chrome_trace, self.timeline, view.bytes_per_element)


def picture_of_first_ranks(run: Run, view: View, most_events: int = 3000) -> str:
    """Return an SVG of a run, of as many ranks of a large one as it can show; nothing where one has too many events.

    Args:
        run: the run.
        view: its words and units.
        most_events: how many events may be drawn.
    """
    from minitrain.view.svg import svg  # noqa: PLC0415

    if run.drawn.num_events <= most_events:
        return svg(run.drawn, view)
    ends = accumulate(len(log) for log in run.logs)
    num_ranks = sum(1 for _ in takewhile(lambda end: end <= most_events, ends))  # others are not looked at
    if num_ranks == len(run.logs) - 1 > 1:
        return svg(run.drawn, view)
    if not num_ranks:
        return ""
    title = f"{view.title}: {'rank 0' if num_ranks == 1 else f'the first {num_ranks}'} of {len(run.logs)} ranks"
    return svg(as_timeline(run.logs[:num_ranks]), replace(view, title=title))


def excerpt_of(run: Run) -> Excerpt | None:
    """Return what is to be shown of a run; None where that is all of it."""
    if run.num_events <= MOST_WRITTEN:
        return None
    logs, of_logs, size = run.class_logs, run.ranks_of_class_logs, run.num_ranks_a_class
    places = _spread([len(log) for log in logs])
    ranks = [of_logs[place] for place in places]
    row_of = np.full(len(of_logs) + 1, -1)  # the last place is of no rank
    row_of[places] = np.arange(len(places))
    class_of = np.array([*_classes(run), -1])
    line = run._named(as_timeline([logs[place] for place in places]), ranks)
    names = line.rank_names or tuple(map(str, ranks))
    line = replace(
        line,
        peer=row_of[class_of[line.peer]],
        waited_for=row_of[class_of[line.waited_for]],
        rank_names=tuple(f"{name} (x {size})" for name in names) if size > 1 else names,
        ranks_a_row=size,
    )
    return Excerpt(run._of_step(line), ranks, places, _words(run, ranks))


def _classes(run: Any) -> Sequence[int]:
    """Return the place of each rank's log among those of classes."""
    count = len(run.class_logs)
    if count == run.world_size:
        return range(count)
    found: Sequence[int] = run.fold.of_every_rank(list(range(count)))
    return found


def _spread(lengths: Sequence[int]) -> list[int]:
    """Return places that are spread evenly over logs of some lengths, as many as may be written; one at least."""
    choices = (
        np.unique(np.linspace(0, len(lengths) - 1, num).round().astype(int)) for num in range(1, len(lengths) + 1)
    )
    fitting = takewhile(lambda places: sum(lengths[place] for place in places) <= MOST_WRITTEN, choices)
    best = max(fitting, key=len, default=np.zeros(1, dtype=int))
    return [int(place) for place in best]


def _words(run: Run, ranks: Sequence[int]) -> str:
    """Return what is shown of a run."""
    alike = f" of {run.num_ranks_a_class} ranks each that do the same" if run.num_ranks_a_class > 1 else ""
    which = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranges(ranks)}"
    classes = f", one of each of {len(run.class_logs)} classes{alike}" if len(ranks) == len(run.class_logs) else alike
    return f"shown: {which} of {run.world_size}{classes}"
