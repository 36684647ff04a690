"""Tables of model states: the bytes of parameters, gradients and optimizer states on a rank, by ZeRO's stage.

Columns: n_params, dp, zero_stage, mem_gb. Both gradients and parameters have 16 bits, and Adam's states 12 bytes
(Rajbhandari et al. 2020, section 3.1); a stage shards the states, then the gradients, then the parameters.

It is a file of its own, since nothing here is simulated.
"""

from __future__ import annotations

from collections.abc import Iterator

from minitrain.validation.errors_by_table import RowResult
from minitrain.validation.rows import Row
from minitrain.workloads.precision import Precision

_MIXED = Precision(gradient_bytes=2)


def state_results(row: Row) -> Iterator[RowResult]:
    """Yield the result of a row.

    Raises:
        LackingError: a size is missing.
    """
    num_parameters, dp, stage = row.positive("n_params"), row.count("dp"), row.count("zero_stage")
    sizes = (_MIXED.optimizer_bytes, _MIXED.gradient_bytes, _MIXED.parameter_bytes)
    held = sum(size / dp if place < stage else size for place, size in enumerate(sizes))
    yield RowResult(
        table=row.table,
        row_id=row.row_id,
        about=f"{row.text('model')}, {dp} ranks, stage {stage}",
        group="states",
        device="any",
        model=row.text("model"),
        world_size=dp,
        measured_bytes=row.positive("mem_gb") * 1e9,
        predicted_bytes=num_parameters * held,
        memory_kind="states",
    )
