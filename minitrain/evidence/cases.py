"""What is simulated for a row: a strategy with its options, a model, a machine and a platform.

Simulating a case: as many microbatches as the pipeline needs to become steady, and the rest by the steady rate.

Beyond its start, a pipeline takes the same time for every further round of microbatches. So a step of many microbatches
is simulated twice with few, and the difference is the time of a round. `tests/evidence/test_prediction.py` compares
this with runs of all microbatches. Where no pieces are known and memory is not asked for, both are put together from a
step of even fewer (`minitrain.evidence.short_steps`).

Rows that do not say what their authors have tuned: the microbatch, and what backward computes again in JAX.

Authors who publish what a system reaches have chosen its best microbatch. So the simulated one is the power of two that
is predicted to be quickest among those that fit into memory; the same of recomputation. The measured time has no part
in the choice.

Rows whose backward computes a part of the layers again: each stage a share of its own, so that time and memory lie as
far between those of none and of all layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate, pairwise, product, starmap
from typing import TYPE_CHECKING, Any

from minitrain.errors import MinitrainError
from minitrain.evidence import layouts
from minitrain.evidence.columns import Assumption
from minitrain.evidence.layouts import Layout
from minitrain.evidence.rows import (
    QUICKEST,
    Framework,
    LackingError,
    Row,
    device_of,
    framework_of,
    machine_of,
    model_of,
    require_known,
    with_sizes,
)
from minitrain.evidence.shares import workload_of
from minitrain.evidence.short_steps import ShortStep
from minitrain.machine import load_config
from minitrain.machine.kernel_device import rates_of
from minitrain.machine.platforms import COMPONENTS, Platform, find_platform, platforms
from minitrain.operations import COMPUTE, PRICE, STREAM, STRIDE, TYP
from minitrain.run.device_memory import DeviceMemory, device_memory_of
from minitrain.run.parameters import AUTO
from minitrain.run.result import Run
from minitrain.run.simulation import simulate
from minitrain.run.strategy_loading import choose_strategy, stands_for
from minitrain.search.tuning.layouts import Columns, Order, order_of
from minitrain.search.tuning.problem import Machine, TuningProblem, pipeline_of, plain_options
from minitrain.search.tuning.step_figures import fullest_of, step_parts_of
from minitrain.workloads.kernels import EIGHT_BIT_CORES
from minitrain.workloads.transformer import Transformer
from minitrain.workloads.workload import Workload

if TYPE_CHECKING:
    from minitrain.machine.config import SystemConfig

_GIB = 2.0**30
_MEASURED = re.compile(r"(?:(?:ok|measured|published|verified)(?:[ ,;:]+\(?(.*?)\)?)?)?", re.IGNORECASE)  # a status
_DOUBTED = re.compile(  # a remark on figures that are not those of a step
    r"\?|\b(?:suspect|doubt|crash|oom|not\b|wrong|invalid|in(?:consistent|complete)|estimat|extrapolat|simulat|projec|"
    r"predict|unreliable|excluded|fail)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Case:
    """One measured run, ready to be simulated.

    Args:
        table: the table that it is from.
        row_id: its row there.
        measured_s: the measured step time, s; None where the table has memory alone.
        measured_bytes: the measured peak memory of a device; None where the table has none.
        memory_kind: what that counts: "allocated", "reserved" or "device" (as nvidia-smi does).
        of_stage: whether it is the "first" or the "last" stage's, or, if "", the fullest device's.
        model: what is trained.
        system: the machine.
        layout: how ranks divide the model.
        platform: what a framework adds to the price of kernels; None for components alone.
        strategy: the name of a shipped strategy.
        options: of the strategy, but for the microbatch's size.
        assumed: what the row does not say, and was taken as the framework's default.
        unread: words and columns that are not known, and were not read.
        about: what tables call the row.
    """

    table: str
    row_id: str
    measured_s: float | None
    measured_bytes: float | None
    memory_kind: str
    of_stage: str
    model: Transformer
    system: SystemConfig
    layout: Layout
    platform: Platform | None
    strategy: str
    options: Mapping[str, Any] = field(hash=False)
    assumed: tuple[Assumption, ...] = ()
    unread: tuple[str, ...] = ()
    about: str = ""

    @property
    def group(self) -> str:
        """Return the group of its table that the row is summed up in: by device, and FSDP apart from other layouts."""
        device = self.system.name.split("_")[0].upper()
        return f"{device}, FSDP" if self.layout.zero >= 2 else device

    def bare(self) -> Case:
        """Return the case without the fields that no step time depends on, so that equal steps compare equal."""
        layout = replace(self.layout, num_microbatches=1, assumed=())
        unmeasured = replace(self, measured_s=None, measured_bytes=None, memory_kind="")
        return replace(unmeasured, table="", row_id="", layout=layout, assumed=(), unread=(), about="")

    @property
    def period(self) -> int:
        """Return the microbatches of a round: in a loop of chunks, a step grows by whole rounds through the stages."""
        is_looped = self.layout.num_chunks > 1 and self.layout.schedule not in layouts.V_SHAPED
        return self.layout.pp if is_looped else 1


def case_of(row: Row, platform: str | Platform | None = None) -> Case:
    """Return what is simulated for a row in the common columns.

    Args:
        row: the row.
        platform: instead of the one that follows from framework and device; "components" for none.

    Raises:
        LackingError: the row lacks what the model needs.
    """
    status = _MEASURED.fullmatch(row.text("status"))
    if status is None or _DOUBTED.search(status.group(1) or ""):
        raise LackingError(f"its status is {row.text('status')!r}, so that its figures are not those of a step")
    unread, row = require_known(row), with_sizes(row)
    if status.group(1):
        unread = (*unread, f'status has "{status.group(1):.60}": not read')
    framework = framework_of(row)
    layout = layouts.layout_of(row, framework)
    measured_s, measured_bytes = _measured_s(row, layout), row.number("mem_gib")
    if row.words("gpu").facts.get("memory_alone"):  # which is as that of others of its generation
        measured_s = None
        if measured_bytes is None:
            raise LackingError(f"gpu is {row.text('gpu')!r}: no hardware config has prices of its kernels")
    if measured_s is None and measured_bytes is None:
        raise LackingError("it has neither step_time_s, tokens_per_s_per_gpu nor mem_gib to compare with")
    model, system = model_of(row, framework, layout.tp), machine_of(row)
    strategy, options = _strategy(layout, framework, model, row)
    found = stands_for(choose_strategy(strategy).function, options, layout.world_size)
    found = replace(found, zero=layout.zero, num_shards=layout.shard_size * layout.cp)
    memory = row.words("mem_kind").facts
    if "ib" in row.text("mem_gib").lower() and memory.get("unit", _GIB) != _GIB:
        raise LackingError(
            f"mem_gib is {row.text('mem_gib')!r}, but mem_kind is {row.text('mem_kind')!r}; name one unit"
        )
    return Case(
        table=row.table,
        row_id=row.row_id,
        measured_s=measured_s,
        measured_bytes=None if measured_bytes is None else measured_bytes * memory.get("unit", _GIB),
        memory_kind=memory.get("kind", "allocated"),
        of_stage=memory.get("of_stage", ""),
        model=model,
        system=system,
        layout=layout,
        platform=_platform(row, framework, layout, model, platform).in_layout(found),
        strategy=strategy,
        options=options,
        assumed=layouts.assumptions(row, framework, layout, model, system),
        unread=(*unread, *_other_time(row, layout)),
        about=_about(row, layout),
    )


def _measured_s(row: Row, layout: Layout) -> float | None:
    """Return the step time of a row, or what its tokens a second make of a step; None without either."""
    return row.number("step_time_s") or _by_tokens(row, layout)


def _by_tokens(row: Row, layout: Layout) -> float | None:
    """Return what a row's tokens a second make of a step, s; None where it has none."""
    rate = row.number("tokens_per_s_per_gpu")
    return None if rate is None else layout.global_batch_size * row.count("seq_len") / (rate * layout.world_size)


