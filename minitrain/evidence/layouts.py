"""How a row divides its model among ranks: degrees, microbatches, stages and what is sharded.

What a row does not say and was taken for granted, and what else it could have said.

`assumptions` lists everything that the time or the memory of a row depends on, and that its columns leave open. Each
names the cells that the row could have had instead: `validate(strict=True)` simulates these, and refuses the row where
one moves the time by more than `MOST_MOVED`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from minitrain.evidence.columns import Assumption, columns, is_about, is_not_stated
from minitrain.evidence.rows import (
    QUICKEST,
    USUAL_HEAD,
    Framework,
    LackingError,
    Row,
    compiles_silently,
    device_of,
    named_model,
    usual_heads,
)
from minitrain.machine import load_config
from minitrain.machine.kernel_device import rates_of
from minitrain.machine.platforms import Platform
from minitrain.workloads.workload import as_recompute

if TYPE_CHECKING:
    from minitrain.machine.config import SystemConfig
    from minitrain.machine.platforms import Platform
    from minitrain.workloads.transformer import Transformer


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a row.

    Args:
        world_size: ranks.
        tp: parts of a layer.
        sequence_parallel: whether the sequence is divided between layers' parts.
        pp: ranks of a pipeline.
        num_chunks: stages a rank.
        schedule: the order of the pipeline, in the words of `megatron`.
        cp: parts of the sequence.
        ep: parts of the experts.
        etp: parts of an expert.
        dp: replicas.
        zero: what replicas shard: 0 nothing, 1 optimizer states, 2 gradients too, 3 weights too.
        shard_size: ranks that share shards; dp where all do.
        microbatch_size: samples a microbatch.
        num_microbatches: microbatches a replica and step.
        recompute: "none", "selective", "full" or modules.
        recomputed_share: the share of the layers in which backward does so.
        assumed: what the row does not say, and was taken as the framework's default.
    """

    world_size: int
    tp: int
    sequence_parallel: bool
    pp: int
    num_chunks: int
    cp: int
    ep: int
    dp: int
    zero: int
    shard_size: int
    microbatch_size: int
    num_microbatches: int
    recompute: str
    assumed: tuple[Assumption, ...] = ()
    schedule: str = "1f1b"
    recomputed_share: float = 1.0
    etp: int = 1

    @property
    def num_replicas(self) -> int:
        """Return the ranks that hold the same weights: they sum gradients over samples, and over shares of these."""
        return self.dp * self.cp

    @property
    def axes(self) -> dict[str, int]:
        """Return how many ranks divide a model along each axis."""
        sharing = self.shard_size if self.zero >= 2 else 1
        return {"tp": self.tp, "pp": self.pp, "cp": self.cp, "ep": self.ep, "fsdp": sharing}

    @property
    def global_batch_size(self) -> int:
        """Return the samples of a step."""
        return self.dp * self.microbatch_size * self.num_microbatches


