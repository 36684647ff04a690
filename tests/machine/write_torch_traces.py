"""Writes traces of three training loops as torch writes them, for tests: FSDP2, DDP with stacks, and neither.

Run as a program, with the folder; it must not share a process with other tests, since it makes a process group.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.profiler import ProfilerActivity, profile

WIDTH, WORDS, NUM_LAYERS = 64, 100, 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256), nn.Linear(256, WIDTH)

    def forward(self, x: Any) -> Any:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layers = nn.ModuleList(Block() for _ in range(NUM_LAYERS))

    def forward(self, x: Any) -> Any:
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def model_of(kind: str) -> Any:
    """Return a model as a framework wraps it."""
    model = Net()
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp":
        mesh = init_device_mesh("cpu", (1,))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def write(kind: str, path: Path) -> None:
    """Train for two steps under the profiler."""
    model = model_of(kind)
    optimizer = torch.optim.AdamW(model.parameters())
    words = torch.randint(0, WORDS, (8, 32))

    def step() -> None:
        nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    step()
    with profile(activities=[ProfilerActivity.CPU], with_stack=kind == "ddp") as profiler:
        for _ in range(2):
            step()
            profiler.step()
    profiler.export_chrome_trace(str(path))


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    for kind in ("fsdp", "ddp", "plain"):
        write(kind, folder / f"{kind}.json")
    distributed.destroy_process_group()
