"""What the page of the explorer may ask, and what it is told: each answer is a series of messages, ready for JSON.

A *state* is all that the page has set: `strategy` (a shipped name, or "own" with its text in `source`), `options` of
the strategy, and parameters of `simulate` by their names. Nothing else is known of a page, so a state reproduces it.
Models and machines are the shipped ones: a state may come with a link, and must not read files.

Rules are asked of those who have them. Which values an option may have is found by beginning the step of rank 0 with
each of them, up to its first computation or wait. Errors are told in the words of the command line, with the name of
the knob that they speak of.

The exercises on the page of explorer and lab: what they ask, and what is said of a solution.

Where there is no NumPy, laws, communication, time and memory are checked, and numbers are not. Exercises on real
models, and answers about a gap, are left to `minitrain learn`.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from math import isnan
from pathlib import Path
from typing import Any

from minitrain.engine.observers import Observer
from minitrain.errors import MinitrainError, UsageError, lacks_memory, message_of
from minitrain.files import TemporaryFolder
from minitrain.learn.exercise import CheckResult, Exercise, load_exercise, shipped_exercises
from minitrain.learn.explorer import plain_numpy
from minitrain.machine.config import shipped_clusters, shipped_configs
from minitrain.machine.platforms import platforms
from minitrain.machine.price import FIDELITIES
from minitrain.machine.topology import NETWORKS
from minitrain.run.analysis.explanation import Explanation
from minitrain.run.analysis.labels import duration
from minitrain.run.event_loops import run_to_end
from minitrain.run.figures import TABLES, FiguresOf, Row
from minitrain.run.parameters import DEFAULTS, OF_TRANSFORMER, PRICE_ONLY, SIZES, RunParameters, command_of, documented
from minitrain.run.rank_tasks import PreparedRun, prepare
from minitrain.run.result import Run
from minitrain.run.simulation import choose_variant, simulate
from minitrain.run.strategy_loading import (
    StrategyOption,
    choose_strategy,
    did_you_mean,
    documented_options,
    load_strategy,
    strategies,
)
from minitrain.view.bars import make_bars
from minitrain.view.explanation_panel import explanation_panel
from minitrain.view.run_folder import conditions, peak_text, view_of
from minitrain.view.timeline import explained_prices, timeline_data
from minitrain.workloads.architecture import PRECISIONS
from minitrain.workloads.matmul import DENSE
from minitrain.workloads.transformer import models

Message = dict[str, Any]
Send = Callable[[Message], None]

OWN = "own"
"""The strategy whose text is in `source`."""
FIRST: Mapping[str, Any] = {
    "strategy": "fsdp",
    "workload": "llama3-8b",
    "seq_len": 8192,
    "world_size": 64,
    "global_batch_size": 64,
    "hardware": "h100_80g_nvl8",
}
"""The state of a page that is opened without one."""
STARTER = """async def mine(model):
    weights, opt_states, activations, grads, act_grads = model.storage()
    rank, n = model.rank, model.world_size
    for k in range(model.num_layers):
        weights[k], opt_states[k] = model.load_weights(k, rank, n)
    share = model.global_batch_size // n
    activations[0] = model.get_input_activation(range(rank * share, (rank + 1) * share))
    for k in range(model.num_layers):
        weights["whole", k] = await model.all_gather(weights[k], k)
        activations[k + 1] = model.forward(k, activations[k], weights["whole", k])
    act_grads[0] = model.loss(activations.pop(model.num_layers))
    for k in reversed(range(model.num_layers)):
        grads[k], act_grads[0] = model.backward(k, activations[k], act_grads[0], weights["whole", k])
        del activations[k], weights["whole", k]
        grads[k] = await model.reduce_scatter(grads[k], k)
        weights[k], opt_states[k] = model.update(k, grads.pop(k), weights[k], opt_states[k])
        model.set_final_weight(k, weights[k])
    return model
