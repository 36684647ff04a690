"""The command `minitrain prove`: strategies on real arrays, compared with training on a single device."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import minitrain as mt
from minitrain.cli import options as given
from minitrain.cli.failures import FAILED, message_of, print_error, saying_what_is_kept
from minitrain.cli.output import Progress, print_json, print_lines, user_prints_to_stderr
from minitrain.plain_text import text_of
from minitrain.run.chosen_strategy import ChosenStrategy

WORLD_SIZE, LAYERS, BATCH = 8, 8, 16  # those of `mt.prove`; a test compares them

Proven = Annotated[
    list[str], typer.Argument(metavar="STRATEGY...", help="Names, path.py or path.py:function; each may have options.")
]


def prove(
    strategy: Proven,
    world_size: given.WorldSize = WORLD_SIZE,
    layers: given.Layers = LAYERS,
    batch: given.Batch = BATCH,
    microbatch: given.Microbatch = None,
    option: given.Options = None,
    strict: given.Strict = given.DEFAULT.strict,
    as_json: given.AsJson = False,
    debug: given.Debug = False,  # noqa: ARG001  (`failures` reads it)
) -> None:
    """Run strategies on real arrays, and compare what they train with what a single device trains.

    Exit code 1 if a strategy fails, or trains something else.
    """
    with user_prints_to_stderr(as_json), Progress() as progress, saying_what_is_kept(lambda: "nothing is proven"):
        common = given.strategy_options(option or (), microbatch)
        sizes = {"world_size": world_size, "num_layers": layers, "global_batch_size": batch}
        outcomes: list[dict[str, Any]] = []
        for chosen in given.choose_strategies(strategy, common):
            progress.say(f"proving {chosen.label}")
            outcome = _outcome(chosen, {**sizes, "strict": strict, **common})
            outcomes.append({"strategy": chosen.label, **sizes, **outcome})
            if not as_json and outcome["proven"]:
                print_lines([outcome["text"]])
    if as_json:
        print_json([{name: value for name, value in outcome.items() if name != "text"} for outcome in outcomes])
    for outcome in outcomes:
        if not outcome["proven"]:
            print_error(f"{outcome['strategy']} is not proven: {outcome['text']}")
    if not all(outcome["proven"] for outcome in outcomes):
        raise typer.Exit(FAILED)


def _outcome(chosen: ChosenStrategy, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return whether a strategy is proven, the largest difference, and what to say."""
    try:
        proof = mt.prove(chosen, **parameters)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a strategy may raise anything, even SystemExit
        words = f"{type(error).__name__}: {text_of(error)}"
        return {"proven": False, "largest_difference": None, "error": words, "text": message_of(error)}
    text = f"{chosen.label}{str(proof).removeprefix(chosen.name)}"
    return {"proven": True, "largest_difference": proof.largest, "error": None, "text": text}
