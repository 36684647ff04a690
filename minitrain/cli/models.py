"""The commands `minitrain models` and `minitrain models show`.

The command `minitrain strategies`: which strategies there are, and what one of them takes and needs.

What is shown of one strategy is read from its own signature and docstring.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import minitrain as mt
from minitrain.cli.options import group
from minitrain.cli.output import print_json, print_lines, print_table
from minitrain.errors import UsageError
from minitrain.plain_text import printable
from minitrain.run.analysis.labels import in_letters
from minitrain.run.run_file import plain
from minitrain.run.strategy_loading import (
    Strategy,
    StrategyOption,
    documented_options,
    load_strategy,
    strategies_of_file,
)
from minitrain.view.tables import facts_table, filled_table
from minitrain.workloads.transformer import Transformer, find_model, models, saved_bytes_per_token, summary
from minitrain.workloads.workload import RECOMPUTE

app = group("List and show the models that can be trained.")


@app.define_alone
def list_models(context: typer.Context, *, as_json: bool = False) -> None:
    """List the shipped models.

    Args:
        context: Says whether a command follows.
        as_json: Print JSON instead of a table.
    """
    if context.invoked_subcommand is not None:
        return
    if as_json:
        print_json([summary(model) for model in models().values()])
    else:
        print_table(_models_table(models().values()))


@app.define()
def show(model: str, *, as_json: bool = False) -> None:
    """Show what a model is made of: parameters, FLOPs and memory, and where its figures come from.

    Args:
        model (MODEL): A shipped model's name, or a Hugging Face config.json.
        as_json: Print JSON instead of a table.
    """
    found = find_model(model)
    facts: dict[str, Any] = summary(found)
    if as_json:
        print_json(facts)
        return
    print_lines([found.name])
    print_table(_model_table(found))


def _models_table(models: Iterable[Transformer]) -> Table:
    """Return one row a model."""
    rows: list[tuple[Any, ...]] = []
    for model in models:
        sizes = (model.num_layers, model.hidden_size, model.num_heads, model.num_kv_heads, model.seq_len)
        active = model.num_active_parameters
        shown = "" if active == model.num_parameters else in_letters(active, " ")
        rows.append((Text(model.name), in_letters(model.num_parameters, " "), shown, *map(str, sizes)))
    heads = ("\nparameters", "\nactive", "trans.\nlayers", "hidden\nsize", "\nheads", "KV\nheads", "seq\nlen")
    return filled_table({"\nname": 13, **dict.fromkeys(heads)}, rows)


def _model_table(model: Transformer) -> Table:
    """Return the figures of one model, a row each."""
    rows = {"source": model.source} if model.source else {}
    rows |= {
        "layers": f"{model.num_layers} transformer layers, hidden size {model.hidden_size}{_halves(model)}",
        "attention": _attention(model),
        "MLP": _mlp(model),
        "ends": _ends(model),
        "norm": _norm(model),
        "precision": _precision(model),
        "parameters": f"{model.num_parameters:,}",
    }
    if model.taken_as:
        rows["not modelled"] = ", ".join(model.taken_as)
    if model.num_experts:
        rows["of which a token uses"] = f"{model.num_active_parameters:,}"
    rows |= {f"  {kind}": f"{count:,}" for kind, count in model.parameters_by_kind().items()}
    for mode in RECOMPUTE:
        rows[f"recompute {mode}"] = (
            f"{model.flop_per_token(recompute=mode) / 1e9:,.4g} GFLOP and "
            f"{saved_bytes_per_token(model, mode) / 1e6:,.4g} MB of activations a token"
        )
    return facts_table(rows)


def _halves(model: Transformer) -> str:
    """Say which layers have one half alone."""
    halves = {"attention": model.without_mlp, "an MLP": model.without_mixer}
    return "".join(f", {len(layers)} with {half} alone" for half, layers in halves.items() if layers)


def _attention(model: Transformer) -> str:
    """Say what the attention is."""
    heads = f"{model.num_heads} heads of {model.head_dim}"
    if model.num_kv_heads != model.num_heads:
        heads += f", {model.num_kv_heads} of keys and values"
    if model.latent is not None:
        heads += f", latents of {model.latent.query_rank} for queries, {model.latent.kv_rank} for keys and values"
    layers = "" if len(model.window_layers) in (0, model.num_layers) else f" in {len(model.window_layers)} layers"
    kind = "chunks of" if model.chunked_windows else "window"
    window = f", {kind} {model.window}{layers}" if model.window else ""
    more = "".join(f", {text}" for text in _more_of_attention(model))
    bias = ", with biases" if model.output_bias else ", biases for queries, keys and values" if model.qkv_bias else ""
    return f"{heads}, {model.attention}{window}{bias}{more}"


def _more_of_attention(model: Transformer) -> list[str]:
    """Say what few models have."""
    norms = {"none": "", "head": "norms of queries and keys", "whole": "norms of all queries and all keys"}
    caps = f"scores capped at {model.score_cap:g}" if model.score_cap else ""
    num_mixed = model.num_layers - len(model.without_mixer)
    linear = model.linear and f"in {len(model.linear_layers)} of {num_mixed} layers {model.linear.rule} instead"
    sparse = model.sparse and f"of {model.sparse.top_k} keys that an indexer chooses"
    others = (sparse, "a gate" if model.output_gate else "", "sinks" if model.sinks else "", caps, linear)
    return [text for text in (norms[model.qk_norm], *others) if text]


def _norm(model: Transformer) -> str:
    """Say what the norms are, and where."""
    biases = ", with biases" if model.norm_bias else ""
    places = {"pre": "", "post": ", behind attention and MLP", "both": ", before and behind attention and MLP"}
    return f"{model.norm}{biases}{places[model.norm_placement]}"


def _mlp(model: Transformer) -> str:
    """Say what the MLPs are."""
    bias = ", with biases" if model.mlp_bias else ""
    dense = f"{model.mlp}, hidden size {model.ffn_hidden_size}{bias}"
    if not model.num_experts:
        return dense
    shared = f" and {model.num_shared_experts} shared" if model.num_shared_experts else ""
    experts = (
        f"{model.experts_per_token} of {model.num_experts} experts{shared}, {model.mlp}, "
        f"hidden size {model.moe_ffn_hidden_size}{bias}"
    )
    if len(model.moe_layers) == model.num_layers:
        return experts
    in_layers = f"{experts}, in {len(model.moe_layers)} transformer layers"
    has_others = len(model.moe_layers) + len(model.without_mlp) < model.num_layers
    return f"{in_layers}; {dense}, in the others" if has_others else in_layers


def _ends(model: Transformer) -> str:
    """Say what is before and behind the layers."""
    at_most = "" if model.max_seq_len is None else f" (its config allows {model.max_seq_len})"
    tied = "tied" if model.tied_embeddings else "not tied"
    positions = f"{model.positions} positions" if model.positions != "none" else "no positions"
    positions += f" scaled by {model.rope_scaling:g}" if model.rope_scaling != 1 else ""
    return f"vocabulary {model.vocab_size}, {tied}, {positions}, sequences of {model.seq_len}{at_most}"


def _precision(model: Transformer) -> str:
    """Say what a number costs."""
    sizes = model.precision
    return (
        f"{sizes.name}: {sizes.parameter_bytes} + {sizes.gradient_bytes} + {model.state_bytes} bytes a parameter "
        f"(with gradient and optimizer state), {sizes.activation_bytes} an activation"
    )


def strategies(name: str | None = None, *, as_json: bool = False) -> None:
    """List the shipped strategies; or show one: its options with their defaults, and the sizes that it needs.

    Args:
        name (NAME): The strategy to show: a name, path.py or path.py:function; all if left out.
        as_json: Print JSON instead of a table.
    """
    if name is None or (name.endswith(".py") and len(strategies_of_file(Path(name))) > 1):
        if name is None and not mt.strategies():
            raise UsageError("this is the minitrain for students, which ships no strategies; name a file of yours")
        _list(mt.strategies() if name is None else strategies_of_file(Path(name)), as_json=as_json)
    else:
        _show(*load_strategy(name), as_json=as_json)


def _list(found: Mapping[str, Strategy], *, as_json: bool) -> None:
    """Print what each strategy is."""
    docs = {name: _what_it_is(function) for name, function in found.items()}
    if as_json:
        print_json([{"strategy": name, "description": doc} for name, doc in docs.items()])
        return
    table = facts_table(docs)
    table.columns[0].style = "bold"
    print_table(table)


def _show(name: str, function: Strategy, *, as_json: bool) -> None:
    """Print what a strategy is, what sizes it needs, and its options."""
    doc = inspect.getdoc(function) or ""
    rules, options = _rules(doc), documented_options(function)
    if as_json:
        listed = [{**asdict(option), "default": _for_json(option.default)} for option in options]
        print_json({"strategy": name, "description": _what_it_is(function), "rules": rules, "options": listed})
        return
    about = [_what_it_is(function), "", *rules] if rules else ["It has no docstring that says what it needs.", ""]
    print_lines([name, *_wrapped(about)])
    if not options:
        print_lines(["It has no options."])
        return
    rows = []
    for option in options:
        default = "required" if option.is_required else repr(option.default)
        rows.append([Text(printable(text)) for text in (option.name, default, option.meaning)])
    print_table(filled_table({"option": 0, "default": 0, "meaning": 20}, rows))
    print_lines([f"such as: minitrain run {name}:{_example(options)}"])


def _wrapped(paragraphs: Sequence[str]) -> Iterator[str]:
    """Yield the lines of paragraphs, as wide as the table below them."""
    for paragraph in paragraphs:
        yield from textwrap.wrap(paragraph, Console().width) or [""]


def _example(options: Sequence[StrategyOption]) -> str:
    """Return an option with a value that it takes: the last default, or else a word that its meaning quotes."""
    option = next((option for option in reversed(options) if option.default is not None), options[-1])
    quoted = re.search(r'"(\w+)"', option.meaning)
    value = str(option.default) if option.default is not None else quoted[1] if quoted else "1"
    return f"{option.name}={value}"


def _for_json(default: Any) -> Any:
    """Return a default as JSON has it: a tuple as a list, what JSON has no word for as Python writes it."""
    return [plain(one) for one in default] if isinstance(default, tuple) else plain(default)


def _what_it_is(function: Strategy) -> str:
    """Return a strategy in one line: the first one of its module, if that has only this one, or its own."""
    module = inspect.getmodule(function)
    is_shipped = function in mt.strategies().values()
    return (inspect.getdoc(module if is_shipped else function) or "").partition("\n")[0]


def _rules(doc: str) -> list[str]:
    """Return the paragraphs of a docstring before its sections."""
    text = re.split(r"^(?:Args|Returns|Raises|Source):\n", doc, flags=re.MULTILINE)[0]
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n") if paragraph.strip()]
