"""What ranks train that share each sequence, or have parts of experts.

In time a run that divides each sequence among ranks (`cp` of a row) is one of more replicas: each rank of a sequence
takes its share of the tokens through the network, and gradients are summed over replicas and shares together, as
Megatron-Core does. So a share is simulated as a sample of its own, shorter in tokens, whose attention has the keys of
the whole sequence and an equal part of the pairs that the causal mask leaves ("zigzag" shares). That takes a tenth of
the time of simulating each step of the ring.

Of Megatron's, the exchange of keys and values is left out. It runs beside attention (Transformer Engine sends a block
while it computes on another), and takes less time than that where a sequence's ranks are of one node and keys have few
heads. PyTorch's is priced (`minitrain.workloads.rings`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from minitrain.workloads.expert_layers import ExpertLayers, is_copies
from minitrain.workloads.shapes import Cut, Work
from minitrain.workloads.transformer import Transformer
from minitrain.workloads.transformer_workload import TransformerWorkload, find_workload
from minitrain.workloads.workload import PassMode, Workload


class Shares(TransformerWorkload):
    """A transformer whose samples are equal shares of sequences, and whose experts may be in parts.

    A part of an expert is an expert of fewer columns, to which the tokens of the whole one are sent.

    Args:
        model: the transformer.
        cp: ranks that share a sequence.
        etp: parts of an expert.
        exchanged: the bytes of an exchange of tokens, over those of sending each part its copy.

    Raises:
        UsageError: the sequence does not divide, or the experts' columns.
    """

    def __init__(self, model: Transformer, cp: int, etp: int = 1, exchanged: float = 1.0) -> None:
        super().__init__(model if etp == 1 else _with_parts(model, etp))
        self.cp, self.exchanged = cp, exchanged
        self._output_bytes = [size_bytes // cp for size_bytes in self._output_bytes]
        self.experts = ExpertLayers(self.model, self.units, self.seq_len // cp)

    @property
    def tokens_of_sample(self) -> int:
        """The tokens of a share."""
        return self.seq_len // self.cp

    def resized(self, model: Transformer, seq_len: int) -> Shares:
        """Return the same shares of another model, whose experts are in parts as they are."""
        return Shares(replace(model, seq_len=seq_len), self.cp, exchanged=self.exchanged)

    def work(self, num_samples: int, mode: PassMode) -> Work:
        """Return what one rank does in a pass."""
        work = super().work(num_samples, mode)
        return replace(work, degrees=replace(work.degrees, cp=self.cp))

    def message_bytes(self, tensor: Any) -> int:
        """Return the bytes on the wire."""
        size_bytes = super().message_bytes(tensor)
        return int(size_bytes * self.exchanged) if is_copies(tensor) else size_bytes


def _with_parts(model: Transformer, etp: int) -> Transformer:
    """Return a model with a part of each expert as an expert of its own."""
    columns_of_part = Cut("moe_ffn", model.moe_ffn_hidden_size).part(model.moe_ffn_hidden_size, etp)
    return replace(
        model,
        num_experts=etp * model.num_experts,
        experts_per_token=etp * model.experts_per_token,
        num_shared_experts=etp * model.num_shared_experts,
        moe_ffn_hidden_size=columns_of_part,
    )


@lru_cache(maxsize=16)
def workload_of(model: Transformer, cp: int, etp: int = 1, exchanged: float = 1.0) -> Workload:
    """Return what a rank trains, if some ranks share each sequence; the same object for equal arguments."""
    return find_workload(model) if cp == etp == 1 else Shares(model, cp, etp, exchanged)
