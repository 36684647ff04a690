"""What a search has found: `Findings`, and `Choice`, one configuration of it, also in the options of other tools.

The tools are those of `minitrain.workloads.exchange`, PyTorch's FSDP, and Calculon. Names are those of
`torch.distributed.fsdp.fully_shard`, and of the execution files of Calculon (`calculon/llm/llm.py`). What a tool has no
option for is written as a comment, or refused.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from minitrain.errors import UsageError, require_count, typed_methods
from minitrain.files import StrPath, read_json, shown
from minitrain.run.analysis.labels import GIB, duration
from minitrain.run.facts import remark_on, sureness_of, trained_model_of
from minitrain.run.parameters import command_of
from minitrain.run.rank_tasks import prepare
from minitrain.run.result import Run
from minitrain.run.simulation import simulate
from minitrain.search.tuning.problem import Candidate, Machine, changed_beside, unequal_stages
from minitrain.search.tuning.search import (
    FITS,
    VERDICTS,
    Row,
    Search,
    distinct,
    front_of,
    memory_of,
    options_of,
    ranked,
    row_of,
)
from minitrain.tensors.index_sets import grouped

if TYPE_CHECKING:
    from minitrain.workloads.exchange.recipe import Recipe

T = TypeVar("T")


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
        """Return it in the words of another tool: one of `minitrain.search.tuning.findings.TOOLS`.

        Raises:
            UsageError: there is no such tool, or it has no words for this strategy.
        """
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
        raise UsageError(f"{tool} has words for no configuration of this search: {refusal}")


def described(options: Mapping[str, Any]) -> str:
    """Return the options that are on, in few words.

    >>> described({"tp": 8, "pp": 1, "zero": 1, "recompute": "none", "sequence_parallel": True, "offload": None})
    'tp 8, pp 1, zero 1, sequence_parallel'
    """
    return ", ".join(_in_words(name, value) for name, value in options.items() if value not in (None, False, "none"))


def told_apart(rows: Sequence[Row]) -> tuple[str, list[str]]:
    """Return what several layouts have in common, and of each the strategy and what is not in all, in words.

    >>> told_apart([{"strategy": "fsdp", "tp": 2, "offload": "x"}, {"strategy": "fsdp", "tp": 2, "reshard": False}])
    ('tp 2', ['fsdp offload x', 'fsdp no reshard'])
    """
    each = [options_of(row) for row in rows]
    names = dict.fromkeys(name for options in each for name in options)
    same = {name for name in names if len(each) > 1 and all(one.get(name) == each[0].get(name) for one in each)}
    apart = [
        ", ".join(_in_words(name, value) for name, value in one.items() if name not in same and value is not None)
        for one in each
    ]
    told = [f"{row['strategy']} {words}".rstrip() for row, words in zip(rows, apart, strict=True)]
    return described({name: each[0][name] for name in names if name in same}), told


def _in_words(name: str, value: Any) -> str:
    """Return an option and its value in words."""
    if isinstance(value, bool):
        return name if value else f"no {name}"
    return f"{_SHORT.get(name, name)} {value}"


_SHORT = {"num_chunks": "chunks", "microbatch_size": "microbatch"}


@typed_methods
class Findings:
    """The rows of a search, without their explanation.

    Args:
        search: the search, which has ended.

    Attributes:
        objective: what was wanted.
        was_interrupted: whether it ended before all configurations were tried.
        was_ended_by_hand: whether that was by Ctrl-C.
    """

    def __init__(self, search: Search) -> None:
        self._search = search
        self.objective = search.objective
        self.was_interrupted = search.was_interrupted
        self.was_ended_by_hand = search.was_ended_by_hand
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
            raise UsageError(f"no configuration fits: {self.verdicts()}; {self.nearest()}")
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
        raise refusal or UsageError(f"no configuration fits: {self.verdicts()}; {self.nearest()}")

    def choice(self, row: Row) -> Choice:
        """Return the configuration of a row."""
        return Choice(self._search.candidates[self._place_of[id(row)]], row)

    @cached_property
    def _place_of(self) -> dict[int, int]:
        """The place of each row, by its identity."""
        return {id(row): place for place, row in self._search.rows.items()}

    def of_best(self, function: Callable[[Choice], T], count: int) -> Iterator[T]:
        """Yield what a function returns for each of the best choices, of those with equal figures one."""
        return self._search.each(function, [(self.choice(row),) for row in distinct(self.ranked)[:count]])

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
        verbs = {FITS: "fit"}
        words = ", ".join(f"{n:,} {verbs.get(one, one) if n > 1 else one}" for one, n in self.counts.items())
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
                candidate = self.choice(row).candidate
                found[row["strategy"]] = prepare(candidate.strategy, candidate.parameters).priced_by
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

    def others(self, shown: Iterable[Row]) -> list[str]:
        """Say of each strategy that is not among some rows how many layouts were tried, and how slow the best is."""
        found = grouped((row["strategy"], row["status"]) for row in self.rows)
        lines = []
        for strategy in found.keys() - {row["strategy"] for row in shown}:
            of_it, best = found[strategy], next((row for row in self.ranked if row["strategy"] == strategy), None)
            if best is None:
                words = ", ".join(f"{of_it.count(one):,} {one}" for one in VERDICTS if one in of_it)
            else:
                slower = best["step_time_s"] / self.best.step_time_s - 1
                took = f"the best that was priced takes {duration(best['step_time_s'])} ({slower:+.0%})"
                words = f"{took}: {described(options_of(best))}"
            lines.append(f"{strategy}, {len(of_it):,} configurations: {words}")
        return sorted(lines)

    def nearest(self) -> str:
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


_RECOMPUTE_OF_CALCULON = {"none": "none", "selective": "attn_only", "full": "full"}
_OF_CALCULON = frozenset(
    ("tp", "pp", "num_chunks", "microbatch_size", "zero", "recompute", "sequence_parallel", "scatter_gather")
).union(("overlap_parts", "overlap_replicas", "overlap_messages", "batch_messages"))
_OF_FSDP = frozenset(
    ("tp", "replicas", "microbatch_size", "sequence_parallel", "reshard_after_forward", "recompute", "offload")
)
"""The options that Calculon, and PyTorch's FSDP, have words for, or that change nothing of what these say."""


