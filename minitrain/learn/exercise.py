"""An exercise as a value, read from its folder; and the result of one check of a grading, with its points.

| file | what it holds |
|---|---|
| `exercise.json` | title, function, public sizes, three hints, hints by check, workload, operations |
| `hidden.json` | further sizes; learners of a teacher's own exercises do not get it |
| `statement.md` | what the learner reads, and in a last block of Python what the learner begins with |
| `starter.py` | what the learner begins with, where the statement has no such block |
| `reference.py` | the solution, which sets the budgets |
| `budgets.json` | the budgets, where the reference is not there |
| `wrong/*.py` | wrong solutions; the first line of each says which check must fail: `# fails: numerics` |
| `wrong.json` | others, as changes of the reference, of which each begins with what the reference says once |
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from annotated_types import Ge, Gt, Le, MinLen
from typing_extensions import TypedDict

from minitrain.engine.semantics import MEAN, DeclaredLocalSteps
from minitrain.errors import UsageError
from minitrain.files import read_json
from minitrain.machine.config import SPECIFIED
from minitrain.operations import EVENT_TYPES
from minitrain.plain_text import printable

SHIPPED = Path(__file__).parent / "exercises"


ONE_LAYER: Mapping[str, float] = {"weight": 1, "grad": 1, "opt_state": 1}
"""Room for temporaries: a weight, a gradient and an optimizer state of one layer."""


@dataclass(frozen=True, slots=True)
class Case:
    """Sizes that a submission is run with.

    Args:
        world_size: number of ranks.
        num_layers: layers of the trained model.
        global_batch_size: samples of the step.
        options: of the strategy.
        hidden: whether learners do not see it.
        workload: name of the transformer that is trained, which has `num_layers` units; None for the usual layers.
        is_proven: whether numbers are compared with those of a single device. A real model is too large for it: there
            laws and budgets count, at sizes where computing takes most of the time.
    """

    world_size: int
    num_layers: int
    global_batch_size: int
    options: Mapping[str, Any]
    hidden: bool = False
    workload: str | None = None
    is_proven: bool = True

    @property
    def numbers(self) -> dict[str, int]:
        """The sizes that are numbers."""
        return {name: getattr(self, name) for name in ("world_size", "num_layers", "global_batch_size")}

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes, as `simulate` takes them: a transformer has its own number of layers."""
        if self.workload is None:
            return self.numbers
        others = {name: number for name, number in self.numbers.items() if name != "num_layers"}
        return {**others, "workload": self.workload}

    @property
    def key(self) -> str:
        """The case as text, the same for equal cases."""
        workload = [] if self.workload is None else [self.workload]
        return json.dumps([*self.numbers.values(), dict(self.options), *workload], sort_keys=True)

    def as_dict(self) -> dict[str, Any]:
        """Return the case as `exercise.json` has it."""
        own = {} if self.is_proven else {"workload": self.workload}
        return {**self.numbers, "options": dict(self.options), **own}

    @classmethod
    def of_key(cls, key: str) -> Case:
        """Return the case that a key stands for."""
        world_size, num_layers, global_batch_size, options, *workload = json.loads(key)
        return cls(world_size, num_layers, global_batch_size, options, workload=workload[0] if workload else None)

    def __str__(self) -> str:
        ranks = f"{self.world_size} rank{'s' if self.world_size > 1 else ''}"
        options = "".join(f", {name} {value}" for name, value in self.options.items())
        layers = f"{self.num_layers} layers" if self.workload is None else f"{self.num_layers} units of {self.workload}"
        return f"{ranks}, {layers}, batch {self.global_batch_size}{options}"


