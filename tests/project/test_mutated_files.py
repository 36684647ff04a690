"""Whatever is in a file that somebody names: it is read, or refused in one message of our own; see `mutated_files`.

`VERDICTS` says which kinds of files are read in spite of what is wrong: all others refuse.
`MINITRAIN_FUZZ_S=3600 pytest -m fuzz tests/project/test_mutated_files.py` damages them at random for an hour.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from minitrain.errors import MinitrainError
from minitrain.evidence.rows import LackingError
from tests.project.mutated_files import DAMAGES, Reader, mutations, odd_places, readers

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
    "negative": OPAQUE,
    "zero": OPAQUE | {"budgets", "calibration", "checkpoint", "measured run", "scenario"},
    "29 digits": OPAQUE
    | {"adapters of PEFT", "budgets", "calibration", "checkpoint", "execution of Calculon", "hardware config"}
    | {"measured run"}
    | {"model of Hugging Face", "models of the platform", "scenario"},
    "true for a number": OPAQUE,
    "text for a number": OPAQUE,
    "null for a number": OPAQUE | {"model of Hugging Face"},  # where nothing may be said
    "a list for a number": OPAQUE,
    "an object for a number": OPAQUE,
    "a folder": {"budgets", "hidden sizes"},  # which an exercise may lack
    "a pipe": {"budgets", "hidden sizes"},
    "a device": {"budgets", "hidden sizes"},
    "nothing there": {"budgets", "checkpoint", "hidden sizes", "measurements", "rows of a sweep"},
}
KINDS = [
    "hardware config", "cluster", "calibration", "platform", "measurements", "models of the platform", "scenario",
    "trace", "model of Hugging Face", "adapters of PEFT", "recipe", "schedule", "execution of Calculon",
    "rows of a sweep", "table of validate", "run file", "measured run", "checkpoint", "exercise", "hidden sizes",
    "budgets", "prices", "documents", "loads of experts", "students", "notebook",
]  # fmt: skip
SLOWEST_S = 10.0  # of a processor, to read a file of some kB
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


def test_files_are_damaged_without_torch_too() -> None:
    code = "import sys; sys.modules['torch'] = None; import tests.project.mutated_files"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


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


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` in what takes more time of a processor."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"not ended after {seconds} s of a processor")

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@pytest.mark.fuzz
@pytest.mark.timeout(0)  # it takes as long as it is told
def test_a_damaged_file_is_read_or_refused(all_readers: dict[str, Reader], tmp_path: Path) -> None:
    outcomes, wrong = Counter[tuple[str, str, str]](), dict[tuple[str, str], tuple[str, bytes]]()

    @settings(
        max_examples=300,
        derandomize=False,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[*HealthCheck],
    )
    @given(st.sampled_from(KINDS), st.sampled_from([*DAMAGES]), st.randoms())
    def attempt(kind: str, damage: str, source: random.Random) -> None:
        text = DAMAGES[damage](source, all_readers[kind].text)
        path = tmp_path / all_readers[kind].name
        path.write_bytes(text)
        try:
            with limited(SLOWEST_S):
                outcomes[kind, damage, verdict(all_readers[kind], path)] += 1
        except Exception as error:  # each is told, and once
            if (kind, type(error).__name__) not in wrong:
                print(f"{kind}, {damage}: {error!r:.2000}\n{text[:3000]!r}", flush=True)
            wrong.setdefault((kind, type(error).__name__), (damage, text))

    rounds = int(os.environ.get("MINITRAIN_FUZZ_SEED", "0"))
    until = time.monotonic() + float(os.environ.get("MINITRAIN_FUZZ_S", "0"))
    while True:
        seed(rounds)(attempt)()
        rounds += 1
        if time.monotonic() > until:
            break
    table = {kind: {d: (outcomes[kind, d, "read"], outcomes[kind, d, "refused"]) for d in DAMAGES} for kind in KINDS}
    print(f"{outcomes.total()} damaged files", *(f"{kind}: {row}" for kind, row in table.items()), sep="\n")
    assert not wrong