"""
"""What the text field has before somebody writes a strategy: each weight in shards, gathered once for both passes."""

_LADDERS: Mapping[str, Sequence[int]] = {
    "world_size": [2**power for power in range(15)],
    "global_batch_size": [2**power for power in range(15)],
    "seq_len": [2**power for power in range(8, 18)],
    "num_layers": [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128],
}
"""The usual values of counts, at which their sliders stop; others can be typed."""
_MOST_PROBED = 24  # values of an option
_MOST_FOUND, _TUNING_S = 5, 60.0


@cache
def _choices() -> Mapping[str, Sequence[Any]]:
    """Return the values of the parameters that have a list of them."""
    clusters = shipped_clusters() if find_spec("yaml") is not None else ()  # a browser has no wheel of it
    return {
        "workload": [DENSE, *models()],
        "hardware": [*shipped_configs(), *clusters],
        "precision": list(PRECISIONS),
        "lora": [2**power for power in range(2, 9)],
        "ema": [0.9, 0.99, 0.999, 0.9999],
        "frozen_layers": [1, 2, 4, 8, 12, 16, 24, 32, 48, 64],
        "network": list(NETWORKS),
        "fidelity": list(FIDELITIES),
        "platform": list(platforms()),
    }


@cache
def _parameters() -> Mapping[str, Message]:
    """Return the knobs that are parameters of `simulate`, by name."""
    found = {}
    for name, (option, meaning) in documented(RunParameters):
        if name in _LADDERS or name in _choices():
            kind = {"choices": _choices()[name]} if name in _choices() else {"ladder": _LADDERS[name]}
            limits = {"least": option.least, "most": option.most, "shown": option.shown, "meaning": meaning}
            found[name] = {"name": name, "default": DEFAULTS[name], **kind, **limits}
    return found


def page(_given: Mapping[str, Any], send: Send) -> None:
    """Tell what the page consists of: its knobs, the strategies, the figures of charts, and its first state."""
    figures = [{"head": column.head, "title": column.title} for column in TABLES["explorer"]]
    names = [*strategies(), OWN]
    knobs = list(_parameters().values())
    more: Message = {"figures": figures, "first": FIRST, "starter": STARTER, "of_transformer": OF_TRANSFORMER}
    more["can_tune"] = not plain_numpy.is_installed()
    send({"knobs": knobs, "strategies": names, **more})


@dataclass(frozen=True, slots=True)
class Asked:
    """A state that was read.

    Args:
        strategy: a shipped name, or the file of one's own.
        parameters: those of `simulate`.
        options: those of the strategy.
    """

    strategy: str
    parameters: Mapping[str, Any]
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The strategy as a reader writes it, who has the text of the own one in a file."""
        return Path(self.strategy).name

    @property
    def keywords(self) -> dict[str, Any]:
        """What `simulate` takes beside the strategy."""
        return {**self.parameters, **self.options}


@contextlib.contextmanager
def _read(state: Mapping[str, Any]) -> Iterator[Asked]:
    """Read a state; the file of one's own strategy is there meanwhile.

    Raises:
        UsageError: the state names what there is not.
    """
    names = state.keys() - {"strategy", "source", "options"}
    unknown = sorted(names - _parameters().keys())
    if unknown:
        hint = did_you_mean(unknown[0], _parameters())
        raise UsageError(f"{unknown[0]} is no knob of the explorer{hint}", **{unknown[0]: state[unknown[0]]})
    parameters = {name: state[name] for name in _parameters() if state.get(name) is not None}
    for name, choices in _choices().items():
        if name in parameters and parameters[name] not in choices:
            value = parameters[name]
            listed = [str(choice) for choice in choices]
            hint = did_you_mean(str(value), listed) or f"; use one of {', '.join(listed)}"
            raise UsageError(f"{name} of the explorer must be a shipped one, got {value!r:.80}{hint}", **{name: value})
    options = state.get("options") or {}
    if not isinstance(options, Mapping):
        raise UsageError(f"options must be values by name, got {options!r:.80}")
    strategy = state.get("strategy")
    if strategy != OWN:
        if strategy not in strategies():
            hint = did_you_mean(str(strategy), strategies())
            raise UsageError(f"there is no strategy {strategy!r:.80}{hint}", strategy=strategy)
        yield Asked(str(strategy), parameters, options)
        return
    with TemporaryFolder("minitrain-explorer-") as folder:
        file = folder / "mine.py"
        file.write_text(str(state.get("source") or ""), encoding="utf-8")
        yield Asked(str(file), parameters, options)


def answer(question: str, given: Mapping[str, Any], send: Send) -> None:
    """Send the messages of an answer; whatever goes wrong is the last one, with its words and its knob.

    Args:
        question: one of `ANSWERS`.
        given: what goes with it: mostly a `state`.
        send: takes each message, when it is known.
    """
    state = given.get("state")
    state = state if isinstance(state, dict) else {}
    with contextlib.redirect_stdout(io.StringIO()):  # what a strategy prints
        try:
            ANSWERS.get(question, _unknown)(given, send)
        except (Exception, SystemExit) as error:
            if lacks_memory(error):
                error.__traceback__ = None  # whose frames hold what was too large
            send({"error": _words(error), "fields": _fields(error, state)})


