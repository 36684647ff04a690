"""The house as data: the floors of rooms in minitrain, and what every file imports.

What docs/architecture.py draws and what tests/project/test_architecture.py checks is read here and nowhere else. A path
is relative to the package, `engine/model.py`. A room is a folder or one of the few files beside them, `lib`.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from minitrain import PUBLIC_PATHS

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Room:
    """A room and what lives there, in the few words that the drawing has place for."""

    name: str
    holds: str


@dataclass(frozen=True, slots=True)
class Floor:
    """Rooms that do not import one another, and what they have in common."""

    title: str
    rooms: tuple[Room, ...]


# From the ground up: a room imports from the floors below its own, and from itself.
FLOORS = (
    Floor(
        "ground",
        (
            Room("errors", "what may go wrong"),
            Room("files", "files written whole or not"),
            Room("plain_text", "text that is safe to show"),
            Room("source_lines", "where a strategy is"),
        ),
    ),
    Floor("training", (Room("tensors", "five kinds, as symbols"),)),
    Floor("", (Room("operations", "what ranks do; the log"),)),
    Floor("", (Room("workloads", "what a layer costs and holds"),)),
    Floor("what it costs", (Room("machine", "devices, links, seconds"),)),
    Floor("", (Room("hw", "mt.hw, for users"),)),
    Floor("ranks", (Room("engine", "Model: laws and clocks"),)),
    Floor("", (Room("lib", "the specified names"),)),
    Floor("a run", (Room("run", "simulate, compare, Run"),)),
    Floor("runs seen", (Room("view", "pages, tables, exports"), Room("proof", "real numbers, and the proof"))),
    Floor(
        "runs again", (Room("training", "real processes, by torch"), Room("whatif", "other machines, noise, faults"))
    ),
    Floor("many runs", (Room("search", "schedules, sweeps, layouts"),)),
    Floor("", (Room("evidence", "measured runs, compared"),)),
    Floor("people", (Room("learn", "exercises, grades, explorer"),)),
    Floor("the front", (Room("__init__", "import minitrain as mt"),)),
    Floor("users", (Room("cli", "the command line"), Room("strategies", "those that are shipped"))),
    Floor("", (Room("__main__", "python -m minitrain"),)),
)
ROOMS = {room.name: room for floor in FLOORS for room in floor.rooms}
LEVELS = {room.name: level for level, floor in enumerate(FLOORS) for room in floor.rooms}


@dataclass(frozen=True, slots=True)
class Import:
    """One file imports another: at module level, inside a function, or for type checkers alone."""

    file: str
    line: int
    target: str
    kind: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.target} ({self.kind} level)"


def room_of(file: str) -> str:
    """Return the room that a file is in: its folder, or itself."""
    return file.partition("/")[0].removesuffix(".py")


def is_upward(found: Import) -> bool:
    """Return whether an import leads to another room that is not on a floor below."""
    here, there = room_of(found.file), room_of(found.target)
    return here != there and LEVELS[there] >= LEVELS[here]


@cache
def sources() -> dict[str, Path]:
    """Return all files of the package; scripts of the exercises are data, in folders that are no packages."""
    package = {path.relative_to(ROOT / "minitrain").as_posix(): path for path in (ROOT / "minitrain").rglob("*.py")}
    shipped = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / "strategies").glob("*.py")}
    found = {file: path for file, path in package.items() if not fnmatch(file, "learn/exercises/*/*")}
    return dict(sorted({**found, **shipped}.items()))


@cache
def text_of(file: str) -> str:
    """Return the text of a file."""
    return sources()[file].read_text(encoding="utf-8")


@cache
def tree_of(file: str) -> ast.Module:
    """Return the syntax tree of a file, made without the cycle collector, which would go through all the others."""
    gc.disable()
    try:
        return ast.parse(text_of(file))
    finally:
        gc.enable()


@cache
def imports() -> tuple[Import, ...]:
    """Return every import of one of our files by another, in the order of files and lines."""
    found = {one for file in sources() for one in _Reader(file).read()}
    return tuple(sorted(found, key=lambda one: (one.file, one.line, one.target)))


def circles(edges: Iterable[tuple[str, str]]) -> list[frozenset[str]]:
    """Return the sets of names that reach one another along edges."""
    successors: dict[str, set[str]] = {}
    for begin, end in edges:
        successors.setdefault(begin, set()).add(end)
    reached = {name: _reached(name, successors) for name in successors}
    found = {frozenset(other for other in reached[name] if name in reached.get(other, ())) for name in reached}
    return sorted((circle for circle in found if circle), key=sorted)


def _reached(name: str, successors: dict[str, set[str]]) -> set[str]:
    """Return what can be reached from a name in one step or more."""
    reached: set[str] = set()
    pending = set(successors[name])
    while pending:
        reached |= pending
        pending = {after for before in pending for after in successors.get(before, ())} - reached
    return reached


_BY_NAME = "import_module"


class _Reader(ast.NodeVisitor):
    """Reads the imports of one file: statements, and `import_module` of a name that is written there."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._kind = "module"
        self._calls_import = _BY_NAME in text_of(file)
        self._found: list[Import] = []

    def read(self) -> list[Import]:
        """Return what the file imports of ours."""
        self.visit(tree_of(self._file))
        return self._found

    def generic_visit(self, node: ast.AST) -> None:
        """Read what a statement consists of; an expression imports by a call alone."""
        if self._calls_import or not isinstance(node, ast.expr):
            super().generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Read a function: what it imports, it imports when it is called."""
        self._visit_as("function", node.body)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815  (ast's name)

    def visit_If(self, node: ast.If) -> None:
        """Read a condition: `if TYPE_CHECKING` is for type checkers alone."""
        is_typing = _last_name(node.test) == "TYPE_CHECKING"
        self._visit_as("typing" if is_typing else self._kind, node.body)
        self._visit_as(self._kind, node.orelse)

    def visit_Import(self, node: ast.Import) -> None:
        """Read `import a, b as c`."""
        for alias in node.names:
            self._add(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Read `from a import b`, where b is a module or a name in a."""
        folder = ["minitrain", *Path(self._file).parts[: -node.level]] if node.level else []
        module = ".".join([*folder, *([node.module] if node.module else [])])
        for alias in node.names:
            self._add(node, f"{module}.{alias.name}", module)

    def visit_Call(self, node: ast.Call) -> None:
        """Read `import_module("a.b")`; a name that is put together at run time is not seen."""
        if _last_name(node.func) == _BY_NAME and isinstance(node.args[0], ast.Constant):
            self._add(node, str(node.args[0].value))
        self.generic_visit(node)

    def _visit_as(self, kind: str, nodes: Iterable[ast.AST]) -> None:
        before, self._kind = self._kind, kind
        for node in nodes:
            self.visit(node)
        self._kind = before

    def _add(self, node: ast.stmt | ast.expr, *modules: str) -> None:
        """Note the first of some modules that is a file of ours."""
        target = next((file for module in modules for file in _files_of(module) if file in sources()), None)
        if target is not None and target != self._file:
            self._found.append(Import(self._file, node.lineno, target, self._kind))


def _last_name(node: ast.expr) -> str | None:
    """Return the `c` of `c` and of `a.b.c`, None for any other expression."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def _files_of(module: str) -> Iterator[str]:
    """Yield the files that a module of ours may be."""
    first, *parts = module.split(".")
    if first == "minitrain":
        parts = ".".join([PUBLIC_PATHS.get(parts[0], parts[0]), *parts[1:]]).split(".") if parts else []
        yield "/".join([*parts, "__init__.py"])
        if parts:
            yield "/".join(parts) + ".py"