def _other_time(row: Row, layout: Layout) -> Iterator[str]:
    """Yield that the two measures of a row's time disagree, of which the tokens are not read."""
    step_time_s, by_tokens = row.number("step_time_s"), _by_tokens(row, layout)
    if step_time_s and by_tokens and abs(by_tokens / step_time_s - 1) > layouts.MOST_MOVED:
        yield f"tokens_per_s_per_gpu makes {by_tokens:.4g} s of a step, unlike step_time_s: not read"


def _strategy(layout: Layout, framework: Framework, model: Transformer, row: Row) -> tuple[str, dict[str, Any]]:
    """Return the strategy of a layout, and its options."""
    common: dict[str, Any] = {"recompute": layout.recompute}
    there = layouts.offloads(row)
    if _blocks(framework, layout):
        if there.what:
            raise LackingError(f"{there.what} in the host's memory has no price where each gather is waited for")
        return "zero3", common
    if layout.zero >= 2 and layout.pp == layout.ep == 1:
        if row.number("capacity_factor") not in (None, 1) and not framework.platform_of(row).by_xla:
            raise LackingError("capacity_factor has a price with ep, in MaxText, or without zero 2 and 3")
        return "fsdp", common | {
            "replicas": layout.dp // layout.shard_size,
            "tp": layout.tp,
            "sequence_parallel": layout.sequence_parallel,
            "reshard_after_forward": layout.zero == 3,
            "overlap_replicas": bool(row.words("overlap").facts.get("dp", True)),
            "no_sync": bool(row.words("framework").facts.get("no_sync")),
            **there.of_fsdp,
        }
    if there.what in ("activations", "parameters"):
        raise LackingError(
            f"{there.what} lie in the host's memory, which is priced with zero 2 or 3 and without stages"
        )
    num_stages = layout.pp * layout.num_chunks
    if num_stages > model.num_layers and num_stages - model.num_layers not in (1, 2):  # of head, and of embedding
        raise LackingError(f"{num_stages} stages are more than its {model.num_layers} layers")
    imbalance = row.number("imbalance") or 1
    zero = 0 if layout.num_replicas == 1 else 1 if layouts.gathers_once(framework, layout) else layout.zero
    if imbalance != 1 and layout.pp * layout.ep * layout.etp > _MOST_UNLIKE:
        raise LackingError(f"imbalance is {imbalance:g}: pp x ep is at most {_MOST_UNLIKE} where loads are unlike")
    return "megatron", common | {
        "tp": layout.tp,
        "pp": layout.pp,
        "ep": layout.ep * layout.etp,
        "num_chunks": layout.num_chunks,
        "schedule": "combined_1f1b" if _pairs_passes(row, framework, layout) else layout.schedule,
        "sequence_parallel": layout.sequence_parallel,
        "zero": zero,
        "shard_size": layout.shard_size * layout.cp if zero and layout.shard_size < layout.dp else None,
        "layers_per_stage": layouts.unit_stages(_layers(model, framework, num_stages)),
        "overlap_replicas": zero != 2 and _overlaps(row, framework, layout),
        "overlap_messages": _overlaps_messages(row, framework, layout),
        "batch_messages": framework.platform_of(row).batches_messages,
        "scatter_gather": "megatron" in row.text("framework").lower(),
        "imbalance": imbalance,
        "capacity_factor": row.number("capacity_factor"),
        **there.of_megatron,
    }


