"""Wrong submissions of the exercise on ring attention fail, each for its own reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from minitrain.learn.exercise import load_exercise
from tests.learn.exercises.sources import changed
from tests.learn.exercises.verdicts import names_of, require_own_reason

RING = load_exercise("15").solution  # which has full marks

EXCHANGE = """                sent = model.launch(model.send(after, block, tag=("block", layer, step)))
                coming = model.launch(model.receive(before, tag=("block", layer, step)))
"""
AWAITED = """                await sent
                activations["coming"] = await coming
            here = block
"""
FORWARD = EXCHANGE + "            attended = model.attend(layer, x, block)\n"
STEPS_OF_FORWARD = "if model.has_attention(layer):\n                activations"
ADDED = """                await grad_sent
                of_block = await grad_coming + of_block
"""
SHARDS = "[place, 2 * cp - 1 - place], 2 * cp)"
SUM = "        grad_weights[layer] = await model.all_reduce(grad_weights[layer], layer)\n"

WRONG: dict[str, tuple[str, str, str]] = {
    "attention_as_any_layer": (
        changed(RING, (STEPS_OF_FORWARD, STEPS_OF_FORWARD.replace("model.has_attention(layer)", "False"))),
        "laws",
        "an attention needs the keys and values of the whole sequence",
    ),
    "one_block_is_never_seen": (
        changed(RING, ("        for step in range(cp):\n            if step < cp - 1:\n" + FORWARD,
                       "        for step in range(cp - 1):\n            if step < cp - 1:\n" + FORWARD)),
        "laws",
        r"project on rank 0: Attended\(.*\) lacks keys of shards",
    ),
    "the_own_block_is_sent_every_time": (
        changed(RING, (FORWARD, FORWARD.replace("send(after, block,", 'send(after, activations["own", layer],'))),
        "laws",
        r"sums over keys: shard .* is in both \(layer 1\); add what comes of each shard once",
    ),
    "blocks_go_the_other_way_than_they_are_awaited": (
        changed(RING, ('before, after = mesh.peer("cp", -1, wrap=True), mesh.peer("cp", +1, wrap=True)',
                       'before, after = mesh.peer("cp", +1, wrap=True), mesh.peer("cp", +1, wrap=True)')),
        "runs",
        "deadlock",
    ),
    "gradients_stay_where_they_are_made": (
        changed(RING, (ADDED, "                await grad_sent\n                await grad_coming\n")),
        "laws",
        r"KeysValuesGrad\(.*\) lacks queries of shards",
    ),
    "gradients_are_not_sent_home": (
        changed(RING, ("        own = await grad_coming\n", "        await grad_coming\n        own = grad_block\n"),
                ("            del of_block\n", "            grad_block = of_block\n            del of_block\n")),
        "laws",
        "all must be of the same shards of the sequence|was overwritten|lacks queries",
    ),
    "the_sequence_is_not_summed": (
        changed(RING, (SUM, SUM.replace(", layer)", ', layer, group=mesh.group("dp"))'))),
        "laws",
        "the gradient of layer 0 must cover the whole sequence, shards .* are missing",
    ),
    "replicas_are_forgotten": (
        changed(RING, (SUM, SUM.replace(", layer)", ', layer, group=mesh.group("cp"))'))),
        "laws",
        "must cover all 8 samples",
    ),
    "every_rank_takes_the_same_shard": (
        changed(RING, (SHARDS, "[0, 2 * cp - 1], 2 * cp)")),
        "laws",
        "sums over keys: shard .* is in both",
    ),
    "the_end_of_the_text_is_one_ranks_work": (
        changed(RING, (SHARDS, "[2 * place, 2 * place + 1], 2 * cp)")),
        "time",
        "the step takes longer than the budget",
    ),
    "blocks_come_before_queries_attend": (
        changed(RING, (FORWARD, EXCHANGE + AWAITED + "            attended = model.attend(layer, x, here)\n"),
                ("                await sent\n                block = activations[\"block\"] = await coming\n        "
                 "del block, activations[\"block\"]\n        return model.project",
                 "                block = activations[\"block\"] = activations.pop(\"coming\")\n        "
                 "del block, here, activations[\"block\"]\n        return model.project")),
        "time",
        "the step takes longer than the budget",
    ),
    "a_block_lies_in_no_store": (
        changed(RING, ('block = activations["block"] = await coming\n        del block, activations["block"]\n',
                       "block = await coming\n        del block\n")),
        "laws",
        "must be in one of the rank's stores",
    ),
    "ranks_take_other_samples": (
        changed(RING, ("share = model.global_batch_size // mesh.group(\"dp\").size",
                       "share = model.global_batch_size // model.world_size"),
                ('replica = mesh.coord("cp"), mesh.coord("dp")', 'replica = mesh.coord("cp"), model.rank')),
        "laws",
        "queries and keys must be of the same samples",
    ),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("name", names_of(WRONG))
def test_wrong_submissions_fail_for_their_own_reason(name: str, tmp_path: Path) -> None:
    require_own_reason(("15", *WRONG[name]), tmp_path, in_process=True)
