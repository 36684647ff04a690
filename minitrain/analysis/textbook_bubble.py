"""The bubble of the textbook beside the measured one, for the shipped pipeline schedules.

The closed forms are those that the tests of `minitrain.schedules` prove: p ranks a pipeline, m microbatches, v stages a
rank; tf, ti, tw are the seconds of forward, input gradient and weight gradient of one microbatch on one rank, and
tb = ti + tw. They hold for free communication. So the run is measured twice, as it was and timed again with all
communication free: the second figure is the one to compare, the rest is what communication costs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from minitrain.analysis.dependencies import Graph, make_graph
from minitrain.analysis.timeline import NONE, Bools, Floats, Trace, as_timeline
from minitrain.analysis.what_if import retime
from minitrain.events import COMMUNICATIONS


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the closed forms are written in: p, m, v, and seconds a microbatch and rank.

    Args:
        p: ranks of a pipeline.
        m: microbatches.
        v: stages a rank.
        tf: forward, s.
        ti: input gradient, s.
        tw: weight gradient, s; 0 where the backward is not split (ti is the whole backward then).
    """

    p: int
    m: int
    v: int
    tf: float
    ti: float
    tw: float


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """A bubble: time from the first pass through a layer to the last one, less the work of the busiest rank.

    Args:
        formula: the textbook's.
        condition: where it holds.
        holds: whether the run meets that condition.
        sizes: what was put in.
        textbook_s: what the formula gives, s.
        free_s: what the run would have if communication were free, s.
        measured_s: what the run has, s.
        work_s: the work of the busiest rank, s.
    """

    formula: str
    condition: str
    holds: bool
    sizes: Sizes
    textbook_s: float
    free_s: float
    measured_s: float
    work_s: float

    def fraction(self, bubble_s: float) -> float:
        """Return a bubble as a share of the time from the first pass to the last, 0 to 1."""
        return bubble_s / (bubble_s + self.work_s) if bubble_s + self.work_s > 0 else 0.0


_Form = tuple[str, Callable[[Sizes], float], str, Callable[[Sizes], bool]]
_EVEN = "tf = ti = tw and m >= 2p - 1"


def _is_even(s: Sizes) -> bool:
    return s.m >= 2 * s.p - 1 and _near(s.tf, s.ti) and _near(s.tf, s.tw)


def _near(left: float, right: float) -> bool:
    return abs(left - right) <= 1e-9 * max(left, right)


_FILL: _Form = ("(p - 1)(tf + tb)", lambda s: (s.p - 1) * (s.tf + s.ti + s.tw), "m >= 1", lambda s: s.m >= 1)
_LOOPED: _Form = (
    "(p - 1)(tf + tb) / v",
    lambda s: (s.p - 1) * (s.tf + s.ti + s.tw) / s.v,
    "m >= p",
    lambda s: s.m >= s.p,
)
_FORMS: Mapping[str, _Form] = {
    "gpipe": _FILL,
    "1f1b": _FILL,
    "one_f_one_b": _FILL,
    "pp_dp": _FILL,
    "pp_zero1": _FILL,
    "interleaved_1f1b": _LOOPED,
    "looped_bfs": _LOOPED,
    "zb_h1": (
        "(p - 1)(tf + ti - tw)",
        lambda s: (s.p - 1) * (s.tf + s.ti - s.tw),
        "tw <= min(tf, ti) and m >= p",
        lambda s: s.m >= s.p and s.tw <= min(s.tf, s.ti) * (1 + 1e-9),
    ),
    "interleaved_zero_bubble": (
        "(p - 1) tf / v",
        lambda s: (s.p - 1) * s.tf / s.v,
        "tf = ti = tw and m a multiple of p",
        lambda s: s.m % s.p == 0 and _near(s.tf, s.ti) and _near(s.tf, s.tw),
    ),
    "zb_h2": ("(p - 1) tf", lambda s: (s.p - 1) * s.tf, _EVEN, _is_even),
    "zbv": ("(p - 1) tf / 2", lambda s: (s.p - 1) * s.tf / 2, _EVEN, _is_even),
    "dualpipe_v": (
        "(p - 1) tf / 2",
        lambda s: (s.p - 1) * s.tf / 2,
        "tf = ti = tw and m >= 2p",
        lambda s: s.m >= 2 * s.p and _is_even(s),
    ),
}


def closed_form(trace: Trace | Graph, strategy: str, options: Mapping[str, Any] | None = None) -> ClosedForm | None:
    """Return the textbook's bubble beside the measured one.

    Args:
        trace: one log a rank, columns, or their graph.
        strategy: name of a shipped strategy.
        options: its options: `pp` and `num_chunks` count.

    Returns:
        Both, or None for a strategy that has no closed form.
    """
    form = _FORMS.get(re.sub(r" \(\d+\)$", "", strategy))
    graph = trace if isinstance(trace, Graph) else make_graph(as_timeline(trace))
    passes = _passes(graph, "forward", "loss", "backward")
    if form is None or not passes.any():
        return None
    line, sizes = graph.timeline, _sizes(graph, strategy, options or {})
    free = np.where(_passes(graph, *COMMUNICATIONS), 0.0, line.duration)
    work = np.bincount(line.rank[passes], weights=line.duration[passes])
    formula, bubble, condition, holds = form
    return ClosedForm(
        formula,
        condition,
        holds(sizes),
        sizes,
        bubble(sizes),
        _makespan(retime(graph, free), free, passes) - float(work.max()),
        _makespan(line.time, line.duration, passes) - float(work.max()),
        float(work.max()),
    )


def _makespan(time: Floats, duration: Floats, passes: Bools) -> float:
    """Return the time from the first pass to the last, s."""
    return float((time + duration)[passes].max() - time[passes].min())


def _passes(graph: Graph, *names: str) -> Bools:
    """Tell which events are of a type that begins with one of these names, (num_events,)."""
    typs = np.array([typ.startswith(names) for typ in graph.timeline.typs], dtype=bool)
    return typs[graph.timeline.typ] if graph.timeline.num_events else np.zeros(0, dtype=bool)


def _sizes(graph: Graph, strategy: str, options: Mapping[str, Any]) -> Sizes:
    """Read p, m, v and the times off the run: those of the busiest rank."""
    line = graph.timeline
    forwards = _passes(graph, "forward")
    busiest = int(np.argmax(np.bincount(line.rank, weights=np.where(line.computes, line.duration, 0.0))))
    own = line.rank == busiest
    m = len(np.unique(line.samples[forwards & own])) or 1
    tf, tb, tw = (
        float(line.duration[_passes(graph, name) & own].sum()) / m
        for name in ("forward", "backward", "backward_weight")
    )
    chunks = 2 if re.match("interleaved|looped|zbv|dualpipe", strategy) else NONE
    p = options.get("pp") or (2 if strategy.startswith("pp_") else line.num_ranks)
    return Sizes(p, m, options.get("num_chunks") or max(chunks, 1), tf, tb - tw, tw)