def in_words_of(tool: str, choice: Choice) -> str:
    """Return a layout in the words of a tool.

    Raises:
        UsageError: there is no such tool, or it has no words for the strategy.
    """
    require_tool(tool)
    return TOOLS[tool](choice)


def require_tool(tool: str, workload: Any = None) -> None:
    """Require a tool that there are words for, and that it has words for what is trained.

    Args:
        tool: its name.
        workload: what is trained; nothing is required of another workload than a transformer.

    Raises:
        UsageError: there are none.
    """
    if tool not in TOOLS:
        raise UsageError(f"a layout can be said in the words of {', '.join(TOOLS)}, got {tool!r}")
    from minitrain.workloads.exchange.reading import require_words as require_words_of  # noqa: PLC0415  (slow to import)

    require_words_of(getattr(workload, "model", workload), tool)


def recipe_of(choice: Choice) -> Recipe:
    """Return a layout with the model and the batch that it was chosen for."""
    from minitrain.workloads.exchange.recipe import Recipe  # noqa: PLC0415  (slow to import)

    machine, row = choice.candidate.problem.machine, choice.row
    model = None if machine.model is None else replace(machine.model, seq_len=machine.workload.seq_len)
    return Recipe(row["strategy"], choice.options, model, row["world_size"], row["global_batch_size"])


def _recipe(tool: str, choice: Choice) -> str:
    """Return the recipe of a tool; of one that is made of Megatron Core, with what is to be said of stages."""
    from minitrain.workloads.exchange.reading import write_recipe  # noqa: PLC0415  (slow to import)

    return write_recipe(recipe_of(choice), tool) + (_note_on_stages(choice) if tool.startswith("megatron") else "")


def _note_on_stages(choice: Choice) -> str:
    """Return what is to be said of stages that Megatron Core cannot cut so."""
    options, machine = choice.options, choice.candidate.problem.machine
    if machine.model is None or "pp" not in options:
        return ""
    unequal = unequal_stages(machine, options["pp"] * options["num_chunks"], options["microbatch_size"])
    what = f"# the step time is that of stages of unequal numbers of layers: {unequal}; "
    return f"{what}--pipeline-model-parallel-layout comes near it with whole ones\n" if unequal else ""


