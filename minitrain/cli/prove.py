"""The command `minitrain prove`: strategies on real arrays, compared with training on a single device."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import minitrain as mt
from minitrain.cli import options
from minitrain.cli.failures import FAILED, print_error, saying_what_is_kept
from minitrain.cli.generation import Given
from minitrain.cli.output import Progress, print_json, print_lines, user_prints_to_stderr
from minitrain.errors import message_of, text_of
from minitrain.run.parameters import MODEL
from minitrain.run.strategy_loading import ChosenStrategy
from minitrain.workloads.models import find_model

WORLD_SIZE, BATCH = 8, 16  # those of `mt.prove`; a test compares them
LAYERS = 8  # where no model is given, as for `mt.prove`


def prove(
    strategy: list[str],
    *,
    given: Given,
    workload: str | None = None,
    num_layers: int | None = None,
    global_batch_size: int = BATCH,
    strict: Annotated[bool, typer.Option("--strict/--no-strict", rich_help_panel=MODEL)] = True,
    backend: Annotated[list[str] | None, typer.Option(rich_help_panel=MODEL)] = None,
) -> None:
    """Run strategies on real arrays, and compare what they train with what a single device trains.

    Exit code 1 if a strategy fails, or trains something else.

    Args:
        strategy (STRATEGY): Names, path.py or path.py:function; each may have options.
        given: The shared options.
        workload: A small transformer, such as tiny, or a Hugging Face config.json of one, instead of equal layers.
        num_layers: Layers of the model; 8, or those of --model, by default.
        global_batch_size: Samples of the step, over all ranks.
        strict: Accept only what operations gave, or compare the numbers alone, which is faster.
        backend (LIBRARY): What computes: numpy, jax or torch; of several, ranks take turns. NumPy directly by default.
    """
    given.workload, given.num_layers = workload, num_layers
    as_json = given.as_json
    with user_prints_to_stderr(as_json), Progress() as progress, saying_what_is_kept(lambda: "nothing is proven"):
        common = options.strategy_options(given)
        trained = options.trained(given, LAYERS)
        world_size = WORLD_SIZE if given.world_size is None else given.world_size
        sizes = {"world_size": world_size, "num_layers": _num_layers(trained), "global_batch_size": global_batch_size}
        named = {} if workload is None else {"model": workload}
        ranks: dict[str, Any] = {"world_size": world_size, "global_batch_size": global_batch_size, "strict": strict}
        ranks |= {"backend": backend} if backend else {}
        outcomes: list[dict[str, Any]] = []
        for chosen in options.choose_strategies(strategy, common):
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