def line_of(message: Message) -> str:
    """Return a message as a line of JSON; a number that JSON has no word for as null."""
    try:
        text = json.dumps(message, allow_nan=False)
    except ValueError:
        text = json.dumps(json.loads(json.dumps(message), parse_constant=lambda _: None))
    return f"{text}\n"


def _unknown(_given: Mapping[str, Any], _send: Send) -> None:
    raise UsageError(f"the explorer answers {', '.join(ANSWERS)}, and no other question")


def _words(error: BaseException) -> str:
    """Return an error as the command line says it; one's own strategy is called by its name alone."""
    return re.sub(r"\S*minitrain-explorer-[\w.]+[/\\]", "", message_of(error))


def _fields(error: BaseException, state: Mapping[str, Any]) -> list[str]:
    """Return the knobs that an error speaks of: its facts, then the names in its words; else the strategy."""
    if lacks_memory(error):
        return [*SIZES]
    names = [*_parameters(), *(option["name"] for option in _options_shown(state))]
    facts = [name for name in getattr(error, "facts", {}) if name in names]
    text = str(error)
    places = {name: found.start() for name in names if (found := re.search(rf"\b{name}\b", text))}
    said = sorted(places, key=lambda name: places[name])
    return list(dict.fromkeys((*facts, *said))) or ["source" if state.get("strategy") == OWN else "strategy"]


def _options_shown(state: Mapping[str, Any]) -> list[Message]:
    """Return the options of a state's strategy; none where it cannot be loaded."""
    with contextlib.suppress(Exception, SystemExit), _read(state) as asked:
        return [_option(option) for option in documented_options(choose_strategy(asked.strategy).function)]
    return []


def _option(option: StrategyOption) -> Message:
    """Return an option as a knob: a switch, a choice of the words that its meaning quotes, a number, or free text."""
    quoted = list(dict.fromkeys(re.findall(r'"(\w+)"', option.meaning)))
    kind: Message = {}
    if isinstance(option.default, bool):
        kind = {"switch": True}
    elif isinstance(option.default, str) or (option.default is None and quoted):
        kind = {"choices": quoted}
    elif isinstance(option.default, int) or option.name == "microbatch_size":
        kind = {"ladder": []}
    return {"name": option.name, "default": option.default, "meaning": option.meaning, **kind}


def figures_of(row: Row) -> list[Message]:
    """Return the figures that the page shows, each with its number in the unit of its head, and as text."""
    return [
        {
            "head": column.head,
            "title": column.title,
            "number": column.number(row),
            "text": column.words(row, " "),
        }
        for column in TABLES["explorer"]
    ]


def evaluate(given: Mapping[str, Any], send: Send) -> None:
    """Simulate a state: its figures first, then the picture, then why ranks wait."""
    state, began = given["state"], time.perf_counter()
    with _read(state) as asked:
        run = simulate(asked.strategy, **asked.keywords)
        summary = run.summary()
        simulated = time.perf_counter() - began
        told = {
            "title": f"{run.strategy}: {conditions(run)}",
            "figures": figures_of(FiguresOf(run)),
            "memory": _memory(run),
            "notes": [*run.notes, *([] if run.sureness is None else [f"how sure: {run.sureness}"])],
            "summary": summary,
            "usual": {} if run.trained_model is None else {"seq_len": run.trained_model.seq_len},
            "python": _python(asked),
            "command": command_of(asked.name, asked.keywords),
        }
        send({**told, "simulated_s": simulated})
        of_classes = run.step_timeline_of_classes, run.bytes_per_element, run.step_end
        explained = Explanation(*of_classes, run.strategy, run.options)
        view = replace(view_of(run), ranks_of_rows=run.ranks_of_rows)
        bars = make_bars(explained.timeline, view.step_end, explained.gaps)
        send({"picture": timeline_data(bars, view, explained, explains_prices=False)})
        send({"why": explanation_panel(explained, view), "accounts": explained_prices(bars, view)})


def _memory(run: Run) -> Message:
    """Return what fills the fullest device, bytes by kind, and what it may hold."""
    kinds = dict(run.memory_by_kind or {"tensors": run.peak_memory_bytes})
    needed = run.needed_memory_bytes or run.peak_memory_bytes
    rest = needed - sum(kinds.values())
    return {
        "kinds": {**kinds, **({"blocks and runtime": rest} if rest > 0 else {})},
        "capacity": run.capacity_bytes,
        "text": peak_text(run),
        "out_of_memory": None if run.oom is None else str(run.oom),
    }


