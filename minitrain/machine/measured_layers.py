"""Times of layers that were measured on a device: a table, `mt.MeasuredLayers.read("layers.csv")`.

A row gives the forward, backward and update seconds of some layers for one size of microbatch and one tensor-parallel
degree. Its columns:

| column | meaning |
|---|---|
| model, gpu | of what, and on what; may be left out |
| microbatch | samples |
| tp | tensor-parallel degree |
| first_layer, last_layer | the layers that the row is for; 0 is the embedding, then transformer layers, then the head |
| forward_s, backward_s | of one layer, s; the head's contain the loss |
| update_s | of an optimizer step on one layer's weights, s |

Between two measured microbatches a time is interpolated linearly; beyond the smallest and the largest nothing is
guessed. Tensor-parallel degrees are never interpolated.

Times are those of computing alone, and the run pays for communication beside them. A table of layers that ran with
their tensor-parallel all_reduces says `includes_transfers=True`: these are then taken off at the price that the run
pays.

What a table counts as a layer of a transformer, embedding and head apart, is two of the engine's: attention and MLP.
They share its forward and backward by their FLOPs, and its update by their parameters, so that together they take what
was measured. Backward computes again by the same shares: all of forward with full recomputation, the attention core's
FLOPs with selective one. The halves of a split backward are half of it each, as they have equal FLOPs. A shard of a
weight is updated in its share of the time. The loss is in the head's times.

Where the table's times contain tensor-parallel all_reduces, these are taken off: one of a layer's output for each unit
and pass, among neighbouring ranks, which is what such a strategy pays. Attention and MLP have one forward and one
backward, the embedding one forward, the head one backward (Shoeybi et al. 2019, section 3).

Without a transformer, the table's layers are the engine's.
"""

from __future__ import annotations

import csv
import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from minitrain.errors import UsageError, typed
from minitrain.files import StrPath, read_cells, replacing

COLUMNS = ("microbatch", "tp", "first_layer", "last_layer", "forward_s", "backward_s", "update_s")
_CHOOSERS = ("gpu", "model")
Pass = Literal["forward_s", "backward_s", "update_s"]


@dataclass(frozen=True, slots=True)
class LayerTime:
    """One row of a table.

    Args:
        microbatch: samples.
        tp: tensor-parallel degree.
        first_layer: the first layer that it is for.
        last_layer: the last one.
        forward_s: of one layer, s.
        backward_s: of one layer, s.
        update_s: of one layer's weights, s.
        gpu: on what.
        model: of what.
    """

    microbatch: int
    tp: int
    first_layer: int
    last_layer: int
    forward_s: float
    backward_s: float
    update_s: float
    gpu: str = ""
    model: str = ""


