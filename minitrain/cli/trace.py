"""The commands `minitrain trace show`, `export` and `explain`: saved runs, drawn and explained without a new run.

The command `minitrain trace montecarlo`: a saved run under noise.
"""

from __future__ import annotations

import webbrowser
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

import minitrain as mt
from minitrain.cli.options import group
from minitrain.cli.output import print_json, print_lines, print_table
from minitrain.errors import UsageError
from minitrain.files import write_text
from minitrain.run.analysis.explanation import GAP_KINDS, Explanation
from minitrain.run.analysis.labels import BUBBLE, MAKESPAN_BUBBLE, duration
from minitrain.run.result import Run
from minitrain.view.exports import write_chakra, write_hta
from minitrain.view.run_folder import conditions, view_of
from minitrain.view.tables import facts_table, filled_table

trace = group("Show, explain and export saved runs.", no_args_is_help=True)


def _run_file(given: str) -> str:
    """Return the run file that is meant: that in a folder, where `run` and `compare` write one."""
    inside = Path(given, "run.jsonl")
    return str(inside) if inside.is_file() else given


RunFile = Annotated[str, typer.Argument(callback=_run_file)]


def _svg(run: Run, path: Path) -> Path:
    from minitrain.view.svg import write_svg  # noqa: PLC0415  (what draws only when somebody does)

    return write_svg(path, run.step_timeline, view_of(run))


def _text(run: Run, path: Path) -> Path:
    from minitrain.view.lanes import schedule_text  # noqa: PLC0415  (as above)

    return write_text(path, [schedule_text(run.timeline)])


_WRITERS: Mapping[str, Callable[[Run, Path], Path | Sequence[Path]]] = {
    "html": lambda run, path: run.write_html(path),
    "chrome": lambda run, path: run.write_chrome_trace(path),
    "svg": _svg,
    "text": _text,
    "hta": lambda run, path: write_hta(path, run.timeline),
    "chakra": lambda run, path: write_chakra(path, run.timeline),
}
_ENDINGS = {".html": "html", ".json": "chrome", ".json.gz": "chrome", ".svg": "svg", ".txt": "text"}


@trace.define()
def show(run: RunFile, *, out: Path | None = None, browser: Annotated[bool, typer.Option("--open")] = False) -> None:
    """Draw a saved run as one HTML page that needs no internet.

    Args:
        run (RUN): A run file, such as traces/ddp/run.jsonl.
        out (PAGE): The page; beside RUN by default.
        browser: Open the page in the browser.
    """
    path = out or Path(run).with_name(Path(run).name.removesuffix(".gz")).with_suffix(".html")
    written = mt.load_run(run).write_html(path)
    print_lines([f"wrote {written}"])
    if browser:
        webbrowser.open(written.resolve().as_uri())


@trace.define()
def export(run: RunFile, out: Path, *, form: Annotated[str | None, typer.Option("--format")] = None) -> None:
    """Write a saved run for other tools.

    html: the page. chrome: .json or .json.gz for ui.perfetto.dev. svg: a picture for papers. text: the schedule, a
    rank a line. hta: a folder for HolisticTraceAnalysis. chakra: a folder of Chakra execution traces.

    Args:
        run (RUN): A run file, such as traces/ddp/run.jsonl.
        out (OUT): A file, or the folder of hta and chakra.
        form (FORMAT): html, chrome, svg, text, hta, chakra; by the end of OUT by default.
    """
    writer = _WRITERS[_format(out, form)]
    written = writer(mt.load_run(run), out)
    paths = [written] if isinstance(written, Path) else written
    print_lines([f"wrote {paths[0]}" if len(paths) == 1 else f"wrote {len(paths)} files into {out}"])


def _format(out: Path, form: str | None) -> str:
    """Return the format that was asked for, or the one that the end of the name stands for."""
    found = form or next((name for end, name in _ENDINGS.items() if out.name.endswith(end)), None)
    if found is None or found not in _WRITERS:
        known = ", ".join(_WRITERS)
        what = f"{out} does not say its format" if form is None else f"there is no format {form!r}"
        raise UsageError(f"{what}; give --format, one of {known}, or end OUT in {', '.join(_ENDINGS)}")
    return found