def _python(asked: Asked) -> str:
    """Return a script that prints the figures of a state."""
    given = "".join(f"    {name}={value!r},\n" for name, value in asked.keywords.items())
    return f"import minitrain as mt\n\nrun = mt.simulate(\n    {asked.name!r},\n{given})\nprint(run.summary())\n"


def options(given: Mapping[str, Any], send: Send) -> None:
    """Tell the options of a state's strategy, and which values each may have beside the others as they are."""
    with _read(given["state"]) as asked:
        found = documented_options(choose_strategy(asked.strategy).function)
        send({"options": [_option(option) for option in found]})
        prepared = prepare(asked.strategy, {**asked.keywords, "observers": (_Stops(),)}, None)
        values = {}
        for option in found:
            tried = _candidates(_option(option), prepared)
            values[option.name] = [[value, _why_not(prepared, {option.name: value})] for value in tried]
        send({"values": values})


class _BegunError(Exception):
    """The strategy has begun to train, so that its sizes are as it wants them."""


class _Stops(Observer):
    """Ends a rank where it begins to compute."""

    def before(self, model: Any, op: str, given: tuple[Any, ...]) -> None:  # noqa: ARG002  (those of `Observer`)
        """Raise unless a weight is loaded."""
        if not op.startswith("load"):
            raise _BegunError


def _candidates(option: Message, prepared: PreparedRun) -> list[Any]:
    """Return values that an option might have: switches and words; of a number, what divides a size of the run."""
    if "switch" in option:
        return [False, True]
    if "choices" in option:
        return list(option["choices"])
    if "ladder" not in option:
        return []
    parameters = prepared.parameters
    sizes = (parameters.global_batch_size,) if option["name"] == "microbatch_size" else (parameters.world_size, 8)
    found = {size for total in sizes for size in range(1, min(total, 4096) + 1) if total % size == 0}
    return sorted(found)[:_MOST_PROBED]


def _why_not(prepared: PreparedRun, changed: Mapping[str, Any]) -> str | None:
    """Return why rank 0 does not begin with some options; None where it does."""
    tried = replace(prepared, options={**prepared.options, **changed})
    parameters = tried.parameters
    sizes = parameters.num_layers, parameters.global_batch_size
    make_model = choose_variant(parameters).make_model
    model = make_model(0, tried.transport(), *sizes, runtime_predictor=tried.predictor_of(0))

    async def begin() -> None:
        steps: Any = tried.function(model, **tried.options)
        try:
            steps.send(None)
        finally:
            steps.close()

    try:
        run_to_end(begin)
    except MinitrainError as error:
        return _words(error)
    except (Exception, SystemExit):
        return None  # it has begun, or has a fault that shows when it is simulated
    return None


def chart(given: Mapping[str, Any], send: Send) -> None:
    """Tell the figures of a state at each value of a knob, a point each; by `mt.price` where prices alone change."""
    name, values = given["knob"], list(given["values"])
    with _read(given["state"]) as asked:
        rows = _priced(asked, name, values) if name in PRICE_ONLY else None
        for place, value in enumerate(values):
            send({"x": value, **(_point(asked, name, value) if rows is None else rows[place])})


def _priced(asked: Asked, name: str, values: Sequence[Any]) -> list[Message] | None:
    """Return the points of a chart by one simulation; None where each is asked alone (no NumPy, or one fails)."""
    if plain_numpy.is_installed():
        return None
    from minitrain.whatif.price import price  # noqa: PLC0415  (the lab has no NumPy for it)

    others = {other: value for other, value in asked.keywords.items() if other != name}
    try:
        priced = price(asked.strategy, **others, vary={name: values})
        columns, summaries = priced.columns(), priced.summary()
    except MinitrainError:
        return None
    rows = [{**{head: column[place] for head, column in columns.items()}, **row} for place, row in enumerate(summaries)]
    return [{"figures": _numbers(row), "fits": row["out_of_memory"] is None} for row in rows]


def _point(asked: Asked, name: str, value: Any) -> Message:
    """Return the figures at one value of a knob, or why there are none."""
    try:
        run = simulate(asked.strategy, **{**asked.keywords, name: value})
    except (Exception, SystemExit) as error:
        return {"error": _words(error)}
    return {"figures": _numbers(FiguresOf(run)), "fits": run.oom is None}