def _pairs_passes(row: Row, framework: Framework, layout: Layout) -> bool:
    """Return whether a forward runs beside a backward, as a row says or a framework does, and where it can."""
    stated = row.words("overlap").facts.get("ep")
    node_size = min(tier.size for tier in machine_of(row).networks)
    wanted = stated if stated is not None else framework.pairs_passes and layout.ep * layout.etp > node_size
    return bool(wanted) and layout.ep > 1 and layout.schedule == "1f1b" and (layout.num_chunks > 1 or layout.pp == 1)


def _blocks(framework: Framework, layout: Layout) -> bool:
    """Return whether computing waits for each gather of weights."""
    return framework.blocking_zero and layout.zero == 3 and layout.num_replicas == layout.world_size


_MOST_UNLIKE = 256
"""Ranks that are simulated where experts get unlike shares of the tokens: one for each part of them and each stage."""


def _layers(model: Transformer, framework: Framework, num_stages: int) -> tuple[int, ...]:
    """Return how many transformer layers each stage has."""
    if model.prediction_layers:
        return layouts.predicting_stages(model.num_layers, num_stages, model.prediction_layers)
    if not framework.balances:
        return layouts.stage_layers(model.num_layers, num_stages)
    layer = (4 * model.num_heads * model.head_dim + 3 * model.ffn_hidden_size) * model.hidden_size
    head = model.vocab_size * model.hidden_size
    return layouts.balanced_layers([float(layer)] * model.num_layers + [float(head)], num_stages)


def _overlaps(row: Row, framework: Framework, layout: Layout) -> bool:
    """Return whether what replicas exchange is hidden behind compute, as the row says or as the framework does."""
    usual = framework.overlap == "always" or (framework.overlap == "one stage" and layout.pp == 1)
    if layout.zero == 3:
        usual = not framework.blocking_zero and not layouts.gathers_once(framework, layout)
    return bool(row.words("overlap").facts.get("dp", usual))


def _overlaps_messages(row: Row, framework: Framework, layout: Layout) -> bool:
    """Return whether messages between stages are hidden, as a row says, or as a framework does with several chunks."""
    stated = row.words("overlap").facts.get("p2p")
    return layout.pp > 1 and bool(framework.overlaps_messages and layout.num_chunks > 1 if stated is None else stated)


