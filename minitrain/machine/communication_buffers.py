"""What a communication library keeps on a device: `Communication.buffer_bytes`.

NCCL has a communicator for each group of ranks, with buffers by its channels, and one for all ranks, PyTorch's default
group. Megatron and what comes from it have two for all ranks: of barriers, and of sums of norms.

| buffer | bytes |
|---|---|
| a connection | 10 MiB that receive and 2 MiB that send; 10 MiB each over the network |
| a ring | a connection of each channel, from one neighbour to the other |
| a tree | another one, the other way |
| where a switch adds (Hopper and later), instead of a tree | 2 MiB a rank for each channel of sums |
| messages, exchanged tokens | a connection of each channel for each peer in the node |
| proxy | 16 chunks a channel of messages: 512 KiB in a node with NVLink; else 128 KiB, for each rank of the node |

A group in one node has the channels that its links fill. One of several nodes has two for each network interface of its
ranks in a node, and on Hopper and later twice as many up to 16.

Sources, all in github.com/NVIDIA/nccl: `computeBuffSizes` of src/init.cc (0.5, 4.7 and 4 MiB for three protocols),
`p2pSendSetup` and `p2pRecvSetup` of src/transport/p2p.cc, `sendProxyConnect` and `sharedNetBuffersInit` of
src/transport/net.cc, `ncclNvlsBufferSetup` of src/transport/nvls.cc (2.22 and later), `ncclTopoPostset` of
src/graph/connect.cc, blocks of 2 MiB. Numbers of channels are those that NCCL logs: 24 and 32 for messages on A100 and
H100, 12 and 16 on V100, 32 and 32 on B200 (issue 1646). Those for messages are the others, rounded up to a power of 2
(`ncclTopoComputeP2pChannels` of src/graph/paths.cc). Switches add in 16 on H100, in 32 on B200 (same log).

On A100 a communicator of two ranks takes 544 MB, and one of four 688 MB at the root of its trees (issue 964). Among the
eight ranks of a node of H100s, exchanged tokens take 3.3 GB (issue 1685; here 3.1). RCCL takes 0.65 GiB a communicator
(measured in issue 111 of Lumi-supercomputer/LUMI-AI-Guide). Other libraries' 0.2 GiB is an estimate.

An NVLink domain of several hosts counts as one node, but for messages, which have two channels a peer as beyond one.

Left out: placements, registered buffers, communicators that share buffers, DeepEP's and other dispatchers' own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minitrain.machine.config import SystemConfig
    from minitrain.machine.platforms import Platform

ESTIMATED_BYTES = int(0.2 * 2**30)
_RCCL_BYTES = int(0.65 * 2**30)
_MIB = 2**20
_CONNECTION_BYTES, _REMOTE_BYTES = 12 * _MIB, 20 * _MIB
_SHARED_STEPS, _NEAR_CHUNK_BYTES, _FAR_CHUNK_BYTES = 16, 2**19, 2**17
_SUMMED_BYTES, _MOST_SUMMED = 2 * _MIB, 32
_USUAL_CHANNELS, _FAR_CHANNELS, _MOST_CHANNELS, _PEER_CHANNELS = 2, 16, 32, 2
_HOST_SIZE = 8

_CHANNELS: Mapping[str, tuple[int, int, int]] = {
    "v100": (12, 16, 0),
    **dict.fromkeys(("a100", "gh200"), (24, 32, 0)),
    **dict.fromkeys(("h100", "h200"), (24, 32, 16)),
    **dict.fromkeys(("b200", "b300", "gb200", "gb300"), (32, 32, 32)),
}
"""Channels of collectives, of messages and of switches' sums in a node, by family of devices with NVLink."""

_MEGATRONS = ("megatron", "fused", "transformer engine", "deepspeed")
"""Habits of frameworks with Megatron's groups."""

_WITHOUT_LINKS = ("l40", "rtx", "titan", "t4")
"""NVIDIA's devices on PCIe."""


