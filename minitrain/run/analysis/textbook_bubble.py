"""The bubble by the textbook's formula beside the measured one, for the shipped pipeline schedules.

In the formulas, p is the number of ranks of a pipeline, m the number of microbatches, and v the number of stages a
rank. tf, ti and tw are the seconds that forward, input gradient and weight gradient of one microbatch take on one rank,
and tb = ti + tw. The tests of `minitrain.search.schedules` check the formulas. They hold where communication takes no
time, so the bubble is measured twice: in the run as it was, and in the run timed again without communication. The
second figure is the one to compare with the formula. The difference between the two is the cost of communication.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from minitrain.operations import COMMUNICATIONS
from minitrain.run.analysis.retiming import Graph, make_graph, retimed_events
from minitrain.run.analysis.timeline import NONE, Bools, Floats, Trace, as_timeline


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes in the formulas: p, m, v, and seconds for one microbatch on one rank.

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
        formula: the formula, as text.
        condition: where it holds, as text.
        holds: whether the run meets that condition.
        sizes: the sizes that were put into it.
        textbook_s: the bubble by the formula, s.
        free_s: the bubble that the run would have if communication took no time, s.
        measured_s: the bubble of the run, s.
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
    "chimera": (
        "(p - 2) tb",
        lambda s: (s.p - 2) * (s.ti + s.tw),
        "m = p and tb >= tf, or m a multiple of p and tb = tf",
        lambda s: (s.m == s.p and s.ti + s.tw >= s.tf) or (s.m % s.p == 0 and _near(s.tf, s.ti + s.tw)),
    ),
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
    """Return the bubble by the textbook's formula beside the measured one.

    Args:
        trace: one log a rank, columns, or their graph.
        strategy: name of a shipped strategy.
        options: its options: `pp` and `num_chunks` count.

    Returns:
        Both, or None for a strategy that has no closed form, or of which a file tells sizes that are none.
    """
    form = _FORMS.get(re.split("[: ]", strategy)[0])  # without options ("zb_h2:pp=4") and number ("gpipe (2)")
    graph = trace if isinstance(trace, Graph) else make_graph(as_timeline(trace))
    line = graph.timeline
    passes = line.beginning_with("forward", "loss", "backward")
    counts = [(options or {}).get(name) or 1 for name in ("pp", "num_chunks")]
    if form is None or not passes.any() or not all(isinstance(count, int) and count > 0 for count in counts):
        return None
    sizes = _sizes(graph, strategy, options or {})
    free = np.where(line.beginning_with(*COMMUNICATIONS), 0.0, line.duration)
    work = np.bincount(line.rank[passes], weights=line.duration[passes])
    formula, bubble, condition, holds = form
    return ClosedForm(
        formula,
        condition,
        holds(sizes),
        sizes,
        bubble(sizes),
        _makespan(retimed_events(graph, free)[1], free, passes) - float(work.max()),
        _makespan(line.time, line.duration, passes) - float(work.max()),
        float(work.max()),
    )


def _makespan(time: Floats, duration: Floats, passes: Bools) -> float:
    """Return the time from the first pass to the last, s."""
    return float((time + duration)[passes].max() - time[passes].min())


def _sizes(graph: Graph, strategy: str, options: Mapping[str, Any]) -> Sizes:
    """Return p, m, v and the times of the busiest rank, as the run shows them."""
    line = graph.timeline
    forwards = line.beginning_with("forward")
    busiest = int(np.argmax(np.bincount(line.rank, weights=np.where(line.computes, line.duration, 0.0))))
    own = line.rank == busiest
    m = len(np.unique(line.samples[forwards & own])) or 1
    tf, tb, tw = (
        float(line.duration[line.beginning_with(name) & own].sum()) / m
        for name in ("forward", "backward", "backward_weight")
    )
    chunks = 2 if re.match("interleaved|looped|zbv|dualpipe", strategy) else NONE
    p = options.get("pp") or (2 if strategy.startswith("pp_") else line.num_ranks)
    return Sizes(p, m, options.get("num_chunks") or max(chunks, 1), tf, tb - tw, tw)
