"""Typical mistakes of learners: what they wrote, and what they must be told.

The sources are right submissions with a few words changed.
"""

# ruff: noqa: E501  (a mistake a line)

from __future__ import annotations

from dataclasses import dataclass

from minitrain.learn.exercise import load_exercise
from tests.learn.exercises.sources import DDP, SUBMISSIONS, changed

REDUCE = "        grads[k] = await model.all_reduce(grads[k], k)\n"
ONE = changed(DDP, ("def ddp", "def one_device"), (REDUCE, ""))
ACCUMULATE, ZERO1, ZERO2, ZERO3, PIPELINE, PREFETCH, MESH, INTERLEAVED, BUCKETS, ZERO_BUBBLE = (
    (SUBMISSIONS / f"{name}.py").read_text()
    for name in (
        "accumulate_backwards", "zero1_at_once", "zero2", "zero3_kept_apart", "pipeline", "prefetch",
        "two_dimensions", "interleaved", "buckets", "zero_bubble",
    )
)  # fmt: skip
CHALLENGE = changed(ZERO3, ("def zero3(model, microbatch_size=None)", "def challenge(model, microbatch_size=4)"))

ADDED = "            grads[layer] = grads[layer] + new if layer in grads else new\n"
UPDATED = """    for layer in range(model.num_layers):
        weights[layer], opt_states[layer] = model.update(layer, grads.pop(layer), weights[layer], opt_states[layer])
        model.set_final_weight(layer, weights[layer])
"""
GATHERED = "                weights[k] = await model.all_gather(weights[k], k)\n"
SCATTERED = "await model.reduce_scatter(grads.pop(k), k)"
KEPT = "            grads[k] = grads[k] + new if k in grads else new\n"
AT_ONCE = '            shard = await model.reduce_scatter(grad_weights.pop("new"), k)\n'
SUM_OF_SHARDS = "            grad_weights[k] = grad_weights[k] + shard if k in grad_weights else shard\n"
NEW_WEIGHT = "        weights[k] = await model.all_gather(new, k)\n"
BACK_OF_ZERO3 = '            grads["part"] = await model.reduce_scatter(grads.pop("whole"), k)\n'
WARMUP = "    warmup = min(last - rank, m) if one_by_one else m\n"
SEND_ON = "            await model.send(rank + 1, activations.pop((layers[-1] + 1, i)))\n"
SEND_BACK = '            await model.send(rank - 1, grad_activations["out"])\n'
RECEIVED = "            activations[layers[0], i] = await model.receive(rank - 1)\n"
COOLDOWN = "    for i in range(m - warmup, m):\n        await backward(i)\n"
LATER = "            if before is not None:\n                await keep_shard(*before)\n"
LAUNCHED = '            before = k, model.launch(model.reduce_scatter(grad_weights.pop("new"), k))\n'
OF_REPLICAS = '        grad_weights[k] = await model.all_reduce(grad_weights[k], k, group=mesh.group("dp"))\n'
ORDER_OF_CHUNKS = "(k // p) % v * p + rank, k % p + p * (k // (p * v))"
WARMUP_OF_CHUNKS = "    warmup = min(2 * (p - rank - 1) + (v - 1) * p, total)\n"


FULL = "if len(bucket) == bucket_size or layer == 0:"
LAUNCH = "launched.append(model.launch(model.all_reduce(bucket, layer)))"
LAST_MICROBATCH = "if samples == batches[-1]:"
PUT_OFF = "warmup, delay = min(num_stages - 1 - stage, len(batches)), min(stage, len(batches))"
LAST_WEIGHTS = "    for i in range(len(batches) - delay, len(batches)):\n        backward_weight(i)\n"
SEND_GRADIENT = "        if not first:\n            await model.send(stage - 1, grad_activations[layers[0] - 1, i])\n"
WEIGHTS_LATER = "        if i >= delay:\n            backward_weight(i - delay)\n"