def _platform(
    row: Row, framework: Framework, layout: Layout, model: Transformer, wanted: str | Platform | None
) -> Platform:
    """Return the platform of a row, with the attention kernels and the overlap that it names."""
    found = framework.platform_of(row) if wanted is None else find_platform(wanted, device_of(row))
    facts, overlaps = row.words("framework").facts, row.words("overlap").facts.get("tp")
    names = facts.get("is", ())
    copies = 0 if "fsdp1" in names else int("torchtitan" in names or framework.habits.get("copies_units", 0))
    kernels = {**_attention_kernel(row, found), **layouts.dispatcher_of(row), "copies_units": copies}
    found = replace(found, **kernels, moves_apart=found.moves_apart or "torchtitan" in names)  # also under Primus
    if wanted is not None:
        return found
    is_fused = bool((found.fused_loss and facts.get("compiled_loss", True)) or facts.get("fused_loss"))
    is_own = bool(facts.get("loss_fusion")) and not is_fused and not _WITH_OWN_LOSS.isdisjoint(names)
    found = replace(
        found,
        one_hot_embedding=bool(facts.get("one_hot")),
        shares_by_rank=_blocks(framework, layout),
        launch_s=_launch_s(row, found),
        host_update_s=row.number("update_s_per_billion") or found.host_update_s,
        captures=facts.get("graphs", found.captures),
        in_turn=found.in_turn and row.number("imbalance") is None,
        pads_experts=row.number("capacity_factor") is not None,
        one_hot_capacity=(row.number("capacity_factor") or 0.0) if found.by_xla else 0.0,
        fused_loss=is_fused or (bool(facts.get("loss_fusion")) and not is_own),
        jitted_loss=bool(facts.get("native_loss")) or is_own,
        **{name: facts[name] for name in _STATED if name in facts},
        by_parameter=bool(facts.get("by_parameter")),
        ring=_ring(framework) if layout.cp > 1 else "",
        memory=_memory_of(row, framework, found.memory, layout, model),
        persistent=found.persistent or _pairs_passes(row, framework, layout),
    )
    if found.by_xla:
        return replace(found, parts_overlap="windows" if overlaps == "windows" else "gathers" if overlaps else "none")
    if overlaps and framework.name.startswith("torchtitan"):
        return replace(found, parts_exposed=1.0, parts_overlap="pieces", copies_parts=True, dtensors=False)
    if overlaps:  # as the runs that its platform was fitted to
        usual = platforms()[found.name]
        return replace(found, parts_exposed=usual.parts_exposed, parts_overlap=usual.parts_overlap)
    if framework.platforms and (overlaps is False or framework.lacks_buffers(row)):
        return replace(found, parts_exposed=1.0, parts_overlap="gradients", copies_parts=False, dtensors=False)
    return found


_WITH_OWN_LOSS = frozenset({"megatron-core", "megatron-lm", "nemo", "primus"})
"""Whose `--cross-entropy-loss-fusion` is "native" where no `--cross-entropy-fusion-impl` is named."""
_STATED = ("separate_gradients", "fused_router", "hugging_face", "gates_apart")


def _ring(framework: Framework) -> str:
    """Return how the ranks of a sequence exchange keys and values; "" where attention hides it."""
    if framework.words.startswith("torchtitan"):
        return "gathered" if framework.is_compiled else "gathered eager"
    return "ring" if framework.words.startswith("fsdp") else ""


def _launch_s(row: Row, platform: Platform) -> float | None:
    """Return the time between launches of a row's host, where it was measured and they are dispatched from Python."""
    host_us = row.number("host_us")
    is_known = host_us is not None and platform.is_eager and platform.launch_s is None
    return 1e-6 * host_us * platform.launch_factor if is_known and host_us else platform.launch_s


def _memory_of(row: Row, framework: Framework, memory: str, layout: Layout, model: Transformer) -> str:
    """Return how a framework allocates, which has optimizers of its own for each way to shard."""
    facts = row.words("framework").facts
    if framework.is_compiled and layout.zero >= 2:
        return str(facts.get("loss", memory))
    if framework.is_compiled and facts.get("chunked_loss"):
        return "loss in chunks"
    if memory == "deepspeed zero" and model.precision.gradient_bytes > model.precision.parameter_bytes:
        return "deepspeed bf16"
    if facts.get("linear_loss") and memory in ("trainer", "hugging face"):
        return "trainer liger" if memory == "trainer" else "liger"
    if not facts.get("hugging_face", True):
        return {"eager norms": "eager", "trainer": "eager", "hugging face": ""}.get(memory, memory)
    return memory


