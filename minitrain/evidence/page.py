"""A validation as one HTML page that opens without internet: predicted over measured, errors by table, the worst ten.

Pictures are SVG made here; `page.js` adds what a pointer shows; `page.css` follows the reader's light or dark setting.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from minitrain.evidence.cases import TERMS
from minitrain.evidence.errors_by_table import TABLES, RowResult, Skipped, TableErrors
from minitrain.files import write_text

_STYLE, _SCRIPT = (Path(__file__).with_suffix(end).read_text("utf-8") for end in (".css", ".js"))
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _MARGIN = 620, 460, 62, 34, 24
_STRIP_REACH = 0.5  # of the strips of errors, which end there
_GOLDEN_DEGREES = 137.5  # between hues, so that neighbours differ


def write_validation_page(
    path: str | Path,
    results: Sequence[RowResult],
    skipped: Sequence[Skipped],
    tables: Sequence[TableErrors],
    worst: Sequence[RowResult],
    without: Sequence[str],
) -> Path:
    """Write the page and return its path.

    Args:
        path: where to.
        results: what was measured and predicted.
        skipped: the rows that were not simulated.
        tables: the errors by table.
        worst: the rows that are furthest off.
        without: the terms of the price that were left out.
    """
    timed = [result for result in results if result.error is not None]
    hues = {name: round(place * _GOLDEN_DEGREES % 360) for place, name in enumerate(_tables_of(results))}
    middle = [_errors(tables, timed, hues)]
    if timed:
        middle = [_picture(timed, hues), *middle, _worst(worst)]
    return write_text(path, _page(f"{len(timed)} measured steps, simulated", without, [*middle, _skipped(skipped)]))


def _page(title: str, without: Sequence[str], parts: Sequence[Iterable[str]]) -> Iterator[str]:
    """Yield the page in pieces."""
    yield f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
    yield f"<style>{_STYLE}</style></head><body>\n<h1>{title}</h1>\n"
    left_out = f" Left out: {html.escape(', '.join(without))}." if without else ""
    yield f'<p class="soft">Prices of kernels, compared with published measurements.{left_out}</p>\n'
    for part in parts:
        yield from part
    yield f'<div id="tip" hidden></div>\n<script>{_SCRIPT}</script></body></html>\n'


def _picture(timed: Sequence[RowResult], hues: dict[str, int]) -> Iterator[str]:
    """Yield predicted over measured times, and buttons that show one table alone."""
    yield "<h2>Predicted over measured time</h2>\n"
    yield from _legend(hues)
    yield from _scatter(timed, hues)


def _tables_of(results: Sequence[RowResult]) -> list[str]:
    """Return the tables in the order of their results."""
    return list(dict.fromkeys(result.table for result in results))


def _legend(hues: dict[str, int]) -> Iterator[str]:
    """Yield buttons that show one table alone."""
    yield '<div class="legend">'
    for name, hue in hues.items():
        about = html.escape(TABLES[name].about if name in TABLES else "your own table")
        yield f'<button data-table="{html.escape(name)}" aria-pressed="false" title="{about}" style="--hue:{hue}">'
        yield f"<i></i>{html.escape(name)}</button>"
    yield "</div>\n"


def _scatter(timed: Sequence[RowResult], hues: dict[str, int]) -> Iterator[str]:
    """Yield predicted against measured time, both in logarithms."""
    seconds = [value for result in timed for value in (result.measured_s, result.predicted_s) if value]
    low, high = math.floor(math.log10(min(seconds))), math.ceil(math.log10(max(seconds)) + 1e-9)

    def x(value: float) -> float:
        return _LEFT + (math.log10(value) - low) / (high - low) * (_WIDTH - _LEFT - _MARGIN)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (math.log10(value) - low) / (high - low) * (_HEIGHT - _BOTTOM - _MARGIN)

    yield f'<svg id="scatter" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="predicted over measured time">'
    for power in range(low, high + 1):
        at, label = 10.0**power, _seconds(10.0**power)
        lines = f"M{x(at):.1f} {_MARGIN}V{_HEIGHT - _BOTTOM}M{_LEFT} {y(at):.1f}H{_WIDTH - _MARGIN}"
        yield f'<path class="grid" d="{lines}"/>'
        yield f'<text x="{x(at):.1f}" y="{_HEIGHT - 14}" text-anchor="middle">{label}</text>'
        yield f'<text x="{_LEFT - 5}" y="{y(at) + 4:.1f}" text-anchor="end">{label}</text>'
    yield f'<path class="equal" d="M{x(10.0**low):.1f} {y(10.0**low):.1f}L{x(10.0**high):.1f} {y(10.0**high):.1f}"/>'
    yield f'<text x="{_WIDTH - _MARGIN}" y="{_HEIGHT - 2}" text-anchor="end">measured</text>'
    yield f'<text x="{_LEFT + 4}" y="{_MARGIN + 8}">predicted</text>'
    for result in timed:
        if result.measured_s and result.predicted_s:
            place = f'cx="{x(result.measured_s):.1f}" cy="{y(result.predicted_s):.1f}" r="3.2"'
            table = html.escape(result.table)
            yield f'<circle class="dot" {place} style="--hue:{hues[result.table]}" data-table="{table}" '
            yield f'data-tip="{html.escape(_tip(result))}"/>'
    yield "</svg>\n"


def _tip(result: RowResult) -> str:
    """Return what a pointer shows of a point."""
    lines = [
        f"{result.row_id}: {result.about}",
        f"measured {_seconds(result.measured_s or 0)}, predicted {_seconds(result.predicted_s or 0)} "
        f"({100 * (result.error or 0):+.1f} %)",
    ]
    if result.platform:
        lines.append(f"platform {result.platform}")
    return "\n".join([*lines, *result.assumed])


def _errors(tables: Sequence[TableErrors], timed: Sequence[RowResult], hues: dict[str, int]) -> Iterator[str]:
    """Yield the summaries, with a strip of the errors of each table."""
    yield "<h2>Errors by table</h2>\n"
    yield '<div class="wide"><table><thead><tr><th>table</th><th class="words">of</th>'
    yield "<th>runs</th><th>mean %</th><th>median %</th>"
    yield "<th>p90 %</th><th>bias %</th><th>from -50 to +50 %</th>"
    yield '<th class="words">fitted on it</th></tr></thead><tbody>\n'
    for errors in tables:
        found = errors.errors
        of = f"{errors.group}: {errors.of}" if errors.group else errors.of
        strip = "" if errors.group or errors.of != "time" else _strip(errors.table, timed, hues[errors.table])
        figures = "".join(f"<td>{100 * value:.1f}</td>" for value in (found.mean, found.median, found.p90))
        name = "" if errors.group else errors.table
        about = html.escape(TABLES[errors.table].about) if errors.table in TABLES and not errors.group else ""
        yield f'<tr class="{"part" if errors.group else ""}"><td title="{about}">{html.escape(name)}</td>'
        yield f'<td class="words">{html.escape(of)}</td><td>{found.num_runs}</td>{figures}'
        yield f"<td>{100 * found.bias:+.1f}</td>"
        yield f'<td>{strip}</td><td class="words">{html.escape(errors.fitted)}</td></tr>\n'
    yield "</tbody></table></div>\n"


def _strip(table: str, timed: Sequence[RowResult], hue: int) -> str:
    """Return a line of the errors of a table."""
    shapes = '<path class="grid" d="M80 0V14M0 7H160"/>'
    for result in timed:
        if result.table == table:
            error = max(-_STRIP_REACH, min(_STRIP_REACH, result.error or 0.0))
            shapes += (
                f'<circle class="strip" cx="{80 + error / _STRIP_REACH * 76:.1f}" cy="7" r="2.4" style="--hue:{hue}"/>'
            )
    return f'<svg viewBox="0 0 160 14" style="width:160px" aria-hidden="true">{shapes}</svg>'


def _worst(results: Sequence[RowResult]) -> Iterator[str]:
    """Yield the rows that are furthest off, with what their predicted time is made of."""
    yield "<h2>The ten that are furthest off</h2>\n"
    yield '<p class="key soft">On the rank that computes longest:'
    for name in TERMS:
        yield f'<i style="background:var(--{name})"></i>{name}'
    yield '</p>\n<div class="wide"><table><thead><tr><th>row</th><th class="words">of</th>'
    yield "<th>measured</th><th>predicted</th>"
    yield "<th>error %</th><th>predicted by term</th></tr></thead><tbody>\n"
    for result in results:
        yield f'<tr><td>{html.escape(result.row_id)}</td><td class="words">{html.escape(result.about)}</td>'
        yield f"<td>{_seconds(result.measured_s or 0)}</td><td>{_seconds(result.predicted_s or 0)}</td>"
        yield f"<td>{100 * (result.error or 0):+.1f}</td><td>{_bar(result)}</td></tr>\n"
    yield "</tbody></table></div>\n"


def _bar(result: RowResult) -> str:
    """Return a bar of the terms of a prediction."""
    total = sum(result.terms.values())
    if not total or not set(result.terms) <= set(TERMS):
        return ""
    parts = "".join(
        f'<i style="width:{100 * seconds / total:.1f}%;background:var(--{name})" '
        f'title="{name} {_seconds(seconds)}"></i>'
        for name, seconds in result.terms.items()
        if seconds > 0
    )
    return f'<div class="bar">{parts}</div>'


def _skipped(rows: Sequence[Skipped]) -> Iterator[str]:
    """Yield the rows that were not simulated, by their reason."""
    if not rows:
        return
    reasons: dict[tuple[str, str], int] = {}
    for skipped in rows:
        reasons[skipped.table, skipped.reason] = reasons.get((skipped.table, skipped.reason), 0) + 1
    yield f"<h2>{len(rows)} rows that were not simulated</h2>\n<ul>"
    for (table, reason), number in reasons.items():
        yield f"<li>{html.escape(table)}, {number}: {html.escape(reason)}</li>\n"
    yield "</ul>\n"


def _seconds(value: float) -> str:
    """Return a time with its unit.

    >>> _seconds(0.00123), _seconds(12.3), _seconds(100.0)
    ('1.23 ms', '12.3 s', '100 s')
    """
    if value < 1e-3:
        return f"{value * 1e6:.3g} µs"
    return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.4g} s"
