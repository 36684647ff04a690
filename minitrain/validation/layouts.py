"""How a row divides its model among ranks: degrees, microbatches, stages and what is sharded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from minitrain.validation.frameworks import Framework
from minitrain.validation.rows import LackingError, Row


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a row.

    Args:
        world_size: ranks.
        tp: parts of a layer.
        sequence_parallel: whether the sequence is divided between layers' parts.
        pp: ranks of a pipeline.
        num_chunks: stages a rank.
        cp: parts of the sequence.
        ep: parts of the experts.
        dp: replicas.
        zero: what replicas shard: 0 nothing, 1 optimizer states, 2 gradients too, 3 weights too.
        shard_size: ranks that share shards; dp where all do.
        microbatch_size: samples a microbatch.
        num_microbatches: microbatches a replica and step.
        recompute: "none", "selective" or "full".
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
    assumed: tuple[str, ...] = ()

    @property
    def num_replicas(self) -> int:
        """Return the ranks that hold the same weights: they sum gradients over samples, and over shares of these."""
        return self.dp * self.cp

    @property
    def global_batch_size(self) -> int:
        """Return the samples of a step."""
        return self.dp * self.microbatch_size * self.num_microbatches


def layout_of(row: Row, framework: Framework) -> Layout:
    """Return the layout of a row.

    Raises:
        LackingError: degrees or sizes are missing, or do not fit one another.
    """
    world_size, tp, pp, cp = (row.count(name, default) for name, default in _DEGREES)
    dp = row.count("dp", max(1, world_size // (tp * pp * cp)))
    if tp * pp * cp * dp != world_size:
        raise LackingError(f"tp {tp} x pp {pp} x cp {cp} x dp {dp} is not n_gpus {world_size}")
    assumed = [row.text("assumed")] if row.text("assumed") else []
    mbs, num_microbatches = _microbatches(row, dp)
    zero = _zero(row)
    return Layout(
        world_size=world_size,
        tp=tp,
        sequence_parallel=_sequence_parallel(row, tp, assumed),
        pp=pp,
        num_chunks=_chunks(row, pp, assumed),
        cp=cp,
        ep=row.count("ep", 1),
        dp=dp,
        zero=zero,
        shard_size=_shard_size(row, dp) if zero else 1,
        microbatch_size=mbs,
        num_microbatches=num_microbatches,
        recompute=_recompute(row, framework, assumed),
        assumed=tuple(assumed),
    )


_DEGREES = (("n_gpus", None), ("tp", 1), ("pp", 1), ("cp", 1))


def _microbatches(row: Row, dp: int) -> tuple[int, int]:
    """Return the samples of a microbatch, and how many microbatches a replica has."""
    size, num = row.number("mbs"), row.number("n_micro")
    batch = row.number("gbs")
    if size is None:
        raise LackingError(f"mbs is {row.text('mbs')!r}: without the samples of a microbatch nothing can be priced")
    if num is None:
        if batch is None or batch % (size * dp):
            raise LackingError(f"gbs {row.text('gbs')!r} is no multiple of mbs x dp, so that microbatches are unknown")
        num = batch / (size * dp)
    if size < 1 or num < 1:
        raise LackingError("mbs and n_micro must be at least 1")
    return int(size), int(num)


def _sequence_parallel(row: Row, tp: int, assumed: list[str]) -> bool:
    """Return whether sequence parallelism is on; off where the row does not say."""
    text = row.text("sp").lower()
    if text or tp == 1:
        return tp > 1 and text in ("1", "true", "yes")
    needs_it = "tp-comm-overlap" in row.text("overlap").lower()  # Megatron-LM accepts that with it alone
    assumed.append(f"sp not stated: {'on, as tp-comm-overlap needs it' if needs_it else 'off'}")
    return needs_it


def _chunks(row: Row, pp: int, assumed: list[str]) -> int:
    """Return the stages of a rank; one where the row does not say, as is the default of frameworks."""
    value = row.number("vpp")
    if value is None and pp > 1:
        assumed.append("vpp not stated: 1")
    return 1 if value is None or pp == 1 else max(1, int(value))


def _zero(row: Row) -> int:
    """Return the stage of ZeRO; fully sharded is stage 3."""
    text = row.text("zero").lower()
    if "fsdp" in text:
        return 3
    value = row.number("zero")
    return 0 if value is None else min(3, int(value))


def _shard_size(row: Row, dp: int) -> int:
    """Return how many ranks share shards."""
    text = row.text("zero")
    found = re.search(r"within (?:an? )?(\d+)|FSDP=(\d+)", text)
    size = int(found.group(1) or found.group(2)) if found else dp
    return size if 0 < size <= dp and dp % size == 0 else dp


def _recompute(row: Row, framework: Framework, assumed: list[str]) -> str:
    """Return what backward computes again; where the row does not say, what the framework does by default."""
    text = row.text("recompute").lower()
    for name in ("full", "selective", "none"):
        if text.startswith(name):
            return name
    if ("not stated" in text or not text) and framework.recompute:
        assumed.append(f"recompute not stated: {framework.recompute}")
        return framework.recompute
    raise LackingError(f"recompute is {text!r}, where none, selective or full is needed")


def stage_layers(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Return how many transformer layers each stage has.

    Equal shares where they divide. Where they divide with the embedding, with the head, or with both counted as a
    layer, the first or last stage has one less; otherwise earlier stages have one more.

    Example:
        >>> stage_layers(96, 4), stage_layers(126, 8), stage_layers(7, 2)
        ((24, 24, 24, 24), (15, 16, 16, 16, 16, 16, 16, 15), (4, 3))
    """
    if num_layers % num_stages and not (num_layers + 2) % num_stages and num_stages > 1:
        each = (num_layers + 2) // num_stages
        if num_stages == 2:
            return (each - 1, each - 1)
        return (each - 1, *[each] * (num_stages - 2), each - 1)
    each, rest = divmod(num_layers, num_stages)
    return tuple(each + (stage < rest) for stage in range(num_stages))


def balanced_layers(costs: Sequence[float], num_stages: int) -> tuple[int, ...]:
    """Return how many transformer layers each stage has, if stages are cut where sums of costs pass equal shares.

    Args:
        costs: of each layer, and last of the head, which counts as no layer.
        num_stages: how many stages.

    Source: `build_and_set_rank` of github.com/huggingface/nanotron (`models/__init__.py` of December 2024).

    Example:
        >>> balanced_layers([1.0] * 8 + [4.0], 4)
        (3, 3, 2, 0)
    """
    shares = [sum(costs) * (stage + 1) / num_stages for stage in range(num_stages)]
    counts, stage, total = [0] * num_stages, 0, 0.0
    for cost in costs[:-1]:
        total += cost
        while stage < num_stages - 1 and total > shares[stage] * (1 + 1e-12):
            stage += 1
        counts[stage] += 1
    return tuple(counts)


def unit_stages(layers: Sequence[int]) -> list[int]:
    """Return how many of the engine's layers each stage has: two a transformer layer, embedding and head one each."""
    units = [2 * count for count in layers]
    units[0] += 1
    units[-1] += 1
    return units