@trace.define()
def profiles(run: RunFile, traces: list[Path], *, out: Path, step: int | None = None, as_json: bool = False) -> None:
    """Read traces of torch's profiler as a measured run of a predicted program, and say what was matched.

    The measured run has the operations of RUN with the times of the traces; `minitrain diff` compares the two.

    Args:
        run (RUN): The predicted run's file.
        traces (TRACE): Chrome traces of the profiler, .json or .json.gz, of all ranks or some.
        out (FILE): Write the measured run.
        step (N): Which whole step of the traces, from 0 on; that of the median time by default.
        as_json: Print JSON instead of text.
    """
    found = mt.read_profiles(mt.load_run(run), traces, step=step)
    found.run.save(out)
    if as_json:
        print_json({**found.summary(), "step_time_s": found.run.step_time})
        return
    print_lines([*found.words, f"wrote {out}"])


@trace.define()
def explain(run: RunFile, *, as_json: bool = False) -> None:
    """Say why every rank waits, what sets the step time, what would help, and what fills the memory.

    Args:
        run (RUN): A run file, such as traces/ddp/run.jsonl.
        as_json: Print JSON instead of a table.
    """
    saved = mt.load_run(run)
    explained = saved.explain()
    if as_json:
        print_json({**saved.summary(), **explained.data()})
        return
    print_lines([f"{saved.strategy}: {conditions(saved)}", ""])
    if len(explained.gaps):
        print_lines(["Waiting of each rank, by reason"])
        print_table(_waits(explained))
    else:
        print_lines(["No rank ever waits.", ""])
    print_table(facts_table(_facts(saved, explained)))


def _waits(explained: Explanation) -> Table:
    """Return the table of each rank's waiting by kind; of many ranks, the first and the last ones."""
    seconds = explained.gaps.seconds()
    shown = [kind for kind in range(len(GAP_KINDS)) if seconds[:, kind].any()]
    rows = []
    ranks = range(len(seconds))
    for rank in ranks if len(ranks) <= 16 else [*ranks[:8], *ranks[-8:]]:
        parts = [*seconds[rank, shown].tolist(), float(seconds[rank].sum())]
        rows.append([str(rank), *(duration(part) if part else "" for part in parts)])
    return filled_table(dict.fromkeys(("rank", *(GAP_KINDS[kind] for kind in shown), "all")), rows)


def _facts(run: Run, explained: Explanation) -> dict[str, str]:
    """Return the longest waits, the critical path and the other explanations of a run, a line each."""
    gaps, step = explained.gaps, explained.breakdown.step_time_s
    facts: dict[str, str] = {}
    for place, gap in enumerate(explained.longest_gaps(3)):
        name = "longest waits" if not place else " " * place
        kind = GAP_KINDS[gaps.kind[gap]]
        facts[name] = f"rank {gaps.rank[gap]}, {duration(gaps.duration[gap])} for {gaps.reason(gap)} ({kind})"
    for device, waits in explained.waits_by_device.items() if run.device_kinds else ():
        whom = ", ".join(f"{duration(seconds)} for {other}" for other, seconds in waits.items())
        facts[f"waits of {device}"] = f"mean of a rank: {whom or 'never'}"
    path = {**explained.critical_path.by_typ(), "waiting": explained.critical_path.seconds()["waiting"]}
    facts["critical path"] = ", ".join(f"{name} {part / step:.1%}" for name, part in path.items() if part)
    saved = [f"{name} {duration(time)}" for name, time in explained.what_ifs.items() if time < step * (1 - 1e-9)]
    facts["step if free"] = ", ".join(saved[:6]) or "nothing alone would shorten it"
    highest = max(explained.high_water, key=lambda mark: (mark.elements, -mark.rank))
    facts["most memory"] = highest.text(run.timeline, run.bytes_per_element)
    return facts | _bubbles(explained)


