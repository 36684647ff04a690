"""Prices from measured layers: `simulate(..., prices=mt.MeasuredLayers.read("layers.csv"))`.

Forward, backward and update of a layer take what the table says; transfers, loads and the device's limits are those of
the hardware config, by the fidelity that is asked for.

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

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

from minitrain.errors import HardwareConfigError, UsageError
from minitrain.hardware.measured_layers import MeasuredLayers
from minitrain.hardware.predictor import DevicePredictor
from minitrain.hardware.price import FREE, Price
from minitrain.hardware.pricing import ROOFLINE
from minitrain.workloads.workload import USUAL, PassMode, Workload

_HALVES = ("backward_input", "backward_weight")


@final
class LayerPredictor(DevicePredictor):
    """Price layers by a table, and all else as another predictor does.

    Args:
        layers: the table.
        base: what prices transfers and loads.

    Raises:
        UsageError: the table has another number of layers than the workload.
    """

    prices_layers_alike = False

    def __init__(self, layers: MeasuredLayers, base: DevicePredictor) -> None:
        self.layers = layers
        self.base = base
        self.pricing = replace(getattr(base, "pricing", ROOFLINE), prices=layers)
        self.system = getattr(base, "system", None)
        self.num_nodes = getattr(base, "num_nodes", 1)
        self.prices_ranks_alike = getattr(base, "prices_ranks_alike", False)
        super().__init__(base.workload, base.device, base.topology)

    @property
    def peak_flop_per_s(self) -> float | None:  # type: ignore[override]  # a table needs no rate for its datatype
        """The device's peak rate for the workload's datatype, FLOP/s; None where its config has none."""
        try:
            return super().peak_flop_per_s
        except HardwareConfigError:
            return None

    def of_each(self, name: str) -> list[Any]:
        """Return a figure of each machine, where the base prices several at once; else that of the one."""
        ask = getattr(self.base, "of_each", None)
        if ask is None:
            return [getattr(self, name, None)]
        try:
            found: list[Any] = ask(name)
        except HardwareConfigError:  # a table needs no rate for its datatype
            return [None] * len(ask("system"))
        if name == "pricing":
            return [replace(pricing or ROOFLINE, prices=self.layers) for pricing in found]
        return found

    def training(self, workload: Workload) -> LayerPredictor:
        """Return the same machine for another workload."""
        other = LayerPredictor(self.layers, self.base.training(workload))
        return other if self.slowdown == 1.0 else other.slowed(self.slowdown)

    def _remember_prices(self) -> None:
        """Begin anew for a workload, whose layers must be those of the table."""
        num_transformer_layers = getattr(getattr(self.workload, "model", None), "num_layers", None)
        if num_transformer_layers is not None and self.layers.num_layers != num_transformer_layers + 2:
            raise UsageError(
                f"{self.layers.source} has layers 0..{self.layers.num_layers - 1}, embedding and head included, but "
                f"{self.workload!r:.80} has 0..{num_transformer_layers + 1}; use the table of this model",
                num_layers=self.layers.num_layers,
            )
        super()._remember_prices()

    def _compute(self, typ: str, num_samples: int, layer: int = 0, mode: PassMode = USUAL) -> Price:
        if typ == "loss":
            return FREE
        if mode.context is not None and mode.context.degree > 1:
            raise UsageError(
                f"{self.layers.source} has times of whole sequences, and {typ} of layer {layer} is of shards of one; "
                "leave prices out, or give a rank whole sequences (cp=1)",
                layer=layer,
            )
        unit = self._unit(layer)
        row = layer if unit is None else _row_of(unit, self.layers.num_layers)
        ahead = self.layers.seconds("forward_s", row, num_samples, mode.num_parts) * self._share(unit)
        if typ == "forward":
            return Price(max(0.0, ahead - self._transfer(unit, "embedding", num_samples, mode)) * self.slowdown)
        seconds = self.layers.seconds("backward_s", row, num_samples, mode.num_parts) * self._share(unit)
        seconds = max(0.0, seconds - self._transfer(unit, "head", num_samples, mode))
        if typ in _HALVES:
            seconds /= 2
        if typ != "backward_weight":
            seconds += ahead * self._repeated(unit, mode)
        return Price(seconds * self.slowdown)

    def _update(self, num_shards_on_device: int, num_shards: int, layer: int = 0, num_parts: int = 1) -> Price:
        unit = self._unit(layer)
        row = layer if unit is None else _row_of(unit, self.layers.num_layers)
        share = num_shards_on_device / num_shards
        if unit is not None:
            share *= unit.num_held_parameters() / sum(each.num_held_parameters() for each in self._units_of(unit))
        return Price(self.layers.any_seconds("update_s", row, num_parts) * share * self.slowdown)

    def _collective(self, op: str, size_bytes: float, ranks: Sequence[int], algorithm: str | None = None) -> Price:
        return self.base.collective(op, size_bytes, ranks, algorithm)

    def _p2p(self, op: str, size_bytes: float, source: int, dest: int) -> Price:
        return self.base.p2p(op, size_bytes, source, dest)

    def _transfer(self, unit: Any, end: str, num_samples: int, mode: PassMode) -> float:
        """Return what the all_reduce in the measured time of a pass takes, s.

        Args:
            unit: whose pass it is.
            end: "embedding" for forward, "head" for backward: the end of the model that has an all_reduce then.
            num_samples: of the microbatch.
            mode: its number of parts are the ranks of the all_reduce.
        """
        has_one = unit is not None and (unit.layer is not None or unit.kind == end)
        if not self.layers.includes_transfers or mode.num_parts == 1 or not has_one:
            return 0.0
        workload: Any = self.workload
        hidden = workload.model.hidden_size * workload.model.precision.activation_bytes
        size_bytes = hidden * workload.seq_len * num_samples
        return self.base.collective("all_reduce", size_bytes, range(mode.num_parts)).seconds

    def _unit(self, layer: int) -> Any:
        """Return the unit that the engine calls a layer; None where the workload is no transformer."""
        units = getattr(self.workload, "units", None)
        return None if units is None else units[layer]

    def _units_of(self, unit: Any) -> list[Any]:
        """Return the units that the table counts together as one layer."""
        if unit.layer is None:
            return [unit]
        return [each for each in self.workload.units if each.layer == unit.layer]  # type: ignore[attr-defined]  # a transformer's

    def _share(self, unit: Any) -> float:
        """Return a unit's share of the time of its layer."""
        if unit is None or unit.layer is None:
            return 1.0
        seq_len: int = self.workload.seq_len  # type: ignore[attr-defined]  # a transformer's
        flop = [each.forward_flop(seq_len) for each in self._units_of(unit)]
        share: float = unit.forward_flop(seq_len) / sum(flop)
        return share

    def _repeated(self, unit: Any, mode: PassMode) -> float:
        """Return what share of a unit's forward is computed again in its backward."""
        if unit is None or mode.recompute == "none" or unit.layer is None:
            return 0.0
        seq_len: int = self.workload.seq_len  # type: ignore[attr-defined]  # a transformer's
        share: float = unit.recomputed_flop(seq_len, mode.recompute) / unit.forward_flop(seq_len)
        return share


def _row_of(unit: Any, num_rows: int) -> int:
    """Return which of the table's layers a unit belongs to."""
    if unit.layer is not None:
        return int(unit.layer) + 1
    return 0 if unit.kind == "embedding" else num_rows - 1
