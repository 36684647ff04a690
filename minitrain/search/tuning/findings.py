"""What a search has found: `Findings`, and `Choice`, one configuration of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

from minitrain.errors import UsageError
from minitrain.run.analysis.labels import GIB
from minitrain.run.parameters import command_of
from minitrain.run.simulation import simulate
from minitrain.run.trained_model import remark_on, sureness_of, trained_model_of
from minitrain.search.tuning.problem import Candidate
from minitrain.search.tuning.search import FITS, VERDICTS, Row, front_of, memory_of, options_of, ranked, row_of

if TYPE_CHECKING:
    from minitrain.run.result import Run
    from minitrain.search.tuning.problem import Machine
    from minitrain.search.tuning.search import Search


@final
class Choice:
    """One configuration that was tried; the columns of its row are attributes.

    Args:
        candidate: the configuration.
        row: its row.
    """

    def __init__(self, candidate: Candidate, row: Row) -> None:
        self.candidate, self.row = candidate, row

    def __getattr__(self, name: str) -> Any:
        row = self.__dict__.get("row", {})
        if name in row:
            return row[name]
        raise AttributeError(f"a choice has no {name}; its columns are {', '.join(row)}")

    @property
    def options(self) -> Row:
        """The options of its strategy."""
        return options_of(self.row)

    @property
    def is_of_transformer(self) -> bool:
        """Whether a transformer is trained."""
        return self.candidate.problem.machine.model is not None

    @property
    def sureness(self) -> str:
        """How far validated runs like it were off, in words."""
        machine = self.candidate.problem.machine
        sizes = {name: size for name, size in self.options.items() if isinstance(size, int)}
        hardware = str(getattr(getattr(machine.predictor, "system", None), "name", ""))
        kind = getattr(machine.model, "kind", "")
        return sureness_of(str(machine.predictor.pricing), hardware, kind, sizes, self.candidate.problem.world_size)

    def simulate(self, **changes: Any) -> Run:
        """Simulate it, by default folded, with every figure that a run has.

        Args:
            changes: parameters of `simulate` to set otherwise, such as `fold=False` for every rank's log.
        """
        return simulate(self.candidate.strategy, **{**self.candidate.parameters, "fold": True, **changes})

    @property
    def command(self) -> str:
        """The command that simulates it."""
        return command_of(str(self.row["strategy"]), {**self.candidate.parameters, "fold": True})

    def words(self, tool: str) -> str:
        """Return it in the words of another tool: one of `minitrain.search.tuning.words.TOOLS`.

        Raises:
            UsageError: there is no such tool, or it has no words for this strategy.
        """
        from minitrain.search.tuning.words import in_words_of  # noqa: PLC0415  (only when somebody asks)

        return in_words_of(tool, self)

    def __repr__(self) -> str:
        return f"<Choice {self}>"

    def __str__(self) -> str:
        return f"{self.row['strategy']} {described(self.options)}"


def require_words(tool: str, candidates: Iterable[Candidate]) -> None:
    """Require that a tool has words for one configuration at least.

    Raises:
        UsageError: it has none, for the reason that the first of them gives.
    """
    refusal: UsageError | None = None
    for candidate in candidates:
        if candidate.illegal is None:
            try:
                Choice(candidate, row_of(candidate, None, candidate.problem.machine, 0.0)).words(tool)
            except UsageError as error:
                refusal = refusal or error
            else:
                return
    if refusal is not None:
        raise UsageError(f"{tool} has words for no configuration of this search: {refusal}", tool=tool)


def described(options: Mapping[str, Any]) -> str:
    """Return the options that are on, in few words.

    >>> described({"tp": 8, "pp": 1, "zero": 1, "recompute": "none", "sequence_parallel": True, "offload": None})
    'tp 8, pp 1, zero 1, sequence_parallel'
    """
    words = []
    for name, value in options.items():
        if value is True:
            words.append(name)
        elif value not in (None, False, "none") and not (value == 0 and name == "zero"):
            words.append(f"{_SHORT.get(name, name)} {value}")
    return ", ".join(words)


_SHORT = {"num_chunks": "chunks", "microbatch_size": "microbatch"}


class Findings:
    """The rows of a search, without their explanation.

    Args:
        search: the search, which has ended.

    Attributes:
        objective: what was wanted.
        was_interrupted: whether it ended before all configurations were tried.
    """

    def __init__(self, search: Search) -> None:
        self._search = search
        self.objective = search.objective
        self.was_interrupted = search.was_interrupted
        self._places = sorted(search.rows)

    @cached_property
    def rows(self) -> list[Row]:
        """Every configuration that was tried, with its `status`, its `reason` and its figures."""
        return [self._search.rows[place] for place in self._places]

    @cached_property
    def ranked(self) -> list[Row]:
        """The rows that fit, the best first."""
        return ranked(self.rows, self.objective)

    @cached_property
    def front(self) -> list[Row]:
        """The rows that no other one beats in time, memory, money and energy, the quickest first."""
        return front_of(self.rows)

    @cached_property
    def best(self) -> Choice:
        """The best configuration.

        Raises:
            UsageError: none fits.
        """
        if not self.ranked:
            raise UsageError(f"no configuration fits: {self.verdicts()}; {self._nearest()}")
        return self.choice(self.ranked[0])

    def best_with_words(self, tool: str) -> tuple[Choice, str]:
        """Return the best configuration that a tool has words for, and these words.

        Raises:
            UsageError: none fits, or the tool has words for none that does.
        """
        refusal = None
        for row in self.ranked:
            choice = self.choice(row)
            try:
                return choice, choice.words(tool)
            except UsageError as error:
                refusal = refusal or error
        raise refusal or UsageError(f"no configuration fits: {self.verdicts()}; {self._nearest()}")

    def choice(self, row: Row) -> Choice:
        """Return the configuration of a row."""
        return Choice(self._search.candidates[self._place_of[id(row)]], row)

    @cached_property
    def _place_of(self) -> dict[int, int]:
        """The place of each row, by its identity."""
        return {id(row): place for place, row in self._search.rows.items()}

    def most_bytes(self, machine: Machine) -> float:
        """Return how much memory a rank may use on a machine, bytes."""
        return self._search.most_bytes(machine)

    @cached_property
    def counts(self) -> dict[str, int]:
        """How many configurations there are of each verdict."""
        found = Counter(row["status"] for row in self.rows)
        return {verdict: found[verdict] for verdict in VERDICTS if found[verdict]}

    def verdicts(self) -> str:
        """Return how many configurations there are of each verdict, in words, and how many were never looked at."""
        words = ", ".join(f"{count:,} {verdict}" for verdict, count in self.counts.items())
        total = len(self._search.candidates)
        missing = total - len(self.rows)
        if not missing:
            return f"{total:,} configurations: {words}"
        why = "a better one may be among them" if self.was_interrupted else "the sampler did not choose them"
        return f"{len(self.rows):,} of {total:,} configurations: {words}; {missing:,} were not looked at: {why}"

    def priced_by(self) -> list[str]:
        """Return how the configurations that fit were priced, by strategy, and how sure the best one's time is."""
        found: dict[str, str] = {}
        for row in self.ranked:
            if row["strategy"] not in found:
                found[row["strategy"]] = str(self.choice(row).candidate.problem.machine.predictor.pricing)
        lines = [f"{strategy} is priced by {words}" for strategy, words in found.items()]
        return [*lines, *self._remarks()] if self.ranked and self.best.is_of_transformer else []

    def _remarks(self) -> list[str]:
        """Return how sure the best one's step time is, and what is remarkable of it."""
        trained = trained_model_of(self.best.candidate.problem.machine.workload)
        assert trained is not None  # `priced_by` has looked
        remark = remark_on(self.best.mfu, in_eight_bits=bool(trained.peak_of))
        precision = trained.unusual_text.removeprefix(", ")
        said = [f"the best in {precision}"] if precision else []
        return [*said, f"how sure, the best: {self.best.sureness}", *filter(None, [remark])]

    def _nearest(self) -> str:
        """Say which configuration needs the least memory, or why none was priced."""
        priced = [(needed, place) for place, row in enumerate(self.rows) if (needed := memory_of(row)) is not None]
        if not priced:
            return next((str(row["reason"]) for row in self.rows if row["reason"]), "the space is empty")
        needed, place = min(priced)
        least = self.rows[place]
        return f"the least memory is {needed / GIB:.4g} GiB, of {least['strategy']} {described(options_of(least))}"

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_fitting(self) -> int:
        """How many configurations fit."""
        return sum(row["status"] == FITS for row in self.rows)
