"""Recording, replaying, judging, reporting and packaging."""

from __future__ import annotations

import csv
import gc
import json
import os
import re
import shutil
import subprocess
import sys
import tracemalloc
import weakref
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import minitrain as mt
from minitrain.errors import UsageError
from minitrain.learn import Exercise, Grade, grade, load_exercise, recorder, replay, shipped_exercises
from minitrain.learn.budgets import budget_for, budgets_json, run_reference
from minitrain.learn.checks import LONGEST, judge, operations_fault
from minitrain.learn.classes import FORMATS, Row, as_csv, as_gradescope, as_json, as_junit, as_table, as_text
from minitrain.learn.exercise import CHECKS, Case, CheckResult
from minitrain.learn.recorder import Program, Recorder, name_of
from minitrain.learn.replay import replayed
from minitrain.learn.sandbox import Limits
from minitrain.learn.submissions import exercise_of
from minitrain.learn.testing import assert_strategy
from minitrain.learn.verify import faults_of
from minitrain.learn.wheel import write_package
from minitrain.learn.wire import MOST_STEPS, decoded, describe, encoded
from minitrain.learn.worker import Guard, RefusedError, readable_folders, run_case
from minitrain.proof import arithmetic
from minitrain.source_lines import Place, Places
from minitrain.tensors import Weight
from tests.learn.exercises.sources import DDP, RIGHT, changed

WITHOUT_REDUCTION = "        grads[k] = await model.all_reduce(grads[k], k)\n"


def record(strategy: Any, **sizes: Any) -> tuple[mt.Run, list[list[Any]]]:
    """Return a recorded run and its programs, as they come out of JSON."""
    watching = Recorder()
    run = mt.simulate(strategy, strict=True, observers=[watching], **sizes)
    return run, json.loads(json.dumps(watching.programs))


def events_of(run: mt.Run) -> list[Any]:
    """Return the events of a run without what tags were called."""
    return [
        (event.typ, event.layer, event.rank, event.time, event.duration, event.memory, event.samples)
        for log in run.logs
        for event in log
    ]


# ---- a program is the run --------------------------------------------------------------------------------------------


LOCAL = ("diloco", "local_sgd", "pipedream_2bw", "powersgd_ddp")


@pytest.mark.parametrize("name", LOCAL)
def test_local_steps_are_refused_where_the_exercise_declares_none(name: str) -> None:
    sizes: dict[str, Any] = {"world_size": 4, "num_layers": 8, "global_batch_size": 16}
    _, programs = record(name, **sizes)
    with pytest.raises(mt.StrategyError, match="this exercise means one synchronous step"):
        mt.simulate(replayed(programs, name), **sizes)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", sorted(mt.strategies().keys() - LOCAL))
def test_a_replayed_program_is_the_same_run(name: str) -> None:
    sizes: dict[str, Any] = {"world_size": 4, "num_layers": 8, "global_batch_size": 16}
    sizes |= {"world_size": 1} if name == "single" else {}
    plain = mt.simulate(name, strict=True, **sizes)
    _, programs = record(name, **sizes)
    again = mt.simulate(replayed(programs, name), strict=True, **sizes)
    assert events_of(again) == events_of(plain)
    assert again.peak_memory_per_rank == plain.peak_memory_per_rank
    assert again.strategy == name


@pytest.mark.parametrize("offload", ["optimizer_step", "parameters"])
def test_a_step_by_the_host_is_replayed(offload: str) -> None:
    sizes: dict[str, Any] = {"world_size": 2, "num_layers": 3, "global_batch_size": 8, "microbatch_size": 2}
    sizes["offload"] = offload
    plain = mt.simulate("fsdp", strict=True, **sizes)
    _, programs = record("fsdp", **sizes)
    del sizes["offload"], sizes["microbatch_size"]
    again = mt.simulate(replayed(programs, "fsdp"), strict=True, numerics="numpy", **sizes)
    assert events_of(again) == events_of(plain)
    assert again.peak_host_memory_bytes == plain.peak_host_memory_bytes > 0


async def everything(model: Any) -> Any:
    """Use what the shipped strategies do not: every collective, odd stores, launched and tagged messages, subgroups."""
    weights, opt_states, activations, act_grads, grads = model.storage()
    weights.update({(k, "w"): model.load_weights(k)[0] for k in range(2)})
    halves = [weights[1, "w"].shard(index, 2) for index in range(2)]
    weights["again"] = halves[0].combine(halves[1])
    weights["again"] = await model.broadcast(weights["again"], 1, 0)
    weights.popitem()
    weights.pop("nobody", None)
    group = model.group([model.rank])
    activations["x"] = model.get_input_activation([model.rank])
    first, second = await model.all_to_all([activations["x"], activations["x"]])
    await model.barrier()
    await model.barrier(group)
    other = 1 - model.rank
    send = model.launch(model.send(other, activations["x"], tag="t"))
    receive = model.launch(model.receive(other, tag="t"))
    activations["y"] = await receive
    activations["y"] = await receive
    await send
    launched = model.launch(model.broadcast(weights[0, "w"], 0))
    weights["b"] = await launched
    await model.launch(model.barrier())
    bucket = model.launch(model.all_gather([weights[0, "w"].shard(model.rank, 2), halves[model.rank]], 0))
    weights["c"], weights["d"] = await bucket
    del first, second, halves, opt_states, act_grads, grads
    return model