@dataclass(frozen=True, slots=True)
class Prediction:
    """What an exercise asks before anything is run (see `minitrain.learn.predictions`).

    Args:
        case: the sizes.
        because: why a figure of the reference's run is what it is, by the figure's name.
    """

    case: Case
    because: Mapping[str, str]


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    Args:
        folder: where its files are.
        title: what it is about, in a few words.
        function: name of the coroutine function to write.
        public: sizes that learners see.
        hidden: sizes that they do not.
        hints: of growing directness.
        hints_by_check: what to say when a check fails.
        hardware: config that it is priced on.
        memory_limit_bytes: the device's memory, where it is part of the task instead of a budget; else None.
        memory_slack: how many of a layer's tensors a rank may hold beside what the reference holds, by kind; with no
            "opt_state" beside, the most of them on a device is a bound of its own.
        required_operations: that some rank must do where there are several, by the names of the calls.
        forbidden_operations: that no rank may do.
        ordered_operations: that each rank must do in the reference's order, by kind and layer.
        local_steps: the option that says how many steps each rank takes alone before all meet, as in local SGD (see
            `minitrain.engine.semantics.local_steps`); None for one synchronous step.
        bounds: what a run may need, as a multiple of what the reference does, by its name: "messages" (calls of all
            ranks, a message once), "communication" (bytes), "time", "memory".
        slowed: operations of which one is slow in a measured run. Where there are any, the exercise asks which (see
            `minitrain.learn.predictions`), and for no strategy.
        predict: what it asks first; None for nothing.
    """

    folder: Path
    title: str
    function: str
    public: Sequence[Case]
    hidden: Sequence[Case]
    hints: Sequence[str] = ()
    hints_by_check: Mapping[str, str] = field(default_factory=dict)
    hardware: str = SPECIFIED
    memory_limit_bytes: float | None = None
    memory_slack: Mapping[str, float] = field(default_factory=lambda: dict(ONE_LAYER))
    required_operations: Sequence[str] = ()
    forbidden_operations: Sequence[str] = ()
    ordered_operations: Sequence[str] = ()
    local_steps: str | None = None
    bounds: Mapping[str, float] = field(default_factory=dict)
    slowed: Sequence[str] = ()
    predict: Prediction | None = None

    @property
    def name(self) -> str:
        """The folder's name, such as `02_ddp`."""
        return self.folder.name

    @property
    def number(self) -> str:
        """What the name begins with, such as `02`."""
        return self.name.partition("_")[0]

    @cached_property
    def _written(self) -> tuple[str, str]:
        """What the learner reads, and what the learner begins with: the statement's last block, or `starter.py`.

        Raises:
            UsageError: the latter is not there.
        """
        path, apart = self.folder / "statement.md", self.folder / "starter.py"
        text = path.read_text(encoding="utf-8")
        if apart.exists():
            return text, apart.read_text(encoding="utf-8")
        statement, _, starter = text.rstrip().rpartition("\n```python\n")
        if not starter.endswith("\n```") or not statement:
            raise UsageError(
                f"{path} must end with a block ```python, what the learner begins with, or {apart.name} be beside it"
            )
        return statement, starter.removesuffix("```")

    @property
    def statement(self) -> str:
        """What the learner reads."""
        return self._written[0]

    @property
    def page(self) -> str:
        """The statement, and the card of operations with the rule of the stores, which all strategies share."""
        if self.slowed:
            return self.statement
        card = (SHIPPED / "operations.md").read_text(encoding="utf-8")
        return f"{self.statement.strip()}\n\n{card}"

    @property
    def starter(self) -> str:
        """What the learner begins with."""
        return self._written[1]

    @property
    def reference(self) -> str:
        """The reference solution, as `simulate` takes it."""
        return f"{self.folder / 'reference.py'}:{self.function}"

    @property
    def solution(self) -> str:
        """The text of the reference solution.

        Raises:
            UsageError: it is not there, as in the wheel for students.
        """
        if not self.has_reference:
            raise UsageError(f"the solution of {self.name} is not part of this installation; ask your teacher for it")
        return (self.folder / "reference.py").read_text(encoding="utf-8")

    def semantics(self, case: Case) -> DeclaredLocalSteps | None:
        """Return what a strategy means to compute with some sizes, whatever it declares; None for a usual step."""
        return None if self.local_steps is None else DeclaredLocalSteps(case.options[self.local_steps], None, MEAN)

    @property
    def has_reference(self) -> bool:
        """Whether the reference solution is there; students may have the exercise without it."""
        return (self.folder / "reference.py").is_file()

    @property
    def wrong(self) -> list[tuple[str, str, str, str]]:
        """Names and text of the wrong solutions, with the check that must fail and words of its message, or "".

        Raises:
            UsageError: a solution changes what the reference does not say once.
        """
        found = {f"wrong/{path.name}": path.read_text("utf-8") for path in sorted((self.folder / "wrong").glob("*.py"))}
        listed = self.folder / "wrong.json"
        for name, wrong in read_part(listed, dict[str, _WrongFile]).items() if listed.is_file() else ():
            text = self.solution
            for old, new in wrong["changes"].items():
                if text.count(old) != 1:
                    raise UsageError(f"{name} of {listed} changes {old!r:.80}, which reference.py must say, and once")
                text = text.replace(old, new)
            found[f"{name} of wrong.json"] = f"# fails: {wrong['fails']}\n{text}"
        said = {name: re.findall(r"\A(?:# fails: (\w+)(?:: *(.*))?)?", text)[0] for name, text in found.items()}
        return [(name, found[name], check, words.strip()) for name, (check, words) in said.items()]


Count = Annotated[int, Ge(1), Le(100_000)]
Amount = Annotated[float, Ge(0)]


CALLS = tuple(sorted({"receive", *EVENT_TYPES} - {"recv"}))
"""Operations as a strategy calls them."""


class _WrongFile(TypedDict):
    """A wrong solution, as `wrong.json` has it."""

    fails: str
    changes: dict[str, str]


class _CaseFile(TypedDict):
    """Sizes, as `exercise.json` and `hidden.json` have them."""

    world_size: Count
    num_layers: Count
    global_batch_size: Count
    options: NotRequired[dict[str, Any]]
    workload: NotRequired[str]


