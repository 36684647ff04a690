"""Cheats by class, each with its verdict: it fails a check for its own reason, or changes no grade.

A cheat that fails otherwise, say by a name that is misspelt here, fails its test. What tampers with its process
gets one, and most of that is `slow`; all else is graded in this process.

More of them are in `test_corpus.py` (forged tensors, a patched engine) and in the corpora of parts, sequences and
experts; escapes of the process are in `test_isolation.py`, and hangs in `tests/engine`.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from minitrain.learn import Grade, grade
from minitrain.learn.exercise import load_exercise
from minitrain.learn.sandbox import Limits
from tests.learn.exercises.sources import DDP, RIGHT, SUBMISSIONS, changed, shipped_source
from tests.learn.exercises.test_corpus import WITHOUT_EFFECT as OF_THE_ENGINE
from tests.learn.exercises.test_corpus import WRONG
from tests.learn.exercises.verdicts import Wrong, require_own_reason

REDUCE = "        grads[k] = await model.all_reduce(grads[k], k)\n"
BEGIN = "    layers = range(model.num_layers)\n"
END = "    return model\n"
FINAL = "        model.set_final_weight(k, weights[k])\n"
UPDATE = "        weights[k], opt_states[k] = model.update(k, grads.pop(k), weights[k], opt_states[k])\n"
LOADED = "weights[k], opt_states[k] = model.load_weights(k)"
OWN = "range(model.rank, model.global_batch_size, model.world_size)"
GATHERED = 'weights["whole", k] = await model.all_gather(weights["shard", k], k)'
ZERO3 = (SUBMISSIONS / "zero3_kept_apart.py").read_text()
EXPERTS = load_exercise("16").solution
HELD = "[model.get_input_activation([0]) for _ in range(24)]"
TOO_MUCH = ("memory", "more than the budget")
SAME = ""
"""The verdict of a cheat that changes no grade."""


def reducing(*lines: str, before: str = "") -> str:
    """Return data parallelism that sums its gradients by other lines."""
    return changed(DDP, (REDUCE, "".join(f"        {line}\n" for line in lines)), before=before)


def beginning(*lines: str, before: str = "") -> str:
    """Return data parallelism that does something first."""
    return changed(DDP, (BEGIN, BEGIN + "".join(f"    {line}\n" for line in lines)), before=before)


def ending(*lines: str, before: str = "") -> str:
    """Return data parallelism that does something last."""
    return changed(DDP, (END, "".join(f"    {line}\n" for line in lines) + END), before=before)


LAUNCH = "work = model.launch(model.all_reduce(grads[k], k))"
PARK = ("other, count = (model.rank + 1) % model.world_size, 24 * (model.world_size > 1)", "for tag in range(count):",
        "    await model.send(other, model.get_input_activation([0]), tag=tag)")  # fmt: skip
UNPARK = ("other = (model.rank - 1) % model.world_size", "for tag in range(count):",
          "    await model.receive(other, tag=tag)")  # fmt: skip

RECORDED = """import gc
def steps():
    lists = [found for found in gc.get_objects() if isinstance(found, list) and found]
    lists = [found for found in lists if isinstance(found[0], list | tuple) and found[0]]
    return [found for found in lists if found[0][0] in ("load_weights", "get_input_activation")]
"""
"""Finds what the recorder has written down."""

SENT = """
import minitrain.learn.wire as wire
true = wire.encoded
def encoded(result):
    for rank, steps in enumerate(result.get("programs", ())):
        change(rank, steps, len(result["programs"]))
        result["lines"][rank] += [None] * (len(steps) - len(result["lines"][rank]))
    return true(result)
