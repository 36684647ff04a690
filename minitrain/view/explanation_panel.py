"""Words beside a picture, as HTML: what explains the step time above it, and what explains an operation at a click.

The step time is explained by where it goes, why ranks wait, and what would shorten it: a short form of what
`minitrain trace explain` prints. Ranks that spend their time alike share a line, so that it is as short for a thousand
ranks as for eight.

Of an operation, the law of its record, or its method's docstring, says what it does. The predictor says what its price
is made of (`minitrain.machine.price`).
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minitrain.engine.strategy_model import StrategyModel
from minitrain.machine.price import Account, Part
from minitrain.operations import RECV
from minitrain.operations.collectives import COLLECTIVES
from minitrain.run.analysis.explanation import GAP_KINDS, Explanation, Gaps
from minitrain.run.analysis.labels import BUBBLE, duration, size
from minitrain.run.analysis.timeline import NONE, Floats, Ints, Timeline
from minitrain.tensors.index_sets import ranges
from minitrain.view.bars import RECOMPUTED, USES
from minitrain.view.layout import View

MAX_LINES = 12  # of ranks
_MAX_REASONS, _MAX_WHAT_IFS, _MAX_KERNELS, _LEAST_SAVED = 4, 6, 6, 0.0005
_LONGEST_NAME = 22  # of a line's ranks, in characters
_CLASSES = dict(zip((use.name for use in USES), ("computing", "exposed", "idle"), strict=True))


@dataclass(frozen=True, slots=True)
class Line:
    """One bar: whose time it is, and how long each use of it takes.

    Args:
        name: whose: "rank 3", "ranks 0-7", or a strategy.
        seconds: computing, exposed communication and waiting, s.
        link: address of a page of its own, or "".
    """

    name: str
    seconds: tuple[float, float, float]
    link: str = ""


def explanation_panel(explained: Explanation, view: View | None = None) -> str:
    """Return the panel of one run.

    Args:
        explained: its explanation.
        view: what explains its prices, and where its ranks are in their mesh.
    """
    view = view or View()
    split = explained.breakdown
    if not split.step_time_s:
        return ""
    parts = np.stack([split.computing, split.exposed, split.waiting], axis=1)
    lines = lines_table(_lines_of(explained, parts, view), split.step_time_s)
    cards = [
        ("Where the time goes", [lines, *_computing(explained, view.accounts)]),
        ("Why ranks wait", _waits(explained)),
        ("What would help", _what_ifs(explained)),
    ]
    return section(cards)


def _lines_of(explained: Explanation, parts: Floats, view: View) -> list[Line]:
    """Return the lines of a run: a line for each kind of device where there are several."""
    line = explained.timeline
    if not line.devices:
        return rank_lines(parts, line.rank_names, view)
    kinds = np.array(line.devices)
    each = [_line(f"ranks on {kind}", parts[kinds == kind]) for kind in dict.fromkeys(line.devices)]
    return [_line("all ranks", parts), *each]


def section(cards: Iterable[tuple[str, Iterable[str]]]) -> str:
    """Return titled cards beside one another, or below one another where the window is narrow."""
    texts = (f"<div><h2>{title}</h2>{''.join(content)}</div>\n" for title, content in cards)
    return f'<section class="answer">\n{"".join(texts)}</section>\n'


def rank_lines(parts: Floats, names: Sequence[str] = (), view: View | None = None) -> list[Line]:
    """Return a line for all ranks, and one for each rank, for ranks that are alike, or for neighbours.

    Args:
        parts: computing, exposed communication and waiting of each rank, s, (num_ranks, 3).
        names: of the ranks, if they are not their rows' numbers.
        view: the ranks that each row stands for, and their mesh.
    """
    groups, known = _groups(parts), view.ranks_of_rows if view else ()
    count = sum(map(len, known)) or len(parts)
    if len(groups) == 1 < count:
        return [_line("all ranks alike" if names and not known else f"all {count:,} ranks alike", parts)]
    whole = [_line("all ranks", parts)] if len(groups) > 1 else []
    return whole + [_line(_name_of_rows(group.tolist(), names, view), parts[group]) for group in groups]


def _name_of_rows(rows: Sequence[int], names: Sequence[str], view: View | None) -> str:
    """Name rows by the places of their ranks in the mesh, or else as `name_of_ranks` does."""
    along = (
        view.along([rank for row in rows for rank in view.ranks_of_rows[row]]) if view and view.ranks_of_rows else ""
    )
    return along or name_of_ranks(rows, names)


def _groups(parts: Floats) -> list[Ints]:
    """Return up to `MAX_LINES` groups of ranks: single ones, ranks alike to a percent of the step, or neighbours."""
    num_ranks = len(parts)
    percent = np.rint(100 * parts / max(parts[0].sum(), 1e-300)).astype(np.int64)
    _, alike = np.unique(percent, axis=0, return_inverse=True)
    alike = alike.reshape(-1)
    if alike.max() == 0 or (num_ranks > MAX_LINES and alike.max() < MAX_LINES):
        found = [np.flatnonzero(alike == kind) for kind in range(alike.max() + 1)]
        return sorted(found, key=lambda group: int(group[0]))
    size = -(-num_ranks // MAX_LINES)
    return [np.arange(first, min(first + size, num_ranks)) for first in range(0, num_ranks, size)]


def name_of_ranks(ranks: Sequence[int], names: Sequence[str]) -> str:
    """Name ranks: "rank 3", "ranks 0-7", or "16 ranks: 0, 4, 8 ..." where the list would be too long.

    Args:
        ranks: the numbers of their rows.
        names: of all rows, if these are not the ranks' numbers.
    """
    if names:
        shown = ", ".join(names[rank] for rank in ranks[:3])
        return f"rank{'s' if len(ranks) > 1 else ''} {shown}{' ...' if len(ranks) > 3 else ''}"
    text = ranges(ranks).replace(",", ", ")
    if len(text) > _LONGEST_NAME:
        return f"{len(ranks)} ranks: {', '.join(map(str, ranks[:3]))} ..."
    return f"rank{'s' if len(ranks) > 1 else ''} {text}"


def _line(name: str, parts: Floats) -> Line:
    """Return the mean of some ranks as a line."""
    computing, exposed, waiting = parts.mean(axis=0).tolist()
    return Line(name, (computing, exposed, waiting))


def lines_table(lines: Sequence[Line], longest_s: float) -> str:
    """Return lines as bars with their shares in percent, below a legend.

    Args:
        lines: what to draw.
        longest_s: the time that fills the whole width, s.
    """
    if not lines or longest_s <= 0:
        return ""
    legend = "".join(f'<span><i class="{_CLASSES[use.name]}"></i>{use.name}</span> ' for use in USES)
    body = "".join(_row(line, longest_s) for line in lines)
    return f'<p class="legend">{legend}</p><table class="lines"><tbody>{body}</tbody></table>\n'


def _row(line: Line, longest_s: float) -> str:
    """Return one line of `lines_table`."""
    total = sum(line.seconds) or 1.0
    name = html.escape(line.name)
    whose = f'<a href="{html.escape(line.link)}">{name}</a>' if line.link else name
    pieces = [(use.name, seconds) for use, seconds in zip(USES, line.seconds, strict=True) if seconds > 0]
    bar = "".join(f'<i class="{_CLASSES[use]}" style="width:{seconds / longest_s:.2%}"></i>' for use, seconds in pieces)
    said = ", ".join(f"{use} {duration(seconds)}" for use, seconds in pieces)
    numbers = "".join(f"<td>{seconds / total:.0%}</td>" for seconds in line.seconds)
    return f'<tr title="{name}: {said}"><td>{whose}</td><td class="bar"><b>{bar}</b></td>{numbers}</tr>\n'


def _waits(explained: Explanation) -> Iterator[str]:
    """Yield the reasons of waiting, those that cost most first, with the longest wait of each."""
    gaps, step = explained.gaps, explained.breakdown.step_time_s
    if not len(gaps):
        yield "<p>No rank ever waits.</p>"
        return
    mean = gaps.seconds().mean(axis=0)
    rows = [
        (GAP_KINDS[kind], f"{duration(mean[kind])}<small>{mean[kind] / step:.1%}</small>", _longest(gaps, kind))
        for kind in np.argsort(-mean, kind="stable").tolist()[:_MAX_REASONS]
        if mean[kind] > 0
    ]
    yield table("waits", ("reason", "mean a rank", "longest wait"), rows)
    if explained.timeline.devices:
        yield table("waits", ("device", "mean a rank", "waits for"), _waits_of_devices(explained, step))
    yield f"<p>All waits together are the <b>bubble</b>, {explained.breakdown.bubble_fraction:.1%}: {BUBBLE}.</p>"


def _waits_of_devices(explained: Explanation, step: float) -> Iterator[tuple[str, str, str]]:
    """Yield a row for each kind of device: how long its ranks wait, and for which kinds."""
    for device, waits in explained.waits_by_device.items():
        mean = sum(waits.values())
        others = sorted(waits.items(), key=lambda item: -item[1])
        whom = ", ".join(f"{html.escape(other)} {duration(seconds)}" for other, seconds in others)
        yield html.escape(device), f"{duration(mean)}<small>{mean / step:.1%}</small>", whom or "-"


def _computing(explained: Explanation, accounts: Accounts) -> Iterator[str]:
    """Yield the kernels, or the operations, that computing takes most time in, and what bounds them."""
    step = explained.breakdown.step_time_s
    rows = [
        (html.escape(name), f"{duration(part.seconds)}<small>{part.seconds / step:.1%}</small>", reaches, bound)
        for name, part, reaches, bound in of_computing(explained.timeline, accounts)[:_MAX_KERNELS]
        if part.seconds >= _LEAST_SAVED * step
    ]
    if rows:
        yield "<h2>What computing takes</h2>"
        yield table("kernels", ("", "mean a rank", "reaches", "bound by"), rows)


def _longest(gaps: Gaps, kind: int) -> str:
    """Say which wait of a kind is the longest, and what for."""
    gap = int(np.argmax(np.where(gaps.kind == kind, gaps.duration, -1.0)))
    whose = gaps.timeline.rank_name(gaps.rank[gap])
    return f"{duration(gaps.duration[gap])} on rank {whose}, for {html.escape(gaps.reason(gap))}"


def _what_ifs(explained: Explanation) -> Iterator[str]:
    """Yield what the step would take if a class of operation took no time, and where to read more."""
    step = explained.breakdown.step_time_s
    shares = {name: 1 - time / step for name, time in explained.what_ifs.items()}
    rows = [
        (html.escape(name), duration(explained.what_ifs[name]), f"{share:.1%}")
        for name, share in list(shares.items())[:_MAX_WHAT_IFS]
        if share >= _LEAST_SAVED
    ]
    if rows:
        yield table("saved", ("if it took no time", "step", "saved"), rows)
    else:
        yield "<p>No class of operation alone would shorten the step.</p>"
    yield f"<p>Critical path: {_path(explained, step)}.</p>"
    if explained.timeline.ranks_a_row == 1:  # a folded run has no file
        yield "<p><code>minitrain trace explain RUN</code>, with this run's run.jsonl as RUN, says more.</p>"


def _path(explained: Explanation, step: float) -> str:
    """Return what the chain of operations that sets the step time consists of."""
    found = explained.critical_path
    parts: Mapping[str, float] = {**found.by_typ(), "waiting": found.seconds()["waiting"]}
    shown = [f"{html.escape(name)} {part / step:.0%}" for name, part in parts.items() if part >= 0.005 * step]
    return ", ".join(shown)


def table(kind: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table of texts that are HTML already, or whole cells, with a class for its style."""
    heads = "".join(f"<th>{name}</th>" for name in head)
    cells = ((cell if cell.startswith("<td") else f"<td>{cell}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{''.join(row)}</tr>\n" for row in cells)
    return f'<table class="{kind}"><thead><tr>{heads}</tr></thead>\n<tbody>{body}</tbody></table>\n'


Accounts = Mapping[int, Callable[[], Account]]
"""What explains prices, by the price's id."""

_LIMITS = {
    "compute": ("compute", "arithmetic in no time"),
    "memory": ("memory", "endless memory bandwidth"),
    "launches": ("launches", "launches in no time"),
    "bandwidth": ("network bandwidth", "endless network bandwidth"),
    "latency": ("network latency", "no network latency"),
}
"""What a limit is called as a bound, and what would be without it."""
_METHODS = {RECV: "receive", RECOMPUTED: "forward"}
_LEAST_SHARE = 0.005


def law_of(name: str) -> str:
    """Return what an operation does, in a sentence; "" of one that is not known.

    >>> law_of("all_gather")
    'Put the shards of all together; each member gets what holds them.'
    """
    record = COLLECTIVES.get(name)
    told = record.law if record else getattr(StrategyModel, _METHODS.get(name, name), None)
    return (getattr(told, "__doc__", None) or "").partition("\n")[0]


def words_of(account: Account) -> dict[str, Any]:
    """Return an account for the panel: facts as pairs of a name and a text, its kernels, and how long it takes alone.

    Of a kernel there are its name, its share of all, what bounds it, and what it takes and reaches.
    """
    whole, total = account.whole, sum(part.seconds for part in account.parts)
    parts = [
        [
            part.name,
            part.seconds / total,
            _LIMITS[part.bound][0] if part.bound else "",
            ", ".join(filter(None, (duration(part.seconds), _reached(part, part.bound)))),
        ]
        for part in account.parts
    ]
    return {"facts": list(_facts(whole, account)), "parts": parts, "seconds": whole.seconds}


def of_computing(line: Timeline, accounts: Accounts) -> list[tuple[str, Part, str, str]]:
    """Return what computing in a step consists of, by kernels or by operations: longest first, means of all ranks.

    Args:
        line: the step.
        accounts: what explains its prices, by the price's id.

    Returns:
        Of each its name; seconds, FLOP and bytes together; the rate that it reaches, and what bounds most of it.
    """
    chosen = np.flatnonzero(line.computes & ~line.loading & (line.duration > 0))
    codes, first, place = np.unique(line.price[chosen], return_index=True, return_inverse=True)
    counts = np.bincount(place, minlength=len(codes))
    found: dict[str, list[tuple[Part, float, float]]] = {}
    for code, event, count in zip(codes.tolist(), chosen[first].tolist(), counts.tolist(), strict=True):
        account = accounts.get(id(line.prices[code].answered)) if code != NONE else None
        if account is None:
            return []
        told = account()
        for part in told.parts or (told.whole,):
            name = part.name.partition(" ")[0] if part.name.startswith("matmul") else part.name
            found.setdefault(name or line.typs[line.typ[event]], []).append(
                (part, count / line.num_ranks, told.peak_flop_per_s or 0.0)
            )
    return sorted(map(_together, found, found.values()), key=lambda each: -each[1].seconds)


def _together(name: str, parts: Sequence[tuple[Part, float, float]]) -> tuple[str, Part, str, str]:
    """Return parts, each with how often a rank has it and its device's peak, as one."""
    seconds, work_flop, traffic_bytes = (
        sum(getattr(part, field) * count for part, count, _ in parts)
        for field in ("seconds", "work_flop", "traffic_bytes")
    )
    bounds: dict[str, float] = {}
    for part, count, _ in parts:
        bounds[part.bound] = bounds.get(part.bound, 0.0) + part.seconds * count
    most = max(bounds, key=bounds.__getitem__)
    whole = Part(name, seconds, work_flop, traffic_bytes)
    peak = sum(part.seconds * count * peak for part, count, peak in parts) / seconds if seconds else 0.0
    return name, whole, _reached(whole, most, peak), _LIMITS[most][0] if most else ""


def _facts(whole: Part, account: Account) -> Iterator[tuple[str, str]]:
    """Yield what is said of all that a price pays for."""
    yield "price", f"{duration(whole.seconds)}: {account.rule}"
    if account.wire_s:
        hidden = max(0.0, 1 - whole.seconds / account.wire_s)
        beside = f"; {hidden:.0%} of it hidden by computing beside it" if hidden >= _LEAST_SHARE else ""
        rate = f"{account.wire_bytes / account.wire_s / 1e9:.4g} GB/s"
        yield "on the wire", f"{size(account.wire_bytes)} a rank in {duration(account.wire_s)}, {rate}{beside}"
    if whole.work_flop:
        yield "FLOP", f"{_flop(whole.work_flop)}, {_reached(whole, 'compute', account.peak_flop_per_s)}"
    if whole.traffic_bytes:
        yield "memory traffic", f"{size(whole.traffic_bytes)}, {_reached(whole, 'memory')}"
    if whole.endless:
        yield "bound by", f"{_LIMITS[whole.bound][0]}{_savings(whole)}"


def _savings(whole: Part) -> str:
    """Say what an operation would save if a limit were gone, the largest first."""
    assert whole.endless is not None
    saved = {limit: 1 - seconds / whole.seconds for limit, seconds in whole.endless.items() if whole.seconds}
    shown = [
        f"{_LIMITS[limit][1]} would save {share:.0%}"
        for limit, share in sorted(saved.items(), key=lambda each: -each[1])
        if share >= _LEAST_SHARE
    ]
    return f"; {', '.join(shown)}" if shown else ""


def _flop(amount: float) -> str:
    """Say an amount of arithmetic in a unit that suits it.

    >>> _flop(2.5e12), _flop(3e7)
    ('2.5 TFLOP', '0.03 GFLOP')
    """
    return f"{amount / 1e12:.4g} TFLOP" if amount >= 1e10 else f"{amount / 1e9:.4g} GFLOP"


def _reached(part: Part, bound: str, peak_flop_per_s: float | None = None) -> str:
    """Return the rate that something reaches: that of its traffic where it has no other or is bound by it."""
    if not part.seconds or not (part.work_flop or part.traffic_bytes):
        return ""
    if bound == "memory" or not part.work_flop:
        return f"{part.traffic_bytes / part.seconds / 1e9:.4g} GB/s"
    rate = part.work_flop / part.seconds
    return f"{_flop(rate)}/s" + (f", {rate / peak_flop_per_s:.0%} of peak" if peak_flop_per_s else "")
