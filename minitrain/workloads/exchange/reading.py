"""Reading recipes of other tools, which are recognised by their content.

Writing recipes in the words of other tools, and asking before whether they have words for a model.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from minitrain.errors import UsageError, typed
from minitrain.files import StrPath, parse_json, read_text
from minitrain.workloads.exchange import deepspeed, megatron_bridge, megatron_core, megatron_lm, torchtitan
from minitrain.workloads.exchange.megatron_lm import words_of
from minitrain.workloads.exchange.recipe import Recipe
from minitrain.workloads.transformer import Transformer
from minitrain.workloads.workload import as_recompute

_KNOWN = (
    "Megatron-LM's options, Megatron Bridge's YAML or overrides, torchtitan's TOML, DeepSpeed's JSON, or Accelerate's "
    "YAML"
)


@typed
def read_recipe(source: StrPath, /, *, ignore: Sequence[str] = ()) -> Recipe:
    """Read what another tool is told to train: on how many ranks, and in which layout.

    What it returns has the keywords of `simulate`::

        recipe = mt.read_recipe("pretrain_llama3_8b.sh")
        run = mt.simulate(**recipe.keywords(hardware="h100_80g_nvl8"))

    Args:
        source: a file: a launch script or options of Megatron-LM; YAML or overrides of Megatron Bridge; TOML of
            torchtitan; JSON of DeepSpeed; YAML of Accelerate. Or such options themselves, as text that has a line break
            or begins with two dashes. What it is follows from what it holds.
        ignore: words that the caller knows to have no bearing on the model, its layout and its time.

    Raises:
        UsageError: the file cannot be read, is none of these, or has words that are not known or cannot be modelled;
            all at once.
    """
    text, name = _text_of(source)
    for make in (_as_json_or_toml, _as_options, _as_yaml):
        recipe = make(text, name, ignore)
        if recipe is not None:
            return recipe
    raise UsageError(f"{name} must hold {_KNOWN}; nothing in it is a word of one of these")


def _text_of(source: StrPath) -> tuple[str, str]:
    """Return what a file holds, and what to call the model."""
    if isinstance(source, str) and ("\n" in source or source.lstrip().startswith("--")):
        return source, "custom"
    try:
        return read_text(source, "recipe"), Path(source).stem
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{str(source)!r:.200} must be a file that can be read, with {_KNOWN}: {error}") from None


def _as_json_or_toml(text: str, name: str, ignore: Sequence[str]) -> Recipe | None:
    json = _as_sections(
        _loaded(text, parse_json), name, ignore, {"zero_optimization", "train_batch_size"}, deepspeed.read
    )
    return json or _as_sections(
        _loaded(text, tomllib.loads), name, ignore, {"parallelism", "training"}, torchtitan.read
    )


def _as_yaml(text: str, name: str, ignore: Sequence[str]) -> Recipe | None:
    words = text.split()
    found = _loaded(text, yaml.safe_load)
    accelerate = _as_sections(found, name, ignore, {"distributed_type"}, deepspeed.read_accelerate)
    if words and "." in words[0].partition("=")[0]:
        found = _loaded(text, megatron_bridge.overrides)
    return accelerate or _as_sections(found, name, ignore, {"model", "train", "ddp"}, megatron_bridge.read)


def _as_options(text: str, name: str, ignore: Sequence[str]) -> Recipe | None:
    words = words_of(text) if "--" in text else None
    if words is None or not words.options:
        return None
    return megatron_lm.read(words.without(ignore), name)


def _loaded(text: str, load: Callable[[str], Any]) -> Any:
    """Return what a text holds; None where it is not in this format."""
    try:
        return load(text)
    except (ValueError, RecursionError, yaml.YAMLError):
        return None


def _as_sections(
    found: Any,
    name: str,
    ignore: Sequence[str],
    marks: set[str],
    read: Callable[[Mapping[str, Any], str], Recipe],
) -> Recipe | None:
    """Return the recipe of what has one of some keys; None of all else."""
    if not isinstance(found, dict) or not marks & found.keys():
        return None
    return read(_without(found, ignore), name)


def _without(config: Mapping[str, Any], ignore: Sequence[str]) -> dict[str, Any]:
    """Return a configuration without some keys, which are written as "section.key" or "section"."""
    found: dict[str, Any] = {}
    for section, values in config.items():
        if section in ignore:
            continue
        inner = values.items() if isinstance(values, Mapping) else ()
        kept = {key: value for key, value in inner if f"{section}.{key}" not in ignore}
        found[section] = kept if isinstance(values, Mapping) else values
    return found


@dataclass(frozen=True, slots=True)
class _Format:
    """How a tool is written.

    Args:
        write: makes the text of a recipe without faults.
        model_faults: says why the tool cannot train a model.
        layout_faults: says why it cannot lay work out so.
        of_the_program: options that the program has that the tool runs.
    """

    write: Callable[[Recipe], str]
    model_faults: Callable[[Transformer], list[str]]
    layout_faults: Callable[[Recipe], list[str]]
    of_the_program: frozenset[str] = frozenset()


_FORMATS: Mapping[str, _Format] = {
    "megatron-lm": _Format(megatron_lm.write, megatron_core.model_faults, megatron_core.layout_faults),
    "megatron-bridge": _Format(megatron_bridge.write, megatron_core.model_faults, megatron_core.layout_faults),
    "torchtitan": _Format(torchtitan.write, torchtitan.model_faults, torchtitan.layout_faults),
    "deepspeed": _Format(deepspeed.write, lambda _: [], deepspeed.layout_faults, frozenset({"recompute"})),
}

TOOLS = tuple(_FORMATS)


@typed
def write_recipe(recipe: Recipe, tool: str) -> str:
    """Return the arguments by which a tool trains the same model in the same layout.

    They are read again: an option that then says something else is one that the tool has no words for.

    Raises:
        UsageError: there is no such tool, or it has no words for the model or the layout.
    """
    found = _format(tool)
    faults = [] if recipe.model is None else found.model_faults(recipe.model)
    _refuse(tool, recipe.model, faults + found.layout_faults(recipe))
    text = found.write(recipe)
    _refuse(tool, recipe.model, [*_lost(recipe, read_recipe(text), found.of_the_program)])
    return text


_USUAL: Mapping[str, Any] = {
    **dict.fromkeys(("tp", "pp", "cp", "ep", "num_chunks", "replicas"), 1),
    **dict.fromkeys(("overlap_messages", "reshard_after_forward", "overlap_experts"), True),
    "recompute": "none",
    "schedule": "1f1b",
    "cp_comm_type": "p2p",
}
"""What options mean that are not given, where it is not nothing; `overlap_replicas` is on in `fsdp`."""
_OF_NO_TOOL = frozenset({"imbalance", "sum_tied"})
"""What a router does, and what no tool leaves out."""


def _lost(recipe: Recipe, again: Recipe, of_the_program: Set[str]) -> Iterator[str]:
    """Yield the options that a written recipe says otherwise, where that makes a difference."""
    wanted, found = (_Meant(each) for each in (recipe, again))
    of_stage = {"zero"} if recipe.strategy != again.strategy else set()  # DeepSpeed's stages are strategies here
    if of_stage and not recipe.options.get("zero"):
        yield f"the strategy {recipe.strategy}"
        return
    for name in {**recipe.options, **again.options}:
        if name not in _OF_NO_TOOL | of_the_program | of_stage and wanted[name] != found[name] and wanted.has(name):
            yield f"{name}={wanted[name] if wanted[name] is not None or found[name] is not True else False}"


@dataclass(frozen=True, slots=True)
class _Meant:
    """What the options of a recipe mean, whether they are given or not."""

    recipe: Recipe

    def __getitem__(self, name: str) -> Any:
        usual = self.recipe.strategy == "fsdp" if name == "overlap_replicas" else _USUAL.get(name)
        value = self.recipe.options.get(name, usual)
        return as_recompute(value) if name == "recompute" else value or None if usual is None else value

    def has(self, name: str) -> bool:
        """Return whether an option makes a difference in the layout."""
        model, tp, pp = self.recipe.model, self["tp"], self["pp"]
        is_shared = self["replicas"] > 1 if self.recipe.strategy == "fsdp" else self.recipe.world_size != tp * pp
        needed = {
            "sequence_parallel": tp > 1,
            "overlap_parts": tp > 1,
            "scatter_gather": tp > 1 and pp > 1 and not self["sequence_parallel"],
            "overlap_messages": self["num_chunks"] > 1,  # with one chunk tools have no choice
            "batch_messages": self["num_chunks"] > 1 and not self["overlap_messages"],
            "overlap_replicas": is_shared,
            "cp_comm_type": self["cp"] > 1,
            "overlap_experts": self["schedule"] in ("combined_1f1b", "dualpipe_v"),
            "pass_costs": self["schedule"] in ("zb_1p", "zb_2p"),
            "capacity_factor": model is None or bool(model.num_experts),
            "overlap_cpu_optimizer_d2h_h2d": self["optimizer_offload_fraction"],
        }
        return bool(needed.get(name, True))


def require_words(model: Any, tool: str) -> None:
    """Require that a tool can be told to train a model, before a layout is known.

    Args:
        model: a `Transformer`; other workloads are not described to any tool.
        tool: its name; one that nothing is said of here is passed over.

    Raises:
        UsageError: it has no words for the model.
    """
    if isinstance(model, Transformer) and tool in _FORMATS:
        _refuse(tool, model, _FORMATS[tool].model_faults(model))


def _format(tool: str) -> _Format:
    if tool not in _FORMATS:
        raise UsageError(f"a recipe can be written for {', '.join(TOOLS)}, got {tool!r}")
    return _FORMATS[tool]


def _refuse(tool: str, model: Transformer | None, faults: list[str]) -> None:
    """Refuse what a tool has no words for; what a model's source says otherwise is one of these."""
    if faults:
        name = "this recipe" if model is None else model.name
        remedy = "; dataclasses.replace(model, taken_as=()) says that you know" if model and model.taken_as else ""
        raise UsageError(f"{tool} cannot be told to train {name}: it has no words for {'; '.join(faults)}{remedy}")