class _PredictionFile(TypedDict):
    """What an exercise asks first."""

    sizes: _CaseFile
    because: dict[Literal["bubble", "communication", "memory", "calls"], str]


class _ExerciseFile(TypedDict):
    """What `exercise.json` may have; `Exercise` says what it means."""

    title: str
    function: str
    public: Annotated[list[_CaseFile], MinLen(1)]
    hints: NotRequired[list[str]]
    hints_by_check: NotRequired[dict[str, str]]
    hardware: NotRequired[str]
    workload: NotRequired[str | None]
    memory_limit_gib: NotRequired[Annotated[float, Gt(0)]]
    memory_slack: NotRequired[dict[Literal["weight", "grad", "opt_state"], Amount]]
    required_operations: NotRequired[list[str]]
    forbidden_operations: NotRequired[list[str]]
    ordered_operations: NotRequired[list[str]]
    local_steps: NotRequired[str]
    bounds: NotRequired[dict[Literal["messages", "communication", "time", "memory"], Annotated[float, Ge(1)]]]
    slowed: NotRequired[list[str]]
    predict: NotRequired[_PredictionFile]


def load_exercise(name: str | Path, folder: Path | None = None) -> Exercise:
    """Return an exercise.

    Args:
        name: its folder, its number ("2", "02") or its name ("02_ddp", "ddp").
        folder: where to look for names; the shipped exercises if None.

    Raises:
        UsageError: there is none, or its files are not as they must be.
    """
    path = Path(name)
    if not (path / "exercise.json").is_file():
        path = _find(str(name), folder or SHIPPED)
    file = path / "exercise.json"
    data: dict[str, Any] = read_part(file, _ExerciseFile)
    if "memory" in data.get("bounds", {}) and {"memory_slack", "memory_limit_gib"} & {*data}:
        raise UsageError(f"{file}: bounds of memory go without memory_slack and memory_limit_gib")
    for calls in ("required_operations", "forbidden_operations", "ordered_operations", "slowed"):
        _require_calls(file, data.get(calls, ()))
    hidden = read_part(path / "hidden.json", list[_CaseFile]) if (path / "hidden.json").is_file() else []
    public, asked, workload = data.pop("public"), data.pop("predict", None), data.pop("workload", None)
    gib = data.pop("memory_limit_gib", None)
    return Exercise(
        folder=path,
        public=[_case(case, workload, hidden=False) for case in public],
        hidden=[_case(case, workload, hidden=True) for case in hidden],
        memory_limit_bytes=None if gib is None else gib * 2**30,
        predict=asked and Prediction(_case(asked["sizes"], workload, hidden=False), asked["because"]),
        **data,
    )


def _require_calls(path: Path, names: Sequence[str]) -> None:
    """Require that the names of operations of an exercise are such.

    Raises:
        UsageError: one is not.
    """
    for name in names:
        if name not in CALLS:
            close = difflib.get_close_matches(name, CALLS, 1)
            meant = f"did you mean {close[0]!r}? " if close else ""
            raise UsageError(f"{path}: there is no operation {name!r}; {meant}use some of {', '.join(CALLS)}")


def read_part(path: Path, kind: Any) -> Any:
    """Return what a JSON file of an exercise holds.

    Args:
        path: of the file.
        kind: what it must hold, as `minitrain.files.conforming` takes it.

    Raises:
        UsageError: it cannot be read, or holds something else; every fault is named by its key.
    """
    try:
        return read_json(path, kind)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is not as it must be: {error}; docs/teach.md says what an exercise has") from error


def _case(data: _CaseFile, workload: str | None, *, hidden: bool) -> Case:
    """Return a case from its JSON form."""
    sizes = (data["world_size"], data["num_layers"], data["global_batch_size"])
    options, own = data.get("options", {}), data.get("workload")
    return Case(*sizes, options, hidden=hidden, workload=own or workload, is_proven=own is None)


def all_exercises(folder: Path | None = None) -> list[Exercise]:
    """Return all exercises of a folder (the shipped ones by default), in order."""
    root = folder or SHIPPED
    return [load_exercise(path) for path in sorted(root.iterdir()) if (path / "exercise.json").is_file()]


def shipped_exercises(folder: Path | None = None) -> list[Exercise]:
    """Return those of them that ask for a strategy."""
    return [exercise for exercise in all_exercises(folder) if not exercise.slowed]


def _find(name: str, folder: Path) -> Path:
    """Return the folder of an exercise by number or name."""
    names = [path.name for path in sorted(folder.iterdir()) if (path / "exercise.json").is_file()]
    for found in names:
        number, _, rest = found.partition("_")
        if name in (found, rest) or (name.isdigit() and number.isdigit() and int(name) == int(number)):
            return folder / found
    raise UsageError(f"there is no exercise {name!r}; use one of {', '.join(names) or '(none are there)'}")


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
