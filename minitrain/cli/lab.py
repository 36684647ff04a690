"""The command `minitrain lab`: the explorer as static files.

It is a file of its own, since a command is imported when it is called.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minitrain.cli.output import print_lines


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
