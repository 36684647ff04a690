"""A Plotly figure that an exported notebook keeps: beside what Plotly shows, it has HTML that needs no script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plotly.graph_objects import Figure  # type: ignore[import-untyped]  # plotly ships no types


class NotebookFigure(Figure):  # type: ignore[misc]  # plotly ships no types
    """A figure for notebooks.

    Plotly's own form is JSON, which needs an extension of the notebook; nbconvert leaves it out of its HTML.

    Args:
        figure: the figure.
        picture: returns what is shown in its place, as HTML.
    """

    def __init__(self, figure: Figure, picture: Callable[[], str]) -> None:
        super().__init__(figure)
        self._picture = picture

    def __reduce__(self) -> Any:
        """Copy and pickle as a plain figure, without the run that the picture is made of."""
        return Figure, (self.to_dict(),)

    def _repr_mimebundle_(self, *arguments: Any, **more: Any) -> Any:
        """Return what Plotly shows, and the picture where that is not HTML."""
        shown = super()._repr_mimebundle_(*arguments, **more)
        return {"text/html": self._picture(), **shown} if shown else shown

    def _ipython_display_(self) -> None:
        """Show all forms, of which a notebook and its export take the one that they know."""
        shown = self._repr_mimebundle_()
        if not shown:  # where Plotly opens a browser
            super()._ipython_display_()
            return
        from IPython.display import display  # type: ignore[import-not-found]  # noqa: PLC0415  (only there)

        display(shown, raw=True)
