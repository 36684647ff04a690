"""Whatever is in a file that somebody names: it is read, or refused in one message of our own; see `mutated_files`.

`VERDICTS` says which kinds of files are read in spite of what is wrong: all others refuse.
`MINITRAIN_FUZZ_S=3600 pytest -m fuzz tests/project/test_mutated_files.py` damages them at random for an hour.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections import Counter
from pathlib import Path

import pytest

from minitrain.errors import MinitrainError
from minitrain.evidence.rows import LackingError
from tests.project.mutated_files import Reader, damaged, mutations, odd_places, readers

OPAQUE = {"measurements", "notebook", "trace"}
"""What holds values that others judge, if anybody: the code of a notebook, a trace's layers."""

VERDICTS: dict[str, set[str]] = {
    "nothing": {"all"},
    "byte order mark": {"all"},
    "CR LF": {"all"},
    "empty": {"rows of a sweep", "table of validate"},
    # which are then whole, and shorter
    "cut in the middle": {"documents", "loads of experts", "rows of a sweep", "schedule", "table of validate"},
    "bytes of a picture": set(),
    "UTF-16": {"trace"},  # as JSON may be
    "null bytes": {"students", "table of validate"},
    "a damaged archive": set(),
    "nested 100,000 deep": {"table of validate"},  # the name of a column
    "a list": set(),
    "a number": set(),
    "null": set(),
    "a key misspelt": OPAQUE
    | {"execution of Calculon", "exercise", "hardware config"},  # where files name their entries
    "a key twice": {"notebook", "rows of a sweep", "trace"},
    "not a number": {"notebook", "trace"},
    "without end": {"notebook", "trace"},
    "too large for a float": {"notebook", "trace"},
    "negative": OPAQUE | {"hardware config"},  # whose last number is of a note
    "zero": OPAQUE | {"budgets", "calibration", "checkpoint", "hardware config", "measured run", "scenario"},
    "29 digits": OPAQUE
    | {"adapters of PEFT", "budgets", "calibration", "checkpoint", "execution of Calculon", "hardware config"}
    | {"measured run", "plan"}
    | {"model of Hugging Face", "models of the platform", "scenario"},
    "true for a number": OPAQUE | {"hardware config"},
    "text for a number": OPAQUE | {"hardware config"},
    "null for a number": OPAQUE | {"model of Hugging Face", "plan"},  # where nothing may be said
    "a list for a number": OPAQUE | {"hardware config"},
    "an object for a number": OPAQUE,
    "a folder": {"budgets", "hidden sizes"},  # which an exercise may lack
    "a pipe": {"budgets", "hidden sizes"},
    "a device": {"budgets", "hidden sizes"},
    "nothing there": {"budgets", "checkpoint", "hidden sizes", "measurements", "rows of a sweep"},
}
KINDS = [
    "hardware config", "cluster", "calibration", "platform", "measurements", "models of the platform", "scenario",
    "trace", "model of Hugging Face", "adapters of PEFT", "recipe", "schedule", "plan", "execution of Calculon",
    "rows of a sweep", "table of validate", "run file", "measured run", "checkpoint", "exercise", "hidden sizes",
    "budgets", "prices", "documents", "loads of experts", "students", "notebook",
]  # fmt: skip
_RAW = re.compile(r"\b[A-Z]\w+Error\(|Traceback|<class |object at 0x|argument of type|has no attribute")


@pytest.fixture(scope="session")
def all_readers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    """Return all kinds of files."""
    return readers(tmp_path_factory.mktemp("right"))


def verdict(reader: Reader, path: Path) -> str:
    """Return "read" or "refused", and require one readable message of our own."""
    try:
        reader.read(path)
    except (MinitrainError, LackingError) as error:  # the latter says why a row of a table is not answered
        message = str(error)
    else:
        return "read"
    assert not _RAW.search(message), message
    assert len(message) < 20_000
    return "refused"


def test_every_kind_of_file_is_tried(all_readers: dict[str, Reader]) -> None:
    assert [*all_readers] == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_read_or_refused_as_the_table_says(kind: str, all_readers: dict[str, Reader], tmp_path: Path) -> None:
    reader, found, tried = all_readers[kind], set(), 0
    is_json = reader.name.endswith(("json", "jsonl", "ipynb"))
    for what, raw in mutations(reader.text, is_json=is_json):
        tried += 1
        path = tmp_path / reader.name
        path.write_bytes(raw)
        if verdict(reader, path) == "read":
            found.add(what.partition(" (")[0])
    for what, place in odd_places(tmp_path):
        tried += 1
        path.unlink()
        path.symlink_to(place)
        if verdict(reader, path) == "read":
            found.add(what)
    expected = {what for what, kinds in VERDICTS.items() if kinds & {kind, "all"}}
    assert found == expected
    assert tried >= (19 if is_json else 14)


@pytest.mark.fuzz
@pytest.mark.timeout(0)  # it takes as long as it is told
def test_a_damaged_file_is_read_or_refused(all_readers: dict[str, Reader], tmp_path: Path) -> None:
    source, outcomes = random.Random(int(os.environ.get("MINITRAIN_FUZZ_SEED", "0"))), Counter[tuple[str, str]]()
    until = time.monotonic() + float(os.environ.get("MINITRAIN_FUZZ_S", "2"))
    wrong: dict[tuple[str, str], bytes] = {}
    while time.monotonic() < until:
        kind = source.choice(KINDS)
        path, text = tmp_path / all_readers[kind].name, damaged(source, all_readers[kind].text.encode())
        path.write_bytes(text)
        try:
            outcomes[kind, verdict(all_readers[kind], path)] += 1
        except Exception as error:  # each is told, and once
            wrong.setdefault((kind, type(error).__name__), text)
    print(f"{sum(outcomes.values())} damaged files, {dict(sorted(outcomes.items()))}")
    assert not wrong
