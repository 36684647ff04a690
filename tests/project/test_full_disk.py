"""What is written to a disk that is full is whole or absent: no half file, and what was there stays.

A limit on the size of a file stands for the disk: a write beyond it fails as one on a full disk does.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import pytest

import minitrain as mt
from minitrain.learn import shipped_exercises
from minitrain.learn.notebook import write_notebooks
from minitrain.learn.wheel import write_zip
from minitrain.machine.measured_layers import LayerTime, write_layers
from tests.evidence.test_real_runs import contributed
from tests.training.test_calibration import TRUTH

LIMIT_BYTES = 300
ROWS = [LayerTime(1, 1, layer, layer, 0.1, 0.2, 0.3, "a", "b") for layer in range(40)]


@cache
def run() -> mt.Run:
    return mt.simulate("ddp", world_size=2, num_layers=2, global_batch_size=4)


@cache
def sweep() -> mt.Sweep:
    return mt.sweep(["ddp", "zero3"], {"world_size": [2, 4], "num_layers": [4], "global_batch_size": [8]}, jobs=1)


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, hard))
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # Python would keep modules cut short
    try:
        yield
    finally:
        sys.dont_write_bytecode = before
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


WRITERS: dict[str, Callable[[Path], object]] = {
    "run.jsonl": lambda path: run().save(path),
    "run.jsonl.gz": lambda path: run().save(path),
    "page.html": lambda path: run().write_html(path),
    "machine.json": TRUTH.write,
    "package.zip": lambda path: write_zip(path, {"noise": os.urandom(9000)}),
    "layers.csv": partial(write_layers, ROWS),
    "sweep.csv": lambda path: sweep().write_csv(path),
    "run.json": lambda path: contributed(path.parent, losses=[1.0] * 100),
    f"{next(iter(shipped_exercises())).name}.ipynb": lambda path: write_notebooks(path.parent, shipped_exercises()[:1]),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_is_whole_or_absent(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with full_disk(), pytest.raises((OSError, mt.MinitrainError), match=name):
        WRITERS[name](path)
    assert not [*tmp_path.iterdir()]
    WRITERS[name](path)
    before = path.read_bytes()
    assert len(before) > LIMIT_BYTES
    with full_disk(), pytest.raises((OSError, mt.MinitrainError)):
        WRITERS[name](path)
    assert [*tmp_path.iterdir()] == [path]
    assert path.read_bytes() == before
