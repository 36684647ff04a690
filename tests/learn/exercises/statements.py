"""What the statements demand, each with wrong submissions that break just that: `python -m tests.learn.exercises.statements`.

It writes docs/statements.md; with `--sentences` it prints the whole table, sentence by sentence. The submissions are those of `mistakes` and of the corpora beside it, whose tests prove that
each fails its check for the reason that they give.
"""

# ruff: noqa: E501  (sentences of statements, as they stand there)

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from minitrain.learn import load_exercise
from tests.learn.exercises import (
    test_corpus,
    test_corpus_of_experts,
    test_corpus_of_parts,
    test_corpus_of_sequences,
)
from tests.learn.exercises.mistakes import MISTAKES

PAGE = Path(__file__).parents[3] / "docs" / "statements.md"

SENTENCES: Mapping[str, Mapping[str, str]] = {
    "00": {
        "Write the training step that every other exercise must reproduce, number by number.": "weights_are_handed_in_untrained a_layer_is_left_out the_way_back_begins_without_the_loss",
        "A layer's input is needed again on its way back, so keep it until the layer's backward is done.": "an_input_is_freed_before_its_backward",
        "L + 1 activations, L weights, L optimizer states; and later, when all gradients are.": "activations_pile_up",
    },
    "01": {
        "Cut the batch into microbatches, take each one forward and back": "the_batch_is_not_cut",
        "and add up the gradients": "gradients_are_not_added",
        "update once.": "an_update_after_each_microbatch",
        "The last microbatch is smaller where `microbatch_size` does not divide the batch.": "the_last_microbatch_reaches_beyond_the_batch",
        "so gradients are added, not averaged.": "gradients_are_averaged",
        "Activations shrink from B to `microbatch_size` samples": "new_gradients_pile_up",
    },
    "02": {
        "Every rank holds the whole model": "one_rank_hands_in",
        "and trains on its own part of the batch.": "every_rank_takes_the_whole_batch one_sample_missing",
        "Before the update, all ranks sum their gradients": "the_sum_comes_after_the_update reduced_twice",
        "all of them must call it in the same order.": "ranks_reduce_in_other_orders one_rank_stays_away",
        "about 2 W a rank and step, whatever n is.": "one_collective_too_many",
    },
    "03": {
        "Let each rank keep one n-th of the state": "every_rank_keeps_the_whole_state",
        "update that n-th of every weight": "the_whole_weight_is_updated",
        "gradients (whole, summed over microbatches)": "every_microbatch_is_reduced",
        "reduce_scatter: rank r gets shard r of the sum": "all_reduce_for_a_reduce_scatter",
        "the new weight, whole on every rank": "new_weights_stay_shards",
    },
    "04": {
        "Reduce each as soon as it is there": "gradients_stay_whole_until_the_step",
        "keep your shard and free the rest": "whole_gradients_are_kept_beside_shards",
        "add to shard r of layer k": "shards_are_not_added a_whole_weight_meets_a_shard_of_the_gradient",
        "Communication is W for the all_gather of the weights": "shards_are_handed_in",
    },
    "05": {
        "Nobody holds a whole model any more.": "ddp_for_zero3 weights_are_loaded_again_instead_of_gathered",
        "A layer's weight is gathered just before it is used, in both passes, and freed just after": "whole_weights_are_kept_between_the_passes a_shard_computes",
        "Each rank updates its shard, and hands it in.": "new_weights_are_gathered_at_the_end",
        "Communication is 3 W for each microbatch: two gathers and a reduce_scatter.": "all_reduce_where_a_shard_would_do",
    },
    "06": {
        "rank r holds layers r L/n to (r + 1) L/n - 1, a *stage*.": "every_stage_holds_all_layers",
        "The whole batch goes through stage after stage, and its gradient comes back.": "the_gradient_is_not_sent_back",
        "pass activations on and gradients back.": "nothing_is_sent_on the_wrong_neighbour_is_asked",
        "Only the first stage gets inputs": "a_stage_takes_inputs_instead_of_receiving",
        "only the last one computes the loss.": "a_stage_takes_a_loss_of_its_own",
    },
    "07": {
        "Cut the batch into m microbatches": "one_large_microbatch microbatches_share_a_key",
        "let them follow one another through the stages": "each_microbatch_goes_there_and_back the_last_backward_is_forgotten",
    },
    "08": {
        "after a *warmup* of p - 1 - r forwards on rank r": "all_ranks_warm_up_alike no_warmup",
        "alternate one forward and one backward": "backward_before_forward",
        "and end with a *cooldown* of backwards": "no_cooldown",
        "rank r keeps activations of at most p - r microbatches": "gpipe_again",
    },
    "09": {
        "gather its weight while this one computes": "the_gather_is_awaited_at_once",
        "reduce the gradient of the layer before beside the backward": "the_reduction_is_awaited_at_once",
        "`await work` gives its result.": "a_launched_operation_is_used_at_once a_launched_operation_is_forgotten",
        "Memory: one more whole weight, and one more whole gradient.": "all_weights_are_gathered_ahead",
    },
    "10": {
        "pipelines of pp stages, and world_size / pp replicas of them.": "neighbours_by_rank",
        "Each replica runs 1F1B": "replicas_run_gpipe",
        "on its own part of the batch": "replicas_take_the_same_samples",
        "every collective takes `group=`.": "all_ranks_sum",
        "at the end, the ranks of one stage sum their gradients.": "replicas_do_not_sum stages_sum_over_the_pipeline",
    },
    "11": {
        "Give each rank v smaller stages instead of one": "plain_1f1b",
        "The k-th forward of a rank is of chunk (k // p) mod v and of microbatch": "chunks_one_after_the_other",
        "backwards go through the chunks in reverse.": "backwards_begin_with_the_first_chunk",
        "Rank r warms up with 2 (p - r - 1) + (v - 1) p forwards.": "the_warmup_is_that_of_1f1b",
        "Messages may cross: give them tags": "messages_without_tags",
    },
    "12": {
        "devices of only 2.0 GiB.": "plain_data_parallelism zero3_with_all_samples_at_once",
        "passes if it is as fast as plain ZeRO-3": "too_many_microbatches",
    },
    "13": {
        "Divide it: each rank takes some heads of an attention": "whole_layers_on_every_rank the_same_part_on_every_rank",
        "what it makes is a *partial sum*": "no_sum_after_a_part no_sum_on_the_way_back",
        "All ranks of a replica take the same samples.": "every_part_takes_other_samples",
        '`mesh.group("tp")` are the ranks that hold the parts': "sum_over_replicas_instead_of_parts",
        "Gradients of weights are of one part, and are summed over replicas.": "gradients_summed_over_the_parts replicas_forgotten",
        "Each collective takes `group=`:": "gradients_summed_over_all_ranks",
        "it takes four all_reduces a microbatch": "the_input_gets_a_gradient",
    },
    "14": {
        "Cut it along the sequence": "tensor_parallelism_again",
        "`all_gather` puts the shards together where the next layer takes them.": "a_shard_goes_into_a_layer a_shard_of_the_gradient_goes_back",
        "input is gathered once more": "gathered_tensors_are_kept",
        "so that layer 0 gathers nothing;": "the_first_layer_gathers_its_input",
        "`loss` takes the model's output whole, so that the head's sums are all_reduced": "the_heads_sums_are_scattered",
        "and no gradient leaves layer 0.": "a_gradient_leaves_the_first_layer",
        "before the update the gradient of every layer but the first is all_reduced over the parts": "norms_have_seen_a_shard the_first_layer_is_summed_over_the_parts_too",
    },
    "15": {
        "the queries of each rank must see the keys and values of all.": "attention_as_any_layer one_block_is_never_seen",
        "Let these travel round a ring": "the_own_block_is_sent_every_time blocks_go_the_other_way_than_they_are_awaited",
        "while a rank's queries attend one block, the next one comes in.": "blocks_come_before_queries_attend",
        "Launch messages": "blocks_come_before_queries_attend",
        "take the place-th from the front and from the back": "the_end_of_the_text_is_one_ranks_work every_rank_takes_the_same_shard",
        "The gradient of a block follows it one step behind: each rank adds its own to what comes in, and sends it on.": "gradients_stay_where_they_are_made gradients_are_not_sent_home",
        "A weight's gradient covers the rank's samples *and* its tokens: one all_reduce over all ranks adds both.": "the_sequence_is_not_summed replicas_are_forgotten",
        "`x` and a block must lie in a store while they are used.": "a_block_lies_in_no_store",
        "each rank takes some tokens of every sample": "ranks_take_other_samples",
    },
    "16": {
        "of ep ranks, each holds 1 / ep of the experts": "experts:whole_layers_on_every_rank experts_not_divided the_same_experts_on_every_rank",
        "the token travels there and back.": "tokens_not_sent tokens_not_returned gradients_of_tokens_not_returned",
        "Every rank takes samples of its own.": "neighbours_take_the_same_samples",
        "Store the two pieces of a layer under keys of their own": "both_pieces_have_one_key",
        "hand in both": "experts_not_handed_in",
        "The gradient of the router piece covers your own samples.": "router_gradient_not_summed router_gradient_summed_over_the_parts_alone",
        "That of your experts covers those of your whole group.": "experts_gradient_reduced_over_other_experts_too",
    },
    "17": {
        "sum it while the others are computed.": "buckets_are_launched_after_the_backward",
        "put `bucket_size` layers into one": "a_bucket_for_each_layer",
        "Add up the gradients of all microbatches of the rank first, and sum over the ranks once a step.": "buckets_go_in_every_microbatch",
        "launch a bucket as soon as its layers are final": "buckets_are_launched_after_the_backward",
        "Update when the backward is done.": "each_bucket_is_waited_for",
        "the last bucket may be smaller.": "the_smaller_bucket_is_forgotten",
    },
    "18": {
        "Take it first (`I`) and send it": "weights_before_the_gradient_is_sent",
        "Warm up with p - 1 - r forwards on rank r": "zero_bubble_without_warmup",
        "Take each `W` r backwards after its `I`": "no_weight_is_put_off all_weights_are_put_off",
        "and the last r of them at the end.": "the_last_weights_are_forgotten",
        "A layer's input and its output's gradient are kept until its `W`.": "an_input_is_freed_with_the_first_half_of_its_backward",
        "the weight's, once for each `backward_input`.": "the_whole_backward_makes_the_weights_gradient",
    },
    "19": {
        "by messages, without `all_reduce`, `reduce_scatter` and `all_gather`.": "a_collective_sums",
        "Cut each layer's gradient into n shards": "whole_gradients_go_round",
        "each rank sends to the next one only, and gets from the one before": "messages_go_one_way_and_are_awaited_from_the_other",
        "and add your own to what comes in": "the_own_shard_is_not_added",
        "gather, n - 1 steps:": "the_ring_ends_a_step_early",
        "`shard.combine(shard)` puts shards of one sum together.": "sums_of_other_shards_are_added",
        "A rank must send and receive at the same time": "a_send_ends_before_the_receive_begins",
        "and hand in whole weights on every rank.": "new_weights_stay_where_their_shard_was_summed",
    },
    "20": {
        "choose for each layer what is quicker.": "always_the_ring always_the_tree",
        "sums go up to rank 0, whole, pair by pair": "all_ranks_send_to_the_root",
        "and the sum comes down the same way.": "the_sum_stays_at_the_root",
        "pairs without a second rank have nothing to do": "every_rank_has_a_partner",
        "No rank may call `all_reduce`.": "a_collective_chooses",
        "shards round the ring": "whole_gradients_go_round_the_ring",
    },
    "21": {
        "the last one is smaller where they do not divide.": "the_smaller_segment_is_forgotten",
        "On the way forward keep the input of each segment alone.": "all_inputs_are_kept the_first_input_of_a_segment_is_freed",
        "take its kept input forward again": "every_layer_begins_at_the_input",
        "the inputs of the last segment are kept from the way forward": "the_last_segment_is_computed_again",
        "the output of a segment is the input of the next one, which is not needed again.": "the_output_of_a_segment_is_computed_again",
        "Free each input after its layer's backward.": "inputs_stay_after_their_backward",
    },
    "22": {
        "Cut each state to your shard when it is loaded": "whole_states_move",
        "Keep it in the host's memory": "states_stay_on_the_device",
        "rank r of n updates shard r.": "every_rank_updates_the_first_shard",
        "and move it to the host.": "all_states_are_loaded_before_any_is_moved",
        "fetch the state while the backward computes": "a_state_is_fetched_after_the_backward what_is_fetched_is_no_copy_on_the_host",
        "reduce_scatter the gradient": "the_whole_gradient_is_summed",
        "gather the new weight, and hand it in whole.": "new_weights_are_not_gathered",
        "send the state back while the next layer's backward computes": "a_state_is_awaited_on_its_way_back",
        "so that no more than two are here": "a_state_stays_a_layer_longer",
        "delete the tensor on the device yourself": "what_was_offloaded_stays_too",
        "At the end every updated state lies in `model.host`.": "updated_states_are_lost",
    },
    "23": {
        "with weights of its own": "the_common_weight_trains",
        "on the rank's own samples and its own weight": "the_common_weight_trains a_rank_takes_one_stretch_of_the_batch",
        "and then take the mean of all ranks' weights": "the_outer_gradient_is_not_summed weights_are_averaged_by_an_all_reduce",
        "leave it there.": "the_declaration_is_gone",
        "in step h rank r takes share h n + r.": "a_rank_takes_one_stretch_of_the_batch a_local_step_is_missing",
        "the new common weight, of the sum over all ranks": "the_mean_is_taken_by_hand the_common_weight_takes_a_usual_update",
        "Between the steps nothing is sent.": "gradients_are_summed_in_local_steps",
        "hand it in, whole on every rank": "own_weights_are_handed_in",
    },
    "24": {
        "alternate a forward of one with a backward of the other": "forwards_do_not_alternate_with_backwards",
        "Of 2 p stages rank r holds stage r, its chunk 0, and stage 2 p - 1 - r, its chunk 1.": "stages_lie_round_the_ranks",
        "| F0 | 2 a |": "the_warmup_is_half_as_long",
        "The forwards of a chunk take the microbatches in their order": "the_second_chunk_begins_with_the_last_microbatch",
        "a layer's input and its output's gradient are kept until then": "an_input_is_freed_with_its_first_half",
        "and no longer.": "an_input_is_freed_with_the_weights_after_its_own a_gradient_is_freed_with_the_weights_after_its_own",
        "Rank 0 has inputs and loss": "the_last_rank_takes_the_loss",
        "stage p takes what stage p - 1 has made, without a message.": "the_turn_of_the_v_is_a_message",
        "| W | r + 1 |": "weights_that_were_put_off_are_forgotten",
        "| I1 I0 | (r + 1) // 2 |": "no_backward_is_split",
        "a pipeline must send while it computes.": "a_send_is_awaited_at_once",
        "No message may hold up computing.": "a_receive_begins_when_it_is_needed a_send_is_awaited_at_once",
        "Launch the receive that the next action needs before you compute this action": "a_receive_begins_when_it_is_needed",
        "launch a send as soon as its tensor is there, and await it one action later.": "a_launched_send_is_never_awaited",
        "so give them tags": "messages_of_both_directions_have_no_tags",
    },
}
"""By exercise, sentences of its statement, each with the submissions that break it."""

