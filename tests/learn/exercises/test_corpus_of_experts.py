"""Wrong submissions of the exercise on experts fail, each for its own reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from minitrain.learn.exercise import load_exercise
from tests.learn.exercises.sources import changed
from tests.learn.exercises.verdicts import names_of, require_own_reason

EXPERTS = load_exercise("16").solution  # which has full marks

SEND = "                activations[tokens] = await model.all_to_all(activations[tokens], layer, group=parts)\n"
BACK = "                activations[made] = await model.all_to_all(activations[made], layer, group=parts)\n"
GRADS_BACK = (
    "                grad_activations[tokens] = await model.all_to_all(grad_activations[tokens], layer, group=parts)\n"
)
REDUCE = "        grad_weights[key] = await model.all_reduce(grad_weights[key], layer, group=group)\n"
GROUP = "layer, group = (key[1], replicas) if isinstance(key, tuple) else (key, everyone)"
HANDED_IN = "        model.set_final_weight(layer, weights[key])\n"
FIRST = "    first = model.rank * share\n"

WRONG: dict[str, tuple[str, str, str]] = {
    "tokens_not_sent": (
        changed(EXPERTS, (SEND, "")),
        "laws",
        r"inp must be the copies for the weight's part of the experts, got RoutedTokens\(layer 2, .*; all_to_all them",
    ),
    "tokens_not_returned": (
        changed(EXPERTS, (BACK, "")),
        "laws",
        r"outputs must come from all parts of the experts, got ExpertOutputs\(.*; part 1 is missing",
    ),
    "gradients_of_tokens_not_returned": (
        changed(EXPERTS, (GRADS_BACK, "")),
        "laws",
        r"tokens_grad must come from all parts of the experts, got RoutedTokensGrad\(layer 4",
    ),
    "router_gradient_not_summed": (
        changed(EXPERTS, (REDUCE, "        if isinstance(key, tuple):\n    " + REDUCE)),
        "laws",
        "must cover all [48] samples",
    ),
    "router_gradient_summed_over_the_parts_alone": (
        changed(EXPERTS, (GROUP, GROUP.replace("everyone", "parts"))),
        "laws",
        "must cover all 8 samples",
    ),
    "experts_gradient_reduced_over_other_experts_too": (
        changed(EXPERTS, (GROUP, GROUP.replace("replicas", "everyone"))),
        "laws",
        "must bring gradients of one part of the experts: those of different parts have nothing to add",
    ),
    "neighbours_take_the_same_samples": (
        changed(EXPERTS, (FIRST, "    first = replicas.index * share\n")),
        "laws",
        "samples",
    ),
    "both_pieces_have_one_key": (
        changed(
            EXPERTS,
            ('weights["experts", layer], opt_states["experts", layer] = ', "weights[layer], opt_states[layer] = "),
        ),
        "laws",
        r"route on rank 0: weight must be a RouterWeight, got ExpertWeight",
    ),
    "experts_not_divided": (
        changed(EXPERTS, ("part=parts.index, num_parts=ep", "part=0, num_parts=1")),
        "laws",
        r"inp must be the copies for the weight's part .* of 2\) for ExpertWeight\(.* parts \{0\} of 1\)",
    ),
    "the_same_experts_on_every_rank": (
        changed(EXPERTS, ("part=parts.index", "part=0")),
        "laws",
        r"parts \{1\} of 2\) for ExpertWeight\(.* parts \{0\} of 2\)",
    ),
    "experts_not_handed_in": (
        changed(EXPERTS, (HANDED_IN, "        if not isinstance(key, tuple):\n    " + HANDED_IN)),
        "laws",
        "its experts are on no rank",
    ),
    "whole_layers_on_every_rank": (
        EXPERTS.replace("if model.has_experts(layer):", "if False:"),
        "memory",
        "a rank holds more than the budget",
    ),
    "all_samples_at_once": (
        changed(EXPERTS, (FIRST, FIRST + "    microbatch_size = share\n")),
        "memory",
        "it runs too many samples forward before their backward",
    ),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("name", names_of(WRONG))
def test_wrong_submissions_fail_for_their_own_reason(name: str, tmp_path: Path) -> None:
    require_own_reason(("16", *WRONG[name]), tmp_path, in_process=True)