def _attention_kernel(row: Row, platform: Platform) -> dict[str, Any]:
    """Return which attention kernel a row names, and its blocks; the platform's where its device has no figures.

    Raises:
        LackingError: attention in eight bits, of which the device has no figures, or which has no recipe in eight bits.
    """
    facts, precision = row.words("attention").facts, row.words("precision").facts
    known = rates_of(load_config(device_of(row))).attention
    kernel = precision.get("core") or facts.get("core") or facts.get("kernel")
    if kernel == "cudnn_fp8" and precision.get("scaling") == "mx":  # `fp8_dpa` takes the recipe of multiplications
        kernel = "cudnn_mxfp8"
    is_known = kernel in known
    if kernel in EIGHT_BIT_CORES and not is_known:
        raise LackingError(f"attention by {kernel}: {device_of(row)} has no figures of it, only of {', '.join(known)}")
    if kernel in EIGHT_BIT_CORES and "weights" not in precision:
        raise LackingError(f"attention by {kernel} needs multiplications in eight or four bits; write fp8 in precision")
    return {
        "attention": kernel if is_known else platform.attention,
        "attention_block": int(facts["block"]) if "block" in facts else platform.attention_block,
    }


def _about(row: Row, layout: Layout) -> str:
    """Return what tables call a row: model, device, ranks and how they are divided."""
    degrees = {name: getattr(layout, name) for name in ("tp", "pp", "cp", "ep", "dp")}
    parts = [f"{name} {size}" for name, size in degrees.items() if size > 1]
    device = row.text("gpu").split(" ")[0]
    return ", ".join([row.text("model"), f"{layout.world_size} {device}", *parts, f"batch {layout.microbatch_size}"])


TERMS = ("forward", "backward", "update", "communication", "waiting")
"""What the time of the rank that computes longest is made of; communication is what no compute hides."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted time and memory of a case.

    Args:
        seconds: the step time, s.
        terms: what it is made of on the rank that computes longest, s, by the names of `TERMS`.
        memory: the bytes of the device that is asked for, by what they count: "allocated", "reserved" and "device";
            nothing where the memory is not asked for.
    """

    seconds: float
    terms: Mapping[str, float]
    memory: Mapping[str, float]


def predict(case: Case, without: Sequence[str] = (), *, with_memory: bool = True) -> Prediction:
    """Simulate a case.

    Args:
        case: the case.
        without: terms of the price to leave out, as for `simulate`.
        with_memory: whether its memory is asked for, too.

    Raises:
        MinitrainError: it cannot be simulated.
    """
    share = case.layout.recomputed_share
    if share < 1:
        none, every = (
            predict(_recomputing(case, again), without, with_memory=with_memory) for again in ("none", "full")
        )
        return _between(none, every, share)
    num = case.layout.num_microbatches
    few, more = _few(case)
    bare, terms = case.bare(), tuple(without)
    if num <= more or _is_automatic(case):  # orders that are made for all microbatches have no rounds
        return _step(bare, num, terms, with_memory)
    first = _step(bare, few, terms, with_memory and _memory_grows(case))
    second = _step(bare, more, terms, with_memory)
    rounds = (num - few) / (more - few)
    return Prediction(
        seconds=_extended(first.seconds, second.seconds, rounds),
        terms={name: max(0.0, _extended(first.terms[name], second.terms[name], rounds)) for name in TERMS},
        memory=_memory(case, first, second, rounds),
    )


def _recomputing(case: Case, recompute: str) -> Case:
    """Return a case that recomputes something else in all layers."""
    layout = replace(case.layout, recompute=recompute, recomputed_share=1.0)
    return replace(case, layout=layout, options={**case.options, "recompute": recompute})


def _between(first: Prediction, second: Prediction, share: float) -> Prediction:
    """Return the figures that lie a share of the way from one prediction to another."""
    return Prediction(
        seconds=_extended(first.seconds, second.seconds, share),
        terms={name: _extended(first.terms[name], second.terms[name], share) for name in TERMS},
        memory={kind: _extended(first.memory[kind], second.memory[kind], share) for kind in first.memory},
    )


def _memory(case: Case, first: Prediction, second: Prediction, rounds: float) -> Mapping[str, float]:
    """Return the memory of all microbatches."""
    if not _memory_grows(case):
        return second.memory
    return {kind: _extended(first.memory[kind], second.memory[kind], rounds) for kind in second.memory}


def _memory_grows(case: Case) -> bool:
    """Return whether memory grows with the microbatches, as GPipe's does; others' is steady."""
    return case.layout.schedule == "gpipe" and case.layout.pp > 1


def _extended(first: float, second: float, rounds: float) -> float:
    """Return the value after some rounds, of which one leads from the first to the second."""
    return first + (second - first) * rounds


def _few(case: Case) -> tuple[int, int]:
    """Return two numbers of microbatches with which the pipeline is steady, one round apart; paired passes to 3e-4."""
    pp, rest = case.layout.pp, case.layout.num_microbatches % case.period
    if pp == 1:
        return 2, 3
    if case.layout.schedule in layouts.V_SHAPED:
        pp *= 3  # microbatches of both directions meet
    elif case.layout.schedule != "1f1b" or (case.layout.num_chunks > 1 and case.measured_bytes is not None):
        pp *= 2  # a warm-up has up to 2 pp - 1 microbatches; interleaved, the time is steady before the memory is
    return pp + rest, pp + rest + case.period


