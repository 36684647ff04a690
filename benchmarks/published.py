"""Figures that engineers know, beside what a run of the source's framework says: the table of docs/accuracy.md.

Run by `python -m benchmarks.published`, or with words that a row must contain: `... H100 8B`.
A step of many microbatches is simulated twice with few, whole rounds apart, and goes on at that rate.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import minitrain as mt
from minitrain.run.parameters import command_of

TITAN = "torchtitan"
NEMO = "DGX Cloud"
BRIDGE = "Megatron Bridge 25.11"
SC21 = "Narayanan et al. 2021"
LLAMA = "Llama 3, table 4"
NEMO_2407 = "NeMo 24.07"
MOE = "Megatron-Core MoE"
FRAMEWORKS = {NEMO: "NeMo", BRIDGE: "Megatron Bridge", SC21: "Megatron-LM of 2020 and 2021", NEMO_2407: "NeMo"}
"""The framework of a source, where it is none that the strategy stands for."""
ON_A100 = "torchtitan without torch.compile"
"""torchtitan's figures of A100 do not say that it compiles."""
FLOPS_405B = 6 * 405.9e9 + 6 * 126 * 16384 * 8192
"""FLOP a token of Llama 3 405B: its parameters', and those of the pairs that a causal mask leaves."""
FLOPS_MIXTRAL = 12 * 32 * 4096**2 * (1 + 8 / 32 + 4096 / 4096 + 2 * 1.5 * 14336 / 4096 + 32000 / (2 * 32 * 4096))
"""FLOP a token of Mixtral 8x7B as Megatron-LM counts them (`num_floating_point_operations`): with all of attention."""


@dataclass(frozen=True)
class Published:
    """A published run.

    Args:
        model: the model's name.
        hardware: the hardware config.
        ranks: devices.
        seq_len: tokens a sample.
        batch: samples of a step, over all ranks.
        microbatch: samples a microbatch.
        tokens: tokens a second and device, as published.
        source: who published it.
        strategy: the strategy's name.
        options: of the strategy.
        precision: of the model.
    """

    model: str
    hardware: str
    ranks: int
    seq_len: int
    batch: int
    microbatch: int
    tokens: float
    source: str
    strategy: str = "megatron"
    options: Mapping[str, Any] = field(default_factory=dict)
    precision: str = "bf16"

    @property
    def layout(self) -> str:
        """Return strategy and options as one name, which commands take."""
        options = ",".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.strategy}:{options}" if options else self.strategy

    @property
    def num_microbatches(self) -> int:
        """Return the microbatches of a replica."""
        replicas = self.ranks // self._divided(("pp", "tp", "cp"))
        return self.batch // (replicas * self.microbatch)

    @property
    def command(self) -> str:
        """Return the command that simulates the whole step."""
        return f"{command_of(self.strategy, {**self._parameters, 'global_batch_size': self.batch})} --no-trace"

    def predict(self) -> float:
        """Return tokens a second and device."""
        num, pp = self.num_microbatches, self._divided(("pp",))
        few = pp * (2 if self.options.get("num_chunks", 1) > 1 or pp == 1 else 1)
        if num <= few + pp:
            seconds = self._seconds(num)
        else:
            first, second = self._seconds(few), self._seconds(few + pp)
            seconds = first + (second - first) * (num - few) / pp
        return self.batch * self.seq_len / seconds / self.ranks

    def _divided(self, degrees: Sequence[str]) -> int:
        product = 1
        for degree in degrees:
            product *= self.options.get(degree, 1)
        return product

    def _seconds(self, num_microbatches: int) -> float:
        batch = self.batch // self.num_microbatches * num_microbatches
        return mt.simulate(self.strategy, check=False, **{**self._parameters, "global_batch_size": batch}).step_time

    @property
    def _parameters(self) -> dict[str, Any]:
        """What `simulate` takes, but for the batch."""
        return {
            **self.options,
            "workload": self.model,
            "hardware": self.hardware,
            "world_size": self.ranks,
            "seq_len": self.seq_len,
            "precision": self.precision,
            "microbatch_size": self.microbatch,
            "fold": True,
            "platform": ON_A100 if (self.source, self.hardware) == (TITAN, A) else FRAMEWORKS.get(self.source),
        }


FSDP8: dict[str, Any] = {"recompute": "op"}
FULL8: dict[str, Any] = {"tp": 8, "sequence_parallel": True, "recompute": "full"}
H, A, B, G = "h100_80g_nvl8", "a100_80g", "b200_192g_nvl8", "gb200_nvl72"
H500 = "h100_96g_nvl8"


def _parts(tp: int, pp: int, chunks: int, **more: Any) -> dict[str, Any]:
    """Return the options of a run by Megatron's distributed optimizer, beside compute as NVIDIA's recipes have it."""
    found: dict[str, Any] = {"tp": tp, "pp": pp, "num_chunks": chunks, "sequence_parallel": tp > 1, "zero": 1}
    found |= {"overlap_replicas": True, **more}
    return {name: value for name, value in found.items() if value is True or value not in (1, False) or name == "zero"}


