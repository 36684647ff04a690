"""A reference solution as one file that runs wherever it lies: what it imports from the shipped strategies is in it."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

from minitrain.errors import UsageError
from minitrain.learn.exercise import Exercise

_STRATEGIES = "minitrain.strategies"


def solution_of(exercise: Exercise) -> str:
    """Return the source of an exercise's reference, which needs minitrain alone and none of its strategies.

    Raises:
        UsageError: the reference is not there, as in the wheel for students.
    """
    if not exercise.has_reference:
        raise UsageError(f"the solution of {exercise.name} is not part of this installation; ask your teacher for it")
    path = exercise.folder / "reference.py"
    text = path.read_text(encoding="utf-8")
    if not any(_of_strategies(node) for node in ast.parse(text).body):
        return text
    bundle = _Bundle()
    bundle.add(path, exercise.function)
    return bundle.text(f"The reference solution of exercise {exercise.number}: {exercise.title}.")


def _of_strategies(node: ast.stmt) -> bool:
    """Return whether a statement imports from the shipped strategies."""
    return isinstance(node, ast.ImportFrom) and (node.level > 0 or (node.module or "").startswith(_STRATEGIES))


class _Bundle:
    """Definitions of several files, each once and after those that it needs, and the imports that they need."""

    def __init__(self) -> None:
        self._imports: dict[str, None] = {}
        self._definitions: dict[tuple[Path, str], str] = {}
        self._begun: set[tuple[Path, str]] = set()

    def add(self, path: Path, name: str) -> None:
        """Add what a file calls by a name, and all that it needs."""
        if (path, name) in self._begun:
            return
        self._begun.add((path, name))
        text = path.read_text(encoding="utf-8")
        node = _binding(ast.parse(text), name)
        if isinstance(node, ast.ImportFrom) and _of_strategies(node):
            self.add(_file_of(node, path, name), name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self._imports[_import(node, name)] = None
        elif node is not None:
            for needed in _names_in(node):
                self.add(path, needed)
            self._definitions[path, name] = _source(text, node)

    def text(self, docstring: str) -> str:
        """Return one file of all of it."""
        imports = sorted(self._imports, key=lambda line: ("minitrain" in line, line))
        return (
            "\n".join([f'"""{docstring}"""\n', *imports])
            + "".join(
                f"\n\n\n{definition}" if definition.startswith(("def ", "async ", "class ")) else f"\n\n{definition}"
                for definition in self._definitions.values()
            ).rstrip()
            + "\n"
        )


def _binding(tree: ast.Module, name: str) -> ast.stmt | None:
    """Return the statement of a file that gives a name its value, None if there is none."""
    return next((node for node in tree.body if name in _bound(node)), None)


def _bound(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement gives values to."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name for alias in node.names)
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _names_in(node: ast.stmt) -> list[str]:
    """Return the names that a statement uses, also in annotations that are text, in the order of the alphabet."""
    return sorted({found.id for found in ast.walk(node) if isinstance(found, ast.Name)} - set(_bound(node)))


def _file_of(node: ast.ImportFrom, path: Path, name: str) -> Path:
    """Return the file from which a name comes."""
    if node.level:
        return path.parent / f"{node.module}.py"
    found = getattr(importlib.import_module(node.module or _STRATEGIES), name)
    return Path(inspect.getsourcefile(found) or path)


def _import(node: ast.Import | ast.ImportFrom, name: str) -> str:
    """Return the import of one name alone."""
    names = [alias for alias in node.names if (alias.asname or alias.name) == name]
    if isinstance(node, ast.ImportFrom):
        return ast.unparse(ast.ImportFrom(node.module, names, node.level))
    return ast.unparse(ast.Import(names))


def _source(text: str, node: ast.stmt) -> str:
    """Return a statement as it is written, with its comments."""
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
    return "\n".join(text.splitlines()[first - 1 : node.end_lineno])