def test_every_operation_is_replayed() -> None:
    sizes: dict[str, Any] = {"world_size": 2, "num_layers": 2, "global_batch_size": 2, "check": False}
    plain = mt.simulate(everything, strict=True, **sizes)
    _, programs = record(everything, **sizes)
    again = mt.simulate(replayed(programs, "everything"), strict=True, numerics="numpy", **sizes)
    assert events_of(again) == events_of(plain)
    assert again.peak_memory_per_rank == plain.peak_memory_per_rank


@pytest.mark.parametrize(
    "step",
    [
        ["praise", 1],
        ["forward", 0, [7, 0], [8, 0]],
        ["put", "final_weights", 0, [0, 0]],
        ["drop", "weights", 3],
        ["load_weights"],
        ["await", 3, []],
        ["set_final_weight", 0, {"made": "Moon", "fields": {}}],
        ["add", [0, 0], [0, 1]],
        ["loss", {"nonsense": 1}],
        ["send", [0, 0]],
        [],
    ],
)
def test_a_program_that_makes_no_sense_is_refused(step: list[Any]) -> None:
    with pytest.raises(mt.StrategyError, match=r"^step 0 of rank 0 makes no sense: "):
        mt.simulate(replayed([[step]], "odd"), world_size=1, num_layers=2, global_batch_size=2)


def test_a_program_names_tensors_that_nobody_made() -> None:
    program = [[["set_final_weight", 0, {"made": "Weight", "fields": {"layer": 0, "layers": 1, "step": 1}}]]]
    sizes: dict[str, Any] = {"world_size": 1, "num_layers": 1, "global_batch_size": 1}
    assert mt.simulate(replayed(program, "forged"), **sizes).models[0].final_weights[0] == Weight(0, 1, 1)
    with pytest.raises(mt.LawError, match=r"did not come out of an operation|made by hand"):
        mt.simulate(replayed(program, "forged"), strict=True, numerics="numpy", **sizes)


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"error": 3},
        {"error": {"kinds": 3}},
        {"programs": 3, "lines": []},
        {"programs": [[]], "lines": [[]]},
        {"programs": [{}, []], "lines": [[], []]},
        {"programs": [[0] * 400_001, []], "lines": [[], []]},
        {"programs": [[3], []], "lines": [[], []]},
        {"programs": [[["praise"]], []], "lines": [[3], [4]]},
        {"programs": [[["load_weights", 0, 1, 0]], []], "lines": [[], []]},
    ],
)
def test_whatever_comes_back_is_judged(found: dict[str, Any]) -> None:
    exercise = load_exercise("02")
    results = [*judge(exercise, exercise.public[0], found).values()]
    assert not results[-1].passed


def forged(*lines: bytes) -> list[dict[str, Any]]:
    """Return what the grader makes of lines that came from a submission's process."""
    return decoded(b"\n".join([b"{}", *lines, b""]), 2)[1]


def test_a_forged_list_is_not_parsed_as_a_whole() -> None:
    exercise = load_exercise("02")
    line = b'[null, "load_weights", ' + b"[]," * 2**22 + b"0]"  # 12 MiB, of which Python's lists would need 250
    tracemalloc.start()
    try:
        found = judge(exercise, exercise.public[0], forged(b'{"ranks": [1, 0]}', line)[0])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "a line has 12582937 bytes, at most 262144 are allowed" in found["runs"].message
    assert peak < 3 * len(line) + 2**24


@pytest.mark.parametrize(
    "lines",
    [
        [b"\n" * (2 * MOST_STEPS + 4)],
        [b"[]"],
        [b"[" * 100_000],
        [b'{"ranks": 3}'],
        [b'{"ranks": [-1, 1]}'],
        [b'{"ranks": [3, 0]}', b"[null]"],
        [b"{"],
    ],
)
def test_lines_of_another_form_are_refused(lines: list[bytes]) -> None:
    with pytest.raises(ValueError, match=r"."):
        forged(*lines)


def test_what_is_sent_is_what_comes_back() -> None:
    _, programs = record(f"{RIGHT}:ddp", world_size=2, num_layers=2, global_batch_size=4)
    places: list[list[str | None]] = [["a.py:1"] * len(steps) for steps in programs]
    (result,) = forged(*b"".join(encoded({"programs": programs, "lines": places})).splitlines())
    assert [[*steps] for steps in result["programs"]] == programs
    assert [[*lines] for lines in result["lines"]] == places
    assert [*result["programs"][0][:2]] == programs[0][:2]
    assert forged(b"".join(encoded({"error": {"message": "no"}})).strip()) == [{"error": {"message": "no"}}]


