"""Importing the files beside a strategy's file, as `python file.py` does, but apart from those of other strategies.

Python would find `helper.py` by its folder on `sys.path`, under the bare name `helper`, which then belongs to the whole
process: a second strategy with another `helper.py` would get the first one's. So a strategy's file and those beside it
become modules of a package of its own, and their imports of one another are read as relative ones: `import helper` as
`from . import helper`. Names of the standard library and of minitrain keep their meaning; what else is installed comes
second, as with `python file.py`.

Left out: what is imported under a name that is put together (`importlib.import_module(name)`), and extension modules.
"""

from __future__ import annotations

import ast
import contextlib
import re
import sys
from collections.abc import Sequence
from hashlib import sha256
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

_PREFIX = "minitrain_strategy_"
_TAKEN = sys.stdlib_module_names | {"minitrain"}


def fresh_module(path: Path) -> ModuleType:
    """Return the module of a strategy's file, which is not executed yet; what its package held before is forgotten."""
    folder, name = path.absolute().parent, re.sub(r"\W", "_", path.stem)
    package = ModuleType(f"{_PREFIX}{name}_{sha256(bytes(path.absolute())).hexdigest()[:8]}")
    package.__path__ = [str(folder)]
    for known in [known for known in list(sys.modules) if known.startswith(f"{package.__name__}.")]:
        sys.modules.pop(known, None)
    sys.modules[package.__name__] = package
    if not any(isinstance(finder, _FindsBeside) for finder in sys.meta_path):
        sys.meta_path.insert(0, _FindsBeside())  # Python's own would find them, too, and not rewrite imports
    full_name = f"{package.__name__}.{name}"
    spec = spec_from_file_location(full_name, path, loader=_Loader(full_name, str(path)))
    assert spec is not None  # it has a loader
    module = module_from_spec(spec)
    sys.modules[full_name] = module  # where dataclasses and pickles look for what a class refers to
    return module


def why_not_imported(error: BaseException, path: Path) -> str:
    """Return in words that an import found a module of Python's, where that may be why loading a file failed.

    Args:
        error: what loading raised.
        path: the file.
    """
    name = getattr(error, "name", None) if isinstance(error, ImportError) else _module_asked(error)
    if name not in _TAKEN or name not in _names_beside(path.absolute().parent):
        return ""
    owner = "minitrain" if name == "minitrain" else "Python's own"
    return f"; {name} is {owner} module, not the {name} beside {path.name}: call that otherwise"


def _module_asked(error: BaseException) -> Any:
    """Return the name of the module that has no attribute of a name, if that is the error."""
    return getattr(getattr(error, "obj", None), "__name__", None) if isinstance(error, AttributeError) else None


def as_imported(text: str, module: ModuleType) -> str:
    """Return an error's text with the names of files beside a strategy's as these import one another."""
    return text.replace(f"{module.__name__.partition('.')[0]}.", "")


class _FindsBeside:
    """Find the modules of the packages that strategies' files have."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:  # noqa: ARG002  (Python's names)
        """Return where a module is found, or None."""
        if not fullname.startswith(_PREFIX) or path is None:
            return None
        found = (FileFinder(folder, (_Loader, SOURCE_SUFFIXES)).find_spec(fullname) for folder in path)
        return next(filter(None, found), None)


class _Loader(SourceFileLoader):
    """Load a file whose imports of files beside the strategy are relative."""

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code of the module; what Python keeps in __pycache__ is that of `python file.py`, and stays so."""
        folder = Path(sys.modules[fullname.partition(".")[0]].__path__[0])
        source = self.get_data(self.path)
        names = {name for name in _names_beside(folder) - _TAKEN if name.encode() in source}
        if not names:
            return super().get_code(fullname)
        depth = fullname.count(".") + self.is_package(fullname)
        tree = _Relative(names, depth).visit(ast.parse(source, self.path))
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)


def _names_beside(folder: Path) -> set[str]:
    """Return the names under which the files and packages of a folder can be imported; none if it cannot be read."""
    with contextlib.suppress(OSError):
        entries = list(folder.iterdir())
        files = {entry.stem for entry in entries if entry.suffix == ".py"}
        return files | {entry.name for entry in entries if entry.is_dir() and _is_package(entry)}
    return set()


def _is_package(folder: Path) -> bool:
    """Return whether a folder is imported by its name: without an __init__.py, what is installed comes first."""
    if (folder / "__init__.py").is_file():
        return True
    return any(folder.glob("*.py")) and PathFinder.find_spec(folder.name) is None


class _Relative(ast.NodeTransformer):
    """Make absolute imports of some modules relative.

    Args:
        names: of the modules.
        level: how many packages up they lie.
    """

    def __init__(self, names: set[str], level: int) -> None:
        self.names = names
        self.level = level

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        """Read `from helper import x` as `from .helper import x`."""
        if not node.level and node.module and node.module.partition(".")[0] in self.names:
            node.level = self.level
        return node

    def visit_Import(self, node: ast.Import) -> list[ast.AST]:
        """Read `import helper` as `from . import helper`, each name of a statement for itself."""
        return [made for alias in node.names for made in self._imported(node, alias)]

    def _imported(self, node: ast.Import, alias: ast.alias) -> list[ast.AST]:
        """Return the statements that one name of an import becomes."""
        top, _, rest = alias.name.partition(".")
        if top not in self.names:
            return [ast.copy_location(ast.Import([alias]), node)]
        if not rest:
            return [self._from(node, None, alias.name, alias.asname)]
        parent, _, last = alias.name.rpartition(".")
        if alias.asname:
            return [self._from(node, parent, last, alias.asname)]
        name = f"_{last}_of_{parent.replace('.', '_')}"  # the import itself makes it an attribute of its package
        return [self._from(node, None, top, None), self._from(node, parent, last, name)]

    def _from(self, node: ast.Import, module: str | None, name: str, as_name: str | None) -> ast.AST:
        """Return a relative import at the place of another."""
        return ast.copy_location(ast.ImportFrom(module, [ast.alias(name, as_name)], self.level), node)