TOLD: Mapping[str, tuple[str, ...]] = {
    "00": ("One device holds the whole model and the whole batch.",),
    "01": ("Activations of the whole batch may not fit.",),
    "03": ("In DDP every rank keeps the same optimizer state and takes the same step.",),
    "04": ("ZeRO-1 keeps whole gradients until the step.",),
    "08": ("GPipe keeps activations of all m microbatches.",),
    "09": (
        "ZeRO-3 waits for every gather.",
        "What is launched counts as memory until then.",
    ),
    "12": (
        'A layer\'s backward counts as many FLOPs as its forward here, 2 H^2 a token each, as specified; that of real layers twice as many (`workload="dense"`).',
    ),
    "13": ("A layer may be too large for one device, or too slow.",),
    "14": (
        "With tensor parallelism, norms, residuals and all that is kept between layers is whole on every rank.",
        "Both are the operations that you know; on partial sums, `reduce_scatter` cuts the sequence.",
        "At the two ends everything is whole:",
        "Norms and biases are on every rank, and have now seen a shard of the sequence on each.",
    ),
    "15": (
        "The activations of a long text fit on no device.",
        "`model.forward` takes such a shard through all layers but attention, which `model.has_attention(layer)` tells.",
    ),
    "16": (
        "A mixture of experts has many MLPs in the place of one, and a router that sends each token to a few of them.",
        "Eight experts, two for each token, and one that is shared; at the last size OLMoE-1B-7B, sixteen times attention and 64 experts.",
    ),
    "17": (
        "Data parallelism waits for every sum.",
        "`work = model.launch(...)` submits it and returns at once; `await work` gives the result.",
    ),
    "18": ("A backward makes two gradients, and the stage before waits for one of them only: that of the activation.",),
    "19": (
        "In each step all ranks send at once.",
        "`work = model.launch(model.send(rank, shard))` submits the send and returns at once, `await model.receive(rank)` gives what comes in, and `await work` ends the send.",
    ),
    "20": ("`grad_bytes[layer]` is the size of a layer's gradient, the same on all ranks.",),
    "21": ("One device, the whole batch, and no room for the inputs of all layers.",),
    "22": ("An optimizer state is used once a step, by its layer's update.",),
    "23": ("Data parallelism sums gradients in each step, which is too much where ranks are far apart.",),
    "24": (
        "Rank r does this, with a = p - 1 - r and m microbatches; F0 is a forward of chunk 0, B1 a whole backward of chunk 1, I1 and W the two halves of a backward, as in exercise 18:",
    ),
}
"""By exercise, sentences with a word of demands that tell what is, and demand nothing."""