def _bubbles(explained: Explanation) -> dict[str, str]:
    """Return the bubble and, for a pipeline, the figure that textbooks and papers compare, each with what it is."""
    facts = {"bubble": f"{explained.breakdown.bubble_fraction:.1%}: {BUBBLE}"} if len(explained.gaps) else {}
    form = explained.closed_form
    if form is not None:
        condition = "" if form.holds else f" (if {form.condition})"
        facts["makespan bubble"] = f"{form.fraction(form.measured_s):.1%}: {MAKESPAN_BUBBLE}"
        facts["textbook bubble"] = (
            f"{form.fraction(form.textbook_s):.1%}: the makespan bubble by the formula {form.formula}{condition}, "
            f"where communication is free; this run with free communication: {form.fraction(form.free_s):.1%}"
        )
    return facts


__all__ = ["trace"]  # with all of its commands, as the table in `application` wants it


@trace.define()
def montecarlo(
    run: RunFile,
    *,
    jitter: list[str] | None = None,
    straggler: str | None = None,
    slowdown: list[str] | None = None,
    slow_link: list[str] | None = None,
    samples: Annotated[int, typer.Option(min=1, max=10_000_000)] = 1000,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    html: Path | None = None,
    as_json: bool = False,
) -> None:
    """Time a saved run again under noise: how long a step takes, and which ranks and operations carry the tail.

    Args:
        run (RUN): A run file, such as traces/ddp/run.jsonl.
        jitter ([KIND=]SIGMA): Sigma of the lognormal factor on every operation, or on those of a kind: computing,
            communication, all_gather, ...; repeat it for more.
        straggler (P:FACTOR): A rank computes FACTOR times as long, with probability P a step.
        slowdown (RANK=FACTOR): This rank always does; repeat it for more.
        slow_link (P:FACTOR[:A-B]): A rank's link, or the one of ranks A and B, is slow with probability P; repeat it
            for more.
        samples (N): Steps to draw.
        seed (N): The same seed, the same samples.
        html (PAGE): Draw the run and the distribution as one page.
        as_json: Print JSON instead of a table.
    """
    noise = mt.Noise(
        jitter=_jitter(jitter or []),
        straggler=None if straggler is None else _chance("--straggler", straggler),
        slowdown=dict(_slowdown(text) for text in slowdown or []),
        slow_links=[_slow_link(text) for text in slow_link or []],
    )
    found = mt.monte_carlo(mt.load_run(run), noise, samples=samples, seed=seed)
    written = None if html is None else found.write_html(html)
    if as_json:
        print_json(found.summary())
    else:
        print_lines([*str(found).splitlines(), *([] if written is None else [f"wrote {written}"])])


def _jitter(texts: Sequence[str]) -> dict[str, float]:
    """Return sigmas by kind; a number alone is for all that have none of their own."""
    found: dict[str, float] = {}
    for text in texts:
        kind, _, sigma = text.rpartition("=")
        kinds = [kind] if kind else ["computing", "communication"]
        found |= dict.fromkeys(kinds, _number("--jitter", sigma, text, "0.05 or all_gather=0.2"))
    return found


def _slowdown(text: str) -> tuple[int, float]:
    """Return a rank and its factor."""
    rank, _, factor = text.partition("=")
    example = "3=1.5"
    return _rank("--slowdown", rank, text, example), _number("--slowdown", factor, text, example)


def _chance(option: str, text: str) -> tuple[float, float]:
    """Return a probability and a factor."""
    probability, _, factor = text.partition(":")
    return _number(option, probability, text, "0.01:2.0"), _number(option, factor, text, "0.01:2.0")


def _slow_link(text: str) -> mt.SlowLink:
    """Return a link that is slow now and then."""
    option, example = "--slow-link", "0.01:4.0 or 0.01:4.0:0-8"
    chance, _, pair = _cut(text)
    ranks: Any = None
    if pair:
        first, _, second = pair.partition("-")
        ranks = (_rank(option, first, text, example), _rank(option, second, text, example))
    return mt.SlowLink(*_chance(option, chance), pair=ranks)


def _cut(text: str) -> tuple[str, str, str]:
    """Cut a text at its second colon: what is before it, the colon, and the rest."""
    return (text, "", "") if text.count(":") < 2 else text.rpartition(":")


def _number(option: str, text: str, whole: str, example: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{option} takes numbers, as in {example}, got {whole!r}") from None


def _rank(option: str, text: str, whole: str, example: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise UsageError(f"{option} takes ranks, as in {example}, got {whole!r}")
    return int(text)