def fsdp(choice: Choice) -> str:
    """Return the calls of PyTorch that shard a model so."""
    _require(choice, "fsdp", "fsdp")
    _require_known(choice, "fsdp", _OF_FSDP, recompute=("none", "full"))
    options = choice.options
    replicated = options["replicas"]
    sharded = choice.row["world_size"] // (replicated * options["tp"])
    sizes = [("replicate", replicated), ("shard", sharded), ("tp", options["tp"])]
    kept = [(name, size) for name, size in sizes if size > 1 or name == "shard"]
    names, shape = tuple(name for name, _ in kept), tuple(size for _, size in kept)
    axes = tuple(name for name in names if name != "tp")
    of_mesh = f"mesh[{axes!r}]" if len(axes) > 1 else f"mesh[{axes[0]!r}]"
    reshards = options["reshard_after_forward"]
    lines = [
        f"mesh = init_device_mesh('cuda', {shape!r}, mesh_dim_names={names!r})",
        "for layer in model.layers:",
        *(["    layer = checkpoint_wrapper(layer)"] if options["recompute"] == "full" else []),
        f"    fully_shard(layer, mesh={of_mesh}, reshard_after_forward={reshards})",
        f"fully_shard(model, mesh={of_mesh}, reshard_after_forward={reshards})",
    ]
    lines += [_OFFLOADS[options["offload"]]] if options.get("offload") else []
    share = choice.row["global_batch_size"] * options["tp"] // choice.row["world_size"]
    lines.append(f"# {share // options['microbatch_size']} microbatches of {options['microbatch_size']} a step")
    return "\n".join(lines) + "\n"


_OFFLOADS = {
    "activations": "# forward under torch.autograd.graph.save_on_cpu(pin_memory=True)",
    "optimizer": "# keep the optimizer's state on the host; offload_policy=CPUOffloadPolicy() moves weights too",
    "optimizer_step": "# DeepSpeed's offload_optimizer; offload_policy=CPUOffloadPolicy() moves weights too",
    "parameters": "# offload_policy=CPUOffloadPolicy() in both",
}


def calculon(choice: Choice) -> str:
    """Return Calculon's execution file."""
    _require(choice, "calculon", "megatron")
    if choice.candidate.problem.machine.has_experts:
        _refuse(choice, "calculon", "it has no layers with experts")
    _require_known(choice, "calculon", _OF_CALCULON, zero=(0, 1), recompute=_RECOMPUTE_OF_CALCULON)
    options, row = choice.options, choice.row
    tp, pp, size = options["tp"], options["pp"], row["world_size"]
    dp = size // (tp * pp)
    machine = choice.candidate.problem.machine
    communication = "rs_ag" if options["sequence_parallel"] else "p2p_rs_ag" if options["scatter_gather"] else "ar"
    execution = {
        "num_procs": size,
        "tensor_par": tp,
        "pipeline_par": pp,
        "data_par": dp,
        "tensor_par_net": _tier(machine, tp),
        "pipeline_par_net": _tier(machine, size if pp > 1 else 1),
        "data_par_net": _tier(machine, dp * tp),
        "batch_size": row["global_batch_size"],
        "microbatch_size": options["microbatch_size"],
        "datatype": machine.workload.datatype,
        "fused_activation": True,
        "attention_type": "multihead",
        "activation_recompute": _RECOMPUTE_OF_CALCULON[options["recompute"]],
        "pipeline_interleaving": options["num_chunks"],
        "optimizer_sharding": bool(options["zero"]),
        "tensor_par_comm_type": communication,
        "tensor_par_overlap": "ring" if options["overlap_parts"] else "none",
        "seq_par_ag_redo": bool(options["sequence_parallel"]) and options["recompute"] != "full",
        "data_par_overlap": bool(options["overlap_replicas"]),
        "weight_offload": False,
        "activations_offload": False,
        "optimizer_offload": False,
        "training": True,
    }
    return json.dumps(execution, indent=2) + "\n"


def _tier(machine: Any, size: int) -> int:
    """Return the place of the smallest tier that so many neighbours lie in."""
    tiers = [tier.size for tier in machine.predictor.system.networks]
    return min((place for place, tier in enumerate(tiers) if tier >= size), key=lambda place: tiers[place])


