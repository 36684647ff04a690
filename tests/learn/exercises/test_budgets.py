"""Budgets are as tight as the statements: what holds, gathers, sends or reduces once too often is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from minitrain.learn import Grade, grade
from minitrain.run.strategy_loading import load_strategy
from tests.learn.exercises.sources import changed, shipped_source

WARMUP = ("warmup = min(num_stages - 1 - stage, len(batches))", "warmup = min(num_stages - stage, len(batches))")
FREE = "            del activations[layer], grad_activations[layer]\n"
FREE_KEYED = "            del activations[layer, i], grad_activations[layer]\n"
REDUCE = "        grad_weights[layer] = await model.all_reduce(grad_weights[layer], layer)\n"
GATHER = '            weights["full"] = await model.all_gather(weights[layer], layer)\n'
MESSAGE = (
    "    if stage == 0 and num_stages > 1:\n        await model.send(1, model.get_input_activation([0]), tag=1)\n"
    "    if stage == 1:\n        await model.receive(0, tag=1)\n"
    "    for layer in layers:\n        weights[layer], opt_states[layer] = model.update("
)
LATE = (
    "            kept.append(activations.pop((layer, i)))\n"
    "            del kept[: -len(layers)], grad_activations[layer]\n"
)
STORAGE = "model.storage()\n"

ATTACKS: dict[str, tuple[str, str, str, list[tuple[str, str]]]] = {
    # held longer or earlier than the statement says: one microbatch, one activation, one whole tensor more
    "00_the_input_twice": ("single", "00", "memory", [
        ("        for layer in layers:\n            activations[layer + 1]",
         "        twice = model.get_input_activation(samples)\n        for layer in layers:\n"
         "            activations[layer + 1]")]),
    "01_one_microbatch_more": ("single", "01", "memory", [
        (STORAGE, STORAGE + "    kept = []\n"),
        (FREE, "            kept.append(activations.pop(layer))\n"
               "            del kept[: -len(layers)], grad_activations[layer]\n")]),
    "02_the_input_twice": ("ddp", "02", "memory", [
        ("        for layer in layers:\n            activations[layer + 1]",
         "        twice = model.get_input_activation(samples)\n        again = model.get_input_activation(samples)\n"
         "        for layer in layers:\n            activations[layer + 1]")]),
    "03_one_microbatch_more": ("zero1", "03", "memory", [
        (STORAGE, STORAGE + "    kept = []\n"),
        (FREE, "            kept.append(activations.pop(layer))\n"
               "            del kept[: -len(layers)], grad_activations[layer]\n")]),
    "03_some_whole_states": ("zero1", "03", "memory", [
        ("        opt_states[layer] = opt_states[layer].shard(rank, world_size)\n",
         "        if layer > 2:\n            opt_states[layer] = opt_states[layer].shard(rank, world_size)\n"),
        ("    for layer in layers:\n        weights[layer], opt_states[layer] = model.update(",
         "    for layer in layers:\n        opt_states[layer] = opt_states[layer].shard(rank, world_size) "
         "if layer <= 2 else opt_states[layer]\n        weights[layer], opt_states[layer] = model.update(")]),
    "04_one_gradient_more": ("zero2", "04", "memory", [
        (STORAGE, STORAGE + "    kept = []\n"),
        ('grad_weights["new"] = await model.reduce_scatter(grad_weights.pop("new"), layer)',
         'kept = [grad_weights.pop("new")]\n                '
         'grad_weights["new"] = await model.reduce_scatter(kept[0], layer)')]),
    "05_one_weight_more": ("zero3", "05", "memory", [
        (GATHER, '            kept = weights.pop("full", None)\n' + GATHER),
        ('            del weights["full"]\n', ""),
        ('grad_activations[layer], weights["full"]\n            if', "grad_activations[layer]\n            if")]),
    "05_one_gradient_more": ("zero3", "05", "memory", [
        ('grad_weights["new"] = await model.reduce_scatter(grad_weights.pop("new"), layer)',
         'kept = [grad_weights.pop("new")]\n                '
         'grad_weights["new"] = await model.reduce_scatter(kept[0], layer)')]),
    "06_the_output_kept": ("gpipe", "06", "memory", [
        ("await messages.send(after, activations.pop((layers.stop, i)))",
         "await messages.send(after, activations[layers.stop, i])\n"
         "            inp = activations[layers[-1], i]\n"
         "            activations['twice'] = model.forward(layers[-1], inp, weights[layers[-1]])")]),
    "08_one_warmup_more": ("one_f_one_b", "08", "memory", [WARMUP]),
    "08_one_warmup_more_on_the_first_rank": ("one_f_one_b", "08", "memory", [
        (WARMUP[0], WARMUP[0].replace("- stage", "- stage + (stage == 0)"))]),
    "08_freed_one_microbatch_late": ("one_f_one_b", "08", "memory", [
        (STORAGE, STORAGE + "    kept = []\n"), (FREE_KEYED, LATE)]),
    "09_two_gathers_ahead": ("zero3_prefetch", "09", "memory", [("lookahead: int = 1", "lookahead: int = 2")]),
    "10_one_warmup_more": ("pp_dp", "10", "memory", [
        ("warmup = min(pp - 1 - stage, len(batches))", "warmup = min(pp - stage, len(batches))")]),
    "11_one_warmup_more": ("interleaved_1f1b", "11", "memory", [
        ("2 * (pp - 1 - place), num_steps)", "2 * (pp - 1 - place) + 1, num_steps)")]),
    # sent once too often
    "02_one_all_reduce_more": ("ddp", "02", "communication", [
        ("    return model\n", "    return model\n"),
        ("    for layer in layers:\n        weights[layer], opt_states[layer] = model.update(",
         "    weights[0] = await model.broadcast(weights[0], 0)\n"
         "    for layer in layers:\n        weights[layer], opt_states[layer] = model.update(")]),
    "02_reduced_in_every_microbatch": ("ddp", "02", "communication", [
        ("microbatch_size: int | None = None", "microbatch_size: int | None = 1"),
        (REDUCE, "        pass\n"),
        ('add(grad_weights.get(layer), grad_weights.pop("new"))',
         'add(grad_weights.get(layer), await model.all_reduce(grad_weights.pop("new"), layer))')]),
    "03_one_gather_more": ("zero1", "03", "communication", [
        ("        model.set_final_weight(layer, weights[layer])\n",
         "        model.set_final_weight(layer, weights[layer])\n        if layer == 0:\n"
         "            await model.all_gather(weights[layer].shard(rank, world_size), layer)\n")]),
    "04_one_gather_more": ("zero2", "04", "communication", [
        ("        model.set_final_weight(layer, weights[layer])\n",
         "        model.set_final_weight(layer, weights[layer])\n        if layer == 0:\n"
         "            await model.all_gather(weights[layer].shard(rank, world_size), layer)\n")]),
    "05_one_gather_more": ("zero3", "05", "communication", [
        ("        model.set_final_weight(layer, weights[layer])\n",
         "        model.set_final_weight(layer, weights[layer])\n        if layer == 0:\n"
         "            await model.all_gather(weights[layer], layer)\n")]),
    "05_gathers_the_final_weights": ("zero3", "05", "communication", [
        ("        model.set_final_weight(layer, weights[layer])\n",
         "        weights[layer] = await model.all_gather(weights[layer], layer)\n"
         "        model.set_final_weight(layer, weights[layer])\n")]),
    "06_one_message_more": ("gpipe", "06", "communication", [
        ("    for layer in layers:\n        weights[layer], opt_states[layer] = model.update(", MESSAGE)]),
    "07_one_message_more": ("gpipe", "07", "communication", [
        ("    for layer in layers:\n        weights[layer], opt_states[layer] = model.update(", MESSAGE)]),
    "08_one_message_more": ("one_f_one_b", "08", "communication", [
        ("    for layer in layers:\n        weights[layer], opt_states[layer] = model.update(", MESSAGE)]),
    "09_one_gather_more": ("zero3_prefetch", "09", "communication", [
        ("    await reduce_tied(model, grad_weights)\n",
         "    await reduce_tied(model, grad_weights)\n    work = model.launch(model.all_gather(weights[0], 0))\n"),
        ("    return model\n", "    await work\n    return model\n")]),
    "10_one_all_reduce_more": ("pp_dp", "10", "communication", [
        ("        model.set_final_weight(layer, weights[layer])\n",
         "        model.set_final_weight(layer, weights[layer])\n        if layer == layers[0]:\n"
         "            await model.broadcast(weights[layer], replicas.ranks[0], layer, group=replicas)\n")]),
    "11_one_message_more": ("interleaved_1f1b", "11", "communication", [
        ("    for layers in layers_of.values():\n        for layer in layers:\n            if",
         "    if place == 0:\n        await model.send(after, model.get_input_activation([0]), tag=1)\n"
         "    if place == 1:\n        await model.receive(before, tag=1)\n"
         "    for layers in layers_of.values():\n        for layer in layers:\n            if")]),
    # the simpler exercise handed in for the harder one
    "10_gpipe_inside": ("pp_dp", "10", "memory", [
        ("warmup = min(pp - 1 - stage, len(batches))", "warmup = len(batches)")]),
    "12_one_gather_more": ("zero3", "12", "communication", [
        ("microbatch_size: int | None = None", "microbatch_size: int | None = 4"),
        ("        model.set_final_weight(layer, weights[layer])\n",
         "        model.set_final_weight(layer, weights[layer])\n        if layer == 0:\n"
         "            await model.all_gather(weights[layer], layer)\n")]),
    "12_in_one_batch": ("zero3", "12", "memory", []),
}  # fmt: skip

FUNCTIONS = {
    "00": "one_device", "01": "accumulate", "06": "naive_pipeline", "12": "challenge",
}  # fmt: skip


def graded(name: str, folder: Path, *, hidden: bool = False) -> Grade:
    """Return the grade of an attack, on the public sizes alone unless told otherwise."""
    strategy, exercise, _, edits = ATTACKS[name]
    function = FUNCTIONS.get(exercise, strategy)
    source = changed(shipped_source(strategy, function), *edits)
    if exercise == "06":
        source = changed(source, ("microbatch_size is None", "True"), ("// num_stages\n", "\n"))
    path = folder / f"{name}.py"
    path.write_text(source)
    return grade(load_strategy(f"{path}:{function}")[1], exercise, hidden=hidden)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ATTACKS)
def test_what_is_done_once_too_often_is_refused(name: str, tmp_path: Path) -> None:
    found = graded(name, tmp_path)
    names = [failure.name for failure in found.failures]
    assert ATTACKS[name][2] in names, str(found)
    assert names[0] not in ("runs", "laws", "numerics"), str(found)  # it trains


def test_a_schedule_that_keeps_too_much_is_told_where_and_what(tmp_path: Path) -> None:
    (failure,) = graded("08_one_warmup_more", tmp_path).failures
    assert failure.message.endswith("it runs too many samples forward before their backward")
    assert failure.expected == "at most 8 activations that wait for their backward, counted by sample and layer"
    assert failure.got == "12 (samples 0-5; layers 0-1)"
    heading, *held = failure.held
    assert re.fullmatch(
        r"rank 0 at [\d.]+ µs, after forward of layer 1, samples 4-5, at 08_one_warmup_more.py:\d+", heading
    )
    assert all("activations of layer" in line for line in held)
    assert held[-1].endswith("just made")


def test_what_a_variable_holds_is_named(tmp_path: Path) -> None:
    (failure,) = graded("05_one_weight_more", tmp_path).failures
    assert failure.message == "a rank holds more than the budget"
    assert any(re.search(r": weights of layer 2, made at .*, held in a variable", line) for line in failure.held)
    assert any(re.search(r": shard 0 of 2 of weights of layers 0-2, made at ", line) for line in failure.held)


def test_what_operations_under_way_will_bring_counts(tmp_path: Path) -> None:
    (failure,) = graded("09_two_gathers_ahead", tmp_path).failures
    assert failure.held[-1].endswith("GiB: what operations under way will bring")
