"""The sizes of the default layer are read where they belong; all others ask the workload of the run."""

from __future__ import annotations

import ast
from pathlib import Path

import minitrain

CONSTANTS = {"BLOCK_SIZE", "BYTES_PER_ELEMENT", "DATATYPE", "HIDDEN_SIZE"}
READERS = {"tensors/__init__.py", "tensors/kinds.py", "workloads/matmul.py", "lib.py"}


def names_in(path: Path) -> set[str]:
    """Return all names that a file imports, reads or asks an object for."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.alias):
            found.add(node.name)
    return found


def test_only_the_tensors_their_workload_and_the_specified_surface_name_the_sizes_of_the_default_layer() -> None:
    root = Path(minitrain.__file__).parent
    said = [path for path in root.rglob("*.py") if any(name in path.read_text("utf-8") for name in CONSTANTS)]
    naming = {path.relative_to(root).as_posix() for path in said if names_in(path) & CONSTANTS}
    assert naming == READERS