@dataclass(frozen=True, slots=True)
class Communication:
    """Whom a rank communicates with.

    Args:
        world_size: all ranks.
        rank: which one it is.
        collectives: the ranks of each group that gathers or sums.
        exchanges: of each one that exchanges tokens.
        peers: ranks that it exchanges messages with, in one group.
    """

    world_size: int
    rank: int
    collectives: Collection[Sequence[int]] = ()
    exchanges: Collection[Sequence[int]] = ()
    peers: Collection[int] = ()

    def buffer_bytes(self, system: SystemConfig | None, platform: Platform | None = None) -> int:
        """Return what it keeps on the rank's device.

        Args:
            system: the devices; None where they are not known.
            platform: the framework; PyTorch alone if None.
        """
        memory = "" if platform is None else platform.memory
        exchanges = self.exchanges if platform is None or platform.dispatcher == "alltoall" else ()
        groups = self.collectives, exchanges
        summing, exchanging = ([group for group in found if len(group) > 1] for found in groups)
        messages = [(self.rank, *self.peers)] if self.peers else []
        if not summing and not exchanging and not messages:
            return 0
        family = "" if system is None else system.name.partition("_")[0]
        if system is None or not (family in _CHANNELS or family.startswith(_WITHOUT_LINKS)):
            number = len(summing) + sum(group not in summing for group in exchanging) + len(messages)
            return number * (_RCCL_BYTES if family.startswith("mi") else ESTIMATED_BYTES)
        library, world, found = _Nccl(system, family), range(self.world_size), 0
        for group in summing:
            found += library.of_proxy(group) + library.of_rings(group) + library.of_sums(group)
        found += _more_of_all(memory, summing, self.world_size) * (library.of_proxy(world) + library.of_rings(world))
        for group in [*exchanging, *messages]:
            found += 0 if group in summing else library.of_proxy(group)
            found += library.of_messages(self.rank, group)
        return found


def _more_of_all(memory: str, groups: Iterable[Sequence[int]], world_size: int) -> int:
    """Return how many communicators of all ranks there are beside those of groups."""
    is_megatron = memory.startswith(_MEGATRONS)
    return 2 if is_megatron else int(all(len(group) < world_size for group in groups))


class _Nccl:
    """NCCL on the devices of a system."""

    def __init__(self, system: SystemConfig, family: str) -> None:
        tiers = sorted(system.networks, key=lambda tier: tier.size)
        self._node_size, self._nics = tiers[0].size, tiers[-1].nics or tiers[0].size
        self._channels = _CHANNELS.get(family, (_USUAL_CHANNELS, _USUAL_CHANNELS, 0))
        self._has_links, self._adds = family in _CHANNELS, self._channels[2] > 0
        self._is_recent = self._adds or family == "gh200"

    def _num_nodes(self, group: Sequence[int]) -> int:
        if isinstance(group, range) and group.step <= self._node_size:
            return group[-1] // self._node_size - group[0] // self._node_size + 1
        return len({rank // self._node_size for rank in group})

    def _far_channels(self, num_local: int) -> int:
        """Return the channels of a group of several nodes."""
        number = 2 * max(1, self._nics * num_local // self._node_size)
        return min(2 * number if self._is_recent and number < _FAR_CHANNELS else number, _MOST_CHANNELS)

    def of_rings(self, group: Sequence[int]) -> int:
        """Return the bytes of a communicator's rings, and of its trees where switches do not add."""
        num_nodes = self._num_nodes(group)
        num_local = max(1, len(group) // num_nodes)
        ways = 1 if self._adds or len(group) == 2 else 2
        if num_nodes == 1:
            return self._channels[0] * _CONNECTION_BYTES * ways
        channels, more = self._far_channels(num_local), _REMOTE_BYTES - _CONNECTION_BYTES
        return (channels * _CONNECTION_BYTES + -(-channels // num_local) * more) * ways

    def of_sums(self, group: Sequence[int]) -> int:
        """Return the bytes that switches add into, which few small sums of all ranks do without."""
        num_local = max(1, len(group) // self._num_nodes(group))
        adding = min(num_local, _MOST_SUMMED) if self._adds and num_local > 2 else 0
        return adding * self._channels[2] * _SUMMED_BYTES

    def of_proxy(self, group: Sequence[int]) -> int:
        """Return the bytes of the chunks that a communicator shares among messages."""
        num_nodes = self._num_nodes(group)
        if num_nodes == 1:
            return self._channels[1] * _SHARED_STEPS * (_NEAR_CHUNK_BYTES if self._has_links else _FAR_CHUNK_BYTES)
        num_local = max(1, len(group) // num_nodes)
        return self._far_channels(num_local) * _SHARED_STEPS * _FAR_CHUNK_BYTES * min(num_local, _HOST_SIZE)

    def of_messages(self, rank: int, group: Sequence[int]) -> int:
        """Return the bytes of a rank's connections to the others of a group that are in its node."""
        near = sum(peer // self._node_size == rank // self._node_size for peer in group if peer != rank)
        is_one = self._num_nodes(group) == 1 and self._node_size <= _HOST_SIZE
        channels = self._channels[1] if is_one else _PEER_CHANNELS
        return near * channels * _CONNECTION_BYTES
