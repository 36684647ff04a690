"""What `tune` returns: `Tuning`, the findings of a search with their explanation, their page and their table."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from minitrain.run.data_frames import data_frame
from minitrain.search.tuning.findings import Findings
from minitrain.search.tuning.search import options_of

if TYPE_CHECKING:
    from minitrain.search.tuning.explanation import TuningExplanation


@final
class Tuning(Findings):
    """What a search has found; see `Findings` for `best`, `front`, `rows` and what else it holds."""

    def explain(self, runners_up: int = 3, factors: Sequence[float] = (1.25, 1.5, 2.0, 4.0, 8.0)) -> TuningExplanation:
        """Return why the best one wins, what the next ones lose, and what would have to change.

        Args:
            runners_up: how many others are compared with it.
            factors: by what each price is multiplied and divided to see who wins then, ascending.
        """
        from minitrain.search.tuning.explanation import explain  # noqa: PLC0415  (only when somebody asks)

        return explain(self, runners_up, factors)

    def to_pandas(self) -> Any:
        """Return all rows as a pandas DataFrame.

        Raises:
            UsageError: pandas is not installed, which is no dependency.
        """
        return data_frame(self.rows)

    def write_html(self, path: str | PathLike[str], pictures: int = 10) -> Path:
        """Write a page that opens without internet: parallel coordinates, the front, and any layout at a click.

        Args:
            path: where to.
            pictures: how many of the best are drawn.
        """
        from minitrain.search.tuning.page import write_tuning_page  # noqa: PLC0415  (only when somebody looks)

        return write_tuning_page(Path(path), self, pictures)

    def __repr__(self) -> str:
        if not self.ranked:
            return f"<Tuning: {self.verdicts()}>"
        step = self.best.row["step_time_s"]
        return f"<Tuning: {self.verdicts()}; best {self.best}, {step:.4g} s>"

    def _repr_html_(self) -> str:
        """Show the best rows in a notebook."""
        from minitrain.search.page import html_of_rows  # noqa: PLC0415

        names = list(dict.fromkeys(name for row in self.ranked[:10] for name in options_of(row)))
        rows = [{"bubble_fraction": None, "exposed_comm_fraction": None, **row} for row in self.ranked[:10]]
        return f"<p>{escape(self.verdicts())}</p>{html_of_rows(rows, names)}"
