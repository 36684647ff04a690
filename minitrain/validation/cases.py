"""What is simulated for a row: a strategy with its options, a model, a machine and a platform."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, final

from minitrain.hardware.platforms import Platform, find_platform
from minitrain.validation.frameworks import Framework, framework_of
from minitrain.validation.layouts import Layout, balanced_layers, layout_of, stage_layers, unit_stages
from minitrain.validation.machines import machine_of
from minitrain.validation.models import model_of
from minitrain.validation.rows import LackingError, Row

if TYPE_CHECKING:
    from minitrain.hardware.config import SystemConfig
    from minitrain.workloads.transformer import Transformer

_GIB = 2.0**30
_TP_OVERLAP = re.compile(r"tp overlap|tp-comm-overlap|userbuffers|ub\b")


@final
@dataclass(frozen=True, slots=True)
class Case:
    """One measured run, ready to be simulated.

    Args:
        table: the table that it is from.
        row_id: its row there.
        measured_s: the measured step time, s; None where the table has memory alone.
        measured_bytes: the measured peak memory of a device; None where the table has none.
        memory_kind: what that counts: "allocated", "reserved" or "device" (as nvidia-smi does).
        model: what is trained.
        system: the machine.
        layout: how ranks divide the model.
        platform: what a framework adds to the price of kernels; None for components alone.
        strategy: the name of a shipped strategy.
        options: of the strategy, but for the microbatch's size.
        assumed: what the row does not say, and was taken as the framework's default.
        about: what tables call the row.
    """

    table: str
    row_id: str
    measured_s: float | None
    measured_bytes: float | None
    memory_kind: str
    model: Transformer
    system: SystemConfig
    layout: Layout
    platform: Platform | None
    strategy: str
    options: Mapping[str, Any] = field(hash=False)
    assumed: tuple[str, ...] = ()
    about: str = ""

    @property
    def group(self) -> str:
        """Return the group of its table that the row is summed up in: by device, and FSDP apart from other layouts."""
        device = self.system.name.split("_")[0].upper()
        return f"{device}, FSDP" if self.layout.zero >= 2 else device

    def bare(self) -> Case:
        """Return the case without the fields that no step time depends on, so that equal steps compare equal."""
        layout = replace(self.layout, num_microbatches=1, assumed=())
        nothing = {"measured_s": None, "measured_bytes": None, "memory_kind": "", "assumed": (), "about": ""}
        return replace(self, table="", row_id="", layout=layout, **nothing)  # type: ignore[arg-type]  # each of its kind

    @property
    def period(self) -> int:
        """Return the microbatches of a round: with several chunks, a step grows by whole rounds through the stages."""
        return self.layout.pp if self.layout.num_chunks > 1 else 1


def case_of(row: Row, platform: str | Platform | None = None) -> Case:
    """Return what is simulated for a row in the common columns.

    Args:
        row: the row.
        platform: instead of the one that follows from framework and device; "components" for none.

    Raises:
        LackingError: the row lacks what the model needs.
    """
    status = row.text("status").lower()
    if status and status != "ok":
        raise LackingError(f"its status is {row.text('status')!r}, so that its figures are not those of a step")
    framework = framework_of(row)
    layout = layout_of(row, framework)
    _require_supported(layout)
    measured_s, measured_bytes = _measured_s(row, layout), row.number("mem_gib")
    if measured_s is None and measured_bytes is None:
        raise LackingError("it has neither step_time_s, tokens_per_s_per_gpu nor mem_gib to compare with")
    model = model_of(row, framework, layout.tp)
    strategy, options = _strategy(layout, framework, model, row)
    kind = row.text("mem_kind").lower()
    return Case(
        table=row.table,
        row_id=row.row_id,
        measured_s=measured_s,
        measured_bytes=None if measured_bytes is None else measured_bytes * _unit(kind),
        memory_kind=_memory_kind(kind),
        model=model,
        system=machine_of(row),
        layout=layout,
        platform=_platform(row, framework, layout, platform),
        strategy=strategy,
        options=options,
        assumed=layout.assumed,
        about=_about(row, layout),
    )


def _measured_s(row: Row, layout: Layout) -> float | None:
    """Return the step time of a row, or what its tokens a second make of a step; None without either."""
    step_time_s, rate = row.number("step_time_s"), row.number("tokens_per_s_per_gpu")
    if step_time_s is not None or not rate:
        return step_time_s
    return layout.global_batch_size * row.count("seq_len") / (rate * layout.world_size)


def _require_supported(layout: Layout) -> None:
    """Refuse layouts that no shipped strategy has.

    Raises:
        LackingError: it is such a layout.
    """
    if layout.ep > 1:
        raise LackingError(f"ep is {layout.ep}: no strategy here divides experts beside tp and pp")
    if layout.zero >= 2 and layout.pp > 1:
        raise LackingError("weights or gradients are sharded beside pp, which no strategy here does")


def _strategy(layout: Layout, framework: Framework, model: Transformer, row: Row) -> tuple[str, dict[str, Any]]:
    """Return the strategy of a layout, and its options."""
    common: dict[str, Any] = {"recompute": layout.recompute}
    if layout.zero >= 2:
        return "fsdp", common | {
            "replicas": layout.dp // layout.shard_size,
            "tp": layout.tp,
            "sequence_parallel": layout.sequence_parallel,
            "reshard_after_forward": layout.zero == 3,
        }
    num_stages = layout.pp * layout.num_chunks
    if num_stages > model.num_layers:
        raise LackingError(f"{num_stages} stages are more than its {model.num_layers} layers")
    return "megatron", common | {
        "tp": layout.tp,
        "pp": layout.pp,
        "num_chunks": layout.num_chunks,
        "sequence_parallel": layout.sequence_parallel,
        "zero": min(1, layout.zero) if layout.num_replicas > 1 else 0,
        "layers_per_stage": unit_stages(_layers(model, framework, num_stages)),
        "overlap_replicas": _overlaps(row, framework, layout),
        "overlap_messages": _overlaps_messages(row, layout),
        "batch_messages": framework.batches_messages,
        "scatter_gather": "megatron" in row.text("framework").lower(),
    }


def _layers(model: Transformer, framework: Framework, num_stages: int) -> tuple[int, ...]:
    """Return how many transformer layers each stage has."""
    if not framework.balances:
        return stage_layers(model.num_layers, num_stages)
    layer = (4 * model.num_heads * model.head_dim + 3 * model.ffn_hidden_size) * model.hidden_size
    head = model.vocab_size * model.hidden_size
    return balanced_layers([float(layer)] * model.num_layers + [float(head)], num_stages)


def _overlaps(row: Row, framework: Framework, layout: Layout) -> bool:
    """Return whether what replicas exchange is hidden behind compute, as the row says or as the framework does."""
    if "no dp overlap" in row.text("overlap").lower():
        return False
    return framework.overlap == "always" or (framework.overlap == "one stage" and layout.pp == 1)


def _overlaps_messages(row: Row, layout: Layout) -> bool:
    """Return whether messages between stages are hidden, as a row says; Megatron-LM does so with several chunks."""
    text = row.text("overlap").lower()
    says_so = ("p2p" in text and "overlap" in text and "no p2p overlap" not in text) or "pp overlap" in text
    return says_so and "scatter/gather" not in text and layout.pp > 1


def _platform(row: Row, framework: Framework, layout: Layout, wanted: str | Platform | None) -> Platform | None:
    """Return the platform of a row, with the attention kernels and the overlap that it names."""
    if wanted is not None:
        return find_platform(wanted)
    found = find_platform(framework.platform_of(row))
    found = replace(
        found,
        attention=found.attention or _generation(row),
        gradient_accesses=framework.gradient_accesses if _sums_whole_gradients(layout) else 0.0,
    )
    if layout.tp == 1:
        return replace(found, parts_exposed=1.0)  # its ranks exchange nothing for tensor parallelism
    if _hides_in_gradients(row, framework):
        return replace(found, parts_exposed=1.0, parts_overlap="gradients")
    return found


def _sums_whole_gradients(layout: Layout) -> bool:
    """Return whether replicas keep gradients whole until these are summed; other software shards them as they come."""
    return layout.num_replicas > 1 and layout.zero < 2


def _hides_in_gradients(row: Row, framework: Framework) -> bool:
    """Return whether tensor parallelism's collectives run beside gradients alone, as a row says or a framework does."""
    text = row.text("overlap").lower()
    if "no tp overlap" in text:
        return bool(framework.platforms)
    return framework.parts_overlap == "gradients" and not _TP_OVERLAP.search(text)


def _generation(row: Row) -> str | None:
    """Return which attention kernel a row names, or None."""
    text = row.text("attention").lower()
    if "cudnn" in text or "te)" in text or "fused (te" in text:
        return "cudnn"
    if "3" in text and "flash" in text:
        return "flash3"
    return None


def _unit(kind: str) -> float:
    """Return the bytes of the unit of a memory's figure."""
    return 1e9 if "gb (1e9" in kind or "decimal" in kind else _GIB


def _memory_kind(kind: str) -> str:
    """Return what a memory's figure counts."""
    if "nvidia-smi" in kind or "tool not stated" in kind:
        return "device"
    return "reserved" if "reserved" in kind else "allocated"  # where it may be either, the larger one


def _about(row: Row, layout: Layout) -> str:
    """Return what tables call a row: model, device, ranks and how they are divided."""
    degrees = {"tp": layout.tp, "pp": layout.pp, "dp": layout.dp}
    parts = [f"{name} {size}" for name, size in degrees.items() if size > 1]
    device = row.text("gpu").split(" ")[0]
    return ", ".join([row.text("model"), f"{layout.world_size} {device}", *parts, f"batch {layout.microbatch_size}"])