TENSOR, SEQUENCE, ATTENTION, EXPERTS = (load_exercise(number).solution for number in ("13", "14", "15", "16"))
RING, TREE, RECOMPUTE, OFFLOAD, LOCAL, DUALPIPE = (
    load_exercise(number).solution for number in ("19", "20", "21", "22", "23", "24")
)
EXCHANGE = """    sent = model.launch(model.send((model.rank + 1) % model.world_size, shard))
    came = await model.receive((model.rank - 1) % model.world_size)
    await sent
"""
ALTERNATELY = (
    EXCHANGE.replace("sent = model.launch(", "await ").replace("shard))", "shard)").replace("    await sent\n", "")
)
RING_SUM = "        grads[layer, mine] = grads[layer, mine] + came\n"
RING_CALL = "        await ring_all_reduce(model, grad_weights, layer)\n"
FREED = (
    "            if layer != of_segment[0] and of_segment != segments[-1]:\n                del activations[layer]\n"
)
AGAIN = "        if of_segment != segments[-1]:\n            for layer in of_segment[:-1]:\n"
COMING = "coming = model.launch(model.fetch(model.host[layer]))"
AT_LOAD = "        model.host[layer] = await model.offload(opt_states[layer])\n        del opt_states[layer]\n"
LEAVING = """        while leaving:
            before, work = leaving.pop()
            model.host[before] = await work
            del opt_states[before]
        leaving.append((layer, model.launch(model.offload(opt_states[layer]))))
"""
OUTER_SUM = "        grad_weights[layer] = await model.all_reduce(grad_weights[layer], layer)\n"
OWN_UPDATE = '        for layer in layers:\n            weights["local", layer], opt_states'
NEXT_RECEIVE = "        coming = start_receive(*order[place + 1]) if place + 1 < len(order) else None\n"
ARRIVED = '        if coming is not None and kind == "F":\n'
CHOICE = "if over_tree < round_ring:"


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake of a learner.

    Args:
        exercise: its number.
        source: what was handed in.
        check: that fails.
        reason: a pattern of what the check says.
        lead: a pattern of the hint, or of a line that says where it comes from.
        hidden: whether it takes a hidden size to find it.
    """

    exercise: str
    source: str
    check: str
    reason: str
    lead: str
    hidden: bool = False


MISTAKES: dict[str, Mistake] = {
    # 00
    "an_input_is_freed_before_its_backward": Mistake(
        "00", changed(ONE, ("forward(k, activations[k], weights[k])\n",
                            "forward(k, activations[k], weights[k])\n        del activations[k]\n"),
                      ("weights[k])\n        del activations[k]\n        weights", "weights[k])\n        weights")),
        "runs", r"KeyError: 1; `activations\[k\]` finds no such key: activations has no keys; it was taken out at mine\.py:\d+$", "nothing is stored under this key"),
    "the_way_back_begins_without_the_loss": Mistake(
        "00", changed(ONE, ("model.loss(activations.pop(model.num_layers))", "activations.pop(model.num_layers)")),
        "laws", "grad must be a ActivationGrad, got Activation", "what each of them takes and returns"),
    "weights_are_handed_in_untrained": Mistake(
        "00", changed(ONE, ("        weights[k], opt_states[k] = model.update(k, grads.pop(k), weights[k], "
                            "opt_states[k])\n", "")),
        "laws", "exactly one update", "hand in what `update` returned"),
    "a_layer_is_left_out": Mistake(
        "00", changed(ONE, ("for k in reversed(layers)", "for k in reversed(layers[1:])")), "laws",
        "layer 0 has no final weight", r"set_final_weight\(layer, weights\[layer\]\)"),
    "activations_pile_up": Mistake(
        "00", changed(ONE, ("        del activations[k]\n", ""), ("grads.pop(k)", "grads[k]")),
        "memory", "holds more", "not needed any more"),
    "the_optimizer_is_torchs": Mistake(
        "00", changed(ONE, ("model.loss(activations.pop(model.num_layers))", "model.loss(activations.pop(model.num_layers)).backward()")),
        "runs", "no attribute 'backward'", "none of torch's methods"),
    "gradients_begin_with_zero": Mistake(
        "00", changed(ONE, ("    for k in reversed(layers):\n", "    for k in reversed(layers):\n        grads[k] = 0\n")),
        "laws", "only tensors can be held", "begins with the first of them"),
    "stores_are_lists": Mistake(
        "00", changed(ONE, ("activations[0] = model.get", "activations.append(model.get"), ("model.world_size))", "model.world_size)))")),
        "runs", "no attribute 'append'", "the stores are dicts"),
    # 01
    "the_batch_is_not_cut": Mistake(
        "01", changed(ACCUMULATE, ("cut(model.global_batch_size, microbatch_size)",
                                   "cut(model.global_batch_size, model.global_batch_size)")),
        "memory", "too many samples forward", "held by rank 0 at .* after forward of layer 2, samples 0-7"),
    "gradients_are_not_added": Mistake(
        "01", changed(ACCUMULATE, (ADDED, "            grads[layer] = new\n")),
        "laws", "must cover all 8 samples", "summed over all microbatches"),
    "an_update_after_each_microbatch": Mistake(
        "01", changed(ACCUMULATE, (UPDATED, UPDATED.replace("\n    ", "\n        ").replace(
            "    for layer", "        for layer", 1))),
        "laws", "must cover all 8 samples", "behind the loop over microbatches"),
    "the_last_microbatch_reaches_beyond_the_batch": Mistake(
        "01", changed(ACCUMULATE, ("range(max(batch - size, 0), batch)", "range(batch - size, batch)")),
        "laws", "kept back", "does not divide the rank's samples", hidden=True),
    "gradients_are_averaged": Mistake(
        "01", changed(ACCUMULATE, (ADDED, ADDED + "            grads[layer] = grads[layer] / microbatch_size\n")),
        "laws", "cannot be scaled", "leave the factor out"),
    "new_gradients_pile_up": Mistake(
        "01", changed(ACCUMULATE, ("    for samples in cut", "    kept = []\n    for samples in cut"),
                      ("            del new\n", "            kept.append(new)\n")),
        "memory", "holds more", "free the new gradient once it is added"),
    # 02
    "the_sum_comes_after_the_update": Mistake(
        "02", changed(DDP, (REDUCE, ""), ("        model.set_final_weight",
                                           "        await model.all_reduce(weights[k], k)\n"
                                           "        model.set_final_weight")),
        "laws", "must cover all 8 samples", "who has the others'"),
    "every_rank_takes_the_whole_batch": Mistake(
        "02", changed(DDP, ("range(model.rank, model.global_batch_size, model.world_size)",
                            "range(model.global_batch_size)")),
        "laws", "more than once|counted twice", "each sample belongs to one rank"),
    "ranks_reduce_in_other_orders": Mistake(
        "02", changed(DDP, (REDUCE, ""), ("        weights[k], opt_states[k] = model.update", "    for k in (layers if "
            "model.rank else reversed(layers)):\n" + REDUCE + "        weights[k], opt_states[k] = model.update")),
        "laws", "must bring the same kind of tensor with the same layer", "in one order"),
    "one_collective_too_many": Mistake(
        "02", changed(DDP, ("        weights[k], opt_states[k] = model.update",
                            "        if k == 1:\n            act_grads[9] = await model.broadcast(weights[k], 0)\n"
                            "            del act_grads[9]\n"
                            "        weights[k], opt_states[k] = model.update")),
        "communication", "more than the budget", r"broadcast: 2 over all ranks, the reference does none, at .*:17"),
    # 03
    "every_rank_keeps_the_whole_state": Mistake(
        "03", changed(ZERO1, ("state.shard(me, n)", "state"),
                      ("shard = await", "states[k] = states[k].shard(me, n)\n                shard = await")),
        "memory", "holds more", "optimizer states of layers 0-2"),
    "all_reduce_for_a_reduce_scatter": Mistake(
        "03", changed(ZERO1, (SCATTERED, "(await model.all_reduce(grads.pop(k), k)).shard(me, n)")),
        "communication", "more than the budget", "one reduce_scatter"),
    "every_microbatch_is_reduced": Mistake(
        "03", changed(ZERO1, (KEPT, KEPT.replace("            grads", "            new = await "
                      "model.reduce_scatter(new, k)\n            grads", 1)), (SCATTERED, "grads.pop(k)")),
        "communication", "more than the budget", "sum microbatches before"),
    "the_whole_weight_is_updated": Mistake(
        "03", changed(ZERO1, ("weights[k].shard(me, n), states[k]", "weights[k], states[k]")),
        "laws", "shards", "of the same shard"),
    "gradients_are_gathered": Mistake(
        "03", changed(ZERO1, (SCATTERED, "await model.all_gather(grads.pop(k), k)")),
        "laws", "and differ in samples; rank 0", "all_gather puts shards .* adds nothing"),
    "the_number_of_shards_comes_first": Mistake(
        "03", changed(ZERO1, ("state.shard(me, n)", "state.shard(n, me)")), "laws", "shard must lie in", "first the index, which counts from 0"),
    "new_weights_stay_shards": Mistake(
        "03", changed(ZERO1, (GATHERED, "")), "laws", "final weight must lie on the ranks as the statement asks", "after the update .*all_gather"),
    # 04
    "gradients_stay_whole_until_the_step": Mistake(
        "04", changed(ZERO1, ("def zero1", "def zero2")), "memory", "holds more", "whole gradient"),
    "whole_gradients_are_kept_beside_shards": Mistake(
        "04", changed(ZERO2, (AT_ONCE, AT_ONCE.replace('grad_weights.pop("new")', 'grad_weights["new"]').replace(
            "            shard", '            grad_weights["all", k] = grad_weights["new"]\n            shard', 1))),
        "memory", "holds more", "whole gradient must be gone"),
    "shards_are_not_added": Mistake(
        "04", changed(ZERO2, (SUM_OF_SHARDS, "            grad_weights[k] = shard\n")),
        "laws", "must cover all 16 samples", "summed over all microbatches"),
    "shards_are_reduced_again": Mistake(
        "04", changed(ZERO2, ("    for k in layers:\n        new, opt", "    for k in layers:\n"
            "        grad_weights[k] = await model.reduce_scatter(grad_weights[k], k)\n        new, opt")),
        "laws", "and differ in shards; rank 0", "sums the same shards of all ranks, and once"),
    "a_whole_gradient_is_added_to_a_shard": Mistake(
        "04", changed(ZERO2, (AT_ONCE, "            shard = grad_weights.pop(\"new\")\n"), (SUM_OF_SHARDS, SUM_OF_SHARDS +
            "            grad_weights[k] = await model.reduce_scatter(grad_weights[k], k)\n")),
        "laws", "num_shards must be equal", "a whole gradient meets a shard"),
    "shards_are_handed_in": Mistake(
        "04", changed(ZERO2, (NEW_WEIGHT, "        weights[k] = new\n")), "laws", "final weight must lie", "after the update .*all_gather"),
    "a_whole_weight_meets_a_shard_of_the_gradient": Mistake(
        "04", changed(ZERO2, ("weights[k].shard(rank, n), opt_states[k]", "weights[k], opt_states[k]")),
        "laws", "of exactly the weight's shards", "of the same shard"),
    # 05
    "a_shard_computes": Mistake(
        "05", changed(ZERO3, ('model.forward(k, acts[k], await borrow(k))\n            del weights["whole", k]\n',
                              'model.forward(k, acts[k], weights["shard", k])\n')),
        "laws", "must be complete", "a shard cannot compute"),
    "whole_weights_are_kept_between_the_passes": Mistake(
        "05", changed(ZERO3, ('            del weights["whole", k]\n', ""),
                      ('        weights["whole", k] = await', '        if ("whole", k) not in weights:\n'
                       '            weights["whole", k] = await')),
        "memory", "holds more", "at most one layer's weight"),
    "weights_are_loaded_again_instead_of_gathered": Mistake(
        "05", changed(ZERO3, ('weights["whole", k] = await model.all_gather(weights["shard", k], k)',
                              'weights["whole", k], _ = model.load_weights(k)')),
        "laws", "were loaded before", "comes back by `await model.all_gather"),
    "what_was_gathered_takes_the_shards_place": Mistake(
        "05", changed(ZERO3, ('weights["whole", k]', 'weights["shard", k]'), ('            del weights["shard", k]\n', ""),
                      ('del weights["shard", k], acts[k]', "del acts[k]")),
        "laws", "all_gather: shard 0 of 2 of layer 2 comes twice", "whole already"),
    "all_reduce_where_a_shard_would_do": Mistake(
        "05", changed(ZERO3, (BACK_OF_ZERO3, '            grads["part"] = (await model.all_reduce(grads.pop("whole"), '
                              'k)).shard(me, n)\n')),
        "communication", "more than the budget", "all_reduce of layers 0-2: 2 over all ranks, the reference does none"),
    "new_weights_are_gathered_at_the_end": Mistake(
        "05", changed(ZERO3, ('        model.set_final_weight(k, weights["shard", k])\n',
                              '        weights["whole", k] = await model.all_gather(weights["shard", k], k)\n'
                              '        model.set_final_weight(k, weights["whole", k])\n'
                              '        del weights["whole", k]\n')),
        "communication", "more than the budget",
        r"all_gather of layers 0-2: 6 over all ranks, the reference does 4, at mine\.py:\d+, mine\.py:\d+"),
    # 06
    "every_stage_holds_all_layers": Mistake(
        "06", changed(PIPELINE, ("    for k in layers:\n        weights[k], opt_states[k] = model.load_weights(k)\n",
                                 "    for k in range(model.num_layers):\n        weights[k], opt_states[k] = "
                                 "model.load_weights(k)\n")),
        "memory", "holds more", "weights of layers 0-3"),
    "a_stage_takes_inputs_instead_of_receiving": Mistake(
        "06", changed(PIPELINE, ("        if rank == 0:\n", "        if True:\n")), "runs", r"KeyError: \(2, 0\); `activations\[k, i\]` finds no such key: activations has \(0, 0\)$", "nothing is stored under this key"),
    "a_stage_takes_a_loss_of_its_own": Mistake(
        "06", changed(PIPELINE, ("        if rank == last:\n            grad", "        if True:\n            grad"),
                      ("        if rank < last:\n            await model.send(rank + 1, activations.pop(",
                       "        if rank < last:\n            await model.send(rank + 1, activations.get("),
                      ("activations.get((layers[-1] + 1, i)))", "activations[layers[-1] + 1, i])")),
        "laws", "inp must be of layer 4, the model's output", "the last layer"),
    "nothing_is_sent_on": Mistake(
        "06", changed(PIPELINE, (SEND_ON, "            activations.pop((layers[-1] + 1, i))\n")),
        "runs", r"deadlock: .* Every receive needs a send; ",
        "rank 0 does receive from rank 1 .*, which waits; rank 1 does receive from rank 0 .*, which waits"),
    "the_gradient_is_not_sent_back": Mistake(
        "06", changed(PIPELINE, (SEND_BACK, "            pass\n")), "runs", "deadlock",
        "rank 1 has sent 0 of the 1 messages that this takes; rank 1 has ended"),
    "the_wrong_neighbour_is_asked": Mistake(
        "06", changed(PIPELINE, (RECEIVED, RECEIVED.replace("rank - 1", "(rank + 1) % (last + 1)"))),
        "runs", "deadlock", "rank 0 waits in receive from rank 1 .* rank 1 has sent 0 of the 1 .* rank 1 waits in receive from rank 2"),
    # 07
    "each_microbatch_goes_there_and_back": Mistake(
        "07", changed(PIPELINE, (WARMUP, "    warmup = 0\n")), "time", "takes longer",
        "forward .* 1.222 ms, not 763.5 µs"),
    "one_large_microbatch": Mistake(
        "07", changed(PIPELINE, ("    batch = model.global_batch_size\n",
                                 "    batch = microbatch_size = model.global_batch_size\n")),
        "time", "takes longer", "do you send a microbatch on"),
    "microbatches_share_a_key": Mistake(
        "07", changed(PIPELINE, ("activations[k + 1, i] = model.forward(k, activations[k, i], weights[k])",
                                 "activations[k + 1, 0] = model.forward(k, activations[k, 0], weights[k])"),
                      ("activations.pop((layers[-1] + 1, i)))\n\n    async", "activations.pop((layers[-1] + 1, 0)))\n\n"
                       "    async"), ("activations[0, i] =", "activations[0, 0] ="),
                      ("activations[layers[0], i] =", "activations[layers[0], 0] =")),
        "runs", "KeyError", "under this key"),
    "the_last_backward_is_forgotten": Mistake(
        "07", changed(PIPELINE, (COOLDOWN, COOLDOWN.replace("m)", "m - 1)"))),
        "laws", r"must cover all 8 samples, \[6, 7\] are missing", "every stage takes every microbatch"),
    "what_was_sent_is_kept": Mistake(
        "07", changed(PIPELINE, ("activations.pop((layers[-1] + 1, i)))\n\n", "activations[layers[-1] + 1, i])\n\n")),
        "memory", "too many activations at a time", "once it was sent on"),
    "stages_sum_their_gradients": Mistake(
        "07", changed(PIPELINE, ("    for k in layers:\n        weights[k], opt_states[k] = model.update", "    for k in layers:\n"
            "        grad_weights[k] = await model.all_reduce(grad_weights[k], k)\n        weights[k], opt_states[k] = model.update")),
        "laws", "and differ in layer; rank 0", "stages, have nothing to sum"),
    "all_layers_are_loaded": Mistake(
        "07", changed(PIPELINE, ("    for k in layers:\n        weights[k], opt_states[k] = model.load",
                                 "    for k in range(model.num_layers):\n        weights[k], opt_states[k] = model.load")),
        "time", "longer", "loads the layers.* that it trains"),
    "the_first_stage_sends_back_too": Mistake(
        "07", changed(PIPELINE, ("if rank > 0:", "if True:")), "runs", "dest must be a rank", "the first stage has nobody before it"),
    # 08
    "gpipe_again": Mistake(
        "08", changed(PIPELINE, (WARMUP, "    warmup = m\n")), "memory", "too many samples forward", "p - r"),
    "no_warmup": Mistake("08", changed(PIPELINE, (WARMUP, "    warmup = 0\n")), "time", "longer", "forward .*, not"),
    "no_cooldown": Mistake(
        "08", changed(PIPELINE, (COOLDOWN, "")), "laws", "must cover all 8 samples", "the last of them come back in the cooldown"),
    "all_ranks_warm_up_alike": Mistake(
        "08", changed(PIPELINE, (WARMUP, "    warmup = min(last, m)\n")), "memory", "too many samples forward", "p - r microbatches"),
    "backward_before_forward": Mistake(
        "08", changed(PIPELINE, ("        await forward(i)\n        await backward(i - warmup)\n",
                                 "        await backward(i - warmup)\n        await forward(i)\n")),
        "runs", "KeyError", "under this key"),
    "a_forward_is_not_awaited": Mistake(
        "08", changed(PIPELINE, ("        await forward(i)\n        await backward", "        forward(i)\n        await backward")),
        "runs", "KeyError", r"mine\.py:\d+ calls forward without `await`"),
    "too_many_forwards": Mistake(
        "08", changed(PIPELINE, ("range(warmup, m)", "range(warmup, m + 1)")), "runs",
        r"IndexError: list index out of range; `batches\[i\]` finds no such item: batches has 4$",
        r"(?s)nothing at this place.*in a function which is called at mine\.py:\d+, mine\.py:\d+"),
    "the_warmup_takes_microbatches_that_are_not_there": Mistake(
        "08", changed(PIPELINE, (WARMUP, "    warmup = last - rank if one_by_one else m\n")), "runs", "IndexError; its text is kept back",
        "ranks outnumber microbatches", hidden=True),
    "the_warmup_grows_with_the_rank": Mistake(
        "08", changed(PIPELINE, (WARMUP, "    warmup = min(rank, m)\n")), "runs", "deadlock", "the last rank with none"),
    # 09
    "the_gather_is_awaited_at_once": Mistake(
        "09", changed(ZERO3, ("def zero3", "def zero3_prefetch")), "time", "longer", "launched before you compute"),
    "the_reduction_is_awaited_at_once": Mistake(
        "09", changed(PREFETCH, (LATER, ""), (LAUNCHED, LAUNCHED + "            await keep_shard(*before)\n"),
                      ("        await keep_shard(*before)\n        before = None\n", "        before = None\n")),
        "time", "longer", "only after the next backward"),
    "all_weights_are_gathered_ahead": Mistake(
        "09", changed(ZERO3, ("def zero3", "def zero3_prefetch"),
                      ("        for k in range(model.num_layers):\n            acts[k + 1] = model.forward(k, acts[k], "
                       "await borrow(k))\n",
                       "        works = [model.launch(model.all_gather(weights[\"shard\", k], k)) for k in "
                       "range(model.num_layers)]\n        for k in range(model.num_layers):\n"
                       "            weights[\"whole\", k] = await works[k]\n"
                       "            acts[k + 1] = model.forward(k, acts[k], weights[\"whole\", k])\n")),
        "memory", "holds more", "what operations under way will bring"),
    "a_launched_operation_is_used_at_once": Mistake(
        "09", changed(PREFETCH, ('weights["full"] = await work', 'weights["full"] = work')),
        "laws", "only tensors can be held", "by `await work`"),
    "what_is_launched_was_awaited": Mistake(
        "09", changed(PREFETCH, ("            work = model.launch(model.all", "            work = model.launch(await model.all")),
        "runs", "launch on rank 0 takes one communication", "what is launched is not awaited"),
    "what_is_launched_is_waited_for_as_in_torch": Mistake(
        "09", changed(PREFETCH, ('weights["full"] = await work', 'weights["full"] = work.wait()')),
        "runs", "no attribute 'wait'", "by `await work`"),
    "the_last_reduction_is_not_awaited": Mistake(
        "09", changed(PREFETCH, ("        await keep_shard(*before)\n        before = None\n", "")),
        "runs", "KeyError: 0", r"has launched reduce_scatter of layer 0 at mine\.py:\d+, and has not awaited it"),
    "a_launched_operation_is_forgotten": Mistake(
        "09", changed(PREFETCH, ("        if place < len(order):\n", "        if True:\n"),
                      ("order[place]], order[place]", "order[place % len(order)]], order[place % len(order)]")),
        "runs", "never awaited", r"rank 0 has launched all_gather of layer \d at mine.py:\d+"),
    # 10
    "replicas_do_not_sum": Mistake("10", changed(MESH, (OF_REPLICAS, "")), "laws", "must cover all 8", "replicas"),
    "all_ranks_sum": Mistake(
        "10", changed(MESH, (OF_REPLICAS, OF_REPLICAS.replace(', group=mesh.group("dp")', ""))),
        "laws", "must bring the same kind of tensor with the same layer", r"right group \(`group=`\)"),
    "replicas_take_the_same_samples": Mistake(
        "10", changed(MESH, ("range(replica * share, (replica + 1) * share)", "range(share)")),
        "laws", "counted twice", "each sample belongs to one rank"),
    "stages_sum_over_the_pipeline": Mistake(
        "10", changed(MESH, (OF_REPLICAS, OF_REPLICAS.replace('"dp"', '"pp"'))),
        "laws", "must bring the same kind of tensor with the same layer", r"right group \(`group=`\)"),
    "replicas_run_gpipe": Mistake(
        "10", changed(MESH, ("    warmup = min(pp - 1 - stage, m)\n", "    warmup = m\n")),
        "memory", "too many samples forward", "held by rank 0"),
    "neighbours_by_rank": Mistake(
        "10", changed(MESH, ('mesh.peer("pp", -1), mesh.peer("pp", +1)', "model.rank - 1 if stage else None, "
                             "model.rank + 1 if stage < pp - 1 else None")),
        "runs", "deadlock", "rank 0 waits in send to rank 1 .*; rank 1 waits in all_reduce of layer 0"),
    "the_first_rank_alone_takes_inputs": Mistake(
        "10", changed(MESH, ("if before is None:\n            activations", "if model.rank == 0:\n            activations")),
        "runs", "source must be a rank of 0..3, got None", "the first stage has nobody before it"),
    "the_batch_is_cut_over_all_ranks": Mistake(
        "10", changed(MESH, ("model.global_batch_size // dp", "model.global_batch_size // model.world_size")), "laws",
        "no rank has taken samples 4-7 as inputs yet", "cut over those ranks alone that take other samples"),
    "a_sum_is_summed_again": Mistake(
        "10", changed(MESH, (OF_REPLICAS, ""), ("            del new\n", "            del new\n    " + OF_REPLICAS)),
        "laws", "counted twice", "summed over the ranks before"),
    "a_coordinate_is_given_for_a_group": Mistake(
        "10", changed(MESH, ('group=mesh.group("dp")', 'group=mesh.coord("dp")')), "runs", r"mesh\.group\('dp'\), got 0", "."),
    "a_function_of_ones_own_is_not_awaited": Mistake(
        "10", changed(MESH, ("        await forward(i)\n    for", "        forward(i)\n    for")), "runs", "KeyError",
        r"^mine\.py:50 calls forward without `await`, so that it never happens; write `await` before it\n"),
    # 11
    "a_message_bears_the_tag_of_its_sender": Mistake(
        "11", changed(INTERLEAVED, ('tag=("F", stage + 1, i)', 'tag=("F", stage, i)')), "runs", "deadlock",
        r"nobody has asked yet for send to rank 1 with tag \('F', 0, 0\) "),
    "a_chunk_too_many_warms_up": Mistake(
        "11", changed(INTERLEAVED, ("2 * (p - rank - 1)", "2 * (p - rank)")), "memory", "too many samples forward", "one backward after each forward"),
    "chunks_one_after_the_other": Mistake(
        "11", changed(INTERLEAVED, (ORDER_OF_CHUNKS + ")\n\n    async def kth_backward",
                                    "k // m * p + rank, k % m)\n\n    async def kth_backward"),
                      ("(v - 1 - (k // p) % v) * p + rank, k % p + p * (k // (p * v))",
                       "(v - 1 - k // m) * p + rank, k % m"), (WARMUP_OF_CHUNKS, "    warmup = total\n")),
        "memory", "too many samples forward", "held by rank 0"),
    "plain_1f1b": Mistake(
        "11", changed(PIPELINE, ("async def one_f_one_b(model: Model, microbatch_size: int)",
                                 "async def interleaved_1f1b(model: Model, microbatch_size: int, num_chunks: int)")),
        "time", "longer", "forward .*, not"),
    "messages_without_tags": Mistake(
        "11", changed(INTERLEAVED, (', tag=("F", stage, i)', ""), (', tag=("F", stage + 1, i)', ""),
                      (', tag=("B", stage, i)', ""), (', tag=("B", stage - 1, i)', "")),
        "runs", "deadlock", "rank 0 and rank 1 wait for one another: in its order, rank 0 does"),
    "the_warmup_is_that_of_1f1b": Mistake(
        "11", changed(INTERLEAVED, (WARMUP_OF_CHUNKS, "    warmup = min(p - rank - 1, total)\n")),
        "runs", r"KeyError: \(4, 0\)", "under this key"),
    "backwards_begin_with_the_first_chunk": Mistake(
        "11", changed(INTERLEAVED, ("(v - 1 - (k // p) % v) * p", "(k // p) % v * p")),
        "runs", "deadlock", "with other tags|wait for one another"),
    # 12
    "plain_data_parallelism": Mistake(
        "12", changed(DDP, ("def ddp", "def challenge")), "memory", "holds more", "2.0 GiB"),
    "too_many_microbatches": Mistake(
        "12", changed(CHALLENGE, ("microbatch_size=4", "microbatch_size=1")), "communication", "more than the budget", "all_gather of layers 0-31: 128 over all ranks, the reference does 32"),
    "zero3_with_all_samples_at_once": Mistake(
        "12", changed(CHALLENGE, ("microbatch_size=4", "microbatch_size=8")), "memory", "holds more", "2.0 GiB"),
    # 13
    "a_shard_is_loaded_for_a_part": Mistake(
        "13", changed(TENSOR, ("part=parts.index, num_parts=tp", "parts.index, tp")), "laws", "must be complete", "a part computes"),
    "whole_layers_are_summed": Mistake(
        "13", changed(TENSOR, (", part=parts.index, num_parts=tp", "")), "laws", "needs values that add", "a whole layer makes a whole activation"),
    "the_part_is_the_rank": Mistake(
        "13", changed(TENSOR, ("part=parts.index", "part=model.rank")), "laws", "part must lie in 0..num_parts-1, got part 2 of 2", "and not its rank"),
    "ranks_of_a_replica_take_other_samples": Mistake(
        "13", changed(TENSOR, ("global_batch_size // replicas.size", "global_batch_size // model.world_size"), ("replicas.index * share", "model.rank * share")),
        "laws", "must bring the same kind of tensor", "ranks that share a layer take the same samples"),
    # 14
    "sums_are_scattered_over_the_replicas": Mistake(
        "14", changed(SEQUENCE, ("model.reduce_scatter(partial, border, group=parts)", "model.reduce_scatter(partial, border, group=replicas)")),
        "laws", "needs values that combine .*, got PartialActivation", "what one part makes is a partial sum"),
    # 15
    "ranks_of_a_ring_take_other_samples": Mistake(
        "15", changed(ATTENTION, ('global_batch_size // mesh.group("dp").size', "global_batch_size // model.world_size"), ("replica * share", "model.rank * share"),
                      ("(replica + 1) * share", "(model.rank + 1) * share")),
        "laws", "queries and keys must be of the same samples", "take the same samples, each other tokens of them"),
    # 16
    "all_ranks_exchange_tokens": Mistake(
        "16", changed(EXPERTS, ("model.all_to_all(activations[tokens], layer, group=parts)", "model.all_to_all(activations[tokens], layer)")),
        "laws", "must be as many as there are parts", "the ranks that hold the parts exchange tokens"),
    "ranks_with_experts_take_the_same_samples": Mistake(
        "16", changed(EXPERTS, ("model.global_batch_size // model.world_size\n    first = model.rank * share",
                                "model.global_batch_size // replicas.size\n    first = replicas.index * share")),
        "laws", "must bring copies of different samples", "every rank takes samples of its own"),
    "tokens_go_through_the_router": Mistake(
        "16", changed(EXPERTS, ('activations[tokens], weights["experts", layer])', "activations[tokens], weights[layer])")),
        "laws", "the weight must be of a whole layer, or a part of experts", "what each of them takes"),
    # 17
    "each_bucket_is_waited_for": Mistake(
        "17", changed(BUCKETS, (LAUNCH, "launched.append(await model.all_reduce(bucket, layer))"),
                      ("in await launched.pop(0):", "in launched.pop(0):")),
        "time", "longer", "launched as soon as"),
    "buckets_are_launched_after_the_backward": Mistake(
        "17", changed(BUCKETS, (FULL, "if layer == 0:")), "time", "longer", "launched as soon as"),
    "buckets_go_in_every_microbatch": Mistake(
        "17", changed(BUCKETS, (LAST_MICROBATCH, "if True:")), "laws", "must cover all 8 samples", "microbatches"),
    "a_bucket_for_each_layer": Mistake(
        "17", changed(BUCKETS, (FULL, "if True:")), "communication", "more often than the budget", "all_reduce"),
    "the_smaller_bucket_is_forgotten": Mistake(
        "17", changed(BUCKETS, (FULL, "if len(bucket) == bucket_size:")), "laws", "kept back", "last bucket", hidden=True),
    # 18
    "weights_before_the_gradient_is_sent": Mistake(
        "18", changed(ZERO_BUBBLE, (SEND_GRADIENT, "        backward_weight(i)\n" + SEND_GRADIENT), (WEIGHTS_LATER, ""),
                      (LAST_WEIGHTS, "")),
        "time", "longer", "before you compute those of weights"),
    "no_weight_is_put_off": Mistake(
        "18", changed(ZERO_BUBBLE, (PUT_OFF, PUT_OFF.replace("min(stage, len(batches))", "0"))),
        "time", "longer", "before you compute those of weights"),
    "all_weights_are_put_off": Mistake(
        "18", changed(ZERO_BUBBLE, (PUT_OFF, PUT_OFF.replace("min(stage, len(batches))", "len(batches)"))),
        "memory", "holds more", "not of all"),
    "zero_bubble_without_warmup": Mistake(
        "18", changed(ZERO_BUBBLE, (PUT_OFF, PUT_OFF.replace("min(num_stages - 1 - stage, len(batches))", "0"))),
        "time", "longer", "forward"),
    "the_last_weights_are_forgotten": Mistake(
        "18", changed(ZERO_BUBBLE, (LAST_WEIGHTS, "")), "laws", "must cover all 8 samples, .*the W of these samples is missing", "needs its `backward_weight`"),
    "an_input_is_freed_with_the_first_half_of_its_backward": Mistake(
        "18", changed(ZERO_BUBBLE, ("                layer, activations[layer, i], grad_activations[layer, i], weights[layer]\n            )\n",
                                    "                layer, activations[layer, i], grad_activations[layer, i], weights[layer]\n            )\n"
                                    "            del activations[layer, i]\n")),
        "runs", "KeyError", "stored under this key"),
    "the_whole_backward_makes_the_weights_gradient": Mistake(
        "18", changed(ZERO_BUBBLE, ('grad_weights["new"] = model.backward_weight(layer, activations[layer, i], grad_activations[layer, i])',
                                    'grad_weights["new"], _ = model.backward(\n                layer, activations[layer, i], '
                                    "grad_activations[layer, i], weights[layer]\n            )\n            del _")),
        "time", "longer", "backward"),
    "half_a_backward_is_taken_for_a_whole_one": Mistake(
        "18", changed(ZERO_BUBBLE, ("grad_activations[layer - 1, i] = model.backward_input(", "_, grad_activations[layer - 1, i] = model.backward_input(")),
        "runs", "cannot unpack non-iterable ActivationGrad", "takes and returns"),
    # 19
    "a_collective_sums": Mistake(
        "19", changed(RING, (RING_CALL, "        grad_weights[layer] = await model.all_reduce(grad_weights[layer], layer)\n")),
        "laws", "forbids all_reduce", "which operations the statement names"),
    "whole_gradients_go_round": Mistake(
        "19", changed(RING, (RING_CALL, """        going = grad_weights[layer]
        for _ in range(model.world_size - 1):
            going = await exchange(model, going)
            grad_weights[layer] = grad_weights[layer] + going
        del going
