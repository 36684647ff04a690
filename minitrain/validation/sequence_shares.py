"""Runs that divide each sequence among ranks, beside tensor and pipeline parallelism (`cp` of a row).

No shipped strategy divides the sequence beside stages. In time such a run is one of more replicas: each rank of a
sequence takes its share of the tokens through the network, and gradients are summed over replicas and shares together,
as Megatron-Core does. So a share is simulated as a sample of its own, shorter in tokens, whose attention has the
keys of the whole sequence and an equal part of the pairs that the causal mask leaves ("zigzag" shares).

Left out: the exchange of keys and values. It runs beside attention (Transformer Engine sends a block while it computes
on another), and takes less time than that where a sequence's ranks are of one node and keys have few heads.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import final

from minitrain.workloads.degrees import Work
from minitrain.workloads.transformer import Transformer
from minitrain.workloads.transformer_workload import TransformerWorkload, find_workload
from minitrain.workloads.workload import PassMode, Workload


@final
class SequenceShares(TransformerWorkload):
    """A transformer whose samples are equal shares of sequences.

    Args:
        model: the transformer.
        cp: ranks that share a sequence.

    Raises:
        UsageError: the sequence does not divide.
    """

    def __init__(self, model: Transformer, cp: int) -> None:
        super().__init__(model)
        self.cp = cp
        self._output_bytes = [size_bytes // cp for size_bytes in self._output_bytes]

    def _work(self, num_samples: int, mode: PassMode) -> Work:
        work = super()._work(num_samples, mode)
        return replace(work, degrees=replace(work.degrees, cp=self.cp))


@lru_cache(maxsize=16)
def workload_of(model: Transformer, cp: int) -> Workload:
    """Return what a rank trains, if some ranks share each sequence; the same object for equal arguments."""
    return find_workload(model) if cp == 1 else SequenceShares(model, cp)