_DEMANDS = re.compile(
    r"\b(must|may|only|never|no|alone|without|whole|all|each|every|once|first|before|until|both)\b"
    r"|^(Cut|Take|Send|Keep|Free|Let|Give|Add|Update|Store|Divide|Train|Warm|Compute|Launch|Write|Begin|Reduce)\b",
    re.IGNORECASE,
)
"""A word by which a sentence may demand something, or a command at its beginning."""

_HEAD = """# What the statements demand

The mistakes that each exercise catches, by the check that fails. Each breaks a sentence of the exercise's statement. Orders of
passes are pictures, not demands: what is as quick and holds as little is as right. `python -m tests.learn.exercises.statements
--sentences` prints the sentences, each beside the mistakes that break it.
"""


def corpus() -> dict[str, tuple[str, str, str]]:
    """Return exercise, check and reason of all wrong submissions; of a name that two corpora have, under two names."""
    found = {name: (one.exercise, one.check, one.reason) for name, one in MISTAKES.items()}
    found |= {name: (number, check, reason) for name, (number, _, check, reason) in test_corpus.WRONG.items()}
    parts = {name: (number, check, reason) for name, (number, _, check, reason) in test_corpus_of_parts.WRONG.items()}
    ring = {name: ("15", check, reason) for name, (_, check, reason) in test_corpus_of_sequences.WRONG.items()}
    experts = {name: ("16", check, reason) for name, (_, check, reason) in test_corpus_of_experts.WRONG.items()}
    for prefix, wrong in (("parts", parts), ("ring", ring), ("experts", experts)):
        found |= {f"{prefix}:{name}" if name in found else name: facts for name, facts in wrong.items()}
    return found