@lru_cache(maxsize=64)
def _step(case: Case, num_microbatches: int, without: tuple[str, ...], with_memory: bool = True) -> Prediction:
    """Simulate a step of a case with some microbatches; rows that differ in their number alone share steps."""
    if not _is_automatic(case):
        composed = _composed(case, num_microbatches, without, with_memory)
        retimed = None if composed or with_memory else _retimed(case, num_microbatches, without)
        return composed or _predicted(case, retimed or _run(case, num_microbatches, without), with_memory)
    costs = _pass_costs(case, without)
    timed = _predicted(case, _made_for(case, costs, num_microbatches, without), with_memory=False)
    if not with_memory:
        return timed
    held = _made_for(case, (*costs[:4], 1.0), min(num_microbatches, 3 * case.layout.pp), without)  # steady by then
    return replace(timed, memory=_memory_of_run(case, held))


def _made_for(case: Case, costs: tuple[float, ...], num_microbatches: int, without: tuple[str, ...]) -> Run:
    """Return the run of an automatic order for some costs.

    It counts activations whole until the weight gradient, so that its memory keeps to the limit of the order only where
    the order was made so too.
    """
    return _run(replace(case, options={**case.options, "pass_costs": costs}), num_microbatches, without)


def _is_automatic(case: Case) -> bool:
    return case.layout.schedule in ("zb_1p", "zb_2p") and case.layout.pp > 1


@lru_cache(maxsize=64)
def _pass_costs(case: Case, without: tuple[str, ...]) -> tuple[float, ...]:
    """Return what an automatic order is made for: times in a step of ZB-H1, of the rank with most, as authors profile.

    A weight gradient keeps 32 of the 34 + 5 heads x tokens / hidden bytes that a layer keeps of each element of an
    activation, without the last term where attention is one kernel (Qi et al. 2023, section 2.3).
    """
    logs = _run(replace(case, options={**case.options, "schedule": "zb_h1"}), case.layout.pp, without).class_logs
    times = [{typ: sum(e.duration for e in log if e.typ == typ) / case.layout.pp for typ in _PASSES} for log in logs]
    messages = [event.duration for log in logs for event in log if event.typ == "send"]
    model = case.model
    scores = 5 * model.num_heads * model.seq_len / model.hidden_size if model.attention == "unfused" else 0
    most = max(times, key=lambda found: sum(found.values()))
    return (*(most[typ] for typ in _PASSES), max(messages, default=0.0), 32 / (34 + scores))


_PASSES = ("forward", "backward_input", "backward_weight")


_COMPOSED = {"schedule": "1f1b", "ep": 1, "imbalance": 1, "capacity_factor": None, "shard_size": None}
_COMPOSED |= {"optimizer_offload_fraction": 0, "overlap_cpu_optimizer_d2h_h2d": False}
"""The options of `megatron` that pieces know nothing of, and what they must be."""


def _composed(
    case: Case, num_microbatches: int, without: tuple[str, ...], with_memory: bool = True
) -> Prediction | None:
    """Put a step together from pieces, as `tune` does, with the floats of a run; None where its pieces are not known.

    Where several ranks compute as long but for rounding, terms may be those of another one of them.
    """
    layout, options = case.layout, {"overlap_parts": False, **case.options}
    if (
        case.strategy != "megatron"
        or _is_slowed_down(case)
        or any(options.pop(name) != value for name, value in _COMPOSED.items())
    ):
        return None
    workload: Any = _workload(case)
    machine = _machine(workload, case.system, case.platform or COMPONENTS, layout.world_size, without)
    stages = tuple(starmap(range, pairwise(accumulate(options.pop("layers_per_stage"), initial=0))))
    plain = plain_options(layout.world_size, options, {**options, "microbatch_size": layout.microbatch_size})
    pipeline = pipeline_of(machine, plain, stages) if machine.composes else None
    if pipeline is None:
        return None
    columns = Columns(machine.pieces, [replace(pipeline, num_microbatches=num_microbatches)], contention=True)
    spent = step_parts_of(columns)
    times = spent.forward_s, spent.backward_s, spent.update_s, spent.exposed_s, spent.waiting_s
    memory: Mapping[str, float] = {}
    if with_memory:
        memory = _kinds(fullest_of(columns, case.platform or COMPONENTS, case.of_stage), case.system)
    return Prediction(spent.step_time, dict(zip(TERMS, times, strict=True)), memory)


