"""Cheats in the exercises on data parallelism and on experts, by class: each fails for its reason, or changes nothing.

More of them are in `test_corpus.py` (forged tensors, a patched engine, work of another step) and in the corpora of
parts, sequences and experts; escapes of the process are in `test_isolation.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from minitrain.learn import grade
from minitrain.learn.exercise import load_exercise
from minitrain.learn.solution import solution_of
from tests.learn.exercises.sources import DDP, changed
from tests.learn.exercises.verdicts import Wrong, require_own_reason

REDUCE = "        grads[k] = await model.all_reduce(grads[k], k)\n"
BEGIN = "    layers = range(model.num_layers)\n"
END = "    return model\n"
EXPERTS = solution_of(load_exercise("16"))


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

FAILING: dict[str, dict[str, Wrong]] = {
    "a result before it is there": {
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
        "a launch that nobody awaits": ("02", reducing(LAUNCH), "laws", "was overwritten by all_reduce"),
        "the tensor that was given to a launch": (
            "02",
            reducing(LAUNCH, "kept.append(work)", before="kept = []\n"),
            "laws",
            "was overwritten by all_reduce",
        ),
    },
    "a step that is not closed": {
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
        "nothing is handed in": (
            "02",
            changed(DDP, ("        model.set_final_weight(k, weights[k])\n", "")),
            "laws",
            "has no final weight",
        ),
    },
    "what is in flight": {
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

WITHOUT_EFFECT: dict[str, dict[str, str]] = {
    "prices that can be reached": {
        "answers of the predictor emptied": ending("model.runtime_predictor._answers.clear()"),
        "free prices remembered": beginning(
            "known = model.runtime_predictor._answers", "for key in known: known[key] = type(known[key])(0.0)"
        ),
        "a rate of the device written": beginning(
            "object.__setattr__(model.runtime_predictor.workload, 'name', 'free')", before="import contextlib\n"
        ).replace("    object.__setattr__", "    with contextlib.suppress(Exception): object.__setattr__"),
    },
    "tampering from within": {
        "a trace function": beginning("sys.settrace(lambda *_: None)", before="import sys\n"),
        "a callback at exit": beginning("atexit.register(print, 'full marks')", before="import atexit\n"),
        "a callback of the collector": beginning("gc.callbacks.append(lambda *_: None)", before="import gc\n"),
        "a patched sleep": "import asyncio\nasyncio.sleep = None\n" + DDP,
        "a patched sorted": "import builtins\nbuiltins.max = lambda *_, **__: 0\n" + DDP,
        "a patched run": "import minitrain.run.simulation as s\ns.simulate = None\n" + DDP,
        "patched tolerances": "import minitrain.proof as p\np.TOLERANCE = 1e9\n" + DDP,
        "patched budgets": "import minitrain.learn.budgets as b\nb.budget_for = lambda *_: None\n" + DDP,
        "a patched json": "import json\njson.dumps = lambda *_, **__: '[]'\n" + DDP,
        "a patched open": "import builtins\nbuiltins.open = None\n" + DDP,
        "patched references": "import weakref\nweakref.ref = lambda value, *_: lambda: value\n" + DDP,
        "a patched isinstance": "import builtins\nbuiltins.isinstance = lambda *_: True\n" + DDP,
        "a profile of threads": "import threading\nthreading.setprofile(lambda *_: None)\n" + DDP,
        "no recorder": "import sys\nsys.modules['minitrain.learn.recorder'] = None\n" + DDP,
        "another class of model": ending("model.__class__ = type('Mine', (type(model),), {})"),
        "a log emptied": ending("model._log._rows.clear()"),
        "patched checks": "import minitrain.learn.checks as c\nc.__dict__.clear()\n" + DDP,
    },
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, cheats in FAILING.items() for name in cheats])
def test_a_cheat_fails_for_its_reason(kind: str, name: str, tmp_path: Path) -> None:
    require_own_reason(FAILING[kind][name], tmp_path)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, cheats in WITHOUT_EFFECT.items() for name in cheats])
def test_a_cheat_changes_no_grade(kind: str, name: str, tmp_path: Path) -> None:
    honest, cheating = tmp_path / "honest.py", tmp_path / "cheating.py"
    honest.write_text(DDP)
    cheating.write_text(WITHOUT_EFFECT[kind][name])
    first, second = (grade(path, "02") for path in (honest, cheating))
    assert second.leaderboard in ({}, first.leaderboard), str(second)
    assert second.score in (0, first.max_score), str(second)