def plain(text: str) -> str:
    """Return text with every run of blanks as one, as a sentence may stand on several lines."""
    return " ".join(text.split())


def may_demand(statement: str) -> list[str]:
    """Return the sentences of a statement that may demand something, without pictures, tables and closed forms."""
    prose = re.sub(r"```[\s\S]*?```|^[#|].*$", " ", statement.partition("**Closed form.**")[0], flags=re.MULTILINE)
    sentences = re.split(r"(?<=[.?:])\s+(?=[A-Z*`0-9])", plain(prose))
    return [sentence for sentence in sentences if _DEMANDS.search(sentence)]


def is_broken(sentence: str, number: str) -> bool:
    """Return whether a submission breaks a sentence, or a part of it."""
    return any(part in sentence or sentence in part for part in SENTENCES[number])


def table() -> str:
    """Return all sentences with the submissions that break them, as Markdown."""
    known = corpus()
    lines = ["| exercise | sentence | wrong submission | check that fails |", "|---|---|---|---|"]
    for number, sentences in SENTENCES.items():
        for sentence, names in sentences.items():
            said = sentence.strip("| ").replace("|", "\\|")
            for name in names.split():
                check = known[name][1].replace("|", " or ")
                lines.append(f"| {number} | {said} | `{name.partition(':')[2] or name}` | {check} |")
    return "\n".join(lines)


def page() -> str:
    """Return the page."""
    known = corpus()
    lines = [_HEAD]
    for number, sentences in SENTENCES.items():
        by_check: dict[str, list[str]] = {}
        for name in dict.fromkeys(" ".join(sentences.values()).split()):
            by_check.setdefault(known[name][1].replace("|", " or "), []).append(f"`{name.partition(':')[2] or name}`")
        lines += [f"## {load_exercise(number).name}", ""]
        lines += [f"- {check}: {', '.join(names)}" for check, names in by_check.items()]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    if "--sentences" in sys.argv[1:]:
        print(table())
    else:
        PAGE.write_text(page(), encoding="utf-8")
