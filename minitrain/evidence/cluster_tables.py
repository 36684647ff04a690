"""Tables of runs on clusters of one or several kinds of nodes, priced by measured times of layers.

Columns: case, cluster, model, microbatch, global_batch, pp, dp, layers_by_stage ("0-11;12-25", the embedding is layer 0
and the head the last one), "replicas_by_stage (GPU x tp)" ("RTX-3090 x8+RTX-2080 x8;..."), iteration_s and, if there is
one, peak_memory_bytes. Training is in single precision, on samples of 2048 tokens, by Megatron-DeepSpeed (1F1B).

Times of layers come from a table (n1 of the package, or `--layers`) and contain the sums over parts. Communication
between nodes is priced by measured bandwidths: 25 GB/s an interface and GPU between GH200 nodes. The mixed cluster is a
`mt.Cluster`: a node of it carries 2.86 GB/s to nodes of its own kind, and 0.115 GB/s to others (n3 of the same source).
The source is the paper on Sailor. DeepSpeed's stages send and receive in turn. A send whose message fits into NCCL's
buffer returns at once, so that the stage receives meanwhile; a larger one does not.

Tables of measured times of layers: forward and backward of a layer, or forward and both backward halves of a stage.

Columns of the first kind: hidden, n_heads, seq_len, tp, mbs, sp, recompute, fwd_ms, bwd_ms. A model of two layers and
one of one layer are trained by `megatron`; what the second layer adds to forward and to backward is the layer's time.
Sums over parts are hidden behind gradients of weights, and slow these by the share of the device that they need.

Columns of the second kind: n_layers, hidden, n_heads, seq_len, mbs, pp, T_F_ms, T_B_ms, T_W_ms. A middle stage has
(n_layers + 2) / pp layers, which embedding and head are counted among; its times are sums of prices.

Tables of model states: the bytes of parameters, gradients and optimizer states on a rank, by ZeRO's stage.

Columns: n_params, dp, zero_stage, mem_gb. Both gradients and parameters have 16 bits, and Adam's states 12 bytes
(Rajbhandari et al. 2020, section 3.1); a stage shards the states, then the gradients, then the parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minitrain.evidence.columns import listed
from minitrain.evidence.errors_by_table import RowResult, tables_folder
from minitrain.evidence.rows import LackingError, Row, device_of, machine_of
from minitrain.machine.cluster import Cluster
from minitrain.machine.device_groups import Devices, Link
from minitrain.machine.measured_layers import LayerTime, MeasuredLayers
from minitrain.machine.platforms import Platform, find_platform
from minitrain.operations import COMPUTE
from minitrain.run.parameters import RunParameters
from minitrain.run.simulation import simulate
from minitrain.workloads.architecture import PRECISIONS, Precision
from minitrain.workloads.transformer import Transformer

if TYPE_CHECKING:
    from minitrain.run.result import Run


COLUMNS: Mapping[str, Sequence[str]] = listed()["of_clusters"]
"""The columns of each kind of table, by the one that it is known by; `notes` and `source` are in all."""

_REPLICA = re.compile(r"\s*(\S+)\s+x(\d+)\s*")
_SHAPES: dict[str, dict[str, Any]] = {  # by the first letters of a model's name
    "opt-350": {"num_layers": 24, "hidden_size": 1024, "num_heads": 16, "vocab_size": 50272},
    "gpt-neo": {"num_layers": 32, "hidden_size": 2560, "num_heads": 32, "vocab_size": 128256},
}
_TABLE_NAMES = {"opt-350": "OPT-350", "gpt-neo": "GPT-Neo-2.7"}
_SEQ_LEN = 2048
_LIKE_NODES = Link(2.86e9, 5e-5)  # of a node, among nodes of one kind of the mixed cluster
_UNLIKE_NODES = Link(0.115e9, 5e-5)  # among nodes of different kinds
_NCCL_BUFFER_BYTES = 4 << 20  # between two ranks, the default of NCCL_BUFFSIZE (NCCL's documentation)


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """The devices and layers of each stage.

    Args:
        stages: for each stage the device of each replica.
        tp: parts of a layer.
        units: the engine's layers of each stage.
    """

    stages: tuple[tuple[str, ...], ...]
    tp: int
    units: tuple[int, ...]

    @property
    def world_size(self) -> int:
        """Return the ranks."""
        return len(self.stages) * len(self.stages[0]) * self.tp

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the kinds of device."""
        return tuple(sorted({device for stage in self.stages for device in stage}))

    def device(self, rank: int) -> str:
        """Return a rank's device: parts are neighbours, beyond them come replicas, then stages."""
        place, replica = divmod(rank // self.tp, len(self.stages[0]))
        return self.stages[place][replica]


def cluster_results(row: Row, layers: str | None = None) -> Iterator[RowResult]:
    """Yield the result of a row.

    Args:
        row: the row.
        layers: the table of measured layers; the package's if None.

    Raises:
        LackingError: the row lacks what the model needs.
        MinitrainError: it cannot be simulated.
    """
    family = next((name for name in _SHAPES if row.text("model").lower().startswith(name)), None)
    if family is None:
        raise LackingError(f"model is {row.text('model')!r}, whose sizes are not known: use {', '.join(_SHAPES)}")
    layout = _layout(row)
    microbatch, dp = row.count("microbatch"), len(layout.stages[0])
    num, rest = divmod(row.count("global_batch"), microbatch * dp)
    if rest or not num:
        raise LackingError(f"global_batch {row.text('global_batch')} is no multiple of microbatch x dp")
    model = Transformer(
        seq_len=_SEQ_LEN, precision=PRECISIONS["fp32"], attention="unfused", name=row.text("model"), **_SHAPES[family]
    )
    tables = {name: _table(layers, name, _TABLE_NAMES[family]) for name in layout.devices}
    run = _Step(layout, model, tables, microbatch)
    memory = row.number("peak_memory_bytes")
    yield RowResult(
        table=row.table,
        row_id=row.row_id,
        about=_about(row, layout),
        group="mixed" if len(layout.devices) > 1 else layout.devices[0],
        device=layout.devices[0],
        model=row.text("model"),
        world_size=layout.world_size,
        measured_s=row.positive("iteration_s"),
        predicted_s=run.seconds(num),
        measured_bytes=memory,
        predicted_bytes=None if memory is None else run.device_bytes(),
        memory_kind="" if memory is None else "device",
        platform="measured layers",
    )


def _about(row: Row, layout: ClusterLayout) -> str:
    """Return what tables call a row."""
    devices = " and ".join(layout.devices)
    return f"{row.text('model')}, {devices}, {layout.world_size} ranks, pp {len(layout.stages)}"


@dataclass(frozen=True, slots=True)
class _Step:
    """A training step on a cluster, with as many microbatches as are asked for."""

    layout: ClusterLayout
    model: Transformer
    tables: dict[str, MeasuredLayers]
    microbatch: int

    def seconds(self, num_microbatches: int) -> float:
        """Return the step time: what further microbatches take is the same for each."""
        few = 2 * len(self.layout.stages)
        if num_microbatches <= few + 1:
            return self._run(num_microbatches).step_time
        first, second = self._run(few).step_time, self._run(few + 1).step_time
        return first + (second - first) * (num_microbatches - few)

    def device_bytes(self) -> float:
        """Return the memory of the fullest device, as nvidia-smi shows it."""
        memory = self._run(2 * len(self.layout.stages)).device_memory
        assert memory is not None  # a run that was just made has one
        return memory.total_bytes

    def _run(self, num_microbatches: int) -> Run:
        layout, dp = self.layout, len(self.layout.stages[0])
        return simulate(
            "megatron",
            world_size=layout.world_size,
            global_batch_size=dp * self.microbatch * num_microbatches,
            **self._machine(),
            check=False,
            microbatch_size=self.microbatch,
            tp=layout.tp,
            pp=len(layout.stages),
            layers_per_stage=list(layout.units),
            scatter_gather=True,
            batch_messages=self._message_bytes <= _NCCL_BUFFER_BYTES,
            overlap_messages=False,
        )

    @property
    def _message_bytes(self) -> int:
        """Return what a rank sends to the next stage: its share of an activation."""
        model = self.model
        num_elements = self.microbatch * model.seq_len * model.hidden_size // self.layout.tp
        return num_elements * model.precision.activation_bytes

    def _machine(self) -> dict[str, Any]:
        """Return what the step runs on, as arguments of `simulate`: equal nodes are folded, which changes no figure."""
        if len(self.layout.devices) > 1:
            cluster, placement = _mixed_cluster(self.layout, self.tables)
            return {"hardware": cluster, "placement": placement, "workload": self.model}
        (device,) = self.layout.devices
        return {"hardware": device, "workload": self.model, "prices": self.tables[device], "fold": True}


def _mixed_cluster(layout: ClusterLayout, tables: Mapping[str, MeasuredLayers]) -> tuple[Cluster, list[int]]:
    """Return a cluster with a node for each replica of each stage, and the node of each rank."""
    nodes = [device for stage in layout.stages for device in stage]  # in the order of the ranks
    cluster = Cluster(
        [
            Devices(
                device, nodes.count(device) * layout.tp, per_node=layout.tp, between_nodes=_LIKE_NODES, prices=table
            )
            for device, table in tables.items()
        ],
        between_groups=_UNLIKE_NODES,
        name="mixed",
    )
    free = {device: count(first) for device, first in zip(tables, _first_nodes(nodes, tables), strict=True)}
    numbers = [next(free[device]) for device in nodes]
    return cluster, [number for number in numbers for _ in range(layout.tp)]


def _first_nodes(nodes: Sequence[str], devices: Iterable[str]) -> list[int]:
    """Return the number of the first node of each kind, where nodes are numbered kind by kind."""
    return [0, *accumulate(nodes.count(device) for device in devices)][:-1]


@lru_cache(maxsize=32)
def _table(path: str | None, device: str, model: str) -> MeasuredLayers:
    """Return the times of a model's layers on a device."""
    file = Path(path) if path is not None else tables_folder() / "n1.csv"
    read = MeasuredLayers.read(file, gpu=_DEVICE_NAMES.get(device, device), model=model, includes_transfers=True)
    return replace(read, rows=tuple(_at_most_that_of_more(row, read) for row in read.rows))


def _at_most_that_of_more(row: LayerTime, table: MeasuredLayers) -> LayerTime:
    """Return a row of times that are at most those of larger microbatches: the first measurement was made cold."""
    alike = [
        other
        for other in table.rows
        if (other.tp, other.first_layer, other.last_layer) == (row.tp, row.first_layer, row.last_layer)
        and other.microbatch >= row.microbatch
    ]
    return replace(
        row, forward_s=min(other.forward_s for other in alike), backward_s=min(other.backward_s for other in alike)
    )


_DEVICE_NAMES = {
    "gh200_96g_nvl4": "GH-96",
    "titan_rtx": "Titan-RTX",
    "rtx_2080ti": "RTX-2080",
    "rtx_3090": "RTX-3090",
    "v100_32g_nvl8": "V100-16",
    "a100_40g": "A100-40",
    "a100_80g": "A100-80",
}


def _layout(row: Row) -> ClusterLayout:
    """Return the layout of a row.

    Raises:
        LackingError: it does not say, or parts differ between replicas.
    """
    column = next((name for name in row.values if name.startswith("replicas_by_stage")), "")
    stages = [_replicas(text, row) for text in row.text(column).split(";")]
    degrees = {tp for stage in stages for _, tp in stage}
    if len(degrees) != 1 or len({len(stage) for stage in stages}) != 1:
        raise LackingError("parts or replicas differ between stages, which no strategy here does")
    units = _units(row.text("layers_by_stage"))
    if len(units) != len(stages):
        raise LackingError(f"layers_by_stage has {len(units)} stages, and replicas_by_stage {len(stages)}")
    return ClusterLayout(tuple(tuple(device for device, _ in stage) for stage in stages), degrees.pop(), units)


def _replicas(text: str, row: Row) -> list[tuple[str, int]]:
    """Return the device and the parts of each replica of a stage."""
    found = [_REPLICA.fullmatch(part) for part in text.split("+")]
    if not all(found):
        raise LackingError(f"replicas_by_stage has {text!r}, where GPU xN+GPU xN is needed")
    pairs = [(match.group(1), int(match.group(2))) for match in found if match]
    return [(device_of(Row(row.table, {"gpu": name}, row.line)), tp) for name, tp in pairs]


def _units(text: str) -> tuple[int, ...]:
    """Return how many of the engine's layers each stage has, from ranges of a table's layers.

    >>> _units("0-11;12-25")
    (23, 27)
    """
    try:
        ranges = [tuple(map(int, part.split("-"))) for part in text.split(";")]
    except ValueError:
        raise LackingError(f"layers_by_stage is {text!r}, where ranges such as 0-11;12-25 are needed") from None
    last = ranges[-1][-1]
    return tuple(sum(1 if layer in (0, last) else 2 for layer in range(part[0], part[-1] + 1)) for part in ranges)


_VOCABULARY = 51200  # of embedding and head, whose times are left out
_STAGE_PLATFORM = "megatron-a100"
_PASSES = (("T_F_ms", "forward"), ("T_B_ms", "backward_input"), ("T_W_ms", "backward_weight"))


def layer_results(row: Row, platform: str | Platform | None, without: Sequence[str]) -> Iterator[RowResult]:
    """Yield the results of a row of the first kind: forward and backward.

    Raises:
        LackingError: a size is missing.
        MinitrainError: it cannot be simulated.
    """
    tp, mbs = row.count("tp", 1), row.count("mbs")
    recompute = _recompute(row)
    options: dict[str, Any] = {
        "tp": tp,
        "sequence_parallel": bool(row.words("sp").facts.get("sp")),
        "recompute": recompute,
        "overlap_parts": True,
        "microbatch_size": mbs,
        "global_batch_size": mbs,
        "world_size": tp,
        "hardware": machine_of(row),
        "platform": find_platform(platform),
        "without": tuple(without),
        "contention": True,
        "check": False,
    }
    one, two = (_passes(simulate("megatron", workload=_model(row, count), **options)) for count in (1, 2))
    for name, column in (("forward", "fwd_ms"), ("backward", "bwd_ms")):
        (first, before), (seconds, computing) = one[name], two[name]
        seconds, computing = seconds - first, computing - before
        found = _result(row, name, row.positive(column) / 1e3, seconds, tp, _name_of(platform))
        yield replace(found, terms={name: computing, "communication": max(0.0, seconds - computing)})


def _recompute(row: Row) -> str:
    """Return what backward computes again: nothing where the row does not say."""
    found = row.words("recompute")
    if not found.is_empty and "recompute" not in found.facts:
        raise LackingError(f"recompute is {row.text('recompute')!r}, where none, selective or full is needed")
    return str(found.facts.get("recompute", "none"))


def stage_results(row: Row, platform: str | Platform | None, without: Sequence[str]) -> Iterator[RowResult]:
    """Yield the result of a row of the second kind: forward, and the gradients of inputs and of weights, together.

    Raises:
        LackingError: a size is missing, or stages do not divide.
        MinitrainError: it cannot be simulated.
    """
    num_layers, pp, mbs = row.count("n_layers"), row.count("pp"), row.count("mbs")
    if (num_layers + 2) % pp:
        raise LackingError(f"n_layers + 2 ({num_layers + 2}) is no multiple of pp ({pp})")
    chosen = find_platform(_STAGE_PLATFORM if platform is None else platform)
    parameters = RunParameters(
        world_size=1,
        hardware=machine_of(row),
        workload=_model(row, 1),
        global_batch_size=mbs,
        platform=chosen,
        without=tuple(without),
    )
    prices: Any = parameters.predictor()  # one for all ranks
    num_here = (num_layers + 2) // pp
    times = (sum(prices.compute(typ, mbs, layer).seconds for layer in (1, 2)) for _, typ in _PASSES)
    forward, *backward = (num_here * seconds for seconds in times)
    terms = {"forward": forward, "backward": sum(backward)}
    measured_s = sum(row.positive(column) for column, _ in _PASSES) / 1e3
    yield replace(_result(row, "stage", measured_s, sum(terms.values()), 1, chosen.name), terms=terms)


def _model(row: Row, num_layers: int) -> Transformer:
    """Return a model of some layers like those of a row."""
    return Transformer(
        num_layers=num_layers,
        hidden_size=row.count("hidden"),
        num_heads=row.count("n_heads"),
        vocab_size=_VOCABULARY,
        seq_len=row.count("seq_len"),
        attention="unfused",
        dropout=0.1,
        precision=PRECISIONS["fp16"],
        name=row.text("model") or "custom",
    )


def _passes(run: Any) -> dict[str, tuple[float, float]]:
    """Return how long forward and backward of a step took on rank 0, and how long it computed in each, s."""
    log = run.logs[0]
    loss = next(event for event in log if event.typ == "loss")
    update = next(event for event in log if event.typ == "update")
    spans = {"forward": (0.0, loss.time), "backward": (loss.time + loss.duration, update.time)}
    return {
        name: (end - begin, sum(each.duration for each in log if each.stream == COMPUTE and begin <= each.time < end))
        for name, (begin, end) in spans.items()
    }


def _result(row: Row, name: str, measured_s: float, predicted_s: float, tp: int, platform: str | None) -> RowResult:
    """Return the result of one figure of a row."""
    sizes = f"hidden {row.text('hidden')}, batch {row.text('mbs')}"
    experiment = f", {row.text('experiment')}" if row.text("experiment") else ""
    return RowResult(
        table=row.table,
        row_id=f"{row.row_id}-{name}",
        about=f"{row.text('model')} {name}, {sizes}{experiment}",
        group=name,
        device=machine_of(row).name,
        model=row.text("model"),
        world_size=tp,
        measured_s=measured_s,
        predicted_s=predicted_s,
        platform=platform,
    )


def _name_of(platform: str | Platform | None) -> str | None:
    """Return a platform's name."""
    return None if platform is None else find_platform(platform).name


_MIXED = Precision(gradient_bytes=2)


def state_results(row: Row) -> Iterator[RowResult]:
    """Yield the result of a row.

    Raises:
        LackingError: a size is missing.
    """
    num_parameters, dp, stage = row.positive("n_params"), row.count("dp"), row.count("zero_stage")
    sizes = (_MIXED.optimizer_bytes, _MIXED.gradient_bytes, _MIXED.parameter_bytes)
    held = sum(size / dp if place < stage else size for place, size in enumerate(sizes))
    yield RowResult(
        table=row.table,
        row_id=row.row_id,
        about=f"{row.text('model')}, {dp} ranks, stage {stage}",
        group="states",
        device="any",
        model=row.text("model"),
        world_size=dp,
        measured_bytes=row.positive("mem_gb") * 1e9,
        predicted_bytes=num_parameters * held,
        memory_kind="states",
    )