CASES = (
    Published("llama3-8b", A, 64, 8192, 64, 1, 2973, TITAN, "fsdp", FSDP8),
    Published("llama2-13b", A, 64, 4096, 128, 2, 2162, TITAN, "fsdp"),
    Published("llama3-70b", A, 64, 8192, 64, 1, 331, TITAN, "fsdp", {"recompute": "full"}),
    Published("llama3-8b", H500, 8, 8192, 16, 2, 6667, TITAN, "fsdp", FSDP8),
    Published("llama3-8b", H500, 128, 8192, 256, 2, 6514, TITAN, "fsdp", FSDP8),
    Published("llama3-70b", H500, 256, 8192, 512, 16, 597.3, TITAN, "fsdp", FULL8),
    Published("llama3.1-405b", H500, 128, 8192, 32, 2, 109, TITAN, "fsdp", FULL8),
    Published("llama3-8b", H, 16, 8192, 256, 1, 10656.3, NEMO, options=_parts(1, 1, 1, cp=2)),
    Published("llama3-70b", H, 128, 8192, 256, 1, 1116.8, NEMO, options=_parts(4, 4, 5, cp=2)),
    Published("llama3-70b", H, 2048, 8192, 4096, 1, 1117.6, NEMO, options=_parts(4, 4, 5, cp=2)),
    Published("gpt3-175b", H, 1024, 2048, 2048, 1, 484.6, NEMO, options=_parts(4, 8, 12)),
    Published("llama3.1-405b", H, 512, 8192, 256, 1, 206.8, NEMO, options=_parts(8, 8, 8, cp=2)),
    Published("llama3.1-405b", H, 8192, 8192, 2048, 1, 430e12 / FLOPS_405B, LLAMA, options=_parts(8, 16, 4)),
    Published("llama3.1-405b", H, 16384, 8192, 2048, 1, 400e12 / FLOPS_405B, LLAMA, options=_parts(8, 16, 4)),
    Published(
        "deepseek-v3",
        H,
        1024,
        4096,
        8192,
        1,
        629.7,
        NEMO,
        options=_parts(2, 16, 1, ep=64, recompute="mla_up_proj+mlp+moe"),
    ),
    Published("deepseek-v3", G, 256, 4096, 4096, 1, 3139, BRIDGE, options=_parts(1, 4, 4, ep=64)),
    Published(
        "megatron-145b",
        A,
        1536,
        2048,
        2304,
        2,
        123.78,
        SC21,
        options=_parts(
            8, 8, 2, recompute="full", sequence_parallel=False, zero=0, overlap_replicas=False, scatter_gather=True
        ),
    ),
    Published("mixtral-8x7b", H, 64, 4096, 256, 1, 468e12 / FLOPS_MIXTRAL, MOE, options=_parts(1, 4, 8, ep=8)),
    Published("gpt3-175b", H, 128, 2048, 256, 1, 726, NEMO_2407, options=_parts(4, 8, 6), precision="fp8"),
    Published("gpt3-175b", H, 512, 2048, 2048, 2, 782, NEMO_2407, options=_parts(4, 8, 6), precision="fp8"),
    Published("llama2-7b", H, 8, 4096, 128, 1, 16847, NEMO_2407, options=_parts(1, 1, 1), precision="fp8"),
    Published("llama2-13b", H, 16, 4096, 128, 1, 8646, NEMO_2407, options=_parts(1, 4, 10), precision="fp8"),
    Published("llama2-70b", H, 64, 4096, 128, 1, 1707, NEMO_2407, options=_parts(4, 4, 20), precision="fp8"),
    Published("llama3-8b", H, 8, 8192, 128, 1, 12036, NEMO_2407, options=_parts(1, 1, 1, cp=2), precision="fp8"),
    Published("llama3-70b", H, 64, 8192, 128, 1, 1533, NEMO_2407, options=_parts(4, 4, 5, cp=2), precision="fp8"),
    Published("llama3-8b", H, 8, 8192, 128, 1, 14451, BRIDGE, "fsdp", {}, "fp8"),
    Published("llama3-8b", B, 8, 8192, 128, 2, 30624, BRIDGE, options=_parts(1, 1, 1), precision="fp8"),
    Published("llama3-8b", G, 8, 8192, 128, 2, 31508, BRIDGE, options=_parts(1, 1, 1), precision="fp8"),
    Published("llama3-70b", H, 64, 8192, 128, 1, 1602, BRIDGE, options=_parts(4, 8, 5), precision="fp8"),
    Published("llama3.1-405b", G, 256, 8192, 1536, 1, 813, BRIDGE, options=_parts(4, 16, 4), precision="fp8"),
)


def about(case: Published) -> str:
    """Return what a case's row begins with: the run and what was published."""
    return (
        f"| {case.model}, {case.ranks} {case.hardware}, {case.precision}, {case.source} "
        f"| {case.layout} | {case.tokens:,.0f} |"
    )


def row(case: Published) -> str:
    """Return a case's row of the table."""
    found = case.predict()
    return f"{about(case)} {found:,.0f} | {100 * (found / case.tokens - 1):+.1f} |"


def main() -> None:
    """Print the rows."""
    words = [word.lower() for word in sys.argv[1:]]
    print("| model, devices, precision, source | layout | published | predicted | error % |")
    print("|---|---|---|---|---|")
    chosen = [case for case in CASES if all(word in about(case).lower() for word in words)]
    for case in chosen:
        print(row(case), flush=True)
    print("", *(case.command for case in chosen), sep="\n")


if __name__ == "__main__":
    main()
