"""Hints for what went wrong: by the law that was broken or the mistake behind an error, else by the check.

The submission's process sends nothing but an error's text, so a mistake is recognised by that text. An exercise may
have hints of its own, in `hints_by_check` of its `exercise.json`: under the name of a check, for the mistakes that the
exercise is about (missing samples, deadlocks, and what has no name here), or under a name of `NAMES`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minitrain.learn.exercise import Case, Exercise
from minitrain.operations import COMMUNICATIONS

HINTS: Mapping[str, str] = {
    "runs": "run it alone and read where it ends: {command}",
    "laws": "the message names the law; print(model.rank, tensor) just before that line shows what you really have",
    "numerics": "a sample is missing, counted twice, or summed over the wrong ranks: which rank brings which samples?",
    "communication": "count by hand what each rank must send in one step, and compare it with the kinds above",
    "time": "which rank waits, and for whom? its picture shows it: {command}",
    "memory": "which tensor lives longer than its last use, or is whole where a shard would do?",
}
"""By check, where nothing more is known."""

_NO_SIZES = "`minitrain run`, with sizes of your own"
"""The command where sizes are not to be shown."""

FILE = "FILE.py"
"""What stands for the submission in a hint, until somebody knows its name."""

_LAUNCHED = frozenset({*COMMUNICATIONS, "receive"})
"""Calls that may be launched."""

_PENDING = r"(?:coroutine|(?:Recorded)?Operation|(?:Strict)?Launched|Future|Task)"


@dataclass(frozen=True, slots=True)
class _Mistake:
    """A mistake that an error's text gives away.

    Args:
        name: under which an exercise may have a hint of its own.
        pattern: a regular expression that finds it.
        hint: how to go on.
        of_exercise: whether the exercise's hint for the check comes first.
    """

    name: str
    pattern: str
    hint: str
    of_exercise: bool = False


_MISTAKES = (
    _Mistake(
        "hidden", r"its text is kept back",
        "what is other where `microbatch_size` does not divide the rank's samples, where ranks outnumber microbatches, "
        "or with another number of ranks? Try such sizes by `minitrain run`", True,
    ),
    _Mistake(
        "begun", r"no rank has called \w+ yet",
        "write the step in the order of the statement's picture; a check after each line says what comes next",
    ),
    _Mistake(
        "work", r"got (?:Strict)?Launched\b|'(?:Strict)?Launched' object",
        "a launched operation gives its result by `await work`, which is torch's `work.wait()`; only then use it",
    ),
    _Mistake(
        "await", rf"got {_PENDING}\b|'{_PENDING}' (?:object|and)|and '{_PENDING}'|<coroutine object",
        "a communication gives its result when it is awaited: write `await` before the call, as in "
        "`grad = await model.all_reduce(grad, layer)`",
    ),
    _Mistake(
        "module", r"No module named",
        "a submission may import minitrain, numpy, Python's library and files that are handed in with it: put these "
        "beside it, in one folder or zip, under the names by which they are imported, or all into one file",
    ),
    _Mistake(
        "no_await", r"can't be used in 'await' expression",
        "only communication is awaited (all_reduce, send, receive, ...), and once: what `await` gave is a tensor; "
        "load_weights, forward, loss, backward and update are plain calls",
    ),
    _Mistake(
        "scale", r"unsupported operand type\(s\) for [*/]",
        "there is nothing to divide: all_reduce sums, the loss is the mean over the global batch already, and "
        "`model.update` takes the optimizer's step",
    ),
    _Mistake(
        "zero", r"for \+=?: (?:'int' and|'\w+' and 'int')|a store, got (?:int|float|NoneType)",
        "a sum of gradients begins with the first of them, and not with 0: keep that, and add the others with `+`",
    ),
    _Mistake(
        "by_hand",
        r"unsupported operand type\(s\) for [^+]|'\w*(?:Activation|Weight|OptState)\w*' object (?:has no|is not)",
        "a tensor here has no values and none of torch's methods: the model's operations make one of another, as "
        "`model.backward` and `model.update` do; get_input_activation takes some of the samples, and `.shard` a shard",
    ),
    _Mistake(
        "dicts", r"Store' object has no attribute",
        "the stores are dicts: `activations[layer] = tensor`, `del activations[layer]`",
    ),
    _Mistake(
        "stored", r"must be in one of the rank's stores",
        "a tensor must lie in a store until the call that uses it returns: pass `activations[layer]` and "
        "`del activations[layer]` afterwards; `activations.pop(layer)` in the call takes it out before, and a variable "
        "is no store",
    ),
    _Mistake(
        "kind",
        r"only tensors can be held in a store|must be an? \w+, got|can be communicated, got|through route and combine",
        "the card of operations in the statement says what each of them takes and returns, and in which order",
    ),
    _Mistake(
        "halves", r"the W of these samples is missing",
        "each `backward_input` needs its `backward_weight` before the layer's update: which actions make those that "
        "were put off, and are there as many of them on every rank?",
    ),
    _Mistake(
        "inputs", r"as inputs yet",
        "before the update all samples go through the model: which samples does each rank take, is the batch cut over "
        "those ranks alone that take other samples, and is the update behind the loop over microbatches?",
    ),
    _Mistake(
        "samples", r"must cover all \d+ samples",
        "the gradient must be summed over all microbatches and over all ranks that have other samples", True,
    ),
    _Mistake(
        "gathered", r"all_gather: shard .* comes twice",
        "every rank brings a shard of its own, the one that it loaded or cut: is this one whole already, as the result "
        "of an earlier all_gather under the shard's key is? The whole needs a key of its own",
    ),
    _Mistake(
        "twice", r"counted twice|comes twice",
        "each sample belongs to one rank and one microbatch, and its gradient is added once: which samples does "
        "each rank take, and was one of these gradients summed over the ranks before?",
    ),
    _Mistake(
        "updated", r"was updated already|must have seen exactly one update|must have seen the same steps",
        "each weight takes one update a step; hand in what `update` returned",
    ),
    _Mistake(
        "final", r"has no final weight|final weight of layer \d+ is incomplete|final weights .* cut alike",
        "after the last update of a layer, `model.set_final_weight(layer, weights[layer])`, on every rank that has it",
    ),
    _Mistake(
        "whole", r"final weight must lie on the ranks",
        "after the update each rank has its shard of the new weight: `weights[layer] = await model.all_gather("
        "weights[layer], layer)` makes it whole where the statement wants it so, and every rank hands in what it has",
    ),
    _Mistake(
        "loaded", r"were loaded before",
        "weights are loaded once, before the step; what was freed comes back by `await model.all_gather(shard, layer)`",
    ),
    _Mistake(
        "launched", r"launched \w+ and never awaited it",
        "each `work = model.launch(...)` needs its `await work` on every path; launch nothing behind the last use",
    ),
    _Mistake(
        "launch", r"launch on rank \d+ takes one communication",
        "what is launched is not awaited: `work = model.launch(model.send(rank, tensor))`, and `await work` later; "
        "computing is not launched: it goes on beside what is under way",
    ),
    _Mistake(
        "sum_first", r"all_gather must bring .* differ in samples",
        "all_gather puts shards of one tensor together and adds nothing: gradients of other samples are summed by "
        "reduce_scatter or all_reduce",
    ),
    _Mistake(
        "shards_summed", r"(?:reduce_scatter|all_reduce) must bring .* differ in shards",
        "a reduction sums the same shards of all ranks, and once: give it the whole gradient; reduce_scatter returns "
        "the rank's shard of the sum",
    ),
    _Mistake(
        "other_layers", r"must bring the same kind of tensor with .* differ in layer",
        "all ranks of a group go through the layers in one order, none of them alone; ranks with other layers, such as "
        "stages, have nothing to sum or to gather over one another: is it the right group (`group=`)?",
    ),
    _Mistake(
        "group", r"must bring (?:the same kind of tensor with|gradients of one part, or|different parts)",
        "the ranks of this collective bring what does not go together: is it the right group (`group=`), does each "
        "hold its own part, do ranks that share a layer take the same samples, and do all go through the layers in "
        "one order?",
    ),
    _Mistake(
        "operations", r"the statement (?:asks for|forbids) \w+",
        "the exercise is about how it is done: read again which operations the statement names",
    ),
    _Mistake(
        "overwritten", r"was overwritten by",
        "update and the reductions work in place, so that what they were given is gone: keep the result, as in "
        "`grad_weights[layer] = await model.all_reduce(grad_weights[layer], layer)`",
    ),
    _Mistake(
        "weights_of_step", r"weights of (?:the same )?step",
        "finish all forwards and backwards of a layer before you update the weight that they take; steps of a rank's "
        "own take and update its own copy",
    ),
    _Mistake(
        "numbers", r"samples must be integers|samples must lie in",
        "get_input_activation takes the numbers of samples, such as range(4, 8), and not how many there are; they end "
        "before global_batch_size, and the last microbatch may be smaller",
    ),
    _Mistake(
        "rank", r"(?:dest|source) must be a rank",
        "`send(rank, tensor)` and `receive(rank)`: the rank comes first; in a pipeline the first stage has nobody "
        "before it and the last nobody after it, and in a ring (rank + 1) % n comes after rank n - 1",
    ),
    _Mistake(
        "bucket", r"buckets of the same length",
        "a list that was given to a launched operation belongs to it: begin a new list, and do not clear that one; and "
        "all ranks put the same layers into one",
    ),
    _Mistake(
        "gradient_of_layer", r"weight_grad must be of layer",
        "the way back makes the gradients of the last layer first: keep each under the number of its layer",
    ),
    _Mistake(
        "layer", r"must be of layer \d+|layer must lie in",
        "layers are numbered through the model, on every rank: activations[k] is the input of layer k, forward(k, "
        "activations[k], ...) makes activations[k + 1], and backward goes from the last layer to the first, each with "
        "the gradient that the one before returned",
    ),
    _Mistake(
        "same_samples_of_ring", r"queries and keys must be of the same samples",
        "ranks among which blocks travel take the same samples, each other tokens of them: which does each take?",
    ),
    _Mistake(
        "same_samples", r"must be of the same samples",
        "the input and the gradient of a backward belong to one microbatch: are they stored under one key?",
    ),
    _Mistake(
        "partial", r"must be a complete sum|has all parts|needs values that combine .*, got Partial",
        "what one part makes is a partial sum: `await model.all_reduce(partial, layer, group=parts)` before anything "
        "else takes it, in both passes",
    ),
    _Mistake(
        "sequence", r"must hold the whole sequence",
        "a layer computes on whole sequences: all_gather the shards over the ranks of the parts, for the pass alone",
    ),
    _Mistake(
        "attention", r"an attention needs the keys and values of the whole sequence",
        "forward takes a shard of the sequence through all layers but attention; ask `model.has_attention(layer)`, and "
        "take those in steps",
    ),
    _Mistake(
        "keys", r"lacks keys of",
        "the queries have not seen every block: how many times must blocks go on until each was on every rank?",
    ),
    _Mistake(
        "queries", r"lacks queries of",
        "the gradient of your block must come home with what all ranks have added to it",
    ),
    _Mistake(
        "twice", r"sums over (keys|queries): shard .* is in both",
        "a block was used twice: which one is here now, and which one came in?",
    ),
    _Mistake(
        "cut", r"the gradient of layer \d+ must cover the whole sequence",
        "each rank has seen some tokens of its samples: before the update, sum a layer's gradient over all ranks",
    ),
    _Mistake(
        "norms", r"\(norms, biases\) must cover the whole sequence",
        "norms and biases are on every rank and each has seen its shard of the sequence: before the update, all_reduce "
        "a layer's gradient over the ranks of the parts",
    ),
    _Mistake(
        "index", r"must lie in 0\.\.num_(?:shards|parts)-1|the numbers of parts must agree",
        "first the index, which counts from 0, then how many there are: `tensor.shard(index, n)`, "
        "`load_weights(layer, part=index, num_parts=n)`; the index is the rank's place among those that divide the "
        "layer, `mesh.coord(...)`, and not its rank",
    ),
    _Mistake(
        "exchange", r"must be as many as there are parts of the experts",
        "the ranks that hold the parts exchange tokens, `group=parts`, and route is told how many they are",
    ),
    _Mistake(
        "own_samples", r"must bring copies of different samples",
        "every rank takes samples of its own, also those that hold parts of the same experts",
    ),
    _Mistake(
        "tokens_there", r"must be the copies for the weight's part|experts must be given copies",
        "tokens go to the experts before these take them: `await model.all_to_all(tokens, layer, group=parts)` after "
        "route, in the group of ranks that hold the parts",
    ),
    _Mistake(
        "tokens_back", r"must come from all parts of the experts",
        "what the experts made goes back to the ranks whose tokens it is: a second all_to_all, in both passes",
    ),
    _Mistake(
        "experts_over_parts", r"must bring gradients of one part of the experts",
        "other ranks of a group hold other experts: sum a part's gradient over the ranks that hold the same part",
    ),
    _Mistake(
        "complete", r"must be complete",
        "a shard cannot compute: `weights['full'] = await model.all_gather(weights[layer], layer)` first",
    ),
    _Mistake(
        "shards", r"must hold the weight's shards|exactly the weight's shards",
        "weight, gradient and optimizer state of an update are of the same shard: `.shard(model.rank, "
        "model.world_size)` cuts it, reduce_scatter returns it",
    ),
    _Mistake(
        "whole_and_shard", r"that add: num_shards must be equal",
        "a whole gradient meets a shard of one: reduce_scatter the new one, alone, before it is added to your shard",
    ),
    _Mistake(
        "other_shards", r"that add: shards must be equal",
        "only equal shards are added, of different samples; `shard.combine(other)` puts different shards of one sum "
        "together",
    ),
    _Mistake(
        "other_samples", r"that combine: samples must be equal",
        "`combine` puts different shards of one sum together; gradients of different samples are added, `+`",
    ),
    _Mistake(
        "made", r"was made by hand|is a copy made|dataclasses\.replace|was altered|belongs to rank",
        "tensors come out of the model's operations, and are neither made, copied nor changed",
    ),
    _Mistake(
        "order", r"same collectives in the same order|must bring",
        "all ranks of a group call the same collectives in the same order, with the same kind of tensor: is one of "
        "them in an `if model.rank ...`?",
    ),
    _Mistake(
        "adds", r"needs values that add",
        "only gradients are summed; weights are equal on all ranks, or shards that all_gather puts together",
    ),
    _Mistake(
        "deadlock", r"(?i)deadlock",
        "the message says who waits for whom: every receive needs a send of the other rank with the same tag, and "
        "every collective all ranks of its group", True,
    ),
    _Mistake(
        "received", r"never received",
        "every send needs a receive on the other side, with the same tag",
    ),
    _Mistake(
        "returned", r"must return the model",
        "the last line of the function is `return model`, outside of all loops",
    ),
    _Mistake(
        "async", r"must be an async function",
        "the function begins with `async def`, so that it can await",
    ),
    _Mistake(
        "key", r"^KeyError",
        "nothing is stored under this key: is it under another one, not made yet, freed too early, or does another "
        "rank have it?",
    ),
    _Mistake(
        "call",
        r"has no attribute|required positional argument|unexpected keyword|positional arguments? but|to unpack|"
        r"cannot unpack|is not subscriptable",
        "the card of operations in the statement says what each of them is called, takes and returns",
    ),
    _Mistake(
        "mixed", r"unsupported operand type\(s\) for \+",
        "only tensors of one kind are added: where do the two come from? Messages that cross need tags, so that each "
        "receive gets its own",
    ),
    _Mistake(
        "item", r"^IndexError",
        "there is nothing at this place: how many are there, and which numbers does the loop take, counted from 0?",
    ),
    _Mistake(
        "ahead", r"too many samples forward before",
        "how many microbatches go forward before the first comes back? Take its backward as soon as it can begin", True,
    ),
    _Mistake(
        "activations", r"too many activations at a time",
        "an activation is not needed any more once its layer's backward is done, or once it was sent on: delete it "
        "there", True,
    ),
    _Mistake(
        "loads", r"the reference's of: load_weights",
        "a rank loads the layers, or the shards of them, that it trains, and nothing else",
    ),
    _Mistake(
        "endless", r"loop that never ends|does it wait or loop for ever",
        "what is to end the loop at that line? `print` what its condition looks at",
    ),
)  # fmt: skip

NAMES = frozenset(mistake.name for mistake in _MISTAKES)
"""What an exercise may have hints of its own for, beside the checks."""


def hint_for(exercise: Exercise, check: str, message: str, *, case: Case | None = None, never_awaited: str = "") -> str:
    """Return the hint for a check that failed.

    Args:
        exercise: what was asked.
        check: the check's name.
        message: of the error, or of the budget, and lines that say where it comes from.
        case: the sizes, for a command to try; None where they are not to be shown.
        never_awaited: the call that the submission forgot to await, such as "ddp.py:12 calls all_reduce".
    """
    if never_awaited:
        call = never_awaited.rpartition(" ")[2]
        launch = f", or `work = model.launch(model.{call}(...))` and `await work` later" if call in _LAUNCHED else ""
        return f"{never_awaited} without `await`, so that it never happens; write `await` before it{launch}"
    own = exercise.hints_by_check
    found = next((mistake for mistake in _MISTAKES if re.search(mistake.pattern, message)), None)
    if found is None:
        return own.get(check) or HINTS[check].format(command=command_for(exercise, case) if case else _NO_SIZES)
    of_exercise = own.get(check) if found.of_exercise else None
    return own.get(found.name) or of_exercise or found.hint


def command_for(exercise: Exercise, case: Case) -> str:
    """Return the command that simulates a submission, `FILE`, with some sizes."""
    options: dict[str, Any] = {
        "--world-size": case.world_size,
        **({"--layers": case.num_layers} if case.workload is None else {"--model": case.workload}),
        "--batch": case.global_batch_size,
        "--hw": exercise.hardware,
    }
    words = [f"{name} {value}" for name, value in options.items()]
    words += [f"-o {name}={str(value).replace(' ', '')}" for name, value in case.options.items()]
    return f"`minitrain run {FILE}:{exercise.function} {' '.join(words)}`"
