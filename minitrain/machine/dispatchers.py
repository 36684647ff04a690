"""How copies of tokens travel to the experts of other ranks: what crosses which links, and how quickly.

`alltoall` sends each copy by itself, by NCCL. DeepEP and HybridEP send a token once to each node that has one of its
experts, and on from there once to each rank, both at the same time; the rank makes the copies. `allgather` gives every
rank all tokens. Source: `MoEAllGatherTokenDispatcher`, `MoEAlltoAllTokenDispatcher` and `MoEFlexTokenDispatcher` of
Megatron-Core's `core/transformer/moe/token_dispatcher.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from minitrain.machine.network import Network
    from minitrain.machine.topology import GroupShape

DISPATCHERS = ("alltoall", "allgather", "deepep", "hybridep")

BETWEEN_NODES = 0.88
"""Share of an interface that a token's way between nodes reaches: DeepEP 51 GB/s among 64 H800, HybridEP 50.0 among 64
H100, both with what stays in the node (an eighth), of 50 GB/s (docs/legacy.md and docs/README_Hybrid-EP.md of
github.com/deepseek-ai/DeepEP)."""


TOKEN_HALF_BYTES, _SHARES_BYTES = 850, 2 * 7168
"""Size of a token that links within a node bring half as quickly as long ones, and that of the shares below: with 24
multiprocessors on H100, HybridEP brings 2,048 columns at 0.89 (dispatched) and 0.84 (combined) of the rate of 7,168,
DeepEP at 0.90 and 0.88, which are sizes of 650 to 1,200 (as `_KERNELS`)."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """What a library's kernels reach.

    Args:
        within: share of the links into a node, one way, by the most ranks of a node that exchange tokens, the fewest
            first.
        num_units: multiprocessors that they take.
        token_ns: what one of these takes for a token alone, and for each of its KiB, ns, where links wait for them: to
            send it to a rank, and to take it back.
        half_bytes: size of a token of which interfaces between nodes bring half as many bytes as of long ones.
    """

    within: tuple[tuple[int, float], ...]
    num_units: int
    token_ns: tuple[tuple[float, float], tuple[float, float]]
    half_bytes: int

    def seconds(
        self, model: Any, size_bytes: float, shape: GroupShape, inner: Network, *, in_turn: bool = False
    ) -> float:
        """Return how long tokens take that travel once to each node and once to each rank, s.

        Args:
            model: whose experts.
            size_bytes: of all copies that a rank sends, what stays on it included.
            shape: the ranks that exchange tokens, each of which has a part of the experts.
            inner: the links within a node.
            in_turn: whether each token has the experts that follow those of the token before.
        """
        from minitrain.workloads.expert_layers import num_touched  # noqa: PLC0415  (only where kernels are priced)

        split, outer = shape.split, shape.tier
        token_bytes, groups = size_bytes / model.experts_per_token, (model.expert_groups, model.groups_per_token)
        sizes = (model.num_experts, model.experts_per_token, groups)
        local = split.num_ranks / split.num_nodes
        share = next((share for most, share in self.within if local <= most), self.within[-1][1])
        sent_bytes = token_bytes * num_touched(split.num_ranks, *sizes, in_turn=in_turn)
        one_bytes = model.hidden_size * model.precision.activation_bytes
        on_links = sent_bytes * (1 - 1 / local) / (share * inner.bandwidth * 1e9)
        across = token_bytes * num_touched(split.num_nodes, *sizes, in_turn=in_turn) * (1 - 1 / split.num_nodes)
        between = _longer(one_bytes, self.half_bytes) * across / (BETWEEN_NODES * outer.bandwidth * 1e9)
        on_links *= _longer(one_bytes, TOKEN_HALF_BYTES)
        units_s = [sent_bytes / one_bytes * self._token_s(one_bytes, *each) for each in self.token_ns]
        seconds: float = outer.latency + sum(max(on_links, between, each) for each in units_s) / len(units_s)
        return seconds

    def _token_s(self, size_bytes: float, alone_ns: float, each_kib_ns: float) -> float:
        """Return what all multiprocessors together take for a token, s."""
        return 1e-9 * (alone_ns + each_kib_ns * size_bytes / 1024) / self.num_units


def _longer(size_bytes: float, half_bytes: float) -> float:
    """Return how much longer a byte takes in tokens of a size than in those of `_SHARES_BYTES`."""
    return (1 + half_bytes / size_bytes) / (1 + half_bytes / _SHARES_BYTES)


_HYBRIDEP = Kernels(((8, 0.72), (16, 0.69), (72, 0.68)), 16, ((34.5, 18.3), (140.8, 8.4)), 2_500)
_DEEPEP = Kernels(((72, 0.67),), 20, ((56.9, 44.7), (38.5, 51.5)), 1_930)
_DEEPEP_BLACKWELL = replace(_DEEPEP, within=((8, 0.44), (72, 0.28)), num_units=24)
_DEEPEP_AMD = replace(_DEEPEP, within=((72, 0.62),), num_units=80)

_KERNELS: Mapping[str, Mapping[str, Kernels]] = {
    "hybridep": {"": _HYBRIDEP},
    "deepep": {
        "": _DEEPEP,
        **dict.fromkeys(("b200", "b300", "gb200", "gb300"), _DEEPEP_BLACKWELL),
        **dict.fromkeys(("mi300x", "mi325x", "mi355x"), _DEEPEP_AMD),
    },
}
"""By library and family of devices, in 16 bits, without what a rank keeps: HybridEP on GB200, 750 GB/s of 8 ranks'
tokens, 662 of 16 and 632 of 36 dispatched with 16 or 32 of its multiprocessors (time of kernels alone); DeepEP on H800,
153 GB/s of 8, and on GB200 with 24, 494 dispatched and 420 combined of 8, 400 and 190 of 32 (docs/README_Hybrid-EP.md;
docs/discussions/deepseek-v3-gb200-optimization of github.com/NVIDIA/Megatron-LM, section 2.2.1). A token's times are
those of 8 H100 where so few multiprocessors sent that links waited: HybridEP 197 GB/s dispatched and 222 combined with
4 and 7,168 columns, 304 and 188 with 8 and 2,048; DeepEP with 8, 168 and 151, 139 and 134 (sections 3.1 and 3.3 of
docs/deepep_vs_hybridep_benchmark.md of github.com/NVIDIA-NeMo/Automodel, 2026). For GB200's 24 with DeepEP they make
503 and 453. Interfaces between 2 nodes of 8 H100 bring 7,168 columns at 85.7 GB/s and 76.5 by HybridEP, at 84.9 and
68.2 by DeepEP, 2,048 at 72.1 and 49.3, 58.9 and 59.1 (sections 3.2 and 3.3): a byte takes 1.37 and 1.30 times as long.
AMD's are MORI-EP's on 8 MI300X with the 80 compute units that Primus has, 307 GB/s dispatched and 330 combined, what a
rank keeps included (README.md of github.com/ROCm/mori @05bb5f40)."""


def kernels_of(dispatcher: str, device: str) -> Kernels | None:
    """Return what a dispatcher's kernels reach on a device; None for those that NCCL's collectives are."""
    by_family = _KERNELS.get(dispatcher, {})
    return by_family.get(device.partition("_")[0], by_family.get(""))


def shape_of(places: Any, ranks: Sequence[int], inner: Network) -> GroupShape | None:
    """Return how ranks lie in nodes; None on a flat network, where they are more than those of a node.

    Args:
        places: which ranks sit where; None on a flat network.
        ranks: the ranks.
        inner: the links within a node.
    """
    from minitrain.machine.network import Split  # noqa: PLC0415  (only where kernels are priced)
    from minitrain.machine.topology import GroupShape  # noqa: PLC0415

    if places is not None:
        return cast("GroupShape", places.shape(ranks))
    return GroupShape(inner, Split.of([len(ranks)])) if len(ranks) <= inner.size else None


def has_experts(workload: Any) -> bool:
    """Return whether a workload is a transformer that has experts."""
    return bool(getattr(getattr(workload, "model", None), "num_experts", 0))
