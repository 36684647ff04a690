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
        str, typer.Option("--annotation", metavar="NAME", help="The name of a layer's record_function range.")
    ] = "layer {layer}",
    embedding: Annotated[
        str | None, typer.Option("--embedding", metavar="NAME", help="The embedding's range, which is then layer 0.")
    ] = None,
    head: Annotated[
        str | None, typer.Option("--head", metavar="NAME", help="The head's range, loss included: the last layer.")
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

    Profile whole training steps with the activities CPU and CUDA, forward of each layer in a record_function range.
    """
    from minitrain.hardware.profiler_traces import Marks, layers_from_trace  # noqa: PLC0415  (only for this command)

    marks = Marks(annotation, embedding, head)
    rows = layers_from_trace(trace, marks, microbatch=microbatch, tp=tp, model=model, gpu=gpu)
    write_layers(rows, out)
    forward, backward, update = (sum(getattr(row, f"{kind}_s") for row in rows) for kind in _KINDS)
    totals = f"forward {forward * 1e3:.4g} ms, backward {backward * 1e3:.4g} ms, update {update * 1e3:.4g} ms"
    print_lines([f"wrote {out}: {len(rows)} layers, {totals}"])


_KINDS = ("forward", "backward", "update")
