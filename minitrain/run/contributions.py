"""A run of real processes as others can check it: a folder with program, machine, versions and measured log.

`MeasuredRun.contribute` and `minitrain train --contribute` write one, `minitrain validate --table FOLDER` predicts all
below a folder and compares. It has

- `run.json`: a `Contribution`, as plain values;
- `log.jsonl.gz`: the measured step, as `Run.save` writes it;
- `strategy.py`, where the strategy is not a shipped one;
- `calibration.json`, where the run was predicted by one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Gt

from minitrain.errors import UsageError
from minitrain.files import StrPath, read_json, write_text
from minitrain.workloads.matmul import DenseRows
from minitrain.workloads.transformer import Transformer, models

Count = Annotated[int, Ge(1)]
RUN_FILE, LOG_FILE, STRATEGY_FILE, CALIBRATION_FILE = "run.json", "log.jsonl.gz", "strategy.py", "calibration.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What was trained, on what, and what it took.

    Args:
        strategy: its name with options, or "strategy.py:function" of a file in the folder.
        world_size: ranks, each a process.
        num_layers: layers.
        global_batch_size: samples of a step.
        workload: "rows:512", or the name of a transformer.
        seq_len: tokens of a sample of a transformer; None for its own.
        precision: of a transformer; "" for its own.
        hardware: what predicts the run: the name of a config, or a file in the folder; "" for the nearest
            `calibration.json` of a folder above.
        digest: of the program: operations, groups, layers and tensors in each rank's order.
        backend: of torch.distributed.
        machine: facts of the machine by name.
        versions: by name, of code and packages.
        step_times_s: of each step, s.
        losses: of each step.
        peak_memory_bytes: what the allocator gave to the tensors of a step, on the rank with most.
        memory_by_kind: of that, bytes by kind.
    """

    strategy: str
    world_size: Count
    num_layers: Count
    global_batch_size: Count
    workload: str
    seq_len: Count | None = None
    precision: str = ""
    hardware: str
    digest: str
    backend: str
    machine: dict[str, Any]
    versions: dict[str, str]
    step_times_s: list[Annotated[float, Gt(0)]]
    losses: list[float]
    peak_memory_bytes: Annotated[float, Ge(0)]
    memory_by_kind: dict[str, Annotated[float, Ge(0)]]

    @classmethod
    def read(cls, path: StrPath) -> Contribution:
        """Read a `run.json`.

        Raises:
            UsageError: it is none.
        """
        try:
            found: Contribution = read_json(path, Contribution, what="measured run")
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read the measured run {path}: {error}") from error
        return found

    def write(self, folder: StrPath) -> None:
        """Write it as `run.json` of a folder."""
        write_text(Path(folder) / RUN_FILE, [json.dumps(asdict(self), indent=1) + "\n"])


def strategy_text(name: str, options: Mapping[str, Any]) -> str:
    """Return a strategy with its options, as commands take it.

    >>> strategy_text("megatron", {"tp": 2, "sequence_parallel": True})
    'megatron:tp=2,sequence_parallel=true'
    """
    given = ",".join(
        f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in options.items()
    )
    return f"{name}:{given}" if given else name


def workload_text(workload: Any) -> str:
    """Return a workload as commands take it.

    Raises:
        UsageError: it has no such name.
    """
    if isinstance(workload, str):
        return workload
    name = str(getattr(workload, "name", ""))
    known = models().get(name) if hasattr(workload, "model") else DenseRows.named(name)
    same = known == (replace(workload.model, precision=known.precision) if isinstance(known, Transformer) else workload)
    if known is None or not same:
        raise UsageError(
            f"{workload!r:.80} has no name by which others could train it; give workload the name of a shipped model, "
            "or leave it out"
        )
    return name
