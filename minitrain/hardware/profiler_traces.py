"""Times of layers from a trace of the PyTorch profiler (Kineto's chrome trace): a table for `MeasuredLayers`.

The user profiles some whole steps with the activities CPU and CUDA. `minitrain.hardware.trace_layers` finds the layers,
`minitrain.hardware.trace_launches` what each kernel was launched for.

A layer's time is how long its kernels keep the device busy, the median over all its passes in the trace. Kernels of
communication are left out, since a run pays for transfers itself, and so are gaps between kernels. What checkpointing
computes again is part of backward. The update is shared evenly by the layers.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, final

from minitrain.errors import UsageError
from minitrain.hardware.measured_layers import LayerTime
from minitrain.hardware.trace_launches import LaunchedKernels
from minitrain.hardware.trace_layers import EMBEDDING, HEAD, FoundLayers, Marks, find_layers
from minitrain.hardware.trace_ranges import union

__all__ = ["Marks", "TracedLayers"]

_S = 1e-6  # times in a trace are in microseconds
_Busy = Mapping[tuple[int | str, str], float]


@final
@dataclass(frozen=True, slots=True)
class TracedLayers:
    """What a trace says of layers.

    Args:
        source: what messages call the trace.
        found_by: what its layers were found by, in words.
        layers: their labels, in the order of forward; the embedding first and the head last, if they were found.
        busy_s: the median of how long a pass of a layer keeps the device busy, s, by label and "forward" or "backward".
        update_s: the median of the updates of all layers, s.
        coverage: the share of the time of all kernels but those of communication that belongs to one of these.
        gpu: the device's name in the trace.
    """

    source: str
    found_by: str
    layers: tuple[int | str, ...]
    busy_s: _Busy
    update_s: float
    coverage: float
    gpu: str = ""

    @classmethod
    def read(cls, path: str | os.PathLike[str], marks: Marks | None = None) -> TracedLayers:
        """Read a trace.

        Args:
            path: of the trace, .json or .json.gz.
            marks: which ranges are layers; they are found if None.

        Raises:
            UsageError: the trace cannot be read, or does not say what its layers are.
        """
        source = Path(path).name
        data = _read(Path(path), source)
        found = find_layers(LaunchedKernels(data["traceEvents"]), marks, source)
        busy, update_s, coverage = _times(found)
        layers = (EMBEDDING, *found.order, HEAD) if found.has_ends else found.order
        return cls(source, found.by, layers, busy, update_s, coverage, _device_of(data))

    def rows(
        self, *, microbatch: int, tp: int = 1, model: str = "", gpu: str | None = None, num_layers: int | None = None
    ) -> list[LayerTime]:
        """Return the rows of a table.

        Args:
            microbatch: samples of a pass.
            tp: tensor-parallel degree.
            model: what the table calls the model.
            gpu: what it calls the device; the name in the trace if None.
            num_layers: layers of the model beside embedding and head, where the trace shows a part of them; all layers
                then take the median of those.

        Returns:
            A row a layer, in order; one for all layers between embedding and head, if `num_layers` is given.

        Raises:
            UsageError: a layer has no kernels forward or backward.
        """
        update_s = self.update_s / len(self.layers)
        inner = [label for label in self.layers if label not in (EMBEDDING, HEAD)]
        numbers = self._numbers(inner)
        rows = [
            LayerTime(
                first_layer=numbers[label],
                last_layer=numbers[label],
                forward_s=self._time(label, "forward"),
                backward_s=self._time(label, "backward"),
                update_s=update_s,
                microbatch=microbatch,
                tp=tp,
                model=model,
                gpu=self.gpu if gpu is None else gpu,
            )
            for label in self.layers
        ]
        return rows if num_layers is None else self._stretched(rows, num_layers)

    def _stretched(self, rows: Sequence[LayerTime], num_layers: int) -> list[LayerTime]:
        """Return rows for a model of more layers than were traced."""
        has_ends = self.layers[0] == EMBEDDING
        inner = rows[1:-1] if has_ends else rows
        first, last = int(has_ends), num_layers - 1 + int(has_ends)
        times = {kind: median(getattr(row, kind) for row in inner) for kind in ("forward_s", "backward_s", "update_s")}
        middle = replace(inner[0], first_layer=first, last_layer=last, **times)
        if not has_ends:
            return [middle]
        return [rows[0], middle, replace(rows[-1], first_layer=last + 1, last_layer=last + 1)]

    def _numbers(self, inner: Sequence[int | str]) -> dict[int | str, int]:
        """Return the table's number of each layer: as marked, or after the embedding and before the head."""
        if len(inner) < len(self.layers):
            return {EMBEDDING: 0, **{label: place for place, label in enumerate(inner, 1)}, HEAD: len(inner) + 1}
        return {label: label if isinstance(label, int) else place for place, label in enumerate(inner)}

    def _time(self, label: int | str, phase: str) -> float:
        """Return the median of a layer's passes, s."""
        found = self.busy_s.get((label, phase))
        if found is not None:
            return found
        if label == EMBEDDING and phase == "backward":
            return 0.0  # its gradient may be added up by a kernel of another function
        raise UsageError(
            f"{self.source} has no {phase} kernels of layer {label}; profile whole training steps, with the activities "
            "CPU and CUDA, and mark forward of each layer",
            layer=label,
        )


def _times(found: FoundLayers) -> tuple[_Busy, float, float]:
    """Return the median time of each layer's passes and of the updates, s, and the share of all time that they are."""
    passes: dict[tuple[int | str, str, int], list[tuple[float, float]]] = {}
    updates: dict[int, list[tuple[float, float]]] = {}
    for launch in found.launches:
        if launch.phase == "update":
            updates.setdefault(launch.pass_, []).append(launch.span)
        elif launch.layer is not None:
            passes.setdefault((launch.layer, launch.phase, launch.pass_), []).append(launch.span)
    busy: dict[tuple[int | str, str], list[float]] = {}
    for (layer, phase, _), spans in passes.items():
        busy.setdefault((layer, phase), []).append(union(spans) * _S)
    known = [span for each in (passes, updates) for spans in each.values() for span in spans]
    whole = union(launch.span for launch in found.launches)
    update_s = median([union(spans) * _S for spans in updates.values()] or [0.0])
    return {key: median(each) for key, each in busy.items()}, update_s, union(known) / whole if whole else 0.0


def _device_of(data: Mapping[str, Any]) -> str:
    """Return the name of the device in a trace."""
    devices = data.get("deviceProperties") or [{}]
    return str(devices[0].get("name", ""))


def _read(path: Path, source: str) -> Mapping[str, Any]:
    """Return the data of a trace."""
    try:
        content = path.read_bytes()
        data = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
    except (OSError, EOFError, ValueError) as error:
        raise UsageError(f"the trace {source} cannot be read: {error}; give a chrome trace of the profiler") from error
    data = {"traceEvents": data} if isinstance(data, list) else data
    if not isinstance(data, dict) or not isinstance(data.get("traceEvents"), list):
        raise UsageError(f"the trace {source} has no list of traceEvents; give a chrome trace of the profiler")
    return data