def of_calculon(execution: StrPath | Mapping[str, Any]) -> dict[str, Any]:
    """Return what `simulate("megatron", ...)` takes for an execution of Calculon.

    Args:
        execution: the file, or what it holds.

    Raises:
        UsageError: it cannot be read, or says what `megatron` cannot do.
    """
    given = execution if isinstance(execution, Mapping) else _read(Path(execution))
    try:
        return _of_execution(given)
    except KeyError as error:
        raise UsageError(f"an execution of Calculon needs {error.args[0]!r}, and this one has none") from None


def _of_execution(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters and options of an execution."""
    offloaded = [name for name in ("weight_offload", "activations_offload", "optimizer_offload") if given.get(name)]
    if offloaded or not given.get("training", True):
        what = ", ".join(offloaded) or "inference"
        raise UsageError(f"megatron cannot do what an execution of Calculon asks for: {what}; leave it out")
    recompute = {word: name for name, word in _RECOMPUTE_OF_CALCULON.items()}
    counts = {name: require_count(f"{word} of an execution of Calculon", given[word]) for name, word in _COUNTS.items()}
    for name in ("optimizer_sharding", "data_par_overlap"):
        _require_word(name, given[name], (False, True))
    _require_word("activation_recompute", given["activation_recompute"], [*recompute])
    replicas = require_count("data_par of an execution of Calculon", given["data_par"])
    if counts["world_size"] != counts["tp"] * counts["pp"] * replicas:
        raise UsageError(
            f"num_procs ({counts['world_size']}) of an execution of Calculon must be tensor_par * pipeline_par * "
            f"data_par ({counts['tp']} * {counts['pp']} * {replicas})"
        )
    tp, pp, overlap = counts["tp"], counts["pp"], given.get("tensor_par_overlap", "none")
    return {
        **counts,
        "recompute": recompute[given["activation_recompute"]],
        "zero": int(given["optimizer_sharding"]),
        "sequence_parallel": tp > 1 and given["tensor_par_comm_type"] == "rs_ag",
        "scatter_gather": pp > 1 and tp > 1 and given["tensor_par_comm_type"] == "p2p_rs_ag",
        "overlap_parts": tp > 1 and overlap != "none",
        "overlap_replicas": given["data_par_overlap"],
    }


_COUNTS = {
    "world_size": "num_procs",
    "global_batch_size": "batch_size",
    "microbatch_size": "microbatch_size",
    "tp": "tensor_par",
    "pp": "pipeline_par",
    "num_chunks": "pipeline_interleaving",
}
"""What an execution of Calculon calls the numbers of `megatron`."""


def _require_word(name: str, value: Any, known: Sequence[Any]) -> None:
    """Require one of some values of an execution of Calculon."""
    if not any(value is word or (isinstance(word, str) and value == word) for word in known):
        raise UsageError(
            f"{name} of an execution of Calculon must be {' or '.join(map(shown, known))}, got {shown(value)}"
        )


def _read(path: Path) -> Mapping[str, Any]:
    """Return what a file holds."""
    try:
        found = read_json(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path} as an execution of Calculon: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path} must hold an object, as executions of Calculon do, got {type(found).__name__}")
    return found


def _require(choice: Choice, tool: str, *strategies: str) -> None:
    """Require a strategy that a tool has words for."""
    if choice.row["strategy"] not in strategies:
        _refuse(choice, tool, f"it has words for {' and '.join(strategies)}")


def _require_known(choice: Choice, tool: str, known: Collection[str], **values: Collection[Any]) -> None:
    """Require that a tool has words for all options of a layout that change it, and for the values of some."""
    options = choice.options
    other = changed_beside(choice.candidate.strategy, options, known)
    other += [name for name, allowed in values.items() if options[name] not in allowed]
    if other:
        _refuse(choice, tool, f"it has no {' and no '.join(f'{name}={options[name]}' for name in sorted(other))}")


def _refuse(choice: Choice, tool: str, why: str) -> NoReturn:
    raise UsageError(f"{tool} cannot say {choice}: {why}")


TOOLS: Mapping[str, Callable[[Choice], str]] = {
    **{tool: partial(_recipe, tool) for tool in ("megatron-lm", "megatron-bridge", "torchtitan", "deepspeed")},
    "fsdp": fsdp,
    "calculon": calculon,
}
