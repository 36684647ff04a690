"""The bars of a large trace as compact columns, for a page that draws those of the part one zooms into."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minitrain.analysis.labels import ranges, time_unit
from minitrain.analysis.timeline import NO_LAYER, NONE, Ints
from minitrain.analysis.waits import GAP_KINDS
from minitrain.trace.bars import Bars
from minitrain.trace.gantt import HEAT_SCALE, MAX_BARS, lane_geometry
from minitrain.trace.heat import MAX_ROWS, NUM_BINS
from minitrain.trace.texts import GIB, bar_numbers
from minitrain.trace.view import View


def payload(bars: Bars, view: View) -> dict[str, Any]:
    """Return the columns of all bars, by rank and start, as small as their values allow.

    Times are in the unit of the figure's axis. Starts are 64-bit, since one may zoom in a millionfold.
    """
    line = bars.timeline
    unit, unit_name = time_unit(bars.step_time)
    event = bars.event  # of a wait until the end, NONE: it reads the last event, and nothing of it is shown
    center, width = lane_geometry(bars.num_lanes)
    layer = np.where(line.layer == NO_LAYER, np.iinfo(np.int16).min, line.layer)
    wait_typ = np.where(bars.waits & (event != NONE), line.typ[event], 255)
    source, gap_kind = np.append(bars.gaps.source, NONE)[bars.gap], np.append(bars.gaps.kind, 0)[bars.gap]
    return {
        "maxBars": MAX_BARS,
        "maxRows": MAX_ROWS,
        "numBins": NUM_BINS,
        "heatScale": HEAT_SCALE,
        "unit": unit,
        "unitName": unit_name,
        "noLayer": int(np.iinfo(np.int16).min),
        "kinds": [kind._asdict() for kind in bars.kinds],
        "computes": _compute_kinds(bars),
        "typs": line.typs,
        "samples": [ranges(numbers) for numbers in line.sample_sets],
        "center": center.tolist(),
        "width": width.tolist(),
        "gapKinds": GAP_KINDS,
        "first": np.searchsorted(bars.rank, np.arange(line.num_ranks + 1)).tolist(),
        "start": packed(bars.start / unit),
        "length": packed((bars.duration / unit).astype(np.float32)),
        "kind": packed(bars.kind.astype(np.uint8)),
        "lane": packed(bars.lane.astype(np.uint8)),
        "layer": packed(layer[event].astype(np.int16)),
        "sample": packed(smallest(line.samples[event])),
        "number": packed(smallest(bar_numbers(line)[event])),
        "waitsFor": packed(smallest(np.where(source == NONE, NONE, line.rank[source]))),
        "gapKind": packed(gap_kind.astype(np.uint8)),
        "waitTyp": packed(wait_typ.astype(np.uint8)),
        "memory": packed((line.memory[event] * view.bytes_per_element / GIB).astype(np.float32)),
    }


def packed(values: NDArray[Any]) -> dict[str, str]:
    """Return an array as Plotly packs its own: the type and the bytes in base 64."""
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return {"dtype": values.dtype.kind + str(values.dtype.itemsize), "bdata": b64encode(little.tobytes()).decode()}


def smallest(values: Ints) -> NDArray[Any]:
    """Return whole numbers in the smallest type that holds them (32 bits at most)."""
    for kind in (np.int8, np.int16):
        limits = np.iinfo(kind)
        if values.min(initial=0) >= limits.min and values.max(initial=0) <= limits.max:
            return values.astype(kind)
    return values.astype(np.int32)


def _compute_kinds(bars: Bars) -> list[bool]:
    """Tell which kinds run on the compute stream."""
    computes = np.zeros(len(bars.kinds), dtype=bool)
    chosen = ~bars.waits
    np.logical_or.at(computes, bars.kind[chosen], bars.timeline.computes[bars.event[chosen]])
    return [bool(value) for value in computes]