def test_the_graders_own_run_has_a_limit_of_time() -> None:
    exercise = load_exercise("02")
    case = exercise.public[0]
    _, programs = record(f"{RIGHT}:ddp", **case.sizes)
    found = {"programs": programs, "lines": [[], []]}
    assert judge(exercise, case, found, seconds=20)["numerics"].passed
    message = judge(exercise, case, found, seconds=-1)["runs"].message
    assert re.match(
        r"the grader's own run of it was stopped after -1 s, at step 0 of \d+ of rank 0; let it do", message
    )


def test_the_graders_own_run_has_a_limit_of_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "MOST_TENSORS", 4)
    with pytest.raises(mt.StrategyError, match="a rank has 4 tensors at once; let go of those that it needs no more"):
        mt.simulate(
            replayed([[["load_weights", 0, shard, 3] for shard in range(3)]], "much"),
            world_size=1,
            num_layers=1,
            global_batch_size=1,
        )


def test_names_say_what_a_value_is() -> None:
    assert name_of(None) == {"alien": "None"}
    assert name_of([3])["bucket"] == [{"alien": "3"}]
    assert name_of(Weight(0, 1, 0))["fields"]["shards"] == [0]


def test_a_program_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MOST_STEPS", 3)
    program = Program(Places(Place))
    for _ in range(3):
        program.add("barrier")
    with pytest.raises(RuntimeError, match="is there a loop that never ends"):
        program.add("barrier")


# ---- judging ---------------------------------------------------------------------------------------------------------


def test_wrong_numbers_fail_with_layer_rank_and_difference(monkeypatch: pytest.MonkeyPatch) -> None:

    exercise = load_exercise("02")
    case = exercise.public[0]
    _, programs = record(f"{RIGHT}:ddp", **case.sizes)
    right = arithmetic.backward_weight
    monkeypatch.setattr("minitrain.proof.arithmetic.backward_weight", lambda x, g: right(x, g) * 1.01)
    judged = judge(exercise, case, {"programs": programs, "lines": [[], []]})
    assert judged["laws"].passed
    result = judged["numerics"]
    assert result.message.startswith("layer 0 on rank 0 differs from single-device training by up to ")
    assert (result.rank, result.layer, result.expected) == (0, 0, "the numbers of a single device")
    assert "differences up to" in str(result.got)


def test_what_ended_with_an_error_is_compared_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ring_attention(model: Any, microbatch_size: int = 1, cp: int = 1) -> Any:
        raise ValueError("not yet")

    monkeypatch.delattr("minitrain.learn.grader.prepare_judgement")  # seconds of JAX, for a transformer
    (failure,) = grade(ring_attention, "15", hidden=False).failures
    assert failure.message == "ValueError: not yet"


