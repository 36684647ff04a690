"""The command `minitrain explore`: a local page whose knobs simulate the step again.

It is a file of its own, since a command is imported when it is called.
"""

from __future__ import annotations

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