def _retimed(case: Case, num_microbatches: int, without: tuple[str, ...]) -> Run | None:
    """Return the run of a step that is put together from a shorter one; None where it has to be simulated."""
    is_known = case.strategy == "megatron" and case.options["schedule"] == "1f1b" and case.options["zero"] <= 1
    if not is_known or num_microbatches < _LEAST:
        return None
    return _short_step(case, without).with_order(_order(case, num_microbatches))


_LEAST = 2  # microbatches of a step that has all passes: the first forward, the last backward, and others


@lru_cache(maxsize=1)
def _short_step(case: Case, without: tuple[str, ...]) -> ShortStep:
    """Return a short step; the two steps of a prediction follow one another."""
    schedule = "interleaved"  # as "1f1b", also where it has fewer microbatches than ranks
    short = replace(case, options={**case.options, "schedule": schedule})
    run, order = _run(short, _LEAST, without, contention=False), _order(case, _LEAST, schedule)
    return ShortStep(run, order, case.layout.microbatch_size, contention=_is_slowed_down(case))


def _order(case: Case, num_microbatches: int, schedule: str = "1f1b") -> Order:
    """Return what the ranks of a pipeline ask for."""
    options, layout = case.options, case.layout
    messages = "hidden" if options["overlap_messages"] else "batched" if options["batch_messages"] else "plain"
    return order_of(layout.pp, layout.num_chunks, num_microbatches, messages, schedule)


@lru_cache(maxsize=8)
def _machine(
    workload: Workload, system: SystemConfig, platform: Platform, world_size: int, without: tuple[str, ...]
) -> Machine:
    """Return what prices pipelines by their pieces, the same for layouts of equal arguments."""
    return Machine(TuningProblem(workload, system, world_size, world_size, {"platform": platform, "without": without}))


def _run(case: Case, num_microbatches: int, without: tuple[str, ...], *, contention: bool | str = AUTO) -> Run:
    """Return the run of a step, slowed down where it has to be if `contention` is not said."""
    layout = case.layout
    slows_down = contention == AUTO and _is_slowed_down(case)
    return simulate(
        case.strategy,
        world_size=layout.world_size,
        global_batch_size=layout.num_replicas * layout.microbatch_size * num_microbatches,
        hardware=case.system,
        workload=_workload(case),
        platform=case.platform or COMPONENTS,
        without=without,
        fold=layout.world_size > 1,
        contention=slows_down or contention,
        check=False,
        microbatch_size=layout.microbatch_size,
        **case.options,
    )


def _is_combined(case: Case) -> bool:
    """Return whether a forward runs beside a backward."""
    return case.options.get("schedule") == "combined_1f1b"


def _is_slowed_down(case: Case) -> bool:
    """Return whether computing is slowed down by communication beside it, where runs are not by themselves.

    Pipelines that are put together from pieces are slowed down there (`Columns`); others, beside the last of many
    microbatches alone, are not.
    """
    is_alone = case.layout.pp == 1 and bool(case.options.get("overlap_replicas"))
    return case.strategy == "megatron" and (is_alone or _is_combined(case))


def _predicted(case: Case, run: Run, with_memory: bool = True) -> Prediction:
    """Return the figures of a run of a case."""
    return Prediction(run.step_time, _terms(run), _memory_of_run(case, run) if with_memory else {})


def _memory_of_run(case: Case, run: Run) -> dict[str, float]:
    """Return the bytes of the device of a run that is asked for, by what they count."""
    by_rank = sorted(run.class_models, key=lambda model: model._rank)
    memory = device_memory_of(by_rank[-(case.of_stage == "last")]) if case.of_stage else run.device_memory
    assert memory is not None  # a run that was just made has one
    return _kinds(memory, case.system)


def _kinds(memory: DeviceMemory, system: SystemConfig) -> dict[str, float]:
    """Return the bytes of a device by what they count.

    An allocator reserves no more than the driver has: it gives cached blocks back then.
    """
    beside = memory.total_bytes - memory.reserved_bytes
    most = max(system.mem_hbm.usable_bytes - beside, memory.allocated_bytes)
    reserved = min(memory.reserved_bytes, most)
    return {
        "allocated": memory.allocated_bytes,
        "reserved": reserved,
        "device": reserved + beside,
        "needed": memory.needed_bytes,
    }


def _terms(run: Run) -> dict[str, float]:
    """Return what the step time is made of on the rank that computes longest."""
    breakdown = run.breakdown
    busiest = int(breakdown.computing.argmax())
    by_type = max(map(_compute_by_type, run.class_logs), key=lambda found: sum(found.values()))
    forward, update = by_type.get("forward", 0.0), by_type.get("update", 0.0)
    return {
        "forward": forward,
        "backward": sum(by_type.values()) - forward - update,
        "update": update,
        "communication": float(breakdown.exposed[busiest]),
        "waiting": float(breakdown.waiting[busiest]),
    }


