"""Writes profiles of two real ranks on gloo, as torch's profiler does, kept small and without names of this machine.

Run as a program, with the folder: `python tests/training/write_profiles.py tests/training/profiles`.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import spawn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

WIDTH, NUM_LAYERS, BATCH, WORLD_SIZE, STEPS = 256, 4, 64, 2, 3
SHAPES = ("Input Dims", "Input type")
KEPT = ("cpu_op", "user_annotation", "fwdbwd")


class Layer(nn.Linear):
    """A layer whose forward is marked with its number, for DDP; FSDP marks what it wraps."""

    def __init__(self, number: int) -> None:
        super().__init__(WIDTH, WIDTH, bias=False)
        self.number = number

    def forward(self, x: Any) -> Any:
        with record_function(f"layer {self.number}"):
            return super().forward(x)


def model_of(kind: str) -> Any:
    """Return a model as torch's FSDP2 or DDP wraps it; DDP reduces one gradient at a time."""
    layers = [Layer(number) if kind == "ddp" else nn.Linear(WIDTH, WIDTH, bias=False) for number in range(NUM_LAYERS)]
    model = nn.Sequential(*layers)
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1e-6)
    mesh = init_device_mesh("cpu", (WORLD_SIZE,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def work(rank: int, folder: str, store: str) -> None:
    """Train a few steps of both kinds under the profiler, as one rank."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD_SIZE)
    for kind in ("ddp", "fsdp"):
        torch.manual_seed(0)
        model = model_of(kind)
        optimizer = torch.optim.Adam(model.parameters())
        x = torch.randn(BATCH // WORLD_SIZE, WIDTH)

        def step(model: Any = model, optimizer: Any = optimizer, x: Any = x) -> None:
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        for _ in range(3):
            step()
        distributed.barrier()
        steps = schedule(wait=0, warmup=1, active=STEPS, repeat=1)
        with profile(activities=[ProfilerActivity.CPU], schedule=steps, record_shapes=True) as profiler:
            for _ in range(STEPS + 1):
                step()
                profiler.step()
        raw = Path(store).with_name(f"{kind}{rank}.json")
        profiler.export_chrome_trace(str(raw))
        write_small(raw, Path(folder, f"{kind}-rank{rank}.json.gz"))
    distributed.destroy_process_group()


def write_small(raw: Path, path: Path) -> None:
    """Write what a profile says of operations, and nothing of the machine."""
    data = json.loads(raw.read_text())
    events = [{**event, "args": _said(event)} for event in data["traceEvents"] if event.get("cat") in KEPT]
    kept = {"schemaVersion": data["schemaVersion"], "distributedInfo": data["distributedInfo"], "traceEvents": events}
    path.write_bytes(gzip.compress(json.dumps(kept, separators=(",", ":")).encode(), mtime=0))


def _said(event: Any) -> dict[str, Any]:
    """Return what is read of an event's arguments: shapes are of communication alone, which keeps files small."""
    names = ("Sequence number", "Fwd thread id", *(SHAPES if event["name"].startswith("c10d::") else ()))
    return {name: value for name, value in event.get("args", {}).items() if name in names}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        Path(sys.argv[1]).mkdir(exist_ok=True)
        spawn(work, (sys.argv[1], f"{scratch}/store"), nprocs=WORLD_SIZE)  # type: ignore[no-untyped-call]  # torch's