def layout_of(row: Row, framework: Framework) -> Layout:
    """Return the layout of a row.

    Raises:
        LackingError: degrees or sizes are missing, or do not fit one another.
    """
    world_size, tp, pp, cp, dp = degrees_of(row)
    if tp * pp * cp * dp != world_size:
        raise LackingError(f"tp {tp} x pp {pp} x cp {cp} x dp {dp} is not n_gpus {world_size}")
    assumed: list[Assumption] = []
    mbs, num_microbatches = _microbatches(row, framework, dp, pp, assumed)
    zero, shard_size = _sharding(row, dp, assumed)
    schedule, num_chunks = _schedule(row, pp, assumed)
    return Layout(
        world_size=world_size,
        tp=tp,
        sequence_parallel=_sequence_parallel(row, tp, assumed),
        pp=pp,
        num_chunks=num_chunks,
        schedule=schedule,
        cp=cp,
        ep=row.count("ep", 1),
        etp=_parts_of_expert(row, framework, tp, world_size // pp, assumed),
        dp=dp,
        zero=zero,
        shard_size=shard_size if zero else 1,
        microbatch_size=mbs,
        num_microbatches=num_microbatches,
        recompute=_recompute(row, framework, assumed),
        recomputed_share=_recomputed_share(row, pp * num_chunks),
        assumed=tuple(assumed),
    )


_DEGREES = (("n_gpus", None), ("tp", 1), ("pp", 1), ("cp", 1))


def degrees_of(row: Row) -> tuple[int, int, int, int, int]:
    """Return the ranks of a row, and of these tp, pp, cp and dp, which is all others where the row does not say."""
    world_size, tp, pp, cp = (row.count(name, default) for name, default in _DEGREES)
    return world_size, tp, pp, cp, row.count("dp", max(1, world_size // (tp * pp * cp)))


def _one_microbatch(row: Row, framework: Framework, pp: int, assumed: list[Assumption]) -> float:
    """Return one microbatch without stages, of frameworks that add up gradients of no more where they are not told to.

    Of others for tokens a second alone, which more microbatches hardly change.

    Raises:
        LackingError: it has stages, or a step's time alone.
    """
    has_time_alone = row.text("step_time_s") or not row.text("tokens_per_s_per_gpu")
    if pp > 1 or (has_time_alone and not framework.adds_up_once):
        raise LackingError("neither gbs nor n_micro is stated, so that microbatches are unknown")
    assumed.append(Assumption("neither gbs nor n_micro stated: one microbatch", "n_micro", ("4",)))
    return 1.0


def adds_up_once(row: Row, framework: Framework) -> bool:
    """Return whether a row leaves its microbatches to a framework that makes one of a batch."""
    unsaid = row.text("mbs") != QUICKEST and row.number("mbs") is None and row.number("n_micro") is None
    return unsaid and framework.adds_up_once and row.number("gbs") is not None


_PER_DEVICE = re.compile(r"per[ _](gpu|device|chip)")


def _samples(row: Row, framework: Framework, dp: int) -> float | None:
    """Return the samples of a microbatch of a replica, where a row says them.

    What JAX calls devices are the chips of a TPU, but the cores of a TPU7x.

    Raises:
        LackingError: it says those of a device, where several share a sample.
    """
    size, num_ranks = row.number("mbs"), row.count("n_gpus")
    if size and framework.size_of_device and framework.size_of_device in row.text("mbs"):
        num_devices = cast("float", load_config(device_of(row)).sheet.features.get("devices", 1))
        return size * num_ranks / dp * num_devices
    if size and _PER_DEVICE.search(row.text("mbs").lower()) and num_ranks != dp:
        raise LackingError(f"mbs is {row.text('mbs')!r}, where ranks share samples; write those of a replica")
    return size


def _microbatches(row: Row, framework: Framework, dp: int, pp: int, assumed: list[Assumption]) -> tuple[int, int]:
    """Return the samples of a microbatch, and how many microbatches a replica has."""
    size, num, batch = _samples(row, framework, dp), row.number("n_micro"), row.number("gbs")
    if adds_up_once(row, framework):
        num = 1
        assumed.append(Assumption("mbs not stated: all samples of a replica at once", "n_micro", ("4",)))
    if size is None and batch and num and not batch % (dp * num):
        size = batch / (dp * num)
    if size is None:
        raise LackingError(f"mbs is {row.text('mbs')!r}: without the samples of a microbatch nothing can be priced")
    if num is None:
        num = _one_microbatch(row, framework, pp, assumed) if batch is None else batch / (size * dp)
        if num % 1:
            raise LackingError(f"gbs {row.text('gbs')!r} is no multiple of mbs x dp, so that microbatches are unknown")
    elif batch is not None and batch != size * dp * num:
        raise LackingError(
            f"gbs is {row.text('gbs')!r}, but mbs x n_micro x dp is {size:.0f} x {num:.0f} x {dp}; leave one out"
        )
    if size < 1 or num < 1:
        raise LackingError("mbs and n_micro must be at least 1")
    return int(size), int(num)


def _sequence_parallel(row: Row, tp: int, assumed: list[Assumption]) -> bool:
    """Return whether sequence parallelism is on; off where the row does not say."""
    stated = row.words("sp").facts.get("sp")
    if stated is not None or tp == 1:
        return tp > 1 and bool(stated)
    overlaps = bool(row.words("overlap").facts.get("tp"))  # Megatron-LM overlaps with it alone
    needs_it = overlaps or row.count("ep", 1) > 1
    said = f"on, as {'tp-comm-overlap' if overlaps else 'ep'} needs it" if needs_it else "off"
    assumed.append(Assumption(f"sp not stated: {said}", "sp", ("on", "off")))
    return needs_it


def _parts_of_expert(row: Row, framework: Framework, tp: int, of_stage: int, assumed: list[Assumption]) -> int:
    """Return the parts of an expert: where the row does not say, as many as the framework makes.

    Raises:
        LackingError: a stage has not enough ranks for so many parts.
    """
    ep, usual = row.count("ep", 1), tp if framework.splits_experts else 1
    if ep == 1:
        return 1  # experts are divided as other layers
    if of_stage % (ep * usual):
        usual = 1
    if row.number("etp") is None and tp > 1:
        assumed.append(Assumption(f"etp not stated: {usual}", "etp", ("1", str(tp))))
    etp = row.count("etp", usual)
    if of_stage % (ep * etp):
        raise LackingError(f"ep {ep} x etp {etp} does not divide the {of_stage} ranks of a stage")
    return etp


V_SHAPED = ("zbv", "dualpipe_v")
"""Schedules in which each rank has two stages, down the ranks and back."""


def _schedule(row: Row, pp: int, assumed: list[Assumption]) -> tuple[str, int]:
    """Return the order of a pipeline, and the stages of a rank: one where the row does not say, as frameworks have it.

    Raises:
        LackingError: both contradict each other.
    """
    stated, said = map(row.words("schedule").facts.get, ("schedule", "chunks"))
    value = row.number("vpp") or said
    if pp == 1:
        return "1f1b", 1
    num_chunks = int(value or (2 if stated in V_SHAPED else 1))
    is_said_twice = said not in (None, value)
    if is_said_twice or (stated == "interleaved" and value == 1) or (stated in V_SHAPED and num_chunks > 2):
        needed = "one number of" if is_said_twice else "2" if stated in V_SHAPED else "2 or more"
        raise LackingError(
            f"schedule is {row.text('schedule')!r:.60} and vpp {row.text('vpp')!r:.40}, where {needed} stages a rank"
        )
    if stated is None:
        order = "interleaved" if num_chunks > 1 else "1f1b"
        assumed.append(Assumption(f"schedule not stated: {order}", "schedule", ("gpipe", "ZB-H1")))
    if value is None and stated not in V_SHAPED:
        although = ", although interleaved" if stated == "interleaved" else ""
        assumed.append(Assumption(f"vpp not stated: 1{although}", "vpp", ("2", "4")))
    if stated in V_SHAPED:
        return str(stated), 2
    return ("1f1b" if stated in (None, "interleaved") else str(stated)), num_chunks


def _sharding(row: Row, dp: int, assumed: list[Assumption]) -> tuple[int, int]:
    """Return the stage of ZeRO, fully sharded being stage 3, and how many ranks share shards.

    Raises:
        LackingError: groups of shards do not divide the replicas.
    """
    facts = row.words("zero").facts
    stage = facts.get("zero", 3 if "fsdp" in facts else 0)
    size = int(facts.get("shard_size", dp // facts.get("copies", 1)))
    if "hybrid" in facts and "shard_size" not in facts:
        size = min(dp, row.count("gpus_per_node", load_config(device_of(row)).networks[0].size))
        assumed.append(Assumption(f"ranks of a group of shards not stated: {size}, those of a node", "zero"))
    size = min(size, dp) if stage < 3 else size
    if not 0 < size <= dp or dp % size or facts.get("copies", dp // size) != dp // size:
        raise LackingError(f"zero is {row.text('zero')!r}, whose groups of shards do not divide the {dp} replicas")
    return stage, size


_UNSAID = (
    *("checkpointing", "gradient checkpointing", "activation checkpointing", "activation checkpoint", "jax.checkpoint"),
    *("remat", "recompute", "recomputation", "activation recomputation", "custom", "custom remat", "custom policy"),
)
"""Cells that say that backward computes again, but not what: PyTorch's and JAX's checkpoints of a layer keep its input
by default, as MaxText's policy "custom" does where it names nothing else."""


def says_only_checkpoints(row: Row) -> bool:
    """Return whether a row's cell of `recompute` is one of those."""
    return " ".join(re.sub("[_-]", " ", row.text("recompute").lower()).split()) in _UNSAID


def _recompute(row: Row, framework: Framework, assumed: list[Assumption]) -> str:
    """Return what backward computes again; where the row does not say, what the framework does by default."""
    found = row.words("recompute")
    if found.facts.get("per_op") and not framework.name.startswith("torchtitan"):
        raise LackingError(
            f"recompute is {row.text('recompute')!r}: checkpoints of single operations are priced with torchtitan alone"
        )
    if found.facts.get("per_op"):
        return as_recompute("+".join(("op", *found.facts.get("modules", ()))))
    if found.is_guessed:
        assumed.append(Assumption(f"recompute: {row.text('recompute')}", "recompute", ("none", "selective", "full")))
    if says_only_checkpoints(row):
        said = row.text("recompute")
        assumed.append(Assumption(f"recompute says no more than {said!r}: full", "recompute", ("selective", "none")))
        return "full"
    if found.facts.keys() & {"keeps", "modules"}:
        return _by_parts(row)
    if "recompute" in found.facts:
        said = str(found.facts["recompute"])
        return framework.selective if said == "selective" else said
    if found.is_empty and framework.recompute:
        others = ("none", "selective", "full")
        assumed.append(Assumption(f"recompute not stated: {framework.recompute}", "recompute", others))
        return framework.recompute
    raise LackingError(f"recompute is {row.text('recompute')!r}, where none, selective or full is needed")


def _by_parts(row: Row) -> str:
    """Return what backward computes again where a row names modules, or what is kept.

    Raises:
        LackingError: it names other things beside them.
    """
    facts = row.words("recompute").facts
    if "named" in facts and "saved" not in facts:
        raise LackingError(
            f"recompute is {row.text('recompute')!r:.60}, which does not say what becomes of it; write "
            "save_only_these_names: o_proj, or o_proj=device, for what forward keeps"
        )
    if facts.get("recompute", "selective") != "selective" or facts.keys() >= {"keeps", "modules"}:
        raise LackingError(f"recompute is {row.text('recompute')!r}, which names modules beside all or none of them")
    if "keeps" in facts:
        return _by_what_is_kept(row, frozenset(facts["keeps"]))
    return as_recompute("+".join(facts["modules"]))


_QKV, _GATED = {"query_proj", "key_proj", "value_proj"}, {"mlpwi_0", "mlpwi_1"}
_KEPT: Mapping[str, tuple[set[str], set[str]]] = {
    "qkv_proj": (_QKV, {"qkv_proj"}),
    "context": ({"context"}, {"context"}),
    "out_proj": ({"out_proj"}, {"out_proj"}),
    "mlp": (_GATED, {"mlpwi"}),
}
"""What of a layer is computed again unless all of these are kept, or all of those."""


def _by_what_is_kept(row: Row, kept: frozenset[str]) -> str:
    """Return what backward computes again of what forward has not kept, by MaxText's names.

    Norms, rotary embedding and activation functions have no names there. What only leads to the residual connection
    ("mlpwo") is dead code, kept or not.

    Source: `get_remat_policy` of `layers/decoders.py` of github.com/AI-Hypercomputer/maxtext; splash attention keeps
    its statistics by the name of its output (`residual_checkpoint_name` of `layers/attention_op.py`).

    Raises:
        LackingError: a part of a multiplication is kept.
    """
    again = [module for module, ways in _KEPT.items() if not any(way <= kept for way in ways)]
    has_experts = (row.number("n_experts") or 0) > 1
    if kept & _GATED and not has_experts:  # one of both
        again = ["mlp_up" if module == "mlp" else module for module in again]
    for module in _KEPT.keys() & {*again}:
        if partly := kept & set().union(*_KEPT[module]):
            raise LackingError(
                f"recompute is {row.text('recompute')!r:.80}, which keeps {', '.join(sorted(partly))} alone of a "
                f"multiplication; name all of {', '.join(sorted(_KEPT[module][0]))}, or none"
            )
    if again == [*_KEPT]:
        return "full"
    experts = ["moe"] * ("mlp" in again and has_experts)
    return as_recompute("+".join(["layernorm", "mlp_act", *again, *experts]))


@dataclass(frozen=True, slots=True)
class Offloads:
    """What a row says that lies in the host's memory.

    Args:
        what: "activations", "optimizer" (which the host updates), "parameters" (beside that, the weights), or None.
        num_layers: of how many layers the activations; of all if None.
        share: of the optimizer's state.
        overlaps: whether the optimizer's state is copied beside the step.
    """

    what: str | None
    num_layers: int | None
    share: float
    overlaps: bool

    @property
    def of_fsdp(self) -> dict[str, Any]:
        """The options of `fsdp`.

        Raises:
            LackingError: the host updates a part.
        """
        if self.what == "optimizer" and self.share < 1:
            raise LackingError(f"the host updates {self.share:g} of the parameters: with zero 2 or 3 all has a price")
        what = "optimizer_step" if self.what == "optimizer" else self.what
        return {"offload": what, "offloaded_layers": self.num_layers}

    @property
    def of_megatron(self) -> dict[str, Any]:
        """The options of `megatron`."""
        return {"optimizer_offload_fraction": self.share, "overlap_cpu_optimizer_d2h_h2d": self.overlaps}


def offloads(row: Row) -> Offloads:
    """Return what any cell says of the host's memory.

    Raises:
        LackingError: activations and optimizer both lie there, or a number is no number of layers or no share.
    """
    facts = [row.words(name).facts for name, column in columns().items() if column.kind == "words"]
    found = {what for each in facts for what in each.get("offloads", ())}
    given = {key: value for each in facts for key, value in each.items()}
    num, share = given.get("offloaded_layers"), given.get("host_share", float("optimizer" in found))
    found -= {"optimizer"} if "parameters" in found or not share else set()
    if len(found) > 1:
        raise LackingError("activations and the optimizer both lie in the host's memory: each is priced alone")
    if num is not None and not (num == int(num) and 0 < num <= row.count("n_layers")):
        raise LackingError(f"activations of {num:g} layers are offloaded, of {row.count('n_layers')}")
    if not 0 <= share <= 1:
        raise LackingError(f"the optimizer's share in the host's memory is {share:g}; 1 is all of it")
    what = next(iter(found), None)
    return Offloads(what, None if num is None else int(num), share, bool(given.get("host_overlaps")))


def _of_host(row: Row, framework: Framework) -> Iterator[Assumption]:
    """Yield what measured times of the host's step differ by, of equal libraries too."""
    if offloads(row).what in ("optimizer", "parameters") and _lacks(row, "update_s_per_billion"):
        usual = framework.platform_of(row).host_update_s
        text = f"update_s_per_billion not stated: {usual:g} (published are 0.1 to 16)"
        yield Assumption(text, "update_s_per_billion", (f"{usual / 2:g}", f"{usual * 2:g}"))


def _recomputed_share(row: Row, num_stages: int) -> float:
    """Return the share of a stage's layers that backward computes again: 1 but where a row says less."""
    facts = row.words("recompute").facts
    of_each = facts.get("recomputed_of", row.count("n_layers") / num_stages)
    share = facts.get("recomputed", of_each) / of_each
    if share > 1:
        raise LackingError(f"recompute is {row.text('recompute')!r}, but a stage has {of_each:g} layers")
    return float(share)


def stage_layers(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Return how many transformer layers each stage has.

    Equal shares where they divide. Where they divide with embedding and head counted as a layer each, the first and the
    last stage have one less, and where they divide with the head alone, the last one has: Megatron-Core's
    `account_for_embedding_in_pipeline_split` and `account_for_loss_in_pipeline_split`. Such a stage may hold embedding
    or head alone. Otherwise earlier stages have one more.

    Example:
        >>> stage_layers(96, 4), stage_layers(126, 8), stage_layers(7, 2)
        ((24, 24, 24, 24), (15, 16, 16, 16, 16, 16, 16, 15), (4, 3))
    """
    if num_layers % num_stages and not (num_layers + 2) % num_stages and num_stages > 1:
        each = (num_layers + 2) // num_stages
        return (each - 1, each - 1) if num_stages == 2 else (each - 1, *[each] * (num_stages - 2), each - 1)
    if not (num_layers + 1) % num_stages and num_stages > 1:
        each = (num_layers + 1) // num_stages
        return (*[each] * (num_stages - 1), each - 1)
    each, rest = divmod(num_layers, num_stages)
    return tuple(each + (stage < rest) for stage in range(num_stages))


def balanced_layers(costs: Sequence[float], num_stages: int) -> tuple[int, ...]:
    """Return how many transformer layers each stage has, if it ends with the layer whose sum of costs fills its share.

    Args:
        costs: of each layer, and last of the head, which counts as no layer.
        num_stages: how many stages.

    Source: `build_and_set_rank` of github.com/huggingface/nanotron (`models/__init__.py` of December 2024). There a
    layer that just fills the share does not end a stage; runs where one would (j1) were measured as if it did.

    Example:
        >>> balanced_layers([1.0] * 8 + [4.0], 4)
        (3, 3, 2, 0)
    """
    shares = [sum(costs) * (stage + 1) / num_stages for stage in range(num_stages)]
    counts, stage, total = [0] * num_stages, 0, 0.0
    for cost in costs[:-1]:
        total += cost
        counts[stage] += 1
        stage += total >= shares[stage] * (1 - 1e-12)
    return tuple(counts)


def predicting_stages(num_layers: int, num_stages: int, num_predicting: int) -> tuple[int, ...]:
    """Return how many transformer layers each stage has where the last one predicts further tokens, too.

    It has few others: earlier stages have as many as all would have without, and the first one less where that is too
    many (`pipeline_model_parallel_layout` of Megatron Bridge's DeepSeek-V3, "Et*4|(t*4|)*14tmL" and "Et|(tt|)*30mL").

    Example:
        >>> predicting_stages(61, 16, 1)[-2:], predicting_stages(61, 32, 1)[:2], predicting_stages(61, 32, 1)[-2:]
        ((4, 2), (1, 2), (2, 1))
    """
    last = max(0, num_layers + (num_stages - 1) * (-num_layers // num_stages))
    if num_stages == 1:
        return (num_layers + num_predicting,)
    each, rest = divmod(num_layers - last, num_stages - 1)
    earlier = (each + (stage >= num_stages - 1 - rest) for stage in range(num_stages - 1))
    return (*earlier, last + num_predicting)


def unit_stages(layers: Sequence[int]) -> list[int]:
    """Return how many of the engine's layers each stage has: two a transformer layer, embedding and head one each.

    A stage without layers has one of those of the stage before it, as the engine needs one.
    """
    units = [2 * count for count in layers]
    units[0] += 1
    units[-1] += 1
    for stage in range(1, len(units)):
        if not units[stage]:
            units[stage - 1], units[stage] = units[stage - 1] - 1, 1
    return units


MOST_MOVED = 0.02
"""The share of the step time that an assumption may move where rows are strict."""


def assumptions(
    row: Row, framework: Framework, layout: Layout, model: Transformer, system: SystemConfig
) -> tuple[Assumption, ...]:
    """Return what a row leaves open.

    Args:
        row: the row.
        framework: what trained it, whose defaults were taken.
        layout: how ranks divide the model, with what was assumed of it.
        model: what was trained.
        system: the machine.
    """
    own = [Assumption(row.text("assumed"), is_open=True)] if row.text("assumed") else []
    found = (
        *_of_degrees(row, layout),
        *_of_tokens(row, framework, layout),
        *_of_vocabulary(row),
        *_of_model(row, framework, layout, model),
        *_of_kernels(row, framework, model, system),
        *_of_device(row, system),
        *_of_links(row, system),
        *_of_communication(row, framework, layout, system),
        *_approximations(row),
        *_of_host(row, framework),
    )
    return (*own, *layout.assumed, *found)


_MOST_PARAMETERS = 0.05
"""The share by which parameters that a row states may differ from those of its sizes: some count no embedding."""


def _lacks(row: Row, column: str) -> bool:
    return is_not_stated(row.text(column))


def _of_degrees(row: Row, layout: Layout) -> Iterator[Assumption]:
    for column in ("tp", "pp", "cp", "ep"):
        if _lacks(row, column):
            yield Assumption(f"{column} not stated: 1", column)
    if not row.words("zero").is_stated and layout.num_replicas > 1:
        yield Assumption("zero not stated: 0", "zero", ("1", "3"))
    if row.text("mem_gib") and "kind" not in row.words("mem_kind").facts:
        yield Assumption("mem_kind not stated: allocated", "mem_kind", ("allocated",))
    memory = row.words("mem_kind").facts
    says_gb = "mem_kind" if memory.get("says_gb") else "mem_gib" if "gb" in row.text("mem_gib").lower() else ""
    if row.text("mem_gib") and says_gb and "unit" not in memory:
        yield Assumption(f"{says_gb} says GB, of 1e9 or of 2**30 bytes: 2**30", "mem_kind")


def _of_vocabulary(row: Row) -> Iterator[Assumption]:
    if re.search(r"\dk|[~≈]", row.text("vocab").lower()):
        words = row.count("vocab")
        yield Assumption(f"vocab is {row.text('vocab')!r:.40}: {words}", "vocab", (str(words * 1024 // 1000),))


def _of_model(row: Row, framework: Framework, layout: Layout, model: Transformer) -> Iterator[Assumption]:
    heads = {size: usual_heads(model.hidden_size, layout.tp, size) for size in (USUAL_HEAD // 2, 2 * USUAL_HEAD)}
    sizes = {
        "n_heads": (model.num_heads, tuple(map(str, heads.values()))),
        "n_kv_heads": (model.num_kv_heads, ("8",)),
        "ffn": (model.ffn_hidden_size, (str(4 * model.hidden_size), str(model.hidden_size * 8 // 3))),
        "head_dim": (model.head_dim, ()),
    }
    for column, (value, others) in sizes.items():
        if _lacks(row, column):
            yield Assumption(f"{column} not stated: {value}", column, others)
    if row.number("n_kv_heads") and model.num_kv_heads != row.number("n_kv_heads"):
        yield Assumption(f"heads of keys: {model.num_kv_heads}, one a part; what gathers them is left out")
    if "tied" not in row.words("tied_emb").facts:
        yield Assumption(f"tied_emb not stated: {model.tied_embeddings}", "tied_emb", (str(not model.tied_embeddings),))
    said = row.number("n_params")
    if said and abs(model.num_parameters / said - 1) > _MOST_PARAMETERS:
        text = f"n_params is {row.text('n_params')}, but its sizes make {model.num_parameters / 1e9:.3g}e9"
        yield Assumption(text, is_open=True)
    if model.moe_layers:
        yield from _of_experts(row, model)
    if model.dropout:
        yield Assumption(f"dropout: {model.dropout}, the default of {framework.name}")


def _of_experts(row: Row, model: Transformer) -> Iterator[Assumption]:
    """Yield what a row leaves open of experts; a shipped model's name says what they are."""
    named, dense = named_model(row), model.num_layers - len(model.moe_layers)
    said = "" if named is None else f", as {named.name} has"
    for column, value in (("n_shared_experts", model.num_shared_experts), ("n_dense_layers", dense)):
        if _lacks(row, column) and not (column == "n_shared_experts" and "shared" in row.words("mlp").facts):
            yield Assumption(f"{column} not stated: {value}{said}", column, () if named else ("1",))
    if named is not None and model.latent is not None and "kv_rank" not in row.words("attention").facts:
        yield Assumption(f"latent attention: that of {named.name}", is_open=True)
    if named is not None and model.sinks:
        yield Assumption(f"windows, sinks, biases and clamped gates: those of {named.name}", is_open=True)
    if named is not None and model.qk_norm != "none":
        yield Assumption(f"norms of queries and keys: those of {named.name}")
    if _lacks(row, "imbalance"):
        yield Assumption("load of experts not stated: balanced", "imbalance", ("1.2",))


def _of_kernels(row: Row, framework: Framework, model: Transformer, system: SystemConfig) -> Iterator[Assumption]:
    if not row.words("framework").is_stated:
        yield Assumption("framework not stated: components alone", "framework", ("Megatron-Core", "PyTorch FSDP"))
    yield from _of_precision(row, model)
    if model.qk_norm != "none" and row.model is None and named_model(row) is None:
        yield Assumption("norms of queries and keys, by the model's name")
    found = row.words("attention")
    if not found.is_stated or found.is_guessed:
        yield Assumption(f"attention not stated: {model.attention}", "attention", ("flash", "unfused"))
    elif model.attention == "flash":
        yield from _of_kernel(found.facts.get("kernel"), system, framework.platform_of(row))
    yield from _of_compilation(row, framework)


def _of_compilation(row: Row, framework: Framework) -> Iterator[Assumption]:
    """Yield whether `torch.compile` was on, where that is not said, or has no price.

    It is off by default (`--training.compile` of torchtitan's job config is a flag that sets it).
    """
    compiled = row.words("framework").facts.get("compiled")
    if compiled is None and framework.name == "torchtitan without torch.compile":
        said = row.text("framework")
        yield Assumption("torch.compile not stated: off", "framework", (f"{said}, torch.compile",))
    elif compiles_silently(row):
        yield Assumption(
            "torch.compile not stated: on, as FP8 needs it", "framework", (f"{row.text('framework')}, eager",)
        )
    elif compiled and not framework.is_compiled:
        yield Assumption(f"torch.compile: priced as {framework.name} without it", is_open=True)


def _of_device(row: Row, system: SystemConfig) -> Iterator[Assumption]:
    """Yield in what a device is another one than that of its config's data sheet."""
    facts, size = row.words("gpu").facts, row.number("gpu_mem_gb")
    if facts.get("memory_alone"):
        yield Assumption(f"gpu: of its generation is {system.name}, as which memory is counted; its time has no price")
    power = system.sheet.power
    if power is not None and facts.get("power_w", power.tdp_W) < power.tdp_W:
        yield Assumption(f"gpu of {facts['power_w']:.0f} W: its clock by the cube root of its power", is_open=True)
    if power is not None and facts.get("power_w", 0) > power.tdp_W:
        yield Assumption(f"gpu of {facts['power_w']:.0f} W: as {system.name} at {power.tdp_W:.0f} W", is_open=True)
    if system.kernels is None or system.sheet.device_class == "asic":
        how = "a third, as of Trainium 1's steps" if system.kernels else "a quarter, as estimated from its data sheet"
        yield Assumption(f"kernels of {system.name}: may miss a step by {how}", is_open=True)
    others = {name: memory for name, memory, _ in facts.get("others", ())}
    usual = others.get(system.name, facts.get("usual_memory"))
    if facts.get("memory", usual) != usual:
        yield Assumption(f"gpu with {facts['memory']}: priced with the memory of {system.name}", is_open=True)
    size, here = size or facts.get("memory_gb"), system.mem1.GiB
    if size is not None and not is_about(size, here):
        yield Assumption(f"gpu of {size:g} GB: priced as {system.name}, which has {here:g}", is_open=True)


def _of_links(row: Row, system: SystemConfig) -> Iterator[Assumption]:
    """Yield in what the links of a node are others than those of its config."""
    if "closes" in row.words("gpu").facts:
        return
    facts, inner = row.words("intra_node").facts, min(system.networks, key=lambda tier: tier.size)
    usual = row.words("gpu").facts.get("usual_nvlink")
    rate, peak = facts.get("link_gbyte"), inner.bandwidth
    others = {
        f"NVLink {facts.get('nvlink_generation', 0):.0f}": facts.get("nvlink_generation", usual) != usual,
        f"links of {rate} GB/s": rate is not None and not (is_about(rate, peak) or is_about(rate, 2 * peak)),
        f"a domain of {facts.get('domain', 0):.0f}": facts.get("domain", inner.size) != inner.size,
    }
    for text in (text for text, is_other in others.items() if is_other):
        yield Assumption(f"intra_node has {text}: priced as {system.name}, nodes of {inner.size}", is_open=True)


def _of_precision(row: Row, model: Transformer) -> Iterator[Assumption]:
    facts = row.words("precision").facts
    said = row.text("precision") if facts else model.precision.name
    if not facts:
        yield Assumption(f"precision not stated: {said}", "precision", ("bf16", "fp32", "fp8"))
    if model.precision.name != "fp32" and "gradient_bytes" not in {**row.words("overlap").facts, **facts}:
        bits = 8 * model.precision.gradient_bytes
        others = (f"{said}, fp32 grads", f"{said}, bf16 grads")
        yield Assumption(f"precision of gradients not stated: {bits} bits", "precision", others)


def _of_kernel(kernel: str | None, system: SystemConfig, platform: Platform) -> Iterator[Assumption]:
    """Yield the generation of attention's kernel, where none is named or the device has no figures of it."""
    rates = rates_of(system)
    known, usual = tuple(rates.attention), platform.attention_of(rates)
    if kernel not in known and kernel in (None, "sdpa") and len(known) > 1:
        yield Assumption(f"attention's kernel not stated: {usual}", "attention", known)
    elif kernel not in known and kernel not in (None, "sdpa"):
        yield Assumption(f"attention by {kernel}: {system.name} has no figures of it, those of {usual}", is_open=True)


def gathers_once(framework: Framework, layout: Layout) -> bool:
    """Return whether FSDP keeps whole weights from the first microbatch's forward to the last one's backward.

    So it does beside stages, and sums gradients then (PyTorch's torch.distributed.pipelining.stage); and of NeMo
    AutoModel's mixtures of experts (`enable_fsdp_optimizations` of its `components/moe/fsdp_mixin.py`).
    """
    name = framework.words.split()[0]
    return layout.zero == 3 and (name == "automodel" or (name in ("torchtitan", "fsdp") and layout.pp > 1))


def dispatcher_of(row: Row) -> dict[str, Any]:
    """Return what sends tokens to experts, where a row says so of it, or of what is hidden.

    Raises:
        LackingError: both do, and differ.
    """
    stated, hidden = (row.words(column).facts.get("dispatcher") for column in ("dispatcher", "overlap"))
    if stated and hidden and stated != hidden:
        raise LackingError(f"dispatcher is {stated}, but overlap says {hidden}; write one")
    return {"dispatcher": stated or hidden} if stated or hidden else {}


def _of_tokens(row: Row, framework: Framework, layout: Layout) -> Iterator[Assumption]:
    if layout.ep > 1 and not dispatcher_of(row):
        yield Assumption("dispatcher not stated: alltoall", "dispatcher", ("deepep", "hybridep"))
    if layout.ep > 1 and framework.platform_of(row).in_turn and row.number("imbalance") is None:
        yield Assumption("imbalance not stated: a token's experts in turn, as its benchmarks do", "imbalance", ("1",))


def _of_communication(row: Row, framework: Framework, layout: Layout, system: SystemConfig) -> Iterator[Assumption]:
    node = min(tier.size for tier in system.networks)
    is_torus = "closes" in row.words("gpu").facts
    if is_torus:
        yield Assumption(f"slices of {node} chips, each a torus of its own", is_open=True)
    elif _lacks(row, "gpus_per_node") and layout.world_size > 1:
        yield Assumption(f"gpus_per_node not stated: {node}", "gpus_per_node", ("4", "8", "16"))
    elif row.number("gpus_per_node") not in (None, node) and "domain" not in row.words("intra_node").facts:
        yield Assumption(f"gpus_per_node {row.text('gpus_per_node')}: trays of one NVLink domain of {node}")
    rates = {"nics", "node_gbps", "gpu_gbps", "machine", "rate", "rate_gbyte"}
    if layout.world_size > node and not is_torus and not row.words("inter_node").facts.keys() & rates:
        yield Assumption(f"rate between nodes not stated: that of {system.name}", "inter_node", _RATES)
    if layout.zero >= 2 and layout.pp * layout.ep > 1:
        how = "once a step" if gathers_once(framework, layout) else "a layer ahead in each microbatch's passes"
        yield Assumption(f"zero {layout.zero} beside stages or experts: weights are gathered {how}", is_open=True)
    said, facts = row.text("overlap"), row.words("overlap").facts
    if layout.num_replicas > 1 and layout.zero < 2 and "dp" not in facts:
        others = tuple(f"{said}, {words}".lstrip(", ") for words in ("no DP overlap", "DP overlap"))
        yield Assumption(f"overlap of replicas not stated: {framework.overlap}", "overlap", others)
    if layout.tp > 1 and layout.sequence_parallel and "tp" not in facts:
        others = tuple(f"{said}, {words}".lstrip(", ") for words in ("no TP overlap", "TP overlap"))
        yield Assumption(f"overlap of tensor parallelism not stated: as {framework.name}", "overlap", others)


_RATES = ("8x200Gb/s", "8x400Gb/s")


def _approximations(row: Row) -> Iterator[Assumption]:
    """Yield words that are priced as something near."""
    for name, column in columns().items():
        near = row.words(name).facts.get("near", ()) if column.kind == "words" else ()
        for text in near:
            yield Assumption(f"{name}: {text}", is_open=True)
