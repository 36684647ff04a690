"""The command `minitrain hw layers-from-trace`: a profiler's trace becomes a table of layer times."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minitrain.cli.options import Debug
from minitrain.cli.output import print_lines
from minitrain.hardware.measured_layers import write_layers


def layers_from_trace(
    trace: Annotated[
        Path, typer.Argument(metavar="TRACE", help="A chrome trace of the PyTorch profiler, or .json.gz.")
    ],
    microbatch: Annotated[int, typer.Option("--microbatch", metavar="N", min=1, help="Samples of a pass.")],
    annotation: Annotated[
        str | None,
        typer.Option(
            "--annotation", metavar="NAME", help='A layer\'s range, such as "layer {layer}"; found by default.'
        ),
    ] = None,
    embedding: Annotated[
        str | None, typer.Option("--embedding", metavar="NAME", help="The embedding's range, which is then layer 0.")
    ] = None,
    head: Annotated[
        str | None, typer.Option("--head", metavar="NAME", help="The head's range, loss included: the last layer.")
    ] = None,
    num_layers: Annotated[
        int | None,
        typer.Option("--num-layers", metavar="N", min=1, help="Layers of the model, where the trace shows fewer."),
    ] = None,
    tp: Annotated[int, typer.Option("--tp", metavar="N", min=1, help="Tensor-parallel degree.")] = 1,
    model: Annotated[str, typer.Option("--model", metavar="NAME", help="What the table calls the model.")] = "",
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="NAME", help="What it calls the device; the trace's name by default.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The table to write.")] = Path("layers.csv"),
    debug: Debug = False,  # noqa: ARG001  (`failures` reads it)
) -> None:
    """Read how long each layer keeps the device busy from a profiler's trace, for `--prices`.

    Profile whole training steps with the activities CPU and CUDA. Layers are found by ranges
    named "layer 0", by those of FSDP2, by calls of modules (with_stack=True), or by the order of kernels.
    """
    from minitrain.hardware.profiler_traces import Marks, TracedLayers  # noqa: PLC0415  (only for this command)

    is_marked = annotation or embedding or head
    marks = Marks(annotation or "layer {layer}", embedding, head) if is_marked else None
    traced = TracedLayers.read(trace, marks)
    rows = traced.rows(microbatch=microbatch, tp=tp, model=model, gpu=gpu, num_layers=num_layers)
    write_layers(rows, out)
    num_rows = [row.last_layer - row.first_layer + 1 for row in rows]
    forward, backward, update = (
        sum(num * getattr(row, f"{kind}_s") for num, row in zip(num_rows, rows, strict=True)) for kind in _KINDS
    )
    totals = f"forward {forward * 1e3:.4g} ms, backward {backward * 1e3:.4g} ms, update {update * 1e3:.4g} ms"
    print_lines(
        [
            f"wrote {out}: {sum(num_rows)} layers, {totals}",
            f"found by {traced.found_by}: {traced.coverage:.0%} of the time of all kernels but communication's",
        ]
    )


_KINDS = ("forward", "backward", "update")
