"""`mt.explore()`: the explorer in a notebook, served by a process of its own that ends with the notebook's.

It is a process, not a thread, so that simulations in the notebook's own process stay alone in it.
"""

from __future__ import annotations

import subprocess
import sys
from html import escape
from typing import Any
from urllib.parse import quote, urlencode

from minitrain.errors import UsageError, require_installed

_HEIGHT = 900  # px


def require_server() -> None:
    """Require what the server needs.

    Raises:
        UsageError: the extra is not installed.
    """
    require_installed("explore", "the explorer", "starlette", "uvicorn")


class ExplorerInNotebook:
    """An explorer that runs until `close`, or until Python ends.

    Args:
        state: what the page begins with.
    """

    def __init__(self, state: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "minitrain.learn.explorer.server"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None  # it has just been asked for
        address = self._process.stdout.readline().strip()
        if not address:
            raise UsageError("the explorer's server did not start; `minitrain explore` says why")
        self.address = f"{address}&{urlencode(state, quote_via=quote)}" if state else address

    def close(self) -> None:
        """End the server and its processes."""
        self._process.communicate()  # closes its stdin, which ends it

    def __repr__(self) -> str:
        return f"<explorer at {self.address}>"

    def _repr_html_(self) -> str:
        """Show the page."""
        style = f"width:100%;height:{_HEIGHT}px;border:0"
        return f'<iframe src="{escape(self.address)}" style="{style}" title="minitrain explore"></iframe>'


def explore(**state: Any) -> ExplorerInNotebook:
    """Open the explorer in a notebook: a page whose knobs simulate the step again.

    Args:
        state: what the page begins with: `strategy`, parameters of `simulate`, and `options` of the strategy by name.

    Returns:
        What a notebook shows as the page; `close()` ends it.

    Raises:
        UsageError: the extra `explore` is not installed, or the server does not start.
    """
    require_server()
    options = {f"o.{name}": value for name, value in (state.pop("options", None) or {}).items()}
    return ExplorerInNotebook({**state, **options})
