"""Small models and layouts for the tests of the tuner."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import minitrain as mt
from minitrain.search.tuning.problem import Candidate, TuningProblem, axes_of, candidates

SMALL = mt.Transformer(
    num_layers=8, hidden_size=256, num_heads=8, num_kv_heads=8, vocab_size=512, seq_len=64, norm="rmsnorm"
)


def problem(world_size: int, batch: int, **more: Any) -> TuningProblem:
    """Return a small problem."""
    return TuningProblem(SMALL, "h100_80g_nvl8", world_size, batch, more)


def layouts(of: TuningProblem, seed: int, count: int, **space: Any) -> Iterator[Candidate]:
    """Yield some layouts of `megatron` that are legal."""
    found = list(candidates("megatron", of.machine, axes_of("megatron", of.machine, space), 1))
    yield from random.Random(seed).sample([one for one in found if one.pipeline is not None], count)
