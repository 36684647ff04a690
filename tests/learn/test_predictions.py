"""Predictions are checked against the reference's run, which agrees with closed forms that stand here alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from minitrain.cli import app
from minitrain.errors import UsageError
from minitrain.learn import load_exercise, predict, shipped_exercises
from minitrain.learn.picture import kept_runs
from minitrain.learn.predictions import FIGURES, answered, questions

TENSOR, SAMPLE = 32, 8  # MiB of a layer's weight, gradient or state, and of a sample's activation
Closed = Callable[[Any], str]


def mib(size: float) -> str:
    return f"{size}MiB"


def share(part: float) -> str:
    return f"{100 * part}%"


CLOSED: dict[str, dict[str, Closed]] = {
    "00": {"memory": lambda c: mib(2 * c.L * TENSOR + (c.L + 1) * c.B * SAMPLE)},
    "01": {"memory": lambda c: mib(3 * c.L * TENSOR + (c.L + 1) * c.mb * SAMPLE)},
    "02": {"communication": lambda c: mib(2 * c.n * c.L * TENSOR), "memory": lambda c: mib(3 * c.L * TENSOR)},
    "03": {
        "communication": lambda c: mib(2 * c.n * c.L * TENSOR),
        "memory": lambda c: mib(c.L * (2 + 1 / c.n) * TENSOR),
    },
    "04": {
        "communication": lambda c: mib((c.m + 1) * c.n * c.L * TENSOR),
        "memory": lambda c: mib(c.L * (1 + 2 / c.n) * TENSOR + (c.L + 1) * c.mb * SAMPLE),
    },
    "05": {
        "communication": lambda c: mib(3 * c.m * c.n * c.L * TENSOR),
        "memory": lambda c: mib((3 * c.L / c.n + 2) * TENSOR + (c.L + 1) * c.mb * SAMPLE),
    },
    "06": {"bubble": lambda c: share(1 - 1 / c.n), "communication": lambda c: mib(2 * (c.n - 1) * c.B * SAMPLE)},
    "07": {
        "bubble": lambda c: share((c.n - 1) / (c.B / c.mb + c.n - 1)),
        "memory": lambda c: mib(c.L / c.n * (3 * TENSOR + c.B * SAMPLE)),
    },
    "08": {
        "bubble": lambda c: share((c.n - 1) / (c.B / c.mb + c.n - 1)),
        "memory": lambda c: mib(c.L / c.n * (3 * TENSOR + c.n * c.mb * SAMPLE)),
    },
    "09": {"communication": lambda c: mib(3 * c.n * c.L * TENSOR)},
    "10": {
        "bubble": lambda c: share((c.pp - 1) / (c.B / (c.n / c.pp) / c.mb + c.pp - 1)),
        "communication": lambda c: mib(2 * c.n * c.L / c.pp * TENSOR + 2 * (c.pp - 1) * c.B * SAMPLE),
    },
    "11": {
        "bubble": lambda c: share((c.n - 1) / (c.num_chunks * c.B / c.mb + c.n - 1)),
        "communication": lambda c: mib(2 * (c.n * c.num_chunks - 1) * c.B * SAMPLE),
    },
    "13": {"calls": lambda c: str(c.n * (c.B // (c.n // c.tp * c.mb) * (2 * (c.L - 1) + 1) + c.L))},
    "14": {"calls": lambda c: str(c.n * (c.B // (c.n // c.tp * c.mb) * (5 * (c.L - 1) + 1) + 2 * c.L - 1))},
    "15": {"calls": lambda c: str(c.n * (c.B // c.mb * 2 * (3 * c.cp - 2) + c.L))},  # two attentions of six units
    "16": {"calls": lambda c: str(c.n * (4 * c.m * 2 + c.L + 2))},  # two units of experts
    "17": {
        "calls": lambda c: str(c.n * c.L // c.bucket_size),
        "communication": lambda c: mib(2 * c.n * c.L * TENSOR),
    },
    "18": {"bubble": lambda c: share((c.n - 1) / (c.B / c.mb * 2 + c.n - 1))},  # forward 1, backward 1/2 + 1/2
    "19": {
        "communication": lambda c: mib(2 * (c.n - 1) * c.L * TENSOR),
        "calls": lambda c: str(2 * (c.n - 1) * c.n * c.L),
    },
    "20": {"calls": lambda c: str(2 * (c.n - 1) * c.L)},
    "22": {
        "memory": lambda c: mib((c.L + 1 + 2 / c.n) * TENSOR + (c.L + 1) * c.mb * SAMPLE),
        "communication": lambda c: mib(2 * c.n * c.L * TENSOR),
    },
    "24": {"communication": lambda c: mib(4 * (c.n - 1) * c.B * SAMPLE)},
    "23": {
        "memory": lambda c: mib(4 * c.L * TENSOR),
        "communication": lambda c: mib(2 * c.n * c.L * TENSOR),
    },
    "21": {"memory": lambda c: mib(2 * c.L * TENSOR + (c.L / c.segment + c.segment) * c.B * SAMPLE)},
}


@pytest.mark.few(3)
@pytest.mark.parametrize("number", CLOSED)
def test_closed_forms_are_near_the_reference(number: str) -> None:
    exercise = load_exercise(number)
    assert exercise.predict is not None
    case = exercise.predict.case
    n, mb = case.world_size, case.options.get("microbatch_size", case.global_batch_size // case.world_size)
    sizes = {"n": n, "L": case.num_layers, "B": case.global_batch_size, "mb": mb}
    values = SimpleNamespace(**{**case.options, **sizes, "m": case.global_batch_size // n // mb})
    answers = {name: closed(values) for name, closed in CLOSED[number].items()}
    assert set(answers) == set(exercise.predict.because)
    found = {name: (right, said) for name, right, said in answered(exercise, answers)}
    assert all(right for right, _ in found.values()), (answers, found)
    assert not any(right for _, right, _ in answered(exercise, dict.fromkeys(answers, "0") | _double(answers)))


def _double(answers: dict[str, str]) -> dict[str, str]:
    """Return answers that are twice too much."""
    units = {name: answer.lstrip("0123456789.") for name, answer in answers.items()}
    return {name: f"{2 * float(answer.removesuffix(units[name]))}{units[name]}" for name, answer in answers.items()}


def test_every_figure_is_asked_for_and_numbers_are_never_in_the_reasons() -> None:
    asked = [exercise.predict for exercise in shipped_exercises() if exercise.predict is not None]
    assert set(FIGURES) == {name for each in asked for name in each.because}
    assert not any(unit in why for each in asked for why in each.because.values() for unit in ("MiB", "GiB", "%"))


def test_answers_are_told_on_the_command_line_and_why_only_to_who_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    invoke = CliRunner().invoke
    asked = invoke(app, ["learn", "predict", "07"]).stdout
    assert (
        "4 ranks, 32 layers, batch 16, microbatch_size 2 (weight, gradient and optimizer state of a layer have 32"
        in asked
    )
    assert asked in invoke(app, ["learn", "start", "07"]).stdout.replace("\n- ", "\n").replace(":\n\n", ":\n")
    wrong = invoke(app, ["learn", "predict", "07", "bubble=50%", "memory=0.1GiB"])
    assert wrong.exit_code == 1
    assert wrong.stdout == "bubble: 50% is too much\nmemory: 0.1GiB is too little\n"
    right = invoke(app, ["learn", "predict", "07", "bubble=27.3%"])
    assert right.exit_code == 0
    assert "bubble: right, it is 27.1%: of m + p - 1 turns" in right.stdout
    assert json.loads(Path(".minitrain-learn.json").read_text())["07_gpipe"]["predicted"] == {"bubble": "27.3%"}
    assert "asks nothing" in invoke(app, ["learn", "predict", "12"]).stdout


def test_a_notebook_asks_and_tells(capsys: pytest.CaptureFixture[str]) -> None:
    predict("08", bubble="", memory="1.25 GiB")
    printed = capsys.readouterr().out
    assert questions(load_exercise("08"))[0] in printed
    assert "  right, it is" in printed
    assert printed.count("  right") == 1


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"bubble": "0.27"}, "bubble must be a number with one of the units %, got '0.27'; write it such as 12%"),
        ({"memory": "3 Gb"}, "memory must be a number with one of the units B, kB, MB, GB, KiB, MiB, GiB, got '3 Gb'"),
        ({"memory": "-1GiB"}, "got '-1GiB'"),
        ({"mfu": "3%"}, "exercise 08_1f1b asks for bubble, memory, got 'mfu'"),
    ],
)
def test_an_answer_without_its_unit_is_refused(answers: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as found:
        list(answered(load_exercise("08"), answers))
    assert said in str(found.value)


def test_without_the_reference_a_kept_run_knows_the_answers(tmp_path: Path) -> None:
    folder = shutil.copytree(load_exercise("02").folder, tmp_path / "02_ddp")
    for name, text in kept_runs(load_exercise("02")):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(text)
    (folder / "reference.py").unlink()
    assert [right for _, right, _ in answered(load_exercise(folder), {"communication": "12GiB", "memory": "9GiB"})] == [
        True,
        False,
    ]
