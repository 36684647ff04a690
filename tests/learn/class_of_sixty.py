"""A class of sixty, as one is handed in: right, slow, wrong, empty, endless, huge, misnamed, copied, and late."""

# ruff: noqa: E501  (a submission a line)

from __future__ import annotations

import json
from pathlib import Path

from tests.learn.exercises.mistakes import MESH, MISTAKES, PIPELINE, PREFETCH, ZERO2
from tests.learn.exercises.sources import DDP, SUBMISSIONS, changed

REDUCE = "        grads[k] = await model.all_reduce(grads[k], k)\n"
FORWARD = "        activations[k + 1] = model.forward(k, activations[k], weights[k])\n"
SLOW = changed(DDP, (FORWARD, FORWARD.replace("activations[k + 1] = ", "") + FORWARD))
OWN = "range(model.rank, model.global_batch_size, model.world_size)"
WITH_HELPER = changed(DDP, (OWN, "share(model)"), before="from helper import share\n")
HELPER = f"def share(model):\n    return {OWN}\n"
ENDLESS = changed(DDP, ("    layers =", "    while True: pass\n    layers ="))
WRONG = [
    "the_sum_comes_after_the_update",
    "every_rank_takes_the_whole_batch",
    "gradients_are_not_added",
    "new_weights_stay_shards",
    "a_shard_computes",
    "nothing_is_sent_on",
    "no_cooldown",
    "the_gather_is_awaited_at_once",
    "replicas_do_not_sum",
    "every_rank_keeps_the_whole_state",
]
NAMES = {"00": "00_one_device", "01": "01_accumulate", "02": "02_ddp", "03": "03_zero1", "04": "04_zero2", "05": "05_zero3",
         "06": "06_naive_pipeline", "07": "07_gpipe", "08": "08_1f1b", "09": "09_prefetch", "10": "10_two_dimensions"}  # fmt: skip
RIGHT = {
    "00": (SUBMISSIONS / "one_device_in_functions.py").read_text(),
    "01": (SUBMISSIONS / "accumulate_backwards.py").read_text(),
    "02": DDP,
    "03": (SUBMISSIONS / "zero1_at_once.py").read_text(),
    "04": ZERO2,
    "05": (SUBMISSIONS / "zero3_kept_apart.py").read_text(),
    "06": PIPELINE,
    "07": PIPELINE,
    "08": PIPELINE,
    "09": PREFETCH,
    "10": MESH,
}

Handed = tuple[dict[str, str | bytes], int | None, str]
"""Files by name; the score, None for any below full marks; a pattern of the reason, "" for full marks."""


def notebook(source: str) -> str:
    """Return a notebook with a cell of a function and one that plays."""
    cells: list[dict[str, object]] = [
        {
            "cell_type": kind,
            "metadata": {},
            "source": text,
            **({"outputs": [], "execution_count": None} if kind == "code" else {}),
        }
        for kind, text in (("markdown", "My work"), ("code", source), ("code", "print(1 / 0)"))
    ]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def late() -> dict[str, Handed]:
    """Return what is handed in late."""
    return {
        f"late{number}": ({f"late{number}/{NAMES[exercise]}.py": RIGHT[exercise]}, 100, "")
        for number, exercise in enumerate(("02", "04", "08"))
    }


def in_time() -> dict[str, Handed]:
    """Return what 57 students hand in, by student."""
    return {**_right(), **_wrong(), **_odd(), **_uploaded()}


def _right() -> dict[str, Handed]:
    """Return right submissions: plain, under other names, in notebooks, and copied from one another."""
    found: dict[str, tuple[str, str]] = {}
    for number in range(16):
        exercise = f"{number % 11:02}"
        found[f"right{number:02}"] = f"{NAMES[exercise]}.py", f"# {number}\n{RIGHT[exercise]}"
    for number in range(2):
        found[f"other-name{number}"] = f"solution{number}.py", DDP.replace("grads", f"g{number}")
        found[f"copy{number}"] = "03_zero1.py", RIGHT["03"].replace("states", f"s{number}").replace("acts", "a")
    for number, exercise in enumerate(("02", "04", "09")):
        found[f"notebook{number}"] = f"{NAMES[exercise]}.ipynb", notebook(RIGHT[exercise])
    return {student: ({f"{student}/{name}": source}, 100, "") for student, (name, source) in found.items()}


def _wrong() -> dict[str, Handed]:
    """Return submissions that run, and are slow, wrong in ten ways, or endless."""
    found: dict[str, Handed] = {}
    for number in range(4):
        student = f"slow{number}"
        found[student] = (
            {f"{student}/02_ddp.py": f"number = {number}\n" * number + SLOW},
            85,
            "time: the step takes longer",
        )
    for name in WRONG:
        mistake, student = MISTAKES[name], f"wrong-{name}"
        reason = mistake.reason.partition(r"\n")[0]
        files: dict[str, str | bytes] = {f"{student}/{NAMES[mistake.exercise]}.py": mistake.source}
        found[student] = files, None, f"{mistake.check}: .*{reason}"
    for number in range(2):
        files = {f"endless{number}/02_ddp.py": f"# {number}\n{ENDLESS}"}
        found[f"endless{number}"] = files, 0, "runs: it was stopped after .* s; does it wait or loop for ever"
        files = {f"other-function{number}/02_ddp.py": DDP.replace("def ddp", f"def my_ddp{number}")}
        found[f"other-function{number}"] = files, 0, "runs: .*has no function 'ddp'"
    return found


def _odd() -> dict[str, Handed]:
    """Return what cannot be graded."""
    kinds: dict[str, tuple[str, str | bytes, str]] = {
        "empty": ("02_ddp.py", "\n", "it is empty"),
        "huge": ("02_ddp.py", "#" * (2**20 + 1), "it has more than 1048576 bytes"),
        "latin": ("02_ddp.py", "# caf\xe9\n".encode("latin-1"), "it is no text in UTF-8"),
        "zip": ("02_ddp.zip", b"PK\x03\x04", "it is no Python file: its name ends in .zip"),
        "nothing": ("notes.py", "x = 1\n", "it is for no exercise.*it has notes.py"),
    }
    return {
        f"{kind}{number}": ({f"{kind}{number}/{name}": content}, 0, reason)
        for kind, (name, content, reason) in kinds.items()
        for number in range(2)
    }


def _uploaded() -> dict[str, Handed]:
    """Return submissions with a helper: in folders, forgotten once, and in one folder under a platform's names."""
    found: dict[str, Handed] = {
        "importing0": (
            {"importing0/02_ddp.py": WITH_HELPER},
            0,
            "runs: .*ModuleNotFoundError: No module named 'helper'",
        )
    }
    for number in range(1, 3):
        student = f"importing{number}"
        found[student] = {f"{student}/02_ddp.py": WITH_HELPER, f"{student}/helper.py": HELPER}, 100, ""
    for number in range(3):
        first = f"student{number}_47{number}1_9901"
        found[f"student{number}_47{number}1"] = (
            {f"{first}2_02_ddp.py": WITH_HELPER, f"{first}3_helper-1.py": HELPER},
            100,
            "",
        )
    return found


def write_class(folder: Path, students: dict[str, Handed]) -> None:
    """Write what students hand in into one folder."""
    for files, _, _ in students.values():
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
