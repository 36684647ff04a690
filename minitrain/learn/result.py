"""The checks of a grading, their points, and the result of one check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

CHECKS = ("runs", "laws", "numerics", "communication", "time", "memory")
"""In the order in which they are made; those after the first of the first three that fails are skipped."""

POINTS = {"runs": 10, "laws": 15, "numerics": 25, "communication": 15, "time": 15, "memory": 20}
"""What each check is worth. The first three count together: what does not train right has no points."""

GAP_POINTS = {"predicted": 20, "operation": 40, "place": 40}
"""The same of the exercise that explains a gap."""

DESCRIPTIONS = {
    "runs": "runs to its end on every size",
    "laws": "keeps the laws of training, under strict accounting",
    "numerics": "computes what a single device computes",
    "communication": "communicates no more than the reference",
    "time": "takes no longer than the reference",
    "memory": "holds no more than the reference, plus a layer's weight, gradient and optimizer state",
    "predicted": "predicts the step time",
    "operation": "names the operation that the prediction missed",
    "place": "says where it is slow",
}

Status = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check.

    Args:
        name: one of `CHECKS`, or of `GAP_POINTS`.
        status: whether it passed.
        message: what is wrong, with law or budget.
        size: the sizes of the run where it failed, in words.
        rank: where, if on one rank.
        layer: of which layer, if of one.
        step: which operation of the rank it was, counted from 0, as in its log.
        line: where in the submission, as "file.py:12".
        expected: what was allowed.
        got: what was found.
        hint: how to go on.
        held: what the rank held at the moment in question, a line each, the largest first.
        cause: where it comes from, as far as that is known, a line each.
    """

    name: str
    status: Status
    message: str = ""
    size: str = ""
    rank: int | None = None
    layer: int | None = None
    step: int | None = None
    line: str | None = None
    expected: str | None = None
    got: str | None = None
    hint: str = ""
    held: Sequence[str] = ()
    cause: Sequence[str] = ()

    @property
    def passed(self) -> bool:
        """Whether the check passed."""
        return self.status == "passed"

    def where(self) -> str:
        """Return size, rank, layer, step and line in words."""
        facts = [self.size] if self.size else []
        facts += [
            f"{name} {value}"
            for name, value in (("rank", self.rank), ("layer", self.layer), ("step", self.step))
            if value is not None
        ]
        return ", ".join([*facts, *([self.line] if self.line else [])])

    def lines(self) -> list[str]:
        """Return the result in words, for a person."""
        if self.status != "failed":
            return []
        found = [self.message]
        if self.where():
            found.append(f"where: {self.where()}")
        if self.expected is not None:
            found.append(f"expected {self.expected}, got {self.got}")
        found += [f"because {line}" for line in self.cause]
        if self.held:
            found += [f"held by {self.held[0]}:", *(f"  {line}" for line in self.held[1:])]
        if self.hint:
            found.append(f"hint: {self.hint}")
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that are set, ready for JSON."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "", ())}


def one_line(text: str) -> str:
    r"""Return text without what could be taken for further lines of a report.

    >>> one_line("wrong\n02_ddp: 100 of 100 points")
    'wrong; 02_ddp: 100 of 100 points'
    """
    return "; ".join(printable(line.strip()) for line in text.splitlines() if line.strip())


def printable(text: str) -> str:
    """Return text without characters that a terminal, a browser or XML takes for something else than text."""
    return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)