wire.encoded = encoded
"""


def sending(*lines: str) -> str:
    """Return data parallelism that changes the steps of each rank before they are sent to the grader."""
    return "\n    ".join([f"{DDP}\ndef change(rank, steps, n):", *lines]) + SENT


def summing(change: str) -> str:
    """Return data parallelism whose sums are changed before they are sent."""
    return sending(f"for s in steps: s[:] = {change} if s[0] == 'all_reduce' else s")


FAILING: dict[str, dict[str, Wrong]] = {
    "a result before it is there": {
        "a sum whose wait is cancelled": (
            "02",
            reducing(
                "async def wait(): grads[k] = await model.all_reduce(grads[k], k)",
                "task = asyncio.create_task(wait())",
                "await asyncio.sleep(0)",
                "task.cancel()",
                "await model.barrier()",
                before="import asyncio\n",
            ),
            "laws",
            "was overwritten by all_reduce",
        ),
        "another rank's result": (
            "02",
            reducing(
                "shared.setdefault(k, await model.all_reduce(grads[k], k))",
                "grads[k] = shared[k]",
                before="shared = {}\n",
            ),
            "laws",
            "belongs to rank",
        ),
        "another rank's launch": (
            "02",
            reducing(
                LAUNCH,
                "shared.setdefault(k, work)",
                "grads[k] = await shared[k]",
                "if shared[k] is not work: await work",
                before="shared = {}\n",
            ),
            "laws",
            "belongs to rank",
        ),
        "another rank's input, never sent": (
            "02",
            beginning(
                "shared[model.rank] = model.get_input_activation([model.rank])",
                "await model.barrier()",
                "activations[0] = model.forward(0, shared[(model.rank + 1) % model.world_size], "
                "model.load_weights(0)[0])",
                before="shared = {}\n",
            ),
            "laws",
            "belongs to rank",
        ),
        "a copy from before": (
            "02",
            reducing(
                "mine = copy.copy(grads[k])",
                "await model.all_reduce(grads[k], k)",
                "grads[k] = mine",
                before="import copy\n",
            ),
            "laws",
            "did not come out of an operation",
        ),
        "a pickled copy": (
            "02",
            reducing(
                "mine = pickle.loads(pickle.dumps(grads[k]))",
                "await model.all_reduce(grads[k], k)",
                "grads[k] = mine",
                before="import pickle\n",
            ),
            "laws",
            "did not come out of an operation",
        ),
        "a copy that has all samples": (
            "02",
            reducing(
                "grads[k] = dataclasses.replace(grads[k], samples=frozenset(range(8)))", before="import dataclasses\n"
            ),
            "laws",
            "did not come out of an operation",
        ),
        "the launch in the place of its result": (
            "02",
            reducing(LAUNCH, "grads.pop(k)", changed(UPDATE.strip(), ("grads.pop(k)", "work"))),
            "laws",
            "weight_grad must be a WeightGrad, got Launched",
        ),
        "a result twice": (
            "02",
            reducing(LAUNCH, "grads[k] = await work", "grads[k] = grads[k] + await work"),
            "laws",
            "counted twice",
        ),
        "what was given to a launch, from its operation": (
            "02",
            reducing(
                LAUNCH,
                "kept.append(work)",
                "await model.barrier()",
                "grads[k] = work._operation.given",
                before="kept = []\n",
            ),
            "laws",
            "was overwritten by all_reduce",
        ),
        "the outcome of a launch": (
            "02",
            reducing(
                LAUNCH,
                "await model.barrier()",
                "grads[k] = work._operation.outcome",
                "kept.append(work)",
                before="kept = []\n",
            ),
            "laws",
            "is the result of a launched operation",
        ),
        "a launch driven by hand": (
            "02",
            reducing(
                LAUNCH,
                "await model.barrier()",
                "try: work.__await__().send(None)",
                "except StopIteration as end: grads[k] = end.value and None",
            ),
            "laws",
            "only tensors can be held in a store",
        ),
        "what the collector knows": (
            "02",
            reducing(
                LAUNCH,
                "await model.barrier()",
                "kept.append(work)",
                "grads[k] = [o for o in gc.get_objects() if type(o).__name__ == 'WeightGrad'][-1]",
                before="import gc\nkept = []\n",
            ),
            "laws",
            "belongs to rank|is the result of a launched operation",
        ),
        "a result from the operations in flight": (
            "02",
            reducing(
                LAUNCH,
                "kept.append(work)",
                "await model.barrier()",
                "grads[k] = next(iter(model._in_flight)).outcome",
                before="kept = []\n",
            ),
            "laws",
            "is the result of a launched operation",
        ),
        "a sum by the bare transport": (
            "02",
            reducing("grads[k], _ = await model.dist.all_reduce(model.rank, grads[k], 0)"),
            "laws",
            "did not come out of an operation",
        ),
        "the clock set back": ("02", ending("model.time = 0.0"), "runs", "a clock never goes back"),
        "a launch that nobody awaits": ("02", reducing(LAUNCH), "laws", "was overwritten by all_reduce"),
        "the tensor that was given to a launch": (
            "02",
            reducing(LAUNCH, "kept.append(work)", before="kept = []\n"),
            "laws",
            "was overwritten by all_reduce",
        ),
    },
    "a step that is not closed": {
        "the others' shards loaded in the place of a gather": (
            "05",
            changed(
                ZERO3,
                (
                    GATHERED,
                    'weights["whole", k] = functools.reduce(lambda a, b: a.combine(b), '
                    '[weights["shard", k], *(model.load_weights(k, i, n)[0] for i in range(n) if i != me)])',
                ),
                before="import functools\n",
            ),
            "laws",
            "were loaded before, at least in part",
        ),
        "final weights made by hand": (
            "02",
            changed(DDP, (FINAL, "        model.final_weights[k] = type(weights[k])(k, model.num_layers, 1)\n")),
            "laws",
            "was not handed in there",
        ),
        "a sum over half of the ranks": (
            "02",
            reducing(
                "half = [rank for rank in range(model.world_size) if rank % 2 == model.rank % 2]",
                "grads[k] = await model.all_reduce(grads[k], k, group=half)",
            ),
            "laws",
            "must cover all 8 samples",
        ),
        "weights of before, from the host": (
            "02",
            changed(
                DDP,
                (
                    UPDATE,
                    "        model.host[k] = await model.offload(weights[k])\n"
                    + UPDATE
                    + "        weights[k] = await model.fetch(model.host[k])\n",
                ),
            ),
            "laws",
            "exactly one update|step 0",
        ),
        "half of a gradient reduced": (
            "02",
            reducing(
                "half = await model.all_reduce(grads[k].shard(0, 2), k)",
                "grads[k] = half.combine(grads[k].shard(1, 2))",
            ),
            "laws",
            "samples must be equal",
        ),
        "an update twice": (
            "02",
            changed(DDP, (UPDATE, "        grad = grads[k]\n" + UPDATE + UPDATE.replace("grads.pop(k)", "grad"))),
            "laws",
            "stems from weights of step 0",
        ),
        "states of another load": (
            "02",
            changed(
                DDP, (LOADED, "weights[k], _ = model.load_weights(k)\n        _, opt_states[k] = model.load_weights(k)")
            ),
            "laws",
            "were loaded before, at least in part",
        ),
        "the next step begun": ("02", ending("model.load_weights(0)"), "laws", "were loaded before, at least in part"),
        "the state of another layer": (
            "02",
            changed(DDP, (UPDATE, UPDATE.replace("opt_states[k])", "opt_states[0])"))),
            "laws",
            "opt_state must be of layer 2 for layer 2",
        ),
        "the weight of another layer": (
            "02",
            changed(DDP, ("act_grads[0], weights[k])", "act_grads[0], weights[0])")),
            "laws",
            "weight must be of layer 2 for layer 2",
        ),
        "a weight that an earlier run trained": (
            "02",
            changed(
                DDP,
                (
                    FINAL,
                    "        kept.setdefault((model.rank, k), weights[k])\n"
                    "        model.set_final_weight(k, kept[model.rank, k])\n",
                ),
                before="kept = {}\n",
            ),
            "laws",
            "before the run|belongs to",
        ),
        "one rank updates for all": (
            "02",
            changed(
                DDP,
                (
                    UPDATE,
                    "        if model.rank == 0:\n    "
                    + UPDATE
                    + "        weights[k] = await model.broadcast(weights[k], 0)\n",
                ),
            ),
            "communication",
            "communicate more than the budget",
        ),
        "weights of the step before": (
            "02",
            changed(
                DDP,
                (
                    "        model.set_final_weight(k, weights[k])\n",
                    "        model.set_final_weight(k, model.load_weights(k)[0])\n",
                ),
            ),
            "laws",
            "were loaded before|exactly one update",
        ),
        "final weights of other layers": (
            "02",
            changed(
                DDP,
                ("        model.set_final_weight(k, weights[k])\n", "        model.set_final_weight(0, weights[k])\n"),
            ),
            "laws",
            "weight must be of layer 0 for layer 0",
        ),
        "shards handed in where the whole is asked for": (
            "03",
            changed(
                shipped_source("zero1"),
                ("        weights[layer] = await model.all_gather(weights[layer], layer)\n", ""),
            ),
            "laws",
            "final weight must lie on the ranks as the statement asks",
        ),
        "nothing is handed in": (
            "02",
            changed(DDP, ("        model.set_final_weight(k, weights[k])\n", "")),
            "laws",
            "has no final weight",
        ),
    },
    "what is in flight": {
        **{
            name: ("02", beginning(*lines, before="import " + before + "\nkept = []\n"), *TOO_MUCH)
            for name, before, *lines in (
                ("kept by a default", "os", f"def f(held={HELD}): pass", "kept.append(f)"),
                ("kept by a context", "contextvars", f"contextvars.ContextVar('held').set({HELD})"),
                ("kept by a module", "sys", "kept.append(type(sys)('held'))", f"kept[-1].held = {HELD}"),
                ("kept by a finalizer", "weakref", f"weakref.finalize(model, print, {HELD}).atexit = False"),
                ("kept by a timer", "asyncio", f"asyncio.get_running_loop().call_later(3600, print, {HELD})"),
                ("kept by a class", "os", f"kept.append(type('Held', (), {{'held': {HELD}}}))"),
                ("kept by a partial", "functools", f"kept.append(functools.partial(print, {HELD}))"),
                ("kept by a circle", "gc", f"gc.disable(); held = {HELD}", "held.append(held)", "del held"),
                ("kept by an array", "numpy", f"kept.append(numpy.array({HELD}, dtype=object))"),
                ("kept by a frame", "sys", "def f(held): kept.append(sys._getframe())", f"f({HELD})"),
                (
                    "kept by a future",
                    "asyncio",
                    "kept.append(asyncio.get_running_loop().create_future())",
                    f"kept[-1].set_result({HELD})",
                ),
                (
                    "kept by a queue",
                    "asyncio",
                    "kept.append(asyncio.Queue())",
                    f"for held in {HELD}: kept[-1].put_nowait(held)",
                ),
                (
                    "kept, and its origin told that it is not",
                    "os",
                    f"kept.extend({HELD})",
                    "for held in kept: type(held._origin).__del__(held._origin)",
                ),
                (
                    "kept by copies with its slots",
                    "copy",
                    f"for held in {HELD}:",
                    "    kept.append(copy.copy(held))",
                    "    for name in ('_origin', '_units', '_home'):",
                    "        if hasattr(held, name): setattr(kept[-1], name, getattr(held, name))",
                    "del held",
                ),
                ("kept by the event loop", "asyncio", f"asyncio.get_running_loop().held = {HELD}"),
                ("kept by a cache", "functools", f"kept.append(functools.cache(lambda _: {HELD}))", "kept[-1](0)"),
            )
        },
        "kept by a tag": (
            "02",
            beginning(
                f"held = {HELD}",
                "tag = lambda: held",
                "del held",
                "if model.world_size > 1: await model.send((model.rank + 1) % model.world_size, "
                "model.get_input_activation([0]), tag=tag)",
            ),
            "runs",
            "sent and never received",
        ),
        "activations parked in messages": (
            "02",
            changed(beginning(*PARK), (END, "".join(f"    {line}\n" for line in UNPARK) + END)),
            "memory",
            "more than the budget",
        ),
        "activations parked in launched messages": (
            "02",
            changed(
                beginning(
                    PARK[0],
                    "works = []",
                    PARK[1],
                    "    works.append(model.launch(model.send(other, model.get_input_activation([0]), tag=tag)))",
                ),
                (END, "".join(f"    {line}\n" for line in (*UNPARK, "for work in works: await work")) + END),
            ),
            "memory",
            "more than the budget",
        ),
        "kept by a closure": (
            "02",
            beginning("held = [model.get_input_activation([0]) for _ in range(24)]", "model.keeper = lambda: held"),
            "memory",
            "more than the budget",
        ),
        "kept by an exception": (
            "02",
            beginning(
                "def fail():",
                "    held = [model.get_input_activation([0]) for _ in range(24)]",
                "    raise ValueError",
                "try: fail()",
                "except ValueError as error: kept.append(error)",
                before="kept = []\n",
            ),
            "memory",
            "more than the budget",
        ),
        "kept by a generator": (
            "02",
            beginning(
                "def hold():",
                "    held = [model.get_input_activation([0]) for _ in range(24)]",
                "    yield",
                "    del held",
                "kept.append(hold())",
                "next(kept[-1])",
                before="kept = []\n",
            ),
            "memory",
            "more than the budget",
        ),
        "kept by a task": (
            "02",
            beginning(
                "async def hold():",
                "    held = [model.get_input_activation([0]) for _ in range(24)]",
                "    await done.wait()",
                "    del held",
                "import asyncio",
                "done = asyncio.Event()",
                "task = asyncio.create_task(hold())",
                "await asyncio.sleep(0)",
            ),
            "memory",
            "more than the budget",
        ),
    },
    "work that is not done": {
        "a layer left out": (
            "02",
            changed(
                DDP,
                (
                    "k, activations[k], weights[k])\n    act",
                    "k, activations[k], weights[k]) if k else activations[k]\n    act",
                ),
            ),
            "laws",
            "inp must be of layer 1 for layer 1",
        ),
        "one sample for all": (
            "02",
            changed(DDP, (OWN, "[0] * (model.global_batch_size // model.world_size)")),
            "laws",
            "is counted twice",
        ),
        "samples that are listed otherwise each time": (
            "02",
            changed(
                DDP,
                (OWN, f"Liar({OWN})"),
                before="class Liar(list):\n    def __iter__(self): "
                "return iter(range(8))\n    def __len__(self): return 1\n",
            ),
            "laws",
            "is counted twice",
        ),
        "samples that are negative": (
            "02",
            changed(DDP, (OWN, f"[-1 - sample for sample in {OWN}]")),
            "laws",
            "samples must lie in 0..7",
        ),
        "samples that are truths": ("02", changed(DDP, (OWN, "[True, False]")), "laws", "samples must be integers"),
        "samples that are fractions": (
            "02",
            changed(DDP, (OWN, f"[float(s) for s in {OWN}]")),
            "laws",
            "samples must be integers",
        ),
        "one sample that differs from itself": (
            "02",
            changed(
                DDP,
                (OWN, "[S(model.rank)] * (model.global_batch_size // model.world_size)"),
                before="class S(int):\n    __hash__, __eq__ = object.__hash__, object.__eq__\n\n",
            ),
            "laws",
            "must cover all 8 samples",
        ),
        "samples of another step": (
            "02",
            changed(DDP, (OWN, f"[sample + model.global_batch_size for sample in {OWN}]")),
            "laws",
            "samples must lie in 0..7",
        ),
        "the backward of another layer": (
            "02",
            changed(DDP, ("backward(k, activations[k]", "backward(k, activations[0]")),
            "laws",
            "inp must be of layer 2 for layer 2",
        ),
        "no backward": (
            "02",
            changed(DDP, (REDUCE, REDUCE + "        grads[k] = None\n")),
            "laws",
            "only tensors can be held in a store",
        ),
        "the loss of the input": (
            "02",
            changed(DDP, ("model.loss(activations.pop(model.num_layers))", "model.loss(activations[0])")),
            "laws",
            "inp must be of layer 3, the model's output",
        ),
        "the gradient of the loss made by hand": (
            "02",
            changed(
                DDP,
                (
                    "model.loss(activations.pop(model.num_layers))",
                    "mt.lib.ActivationGrad(model.num_layers - 1, model.num_layers, "
                    "activations[model.num_layers].samples, model.global_batch_size)",
                ),
                before="import minitrain as mt\nimport minitrain.lib\n",
            ),
            "laws",
            "did not come out of an operation",
        ),
        "no samples at all": ("02", changed(DDP, (OWN, "[]")), "laws", "must cover all 8 samples"),
        "experts with a share that is no number": (
            "16",
            changed(
                EXPERTS,
                ("model.route(", "functools.partial(model.route, imbalance=float('nan'))("),
                before="import functools\n",
            ),
            "runs",
            "imbalance must lie in 1..8",
        ),
        "experts with less than their share": (
            "16",
            changed(
                EXPERTS,
                ("model.route(", "functools.partial(model.route, imbalance=0.01)("),
                before="import functools\n",
            ),
            "runs",
            "imbalance must lie in 1..8",
        ),
        "dropped tokens not counted": (
            "16",
            changed(EXPERTS, (END, "    model.dropped_copies = 0\n" + END)),
            "runs",
            "model.dropped_copies of rank 0 is for reading",
        ),
        "experts handed in by hand": (
            "16",
            changed(EXPERTS, (END, "    model.final_experts = {}\n" + END)),
            "laws",
            "its experts are on no rank",
        ),
        "half of the samples": (
            "02",
            changed(
                DDP,
                (
                    "range(model.rank, model.global_batch_size, model.world_size)",
                    "range(model.rank, model.global_batch_size // 2, model.world_size)",
                ),
            ),
            "laws",
            "must cover all",
        ),
        "tokens dropped by a capacity": (
            "16",
            changed(
                EXPERTS,
                ("model.route(", "functools.partial(model.route, capacity_factor=1e-9, drop_tokens=True)("),
                before="import functools\n",
            ),
            "runs",
            "must be that of what is trained",
        ),
        "experts taken away again": (
            "16",
            changed(EXPERTS, ("    return model\n", "    model.final_experts.clear()\n    return model\n")),
            "laws",
            "its experts are on no rank",
        ),
    },
}

TREE = load_exercise("20").solution
CALL = "            await sum_over_tree(model, grad_weights, layer)\n"
UP = """        if rank + distance < n:
            grads[layer] = grads[layer] + await model.receive(rank + distance)