@typed
@dataclass(frozen=True, slots=True)
class MeasuredLayers:
    """Times of one model's layers on one device, by microbatch and tensor-parallel degree.

    Args:
        rows: the table.
        source: what messages call it.
        includes_transfers: whether the times contain the tensor-parallel all_reduces of a layer.

    Raises:
        UsageError: there are no rows, or rows of several models or devices.
    """

    rows: tuple[LayerTime, ...]
    source: str = "the table of layers"
    includes_transfers: bool = False

    def __post_init__(self) -> None:
        for column in _CHOOSERS:
            values = sorted({getattr(row, column) for row in self.rows})
            if len(values) > 1:
                raise UsageError(
                    f"{self.source} has rows of several kinds of {column} ({', '.join(values)}); choose one, as in "
                    f'{column}="{values[0]}"'
                )
        if not self.rows:
            raise UsageError(f"{self.source} has no rows; a table of layers has the columns {', '.join(COLUMNS)}")

    @classmethod
    def read(
        cls, path: StrPath, *, gpu: str | None = None, model: str | None = None, includes_transfers: bool = False
    ) -> MeasuredLayers:
        """Read a table from a CSV file with a header.

        Args:
            path: of the file.
            gpu: the value of that column whose rows are taken; not needed where all rows have the same.
            model: likewise.
            includes_transfers: whether the times contain the tensor-parallel all_reduces of a layer.

        Raises:
            UsageError: the file cannot be read, a column is missing or holds something else than a number, or it has no
                rows of this device and model.
        """
        source = Path(path).name
        rows = tuple(read_layer_times(Path(path), source))
        for column, wanted in zip(_CHOOSERS, (gpu, model), strict=True):
            rows = _chosen(rows, column, wanted, source)
        return cls(rows, source, includes_transfers)

    def __repr__(self) -> str:
        """Name the table so that others of the same name are told apart."""
        return f"MeasuredLayers({self.source}, {zlib.crc32(repr(self.rows).encode()):08x})"

    @property
    def num_layers(self) -> int:
        """Return how many layers there are, embedding and head included."""
        return 1 + max(row.last_layer for row in self.rows)

    def seconds(self, what: Pass, layer: int, num_samples: int, tp: int) -> float:
        """Return a time of a layer, s.

        Args:
            what: "forward_s", "backward_s" or "update_s".
            layer: the layer; 0 is the embedding.
            num_samples: of the microbatch.
            tp: tensor-parallel degree.

        Raises:
            UsageError: no row says it, and no two rows lie around it.
        """
        known = {
            row.microbatch: float(getattr(row, what))
            for row in self.rows
            if row.tp == tp and row.first_layer <= layer <= row.last_layer
        }
        if num_samples in known:
            return known[num_samples]
        below = [size for size in known if size < num_samples]
        above = [size for size in known if size > num_samples]
        if not below or not above:
            raise self._missing(layer, num_samples, tp)
        low, high = max(below), min(above)
        return known[low] + (known[high] - known[low]) * (num_samples - low) / (high - low)

    def any_seconds(self, what: Pass, layer: int, tp: int) -> float:
        """Return a time that does not depend on the microbatch, s: that of the smallest one measured."""
        sizes = [row.microbatch for row in self.rows if row.tp == tp and row.first_layer <= layer <= row.last_layer]
        if not sizes:
            raise self._missing(layer, None, tp)
        return self.seconds(what, layer, min(sizes), tp)

    def _missing(self, layer: int, num_samples: int | None, tp: int) -> UsageError:
        """Return the error for a time that the table does not say, with what it does."""
        degrees: dict[int, set[int]] = {}
        for row in self.rows:
            degrees.setdefault(row.tp, set()).add(row.microbatch)
        known = "; ".join(
            f"tp {degree} with microbatches {', '.join(map(str, sorted(degrees[degree])))}"
            for degree in sorted(degrees)
        )
        size = "" if num_samples is None else f" a microbatch of {num_samples} and"
        return UsageError(
            f"{self.source} has no time of layer {layer} for{size} tensor-parallel degree {tp}, and none around it; it "
            f"has layers 0..{self.num_layers - 1}, {known}; measure it, or use one of these",
            layer=layer,
            tp=tp,
        )


def write_layers(rows: Iterable[LayerTime], path: StrPath) -> Path:
    """Write a table as a CSV file, and return its path."""
    found = Path(path)
    names = (*reversed(_CHOOSERS), *COLUMNS)
    with replacing(found) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([getattr(row, name) for name in names] for row in rows)
    return found


def read_layer_times(path: Path, source: str) -> Iterable[LayerTime]:
    """Return the rows of a file.

    Raises:
        UsageError: it is no such table.
    """
    try:
        found = read_cells(path, needed=COLUMNS)
    except (OSError, ValueError) as error:
        raise UsageError(f"the table of layers {source} cannot be read: {error}; give a CSV file") from error
    return [_row(row, f"{source}, line {line}") for line, row in found]


def _row(row: Mapping[str, str], where: str) -> LayerTime:
    """Return one row."""
    numbers = {column: _number(row[column], column, where) for column in COLUMNS}
    microbatch, tp, first, last = (int(numbers[column]) for column in COLUMNS[:4])
    if first > last or not microbatch or not tp:
        raise UsageError(
            f"{where}: microbatch and tp must be at least 1, and first_layer no more than last_layer; correct the row"
        )
    forward_s, backward_s, update_s = (numbers[column] for column in COLUMNS[4:])
    gpu, model = ((row.get(column) or "").strip() for column in _CHOOSERS)
    return LayerTime(microbatch, tp, first, last, forward_s, backward_s, update_s, gpu, model)


def _number(text: str | None, column: str, where: str) -> float:
    """Return the number in a cell: a whole one, or seconds."""
    is_count = not column.endswith("_s")
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf or (is_count and value != int(value)):
        rule = "a whole number" if is_count else "a number of seconds"
        raise UsageError(f"{where}: {column} must be {rule} of at least 0, got {text!r:.80}; correct the cell")
    return value


def _chosen(rows: tuple[LayerTime, ...], column: str, wanted: str | None, source: str) -> tuple[LayerTime, ...]:
    """Return the rows of one device or model."""
    if wanted is None:
        return rows
    found = tuple(row for row in rows if getattr(row, column) == wanted)
    if not found:
        known = ", ".join(sorted({getattr(row, column) for row in rows}))
        raise UsageError(
            f"{source} has no rows whose {column} is {wanted!r:.80}; it has {known or 'none'}; use one of them"
        )
    return found