def _compute_by_type(log: Any) -> dict[str, float]:
    """Return how long a rank computed, s, by type of operation; its rows are read, so that no event is made."""
    rows, found = log.rows_of_memory, dict[str, float]()
    for typ, stream, price in zip(rows[TYP::STRIDE], rows[STREAM::STRIDE], rows[PRICE::STRIDE], strict=True):
        if stream.kind == COMPUTE:
            found[typ] = found.get(typ, 0.0) + price.seconds
    return found


def case_and_prediction(
    row: Row, platform: str | Platform | None, without: Sequence[str] = ()
) -> tuple[Case, Prediction]:
    """Return what is simulated for a row, and what it is predicted to take.

    Args:
        row: the row.
        platform: as for `case_of`.
        without: terms of the price to leave out.

    Raises:
        LackingError: the row lacks what the model needs, or nothing that could stand in an open column fits the device.
        MinitrainError: it cannot be simulated.
    """
    left_open = _left_open(row)
    if not left_open:
        case = case_of(row, platform)
        return case, predict(case, without, with_memory=case.measured_bytes is not None)
    reasons: list[str] = []
    tried = list(_tried(row, left_open, platform, without, reasons))
    if not tried:
        names, common = " and ".join(left_open), {*reasons}
        why = reasons[0] if len(common) == 1 else "nothing that could stand there both divides and fits"
        raise LackingError(f"{names} is not published, and {why}")
    cells, case, found = min(tried, key=lambda one: one[2].seconds)
    chosen = [
        Assumption(
            f"{column} not published: {cells[column]}, the quickest that fits", column, _beside(others, cells[column])
        )
        for column, others in left_open.items()
    ]
    return replace(case, assumed=(*chosen, *case.assumed)), found


def _left_open(row: Row) -> dict[str, list[str]]:
    """Return the columns in which a row leaves open what its authors have tuned, and what could stand there."""
    found: dict[str, list[str]] = {}
    is_open = row.text("mbs") == QUICKEST or (row.number("mbs") is None and row.number("n_micro") is None)
    if is_open and row.text("gbs") and not layouts.adds_up_once(row, framework_of(row)):
        most = row.count("gbs") // layouts.degrees_of(row)[-1]
        found["mbs"] = [str(2**power) for power in range(most.bit_length())]
    is_said = row.words("recompute").is_stated or layouts.says_only_checkpoints(row)
    if framework_of(row).recompute is None and not is_said:
        found["recompute"] = ["none", "selective", "full"]
    return found


def _beside(cells: Sequence[str], chosen: str) -> tuple[str, ...]:
    """Return the cells that lie beside the chosen one."""
    place = cells.index(chosen)
    return (*cells[place + 1 : place + 2], *cells[max(0, place - 1) : place])


def _tried(
    row: Row,
    left_open: Mapping[str, Sequence[str]],
    platform: str | Platform | None,
    without: Sequence[str],
    reasons: list[str],
) -> Iterator[tuple[Mapping[str, str], Case, Prediction]]:
    """Yield what may stand in columns that are left open, where it can be simulated and fits; keep other's reasons."""
    for chosen in product(*left_open.values()):
        cells = dict(zip(left_open, chosen, strict=True))
        try:
            case = case_of(replace(row, values={**row.values, **cells}), platform)
            found = predict(case, without)
        except (LackingError, MinitrainError) as error:
            reasons.append(str(error))
            continue
        if found.memory["needed"] <= case.system.mem_hbm.usable_bytes:
            yield cells, case, found
        else:
            reasons.append("nothing that could stand there fits")


def _exchanged(case: Case) -> float:
    """Return the bytes of an exchange of tokens over those of sending each part of an expert its copy.

    A copy travels to one part, and the others gather it from there (`token_permutation` of Megatron-Core's
    `MoEAlltoAllTokenDispatcher`): they are neighbours, whose links are quicker than those between nodes.
    """
    inner, *outer = sorted(case.system.networks, key=lambda tier: tier.size)
    etp = case.layout.etp
    if etp == 1 or not outer or case.layout.ep * etp <= inner.size:
        return 1.0
    quicker = outer[0].bandwidth * outer[0].efficiency / (inner.bandwidth * inner.efficiency)
    leaves = 1 - inner.size / (case.layout.ep * etp)  # share of the exchange between nodes; none of a gather stays here
    return (1 + (etp - 1) * quicker / leaves) / etp


def _workload(case: Case) -> Workload:
    """Return what a rank of a case trains; the same object for equal models and shares."""
    return workload_of(case.model, case.layout.cp, case.layout.etp, _exchanged(case))