"""
DOWN = """        if rank + distance < n:
            await model.send(rank + distance, grads[layer])
"""

FAILING["one interface for many"] = {
    "messages of all come at once": (  # by one transfer where a tree has two, if each came at full bandwidth
        "20",
        changed(
            TREE,
            ("        await model.send(rank - distance, grads.pop(layer))\n", ""),
            (UP, ""),
            (
                CALL,
                "            if model.rank:\n"
                "                await model.send(0, grad_weights.pop(layer))\n"
                "            works = [model.launch(model.receive(peer)) for peer in range(1, n) if not model.rank]\n"
                "            for work in works:\n"
                "                grad_weights[layer] = grad_weights[layer] + await work\n" + CALL,
            ),
        ),
        "time",
        "longer than the budget",
    ),
    "messages go to all at once": (
        "20",
        changed(
            TREE,
            ("        grads[layer] = await model.receive(rank - distance)\n", ""),
            (DOWN, ""),
            (
                CALL,
                CALL + "            others = range(1, n) if model.rank == 0 else ()\n"
                "            works = [model.launch(model.send(peer, grad_weights[layer])) for peer in others]\n"
                "            for work in works:\n"
                "                await work\n"
                "            if model.rank:\n"
                "                grad_weights[layer] = await model.receive(0)\n",
            ),
        ),
        "time",
        "longer than the budget",
    ),
}

FAILING["other work where others look"] = {
    "trains once, and nothing the next time": (
        "02",
        beginning("calls.append(1)", "if len(calls) > 2: return model", before="calls = []\n"),
        "laws|runs",
        "no rank has called load_weights|its text is kept back|deadlock",
    ),
    "trains where nobody proves it": (
        "02",
        reducing(
            "if any('proof' in frame.filename for frame in inspect.stack()):",
            "    grads[k] = await model.all_reduce(grads[k], k)",
            before="import inspect\n",
        ),
        "laws",
        "must cover all 8 samples",
    ),
    "trains at the public sizes alone": (
        "02",
        beginning("if model.world_size not in (2, 4): return model"),
        "laws",
        "its text is kept back",
    ),
    "trains by the class of its model": (
        "02",
        beginning("if type(model).__mro__[1].__name__ != 'Model': return model"),
        "laws",
        "no rank has called load_weights",
    ),
    "trains once in a thousand": (
        "02",
        beginning("if random.Random(model.num_layers).random() < 0.999: return model", before="import random\n"),
        "laws",
        "no rank has called load_weights",
    ),
    "trains in its first run alone": (
        "02",
        beginning("calls.append(model.rank)", "if calls.count(0) > 1: return model", before="calls = []\n"),
        "laws|runs",
        "final weight|deadlock",
    ),
}

FREE = """
class Free(float):
    __eq__ = lambda *_: True
    __hash__ = float.__hash__
