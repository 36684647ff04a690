"""Megatron-Core: tensor, sequence, context, expert, pipeline and data parallelism on one mesh.

Narayanan et al. 2021 (tensor, pipeline and data parallelism); Korthikanti et al. 2022 (sequence parallelism); Llama 3,
section 3.3.2 (context parallelism); Liu et al. 2025, "MoE Parallel Folding" (experts).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from minitrain.errors import StrategyError
from minitrain.lib import Model
from minitrain.run.folding.microbatches import Microbatches, alike_microbatches
from minitrain.search.schedules.held_layers import Degrees, Division, HeldLayers
from minitrain.search.schedules.layer_passes import LayerPasses, Routing
from minitrain.search.schedules.pipeline import BATCHED, HIDDEN, PLAIN, PipelineRank

from ._batch import layers_of_stages, microbatches_of, require_multiple, require_range, require_shares
from ._orders import IN_ROUNDS, chunks_of, schedule_of


def _microbatches(options: Mapping[str, Any], world_size: int, global_batch_size: int) -> Microbatches | None:
    """Return the microbatches of a step: stages take them in a pipeline's order."""
    size, pp, schedule = options["microbatch_size"], options["pp"], options["schedule"]
    num_chunks = chunks_of(schedule, options["num_chunks"], "megatron")
    count, rest = divmod(global_batch_size, world_size // (pp * options["tp"] * options["cp"]) * (size or 1))
    if size is None or rest:
        return None
    costs = None if options["pass_costs"] is None else tuple(options["pass_costs"])

    def orders(number: int) -> Sequence[Sequence[Any]]:
        return [[cell for cell in row if cell] for row in schedule_of(schedule, pp, number, num_chunks, costs).rows]

    in_rounds = num_chunks > 1 and schedule in IN_ROUNDS | {"zb_h1"}
    return Microbatches(count, size, pp, pp if in_rounds else 1, orders, num_first=int(options["zero"] > 1))


@alike_microbatches(_microbatches)
async def megatron(
    model: Model,
    microbatch_size: int | None = None,
    tp: int = 1,
    pp: int = 1,
    num_chunks: int = 1,
    sequence_parallel: bool = False,
    zero: int = 0,
    layers_per_stage: Sequence[int] | None = None,
    recompute: str = "none",
    scatter_gather: bool = False,
    overlap_replicas: bool = False,
    overlap_parts: bool = False,
    overlap_messages: bool = True,
    batch_messages: bool = False,
    cp: int = 1,
    ep: int = 1,
    schedule: str = "1f1b",
    pass_costs: Sequence[float] | None = None,
    shard_size: int | None = None,
    cp_comm_type: str = "p2p",
    imbalance: float | str | Sequence[float] = 1,
    capacity_factor: float | None = None,
    overlap_experts: bool = True,
    sum_tied: bool = False,
    optimizer_offload_fraction: float = 0,
    overlap_cpu_optimizer_d2h_h2d: bool = False,
) -> Model:
    """Train pipelines whose layers are divided by tensor parallelism, and replicas that share the global_batch_size.

    Ranks of a tensor-parallel group are neighbours; beyond them come those that share a sequence, then replicas, then
    stages. Experts are divided among ep neighbours of a stage, whatever else these divide. With several chunks the
    pipeline is interleaved: microbatches go through a rank's chunks in rounds of pp, so their number must be a multiple
    of pp; as in torch, schedule="interleaved" takes any that cuts into equal rounds of pp or more, or a single round.

    Args:
        model: the rank; in the order "1f1b", its chunk c is stage c x pp + its place in the pipeline.
        microbatch_size: samples a microbatch; if None, such that a pipeline has pp microbatches for each chunk that it
            needs at least.
        tp: parts that a layer is divided into; heads and MLP columns must be multiples (and experts' columns if ep is
            1).
        pp: ranks of a pipeline.
        num_chunks: stages a rank.
        sequence_parallel: whether activations between layers are shards of the sequence.
        zero: the ZeRO stage of ranks that hold the same: 1 to shard optimizer states, 2 gradients too, 3 weights too.
        layers_per_stage: layers of each stage; if None, the costliest stage costs as little as it can.
        recompute: what backward computes again: "none", "selective", "full", or modules in Megatron-Core's words, such
            as "layernorm+mla_up_proj+moe_act" (see `Model.forward`).
        scatter_gather: whether each rank of a tensor-parallel group sends a share of an activation to the next stage,
            where the shares are gathered (Narayanan et al., section 4.1), instead of all of it. Shards of the sequence
            are shares anyway.
        overlap_replicas: whether a layer's gradients are summed over the replicas as soon as the last microbatch has
            made them and, with zero=1, its weights gathered under the first forward pass instead of after the update;
            with zero=3, whether the weights of the next block are gathered while one computes.
        overlap_parts: whether the gradient of a layer's input is summed over the parts while the gradient of its weight
            is computed.
        overlap_messages: whether messages between stages are hidden behind compute: a rank goes on while it sends, and
            expects what its next step needs while it computes.
        batch_messages: whether a step's result goes out while what the next step needs comes in, as Megatron-LM's
            batched messages do; one after the other if False. Of no effect where messages are hidden.
        cp: ranks that share a sequence, each with a shard from its beginning and one from its end.
        ep: parts that experts are divided into; 1 to take them as other layers. Beside tp it needs sequence_parallel.
        schedule: the order: "1f1b" (interleaved where num_chunks is above 1), "combined_1f1b" (a forward in a pair
            with a backward, as Megatron-Core hides exchanges of tokens), "gpipe", "zb_h1", "zb_h2", "zb_1p", "zb_2p",
            "zbv" or "dualpipe_v".
        pass_costs: what "zb_1p" and "zb_2p" are made for: the times of a forward, an input gradient, a weight gradient
            and a message, and the share of activations that a weight gradient keeps; passes alike if None.
            A run's memory counts activations whole until the weight gradient, whatever the share.
        shard_size: ranks that share what `zero` shards, the sums over the others being all_reduces; all if None.
        cp_comm_type: how keys and values come to the queries: "p2p", round a ring, or "all_gather".
        imbalance: how many times the mean the busiest expert gets; or a number for each expert, to which its tokens are
            proportional; or a file with these on a line for each layer with experts, or on one for all.
        capacity_factor: how many times the mean an expert takes at most, further tokens being dropped; None for all.
        overlap_experts: whether each of a pair of actions computes while the tokens of the other travel, in orders that
            have pairs ("combined_1f1b", "dualpipe_v").
        sum_tied: whether the gradient of a table that embedding and head share is summed over both, also where they lie
            on two ranks or others hold them too, as training needs; published runs are priced without.
        optimizer_offload_fraction: share of the parameters, from the first on, whose state lies in the host's memory
            and which the host updates, by whole layers.
        overlap_cpu_optimizer_d2h_h2d: whether the host updates a layer while gradients of later ones come to it, and
            weights of earlier ones go back.
    """
    model.recompute = recompute
    require_range("num_chunks", num_chunks, model.num_layers, "megatron")
    division = Division(model, Degrees(pp, tp, cp, ep, sequence_parallel, shard_size, cp_comm_type), "megatron")
    num_chunks, replicas = chunks_of(schedule, num_chunks, "megatron"), division.replicas
    require_shares(model, "replicas", replicas.size, "megatron")
    if microbatch_size is None:
        least = 2 * pp if schedule == "dualpipe_v" else pp
        require_shares(model, "replicas x microbatches", replicas.size * least, "megatron")
        microbatch_size = max(1, model.global_batch_size // (replicas.size * least))
    batches = microbatches_of(model, replicas.size, replicas.index, microbatch_size, "megatron")
    if num_chunks > 1 and schedule in IN_ROUNDS - {"interleaved"}:
        require_multiple("num_microbatches", len(batches), "pp", pp, "megatron")
    if zero == 2 and overlap_replicas:
        raise StrategyError("gradients are summed after each microbatch with zero=2; leave overlap_replicas out")
    num_stages = pp * num_chunks
    stages = layers_of_stages(model, num_stages, microbatch_size, layers_per_stage, "pp x num_chunks", "megatron")
    costs = None if pass_costs is None else tuple(pass_costs)
    order = schedule_of(schedule, pp, len(batches), num_chunks, costs)
    overlaps: dict[str, Any] = {
        "overlap_replicas": overlap_replicas,
        "sum_tied": sum_tied,
        "host_fraction": optimizer_offload_fraction,
        "overlap_host": overlap_cpu_optimizer_d2h_h2d,
    }
    held = HeldLayers(model, division, zero, len(batches), "megatron", **overlaps)
    in_pairs = overlap_experts and ep > 1 and order.has_pairs
    routing = Routing(imbalance, capacity_factor)
    passes = LayerPasses(model, division, held, routing, overlap_parts=overlap_parts, in_pairs=in_pairs)
    messages = HIDDEN if overlap_messages else BATCHED if batch_messages else PLAIN
    sends_shares = scatter_gather and tp > 1 and not division.shards_sequence
    pipeline = PipelineRank(
        model,
        order,
        division,
        batches,
        stages,
        held,
        passes,
        messages=messages,
        sends_shares=sends_shares,
        in_pairs=in_pairs,
    )
    await pipeline.run()
    return model