def _numbers(row: Row) -> dict[str, float | None]:
    """Return the figures of charts by head; None for what is none."""
    numbers = {column.head: column.number(row) for column in TABLES["explorer"]}
    return {head: None if number is None or isnan(number) else float(number) for head, number in numbers.items()}


def tune(given: Mapping[str, Any], send: Send) -> None:
    """Search the layouts of a state's strategy; tell how far that is, and at last the best."""
    if plain_numpy.is_installed():
        raise UsageError("a search of layouts needs NumPy, which there is not in a browser; use `minitrain tune`")
    from minitrain.search.tuning.search import options_of  # noqa: PLC0415  (the lab has no NumPy for it)
    from minitrain.search.tuning.tune import tune as search_layouts  # noqa: PLC0415

    def progress(num_done: int, num_all: int, row: Row | None) -> None:
        best = None if row is None else row.get("step_time_s")
        send({"done": num_done, "all": num_all, "step_time_s": best})

    with _read(given["state"]) as asked:
        found = search_layouts(
            strategies=[asked.strategy], budget_s=_TUNING_S, jobs=1, progress=progress, **asked.parameters
        )
        rows = found.ranked[:_MOST_FOUND]
    best = [{"options": dict(options_of(row)), "step": duration(row["step_time_s"])} for row in rows]
    send({"verdicts": found.verdicts(), "best": best})


def exercises(_given: Mapping[str, Any], send: Send) -> None:
    """Tell the exercises that can be checked here."""
    send({"exercises": described()})


def check(given: Mapping[str, Any], send: Send) -> None:
    """Tell what is said of a state's own strategy as the solution of an exercise."""
    with _read({"strategy": OWN, "source": given["state"].get("source")}) as asked:
        send(checked(Path(asked.strategy), str(given["exercise"])))


ANSWERS: Mapping[str, Callable[[Mapping[str, Any], Send], None]] = {
    "page": page,
    "evaluate": evaluate,
    "options": options,
    "chart": chart,
    "tune": tune,
    "exercises": exercises,
    "check": check,
}
"""What may be asked."""


def described() -> list[dict[str, Any]]:
    """Return the exercises with all that the page shows of them, and the state in which one begins each."""
    return [
        {
            "name": exercise.name,
            "title": exercise.title,
            "statement": exercise.statement,
            "function": exercise.function,
            "state": {
                "strategy": "own",
                "source": exercise.starter,
                "hardware": exercise.hardware,
                **exercise.public[0].sizes,
                "options": dict(exercise.public[0].options),
            },
        }
        for exercise in shipped_exercises()
        if _is_small(exercise)
    ]


def _is_small(exercise: Exercise) -> bool:
    """Return whether it asks for a strategy, and all public sizes are of the usual layers."""
    return not exercise.slowed and all(case.workload is None for case in exercise.public)


def checked(file: Path, name: str) -> dict[str, Any]:
    """Return what is said of a solution.

    Args:
        file: the solution's text.
        name: of the exercise.

    Raises:
        UsageError: there is no such exercise here, or no such function in the file.
    """
    exercise = load_exercise(name)
    if not _is_small(exercise):
        raise UsageError(f"{exercise.name} is checked by `minitrain learn check`, and not on this page")
    from minitrain.learn.grader import grade  # noqa: PLC0415  (it brings what proofs need)

    numbers_count = not plain_numpy.is_installed()
    if not numbers_count:
        exercise = replace(exercise, public=[replace(case, is_proven=False) for case in exercise.public])
    _, function = load_strategy(f"{file}:{exercise.function}")
    results = grade(function, exercise, hidden=False).results
    if not numbers_count:
        results = [CheckResult(one.name, "skipped") if one.name == "numerics" else one for one in results]
    return {"results": [_shown(one, numbers_count) for one in results], "verdict": _verdict(results, numbers_count)}


def _shown(result: CheckResult, numbers_count: bool) -> dict[str, Any]:
    """Return a check as the page shows it."""
    is_left_out = result.name == "numerics" and not numbers_count
    lines = ["numbers are not compared in a browser; `minitrain learn check` does"] if is_left_out else result.lines()
    return {"name": result.name, "status": result.status, "lines": lines}


def _verdict(results: Sequence[CheckResult], numbers_count: bool) -> str:
    """Return the whole in a sentence."""
    failed = [one.name for one in results if one.status == "failed"]
    if failed:
        return f"not yet: {', '.join(failed)}"
    return "every check passed" if numbers_count else "every check passed but numbers, which are not compared here"
