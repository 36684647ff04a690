"""Workloads that tests share: branches that can be computed beside one another, and are summed."""

from __future__ import annotations

from typing import Any

import numpy as np

from minitrain.machine.heterogeneous import ArraySpec, PrecisionType, WorkloadOperation, WorkloadProfile


def branches(
    count: int = 4, size: int = 64, batch: int = 32, datatype: str = "float32", **named: Any
) -> WorkloadProfile:
    """Return `count` small networks on one input, summed, with numbers."""
    random = np.random.default_rng(0)
    inputs: dict[str, Any] = {"x": random.standard_normal((batch, size)).astype(datatype)}
    operations = []
    for branch in range(count):
        inputs[f"w{branch}"] = (random.standard_normal((size, 2 * size)) / 8).astype(datatype)
        inputs[f"v{branch}"] = (random.standard_normal((2 * size, size)) / 8).astype(datatype)
        operations += [
            WorkloadOperation(f"up{branch}", "matmul", {"x": "x", "y": f"w{branch}"}),
            WorkloadOperation(f"act{branch}", "gelu", {"x": f"up{branch}"}),
            WorkloadOperation(f"down{branch}", "matmul", {"x": f"act{branch}", "y": f"v{branch}"}),
        ]
    total = "down0"
    for branch in range(1, count):
        operations.append(WorkloadOperation(f"sum{branch}", "add", {"x": total, "y": f"down{branch}"}))
        total = f"sum{branch}"
    return WorkloadProfile("branches", tuple(operations), inputs, batch_inputs=("x",), **named)


def priced_branches(
    count: int = 4, size: int = 4096, batch: int = 4096, precisions: tuple[PrecisionType, ...] = ()
) -> WorkloadProfile:
    """Return the same for prices alone, at sizes where devices matter more than dispatch."""
    small = branches(count, batch=2, size=2, precisions=precisions)
    sizes = {"x": (batch, size), "w": (size, 2 * size), "v": (2 * size, size)}
    inputs = {name: ArraySpec(sizes[name[0]], "float16") for name in small.inputs}
    found: WorkloadProfile = small.with_inputs(inputs)
    return found
