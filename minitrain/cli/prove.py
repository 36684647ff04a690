"""The command `minitrain prove`: strategies on real arrays, compared with training on a single device."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import minitrain as mt
from minitrain.cli import options as given
from minitrain.cli.failures import FAILED, message_of, print_error, saying_what_is_kept
from minitrain.cli.output import Progress, print_json, print_lines, user_prints_to_stderr
from minitrain.plain_text import text_of
from minitrain.run.strategy_loading import ChosenStrategy
from minitrain.workloads.models import find_model

WORLD_SIZE, BATCH = 8, 16  # those of `mt.prove`; a test compares them
LAYERS = 8  # where no model is given, as for `mt.prove`

Proven = Annotated[
    list[str], typer.Argument(metavar="STRATEGY...", help="Names, path.py or path.py:function; each may have options.")
]
Layers = Annotated[int | None, given.layers_option(f"{LAYERS}, or those of --model")]
TrainedModel = Annotated[
    str | None,
    given.model_option(
        "A small transformer, such as tiny, or a Hugging Face config.json of one, instead of equal layers."
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict/--no-strict",
        help="Accept only what operations gave, or compare the numbers alone, which is faster.",
        rich_help_panel=given.MODEL,
    ),
]

Backends = Annotated[
    list[str] | None,
    typer.Option(
        "--backend",
        metavar="LIBRARY",
        help="What computes: numpy, jax or torch; of several, ranks take turns.",
        show_default="NumPy directly",
        rich_help_panel=given.MODEL,
    ),
]


def prove(
    strategy: Proven,
    world_size: given.WorldSize = WORLD_SIZE,
    model: TrainedModel = None,
    seq: given.SeqLen = None,
    layers: Layers = None,
    batch: given.Batch = BATCH,
    microbatch: given.Microbatch = None,
    option: given.Options = None,
    strict: Strict = True,
    backend: Backends = None,
    as_json: given.AsJson = False,
    debug: given.Debug = False,  # noqa: ARG001  (`failures` reads it)
) -> None:
    """Run strategies on real arrays, and compare what they train with what a single device trains.

    Exit code 1 if a strategy fails, or trains something else.
    """
    with user_prints_to_stderr(as_json), Progress() as progress, saying_what_is_kept(lambda: "nothing is proven"):
        common = given.strategy_options(option or (), microbatch)
        trained = given.trained(model, seq, LAYERS if layers is None and model is None else layers)
        sizes = {"world_size": world_size, "num_layers": _num_layers(trained), "global_batch_size": batch}
        named = {} if model is None else {"model": model}
        ranks: dict[str, Any] = {"world_size": world_size, "global_batch_size": batch, "strict": strict}
        ranks |= {"backend": backend} if backend else {}
        outcomes: list[dict[str, Any]] = []
        for chosen in given.choose_strategies(strategy, common):
            progress.say(f"proving {chosen.label}")
            outcome = _outcome(chosen, {**ranks, **trained, **common})
            outcomes.append({"strategy": chosen.label, **named, **sizes, **outcome})
            if not as_json and outcome["proven"]:
                print_lines([outcome["text"]])
    if as_json:
        print_json([{name: value for name, value in outcome.items() if name != "text"} for outcome in outcomes])
    for outcome in outcomes:
        if not outcome["proven"]:
            print_error(f"{outcome['strategy']} is not proven: {outcome['text']}")
    if not all(outcome["proven"] for outcome in outcomes):
        raise typer.Exit(FAILED)


def _num_layers(trained: dict[str, Any]) -> int:
    """Return the layers of what is trained."""
    if "workload" in trained:
        return len(find_model(trained["workload"]).units())
    return int(trained["num_layers"])


def _outcome(chosen: ChosenStrategy, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return whether a strategy is proven, the largest differences, and what to say."""
    try:
        proof = mt.prove(chosen, **parameters)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a strategy may raise anything, even SystemExit
        words = f"{type(error).__name__}: {text_of(error)}"
        return {**_differences(None), "error": words, "text": message_of(error)}
    text = f"{chosen.label}{str(proof).removeprefix(chosen.name)}"
    return {**_differences(proof), "error": None, "text": text}


def _differences(proof: mt.Proof | None) -> dict[str, Any]:
    """Return whether there is a proof, and what it has found."""
    return {
        "proven": proof is not None,
        "largest_difference": None if proof is None else proof.largest,
        "largest_relative_difference": None if proof is None else proof.largest_relative,
    }
