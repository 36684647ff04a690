"""What shared links carried, below a picture: a strip of time for each of the busiest, and what was delayed most.

A strip is as dark as its link is full, from the beginning of the step to its end. It is drawn of bins, in each of which
the mean counts.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from minitrain.analysis.labels import duration
from minitrain.analysis.timeline import Floats

MAX_LANES, MAX_DELAYS = 16, 8
_BINS = 400
_LEAST = 0.004  # of a bin: less is not drawn


@dataclass(frozen=True, slots=True)
class LaneUse:
    """What one direction of a link carried.

    Args:
        name: what it is called.
        bytes_per_s: what it carries at most.
        steps: moments, s, and what it carried from each on, bytes/s.
    """

    name: str
    bytes_per_s: float
    steps: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Delay:
    """A transfer that took longer than its price.

    Args:
        what: "all_gather of layer 3, rank 2".
        seconds: by how much, s.
        reason: "shared node0.nic1 with all_reduce of layer 17".
    """

    what: str
    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class Links:
    """What is shown of the links of a run.

    Args:
        lanes: what each direction of each link carried.
        delays: what took longer than its price; None where there are no prices.
        until: the end of the step, s.
    """

    lanes: Sequence[LaneUse]
    delays: Sequence[Delay] | None
    until: float


def link_panel(links: Links) -> str:
    """Return the panel as HTML; nothing where no link carried anything."""
    if not links.lanes or links.until <= 0:
        return ""
    shares = {lane.name: means(lane, links.until, _BINS) for lane in links.lanes}
    busiest = sorted(links.lanes, key=lambda lane: -float(shares[lane.name].mean()))[:MAX_LANES]
    rows = "".join(_row(lane, shares[lane.name]) for lane in busiest)
    left_out = len(links.lanes) - len(busiest)
    more = f"<p>{left_out} more that carried less are not shown.</p>" if left_out else ""
    return (
        f'<section class="links"><h2>Links, 0 to {duration(links.until)}</h2>\n<table class="strips"><tbody>{rows}'
        f"</tbody></table>{more}\n{_delays(links.delays)}</section>\n"
    )


def means(lane: LaneUse, until: float, num_bins: int) -> Floats:
    """Return the mean share of its capacity that a lane carried in each bin of time, (num_bins,)."""
    moments = np.array([time for time, _ in lane.steps] + [until])
    loads = np.array([load for _, load in lane.steps])
    carried = np.concatenate([[0.0], np.cumsum(loads * np.diff(moments))])
    edges = np.linspace(0.0, until, num_bins + 1)
    at_edges = np.interp(edges, moments, carried, left=0.0)
    shares: Floats = np.diff(at_edges) / (lane.bytes_per_s * until / num_bins)
    return np.clip(shares, 0.0, 1.0)


def _row(lane: LaneUse, shares: Floats) -> str:
    """Return one strip, with the name of its link and its mean use."""
    name = html.escape(lane.name)
    return (
        f'<tr><td>{name}</td><td>{shares.mean():.1%}</td><td class="strip"><svg viewBox="0 0 {len(shares)} 1" '
        f'preserveAspectRatio="none" role="img" aria-label="{name}">{"".join(_blocks(shares))}</svg></td></tr>'
    )


def _blocks(shares: Floats) -> Iterable[str]:
    """Yield a rectangle for each run of bins that are equally full, to a percent."""
    percent = np.rint(100 * shares).astype(int)
    edges = np.flatnonzero(np.diff(percent)) + 1
    for begin, end in zip([0, *edges.tolist()], [*edges.tolist(), len(percent)], strict=True):
        share = float(percent[begin]) / 100
        if share > _LEAST:
            yield f'<rect x="{begin}" width="{end - begin}" height="1" opacity="{0.15 + 0.85 * share:.2f}"/>'


def _delays(delays: Sequence[Delay] | None) -> str:
    """Return a table of what was delayed most."""
    if delays is None:
        return ""
    if not delays:
        return "<p>No transfer took longer than its price.</p>"
    longest = sorted(delays, key=lambda delay: -delay.seconds)[:MAX_DELAYS]
    rows = "".join(
        f"<tr><td>{html.escape(delay.what)}</td><td>+{duration(delay.seconds)}</td>"
        f'<td class="rest">{html.escape(delay.reason)}</td></tr>'
        for delay in longest
    )
    title = f"Delayed by sharing: {len(delays):,} transfers"
    return f"<h2>{title}</h2><table><tbody>{rows}</tbody></table>"
