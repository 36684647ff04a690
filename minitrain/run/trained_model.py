"""What a run says of a transformer that it trains: its name, the length of its samples, the names of its layers.

It is a file of its own, since saved runs, comparisons and figures share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, final


class CountingRank(Protocol):
    """What is asked of a rank's model at its end."""

    recomputed_flop: float
    routed_copies: int
    dropped_copies: int


@final
@dataclass(frozen=True, slots=True)
class TrainedModel:
    """The transformer of a run.

    Args:
        name: what tables call it.
        seq_len: tokens of a sample.
        layer_names: what figures call the layers: "embedding", "attention 0", "mlp 0" ..., "head".
        recomputed_flop: floating-point operations that all ranks did again, counted as the run's useful ones.
        routed_copies: copies of tokens that all routers made for experts which ranks share.
        dropped_copies: of these, what experts did not take.
    """

    name: str
    seq_len: int
    layer_names: tuple[str, ...]
    recomputed_flop: float = 0.0
    routed_copies: int = 0
    dropped_copies: int = 0

    @property
    def dropped_token_fraction(self) -> float | None:
        """The share of copies of tokens that experts did not take; None where ranks share no experts."""
        return self.dropped_copies / self.routed_copies if self.routed_copies else None

    def to_save(self) -> dict[str, Any]:
        """Return the fields as a saved run has them, copies only where there are some."""
        found = asdict(self)
        if not self.routed_copies:
            del found["routed_copies"], found["dropped_copies"]
        return found

    def figures(self, tokens_per_second: float | None, hfu: float | None) -> dict[str, Any]:
        """Return what a run's summary says of a transformer alone."""
        figures = {"model": self.name, "seq_len": self.seq_len, "tokens_per_second": tokens_per_second, "hfu": hfu}
        return figures | ({"dropped_token_fraction": self.dropped_token_fraction} if self.routed_copies else {})


def trained_model_of(workload: Any, models: Sequence[CountingRank] = (), times: int = 1) -> TrainedModel | None:
    """Return what there is to say of a workload; None where it is no transformer.

    Args:
        workload: what is trained.
        models: those of the ranks, at their end.
        times: how many ranks each of them stands for.
    """
    if not hasattr(workload, "layer_names"):
        return None
    counts = (
        times * sum(model.recomputed_flop for model in models),
        times * sum(model.routed_copies for model in models),
        times * sum(model.dropped_copies for model in models),
    )
    return TrainedModel(workload.name, workload.seq_len, workload.layer_names, *counts)
