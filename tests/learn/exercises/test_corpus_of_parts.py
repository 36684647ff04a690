"""Wrong submissions of the exercises on tensor and sequence parallelism fail, each for its own reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from minitrain.learn.exercise import load_exercise
from tests.learn.exercises.sources import changed
from tests.learn.exercises.verdicts import Wrong, names_of, require_own_reason

TENSOR, SEQUENCE = (load_exercise(number).solution for number in ("13", "14"))  # which have full marks

PASS = "model.forward(layer, activations[layer], weights[layer])"
SUM_OF_PASS = f"""await model.all_reduce(
                {PASS}, layer + 1, group=parts
            )"""
NEW = 'grad_activations.pop("new")'
SUM_OF_NEW = f"await model.all_reduce({NEW}, layer, group=parts)"
SUM_OF_REPLICAS = "        grad_weights[layer] = await model.all_reduce(grad_weights[layer], layer, group=replicas)\n"
SUM_OF_NORMS = """        if layer > 0:
            grad_weights[layer] = await model.all_reduce(grad_weights[layer], layer, group=parts)
"""
SHARE = "share = model.global_batch_size // replicas.size\n    first = replicas.index * share"
SHARE_OF_RANK = "share = model.global_batch_size // model.world_size\n    first = model.rank * share"
INTO_A_LAYER = "            x = await gather(activations, layer, layer)\n            activations[layer + 1]"
HEAD = """        if border == len(layers):
            return await model.all_reduce(partial, border, group=parts)
"""
FREE_WHOLE = '            activations.pop("whole", None)\n'
KEEP_WHOLE = '            activations["kept", layer] = activations.pop("whole", None) or activations[layer]\n'
FREE_KEPT = '        for layer in layers:\n            del activations["kept", layer]\n'
LOSS = "        grad_activations[layers[-1]] = model.loss"

WRONG: dict[str, Wrong] = {
    "no_sum_after_a_part": (
        "13",
        changed(TENSOR, (SUM_OF_PASS, PASS)),
        "laws",
        r"inp must be a complete sum, got PartialActivation\(layer 1, .*\); part 1 is missing",
    ),
    "no_sum_on_the_way_back": (
        "13",
        changed(TENSOR, (SUM_OF_NEW, NEW)),
        "laws",
        r"grad must be a complete sum, got PartialActivationGrad\(layer 4, ",
    ),
    "sum_over_replicas_instead_of_parts": (
        "13",
        changed(TENSOR, (SUM_OF_PASS, SUM_OF_PASS.replace("group=parts", "group=replicas"))),
        "laws",
        "must be a complete sum",
    ),
    "gradients_summed_over_the_parts": (
        "13",
        changed(TENSOR, (SUM_OF_REPLICAS, SUM_OF_REPLICAS.replace("group=replicas", "group=parts"))),
        "laws",
        "must bring gradients of one part, or of parts that have each seen other shards of the sequence",
    ),
    "gradients_summed_over_all_ranks": (
        "13",
        changed(TENSOR, (SUM_OF_REPLICAS, SUM_OF_REPLICAS.replace(", group=replicas", ""))),
        "laws",
        "must bring gradients of one part",
    ),
    "every_part_takes_other_samples": (
        "13",
        changed(TENSOR, (SHARE, SHARE_OF_RANK)),
        "laws",
        "must bring the same kind of tensor with the same layer, samples, num_parts",
    ),
    "whole_layers_on_every_rank": (
        "13",
        changed(
            TENSOR, ("part=parts.index, num_parts=tp", "part=0, num_parts=1"), (SUM_OF_PASS, PASS), (SUM_OF_NEW, NEW)
        ),
        "memory",
        "a rank holds more than the budget",
    ),
    "the_same_part_on_every_rank": (
        "13",
        changed(TENSOR, ("part=parts.index", "part=0")),
        "laws",
        "must bring different parts of one sum, so that each is added once",
    ),
    "replicas_forgotten": ("13", changed(TENSOR, (SUM_OF_REPLICAS, "")), "laws", "must cover all 8 samples"),
    "the_input_gets_a_gradient": (
        "13",
        changed(
            TENSOR,
            ("            if layer > 0:\n                grad", "            if True:\n                grad"),
            ('        del grad_activations["new"]\n', "        del grad_activations[-1]\n"),
        ),
        "time",
        "takes longer than the budget",
    ),
    "norms_have_seen_a_shard": (
        "14",
        changed(SEQUENCE, (SUM_OF_NORMS, "")),
        "laws",
        r"\(norms, biases\) must cover the whole sequence, shards 1 of 2 are missing",
    ),
    "a_shard_goes_into_a_layer": (
        "14",
        changed(SEQUENCE, (INTO_A_LAYER, "            x = layer\n            activations[layer + 1]")),
        "laws",
        r"inp must hold the whole sequence, got ActivationShard\(layer 1, .* shards \{0\} of 2\); all_gather it",
    ),
    "a_shard_of_the_gradient_goes_back": (
        "14",
        changed(SEQUENCE, ("g = await gather(grad_activations, layer, layer + 1)", "g = layer")),
        "laws",
        "grad must hold the whole sequence, got ActivationGradShard",
    ),
    "tensor_parallelism_again": (
        "14",
        changed(TENSOR, ("def tensor_parallel", "def sequence_parallel")),
        "memory",
        "activations",
    ),
    "the_heads_sums_are_scattered": (
        "14",
        changed(SEQUENCE, (HEAD, "")),
        "laws",
        "whole",
    ),
    "the_first_layer_is_summed_over_the_parts_too": (
        "14",
        changed(SEQUENCE, (SUM_OF_NORMS, SUM_OF_NORMS.replace("if layer > 0", "if True"))),
        "laws",
        "must bring gradients of one part",
    ),
    "the_first_layer_gathers_its_input": (
        "14",
        changed(SEQUENCE, ("if border in (0, len(layers)):", "if border == len(layers):")),
        "laws",
        r"all_gather needs values that combine .*, got Activation \(submission.py:\d+\)",
    ),
    "a_gradient_leaves_the_first_layer": (
        "14",
        load_exercise("14").wrong[0][1],
        "communication",
        "the ranks communicate more often than the budget",
    ),
    "gathered_tensors_are_kept": (
        "14",
        changed(SEQUENCE, (FREE_WHOLE, KEEP_WHOLE), (LOSS, FREE_KEPT + LOSS)),
        "memory",
        "activations",
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", names_of(WRONG))
def test_wrong_submissions_fail_for_their_own_reason(name: str, tmp_path: Path) -> None:
    require_own_reason(WRONG[name], tmp_path, in_process=True)
