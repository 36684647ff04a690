"""A reference solution as one file that runs wherever it lies: what it imports from the shipped strategies is in it.

What an exercise never asks for is left out: checks of sizes, shares that a run gives to ranks, and what docstrings say
of arguments.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path

from minitrain.errors import UsageError
from minitrain.learn.exercise import Exercise

_STRATEGIES = "minitrain.strategies"
_CHECKS = "require_"
"""How the names of functions begin that refuse sizes."""

_KNOWN = {"_has_shares": False, "are_alike": True, "layers_per_stage is None": True}
"""What always holds in an exercise, by a call's function or by an expression."""


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
            source = _shortened(_source(text, node))
            for needed in _names_in(ast.parse(source).body[0]):
                self.add(path, needed)
            self._definitions[path, name] = source

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
    return "\n".join(text.splitlines()[_first_line(node) - 1 : node.end_lineno])


def _shortened(source: str) -> str:
    """Return a definition without what no exercise asks for."""
    return "\n".join(_kept(ast.parse(source).body, source.splitlines(), 0))


def _kept(block: Sequence[ast.stmt], lines: Sequence[str], at: int) -> list[str]:
    """Return the lines of a block's statements that are kept, with the comments before them; `at` is its first line."""
    found: list[str] = []
    for node in block:
        first, end = _first_line(node) - 1, node.end_lineno or 0
        before, at = [*lines[at:first]], end
        known = _holds(node.test) if isinstance(node, ast.If) else None
        if isinstance(node, ast.If) and known is not None:
            chosen = node.body if known else node.orelse
            found += before + [line.removeprefix("    ") for line in _kept(chosen, lines, _start(chosen, first))]
            if chosen and isinstance(chosen[-1], ast.Return):
                return found
        elif not _is_left_out(node):
            found += before + _kept_of(node, lines, first, end)
    return found


def _kept_of(node: ast.stmt, lines: Sequence[str], first: int, end: int) -> list[str]:
    """Return the kept lines of one statement."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        text = lines[first]
        return [text if text.rstrip().endswith('"""') and end == first + 1 else f'{text.rstrip()}"""']
    body: list[ast.stmt] = getattr(node, "body", [])
    if not body:
        return [*lines[first:end]]
    start, last = _start(body, first), body[-1].end_lineno or 0
    inner = _kept(body, lines, start)
    return [*lines[first:start], *inner, *lines[last:end]] if any(line.strip() for line in inner) else []


def _start(block: Sequence[ast.stmt], otherwise: int) -> int:
    """Return the first line of a block."""
    return _first_line(block[0]) - 1 if block else otherwise


def _first_line(node: ast.stmt) -> int:
    """Return the number of a statement's first line, which may be a decorator's."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min(node.lineno, *(one.lineno for one in decorators)) if decorators else node.lineno


def _is_left_out(node: ast.stmt) -> bool:
    """Return whether a statement only checks sizes, or says what is known."""
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], ast.Name) and node.targets[0].id in _KNOWN
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id.startswith(_CHECKS)


def _holds(test: ast.expr) -> bool | None:
    """Return whether a condition holds in every exercise; None where that depends."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        found = _holds(test.operand)
        return None if found is None else not found
    if isinstance(test, ast.BoolOp):
        parts, decides = [_holds(part) for part in test.values], isinstance(test.op, ast.Or)
        return decides if decides in parts else None if None in parts else not decides
    return _KNOWN.get(ast.unparse(test.func if isinstance(test, ast.Call) else test))