"""
ALL = """
import builtins
class All(frozenset):
    __eq__ = __le__ = __ge__ = lambda *_: True
    __hash__ = frozenset.__hash__
builtins.frozenset = All
"""
TO_ALL = """
import os
def to_all(use):
    for descriptor in range(3, 64):
        try: use(descriptor)
        except OSError: pass
"""
QUICK = """
import gc
def quick():
    for found in gc.get_objects():
        if type(found).__name__ == "RooflineDevice":
            type(found).seconds = lambda *_: 0.0
"""
NOT_THERE = "cannot be loaded: ModuleNotFoundError: No module named 'minitrain.{}'"
ENDED = "its process ended before the run was over, with exit code {}"

TAMPERING: dict[str, dict[str, tuple[str, str]]] = {
    "prices that can be reached": {
        "answers of the predictor emptied": (ending("model.runtime_predictor._answers.clear()"), SAME),
        "free prices remembered": (
            beginning("known = model.runtime_predictor._answers", "for k in known: known[k] = type(known[k])(0.0)"),
            SAME,
        ),
        "a price that is equal to everything": (
            beginning("known = model.runtime_predictor._answers", "for k in [*known]: known[k] = Free(0)", before=FREE),
            SAME,
        ),
        "a device that takes no time": (beginning("quick()", before=QUICK), SAME),
    },
    "tampering from within": {
        "a trace function": (beginning("sys.settrace(lambda *_: None)", before="import sys\n"), SAME),
        "another clock in every model": (beginning("type(model).time = property(lambda _: 0.0)"), SAME),
        "a wait in another task, and the clock put back": (
            reducing(LAUNCH, "async def wait(): kept.append(await work)",
                     "task, clock = asyncio.create_task(wait()), model.time",
                     "while not kept: await asyncio.sleep(0)", "model._time = clock", "grads[k] = kept.pop()",
                     before="import asyncio\nkept = []\n"), SAME),
        "a patched forward": ("import minitrain.lib as l\nl.Model.forward = lambda self, k, a, w, **_: a\n" + DDP,
                              "loss on rank 0: inp must be of layer 3"),
        "recorded steps cut": (
            ending("cut()", before="import gc\ndef cut():\n    for o in gc.get_objects():\n"
                   "        if type(o).__name__ == 'Program': o.steps[:] = [s for s in o.steps if s[0] != 'loss']\n"),
            ENDED.format(1)),
        "a callback at exit": (beginning("atexit.register(print, 'full marks')", before="import atexit\n"), SAME),
        "a callback of the collector": (
            beginning("gc.callbacks.append(lambda *_: None)", before="import gc\n"), SAME),
        "no collector": (beginning("gc.disable(); gc.freeze()", before="import gc\n"), SAME),
        "no limit of recursion": (beginning("sys.setrecursionlimit(10**9)", before="import sys\n"), SAME),
        "no alarm": (beginning("signal.signal(signal.SIGALRM, signal.SIG_IGN)", before="import signal\n"), SAME),
        "no alarm, and no end": (
            beginning("signal.signal(signal.SIGALRM, signal.SIG_IGN)", "while True: pass", before="import signal\n"),
            "it was stopped after 5 s",
        ),
        "a patched sleep": ("import asyncio\nasyncio.sleep = None\n" + DDP, SAME),
        "a patched max": ("import builtins\nbuiltins.max = lambda *_, **__: 0\n" + DDP, "0 is not in list"),
        "a patched hash": ("import builtins\nbuiltins.hash = lambda _: 0\n" + DDP, SAME),
        "a patched len": ("import builtins\nbuiltins.len = lambda _: 0\n" + DDP, "it was stopped after 5 s"),
        "sets that are equal to everything": (ALL + DDP, SAME),
        "a patched open": ("import builtins\nbuiltins.open = None\n" + DDP, SAME),
        "a patched isinstance": ("import builtins\nbuiltins.isinstance = lambda *_: True\n" + DDP, ENDED.format(1)),
        "a patched json": ("import json\njson.dumps = lambda *_, **__: '[]'\n" + DDP, ENDED.format(0)),
        "a patched write": ("import os\nos.write = lambda where, data: len(data)\n" + DDP, SAME),
        "patched references": ("import weakref\nweakref.ref = lambda value, *_: lambda: value\n" + DDP, SAME),
        "a patched clock of the system": ("import time\ntime.monotonic = time.time = lambda: 0.0\n" + DDP, SAME),
        "no event loops": ("import asyncio\nasyncio.new_event_loop = None\n" + DDP, SAME),
        "no importers": (
            ending("sys.meta_path.clear(); sys.path_hooks.clear()", before="import sys\n"), SAME),
        "no output": (beginning("sys.stdout = sys.stderr = None", before="import sys\n"), SAME),
        "an output of megabytes": (beginning("for _ in range(3000): print('100 of 100 points' * 60)"), SAME),
        "an exit in a destructor": (
            ending("kept.append(Last())",
                   before="import os\nclass Last:\n    def __del__(self): os._exit(0)\nkept = []\n"), SAME),
        "a profile of threads": ("import threading\nthreading.setprofile(lambda *_: None)\n" + DDP, SAME),
        "the grader's pipe closed": (beginning("to_all(os.close)", before=TO_ALL), ENDED.format(1)),
        "the grader's pipe led elsewhere": (
            beginning("to_all(lambda pipe: os.dup2(1, pipe))", before=TO_ALL), ENDED.format(0)),
        "an empty result before the true one": (
            ending("to_all(lambda pipe: os.write(pipe, b'{\"ranks\": []}\\n'))", before=TO_ALL),
            "makes no sense|did not run with every size"),
        "lines that look like a report": (
            "raise ValueError('x\\n02_ddp: 100 of 100 points\\n  passed  runs')\n" + DDP,
            "cannot be loaded: ValueError: x"),
        "a patched run": (
            "import minitrain.run.simulation as s\ns.simulate = None\n" + DDP, "'NoneType' object is not callable"),
        "a patched wire": (
            "import minitrain.learn.wire as w\nw.encoded = lambda _: iter([b'{\"ranks\": [0, 0]}\\n'])\n" + DDP,
            "makes no sense"),
        "patched tensors": (
            "import minitrain.tensors.kinds as k\nk.WeightGrad.__eq__ = lambda *_: True\n" + DDP, SAME),
        "patched tolerances": ("import minitrain.proof as p\np.TOLERANCE = 1e9\n" + DDP, NOT_THERE.format("proof")),
        "patched budgets": (
            "import minitrain.learn.budgets as b\nb.budget_for = None\n" + DDP, NOT_THERE.format("learn.budgets")),
        "patched checks": ("import minitrain.learn.checks as c\n" + DDP, NOT_THERE.format("learn.checks")),
        "no recorder": ("import sys\nsys.modules['minitrain.learn.recorder'] = None\n" + DDP, ENDED.format(1)),
        "no observer": (beginning("model._observer = None"), "was not handed in there"),
        "recorded steps of another kind": (
            ending("for s in steps(): s[:] = [('forward' if x[0] == 'backward' else x[0], *x[1:]) for x in s]",
                   before=RECORDED), "makes no sense"),
        "recorded groups of one": (
            ending("alone = lambda x: [*x[:3], [model.rank], *x[4:]] if x[0] == 'all_reduce' else x",
                   "for s in steps(): s[:] = map(alone, s)", before=RECORDED), "is not in the group"),
        "sent sums by a free algorithm": (summing("[*s[:4], 'free', s[5]]"), "the algorithm of all_reduce must be one"),
        "sent sums of no layer": (summing("[*s[:2], 1e300, *s[3:]]"), "must be for a layer of 0 to"),
        "sent sums of the others alone": (
            summing("[*s[:3], [other for other in s[3] if other != rank], *s[4:]]"), "is not in the group"),
        "sent sums of ranks without end": (summing("[*s[:3], s[3] * 15000, *s[4:]]"), SAME),
        "sent steps of private names": (sending("steps.append(['__setattr__', '_time', 0.0])"), "makes no sense"),
        "sent steps of the log as a store": (sending("steps.append(['drop', '_log', 0])"), "there is no store '_log'"),
        "sent results twice": (
            sending("steps.append([s for s in steps if s[0] == 'await'][0])"), "makes no sense"),
        "sent operations as tensors": (
            sending("steps.append(['put', 'weights', 9, {'launched': [s[0] for s in steps].index('all_reduce')}])"),
            "only tensors can be held in a store"),
        "another class of model": (ending("model.__class__ = type('Mine', (type(model),), {})"), SAME),
        "a log emptied": (ending("model._log._rows.clear()"), SAME),
    },
}  # fmt: skip
QUICK_ONES = ("a price that is equal to everything", "sets that are equal to everything", "a patched wire",
              "no observer", "recorded groups of one", "the grader's pipe led elsewhere",
              "lines that look like a report")  # fmt: skip


def of_class(cheats: dict[str, dict[str, Any]]) -> list[Any]:
    """Return classes and names, as parameters; what takes a process of its own is slow, but for some."""
    return [
        pytest.param(
            kind, name, marks=[pytest.mark.slow] if cheats is TAMPERING and name not in QUICK_ONES else [], id=name
        )
        for kind, named in cheats.items()
        for name in named
    ]


@pytest.mark.few(2)
@pytest.mark.parametrize(("kind", "name"), of_class(FAILING))
def test_a_cheat_fails_for_its_reason(kind: str, name: str, tmp_path: Path) -> None:
    require_own_reason(FAILING[kind][name], tmp_path, in_process=name != "what the collector knows")


@cache
def honest() -> Grade:
    """Return the grade of the submission that cheats are made of."""
    return grade(RIGHT, "02", hidden=False)


@pytest.mark.parametrize(("kind", "name"), of_class(TAMPERING))
def test_a_cheat_has_its_verdict(kind: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "cheating.py"
    source, verdict = TAMPERING[kind][name]
    path.write_text(source)
    found = grade(path, "02", hidden=False, limits=Limits(seconds=5 if "after 5 s" in verdict else 60))
    if verdict == SAME:
        assert (found.score, found.leaderboard) == (honest().max_score, honest().leaderboard), str(found)
    else:
        assert found.score == 0, str(found)
        assert re.search(verdict, found.failures[0].message), str(found)


def test_the_lists_are_long_enough() -> None:
    by_class = {kind: len(cheats) for kind, cheats in (FAILING | TAMPERING).items()}
    assert min(by_class.values()) >= 2, by_class
    of_the_corpus = [
        name for name in WRONG if name.startswith(("forged", "patched", "altered", "only_forged", "silent"))
    ]
    assert sum(by_class.values()) + len(of_the_corpus) + len(OF_THE_ENGINE) >= 110