def test_a_failure_says_where_and_gives_one_hint(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(RIGHT.read_text().replace(WITHOUT_REDUCTION, ""))
    found = grade(path, "02", hidden=False)
    failure = found.failures[0]
    assert failure.line == "mine.py:15"
    assert failure.where() == "2 ranks, 3 layers, batch 8, rank 0, layer 2, step 8, mine.py:15"
    assert failure.hint == load_exercise("02").hints_by_check["laws"]
    assert [result.status for result in found.results] == ["passed", "failed", *["skipped"] * 4]
    assert failure.as_dict()["name"] == "laws"
    assert "  failed  laws" in str(found)


def test_a_hidden_size_is_not_named() -> None:
    async def ddp(model: Any) -> Any:
        if model.world_size == 8:
            raise ValueError("too many")
        return await mt.strategies()["ddp"](model)

    assert grade(ddp, "02", hidden=False).passed
    failure = grade(ddp, "02").failures[0]
    assert (failure.name, failure.size) == ("runs", "a hidden size")
    assert failure.message == (
        "ValueError; its text is kept back, since it may tell the size: run it with sizes that are not public"
    )


def test_a_function_of_ones_own_is_graded_in_place() -> None:
    found = assert_strategy(mt.strategies()["ddp"], "02")
    assert found.score == found.max_score == 100
    with pytest.raises(AssertionError, match="05_zero3: 80 of 100 points"):
        assert_strategy(mt.strategies()["ddp"], "05", hidden=False)
    assert mt.grade(mt.strategies()["zero3"], "5", hidden=False).passed


def test_what_fails_a_hidden_size_is_on_no_leaderboard() -> None:
    async def ddp(model: Any) -> Any:
        strategy = "ddp" if model.world_size < 8 else "zero1"
        return await mt.strategies()[strategy](model)

    assert grade(ddp, "02", hidden=False).leaderboard
    found = grade(ddp, "02")
    assert (found.score > 0, found.passed, found.leaderboard) == (True, False, {})


def test_a_process_that_ends_at_a_hidden_size_is_told_its_limits(tmp_path: Path) -> None:
    path = tmp_path / "ddp.py"
    begin = "async def ddp(model):\n"
    assert begin in RIGHT.read_text()
    path.write_text(
        RIGHT.read_text().replace(begin, f"{begin}    model.world_size == 8 and __import__('os')._exit(3)\n")
    )
    message = grade(path, "02", limits=Limits(seconds=30)).failures[0].message
    assert message.endswith("at a hidden size, or was stopped there: it may use 30 s and 2 GiB for all of them")


@pytest.mark.ci
def test_the_challenge_has_a_leaderboard() -> None:
    async def challenge(model: Any) -> Any:
        return await mt.strategies()["zero3_prefetch"](model, 4)

    found = grade(challenge, "12")
    assert found.passed
    assert found.leaderboard["mfu"] > 0.5
    assert set(found.leaderboard) == {"mfu", "step_time_s", "peak_memory_gib"}


def test_what_it_prints_is_captured(tmp_path: Path) -> None:
    path = tmp_path / "ddp.py"
    path.write_text("print('hello', flush=True)\n" + RIGHT.read_text())
    assert grade(f"{path}:ddp", "02", hidden=False).output == "hello\n"


def test_there_must_be_a_file_and_an_exercise(tmp_path: Path) -> None:
    with pytest.raises(mt.UsageError, match=r"there is no file .*none.py; give the file to be graded"):
        grade(tmp_path / "none.py", "02")
    with pytest.raises(mt.UsageError, match="there is no exercise '77'; use one of 00_one_device"):
        grade(RIGHT, "77")


def test_an_exercise_is_found_by_number_name_or_folder() -> None:
    folder = load_exercise("02").folder
    for name in ("2", "02", "ddp", "02_ddp", folder):
        assert load_exercise(name).name == "02_ddp"


def test_a_file_tells_its_exercise(tmp_path: Path) -> None:
    exercises = shipped_exercises()
    for name, text, expected in (
        ("02_ddp.py", "", "02_ddp"),
        ("zero3.py", "", "05_zero3"),
        ("07_mine.py", "", "07_gpipe"),
        ("work.py", "async def zero1(model): ...", "03_zero1"),
    ):
        path = tmp_path / name
        path.write_text(text)
        found = exercise_of(path, exercises)
        assert found is not None
        assert found.name == expected
    (tmp_path / "other.py").write_text("")
    assert exercise_of(tmp_path / "other.py", exercises) is None


# ---- the process's guard ---------------------------------------------------------------------------------------------


def test_the_guard_lets_python_read_its_own_files_alone(tmp_path: Path) -> None:
    guard = Guard(readable_folders(str(tmp_path)), [str(tmp_path / "secret")])
    guard("open", (str(tmp_path / "a.py"), "r", os.O_RDONLY))
    guard("open", (json.__file__, None, os.O_RDONLY))
    guard("open", (3, "r", 0))
    guard("os.listdir", (str(tmp_path),))
    guard("compile", (None, None))
    for event, args in (
        ("open", (str(tmp_path / "secret" / "a.py"), "r", os.O_RDONLY)),
        ("open", ("/etc/passwd", "r", os.O_RDONLY)),
        ("open", (str(tmp_path / "a.py"), "w", 0)),
        ("open", (str(tmp_path / "a.py"), None, os.O_WRONLY)),
        ("os.listdir", (None,)),
        ("os.system", ("true",)),
        ("ctypes.dlopen", ("libc",)),
    ):
        with pytest.raises(RefusedError, match=r"^a submission may not "):
            guard(event, args)


def test_errors_cross_the_process_as_plain_data() -> None:
    assert describe(ValueError())["message"] == "ValueError"
    found = describe(mt.LawError("no", rank=1, layer=2, op="update"))
    assert (found["rank"], found["layer"], found["op"], found["line"]) == (1, 2, "update", None)
    assert "LawError" in found["kinds"]
    assert json.loads(json.dumps(found)) == found


def test_a_case_that_fails_has_no_programs() -> None:
    async def broken(model: Any) -> Any:
        raise SystemExit(3)

    case = {"sizes": {"world_size": 1, "num_layers": 1, "global_batch_size": 1}, "options": {}}
    assert run_case(broken, {**case, "hardware": "h100_80g_nvl8"})["error"]["kinds"][0] == "SystemExit"


def test_a_submission_that_needs_too_long_is_stopped(tmp_path: Path) -> None:
    path = tmp_path / "ddp.py"
    path.write_text("import time\ntime.sleep(30)\n")
    found = grade(path, "02", limits=Limits(seconds=0.5))
    assert found.seconds < 15
    assert found.failures[0].message == "it was stopped after 0.5 s; does it wait or loop for ever?"


# ---- reports ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """A good and a bad grade, and what could not be graded."""
    bad = [
        CheckResult("runs", "passed"),
        CheckResult("laws", "failed", "not \x00 so", rank=1, step=2, expected="a", got="b", hint="look"),
        *(CheckResult(name, "skipped") for name in CHECKS[2:]),
    ]
    return [
        Row("a/02_ddp.py", grade(mt.strategies()["ddp"], "02", hidden=False)),
        Row("b/03.py", Grade("03_zero1", bad, 0.5, "printed")),
        Row("=essay.txt", reason="it is no Python file"),
    ]


def test_text_says_what_and_where(rows: list[Row]) -> None:
    text = as_text(rows)
    assert "02_ddp: 100 of 100 points\n  passed  runs\n" in text
    assert "where: rank 1, step 2\n" in text
    assert "expected a, got b\n          hint: look" in text


def test_json_holds_every_check(rows: list[Row]) -> None:
    good, bad, odd = json.loads(as_json(rows))
    assert (good["score"], good["passed"], bad["score"], bad["passed"]) == (100, True, 0, False)
    assert [check["points"] for check in good["checks"]] == [10, 15, 25, 15, 15, 20]
    assert bad["checks"][1]["message"] == "not \x00 so"
    assert [found["file"] for found in (good, bad, odd)] == ["a/02_ddp.py", "b/03.py", "=essay.txt"]
    assert (good["first_failure"], bad["first_failure"]) == (None, "laws: not \\x00 so (rank 1, step 2)")
    assert (odd["exercise"], odd["score"], odd["error"]) == (None, 0, "it is no Python file")


def test_junit_is_xml(rows: list[Row]) -> None:
    root = ElementTree.fromstring(as_junit(rows))
    good, bad, odd = root.findall("testsuite")
    assert (good.get("failures"), bad.get("failures"), bad.get("skipped")) == ("0", "1", "4")
    failure = bad.find("testcase/failure")
    assert failure is not None
    assert failure.get("message") == "not \\x00 so"
    assert [suite.get("name") for suite in (good, bad)] == ["a/02_ddp.py: 02_ddp", "b/03.py: 03_zero1"]
    assert (odd.get("errors"), odd.get("tests")) == ("1", "1")
    assert bad.find("testcase").get("classname") == "b/03.py"  # type: ignore[union-attr]  # it is there


def test_a_spreadsheet_computes_nothing_of_what_students_wrote(rows: list[Row]) -> None:
    cheat = Row("+cmd.py", Grade("02_ddp", [CheckResult("runs", "failed", '=HYPERLINK("x")')], 0.5))
    table = [*csv.DictReader(as_csv([*rows, cheat]).splitlines())]
    assert [row["file"] for row in table] == ["a/02_ddp.py", "b/03.py", "'=essay.txt", "'+cmd.py"]
    assert [row["score"] for row in table] == ["100", "0", "0", "0"]
    assert table[1]["first_failure"] == "laws: not \\x00 so (rank 1, step 2)"
    assert table[2]["first_failure"] == "it is no Python file"
    assert not [cell for row in table for cell in row.values() if cell.startswith(("=", "+", "-", "@"))]


def test_a_table_has_one_line_a_submission(rows: list[Row]) -> None:
    table = as_table(rows)
    assert [column.header for column in table.columns] == ["file", "exercise", "score", "seconds", "first failure"]
    assert [*map(str, table.columns[2].cells)] == ["100", "0", "-"]


def test_gradescope_gets_what_its_documentation_asks_for(rows: list[Row]) -> None:
    results = json.loads(as_gradescope(rows))
    assert results["score"] == 100
    assert results["execution_time"] >= 0.5
    assert set(results["tests"][0]) == {"name", "score", "max_score", "status", "output", "visibility"}
    assert {test["status"] for test in results["tests"]} == {"passed", "failed"}
    assert [(row["name"], row["order"]) for row in results["leaderboard"]] == [
        ("02_ddp: mfu", "desc"),
        ("02_ddp: step_time_s", "asc"),
        ("02_ddp: peak_memory_gib", "asc"),
    ]
    assert results["output"].startswith("=essay.txt: it is no Python file\nprinted")
    assert set(FORMATS) == {"text", "table", "csv", "gradebook", "json", "junit", "gradescope"}


def test_gradescope_shows_nothing_as_passed_that_gives_no_points(rows: list[Row]) -> None:
    tests = json.loads(as_gradescope(rows[1:]))["tests"]
    assert {(test["score"], test["status"]) for test in tests} == {(0, "failed")}
    assert tests[0]["output"] == "passed, but without points: what does not train right has none"
    assert tests[-1]["output"] == "skipped"


def test_gradescopes_leaderboard_has_each_name_once() -> None:
    both = [
        Row("", grade(mt.strategies()[name], number, hidden=False)) for name, number in (("ddp", "2"), ("zero1", "3"))
    ]
    names = [row["name"] for row in json.loads(as_gradescope(both))["leaderboard"]]
    assert len({*names}) == len(names) == 6


# ---- teachers --------------------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A teacher's own exercise."""
    folder = tmp_path / "exercises" / "01_mine"
    shutil.copytree(load_exercise("02").folder, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "wrong").mkdir()
    (folder / "wrong" / "local.py").write_text("# fails: laws\n" + RIGHT.read_text().replace(WITHOUT_REDUCTION, ""))
    return folder


def all_budgets(exercise: Exercise) -> str:
    """Return the budgets of all sizes."""
    return budgets_json(exercise, [*exercise.public, *exercise.hidden])


def test_a_sound_exercise_has_no_faults(own: Path) -> None:
    assert faults_of(load_exercise(own)) == []
    (own / "statement.md").write_text("# Again\n")
    with pytest.raises(UsageError, match=r"must end with a block ```python, .* or starter\.py be beside it"):
        load_exercise(own).starter  # noqa: B018
    (own / "starter.py").write_text("async def ddp(model):\n    return model\n")
    assert faults_of(load_exercise(own)) == []


def test_every_fault_of_an_exercise_is_named(own: Path) -> None:
    (own / "statement.md").write_text(f"# Again\n\n```python\n{RIGHT.read_text()}```\n")
    (own / "wrong" / "local.py").write_text("# fails: memory\n" + RIGHT.read_text().replace(WITHOUT_REDUCTION, ""))
    (own / "wrong" / "unnamed.py").write_text(RIGHT.read_text())
    starter, local, unnamed = faults_of(load_exercise(own))
    assert starter == "the starter has 100 points; it must have none"
    assert local == "wrong/local.py must fail for memory, it fails for ['laws']"
    assert unnamed == "wrong/unnamed.py must fail for (say: # fails: CHECK), it fails for []"


def alter(own: Path, **fields: object) -> None:
    """Write fields of an exercise anew."""
    data = json.loads((own / "exercise.json").read_text())
    (own / "exercise.json").write_text(json.dumps({**data, **fields}))


def test_a_forbidden_operation_has_no_points_and_its_line(own: Path) -> None:
    alter(own, forbidden_operations=["all_reduce"], hints_by_check={"operations": "a ring does it"})
    found = grade(RIGHT, load_exercise(own), hidden=False)
    (failure,) = found.failures
    assert (found.score, failure.name, failure.hint) == (0, "laws", "a ring does it")
    assert failure.message == "the statement forbids all_reduce: do what it does by other operations"
    assert failure.line is not None
    assert "all_reduce" in RIGHT.read_text().splitlines()[int(failure.line.split(":")[1]) - 1]
    (fault, *_) = faults_of(load_exercise(own))
    assert fault.startswith("the reference does otherwise with 2 ranks, 3 layers, batch 8: the statement forbids all_")


def test_a_required_operation_must_be_done_where_there_are_several_ranks(own: Path) -> None:
    alter(own, required_operations=["reduce_scatter"])
    (failure,) = grade(RIGHT, load_exercise(own), hidden=False).failures
    assert failure.message == "the statement asks for reduce_scatter, which no rank does"
    alone = Case(1, 2, 4, {})
    assert operations_fault(load_exercise(own), alone, [[["forward", 0]]]) is None
    alter(own, required_operations=["all_reduce"])
    assert grade(RIGHT, load_exercise(own), hidden=False).passed


TWO_LEVELS = changed(
    DDP,
    (WITHOUT_REDUCTION, ""),
    ("        weights[k], opt_states[k] = model.update(", "    for k in reversed(layers):\n" + WITHOUT_REDUCTION
     + "        weights[k], opt_states[k] = model.update("),
)  # fmt: skip
"""Data parallelism in which all reductions come after all backwards."""


def test_an_order_of_operations_is_that_of_the_reference(own: Path) -> None:
    (own / "reference.py").write_text(TWO_LEVELS)
    alter(own, ordered_operations=["backward", "all_reduce"])
    assert grade(own / "reference.py", load_exercise(own)).passed
    (failure,) = grade(RIGHT, load_exercise(own), hidden=False).failures
    assert failure.message == (
        "the statement asks for an order of backward and all_reduce: number 2 of these must be backward of layer 1 on "
        "rank 0, got all_reduce of layer 2"
    )
    assert failure.line is not None
    assert "all_reduce" in RIGHT.read_text().splitlines()[int(failure.line.split(":")[1]) - 1]


BACK = "    for k in reversed(layers):\n"
WASTEFUL = changed(
    DDP,
    (BACK, f"    kept = await model.broadcast(weights[0], 0)\n{BACK}"),
    ("    return model\n", "    del kept\n    return model\n"),
)


def test_bounds_are_multiples_of_what_the_reference_needs_and_wrong_solutions_must_show_them(own: Path) -> None:
    before = budget_for(load_exercise(own), load_exercise(own).public[0])
    alter(own, bounds={"messages": 1, "time": 1.05, "communication": 2, "memory": 1.5})
    budget = budget_for(load_exercise(own), load_exercise(own).public[0])
    assert budget.most_calls == 2 * 3  # a call of all_reduce a layer on each of two ranks
    assert budget.communication_bytes == 2 * before.communication_bytes
    assert budget.memory_bytes == 1.5 * before.reference_memory_bytes
    assert budget.step_time_s == pytest.approx(before.step_time_s * 1.05 / 1.02)
    path = own / "wrong" / "wasteful.py"
    path.write_text(f"# fails: communication: more often\n{WASTEFUL}")
    assert grade(RIGHT, load_exercise(own), hidden=False).passed
    failures = {failure.name: failure for failure in grade(path, load_exercise(own), hidden=False).failures}
    assert failures["communication"].message == "the ranks communicate more often than the budget"
    assert failures["communication"].cause == (
        "broadcast: 2 over all ranks, the reference does none, at wasteful.py:13",
    )
    lacking = "no solution in wrong/ fails because {}; add one, or nobody knows whether the exercise can tell"
    assert faults_of(load_exercise(own)) == [
        lacking.format("communicate more than the budget"),
        lacking.format("holds more than the budget"),
    ]


def test_bounds_of_memory_go_without_other_words_for_it(own: Path) -> None:
    alter(own, bounds={"memory": 1.1}, memory_slack={"weight": 1})
    with pytest.raises(mt.UsageError, match="bounds of memory go without memory_slack and memory_limit_gib"):
        load_exercise(own)


def test_a_hint_for_what_there_is_not_is_a_fault(own: Path) -> None:
    alter(own, hints_by_check={"deadlok": "look"})
    assert faults_of(load_exercise(own))[0].startswith(
        "hints_by_check has 'deadlok', which is neither a check nor a mis"
    )


def test_a_question_without_an_answer_is_a_fault(own: Path) -> None:
    sizes = {"world_size": 3, "num_layers": 3, "global_batch_size": 8}
    alter(own, predict={"sizes": sizes, "because": {"memory": "it is"}})
    (fault,) = faults_of(load_exercise(own))
    assert fault.startswith("predict asks for 3 ranks, 3 layers, batch 8, with which the reference fails: ")
    alter(own, predict={"sizes": {**sizes, "world_size": 2}, "because": {"bubble": "none", "memory": "it is"}})
    (fault,) = faults_of(load_exercise(own))
    assert (
        fault
        == "predict asks for bubble with 2 ranks, 3 layers, batch 8, where 0 is near enough; take sizes with more of it"
    )


def test_an_operation_that_there_is_not_is_refused(own: Path) -> None:
    alter(own, forbidden_operations=["allgather"])
    with pytest.raises(mt.UsageError, match=r"json: there is no operation 'allgather'; did you mean 'all_gather'\?"):
        load_exercise(own)


def test_a_wrong_solution_may_say_with_which_words_it_fails(own: Path) -> None:
    wrong = own / "wrong" / "local.py"
    source = wrong.read_text().partition("\n")[2]
    wrong.write_text("# fails: laws: must cover all\n" + source)
    assert faults_of(load_exercise(own)) == []
    wrong.write_text("# fails: laws: counted twice\n" + source)
    (fault,) = faults_of(load_exercise(own))
    assert fault.startswith("wrong/local.py must fail for laws with 'counted twice', its message is '")


def test_a_wrong_solution_may_be_said_as_changes_of_the_reference(own: Path) -> None:
    wrong = {
        "lost": {
            "fails": "laws",
            "changes": {"await model.all_reduce(grad_weights[layer], layer)": "grad_weights[layer]"},
        }
    }
    (own / "wrong.json").write_text(json.dumps(wrong))
    assert faults_of(load_exercise(own)) == []
    wrong["lost"]["fails"] = "memory"
    (own / "wrong.json").write_text(json.dumps(wrong))
    assert faults_of(load_exercise(own)) == ["lost of wrong.json must fail for memory, it fails for ['laws']"]
    wrong["lost"]["changes"] = {"nowhere": ""}
    (own / "wrong.json").write_text(json.dumps(wrong))
    with pytest.raises(UsageError, match=r"wrong\.json changes 'nowhere', which reference\.py must say, and once"):
        faults_of(load_exercise(own))


def test_a_reference_must_train_and_meet_its_budgets(own: Path) -> None:
    budgets = json.loads(all_budgets(load_exercise(own)))
    first = next(iter(budgets))
    budgets[first]["memory_bytes"] = 1
    (own / "budgets.json").write_text(json.dumps(budgets))
    assert faults_of(load_exercise(own)) == [
        "the reference does not meet its budgets with 2 ranks, 3 layers, batch 8; write them anew"
    ]
    (own / "reference.py").write_text("async def ddp(model):\n    return model\n")
    assert (
        "the reference fails with 2 ranks, 3 layers, batch 8: layer 0 has no final weight"
        in faults_of(load_exercise(own))[0]
    )


def test_three_hints_are_asked_for(own: Path) -> None:
    data = json.loads((own / "exercise.json").read_text())
    (own / "exercise.json").write_text(json.dumps({**data, "hints": ["one"]}))
    assert faults_of(load_exercise(own)) == ["it has 1 hints; give three"]


def test_a_broken_exercise_is_refused(own: Path) -> None:
    (own / "exercise.json").write_text("{}")
    with pytest.raises(
        mt.UsageError, match=r"exercise.json is not as it must be: title: expected a value, found nothing"
    ):
        load_exercise(own)


def test_budgets_on_file_stand_for_the_reference(own: Path) -> None:
    (own / "budgets.json").write_text(all_budgets(load_exercise(own)))
    (own / "reference.py").unlink()
    (own / "hidden.json").unlink()
    exercise = load_exercise(own)
    assert exercise.hidden == []
    assert budget_for(exercise, exercise.public[0]) == budget_for(load_exercise("02"), exercise.public[0])
    assert grade(RIGHT, exercise).passed


@pytest.mark.ci
def test_the_gradescope_zip_grades_in_a_clean_directory(tmp_path: Path) -> None:
    exercises: list[Exercise] = [load_exercise("02")]
    path = write_package(exercises, tmp_path / "autograder.zip", python=sys.executable)
    home = tmp_path / "autograder"
    with zipfile.ZipFile(path) as archive:
        assert not [name for name in archive.namelist() if "reference" in name]
        archive.extractall(home)
    assert re.search(
        r"pip install -q --no-compile \./minitrain-[\w.]+\+students-py3-none-any\.whl\n",
        (home / "setup.sh").read_text(),
    )
    (home / "submission").mkdir()
    shutil.copy(RIGHT, home / "submission" / "ddp.py")
    results = home / "results.json"
    environment = {
        "PATH": os.environ["PATH"],
        "MINITRAIN_SUBMISSION": str(home / "submission"),
        "MINITRAIN_RESULTS": str(results),
    }
    subprocess.run(["bash", str(home / "run_autograder")], check=True, cwd=tmp_path, env=environment)
    found = json.loads(results.read_text())
    assert found["score"] == 100
    assert [test["status"] for test in found["tests"]] == ["passed"] * 6

    (home / "submission" / "ddp.py").rename(home / "submission" / "notes.py")
    (home / "submission" / "notes.py").write_text("")
    subprocess.run(["bash", str(home / "run_autograder")], check=True, cwd=tmp_path, env=environment)
    found = json.loads(results.read_text())
    assert found["score"] == 0
    assert "notes.py: it is empty" in found["output"]

    (home / "submission" / "notes.py").write_text("x = 1\n")
    subprocess.run(["bash", str(home / "run_autograder")], check=True, cwd=tmp_path, env=environment)
    found = json.loads(results.read_text())
    assert found["score"] == 0
    assert "it is for no exercise: neither its name (such as 02_ddp.py) nor" in found["output"]


@pytest.mark.parametrize("layer", ["[k]", "{}", "-1", "'k'", "99"])
def test_a_collective_is_for_a_layer_that_there_is(tmp_path: Path, layer: str) -> None:
    file = tmp_path / "ddp.py"
    file.write_text(changed(DDP, ("all_reduce(grads[k], k)", f"all_reduce(grads[k], {layer})")))
    (failure,) = grade(file, "02", hidden=False).failures
    assert (failure.name, failure.line) == ("runs", "ddp.py:15")
    assert failure.message.startswith("all_reduce must be for a layer of 0 to 3, got ")


def test_nothing_of_a_judged_program_stays() -> None:
    exercise, recorder = load_exercise("02"), Recorder()
    case = exercise.public[0]
    run_reference(exercise, case, observers=[recorder])
    gc.disable()
    try:
        found = judge(exercise, case, {"programs": recorder.programs, "lines": recorder.lines})
        assert all(result.passed for result in found.values())
        assert found.run is not None
        model = weakref.ref(found.run.models[0])
        del found
        assert model() is None
    finally:
        gc.enable()


def test_no_text_of_a_submission_stands_where_the_report_says_its_points(tmp_path: Path) -> None:
    file = tmp_path / "ddp.py"
    forged = r"x\n02_ddp: 100 of 100 points\n  passed  runs" + "y" * 250_000
    file.write_text(f"async def ddp(model):\n    raise ValueError({forged!r}.replace('\\\\n', '\\n'))\n")
    found = grade(file, "02", hidden=False)
    lines = str(found).splitlines()
    assert lines[0] == "02_ddp: 0 of 100 points"
    (line,) = [line for line in lines if "points" in line or "passed" in line][1:]
    assert line.startswith(" " * 10 + "ValueError: x; 02_ddp: 100 of 100 points; passed  runsyyy")
    assert len(line) < LONGEST + 20
