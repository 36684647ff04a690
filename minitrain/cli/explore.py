"""The commands `minitrain explore`, a local page whose knobs simulate again, and `lab`, that as static files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minitrain.cli.output import print_lines
from minitrain.explorer.notebook import require_server


def explore(
    *,
    port: Annotated[int, typer.Option(min=0, max=65535)] = 0,
    open_page: Annotated[bool, typer.Option("--open/--no-open")] = True,
) -> None:
    """Open a local page whose knobs simulate the step again while one drags them.

    It is served on the loopback address alone, until Ctrl-C; the address that is printed holds a token.

    Args:
        port (N): Where; any that is free if 0.
        open_page: Open it in a browser.
    """
    require_server()
    from minitrain.explorer.server import serve  # noqa: PLC0415  (an extra)

    serve(port, lambda address: print_lines([address]), opens=open_page)


def lab(folder: Annotated[Path, typer.Argument(help="Where to write it.", file_okay=False)]) -> None:
    """Write the explorer's page as files for any static host, with Python in the browser.

    Building it takes npm and pip, which fetch Pyodide and a few wheels; the files ask nothing of another host.
    """
    from minitrain.explorer.lab import build_lab  # noqa: PLC0415  (what writes pages)

    files = build_lab(folder)
    size = sum(path.stat().st_size for path in files) / 2**20
    address = "http://127.0.0.1:8000/"
    print_lines(
        [
            f"wrote {len(files)} files, {size:.1f} MiB, into {folder}",
            f"python -m http.server -d {folder}  # then {address}",
        ]
    )