""")), "communication", "communicate more than the budget", "each message is a shard"),
    "messages_go_one_way_and_are_awaited_from_the_other": Mistake(
        "19", changed(RING, ("receive((model.rank - 1)", "receive((model.rank + 1)")), "runs", "deadlock", "did send to rank"),
    "a_send_ends_before_the_receive_begins": Mistake(
        "19", changed(RING, (EXCHANGE, ALTERNATELY)), "time", "longer", "Launch the send, receive"),
    "the_own_shard_is_not_added": Mistake(
        "19", changed(RING, (RING_SUM, "        grads[layer, mine] = came\n")), "laws", r"gradients that combine: samples must be equal, got \{2-3\} and \{0-1\} \(layer 0\)", "are added, `\\+`"),
    "the_ring_ends_a_step_early": Mistake(
        "19", changed(RING, ("    for _ in range(n - 1):", "    for _ in range(n - 2):")), "laws", r"shards \{1\} of 2", "bring the other sums"),
    "new_weights_stay_where_their_shard_was_summed": Mistake(
        "19", changed(RING, ("        weights[layer], opt_states[layer] = model.update(",
                             "        place = (model.rank + 1) % model.world_size\n"
                             "        for kept in (grad_weights, weights, opt_states):\n"
                             "            kept[layer] = kept[layer].shard(place, model.world_size)\n"
                             "        weights[layer], opt_states[layer] = model.update(")),
        "laws", "final weight must lie on the ranks", "makes it whole"),
    "sums_of_other_shards_are_added": Mistake(
        "19", changed(RING, ("grads[layer] = grads[layer].combine(going)", "grads[layer] = grads[layer] + going")),
        "laws", "that add: shards must be equal", "combine"),
    "a_send_is_neither_awaited_nor_launched": Mistake(
        "19", changed(RING, ("model.launch(model.send((model.rank + 1) % model.world_size, shard))",
                             "model.send((model.rank + 1) % model.world_size, shard)")),
        "runs", "deadlock", r"^mine\.py:\d+ calls send without `await`, .*or `work = model\.launch\(model\.send\(\.\.\.\)\)`"),
    "what_is_launched_is_awaited_first": Mistake(
        "19", changed(RING, ("model.launch(model.send", "model.launch(await model.send")), "runs", "takes one communication", "what is launched is not awaited"),
    "number_and_index_of_a_shard_change_places": Mistake(
        "19", changed(RING, ("shard(i, n)", "shard(n, i)")), "laws", "shard must lie in 0..num_shards-1", "first the index"),
    # 20
    "always_the_ring": Mistake("20", changed(TREE, (CHOICE, "if False:")), "time", "longer", "which of the two is quicker"),
    "always_the_tree": Mistake("20", changed(TREE, (CHOICE, "if True:")), "time", "longer", "which of the two is quicker"),
    "a_collective_chooses": Mistake(
        "20", changed(TREE, ("await sum_over_tree(model, grad_weights, layer)",
                             "grad_weights[layer] = await model.all_reduce(grad_weights[layer], layer)")),
        "laws", "forbids all_reduce", "which operations the statement names"),
    "the_sum_stays_at_the_root": Mistake(
        "20", changed(TREE, ("        grads[layer] = await model.receive(rank - distance)\n", ""),
                      ("        if rank + distance < n:\n            await model.send(rank + distance, grads[layer])\n", "")), "runs", "KeyError", "stored under this key"),
    "sums_of_other_samples_are_combined": Mistake(
        "20", changed(TREE, ("grads[layer] = grads[layer] + await model.receive(rank + distance)",
                             "grads[layer] = grads[layer].combine(await model.receive(rank + distance))")),
        "laws", "gradients that combine: samples must be equal", "are added, `\\+`"),
    "every_rank_has_a_partner": Mistake(
        "20", changed(TREE, ("        if rank + distance < n:\n", "        if True:\n")),
        "runs", "rank", "rank"),
    "all_ranks_send_to_the_root": Mistake(
        "20", changed(TREE, ("    if rank % (2 * distance):\n", """    if rank:
        await model.send(0, grads.pop(layer))
        grads[layer] = await model.receive(0)
    else:
        for other in range(1, n):
            grads[layer] = grads[layer] + await model.receive(other)
        for other in range(1, n):
            await model.send(other, grads[layer])
    return
    if rank % (2 * distance):
