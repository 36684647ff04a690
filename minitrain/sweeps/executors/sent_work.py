"""Work as bytes that a worker on another machine can do: a function, its arguments, and the strategies' own files.

minitrain itself must be installed there. A strategy given as "path.py:function" is sent as its file and the files
beside it that it imports; the worker puts them into a folder of its own and loads the strategy from there. A function
of a module that is not installed is pickled by value, with the modules in its folder. Other files that a configuration
names (of hardware, of a model) are not sent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
import re
import site
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, final

from minitrain.run.chosen_strategy import split_options
from minitrain.run.strategy_loading import file_in, loading_from, unwrapped

Files = tuple[tuple[str, bytes], ...]


@final
@dataclasses.dataclass(frozen=True, slots=True)
class SentFolder:
    """A strategy's file and what it imports of its folder.

    Args:
        folder: where they lie for the caller.
        files: content by path relative to the folder.
    """

    folder: str
    files: Files


@final
class Sender:
    """Makes bytes of work.

    Args:
        strategies: what the work may simulate, as `simulate` takes strategies.
        pickler: cloudpickle, of the engine.
    """

    def __init__(self, strategies: Sequence[Any], pickler: ModuleType) -> None:
        self._pickler: Any = pickler
        self._folders = _folders_of(one for one in strategies if isinstance(one, str))
        self._modules = _modules_of(one for one in strategies if not isinstance(one, str))

    def bytes_of(self, function: Callable[..., Any], arguments: Sequence[Any]) -> bytes:
        """Return a call as bytes for `do_sent_work`.

        Raises:
            TypeError: something in it cannot be pickled.
        """
        with self._by_value():
            return bytes(self._pickler.dumps((function, tuple(arguments), self._folders)))

    @contextlib.contextmanager
    def _by_value(self) -> Iterator[None]:
        """Have modules pickled by value."""
        for module in self._modules:
            self._pickler.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in self._modules:
                self._pickler.unregister_pickle_by_value(module)


def do_sent_work(sent: bytes) -> Any:
    """Do work that was sent, and return its result; paths in the result are those of the caller."""
    function, arguments, folders = pickle.loads(sent)
    there = {path: _unpacked(sent_folder.files) / Path(path).name for path, sent_folder in folders.items()}
    with loading_from(there):
        result = function(*arguments)
    callers = {str(there[path].parent): sent_folder.folder for path, sent_folder in folders.items()}
    return _renamed(result, callers) if callers else result


@lru_cache(maxsize=64)
def _folder_for(_files: Files) -> tempfile.TemporaryDirectory[str]:
    """Return a folder for some files; Python removes it when the worker ends."""
    return tempfile.TemporaryDirectory(prefix="minitrain-strategy-")


def _unpacked(files: Files) -> Path:
    """Return the folder that holds some files."""
    folder = Path(_folder_for(files).name)
    for name, content in files:
        path = folder / name
        if not path.exists():  # another thread of this worker may load it by now
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(f".{len(content)}.part")
            partial.write_bytes(content)
            partial.replace(path)
    return folder


def _renamed(result: Any, folders: Mapping[str, str]) -> Any:
    """Return a result in whose texts folders of this worker have the names that the caller knows."""
    if isinstance(result, str):
        for here, there in folders.items():
            result = result.replace(here, there)
        return result
    if isinstance(result, list | tuple):
        return type(result)(_renamed(each, folders) for each in result)
    if isinstance(result, dict):
        return {name: _renamed(value, folders) for name, value in result.items()}
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        names = [field.name for field in dataclasses.fields(result) if field.init]
        return dataclasses.replace(result, **{name: _renamed(getattr(result, name), folders) for name in names})
    return result


def _folders_of(texts: Iterable[str]) -> dict[str, SentFolder]:
    """Return the folder to send for each file that strategies are given by."""
    paths = {str(path): path for text in texts if (path := file_in(split_options(text)[0])) is not None}
    return {
        name: SentFolder(str(path.parent) if path.parent != Path() else ".", _needed(path))
        for name, path in paths.items()
        if path.is_file()
    }


def _needed(path: Path) -> Files:
    """Return a file and those files and packages beside it that it names, or that these name."""
    folder = path.absolute().parent
    beside = {entry.stem: entry for entry in sorted(folder.iterdir()) if entry.suffix == ".py" or _is_package(entry)}
    wanted, files = [path.absolute()], dict[Path, bytes]()
    while wanted:
        here = wanted.pop()
        for file in [here] if here.is_file() else sorted(here.rglob("*.py")):
            files[file] = file.read_bytes()
            named = set(re.findall(rb"\w+", files[file]))
            wanted += [
                entry for name, entry in beside.items() if name.encode() in named and not _is_among(entry, files)
            ]
    return tuple((file.relative_to(folder).as_posix(), content) for file, content in sorted(files.items()))


def _is_package(entry: Path) -> bool:
    """Return whether an entry of a folder can be imported as a package."""
    return entry.is_dir() and any(entry.glob("*.py"))


def _is_among(entry: Path, files: Mapping[Path, bytes]) -> bool:
    """Return whether a file, or a package's files, were taken before."""
    return any(file == entry or entry in file.parents for file in files)


def _modules_of(functions: Iterable[Any]) -> list[ModuleType]:
    """Return the modules of functions that workers cannot import, with those in their folders."""
    found: dict[str, ModuleType] = {}
    for function in map(unwrapped, functions):
        module = sys.modules.get(getattr(function, "__module__", None) or type(function).__module__)
        if module is None or module.__name__ == "__main__" or _is_installed(module):  # __main__ goes anyhow
            continue
        folder = Path(str(module.__file__)).absolute().parent
        others = (other for other in list(sys.modules.values()) if _lies_in(other, folder))
        found |= {other.__name__: other for other in (module, *others) if sys.modules.get(other.__name__) is other}
    return list(found.values())


def _lies_in(module: ModuleType, folder: Path) -> bool:
    """Return whether a module's file lies in a folder, or deeper."""
    file = getattr(module, "__file__", None)
    is_main = getattr(module, "__name__", "__main__") == "__main__"
    return not is_main and isinstance(file, str) and folder in Path(file).absolute().parents


def _is_installed(module: ModuleType) -> bool:
    """Return whether workers have a module: of Python, of what is installed there, or of minitrain."""
    file = getattr(module, "__file__", None)
    if file is None or module.__name__.partition(".")[0] == "minitrain":
        return True
    folders = [*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("stdlib")]
    return any(Path(folder) in Path(file).absolute().parents for folder in folders)
