"""Right submissions in many styles have full marks; wrong and cheating ones fail, each for its own reason."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import minitrain as mt
from minitrain.learn import Grade, grade, load_exercise
from minitrain.learn.sandbox import Limits
from minitrain.run.strategy_loading import load_strategy
from tests.learn.exercises.sources import DDP, RIGHT, SUBMISSIONS, changed, shipped_source
from tests.learn.exercises.verdicts import Wrong, names_of, require_own_reason

HANDWRITTEN = {
    "ddp_as_it_goes": "02",
    "ddp_in_one_bucket": "02",
    "ddp_with_tasks": "02",
    "ddp_launched": "02",
    "one_device_in_functions": "00",
    "accumulate_backwards": "01",
    "zero1_at_once": "03",
    "zero3_kept_apart": "05",
    "gpipe_last_in_first_out": "07",
}

SHIPPED = {  # exercise by strategy: where a shipped strategy, given as a file of its own, is a right submission
    "ddp": "02",
    "ddp_overlap": "02",
    "zero1": "03",
    "zero2": "04",
    "zero3": "05",
    "gpipe": "07",
    "one_f_one_b": "08",
    "zero3_prefetch": "09",
    "pp_dp": "10",
    "interleaved_1f1b": "11",
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", HANDWRITTEN)
def test_right_submissions_in_other_styles_have_full_marks(name: str) -> None:
    exercise, path = load_exercise(HANDWRITTEN[name]), SUBMISSIONS / f"{name}.py"
    found = grade(load_strategy(f"{path}:{exercise.function}")[1], exercise)
    assert found.score == found.max_score, str(found)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.one_in(3)
def test_shipped_strategies_have_full_marks(name: str, tmp_path: Path) -> None:
    target = SHIPPED[name]
    function = "ddp" if name == "ddp_overlap" else name
    path = tmp_path / "submission.py"
    path.write_text(shipped_source(name, function))
    found = grade(path, target)
    assert found.score == found.max_score, str(found)


ZERO3 = (SUBMISSIONS / "zero3_kept_apart.py").read_text()
ZERO1 = (SUBMISSIONS / "zero1_at_once.py").read_text()
GPIPE = (SUBMISSIONS / "gpipe_last_in_first_out.py").read_text()
ACCUMULATE = (SUBMISSIONS / "accumulate_backwards.py").read_text()


REDUCE = "        grads[k] = await model.all_reduce(grads[k], k)\n"
FORGE = (
    REDUCE,
    "        grads[k] = WeightGrad(k, model.num_layers, frozenset(range(model.global_batch_size)), "
    "model.global_batch_size)\n",
)
LIB = "from minitrain.lib import Model, Weight, WeightGrad\n"
BEGIN = "    layers = range(model.num_layers)\n"
OWN = "range(model.rank, model.global_batch_size, model.world_size)"


def doing(what: str, before: str = "") -> str:
    """Return a submission that does something of its own before it trains."""
    return changed(DDP, (BEGIN, f"{BEGIN}    {what}\n"), before=before)


MISTAKEN: dict[str, Wrong] = {
    # mistakes
    "no_reduction": ("02", changed(DDP, (REDUCE, "")), "laws", "must cover all 8 samples"),
    "whole_batch_everywhere": (
        "02", changed(DDP, (OWN, "range(model.global_batch_size)")), "laws", "counted twice|more than once"),
    "one_sample_missing": (
        "02", changed(DDP, (OWN, "range(model.rank, model.global_batch_size - 1, model.world_size)")),
        "laws", r"must cover all 8 samples, \[7\] is missing"),
    "sum_of_the_same_gradient": (
        "02", changed(DDP, (REDUCE, "        grads[k] = grads[k] + grads[k]\n" + REDUCE)), "laws", "counted twice"),
    "reduced_twice": ("02", changed(DDP, (REDUCE, REDUCE + REDUCE)), "laws", "twice|more than once"),
    "updated_twice": (
        "02", changed(DDP, ("grads.pop(k), weights[k], opt_states[k])\n",
            "grads[k], weights[k], opt_states[k])\n"
            "        weights[k], opt_states[k] = model.update(k, grads.pop(k), weights[k], opt_states[k])\n")),
        "laws", "step"),
    "untrained_weight_handed_in": (
        "02", changed(DDP, ("        weights[k], opt_states[k] = model.update(",
            "        model.set_final_weight(k, weights[k])\n        weights[k], opt_states[k] = model.update("),
            ("opt_states[k])\n        model.set_final_weight(k, weights[k])\n", "opt_states[k])\n")),
        "laws", "exactly one update"),
    "a_layer_is_not_handed_in": (
        "02", changed(DDP, ("        model.set_final_weight(k, weights[k])\n",
                            "        if k:\n            model.set_final_weight(k, weights[k])\n")),
        "laws", "layer 0 has no final weight"),
    "no_model_returned": ("02", changed(DDP, ("    return model\n", "")), "runs", "must return the model"),
    "exception": ("02", doing("1 / 0"), "runs", "ZeroDivisionError: division by zero"),
    "wrong_layer": (
        "02", changed(DDP, ("model.forward(k, activations[k], weights[k])",
                            "model.forward(k, activations[0], weights[k])")),
        "laws", "inp must be of layer 1"),
    "one_rank_stays_away": (
        "02", doing("if model.rank == 0: await model.barrier()"), "laws|runs", "deadlock|same collectives"),
    "waits_for_a_message": (
        "02", doing("if model.rank == 0: await model.receive(1)"), "runs", "deadlock"),
    "ranks_in_other_orders": (
        "02", changed(DDP, (REDUCE, "        grads[k] = await (model.all_reduce if model.rank else "
                                             "model.reduce_scatter)(grads[k], k)\n")),
        "laws", "same collectives in the same order"),
    "message_nobody_receives": (
        "02", doing("if model.rank == 0: await model.send(1, model.get_input_activation([0]), tag=1)"),
        "runs", "never received"),
    "last_microbatch_forgotten": (
        "01", changed(ACCUMULATE, ("while batch > 0:", "while batch > size:")), "laws", "must cover all"),
    "gradients_overwritten": (
        "01", changed(ACCUMULATE, ("grads[layer] + new if layer in grads else new", "new")), "laws", "must cover all"),
    "weights_loaded_again_and_never_gathered": (
        "05", changed(ZERO3, ('weights["whole", k] = await model.all_gather(weights["shard", k], k)',
                              'weights["whole", k], _ = model.load_weights(k)')),
        "laws", "were loaded before, at least in part"),
    "states_loaded_last": (
        "02", changed(DDP, ("weights[k], opt_states[k] = model.load", "weights[k], _ = model.load"),
                      (REDUCE, REDUCE + "        weights[k], opt_states[k] = model.load_weights(k)\n")),
        "laws", "were loaded before, at least in part"),
    "shards_handed_in_that_nobody_gathers": (
        "03", changed(ZERO1, ("                weights[k] = await model.all_gather(weights[k], k)\n", "")),
        "laws", "final weight must lie on the ranks as the statement asks"),
    "one_rank_hands_in": (
        "02", changed(DDP, ("        model.set_final_weight(k, weights[k])\n",
                            "        if not model.rank:\n            model.set_final_weight(k, weights[k])\n")),
        "laws", "final weight must lie on the ranks as the statement asks"),
    # too much of it
    "needless_broadcast": (
        "02", changed(DDP, (REDUCE, REDUCE + "        weights[k] = await model.broadcast(weights[k], 0)\n")),
        "communication", "communicate more than the budget"),
    "forward_twice": (
        "02", changed(DDP, ("        activations[k + 1] = ", "        model.forward(k, activations[k], weights[k])\n"
                            "        activations[k + 1] = ")), "time", "takes longer than the budget"),
    "hoard_in_a_list": (
        "00", changed(DDP, ("def ddp", "def one_device"), ("        del activations[k]\n", ""), (REDUCE, ""),
                      ("grads.pop(k)", "grads[k]"), (BEGIN, BEGIN + "    kept = []\n"),
                      ("        model.set_final", "        kept += [grads.pop(k), activations.pop(k)]\n"
                       "        model.set_final")), "memory", "holds more than the budget"),
    "hoard_in_the_stores": (
        "00", changed(DDP, ("def ddp", "def one_device"), ("        del activations[k]\n", ""), (REDUCE, ""),
                      ("grads.pop(k)", "grads[k]")),
        "memory", "holds more than the budget"),
    "zero1_with_whole_states": (
        "03", changed(ZERO1, ("state.shard(me, n)", "state"), ("shard = await", "states[k] = states[k].shard(me, n)\n"
                      "                shard = await")), "memory", "holds more than the budget"),
    "ddp_for_zero3": (
        "05", changed(ZERO3, ('            del weights["whole", k]\n', ""),
                      ('            del weights["whole", k], acts[k]\n', "            del acts[k]\n"),
                      ('        weights["whole", k] = await', '        if ("whole", k) not in weights:\n'
                       '            weights["whole", k] = await')), "memory", "holds more than the budget"),
    "gpipe_for_1f1b": (
        "08", changed(GPIPE, ("def gpipe", "def one_f_one_b")), "memory", "holds more than the budget"),
    "no_microbatches": (
        "07", changed(GPIPE, ("    stage, last", "    microbatch_size = model.global_batch_size\n    stage, last")),
        "time", "takes longer than the budget"),
    "no_prefetch": (
        "09", changed(ZERO3, ("def zero3", "def zero3_prefetch")), "time", "takes longer than the budget"),
    # forged
    "forged_gradient": ("02", changed(DDP, FORGE, before=LIB), "laws", "made by hand"),
    "forged_weight": (
        "02", changed(DDP, ("        model.set_final_weight(k, weights[k])",
                            "        model.set_final_weight(k, Weight(k, model.num_layers, 1))"), before=LIB),
        "laws", "made by hand"),
    "only_forged_weights": (
        "02", LIB + "async def ddp(model):\n    for k in range(model.num_layers):\n"
        "        model.set_final_weight(k, Weight(k, model.num_layers, 1))\n    return model\n",
        "laws", "made by hand"),
    "altered_samples": (
        "02", changed(DDP, (REDUCE, "        grads[k].samples = frozenset(range(model.global_batch_size))\n")),
        "laws", "altered"),
    "another_ranks_tensor": (
        "02", changed(DDP, (REDUCE, "        shared.setdefault(k, grads[k])\n        grads[k] = shared[k]\n" + REDUCE),
                      before="shared = {}\n"), "laws", "belongs to rank 0"),
}  # fmt: skip
"""What an honest author gets wrong, and tensors made by hand: graded in this process."""

OF_A_PROCESS: dict[str, Wrong] = {
    # cannot be loaded
    "not_a_coroutine": ("02", "def ddp(model):\n    return model\n", "runs", "must be an async function"),
    "wrong_name": ("02", changed(DDP, ("def ddp", "def my_ddp")), "runs", "has no function 'ddp'"),
    "syntax_error": ("02", "async def ddp(model)\n    return model\n", "runs", "cannot be loaded: SyntaxError"),
    # patched: the submission's process believes everything, the grader does not
    "patched_laws": (
        "02", changed(DDP, (REDUCE, ""), before="import minitrain.engine.computation as c\n"
                      "c.Computation._may_update = lambda *args: True\n"),
        "laws", "must cover all 8 samples"),
    "patched_strictness": (
        "02", changed(DDP, (REDUCE, "        grads[k].samples = frozenset(range(model.global_batch_size))\n"),
                      before="import minitrain.run.strict.laws as m\n"
                      "m.require_usable = lambda *args: None\n"),
        "laws", "must cover all 8 samples"),
    "patched_clock": (
        "02", changed(DDP, ("        activations[k + 1] = ", "        model.forward(k, activations[k], weights[k])\n"
                            "        activations[k + 1] = "),
                      before="import minitrain.run.simulation as s\n"
                      "import minitrain.machine.predictor as p\np.RuntimePredictor.compute = lambda *_: p.Price(0)\n"),
        "time", "takes longer than the budget"),
    "patched_memory": (
        "00", changed(DDP, ("def ddp", "def one_device"), ("        del activations[k]\n", ""), (REDUCE, ""),
                      ("grads.pop(k)", "grads[k]"),
                      before="import minitrain.engine.stores as s\ns.Account.high_water = lambda self: 0\n"),
        "memory", "holds more than the budget"),
    "patched_recorder": (
        "02", changed(DDP, before="import minitrain.learn.recorder as r\nr.Program.add = lambda *args: 0\n"),
        "runs|laws", "."),
    "silent_program": (
        "02", "async def ddp(model):\n    model.final_weights.update({})\n"
        "    model._observer.observers[1]._programs[model.rank].steps.clear()\n"
        "    return model\n", "laws", "no final weight"),
    # done behind the back of the submission's own engine, which the grader has never heard of
    "part_of_the_batch_declared_whole": (
        "02", changed(DDP, (REDUCE, "        model._whole_batches[id(grads[k].samples)] = "
                                    "grads[k].samples\n")), "laws", "must cover all 8 samples"),
    "samples_written_and_their_origin_too": (
        "02", changed(DDP, (REDUCE, "        grads[k].samples = frozenset(range(model.global_batch_size))\n"
                                    "        grads[k]._origin.fields = (k, grads[k].layers, grads[k].samples, "
                                    "grads[k].total_samples, grads[k].shards, grads[k].num_shards)\n")),
        "laws", "must cover all 8 samples"),
    "final_weights_written": (
        "02", changed(DDP, ("        model.set_final_weight(k, weights[k])\n",
                            "        model.final_weights[k] = weights[k]\n")), "laws", "was not handed in there"),
    "reduced_by_the_transport": (
        "02", changed(DDP, (REDUCE, "        grads[k], _ = await model.dist.all_reduce(model.rank, grads[k], 0)\n")),
        "laws", "did not come out of an operation"),
    "launch_forgotten": (
        "02", doing("model.launch(model.barrier()); model._in_flight.clear()"), "runs", "never awaited it"),
    # escapes
    "endless_loop": ("02", doing("while True: pass"), "runs", "stopped after 1 s|more time"),
    "endless_sleep": ("02", doing("import time; time.sleep(60)"), "runs", "stopped after 1 s"),
    "exit_at_import": ("02", "raise SystemExit(0)\n" + DDP, "runs", "cannot be loaded: SystemExit"),
    "exit_inside": ("02", doing("import sys; sys.exit(0)"), "runs", "SystemExit"),
    "exit_at_once": ("02", doing("import os; os._exit(0)"), "runs", "ended before the run was over, with exit code 0"),
    "fork_bomb": ("02", doing("import os\n    while True: os.fork()"), "runs", "may not"),
    "starts_a_process": ("02", doing("import subprocess; subprocess.run(['true'])"), "runs", "may not"),
    "starts_a_process_by_the_back_door": (
        "02", doing("import _posixsubprocess as p; p.fork_exec()"), "runs", "may not"),
    "foreign_functions": ("02", doing("import ctypes; ctypes.CDLL(None)"), "runs", "may not|cannot"),
    "connects": (
        "02", doing("import socket; socket.socket().connect(('127.0.0.1', 9))"), "runs", "may not|not permitted"),
    "kills_its_parent": ("02", doing("import os; os.kill(os.getppid(), 9)"), "runs", "may not"),
    "writes_a_file": ("02", doing("open('/tmp/minitrain-cheat', 'w')"), "runs", "may not write"),
    "eats_memory": ("02", doing("x = bytearray(8 * 2**30)"), "runs", "MemoryError"),
    "raises_its_limits": (
        "02", doing("import resource; resource.setrlimit(resource.RLIMIT_CPU, (9, 9))"), "runs", "may not"),
    "imports_the_solution": (
        "02", "from minitrain.strategies import ddp\n", "runs", "cannot import name 'ddp'"),
    "imports_the_reference": (
        "02", "from minitrain.run.strategy_loading import strategies\nddp = strategies()['ddp']\n", "runs",
        "KeyError: 'ddp'"),
    "asks_for_the_solution_by_name": (
        "02", "import minitrain as mt\nasync def ddp(model):\n    return await mt.strategies()['ddp'](model)\n",
        "runs", "is not callable|KeyError"),
    "reads_the_reference": (
        "02", doing(f"print(open({str(Path(mt.__file__).parent / 'learn/exercises/02_ddp/reference.py')!r}).read())"),
        "runs", "may not read"),
    "reads_the_strategies": (
        "02", doing(f"open({inspect.getsourcefile(mt.strategies()['ddp'])!r})"), "runs", "may not read"),
    "lists_the_exercises": (
        "02", doing(f"import os; os.listdir({str(Path(mt.__file__).parent / 'learn/exercises')!r})"), "runs",
        "may not read"),
    "writes_its_own_result": (
        "02", doing("import os\n    for d in range(3, 20):\n        try: os.write(d, b'[]')\n"
                    "        except OSError: pass\n    os._exit(0)"), "runs", "every size|ended before"),
    "writes_a_forged_program": (
        "02", doing("import os\n    for d in range(3, 20):\n"
                    "        try: os.write(d, b'{\"ranks\": [1, 0]}\\n[null, \"praise\", 1]\\n')\n"
                    "        except OSError: pass\n    os._exit(0)"), "runs", "makes no sense"),
}  # fmt: skip
"""What needs a process of its own to be graded."""

WRONG = {**MISTAKEN, **OF_A_PROCESS}


def test_the_corpus_is_large_enough() -> None:
    assert len(HANDWRITTEN) + len(SHIPPED) >= 15
    assert len(WRONG) >= 30


WITHOUT_EFFECT = {
    "rows made free": "model._log._rows[3::10] = [type(model._log._rows[3])(0.0)] * len(model._log)",
    "memory written off": "model._account.units -= 5; model._meter.peak_units = 0",
    "prices replaced": "object.__setattr__(model.runtime_predictor, 'collective', None)",
    "a price written": "object.__setattr__(model._log._rows[3], 'seconds', 0.0)",
}
"""What a submission does to the engine of its own process, after an honest step: only its operations count."""


@pytest.fixture(scope="module")
def honest() -> Grade:
    return grade(RIGHT, "02")


@pytest.mark.few(1)
@pytest.mark.parametrize("what", WITHOUT_EFFECT)
def test_what_a_submission_does_to_its_own_engine_changes_no_grade(what: str, honest: Grade, tmp_path: Path) -> None:
    cheating = tmp_path / "cheating.py"
    cheating.write_text(changed(DDP, ("    return model\n", f"    {WITHOUT_EFFECT[what]}\n    return model\n")))
    found = grade(cheating, "02")
    assert (found.score, found.leaderboard) == (honest.max_score, honest.leaderboard), str(found)


@pytest.mark.few(8)
@pytest.mark.parametrize("name", names_of(MISTAKEN))
def test_wrong_submissions_fail_for_their_own_reason(name: str, tmp_path: Path) -> None:
    require_own_reason(MISTAKEN[name], tmp_path, in_process=True)


@pytest.mark.few(6)
@pytest.mark.parametrize("name", OF_A_PROCESS)
@pytest.mark.one_in(3)
def test_what_tampers_with_its_process_fails_for_its_own_reason(name: str, tmp_path: Path) -> None:
    require_own_reason(OF_A_PROCESS[name], tmp_path, Limits(seconds=1 if name.startswith("endless") else 20))