""")), "time", "longer", "recv"),
    "whole_gradients_go_round_the_ring": Mistake(
        "20", changed(TREE, ("            await sum_round_ring(model, grad_weights, layer)\n", """            going = grad_weights[layer]
            for _ in range(n - 1):
                going = await exchange(model, going)
                grad_weights[layer] = grad_weights[layer] + going
            del going
""")), "communication", "communicate more than the budget", "each message is a shard"),
    # 21
    "all_inputs_are_kept": Mistake(
        "21", changed(RECOMPUTE, (FREED, ""), (AGAIN, AGAIN.replace("of_segment[:-1]", "()"))),
        "memory", "holds more", "neither the first of a segment"),
    "every_layer_begins_at_the_input": Mistake(
        "21", changed(RECOMPUTE, (FREED, "            if layer > 0:\n                del activations[layer]\n"),
                      (AGAIN, "        if True:\n            for layer in layers[:of_segment[-1]]:\n")), "time", "longer", "forward"),
    "the_last_segment_is_computed_again": Mistake(
        "21", changed(RECOMPUTE, (" and of_segment != segments[-1]:", ":"), ("if of_segment != segments[-1]:", "if True:")),
        "time", "longer", "last segment's inputs are still there"),
    "the_output_of_a_segment_is_computed_again": Mistake(
        "21", changed(RECOMPUTE, ("of_segment[:-1]", "of_segment"),
                      ("        for layer in reversed(of_segment):\n", "            del activations[of_segment[-1] + 1]\n        for layer in reversed(of_segment):\n")),
        "time", "longer", "makes what nobody needs again"),
    "inputs_stay_after_their_backward": Mistake(
        "21", changed(RECOMPUTE, ("            )\n            del activations[layer]\n", "            )\n")),
        "memory", "holds more", "neither the first of a segment"),
    "the_smaller_segment_is_forgotten": Mistake(
        "21", changed(RECOMPUTE, ("range(0, len(layers), segment)", "range(0, len(layers) - segment + 1, segment)")),
        "runs", r"KeyError: 11; `activations.pop\(len\(layers\)\)`", "activations has 0, 3, 6"),
    "the_first_input_of_a_segment_is_freed": Mistake(
        "21", changed(RECOMPUTE, ("if layer != of_segment[0] and", "if")), "runs", "KeyError", "stored under this key"),
    # 22
    "states_stay_on_the_device": Mistake(
        "22", changed(OFFLOAD, (AT_LOAD, ""), ("        " + COMING + "\n", ""), ("        opt_states[layer] = await coming\n", "")),
        "memory", "holds more", "which states are on the device that are not at work"),
    "all_states_are_loaded_before_any_is_moved": Mistake(
        "22", changed(OFFLOAD, (AT_LOAD, ""), ("    activations[0] = model.get", "    for layer in layers:\n" + AT_LOAD + "    activations[0] = model.get")),
        "memory", "holds more", "optimizer states of layers 0-12"),
    "a_state_is_fetched_after_the_backward": Mistake(
        "22", changed(OFFLOAD, (COMING, "coming = model.fetch(model.host[layer])")), "time", "longer", "does a state come while backward computes"),
    "a_state_is_awaited_on_its_way_back": Mistake(
        "22", changed(OFFLOAD, (LEAVING, "        model.host[layer] = await model.offload(opt_states[layer])\n        del opt_states[layer]\n")),
        "time", "longer", "and leave while the next backward does"),
    "updated_states_are_lost": Mistake(
        "22", changed(OFFLOAD, (LEAVING, "        del opt_states[layer]\n")), "laws",
        "updated optimizer states must lie in the host's memory", "that of the last update too"),
    "a_state_stays_a_layer_longer": Mistake(
        "22", changed(OFFLOAD, ("while leaving:", "while len(leaving) > 1:"), ("leaving.pop()", "leaving.pop(0)")),
        "memory", "too many optimizer states at a time", "optimizer states of layers 11-13"),
    "what_was_offloaded_stays_too": Mistake(
        "22", changed(OFFLOAD, ("            del opt_states[before]\n", ""), ("        del opt_states[before]\n", "")),
        "memory", "holds more", "An offload is a copy"),
    "whole_states_move": Mistake(
        "22", changed(OFFLOAD, ("        opt_states[layer] = opt_states[layer].shard(rank, n)\n", "")),
        "laws", "exactly the weight's shards", "same shard"),
    "what_is_fetched_is_no_copy_on_the_host": Mistake(
        "22", changed(OFFLOAD, ("model.fetch(model.host[layer])", "model.fetch(weights[layer])")), "laws", "takes what offload gave", "."),
    "every_rank_updates_the_first_shard": Mistake(
        "22", changed(OFFLOAD, ("shard(rank, n)", "shard(0, n)")), "laws", "update on rank 1: weight_grad must hold the weight's shards",
        "are of the same shard"),
    "new_weights_are_not_gathered": Mistake(
        "22", changed(OFFLOAD, ("        weights[layer] = await model.all_gather(weights[layer], layer)\n", "")),
        "laws", "final weight must lie on the ranks", "all_gather"),
    "the_whole_gradient_is_summed": Mistake(
        "22", changed(OFFLOAD, ("await model.reduce_scatter(grad_weights[layer], layer)",
                                "(await model.all_reduce(grad_weights[layer], layer)).shard(rank, n)")),
        "communication", "communicate more than the budget", "all_reduce of layers .* the reference does none"),
    # 23
    "the_outer_gradient_is_not_summed": Mistake(
        "23", changed(LOCAL, (OUTER_SUM, "")), "laws", "must cover all 8 samples", "outer gradient is summed over all ranks"),
    "gradients_are_summed_in_local_steps": Mistake(
        "23", changed(LOCAL, (OWN_UPDATE, OUTER_SUM.replace("        grad", "        for layer in layers:\n            grad") + OWN_UPDATE)),
        "laws", "local step takes 2 samples", "only outer gradients are summed over ranks"),
    "the_common_weight_trains": Mistake(
        "23", changed(LOCAL, ("model.local_copy(layer, weights[layer])", "weights[layer]")), "laws", "must cover all 8 samples", "outer gradient"),
    "a_rank_takes_one_stretch_of_the_batch": Mistake(
        "23", changed(LOCAL, ("(step * model.world_size + model.rank) * share", "(model.rank * local_steps + step) * share")),
        "laws", r"local step 1 takes samples of 4\.\.7", "the rank's own share"),
    "a_local_step_is_missing": Mistake(
        "23", changed(LOCAL, ("range(local_steps)", "range(local_steps - 1)")), "laws", "replicas meet after 2 steps", "which steps has this weight seen"),
    "own_weights_are_handed_in": Mistake(
        "23", changed(LOCAL, ('        del weights["local", layer]\n', ""), ("set_final_weight(layer, weights[layer])", 'set_final_weight(layer, weights["local", layer])')),
        "laws", "must have seen exactly one update, got LocalWeight", "outer_update makes the new common one"),
    "the_mean_is_taken_by_hand": Mistake(
        "23", changed(LOCAL, ("model.outer_update(layer, grad_weights.pop(layer), weights[layer])",
                              "model.outer_update(layer, grad_weights.pop(layer) / model.world_size, weights[layer])")),
        "laws", "cannot be scaled", "only outer gradients are summed over ranks"),
    "the_common_weight_takes_a_usual_update": Mistake(
        "23", changed(LOCAL, ("model.outer_update(layer, grad_weights.pop(layer), weights[layer])",
                              "model.update(layer, grad_weights.pop(layer), weights[layer], opt_states[layer])[0]")),
        "laws", "must have seen the same steps", "outer_update makes the new common one"),
    "weights_are_averaged_by_an_all_reduce": Mistake(
        "23", changed(LOCAL, ("model.outer_gradient(layer, weights[layer], weights[\"local\", layer])", "weights[\"local\", layer]")),
        "laws", "needs values that add", "all_reduce what outer_gradient gives"),
    "the_declaration_is_gone": Mistake(
        "23", changed(LOCAL, ('@mt.local_steps("local_steps")\n', "")), "runs", "declare @mt.local_steps", "."),
    # 24
    "a_receive_begins_when_it_is_needed": Mistake(
        "24", changed(DUALPIPE, (ARRIVED, "        coming = start_receive(kind, chunk, i)\n" + ARRIVED), (NEXT_RECEIVE, ""),
                      ("    coming = start_receive(*order[0])\n", "")), "time", "longer", "receive of the next action is launched before"),
    "a_send_is_awaited_at_once": Mistake(
        "24", changed(DUALPIPE, ("while len(sends) > 1:", "while sends:")), "time", "longer", "a send is awaited one action later"),
    "a_message_has_the_tag_of_the_stage_that_takes_it": Mistake(
        "24", changed(DUALPIPE, ("tag=(is_forward, stages[chunk], key[1])", "tag=(is_forward, stages[chunk] + 1, key[1])")),
        "runs", "deadlock", "nobody has asked yet for send to rank .*different tags"),
    "messages_of_both_directions_have_no_tags": Mistake(
        "24", changed(DUALPIPE, (', tag=(kind == "F", source, i)', ""), (", tag=(is_forward, stages[chunk], key[1])", "")),
        "laws", "grad must be a ActivationGrad, got Activation", "Tags tell them apart"),
    "no_backward_is_split": Mistake(
        "24", changed(DUALPIPE, ('"I1 W F1"', '"B1 F1"'), ('("W I0", after),\n        ("W", rank + 1),', '("B0", after),'),
                      ('"B1 I0"', '"B1 B0"'), ('"I1 I0"', '"B1 B0"')), "time", "longer", "is W put off where the table has it"),
    "forwards_do_not_alternate_with_backwards": Mistake(
        "24", changed(DUALPIPE, ('("F0 B1 F1 B0", num_microbatches - p - after)',
                                 '("F0 F1", num_microbatches - p - after),\n        ("B1 B0", num_microbatches - p - after)')),
        "memory", "too many samples forward", "stay longer than the table asks for"),
    "the_turn_of_the_v_is_a_message": Mistake(
        "24", changed(DUALPIPE, ("if 0 <= stage < 2 * p and found != rank", "if 0 <= stage < 2 * p")),
        "runs", "cannot send to itself; keep the tensor", "."),
    "the_last_rank_takes_the_loss": Mistake(
        "24", changed(DUALPIPE, ("if stages[chunk] == 2 * p - 1:", "if stages[chunk] == p - 1:")), "runs", "KeyError", "under this key"),
    "weights_that_were_put_off_are_forgotten": Mistake(
        "24", changed(DUALPIPE, ('        ("W", rank + 1),\n', "")), "laws",
        "must cover all 8 samples, .*the W of these samples is missing", "needs its `backward_weight`"),
    "the_warmup_is_half_as_long": Mistake(
        "24", changed(DUALPIPE, ('("F0", 2 * after)', '("F0", after)')), "runs", "deadlock", "m forwards and m backwards of each chunk"),
    "stages_lie_round_the_ranks": Mistake(
        "24", changed(DUALPIPE, ("(rank, 2 * p - 1 - rank)", "(rank, p + rank)"),
                      ("found = min(stage, 2 * p - 1 - stage)", "found = stage % p")), "runs", "deadlock", "Print the lists of both ranks"),
    "an_input_is_freed_with_its_first_half": Mistake(
        "24", changed(DUALPIPE, ("                grad_activations[layer - 1, i] = model.backward_input(\n"
                                 "                    layer, activations[layer, i], grad_activations[layer, i], weights[layer]\n                )\n",
                                 "                grad_activations[layer - 1, i] = model.backward_input(\n"
                                 "                    layer, activations[layer, i], grad_activations[layer, i], weights[layer]\n                )\n"
                                 "                del activations[layer, i]\n")),
        "runs", "KeyError", "stored under this key"),
    "an_input_is_freed_with_the_weights_after_its_own": Mistake(
        "24", changed(DUALPIPE, ("    sends: list[Any] = []\n", "    sends: list[Any] = []\n    used: list[Any] = []\n"),
                      ("        del activations[layer, i], grad_activations[layer, i]\n",
                       "        del grad_activations[layer, i]\n        used.append((layer, i))\n"
                       "        if len(used) > per_stage:\n            del activations[used.pop(0)]\n")),
        "memory", "holds more than the budget", "Each goes with its B or its W"),
    "a_gradient_is_freed_with_the_weights_after_its_own": Mistake(
        "24", changed(DUALPIPE, ("    sends: list[Any] = []\n", "    sends: list[Any] = []\n    used: list[Any] = []\n"),
                      ("        del activations[layer, i], grad_activations[layer, i]\n",
                       "        del activations[layer, i]\n        used.append((layer, i))\n"
                       "        if len(used) > per_stage:\n            del grad_activations[used.pop(0)]\n")),
        "memory", "holds more than the budget", r"(?s)activation gradients of layers? .*or gradients of outputs, stay longer"),
    "the_second_chunk_begins_with_the_last_microbatch": Mistake(
        "24", changed(DUALPIPE, ("            order.append((action[0], int(action[1]), begun[counter]))\n",
                                 '            i = num_microbatches - 1 - begun[counter] if action == "F1" else begun[counter]\n'
                                 "            order.append((action[0], int(action[1]), i))\n")),
        "runs", r"KeyError: \(2, 3\)", "stored under this key"),
    "a_launched_send_is_never_awaited": Mistake(
        "24", changed(DUALPIPE, ("    while sends:\n        await sends.pop(0)\n", "")), "runs", "launched send and never awaited",
        r"has launched send to rank \d at mine.py:\d+"),
}  # fmt: skip
